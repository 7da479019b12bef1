// What the recipes fold and row_fold share: sums over the leading dimensions, in blocks of `fold` rows.
#pragma once

#include "codegen/recipes/place.h"
#include "ir/kernel/kernel.h"

namespace gptc {

/// A sum over rows: the Reduce node that stands for it, its term at a row and column, and where it begins (+0 if not
/// given).
struct FoldSum {
  kir::Expr node, element, init;
};
class FoldSums {
public:
  FoldSums() = default;
  /// The sums at and below `roots`, of which there is one at least. They have equal blocks and lie in no other sum.
  FoldSums(llvm::ArrayRef<kir::Expr> roots, int64_t rows);
  /// `e` with `totals` in place of the sums.
  kir::Expr withTotals(const kir::Expr &e, llvm::ArrayRef<kir::Expr> totals) const;
  /// Adds `blocks` partial sums in order to `inits`. Those of a sum lie in its workspace, `stride` elements apart, from
  /// `first` on. Returns the totals.
  std::vector<kir::Expr> addBlocks(Seq &seq, llvm::ArrayRef<kir::Expr> inits, llvm::ArrayRef<kir::Buffer> workspaces,
                                   const kir::Expr &first, int64_t stride, int64_t blocks) const;

  int64_t fold = 0;  // rows of a block
  size_t size() const { return sums.size(); }
  const FoldSum &operator[](size_t k) const { return sums[k]; }
  auto begin() const { return sums.begin(); }
  auto end() const { return sums.end(); }

private:
  std::vector<FoldSum> sums;
};

}  // namespace gptc
