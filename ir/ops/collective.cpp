// Collectives of the ranks along one axis of the mesh (ir/mesh.h), and ops that differ by rank. A function is the same
// on every rank; only these ops and the contents of states depend on the rank.
//
// Sums over ranks have the order of the attribute `order`: "tree" adds neighbours, then pairs of neighbours, and so on,
// ((x0+x1)+(x2+x3))+..., whatever the engine; with "fast" the engine chooses. Rank r's piece of a tensor is the r-th of
// `ranks` equal parts of dimension `dim`. Only dimension 0 may have padding, which is cut too; all elements of a piece
// are logical, and those that were padding are zero.
//
// Gradients are those of tensor parallelism (Shoeybi et al. 2019, section 3). A value is the same on all ranks, and so
// is its gradient; or it is a piece or a term of a sum over ranks, and each rank has the gradient of its own.
//   all_reduce      terms -> the same      gradient: the identity, as the gradient of a sum is that of each term
//   spread          the same -> the same, of which each rank will use another part    gradient: all_reduce
//   all_gather      pieces -> the same, of which each rank will use another part      gradient: reduce_scatter
//   reduce_scatter  terms -> pieces                                                   gradient: all_gather
//   own_part        the same -> pieces                                                gradient: all_gather
// broadcast_from has no gradient: it yields one rank's operand and ignores those of the others.
//
// Compressed gradients are all_reduces of factors with ops around them (passes/compress_gradients.cpp).
//
// A group of collectives runs concurrently with the ops after it until `done` waits for it (pass overlap-collectives).
//
// The reference takes the operands of all ranks of the group, rank by rank, and yields all their results likewise.
#include "ir/mesh.h"
#include "ir/ops/op_support.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {
using namespace ops;

namespace {

constexpr NotApplicable engine{"an engine of the runtime carries it out (runtime/collectives)"};

int64_t ranksOf(const Op &op) { return op.attrs.getInt("ranks"); }
unsigned dimOf(const Op &op) { return unsigned(op.attrs.getInt("dim")); }

std::string checkCollective(const Op &op) {
  if (const int64_t ranks = ranksOf(op); ranks < 1 || ranks > (1 << 20))
    return fmt::format("ranks = {} must be between 1 and 2^20", ranks);
  if (std::string axis = op.attrs.getString("axis"); axis != "data" && axis != "tensor")
    return fmt::format("axis = {:?} is none of data, tensor", axis);
  if (std::string order = op.attrs.getString("order", "tree"); order != "tree" && order != "fast")
    return fmt::format("order = {:?} is none of tree, fast", order);
  return "";
}

/// Whether `whole` divides into equal pieces along the op's dimension.
bool dividesEvenly(const Op &op, const Type &whole, std::string &error) {
  const int64_t ranks = ranksOf(op), dim = op.attrs.getInt("dim");
  if (ranks < 1 || dim < 0 || dim >= whole.rank() || whole.padded(int(dim)) % ranks)
    return fail(error, "dimension {} of {} does not divide by {} ranks", dim, whole.str(), ranks);
  if (dim > 0 && whole.dim(int(dim)) != whole.padded(int(dim)))
    return fail(error, "dimension {} of {} is padded: only dimension 0 may be", dim, whole.str());
  return true;
}

Type pieceOf(const Op &op, const Type &whole) {
  Type piece(whole.dtype, whole.dims);
  piece.dims[dimOf(op)] = Dim(whole.padded(int(dimOf(op))) / ranksOf(op));
  return piece;
}

/// Calls f(element of the whole, element of the piece) for each element of rank r's piece that is not padding.
template <typename F> void forEachOfPiece(const Op &op, const Type &whole, int64_t r, F f) {
  const unsigned dim = dimOf(op);
  const int64_t outer = whole.slice(0, dim).elements(), inner = whole.slice(dim + 1, whole.rank()).elements(),
                all = whole.dim(int(dim)), own = whole.padded(int(dim)) / ranksOf(op);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t x = 0; x < own && r * own + x < all; ++x)
      for (int64_t i = 0; i < inner; ++i)
        f((o * all + r * own + x) * inner + i, (o * own + x) * inner + i);
}

/// The sum over all ranks, in the order "tree".
std::vector<double> sumOver(std::span<const Tensor *const> in) {
  std::vector<std::vector<double>> level;
  for (const Tensor *t : in)
    level.push_back(t->data);
  while (level.size() > 1) {
    std::vector<std::vector<double>> next;
    for (size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 < level.size())
        for (size_t e = 0; e < level[i].size(); ++e)
          level[i][e] += level[i + 1][e];
      next.push_back(std::move(level[i]));
    }
    level = std::move(next);
  }
  return std::move(level[0]);
}

Cost costCollective(const Op &op) {
  return streamCost(op, op.isOneOf(OpKind::all_reduce, OpKind::reduce_scatter) ? 1 : 0);
}

enum Takes { onlyAxis = 0, aSum = 1, aDimension = 2 };

std::vector<AttrSpec> attrsOf(int takes) {
  std::vector<AttrSpec> a = {{AttrSpec::String, "axis", true, std::string()},
                             {AttrSpec::Int, "ranks", true, int64_t(1)}};
  if (takes & aSum)
    a.push_back({AttrSpec::String, "order", false, std::string("tree")});
  if (takes & aDimension)
    a.push_back({AttrSpec::Int, "dim", false, int64_t(0)});
  return a;
}

AttrMap sampleAttrs(int64_t dim = 0) {
  AttrMap a = attrs({{"axis", std::string("data")}, {"ranks", int64_t(1)}});
  if (dim)
    a.set("dim", dim);
  return a;
}

/// The attributes of a gradient's collective: axis, ranks and dimension of `op`, an order if it sums.
AttrMap attrsOfGradient(const Op &op, bool sums) {
  AttrMap a = op.attrs;
  a.erase("order");
  if (sums)
    a.set("order", std::string(tensorOrder(ranksOf(op))));
  return a;
}

std::vector<Value *> gatherGradient(GradCtx &c) {
  return {c.b.op(OpKind::all_gather, {c.dresults[0]}, {c.op.operand(0)->type}, attrsOfGradient(c.op, false))->result()};
}

}  // namespace

OpDef define_all_reduce() {
  return {
      .kind = OpKind::all_reduce,
      .name = "all_reduce",
      .summary = "the sum of all ranks' x, by order=tree ((x0+x1)+(x2+x3))+.., by order=fast as the engine adds",
      .shapes = "x -> y, of the type of x",
      .operands = {{"x"}},
      .attrs = attrsOf(aSum),
      .results = {"y"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of what is summed"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error))
              return false;
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkCollective,
      .grad = [](GradCtx &c) -> std::vector<Value *> { return {c.dresults[0]}; },
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        return std::vector<Tensor>(in.size(), Tensor(op.result()->type, sumOver(in)));
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.extent(), s.maybePadded(s.extent())})}, .attrs = sampleAttrs()}};
      },
  };
}

OpDef define_reduce_scatter() {
  return {
      .kind = OpKind::reduce_scatter,
      .name = "reduce_scatter",
      .summary = "this rank's piece, along dimension dim, of the sum of all ranks' x",
      .shapes = "x -> piece",
      .operands = {{"x"}},
      .attrs = attrsOf(aSum | aDimension),
      .results = {"piece"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of what is summed"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !dividesEvenly(op, op.operand(0)->type, error))
              return false;
            types = {pieceOf(op, op.operand(0)->type)};
            return true;
          },
      .check = checkCollective,
      .grad = gatherGradient,
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        const std::vector<double> sum = sumOver(in);
        std::vector<Tensor> pieces;
        for (size_t r = 0; r < in.size(); ++r) {
          Tensor &piece = pieces.emplace_back(op.result()->type);
          forEachOfPiece(op, in[0]->type, int64_t(r), [&](int64_t whole, int64_t at) { piece.data[at] = sum[whole]; });
        }
        return pieces;
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.maybePadded(s.extent()), s.extent()})}, .attrs = sampleAttrs()},
                {.operandTypes = {Type(DType::f32, {s.extent(5), s.extent(), s.extent(9)})}, .attrs = sampleAttrs(1)}};
      },
  };
}

OpDef define_all_gather() {
  return {
      .kind = OpKind::all_gather,
      .name = "all_gather",
      .summary = "the whole tensor of which every rank gives its piece, along dimension dim",
      .shapes = "piece -> y, of the type given",
      .operands = {{"piece"}},
      .attrs = attrsOf(aDimension),
      .results = {"y"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of the pieces"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"its pieces do not say what shape the whole has: it is given"},
      .check = [](const Op &op) -> std::string {
        if (std::string why = checkCollective(op); !why.empty())
          return why;
        std::string error;
        const Type &whole = op.result()->type, &piece = op.operand(0)->type;
        if (!dividesEvenly(op, whole, error))
          return error;
        if (const Type t = pieceOf(op, whole); piece.dtype != t.dtype || !piece.sameShape(t))
          return fmt::format("pieces of {} are {}, not {}", whole.str(), t.str(), piece.str());
        return "";
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        return {c.b.value(OpKind::reduce_scatter, {c.dresults[0]}, attrsOfGradient(c.op, true))};
      },
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor whole(op.result()->type);
        for (size_t r = 0; r < in.size(); ++r)
          forEachOfPiece(op, whole.type, int64_t(r), [&](int64_t to, int64_t at) { whole.data[to] = in[r]->data[at]; });
        return std::vector<Tensor>(in.size(), whole);
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        const Type whole(DType::f32, {s.maybePadded(s.extent()), s.extent()});
        Type piece = whole;
        piece.dims[0] = Dim(whole.padded(0));
        const Type plain(DType::f32, {s.extent(5), s.extent(), s.extent(9)});
        return {{.operandTypes = {piece}, .attrs = sampleAttrs(), .resultTypes = {whole}},
                {.operandTypes = {plain}, .attrs = sampleAttrs(1), .resultTypes = {plain}}};
      },
  };
}

OpDef define_broadcast_from() {
  return {
      .kind = OpKind::broadcast_from,
      .name = "broadcast_from",
      .summary = "the x of the rank whose place along the axis is `root`",
      .shapes = "x -> y, of the type of x",
      .operands = {{"x"}},
      .attrs =
          [] {
            std::vector<AttrSpec> a = attrsOf(onlyAxis);
            a.push_back({AttrSpec::Int, "root", false, int64_t(0)});
            return a;
          }(),
      .results = {"y"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"it copies bits as they are"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &) {
            types = {op.operand(0)->type};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        if (std::string why = checkCollective(op); !why.empty())
          return why;
        if (const int64_t root = op.attrs.getInt("root"); root < 0 || root >= ranksOf(op))
          return fmt::format("root = {} is none of {} ranks", root, ranksOf(op));
        return "";
      },
      .grad = NotApplicable{"the sum at the root and zero elsewhere, for which nothing has a use"},
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        return std::vector<Tensor>(in.size(), *in[size_t(op.attrs.getInt("root"))]);
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.extent(), s.maybePadded(s.extent())})}, .attrs = sampleAttrs()},
                {.operandTypes = {Type(DType::i32, {s.extent()})}, .attrs = sampleAttrs()}};
      },
  };
}

/// Before `done`, no other op may use a result of the group of collectives. checkPlan checks that nothing overwrites
/// what the group reads.
static std::string checkDone(const Op &op) {
  const Value *started = op.operand(0);
  const Op *group = started->def;
  const Attr *kind = group && group->is(OpKind::fused) ? group->attrs.find("kind") : nullptr;
  if (!kind || *kind != Attr(std::string("collective")))
    return "waits for something else than a group of collectives";
  for (unsigned i = 1; i < op.numOperands(); ++i)
    if (!llvm::is_contained(group->operands(), op.operand(i)))
      return fmt::format("operand {} is none of the group's", i);
  for (unsigned i = 0; i < group->numResults(); ++i)
    for (const Op *user : group->result(i)->users())
      if (!user->is(OpKind::done) || user->operand(0) != group->result(i))
        return "a result of the group is used before it is done";
  return "";
}

OpDef define_done() {
  constexpr NotApplicable runsNoCode{"it only waits"};
  return {
      .kind = OpKind::done,
      .name = "done",
      .summary = "what a group of collectives makes, once it is there; operands behind the first are what it reads",
      .shapes = "started, what was read -> y, of the type of started",
      .operands = {{"started"}, {"..."}},
      .attrs = {{AttrSpec::Ints, "at", false, std::vector<int64_t>()}},
      .results = {"y"},
      .fusion = FusionKind::structure,
      .autocast = runsNoCode,
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &) {
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkDone,
      .grad = NotApplicable{"overlap-collectives puts it behind the gradients"},
      .cost = runsNoCode,
      .reference = [](const Op &, std::span<const Tensor *const> in) -> std::vector<Tensor> { return {*in[0]}; },
      .lower = runsNoCode,
      .samples = NotApplicable{"it needs a group of collectives"},
  };
}

OpDef define_own_part() {
  return {
      .kind = OpKind::own_part,
      .name = "own_part",
      .summary = "this rank's piece, along dimension dim, of an x that is the same on all ranks",
      .shapes = "x -> piece",
      .operands = {{"x"}},
      .attrs = attrsOf(aDimension),
      .results = {"piece"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"it copies bits as they are"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &x = op.operand(0)->type;
            if (!dividesEvenly(op, x, error))
              return false;
            if (x.dim(0) != x.padded(0))
              return fail(error, "{} has padding, which belongs to no rank", x.str());
            types = {pieceOf(op, x)};
            return true;
          },
      .check = checkCollective,
      .grad = gatherGradient,
      .cost =
          [](const Op &op) {
            Cost c;
            c.bytesRead = c.bytesWritten = double(op.result()->type.bytes());
            return c;
          },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        std::vector<Tensor> pieces;
        for (size_t r = 0; r < in.size(); ++r) {
          Tensor &piece = pieces.emplace_back(op.result()->type);
          forEachOfPiece(op, in[r]->type, int64_t(r),
                         [&](int64_t whole, int64_t at) { piece.data[at] = in[r]->data[whole]; });
        }
        return pieces;
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.extent(), s.maybePadded(s.extent())})}, .attrs = sampleAttrs()},
                {.operandTypes = {Type(DType::f32, {s.extent(5), s.extent(), s.extent(9)})}, .attrs = sampleAttrs(1)}};
      },
  };
}

OpDef define_spread() {
  return {
      .kind = OpKind::spread,
      .name = "spread",
      .summary = "x, the same on all ranks, of which each will use another part: its gradient is summed over ranks",
      .shapes = "x -> y, of the type of x",
      .operands = {{"x"}},
      .attrs = attrsOf(onlyAxis),
      .results = {"y"},
      .fusion = FusionKind::view,
      .autocast = NotApplicable{"canonicalize removes it once autodiff has seen it"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error))
              return false;
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkCollective,
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        return {c.b.value(OpKind::all_reduce, {c.dresults[0]}, attrsOfGradient(c.op, true))};
      },
      .cost = [](const Op &) { return Cost(); },
      .reference = [](const Op &op, std::span<const Tensor *const> x) -> std::vector<Tensor> {
        return {Tensor(op.result()->type, x[0]->data)};
      },
      .lower = NotApplicable{"it runs no code"},
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.extent(), s.extent()})}, .attrs = sampleAttrs()}};
      },
  };
}

OpDef define_axis_index() {
  return {
      .kind = OpKind::axis_index,
      .name = "axis_index",
      .summary = "this rank's place along the axis, counted from 0",
      .shapes = "-> i i64[]",
      .operands = {},
      .attrs = attrsOf(onlyAxis),
      .results = {"i"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"an integer, the same whatever is computed"},
      .tokens = betweenRanks,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &, std::vector<Type> &types, std::string &) {
            types = {Type::scalar(DType::i64)};
            return true;
          },
      .check = checkCollective,
      .grad = NotApplicable{"an integer, the same whatever is computed"},
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const>) -> std::vector<Tensor> {
        std::vector<Tensor> of;
        for (int64_t r = 0; r < ranksOf(op); ++r)
          of.push_back(Tensor::scalar(double(r), DType::i64));
        return of;
      },
      .lower = engine,
      .samples = [](unsigned) -> std::vector<OpDef::Sample> { return {{.operandTypes = {}, .attrs = sampleAttrs()}}; },
  };
}

}  // namespace gptc
