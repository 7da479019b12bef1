// Appends the optimizer to the function that returns (loss, gradients), which autodiff marks with the attribute
// `grads`. Result: (loss, grad_norm, lr), and parameters, moments and step written.
//
//   1. sum_squares of each gradient, in state order; added in that order; square root: the global norm.
//   2. clip_scale: min(1, grad_clip / norm), or -1 when the norm is not finite, on which adamw changes nothing.
//   3. lr_schedule from @step and the module attributes lr, schedule, warmup, steps, min_lr_ratio.
//   4. adamw for each parameter, with moments m.NAME and v.NAME; weight decay only where the state says decay=true.
//   5. @step = @step + 1.
//   6. Writes that were there before (zeros into accumulators) move to the end, after the last use of what they
//      replace.
#include "passes/pass.h"

#include "ir/diagnostics.h"
#include "ir/opdef.h"

namespace gptc {

static State *momentOf(Module &m, const char *which, const State &p) {
  std::string name = fmt::format("{}.{}", which, p.name);
  if (State *s = m.state(name))
    return s;
  State *s = m.addState(name, p.type);
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
  Value *norm = b.value(OpKind::sqrt, {sum});
  Value *scale = b.value(OpKind::clip_scale, {norm}, attrs({{"max", a.getFloat("grad_clip", 0)}}));
  Value *now = b.read(*step);
  Value *lr = b.value(OpKind::lr_schedule, {now},
                      attrs({{"kind", a.getString("schedule", "constant")},
                             {"lr", a.getFloat("lr", 1e-3)},
                             {"warmup", a.getInt("warmup", 0)},
                             {"steps", a.getInt("steps", 1)},
                             {"min_ratio", a.getFloat("min_lr_ratio", 0)}}));
  for (size_t i = 0; i < params.size(); ++i) {
    const State &p = *params[i];
    State *m1 = momentOf(m, "m", p), *m2 = momentOf(m, "v", p);
    bool decay = p.attrs.getBool("decay");
    Op *adam = b.op(OpKind::adamw, {b.read(p), outputs[i + 1], b.read(*m1), b.read(*m2), lr, now, scale},
                    attrs({{"beta1", a.getFloat("beta1", 0.9)},
                           {"beta2", a.getFloat("beta2", 0.999)},
                           {"eps", a.getFloat("eps", 1e-8)},
                           {"weight_decay", decay ? a.getFloat("weight_decay", 0) : 0.0}}));
    b.write(p, adam->result(0));
    b.write(*m1, adam->result(1));
    b.write(*m2, adam->result(2));
  }
  b.write(*step, b.value(OpKind::add, {now, b.constant(1, step->type)}));
  llvm::SmallVector<Op *, 16> earlier;
  for (Op *op = sum->def; op; op = op->prev())
    if (op->is(OpKind::write))
      earlier.push_back(op);
  for (Op *op : llvm::reverse(earlier))
    op->moveBefore(ret);
  b.ret({outputs[0], norm, lr});
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
