//! The device layer of emitted CUDA text: what follows from primitives.cuh, the same on a GPU and in the host shim of
//! tests/simt.
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

#ifndef GPTC_E4M3
// To the nearest, ties to even, at most 448 in magnitude; a NaN stays one. `high` is the upper byte.
GPTC_FUNCTION unsigned bitsOfE4M3(float v) {
  const unsigned u = bitsOf(v), a = u & 0x7fffffffu;
  const unsigned normal = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
  const unsigned small = bitsOf(floatOf(a) + 0x1.8p14f) - bitsOf(0x1.8p14f);  // below 2^-6, in units of 2^-9
  return (a > 0x7f800000u ? 0x7fu : a > 0x43e00000u ? 0x7eu : a < 0x3c800000u ? small : normal) | (u >> 24 & 0x80u);
}
GPTC_FUNCTION unsigned short bitsOfE4M3Pair(float low, float high) {
  return (unsigned short)(bitsOfE4M3(low) | bitsOfE4M3(high) << 8);
}
GPTC_FUNCTION float floatOfE4M3(unsigned char bits) {
  const unsigned a = bits & 0x7fu;
  const float v = a == 0x7fu ? floatOf(0x7fc00000u) : a < 8u ? (float)a * 0x1p-9f : floatOf((a << 20) + (120u << 23));
  return bits & 0x80u ? -v : v;
}
#endif

// Storage formats: T in memory is a value of type Storage<T>::Value.
template <class T> struct Storage {
  typedef T Value;
  static GPTC_METHOD T pack(T v) { return v; }
  static GPTC_METHOD T unpack(T v) { return v; }
};
template <> struct Storage<bf16> {
  typedef float Value;
  static GPTC_METHOD bf16 pack(float v) { return bf16{bitsOfBF16(v)}; }
  static GPTC_METHOD float unpack(bf16 v) { return floatOf((unsigned)v.bits << 16); }
};
template <> struct Storage<f16> {
  typedef float Value;
  static GPTC_METHOD f16 pack(float v) { return f16{bitsOfF16(v)}; }
  static GPTC_METHOD float unpack(f16 v) { return floatOfF16(v.bits); }
};
template <> struct Storage<f8e4m3> {
  typedef float Value;
  static GPTC_METHOD f8e4m3 pack(float v) { return f8e4m3{(unsigned char)bitsOfE4M3Pair(v, v)}; }
  static GPTC_METHOD float unpack(f8e4m3 v) { return floatOfE4M3(v.bits); }
};
GPTC_FUNCTION float roundBF16(float v) { return Storage<bf16>::unpack(Storage<bf16>::pack(v)); }
GPTC_FUNCTION float roundF16(float v) { return Storage<f16>::unpack(Storage<f16>::pack(v)); }
GPTC_FUNCTION float roundE4M3(float v) { return Storage<f8e4m3>::unpack(Storage<f8e4m3>::pack(v)); }

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
// A vector as it lies in memory: bf16 and f8e4m3 two at a time.
template <class T, int W> struct Pack {
  typedef Vector<T, W> Type;
  static GPTC_METHOD Type of(const Vector<typename Storage<T>::Value, W> &value) {
    Type raw;
#pragma unroll
    for (int l = 0; l < W; ++l)
      raw.v[l] = Storage<T>::pack(value.v[l]);
    return raw;
  }
};
template <int W> struct PackOfPairs {
  typedef Vector<unsigned, W / 2> Type;
  static GPTC_METHOD Type of(const Vector<float, W> &value) {
    Type raw;
#pragma unroll
    for (int l = 0; l < W / 2; ++l)
      raw.v[l] = packPair(bf16{}, flushDenormal(value.v[2 * l]), flushDenormal(value.v[2 * l + 1]));
    return raw;
  }
};
template <> struct Pack<bf16, 2> : PackOfPairs<2> {};
template <> struct Pack<bf16, 4> : PackOfPairs<4> {};
template <> struct Pack<bf16, 8> : PackOfPairs<8> {};
template <> struct Pack<bf16, 16> : PackOfPairs<16> {};
template <int W> struct PackOfEights {
  typedef Vector<unsigned short, W / 2> Type;
  static GPTC_METHOD Type of(const Vector<float, W> &value) {
    Type raw;
#pragma unroll
    for (int l = 0; l < W / 2; ++l)
      raw.v[l] = bitsOfE4M3Pair(value.v[2 * l], value.v[2 * l + 1]);
    return raw;
  }
};
template <> struct Pack<f8e4m3, 2> : PackOfEights<2> {};
template <> struct Pack<f8e4m3, 4> : PackOfEights<4> {};
template <> struct Pack<f8e4m3, 8> : PackOfEights<8> {};
template <> struct Pack<f8e4m3, 16> : PackOfEights<16> {};
template <class P> using ValueOf = typename Storage<typename ElementOf<P>::type>::Value;
template <int W, class P, class I> GPTC_FUNCTION void storeVector(P &p, I i, const Vector<ValueOf<P>, W> &value) {
  writePack(p, i, Pack<typename ElementOf<P>::type, W>::of(value));
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
