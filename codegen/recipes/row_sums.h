// What recipes that add rows share: sums and maxima over the last dimension.
#pragma once

#include "codegen/recipes/place.h"
#include "ir/graph.h"

#include <functional>

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

/// The lanes in which a sum of so many columns is added, unless a schedule says otherwise.
int lanesOf(int64_t columns);

/// On CUDA: a block_thread loop in which each lane, an element of the shared buffers `lanes`, adds its terms of a row
/// of `columns`, which begin with what is there if the sum goes on. terms(column) is one for each sum.
kir::Stmt addToLanes(Placer &placer, const std::vector<const RowSum *> &sums, llvm::ArrayRef<kir::Buffer> lanes,
                     int64_t columns, bool goesOn,
                     const std::function<std::vector<kir::Expr>(const kir::Expr &column)> &terms);
/// The same with the terms of the sums themselves, whose column is `c`.
kir::Stmt sumByLanes(Placer &placer, const kir::Var &c, const std::vector<const RowSum *> &sums,
                     llvm::ArrayRef<kir::Buffer> lanes, int64_t columns);

/// The loads of global memory at column `c` that at least so many sweeps over the columns make. A sweep is a list of
/// expressions.
using Sweeps = std::vector<std::vector<kir::Expr *>>;
std::vector<kir::Expr> loadsOf(const Sweeps &sweeps, const kir::Var &c, unsigned least);
/// Makes the sweeps read element `c` of `from[i]` instead of loads[i].
void replaceLoads(Placer &placer, const Sweeps &sweeps, llvm::ArrayRef<kir::Expr> loads,
                  llvm::ArrayRef<kir::Buffer> from, const kir::Var &c);

/// Columns that a thread takes together on CUDA: 16 bytes of the widest type that the rows hold, as far as rows begin
/// at multiples of that.
int columnsAtOnce(const Op &fused);

}  // namespace gptc
