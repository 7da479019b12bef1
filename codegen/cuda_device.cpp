// The device layer of emitted CUDA text. Inline PTX stands here and nowhere else.
#include "codegen/emit_cuda.h"

namespace gptc {

const char *cudaDeviceLayer() {
  return R"cuda(#pragma once
#define GPTC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define GPTC_FUNCTION static __device__ __forceinline__
#define GPTC_SHARED(type, name, size) __shared__ type name[size]
#define GPTC_PRIVATE(type, name, size) type name[size]

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
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

// Storage formats: as they lie in memory, and as values. Rounding is to the nearest, ties to even.
GPTC_FUNCTION float valueOf(bf16 v) { return floatOf((unsigned)v.bits << 16); }
GPTC_FUNCTION float valueOf(f16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
template <class T> GPTC_FUNCTION T valueOf(T v) { return v; }
template <class T> struct Pack;
template <> struct Pack<bf16> {
  static __device__ __forceinline__ bf16 of(float v) {
    unsigned u = bitsOf(v);
    u = v != v                     ? u | 0x400000u
        : (u & 0x7f800000u) == 0u ? u & 0x80000000u  // as kir says of denormals
                                  : u + 0x7fffu + ((u >> 16) & 1u);
    return bf16{(unsigned short)(u >> 16)};
  }
};
template <> struct Pack<f16> {
  static __device__ __forceinline__ f16 of(float v) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
  }
};
template <class T> struct Pack { static __device__ __forceinline__ T of(T v) { return v; } };
GPTC_FUNCTION float roundBF16(float v) { return valueOf(Pack<bf16>::of(v)); }
GPTC_FUNCTION float roundF16(float v) { return valueOf(Pack<f16>::of(v)); }

template <class T, class I> GPTC_FUNCTION auto load(const T *p, I i) { return valueOf(p[i]); }
template <class T, class I, class V> GPTC_FUNCTION void store(T *p, I i, V v) { p[i] = Pack<T>::of(v); }

template <class T> struct Value { typedef T type; };
template <> struct Value<bf16> { typedef float type; };
template <> struct Value<f16> { typedef float type; };
template <class T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Vector { T v[W]; };
template <int W, class T, class I> GPTC_FUNCTION auto loadVector(const T *p, I i) {
  Vector<T, W> raw = *reinterpret_cast<const Vector<T, W> *>(p + i);
  Vector<typename Value<T>::type, W> r;
#pragma unroll
  for (int l = 0; l < W; ++l)
    r.v[l] = valueOf(raw.v[l]);
  return r;
}
template <int W, class T, class I> GPTC_FUNCTION void storeVector(T *p, I i, Vector<typename Value<T>::type, W> value) {
  Vector<T, W> raw;
#pragma unroll
  for (int l = 0; l < W; ++l)
    raw.v[l] = Pack<T>::of(value.v[l]);
  *reinterpret_cast<Vector<T, W> *>(p + i) = raw;
}
)cuda";
}

}  // namespace gptc
