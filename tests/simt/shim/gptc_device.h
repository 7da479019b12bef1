// The device layer on the host: primitives that go through simt_abi.h, then the common part (device_text::common),
// which the test writes beside the text.
// No #pragma once: that does not know the text of a layer that was parsed before (host_compile.cpp).
#ifndef GPTC_DEVICE_H
#define GPTC_DEVICE_H

#include "simt_abi.h"

// No header of the library: they are most of what a compiler would read for a small kernel.
template <class T> struct WithoutConst {
  typedef T type;
  static constexpr bool wasConst = false;
};
template <class T> struct WithoutConst<const T> {
  typedef T type;
  static constexpr bool wasConst = true;
};

#define GPTC_KERNEL(name, threads) static void name
#define GPTC_TILE_KERNEL(name, threads) static void name
#define GPTC_FUNCTION [[maybe_unused]] static inline
#define GPTC_METHOD inline
#define GPTC_SHARED(type, name, size) const Shared<type> name(#name, size)
#define GPTC_DYNAMIC_SHARED(type, name, size, offset)                                                                  \
  const Shared<type> name(simtDynamicShared(#name, (size) * (long long)sizeof(type), offset), 0)
#define GPTC_PRIVATE(type, name, size) Private<type, size> name(#name)

template <class T> struct Global {
  SimtMemory *memory;
};
template <class T> GPTC_FUNCTION Global<T> globalAt(unsigned long long address) { return {simtGlobalAt(address)}; }
template <class T> struct Shared {
  SimtMemory *memory;
  long long first = 0;  // byte
  Shared(const char *name, long long n) : memory(simtShared(name, n * (long long)sizeof(T))) {}
  Shared(SimtMemory *memory, long long first) : memory(memory), first(first) {}
  long long at(long long i) const { return first + i * (long long)sizeof(T); }
};
struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};
struct f8e4m3 {
  unsigned char bits;
};
/// A thread's own array: what is read was stored before.
template <class T, int N> struct Private {
  const char *name;
  T v[N];
  bool stored[N] = {};
  explicit Private(const char *name) : name(name) {}
  T &at(long long i, bool writes) {
    if (i < 0 || i >= N)
      simtFail("a private array is left");
    if (!writes && !stored[i])
      simtFail("an element of a private array is read before it is stored to");
    stored[i] = true;
    return v[i];
  }
};

GPTC_FUNCTION void letNextStart() { simtLetNextStart(); }
GPTC_FUNCTION void waitForPrevious() { simtWaitForPrevious(); }

GPTC_FUNCTION int blockIndex() { return simtBlock(); }
GPTC_FUNCTION int threadIndex() { return simtThread(); }
GPTC_FUNCTION void barrier(int line = __builtin_LINE()) { simtBarrier(line); }
GPTC_FUNCTION bool barrierOr(bool yes, int line = __builtin_LINE()) { return simtBarrierOr(yes, line) != 0; }
template <class T> GPTC_FUNCTION T shuffle(T v, int lane, int line = __builtin_LINE()) {
  T all[32];
  simtGather(&v, sizeof v, all, line);
  return all[lane & 31];
}
template <class T> GPTC_FUNCTION T shuffleXor(T v, int mask, int line = __builtin_LINE()) {
  simtShuffleXor(&v, sizeof(T), mask, line);
  return v;
}

template <class To, class From> GPTC_FUNCTION To bitCast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
GPTC_FUNCTION unsigned bitsOf(float v) { return bitCast<unsigned>(v); }
GPTC_FUNCTION long long bitsOf(double v) { return bitCast<long long>(v); }
GPTC_FUNCTION float floatOf(unsigned v) { return bitCast<float>(v); }
GPTC_FUNCTION double doubleOf(long long v) { return bitCast<double>(v); }

GPTC_FUNCTION float fusedMultiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPTC_FUNCTION double fusedMultiplyAdd(double a, double b, double c) { return __builtin_fma(a, b, c); }
GPTC_FUNCTION int dotOfBytes(int sum, unsigned a, unsigned b) {
  auto r = (unsigned)sum;
  for (int byte = 0; byte < 32; byte += 8)
    r += (a >> byte & 0xffu) * (unsigned)(int)(signed char)(b >> byte & 0xffu);
  return (int)r;
}
GPTC_FUNCTION float divide(float a, float b) { return a / b; }
GPTC_FUNCTION double divide(double a, double b) { return a / b; }
GPTC_FUNCTION float squareRoot(float v) { return __builtin_sqrtf(v); }
GPTC_FUNCTION double squareRoot(double v) { return __builtin_sqrt(v); }
GPTC_FUNCTION float roundDown(float v) { return __builtin_floorf(v); }
GPTC_FUNCTION double roundDown(double v) { return __builtin_floor(v); }
GPTC_FUNCTION float magnitude(float v) { return __builtin_fabsf(v); }
GPTC_FUNCTION double magnitude(double v) { return __builtin_fabs(v); }
GPTC_FUNCTION float exp2Approximate(float v) {
  const float r = __builtin_exp2f(v);
#ifdef GPTC_PERTURB
  // CUDA gives it to 2 units in the last place, but for what PTX lists as exact: 1, 0 and infinity.
  if (v != 0 && r >= 0x1p-125f && r <= 0x1p127f)
    return floatOf(bitsOf(r) & 4 ? bitsOf(r) + 2 : bitsOf(r) - 2);
#endif
  return r < 0x1p-126f ? 0.0f : r;
}
template <class Exact> GPTC_FUNCTION float expApproximate(float v, Exact exact) {
#ifdef GPTC_PERTURB
  return exp2Approximate(v * 0x1.715476p+0f);
#else
  return exact(v);
#endif
}
GPTC_FUNCTION float flushDenormal(float v) { return __builtin_fabsf(v) < 0x1p-126f ? __builtin_copysignf(0.0f, v) : v; }
GPTC_FUNCTION unsigned short bitsOfBF16(float v) { return simtBitsOfBF16(flushDenormal(v)); }
GPTC_FUNCTION float floatOfF16(unsigned short bits) { return simtFloatOfF16(bits); }
GPTC_FUNCTION unsigned short bitsOfF16(float v) { return simtBitsOfF16(v); }

// Buffers, by what they are.
template <class V> GPTC_FUNCTION V readBytes(SimtMemory *m, long long at) {
  V v;
  __builtin_memcpy((void *)&v, simtAccess(m, at, sizeof(V), 0), sizeof(V));
  return v;
}
template <class V> GPTC_FUNCTION void writeBytes(SimtMemory *m, long long at, const V &v) {
  __builtin_memcpy(simtAccess(m, at, sizeof(V), 1), (const void *)&v, sizeof(V));
}
template <class T> GPTC_FUNCTION typename WithoutConst<T>::type readRaw(const Global<T> &p, long long i) {
  return readBytes<typename WithoutConst<T>::type>(p.memory, i * (long long)sizeof(T));
}
template <class T> GPTC_FUNCTION T readRaw(const Shared<T> &p, long long i) { return readBytes<T>(p.memory, p.at(i)); }
template <class T, int N> GPTC_FUNCTION T readRaw(Private<T, N> &p, long long i) { return p.at(i, false); }
template <class T> GPTC_FUNCTION void writeRaw(const Global<T> &p, long long i, T v) {
  static_assert(!WithoutConst<T>::wasConst);
  writeBytes(p.memory, i * (long long)sizeof(T), v);
}
template <class T> GPTC_FUNCTION void writeRaw(const Shared<T> &p, long long i, T v) {
  writeBytes(p.memory, p.at(i), v);
}
template <class T, int N> GPTC_FUNCTION void writeRaw(Private<T, N> &p, long long i, T v) { p.at(i, true) = v; }
template <class V, class T> GPTC_FUNCTION V readPack(const Global<T> &p, long long i) {
  return readBytes<V>(p.memory, i * (long long)sizeof(T));
}
template <class V, class T> GPTC_FUNCTION void writePack(const Global<T> &p, long long i, const V &v) {
  writeBytes(p.memory, i * (long long)sizeof(T), v);
}
template <class V, class T> GPTC_FUNCTION V readPack(const Shared<T> &p, long long i) {
  return readBytes<V>(p.memory, p.at(i));
}
template <class V, class T> GPTC_FUNCTION void writePack(const Shared<T> &p, long long i, const V &v) {
  writeBytes(p.memory, p.at(i), v);
}

// Asynchronous copies and tensor cores.
template <class T> using SharedView = Shared<T>;
template <class T, class S> GPTC_FUNCTION SharedView<T> sharedView(const Shared<S> &buffer, int byte) {
  return {buffer.memory, buffer.first + byte};
}
template <int BYTES, class T, class S>
GPTC_FUNCTION void asyncCopy(const Shared<T> &to, long long i, const Global<S> &from, long long j, int valid) {
  static_assert((BYTES == 4 || BYTES == 8 || BYTES == 16) && sizeof(S) == sizeof(T));
  simtAsyncCopy(to.memory, to.at(i), from.memory, j * (long long)sizeof(T), BYTES, valid);
}
GPTC_FUNCTION void asyncCommit() { simtAsyncCommit(); }
template <int N> GPTC_FUNCTION void asyncWait() { simtAsyncWait(N); }

struct MatrixRow {
  unsigned words[4];
};
/// Every lane's row of 16 bytes, by lane.
template <class T> GPTC_FUNCTION void gatherRows(MatrixRow (&rows)[32], const Shared<T> &p, long long i, int line) {
  const MatrixRow mine = readBytes<MatrixRow>(p.memory, p.at(i));
  simtGather(&mine, sizeof mine, rows, line);
}
template <class T>
GPTC_FUNCTION void loadMatrices(unsigned (&r)[4], const Shared<T> &p, long long i, int line = __builtin_LINE()) {
  MatrixRow rows[32];
  gatherRows(rows, p, i, line);
  const int lane = simtThread() % 32;
  for (int m = 0; m < 4; ++m)
    r[m] = rows[8 * m + lane / 4].words[lane % 4];
}
template <class T>
GPTC_FUNCTION void loadMatricesTransposed(unsigned (&r)[4], const Shared<T> &p, long long i,
                                          int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 2);
  MatrixRow rows[32];
  gatherRows(rows, p, i, line);
  const int lane = simtThread() % 32, column = lane / 4;
  auto element = [&](int row) { return rows[row].words[column / 2] >> column % 2 * 16 & 0xffffu; };
  for (int m = 0; m < 4; ++m)
    r[m] = element(8 * m + lane % 4 * 2) | element(8 * m + lane % 4 * 2 + 1) << 16;
}
// Tensor cores add up in an order of their own.
GPTC_FUNCTION void perturbSums([[maybe_unused]] float (&c)[4]) {
#ifdef GPTC_PERTURB
  for (float &v : c)
    v *= bitsOf(v) & 4 ? 1 + 0x1p-22f : 1 - 0x1p-22f;
#endif
}
GPTC_FUNCTION void mma(bf16, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                       int line = __builtin_LINE()) {
  simtMma(simtMmaBF16, c, a, b, line);
  perturbSums(c);
}
GPTC_FUNCTION void mma(f16, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                       int line = __builtin_LINE()) {
  simtMma(simtMmaF16, c, a, b, line);
  perturbSums(c);
}
GPTC_FUNCTION void mma(float, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                       int line = __builtin_LINE()) {
  simtMma(simtMmaTF32, c, a, b, line);
  perturbSums(c);
}
GPTC_FUNCTION unsigned roundTF32(float v) { return simtRoundTF32(v); }
GPTC_FUNCTION unsigned packPair(bf16, float low, float high) {
  return simtBitsOfBF16(low) | (unsigned)simtBitsOfBF16(high) << 16;
}
GPTC_FUNCTION unsigned packPair(f16, float low, float high) {
  return simtBitsOfF16(low) | (unsigned)simtBitsOfF16(high) << 16;
}

template <class T> struct ElementOf;
template <class T> struct ElementOf<Shared<T>> {
  typedef T type;
};
template <class T> struct ElementOf<Global<T>> {
  typedef typename WithoutConst<T>::type type;
};
template <class T> struct ElementOf<const Shared<T>> {
  typedef T type;
};
template <class T, int N> struct ElementOf<Private<T, N>> {
  typedef T type;
};
#ifdef GPTC_PERTURB
// What CUDA gives to 2 units in the last place only: functions of f64.
GPTC_FUNCTION double perturbed(double v) { return v * (bitsOf(v) & 4 ? 1 + 0x1p-51 : 1 - 0x1p-51); }
#define GPTC_FUNCTION_OF_F64(name)                                                                                     \
  GPTC_FUNCTION double name(double v) { return perturbed(__builtin_##name(v)); }
#else
#define GPTC_FUNCTION_OF_F64(name)                                                                                     \
  GPTC_FUNCTION double name(double v) { return __builtin_##name(v); }
#endif

// The library's, whose bits are the CPU's; of f32 the device layer has its own.
GPTC_FUNCTION_OF_F64(exp)
GPTC_FUNCTION_OF_F64(exp2)
GPTC_FUNCTION_OF_F64(log)
GPTC_FUNCTION_OF_F64(tanh)
GPTC_FUNCTION_OF_F64(sin)
GPTC_FUNCTION_OF_F64(cos)

#include "gptc_common.h"

/// extern "C" void NAME_host(SimtMemory *const *params): one thread of the kernel.
#define GPTC_HOST_ENTRY(name)                                                                                          \
  extern "C" void name##_host(SimtMemory *const *params) { callWith(name, params); }
template <class... T> struct Call {
  Call(void (*kernel)(T...), T... arguments) { kernel(arguments...); }
};
template <class... T> static void callWith(void (*kernel)(Global<T>...), SimtMemory *const *params) {
  Call<Global<T>...>{kernel, Global<T>{*params++}...};  // braces: in this order
}

#endif
