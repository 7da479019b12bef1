// The device layer of emitted CUDA text, in two parts: what only a GPU can do, and what follows from it, which the host
// shim of tests/simt shares. Inline PTX stands here and nowhere else.
#include "codegen/cuda/emit.h"

namespace gptc {

static const char *const primitives = R"cuda(#pragma once
#define GPTC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// Tiles are chosen for the registers that they need: the compiler must not spill some to make room for one block more.
#define GPTC_TILE_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define GPTC_FUNCTION static __device__ __forceinline__
#define GPTC_SHARED(type, name, size) __shared__ __align__(16) type name[size]
// For phases with more shared memory than a kernel may declare: at `offset` bytes (a multiple of 128) of what the
// launch gives.
extern __shared__ __align__(128) unsigned char dynamicShared[];
#define GPTC_DYNAMIC_SHARED(type, name, size, offset) type *name = reinterpret_cast<type *>(dynamicShared + (offset))
#define GPTC_PRIVATE(type, name, size) type name[size]
template <class T> using Global = T *;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

GPTC_FUNCTION int blockIndex() { return blockIdx.x; }
GPTC_FUNCTION int threadIndex() { return threadIdx.x; }
GPTC_FUNCTION void barrier() { __syncthreads(); }
// A barrier that tells every thread of the block whether one of them has said yes.
GPTC_FUNCTION bool barrierOr(bool yes) { return __syncthreads_or(yes) != 0; }
template <class T> GPTC_FUNCTION T shuffleXor(T v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
// The value of a lane of the warp.
template <class T> GPTC_FUNCTION T shuffle(T v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }

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

// 2^v with a relative error of at most 2^-22; denormal results are 0.
GPTC_FUNCTION float exp2Approximate(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
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

// The warp's part in tensor cores and copies that go on by themselves. tests/simt/shim states the same lane maps once
// more, from the PTX ISA ("Matrix Fragments for mma", "ldmatrix"), and checks one against the other.
static const char *const tensorCores = R"cuda(
// A shared buffer, or a part of one, seen as elements of another type from a byte on.
template <class T> using SharedView = T *;
template <class T, class P> GPTC_FUNCTION SharedView<T> sharedView(P &buffer, int byte) {
  return reinterpret_cast<T *>(reinterpret_cast<unsigned char *>(&buffer[0]) + byte);
}
template <class T> GPTC_FUNCTION unsigned sharedAddress(const T *p) { return (unsigned)__cvta_generic_to_shared(p); }

// asyncCopy<BYTES>(to, i, from, j, valid): BYTES (4, 8 or 16) from element j of global memory to element i of shared
// memory, both aligned to BYTES; only the first `valid` bytes (0 to BYTES, whole elements) are read, zeros take the
// place of the others. The bytes have arrived, for the thread that asked, behind an asyncWait<N> before which it has
// called asyncCommit at most N times since the asyncCommit behind the copy; for others, behind a barrier after that.
// Until then nobody touches them. sm_75 copies at once.
template <int BYTES, class T, class S, class I>
GPTC_FUNCTION void asyncCopy(SharedView<T> to, int i, const S *from, I j, int valid) {
#if __CUDA_ARCH__ >= 800
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to + i)), "l"(from + j), "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(sharedAddress(to + i)), "l"(from + j),
                 "r"(valid), "n"(BYTES)
                 : "memory");
#else
  struct alignas(BYTES) Piece { T v[BYTES / sizeof(T)]; } piece;
  if (valid == BYTES) {
    piece = *reinterpret_cast<const Piece *>(from + j);
  } else {
#pragma unroll
    for (int e = 0; e < (int)(BYTES / sizeof(T)); ++e) {
      T zero{};
      piece.v[e] = e * (int)sizeof(T) < valid ? from[j + e] : zero;
    }
  }
  *reinterpret_cast<Piece *>(to + i) = piece;
#endif
}
GPTC_FUNCTION void asyncCommit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> GPTC_FUNCTION void asyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// All lanes of a warp take part in what follows. With g = lane / 4 and t = lane % 4:
//
// ldmatrix reads matrices of 8 rows of 16 bytes. Lane 8 m + r gives the place (of the first element; 16-byte aligned)
// of row r of matrix m, and r[m] becomes the word t of row g of matrix m: two elements of 16 bits, the first in the low
// half, or one of 32. Transposed, of 16 bits: the elements g of rows 2 t and 2 t + 1. Both read without bank conflicts
// where the 8 rows of a matrix lie in different sixteenths of 128 bytes: see swizzledChunk.
template <class T> GPTC_FUNCTION void loadMatrices(unsigned (&r)[4], SharedView<T> p, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(sharedAddress(p + i))
               : "memory");
}
template <class T> GPTC_FUNCTION void loadMatricesTransposed(unsigned (&r)[4], SharedView<T> p, int i) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(sharedAddress(p + i))
               : "memory");
}

// c += a b, a of 16 x K, b of K x 8, c of 16 x 8 in f32.
//   c[0], c[1]: row g, columns 2 t and 2 t + 1          c[2], c[3]: row g + 8, the same columns
// K = 16, elements of 16 bits, the lower k in the low half:
//   a[0]: row g, k = 2 t, 2 t + 1     a[1]: row g + 8     a[2]: row g, k = 2 t + 8, 2 t + 9     a[3]: row g + 8
//   b[0]: column g, k = 2 t, 2 t + 1                      b[1]: k = 2 t + 8, 2 t + 9
// K = 8, tf32: the bits of f32, of which roundTF32 leaves what counts:
//   a[0]: row g, k = t     a[1]: row g + 8, k = t         a[2]: row g, k = t + 4                a[3]: row g + 8
//   b[0]: column g, k = t                                 b[1]: k = t + 4
// So loadMatrices gives a[] of a matrix with k along its rows (matrices: rows 0-7, rows 8-15, then the next 16 bytes of
// each), and b[] of two tiles of 8 columns with k along each column in memory; loadMatricesTransposed the same of
// matrices that lie the other way (not tf32). The products are exact; how their sum is rounded is said at evalMma
// (ir/kernel/eval.h).
GPTC_FUNCTION void mma(bf16, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  // from sm_80 on
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
GPTC_FUNCTION void mma(f16, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
GPTC_FUNCTION void mma(float, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  // from sm_80 on
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The bits of v with 10 bits behind the point: to the nearest, ties away from zero.
GPTC_FUNCTION unsigned roundTF32(float v) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}
// Two values as one register of an operand, to the nearest, ties to even.
GPTC_FUNCTION unsigned packPair(bf16, float low, float high) {  // from sm_80 on
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
GPTC_FUNCTION unsigned packPair(f16, float low, float high) {
  return (unsigned)bitsOfF16(low) | (unsigned)bitsOfF16(high) << 16;
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
template <int N> struct Constant { enum : int { value = N }; };
// The second operand where either is NaN.
template <class T> GPTC_FUNCTION T minimum(T a, T b) { return a < b ? a : b; }
template <class T> GPTC_FUNCTION T maximum(T a, T b) { return a > b ? a : b; }

// Storage formats: T in memory is a value of type Storage<T>::Value.
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

// Where a tile in shared memory has rows of CHUNKS (a power of two) pieces of 16 bytes: the place within its row of
// piece `chunk` of row `row`. So 8 rows of one piece, which a fragment takes, lie in different banks, and so do 8
// neighbours in one row, which are copied together.
template <int CHUNKS> GPTC_FUNCTION int swizzledChunk(int row, int chunk) {
  return CHUNKS >= 8   ? chunk ^ (row & 7)
         : CHUNKS == 4 ? chunk ^ (row >> 1 & 3)
         : CHUNKS == 2 ? chunk ^ (row >> 2 & 1)
                       : chunk;
}
)cuda";

std::string cudaDeviceLayer() {
  return std::string(primitives) + tensorCores + "#define GPTC_METHOD __device__ __forceinline__\n" + common;
}
const char *cudaDeviceCommon() { return common; }

}  // namespace gptc
