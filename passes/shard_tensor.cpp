// shard-tensor: tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3). Between blocks the work is divided
// by tokens (Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2).
//
// A block is two matmuls with parameters, and between them ops that do not mix features or heads: attention with rope,
// or an activation, gated or not. Each of the mesh_tensor ranks has a part of the features: whole heads, or columns of
// the hidden layer.
//
//   x -> all_gather -> matmul, columns of W1 -> its heads, its hidden features -> matmul, rows of W2 -> reduce_scatter
//
//   1. Blocks are found from their second matmul backwards, in every function. Ops outside of a block may not use
//      values inside, apart from writes of caches.
//   2. States get the types of their parts and attributes that describe the cut (ir/mesh.h): columns of W1 and its bias
//      (of packed queries, keys and values each by itself), rows of W2, heads of caches. A bias after W2 stays whole
//      and is added once, after the sum over ranks.
//   3. Ops inside keep their kind. Attention, rope and norms of heads get the number of heads of one rank. Dropout on
//      probabilities and the slopes of ALiBi count heads from the rank's first one (head0), so that they equal those on
//      a single rank.
//   4. Outside, each rank has an equal part of the tokens of every sequence: for embedding, norms, dropout, residual
//      sums, classifier and loss. All sequences are cut alike, so that no sum depends on the micro-batch. If a function
//      does not allow this (tokens that do not divide by the ranks, one token with a cache), all ranks compute these
//      ops on all tokens, and all_reduce replaces reduce_scatter. So it is in modules without @forward, which continue
//      texts: what a token gets there must not depend on how many tokens a call has.
//   5. Parameters that ops use on a part of the tokens, and values that are equal on all ranks at the beginning of a
//      block, pass through `spread`, whose gradient is summed over the ranks. Of a table of positions each rank uses a
//      part (own_part). So autodiff makes all gradients by the ops' own rules, and gradients of parameters are summed
//      over ranks once per step.
//
// With the module attribute logical_tensor = T above 1, T a power of two and a multiple of the ranks, the features are
// divided into T logical parts, of which each rank has as many. Sums over features then have the same order on 1, 2,
// .., T ranks (pass logical-tensor, which follows), so the module of one rank gets the same ops, for one rank. A cut of
// the tokens would change the order of sums over tokens: all ranks compute all tokens between blocks (end of step 4).
// logical_parts of a state says which places the parts have (optimizer, logical-tensor), `parts` of qk_norm how many
// sums over heads its gradient is added from. Modules that train nothing with weights of 8 or 4 bits round to other
// results anyway and have no parts.
//
// Runs on imported graphs, before autodiff, so that both directions agree. The attribute `tensor_sharded` marks modules
// on which the pass has run. The vocabulary is not cut: embedding and classifier are whole on each rank, which computes
// the logits of its tokens.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/analysis/parameters.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"

#include <numeric>

namespace gptc {

namespace {

State *readState(const Module &m, const Value *v) {
  return v->def && v->def->is(OpKind::read) ? m.state(v->def->state) : nullptr;
}

/// The parameter W if the op is a matmul x W of a linear layer (no ta, tb, batch or `init`); else null.
State *weightOf(const Module &m, const Op &op) {
  if (!op.is(OpKind::matmul) || op.numOperands() != 2 || op.attrs.getBool("ta") || op.attrs.getBool("tb") ||
      op.attrs.getInt("batch") != 0)
    return nullptr;
  State *s = readState(m, op.operand(1));
  return s && kindOf(*s) == StateKind::param && s->type.rank() == 2 ? s : nullptr;
}

/// A block: `columns` are the matmuls with W1, `row` is the matmul with W2, `inside` are the ops between them.
struct FeatureBlock {
  Op *row = nullptr;
  llvm::SetVector<Op *> columns, inside;
  llvm::SetVector<State *> vectors;  // parameters of rank 1 that ops inside use, such as the bias of W1
  Op *heads = nullptr;               // the attention, if there is one

  bool holds(Op *op) const { return op == row || columns.contains(op) || inside.contains(op); }
};

/// Whether the op is a view of features [B,T,C] as heads [B,T,H,D], or back.
bool viewsHeads(const Op &op) {
  if (!op.is(OpKind::reshape))
    return false;
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  return ((from.rank() == 3 && to.rank() == 4) || (from.rank() == 4 && to.rank() == 3)) && from.dim(0) == to.dim(0) &&
         from.dim(1) == to.dim(1);
}

bool isElementwise(const Op &op) { return op.def().tokens == Tokens::elements; }

class Blocks {
public:
  Blocks(const Module &m, Function &f) : m(m) {
    for (Op &op : f.body) {
      FeatureBlock b;
      b.row = &op;
      if (weightOf(m, op) && trace(op.operand(0), b) && closed(b) && sizesFit(b)) {
        roles[&op] = row;
        for (Op *c : b.columns)
          roles[c] = column;
        for (Op *i : b.inside)
          roles[i] = inside;
        all.push_back(std::move(b));
      }
    }
  }

  enum Role { outside, column, inside, row };
  Role roleOf(const Op *op) const { return roles.lookup(op); }
  std::vector<FeatureBlock> all;

private:
  const Module &m;
  llvm::DenseMap<const Op *, Role> roles;

  /// Step 1: whether `v` depends, feature by feature or head by head, on results of first matmuls. Adds the ops on the
  /// way to the block.
  bool trace(Value *v, FeatureBlock &b) {
    Op *op = v->def;
    if (!op)
      return false;
    if (b.inside.contains(op) || b.columns.contains(op))
      return true;
    if (weightOf(m, *op)) {
      b.columns.insert(op);
      return true;
    }
    if (op->def().hasAttr("n_head")) {  // does not mix heads
      const bool attends = op->def().fusion == FusionKind::attention;
      if (v->index != 0 || (attends && b.heads))
        return false;
      if (attends)
        b.heads = op;
      b.inside.insert(op);
      return trace(op->operand(0), b);
    }
    if (viewsHeads(*op)) {
      b.inside.insert(op);
      return trace(op->operand(0), b);
    }
    if (!isElementwise(*op))
      return false;
    b.inside.insert(op);
    for (Value *operand : op->operands()) {
      if (operand->type.isScalar())
        continue;
      State *vector = operand->type.rank() == 1 ? readState(m, operand) : nullptr;
      if (vector && kindOf(*vector) == StateKind::param)
        b.vectors.insert(vector);
      else if (!operand->type.sameShape(v->type) || !trace(operand, b))
        return false;
    }
    return true;
  }

  /// Whether the block has a first matmul, and no op outside uses values inside, apart from writes by the attention.
  bool closed(const FeatureBlock &b) const {
    for (const auto &ops : {b.columns, b.inside})
      for (Op *op : ops)
        for (unsigned i = 0; i < op->numResults(); ++i)
          for (Op *user : op->result(i)->users())
            if (!b.holds(user) && !(user->is(OpKind::write) && op == b.heads))
              return false;
    return !b.columns.empty();
  }

  /// Whether all first matmuls and vectors have the same number of features. Attention must come from one matmul.
  bool sizesFit(const FeatureBlock &b) const {
    if (b.heads && b.columns.size() != 1)
      return false;
    const int64_t features = b.columns[0]->result()->type.dim(-1);
    for (const Op *op : b.inside)  // a view has the heads that are cut
      if (op->is(OpKind::reshape)) {
        const Type &apart = op->result()->type.rank() == 4 ? op->result()->type : op->operand(0)->type;
        const int64_t queries = b.heads ? b.heads->attrs.getInt("n_head") : 0;
        if (!b.heads || apart.dim(2) != queries + 2 * b.heads->attrs.getInt("n_kv_head", queries) ||
            apart.dim(2) * apart.dim(3) != features)
          return false;
      }
    return llvm::all_of(b.columns, [&](Op *c) { return c->result()->type.dim(-1) == features; }) &&
           llvm::all_of(b.vectors, [&](State *s) { return s->type.dim(0) == features; });
  }
};

/// Step 2: how the states of all functions are cut.
class States {
public:
  /// The features must divide into `parts`: the ranks, or with `logical` the logical parts of all ranks.
  States(Module &m, int64_t ranks, int64_t parts, bool logical) : m(m), ranks(ranks), parts(parts), logical(logical) {}

  void add(const FeatureBlock &b) {
    std::vector<int64_t> groups = {b.columns[0]->result()->type.dim(-1)};
    if (b.heads) {
      const int64_t queries = b.heads->attrs.getInt("n_head"), keys = b.heads->attrs.getInt("n_kv_head", queries),
                    size = groups[0] / (queries + 2 * keys);
      if (queries % parts || keys % parts)
        refuse(queries % parts ? queries : keys, queries % parts ? "heads" : "heads of keys and values");
      if (b.heads->attrs.getInt("of_heads"))
        throw UserError(ErrorCode::GirInvalid, "attention that has some of all heads already cannot be shared out",
                        "a module without of_heads and head0");
      groups = {queries * size, keys * size, keys * size};
      for (const char *cache : {"k", "v", "k_scales", "v_scales"})
        if (const auto i = b.heads->def().operandIndex(cache); i && *i < b.heads->numOperands()) {
          Value *v = b.heads->operand(*i);  // [Hkv,S,D], with slots before them
          cut(readState(m, v), v->type.rank() - 3, {keys});
        }
    } else if (groups[0] % parts) {
      refuse(groups[0], "features of the hidden layer");
    }
    for (Op *c : b.columns)
      cut(weightOf(m, *c), 1, groups);
    for (State *s : b.vectors)
      cut(s, 0, groups);
    cut(weightOf(m, *b.row), 0, {b.row->operand(1)->type.dim(0)});
  }

  /// Throws UserError(GirInvalid) if an op outside of blocks uses a state that is cut.
  void checkUsers(const Function &f, const Blocks &blocks) const {
    for (const Op &op : f.body) {
      State *s = op.isOneOf(OpKind::read, OpKind::write) ? m.state(op.state) : nullptr;
      if (!s || !cuts.count(s))
        continue;
      const bool own = op.is(OpKind::write) ? blocks.roleOf(op.operand(0)->def) == Blocks::inside
                                            : llvm::all_of(op.result()->users(), [&](const Op *user) {
                                                return blocks.roleOf(user) != Blocks::outside;
                                              });
      if (!own)
        throw UserError(ErrorCode::GirInvalid,
                        fmt::format("@{} is divided over tensor = {}, but @{} uses it whole", s->name, ranks, f.name));
    }
  }

  void apply() {
    for (auto &[s, c] : cuts) {
      if (ranks > 1)
        c.apply(*s, "tensor", ranks);
      if (logical && kindOf(*s) == StateKind::param)
        setFact<&StateFacts::logicalParts>(*s, placesOf(c));
    }
  }
  size_t size() const { return cuts.size(); }

private:
  Module &m;
  const int64_t ranks, parts;
  const bool logical;
  llvm::MapVector<State *, Cut> cuts;

  /// The dimension that is cut, and the groups of places of this rank's piece.
  Ints placesOf(const Cut &c) const {
    Ints places = {int64_t(c.dim)};
    for (int64_t group : c.groups)
      places.push_back(group / ranks);
    return places;
  }

  /// Cuts dimension `dim` of the state, which consists of `groups`. Throws UserError(GirInvalid) if another block cuts
  /// it differently.
  void cut(State *s, unsigned dim, std::vector<int64_t> groups) {
    GPTC_CHECK(s, "a block of something else than states");
    const Cut c{dim, s->type.dims[dim], std::move(groups)};
    auto [it, added] = cuts.insert({s, c});
    if (!added && (it->second.dim != c.dim || it->second.groups != c.groups))
      throw UserError(ErrorCode::GirInvalid, fmt::format("@{} would be cut in two ways", s->name));
  }

  [[noreturn]] void refuse(int64_t n, const char *what) const {
    std::string work;
    for (int64_t d = 1; d <= std::min<int64_t>(n, 64); ++d)
      if (n % d == 0)
        work += fmt::format("{}{}", work.empty() ? "" : ", ", d);
    throw UserError(
        ErrorCode::ShapeMismatch,
        fmt::format("{} {} cannot be split over {} = {}", n, what, logical ? "logical_tensor" : "tensor", parts),
        work + " work");
  }
};

/// Steps 3 to 5 of one function.
class Sharder {
public:
  /// `parts`: the logical parts of a rank; 0 if its features have none.
  Sharder(Module &m, Function &f, const Blocks &blocks, int64_t ranks, int64_t parts)
      : m(m), f(f), blocks(blocks), ranks(ranks), parts(parts), differentiated(f.name == "forward") {}

  /// Step 4: whether the function can be divided by tokens. Must be called before the types of states change.
  bool canCutTokens() {
    if (parts)
      return false;
    const Type &x = blocks.all[0].columns[0]->operand(0)->type;
    if (x.rank() != 3 || x.dim(1) % ranks)
      return false;
    sequences = x.dim(0), tokens = x.dim(1);
    llvm::DenseSet<const Value *> cut;
    for (const auto &a : f.body.args)
      if (isArgumentOfTokens(*a))
        cut.insert(a.get());
    for (const Op &op : f.body) {
      const Blocks::Role role = blocks.roleOf(&op);
      if (role == Blocks::column && !cut.contains(op.operand(0)))
        return false;
      if (role == Blocks::row)
        cut.insert(op.result());
      if (role != Blocks::outside || !llvm::any_of(op.operands(), [&](Value *v) { return cut.contains(v); }))
        continue;
      if (!actsOnTokens(op, cut))
        return false;
      for (unsigned i = 0; i < op.numResults(); ++i)
        if (!op.result(i)->type.isScalar())
          cut.insert(op.result(i));
    }
    return byTokens = true;
  }

  void run() {
    std::vector<Op *> ops;
    for (Op &op : f.body)
      ops.push_back(&op);
    first = ops.front();
    for (Op *op : ops)
      switch (blocks.roleOf(op)) {
      case Blocks::column:
        op->setOperand(0, entering(op->operand(0), op));
        retype(*op);
        break;
      case Blocks::inside:
        takeOwnHeads(*op);
        shareOwnWeights(*op);
        retype(*op);
        break;
      case Blocks::row:
        leave(*op);
        break;
      case Blocks::outside:
        if (State *s = op->is(OpKind::read) ? m.state(op->state) : nullptr)
          op->result()->type = s->type;
        else if (byTokens)
          takeOwnTokens(*op);
      }
  }

private:
  Module &m;
  Function &f;
  const Blocks &blocks;
  const int64_t ranks, parts;
  const bool differentiated;
  bool byTokens = false;
  int64_t sequences = 0, tokens = 0;  // per batch, per sequence
  Op *first = nullptr;
  llvm::DenseSet<const Value *> pieces;            // values that each rank has for its part of the tokens
  llvm::DenseMap<const Value *, Value *> entered;  // memo of entering()
  llvm::DenseMap<const Value *, Value *> wholes;   // memo of forPieces()
  llvm::DenseMap<int64_t, Value *> offsets;        // memo of offset()

  bool isArgumentOfTokens(const Value &a) const {
    return a.type.rank() == 2 && a.type.dim(0) == sequences && a.type.dim(1) == tokens;
  }

  /// Whether the value has one row for each position: [T, C] next to [B, T, C].
  bool isTable(const Value *v) const { return v->type.rank() == 2 && v->type.dim(0) == tokens; }

  /// Whether an op outside of blocks with operands of `cut` may run on a part of the tokens.
  bool actsOnTokens(const Op &op, const llvm::DenseSet<const Value *> &cut) const {
    if (op.is(OpKind::ret))
      return llvm::none_of(op.operands(), [&](Value *v) { return cut.contains(v) && v->type.rank() < 2; });
    if (isElementwise(op))
      return llvm::all_of(op.operands(),
                          [&](Value *v) { return cut.contains(v) || v->type.rank() <= 1 || isTable(v); });
    const Tokens &tokens = op.def().tokens;
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (cut.contains(op.operand(i)) != llvm::is_contained(tokens.parts, i))
        return false;
    return tokens.byRows(op);
  }

  Builder before(Op *op) const {
    Builder b(f.body, op);
    b.loc = op->loc;
    b.layer = op->layer;
    return b;
  }

  AttrMap how(bool sums, int64_t dim = 0) const {
    AttrMap a = attrs({{"axis", std::string("tensor")}, {"ranks", ranks}});
    if (sums)
      a.set("order", std::string(tensorOrder(ranks)));
    if (dim)
      a.set("dim", dim);
    return a;
  }

  void retype(Op &op) const {
    if (op.is(OpKind::reshape)) {  // dimension 2 has heads or features
      Dim &d = op.result()->type.dims[2];
      d = Dim(d.logical / ranks);
      return;
    }
    std::vector<Type> types;
    std::string error;
    GPTC_CHECK(op.def().infer && op.def().infer(op, types, error), "a part of {}: {}", print(op), error);
    for (unsigned i = 0; i < op.numResults(); ++i)
      op.result(i)->type = types[i];
  }

  /// The input of a block with all tokens: all_gather of `x`, `spread` of it, or `x` if nothing will be differentiated.
  Value *entering(Value *x, Op *op) {
    Value *&v = entered[x];
    if (v)
      return v;
    if (byTokens) {
      Type whole = x->type;
      whole.dims[1] = Dim(tokens);
      v = before(op).op(OpKind::all_gather, {x}, {whole}, how(false, 1))->result();
    } else {
      v = differentiated ? before(op).value(OpKind::spread, {x}, how(false)) : x;
    }
    return v;
  }

  /// Ends a block: the result of its second matmul is a term of a sum over ranks.
  void leave(Op &op) {
    retype(op);
    reduce(op.result(), op, byTokens);
  }
  /// Makes the users of `terms` use their sum over ranks, or this rank's piece of it.
  void reduce(Value *terms, Op &op, bool intoPieces) {
    llvm::SmallVector<Op *, 4> users(terms->users());
    Builder b = before(op.next());
    b.loc = op.loc;
    b.layer = op.layer;
    Value *sum = intoPieces ? b.value(OpKind::reduce_scatter, {terms}, how(true, 1))
                            : b.value(OpKind::all_reduce, {terms}, how(true));
    for (Op *user : users)
      for (unsigned i = 0; i < user->numOperands(); ++i)
        if (user->operand(i) == terms)
          user->setOperand(i, sum);
    if (intoPieces)
      pieces.insert(sum);
  }

  /// The value axis_index * each, at the beginning of the function.
  Value *offset(int64_t each) {
    Value *&v = offsets[each];
    if (!v) {
      Builder b(f.body, first);
      Value *place = b.value(OpKind::axis_index, {}, how(false));
      v = b.value(OpKind::mul, {place, b.constant(double(each), Type::scalar(DType::i64))});
    }
    return v;
  }

  /// Step 3.
  void takeOwnHeads(Op &op) {
    if (!op.attrs.has("n_head"))
      return;
    for (const char *count : {"n_head", "n_kv_head"})
      if (op.attrs.has(count))
        op.attrs.set(count, op.attrs.getInt(count) / ranks);
    if (parts && op.is(OpKind::qk_norm))
      op.attrs.set("parts", parts);
    const auto seed = op.def().operandIndex("seed");
    const bool draws = seed && *seed < op.numOperands();
    if (ranks == 1)
      return;
    if (op.attrs.getBool("alibi") || draws) {
      op.addOperand(offset(op.attrs.getInt("n_head")));
      op.attrs.set("of_heads", op.attrs.getInt("n_head") * ranks);
    }
  }

  /// Step 5 for parameters that are the same for all heads.
  void shareOwnWeights(Op &op) {
    for (unsigned i = 1; i < op.numOperands() && op.attrs.has("n_head"); ++i)
      if (const State *s = readState(m, op.operand(i)); s && kindOf(*s) == StateKind::param)
        op.setOperand(i, forPieces(op.operand(i), op));
  }

  /// Steps 4 and 5.
  void takeOwnTokens(Op &op) {
    const bool any = llvm::any_of(
        op.operands(), [&](const Value *v) { return pieces.contains(v) || (!v->def && isArgumentOfTokens(*v)); });
    if (!any)
      return;
    if (op.is(OpKind::ret)) {
      for (unsigned i = 0; i < op.numOperands(); ++i)
        if (Value *v = op.operand(i); pieces.contains(v)) {
          Type whole = v->type;
          whole.dims[1] = Dim(tokens);
          op.setOperand(i, before(&op).op(OpKind::all_gather, {v}, {whole}, how(false, 1))->result());
        }
      return;
    }
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (!pieces.contains(op.operand(i)))
        op.setOperand(i, forPieces(op.operand(i), op));
    if (op.def().operandIndex("index0")) {
      const Type &x = op.operand(0)->type;
      op.addOperand(offset(x.slice(1, x.rank()).elements()));
    }
    const bool sums = summedTokenDims(op) > 0;
    if (sums && op.attrs.getInt("fold"))
      op.attrs.set("fold", std::gcd(op.attrs.getInt("fold"), tokens / ranks));
    retype(op);
    if (sums) {
      reduce(op.result(), op, false);
      return;
    }
    for (unsigned i = 0; i < op.numResults(); ++i)
      pieces.insert(op.result(i));
  }

  /// The operand that `op`, on a rank's tokens, uses instead of the whole value `v`: own_part of an argument or a
  /// table, `spread` of a parameter, or `v` itself.
  Value *forPieces(Value *v, Op &op) {
    const bool argument = !v->def && isArgumentOfTokens(*v), table = isElementwise(op) && isTable(v);
    if (!argument && !table && (v->type.isScalar() || !isArithmetic(v->type.dtype) || !differentiated))
      return v;
    Value *&own = wholes[v];
    if (own)
      return own;
    own = argument ? before(&op).value(OpKind::own_part, {v}, how(false, 1))
          : table  ? before(&op).value(OpKind::own_part, {v}, how(false))
                   : before(&op).value(OpKind::spread, {v}, how(false));
    if (argument)
      pieces.insert(own);
    return own;
  }
};

/// Throws UserError(NotBuiltYet) for what sums over features without logical parts.
void checkParts(const Module &m) {
  auto refuse = [](const char *what, const char *help) {
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("logical_tensor with {} is not built yet", what), help);
  };
  if (fact<&PrecisionFacts::fp8>(m) != Fp8::off)
    refuse("products in fp8", "logical_tensor = 1 works");
  if (!m.function("forward"))
    return;
  if (fact<&OptimizerFacts::optimizer>(m) == OptimizerKind::adafactor)
    refuse("optimizer = \"adafactor\"", "logical_tensor = 1 works, or adamw or sgd");
  if (fact<&PrecisionFacts::optimizerState>(m) == MomentType::bf16)
    refuse("optimizer_state = \"bf16\"", "each rank rounds its piece by random numbers of its own; fp32 works");
}

/// The logical parts of all ranks; 0 if the module has none.
int64_t logicalParts(const Module &m, int64_t ranks) {
  const int64_t parts = fact<&ParallelFacts::logicalTensor>(m);
  const bool rounds =
      fact<&PrecisionFacts::weights>(m) != Weights::compute && !m.function("forward") && trainsNothing(m);
  if (parts == 1 || rounds)
    return 0;
  (void)LogicalParts::ofRank(m);
  checkParts(m);
  return parts;
}

}  // namespace

bool shardTensor(Module &m, const PassOptions &) {
  const int64_t ranks = Mesh::of(m).tensor;
  if (fact<&PhaseFacts::tensorSharded>(m))
    return false;
  const int64_t parts = logicalParts(m, ranks);
  if (ranks == 1 && !parts)
    return false;
  const bool trains = m.function("forward") != nullptr;
  if (!trains && (m.function("train_step") || m.function("accumulate")))
    throw UserError(ErrorCode::GirInvalid,
                    fmt::format("{} = {} in a module without @forward", ranks > 1 ? "tensor" : "logical_tensor",
                                ranks > 1 ? ranks : parts),
                    "tensor parallelism comes before gradients: start from the imported module");
  States states(m, ranks, parts ? parts : ranks, parts > 0);
  std::vector<std::pair<Function *, Blocks>> functions;
  for (const auto &f : m.functions) {
    for (const Op &op : f->body)
      if (op.is(OpKind::qk_norm) && op.attrs.getBool("whole"))  // its averages would be of a part of what they are of
        throw UserError(ErrorCode::NotBuiltYet,
                        fmt::format("qk_norm = \"whole\" with {} = {} is not built yet",
                                    parts ? "logical_tensor" : "tensor", parts ? parts : ranks),
                        "tensor = 1 works, or norms of each head");
    functions.emplace_back(f.get(), Blocks(m, *f));
    for (const FeatureBlock &b : functions.back().second.all)
      states.add(b);
  }
  if (!states.size())
    throw UserError(ErrorCode::GirInvalid,
                    fmt::format("nothing in the module can be divided over {} = {}",
                                parts ? "logical_tensor" : "tensor", parts ? parts : ranks),
                    "what can: two matmuls with parameters, and attention or an activation between them");
  std::vector<Sharder> sharders;
  int64_t byTokens = 0;
  for (auto &[f, blocks] : functions) {
    states.checkUsers(*f, blocks);
    if (blocks.all.empty())
      continue;
    sharders.emplace_back(m, *f, blocks, ranks, parts / ranks);
    byTokens += trains && sharders.back().canCutTokens();
  }
  states.apply();
  for (Sharder &s : sharders)
    s.run();
  setFact<&PhaseFacts::tensorSharded>(m, true);
  record(m,
         {.pass = "shard-tensor",
          .name = "tensor",
          .choice = fmt::format("{}", ranks),
          .note = fmt::format("{} states are divided; {} of {} functions compute a part of the tokens between blocks",
                              states.size(), byTokens, sharders.size())});
  return true;
}

}  // namespace gptc
