// The interpreter: runs the ops in order by their reference rules, in float64. Results of dtype f32 keep their float64
// values; results of narrow dtypes are rounded, because that rounding is part of an op's meaning.
#include "ir/element.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "ir/random.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc {

namespace {

bool sameData(const Type &a, const Type &b) { return a.dtype == b.dtype && a.sameShape(b); }

/// One value on all ranks, by rank.
using OfRanks = std::vector<Tensor>;

/// Runs one block on all ranks of a mesh, op by op. Frees each tensor after its last use.
class Run {
public:
  /// `observe` may be null; it and `states` must outlive the run.
  Run(const Block &block, const Mesh &mesh, llvm::MutableArrayRef<StateMap *> states, const InterpretObserver *observe)
      : block(block), mesh(mesh), states(states), observe(observe) {}

  void bind(const Value *v, OfRanks tensors) {
    for (const Tensor &t : tensors)
      GPTC_CHECK(int64_t(t.data.size()) == v->type.elements() && sameData(t.type, v->type),
                 "a tensor {} with {} elements for a value {}", t.type.str(), t.data.size(), v->type.str());
    if (!v->unused())
      live[v] = {std::move(tensors), v->users().size()};
  }

  /// Runs the block and returns the operands of its `return` or `yield`.
  std::vector<OfRanks> run() {
    for (const Op &op : block) {
      std::vector<const OfRanks *> operands;
      for (const Value *v : op.operands()) {
        auto it = live.find(v);
        GPTC_CHECK(it != live.end(), "a value is used that is not there: {}", print(op));
        operands.push_back(&it->second.tensors);
      }
      if (op.isOneOf(OpKind::ret, OpKind::yield)) {
        std::vector<OfRanks> results;
        for (const OfRanks *o : operands)
          results.push_back(*o);
        return results;
      }
      std::vector<OfRanks> results = execute(op, operands);
      GPTC_CHECK(results.size() == op.numResults(), "{} results of {}", results.size(), print(op));
      if (observe && *observe) {
        std::vector<Tensor> first;  // moved, not copied: tests let the observer change them
        for (OfRanks &r : results)
          first.push_back(std::move(r[0]));
        (*observe)(op, first);
        for (size_t i = 0; i < results.size(); ++i)
          results[i][0] = std::move(first[i]);
      }
      for (unsigned i = 0; i < op.numResults(); ++i)
        bind(op.result(i), std::move(results[i]));
      for (const Value *v : op.operands())
        if (auto it = live.find(v); --it->second.usesLeft == 0)
          live.erase(it);
    }
    GPTC_UNREACHABLE("a block without an end");
  }

  /// Runs the body of a fused op.
  static std::vector<OfRanks> fused(const Op &op, const Mesh &mesh, llvm::ArrayRef<const OfRanks *> operands,
                                    const InterpretObserver *observe) {
    GPTC_CHECK(op.body && operands.size() == op.body->args.size(), "{} operands for {}", operands.size(), print(op));
    Run inner(*op.body, mesh, {}, observe);
    for (size_t i = 0; i < operands.size(); ++i)
      inner.bind(op.body->args[i].get(), *operands[i]);
    return inner.run();
  }

private:
  struct Live {
    OfRanks tensors;
    size_t usesLeft = 0;
  };
  const Block &block;
  const Mesh mesh;
  llvm::MutableArrayRef<StateMap *> states;  // by rank; none in a fused body
  const InterpretObserver *observe;
  llvm::DenseMap<const Value *, Live> live;

  std::vector<OfRanks> execute(const Op &op, llvm::ArrayRef<const OfRanks *> operands) {
    const size_t ranks = mesh.ranks();
    if (op.is(OpKind::fused))
      return fused(op, mesh, operands, observe);
    std::vector<OfRanks> results(op.numResults());
    if (op.is(OpKind::read) || op.is(OpKind::write)) {
      for (size_t r = 0; r < ranks; ++r) {
        StateMap &state = *states[r];
        if (op.is(OpKind::write)) {
          state[op.state] = (*operands[0])[r];
          continue;
        }
        auto it = state.find(op.state);
        GPTC_CHECK(it != state.end(), "state @{} has no content", op.state);
        results[0].push_back(it->second);
      }
      return results;
    }
    // An op runs on each rank by itself; a collective runs once per group and returns its results rank by rank.
    const bool together = op.def().fusion == FusionKind::collective;
    for (OfRanks &r : results)
      r.resize(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      std::vector<int64_t> group = {int64_t(r)};
      if (together) {
        group = mesh.group(op.attrs.getString("axis"), r);
        GPTC_CHECK(int64_t(group.size()) == op.attrs.getInt("ranks"), "{} ranks of the mesh for {}", group.size(),
                   print(op));
        if (group[0] != int64_t(r))
          continue;
      }
      std::vector<const Tensor *> in;
      for (int64_t member : group)
        for (const OfRanks *o : operands)
          in.push_back(&(*o)[member]);
      std::vector<Tensor> out = op.def().reference(op, std::span(in.data(), in.size()));
      GPTC_CHECK(out.size() == group.size() * op.numResults(), "{} results of {}", out.size(), print(op));
      for (size_t m = 0; m < group.size(); ++m)
        for (unsigned i = 0; i < op.numResults(); ++i)
          results[i][group[m]] = stored(std::move(out[m * op.numResults() + i]), op.result(i)->type);
    }
    return results;
  }

  /// Rounds a result if its dtype is narrow.
  static Tensor stored(Tensor t, const Type &type) {
    t.type.sharding = type.sharding;  // reference rules do not set it
    if (DType d = t.type.dtype; isNarrow(d))
      for (double &v : t.data)
        v = roundTo(d, v);
    return t;
  }
};

}  // namespace

std::vector<Tensor> interpret(const Function &f, std::span<const Tensor> args, StateMap &state,
                              const InterpretObserver &observe) {
  StateMap *states[] = {&state};
  Run run(f.body, {}, states, &observe);
  GPTC_CHECK(args.size() == f.body.args.size(), "@{} takes {} arguments, not {}", f.name, f.body.args.size(),
             args.size());
  for (size_t i = 0; i < args.size(); ++i)
    run.bind(f.body.args[i].get(), {args[i]});
  std::vector<Tensor> results;
  for (OfRanks &r : run.run())
    results.push_back(std::move(r[0]));
  return results;
}

std::vector<std::vector<Tensor>> interpretRanks(const Function &f, std::span<const std::vector<Tensor>> args,
                                                std::span<StateMap> states) {
  const Mesh mesh = Mesh::of(*f.module);
  const size_t ranks = mesh.ranks();
  GPTC_CHECK(args.size() == ranks && states.size() == ranks, "{} arguments and {} states for {} ranks", args.size(),
             states.size(), ranks);
  std::vector<StateMap *> pointers;
  for (StateMap &s : states)
    pointers.push_back(&s);
  Run run(f.body, mesh, pointers, nullptr);
  for (size_t i = 0; i < f.body.args.size(); ++i) {
    OfRanks tensors;
    for (const std::vector<Tensor> &a : args)
      tensors.push_back(a.at(i));
    run.bind(f.body.args[i].get(), std::move(tensors));
  }
  std::vector<std::vector<Tensor>> results(ranks);
  for (OfRanks &value : run.run())
    for (size_t r = 0; r < ranks; ++r)
      results[r].push_back(std::move(value[r]));
  return results;
}

std::vector<Tensor> interpretFused(const Op &fused, std::span<const Tensor> operands) {
  std::vector<OfRanks> held;
  for (const Tensor &t : operands)
    held.push_back({t});
  std::vector<const OfRanks *> pointers;
  for (const OfRanks &h : held)
    pointers.push_back(&h);
  std::vector<Tensor> results;
  for (OfRanks &r : Run::fused(fused, {}, pointers, nullptr))
    results.push_back(std::move(r[0]));
  return results;
}

Tensor initialValue(const State &s, uint64_t seed) {
  Tensor t(s.type);
  const Initial init = fact<&InitialFacts::init>(s);
  if (init == Initial::zeros)
    return t;
  if (init != Initial::normal) {
    double value = init == Initial::ones ? 1.0 : fact<&InitialFacts::value>(s);
    std::fill(t.data.begin(), t.data.end(), roundTo(s.type.dtype, value));
    return t;
  }
  GPTC_CHECK(isFloat(s.type.dtype), "state @{} : {} cannot be initialised as 'normal'", s.name, s.type.str());
  RandomKey key = randomKey(seed, 0, uint32_t(fact<&InitialFacts::stream>(s)), 0);
  double deviation = fact<&InitialFacts::std>(s);
  for (size_t i = 0; i < t.data.size(); ++i)
    t.data[i] = roundTo(s.type.dtype, deviation * randomNormal(key, i));
  return t;
}

}  // namespace gptc
