#include "tools/estimate/serving.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace gptc {

namespace {

/// Products of at most so many rows read their second factor in place (codegen/recipes/matmul/few_rows.cpp).
constexpr int64_t rowsInPlace = 4;

/// Tokens `begin` to `end` of each of `sequences` sequences, which hold those before them.
struct Places {
  int64_t sequences = 1, begin = 0, end = 1;
  int64_t tokens() const { return sequences * (end - begin); }
  /// Pairs of a token and one that it sees. `window`: how many it sees at most; 0: all up to itself.
  double pairs(int64_t window) const {
    auto upTo = [&](int64_t n) {  // of the first n tokens of a sequence
      const double whole = double(window ? std::min(window, n) : n);
      return whole * (whole + 1) / 2 + (double(n) - whole) * double(window);
    };
    return double(sequences) * (upTo(end) - upTo(begin));
  }
  /// Tokens of the cache that are read.
  double held(int64_t window) const {
    return double(sequences) * double(window ? std::min(end, end - begin + window - 1) : end);
  }
};

/// A kernel of a call.
struct Work {
  double arithmetic = 0;  // seconds, without attention to the cache
  double bytes = 0;       // without those of the cache
  // Of attention to the cache, 0 if there is none:
  double perPair = 0;                 // seconds of arithmetic for each of Places::pairs
  double perHeld = 0, perStored = 0;  // bytes for each token of the cache that is read, and for each new one
  int64_t window = 0;
};

const Op *attentionOf(const Op &kernel) {
  if (kernel.is(OpKind::fused))
    for (const Op &op : *kernel.body)
      if (op.is(OpKind::attention_cached))
        return &op;
  return nullptr;
}

/// Seconds in which a kernel's products copy their factors into panels, which stay in the caches of cores.
double secondsOfPanels(const Op &kernel, const MachineRates &rates) {
  double bytes = 0;
  if (kernel.is(OpKind::fused) && rates.packs)
    for (const Op &op : *kernel.body)
      if (op.is(OpKind::matmul) && op.result()->type.elements() > rowsInPlace * op.result()->type.dim(-1))
        for (const Value *v : op.operands())
          bytes += v->def && v->def->is(OpKind::unpack) ? 0 : 2 * double(v->type.bytes());
  return bytes / std::max(rates.cache, rates.dram);
}

/// The state that a kernel's operand is, if it is a cache.
const State *cacheOf(const Module &m, const Op &kernel, unsigned operand) {
  const Op *from = kernel.operand(operand)->def;
  const State *s = from && from->is(OpKind::read) ? m.state(from->state) : nullptr;
  return s && kindOf(*s) == StateKind::cache ? s : nullptr;
}

/// Bytes of a cache for each token that it holds.
double bytesPerToken(const State &cache) {
  const Type &t = cache.type;
  GPTC_CHECK(t.rank() == 4, "a cache without slots: {}", t.str());
  return double(t.bytes()) / double(t.padded(0) * t.padded(2));
}

// 1. Arithmetic: cost.h with bytes that cost nothing, and the copies into panels.
// 2. Bytes: cost.h counts caches whole, as operands and as results in their memory. Take them off.
// 3. Attention: cost.h counts as many pairs as there are tokens times the cache's. Take these off, too.
Work workOf(const Module &m, const Op &kernel, const MachineRates &rates) {
  MachineRates arithmetic = rates;
  arithmetic.dram = arithmetic.cache = std::numeric_limits<double>::infinity();
  arithmetic.host = arithmetic.launch = 0;
  arithmetic.packs = false;
  const KernelCost cost = costOf(kernel, arithmetic);
  Work w{.arithmetic = cost.seconds + secondsOfPanels(kernel, rates), .bytes = cost.bytes};
  const Op *attention = attentionOf(kernel);
  if (!attention)
    return w;
  for (unsigned i = 0; i < kernel.numOperands(); ++i)
    if (const State *cache = cacheOf(m, kernel, i)) {
      w.bytes -= double(cache->type.bytes());
      w.perHeld += bytesPerToken(*cache);
    }
  for (unsigned i = 0; i < kernel.numResults(); ++i)
    if (const std::optional<unsigned> place = inPlaceOperand(kernel, i))
      if (const State *cache = cacheOf(m, kernel, *place)) {
        w.bytes -= double(cache->type.bytes());
        w.perStored += bytesPerToken(*cache);
      }
  w.window = attention->attrs.getInt("window");
  const int64_t capacity = attention->operand(1)->type.dim(-2);
  const double counted =
      double(attention->operand(0)->type.dim(1)) * double(w.window ? std::min(w.window, capacity) : capacity);
  const double seconds = attention->def().cost(*attention).flops / (rates.attention * contractionPeak(kernel, rates));
  w.perPair = seconds / counted;
  w.arithmetic = std::max(0.0, w.arithmetic - seconds);
  return w;
}

/// A function @step_N.
class Step {
public:
  Step(const Module &m, const Function &f, const ServingMachine &machine)
      : tokens(f.body.args[0]->type.dim(1)), rates(machine.rates(double(tokens))), slowdown(machine.slowdown) {
    for (const Op &op : f.body)
      if (const PlannedStep::Sent sent = sentBy(op); sent.messages > 0)
        links += sent.seconds(machine.link);
      else if (costOf(op, rates).bytes > 0)
        kernels.push_back(workOf(m, op, rates));
  }

  CallTime time(const Places &places) const {
    double whole = 0;
    for (const Work &w : kernels)
      whole += bytesOf(w, places);
    const bool fits = whole <= rates.cacheBytes;
    const double bandwidth = fits ? std::max(rates.cache, rates.dram) : rates.dram;
    CallTime t{.links = links};
    for (const Work &w : kernels) {
      const double moves = bytesOf(w, places) / bandwidth, computes = w.arithmetic + w.perPair * places.pairs(w.window);
      (computes > moves ? t.arithmetic : fits ? t.cache : t.memory) += slowdown * std::max(computes, moves);
      t.starts += slowdown * rates.launch;
    }
    return t;
  }

  const int64_t tokens;

private:
  static double bytesOf(const Work &w, const Places &places) {
    return w.bytes + w.perHeld * places.held(w.window) + w.perStored * double(places.tokens());
  }
  const MachineRates rates;
  const double slowdown;
  std::vector<Work> kernels;
  double links = 0;  // seconds of collectives
};

}  // namespace

CallTime &CallTime::operator+=(const CallTime &o) {
  memory += o.memory;
  cache += o.cache;
  arithmetic += o.arithmetic;
  starts += o.starts;
  links += o.links;
  return *this;
}

const char *CallTime::boundBy() const {
  const double most = std::max({memory, cache, arithmetic, starts, links});
  return most == memory       ? "memory"
         : most == arithmetic ? "arithmetic"
         : most == cache      ? "cache"
         : most == starts     ? "starts"
                              : "links";
}

// 1. Memory: the arena; caches; what other states are in it.
// 2. Decoding: a token of every slot in one call.
// 3. A prompt: pieces of as many tokens as a call takes (runtime/serve/generator.h). The last one gives the first
// token.
ServingForecast servingForecast(const Module &serving, const ServingMachine &machine, const ServingLoad &load) {
  ServingForecast f{.arena = fact<&MemoryFacts::arenaBytes>(serving), .promptTokens = load.promptTokens};
  for (const auto &s : serving.states) {
    if (livesOnHost(*s) || isInFiles(*s))
      continue;
    if (kindOf(*s) == StateKind::cache)
      f.slots = s->type.dim(0);
    (kindOf(*s) == StateKind::cache ? f.cache : f.weights) += s->type.bytes();
  }
  std::vector<Step> steps;
  for (const auto &function : serving.functions)
    if (llvm::StringRef(function->name).starts_with("step_"))
      steps.emplace_back(serving, *function, machine);
  GPTC_CHECK(!steps.empty(), "a module without steps");
  auto stepOf = [&](int64_t tokens) -> const Step & {
    const Step *best = nullptr;
    for (const Step &s : steps)
      if (s.tokens >= tokens && (!best || s.tokens < best->tokens))
        best = &s;
    GPTC_CHECK(best, "no step of {} tokens", tokens);
    return *best;
  };
  const int64_t seen = load.promptTokens + load.newTokens / 2;
  f.decode = stepOf(f.slots).time({f.slots, seen - 1, seen});
  int64_t most = 0;
  for (const Step &s : steps)
    most = std::max(most, s.tokens);
  for (int64_t begin = 0; begin < load.promptTokens; begin += most) {
    const int64_t end = std::min(begin + most, load.promptTokens);
    f.prefill += stepOf(end - begin).time({1, begin, end});
  }
  return f;
}

}  // namespace gptc
