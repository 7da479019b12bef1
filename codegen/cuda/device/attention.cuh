//! The text of attention statements: templates that stand on the device layer and which NVRTC compiles only for the
//! shapes that a kernel asks for. docs/cuda.md gives the reasons for their sizes.
//!
//! After FlashAttention-2 (Dao 2023): a block keeps a tile of rows and goes through pieces of columns; scores never
//! leave registers. All three kernels are one pattern, of two products only:
//!   scores      s[rows, columns] = a[rows, D] b[columns, D]^T, both as they lie in memory;
//!   weigh       acc[rows, D] += s[rows, columns] b[columns, D], s from registers: where the tensor core leaves a sum of
//!               16 x 8 is where it wants an operand of 16 x 16 (or of 16 x 8 with its steps in another order).
//!
//!             rows      columns   per piece
//!   forward   queries   keys      s = q k^T, online softmax, o += p v
//!   dq        queries   keys      s = q k^T, dp = do v^T, dq += ds k
//!   dk, dv    keys      queries   s = k q^T, dp = v do^T, dv += p do, dk += ds q: transposed, so that nothing has to be
//!
//! The last two compute scores twice in all: so each sum has one owner and no atomics are needed, and the order of every
//! sum is fixed.
//!
//!   1. Pieces come by asynchronous copies into a ring of STAGES places. Rows in shared memory are an odd number of 16
//!      bytes apart: eight rows of one fragment lie in different banks.
//!   2. A warp has M times 16 rows of the tile and all columns of a piece, so a row's maximum and sum are within four
//!      lanes. With M = 2 each fragment of b serves two products.
//!   3. Masks are selects, and only of pieces that the diagonal, a window or the end cuts; warps that see nothing of a
//!      piece skip it, and so do blocks of pieces before or behind the windows of all their rows.
//!   4. What a mask hides meets a probability of 0 in the second product, which makes NaN of what is not finite. So
//!      pieces on the diagonal are searched for such elements; where there are any, they make NaN of the rows that see
//!      them, and then give way to zeros.
//!
//! Without tensor cores (exact f32, bf16 on sm_75) the same fragments are computed by fused multiply-adds: of a, lanes
//! of four share what they read; of b, eight do.
// What follows from the constants of a kernel, C.
template <class C> struct AttentionSizes {
  typedef typename C::Element Element;
  static constexpr int PIECE = 16 / (int)sizeof(Element);           // elements in 16 bytes
  static constexpr int ONCE = sizeof(Element) == 4 ? 8 : 16;        // steps of a tensor core
  static constexpr int D = (C::SIZE + ONCE - 1) / ONCE * ONCE;      // with zeros behind
  static constexpr int LD = D + PIECE;                              // between rows in shared memory
  static constexpr int ROWS = C::WARPS * C::M * 16, THREADS = C::WARPS * 32;
  static constexpr int WIDTH = (C::HEADS + 2 * C::KEY_HEADS) * C::SIZE;  // of a row of qkv
};

// Rows first, first + 1, ... of a head, which begins at `base` with rows `stride` apart; zeros behind the last one.
template <class C, int ROWS, class From>
GPTC_FUNCTION void copyHead(SharedView<typename C::Element> to, const From &from, long long base, int stride,
                            int first) {
  typedef AttentionSizes<C> S;
  if constexpr (C::SIZE % S::PIECE == 0) {
    constexpr int CHUNKS = S::D / S::PIECE, ALL = ROWS * CHUNKS;
#pragma unroll
    for (int p = 0; p < ALL; p += S::THREADS) {
      const int at = p + threadIndex(), r = at / CHUNKS, c = at % CHUNKS * S::PIECE;
      if (ALL % S::THREADS != 0 && at >= ALL)
        break;
      const bool valid = first + r < C::TOKENS && c < C::SIZE;
      asyncCopy<16>(to, r * S::LD + c, from, valid ? base + (long long)(first + r) * stride + c : 0ll, valid ? 16 : 0);
    }
  } else {
    for (int at = threadIndex(); at < ROWS * S::D; at += S::THREADS) {
      const int r = at / S::D, c = at % S::D;
      const bool valid = first + r < C::TOKENS && c < C::SIZE;
      writeRaw(to, r * S::LD + c,
               valid ? readRaw(from, base + (long long)(first + r) * stride + c) : typename C::Element{});
    }
  }
}

// The ring: fetch(piece, place), then f(piece, place) when it is there.
template <int STAGES, class Fetch, class F> GPTC_FUNCTION void forRing(int count, Fetch fetch, F f) {
  if (STAGES > 1) {
    fetch(0, 0);
    asyncCommit();
  }
#pragma unroll 1
  for (int piece = 0; piece < count; ++piece) {
    if (STAGES == 1)
      fetch(piece, 0);
    else if (piece + 1 < count)
      fetch(piece + 1, (piece + 1) % STAGES);
    asyncCommit();
    asyncWait<STAGES == 1 ? 0 : 1>();
    barrier();
    f(piece, piece % STAGES);
    barrier();  // the place is free
  }
}

// ---- products ------------------------------------------------------------------------------------------------------

template <class E> GPTC_FUNCTION void toOperand(unsigned (&r)[4]) {
  if constexpr (sizeof(E) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = roundTF32(floatOf(r[i]));
  }
}
// The fragment of 16 rows from `row` on and the steps from k on.
template <class C> GPTC_FUNCTION void rowFragment(unsigned (&r)[4], SharedView<typename C::Element> a, int row, int k) {
  typedef AttentionSizes<C> S;
  const int lane = threadIndex() % 32;
  loadMatrices(r, a, (row + lane % 16) * S::LD + k + lane / 16 * S::PIECE);
  toOperand<typename C::Element>(r);
}

// s = a b^T; fragment(r, i, k) gives the fragment of the warp's i-th 16 rows of a, which begin at `row` in shared
// memory.
template <class C, class Fragment>
GPTC_FUNCTION void scores(float (&s)[C::M][C::N / 8][4], SharedView<typename C::Element> a, int row,
                          SharedView<typename C::Element> b, Fragment fragment) {
  typedef AttentionSizes<C> S;
  typedef typename C::Element E;
  const int lane = threadIndex() % 32;
#pragma unroll
  for (int i = 0; i < C::M; ++i)
#pragma unroll
    for (int j = 0; j < C::N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[i][j][e] = 0.0f;
  if constexpr (C::MMA) {
#pragma unroll
    for (int k = 0; k < S::D; k += S::ONCE) {
      unsigned fa[C::M][4];
#pragma unroll
      for (int i = 0; i < C::M; ++i)
        fragment(fa[i], i, k);
#pragma unroll
      for (int j = 0; j < C::N / 8; j += 2) {
        unsigned both[4];
        loadMatrices(both, b, (j * 8 + lane / 16 * 8 + lane % 8) * S::LD + k + lane / 8 % 2 * S::PIECE);
        toOperand<E>(both);
        const unsigned left[2] = {both[0], both[1]}, right[2] = {both[2], both[3]};
#pragma unroll
        for (int i = 0; i < C::M; ++i) {
          mma(E{}, s[i][j], fa[i], left);
          mma(E{}, s[i][j + 1], fa[i], right);
        }
      }
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < S::D; k += 4) {
      Vector<float, 4> fa[2 * C::M];
#pragma unroll
      for (int h = 0; h < 2 * C::M; ++h)
        fa[h] = loadVector<4>(a, (row + h * 8 + lane / 4) * S::LD + k);
#pragma unroll
      for (int j = 0; j < C::N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto fb = loadVector<4>(b, (j * 8 + lane % 4 * 2 + e) * S::LD + k);
#pragma unroll
          for (int h = 0; h < 2 * C::M; ++h)
#pragma unroll
            for (int n = 0; n < 4; ++n)
              s[h / 2][j][h % 2 * 2 + e] = fusedMultiplyAdd(fa[h].v[n], fb.v[n], s[h / 2][j][h % 2 * 2 + e]);
        }
    }
  }
}

// acc += s b.
template <class C>
GPTC_FUNCTION void weigh(float (&acc)[C::M][AttentionSizes<C>::D / 8][4], const float (&s)[C::M][C::N / 8][4],
                         SharedView<typename C::Element> b) {
  typedef AttentionSizes<C> S;
  typedef typename C::Element E;
  const int lane = threadIndex() % 32;
  if constexpr (C::MMA && sizeof(E) == 2) {
#pragma unroll
    for (int k = 0; k < C::N / 8; k += 2) {
      unsigned fa[C::M][4];
#pragma unroll
      for (int i = 0; i < C::M; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          fa[i][r] = packPair(E{}, s[i][k + r / 2][r % 2 * 2], s[i][k + r / 2][r % 2 * 2 + 1]);
#pragma unroll
      for (int d = 0; d < S::D / 8; d += 2) {
        unsigned both[4];
        loadMatricesTransposed(both, b, (k * 8 + lane % 16) * S::LD + d * 8 + lane / 16 * 8);
        const unsigned left[2] = {both[0], both[1]}, right[2] = {both[2], both[3]};
#pragma unroll
        for (int i = 0; i < C::M; ++i) {
          mma(E{}, acc[i][d], fa[i], left);
          mma(E{}, acc[i][d + 1], fa[i], right);
        }
      }
    }
  } else if constexpr (C::MMA) {
    // The steps t and t + 4 of an operand are the columns 2 t and 2 t + 1 of s, here and there.
#pragma unroll
    for (int k = 0; k < C::N / 8; ++k) {
      unsigned fa[C::M][4];
#pragma unroll
      for (int i = 0; i < C::M; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          fa[i][r] = roundTF32(s[i][k][r % 2 * 2 + r / 2]);
#pragma unroll
      for (int d = 0; d < S::D / 8; ++d) {
        unsigned fb[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          fb[r] = roundTF32(load(b, (k * 8 + lane % 4 * 2 + r) * S::LD + d * 8 + lane / 4));
#pragma unroll
        for (int i = 0; i < C::M; ++i)
          mma(E{}, acc[i][d], fa[i], fb);
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < C::N / 8; ++k)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll 1
        for (int c = 0; c < 4; ++c) {
          float p[2 * C::M];
#pragma unroll
          for (int h = 0; h < 2 * C::M; ++h)
            p[h] = shuffle(s[h / 2][k][h % 2 * 2 + e], lane / 4 * 4 + c);
#pragma unroll
          for (int d = 0; d < S::D / 8; ++d) {
            const auto fb = loadVector<2>(b, (k * 8 + c * 2 + e) * S::LD + d * 8 + lane % 4 * 2);
#pragma unroll
            for (int h = 0; h < 2 * C::M; ++h)
#pragma unroll
              for (int n = 0; n < 2; ++n)
                acc[h / 2][d][h % 2 * 2 + n] = fusedMultiplyAdd(p[h], fb.v[n], acc[h / 2][d][h % 2 * 2 + n]);
          }
        }
  }
}

// ---- what both directions share ------------------------------------------------------------------------------------

// f(h, j, e): s[h / 2][j][h % 2 * 2 + e] is of the warp's row 8 h + lane / 4 and the column 8 j + lane % 4 * 2 + e.
template <class C, int COLUMNS, class F> GPTC_FUNCTION void forElements(F f) {
#pragma unroll
  for (int h = 0; h < 2 * C::M; ++h)
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        f(h, j, e);
}

// Whether query i sees key j; of pieces that nothing cuts nobody asks.
template <class C> GPTC_FUNCTION bool sees(int i, int j) {
  return (!C::CAUSAL || j <= i) && (C::WINDOW == 0 || j > i - C::WINDOW) && i < C::TOKENS && j < C::TOKENS;
}
// The first key that query i sees.
template <class C> GPTC_FUNCTION int firstKey(int i) { return C::WINDOW == 0 ? 0 : maximum(i + 1 - C::WINDOW, 0); }
// Whether the windows of `rows` queries from i on begin before, in or behind the columns from `column` on.
template <class C> GPTC_FUNCTION bool windowReaches(int i, int column) {
  return C::WINDOW == 0 || column + C::N > i + 1 - C::WINDOW;
}
template <class C> GPTC_FUNCTION bool windowCuts(int i, int rows, int column) {
  return C::WINDOW != 0 && column < i + rows - C::WINDOW;
}

// Scores times the logarithm of the exponential's base: e without tensor cores, else 2.
template <class C> GPTC_FUNCTION float attentionScale() { return C::MMA ? C::SCALE * 0x1.715476p+0f : C::SCALE; }
// The factor that gives scores their natural base, from what withBias and capped leave or, without, from the product.
template <class C> GPTC_FUNCTION float naturalScale() {
  return !C::ALIBI && !C::CAPS ? C::SCALE : C::MMA ? 0x1.62e43p-1f : 1.0f;
}
// Whether an exponent is so large that its own rounding moves what is left of it after a subtraction by more than 2^-9,
// and further on past all powers. There scores are subtracted before they are multiplied.
GPTC_FUNCTION bool isHuge(float exponent) { return magnitude(exponent) >= 0x1p16f; }
template <class C> GPTC_FUNCTION float exponential(float x) {
  if constexpr (C::MMA)
    return exp2Approximate(x);
  else
    return expF32(x);
}
// A scaled score in units of the cap, within (-1, 1), from the product; and the capped score from that, with the base in
// it.
template <class C> GPTC_FUNCTION float inCaps(float product) { return C::tanh(product * C::CAPS_SCALE); }
template <class C> GPTC_FUNCTION float capped(float caps) {
  return caps * (C::MMA ? C::CAP * 0x1.715476p+0f : C::CAP);
}
// What ALiBi adds for a key `ahead` places after the query; `slope` has the base in it.
template <class C> GPTC_FUNCTION float withBias(float score, float slope, int ahead) {
  return fusedMultiplyAdd(slope, C::CAUSAL ? (float)ahead : -magnitude((float)ahead), score);
}
template <class C> GPTC_FUNCTION float slopeOf(int head) {
  if constexpr (C::ALIBI)
    return C::MMA ? C::slope(head) * 0x1.715476p+0f : C::slope(head);
  else
    return 0.0f;
}

// A piece on the diagonal, of N columns from `column` on: elements that are not finite make NaN of the rows of `acc`
// that see them, and then become zeros. All threads of the block come here.
template <class C, class Sees>
GPTC_FUNCTION void hideNonFinite(float (&acc)[C::M][AttentionSizes<C>::D / 8][4], SharedView<typename C::Element> b,
                                 int row, int column, Sees rowSees) {
  typedef AttentionSizes<C> S;
  const int lane = threadIndex() % 32;
  bool found = false;
#pragma unroll 1
  for (int at = threadIndex(); at < C::N * (S::D / 2); at += S::THREADS) {
    const auto v = loadVector<2>(b, at / (S::D / 2) * S::LD + at % (S::D / 2) * 2);
    found |= !((v.v[0] - v.v[0]) + (v.v[1] - v.v[1]) == 0.0f);
  }
  if (!barrierOr(found))
    return;
#pragma unroll 1
  for (int c = 0; c < C::N; ++c)
    forElements<C, S::D>([&](int h, int d, int e) {
      const float v = load(b, c * S::LD + d * 8 + lane % 4 * 2 + e);
      if (!(v - v == 0.0f) && rowSees(row + h * 8 + lane / 4, column + c))
        acc[h / 2][d][h % 2 * 2 + e] = floatOf(0x7fc00000u);
    });
  barrier();
#pragma unroll 1
  for (int at = threadIndex(); at < C::N * S::D; at += S::THREADS) {
    const int place = at / S::D * S::LD + at % S::D;
    const float v = load(b, place);
    if (!(v - v == 0.0f))
      store(b, place, 0.0f);
  }
  barrier();
}

// Rows of the warp, from `row` on, times factor(h): to a head that begins at `base` with rows `stride` apart.
template <class C, class To, class Factor>
GPTC_FUNCTION void storeHead(To &to, long long base, int stride, int row,
                             const float (&acc)[C::M][AttentionSizes<C>::D / 8][4], Factor factor) {
  typedef AttentionSizes<C> S;
  const int lane = threadIndex() % 32;
#pragma unroll
  for (int h = 0; h < 2 * C::M; ++h) {
    const int r = row + h * 8 + lane / 4;
    if (r < C::TOKENS) {
      const float f = factor(h);
#pragma unroll
      for (int d = 0; d < S::D / 8; ++d) {
        const int x = d * 8 + lane % 4 * 2;
        const long long at = base + (long long)r * stride + x;
        const float one = acc[h / 2][d][h % 2 * 2] * f, two = acc[h / 2][d][h % 2 * 2 + 1] * f;
        if constexpr (C::SIZE % 2 == 0) {
          if (x < C::SIZE)
            storeVector<2>(to, at, {{one, two}});
        } else {
          if (x < C::SIZE)
            store(to, at, one);
          if (x + 1 < C::SIZE)
            store(to, at + 1, two);
        }
      }
    }
  }
}

// What dropout draws from; both words of a key in one.
template <class C> struct DropoutKey {
  unsigned low, high;
  int head0;  // of all heads, the first that is here
  GPTC_METHOD DropoutKey(long long key, int head0)
      : low((unsigned)key), high((unsigned)((unsigned long long)key >> 32)), head0(head0) {}
  GPTC_METHOD bool keeps(int head, int query, int key) const {
    typedef typename C::Index Index;
    return C::keep(low, high, ((Index)(head0 + head) * C::TOKENS + query) * C::TOKENS + key);
  }
};

// ---- forward -------------------------------------------------------------------------------------------------------

template <class C, class Room, class Qkv, class Out, class Lse>
GPTC_FUNCTION void attentionForward(Room &room, const Qkv &qkv, Out &out, Lse &lse,
                                 int tile, int b, int head, long long dropout, int head0) {
  typedef AttentionSizes<C> S;
  typedef typename C::Element E;
  const int lane = threadIndex() % 32, warpRow = threadIndex() / 32 * C::M * 16;
  const int first = tile * S::ROWS, row = first + warpRow, keyHead = head / (C::HEADS / C::KEY_HEADS);
  const long long rows = (long long)b * C::TOKENS * S::WIDTH, keys = rows + (C::HEADS + keyHead) * C::SIZE,
                  values = keys + C::KEY_HEADS * C::SIZE;
  [[maybe_unused]] const DropoutKey<C> key(dropout, head0);
  const float scale = attentionScale<C>(), slope = slopeOf<C>(head0 + head), infinity = floatOf(0x7f800000u);
  const float each = C::ALIBI || C::CAPS ? 1.0f : scale;

  SharedView<E> queries = sharedView<E>(room, 0);
  constexpr int BYTES = C::N * S::LD * (int)sizeof(E), PIECES = S::ROWS * S::LD * (int)sizeof(E);
  auto keysAt = [&](int place) { return sharedView<E>(room, PIECES + place * 2 * BYTES); };
  auto valuesAt = [&](int place) { return sharedView<E>(room, PIECES + (place * 2 + 1) * BYTES); };
  copyHead<C, S::ROWS>(queries, qkv, rows + head * C::SIZE, S::WIDTH, first);

  constexpr bool KEEPS = C::MMA && C::M * (S::D / S::ONCE) <= 8;  // queries stay in registers: 32
  [[maybe_unused]] unsigned kept[KEEPS ? C::M : 1][KEEPS ? S::D / S::ONCE : 1][4];
  float acc[C::M][S::D / 8][4], most[2 * C::M], sum[2 * C::M];
  forElements<C, S::D>([&](int h, int d, int e) { acc[h / 2][d][h % 2 * 2 + e] = 0.0f; });
#pragma unroll
  for (int h = 0; h < 2 * C::M; ++h)
    most[h] = -infinity, sum[h] = 0.0f;

  const int seen = C::CAUSAL ? minimum(first + S::ROWS, C::TOKENS) : C::TOKENS, begin = firstKey<C>(first) / C::N;
  forRing<C::STAGES>(
      (seen + C::N - 1) / C::N - begin,
      [&](int piece, int place) {
        copyHead<C, C::N>(keysAt(place), qkv, keys, S::WIDTH, (begin + piece) * C::N);
        copyHead<C, C::N>(valuesAt(place), qkv, values, S::WIDTH, (begin + piece) * C::N);
      },
      [&](int piece, int place) {
        const int column = (begin + piece) * C::N, mine = column + lane % 4 * 2;
        const bool looks = (!C::CAUSAL || column < row + C::M * 16) && windowReaches<C>(row, column);
        float s[C::M][C::N / 8][4];
        if (looks) {
          if constexpr (KEEPS) {
            if (begin + piece == firstKey<C>(row) / C::N) {  // the warp's first
#pragma unroll
              for (int i = 0; i < C::M; ++i)
#pragma unroll
                for (int k = 0; k < S::D / S::ONCE; ++k)
                  rowFragment<C>(kept[i][k], queries, warpRow + i * 16, k * S::ONCE);
            }
            scores<C>(s, queries, warpRow, keysAt(place), [&](unsigned(&r)[4], int i, int k) {
#pragma unroll
              for (int n = 0; n < 4; ++n)
                r[n] = kept[i][k / S::ONCE][n];
            });
          } else {
            scores<C>(s, queries, warpRow, keysAt(place),
                      [&](unsigned(&r)[4], int i, int k) { rowFragment<C>(r, queries, warpRow + i * 16, k); });
          }
          if constexpr (C::CAPS)
            forElements<C, C::N>([&](int h, int j, int e) {
              float &v = s[h / 2][j][h % 2 * 2 + e];
              v = capped<C>(inCaps<C>(v));
            });
          if constexpr (C::ALIBI)
            forElements<C, C::N>([&](int h, int j, int e) {
              float &v = s[h / 2][j][h % 2 * 2 + e];
              v = withBias<C>(C::CAPS ? v : v * scale, slope, mine + j * 8 + e - (row + h * 8 + lane / 4));
            });
          if ((C::CAUSAL && column + C::N > row + 1) || windowCuts<C>(row, C::M * 16, column) ||
              column + C::N > C::TOKENS)
            forElements<C, C::N>([&](int h, int j, int e) {
              if (!sees<C>(row + h * 8 + lane / 4, mine + j * 8 + e))
                s[h / 2][j][h % 2 * 2 + e] = -infinity;
            });
          float next[2 * C::M], base[2 * C::M], largest = 0.0f;
#pragma unroll
          for (int h = 0; h < 2 * C::M; ++h) {
            float m = most[h];
#pragma unroll
            for (int j = 0; j < C::N / 8; ++j)
              m = maximum(maximum(s[h / 2][j][h % 2 * 2], s[h / 2][j][h % 2 * 2 + 1]), m);
            m = maximum(m, shuffleXor(m, 1));
            m = maximum(m, shuffleXor(m, 2));
            next[h] = m;
            base[h] = m == -infinity ? 0.0f : m * each;  // nothing but -infinity has been seen
            largest = maximum(largest, magnitude(base[h]));
          }
          if (isHuge(largest)) {
#pragma unroll
            for (int h = 0; h < 2 * C::M; ++h)
              if (isHuge(base[h])) {
#pragma unroll
                for (int j = 0; j < C::N / 8; ++j)
                  s[h / 2][j][h % 2 * 2] -= next[h], s[h / 2][j][h % 2 * 2 + 1] -= next[h];
                most[h] -= next[h], base[h] = 0.0f;
              }
          }
#pragma unroll
          for (int h = 0; h < 2 * C::M; ++h) {
            const float again = exponential<C>(fusedMultiplyAdd(most[h], each, -base[h]));
            most[h] = next[h];
            float p = 0.0f;
#pragma unroll
            for (int j = 0; j < C::N / 8; ++j)
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                float &v = s[h / 2][j][h % 2 * 2 + e];
                v = exponential<C>(fusedMultiplyAdd(v, each, -base[h]));
                p += v;
                if constexpr (C::DROPS)
                  v = key.keeps(head, row + h * 8 + lane / 4, mine + j * 8 + e) ? v : 0.0f;
              }
            sum[h] = sum[h] * again + p;
#pragma unroll
            for (int d = 0; d < S::D / 8; ++d)
              acc[h / 2][d][h % 2 * 2] *= again, acc[h / 2][d][h % 2 * 2 + 1] *= again;
          }
        }
        if ((C::CAUSAL && column + C::N > first + 1) || windowCuts<C>(first, S::ROWS, column))
          hideNonFinite<C>(acc, valuesAt(place), row, column, [](int i, int j) { return sees<C>(i, j); });
        if (looks)
          weigh<C>(acc, s, valuesAt(place));
      });

#pragma unroll
  for (int h = 0; h < 2 * C::M; ++h) {
    sum[h] += shuffleXor(sum[h], 1);
    sum[h] += shuffleXor(sum[h], 2);
    const int r = row + h * 8 + lane / 4;
    const float top = most[h] * each, rest = logF32(sum[h]);
    // Of a huge one as the backward pass has scores, so that both cancel.
    if (lane % 4 == 0 && r < C::TOKENS)
      store(lse, ((long long)b * C::HEADS + head) * C::TOKENS + r,
            isHuge(top) ? most[h] * naturalScale<C>() + rest
                        : fusedMultiplyAdd(top, C::MMA ? 0x1.62e43p-1f : 1.0f, rest));
  }
  storeHead<C>(out, ((long long)b * C::TOKENS * C::HEADS + head) * C::SIZE, C::HEADS * C::SIZE, row, acc,
               [&](int h) { return divide(C::KEPT, sum[h]); });
}

// ---- backward ------------------------------------------------------------------------------------------------------

// Probabilities and gradients of scores, in place of scores s and of what reached probabilities, dp. statistic(h, j, e)
// gives lse and delta of an element, query(h, j, e) and keyOf(h, j, e) where it is. `largest`: of the magnitudes of lse.
template <class C, class Statistic, class Query, class KeyOf>
GPTC_FUNCTION void gradients(float (&s)[C::M][C::N / 8][4], float (&dp)[C::M][C::N / 8][4], bool cut, int head,
                             const DropoutKey<C> &key, float largest, Statistic statistic, Query query, KeyOf keyOf) {
  const float scale = attentionScale<C>(), slope = slopeOf<C>(key.head0 + head), base = C::MMA ? 0x1.715476p+0f : 1.0f;
  // The derivative of a soft cap goes into what multiplies the probability, before the score takes its place.
  if constexpr (C::CAPS)
    forElements<C, C::N>([&](int h, int j, int e) {
      float &p = s[h / 2][j][h % 2 * 2 + e], &d = dp[h / 2][j][h % 2 * 2 + e];
      const float caps = inCaps<C>(p);
      if constexpr (C::DROPS)
        d = key.keeps(head, query(h, j, e), keyOf(h, j, e)) ? d * C::KEPT : 0.0f;
      d = (d - statistic(h, j, e).v[1]) * fusedMultiplyAdd(-caps, caps, 1.0f);
      p = capped<C>(caps);
    });
  if constexpr (C::ALIBI)
    forElements<C, C::N>([&](int h, int j, int e) {
      float &p = s[h / 2][j][h % 2 * 2 + e];
      p = withBias<C>(C::CAPS ? p : p * scale, slope, keyOf(h, j, e) - query(h, j, e));
    });
  auto exponent = [&](float p, float lse) {
    return C::ALIBI || C::CAPS ? p - lse * base : fusedMultiplyAdd(p, scale, -(lse * base));
  };
  if (isHuge(largest * base))
    forElements<C, C::N>([&](int h, int j, int e) {
      float &p = s[h / 2][j][h % 2 * 2 + e];
      const float lse = statistic(h, j, e).v[0], difference = p * naturalScale<C>() - lse;
      p = isHuge(lse * base) ? (difference > 0.0f ? 0.0f : difference) * base : exponent(p, lse);
    });
  else
    forElements<C, C::N>([&](int h, int j, int e) {
      float &p = s[h / 2][j][h % 2 * 2 + e];
      p = exponent(p, statistic(h, j, e).v[0]);
    });
  forElements<C, C::N>([&](int h, int j, int e) {
    float &p = s[h / 2][j][h % 2 * 2 + e], &d = dp[h / 2][j][h % 2 * 2 + e];
    const auto of = statistic(h, j, e);
    p = exponential<C>(p);
    if constexpr (C::CAPS) {
      d = p * d;
      if constexpr (C::DROPS)
        p = key.keeps(head, query(h, j, e), keyOf(h, j, e)) ? p : 0.0f;
    } else if constexpr (C::DROPS) {
      const bool keeps = key.keeps(head, query(h, j, e), keyOf(h, j, e));
      d = p * ((keeps ? d * C::KEPT : 0.0f) - of.v[1]);
      p = keeps ? p : 0.0f;
    } else {
      d = p * (d - of.v[1]);
    }
  });
  if (cut)
    forElements<C, C::N>([&](int h, int j, int e) {
      if (!sees<C>(query(h, j, e), keyOf(h, j, e)))
        s[h / 2][j][h % 2 * 2 + e] = dp[h / 2][j][h % 2 * 2 + e] = 0.0f;
    });
}

template <class C, class Room, class Dout, class Qkv, class Lse, class Delta, class Grad>
GPTC_FUNCTION void attentionQueryGrad(Room &room, const Dout &dout, const Qkv &qkv, Lse &lse, Delta &delta,
                                      Grad &grad,
                                 int tile, int b, int head, long long dropout, int head0) {
  typedef AttentionSizes<C> S;
  typedef typename C::Element E;
  const int lane = threadIndex() % 32, warpRow = threadIndex() / 32 * C::M * 16;
  const int first = tile * S::ROWS, row = first + warpRow, keyHead = head / (C::HEADS / C::KEY_HEADS);
  const long long rows = (long long)b * C::TOKENS * S::WIDTH, keys = rows + (C::HEADS + keyHead) * C::SIZE,
                  values = keys + C::KEY_HEADS * C::SIZE;
  const DropoutKey<C> key(dropout, head0);

  constexpr int BYTES = C::N * S::LD * (int)sizeof(E), HEAD = S::ROWS * S::LD * (int)sizeof(E);
  SharedView<E> queries = sharedView<E>(room, 0), douts = sharedView<E>(room, HEAD);
  auto keysAt = [&](int place) { return sharedView<E>(room, 2 * HEAD + place * 2 * BYTES); };
  auto valuesAt = [&](int place) { return sharedView<E>(room, 2 * HEAD + (place * 2 + 1) * BYTES); };
  copyHead<C, S::ROWS>(queries, qkv, rows + head * C::SIZE, S::WIDTH, first);
  copyHead<C, S::ROWS>(douts, dout, ((long long)b * C::TOKENS * C::HEADS + head) * C::SIZE, C::HEADS * C::SIZE, first);

  float acc[C::M][S::D / 8][4];
  Vector<float, 2> statistics[2 * C::M];  // lse and delta
  float largest = 0.0f;
  forElements<C, S::D>([&](int h, int d, int e) { acc[h / 2][d][h % 2 * 2 + e] = 0.0f; });
#pragma unroll
  for (int h = 0; h < 2 * C::M; ++h) {
    const int r = row + h * 8 + lane / 4;
    const long long at = ((long long)b * C::HEADS + head) * C::TOKENS + r;
    statistics[h].v[0] = r < C::TOKENS ? load(lse, at) : 0.0f;
    statistics[h].v[1] = r < C::TOKENS ? load(delta, at) : 0.0f;
    largest = maximum(largest, magnitude(statistics[h].v[0]));
  }

  const int seen = C::CAUSAL ? minimum(first + S::ROWS, C::TOKENS) : C::TOKENS, begin = firstKey<C>(first) / C::N;
  forRing<C::STAGES>(
      (seen + C::N - 1) / C::N - begin,
      [&](int piece, int place) {
        copyHead<C, C::N>(keysAt(place), qkv, keys, S::WIDTH, (begin + piece) * C::N);
        copyHead<C, C::N>(valuesAt(place), qkv, values, S::WIDTH, (begin + piece) * C::N);
      },
      [&](int piece, int place) {
        const int column = (begin + piece) * C::N, mine = column + lane % 4 * 2;
        const bool looks = (!C::CAUSAL || column < row + C::M * 16) && windowReaches<C>(row, column);
        float s[C::M][C::N / 8][4], dp[C::M][C::N / 8][4];
        if (looks) {
          scores<C>(s, queries, warpRow, keysAt(place),
                    [&](unsigned(&r)[4], int i, int k) { rowFragment<C>(r, queries, warpRow + i * 16, k); });
          scores<C>(dp, douts, warpRow, valuesAt(place),
                    [&](unsigned(&r)[4], int i, int k) { rowFragment<C>(r, douts, warpRow + i * 16, k); });
          gradients<C>(
              s, dp,
              (C::CAUSAL && column + C::N > row + 1) || windowCuts<C>(row, C::M * 16, column) ||
                  column + C::N > C::TOKENS,
              head, key, largest,
              [&](int h, int, int) { return statistics[h]; }, [&](int h, int, int) { return row + h * 8 + lane / 4; },
              [&](int, int j, int e) { return mine + j * 8 + e; });
        }
        if ((C::CAUSAL && column + C::N > first + 1) || windowCuts<C>(first, S::ROWS, column))
          hideNonFinite<C>(acc, keysAt(place), row, column, [](int i, int j) { return sees<C>(i, j); });
        if (looks)
          weigh<C>(acc, dp, keysAt(place));
      });
  storeHead<C>(grad, rows + head * C::SIZE, S::WIDTH, row, acc, [](int) { return C::SCALE; });
}

template <class C, class Room, class Dout, class Qkv, class Lse, class Delta, class Grad>
GPTC_FUNCTION void attentionKeyGrad(Room &room, const Dout &dout, const Qkv &qkv, Lse &lse, Delta &delta,
                                    Grad &grad,
                                 int tile, int b, int keyHead, long long dropout, int head0) {
  typedef AttentionSizes<C> S;
  typedef typename C::Element E;
  const int lane = threadIndex() % 32, warpRow = threadIndex() / 32 * C::M * 16;
  const int first = tile * S::ROWS, row = first + warpRow;
  const long long rows = (long long)b * C::TOKENS * S::WIDTH, keyRows = rows + (C::HEADS + keyHead) * C::SIZE,
                  valueRows = keyRows + C::KEY_HEADS * C::SIZE;
  const DropoutKey<C> key(dropout, head0);

  constexpr int BYTES = C::N * S::LD * (int)sizeof(E), HEAD = S::ROWS * S::LD * (int)sizeof(E),
                STATISTICS = 2 * HEAD + C::STAGES * 2 * BYTES;
  SharedView<E> keys = sharedView<E>(room, 0), values = sharedView<E>(room, HEAD);
  auto queriesAt = [&](int place) { return sharedView<E>(room, 2 * HEAD + place * 2 * BYTES); };
  auto doutsAt = [&](int place) { return sharedView<E>(room, 2 * HEAD + (place * 2 + 1) * BYTES); };
  auto statisticsAt = [&](int place) { return sharedView<float>(room, STATISTICS + place * C::N * 8); };
  copyHead<C, S::ROWS>(keys, qkv, keyRows, S::WIDTH, first);
  copyHead<C, S::ROWS>(values, qkv, valueRows, S::WIDTH, first);

  float dk[C::M][S::D / 8][4], dv[C::M][S::D / 8][4];
  forElements<C, S::D>(
      [&](int h, int d, int e) { dk[h / 2][d][h % 2 * 2 + e] = dv[h / 2][d][h % 2 * 2 + e] = 0.0f; });

  // The heads that share these keys, one after the other, and for each all pieces that see one of them.
  const int end = C::WINDOW == 0 ? C::TOKENS : minimum(first + S::ROWS - 1 + C::WINDOW, C::TOKENS);
  const int start = C::CAUSAL ? first / C::N : 0, perHead = (end + C::N - 1) / C::N - start;
  constexpr int SHARE = C::HEADS / C::KEY_HEADS;
  auto headOf = [&](int piece) { return keyHead * SHARE + piece / perHead; };
  auto columnOf = [&](int piece) { return (start + piece % perHead) * C::N; };
  forRing<C::STAGES>(
      SHARE * perHead,
      [&](int piece, int place) {
        const int head = headOf(piece), column = columnOf(piece);
        copyHead<C, C::N>(queriesAt(place), qkv, rows + head * C::SIZE, S::WIDTH, column);
        copyHead<C, C::N>(doutsAt(place), dout, ((long long)b * C::TOKENS * C::HEADS + head) * C::SIZE,
                          C::HEADS * C::SIZE, column);
#pragma unroll
        for (int at = threadIndex(); at < C::N; at += S::THREADS) {
          const bool valid = column + at < C::TOKENS;
          const long long from = valid ? ((long long)b * C::HEADS + head) * C::TOKENS + column + at : 0ll;
          asyncCopy<4>(statisticsAt(place), at * 2, lse, from, valid ? 4 : 0);
          asyncCopy<4>(statisticsAt(place), at * 2 + 1, delta, from, valid ? 4 : 0);
        }
      },
      [&](int piece, int place) {
        const int head = headOf(piece), column = columnOf(piece), mine = column + lane % 4 * 2;
        const bool looks = (!C::CAUSAL || column + C::N > row) &&
                           (C::WINDOW == 0 || column < row + C::M * 16 - 1 + C::WINDOW);
        float s[C::M][C::N / 8][4], dp[C::M][C::N / 8][4];
        if (looks) {
          scores<C>(s, keys, warpRow, queriesAt(place),
                    [&](unsigned(&r)[4], int i, int k) { rowFragment<C>(r, keys, warpRow + i * 16, k); });
          scores<C>(dp, values, warpRow, doutsAt(place),
                    [&](unsigned(&r)[4], int i, int k) { rowFragment<C>(r, values, warpRow + i * 16, k); });
          auto statistic = [&](int, int j, int e) {
            SharedView<float> statistics = statisticsAt(place);
            return loadVector<2>(statistics, (j * 8 + lane % 4 * 2 + e) * 2);
          };
          float largest = 0.0f;
#pragma unroll
          for (int j = 0; j < C::N / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              largest = maximum(largest, magnitude(statistic(0, j, e).v[0]));
          gradients<C>(
              s, dp,
              (C::CAUSAL && column < row + C::M * 16 - 1) || (C::WINDOW != 0 && column + C::N > row + C::WINDOW) ||
                  column + C::N > C::TOKENS,
              head, key, largest, statistic,
              [&](int, int j, int e) { return mine + j * 8 + e; },
              [&](int h, int, int) { return row + h * 8 + lane / 4; });
        }
        if ((C::CAUSAL && column < first + S::ROWS - 1) || (C::WINDOW != 0 && column + C::N > first + C::WINDOW)) {
          hideNonFinite<C>(dv, doutsAt(place), row, column, [](int j, int i) { return sees<C>(i, j); });
          hideNonFinite<C>(dk, queriesAt(place), row, column, [](int j, int i) { return sees<C>(i, j); });
        }
        if (looks) {
          weigh<C>(dv, s, doutsAt(place));
          weigh<C>(dk, dp, queriesAt(place));
        }
      });
  storeHead<C>(grad, keyRows, S::WIDTH, row, dk, [](int) { return C::SCALE; });
  storeHead<C>(grad, valueRows, S::WIDTH, row, dv, [](int) { return C::KEPT; });
}
