// Rematerialisation: drops values of the forward part and recomputes them in the backward part, as far as a memory
// budget requires it. analysis/recompute.h describes the copies and why they give the same bits.
//
// Options: budget = none | full | auto | bytes ("8GiB"); without it the module attribute `remat`, else none.
//          available = bytes that this machine can give to the plan, for auto.
//   none   nothing is recomputed
//   full   of every layer only the input is kept
//   bytes  the planned arena is to be at most that large
//   auto   a budget of `available` if the plan is larger than that, else none
//
// Algorithm for a budget
//   1. The values that may be dropped form classes: the same result of the same group in all layers.
//   2. Classes are ordered greedily. The next class is the one that, dropped in all layers in addition to those before
//      it, lowers the peak by the most bytes per second of recompute. Classes that do not lower the peak wait, and are
//      left out if none of the rest lowers it. Peaks here are sums of live bytes; analysis/cost.h predicts the seconds.
//      Within a class earlier layers come first, as their values live longest.
//   3. So there is one sequence of values for all budgets. Bisection finds its shortest prefix with which the module,
//      planned by plan-memory, fits into the budget.
//   4. Classes that are not needed, because later ones free more, are removed again, the least efficient ones first.
//   5. If the logits are large, steps 1 to 4 are tried with the classifier whole and in 2, 4, 8 chunks
//      (chunk_classifier.cpp). The fastest result that fits is taken.
//   6. If nothing fits, the error names the smallest arena that was found, and what occupies it. Several prefixes are
//      planned for this, as planned arenas do not quite follow the sums of live bytes.
//
// Runs after order, which fixes live ranges, and before settle-writes, which must see all uses of states, including
// those of the copies.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/recompute.h"
#include "passes/chunk_classifier.h"
#include "passes/decisions.h"
#include "passes/remat.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace gptc {

namespace {

/// A class of values: one result of one kind of group, in several layers.
struct Class {
  std::string what;
  std::vector<const Value *> values;  // in order of definition
};

/// Step 1, for values of at least `least` bytes.
std::vector<Class> classesOf(const Recompute &r, int64_t least) {
  std::vector<Class> classes;
  std::map<std::string, size_t> index;
  for (const Recompute::Candidate &c : r.candidates()) {
    if (c.value->type.bytes() < least)
      continue;
    auto [it, isNew] = index.try_emplace(c.what + " " + c.value->type.str(), classes.size());
    if (isNew)
      classes.push_back({c.what, {}});
    classes[it->second].values.push_back(c.value);
  }
  return classes;
}

/// Step 2.
std::vector<Class> inOrder(const Recompute &r) {
  Recompute::Dropped dropped;
  Recompute::Outcome now = r.outcome(dropped);
  std::vector<Class> open = classesOf(r, now.peak / 10000), order;
  while (!open.empty()) {
    size_t best = open.size();
    double bestRatio = 0;
    Recompute::Outcome bestOutcome;
    for (size_t i = 0; i < open.size(); ++i) {
      Recompute::Dropped with = dropped;
      with.insert(open[i].values.begin(), open[i].values.end());
      Recompute::Outcome o = r.outcome(with);
      if (o.peak >= now.peak)
        continue;
      // The difference of seconds may be negative: dropping more values may make the copies cheaper.
      double ratio = double(now.peak - o.peak) / std::max(1e-9, o.extra.seconds - now.extra.seconds);
      if (ratio > bestRatio) {
        best = i;
        bestRatio = ratio;
        bestOutcome = o;
      }
    }
    if (best == open.size())
      break;
    now = bestOutcome;
    dropped.insert(open[best].values.begin(), open[best].values.end());
    order.push_back(std::move(open[best]));
    open.erase(open.begin() + best);
  }
  return order;
}

/// The values that `full` drops: those of layers that no other layer's forward part uses.
Recompute::Dropped fullOf(const Recompute &r) {
  Recompute::Dropped dropped;
  for (const Recompute::Candidate &c : r.candidates())
    if (c.layer >= 0 && !c.leavesLayer)
      dropped.insert(c.value);
  return dropped;
}

/// Dropped values of a function by number, so that they can be found in a copy of the module.
struct Choice {
  std::string function;
  std::vector<std::pair<int, unsigned>> values;  // index of the op, index of its result
  bool operator<(const Choice &o) const { return std::tie(function, values) < std::tie(o.function, o.values); }
};

/// The memory and time of a planned module.
struct Needs {
  int64_t arena = 0;  // bytes
  KernelCost step;
};

Effect difference(const Needs &with, const Needs &without) {
  return {double(with.arena - without.arena), with.step.bytes - without.step.bytes,
          1e3 * (with.step.seconds - without.step.seconds)};
}

class Rematerialiser {
public:
  Rematerialiser(Module &m, const PassOptions &o) : m(m), o(o), rates(ratesOf(o.target ? *o.target : Target())) {}

  /// Applies `full`.
  void full() {
    std::vector<Choice> chosen;
    for (auto &f : m.functions) {
      Recompute r(*f, rates);
      if (!r.candidates().empty())
        chosen.push_back(choiceOf(*f, fullOf(r)));
    }
    become(chosen);
  }

  /// Brings the arena within `budget` bytes and returns true. Otherwise the module stays as it is, and `smallest` is
  /// the smallest arena that was found.
  bool fit(int64_t budget) {
    const int64_t plain = planned({});
    return plain <= budget || search(plain, budget);
  }

  /// The needs of the module as it is.
  Needs needs() { return {planned({}), costOfStep(m, rates)}; }
  /// Bytes; valid after fit() has returned false.
  int64_t smallest = 0;
  /// Step 6: throws RematBudgetError. Only after fit() has returned false.
  [[noreturn]] void cannot(int64_t budget) const;

private:
  Module &m;
  const PassOptions &o;
  const MachineRates rates;
  std::vector<Choice> best;
  std::map<std::vector<Choice>, int64_t> knownArenas;
  struct Step {
    size_t function;
    std::string what;
    const Value *value;
  };

  static Choice choiceOf(const Function &f, const Recompute::Dropped &dropped) {
    Choice c{f.name, {}};
    int n = 0;
    for (const Op &op : f.body) {
      for (unsigned i = 0; i < op.numResults(); ++i)
        if (dropped.contains(op.result(i)))
          c.values.push_back({n, i});
      ++n;
    }
    return c;
  }

  void applyTo(Module &to, const std::vector<Choice> &choices) const {
    for (const Choice &c : choices) {
      Function &f = *to.function(c.function);
      std::vector<Op *> ops;
      for (Op &op : f.body)
        ops.push_back(&op);
      Recompute::Dropped dropped;
      for (auto [op, result] : c.values)
        dropped.insert(ops[op]->result(result));
      Recompute(f, rates).apply(dropped);
    }
  }

  /// A copy of the module with the choices applied and the rest of the pipeline run.
  std::unique_ptr<Module> plannedModule(const std::vector<Choice> &choices) const {
    std::unique_ptr<Module> copy = m.clone();
    applyTo(*copy, choices);
    PassOptions rest;
    rest.target = o.target;
    for (const char *name : defaultPasses("remat").drop_front())
      if (const PassInfo *p = findPass(name))  // select-recipes may be missing in tests of passes alone
        p->run(*copy, rest);
    return copy;
  }
  int64_t planned(const std::vector<Choice> &choices) {
    auto [it, isNew] = knownArenas.try_emplace(choices);
    if (isNew)
      it->second = fact<&MemoryFacts::arenaBytes>(*plannedModule(choices));
    return it->second;
  }

  /// The sequence of values of step 3, and the memory of its prefixes.
  class Sequence {
  public:
    explicit Sequence(Rematerialiser &r) : r(r) {
      for (auto &f : r.m.functions) {
        auto recompute = std::make_unique<Recompute>(*f, r.rates);
        if (recompute->candidates().empty())
          continue;
        for (Class &c : inOrder(*recompute))
          for (const Value *v : c.values)
            steps.push_back({functions.size(), c.what, v});
        functions.push_back(std::move(recompute));
        names.push_back(f->name);
      }
    }

    std::vector<std::unique_ptr<Recompute>> functions;
    std::vector<std::string> names;
    std::vector<Step> steps;

    llvm::ArrayRef<Step> first(size_t n) const { return llvm::ArrayRef(steps).take_front(n); }
    std::vector<Choice> choices(llvm::ArrayRef<Step> some) const {
      std::vector<Choice> list;
      for (size_t i = 0; i < functions.size(); ++i)
        if (Recompute::Dropped dropped = droppedIn(some, i); !dropped.empty())
          list.push_back(choiceOf(*r.m.function(names[i]), dropped));
      return list;
    }
    /// The choices of `full`.
    std::vector<Choice> full() const {
      std::vector<Choice> list;
      for (size_t i = 0; i < functions.size(); ++i)
        list.push_back(choiceOf(*r.m.function(names[i]), fullOf(*functions[i])));
      return list;
    }
    /// Bytes of the planned arena if the first n values are dropped.
    int64_t arena(size_t n) const { return r.planned(choices(first(n))); }
    /// The peak of live bytes over all functions if the values of `some` are dropped.
    int64_t live(llvm::ArrayRef<Step> some) const {
      int64_t most = 0;
      for (size_t i = 0; i < functions.size(); ++i)
        most = std::max(most, functions[i]->outcome(droppedIn(some, i)).peak);
      return most;
    }

    /// Step 3: the length of the prefix at which the bisection begins. Estimates arenas as live bytes plus `added`: at
    /// first the difference for the module as it is, then that for the last guess.
    size_t guess(int64_t budget, int64_t &added) const {
      size_t guess = 0;
      for (int round = 0; round < 3; ++round) {
        size_t from = 0, to = steps.size();
        while (from < to) {
          size_t middle = (from + to) / 2;
          if (live(first(middle)) + added <= budget)
            to = middle;
          else
            from = middle + 1;
        }
        if (round && guess == to)
          break;
        guess = to;
        added = arena(guess) - live(first(guess));
      }
      return guess;
    }

    /// Step 3: searches from the guess in doubling steps, down to a prefix that does not fit (`low`) or up to one that
    /// fits (`high`).
    void bracket(size_t guess, int64_t budget, size_t &low, size_t &high) const {
      size_t step = 1;
      if (arena(guess) <= budget) {
        high = guess;
        for (; high > step && arena(high - step) <= budget; step *= 2)
          high -= step;
        low = high > step ? high - step : 0;
      } else {
        low = guess, high = steps.size();
        for (; low + step < high && arena(low + step) > budget; step *= 2)
          low += step;
        high = std::min(high, low + step);
      }
    }

    /// Step 4.
    void takeOutUnneeded(int64_t budget, int64_t added) {
      std::vector<std::string> order;
      for (const Step &s : steps)
        if (order.empty() || order.back() != s.what)
          order.push_back(s.what);
      if (!order.empty())
        order.pop_back();  // without the last class the module did not fit
      for (const std::string &what : llvm::reverse(order)) {
        std::vector<Step> without;
        for (const Step &s : steps)
          if (s.what != what)
            without.push_back(s);
        // Planned arenas differ a little from sums of live bytes, hence the margin of 1/64.
        if (live(without) + added <= budget + budget / 64 && r.planned(choices(without)) <= budget)
          steps = without;
      }
    }

  private:
    Rematerialiser &r;

    static Recompute::Dropped droppedIn(llvm::ArrayRef<Step> some, size_t function) {
      Recompute::Dropped dropped;
      for (const Step &s : some)
        if (s.function == function)
          dropped.insert(s.value);
      return dropped;
    }
  };

  bool search(int64_t plain, int64_t budget) {
    Sequence sequence(*this);
    int64_t added = plain - sequence.live({});
    size_t low, high;
    sequence.bracket(sequence.guess(budget, added), budget, low, high);
    if (sequence.arena(high) > budget) {
      // Planned arenas do not always shrink along the sequence, unlike sums of live bytes. And the sequence ends when
      // no single class lowers the peak, but dropping all values of `full` together may lower it.
      const std::vector<Choice> full = sequence.full();
      const size_t promising = leastPrefix(sequence);
      const bool useFull = planned(full) < sequence.arena(promising);
      smallest = std::min(planned(full), sequence.arena(promising));
      best = useFull ? full : sequence.choices(sequence.first(promising));
      if (smallest > budget)
        return false;
      if (useFull) {
        become(full);
        return true;
      }
      low = high = promising;
    }
    while (high - low > 1) {
      size_t middle = (low + high) / 2;
      (sequence.arena(middle) <= budget ? high : low) = middle;
    }
    sequence.steps.resize(high);
    sequence.takeOutUnneeded(budget, added);
    report(sequence);
    become(sequence.choices(sequence.steps));
    return true;
  }

  /// The length of the prefix with the smallest planned arena. Plans the longest few prefixes and, of those that end
  /// with a class, the few with the least live bytes.
  static size_t leastPrefix(const Sequence &sequence) {
    constexpr size_t tried = 8;
    const std::vector<Step> &steps = sequence.steps;
    std::vector<std::pair<int64_t, size_t>> ends;
    for (size_t n = 1; n < steps.size(); ++n)
      if (steps[n].what != steps[n - 1].what)
        ends.push_back({sequence.live(sequence.first(n)), n});
    llvm::sort(ends);
    ends.resize(std::min(ends.size(), tried));
    for (size_t n = steps.size() - std::min(steps.size(), tried); n < steps.size(); ++n)
      ends.push_back({0, n});
    size_t least = steps.size();
    for (auto [bytes, n] : ends)
      if (sequence.arena(n) < sequence.arena(least))
        least = n;
    return least;
  }

  /// Records one decision per class, with the effect relative to the classes before it.
  void report(const Sequence &sequence) {
    const std::vector<Step> &steps = sequence.steps;
    std::vector<Recompute::Dropped> dropped(sequence.functions.size());
    for (size_t i = 0, n = 0; i < steps.size(); ++n) {
      const Step &first = steps[i];
      const Recompute &r = *sequence.functions[first.function];
      Recompute::Outcome before = r.outcome(dropped[first.function]);
      int count = 0;
      for (; i < steps.size() && steps[i].what == first.what && steps[i].function == first.function; ++i) {
        dropped[first.function].insert(steps[i].value);
        ++count;
      }
      Recompute::Outcome after = r.outcome(dropped[first.function]);
      const double calls =
          std::max(1.0, callsPerStep(m, sequence.names[first.function]));  // 1 for functions outside of a step
      record(m, {"remat",
                 fmt::format("step{:02}", n + 1),
                 first.what,
                 {double(after.peak - before.peak), calls * (after.extra.bytes - before.extra.bytes),
                  1e3 * calls * (after.extra.seconds - before.extra.seconds)},
                 fmt::format("{} value{} computed again in the backward part", count, count == 1 ? "" : "s"),
                 {}});
    }
  }

  /// Applies the choices to the module.
  void become(const std::vector<Choice> &chosen) {
    const int64_t arena = planned(chosen);
    applyTo(m, chosen);
    knownArenas = {{{}, arena}};
  }

  /// Names and bytes of the values that are live at the peak of a planned module, besides states. Layers count
  /// together, largest first. A result in the memory of an operand counts once.
  static std::vector<std::pair<std::string, int64_t>> atPeak(const Module &p) {
    int64_t top = -1;
    std::vector<LiveRange> most;
    for (const auto &f : p.functions) {
      std::vector<LiveRange> ranges = liveRanges(*f);
      for (const LiveRange &r : ranges) {
        std::map<int64_t, LiveRange> live;  // by offset; workspaces by negative numbers
        int64_t bytes = 0, unplaced = -1;
        for (const LiveRange &o : ranges)
          if (o.begin <= r.begin && r.begin <= o.end)
            live.try_emplace(o.value ? *plannedOffset(p, *f, *o.value) : unplaced--, o);
        for (auto &[at, o] : live)
          bytes += o.bytes;
        if (bytes <= top)
          continue;
        top = bytes;
        most.clear();
        for (auto &[at, o] : live)
          most.push_back(o);
      }
    }
    std::map<std::string, std::pair<int64_t, int>> sums;
    for (const LiveRange &r : most) {
      std::string what = "an argument";
      if (r.op && !r.value)
        what = "workspace of " + withoutLayer(r.op->loc);
      else if (r.op)
        what = fmt::format("{} ({})", withoutLayer(r.op->loc),
                           r.op->is(OpKind::fused) && r.op->body->back()->operand(r.value->index)->def
                               ? r.op->body->back()->operand(r.value->index)->def->name()
                               : r.op->name());
      sums[what].first += r.bytes;
      sums[what].second += 1;
    }
    std::vector<std::pair<std::string, int64_t>> list;
    for (auto &[what, sum] : sums)
      list.push_back({sum.second > 1 ? fmt::format("{} x {}", sum.second, what) : what, sum.first});
    std::stable_sort(list.begin(), list.end(), [](auto &a, auto &b) { return a.second > b.second; });
    constexpr size_t shown = 6;
    if (list.size() > shown + 1) {
      int64_t rest = 0;
      for (size_t i = shown; i < list.size(); ++i)
        rest += list[i].second;
      const size_t others = list.size() - shown;
      list.resize(shown);
      list.push_back({fmt::format("{} others", others), rest});
    }
    return list;
  }
};

void Rematerialiser::cannot(int64_t budget) const {
  std::unique_ptr<Module> p = plannedModule(best);
  const int64_t arena = fact<&MemoryFacts::arenaBytes>(*p);
  // Rounded up, so that the budget that the error suggests works.
  const std::string smallest = arena < 10 << 20 ? fmt::format("{}KiB", (arena + 1023) / 1024)
                                                : fmt::format("{:.1f}MiB", std::ceil(double(arena) / 0x1p20 * 10) / 10);
  std::map<std::string, int64_t> states;
  for (const auto &s : p->states)
    if (!livesOnHost(*s))
      states[hasFact<&StateFacts::kind>(*s) ? std::string(nameOf(*kindOf(*s))) : "other"] += alignedBytes(s->type);
  Diagnostic d;
  d.code = ErrorCode::TooLarge;
  d.message = fmt::format("no plan fits into {}: with everything recomputed that helps, it takes {}",
                          formatBytes(double(budget)), formatBytes(double(arena)));
  static const std::map<std::string, const char *> names = {{"param", "parameters"},
                                                            {"moment", "optimizer moments"},
                                                            {"grad", "gradient accumulators"},
                                                            {"low", "copies of parameters in low precision"},
                                                            {"packed", "weights in panels"},
                                                            {"quantized", "weights of few bits"},
                                                            {"whole", "parameters gathered from all ranks"},
                                                            {"anchor", "parameters of the last outer step"},
                                                            {"cache", "caches"}};
  std::vector<std::pair<std::string, int64_t>> held(states.begin(), states.end());
  std::stable_sort(held.begin(), held.end(), [](auto &a, auto &b) { return a.second > b.second; });
  for (auto &[kind, bytes] : held)
    if (bytes > arena / 1000) {
      auto it = names.find(kind);
      d.notes.push_back(fmt::format("{:>10} {}", formatBytes(double(bytes)),
                                    it != names.end() ? it->second : fmt::format("states of kind {}", kind)));
    }
  for (const auto &[what, bytes] : atPeak(*p))
    d.notes.push_back(fmt::format("{:>10} {}", formatBytes(double(bytes)), what));
  d.help.push_back(fmt::format("\"{}\" is the smallest found to work", smallest));
  d.help.push_back("or lower train.micro_batch or the model's size");
  throw RematBudgetError(d);
}

/// Bytes of the largest value outside of states.
int64_t largestValue(const Module &m) {
  int64_t most = 0;
  for (const auto &f : m.functions)
    for (const LiveRange &r : liveRanges(*f))
      most = std::max(most, r.bytes);
  return most;
}

/// Records the decision for the whole pass.
void recordAll(Module &m, const std::string &choice, const Effect &effect) {
  record(m, {"remat", "all", choice, effect, "", {}});
}

/// Step 5: tries the classifier whole and in chunks, and takes the fastest result that fits into `budget` bytes.
/// `choice` names the decision. Returns false and changes nothing if the module fits as it is. If nothing fits, returns
/// false if `lenient`, else throws RematBudgetError.
bool withinBudget(Module &m, const PassOptions &o, int64_t budget, const std::string &choice, bool lenient) {
  const Needs before = Rematerialiser(m, o).needs();
  if (before.arena <= budget)
    return false;
  const bool large = largestValue(m) >= before.arena / 32;
  std::unique_ptr<Module> taken, nearest;  // the fastest that fits; the smallest of those that do not fit
  std::unique_ptr<Rematerialiser> failed;  // refers to `nearest`
  Needs after;
  for (int64_t chunks = 1; chunks <= (large ? 8 : 1); chunks *= 2) {
    std::unique_ptr<Module> trial = m.clone();
    if (chunks > 1 && !chunkClassifier(*trial, chunks))
      break;
    auto r = std::make_unique<Rematerialiser>(*trial, o);
    if (chunks > 1)
      record(*trial, {"remat",
                      "chunks",
                      fmt::format("classifier in {} chunks", chunks),
                      difference(r->needs(), before),
                      "logits, loss and their gradients some sequences at a time",
                      {}});
    if (r->fit(budget)) {
      if (Needs now = r->needs(); !taken || now.step.seconds < after.step.seconds) {
        after = now;
        taken = std::move(trial);
      }
    } else if (!failed || r->smallest < failed->smallest) {
      failed = std::move(r);
      nearest = std::move(trial);
    }
  }
  if (!taken) {
    if (!lenient)
      failed->cannot(budget);
    return false;
  }
  m.take(std::move(taken));
  recordAll(m, choice, difference(after, before));
  return true;
}

}  // namespace

bool remat(Module &m, const PassOptions &options) {
  std::string wish = fact<&CompileFacts::remat>(m).value_or("none");
  if (const Attr *budget = options.values.find("budget"))
    wish = std::holds_alternative<std::string>(*budget) ? std::get<std::string>(*budget)
                                                        : std::to_string(options.values.getInt("budget"));
  if (wish == "none" || isDecided(m, "remat", "all"))  // the latter: the pass has already run
    return false;
  if (wish == "full") {
    Rematerialiser r(m, options);
    const Needs before = r.needs();
    r.full();
    recordAll(m, wish, difference(r.needs(), before));
    return true;
  }
  if (wish == "auto") {
    const int64_t available = options.values.getInt("available", 0);
    int64_t states = 0;
    for (const auto &s : m.states)
      states += livesOnHost(*s) ? 0 : alignedBytes(s->type);
    // If the states alone do not fit, recomputation cannot help, and the plan is for another machine. The decision does
    // not record `available`: free memory differs between compiles, and equal choices are to give equal plans.
    return available > states && withinBudget(m, options, available, wish, true);
  }
  std::optional<int64_t> budget = parseBytes(wish);
  if (!budget)
    throw UserError(ErrorCode::Usage, fmt::format("remat{{budget={}}}: no budget", wish),
                    "none, full, auto or bytes such as 8GiB");
  return withinBudget(m, options, *budget, fmt::format("a budget of {}", formatBytes(double(*budget))), false);
}

}  // namespace gptc
