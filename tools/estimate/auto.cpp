#include "tools/estimate/auto.h"

#include "support/diagnostics.h"
#include "tools/estimate/search.h"

#include "llvm/ADT/STLExtras.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gptc {

namespace {

/// One node for all ranks of this target, with the links of typical shared memory, or of NVLink and PCIe.
ClusterConfig clusterOf(const Target &target, int64_t ranks, int64_t bytesPerRank) {
  const MachineRates r = ratesOf(target);
  ClusterConfig c;
  c.name = target.name;
  DeviceSpec &d = c.device;
  d.isCpu = !target.isCuda();
  d.fp32 = r.fp32, d.tf32 = r.tf32, d.fp16 = r.fp16, d.bf16 = r.bf16;
  d.memory = double(bytesPerRank) * double(d.isCpu ? ranks : 1);  // shared by the ranks of a node
  d.bandwidth = r.dram, d.cacheBandwidth = r.cache, d.cacheBytes = r.cacheBytes;
  d.launch = r.launch;
  d.packs = r.packs;
  d.matmul = r.matmul, d.attention = r.attention, d.attentionGrad = r.attentionGrad;
  d.elementwise = r.elementwise, d.scatter = r.scatter;
  c.node.devices = ranks;
  c.node.bandwidth = d.isCpu ? 5e9 : 200e9;
  if (!d.isCpu)
    c.node.hostLink = 25e9, c.node.hostBandwidth = 200e9;
  return c;
}

/// The cluster of a file, for this target, with at most `bytesPerRank` per rank.
ClusterConfig clusterOf(const std::string &file, const Target &target, int64_t bytesPerRank) {
  ClusterConfig c = loadCluster(file);
  if (c.device.isCpu == target.isCuda())
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("{} describes {}, and the plan is for {}", file, c.device.isCpu ? "CPUs" : "GPUs",
                                target.isCuda() ? target.name : "a CPU"),
                    c.device.isCpu ? "name a cluster of GPUs, or --target cpu"
                                   : "name a cluster of CPUs, or --target cuda");
  if (target.isCuda())
    c.device.memory = std::min(c.device.memory, double(bytesPerRank));
  if (!c.software.isGptc())
    c.software = SoftwareSpec();
  return c;
}

}  // namespace

std::vector<Decision> chooseParallel(Config &config, const Target &target, int64_t bytesPerRank,
                                     const std::string &clusterFile) {
  ParallelConfig &p = config.parallel;
  const bool stageOpen = !config.fixes("parallel.zero_stage");
  const bool tensorOpen = config.isAuto("parallel.tensor"), offloadOpen = config.isAuto("parallel.offload");
  const int64_t ranks = p.data * p.tensor;
  if (p.needsWholeRanks())  // they leave no choice
    return {};
  if (!(stageOpen && p.data > 1) && !(tensorOpen && ranks > 1) && !(offloadOpen && target.isCuda()))
    return {};
  Forecaster f(config, clusterFile.empty() ? clusterOf(target, ranks, bytesPerRank)
                                           : clusterOf(clusterFile, target, bytesPerRank));
  std::vector<Estimate> all = strategiesOf(f, ranks, ForecastBy::formulas);
  auto best = [&](const std::vector<Estimate> &some) { return size_t(bestOf(some) - some.data()); };
  size_t at = best(all);
  // The formula is a lower bound of a plan's memory. If it is a small part of the device's memory, the plan fits too.
  while (target.isCuda() && all[at].fits() && all[at].bytesPeak() > f.cluster().device.memory / 4) {
    const Estimate planned = f.forecast(all[at].strategy);
    if (planned.fits())
      break;
    all[at].outOfMemory = true;
    at = best(all);
  }
  const Estimate chosen = all[at];
  const Strategy &s = chosen.strategy;
  p.tensor = s.tensor;
  p.data = s.data();
  if (stageOpen || p.data == 1)
    p.zeroStage = s.zeroStage;
  if (offloadOpen)
    p.offload = s.offload ? "optimizer" : "none";
  if (!config.fixes("parallel.logical_shards"))
    p.logicalShards = p.data;
  config.train.accumulate = s.accumulate;

  auto relative = [](const Estimate &a, const Estimate &b) {
    return Effect{a.bytesPeak() - b.bytesPeak(), 0, 1e3 * (a.step - b.step)};
  };
  std::vector<Decision> decisions;
  // One decision per value: the best strategy against the best with each other value.
  auto decide = [&](const char *name, const char *against, auto valueOf) {
    std::map<std::string, std::vector<Estimate>> by;
    for (const Estimate &e : all)
      by[valueOf(e.strategy)].push_back(e);
    const std::string choice = valueOf(s);
    Decision d{"partition", name, choice, {}, fmt::format("forecast; against {}", against), {}};
    for (auto &[value, some] : by) {
      const Estimate &e = *bestOf(some);
      if (value == by.begin()->first)
        d.effect = relative(chosen, e);
      if (value != choice)
        d.rejected.push_back({value, relative(e, chosen),
                              !e.fits()                                    ? "does not fit into memory"
                              : e.step > 1.001 * chosen.step               ? "takes longer"
                              : e.bytesPeak() > 1.001 * chosen.bytesPeak() ? "takes more memory"
                                                                           : "no better"});
    }
    decisions.push_back(std::move(d));
  };
  if (tensorOpen && ranks > 1)
    decide("tensor", "1", [](const Strategy &o) { return fmt::format("{}", o.tensor); });
  if (offloadOpen && target.isCuda())
    decide("offload", "none", [](const Strategy &o) -> std::string { return o.offload ? "optimizer" : "none"; });
  if (stageOpen && p.data > 1) {
    llvm::erase_if(all,
                   [&](const Estimate &e) { return e.strategy.tensor != s.tensor || e.strategy.offload != s.offload; });
    decide("zero_stage", "stage 0", [](const Strategy &o) { return fmt::format("{}", o.zeroStage); });
  }
  return decisions;
}

}  // namespace gptc
