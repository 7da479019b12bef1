// The device layer of emitted CUDA text, in two parts: what only a GPU can do, and what follows from it, which the host
// shim of tests/simt shares. Inline PTX stands here and nowhere else.
#include "codegen/emit_cuda.h"

namespace gptc {

static const char *const primitives = R"cuda(#pragma once
#define GPTC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define GPTC_FUNCTION static __device__ __forceinline__
#define GPTC_SHARED(type, name, size) __shared__ type name[size]
#define GPTC_PRIVATE(type, name, size) type name[size]
template <class T> using Global = T *;

GPTC_FUNCTION int blockIndex() { return blockIdx.x; }
GPTC_FUNCTION int threadIndex() { return threadIdx.x; }
GPTC_FUNCTION void barrier() { __syncthreads(); }
template <class T> GPTC_FUNCTION T shuffleXor(T v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

GPTC_FUNCTION unsigned bitsOf(float v) { return __float_as_uint(v); }
GPTC_FUNCTION long long bitsOf(double v) { return __double_as_longlong(v); }
GPTC_FUNCTION float floatOf(unsigned v) { return __uint_as_float(v); }
GPTC_FUNCTION double doubleOf(long long v) { return __longlong_as_double(v); }

GPTC_FUNCTION float fusedMultiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
GPTC_FUNCTION double fusedMultiplyAdd(double a, double b, double c) { return __fma_rn(a, b, c); }
GPTC_FUNCTION float divide(float a, float b) { return __fdiv_rn(a, b); }
GPTC_FUNCTION double divide(double a, double b) { return __ddiv_rn(a, b); }
GPTC_FUNCTION float squareRoot(float v) { return __fsqrt_rn(v); }
GPTC_FUNCTION double squareRoot(double v) { return __dsqrt_rn(v); }
GPTC_FUNCTION float roundDown(float v) { return floorf(v); }
GPTC_FUNCTION double roundDown(double v) { return floor(v); }
GPTC_FUNCTION float magnitude(float v) { return fabsf(v); }
GPTC_FUNCTION double magnitude(double v) { return fabs(v); }

GPTC_FUNCTION float floatOfF16(unsigned short bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
  return r;
}
GPTC_FUNCTION unsigned short bitsOfF16(float v) {  // to the nearest, ties to even
  unsigned short r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}

// Elements, and packs of them in one access, as they lie in memory.
template <class T, class I> GPTC_FUNCTION T readRaw(const T *p, I i) { return p[i]; }
template <class T, class I> GPTC_FUNCTION void writeRaw(T *p, I i, T v) { p[i] = v; }
template <class V, class T, class I> GPTC_FUNCTION V readPack(const T *p, I i) {
  return *reinterpret_cast<const V *>(p + i);
}
template <class V, class T, class I> GPTC_FUNCTION void writePack(T *p, I i, const V &v) {
  *reinterpret_cast<V *>(p + i) = v;
}
)cuda";

static const char *const common = R"cuda(
GPTC_FUNCTION int wrapAdd(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
GPTC_FUNCTION int wrapSub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
GPTC_FUNCTION int wrapMul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }
typedef unsigned long long u64;
GPTC_FUNCTION long long wrapAdd(long long a, long long b) { return (long long)((u64)a + (u64)b); }
GPTC_FUNCTION long long wrapSub(long long a, long long b) { return (long long)((u64)a - (u64)b); }
GPTC_FUNCTION long long wrapMul(long long a, long long b) { return (long long)((u64)a * (u64)b); }
GPTC_FUNCTION int magnitude(int v) { return v < 0 ? wrapSub(0, v) : v; }
GPTC_FUNCTION long long magnitude(long long v) { return v < 0 ? wrapSub(0ll, v) : v; }
// The second operand where either is NaN.
template <class T> GPTC_FUNCTION T minimum(T a, T b) { return a < b ? a : b; }
template <class T> GPTC_FUNCTION T maximum(T a, T b) { return a > b ? a : b; }

// Storage formats: T in memory is a value of type Storage<T>::Value.
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
template <class T> struct Storage {
  typedef T Value;
  static GPTC_METHOD T pack(T v) { return v; }
  static GPTC_METHOD T unpack(T v) { return v; }
};
template <> struct Storage<bf16> {
  typedef float Value;
  static GPTC_METHOD bf16 pack(float v) {  // to the nearest, ties to even; denormals to zero
    unsigned u = bitsOf(v);
    u = v != v                    ? u | 0x400000u
        : (u & 0x7f800000u) == 0u ? u & 0x80000000u
                                  : u + 0x7fffu + ((u >> 16) & 1u);
    return bf16{(unsigned short)(u >> 16)};
  }
  static GPTC_METHOD float unpack(bf16 v) { return floatOf((unsigned)v.bits << 16); }
};
template <> struct Storage<f16> {
  typedef float Value;
  static GPTC_METHOD f16 pack(float v) { return f16{bitsOfF16(v)}; }
  static GPTC_METHOD float unpack(f16 v) { return floatOfF16(v.bits); }
};
GPTC_FUNCTION float roundBF16(float v) { return Storage<bf16>::unpack(Storage<bf16>::pack(v)); }
GPTC_FUNCTION float roundF16(float v) { return Storage<f16>::unpack(Storage<f16>::pack(v)); }

template <class T> struct ElementOf;  // of what a buffer's name is
template <class T> struct ElementOf<T *> { typedef T type; };
template <class T> struct ElementOf<const T *> { typedef T type; };
template <class T, int N> struct ElementOf<T[N]> { typedef T type; };

template <class P, class I> GPTC_FUNCTION auto load(P &p, I i) {
  return Storage<typename ElementOf<P>::type>::unpack(readRaw(p, i));
}
template <class P, class I, class V> GPTC_FUNCTION void store(P &p, I i, V v) {
  writeRaw(p, i, Storage<typename ElementOf<P>::type>::pack(v));
}

template <class T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Vector { T v[W]; };
template <int W, class P, class I> GPTC_FUNCTION auto loadVector(P &p, I i) {
  typedef typename ElementOf<P>::type T;
  const Vector<T, W> raw = readPack<Vector<T, W>>(p, i);
  Vector<typename Storage<T>::Value, W> r;
#pragma unroll
  for (int l = 0; l < W; ++l)
    r.v[l] = Storage<T>::unpack(raw.v[l]);
  return r;
}
template <class P> using ValueOf = typename Storage<typename ElementOf<P>::type>::Value;
template <int W, class P, class I> GPTC_FUNCTION void storeVector(P &p, I i, const Vector<ValueOf<P>, W> &value) {
  typedef typename ElementOf<P>::type T;
  Vector<T, W> raw;
#pragma unroll
  for (int l = 0; l < W; ++l)
    raw.v[l] = Storage<T>::pack(value.v[l]);
  writePack(p, i, raw);
}
)cuda";

std::string cudaDeviceLayer() {
  return std::string(primitives) + "#define GPTC_METHOD __device__ __forceinline__\n" + common;
}
const char *cudaDeviceCommon() { return common; }

}  // namespace gptc
