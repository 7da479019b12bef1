// What the parts of the matmul recipe share.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/tile.h"

#include <functional>

namespace gptc::matmul {

/// A group around one matmul as a plain problem: batch x (m x k) * (k x n).
struct Problem {
  const Op *anchor = nullptr;
  unsigned a = 0, b = 0;  // operands of the fused op
  int64_t panels = 0;     // operand b comes in panels of so many columns (ir/ops/pack.cpp); 0: as a matrix
  int init = -1;          // likewise, or -1
  unsigned batchDims = 0;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  int64_t fold = 0;
  int64_t lda = 0, ldb = 0;        // elements between rows in memory
  int64_t aBatch = 0, bBatch = 0;  // elements between matrices of a batch
  DType stored = DType::f32;       // of both operands, in memory
  const Op *columnSum = nullptr;   // a bias gradient: the sum of operand b over k, in blocks of `fold`
  /// "" when the recipe covers the group, else why it does not.
  static std::string read(const Op &fused, Problem &out);
};

/// Whether a default schedule multiplies in pairs.
inline bool usesPairs(const Problem &p, const Target &target) { return target.bf16Dot && p.stored == DType::bf16; }

/// Whether tiles of `rows` rows of A are copied: because the micro-kernel cannot read what is stored; or because steps
/// of a transposed A lie a multiple of 4 KiB apart, in one set of the first-level cache, which then holds no line for
/// the next tile, and a tile takes less than half of a line.
inline bool copiesA(const Problem &p, bool pairs, DType compute, int rows) {
  if (compute == DType::f32 && p.stored == DType::f32)
    return p.ta && p.lda % 1024 == 0 && rows < 8 && p.m > rows;
  const bool inPairs = pairs && !p.ta && p.fold % 2 == 0;  // in memory, as every pair begins at an even element
  return compute == DType::f32 && p.stored != DType::f32 && !inPairs;
}

/// Schedules for a CPU (schedule.cpp): the default, and what else may be fast, best first by estimate.
Schedule cpuSchedule(const Problem &p, const Target &target);
std::vector<Schedule> cpuSpace(const Problem &p, const Schedule &base, const Target &target);

/// The group's outputs for elements (batch, row, col), once the sums are known.
class Epilogue {
public:
  Epilogue(GroupEval &group, const Problem &problem) : group(group), problem(problem) {}
  /// for row in firstRow..firstRow+rows: for col in firstCol..firstCol+cols (in vectors of `lanes`): evaluates and
  /// stores every output, where the sum of (row, col) is sum(row - firstRow, col - firstCol).
  kir::Stmt emit(const kir::Expr &batch, const kir::Expr &firstRow, const kir::Expr &rows, const kir::Expr &firstCol,
                 const kir::Expr &cols, int lanes,
                 const std::function<kir::Expr(const kir::Expr &row, const kir::Expr &col)> &sum);
  /// The same for a thread of a GPU, `atOnce` rows at a time: no load of theirs waits for a store, which no compiler
  /// may move it across, as results may lie where operands do.
  kir::Stmt emitRows(const kir::Expr &batch, const kir::Expr &firstRow, const kir::Expr &rows,
                     const kir::Expr &firstCol, const kir::Expr &cols, int lanes, int atOnce,
                     const std::function<kir::Expr(const kir::Expr &row, const kir::Expr &col)> &sum);
  /// Asks for the memory that emit() will read and write for a tile of `rows` x `cols` (constants): done before the
  /// sums are computed, it has arrived by then. Results that nobody has touched for a while are otherwise waited for.
  kir::Stmt prefetch(const kir::Expr &batch, const kir::Expr &firstRow, int64_t rows, const kir::Expr &firstCol,
                     int64_t cols);
  /// The initial value of an element; only when the matmul has one.
  kir::Expr init(const kir::Expr &batch, const kir::Expr &row, const kir::Expr &col);
  /// columnSum: its initial value or +0, the element of b that it adds in row k, and the store of its result.
  kir::Expr columnInit(const kir::Expr &col);
  kir::Expr columnTerm(const kir::Expr &k, const kir::Expr &col);
  kir::Stmt storeColumn(const kir::Expr &col, const kir::Expr &sum);

private:
  Point point(const kir::Expr &batch, const kir::Expr &row, const kir::Expr &col);
  /// The outputs but a column sum, and their values at `p`, where the matmul's is `sum`.
  std::vector<kir::Expr> valuesAt(const Point &p, const kir::Expr &sum, std::vector<unsigned> &results);
  bool isColumnSum(unsigned result) const;
  GroupEval &group;
  const Problem &problem;
};

/// Few rows (decoding): B is streamed once, without packing.
bool isFewRows(const Problem &p);
Schedule fewRowsSchedule(const Problem &p, const Target &target);
std::vector<Schedule> fewRowsSpace(const Problem &p, const Schedule &base);
LoweredGroup buildFewRows(GroupEval &group, const Problem &p, const Schedule &s);

/// On CUDA (grid.cpp): the default; every tile that shared memory and registers have room for, with each length
/// and number of pieces, best first by estimate; and a kernel.
Schedule cudaSchedule(const Problem &p, const Target &target);
std::vector<Schedule> cudaSpace(const Problem &p, const Schedule &base, const Target &target);
LoweredGroup buildCuda(const Op &fused, const Problem &p, const Schedule &s, DType compute);

}  // namespace gptc::matmul
