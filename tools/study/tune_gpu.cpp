// 1. Compile the model for this machine's GPU with default schedules.
// 2. Search distinct kernels that have a choice and no race on record, ordered by their lower bound of time on any GPU:
//    the longer of computing and moving data. Time is in proportion to that bound, at least a second each, because
//    compilation takes time. Steps are not compared: a plan's step on a GPU is one graph, in which kernels run
//    concurrently.
#include "frontends/model_builder.h"
#include "runtime/cuda/group_bench.h"
#include "runtime/device/profile.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "tools/compiler/compile.h"
#include "tools/planner/variants.h"
#include "tools/study/tune_search.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <chrono>

namespace gptc {

TuneReport tuneOnGpu(const TuneRequest &request, const Config &given,
                     const std::function<void(const TuneProgress &)> &progress) {
  constexpr double flopsPerByte = 200;  // of a GPU with tensor cores
  const auto begin = std::chrono::steady_clock::now();
  auto left = [&] {
    return request.seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  bool here = true;
  Config config = given;
  const Target target = targetOf(config, here);
  chooseMicroBatch(config, target, here, [&](const Config &c) { return planModule(c, target, "", int64_t(1) << 62); });
  const cuda::Gpu gpu(target);
  ThreadPool pool(hostTarget(request.threads).threads);
  TuningRecords records(request.cacheDir);
  const std::unique_ptr<Module> module = runFrom(*buildModel(config), "canonicalize", target);
  const GroupsByProblem groups(*module, target);
  TunedSchedules tuned(records, target, &pool);
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
    w.kernel.base = w.kernel.best = defaultSchedule(op, target);
    w.kernel.candidates = scheduleSpace(op, target).size();
    w.weight = std::max(w.kernel.calls, 0.01) * std::max(w.kernel.flops / flopsPerByte, w.kernel.bytes);
    w.kernel.known = !request.again && tuned.isKnown(op);
    if (w.kernel.known) {
      ++report.known;
      report.knownTrials += trialsOnRecord(records, problem, fingerprintOf(target));
    }
    work.push_back(std::move(w));
    if (work.back().kernel.candidates && !work.back().kernel.known)
      all += work.back().weight;
  }
  llvm::stable_sort(work, [](const Work &a, const Work &b) { return a.weight > b.weight; });
  const int kernels = int(llvm::count_if(work, [](const Work &w) { return w.kernel.candidates && !w.kernel.known; }));
  for (Work &w : work) {
    TunedKernel &k = w.kernel;
    if (k.candidates && !k.known && left() > 0) {
      const SearchLimits limits = {.seconds = std::max(1.0, left() * w.weight / all), .cold = true};
      cuda::GroupBench bench(gpu, *w.op, target, pool, limits.cold);
      searchKernel(bench, bench.space(), *w.op, target, records, limits, request.again, k, report,
                   [&] { progress(progressOf(report, k, kernels, left())); });
      all -= w.weight;
      k.ms = k.baseMs * (k.best == k.base ? 1 : k.raced);
    }
    report.kernels.push_back(std::move(k));
  }
  report.unsearched = kernels - report.searched;
  report.trials += report.knownTrials;
  report.note = "steps are not compared on a GPU";
  report.seconds = request.seconds - left();
  return report;
}

}  // namespace gptc
