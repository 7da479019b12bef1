// Replaces adamw and sgd by the pointwise ops of their formulas, as a framework without a fused optimizer runs them.
// `gptc bench ablate` uses this to measure the gain of the single op. Results are equal up to rounding, as the bias
// corrections are computed in f32 here. AdamW:
//
//   1. Once per function and pair of betas: c1 = 1 / (1 - beta1^t), c2 = 1 / (1 - beta2^t), t = step + 1.
//   2. g' = g scale;  m' = beta1 m + (1 - beta1) g';  v' = beta2 v + (1 - beta2) g' g'
//   3. p' = p - lr (c1 m' / (sqrt(c2 v') + eps) + decay p)
//
// SGD: g' = g scale + decay p;  m' = momentum m + g';  p' = p - lr m', or p - lr (g' + momentum m') with nesterov.
//
// Moments in bf16 are widened first and rounded to nearest at the end. The low-precision copy of the parameter is also
// rounded to nearest. Unlike adamw and sgd, these ops do not skip a step whose gradient is not finite (scale < 0).
#include "passes/pass.h"

#include <cmath>
#include <map>

namespace gptc {

bool primitiveOptimizer(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions) {
    std::map<std::pair<const Value *, double>, Value *> corrections;
    for (Op *op = f->body.front(), *next; op; op = next) {
      next = op->next();
      if (!op->isOneOf(OpKind::adamw, OpKind::sgd))
        continue;
      Builder b(f->body, op);
      b.loc = op->loc;
      auto mul = [&](Value *x, Value *y) { return b.value(OpKind::mul, {x, y}); };
      auto scaled = [&](Value *x, double s) { return mul(x, b.constant(s, Type::scalar(x->type.dtype))); };
      auto add = [&](Value *x, Value *y) { return b.value(OpKind::add, {x, y}); };
      auto correction = [&](const char *name) {
        const double beta = op->attrs.getFloat(name, name[4] == '1' ? 0.9 : 0.999);
        Value *&c = corrections[{op->operand(5), beta}];
        if (!c) {
          Value *t = b.value(OpKind::cast, {op->operand(5)}, attrs({{"dtype", std::string("f32")}}));
          Value *power = b.value(OpKind::exp, {scaled(add(t, b.constant(1)), beta > 0 ? std::log(beta) : -1e30)});
          c = b.value(OpKind::div, {b.constant(1), b.value(OpKind::sub, {b.constant(1), power})});
        }
        return c;
      };
      auto as = [&](Value *x, DType t) {
        return x->type.dtype == t ? x : b.value(OpKind::cast, {x}, attrs({{"dtype", nameOf(t).str()}}));
      };
      Value *p = op->operand(0);
      auto become = [&](llvm::ArrayRef<Value *> now) {  // the last entry is the low-precision copy, if there is one
        for (unsigned i = 0; i < op->numResults(); ++i)
          op->result(i)->replaceAllUsesWith(as(now[i], op->result(i)->type.dtype));
        op->erase();
        changed = true;
      };
      if (op->is(OpKind::sgd)) {
        Value *g = mul(op->operand(1), op->operand(3)), *m = nullptr;
        if (double decay = op->attrs.getFloat("weight_decay", 0); decay > 0)
          g = add(g, scaled(p, decay));
        if (op->numOperands() > 4) {
          const double momentum = op->attrs.getFloat("momentum");
          m = add(scaled(as(op->operand(4), p->type.dtype), momentum), g);
          g = op->attrs.getBool("nesterov") ? add(g, scaled(m, momentum)) : m;
        }
        Value *pNew = b.value(OpKind::sub, {p, mul(g, op->operand(2))});
        become(m ? llvm::SmallVector<Value *, 3>{pNew, m, pNew} : llvm::SmallVector<Value *, 3>{pNew, pNew});
        continue;
      }
      Value *m1 = as(op->operand(2), p->type.dtype), *m2 = as(op->operand(3), p->type.dtype);
      const double beta1 = op->attrs.getFloat("beta1", 0.9), beta2 = op->attrs.getFloat("beta2", 0.999);
      Value *c1 = correction("beta1"), *c2 = correction("beta2");
      Value *g = mul(op->operand(1), op->operand(6));
      Value *m1New = add(scaled(m1, beta1), scaled(g, 1 - beta1));
      Value *m2New = add(scaled(m2, beta2), scaled(mul(g, g), 1 - beta2));
      Value *root = b.value(OpKind::sqrt, {mul(m2New, c2)});
      Value *step = b.value(OpKind::div, {mul(m1New, c1), add(root, b.constant(op->attrs.getFloat("eps", 1e-8)))});
      if (double decay = op->attrs.getFloat("weight_decay", 0); decay > 0)
        step = add(step, scaled(p, decay));
      Value *pNew = b.value(OpKind::sub, {p, mul(step, op->operand(4))});
      become({pNew, m1New, m2New, pNew});
    }
  }
  return changed;
}

}  // namespace gptc
