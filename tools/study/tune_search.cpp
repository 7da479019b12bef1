#include "tools/study/tune_search.h"

#include "codegen/codegen.h"
#include "runtime/device/profile.h"
#include "runtime/tuning/tuned_schedules.h"
#include "runtime/tuning/tuning_log.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <unistd.h>

namespace gptc {

std::string newSession(int n) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return fmt::format("{:012}.{:09}-{}-{:04}", int64_t(t.tv_sec), int64_t(t.tv_nsec), getpid(), n);
}

int trialsOnRecord(const TuningRecords &records, llvm::StringRef problem, llvm::StringRef machine) {
  std::set<std::pair<std::string, std::string>> all;
  for (const TuningRecord &r : records.all())
    if (r.problem == problem && r.machine == machine && !r.fromElsewhere)
      all.insert({r.schedule.str(), r.source});
  return int(all.size());
}

/// The records of a search's race; its other trials are recorded already.
static std::vector<TuningRecord> raceOf(const SearchResult &found, const TuningRecord &problem,
                                        const std::string &session) {
  std::vector<TuningRecord> all;
  for (const Trial &t : found.trials) {
    if (t.outcome != Trial::Outcome::timed || !t.raced)
      continue;
    TuningRecord &r = all.emplace_back(recordOf(problem, t, session));
    r.raced = t.raced;
    r.noise = found.noise;
    r.isDefault = &t == &found.trials[0];
  }
  return all;
}

namespace {

/// Counts trials during a search.
class CountingLog : public RecordingLog {
public:
  CountingLog(TuningRecords &records, const TuningRecord &problem, const std::string &session, bool again,
              TunedKernel &k, TuneReport &report, const std::function<void()> &tell)
      : RecordingLog(records, problem, session, again), k(k), report(report), tell(tell) {}
  std::optional<Trial> find(const Trial &t) override {
    std::optional<Trial> before = RecordingLog::find(t);
    const bool counts = before && before->outcome != Trial::Outcome::suspect;
    report.knownTrials += counts;
    seen(counts ? *before : t);
    return before;
  }
  void add(const Trial &t) override {
    RecordingLog::add(t);
    ++report.trials;
    seen(t);
  }

private:
  TunedKernel &k;
  TuneReport &report;
  const std::function<void()> &tell;
  double base = 0;  // seconds of the default, which is looked up first

  void seen(const Trial &t) {
    if (t.outcome != Trial::Outcome::timed || !t.time.runs)  // not timed yet
      return;
    base = base ? base : t.time.median;
    k.raced = std::min(k.raced, t.time.median / base);
    tell();
  }
};

}  // namespace

void searchKernel(CandidateBench &bench, std::vector<Schedule> space, const Op &op, const Target &target,
                  TuningRecords &records, SearchLimits limits, bool again, TunedKernel &k, TuneReport &report,
                  const std::function<void()> &tell) {
  const TuningRecord problem = problemOf(op, target);
  const std::string session = newSession(report.searched);
  CountingLog log(records, problem, session, again, k, report, tell);
  tell();
  limits.log = &log;
  limits.proposed = TunedSchedules(records, target).nearest(op);
  records.keepGroup(op, target);
  const SearchResult found = searchSchedules(bench, std::move(space), limits);
  ++report.searched;
  k.tried = found.trials.size();
  k.candidates = found.candidates;
  k.raced = found.trials[found.best].raced;
  k.best = found.trials[found.best].schedule;
  for (const Trial &t : found.trials) {
    if (limits.proposed && t.schedule == *limits.proposed)
      k.nearestRaced = t.raced;
    report.failed += t.outcome != Trial::Outcome::timed;
  }
  if (!k.baseMs)
    k.baseMs = 1e3 * found.trials[0].time.median;
  records.append(raceOf(found, problem, session));
}

TuneProgress progressOf(const TuneReport &report, const TunedKernel &k, int kernels, double secondsLeft) {
  return {report.searched, kernels,    k.place + " " + k.shapes, report.trials + report.knownTrials, report.knownTrials,
          k.raced,         secondsLeft};
}

TuneReport tuneAlone(const TuneRequest &request, const KernelsAlone &a,
                     const std::function<void(const TuneProgress &)> &progress) {
  const GroupsByProblem groups(a.planned, a.target);
  TunedSchedules tuned(a.records, a.target, &a.pool);
  TuneReport report;
  struct Work {
    const Op *op;
    TunedKernel kernel;
    double weight;
  };
  std::vector<Work> work;
  double all = 0;
  for (const auto &[problem, ops] : groups.ops) {
    const Op &op = *ops.front();
    Work w{&op, {}, 0};
    w.kernel.place = describe(op), w.kernel.shapes = shapesOf(op);
    w.kernel.instances = int(ops.size()), w.kernel.calls = groups.calls.at(problem);
    w.kernel.flops = flopsOf(op), w.kernel.bytes = bytesOf(op), w.kernel.operands = operandsOf(op);
    w.kernel.base = w.kernel.best = defaultSchedule(op, a.target);
    w.kernel.candidates = scheduleSpace(op, a.target).size();
    w.weight = std::max(w.kernel.calls, 0.01) * std::max(w.kernel.flops / a.flopsPerByte, w.kernel.bytes);
    w.kernel.known = !request.again && tuned.isKnown(op);
    if (w.kernel.known) {
      ++report.known;
      report.knownTrials += trialsOnRecord(a.records, problem, fingerprintOf(a.target));
    }
    work.push_back(std::move(w));
    if (work.back().kernel.candidates && !work.back().kernel.known)
      all += work.back().weight;
  }
  llvm::stable_sort(work, [](const Work &x, const Work &y) { return x.weight > y.weight; });
  const int kernels = int(llvm::count_if(work, [](const Work &w) { return w.kernel.candidates && !w.kernel.known; }));
  for (Work &w : work) {
    TunedKernel &k = w.kernel;
    const bool stopped = request.stop && request.stop->load();
    if (k.candidates && !k.known && !stopped && a.left() > 0) {
      const SearchLimits limits = {.seconds = std::max(a.leastSeconds, a.left() * w.weight / all), .cold = a.cold};
      std::vector<Schedule> space;
      const std::unique_ptr<CandidateBench> bench = a.bench(*w.op, space);
      searchKernel(*bench, std::move(space), *w.op, a.target, a.records, limits, request.again, k, report,
                   [&] { progress(progressOf(report, k, kernels, a.left())); });
      all -= w.weight;
      k.ms = k.baseMs * (k.best == k.base ? 1 : k.raced);
    }
    report.kernels.push_back(std::move(k));
  }
  report.unsearched = kernels - report.searched;
  report.trials += report.knownTrials;
  return report;
}

}  // namespace gptc
