#include "tools/estimate/auto.h"

#include "tools/estimate/search.h"

#include <fmt/format.h>

namespace gptc {

namespace {

/// A machine of this target whose ranks are neighbours. Links: of typical shared memory, or of NVLink.
ClusterConfig clusterOf(const Target &target, int64_t ranks, int64_t bytesPerRank) {
  const MachineRates r = ratesOf(target);
  ClusterConfig c;
  c.name = target.name;
  DeviceSpec &d = c.device;
  d.isCpu = !target.isCuda();
  d.fp32 = r.fp32, d.tf32 = r.tf32, d.fp16 = r.fp16, d.bf16 = r.bf16;
  d.memory = double(bytesPerRank) * double(d.isCpu ? ranks : 1);  // which ranks of a node share
  d.bandwidth = r.dram, d.cacheBandwidth = r.cache, d.cacheBytes = r.cacheBytes;
  d.launch = r.launch;
  d.packs = r.packs;
  d.matmul = r.matmul, d.attention = r.attention, d.attentionGrad = r.attentionGrad;
  d.elementwise = r.elementwise, d.scatter = r.scatter;
  c.node.devices = ranks;
  c.node.bandwidth = d.isCpu ? 5e9 : 200e9;
  return c;
}

}  // namespace

std::optional<Decision> chooseZeroStage(Config &config, const Target &target, int64_t bytesPerRank) {
  auto written = config.written.find("parallel.zero_stage");
  const bool fixed = written != config.written.end() && !std::get_if<std::string>(&written->second.value);
  const int64_t ranks = config.parallel.data * config.parallel.tensor;
  if (fixed || config.parallel.data < 2)
    return std::nullopt;
  Forecaster f(config, clusterOf(target, ranks, bytesPerRank));
  const std::vector<Estimate> all = strategiesOf(f, ranks, ForecastBy::formulas);
  const Estimate &best = *bestOf(all);
  config.parallel.zeroStage = best.strategy.zeroStage;
  auto relative = [](const Estimate &a, const Estimate &b) {
    return Effect{a.bytesPeak() - b.bytesPeak(), 0, 1e3 * (a.step - b.step)};
  };
  Decision d{"partition",
             "zero_stage",
             fmt::format("{}", best.strategy.zeroStage),
             relative(best, all.front()),
             "forecast; against stage 0",
             {}};
  for (const Estimate &e : all)
    if (&e != &best)
      d.rejected.push_back({fmt::format("{}", e.strategy.zeroStage), relative(e, best),
                            !e.fits()                                  ? "does not fit into memory"
                            : e.step > 1.001 * best.step               ? "takes longer"
                            : e.bytesPeak() > 1.001 * best.bytesPeak() ? "takes more memory"
                                                                       : "no better"});
  return d;
}

}  // namespace gptc
