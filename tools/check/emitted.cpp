#include "tools/check/emitted.h"

#include "ir/facts.h"
#include "tools/check/guarded_memory.h"

#include "codegen/codegen.h"
#include "ir/access.h"
#include "ir/element.h"
#include "ir/kernel/bound.h"
#include "passes/analysis/liveness.h"
#include "runtime/device/cpu_executor.h"
#include "support/diagnostics.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace gptc {

namespace {

using Bytes = std::vector<std::byte>;

// ---- tensors in memory ----------------------------------------------------------------------------------------------

/// A tensor's memory as a value of type `t`. Padding is NaN, which must not reach a logical element.
Bytes bytesOf(const Tensor &x, const Type &t) {
  Bytes bytes(t.bytes(), std::byte(0xff));
  std::vector<int64_t> at = elementPlaces(t);
  GPTC_CHECK(at.size() == x.data.size(), "{} elements for {}", x.data.size(), t.str());
  for (size_t i = 0; i < at.size(); ++i)
    storeElement(t.dtype, bytes.data(), at[i], x.data[i]);
  return bytes;
}

Tensor tensorOf(const std::byte *bytes, const Type &t) {
  Tensor x(t);
  std::vector<int64_t> at = elementPlaces(t);
  for (size_t i = 0; i < at.size(); ++i)
    x.data[i] = loadElement(t.dtype, bytes, at[i]);
  return x;
}

// ---- a planned function as a list of kernels ------------------------------------------------------------------------

/// Contents of values in separate memory, independent of the plan; T is the content of one value.
template <typename T> struct Contents {
  llvm::StringMap<T> states;
  llvm::DenseMap<const Value *, T> values;  // by root: reshapes are views
};

/// Runs a function on contents; `kernel(op, operands, results)` computes the results of a group.
template <typename T, typename F>
std::vector<T> runOnContents(const Function &f, std::vector<T> args, Contents<T> &c, F kernel) {
  c.values.clear();
  for (size_t i = 0; i < args.size(); ++i)
    c.values[f.body.args[i].get()] = std::move(args[i]);
  for (const Op &op : f.body) {
    std::vector<T> results;
    switch (op.kind) {
    case OpKind::read:
      c.values[op.result()] = c.states[op.state];
      break;
    case OpKind::write:
      c.states[op.state] = c.values[rootOf(op.operand(0))];
      break;
    case OpKind::reshape:
    case OpKind::done:
      break;
    case OpKind::ret:
      for (const Value *v : op.operands())
        results.push_back(c.values[rootOf(v)]);
      return results;
    default: {
      std::vector<const T *> operands;
      for (const Value *v : op.operands())
        operands.push_back(&c.values.find(rootOf(v))->second);
      kernel(op, operands, results);
      for (unsigned i = 0; i < op.numResults(); ++i)
        c.values[op.result(i)] = std::move(results[i]);
    }
    }
  }
  GPTC_UNREACHABLE("@{} has no end", f.name);
}

// ---- the runs of one call -------------------------------------------------------------------------------------------

/// Collects the compiled kernel of each op.
struct Recorder : KernelObserver {
  llvm::DenseMap<const Op *, const CpuKernel *> kernels;
  void ran(const BoundKernel &k, int64_t, int64_t) override { kernels[k.op] = static_cast<const CpuKernel *>(&k); }
};

using Bounds = std::vector<kir::Bounded>;

Bounds boundsOf(const Tensor &x, const Type &t) {
  constexpr double poison = std::numeric_limits<double>::quiet_NaN();
  Bounds b(t.paddedElements(), {isFloat(t.dtype) ? poison : -1, 0});
  std::vector<int64_t> at = elementPlaces(t);
  for (size_t i = 0; i < at.size(); ++i)
    b[at[i]].value = x.data[i];
  return b;
}

/// The bounds of a packed state, given those of the state that it packs.
Bounds packedBounds(const State &packed, const State &of, Contents<Bounds> &contents) {
  const Bounds &b = contents.states[of.name];
  Tensor values(of.type), errors(of.type);
  const std::vector<int64_t> at = elementPlaces(of.type);
  for (size_t i = 0; i < at.size(); ++i)
    values.data[i] = b[at[i]].value, errors.data[i] = b[at[i]].error;
  // Panels of a parameter in files alone may be narrower: then they differ from it by rounding.
  const Tensor exact = packedTensor(packed, values, false);
  values = packedTensor(packed, values), errors = packedTensor(packed, errors, false);
  Bounds panels;
  for (size_t i = 0; i < values.data.size(); ++i)
    panels.push_back({values.data[i], errors.data[i] + std::fabs(exact.data[i] - values.data[i])});
  return panels;
}

/// The error bounds, in place of the values.
Tensor errorsOf(const Bounds &b, const Type &t) {
  Tensor x(t);
  std::vector<int64_t> at = elementPlaces(t);
  for (size_t i = 0; i < at.size(); ++i)
    x.data[i] = b[at[i]].error;
  return x;
}

/// Error bounds of a kernel's results.
std::vector<Bounds> boundGroup(const Op &op, std::vector<Bounds> buffers, const Target &target) {
  Schedule schedule;
  GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(op), schedule), "no schedule: {}", print(op));
  LoweredGroup g = lowerGroup(op, schedule, target);
  while (buffers.size() < g.kernel.params.size()) {
    const size_t result = buffers.size() - op.numOperands();
    if (auto j = result < op.numResults() ? inPlaceOperand(op, unsigned(result)) : std::nullopt)
      buffers.push_back(Bounds(buffers[*j]));
    else
      buffers.emplace_back(g.kernel.params[buffers.size()]->size,
                           kir::Bounded{0, std::numeric_limits<double>::infinity()});
  }
  const std::vector<int64_t> streams = streamsOf(op);
  for (size_t i = 0; i < streams.size(); ++i)
    buffers[buffers.size() - streams.size() + i][0] = {double(streams[i]), 0};
  kir::boundErrors(g.kernel, buffers);
  auto first = std::make_move_iterator(buffers.begin() + op.numOperands());
  return {first, first + op.numResults()};
}

/// The largest finite magnitude in `t`, at least `soFar`.
double largestOf(const Tensor &t, double soFar) {
  for (double v : t.data)
    if (std::isfinite(v))
      soFar = std::max(soFar, std::fabs(v));
  return soFar;
}

/// The reference's own error. It computes in float64, but its formula may cancel where the kernel's does not (1 + tanh
/// of a large negative number): a few thousand ulps of its largest value.
double referenceError(double largest) { return 0x1p-40 * largest; }

/// The first element of `is` that is farther than factor * its limit + slack from `want`, or differs in being NaN or
/// infinite.
std::string outside(const Tensor &want, const Tensor &is, const Tensor &limit, double factor, double slack,
                    int64_t &bounded, int64_t &unbounded) {
  for (size_t i = 0; i < want.data.size(); ++i) {
    const double a = want.data[i], b = is.data[i], e = limit.data[i] * factor + slack;
    ++(std::isfinite(e) ? bounded : unbounded);
    if (!std::isfinite(e) || a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= e)
      continue;
    return fmt::format("element {} is {} instead of {}, further off than its bound of {}", i, b, a, e);
  }
  return "";
}

class Runner {
public:
  Runner(const Module &m, const Module &plain, const Module *again, const Inputs &in, ThreadPool &pool,
         const Target &target, const std::string &cacheDir, BoundStats &stats)
      : m(m), plain(plain), again(again), in(in), target(target), stats(stats),
        arena(fact<&MemoryFacts::arenaBytes>(m)), executor(m, target, target, arena, pool, cacheDir) {
    executor.observer = &recorder;
    std::memset(arena.data(), 0xff, arena.bytes());
    StateMap initial = statesFor(m, in.seed);
    for (const auto &s : m.states) {
      Bytes bytes = bytesOf(initial[s->name], s->type);
      if (isInFiles(*s))
        inFiles[s->name] = std::move(bytes);
      else
        std::memcpy(executor.state(s->name), bytes.data(), bytes.size());
    }
  }

  std::string run() {
    for (size_t i = 0; i < in.calls.size(); ++i)
      if (std::string what = runCall(in.calls[i]); !what.empty())
        return fmt::format("call {} of @{}: {}", i, in.calls[i].function, what);
    stats.kernels += int64_t(recorder.kernels.size());
    return "";
  }

private:
  const Module &m, &plain;
  const Module *again;
  const Inputs &in;
  const Target &target;
  BoundStats &stats;
  Arena arena;
  CpuExecutor executor;
  Recorder recorder;
  std::string fault;
  std::map<std::string, Bytes> inFiles;  // states without memory, which no kernel reads

  const std::byte *memoryOf(const State &s) {
    const auto found = inFiles.find(s.name);
    return found == inFiles.end() ? static_cast<const std::byte *>(executor.state(s.name)) : found->second.data();
  }

  std::string runCall(const Call &call) {
    const Function &f = *m.function(call.function);
    Contents<Bytes> contents;
    StateMap before;
    for (const auto &s : m.states) {
      const std::byte *at = memoryOf(*s);
      contents.states[s->name] = Bytes(at, at + s->type.bytes());
      before[s->name] = tensorOf(at, s->type);
    }
    std::vector<Bytes> args;
    for (size_t i = 0; i < call.args.size(); ++i)
      args.push_back(bytesOf(call.args[i], f.body.args[i]->type));

    Outcome shared = runInArena(call.function, args);
    if (!arena.intact())
      return "a kernel writes past the end of the arena";
    Outcome apart = runGuarded(f, args, contents);
    if (!fault.empty())
      return fault;
    if (std::string d = differenceOf(apart, shared); !d.empty())
      return "in the arena, where tensors share memory: " + d;

    double largest = 0;
    const Outcome expected = interpretCall(plain, call, before, largest), bounds = boundErrors(f, call, before);
    if (std::string d = compare(expected, shared, bounds, wide, largest, "machine code"); !d.empty() || !again)
      return d;
    // Both compute the same in f64, each off by about 2^-29 of the bound; sums in another order by a few times that.
    return compare(expected, interpretCall(*again, call, before, largest), bounds, holdsNarrow(m) ? 2 : 0x1p-24,
                   largest, "another order of passes");
  }

  // The reference rounds too: in f64, with 2^-29 of f32's error; and to 16 bits like the kernels, each within the bound
  // but possibly in opposite directions.
  const double wide = holdsNarrow(m) ? 2 : 1 + 0x1p-20;

  Outcome runInArena(const std::string &function, llvm::ArrayRef<Bytes> args) {
    std::vector<const void *> pointers;
    for (const Bytes &b : args)
      pointers.push_back(b.data());
    executor.run(function, pointers);
    Outcome out;
    out.results.emplace_back();
    const Op &ret = *m.function(function)->body.back();
    for (unsigned i = 0; i < ret.numOperands(); ++i)
      out.results[0].push_back(
          tensorOf(static_cast<const std::byte *>(executor.result(function, i)), ret.operand(i)->type));
    for (const auto &s : m.states)
      out.states[s->name] = tensorOf(memoryOf(*s), s->type);
    return out;
  }

  /// Runs one kernel on guarded memory.
  void runKernel(const Op &op, llvm::ArrayRef<const Bytes *> operands, std::vector<Bytes> &results) {
    thread_local GuardedMemory memory;
    memory.clear();
    // Most overruns are at the end; every fourth module checks the beginning instead.
    const auto edge = in.seed % 4 == 1 ? GuardedMemory::begin : GuardedMemory::end;
    std::vector<void *> params;
    auto take = [&](size_t bytes) { return static_cast<std::byte *>(params.emplace_back(memory.take(bytes, edge))); };
    for (const Bytes *b : operands)
      std::memcpy(take(b->size()), b->data(), b->size());
    std::vector<std::byte *> made;
    for (unsigned i = 0; i < op.numResults(); ++i) {
      made.push_back(take(op.result(i)->type.bytes()));
      if (auto j = inPlaceOperand(op, i))  // copying the operand there emulates shared memory
        std::memcpy(made[i], operands[*j]->data(), operands[*j]->size());
    }
    for (int64_t bytes : fact<&GroupFacts::ws>(op))
      take(bytes);
    for (int64_t stream : streamsOf(op))
      std::memcpy(take(sizeof stream), &stream, sizeof stream);
    if (fault.empty())
      fault = faultsOf(op, operands, params, memory);
    for (unsigned i = 0; i < op.numResults(); ++i)
      results.emplace_back(made[i], made[i] + op.result(i)->type.bytes());
    if (fault.empty())
      fault = compareKernel(op, operands, results);
  }

  std::string faultsOf(const Op &op, llvm::ArrayRef<const Bytes *> operands, const std::vector<void *> &params,
                       const GuardedMemory &memory) {
    auto found = recorder.kernels.find(&op);
    GPTC_CHECK(found != recorder.kernels.end(), "a group that did not run: {}", print(op));
    const CpuKernel &k = *found->second;
    auto what = faultOf([&] {
      for (const CompiledPhase &phase : k.code.phases)
        phase.run(params.data(), 0, phase.tasks);
    });
    if (what)
      return fmt::format("kernel {} {}, outside of its tensors\n{}", k.name, *what, print(op));
    if (!memory.intact())
      return fmt::format("kernel {} writes outside of its tensors\n{}", k.name, print(op));
    for (size_t i = 0; i < operands.size(); ++i)
      if (std::memcmp(params[i], operands[i]->data(), operands[i]->size()) != 0)
        return fmt::format("kernel {} changes its operand {}\n{}", k.name, i, print(op));
    return "";
  }

  /// Compares a kernel's results with its group's meaning on the values that it received.
  std::string compareKernel(const Op &op, llvm::ArrayRef<const Bytes *> operands, llvm::ArrayRef<Bytes> results) {
    std::vector<Tensor> tensors;
    std::vector<Bounds> buffers;
    for (unsigned i = 0; i < op.numOperands(); ++i) {
      tensors.push_back(tensorOf(operands[i]->data(), op.operand(i)->type));
      buffers.push_back(boundsOf(tensors.back(), op.operand(i)->type));
    }
    std::vector<Tensor> expected = interpretFused(op, tensors);
    double largest = 0;
    for (const auto *all : {&tensors, &expected})
      for (const Tensor &t : *all)
        if (isFloat(t.type.dtype))
          largest = largestOf(t, largest);
    std::vector<Bounds> bounds = boundGroup(op, std::move(buffers), target);
    for (unsigned i = 0; i < op.numResults(); ++i) {
      const Type &t = op.result(i)->type;
      if (std::string what = outside(expected[i], tensorOf(results[i].data(), t), errorsOf(bounds[i], t), wide,
                                     referenceError(largest), stats.bounded, stats.unbounded);
          !what.empty())
        return fmt::format("result {} of a kernel: {}\n{}", i, what, print(op));
    }
    return "";
  }

  /// If `fault` is set, the outcome is incomplete.
  Outcome runGuarded(const Function &f, llvm::ArrayRef<Bytes> args, Contents<Bytes> &contents) {
    std::vector<Bytes> results = runOnContents(f, args.vec(), contents,
                                               [&](const Op &op, llvm::ArrayRef<const Bytes *> operands,
                                                   std::vector<Bytes> &made) { runKernel(op, operands, made); });
    Outcome out;
    out.results.emplace_back();
    for (unsigned i = 0; i < results.size(); ++i)
      out.results[0].push_back(tensorOf(results[i].data(), f.body.back()->operand(i)->type));
    for (const auto &s : m.states)
      out.states[s->name] = tensorOf(contents.states[s->name].data(), s->type);
    return out;
  }

  static Outcome interpretCall(const Module &module, const Call &call, const StateMap &before, double &largest) {
    Outcome out;
    for (const auto &s : module.states) {
      auto found = before.find(s->name);
      GPTC_CHECK(found != before.end(), "state @{} is gone", s->name);
      out.states[s->name] = Tensor(s->type, found->second.data);
    }
    out.results.push_back(
        interpret(*module.function(call.function), call.args, out.states, [&](const Op &, llvm::ArrayRef<Tensor> made) {
          for (const Tensor &t : made)
            if (isFloat(t.type.dtype))
              largest = largestOf(t, largest);
        }));
    return out;
  }

  Outcome boundErrors(const Function &f, const Call &call, const StateMap &before) {
    Contents<Bounds> contents;
    for (const auto &s : m.states)
      contents.states[s->name] = boundsOf(before.find(s->name)->second, s->type);
    // Low copies stand for their parameters, from which they differ by rounding.
    for (const auto &s : m.states) {
      if (kindOf(*s) != StateKind::low)
        continue;
      const Tensor &whole = before.find(fact<&StateFacts::of>(*s))->second;
      Bounds &b = contents.states[s->name];
      std::vector<int64_t> at = elementPlaces(s->type);
      for (size_t i = 0; i < at.size(); ++i)
        b[at[i]] = {whole.data[i], std::fabs(whole.data[i] - b[at[i]].value)};
    }
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::packed)
        contents.states[s->name] = packedBounds(*s, *m.state(fact<&StateFacts::of>(*s)), contents);
    std::vector<Bounds> args;
    for (size_t i = 0; i < call.args.size(); ++i)
      args.push_back(boundsOf(call.args[i], f.body.args[i]->type));
    std::vector<Bounds> results =
        runOnContents(f, std::move(args), contents,
                      [&](const Op &op, llvm::ArrayRef<const Bounds *> operands, std::vector<Bounds> &made) {
                        std::vector<Bounds> buffers;
                        for (const Bounds *b : operands)
                          buffers.push_back(*b);
                        made = boundGroup(op, std::move(buffers), target);
                      });
    Outcome out;
    out.results.emplace_back();
    for (unsigned i = 0; i < results.size(); ++i)
      out.results[0].push_back(errorsOf(results[i], f.body.back()->operand(i)->type));
    for (const auto &s : m.states)
      out.states[s->name] = errorsOf(contents.states[s->name], s->type);
    return out;
  }

  std::string compare(const Outcome &want, const Outcome &is, const Outcome &bounds, double factor, double largest,
                      const char *what) {
    std::vector<const Tensor *> limits;
    std::string found;
    std::string missing =
        forEachPair(want, bounds, [&](const std::string &, const Tensor &, const Tensor &b) { limits.push_back(&b); });
    size_t next = 0;
    if (missing.empty())
      missing = forEachPair(want, is, [&](const std::string &name, const Tensor &w, const Tensor &x) {
        std::string d =
            outside(w, x, *limits[next++], factor, referenceError(largest), stats.wholeBounded, stats.wholeUnbounded);
        if (!d.empty() && found.empty())
          found = fmt::format("{}, {}: {}", what, name, d);
      });
    return missing.empty() ? found : missing;
  }
};

}  // namespace

BoundStats &BoundStats::operator+=(const BoundStats &o) {
  kernels += o.kernels;
  bounded += o.bounded;
  unbounded += o.unbounded;
  wholeBounded += o.wholeBounded;
  wholeUnbounded += o.wholeUnbounded;
  return *this;
}

std::string emittedDifference(const Module &planned, const Module &plain, const Module *again, const Inputs &in,
                              ThreadPool &pool, const Target &target, const std::string &cacheDir, BoundStats &stats) {
  return Runner(planned, plain, again, in, pool, target, cacheDir, stats).run();
}

}  // namespace gptc
