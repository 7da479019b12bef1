// Forward products in f8e4m3, for which tensor cores have twice the rate of bf16 (sm_89 and later). The module
// attribute `fp8` says which products of parameters: "classifier" those outside of layers, "layers" those within, "all"
// both. Gradients are products of bf16 as before. Per-tensor factors with delayed scaling, as Micikevicius et al. 2022
// and NVIDIA's Transformer Engine have it:
//
//   1. A product qualifies if both operands are bf16, the second is read from a state, and it stands before the first
//      op of @train_step or @accumulate whose name says that it makes gradients. On GPUs 16 must divide the sizes of
//      the weight, as cuBLASLt asks.
//   2. An activation x becomes cast(x * s). The state "amax.NAME" holds the largest magnitude that x had of late, from
//      which quantize_scale makes s. NAME is the parameter of the first product that reads x.
//   3. A weight is copied likewise, in the order [N,K], which is the only one that cuBLASLt takes. Its factor is that
//      of its largest magnitude now, as it is at hand.
//   4. The product's result is multiplied by both inverse factors. All factors are powers of two.
//   5. Where cuBLASLt computes the product, biases are bf16, and what it stores in bf16 is read in bf16 by all.
//   6. The step's end writes decayed_max(largest magnitude of x in the whole global batch, what the state held). With
//      accumulation @accumulate gathers the largest magnitude in a state "seen.amax.NAME". Ranks take the largest of
//      all. A maximum has no order, so micro-batches and ranks along "data" change no bit. Ranks along "tensor" have
//      factors of their own for their parts of weights.
//
// A value that outgrows its factor saturates, for one step. The first step's factors are 1. @eval, @prefill and @decode
// stay in bf16: they need no memory of earlier steps.
// Runs on the joint graph: after precision, and before partition, which cuts weights along "data".
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/gpu_sheets.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/analysis/recompute.h"
#include "passes/decisions.h"
#include "passes/precision.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

/// What remains of a largest magnitude after a step in which there was none: half of it after 16 steps.
constexpr double decay = 0.9576;

class Eights {
public:
  Eights(Module &m, Fp8 which, const Target *target)
      : m(m), which(which), mesh(Mesh::of(m)), cuda(target && target->isCuda()),
        library(target && target->callsLibrary() && target->architecture >= eightsFrom) {}

  int64_t products = 0, unfit = 0;

  /// Steps 1 to 5.
  void lower(Function &f) {
    std::vector<Op *> found;
    for (Op &op : f.body) {
      if (isGradient(op))
        break;
      if (!qualifies(op))
        continue;
      if (fits(op))
        found.push_back(&op);
      else
        ++unfit;
    }
    for (Op *op : found)
      replace(f, *op);
    products = int64_t(found.size());
  }

  /// Step 6. `last` is the step's last function.
  void remember(Function &last) {
    Builder b(last.body, last.body.back());
    b.loc = "amax";
    for (const Memory &a : memory) {
      Value *now = a.seen ? b.read(*a.seen) : a.now;
      for (const auto &[axis, ranks] : {std::pair("tensor", mesh.tensor), {"data", mesh.data}})
        if (ranks > 1)
          now = largestOf(b, now, axis, ranks);
      b.write(*a.state, b.value(OpKind::decayed_max, {now, b.read(*a.state)}, attrs({{"decay", decay}})));
      if (a.seen)
        b.write(*a.seen, b.constant(0, a.seen->type));
    }
  }

private:
  Module &m;
  const Fp8 which;
  const Mesh mesh;
  const bool cuda, library;
  struct Quantized {
    Value *value, *inverse;
  };
  struct Memory {
    State *state;  // "amax.NAME"
    State *seen;   // "seen.amax.NAME", with accumulation
    Value *now;    // else the largest magnitude of the step
  };
  llvm::DenseMap<const Value *, Quantized> activations;
  std::vector<Memory> memory;

  // ---- step 1 ----

  bool qualifies(const Op &op) const {
    if (!op.is(OpKind::matmul) || op.numOperands() != 2 || op.attrs.getBool("ta") || op.attrs.getInt("batch") ||
        op.operand(0)->type.dtype != DType::bf16 || op.operand(1)->type.rank() != 2)
      return false;
    const Op *weight = op.operand(1)->def;
    const bool inLayer = op.layer >= 0;
    return weight && weight->is(OpKind::read) && (which == Fp8::all || (which == Fp8::layers) == inLayer);
  }
  bool fits(const Op &op) const {
    const Type &w = op.operand(1)->type;
    return !cuda || (library && w.padded(0) % 16 == 0 && w.padded(1) % 16 == 0);
  }

  // ---- steps 2 to 4 ----

  static Value *cast(Builder &b, Value *v, DType to) {
    return b.value(OpKind::cast, {v}, attrs({{"dtype", nameOf(to).str()}}));
  }
  static Value *wide(Builder &b, Value *v) { return cast(b, v, DType::f32); }
  /// The largest magnitude of all elements.
  static Value *amaxOf(Builder &b, Value *v) {
    do
      v = b.value(OpKind::row_abs_max, {v});
    while (v->type.rank() > 0);
    return v;
  }
  /// The largest of the ranks' values of a scalar.
  static Value *largestOf(Builder &b, Value *v, const char *axis, int64_t ranks) {
    v = b.op(OpKind::reshape, {v}, {Type(v->type.dtype, {1})})->result();
    const AttrMap how = attrs({{"axis", std::string(axis)}, {"ranks", ranks}});
    return amaxOf(b, b.op(OpKind::all_gather, {v}, {Type(v->type.dtype, {ranks})}, how)->result());
  }
  /// `v` is f32.
  static Quantized quantize(Builder &b, Value *v, Value *amax) {
    const Op *factors = b.op(OpKind::quantize_scale, {amax});
    return {cast(b, b.value(OpKind::mul, {v, factors->result(0)}), DType::f8e4m3), factors->result(1)};
  }

  /// Whether a kernel that is not a product's rounds f32 to the bf16 value `x`: it then rounds to f8e4m3 as well, from
  /// the same f32. What a product leaves is read again.
  static bool isComputedHere(const Value *x) {
    const Op *from = x->def && x->def->is(OpKind::cast) ? x->def->operand(0)->def : nullptr;
    return from && !from->isOneOf(OpKind::matmul, OpKind::add) &&
           !(from->is(OpKind::mul) && llvm::any_of(from->operands(), [](Value *v) { return v->type.isScalar(); }));
  }

  State *scalarState(const std::string &name, StateKind kind) {
    State *s = m.state(name);
    if (!s)
      return addState(m, name, Type::scalar(DType::f32), kind);
    if (s->type != Type::scalar(DType::f32) || kindOf(*s) != kind)
      throw UserError(ErrorCode::GirInvalid, fmt::format("@{} is another state than precision.fp8 needs", name),
                      fmt::format("an f32[] of kind {} has this name, if there is one", nameOf(kind)));
    return s;
  }
  /// "amax." and the name of the parameter that the product reads, or of whose copy; numbered if it reads it again.
  std::string memoryName(const Op &product) const {
    const State &s = *m.state(product.operand(1)->def->state);
    const std::string first = "amax." + (hasFact<&StateFacts::of>(s) ? fact<&StateFacts::of>(s) : s.name);
    std::string name = first;
    for (int n = 2; llvm::any_of(memory, [&](const Memory &a) { return a.state->name == name; }); ++n)
      name = fmt::format("{}.{}", first, n);
    return name;
  }

  Quantized quantizeActivation(Function &f, Value *x, const Op &product) {
    if (auto done = activations.find(x); done != activations.end())
      return done->second;
    Builder b(f.body, x->def ? x->def->next() : f.body.front());
    b.loc = product.loc;
    b.layer = product.layer;
    const std::string name = memoryName(product);
    State *state = scalarState(name, StateKind::counter);
    const Quantized q = quantize(b, isComputedHere(x) ? x->def->operand(0) : wide(b, x), b.read(*state));
    Value *now = amaxOf(b, x);
    State *seen = f.name == "accumulate" ? scalarState("seen." + name, StateKind::grad) : nullptr;
    if (seen)
      b.write(*seen, b.value(OpKind::decayed_max, {now, b.read(*seen)}));
    memory.push_back({state, seen, now});
    return activations[x] = q;
  }

  void replace(Function &f, Op &op) {
    const Quantized x = quantizeActivation(f, op.operand(0), op);
    Builder b(f.body, &op);
    b.loc = op.loc;
    b.layer = op.layer;
    Value *amax = amaxOf(b, op.operand(1)), *w = wide(b, op.operand(1));
    if (!op.attrs.getBool("tb"))
      w = b.value(OpKind::transpose, {w}, attrs({{"perm", std::vector<int64_t>{1, 0}}}));
    const Quantized weight = quantize(b, w, amax);
    Value *y = b.value(OpKind::matmul, {x.value, weight.value}, attrs({{"tb", true}, {"out", std::string("f32")}}));
    y = b.value(OpKind::mul, {y, b.value(OpKind::mul, {x.inverse, weight.inverse})});
    if (y->type.dtype != op.result()->type.dtype)
      y = cast(b, y, op.result()->type.dtype);
    op.result()->replaceAllUsesWith(y);
    op.erase();
    if (library)
      suitLibrary(y);
  }

  // ---- step 5 ----

  static void suitLibrary(Value *y) {
    for (Op *user : llvm::SmallVector<Op *, 4>(y->users()))
      if (addsBias(*user))
        readBiasNarrow(*user, DType::bf16);
    if (y->hasOneUse() && addsBias(*y->users().front()))
      y = y->users().front()->result();
    Op *narrow = nullptr;
    llvm::SmallVector<Op *, 4> others;
    for (Op *user : y->users()) {
      const bool narrows = user->is(OpKind::cast) && user->result()->type.dtype == DType::bf16;
      if (narrows && !narrow)
        narrow = user;
      else if (!narrows)
        others.push_back(user);
    }
    if (!narrow || others.empty())
      return;
    narrow->moveBefore(y->def->next());
    Builder b(*narrow->parent(), narrow->next());
    b.loc = narrow->loc;
    b.layer = narrow->layer;
    Value *again = wide(b, narrow->result());
    for (Op *user : others)
      for (unsigned i = 0; i < user->numOperands(); ++i)
        if (user->operand(i) == y)
          user->setOperand(i, again);
  }
};

}  // namespace

bool fp8(Module &m, const PassOptions &options) {
  const Fp8 which = fact<&PrecisionFacts::fp8>(m);
  Function *step = m.function("train_step"), *micro = m.function("accumulate"), *update = m.function("update");
  Function *first = micro ? micro : step, *last = micro ? update : step;
  if (which == Fp8::off || fact<&PrecisionFacts::compute>(m) != Compute::bf16 || !first || !last)
    return false;
  Eights eights(m, which, options.target);
  eights.lower(*first);
  eights.remember(*last);
  if (eights.products == 0 && eights.unfit == 0)
    return false;
  copyCastParameters(m, DType::bf16);
  record(m, {.pass = "fp8",
             .name = "products",
             .choice = std::string(nameOf(which)),
             .note = fmt::format(
                 "{} forward products of a step in f8e4m3{}", eights.products,
                 eights.unfit ? fmt::format(", {} left in bf16: 16 must divide the sizes of weights", eights.unfit)
                              : "")});
  return true;
}

}  // namespace gptc
