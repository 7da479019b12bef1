#include "tools/study/why.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/estimate/search.h"
#include "tools/study/step_ops.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <map>

namespace gptc {

namespace {

Estimate forecastOf(const std::string &run, const ClusterConfig &cluster) {
  std::string model;
  std::vector<std::string> settings;
  int64_t gpus = 0;
  llvm::SmallVector<llvm::StringRef> words;
  llvm::StringRef(run).split(words, ' ', -1, false);
  for (llvm::StringRef w : words) {
    auto [key, value] = w.split('=');
    if (key == "gpus") {
      if (value.getAsInteger(10, gpus) || gpus < 1 || gpus > (1 << 20))
        throw UserError(ErrorCode::Usage, fmt::format("{} names no number of GPUs", w.str()), "such as gpus=16");
    } else if (w.contains('=')) {
      settings.push_back(w.str());
    } else if (model.empty()) {
      model = w.str();
    } else {
      throw UserError(ErrorCode::Usage, fmt::format("--why \"{}\" names two files", run),
                      "a run is one model file and settings: \"M.toml gpus=16 parallel.zero_stage=3\"");
    }
  }
  if (model.empty())
    throw UserError(ErrorCode::Usage, fmt::format("--why \"{}\" names no model file", run),
                    "a run is a model file and settings: \"M.toml gpus=16 parallel.zero_stage=3\"");
  const Config config = readForForecast(model, settings, gpus, cluster);
  Forecaster f(config, cluster);
  const Estimate e = *bestOf(strategiesOf(f, gpus ? gpus : config.parallel.data * config.parallel.tensor));
  if (!e.problem.empty())
    throw UserError(ErrorCode::Contradiction, e.problem, e.remedy);
  return e;
}

void print(const char *name, const Estimate &e) {
  fmt::print("{}  {} GPUs, {}, {} x {}: {:.4g} s a step, {:.4g} tokens/s, bound by {}, {} at the peak{}\n", name,
             e.strategy.gpus, e.strategy.name(), e.strategy.microBatch, e.strategy.accumulate, e.step,
             e.tokensPerSecond, e.binds, formatBytes(e.bytesPeak()), e.fits() ? "" : ", OUT OF MEMORY");
}

/// The purpose of a kernel: that of the most telling op in its group.
const char *kindName(const Op &op) {
  bool optimizer = false, product = false, attention = false, collective = false, scatter = false;
  auto look = [&](const Op &o) {
    const FusionKind kind = o.def().fusion;
    product |= kind == FusionKind::matmul;
    attention |= kind == FusionKind::attention;
    collective |= kind == FusionKind::collective;
    scatter |= kind == FusionKind::scatter;
    optimizer |= o.loc == "optimizer";
  };
  look(op);
  if (op.is(OpKind::fused))
    for (const Op &inner : *op.body)
      look(inner);
  return collective  ? "collectives"
         : attention ? "attention"
         : product   ? "products"
         : scatter   ? "gradients of embeddings"
         : optimizer ? "optimizer"
                     : "between products";
}

struct Work {
  KernelCost cost;
  double kernels = 0;
};

/// Work of one step by kind.
std::map<std::string, Work> workOf(const Plan &plan) {
  const MachineRates rates = ratesOf(plan.target);
  std::map<std::string, Work> all;
  forEachOpOfStep(*plan.planned, [&](const Op &op, double times) {
    const KernelCost c = costOf(op, rates);
    if (c.seconds == 0)
      return;
    Work &w = all[kindName(op)];
    w.cost += {times * c.flops, times * c.bytes, times * c.seconds};
    w.kernels += times;
  });
  return all;
}

void print(const char *name, const Plan &plan) {
  const KernelCost step = costOfStep(*plan.planned, ratesOf(plan.target));
  fmt::print("{}  {}: {:.4g} ms a step, {:.4g} GFLOP, {:.4g} GB to and from memory, arena {}\n", name, plan.dir,
             1e3 * step.seconds, 1e-9 * step.flops, 1e-9 * step.bytes,
             formatBytes(double(fact<&MemoryFacts::arenaBytes>(*plan.planned))));
}

}  // namespace

std::vector<std::string> whySlower(const Plan &slow, const Plan &fast) {
  std::map<std::string, Work> a = workOf(slow), b = workOf(fast);
  for (const auto &[kind, work] : b)
    a[kind];
  double whole = 0;
  for (const auto &[kind, work] : a)
    whole += work.cost.seconds;
  std::vector<std::pair<double, std::string>> lines;
  auto text = [](const Work &w) {
    return fmt::format("{:.4g} ms, {:.4g} GFLOP, {:.4g} GB in {:.0f} kernels", 1e3 * w.cost.seconds,
                       1e-9 * w.cost.flops, 1e-9 * w.cost.bytes, w.kernels);
  };
  for (const auto &[kind, work] : a)
    if (const double d = work.cost.seconds - b[kind].cost.seconds; std::abs(d) > 1e-3 * whole)
      lines.push_back({d, fmt::format("{:+10.3f} ms  {}: {} against {}", 1e3 * d, kind, text(work), text(b[kind]))});
  llvm::sort(lines, [](const auto &x, const auto &y) { return std::abs(x.first) > std::abs(y.first); });
  std::vector<std::string> texts;
  for (auto &[d, line] : lines)
    texts.push_back(line);
  return texts;
}

void explainWhy(const std::string &a, const std::string &b, const std::string &clusterFile) {
  const bool plans = isGivenAsPlan(a);
  if (plans != isGivenAsPlan(b))
    throw UserError(ErrorCode::Usage, fmt::format("--why \"{}\" \"{}\" compares a plan with a forecast", a, b),
                    "two folders of plans, or two model files with settings");
  if (plans) {
    const Plan first = loadPlan(a), second = loadPlan(b);
    print("A", first);
    print("B", second);
    fmt::print("\nPer step, A minus B, predicted:\n\n");
    for (const std::string &line : whySlower(first, second))
      fmt::print("{}\n", line);
    return;
  }
  if (clusterFile.empty())
    throw UserError(ErrorCode::Usage, "--why compares forecasts, and no cluster is named",
                    "--cluster CLUSTER.toml; or name two folders of plans");
  const ClusterConfig cluster = loadCluster(clusterFile);
  requireSlowdown(cluster);
  const Estimate first = forecastOf(a, cluster), second = forecastOf(b, cluster);
  print("A", first);
  print("B", second);
  const double ratio = second.tokensPerSecond / first.tokensPerSecond;
  fmt::print("\nA takes {:.3g} x the time of B for as many tokens. Per million tokens, A minus B:\n\n", ratio);
  for (const std::string &line : whySlower(first, second))
    fmt::print("{}\n", line);
}

}  // namespace gptc
