// Kernels of one warp that show what each function of the device layer does. x holds 512 words, of which the first 32
// are floats that are hard to round; y takes some words of each lane.
#pragma once

namespace gptc::test {

inline const char *const lanesHead = R"cuda(#include "gptc_device.h"
GPTC_FUNCTION unsigned low(double v) { return (unsigned)bitsOf(v); }
GPTC_FUNCTION unsigned high(double v) { return (unsigned)(bitsOf(v) >> 32); }
GPTC_FUNCTION float hard(Global<const unsigned> x, int i) { return floatOf(load(x, i & 31)); }

// Small whole numbers, of which every product and sum is exact: a value in another lane's or register's place shows.
GPTC_FUNCTION float number(int lane, int i, int of) { return (float)((lane * (7 + of) + i * (3 + 2 * of)) % 11 - 5); }
template <class T> GPTC_FUNCTION void product(Global<unsigned> y) {
  const int lane = threadIndex();
  unsigned a[4], b[2];
  float c[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = packPair(T{}, number(lane, 2 * i, 0), number(lane, 2 * i + 1, 0));
    c[i] = (float)(lane * 4 + i);
  }
  for (int i = 0; i < 2; ++i)
    b[i] = packPair(T{}, number(lane, 2 * i, 1), number(lane, 2 * i + 1, 1));
  mma(T{}, c, a, b);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 4 + i, bitsOf(c[i]));
}
)cuda";

/// For every GPU.
inline const char *const lanesText = R"cuda(
GPTC_KERNEL(shuffles, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex();
  for (int b = 0; b < 5; ++b)
    store(y, lane * 7 + b, shuffleXor((unsigned)lane * 3u + 1u, 1 << b));
  const double v = shuffleXor((double)lane + 0.5, 9);
  store(y, lane * 7 + 5, low(v));
  store(y, lane * 7 + 6, high(v));
}

// Element i of the tile is the number i, so that words tell where they come from.
GPTC_KERNEL(matrices, 32)(Global<const unsigned> x, Global<unsigned> y) {
  GPTC_SHARED(bf16, tile, 512);
  const int lane = threadIndex();
  for (int i = lane; i < 512; i += 32)
    writeRaw(tile, i, bf16{(unsigned short)i});
  barrier();
  SharedView<bf16> all = sharedView<bf16>(tile, 0), late = sharedView<bf16>(tile, 512);
  unsigned r[4];
  loadMatrices(r, all, lane * 8);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 16 + i, r[i]);
  loadMatrices(r, all, (lane * 5 + 3) % 32 * 16 + lane / 16 * 8);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 16 + 4 + i, r[i]);
  loadMatricesTransposed(r, all, lane * 8);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 16 + 8 + i, r[i]);
  loadMatricesTransposed(r, late, (lane * 7 + 2) % 32 * 8);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 16 + 12 + i, r[i]);
}

GPTC_KERNEL(wholeWords, 32)(Global<const unsigned> x, Global<unsigned> y) {
  GPTC_SHARED(float, tile, 128);
  const int lane = threadIndex();
  for (int i = lane; i < 128; i += 32)
    writeRaw(tile, i, floatOf((unsigned)i));
  barrier();
  unsigned r[4];
  loadMatrices(r, sharedView<float>(tile, 0), (lane * 3 + 1) % 32 * 4);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 4 + i, r[i]);
}

GPTC_KERNEL(roundings, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex(), at = lane * 7;
  const float v = hard(x, lane), w = hard(x, lane + 1);
  store(y, at, packPair(f16{}, v, w));
  store(y, at + 1, (unsigned)bitsOfF16(v));
  store(y, at + 2, bitsOf(roundBF16(v)));
  store(y, at + 3, bitsOf(roundF16(v)));
  store(y, at + 4, bitsOf(floatOfF16((unsigned short)(lane * 2113u))));
  store(y, at + 5, bitsOf(roundDown(v)));
  store(y, at + 6, bitsOf(magnitude(v)));
}
GPTC_KERNEL(eights, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex(), at = lane * 4;
  const float v = hard(x, lane) * (lane % 2 ? 1.0f : 0x1p-6f), w = hard(x, lane + 1);
  const unsigned both = bitsOfE4M3Pair(v, w);
  store(y, at, v != v ? 0u : both & 0xffu);
  store(y, at + 1, w != w ? 0u : both >> 8);
  store(y, at + 2, bitsOf(floatOfE4M3((unsigned char)(lane * 8 + 7))));
  store(y, at + 3, bitsOf(roundE4M3(v)));
}
GPTC_KERNEL(arithmetic, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex(), at = lane * 9;
  const float v = hard(x, lane), w = hard(x, lane * 5 + 1);
  store(y, at, bitsOf(fusedMultiplyAdd(v, w, -v)));
  store(y, at + 1, bitsOf(divide(v, w)));
  store(y, at + 2, bitsOf(squareRoot(v)));
  store(y, at + 3, bitsOf(minimum(v, w)));
  store(y, at + 4, bitsOf(maximum(v, w)));
  store(y, at + 5, bitsOf(v + w));
  store(y, at + 6, bitsOf(v * w));
  const int i = (int)(load(x, lane) * 2654435761u);
  store(y, at + 7, (unsigned)wrapMul(wrapAdd(i, i), wrapSub(i, 77)));
  store(y, at + 8, (unsigned)magnitude(i));
}
GPTC_KERNEL(doubles, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex(), at = lane * 8;
  const double v = (double)hard(x, lane), w = (double)hard(x, lane * 5 + 1);
  const double r[4] = {fusedMultiplyAdd(v, w, 1.0 / 3.0), divide(v, w), squareRoot(v), roundDown(v)};
  for (int i = 0; i < 4; ++i) {
    store(y, at + 2 * i, low(r[i]));
    store(y, at + 2 * i + 1, high(r[i]));
  }
}

template <int BYTES> GPTC_FUNCTION void copied(Global<const unsigned> x, Global<unsigned> y, int column) {
  GPTC_SHARED(unsigned, stage, 128);
  const int lane = threadIndex(), n = BYTES / 4;
  SharedView<unsigned> to = sharedView<unsigned>(stage, 0);
  asyncCopy<BYTES>(to, lane * n, x, 32 + (lane * 5 + 1) % 32 * n, lane % (n + 1) * 4);
  asyncCommit();
  asyncWait<0>();
  barrier();
  for (int i = 0; i < n; ++i)
    store(y, lane * 7 + column + i, load(stage, (lane + 1) % 32 * n + i));
  barrier();
}
GPTC_KERNEL(copies, 32)(Global<const unsigned> x, Global<unsigned> y) {
  copied<4>(x, y, 0);
  copied<8>(x, y, 1);
  copied<16>(x, y, 3);
}

GPTC_KERNEL(vectors, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex();
  const auto v = loadVector<4>(x, 32 + (lane * 3 + 2) % 32 * 4);
  storeVector<4>(y, lane * 8, v);
  const auto w = loadVector<2>(x, 32 + lane * 2);
  storeVector<2>(y, lane * 8 + 4, w);
  store(y, lane * 8 + 6, (unsigned)(swizzledChunk<2>(lane, 1) + 16 * swizzledChunk<4>(lane, 2)));
  store(y, lane * 8 + 7, (unsigned)(swizzledChunk<8>(lane, 3) + 16 * swizzledChunk<16>(lane, 9)));
}
GPTC_KERNEL(productF16, 32)(Global<const unsigned> x, Global<unsigned> y) { product<f16>(y); }
)cuda";

/// From sm_80 on.
inline const char *const lanesTextOf80 = R"cuda(
GPTC_KERNEL(productBF16, 32)(Global<const unsigned> x, Global<unsigned> y) { product<bf16>(y); }
GPTC_KERNEL(productTF32, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex();
  unsigned a[4], b[2];
  float c[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = roundTF32(number(lane, i, 0));
    c[i] = (float)(lane * 4 + i);
  }
  for (int i = 0; i < 2; ++i)
    b[i] = roundTF32(number(lane, i, 1));
  mma(0.0f, c, a, b);
  for (int i = 0; i < 4; ++i)
    store(y, lane * 4 + i, bitsOf(c[i]));
}
GPTC_KERNEL(roundingsTF32, 32)(Global<const unsigned> x, Global<unsigned> y) {
  store(y, threadIndex(), roundTF32(hard(x, threadIndex())));
}
// Without denormals: kernels flush those of bf16 when they store, and so does the shim here, while the GPU keeps them.
GPTC_FUNCTION float normal(float v) { return magnitude(v) < 1.1754944e-38f ? 0.0f : v; }
GPTC_KERNEL(pairsOfBF16, 32)(Global<const unsigned> x, Global<unsigned> y) {
  const int lane = threadIndex();
  store(y, lane, packPair(bf16{}, normal(hard(x, lane)), normal(hard(x, lane + 1))));
}
)cuda";

}  // namespace gptc::test
