// The interpreter: every op by its reference rule, in float64, in order. A result in f32 stays as it is; one in bf16 or
// f16 is rounded, as that is what such a type is asked for.
#include "ir/diagnostics.h"
#include "ir/element.h"
#include "ir/opdef.h"
#include "ir/random.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc {

namespace {

bool sameData(const Type &a, const Type &b) { return a.dtype == b.dtype && a.sameShape(b); }

/// Runs one block. Tensors are freed after their last use: a training step has many.
class Run {
public:
  Run(const Block &block, StateMap *state, const InterpretObserver &observe)
      : block(block), state(state), observe(observe) {}

  void bind(const Value *v, Tensor t) {
    GPTC_CHECK(int64_t(t.data.size()) == v->type.elements() && sameData(t.type, v->type),
               "a tensor {} with {} elements for a value {}", t.type.str(), t.data.size(), v->type.str());
    if (!v->unused())
      live[v] = {std::move(t), v->users().size()};
  }

  std::vector<Tensor> run() {
    for (const Op &op : block) {
      std::vector<const Tensor *> operands;
      for (const Value *v : op.operands()) {
        auto it = live.find(v);
        GPTC_CHECK(it != live.end(), "a value is used that is not there: {}", print(op));
        operands.push_back(&it->second.tensor);
      }
      if (op.isOneOf(OpKind::ret, OpKind::yield))
        return copies(operands);
      std::vector<Tensor> results = execute(op, operands);
      GPTC_CHECK(results.size() == op.numResults(), "{} results of {}", results.size(), print(op));
      if (observe)
        observe(op, results);
      for (unsigned i = 0; i < op.numResults(); ++i)
        bind(op.result(i), std::move(results[i]));
      for (const Value *v : op.operands())
        if (auto it = live.find(v); --it->second.usesLeft == 0)
          live.erase(it);
    }
    GPTC_UNREACHABLE("a block without an end");
  }

  /// Runs the body of a fused op.
  static std::vector<Tensor> fused(const Op &op, llvm::ArrayRef<const Tensor *> operands,
                                   const InterpretObserver &observe) {
    GPTC_CHECK(op.body && operands.size() == op.body->args.size(), "{} operands for {}", operands.size(), print(op));
    Run inner(*op.body, nullptr, observe);
    for (size_t i = 0; i < operands.size(); ++i)
      inner.bind(op.body->args[i].get(), *operands[i]);
    return inner.run();
  }

private:
  struct Live {
    Tensor tensor;
    size_t usesLeft = 0;
  };
  const Block &block;
  StateMap *state;  // null in a fused body
  const InterpretObserver &observe;
  llvm::DenseMap<const Value *, Live> live;

  static std::vector<Tensor> copies(llvm::ArrayRef<const Tensor *> tensors) {
    std::vector<Tensor> r;
    for (const Tensor *t : tensors)
      r.push_back(*t);
    return r;
  }

  std::vector<Tensor> execute(const Op &op, llvm::ArrayRef<const Tensor *> operands) {
    if (op.is(OpKind::read)) {
      auto it = state->find(op.state);
      GPTC_CHECK(it != state->end(), "state @{} has no content", op.state);
      return {it->second};
    }
    if (op.is(OpKind::write)) {
      (*state)[op.state] = *operands[0];
      return {};
    }
    if (op.is(OpKind::fused))
      return fused(op, operands, observe);
    std::vector<Tensor> results = op.def().reference(op, std::span(operands.data(), operands.size()));
    for (unsigned i = 0; i < std::min<size_t>(results.size(), op.numResults()); ++i) {
      results[i].type.sharding = op.result(i)->type.sharding;  // not an op's business
      if (DType t = results[i].type.dtype; t == DType::bf16 || t == DType::f16)
        for (double &v : results[i].data)
          v = roundTo(t, v);
    }
    return results;
  }
};

}  // namespace

std::vector<Tensor> interpret(const Function &f, std::span<const Tensor> args, StateMap &state,
                              const InterpretObserver &observe) {
  GPTC_CHECK(args.size() == f.body.args.size(), "@{} takes {} arguments, not {}", f.name, f.body.args.size(),
             args.size());
  Run run(f.body, &state, observe);
  for (size_t i = 0; i < args.size(); ++i)
    run.bind(f.body.args[i].get(), args[i]);
  return run.run();
}

std::vector<Tensor> interpretFused(const Op &fused, std::span<const Tensor> operands) {
  std::vector<const Tensor *> pointers;
  for (const Tensor &t : operands)
    pointers.push_back(&t);
  return Run::fused(fused, pointers, nullptr);
}

Tensor initialValue(const State &s, uint64_t seed) {
  Tensor t(s.type);
  std::string init = s.attrs.getString("init", "zeros");
  if (init == "zeros")
    return t;
  if (init == "ones" || init == "const") {
    double value = init == "ones" ? 1.0 : s.attrs.getFloat("value");
    std::fill(t.data.begin(), t.data.end(), roundTo(s.type.dtype, value));
    return t;
  }
  GPTC_CHECK(init == "normal" && isFloat(s.type.dtype), "state @{} : {} cannot be initialised as '{}'", s.name,
             s.type.str(), init);
  RandomKey key = randomKey(seed, 0, uint32_t(s.attrs.getInt("stream")), 0);
  double deviation = s.attrs.getFloat("std", 1.0);
  for (size_t i = 0; i < t.data.size(); ++i)
    t.data[i] = roundTo(s.type.dtype, deviation * randomNormal(key, i));
  return t;
}

}  // namespace gptc
