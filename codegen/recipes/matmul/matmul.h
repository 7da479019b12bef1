// Declarations that the files of the matmul recipe share.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/tile.h"

#include <functional>

namespace gptc::matmul {

/// The matmul of a group as `batch` products (m x k) * (k x n).
struct Problem {
  const Op *anchor = nullptr;
  unsigned a = 0, b = 0;  // operands of the fused op
  int scales = -1;        // operand with the scales of b, if b is the numbers of a quantized_matmul; else -1
  int supers = -1;        // operand with what the scales of Q4_K are multiplied by; else -1
  int64_t panels = 0;     // columns of the panels in which operand b is packed (ir/ops/pack.cpp); 0: a plain matrix
  int init = -1;          // operand of the fused op with the initial value, or -1
  unsigned batchDims = 0;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool ta = false, tb = false;
  int64_t fold = 0;
  int64_t lda = 0, ldb = 0;        // elements between rows in memory
  int64_t aBatch = 0, bBatch = 0;  // elements between matrices of a batch
  DType stored = DType::f32;       // dtype of both operands in memory
  const Op *columnSum = nullptr;   // a bias gradient: the sum of operand b over k, in blocks of `fold`; may be null
  /// Fills `out`. Returns "" if the recipe covers the group, else why it does not.
  static std::string read(const Op &fused, Problem &out);
};

/// Whether a default schedule multiplies pairs of bf16 (Schedule::pairs).
inline bool usesPairs(const Problem &p, const Target &target) { return target.bf16Dot && p.stored == DType::bf16; }

/// Whether tiles of `rows` rows of A are copied to a buffer. Either the micro-kernel cannot read the stored format; or
/// A is transposed with steps a multiple of 4 KiB apart, so that its lines share one set of the first-level cache and
/// are lost before the next tile, and a tile takes less than half of a line.
inline bool copiesA(const Problem &p, bool pairs, DType compute, int rows) {
  if (compute == DType::f32 && p.stored == DType::f32)
    return p.ta && p.lda % 1024 == 0 && rows < 8 && p.m > rows;
  const bool inPairs = pairs && !p.ta && p.fold % 2 == 0;  // memory holds the pairs: each begins at an even element
  return compute == DType::f32 && p.stored != DType::f32 && !inPairs;
}

/// Schedules for a CPU (cpu_schedule.cpp): the default, and others that may be fast, best first by estimate.
Schedule cpuSchedule(const Problem &p, const Target &target);
std::vector<Schedule> cpuSpace(const Problem &p, const Schedule &base, const Target &target);

/// Emits the group's outputs at elements (batch, row, col) from finished sums.
class Epilogue {
public:
  Epilogue(GroupEval &group, const Problem &problem) : group(group), problem(problem) {}
  /// Evaluates and stores every output with the product's shape for rows firstRow..firstRow+rows and columns
  /// firstCol..firstCol+cols, in vectors of `lanes`. The sum of (row, col) is sum(row - firstRow, col - firstCol).
  kir::Stmt emit(const kir::Expr &batch, const kir::Expr &firstRow, const kir::Expr &rows, const kir::Expr &firstCol,
                 const kir::Expr &cols, int lanes,
                 const std::function<kir::Expr(const kir::Expr &row, const kir::Expr &col)> &sum);
  /// The same for a thread of a GPU. It loads all operands of `atOnce` rows before it stores: a compiler cannot move
  /// loads across stores itself, because results may share memory with operands.
  kir::Stmt emitRows(const kir::Expr &batch, const kir::Expr &firstRow, const kir::Expr &rows,
                     const kir::Expr &firstCol, const kir::Expr &cols, int lanes, int atOnce,
                     const std::function<kir::Expr(const kir::Expr &row, const kir::Expr &col)> &sum);
  /// Prefetches the memory that emit() will read and write for a tile of `rows` x `cols` elements. Emitted before the
  /// sums are computed, so that the memory arrives meanwhile.
  kir::Stmt prefetch(const kir::Expr &batch, const kir::Expr &firstRow, int64_t rows, const kir::Expr &firstCol,
                     int64_t cols);
  /// The initial value of an element; only if the matmul has one (Problem::init).
  kir::Expr init(const kir::Expr &batch, const kir::Expr &row, const kir::Expr &col);
  /// For columnSum: its initial value or +0, the element of b that it adds at row k, and the store of its result.
  kir::Expr columnInit(const kir::Expr &col);
  kir::Expr columnTerm(const kir::Expr &k, const kir::Expr &col);
  kir::Stmt storeColumn(const kir::Expr &col, const kir::Expr &sum);

private:
  Point point(const kir::Expr &batch, const kir::Expr &row, const kir::Expr &col);
  /// The values of all outputs with the product's shape at `p`, where the matmul's result is `sum`; fills `results`
  /// with their numbers.
  std::vector<kir::Expr> valuesAt(const Point &p, const kir::Expr &sum, std::vector<unsigned> &results);
  /// False for a column sum, and for caches of keys and values.
  bool isElement(unsigned result) const;
  bool isColumnSum(unsigned result) const;
  GroupEval &group;
  const Problem &problem;
};

/// Up to four rows of A (decoding): B is read once, without packing (few_rows.cpp).
bool isFewRows(const Problem &p);
Schedule fewRowsSchedule(const Problem &p, const Target &target);
std::vector<Schedule> fewRowsSpace(const Problem &p, const Schedule &base);
LoweredGroup buildFewRows(GroupEval &group, const Problem &p, const Schedule &s);

/// Weights of 8 or 4 bits (quantized.cpp).
Schedule quantizedSchedule(const Problem &p, const Target &target);
std::vector<Schedule> quantizedSpace(const Problem &p, const Schedule &base);
LoweredGroup buildQuantized(GroupEval &group, const Problem &p, const Schedule &s);
/// The same on CUDA (cuda_quantized.cpp), where rounding of rows is a launch before the product's.
Schedule cudaQuantizedSchedule(const Problem &p, const Target &target);
std::vector<Schedule> cudaQuantizedSpace(const Problem &p, const Schedule &base, const Target &target);
LoweredGroup buildCudaQuantized(const Op &fused, const Problem &p, const Schedule &s, DType compute);

/// On CUDA (cuda_kernel.cpp): the default schedule; all tiles for which shared memory and registers have room, with
/// each length and number of stages, best first by estimate; and the kernel.
Schedule cudaSchedule(const Problem &p, const Target &target);
std::vector<Schedule> cudaSpace(const Problem &p, const Schedule &base, const Target &target);
LoweredGroup buildCuda(const Op &fused, const Problem &p, const Schedule &s, DType compute);

}  // namespace gptc::matmul
