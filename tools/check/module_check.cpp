#include "tools/check/module_check.h"

#include "codegen/codegen.h"
#include "ir/facts.h"
#include "passes/analysis/liveness.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tools/planner/codegen_passes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace gptc {

namespace {

/// Where a pass may run, and how its results are compared (passes.def).
enum Trial : unsigned { imported = 1, joint = 2, groups = 4, rounds = 8, updates = 16, fixed = 32, never = 64 };
struct Tried {
  const char *pass;
  unsigned where;
};
constexpr Tried allTried[] = {
#define GPTC_TRIED(use, where) {use, where},
#include "passes/passes.def"
};
constexpr auto movable = [] {
  constexpr auto isMovable = [](const Tried &t) { return !(t.where & (fixed | never)); };
  std::array<Tried, std::count_if(std::begin(allTried), std::end(allTried), isMovable)> some{};
  std::copy_if(std::begin(allTried), std::end(allTried), some.begin(), isMovable);
  return some;
}();

/// Ways to form groups. Full fusion is listed twice because models are compiled with it.
constexpr const char *fusions[] = {"fuse",
                                   "fuse",
                                   "fuse{max=3}",
                                   "fuse{epilogue=false}",
                                   "fuse{row=false}",
                                   "fuse{pointwise=false}",
                                   "fuse{fold=false}",
                                   "fuse{bias=false}"};

/// What is wrong with a module or, if that is new, with its text; "" if nothing is.
std::string problemOf(const Module &m, const std::string &text, bool isNew = true) {
  if (auto errors = verify(m); !errors.empty())
    return errors[0];
  if (!isNew)
    return "";
  std::unique_ptr<Module> again;
  try {
    again = parseModule(text, "printed");
  } catch (const UserError &e) {
    return fmt::format("its text does not parse: {}", e.what());
  }
  return print(*again) == text ? "" : "its text parses to another text";
}

class Checker {
public:
  Checker(const Module &original, const CheckOptions &options, BoundStats &stats)
      : original(original), options(options), stats(stats), random(options.seed), target(hostTarget(options.threads)) {}

  std::string run() {
    try {
      if (std::string problem = problemOf(original, originalText); !problem.empty())
        return problem;
      for (const auto &f : original.functions)
        for (const Op &op : f->body)
          grouped |= op.is(OpKind::fused);
      if (hasFact<&MemoryFacts::arenaBytes>(original))
        return checkPlanned();
      training = original.function("forward") != nullptr;
      if (training)
        checkGradients();
      if (failure.empty())
        checkAlone();
      if (failure.empty())
        checkOrder();
    } catch (const InternalError &e) {
      return fmt::format("after '{}': {}", history, e.what());
    }
    return failure;
  }

private:
  const Module &original;
  const CheckOptions &options;
  BoundStats &stats;
  std::mt19937 random;
  Target target;
  bool training = false, grouped = false, updating = false;  // whether these have been added
  const std::string originalText = print(original);
  std::string text;  // of the module that passes are applied to, as of the last one
  std::string history, failure;

  unsigned pick(size_t n) { return random() % n; }

  void fail(const std::string &what) {
    if (failure.empty())
      failure = history.empty() ? what : fmt::format("after '{}': {}", history, what);
  }

  /// A copy of the original, to which no pass has been applied.
  std::unique_ptr<Module> begin() {
    history.clear();
    text = originalText;
    return original.clone();
  }

  /// Runs one pass on a module of begin(), and looks at what it made. Returns whether the text has changed: it says all
  /// of a module, so one with the same text need not be interpreted again.
  bool apply(Module &m, const std::string &pass) {
    history += (history.empty() ? "" : ",") + pass;
    PipelineOptions quiet;
    quiet.reproFile.clear();
    quiet.verifyEach = false;
    runPipeline(m, parsePipeline(pass, &target), quiet);
    std::string now = print(m);
    const bool changed = now != text;
    text = std::move(now);
    if (std::string problem = problemOf(m, text, changed); !problem.empty())
      fail(problem);
    return changed;
  }

  void applyAll(Module &m, std::initializer_list<const char *> passes) {
    for (const char *p : passes)
      apply(m, p);
  }

  void expectSame(const Module &m, const Inputs &in, const Outcome &expected) {
    if (!failure.empty())
      return;
    if (std::string d = differenceOf(expected, interpretCalls(m, in)); !d.empty())
      fail(d);
  }

  // ---- 2 ----

  void checkGradients() {
    auto whole = begin();
    setFact<&BatchFacts::accumulate>(*whole, int64_t(1));
    apply(*whole, "autodiff");
    const Function &step = *whole->function("train_step");
    Inputs in = inputsFor(*whole, options.seed);
    auto call =
        std::find_if(in.calls.begin(), in.calls.end(), [](const Call &c) { return c.function == "train_step"; });
    GPTC_CHECK(call != in.calls.end(), "autodiff has made no @train_step");
    const std::vector<Tensor> &args = call->args;

    std::vector<const State *> params;
    for (const auto &s : whole->states)
      if (kindOf(*s) == StateKind::param)
        params.push_back(s.get());
    // Estimates d(loss)/dt along a random direction by central differences with two step sizes, whose difference
    // estimates the error of the better one; rounding of the loss adds to it. A relu at 0 has no slope, so other points
    // are tried, where a wrong gradient is wrong too. Without a finite slope nothing can be concluded.
    auto slopesAt = [&](int point) -> std::optional<std::string> {
      std::mt19937 shift(options.seed);
      StateMap from = statesFor(*whole, options.seed), direction;
      for (const State *p : params) {
        for (double &v : from[p->name].data)
          v += point * (1 + double(shift() % 1024) / 1024) / 64;
        direction[p->name] = inputTensor("direction " + p->name, p->type, 2, options.seed);
      }
      auto runAt = [&](double t) {
        StateMap at = from;
        for (const State *p : params)
          for (size_t k = 0; k < at[p->name].data.size(); ++k)
            at[p->name].data[k] += t * direction[p->name].data[k];
        return interpret(step, args, at);
      };
      const std::vector<Tensor> here = runAt(0);
      double slope = 0;
      for (size_t i = 0; i < params.size(); ++i)
        for (size_t k = 0; k < here[i + 1].data.size(); ++k)
          slope += direction[params[i]->name].data[k] * here[i + 1].data[k];
      if (!std::isfinite(slope))
        return std::nullopt;
      auto quotient = [&](double h) { return (runAt(h)[0].data[0] - runAt(-h)[0].data[0]) / (2 * h); };
      const double coarse = quotient(0x1p-13), fine = quotient(0x1p-14);
      const double rounding = 0x1p-53 * 1e4 * (1 + std::fabs(here[0].data[0])) / 0x1p-14;
      if (std::fabs(fine - slope) <= 2 * std::fabs(fine - coarse) + rounding + 1e-7 * std::fabs(slope))
        return std::string();
      return fmt::format("the gradient has slope {} along a direction, the loss {}", slope, fine);
    };
    if (!holdsNarrow(*whole)) {  // rounding to 16 bits makes the loss a step function without slope
      std::string wrong;
      for (int point = 0; point < 4 && (point == 0 || !wrong.empty()); ++point)
        wrong = slopesAt(point).value_or(wrong);
      if (!wrong.empty())
        fail(wrong);
    }

    if (fact<&BatchFacts::accumulate>(original) > 1 && failure.empty()) {
      auto cut = begin();
      apply(*cut, "autodiff");
      StateMap state = statesFor(*cut, options.seed);
      interpret(*cut->function("accumulate"), args, state);
      const Tensor &count = args.back();
      StateMap wholeState = statesFor(*whole, options.seed);
      Outcome a{{interpret(step, args, wholeState)}, {}},
          b{{interpret(*cut->function("update"), {&count, 1}, state)}, {}};
      if (std::string d = differenceOf(a, b); !d.empty())
        fail("accumulated gradients: " + d);
    }
  }

  // ---- 3 ----

  std::unique_ptr<Module> joint() {
    auto m = begin();
    if (training)
      applyAll(*m, {"autodiff", "optimizer"});
    return m;
  }

  void checkAlone() {
    const Inputs in = inputsFor(original, options.seed);
    const Outcome expected = interpretCalls(original, in);
    for (const Tried &p : movable) {
      if (!(p.where & (grouped ? groups : imported)))
        continue;
      auto m = begin();
      if (apply(*m, p.pass) && !(p.where & rounds))
        expectSame(*m, in, expected);
    }
    if (grouped)
      return;
    auto m = begin();
    apply(*m, fusions[pick(std::size(fusions))]);
    expectSame(*m, in, expected);
  }

  /// Runs up to `most` passes that are allowed at this place, in random order. `after` follows each that changed m.
  void shuffle(Module &m, Trial place, unsigned most, const std::function<void(bool mayRound)> &after) {
    for (unsigned n = pick(most + 1); n > 0 && failure.empty(); --n) {
      const Tried &p = movable[pick(std::size(movable))];
      if (!(p.where & place) || ((p.where & updates) && !updating))
        continue;
      if (apply(m, p.pass))
        after(p.where & rounds);
    }
  }

  static unsigned countLosses(const Module &m) {
    unsigned n = 0;
    for (const auto &f : m.functions)
      for (const Op &op : f->body)
        if (op.is(OpKind::fused))
          for (const Op &inner : *op.body)
            n += inner.is(OpKind::cross_entropy);
    return n;
  }

  /// A budget for the states and most of the rest that is live at the peak.
  static int64_t smallBudget(const Module &m) {
    int64_t states = 0, peak = 0;
    for (const auto &s : m.states)
      states += alignedBytes(s->type);
    for (const auto &f : m.functions)
      peak = std::max(peak, peakBytes(liveRanges(*f)));
    return states + peak * 3 / 4 + 1;
  }

  void checkOrder() {
    std::unique_ptr<Module> plain = joint();
    const Inputs in = inputsFor(*plain, options.seed);
    const Outcome expected = interpretCalls(*plain, in);

    auto m = begin();
    Outcome reordered;
    std::unique_ptr<Module> again;
    bool changed = false;
    if (training) {
      const Inputs forward = inputsFor(original, options.seed);
      const Outcome loss = interpretCalls(original, forward);
      shuffle(*m, imported, 4, [&](bool) {
        changed = true;
        expectSame(*m, forward, loss);
      });
      apply(*m, "autodiff");
      shuffle(*m, gptc::joint, 2, [&](bool mayRound) { changed |= mayRound; });
      apply(*m, "optimizer");
      reordered = interpretCalls(*m, in);
      if (changed)
        again = m->clone();
      else if (std::string d = differenceOf(expected, reordered); !d.empty())
        fail(d);
    }
    Outcome now = expected;
    if (training)
      now = std::move(reordered);
    auto same = [&](bool mayRound = false) {
      if (mayRound)
        now = interpretCalls(*m, in);
      else
        expectSame(*m, in, now);
    };
    updating = true;
    if (!grouped) {
      shuffle(*m, gptc::joint, 5, same);
      apply(*m, fusions[pick(std::size(fusions))]);
      same();
    }
    shuffle(*m, groups, 3, same);
    if (pick(3) == 0) {
      // If the classifier is cut into chunks, so are sums over tokens: at whole folds, which the interpreter does not
      // know.
      const unsigned losses = countLosses(*m);
      apply(*m, fmt::format("remat{{budget=auto,available={}}}", smallBudget(*m)));
      same(countLosses(*m) != losses);
    }
    if (apply(*m, "settle-writes"))
      same();
    apply(*m, "select-recipes");
    apply(*m, "plan-memory");
    same();
    if (!failure.empty() || !options.emit || fact<&MemoryFacts::arenaBytes>(*m) == 0)  // nothing to compute
      return;
    ThreadPool pool(options.threads);
    if (std::string d = emittedDifference(*m, *plain, again.get(), in, pool, target, options.cacheDir, stats);
        !d.empty())
      fail(d);
  }

  // ---- 4, of a module that comes planned ----

  std::string checkPlanned() {
    if (!options.emit)
      return "";
    const Inputs in = inputsFor(original, options.seed);
    ThreadPool pool(options.threads);
    return emittedDifference(original, original, nullptr, in, pool, target, options.cacheDir, stats);
  }
};

}  // namespace

std::string checkModule(const Module &m, const CheckOptions &options, BoundStats &stats) {
  registerCodegenPasses();
  return Checker(m, options, stats).run();
}

std::vector<std::string> passesWithoutPlace() {
  registerCodegenPasses();
  std::vector<std::string> names;
  for (const PassInfo &p : allPasses()) {
    const bool known = std::any_of(std::begin(allTried), std::end(allTried),
                                   [&](const Tried &t) { return llvm::StringRef(t.pass).split('{').first == p.name; });
    if (!known)
      names.push_back(p.name);
  }
  return names;
}

}  // namespace gptc
