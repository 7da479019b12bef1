// Collectives: what the ranks along one axis of the mesh (ir/mesh.h) compute together. A function is the same on every
// rank; these ops are where ranks differ in what they hold and where they meet.
//
// Sums over ranks have the order of the attribute `order`: "tree" adds neighbours, then pairs of neighbours, and so on,
// ((x0+x1)+(x2+x3))+..., whatever the engine; with "fast" the engine chooses. Rank r's piece of a tensor is the r-th of
// `ranks` equal parts of dimension 0, padding included; of a piece all is logical, and what was padding is zero.
//
// A group of collectives goes on beside what follows it until `done` has its results (pass overlap-collectives).
//
// The reference takes the operands of all ranks of the group, rank by rank, and yields all their results likewise.
#include "ir/ops/op_support.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {
using namespace ops;

namespace {

constexpr NotApplicable afterAutodiff{"partition puts it behind the gradients"};
constexpr NotApplicable engine{"an engine of the runtime carries it out (runtime/collectives)"};

int64_t ranksOf(const Op &op) { return op.attrs.getInt("ranks"); }

std::string checkCollective(const Op &op) {
  if (const int64_t ranks = ranksOf(op); ranks < 1 || ranks > (1 << 20))
    return fmt::format("ranks = {} must be between 1 and 2^20", ranks);
  if (std::string axis = op.attrs.getString("axis"); axis != "data" && axis != "tensor")
    return fmt::format("axis = {:?} is none of data, tensor", axis);
  if (std::string order = op.attrs.getString("order", "tree"); order != "tree" && order != "fast")
    return fmt::format("order = {:?} is none of tree, fast", order);
  return "";
}

/// Whether `whole` can be held in equal pieces.
bool dividesEvenly(const Type &whole, int64_t ranks, std::string &error) {
  if (whole.isScalar() || ranks < 1 || whole.padded(0) % ranks)
    return fail(error, "dimension 0 of {} does not divide by {} ranks", whole.str(), ranks);
  return true;
}

Type pieceOf(const Type &whole, int64_t ranks) {
  Type piece(whole.dtype, whole.dims);
  piece.dims[0] = Dim(whole.padded(0) / ranks);
  return piece;
}

/// The sum over all ranks.
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

Cost costCollective(const Op &op) { return streamCost(op, op.is(OpKind::all_gather) ? 0 : 1); }

const std::vector<AttrSpec> attrsOf(bool sums) {
  std::vector<AttrSpec> a = {{AttrSpec::String, "axis", true, std::string()},
                             {AttrSpec::Int, "ranks", true, int64_t(1)}};
  if (sums)
    a.push_back({AttrSpec::String, "order", false, std::string("tree")});
  return a;
}

AttrMap sampleAttrs() { return attrs({{"axis", std::string("data")}, {"ranks", int64_t(1)}}); }

}  // namespace

OpDef define_all_reduce() {
  return {
      .kind = OpKind::all_reduce,
      .name = "all_reduce",
      .summary = "the sum of all ranks' x",
      .operands = {{"x"}},
      .attrs = attrsOf(true),
      .results = {"y"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of what is summed"},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error))
              return false;
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkCollective,
      .grad = afterAutodiff,
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
      .summary = "this rank's piece of the sum of all ranks' x",
      .operands = {{"x"}},
      .attrs = attrsOf(true),
      .results = {"piece"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of what is summed"},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !dividesEvenly(op.operand(0)->type, ranksOf(op), error))
              return false;
            types = {pieceOf(op.operand(0)->type, ranksOf(op))};
            return true;
          },
      .check = checkCollective,
      .grad = afterAutodiff,
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        std::vector<double> sum = sumOver(in);
        const size_t n = op.result()->type.elements();
        sum.resize(n * in.size());  // padding
        std::vector<Tensor> pieces;
        for (size_t r = 0; r < in.size(); ++r)
          pieces.push_back(Tensor(op.result()->type, {sum.begin() + r * n, sum.begin() + (r + 1) * n}));
        return pieces;
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {{.operandTypes = {Type(DType::f32, {s.maybePadded(s.extent()), s.extent()})}, .attrs = sampleAttrs()}};
      },
  };
}

OpDef define_all_gather() {
  return {
      .kind = OpKind::all_gather,
      .name = "all_gather",
      .summary = "the whole tensor of which every rank gives its piece",
      .operands = {{"piece"}},
      .attrs = attrsOf(false),
      .results = {"y"},
      .fusion = FusionKind::collective,
      .autocast = NotApplicable{"what is sent has the type of the pieces"},
      .infer = NotApplicable{"its pieces do not say what shape the whole has: it is given"},
      .check = [](const Op &op) -> std::string {
        if (std::string why = checkCollective(op); !why.empty())
          return why;
        std::string error;
        const Type &whole = op.result()->type, &piece = op.operand(0)->type;
        if (!dividesEvenly(whole, ranksOf(op), error))
          return error;
        if (const Type t = pieceOf(whole, ranksOf(op)); piece.dtype != t.dtype || !piece.sameShape(t))
          return fmt::format("pieces of {} are {}, not {}", whole.str(), t.str(), piece.str());
        return "";
      },
      .grad = afterAutodiff,
      .cost = costCollective,
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor whole(op.result()->type);
        std::vector<double> all;
        for (const Tensor *t : in)
          all.insert(all.end(), t->data.begin(), t->data.end());
        std::copy_n(all.begin(), whole.data.size(), whole.data.begin());
        return std::vector<Tensor>(in.size(), whole);
      },
      .lower = engine,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type whole(DType::f32, {s.maybePadded(s.extent()), s.extent()});
        return {{.operandTypes = {pieceOf(whole, 1)}, .attrs = sampleAttrs(), .resultTypes = {whole}}};
      },
  };
}

/// Until then nobody may use what the group of collectives makes or write what it reads.
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
      .operands = {{"started"}, {"..."}},
      .attrs = {{AttrSpec::Ints, "at", false, std::vector<int64_t>()}},
      .results = {"y"},
      .fusion = FusionKind::structure,
      .autocast = runsNoCode,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &) {
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkDone,
      .grad = afterAutodiff,
      .cost = runsNoCode,
      .reference = [](const Op &, std::span<const Tensor *const> in) -> std::vector<Tensor> { return {*in[0]}; },
      .lower = runsNoCode,
      .samples = NotApplicable{"it needs a group of collectives"},
  };
}

}  // namespace gptc
