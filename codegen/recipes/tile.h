// Register-tiled micro-kernels as loop trees, for the matmul and attention recipes.
//
// A tile is `rows` x `vecs` vectors of accumulators. Each accumulator is one chain of fused multiply-adds over k, so
// its bits depend on neither the tile's size nor its place. The blocking around it follows Goto & van de Geijn 2008,
// "Anatomy of high-performance matrix multiplication".
#pragma once

#include "codegen/recipes/pointwise.h"
#include "ir/kernel/kernel.h"
#include "ir/kernel/schedule.h"

#include <functional>

namespace gptc {

/// Statements in order.
using Body = std::vector<kir::Stmt>;

struct Tile {
  int rows = 0;   // scalars of A broadcast per step
  int vecs = 0;   // vectors of B loaded per step
  int lanes = 0;  // elements of a vector
  DType dtype = DType::f32;
  int cols() const { return vecs * lanes; }
};

/// The largest tile that leaves registers for two vectors of B and a broadcast: 14 x 2 of 32 registers, 6 x 2 of 16.
/// With `pairs` one row less: two dots use each broadcast pair, so it needs a register.
Tile registerTile(const Target &target, DType dtype, bool pairs);
/// A tile with fewer rows and four vectors: 6 x 4 of 32 registers; 0 rows if there are only 16. A step loads less, and
/// an epilogue overlaps the latencies of four vectors. But B is read twice as often.
Tile flatTile(const Target &target, DType dtype);
/// If `rows` <= largest.rows: a tile of `rows` rows. Else one of the height, at least half of largest.rows, that wastes
/// least when `rows` rows are cut into equal tiles; the last tile may overlap the one before it.
Tile tileForRows(const Tile &largest, int64_t rows);

/// Steps on the causal diagonal, where the mask leaves row r of a tile only part of the elements x = 0, 1, ..., as many
/// as the tile has rows (pairs: half as many steps). With `ahead` row r takes x >= r, before the loop's other steps;
/// else x <= r - late, after them. Masked elements are not multiplied by 0, because 0 times a non-finite value is NaN.
struct Triangle {
  bool ahead = false;
  kir::Expr at;    // the first step
  kir::Expr when;  // pred: whether the triangle exists; null: always
  int late = 0;    // 0 or 1
};

/// The work of one tile: steps begin <= k < steps of all accumulators. Each callback builds one accumulator's part.
struct TileLoop {
  Tile tile;
  kir::Expr begin;                  // first k; null: 0
  kir::Expr steps;                  // end of k
  std::vector<Triangle> triangles;  // all `ahead` or none; at most one exists at run time
  /// If set, rows take only part of the elements of the steps of [begin, beginWhole) and [steps, end): those for which
  /// sees(row, element) is true. Step k has element k, or with `pairs` elements 2k and 2k + 1. Others are not
  /// multiplied, as in triangles.
  std::function<kir::Expr(int row, const kir::Expr &element)> sees;
  kir::Expr beginWhole, end;                                // null: no such steps
  bool pairs = false;                                       // a and b yield pairs of bf16, and a step is kir::dot
  std::function<kir::Expr(int row, const kir::Expr &k)> a;  // uniform
  std::function<kir::Expr(int vec, const kir::Expr &k, const kir::Expr &lane)> b;
  /// If set, one more step k = steps follows if `more` (a pred) is true, with last(row) instead of a(row, k).
  std::function<kir::Expr(int row)> last;
  kir::Expr more;
  std::function<kir::Expr(int row, int vec, const kir::Expr &lane)> start;  // null: +0
  /// Consumes a finished accumulator.
  std::function<kir::Stmt(int row, int vec, const kir::Expr &lane, const kir::Expr &acc)> finish;
};
kir::Stmt tileLoop(const TileLoop &t);

/// The value that one step of a chain takes from an operand in memory: the element at `at`, or with `pairs` the pair of
/// it and its neighbour in k, `stride` elements away. With `odd` there is no neighbour, and zero replaces it.
kir::Expr stepOf(bool pairs, const kir::Buffer &from, const kir::Expr &at, int64_t stride, bool odd);

// ---- building blocks -----------------------------------------------------------------------------------------------

/// for (var in 0..extent) body(var)
kir::Stmt serial(const char *name, kir::Expr extent, const std::function<Body(const kir::Expr &)> &body);
kir::Stmt vectorLoop(const char *name, kir::Expr extent, int lanes, const std::function<Body(const kir::Expr &)> &body);
kir::Stmt parallel(const char *name, int64_t extent, const std::function<Body(const kir::Expr &)> &body);
/// Binds a value that several statements of `body` use to a variable.
kir::Stmt bindTo(const char *name, const kir::Expr &value, const std::function<Body(const kir::Expr &)> &body);

/// Bytes of stack buffers that a recipe may use: a little less than the kernel IR allows.
constexpr int64_t stackBudget = 992 << 10;

constexpr int64_t cacheLine = 64;  // bytes

/// At least n elements that fill an odd number of cache lines: rows at this distance fall into different cache sets.
int64_t oddLines(int64_t n, DType dtype);

/// Transposes a square of lanes x lanes elements in registers. row(i, lane) loads element `lane` of row i; column(i,
/// lane, value) consumes element i of row `lane`. `lanes` must be a power of two.
kir::Stmt transposed(int lanes, DType dtype, const std::function<kir::Expr(int, const kir::Expr &)> &row,
                     const std::function<kir::Stmt(int, const kir::Expr &, const kir::Expr &)> &column);

/// Copies a matrix into panels [ceil(cols/width)][panelSteps][width], with zeros past `cols`, so that a tile of `width`
/// columns reads memory in order. Element (k, n) of the source is at base + k*stepStride + n*colStride; one of the
/// strides must be 1. `panelSteps` >= steps is the number of steps for which each panel has room.
struct PanelPack {
  kir::Buffer from, to;
  /// If set, gives element (k, n) instead of a plain load. Lanes vary along n if colStride is 1, else along k.
  std::function<kir::Expr(const kir::Expr &step, const kir::Expr &col)> element;
  kir::Expr base;  // i64
  int64_t stepStride = 1, colStride = 1;
  kir::Expr steps;       // i64, may be a runtime value
  kir::Expr fullPanels;  // number of full panels to copy, may be a runtime value
  int64_t tailCols = 0;  // columns of one more panel, 0 for none
  kir::Expr hasTail;     // pred: whether that panel exists; null: always (if tailCols > 0)
  int width = 0, lanes = 0;
  int64_t panelSteps = 0;
  kir::Expr toBase;  // where panel 0 begins in `to`; null: 0
  /// Prefetches the source some steps ahead: pieces of rows are too short for the hardware prefetcher. `perStep` is the
  /// number of elements of k in memory per step.
  bool fetch = false;
  int64_t perStep = 1;
};
Body packPanels(const PanelPack &p);

}  // namespace gptc
