// What the recipes row and row_fold share: sums and maxima over the last dimension.
#pragma once

#include "codegen/recipes/place.h"
#include "ir/graph.h"

namespace gptc {

/// A sum or maximum over a row: the Reduce node that stands for it, the variable that holds it, and its term at a
/// column.
struct RowSum {
  kir::Expr node;
  kir::Var result;
  kir::BinaryOp op;
  kir::Expr element;
  /// What it begins with: +0 or minus infinity.
  kir::Expr start() const;
};
/// Takes the row sums out of expressions: variables replace their nodes in `roots` and in terms. Returns them by level;
/// terms of a level have variables of levels before it.
std::vector<std::vector<RowSum>> takeRowSums(Placer &placer, llvm::ArrayRef<kir::Expr *> roots);

/// Columns that a thread takes together on CUDA: 16 bytes of the widest type that the rows hold, as far as rows begin
/// at multiples of that.
int columnsAtOnce(const Op &fused);

}  // namespace gptc
