// Register-tiled micro-kernels as loop trees: what matmul and attention are made of.
//
// A tile is `rows` x `vecs` vectors of accumulators. Each accumulator is one chain of fused multiply-adds over k, so
// that its bits depend on neither the tile's size nor its place (Goto & van de Geijn 2008, "Anatomy of high-performance
// matrix multiplication", for the blocking around it).
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

/// The largest tile that leaves registers for two vectors of B and a broadcast: 14 x 2 of 32 registers, 6 x 2 of 16;
/// with `pairs` one row less, as a broadcast pair is no memory operand when two dots use it.
Tile registerTile(const Target &target, DType dtype, bool pairs);
/// As many accumulators in fewer rows: 6 x 4 of 32 registers; none (0 rows) of 16. A step loads less, and an epilogue
/// has four vectors to compute side by side, where one alone would wait for each of its own results; but B is read
/// twice as often.
Tile flatTile(const Target &target, DType dtype);
/// As `largest`, with the number of rows (at most largest.rows, at least half of it) that wastes least when `rows` rows
/// are cut into equal tiles, the last of which may overlap the one before it.
Tile tileForRows(const Tile &largest, int64_t rows);

/// Steps of which some rows of a tile must not take part: as many as the tile has rows, or half as many pairs. Row r of
/// a tile that goes on `ahead` takes elements x >= r of them, before the other steps; else x <= r - late, after those.
/// Nothing is multiplied that does not count, as 0 times what is not finite would be NaN.
struct Triangle {
  bool ahead = false;
  kir::Expr at;    // its first step
  kir::Expr when;  // a pred: whether it is there; null: always
  int late = 0;    // 0 or 1
};

/// One tile's worth of work. Expressions are built once per accumulator; the vector position is base + lane.
struct TileLoop {
  Tile tile;
  kir::Expr begin;                                          // of k; null: 0
  kir::Expr steps;                                          // end of k
  std::vector<Triangle> triangles;                          // of one direction; at most one of them is there
  bool pairs = false;                                       // a and b yield pairs of bf16, a step takes kir::dot
  std::function<kir::Expr(int row, const kir::Expr &k)> a;  // uniform
  std::function<kir::Expr(int vec, const kir::Expr &k, const kir::Expr &lane)> b;
  /// Where set, one more step follows when `more` (a pred) holds: of last(row) in place of a(row, steps).
  std::function<kir::Expr(int row)> last;
  kir::Expr more;
  std::function<kir::Expr(int row, int vec, const kir::Expr &lane)> start;  // null: +0
  /// Consumes a finished accumulator.
  std::function<kir::Stmt(int row, int vec, const kir::Expr &lane, const kir::Expr &acc)> finish;
};
kir::Stmt tileLoop(const TileLoop &t);

/// What a step of a chain takes from an operand in memory: the element at `at` or, with `pairs`, the pair of it and the
/// next one in k, `stride` away; where there is none (`odd`), zero stands for it.
kir::Expr stepOf(bool pairs, const kir::Buffer &from, const kir::Expr &at, int64_t stride, bool odd);

// ---- building blocks -----------------------------------------------------------------------------------------------

/// for (var in 0..extent) body(var)
kir::Stmt serial(const char *name, kir::Expr extent, const std::function<Body(const kir::Expr &)> &body);
kir::Stmt vectorLoop(const char *name, kir::Expr extent, int lanes, const std::function<Body(const kir::Expr &)> &body);
kir::Stmt parallel(const char *name, int64_t extent, const std::function<Body(const kir::Expr &)> &body);
/// Binds a value that several statements use.
kir::Stmt bindTo(const char *name, const kir::Expr &value, const std::function<Body(const kir::Expr &)> &body);

/// Bytes of stack buffers that a recipe may use; a little less than the kernel IR allows.
constexpr int64_t stackBudget = 992 << 10;

constexpr int64_t cacheLine = 64;  // bytes

/// At least n elements, and an odd number of cache lines: rows at this distance fall into different sets of a cache.
int64_t oddLines(int64_t n, DType dtype);

/// A square of lanes x lanes elements, transposed in registers: row(i, lane) loads element `lane` of row i, column(i,
/// lane, value) takes element i of row `lane`. `lanes` is a power of two.
kir::Stmt transposed(int lanes, DType dtype, const std::function<kir::Expr(int, const kir::Expr &)> &row,
                     const std::function<kir::Stmt(int, const kir::Expr &, const kir::Expr &)> &column);

/// Copies a matrix into panels [ceil(cols/width)][steps][width], zeros past `cols`, so that a tile of `width` columns
/// streams through memory. Element (k, n) of the source is at base + k*stepStride + n*colStride; one of the strides
/// is 1. `panelSteps` is the number of steps for which each panel has room (>= steps).
struct PanelPack {
  kir::Buffer from, to;
  /// What stands at (k, n) instead, where a plain load does not do: along colStride 1 it is asked for lanes of n, along
  /// stepStride 1 for lanes of k.
  std::function<kir::Expr(const kir::Expr &step, const kir::Expr &col)> element;
  kir::Expr base;  // i64
  int64_t stepStride = 1, colStride = 1;
  kir::Expr steps;       // i64, may be a runtime value
  kir::Expr fullPanels;  // runtime number of full panels to copy
  int64_t tailCols = 0;  // static: columns of one more panel, 0 for none
  kir::Expr hasTail;     // pred; null means always (when tailCols > 0)
  int width = 0, lanes = 0;
  int64_t panelSteps = 0;
  kir::Expr toBase;  // where panel 0 stands in `to`; null: 0
  /// Asks for the source some way ahead: pieces of rows are too short for the machine to see what comes. `perStep` is
  /// how many elements of k in memory a step takes.
  bool fetch = false;
  int64_t perStep = 1;
};
Body packPanels(const PanelPack &p);

}  // namespace gptc
