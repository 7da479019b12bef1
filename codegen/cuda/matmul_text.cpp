// Writes calls of the matmul templates of device/matmul.cuh.
#include "codegen/cuda/emit_text.h"

#include <numeric>

namespace gptc {

std::string matmulCall(const kir::MatmulTile &t, const MatmulNames &n) {
  const int64_t piece = 16 / int64_t(sizeOf(t.a->dtype)), fold = t.fold ? t.fold : t.k;
  // Elements per copy, at most 16 bytes: all rows must begin at a multiple of it, and all blocks of k too if k runs
  // along rows.
  auto width = [&](int64_t multiple, int64_t ld, bool kInner) {
    const int64_t w = std::gcd(std::gcd(multiple, ld), piece);
    return kInner && t.k > fold ? std::gcd(w, fold) : w;
  };
  const int64_t va = width(n.aMultiple, t.lda, !t.ta), vb = width(n.bMultiple, t.ldb, t.tb);
  return fmt::format("matmul{}<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>({}, {}, {}, {}, {}, {}, {}, {}, "
                     "{}, {}, {}, {}, {});",
                     t.mma ? "Mma" : "Fma", storedType(t.a->dtype), t.ta, t.tb, t.rows, t.cols, t.ldc, t.steps, t.mr,
                     t.nr, t.stages, va, vb, t.fold != 0, t.goesOn, n.c, n.a, n.aBase, t.lda, n.b, n.bBase, t.ldb, t.m,
                     t.n, t.k, fold, n.row, n.col);
}

}  // namespace gptc
