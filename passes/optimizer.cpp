// Appends the optimizer to the function that returns (loss, gradients), which autodiff marks with the attribute
// `grads`. Result: (loss, grad_norm, lr), and parameters, moments and step written.
//
//   1. sum_squares of each gradient, in state order; added in that order; square root: the global norm.
//   2. clip_scale: min(1, grad_clip / norm), or -1 when the norm is not finite, on which adamw changes nothing.
//   3. lr_schedule from @step and the module attributes lr, schedule, warmup, steps, min_lr_ratio.
//   4. adamw for each parameter, with moments m.NAME and v.NAME; weight decay only where the state says decay=true.
//      With the module attribute optimizer_state = "bf16" the moments are bf16, rounded stochastically.
//   5. @step = @step + 1.
//   6. Where there is a state @loss_scale, autodiff has multiplied the gradients by it: the norm and the factor of step
//      2 are divided by it, and it and @good_steps move on by next_loss_scale. The function returns it too.
//   7. Writes that were there before (zeros into accumulators) move to the end, after the last use of what they
//      replace.
#include "passes/pass.h"

#include "ir/diagnostics.h"
#include "ir/opdef.h"

namespace gptc {

// Streams of stochastic rounding count from here in the order of the parameters, above those of initial values and
// dropout.
constexpr int64_t momentStreams = 1 << 24;

static State *momentOf(Module &m, const char *which, const State &p, DType dtype) {
  std::string name = fmt::format("{}.{}", which, p.name);
  if (State *s = m.state(name))
    return s;
  State *s = m.addState(name, p.type.withDType(dtype));
  s->attrs = attrs({{"kind", std::string("moment")}, {"init", std::string("zeros")}});
  return s;
}

static void appendOptimizer(Module &m, Function &f) {
  Op *ret = f.body.back();
  llvm::SmallVector<Value *, 8> outputs(ret->operands());
  std::vector<State *> params;
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == "param")
      params.push_back(s.get());
  if (params.empty() || outputs.size() != params.size() + 1)
    throw UserError(ErrorCode::GirInvalid, fmt::format("@{} returns {} values; a loss and {} gradients were expected",
                                                       f.name, outputs.size(), params.size()));
  State *step = m.state("step");
  if (!step)
    throw UserError(ErrorCode::GirInvalid, "the module has no state @step",
                    "add: state @step : i64[] {kind=\"counter\"}");

  Builder b(f.body, ret);
  b.loc = "optimizer";
  const AttrMap &a = m.attrs;
  Value *sum = nullptr;
  for (size_t i = 0; i < params.size(); ++i) {
    Value *squares = b.value(OpKind::sum_squares, {outputs[i + 1]});
    sum = sum ? b.value(OpKind::add, {sum, squares}) : squares;
  }
  Value *norm = b.value(OpKind::sqrt, {sum}), *lossScale = nullptr;
  if (const State *s = m.state("loss_scale"))
    lossScale = b.read(*s);
  if (lossScale)  // a power of two: exact
    norm = b.value(OpKind::div, {norm, lossScale});
  Value *scale = b.value(OpKind::clip_scale, {norm}, attrs({{"max", a.getFloat("grad_clip", 0)}}));
  if (lossScale)
    scale = b.value(OpKind::div, {scale, lossScale});
  Value *now = b.read(*step);
  Value *lr = b.value(OpKind::lr_schedule, {now},
                      attrs({{"kind", a.getString("schedule", "constant")},
                             {"lr", a.getFloat("lr", 1e-3)},
                             {"warmup", a.getInt("warmup", 0)},
                             {"steps", a.getInt("steps", 1)},
                             {"min_ratio", a.getFloat("min_lr_ratio", 0)}}));
  const bool narrow = a.getString("optimizer_state", "fp32") == "bf16";
  Value *seed = nullptr;
  if (narrow) {
    const State *s = m.state("rng_seed");
    if (!s)
      throw UserError(ErrorCode::GirInvalid, "the module has no state @rng_seed, which stochastic rounding needs",
                      "add: state @rng_seed : i64[] {kind=\"counter\"}");
    seed = b.read(*s);
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const State &p = *params[i];
    const DType moments = narrow ? DType::bf16 : p.type.dtype;
    State *m1 = momentOf(m, "m", p, moments), *m2 = momentOf(m, "v", p, moments);
    bool decay = p.attrs.getBool("decay");
    AttrMap at = attrs({{"beta1", a.getFloat("beta1", 0.9)},
                        {"beta2", a.getFloat("beta2", 0.999)},
                        {"eps", a.getFloat("eps", 1e-8)},
                        {"weight_decay", decay ? a.getFloat("weight_decay", 0) : 0.0}});
    if (narrow)
      at.set("stream", momentStreams + int64_t(i));
    Op *adam = b.op(OpKind::adamw, {b.read(p), outputs[i + 1], b.read(*m1), b.read(*m2), lr, now, scale, seed}, at);
    b.write(p, adam->result(0));
    b.write(*m1, adam->result(1));
    b.write(*m2, adam->result(2));
  }
  b.write(*step, b.value(OpKind::add, {now, b.constant(1, step->type)}));
  if (lossScale) {
    const State *good = m.state("good_steps");
    if (!good)
      throw UserError(ErrorCode::GirInvalid, "the module has a state @loss_scale and no @good_steps",
                      "add: state @good_steps : i64[] {kind=\"counter\"}");
    Op *next = b.op(OpKind::next_loss_scale, {lossScale, b.read(*good), norm});
    b.write(*m.state("loss_scale"), next->result(0));
    b.write(*good, next->result(1));
  }
  llvm::SmallVector<Op *, 16> earlier;
  for (Op *op = sum->def; op; op = op->prev())
    if (op->is(OpKind::write))
      earlier.push_back(op);
  for (Op *op : llvm::reverse(earlier))
    op->moveBefore(ret);
  llvm::SmallVector<Value *, 4> results = {outputs[0], norm, lr};
  if (lossScale)
    results.push_back(lossScale);
  b.ret(results);
  ret->erase();
  f.attrs.erase("grads");
}

bool optimizer(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions)
    if (f->attrs.has("grads")) {
      appendOptimizer(m, *f);
      changed = true;
    }
  return changed;
}

}  // namespace gptc
