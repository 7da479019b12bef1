#include "tools/estimate/certainty.h"

#include "support/diagnostics.h"

#include "llvm/ADT/ArrayRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gptc {

namespace {

// Measured seconds per step over those forecast with nothing fitted. GPUs: the middle 90% of 142 published runs on 8
// A100 or H100 (tools/bench/published-runs). CPUs: all twelve of tools/bench/forecast, on a machine that was measured.
constexpr Certainty onGpus{0.92, 1.87, true}, onCpus{0.80, 1.18, true};

bool hasInterval(const Fitted &f) { return f.low < f.high; }

/// How far one direction of a doubt goes, and another: squares of logarithms of factors.
class Spread {
public:
  void widen(double low, double high) {
    down += std::pow(std::max(0.0, -std::log(low)), 2);
    up += std::pow(std::max(0.0, std::log(high)), 2);
  }
  Certainty certainty(bool byDefault) const { return {std::exp(-std::sqrt(down)), std::exp(std::sqrt(up)), byDefault}; }

private:
  double down = 0, up = 0;
};

bool hasSpeed(const Observation &o) { return o.days > 0 || o.secondsPerStep > 0 || o.tokensPerSecond > 0; }

}  // namespace

Certainty certaintyOf(Forecaster &f, const Estimate &e) {
  const bool cpu = f.cluster().device.isCpu;
  const Fitted slowdown = f.cluster().software.slowdown, overhead = f.cluster().software.stepOverhead,
               effective = f.cluster().network.effective;
  if (e.byCode || !hasInterval(slowdown))
    return cpu ? onCpus : onGpus;
  auto stepWith = [&](const Fitted &s, const Fitted &o, const Fitted &n) {
    f.setFitted(s, o, n);
    return (e.planned ? f.forecast(e.strategy) : f.estimate(e.strategy)).step;
  };
  auto positive = [](const Fitted &x) { return std::max(x.low, 1e-3 * x.value); };  // a divisor, or all of a step
  Spread all;
  auto widen = [&](double fastest, double slowest) { all.widen(fastest / e.step, slowest / e.step); };
  widen(stepWith(Fitted(positive(slowdown)), overhead, effective),
        stepWith(Fitted(slowdown.high), overhead, effective));
  if (hasInterval(overhead))
    widen(stepWith(slowdown, Fitted(overhead.low), effective), stepWith(slowdown, Fitted(overhead.high), effective));
  if (hasInterval(effective))
    widen(stepWith(slowdown, overhead, Fitted(effective.high)),
          stepWith(slowdown, overhead, Fitted(positive(effective))));
  f.setFitted(slowdown, overhead, effective);
  if (const std::optional<double> scatter = f.cluster().software.scatter)
    all.widen(1 / *scatter, *scatter);
  return all.certainty(false);
}

Certainty certaintyOfDays(const Certainty &ofStep, const RunTokens &tokens) {
  Spread all;
  all.widen(ofStep.low, ofStep.high);
  all.widen(tokens.low / tokens, tokens.high / tokens);
  return all.certainty(ofStep.byDefault);
}

void judge(Forecaster &f, std::vector<Estimate> &all, size_t first) {
  for (Estimate &e : llvm::MutableArrayRef<Estimate>(all).drop_front(first))
    if (e.problem.empty())
      e.sure = certaintyOf(f, e);
}

Tried triedIn(const ClusterConfig &cluster) {
  Tried t;
  for (const Observation &o : cluster.observations) {
    if (!hasSpeed(o))
      continue;
    t.nodes |= o.gpus > cluster.node.devices;
    t.pipeline |= o.pipeline > 1;
    try {
      const ParallelConfig p = readForForecast(o.model, o.settings, o.gpus, cluster, o.pipeline).parallel;
      t.tensor |= p.tensor > 1;
      t.tensorOverNodes |= p.tensor > cluster.node.devices;
      t.offload |= p.offload == "optimizer";
      t.compressions.insert(p.compression);
    } catch (const UserError &) {
      // `gptc calibrate` says what is wrong with it.
    }
  }
  return t;
}

std::vector<std::string> neverSeen(const Strategy &s, const Tried &tried, int64_t perNode) {
  std::vector<std::string> all;
  auto add = [&](bool has, bool seen, const char *what) {
    if (has && !seen)
      all.push_back(what);
  };
  add(s.gpus > perNode, tried.nodes, "several nodes");
  add(s.tensor > 1 && s.tensor <= perNode, tried.tensor, "tensor");
  add(s.tensor > perNode, tried.tensorOverNodes, "tensor over nodes");
  add(s.pipeline > 1, tried.pipeline, "pipeline");
  add(s.offload, tried.offload, "offload");
  add(s.compression != "none", tried.compressions.count(s.compression), "compression");
  return all;
}

void markNeverSeen(std::vector<Estimate> &all, const ClusterConfig &cluster) {
  const Tried tried = triedIn(cluster);
  for (Estimate &e : all)
    if (e.problem.empty())
      e.neverSeen = neverSeen(e.strategy, tried, cluster.node.devices);
}

std::string sourceOf(const Certainty &sure, const ClusterConfig &cluster) {
  if (!sure.byDefault)
    return fmt::format("by the intervals of the scalars in {}, fitted to its log, {}", cluster.file,
                       cluster.software.scatter ? "and how far its runs scatter"
                                                : "of the mean of runs: it has no software.scatter, which gptc "
                                                  "calibrate finds");
  return fmt::format("a default, with no interval fitted: {} took {:.2f} to {:.2f} x the time forecast",
                     cluster.device.isCpu ? "12 runs on a measured CPU" : "142 published runs on 8 A100 or H100",
                     sure.low, sure.high);
}

}  // namespace gptc
