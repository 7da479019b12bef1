#include "runtime/train/replay.h"

#include "ir/facts.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/state.h"
#include "runtime/train/metrics.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include <algorithm>

namespace gptc {

namespace {

/// "state a differs", "7 of 9 states differ (a, b, c, ...)"; "" if none do.
std::string statesThatDiffer(const StateDigests &there, const StateDigests &here) {
  std::vector<std::string> names;
  for (const auto &[name, digest] : here)
    if (const auto was = there.find(name); was == there.end() || was->second != digest)
      names.push_back(name);
  for (const auto &[name, digest] : there)
    if (!here.count(name))
      names.push_back(name);
  constexpr size_t shown = 3;
  if (names.size() < 2)
    return names.empty() ? "" : fmt::format("state {} differs", names[0]);
  return fmt::format("{} of {} states differ ({}{})", names.size(), here.size(),
                     fmt::join(names.begin(), names.begin() + ptrdiff_t(std::min(shown, names.size())), ", "),
                     names.size() > shown ? ", ..." : "");
}

/// How a number differs from what `where` has; "" if it does not.
std::string numberThatDiffers(const char *name, float is, const char *where, float was) {
  return was == is || (!std::isfinite(was) && !std::isfinite(is))
             ? ""
             : fmt::format("{} is {}, and the {} has {}", name, is, where, was);
}
std::string numbersThatDiffer(float loss, float gradNorm, const char *where, float lossThen, float gradNormThen) {
  const std::string d = numberThatDiffers("the loss", loss, where, lossThen);
  return d.empty() ? numberThatDiffers("the gradient's norm", gradNorm, where, gradNormThen) : d;
}

/// How a certified step differs from the step as it is now; "" if it does not.
std::string differenceOfSteps(const CertifiedStep &was, const CertifiedStep &is, const CertifyingStep &kernels,
                              bool comparesKernels) {
  if (const std::string states = statesThatDiffer(was.before, is.before); !states.empty())
    return "before it " + states;
  if (comparesKernels && was.kernels != is.kernels) {
    if (was.kernels.size() != is.kernels.size())
      return "the number of kernels differs";
    const auto place = std::mismatch(was.kernels.begin(), was.kernels.end(), is.kernels.begin()).first;
    const size_t kernel = size_t(place - was.kernels.begin()) / KernelDigests::digits;
    return fmt::format("{}, computes other bits; before it {} kernel{} equal", kernels.kernel(kernel), kernel,
                       kernel == 1 ? " is" : "s are");
  }
  if (const std::string d = numbersThatDiffer(is.loss, is.gradNorm, "certificate", was.loss, was.gradNorm); !d.empty())
    return d;
  if (const std::string states = statesThatDiffer(was.after, is.after); !states.empty())
    return "after it " + states;
  return "";
}

class Replay {
public:
  Replay(Session &session, const ReplayRequest &request)
      : s(session), q(request), m(*s.plan.planned), store(q.outDir), saved(store.steps()),
        data(TrainStep::dataOf(s.plan)), train(s, *data) {}

  ReplayReport go() {
    if (q.comparesData) {
      DataHasher hasher(*data, s.plan.run.tokenizer, "");  // without the cache, which trusts the files' times
      hasher.begin();
      if (const std::string d = differenceOf(q.origin.data, hasher.print(), data->paths(), s.plan.run.tokenizer);
          !d.empty()) {
        report.differences.push_back("the training data: " + d);
        return report;
      }
    }
    const std::vector<std::string> functions = train.functions();
    s.executor.prepare(std::vector<llvm::StringRef>(functions.begin(), functions.end()));
    logged = readLoggedSteps(q.outDir);
    const int64_t done = begin();
    report.begin = report.end = std::max<int64_t>(done, 0);
    while (done >= 0 && report.end < q.to && !step())
      ;
    return report;
  }

private:
  Session &s;
  const ReplayRequest &q;
  const Module &m;
  const CheckpointStore store;
  const std::vector<int64_t> saved;  // steps of its checkpoints, newest first
  const std::unique_ptr<TrainingData> data;
  TrainStep train;
  std::map<int64_t, LoggedStep> logged;
  std::vector<int64_t> bad;  // steps of checkpoints that are reported
  ReplayReport report;

  const CertifiedStep *certified(int64_t step) const {
    const auto it = std::lower_bound(q.certified.begin(), q.certified.end(), step,
                                     [](const CertifiedStep &c, int64_t step) { return c.step < step; });
    return it != q.certified.end() && it->step == step ? &*it : nullptr;
  }

  /// Loads a checkpoint. Returns false if it is damaged, is gone, or is not as certified, which the report then says.
  bool load(int64_t step) {
    if (std::find(bad.begin(), bad.end(), step) != bad.end())
      return false;
    std::string wrong;
    try {
      store.load(s.executor, modelIdentity(m), step);
      if (const CertifiedStep *c = certified(step))
        wrong = statesThatDiffer(c->after, digestsOfStates(s.executor));
      if (!wrong.empty())
        wrong = fmt::format("the checkpoint of step {} is not as certified: {}", step, wrong);
    } catch (const UserError &e) {
      const ErrorCode code = e.diagnostics[0].code;
      if (code != ErrorCode::CheckpointDamaged && code != ErrorCode::FileMissing)
        throw;
      const std::vector<int64_t> now = store.steps();
      if (std::find(now.begin(), now.end(), step) == now.end())
        return false;  // a run that goes on has removed it
      wrong = e.diagnostics[0].message;
    }
    if (wrong.empty())
      return true;
    bad.push_back(step);
    report.differences.push_back(wrong);
    return false;
  }

  /// Sets the states that the span begins with. Returns the number of steps done, or -1 if there are none.
  int64_t begin() {
    for (int64_t step : saved)
      if (step < q.from && step >= q.origin.since && step > 0 && load(step)) {
        q.say(fmt::format("from the checkpoint of step {}", step));
        report.checkpoints += certified(step) != nullptr;
        return step;
      }
    if (q.origin.since > 0) {
      report.differences.push_back(
          fmt::format("steps {} to {} cannot be replayed: no good checkpoint of step {} to {} is left",
                      q.origin.since + 1, q.to, q.origin.since, std::max(q.origin.since, q.from - 1)));
      return -1;
    }
    q.say("from the beginning");
    for (const bool parameters : {true, false})
      for (const State *state : savedStates(m, parameters))
        if (fact<&InitialFacts::init>(*state) != Initial::normal)
          fillConstantState(s.executor, *state);  // a bad checkpoint may have been loaded
    initializeStates(s.executor, s.plan.run.seed);
    if (s.plan.run.initFrom != "scratch")
      beginWithWeights(s.executor, llvm::StringRef(s.plan.run.initFrom).split(':').second.str(), modelIdentity(m));
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
      const bool withKernels = q.origin.plan == s.plan.hash && !was->kernels.empty();
      if (const std::string d = differenceOfSteps(*was, *is, *certifying, withKernels); !d.empty())
        return differs(d);
      ++report.certified;
    }
    if (const auto line = logged.find(number); line != logged.end()) {
      const std::string d = numbersThatDiffer(r.loss, r.gradNorm, "log", line->second.loss, line->second.gradNorm);
      if (!d.empty())
        return differs(d);
      ++report.logged;
    }
    if (std::find(saved.begin(), saved.end(), number) != saved.end() && !isCheckpoint(number, is))
      return true;
    if (keeps)
      q.keep(*is);
    return false;
  }

  /// Loads a checkpoint over the states that were computed. Returns false if the states in it, or those that they
  /// became, differ. A damaged checkpoint leaves them as they are.
  bool isCheckpoint(int64_t number, const std::optional<CertifiedStep> &is) {
    const StateDigests computed = is ? is->after : digestsOfStates(s.executor);
    if (!load(number)) {
      const bool isSame = digestsOfStates(s.executor) == computed;
      if (!isSame && report.differences.empty())
        report.differences.push_back(fmt::format("the checkpoint of step {} could not be read", number));
      return isSame;
    }
    const std::string states = statesThatDiffer(digestsOfStates(s.executor), computed);
    if (!states.empty())
      report.differences.push_back(fmt::format("the checkpoint of step {} has other values: {}", number, states));
    report.checkpoints += states.empty();
    return states.empty();
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
