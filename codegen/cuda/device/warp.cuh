//! The device layer of emitted CUDA text: a warp's part in tensor cores, and asynchronous copies. tests/simt/shim states
//! the same lane maps once more, from the PTX ISA ("Matrix Fragments for mma", "ldmatrix"), and checks one against the
//! other.
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
// Two values as one word, to the nearest, ties to even. On sm_80 and later denormals stay what they are.
GPTC_FUNCTION unsigned packPair(bf16, float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
#else
  return (unsigned)bitsOfBF16(low) | (unsigned)bitsOfBF16(high) << 16;
#endif
}
GPTC_FUNCTION unsigned packPair(f16, float low, float high) {
  return (unsigned)bitsOfF16(low) | (unsigned)bitsOfF16(high) << 16;
}
//! How common.cuh and templates mark their methods.
#define GPTC_METHOD __device__ __forceinline__
