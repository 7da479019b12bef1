//! The text of matmul statements: one template, which stands on the device layer and which NVRTC compiles only for the
//! shapes that a kernel asks for. docs/cuda.md gives the reasons for its sizes.
//!
//!   1. A tile of the product belongs to a block. Along k, pieces of A and B come to shared memory by asynchronous
//!      copies, as they lie in memory, `STAGES` of them in a ring: while one is multiplied the next ones are on their
//!      way. One barrier per piece does two things: all threads' copies of this piece have arrived, and all have done
//!      with the piece before, whose place the next copy takes.
//!   2. Pieces of 16 bytes are swizzled within their rows (swizzledChunk), so that neither copies nor fragments meet
//!      bank conflicts; nothing is padded.
//!   3. Tensor cores: ldmatrix reads fragments of either order, transposed where k does not run along the rows. tf32 has
//!      no transposed ldmatrix: its words are read one by one.
//!      FMA: a thread reads four steps of its rows and columns at once and takes them in the order of k.
//!   4. Sums go to the tile in shared memory, where the pieces were, and whatever comes next takes them from there in
//!      whole rows: so it reads and writes memory 16 bytes per thread.
//!
//! What lies outside of the matrices is copied as zeros.
// ROWS x COLS elements, of which rows x cols are there, from element `base` on with rows `ld` apart, to `to`, where
// rows are COLS long and swizzled; V at once, a divisor of base and ld.
template <int ROWS, int COLS, int V, int THREADS, class T, class From>
GPTC_FUNCTION void copyPiece(SharedView<T> to, const From &from, long long base, int ld, int rows, int cols) {
  constexpr int E = 16 / sizeof(T), CHUNKS = COLS / E, ALL = ROWS * CHUNKS;
  const int thread = threadIndex();
  const long long own = base + (long long)(thread / CHUNKS) * ld + thread % CHUNKS * E;
#pragma unroll
  for (int p = 0; p < ALL; p += THREADS) {
    if (ALL % THREADS != 0 && p + thread >= ALL)
      break;
    // Written so that all places of a thread are constants away from its first one.
    constexpr bool APART = THREADS % CHUNKS == 0;
    const int r = APART ? thread / CHUNKS + p / CHUNKS : (p + thread) / CHUNKS;
    const int c = APART ? thread % CHUNKS : (p + thread) % CHUNKS;
    const long long from0 = APART ? own + (long long)(p / CHUNKS) * ld : base + (long long)r * ld + c * E;
    const int place = (r * CHUNKS + swizzledChunk<CHUNKS>(r, c)) * E;
#pragma unroll
    for (int v = 0; v < E; v += V) {
      const int valid = r < rows ? minimum(maximum(cols - c * E - v, 0), V) : 0;
      const long long source = from0 + v;  // nowhere, perhaps, where nothing is valid
      if constexpr (V * sizeof(T) >= 4)
        asyncCopy<V * (int)sizeof(T)>(to, place + v, from, source, valid * (int)sizeof(T));
      else
        writeRaw(to, place + v, valid ? readRaw(from, source) : T{});
    }
  }
}

// The place of element (r, c) of such a piece.
template <int COLS, class T> GPTC_FUNCTION int pieceAt(int r, int c) {
  constexpr int E = 16 / sizeof(T), CHUNKS = COLS / E;
  return (r * CHUNKS + swizzledChunk<CHUNKS>(r, c / E)) * E + c % E;
}

// Fragments of 16 rows (of A) or columns (of B) from `first` on, and the steps from k on; K_INNER: k runs along the
// rows of the piece, which are COLS long. Of A, r is a[4]; of B, the b[2] of 8 columns and then of the 8 others.
template <bool IS_A, bool K_INNER, int COLS, class T>
GPTC_FUNCTION void loadFragment(unsigned (&r)[4], SharedView<T> piece, int first, int k) {
  constexpr int HALF = 16 / sizeof(T);  // steps in 16 bytes
  const int lane = threadIndex() % 32, matrix = lane / 8;
  // Which of the four matrices lie further along k, and which along the rows or columns.
  const int alongK = (IS_A ? matrix / 2 : matrix % 2) * HALF, along = (IS_A ? matrix % 2 : matrix / 2) * 8;
  if constexpr (K_INNER) {
    loadMatrices(r, piece, pieceAt<COLS, T>(first + along + lane % 8, k + alongK));
  } else if constexpr (sizeof(T) == 2) {
    loadMatricesTransposed(r, piece, pieceAt<COLS, T>(k + alongK + lane % 8, first + along));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = bitsOf(load(piece, pieceAt<COLS, T>(k + lane % 4 + (IS_A ? i / 2 : i % 2) * 4,
                                                 first + lane / 4 + (IS_A ? i % 2 : i / 2) * 8)));
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      r[i] = roundTF32(floatOf(r[i]));
  }
}

// Pieces along k in the order of their sums: `fold` steps, a multiple of none, begin a piece of their own.
struct Pieces {
  int k, fold, steps, perFold, count;
  GPTC_METHOD Pieces(int k, int fold, int steps)
      : k(k), fold(fold), steps(steps), perFold((fold + steps - 1) / steps),
        count(k / fold * perFold + (k % fold + steps - 1) / steps) {}
  GPTC_METHOD int first(int piece) const {
    return fold % steps == 0 || fold == k ? piece * steps : piece / perFold * fold + piece % perFold * steps;
  }
  GPTC_METHOD int length(int piece) const {
    return fold % steps == 0 && k % steps == 0
               ? steps
               : minimum(minimum(steps, fold - piece % perFold * steps), k - first(piece));
  }
  GPTC_METHOD bool endsFold(int piece) const { return piece % perFold == perFold - 1 || piece == count - 1; }
};

// The ring of pieces, and f(piece of A, piece of B, its length, whether a fold ends with it) on each when it is there.
template <class T, bool TA, bool TB, int ROWS, int COLS, int STEPS, int STAGES, int VA, int VB, int THREADS, class C,
          class A, class B, class F>
GPTC_FUNCTION void forPieces(C &c, const A &a, long long aBase, int lda, const B &b, long long bBase, int ldb, int m,
                             int n, const Pieces &pieces, int row, int col, F f) {
  constexpr int BYTES_A = ROWS * STEPS * sizeof(T), STAGE = BYTES_A + COLS * STEPS * sizeof(T);
  auto fetch = [&](int piece) {
    const int k = pieces.first(piece), length = pieces.length(piece), at = piece % STAGES * STAGE;
    const int rows = m % ROWS == 0 ? ROWS : m - row, cols = n % COLS == 0 ? COLS : n - col;
    SharedView<T> toA = sharedView<T>(c, at), toB = sharedView<T>(c, at + BYTES_A);
    if constexpr (TA)
      copyPiece<STEPS, ROWS, VA, THREADS>(toA, a, aBase + (long long)k * lda + row, lda, length, rows);
    else
      copyPiece<ROWS, STEPS, VA, THREADS>(toA, a, aBase + (long long)row * lda + k, lda, rows, length);
    if constexpr (TB)
      copyPiece<COLS, STEPS, VB, THREADS>(toB, b, bBase + (long long)col * ldb + k, ldb, cols, length);
    else
      copyPiece<STEPS, COLS, VB, THREADS>(toB, b, bBase + (long long)k * ldb + col, ldb, length, cols);
  };
#pragma unroll
  for (int piece = 0; piece < STAGES - 1; ++piece) {
    if (piece < pieces.count)
      fetch(piece);
    asyncCommit();
  }
  for (int piece = 0; piece < pieces.count; ++piece) {
    asyncWait<STAGES - 2>();
    barrier();
    if (piece + STAGES - 1 < pieces.count)
      fetch(piece + STAGES - 1);
    asyncCommit();
    const int at = piece % STAGES * STAGE;
    f(sharedView<T>(c, at), sharedView<T>(c, at + BYTES_A), pieces.length(piece), pieces.endsFold(piece));
  }
  barrier();  // the sums take the place of the pieces
}

// By tensor cores: each warp takes MR x NR of the tile.
template <class T, bool TA, bool TB, int ROWS, int COLS, int LDC, int STEPS, int MR, int NR, int STAGES, int VA, int VB,
          bool FOLDS, bool GOES_ON, class C, class A, class B>
GPTC_FUNCTION void matmulMma(C &c, const A &a, long long aBase, int lda, const B &b, long long bBase, int ldb, int m,
                             int n, int k, int fold, int row, int col) {
  constexpr int WARPS = COLS / NR, THREADS = ROWS / MR * WARPS * 32, ONCE = sizeof(T) == 4 ? 8 : 16;
  const int warp = threadIndex() / 32, lane = threadIndex() % 32;
  const int row0 = warp / WARPS * MR, col0 = warp % WARPS * NR;
  float acc[MR / 16][NR / 8][4], part[FOLDS ? MR / 16 : 1][FOLDS ? NR / 8 : 1][4];
  auto forPairs = [&](auto f) {  // of neighbours, where they lie in the tile
#pragma unroll
    for (int i = 0; i < MR / 16; ++i)
#pragma unroll
      for (int j = 0; j < NR / 8; ++j)
#pragma unroll
        for (int h = 0; h < 4; h += 2)
          f(row0 + i * 16 + h * 4 + lane / 4, col0 + j * 8 + lane % 4 * 2, i, j, h);
  };
  forPairs([&](int r, int q, int i, int j, int h) {
    acc[i][j][h] = GOES_ON && row + r < m && col + q < n ? load(c, r * LDC + q) : 0.0f;
    acc[i][j][h + 1] = GOES_ON && row + r < m && col + q + 1 < n ? load(c, r * LDC + q + 1) : 0.0f;
    if constexpr (FOLDS)
      part[i][j][h] = part[i][j][h + 1] = 0.0f;
  });
  if (GOES_ON)
    barrier();
  auto multiply = [&](SharedView<T> pieceA, SharedView<T> pieceB, int, bool endsFold) {
#pragma unroll
    for (int s = 0; s < STEPS; s += ONCE) {
      unsigned fa[MR / 16][4], fb[NR / 8][2];
#pragma unroll
      for (int i = 0; i < MR / 16; ++i)
        loadFragment<true, !TA, TA ? ROWS : STEPS>(fa[i], pieceA, row0 + i * 16, s);
#pragma unroll
      for (int j = 0; j < NR / 8; j += 2) {
        unsigned both[4];
        loadFragment<false, TB, TB ? STEPS : COLS>(both, pieceB, col0 + j * 8, s);
        fb[j][0] = both[0], fb[j][1] = both[1], fb[j + 1][0] = both[2], fb[j + 1][1] = both[3];
      }
#pragma unroll
      for (int i = 0; i < MR / 16; ++i)
#pragma unroll
        for (int j = 0; j < NR / 8; ++j)
          if constexpr (FOLDS)
            mma(T{}, part[i][j], fa[i], fb[j]);
          else
            mma(T{}, acc[i][j], fa[i], fb[j]);
    }
    if constexpr (FOLDS)
      if (endsFold)
        forPairs([&](int, int, int i, int j, int h) {
          acc[i][j][h] += part[i][j][h], acc[i][j][h + 1] += part[i][j][h + 1];
          part[i][j][h] = part[i][j][h + 1] = 0.0f;
        });
  };
  forPieces<T, TA, TB, ROWS, COLS, STEPS, STAGES, VA, VB, THREADS>(c, a, aBase, lda, b, bBase, ldb, m, n,
                                                                   Pieces(k, fold, STEPS), row, col, multiply);
  forPairs([&](int r, int q, int i, int j, int h) {
    storeVector<2>(c, r * LDC + q, {{acc[i][j][h], acc[i][j][h + 1]}});
  });
}

// By fused multiply-adds, one after the other along k: each thread takes MR x NR of the tile.
template <class T, bool TA, bool TB, int ROWS, int COLS, int LDC, int STEPS, int MR, int NR, int STAGES, int VA, int VB,
          bool FOLDS, bool GOES_ON, class C, class A, class B>
GPTC_FUNCTION void matmulFma(C &c, const A &a, long long aBase, int lda, const B &b, long long bBase, int ldb, int m,
                             int n, int k, int fold, int row, int col) {
  typedef typename Storage<T>::Value Sum;
  constexpr int ACROSS = COLS / NR, DOWN = ROWS / MR, THREADS = ACROSS * DOWN;
  constexpr int E = 16 / sizeof(T), G = E < 4 ? E : 4;  // steps, or neighbours in a row, that are read at once
  const int x = threadIndex() % ACROSS, y = threadIndex() / ACROSS;
  // Rows and columns of a thread: neighbours where they can be read together, else such that no two threads that read
  // at one time meet in a bank.
  auto rowOf = [&](int i) { return TA ? i / G * (DOWN * G) + y * G + i % G : y + i * DOWN; };
  auto colOf = [&](int j) { return TB ? x + j * ACROSS : j / G * (ACROSS * G) + x * G + j % G; };
  Sum acc[MR][NR], part[FOLDS ? MR : 1][FOLDS ? NR : 1];
  auto forAll = [&](auto f) {
#pragma unroll
    for (int i = 0; i < MR; ++i)
#pragma unroll
      for (int j = 0; j < NR; ++j)
        f(i, j);
  };
  forAll([&](int i, int j) {
    acc[i][j] = GOES_ON && row + rowOf(i) < m && col + colOf(j) < n ? load(c, rowOf(i) * LDC + colOf(j)) : Sum(0);
    if constexpr (FOLDS)
      part[i][j] = Sum(0);
  });
  if (GOES_ON)
    barrier();
  auto multiply = [&](SharedView<T> pieceA, SharedView<T> pieceB, int length, bool endsFold) {
    auto steps = [&](int s, int count) {
      Sum fa[MR][G], fb[NR][G];
      auto fetch = [&](auto &to, auto piece, auto inner, auto cols, int n, auto placeOf) {
#pragma unroll
        for (int i = 0; i < (decltype(inner)::value ? n : G); ++i)
#pragma unroll
          for (int g = 0; g < (decltype(inner)::value ? 1 : n); g += G) {
            constexpr int COLS_OF = decltype(cols)::value;
            const auto v = loadVector<G>(piece, decltype(inner)::value ? pieceAt<COLS_OF, T>(placeOf(i), s)
                                                                       : pieceAt<COLS_OF, T>(s + i, placeOf(g)));
#pragma unroll
            for (int e = 0; e < G; ++e)
              (decltype(inner)::value ? to[i][e] : to[g + e][i]) = v.v[e];
          }
      };
      fetch(fa, pieceA, Constant<!TA>(), Constant<TA ? ROWS : STEPS>(), MR, rowOf);
      fetch(fb, pieceB, Constant<TB>(), Constant<TB ? STEPS : COLS>(), NR, colOf);
#pragma unroll
      for (int g = 0; g < G; ++g)
        if (g < count)
          forAll([&](int i, int j) {
            Sum &sum = FOLDS ? part[FOLDS ? i : 0][FOLDS ? j : 0] : acc[i][j];
            sum = fusedMultiplyAdd(fa[i][g], fb[j][g], sum);
          });
    };
    if (length == STEPS) {
#pragma unroll
      for (int s = 0; s < STEPS; s += G)
        steps(s, G);
    } else {
#pragma unroll 1
      for (int s = 0; s < length; s += G)
        steps(s, length - s);
    }
    if constexpr (FOLDS)
      if (endsFold)
        forAll([&](int i, int j) { acc[i][j] += part[i][j], part[i][j] = Sum(0); });
  };
  forPieces<T, TA, TB, ROWS, COLS, STEPS, STAGES, VA, VB, THREADS>(c, a, aBase, lda, b, bBase, ldb, m, n,
                                                                   Pieces(k, fold, STEPS), row, col, multiply);
  forAll([&](int i, int j) { store(c, rowOf(i) * LDC + colOf(j), acc[i][j]); });
}
