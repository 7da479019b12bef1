// Parts that the attention recipes share: the shape of the problem, and loops.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/tile.h"
#include "ir/random.h"

#include <functional>

namespace gptc::attention {

/// Lanes of row sums and maxima, the same on every target, so that their order does not depend on the target.
constexpr int rowLanes = 16;

struct Shape {
  int64_t batch, tokens, heads, kvHeads, size;  // B, T, H, Hkv, D
  int64_t ofHeads;                              // all heads of the layer; the op has `heads` of them
  bool causal, alibi;
  double p;        // probability of dropout
  double factor;   // of q . k; 0: 1/sqrt(D)
  double softcap;  // largest magnitude of a scaled score; 0: any
  /// The last keys that a query sees, without `causal` those fewer than `window` away; 0: all.
  int64_t window;
  int64_t width() const { return (heads + 2 * kvHeads) * size; }  // elements of a row of qkv
  int64_t group() const { return heads / kvHeads; }               // query heads per key head
  double scale() const;
  /// The first key that a query sees: 0 without a window. The query may be past the last one.
  kir::Expr firstKey(const kir::Expr &query) const;
  /// The end of the queries that see a key.
  kir::Expr endOfQueries(const kir::Expr &key) const;
  /// pred: `seen`, and with a window whether the query's has the key.
  kir::Expr withWindow(const kir::Expr &seen, const kir::Expr &query, const kir::Expr &key) const;
};
/// The shape of an attention op whose operand number `qkv` holds packed queries, keys and values [B, T, width].
Shape shapeOf(const Op &op, unsigned qkv);
/// A register tile for rows of queries. It has fewer rows for short causal sequences, which have many tiles at the
/// diagonal.
Tile queryTile(const Target &target, const Shape &shape, bool pairs);
/// Whether a default schedule multiplies queries, keys, values and probabilities as pairs of bf16.
bool usesPairs(const Op &op, unsigned qkv, const Target &target);
/// The group's one op besides constants and the yield. Null unless it is of this kind, takes only inputs of the group,
/// and all of its results are yielded in order.
const Op *onlyOp(const Op &fused, OpKind kind);
/// The group's output that is this result of a member.
unsigned outputOf(const GroupEval &group, const Value *result);

/// Offsets (elements) in packed rows of queries, keys and values, for token i of sequence b.
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

/// Where the new tokens of attention_cached stand in its caches: in one sequence, or each in a slot of its own.
struct Places {
  Places(const GroupEval &group, const Op &op, const Shape &shape);
  kir::Buffer pos;
  int64_t tokens, kvHeads, size;
  int64_t slots;  // 0: the cache is of one sequence
  int64_t rows;   // of a sequence in the cache
  /// The row of token i; negative if it is none. In one sequence the rows are clamped so that all lie in the cache.
  kir::Expr row(const kir::Expr &i) const;
  /// The first element of a key head of token i's sequence.
  kir::Expr head(const kir::Expr &i, const kir::Expr &kvHead) const;
  /// A loop body for a token that may be none: `none` then, which may be empty.
  Body ifThere(const kir::Expr &row, Body there, Body none) const;
};

/// Which keys a query sees, and which queries see a key: ranges of rows of sequence b, whose beginnings and ends never
/// decrease from row to row. A row past the last counts as the last.
class Sight {
public:
  Sight(const GroupEval &group, const Op &op, const Shape &shape);
  /// Whether rows see only keys of their own document.
  bool documents() const { return bool(bounds); }
  /// Whether queries see keys behind them, and not the same ones: ranges that begin and end anywhere (RowRanges).
  bool ranged() const { return documents() || (shape.window && !shape.causal); }
  /// Whether queries begin at different keys.
  bool varies() const { return documents() || shape.window; }
  kir::Expr firstKey(const kir::Expr &b, const kir::Expr &query) const;
  kir::Expr endOfKeys(const kir::Expr &b, const kir::Expr &query) const;
  kir::Expr firstQuery(const kir::Expr &b, const kir::Expr &key) const;
  kir::Expr endOfQueries(const kir::Expr &b, const kir::Expr &key) const;

private:
  /// A row, or the last one if it is past that.
  kir::Expr within(const kir::Expr &row) const;
  /// Where the document of a row begins (0) or ends (1).
  kir::Expr bound(const kir::Expr &b, const kir::Expr &row, int side) const;
  const Shape shape;
  kir::Buffer bounds;
};

/// What the rows of a tile see in turn, on the stack: row r the elements first(r) <= x < end(r), counted from `from`
/// on.
class RowRanges {
public:
  explicit RowRanges(int rows);
  /// Fills the ranges of `rows` rows, around `body`.
  using OfRow = std::function<kir::Expr(const kir::Expr &row)>;
  kir::Stmt within(const OfRow &first, const OfRow &end, Body body) const;
  kir::Expr has(const kir::Expr &row, const kir::Expr &element) const;
  /// Sets the steps of a chain that takes from each row what it sees of the elements from `from` to `from + count`:
  /// begins and ends that differ are masked, in between all rows see all.
  void steps(TileLoop &t, const kir::Expr &from, const kir::Expr &count) const;

private:
  int rows;
  kir::Buffer firsts, ends;
};

/// The buffer of the operand head0: the number of the op's first head among all heads. Null if the op has all heads.
kir::Buffer firstHead(const GroupEval &group, const Op &op);

/// Dropout on probabilities: element (i, j) of head h of sequence b is random(seed, step, stream, seq0 + b,
/// ((head0 + h)*T + i)*T + j).
class Dropout {
public:
  /// The anchor's operands seed, step and seq0 begin at number `first`. Without them nothing is dropped.
  Dropout(GroupEval &group, const Op &anchor, unsigned first, const Shape &shape);
  bool active() const { return on; }
  /// Binds the key of sequence b around `body`; keep() may be used inside.
  kir::Stmt withKey(const kir::Expr &b, const std::function<Body()> &body);
  /// The key as one i64, as attention statements take it; null if nothing is dropped. Only inside withKey.
  kir::Expr packedKey() const;
  /// pred: whether the probability is kept. Only inside withKey.
  kir::Expr keep(const kir::Expr &head, const kir::Expr &i, const kir::Expr &j) const;
  double keptScale() const { return 1.0 / (1.0 - shape.p); }

private:
  const Shape shape;
  bool on;
  kir::Expr seed, step, seq0, stream;
  kir::Buffer head0;
  RandomKeyExpr key;
  kir::Expr first;  // head0 inside withKey, if the op has only some heads
};

/// What becomes of a scaled score: a soft cap limits it, and ALiBi adds a bias that depends on the distance of query
/// and key. Without them it stays.
class Bias {
public:
  Bias(const GroupEval &group, const Op &op, const Shape &shape);
  /// Binds the slope of a head around `body`; add() may be used inside.
  kir::Stmt withSlope(const kir::Expr &head, const std::function<Body()> &body);
  /// Whether scores are changed, and so must be scaled before.
  bool active() const { return shape.alibi || shape.softcap != 0; }
  /// The capped score + bias for a key `uniform + lane` positions after the query (negative: before it). `lane` is the
  /// part that varies within a vector. The distance is computed in floats, where integers up to 2^24 are exact.
  kir::Expr of(const kir::Expr &score, const kir::Expr &uniform, const kir::Expr &lane) const;
  /// The same, and the derivative of the capped score, around `body`. There must be a soft cap.
  using WithDerivative = std::function<Body(const kir::Expr &score, const kir::Expr &derivative)>;
  kir::Stmt withDerivative(const kir::Expr &score, const kir::Expr &uniform, const kir::Expr &lane,
                           const WithDerivative &body) const;

private:
  /// tanh of the score in units of the cap.
  kir::Expr inCaps(const kir::Expr &score) const;
  kir::Expr add(const kir::Expr &score, const kir::Expr &uniform, const kir::Expr &lane) const;

  const Shape shape;
  const DType compute;
  const kir::Buffer head0;
  kir::Expr slope;
};

/// Copies `cols` elements of each row: to[toBase + i*toStride + x] = from[fromBase(i) + x] * scale, with zeros from
/// cols to paddedCols. A scale of 1 multiplies nothing.
kir::Stmt copyRows(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                   const kir::Buffer &to, const kir::Expr &toBase, int64_t toStride, const kir::Expr &rows,
                   int64_t cols, int64_t paddedCols, int lanes, double scale);

/// Packs rows into panels. Rows have `size` elements, start at p.base and lie p.colStride apart. A step is one element
/// of a row, or with `pairs` a pair of them; an odd last element is paired with zero. Sets `steps` and `panelSteps` of
/// `p` itself.
Body packTransposed(PanelPack p, int64_t size, bool pairs);
/// to[i*toStride + x] = pair x of row i of `cols` bf16; an odd last element is paired with zero.
kir::Stmt copyPairs(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                    const kir::Buffer &to, int64_t toStride, const kir::Expr &rows, int64_t cols, int lanes);
/// to[toBase + i*toStride + x] = the pair of element x of rows 2i and 2i + 1, with zeros from cols to paddedCols and
/// for the missing last row if `rows` is odd.
kir::Stmt copyRowPairs(const kir::Buffer &from, const std::function<kir::Expr(const kir::Expr &)> &fromBase,
                       const kir::Buffer &to, const kir::Expr &toBase, int64_t toStride, const kir::Expr &rows,
                       int64_t cols, int64_t paddedCols, int lanes);

/// Folds the elements j in 0..extent of a row into `lanes` lanes, folds these by halves, and emits body(result) with
/// the scalar result. `element(j, fold)` emits fold(value) for element j, and may add other statements, such as stores.
using Fold = std::function<kir::Stmt(kir::Expr)>;
using FoldElement = std::function<Body(const kir::Expr &j, const Fold &fold)>;
kir::Stmt foldRow(const char *name, DType dtype, kir::BinaryOp op, double start, const kir::Expr &extent, int lanes,
                  const FoldElement &element, const std::function<Body(const kir::Expr &result)> &body);
/// The same for consecutive parts of a row. Each part but the last must have a multiple of `lanes` elements.
struct FoldPart {
  kir::Expr begin, count;
  FoldElement element;
};
kir::Stmt foldParts(const char *name, DType dtype, kir::BinaryOp op, double start, const std::vector<FoldPart> &parts,
                    int lanes, const std::function<Body(const kir::Expr &result)> &body);

/// Prefetches `size` elements from `base` on.
Body fetchRow(const kir::Buffer &from, const kir::Expr &base, int64_t size);
/// log2(e). Softmax computes exp2(score * log2e - maximum * log2e), where one FMA multiplies and subtracts.
constexpr double log2e = 1.4426950408889634;
/// pred: whether |exponent| is so large (2^16 in f32) that its rounding error may change its difference from another
/// exponent by more than 2^-9. Softmax then subtracts the maximum from scores before it multiplies them by log2e.
kir::Expr isHuge(const kir::Expr &exponent);

/// The phases of a kernel, and the workspaces that they need.
struct Phases {
  Body body;
  std::vector<kir::Buffer> workspaces;
  /// The kernel of the group with these phases.
  LoweredGroup lowered(const GroupEval &group) &&;
};
/// Attention as grid loops (cuda_kernel.cpp). If the schedule has mr and nr, a tile is one attention statement, which
/// the emitter writes by a template; else it is plain loops.
Phases cachedBlocks(GroupEval &group, const Op &op, const Schedule &s);
/// Of one new token, a block for each s.kb keys of a head.
Phases splitBlocks(GroupEval &group, const Op &op, const Schedule &s);
/// The same for a kernel that reads the result (result 0 of `op`) itself and does not store it: `phases` leave parts of
/// sums in their workspaces, from which `result` makes element x of a head, in the compute dtype. It is a DAG with a
/// few nodes for each part (place.h).
struct SplitParts {
  Phases phases;
  int64_t size;  // elements of a head
  std::function<kir::Expr(const kir::Expr &head, const kir::Expr &x)> result;
};
SplitParts splitParts(GroupEval &group, const Op &op, const Schedule &s);
Phases forwardBlocks(GroupEval &group, const Op &op, const Schedule &s);
Phases backwardBlocks(GroupEval &group, const Op &op, const Schedule &s);
/// Default schedules of these (cuda_schedule.cpp). With a cache there are only loop trees.
Schedule cachedSchedule();
/// `rows` of the cache, which alone choose the size of parts.
Schedule splitSchedule(int64_t rows);
Schedule cudaSchedule(const Op &op, const Target &target);
/// Other schedules that fit shared memory and registers and give the same bits: other rows per warp, other numbers of
/// stages. Empty if `base` calls cuDNN, which orders sums differently, or has no mr.
std::vector<Schedule> cudaSpace(const Op &op, const Schedule &base, const Target &target);

/// body(first column, tile) for each panel of `columns` columns: a loop over the full panels, then a narrower one if
/// columns are left.
Body forPanels(const Tile &tile, int64_t columns,
               const std::function<Body(const kir::Expr &col0, const Tile &tile)> &body);

}  // namespace gptc::attention
