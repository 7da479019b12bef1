// 1. Compile the model with default schedules; a few steps give each kernel's share of the step.
// 2. Search distinct kernels that have no race on record, largest share first, with time in proportion to the share.
//    Record every trial when it is made, so a killed search continues where it was and makes no trial twice.
// 3. Compile the model again from the records, and run steps of both plans alternately. A kernel that is slower in the
//    step than its default, beyond the noise, is taken back, which is recorded. Compare the rest once more; if the step
//    is not faster as a whole, take back everything.
#include "tools/study/tune.h"

#include "codegen/tuner/group_bench.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/device/arena.h"
#include "runtime/device/profile.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/compiler/compile.h"
#include "tools/planner/gir_file.h"
#include "tools/planner/variants.h"
#include "tools/study/tune_search.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <chrono>

namespace gptc {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Schedule scheduleOf(const Op &op) {
  Schedule s;
  GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(op), s), "schedule of {}", op.loc);
  return s;
}

class Tuner {
public:
  Tuner(const TuneRequest &request, const std::function<void(const TuneProgress &)> &progress)
      : request(request), progress(progress), config(readConfig(request.modelFile, request.settings)),
        target(hostTarget(request.threads)), machine(fingerprintOf(target)), records(request.cacheDir) {
    imported = buildModel(config);
  }

  TuneReport run() {
    std::unique_ptr<Module> module = compile(nullptr);
    if (request.onlyNew && allIsKnown(*module))
      return std::move(report);
    measureStep(std::move(module));
    search();
    compare();
    report.trials += report.knownTrials;
    for (auto &[problem, k] : kernels)
      report.kernels.push_back(std::move(k));
    llvm::stable_sort(report.kernels, [](const TunedKernel &a, const TunedKernel &b) {
      return a.calls * a.baseMs > b.calls * b.baseMs;
    });
    report.seconds = now() - begin;
    return std::move(report);
  }

private:
  const TuneRequest &request;
  const std::function<void(const TuneProgress &)> &progress;
  const double begin = now();
  double measuring = 0;  // seconds of measuring the machine; not part of the time limit
  const Config config;
  const Target target;
  const std::string machine;
  TuningRecords records;
  TuneReport report;
  std::unique_ptr<Module> imported;
  std::unique_ptr<StepRunner> runner;  // with default schedules
  std::optional<GroupsByProblem> groups;
  std::map<std::string, TunedKernel> kernels;  // by problem
  std::map<std::string, double> weights;       // milliseconds per step
  float firstLoss = 0;
  double stepSeconds = 0;
  double startSeconds = 0;  // seconds for compiling and a first step

  bool stopped() const { return request.stop && request.stop->load(); }
  double end() const { return stopped() ? begin : begin + measuring + request.seconds; }
  ThreadPool &pool() { return runner->session.pool; }
  std::unique_ptr<Module> compile(ScheduleSource *schedules) {
    return runFrom(*imported, "canonicalize", target, [&](std::vector<PassUse> &uses) {
      for (PassUse &u : uses)
        u.options.schedules = schedules;
    });
  }

  bool allIsKnown(const Module &module) {
    TunedSchedules tuned(records, target);
    const GroupsByProblem all(module, target);
    for (const auto &[problem, ops] : all.ops)
      if (!scheduleSpace(*ops.front(), target).empty()) {
        if (!tuned.isKnown(*ops.front()))
          return false;
        ++report.known;
      }
    return true;
  }

  void measureStep(std::unique_ptr<Module> module) {
    runner = std::make_unique<StepRunner>(std::move(module), target, request.cacheDir, request.threads);
    groups.emplace(*runner->session.plan.planned, target);
    // The time this takes depends on the machine: streaming beyond a large cache, in memory that a virtual machine's
    // host has to find first, may take longer than a search.
    const double asked = now();
    report.speed = measureSpeed(pool(), target, request.cacheDir);
    measuring = now() - asked;
    TimesByProblem times(*groups);
    runner->step();
    startSeconds = now() - begin - measuring;
    firstLoss = runner->loss;
    runner->session.executor.observer = &times;
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i)
      seconds.push_back(runner->step());
    stepSeconds = spreadOf(seconds).median;
    runner->session.executor.observer = nullptr;
    for (const auto &[problem, ops] : groups->ops) {
      const Op &op = *ops.front();
      TunedKernel &k = kernels[problem];
      k.place = describe(op);
      k.shapes = shapesOf(op);
      k.instances = int(ops.size());
      k.calls = groups->calls.at(problem);
      k.flops = flopsOf(op);
      k.bytes = bytesOf(op);
      k.operands = operandsOf(op);
      k.base = k.best = defaultSchedule(op, target);
      k.candidates = scheduleSpace(op, target).size();
      k.baseMs = k.ms = 1e3 * times.timing(problem).median;
      weights[problem] = k.calls * k.baseMs;
    }
  }

  void search() {
    struct Work {
      std::string problem;
      double weight;
    };
    std::vector<Work> work;
    double all = 0;
    for (auto &[problem, k] : kernels) {
      if (!k.candidates)
        continue;
      k.known = !request.again && TunedSchedules(records, target, &pool()).isKnown(*groups->ops.at(problem).front());
      if (k.known) {
        ++report.known;
        report.knownTrials += trialsOnRecord(records, problem, machine);
        continue;
      }
      // Kernels of evaluation and sampling run seldom but get some time too.
      work.push_back({problem, std::max(weights[problem], 0.002 * 1e3 * stepSeconds)});
      all += work.back().weight;
    }
    llvm::stable_sort(work, [](const Work &a, const Work &b) { return a.weight > b.weight; });

    // Reserve time for the final comparison: starting as here, and some steps.
    const double comparing = std::min(0.3 * request.seconds, startSeconds + 10 * stepSeconds);
    const bool cold = fact<&MemoryFacts::arenaBytes>(*runner->session.plan.planned) > target.l3Bytes;
    for (const Work &w : work) {
      const double left = end() - comparing - now();
      if (left <= 0)
        break;
      TunedKernel &k = kernels[w.problem];
      const Op &op = *groups->ops.at(w.problem).front();
      const SearchLimits limits = {.seconds = std::max(0.05, left * w.weight / all), .cold = cold};
      GroupBench bench(op, target, pool(), cold);
      searchKernel(bench, scheduleSpace(op, target), op, target, records, limits, request.again, k, report,
                   [&] { progress(progressOf(report, k, int(work.size()), end() - now())); });
      all -= w.weight;
    }
    report.unsearched = int(work.size()) - report.searched;
  }

  /// Compares the plan from the records with the default plan, alternately. If kernels were taken back, compares the
  /// rest once more; if that is not faster as a whole, all defaults stay.
  void compare() {
    for (int round = 0; round < 2; ++round) {
      if (stopped()) {
        report.note = "stopped: steps were not compared";
        break;
      }
      TunedSchedules tuned(records, target, &pool());
      std::unique_ptr<Module> module = compile(&tuned);
      if (print(*module) == print(*runner->session.plan.planned)) {
        if (round > 0)
          report.note = "what was faster alone is slower within the step, so the default schedules stay";
        report.verdict = {};
        return;
      }
      if (fact<&MemoryFacts::arenaBytes>(*module) > availableMemory() - (256 << 20)) {
        report.note = "not compared within the step: memory does not hold both plans";
        break;
      }
      const int before = report.takenBack;
      compareWith(std::move(module));
      if (report.takenBack == before || round == 1)
        break;
    }
    if (report.verdict.compared && !report.verdict.better)
      for (auto &[problem, k] : kernels)
        if (auto it = inStep.find(problem); it != inStep.end() && k.best != k.base)
          takeBack(problem, k, it->second.was, it->second.is, it->second.noise);
  }

  /// Takes back kernels that are slower within the step than their default, beyond the noise.
  void compareWith(std::unique_ptr<Module> module) {
    const GroupsByProblem tunedGroups(*module, target);
    TimesByProblem withBase(*groups), withTuned(tunedGroups);
    StepRunner other(std::move(module), target, request.cacheDir, request.threads);
    other.step();
    GPTC_CHECK(other.loss == firstLoss, "the tuned plan has loss {}, not {}", other.loss, firstLoss);
    runner->session.executor.observer = &withBase;
    other.session.executor.observer = &withTuned;
    std::vector<double> baseMs, ms;
    for (int i = 0; i < 3 || (i < 15 && now() + 2.5 * stepSeconds < end()); ++i) {
      baseMs.push_back(1e3 * runner->step());
      ms.push_back(1e3 * other.step());
    }
    runner->session.executor.observer = nullptr;
    report.verdict = verdictOf(baseMs, ms);
    inStep.clear();
    for (auto &[problem, k] : kernels) {
      auto it = tunedGroups.ops.find(problem);
      if (it == tunedGroups.ops.end())
        continue;
      k.best = scheduleOf(*it->second.front());
      const Timing was = withBase.timing(problem), is = withTuned.timing(problem);
      k.baseMs = 1e3 * was.median, k.ms = 1e3 * is.median;
      if (k.best == k.base || !was.runs)
        continue;
      const InStep times{was, is, withBase.noise(problem)};
      if (is.median > was.median * (1 + times.noise))
        takeBack(problem, k, was, is, times.noise);
      else
        inStep.emplace(problem, times);
    }
  }

  /// Times within the step of a kernel without its default schedule.
  struct InStep {
    Timing was, is;
    double noise;
  };
  std::map<std::string, InStep> inStep;  // by problem

  /// Records a race won by the default: the kernel is faster alone, but slower within the step or useless to it.
  void takeBack(const std::string &problem, TunedKernel &k, const Timing &was, const Timing &is, double noise) {
    std::vector<TuningRecord> race;
    const std::string session = newSession(report.takenBack);
    for (const TuningRecord *r : lastRace(records, problem, machine)) {
      if (!r->isDefault && r->schedule != k.best)
        continue;
      TuningRecord &copy = race.emplace_back(*r);
      copy.session = session;
      copy.fromElsewhere = false;  // times and checks of this machine
      copy.time = r->isDefault ? was : is;
      copy.raced = r->isDefault ? 1 : std::max(is.median / was.median, report.verdict.ratio.median);
      copy.noise = noise;
    }
    if (race.empty())  // the schedule came from the nearest shape, which goes with it
      return;
    records.append(race);
    k.best = k.base, k.ms = k.baseMs;
    k.takenBack = true;
    ++report.takenBack;
  }
};

}  // namespace

TuneReport tune(const TuneRequest &request, const std::function<void(const TuneProgress &)> &progress) {
  if (isGirFile(request.modelFile))
    throw UserError(ErrorCode::Usage, fmt::format("{}: a module has its schedules already", request.modelFile),
                    "give the model.toml");
  const Config config = readConfig(request.modelFile, request.settings);
  if (config.compile.target == "cuda")
    return tuneOnGpu(request, config, progress);
  requireCpuTarget(config, "kernels are measured on this machine only",
                   "--set compile.target=cpu, or =cuda for the GPU of this machine");
  if (Mesh{config.parallel.data, config.parallel.tensor}.ranks() > 1)
    return tuneRank(request, config, progress);
  return Tuner(request, progress).run();
}

}  // namespace gptc
