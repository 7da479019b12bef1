// Forecaster::forecast, for configurations that have a plan. On CPUs the plan gives memory and time. On GPUs it gives
// the memory, while the time is estimate()'s: the plan's kernels would be costed by the same costOf at the same shares
// of the peak, because they have not been measured. estimate()'s times also compare with strategies that have no plan
// (pipelines, 1-bit compression), are those to which gptc calibrate fits its scalars, and give the order of --search.
// Times by code (by_code.h) take a minute for each strategy and replace them if asked for.
//
// Deep models are planned with two and three layers, and each function's memory is extrapolated linearly. For ZeRO-0 to
// 2 that equals the arena at full depth except for gaps between offsets (tests/estimate/memory_test.cpp). With ZeRO-3
// it does not, because the number of layers whose gathered parameters are in use at once depends on the depth. So
// models of up to 32 layers are planned at full depth for the first number of ranks requested; for other numbers, the
// change is that of three layers. Of deeper models 8 layers are planned, and the rest follows the formula.
#include "tools/estimate/forecast.h"

#include "codegen/codegen.h"
#include "support/diagnostics.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/plan_module.h"

#include <algorithm>

namespace gptc {

// Numbers of layers: the shallower of the two for extrapolation; the most planned at full depth with ZeRO-3; those
// planned for deeper models.
static constexpr int64_t shallow = 2, deepest = 32, steady = 8;

int64_t Forecaster::perNode(const Strategy &s) const {
  return machines.device.isCpu ? std::min(s.gpus, machines.node.devices) : 1;
}

double Forecaster::flopsOf(const Strategy &s) const {
  return machines.device.peak(base.precision.compute) * double(s.gpus) / double(perNode(s));
}

bool Forecaster::isPlanned(const Strategy &s) const {
  const bool cpu = machines.device.isCpu;
  const bool built = s.pipeline == 1 && isBuilt(base, s) && base.precision.params == "fp32" &&
                     !(cpu && base.precision.compute == "tf32");
  return machines.software.isGptc() && built;
}

Config Forecaster::configOf(const Strategy &s) const {
  Config c = base;
  const int64_t data = s.data();
  c.parallel.data = data;
  c.parallel.tensor = s.tensor;
  c.parallel.zeroStage = s.zeroStage;
  c.parallel.logicalShards = base.fixes("parallel.logical_shards") ? std::max(c.parallel.logicalShards, data) : data;
  c.parallel.compression = s.compression;
  if (c.parallel.needsWholeRanks())
    c.parallel.logicalShards = data;
  c.parallel.offload = s.offload ? "optimizer" : "none";
  c.train.microBatch = s.microBatch;
  c.train.accumulate = s.accumulate;
  c.train.globalBatchTokens = s.microBatch * c.model.blockSize * data * s.accumulate;
  if (s.remat)
    c.compile.remat = "full";
  else if (c.compile.remat == "full" || !machines.device.isCpu)
    c.compile.remat = "none";
  return c;
}

const PlannedStep &Forecaster::planned(const Strategy &s) {
  const std::string key = fmt::format("{}/{}/{}/{}/{}/{}/{}", s.gpus, s.tensor, s.zeroStage, s.microBatch, s.accumulate,
                                      s.remat, s.compression);
  auto it = plans.find(key);
  if (it != plans.end())
    return it->second;
  Config c = configOf(s);
  c.compile.target = "cpu";
  const DeviceSpec dev = shareOf(machines.device, perNode(s));
  const double spare = std::max(double(256 << 20), dev.memory / 20);  // the reserve that compilePlan leaves too
  const Target target = hostTarget();
  const std::unique_ptr<Module> m =
      planModule(c, target, defaultCacheDir(), int64_t(std::max(dev.memory - spare, 0.0)));
  const MachineRates rates = ratesOf(dev, double(s.microBatch * c.model.blockSize));
  return plans.emplace(key, plannedStep(*m, target, rates)).first->second;
}

void Forecaster::takeTimesByCode() {
  if (!machines.software.isGptc() || machines.device.isCpu)
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("times by code are of gptc's kernels on GPUs, and the cluster has {}",
                                machines.device.isCpu ? "CPUs" : machines.software.name),
                    "leave --by-code out");
  sheet = gpuSheet(machines.device.name);
  if (!sheet)
    throw UserError(ErrorCode::UnknownValue, fmt::format("no data sheet of a GPU named {}", machines.device.name),
                    "name a GPU that gptc knows in device.name, such as \"H100-SXM5-80GB\", or leave --by-code out");
}

const CodeTimes &Forecaster::timesOf(const Strategy &s) {
  const std::string key = fmt::format("{}/{}/{}/{}/{}/{}/{}/{}", s.gpus, s.tensor, s.zeroStage, s.microBatch,
                                      s.accumulate, s.remat, s.offload, s.compression);
  if (auto it = byCode.find(key); it != byCode.end())
    return it->second;
  return byCode.emplace(key, timesByCode(configOf(s), *sheet, defaultCacheDir())).first->second;
}

const PlannedMemory &Forecaster::plannedOnGpu(const Strategy &s) {
  Strategy few = s;
  few.accumulate = std::min<int64_t>(s.accumulate, 2);  // more passes need the memory of two
  if (s.zeroStage == 2 && base.parallel.reduceOrder == ReduceOrder::tree)
    few.zeroStage = 1;  // adds in the same way
  Config c = configOf(few);
  const std::string ofAll = fmt::format("{}/{}/{}/{}/{}/{}/{}", s.tensor, few.zeroStage, s.microBatch, few.accumulate,
                                        s.remat, s.offload, s.compression),
                    key = fmt::format("{}/{}/{}", ofAll, s.data(), c.parallel.shardsPerRank());
  auto it = onGpus->known.find(key);
  if (it != onGpus->known.end())
    return it->second;
  const Target target = targetOnGpus(c);
  c.compile.target = target.name;
  c.compile.autotune = "off";  // tuning records do not affect memory
  auto with = [&](int64_t layers) {
    c.model.nLayer = layers;
    return plannedMemory(*planModule(c, target, "", int64_t(1) << 62), target);
  };
  const int64_t layers = base.model.nLayer;
  PlannedMemory m;
  if (layers <= shallow + 1)
    m = with(layers);
  else if (s.zeroStage < 3)
    m = lineThrough(with(shallow), with(shallow + 1), double(layers - shallow - 1));
  else
    m = plannedZeRO3(few, ofAll, with);
  return onGpus->known.emplace(key, std::move(m)).first->second;
}

PlannedMemory Forecaster::plannedZeRO3(const Strategy &s, const std::string &key,
                                       const std::function<PlannedMemory(int64_t)> &with) {
  const int64_t layers = base.model.nLayer;
  auto [it, isNew] = onGpus->zero3.try_emplace(key);
  Plans::ZeRO3 &known = it->second;
  if (isNew) {
    known.layers = layers <= deepest ? layers : steady;
    known.data = s.data();
    known.memory = with(known.layers);
    known.shallow = with(shallow + 1);
  }
  PlannedMemory m = known.memory;
  Strategy there = s;
  there.gpus = known.data * s.tensor;
  const Estimate whole = estimate(there);
  auto more = [&](const Estimate &to, const Estimate &from) {
    m.parameters += to.parameters - from.parameters;
    m.gradients += to.gradients - from.gradients;
    m.moments += to.moments - from.moments;
  };
  if (known.layers < layers) {  // the missing layers, by the formula
    Config c = base;
    c.model.nLayer = known.layers;
    const Estimate part = Forecaster(c, machines).estimate(there);
    more(whole, part);
    m.cache *= double(layers) / double(known.layers);
    m.host *= double(layers) / double(known.layers);
    for (auto &[name, region] : m.regions)
      region.bytes += whole.activations - part.activations - (m.cache - known.memory.cache);
  }
  if (s.data() != known.data) {  // other piece sizes: states by the formula, functions by the change in a shallow plan
    more(estimate(s), whole);
    m.host *= double(known.data) / double(s.data());
    const PlannedMemory pieces = with(shallow + 1);
    for (auto &[name, region] : m.regions)
      region.bytes += pieces.regions.at(name).bytes - known.shallow.regions.at(name).bytes;
  }
  return m;
}

std::string Forecaster::likeOf(const Strategy &s) {
  return fmt::format("{}/{}/{}/{}/{}/{}", s.tensor, s.zeroStage, s.accumulate > 1, s.remat, s.offload, s.compression);
}

void Forecaster::takeMemory(Estimate &e, const PlannedMemory &m) const {
  e.planned = true;
  e.parameters = m.parameters;
  e.gradients = m.gradients;
  e.moments = m.moments;
  e.inFlight = 0;  // part of the functions' memory
  e.activations = m.cache + m.largest().bytes;
  e.buffers = m.largest().buffers;
  e.buffers["parameters"] = e.parameters;
  e.buffers["gradients"] = e.gradients;
  e.buffers["optimizer state"] = e.moments;
  if (m.cache > 0)
    e.buffers["keys and values of samples"] = m.cache;
  if (e.reserved > 0)
    e.buffers["driver and allocator"] = e.reserved;
  e.outOfMemory = e.bytesPeak() > shareOf(machines.device, perNode(e.strategy)).memory;
}

void Forecaster::takeHost(Estimate &e, double bytes) const {
  const NodeSpec &node = machines.node;
  e.hostBytes = bytes * double(std::min(node.devices, e.strategy.gpus));
  e.hostOutOfMemory = node.hostMemory > 0 && e.hostBytes > node.hostMemory;
}

Estimate Forecaster::forecast(const Strategy &s) {
  Estimate e = estimate(s);  // for its `problem`
  if (!isPlanned(s) || e.predictedOnly)
    return e;
  if (!machines.device.isCpu) {
    const SoftwareSpec &soft = machines.software;
    // The formula is a lower bound. A tree over a thousand ranks would be a kernel with as many terms.
    if (!e.problem.empty() || e.outOfMemory || (base.parallel.reduceOrder == ReduceOrder::tree && s.data() > 512))
      return e;
    if (sheet)
      e = estimate(s, &timesOf(s));
    const PlannedMemory &m = plannedOnGpu(s);
    e.reserved = soft.context + soft.fragmentation * (m.cache + m.largest().bytes);
    takeMemory(e, m);
    takeHost(e, m.host);
    return e;
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
  // Over a network, gradients are reduced beside the backward part of the last pass; outer steps and factors, which
  // need all gradients, have nothing beside them.
  if (along.network && base.parallel.syncEvery == 1 && s.compression == "none")
    e.hidden = std::min(soft.overlap * (e.compute * 2 / 3 + e.recompute) / double(s.accumulate), e.reduce + e.gather);
  const double exposed = e.reduce + e.gather - e.hidden;
  e.overNetwork = along.network ? exposed : 0;
  e.overhead = soft.stepOverhead.known ? double(soft.stepOverhead) : 0;
  e.step = e.compute + e.recompute + e.optimizer + exposed + e.exchange + e.overhead;

  e.tokensPerStep = tokens;
  e.tokensPerSecond = tokens / e.step;
  e.mfu = flopsPerToken * e.tokensPerSecond / flopsOf(s);
  e.flops = p.flops * double(s.gpus);
  e.hfu = std::max(e.mfu, e.flops / e.step / flopsOf(s));

  takeMemory(e, p.memory);
  e.binds = whatBinds(e, along.network, s.tensor > machines.node.devices);
  return e;
}

}  // namespace gptc
