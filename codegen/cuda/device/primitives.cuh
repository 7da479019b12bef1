//! The device layer of emitted CUDA text: what only a GPU can do. Inline PTX stands here and in warp.cuh, and nowhere
//! else. tests/simt/shim/gptc_device.h puts functions for the host in the place of both.
//!
//! Lines that begin with //! are for readers: the embedded text leaves them out (cmake/embed_text.cmake).
#pragma once
#define GPTC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// Tiles are chosen for the registers that they need, and few blocks have room: the compiler must not spill some to make
// room for one block more.
#define GPTC_TILE_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define GPTC_FUNCTION static __device__ __forceinline__
#define GPTC_SHARED(type, name, size) __shared__ __align__(16) type name[size]
// For phases with more shared memory than a kernel may declare: at `offset` bytes (a multiple of 128) of what the
// launch gives.
extern __shared__ __align__(128) unsigned char dynamicShared[];
#define GPTC_DYNAMIC_SHARED(type, name, size, offset) type *name = reinterpret_cast<type *>(dynamicShared + (offset))
#define GPTC_PRIVATE(type, name, size) type name[size]
template <class T> using Global = T *;
// What lies at an address.
template <class T> GPTC_FUNCTION Global<T> globalAt(unsigned long long address) { return reinterpret_cast<T *>(address); }
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct f8e4m3 { unsigned char bits; };

// Kernels that overlap, where the launch allows it. A kernel waits for the end of the one before it, and of all before
// that one, before it accesses memory. The next one may start, to wait likewise, when all threads have said so.
GPTC_FUNCTION void waitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
GPTC_FUNCTION void letNextStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

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
// The sum and the products of four bytes, those of `a` without a sign, those of `b` with one; it wraps.
GPTC_FUNCTION int dotOfBytes(int sum, unsigned a, unsigned b) {
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
  return r;
}
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
// e^v with a relative error of at most 2^-22 + |v| 2^-23: that of exp2Approximate, and of the product, whose other factor
// is a quarter of a unit off. A host, which has no such instruction, calls `exact`.
template <class Exact> GPTC_FUNCTION float expApproximate(float v, Exact) {
  return exp2Approximate(v * 0x1.715476p+0f);
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

// A denormal becomes a zero of its sign.
GPTC_FUNCTION float flushDenormal(float v) {
  float r;
  asm("mul.rn.ftz.f32 %0, %1, 0f3F800000;" : "=f"(r) : "f"(v));
  return r;
}
// To the nearest, ties to even; denormals to zeros of their sign. A NaN stays one, with any payload.
GPTC_FUNCTION unsigned short bitsOfBF16(float v) {
#if __CUDA_ARCH__ >= 800
  unsigned short r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(flushDenormal(v)));
  return r;
#else
  const unsigned u = bitsOf(v);
  return (unsigned short)((v != v                    ? u | 0x400000u
                           : (u & 0x7f800000u) == 0u ? u & 0x80000000u
                                                     : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

#if __CUDA_ARCH__ >= 890
// As in common.cuh, which has them for other GPUs.
#define GPTC_E4M3
GPTC_FUNCTION unsigned short bitsOfE4M3Pair(float low, float high) {
  unsigned short r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
GPTC_FUNCTION float floatOfE4M3(unsigned char bits) {
  unsigned r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((unsigned short)bits));
  return floatOfF16((unsigned short)r);
}
#endif

// Elements, and packs of them in one access, as they lie in memory.
template <class T, class I> GPTC_FUNCTION T readRaw(const T *p, I i) { return p[i]; }
template <class T, class I> GPTC_FUNCTION void writeRaw(T *p, I i, T v) { p[i] = v; }
template <class V, class T, class I> GPTC_FUNCTION V readPack(const T *p, I i) {
  return *reinterpret_cast<const V *>(p + i);
}
template <class V, class T, class I> GPTC_FUNCTION void writePack(T *p, I i, const V &v) {
  *reinterpret_cast<V *>(p + i) = v;
}
