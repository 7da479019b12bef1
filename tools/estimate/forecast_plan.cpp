// Forecaster::forecast: a configuration's own plan, priced at the rates of a cluster of CPUs.
#include "tools/estimate/forecast.h"

#include "codegen/codegen.h"
#include "ir/diagnostics.h"
#include "tools/driver/cache_dir.h"
#include "tools/driver/compile.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace gptc {

int64_t Forecaster::perNode(const Strategy &s) const {
  return machines.device.isCpu ? std::min(s.gpus, machines.node.devices) : 1;
}

double Forecaster::flopsOf(const Strategy &s) const {
  return machines.device.peak(base.precision.compute) * double(s.gpus) / double(perNode(s));
}

bool Forecaster::isPlanned(const Strategy &s) const {
  const bool built = s.pipeline == 1 && s.compression == "none" && base.optimizer.name != "lamb" &&
                     base.precision.compute != "tf32";
  return machines.device.isCpu && machines.software.isGptc() && built;
}

const PlannedStep &Forecaster::planned(const Strategy &s) {
  const std::string key =
      fmt::format("{}/{}/{}/{}/{}/{}", s.gpus, s.tensor, s.zeroStage, s.microBatch, s.accumulate, s.remat);
  auto it = plans.find(key);
  if (it != plans.end())
    return it->second;
  Config c = base;
  const int64_t data = s.data();
  c.parallel.data = data;
  c.parallel.tensor = s.tensor;
  c.parallel.zeroStage = s.zeroStage;
  c.parallel.logicalShards = std::max(c.parallel.logicalShards, data);
  c.train.microBatch = s.microBatch;
  c.train.accumulate = s.accumulate;
  c.train.globalBatchTokens = s.microBatch * c.model.blockSize * data * s.accumulate;
  if (s.remat)
    c.compile.remat = "full";
  else if (c.compile.remat == "full")
    c.compile.remat = "none";
  c.compile.target = "cpu";
  const DeviceSpec dev = shareOf(machines.device, perNode(s));
  const double spare = std::max(double(256 << 20), dev.memory / 20);  // as compilePlan leaves
  const Target target = hostTarget();
  const std::unique_ptr<Module> m =
      planModule(c, target, defaultCacheDir(), int64_t(std::max(dev.memory - spare, 0.0)));
  const MachineRates rates = ratesOf(dev, double(s.microBatch * c.model.blockSize));
  return plans.emplace(key, plannedStep(*m, target, rates)).first->second;
}

Estimate Forecaster::forecast(const Strategy &s) {
  if (!isPlanned(s))
    return estimate(s);
  Estimate e = estimate(s);  // why it cannot be
  if (e.problem.empty() && base.parallel.reduceOrder == "tree" && !llvm::isPowerOf2_64(uint64_t(s.data()))) {
    e.problem = fmt::format("{} ranks cannot add up in the order of a binary tree", s.data());
    e.remedy = "parallel.reduce_order = \"fast\", or a power of two of ranks";
  }
  if (!e.problem.empty())
    return e;
  const double tokens = e.tokensPerStep;
  e = {};
  e.strategy = s;
  const PlannedStep &p = planned(s);
  const SoftwareSpec &soft = machines.software;
  const double slow = soft.slowdown.known ? double(soft.slowdown) : 1;
  const Link along = linkOf(machines, s.data(), s.tensor), across = linkOf(machines, s.tensor, 1);
  auto of = [&](KernelClass c) {
    auto it = p.seconds.find(c);
    return it == p.seconds.end() ? 0 : it->second;
  };
  e.optimizer = slow * of(KernelClass::optimizer);
  e.recompute = slow * p.recompute;
  e.compute = slow * p.kernels() - e.optimizer - e.recompute;
  e.reduce = p.reduce.seconds(along.rates);
  e.gather = p.gather.seconds(along.rates);
  e.exchange = p.exchange.seconds(across.rates);
  e.bytesReduced = p.reduce.bytes;
  e.bytesGathered = p.gather.bytes;
  e.bytesExchanged = p.exchange.bytes;
  // Over a network gradients are summed beside the backward part of the last pass.
  if (along.network)
    e.hidden = std::min(soft.overlap * (e.compute * 2 / 3 + e.recompute) / double(s.accumulate), e.reduce + e.gather);
  const double exposed = e.reduce + e.gather - e.hidden;
  e.overNetwork = along.network ? exposed : 0;
  e.overhead = soft.stepOverhead.known ? double(soft.stepOverhead) : 0;
  e.step = e.compute + e.recompute + e.optimizer + exposed + e.exchange + e.overhead;

  e.tokensPerStep = tokens;
  e.tokensPerSecond = tokens / e.step;
  e.mfu = flopsPerToken * e.tokensPerSecond / flopsOf(s);
  e.hfu = p.flops * double(s.gpus) / e.step / flopsOf(s);

  e.parameters = p.parameters;
  e.gradients = p.gradients;
  e.moments = p.moments;
  e.activations = p.arena - p.parameters - p.gradients - p.moments;
  e.buffers = p.buffers;
  e.buffers["parameters"] = e.parameters;
  e.buffers["gradients"] = e.gradients;
  e.buffers["optimizer state"] = e.moments;
  e.outOfMemory = e.bytesPeak() > shareOf(machines.device, perNode(s)).memory;
  e.binds = whatBinds(e, along.network, s.tensor > machines.node.devices);
  return e;
}

}  // namespace gptc
