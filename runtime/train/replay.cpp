#include "runtime/train/replay.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/state.h"
#include "runtime/train/metrics.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include <algorithm>

namespace gptc {

namespace {

/// The states whose digests differ, in words: "state a" or "7 of 9 states, the first is a"; "" if none do.
std::string statesThatDiffer(const StateDigests &there, const StateDigests &here) {
  std::vector<std::string> names;
  for (const auto &[name, digest] : here)
    if (const auto was = there.find(name); was == there.end() || was->second != digest)
      names.push_back(name);
  if (names.empty())
    return there.size() == here.size() ? "" : "the number of states differs";
  if (names.size() == 1)
    return fmt::format("state {} differs", names[0]);
  return fmt::format("{} of {} states differ: {}{}", names.size(), here.size(),
                     fmt::join(names.begin(), names.begin() + std::min<size_t>(3, names.size()), ", "),
                     names.size() > 3 ? ", ..." : "");
}

/// How a certified step differs from the step as it is now; "" if it does not.
std::string differenceOfSteps(const CertifiedStep &was, const CertifiedStep &is, const CertifyingStep &kernels,
                         bool comparesKernels) {
  if (const std::string states = statesThatDiffer(was.before, is.before); !states.empty())
    return "before it " + states;
  if (comparesKernels && was.kernels != is.kernels) {
    constexpr size_t digits = KernelDigests::digits;
    const size_t place = std::mismatch(was.kernels.begin(), was.kernels.end(), is.kernels.begin(), is.kernels.end())
                             .second -
                         is.kernels.begin();
    const size_t kernel = place / digits;
    if (kernel >= is.kernels.size() / digits)
      return "the number of kernels differs";
    return fmt::format("{}, computes other bits; before it {} kernel{} equal", kernels.kernel(kernel), kernel,
                       kernel == 1 ? " is" : "s are");
  }
  if (const std::string states = statesThatDiffer(was.after, is.after); !states.empty())
    return "after it " + states;
  return "";
}

class Replay {
public:
  Replay(Session &session, const ReplayRequest &request)
      : s(session), q(request), m(*s.plan.planned), store(q.outDir), saved(store.steps()),
        data(TrainStep::dataOf(s.plan)), train(s, data) {}

  ReplayReport go() {
    if (q.comparesData) {
      DataHasher hasher(data, s.plan.run.tokenizer, "");  // without the cache, which trusts the files' times
      hasher.begin();
      if (const std::string d = differenceOf(q.origin.data, hasher.print(), data.paths(), s.plan.run.tokenizer);
          !d.empty()) {
        report.differences.push_back("the training data: " + d);
        return report;
      }
    }
    const std::vector<std::string> functions = train.functions();
    s.executor.prepare(std::vector<llvm::StringRef>(functions.begin(), functions.end()));
    logged = readLoggedSteps(q.outDir);
    report.begin = report.end = begin();
    while (report.end < q.to && !step())
      ;
    return report;
  }

private:
  Session &s;
  const ReplayRequest &q;
  const Module &m;
  const CheckpointStore store;
  const std::vector<int64_t> saved;  // steps of its checkpoints, newest first
  const TokenData data;
  TrainStep train;
  std::map<int64_t, LoggedStep> logged;
  ReplayReport report;

  const CertifiedStep *certified(int64_t step) const {
    const auto it = std::lower_bound(q.certified.begin(), q.certified.end(), step,
                                     [](const CertifiedStep &c, int64_t step) { return c.step < step; });
    return it != q.certified.end() && it->step == step ? &*it : nullptr;
  }

  /// Loads a checkpoint. Returns what is wrong with it, "" if it is whole and as certified.
  std::string load(int64_t step) {
    try {
      store.load(s.executor, modelIdentity(m), step);
    } catch (const UserError &e) {
      const ErrorCode code = e.diagnostics[0].code;
      if (code != ErrorCode::CheckpointDamaged && code != ErrorCode::FileMissing)
        throw;
      return e.diagnostics[0].message;
    }
    const CertifiedStep *c = certified(step);
    const std::string states = c ? statesThatDiffer(c->after, digestsOfStates(s.executor)) : "";
    return states.empty() ? "" : fmt::format("the checkpoint of step {} is not as certified: {}", step, states);
  }

  /// Sets the states that the span begins with, and returns the number of steps done.
  int64_t begin() {
    for (int64_t step : saved)
      if (step < q.from && step >= q.origin.since && step > 0) {
        if (const std::string wrong = load(step); wrong.empty()) {
          q.say(fmt::format("from the checkpoint of step {}", step));
          ++report.checkpoints;
          return step;
        } else {
          report.differences.push_back(wrong);
        }
      }
    if (q.origin.since > 0)
      throw UserError(ErrorCode::FileMissing,
                      fmt::format("steps from {} on follow from a checkpoint of step {} or later, and {} has none",
                                  q.origin.since + 1, q.origin.since, q.outDir),
                      "restore it from a copy, or replay a span behind a later checkpoint: --steps FIRST..LAST");
    q.say("from the beginning");
    initializeStates(s.executor, s.plan.run.seed);
    if (s.plan.run.initFrom != "scratch")
      loadWeights(s.executor, llvm::StringRef(s.plan.run.initFrom).split(':').second.str(), modelIdentity(m));
    return 0;
  }

  /// Does a step. Returns whether it differs from what the run has left of it.
  bool step() {
    const int64_t number = report.end + 1;
    const CertifiedStep *was = certified(number);
    const bool keeps = q.every > 0 && (number % q.every == 0 || number == q.to);
    std::optional<CertifyingStep> certifying;
    if (was || keeps)
      certifying.emplace(s.executor, number);
    const StepResult r = train.run(report.end, number < q.to);
    ++report.end;
    auto differs = [&](const std::string &how) {
      report.differences.push_back(fmt::format("step {}: {}", number, how));
      return true;
    };
    std::optional<CertifiedStep> is;
    if (certifying)
      is = certifying->end(r);
    if (was) {
      if (const std::string d = differenceOfSteps(*was, *is, *certifying, q.origin.plan == s.plan.hash && !was->kernels.empty());
          !d.empty())
        return differs(d);
      ++report.certified;
    }
    if (const auto line = logged.find(number); line != logged.end()) {
      auto compare = [&](const char *name, float then, float now) {
        return then == now || (!std::isfinite(then) && !std::isfinite(now))
                   ? ""
                   : fmt::format("{} is {}, and the log has {}", name, now, then);
      };
      std::string d = compare("the loss", line->second.loss, r.loss);
      if (d.empty())
        d = compare("the gradient's norm", line->second.gradNorm, r.gradNorm);
      if (!d.empty())
        return differs(d);
      ++report.logged;
    }
    if (std::find(saved.begin(), saved.end(), number) != saved.end())
      if (compareCheckpoint(number, is ? is->after : digestsOfStates(s.executor)))
        return true;
    if (keeps)
      q.keep(*is);
    return false;
  }

  /// Loads a checkpoint over the states that were computed, whose digests are given. Returns whether they differ. A
  /// damaged checkpoint leaves them as they are.
  bool compareCheckpoint(int64_t number, const StateDigests &computed) {
    if (const std::string wrong = load(number); !wrong.empty()) {
      report.differences.push_back(wrong);
      return digestsOfStates(s.executor) != computed;
    }
    const std::string states = statesThatDiffer(digestsOfStates(s.executor), computed);
    if (!states.empty())
      report.differences.push_back(fmt::format("step {}: after it {} from the checkpoint's", number, states));
    else
      ++report.checkpoints;
    return !states.empty();
  }
};

}  // namespace

ReplayReport replay(Session &session, const ReplayRequest &request) { return Replay(session, request).go(); }

int64_t lastStepOf(const std::string &outDir) {
  const std::vector<int64_t> saved = CheckpointStore(outDir).steps();
  const std::map<int64_t, LoggedStep> logged = readLoggedSteps(outDir);
  return std::max(saved.empty() ? 0 : saved.front(), logged.empty() ? 0 : logged.rbegin()->first);
}

}  // namespace gptc
