#include "tools/estimate/certainty.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gptc {

namespace {

// Measured seconds per step over those forecast with nothing fitted. GPUs: the middle 90% of 142 published runs on 8
// A100 or H100 (tools/bench/published-runs). CPUs: all twelve of tools/bench/forecast, on a machine that was measured.
constexpr Certainty onGpus{0.92, 1.87, true}, onCpus{0.80, 1.18, true};

bool hasInterval(const Fitted &f) { return f.low < f.high; }

/// The value of the last setting of `key`, without the quotes of a text; "" if there is none.
llvm::StringRef settingOf(const Observation &o, llvm::StringRef key) {
  llvm::StringRef found;
  for (const std::string &s : o.settings)
    if (auto [name, value] = llvm::StringRef(s).split('='); name.trim() == key)
      found = value.trim().trim('"');
  return found;
}

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
  double down = 0, up = 0;  // squares of the changes of the step's logarithm
  auto widen = [&](double fastest, double slowest) {
    down += std::pow(std::max(0.0, std::log(e.step / fastest)), 2);
    up += std::pow(std::max(0.0, std::log(slowest / e.step)), 2);
  };
  widen(stepWith(Fitted(positive(slowdown)), overhead, effective),
        stepWith(Fitted(slowdown.high), overhead, effective));
  if (hasInterval(overhead))
    widen(stepWith(slowdown, Fitted(overhead.low), effective), stepWith(slowdown, Fitted(overhead.high), effective));
  if (hasInterval(effective))
    widen(stepWith(slowdown, overhead, Fitted(effective.high)),
          stepWith(slowdown, overhead, Fitted(positive(effective))));
  f.setFitted(slowdown, overhead, effective);
  return {std::exp(-std::sqrt(down)), std::exp(std::sqrt(up)), false};
}

std::vector<std::string> neverSeen(const Strategy &s, const ClusterConfig &cluster) {
  const int64_t node = cluster.node.devices;
  bool nodes = false, tensor = false, across = false, pipeline = false, offload = false, compression = false;
  for (const Observation &o : cluster.observations) {
    if (!hasSpeed(o))
      continue;
    int64_t degree = 1;
    settingOf(o, "parallel.tensor").getAsInteger(10, degree);
    nodes |= o.gpus > node;
    tensor |= degree > 1;
    across |= degree > node;
    pipeline |= o.pipeline > 1;
    offload |= settingOf(o, "parallel.offload") == "optimizer";
    compression |= settingOf(o, "parallel.compression") == s.compression;
  }
  std::vector<std::string> all;
  auto add = [&](bool has, bool seen, const char *what) {
    if (has && !seen)
      all.push_back(what);
  };
  add(s.gpus > node, nodes, "several nodes");
  add(s.tensor > 1 && s.tensor <= node, tensor, "tensor");
  add(s.tensor > node, across, "tensor over nodes");
  add(s.pipeline > 1, pipeline, "pipeline");
  add(s.offload, offload, "offload");
  add(s.compression != "none", compression, "compression");
  return all;
}

void judge(Forecaster &f, std::vector<Estimate> &all, size_t first) {
  for (Estimate &e : llvm::MutableArrayRef<Estimate>(all).drop_front(first))
    if (e.problem.empty()) {
      e.sure = certaintyOf(f, e);
      e.neverSeen = neverSeen(e.strategy, f.cluster());
    }
}

std::string sourceOf(const Certainty &sure, const ClusterConfig &cluster) {
  if (!sure.byDefault)
    return fmt::format("by the intervals of the scalars in {}, fitted to its log", cluster.file);
  return fmt::format("a default, with no interval fitted: {} took {:.2f} to {:.2f} x the time forecast",
                     cluster.device.isCpu ? "12 runs on a measured CPU" : "142 published runs on 8 A100 or H100",
                     sure.low, sure.high);
}

}  // namespace gptc
