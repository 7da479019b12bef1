// Computes the classifier, the loss and their gradients for a few sequences at a time, so that memory never holds the
// logits [B, T, V] of the whole batch or their gradient, which takes their place. This is the method of Liger Kernel's
// fused linear cross entropy (Hsu et al. 2024), on the graph.
//
//   logits = matmul h, W;  nll, dlogits = loss(logits, y);  s = sum nll
//   dh = matmul dlogits, W;  dW = matmul dlogits^T, h
// becomes, for each chunk i of the first dimension (sequences),
//   h_i, y_i = slices;  logits_i;  nll_i, dlogits_i;  s_i = sum nll_i from s_(i-1);  dh_i;  dW_i = ... from dW_(i-1)
// and dh is the concatenation of all dh_i.
//
//   1. The pattern consists of groups: a row group with a cross_entropy and its gradient, on the result of a matmul
//      without other users. The users of the gradient are two matmuls that are groups of their own, the user of the
//      losses is one sum.
//   2. An operand of the loss is cut if a member of the group reads it at the current point or row of a domain
//      [B, T, ...], and used whole if it is broadcast over that domain. The pass gives up if a member reads an operand
//      elsewhere, or if its elements depend on the number of the sequence itself (dropout).
//   3. Reads of states that the five groups need and that stand after the loss move before it. The chunks are inserted
//      there in order. Types inside the groups follow from the ops' own rules.
//   4. dh is a sum of the pieces, each padded with zeros to the full batch.
// The bits stay: sums over tokens continue through their `init` operands at whole blocks, contractions over features
// compute each row by itself, and a chain of sums that starts from +0 never ends at -0, so adding zeros changes
// nothing. In bf16 the last point does not hold, as tiny numbers round to zeros of their sign: the pass requires f32.
//
// Option: chunks (must divide the batch). remat uses the pass to meet a memory budget. The price is that the weight is
// packed, and its gradient loaded and stored, once per chunk. Runs after order, like remat.
#include "passes/chunk_classifier.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/pass.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

using Mapping = llvm::DenseMap<const Value *, Value *>;

/// Whether the op is a group of a single op of this kind.
bool isPlain(const Op *group, OpKind kind) {
  return group && group->is(OpKind::fused) && group->body->size() == 2 && group->body->front()->is(kind);
}

/// The only user of a value, or null.
Op *onlyUser(const Value *v) { return v->hasOneUse() ? v->users()[0] : nullptr; }

class Chunker {
public:
  Chunker(Function &f, int64_t chunks) : f(f), chunks(chunks) {}

  bool run() {
    if (!find())
      return false;
    const int64_t batch = logits->type.dim(0);
    size = batch / chunks;
    if (chunks < 2 || batch % chunks || !wholeBlocks(*lossSum) || !wholeBlocks(*weightGradient) || !cutOperands() ||
        !moveReads())
      return false;
    Value *dW = weightGradient->numOperands() > 2 ? weightGradient->operand(2) : nullptr;
    Value *sum = lossSum->numOperands() > 1 ? lossSum->operand(1) : nullptr;
    std::vector<Value *> pieces;
    for (int64_t i = 0; i < chunks; ++i) {
      Mapping map;
      auto part = [&](Value *v) { return map[v] ? map[v] : map[v] = slice(v, i * size); };
      auto whole = [&](Value *v) { return v; };
      Value *logits_i = copyOf(*classifier, {part(classifier->operand(0)), whole(classifier->operand(1))})->result();
      std::vector<Value *> operands;
      for (unsigned o = 0; o < loss->numOperands(); ++o) {
        Value *v = loss->operand(o);
        operands.push_back(v == logits ? logits_i : cut[o] ? part(v) : whole(v));
      }
      Op *loss_i = copyOf(*loss, operands);
      Value *nll_i = loss_i->result(nll->index), *dlogits_i = loss_i->result(dlogits->index);
      sum = copyOf(*lossSum, {nll_i, sum})->result();
      pieces.push_back(copyOf(*inputGradient, {dlogits_i, whole(inputGradient->operand(1))})->result());
      dW = copyOf(*weightGradient, {dlogits_i, part(weightGradient->operand(1)), dW})->result();
    }
    lossSum->result()->replaceAllUsesWith(sum);
    weightGradient->result()->replaceAllUsesWith(dW);
    inputGradient->result()->replaceAllUsesWith(together(pieces));
    for (Op *op : {weightGradient, inputGradient, lossSum, loss, classifier})
      op->erase();
    return true;
  }

private:
  Function &f;
  const int64_t chunks;
  int64_t size = 0;       // sequences per chunk
  std::vector<bool> cut;  // by operand of the loss
  Op *classifier = nullptr, *loss = nullptr, *lossSum = nullptr, *inputGradient = nullptr, *weightGradient = nullptr;
  Value *logits = nullptr, *nll = nullptr, *dlogits = nullptr;

  /// Step 1.
  bool find() {
    for (Op &op : f.body)
      if (op.is(OpKind::fused) && kindOf(op) == RecipeKind::row && isLoss(op) && usersFit())
        return true;
    return false;
  }

  bool isLoss(Op &op) {
    loss = &op;
    const Op *entropy = nullptr, *gradient = nullptr;
    for (const Op &inner : *op.body) {
      if (inner.is(OpKind::cross_entropy))
        entropy = &inner;
      if (inner.is(OpKind::cross_entropy_grad))
        gradient = &inner;
    }
    if (!entropy || !gradient || entropy->operand(0) != gradient->operand(0) || op.numResults() != 2)
      return false;
    nll = dlogits = nullptr;
    for (unsigned i = 0; i < 2; ++i) {
      if (op.body->back()->operand(i) == entropy->result(0))
        nll = op.result(i);
      if (op.body->back()->operand(i) == gradient->result(0))
        dlogits = op.result(i);
    }
    if (!nll || !dlogits || entropy->operand(0)->def)
      return false;
    logits = op.operand(entropy->operand(0)->index);
    classifier = logits->def;
    return isPlain(classifier, OpKind::matmul) && classifier->numOperands() == 2 && onlyUser(logits) == loss &&
           logits->type.rank() == 3 && contracts(classifier, false);
  }

  /// Whether the group's matmul takes the group's operands in order and contracts over tokens (`ta`) or, if `tokens` is
  /// false, over features.
  static bool contracts(const Op *group, bool tokens) {
    const Op *op = group->body->front();
    return op->attrs.getInt("batch") == 0 && op->attrs.getBool("ta") == tokens &&
           op->operand(0) == group->body->args[0].get() && op->operand(1) == group->body->args[1].get();
  }

  bool usersFit() {
    lossSum = onlyUser(nll);
    if (!isPlain(lossSum, OpKind::reduce_sum) || lossSum->operand(0) != nll || dlogits->users().size() != 2)
      return false;
    inputGradient = weightGradient = nullptr;
    for (Op *user : dlogits->users()) {
      if (!isPlain(user, OpKind::matmul) || user->operand(0) != dlogits)
        return false;
      (user->body->front()->attrs.getBool("ta") ? weightGradient : inputGradient) = user;
    }
    return inputGradient && weightGradient && inputGradient->numOperands() == 2 && contracts(inputGradient, false) &&
           contracts(weightGradient, true) && weightGradient->operand(1) == classifier->operand(0) &&
           inputGradient->result()->type.rank() == 3 && inputGradient->result()->type.dtype == DType::f32 &&
           dlogits->type.dtype == DType::f32 && lossSum->body->front()->attrs.getInt("lead") == 2;
  }

  /// Whether each chunk ends at the end of a block (`fold` rows) of the sum over tokens in this group.
  bool wholeBlocks(const Op &group) const {
    const int64_t fold = group.body->front()->attrs.getInt("fold");
    return fold > 0 && size * logits->type.dim(1) % fold == 0;
  }

  /// Step 2.
  bool cutOperands() {
    const Type &whole = logits->type;
    if (whole.dim(0) == whole.dim(1) && whole.dim(1) == whole.dim(2))
      return false;  // [B, T] and [T, V] look alike
    std::vector<bool> uncut(loss->numOperands());
    cut.assign(loss->numOperands(), false);
    for (const Op &op : *loss->body) {
      if (op.is(OpKind::yield))
        continue;
      if (op.is(OpKind::constant)) {
        if (!op.result()->type.isScalar())
          return false;
        continue;
      }
      const Type &domain = domainOf(op);
      const bool batched = domain.rank() >= 2 && domain.dim(0) == whole.dim(0) && domain.dim(1) == whole.dim(1);
      if (!op.def().infer || !(batched || domain.isScalar()) || usesFirstIndex(op))
        return false;
      const std::vector<Access> access = operandAccess(op);
      for (unsigned i = 0; i < op.numOperands(); ++i) {
        const Value *v = op.operand(i);
        if (access[i] == Access::anywhere)
          return false;
        if (!v->def && access[i] != Access::none)
          (batched && (access[i] != Access::point || v->type.rank() == domain.rank()) ? cut : uncut)[v->index] = true;
      }
    }
    for (unsigned o = 0; o < loss->numOperands(); ++o)
      if (cut[o] && uncut[o])
        return false;
    return true;
  }

  /// Step 3: moves the reads that the five groups need before the loss. Returns false and changes nothing if another
  /// operand is defined after the loss, or if a write of the state stands between the loss and the read.
  bool moveReads() {
    llvm::SmallVector<Op *, 4> reads;
    llvm::DenseMap<const Op *, int> position;
    int n = 0;
    for (Op &op : f.body)
      position[&op] = n++;
    const int here = position[loss];
    for (Op *op : {classifier, lossSum, inputGradient, weightGradient})
      for (unsigned i = 0; i < op->numOperands(); ++i) {
        Value *v = op->operand(i);
        if (!v->def || v == logits || v == nll || v == dlogits || position[v->def] < here)
          continue;
        if (!v->def->is(OpKind::read))
          return false;
        for (Op *at = loss; at != v->def; at = at->next())
          if (at->is(OpKind::write) && at->state == v->def->state)
            return false;
        if (!llvm::is_contained(reads, v->def))
          reads.push_back(v->def);
      }
    for (Op *read : reads)
      read->moveBefore(loss);
    return true;
  }

  /// Copies the group for other operands and infers the types anew. Null operands at the end are left out. An operand
  /// more than the group has becomes the `init` of the op inside.
  Op *copyOf(const Op &group, std::vector<Value *> operands) {
    while (!operands.back())
      operands.pop_back();
    Op *copy = f.body.insert(OpKind::fused, loss);
    copy->attrs = group.attrs;
    copy->loc = group.loc;
    copy->layer = group.layer;
    copy->body = std::make_unique<Block>();
    Mapping map;
    for (size_t i = 0; i < operands.size(); ++i) {
      copy->addOperand(operands[i]);
      Value *arg = copy->body->addArg(operands[i]->type, operands[i]->name);
      if (i < group.numOperands())
        map[group.body->args[i].get()] = arg;
    }
    Builder b(*copy->body);
    for (const Op &op : *group.body) {
      std::vector<Value *> inner;
      for (const Value *v : op.operands())
        inner.push_back(map.lookup(v));
      if (op.is(OpKind::yield)) {
        b.loc.clear();
        b.layer = -1;
        b.op(OpKind::yield, inner, llvm::ArrayRef<Type>());
        for (Value *v : inner)
          copy->addResult(v->type);
        break;
      }
      if (operands.size() > group.numOperands())
        inner.push_back(copy->body->args.back().get());
      b.loc = op.loc;
      b.layer = op.layer;
      Op *made;
      if (op.def().infer) {
        made = b.op(op.kind, inner, op.attrs);
      } else {
        std::vector<Type> types;
        for (unsigned i = 0; i < op.numResults(); ++i)
          types.push_back(op.result(i)->type);
        made = b.op(op.kind, inner, types, op.attrs);
      }
      for (unsigned i = 0; i < op.numResults(); ++i)
        map[op.result(i)] = made->result(i);
    }
    for (unsigned i = 0; i < copy->numResults(); ++i)
      copy->result(i)->name = group.result(i)->name;
    return copy;
  }

  /// Inserts a pointwise group before the loss. `fill` builds its body from the block arguments and returns its result.
  Op *pointwise(llvm::ArrayRef<Value *> operands, const std::string &loc,
                const llvm::function_ref<Value *(Builder &, llvm::ArrayRef<Value *>)> &fill) {
    Op *group = f.body.insert(OpKind::fused, loss);
    setKind(*group, RecipeKind::pointwise);
    group->loc = loc;
    group->body = std::make_unique<Block>();
    Builder b(*group->body);
    std::vector<Value *> args;
    for (Value *v : operands) {
      group->addOperand(v);
      args.push_back(group->body->addArg(v->type));
    }
    Value *out = fill(b, args);
    b.op(OpKind::yield, {out}, llvm::ArrayRef<Type>());
    group->addResult(out->type);
    return group;
  }

  Value *slice(Value *v, int64_t start) {
    return pointwise({v}, loss->loc + " (chunk)",
                     [&](Builder &b, llvm::ArrayRef<Value *> x) {
                       return b.value(OpKind::slice, {x[0]},
                                      attrs({{"dim", int64_t(0)}, {"start", start}, {"size", size}}));
                     })
        ->result();
  }

  /// Step 4.
  Value *together(llvm::ArrayRef<Value *> pieces) {
    return pointwise(pieces, inputGradient->loc + " (chunks)",
                     [&](Builder &b, llvm::ArrayRef<Value *> x) {
                       Value *sum = nullptr;
                       for (size_t i = 0; i < x.size(); ++i) {
                         Value *piece = b.value(
                             OpKind::unslice, {x[i]},
                             attrs({{"dim", int64_t(0)}, {"start", int64_t(i) * size}, {"full", size * chunks}}));
                         sum = sum ? b.value(OpKind::add, {sum, piece}) : piece;
                       }
                       return sum;
                     })
        ->result();
  }
};

}  // namespace

bool chunkClassifier(Module &m, int64_t chunks) {
  bool changed = false;
  for (auto &f : m.functions)
    changed |= Chunker(*f, chunks).run();
  return changed;
}

bool chunkClassifier(Module &m, const PassOptions &options) {
  return chunkClassifier(m, options.values.getInt("chunks", 2));
}

}  // namespace gptc
