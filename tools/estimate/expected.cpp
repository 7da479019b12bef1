#include "tools/estimate/expected.h"

#include "ir/facts.h"
#include "ir/gpu_sheets.h"
#include "ir/mesh.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace gptc {

LinkRates linkOnOneMachine(const Target &target, const MachineRates &rates) {
  return {target.isCuda() ? 200e9 : rates.dram / 3, 5e-6};
}

double collectivesOnOneMachine(const PlannedStep &step, const Target &target, const MachineRates &rates) {
  const LinkRates link = linkOnOneMachine(target, rates);
  return step.reduce.seconds(link) + step.gather.seconds(link) + step.exchange.seconds(link);
}

namespace {

/// Bytes of a process besides the arena: program, LLVM, compiled kernels.
constexpr double processBytes = 80e6;

/// Calls of @eval per rank for all evaluations of a run (runtime/train/trainer.cpp).
double passesOfEvaluation(const Plan &plan, const Mesh &mesh) {
  const RunSettings &run = plan.run;
  const Module &m = *plan.planned;
  if (run.valData.empty())
    return 0;
  const double times = run.evalEvery > 0 ? std::max(1.0, std::ceil(double(run.steps) / double(run.evalEvery))) : 1;
  const double pass = double(fact<&BatchFacts::microBatch>(m) * mesh.data);
  double windows = double(run.evalSteps) * pass * double(fact<&BatchFacts::accumulate>(m));
  // At most the whole split, at two bytes per token; a glob's size is unknown.
  std::error_code none;
  if (const auto bytes = std::filesystem::file_size(run.valData, none); !none) {
    const double all = double(bytes) / 2 / double(fact<&ModelFacts::blockSize>(m));
    windows = run.evalSteps > 0 ? std::min(windows, all) : all;
  }
  return times * std::ceil(windows / pass);
}

}  // namespace

Expected expectedOf(const Plan &plan, int64_t nodes) {
  const Module &m = *plan.planned;
  const Mesh mesh = Mesh::of(m);
  Target target = plan.target;
  if (!target.isCuda())  // ranks of one machine share its cores
    target.threads = unsigned(std::max<int64_t>(1, target.threads * nodes / mesh.ranks()));
  const MachineRates rates = ratesOf(target);
  const PlannedStep step = plannedStep(m, plan.target, rates);
  Expected e;
  e.network = nodes > 1 && mesh.ranks() > 1;
  e.step = step.kernels() + (mesh.ranks() > 1 && !e.network ? collectivesOnOneMachine(step, target, rates) : 0);
  e.run = double(plan.run.steps) * e.step;
  if (const Function *eval = m.function("eval"))
    e.run += passesOfEvaluation(plan, mesh) * costOf(*eval, rates).seconds;
  e.bytes = step.memory.arena() + (target.isCuda() ? 0 : processBytes);
  return e;
}

std::string roughly(double s) {
  auto two = [](double n) {
    return n < 9.95 ? fmt::format("{:.1f}", n) : fmt::format("{:.0f}", n < 99.5 ? n : 10 * std::round(n / 10));
  };
  return s < 0.99     ? two(1e3 * s) + " ms"
         : s < 100    ? two(s) + " s"
         : s < 6000   ? two(s / 60) + " min"
         : s < 172800 ? two(s / 3600) + " h"
                      : two(s / 86400) + " days";
}

std::string inWords(const Expected &e, const Plan &plan) {
  const bool cuda = plan.target.isCuda();
  return fmt::format(
      "about {} a step, {} for {} steps, {:.1f} GB{}{}", roughly(e.step), roughly(e.run), plan.run.steps,
      std::max(0.1, 1e-9 * e.bytes),
      cuda ? fmt::format(" of the GPU and its context, on one like {}", largestGpu(plan.target.cpu).name.str()) : "",
      e.network ? "; without what goes over the network (gptc estimate --cluster)" : "");
}

}  // namespace gptc
