#include "tools/estimate/by_code.h"

#include "codegen/codegen.h"
#include "tools/estimate/gpu_step.h"
#include "tools/planner/plan_module.h"

#include <algorithm>

namespace gptc {

CodeTimes timesByCode(const Config &config, const GpuSheet &gpu, const std::string &cacheDir) {
  Config c = config;
  Target target = cudaTarget(fmt::format("cuda:{}", gpu.arch));
  if (target.architecture >= 90)  // as `gptc compile` names it where it finds one
    target = cudaTarget(target.name + "a");
  if (c.compile.libraryCalls == "auto")
    target.features = "cublaslt,cudnn";
  c.compile.target = target.name;
  c.compile.autotune = "off";
  const GpuRates rates = gpuRatesOf(gpu);
  auto with = [&](int64_t layers) {
    c.model.nLayer = layers;
    CodeTimes t;
    for (const GpuGroup &g : gpuStepOf(*planModule(c, target, "", int64_t(1) << 62), target, rates, cacheDir).groups)
      (g.kind == StepClass::optimizer ? t.optimizer : t.passes) += g.calls * g.seconds;
    return t;
  };
  constexpr int64_t shallow = 2;
  const int64_t layers = config.model.nLayer;
  if (layers <= shallow + 1)
    return with(layers);
  const CodeTimes less = with(shallow), deeper = with(shallow + 1);
  const double more = double(layers - shallow - 1);
  auto line = [&](double a, double b) { return b + more * std::max(0.0, b - a); };
  return {line(less.passes, deeper.passes), line(less.optimizer, deeper.optimizer)};
}

}  // namespace gptc
