// What the attention recipes share: the shape of the problem and its loops.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/tile.h"
#include "ir/random.h"

#include <functional>

namespace gptc::attention {

/// Row sums and maxima use this many lanes on every target, so that their order is the recipe's.
constexpr int rowLanes = 16;

struct Shape {
  int64_t batch, tokens, heads, kvHeads, size;  // B, T, H, Hkv, D
  int64_t ofHeads;                              // of which these H are some
  bool causal, alibi;
  double p;                                                       // dropout
  int64_t width() const { return (heads + 2 * kvHeads) * size; }  // of a row of qkv
  int64_t group() const { return heads / kvHeads; }               // heads per head of keys
  double scale() const;
};
/// From an attention or attention_grad op whose operand `qkv` is packed.
Shape shapeOf(const Op &op, unsigned qkv);
/// A register tile for rows of queries: shorter for short sequences, where tiles at the diagonal are many.
Tile queryTile(const Target &target, const Shape &shape, bool pairs);
/// Whether a default schedule multiplies queries, keys, values and probabilities as pairs of bf16.
bool usesPairs(const Op &op, unsigned qkv, const Target &target);
/// The group's one op besides constants and the yield, when it is of this kind and takes inputs of the group only.
const Op *onlyOp(const Op &fused, OpKind kind);

/// Loads and places in packed rows of queries, keys and values: token i of sequence b.
struct Packed {
  kir::Buffer buffer;
  Shape shape;
  kir::Expr row(const kir::Expr &b, const kir::Expr &i) const { return (b * shape.tokens + i) * shape.width(); }
  kir::Expr query(const kir::Expr &b, const kir::Expr &i, const kir::Expr &head) const {
    return row(b, i) + head * shape.size;
  }
  kir::Expr key(const kir::Expr &b, const kir::Expr &i, const kir::Expr &kvHead) const {
    return row(b, i) + (kvHead + shape.heads) * shape.size;
  }
  kir::Expr value(const kir::Expr &b, const kir::Expr &i, const kir::Expr &kvHead) const {
    return row(b, i) + (kvHead + (shape.heads + shape.kvHeads)) * shape.size;
  }
};

/// Of all heads, the first that the op has, in memory: its operand head0. Null where it has all.
kir::Buffer firstHead(const GroupEval &group, const Op &op);

/// Dropout on probabilities: element (i, j) of head h of sequence b is random(seed, step, stream, seq0 + b,
/// ((head0 + h)*T + i)*T + j).
class Dropout {
public:
  /// Operands seed, step, seq0 of the fused op's anchor begin at `first`; without them nothing is dropped.
  Dropout(GroupEval &group, const Op &anchor, unsigned first, const Shape &shape);
  bool active() const { return on; }
  /// Binds the key of sequence b around `body`; keep() may be used inside.
  kir::Stmt withKey(const kir::Expr &b, const std::function<Body()> &body);
  /// What the key is made of, as an attention statement takes it; null where nothing is dropped. Inside withKey.
  kir::Expr packedKey() const;
  /// pred: whether the probability stays.
  kir::Expr keep(const kir::Expr &head, const kir::Expr &i, const kir::Expr &j) const;
  double keptScale() const { return 1.0 / (1.0 - shape.p); }

private:
  const Shape shape;
  bool on;
  kir::Expr seed, step, seq0, stream;
  kir::Buffer head0;
  RandomKeyExpr key;
  kir::Expr first;  // head0, within withKey
};

/// ALiBi: what is added to a score for the distance of query and key.
class Bias {
public:
  Bias(const GroupEval &group, const Op &op, const Shape &shape);
  /// Binds the slope of a head around `body`; add() may be used inside.
  kir::Stmt withSlope(const kir::Expr &head, const std::function<Body()> &body);
  /// score + bias of the key `uniform + lane` positions after the query (before it where negative), in two operations:
  /// integers up to 2^24 are exact in f32. `lane` is what varies within a vector.
  kir::Expr add(const kir::Expr &score, const kir::Expr &uniform, const kir::Expr &lane) const;

private:
  const Shape shape;
  const DType compute;
  const kir::Buffer head0;
  kir::Expr slope;
};

/// Copies `cols` elements of each row: to[i*toStride + x] = from[fromBase(i) + x] * scale (1: as they are), zeros from
/// cols to paddedCols.
kir::Stmt copyRows(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                   const kir::Buffer &to, const kir::Expr &toBase, int64_t toStride, const kir::Expr &rows,
                   int64_t cols, int64_t paddedCols, int lanes, double scale);

/// Packs rows of `size` elements from p.base on, p.colStride apart, into panels whose steps are the elements of a row
/// or, with `pairs`, pairs of them, the last one filled with zero. Sets the steps of `p`.
Body packTransposed(PanelPack p, int64_t size, bool pairs);
/// to[i*toStride + x] = pair x of row i of `cols` bf16.
kir::Stmt copyPairs(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                    const kir::Buffer &to, int64_t toStride, const kir::Expr &rows, int64_t cols, int lanes);
/// to[toBase + i*toStride + x] = the pair of element x of rows 2i and 2i + 1, zeros from cols to paddedCols and for a
/// row that is not there.
kir::Stmt copyRowPairs(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                       const kir::Buffer &to, const kir::Expr &toBase, int64_t toStride, const kir::Expr &rows,
                       int64_t cols, int64_t paddedCols, int lanes);

/// Folds element j of a row, for j in 0..extent, into `lanes` lanes and those by halves: body(result) runs with the
/// scalar bound. `element(j, fold)` calls fold(value) for the statement that takes a value, and may store beside it.
using Fold = std::function<kir::Stmt(kir::Expr)>;
using FoldElement = std::function<Body(const kir::Expr &j, const Fold &fold)>;
kir::Stmt foldRow(const char *name, DType dtype, kir::BinaryOp op, double start, const kir::Expr &extent, int lanes,
                  const FoldElement &element, const std::function<Body(const kir::Expr &result)> &body);
/// The same in parts one behind the other, all but the last of which are whole multiples of `lanes`.
struct FoldPart {
  kir::Expr begin, count;
  FoldElement element;
};
kir::Stmt foldParts(const char *name, DType dtype, kir::BinaryOp op, double start, const std::vector<FoldPart> &parts,
                    int lanes, const std::function<Body(const kir::Expr &result)> &body);

/// Asks early for `size` elements from `base` on.
Body fetchRow(const kir::Buffer &from, const kir::Expr &base, int64_t size);
/// log2(e): softmax takes exp2, and what it multiplies scores by for that comes with the subtraction.
constexpr double log2e = 1.4426950408889634;
/// Whether an exponent of two is so large that its own rounding moves what is left of it after a subtraction by more
/// than 2^-9, and further on past all powers of two. There scores are subtracted before they are multiplied.
kir::Expr isHuge(const kir::Expr &exponent);

/// The phases of a kernel, and the workspaces that they need.
struct Phases {
  Body body;
  std::vector<kir::Buffer> workspaces;
  /// Becomes the kernel of the group.
  LoweredGroup lowered(const GroupEval &group) &&;
};
/// Attention as grids (grid.cpp): of loop trees, or of attention statements where the schedule has mr and nr.
Phases cachedBlocks(GroupEval &group, const Op &op, const Schedule &s);
Phases forwardBlocks(GroupEval &group, const Op &op, const Schedule &s);
Phases backwardBlocks(GroupEval &group, const Op &op, const Schedule &s);
/// Schedules for these (schedule.cpp). With a cache there are only loop trees.
Schedule cachedSchedule();
Schedule cudaSchedule(const Op &op, const Target &target);
/// What else finds room and gives the same bits: other numbers of rows of a warp, and of pieces. None where cuDNN is
/// called, whose sums have an order of their own.
std::vector<Schedule> cudaSpace(const Op &op, const Schedule &base, const Target &target);

/// body(first column, tile) for each panel of `columns` columns: full ones in a loop, then a narrower one when needed.
Body forPanels(const Tile &tile, int64_t columns,
               const std::function<Body(const kir::Expr &col0, const Tile &tile)> &body);

}  // namespace gptc::attention
