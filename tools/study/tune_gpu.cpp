// 1. Compile the model for this machine's GPU with default schedules.
// 2. Search kernels alone, for at least a second each, because compilation takes time. Steps are not compared: a plan's
//    step on a GPU is one graph, in which kernels run concurrently.
#include "frontends/model_builder.h"
#include "runtime/cuda/group_bench.h"
#include "tools/compiler/compile.h"
#include "tools/planner/variants.h"
#include "tools/study/tune_search.h"

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
  TuneReport report = tuneAlone(request,
                                {*module, target, pool, records, flopsPerByte, 1, true,
                                 [&](const Op &op, std::vector<Schedule> &space) {
                                   auto bench = std::make_unique<cuda::GroupBench>(gpu, op, target, pool, true);
                                   space = bench->space();
                                   return bench;
                                 },
                                 left},
                                progress);
  report.note = "steps are not compared on a GPU";
  report.seconds = request.seconds - left();
  return report;
}

}  // namespace gptc
