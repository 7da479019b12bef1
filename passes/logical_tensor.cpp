// logical-tensor: sums over heads and hidden features in an order that no number of ranks changes.
//
// Module attribute logical_tensor = T: shard-tensor has divided the features into T logical parts, of which each rank
// along "tensor" has P = T / ranks consecutive ones. A sum over features is the sum of T terms in a binary tree,
// ((p0+p1)+(p2+p3))+.... A rank makes its P terms and adds them by the lower levels; the all_reduce in tree order,
// whose operand they were, adds the upper ones. So 1, 2, .., T ranks give the same bits (the method of logical shards,
// by which ranks along "data" do).
//
//   1. What an all_reduce along "tensor" adds is taken apart: into products over the features of a rank (the second
//      product of a block, and gradients of inputs of the first ones), and additions, casts and views of them. These
//      are made for each part as if it were a rank. What is no sum of such products stays: squares of gradients and
//      gradients of norms of heads have the order of the tree already (optimizer, qk_norm).
//   2. The term of a part is the product of its columns of the first operand and its places of the weight: one chain
//      over k, as on T ranks. Packed queries, keys and values are three groups of columns. If all are equally wide, a
//      part has its columns of all three in one chain. If not, it adds three products, (q+k)+v, whatever P is, so that
//      kernels which take several steps of k together never do so across two groups.
//   3. The places are sliced out, or, if that would move more bytes than the terms take (few rows, as in sampling), one
//      batched product reads the weight where it lies: its rows are P matrices one behind the other.
//   4. The sum of the terms takes the place of the all_reduce's operand, and on one rank that of the all_reduce. What
//      follows (bias, residual) fuses with the addition that ends it, as it would with the product.
//   5. logical_parts of states have been read and are removed.
//
// Runs after precision, which must see the same ops on any number of ranks, or it would round at other places; and
// before partition, quantize-weights and pack-weights, which see products as they will be.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/analysis/parameters.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

/// What the parts of one function cost, beside the products themselves.
struct PartCost {
  int64_t products = 0, terms = 0;  // products that were taken apart, and those in their place
  double flops = 0, traffic = 0;
};

/// Steps 1 to 4 for one function.
class PartSums {
public:
  PartSums(const Module &m, Function &f) : m(m), f(f), ranks(Mesh::of(m).tensor), parts(LogicalParts::ofRank(m)) {}

  PartCost run() {
    std::vector<Op *> sums;
    for (Op &op : f.body)
      if (op.is(OpKind::all_reduce) && op.attrs.getString("axis") == "tensor")
        sums.push_back(&op);
    for (Op *sum : sums) {
      Value *whole = sum->operand(0);
      known.clear();
      made.clear();
      if (isSumOfParts(whole)) {
        Builder b = before(*sum);
        sum->setOperand(0, sumInTree(b, termsOf(whole)));
        eraseUnused(whole);
      }
      if (ranks == 1) {
        sum->result()->replaceAllUsesWith(sum->operand(0));
        sum->erase();
      }
    }
    return cost;
  }

private:
  const Module &m;
  Function &f;
  const int64_t ranks, parts;
  PartCost cost;
  // Memos of isSumOfParts() and termsOf(), for one sum, and of columnsOf(), for one product.
  llvm::DenseMap<const Value *, bool> known;
  llvm::DenseMap<const Value *, std::vector<Value *>> made;
  llvm::DenseMap<const Value *, Value *> views;

  Builder before(Op &op) const {
    Builder b(f.body, &op);
    b.loc = op.loc;
    b.layer = op.layer;
    return b;
  }

  // ---- step 1 ----

  static bool passesOn(const Op &op) { return op.isOneOf(OpKind::add, OpKind::cast, OpKind::reshape); }

  /// How the features over which a product sums are shared; nullopt if it is no such product.
  std::optional<LogicalParts> partsOf(const Op &op) const {
    if (!op.is(OpKind::matmul) || op.numOperands() != 2 || op.attrs.getBool("ta") || op.attrs.getInt("batch") ||
        op.attrs.getInt("fold"))
      return std::nullopt;
    const Op *from = op.operand(1)->def;
    while (from && from->is(OpKind::cast))
      from = from->operand(0)->def;
    const State *weight = from && from->is(OpKind::read) ? parameterOf(m, m.state(from->state)) : nullptr;
    std::optional<LogicalParts> shared = weight ? LogicalParts::of(m, *weight) : std::nullopt;
    const bool tb = op.attrs.getBool("tb");
    if (!shared || shared->dim != (tb ? 1u : 0u) || (!tb && shared->groups.size() > 1))
      return std::nullopt;
    return shared;
  }

  /// Whether `v` is a sum of products over features. Throws UserError(GirInvalid) if only a part of it is.
  bool isSumOfParts(const Value *v) {
    if (!v->def)
      return false;
    if (!passesOn(*v->def))
      return partsOf(*v->def).has_value();
    if (const auto it = known.find(v); it != known.end())
      return it->second;
    const bool first = isSumOfParts(v->def->operand(0));
    for (const Value *other : v->def->operands().drop_front())
      if (isSumOfParts(other) != first)
        throw UserError(ErrorCode::GirInvalid, fmt::format("{} adds a sum over features and something else: it has no "
                                                           "logical parts",
                                                           v->def->name().str()));
    return known[v] = first;
  }

  /// One value of the type of `v` for each part, in order. Their sum is what `v` is on this rank.
  std::vector<Value *> termsOf(Value *v) {
    if (const auto it = made.find(v); it != made.end())
      return it->second;
    Op &op = *v->def;
    if (op.is(OpKind::matmul))
      return made[v] = products(op);
    std::vector<std::vector<Value *>> operands;
    for (Value *operand : op.operands())
      operands.push_back(termsOf(operand));
    Builder b = before(op);
    std::vector<Value *> terms;
    for (int64_t p = 0; p < parts; ++p) {
      llvm::SmallVector<Value *, 2> own;
      for (const std::vector<Value *> &each : operands)
        own.push_back(each[size_t(p)]);
      terms.push_back(b.op(op.kind, own, {v->type}, op.attrs)->result());
    }
    return made[v] = terms;
  }

  /// Removes `whole` and what it was computed from, as far as nothing else uses it.
  static void eraseUnused(Value *whole) {
    std::vector<Op *> ops = {whole->def};
    for (size_t i = 0; i < ops.size(); ++i)
      if (passesOn(*ops[i]))
        for (Value *operand : ops[i]->operands())
          if (!llvm::is_contained(ops, operand->def))
            ops.push_back(operand->def);
    for (bool changed = true; changed;) {
      changed = false;
      llvm::erase_if(ops, [&](Op *op) {
        if (!op->result()->unused())
          return false;
        op->erase();
        return changed = true;
      });
    }
  }

  // ---- steps 2 and 3 ----

  std::vector<Value *> products(Op &op) {
    const LogicalParts shared = *partsOf(op);
    const bool tb = op.attrs.getBool("tb"), even = llvm::all_equal(shared.groups);
    views.clear();
    if (parts == 1 && even)
      return {op.result()};
    const Type &x = op.operand(0)->type;
    std::vector<Value *> terms;
    if (!tb && (parts + 1) * x.rows() < x.dim(-1)) {
      terms = batched(op);
    } else {
      for (int64_t p = 0; p < parts; ++p)
        terms.push_back(product(op, shared, even, tb, p));
    }
    const double bytes = double(op.result()->type.bytes()), elements = double(op.result()->type.elements());
    const int64_t count = parts * (even ? 1 : int64_t(shared.groups.size()));
    ++cost.products;
    cost.terms += count;
    cost.flops += double(count - 1) * elements;
    cost.traffic += 2 * double(count - 1) * bytes;
    return terms;
  }

  /// The term of part p.
  Value *product(Op &op, const LogicalParts &shared, bool even, bool tb, int64_t p) {
    Builder b = before(op);
    Value *x = op.operand(0), *w = op.operand(1);
    const int last = int(x->type.rank()) - 1;
    if (even) {
      auto own = [&](Value *v, int dim) {
        return shared.groups.size() == 1 ? slice(b, v, dim, p * (shared.groups[0] / parts), shared.groups[0] / parts)
                                         : columnsOf(b, v, int64_t(shared.groups.size()), p);
      };
      return b.value(OpKind::matmul, {own(x, last), own(w, tb ? 1 : 0)}, op.attrs);
    }
    Value *sum = nullptr;
    int64_t start = 0;
    for (const int64_t group : shared.groups) {
      const int64_t each = group / parts, from = start + p * each;
      Value *term = b.value(OpKind::matmul, {slice(b, x, last, from, each), slice(b, w, 1, from, each)}, op.attrs);
      sum = sum ? b.value(OpKind::add, {sum, term}) : term;
      start += group;
    }
    return sum;
  }

  Value *slice(Builder &b, Value *v, int dim, int64_t start, int64_t size) {
    Value *s = b.value(OpKind::slice, {v}, attrs({{"dim", int64_t(dim)}, {"start", start}, {"size", size}}));
    cost.traffic += 2 * double(s->type.bytes());
    return s;
  }

  static Value *view(Builder &b, Value *v, llvm::ArrayRef<Dim> dims) {
    return b.op(OpKind::reshape, {v}, {Type(v->type.dtype, dims)})->result();
  }

  /// Part p's columns of `groups` equally wide groups of columns of v, one behind the other.
  Value *columnsOf(Builder &b, Value *v, int64_t groups, int64_t p) {
    const int64_t each = v->type.dim(-1) / (groups * parts);
    Value *&apart = views[v];
    if (!apart)
      apart = view(b, v, {v->type.rows(), groups, parts, each});
    Type own = v->type;
    own.dims.back() = Dim(groups * each);
    return view(b, slice(b, apart, 2, p, 1), own.dims);
  }

  /// All parts' terms from one batched product.
  std::vector<Value *> batched(Op &op) {
    Builder b = before(op);
    Value *x = op.operand(0), *w = op.operand(1);
    const Type &y = op.result()->type;
    const int64_t rows = x->type.rows(), each = x->type.dim(-1) / parts;
    if (rows == 1) {
      x = view(b, x, {parts, 1, each});
    } else {
      x = b.value(OpKind::transpose, {view(b, x, {rows, parts, each})}, attrs({{"perm", Ints{1, 0, 2}}}));
      cost.traffic += 2 * double(x->type.bytes());
    }
    AttrMap how = op.attrs;
    how.set("batch", int64_t(1));
    Value *all = b.value(OpKind::matmul, {x, view(b, w, {parts, each, y.dim(-1)})}, std::move(how));
    llvm::SmallVector<Dim, 4> stacked(y.dims);
    stacked[0] = Dim(parts * y.dim(0));
    all = view(b, all, stacked);
    std::vector<Value *> terms;
    for (int64_t p = 0; p < parts; ++p)
      terms.push_back(
          b.value(OpKind::slice, {all}, attrs({{"dim", int64_t(0)}, {"start", p * y.dim(0)}, {"size", y.dim(0)}})));
    return terms;
  }
};

}  // namespace

bool logicalTensor(Module &m, const PassOptions &) {
  const int64_t all = fact<&ParallelFacts::logicalTensor>(m);
  if (all == 1 || !fact<&PhaseFacts::tensorSharded>(m) || isDecided(m, "logical-tensor", "parts"))
    return false;
  PartCost step;  // of the function that a training step runs, else of all functions
  const bool trains = m.function("train_step") || m.function("accumulate");
  for (const auto &f : m.functions) {
    const PartCost c = PartSums(m, *f).run();
    if (trains && f->name != "train_step" && f->name != "accumulate")
      continue;
    const double times = f->name == "accumulate" ? double(fact<&BatchFacts::accumulate>(m)) : 1;
    step.products += c.products;
    step.terms += c.terms;
    step.flops += times * c.flops;
    step.traffic += times * c.traffic;
  }
  for (const auto &s : m.states)
    eraseFact<&StateFacts::logicalParts>(*s);
  record(m,
         {.pass = "logical-tensor",
          .name = "parts",
          .choice = fmt::format("{}, {} on each rank", all, LogicalParts::ofRank(m)),
          .effect = {.traffic = step.traffic},
          .note = fmt::format("{} products over features are {}; adding them up takes {:.3g} MFLOP and moves {:.3g} MB",
                              step.products, step.terms, 1e-6 * step.flops, 1e-6 * step.traffic)});
  return true;
}

}  // namespace gptc
