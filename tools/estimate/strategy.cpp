#include "tools/estimate/forecast.h"

#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/planner/plan_module.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cmath>

namespace gptc {

std::string Strategy::name() const {
  std::string s = data() > 1 || zeroStage ? zeroStage       ? fmt::format("ZeRO-{}", zeroStage)
                                            : syncEvery > 1 ? "DiLoCo"
                                                            : "DDP"
                                          : "one rank";
  if (syncEvery > 1)
    s += fmt::format(" every {}", syncEvery);
  if (tensor > 1)
    s += fmt::format(" + tensor {}", tensor);
  if (pipeline > 1)
    s += fmt::format(" + pipeline {}", pipeline);
  if (compression != "none")
    s += compression == "powersgd" ? " + PowerSGD" : " + 1-bit";
  if (offload)
    s += " + offload";
  if (remat)
    s += " + checkpointing";
  return s;
}

Config readForForecast(const std::string &modelFile, const std::vector<std::string> &settings, int64_t gpus,
                       const ClusterConfig &cluster, int64_t pipeline) {
  std::vector<std::string> all;
  int64_t accumulate = 0;
  for (const std::string &s : settings) {
    if (auto [key, value] = llvm::StringRef(s).split('='); key == "accumulate") {
      if (value.getAsInteger(10, accumulate) || accumulate < 1)
        throw UserError(ErrorCode::Usage, fmt::format("accumulate={} is no number of passes", value.str()));
    } else {
      all.push_back(s);
    }
  }
  auto load = [&](const std::vector<std::string> &with) {
    return readConfig(modelFile, with, ConfigPurpose::forecast);
  };
  all.push_back(cluster.device.isCpu ? "compile.target=cpu" : "compile.target=cuda");
  // First without a batch, because whether it divides depends on the ranks.
  std::vector<std::string> first = all;
  first.push_back("parallel.data=1");
  const Config c = [&] {
    try {
      return load(first);
    } catch (const UserError &) {
      // With all ranks, so that remedies name their number.
      first.back() = fmt::format("parallel.data={}", std::max<int64_t>(gpus, 1));
      load(first);
      throw;
    }
  }();
  int64_t data = 0;
  if (gpus) {
    const int64_t group = c.parallel.tensor * pipeline;
    if (gpus % group)
      throw UserError(Diagnostic{ErrorCode::ShapeMismatch,
                                 pipeline > 1
                                     ? fmt::format("{} GPUs do not divide into groups of tensor x pipeline = {} x {}",
                                                   gpus, c.parallel.tensor, pipeline)
                                     : fmt::format("{} GPUs do not divide into groups of {}", gpus, group),
                                 c.written.count("parallel.tensor") ? c.where("parallel.tensor") : SourceLoc(),
                                 "must divide the number of GPUs",
                                 {fmt::format("--gpus {} works", std::max<int64_t>(1, gpus / group) * group)}});
    data = gpus / group;
    all.push_back(fmt::format("parallel.data={}", data));
  } else if (auto it = c.written.find("parallel.data"); it != c.written.end()) {
    data = load(all).parallel.data;
  } else {
    data = 1;
  }
  if (accumulate) {
    if (!c.written.count("train.micro_batch"))
      all.push_back(fmt::format("train.micro_batch={}", c.train.microBatch));
    all.push_back(
        fmt::format("train.global_batch_tokens={}", accumulate * c.train.microBatch * c.model.blockSize * data));
  }
  return load(all);
}

Forecaster::Forecaster(const Config &config, ClusterConfig cluster, std::shared_ptr<Plans> plans)
    : base(config), machines(std::move(cluster)), flopsPerToken(modelFlopsPerToken(config)), onGpus(std::move(plans)) {}
Forecaster::~Forecaster() = default;

void Forecaster::setFitted(const Fitted &slowdown, const Fitted &stepOverhead, const Fitted &effective) {
  machines.software.slowdown = slowdown;
  machines.software.stepOverhead = stepOverhead;
  machines.network.effective = effective;
}

void requireSlowdown(const ClusterConfig &cluster) {
  const SoftwareSpec &s = cluster.software;
  if (s.isGptc() || s.slowdown.known)
    return;
  throw UserError(Diagnostic{ErrorCode::MissingKey,
                             fmt::format("software.slowdown is missing: how far {} stays below the peak", s.name),
                             s.where,
                             "other software than gptc's",
                             {"write it into [software]: slowdown = 2.5 is 40% of the device's peak",
                              "or fit it to a log: [[observation]] rows, and gptc calibrate CLUSTER.toml --write"}});
}

std::string formatDays(double days, int digits) {
  return days >= 0.1 ? fmt::format("{:.{}f}", days, digits) : fmt::format("{:.2g} h", 24 * days);
}

Strategy Forecaster::strategyFor(int64_t gpus, int64_t pipeline) const {
  Strategy s;
  s.gpus = gpus;
  s.tensor = base.parallel.tensor;
  s.pipeline = pipeline;
  s.zeroStage = s.data() > 1 ? base.parallel.zeroStage : 0;
  s.microBatch = base.train.microBatch;
  s.accumulate = base.train.globalBatchTokens / std::max<int64_t>(1, s.microBatch * base.model.blockSize * s.data());
  s.remat = base.compile.remat == "full";
  s.offload = base.parallel.offload == "optimizer" && !machines.device.isCpu;
  s.compression = base.parallel.compression;
  s.syncEvery = base.parallel.syncEvery;
  return s;
}

const Workload &Forecaster::workload(int64_t microBatch, int64_t tensor) {
  const auto key = std::pair(microBatch, tensor);
  auto it = workloads.find(key);
  if (it == workloads.end()) {
    Config c = base;
    c.train.microBatch = microBatch;
    const InParts shared = tensor ? InParts{tensor, base.parallel.logicalTensor} : InParts();
    it = workloads.emplace(key, workloadOf(c, machines, 2, shared)).first;
  }
  return it->second;
}

std::optional<Refusal> refusalOfNetwork(const ClusterConfig &c, int64_t ranks) {
  if (ranks <= c.node.devices || c.network.effective > 0)
    return std::nullopt;
  return Refusal{
      fmt::format("{} GPUs take several nodes of {}, and nothing is known of the network", ranks, c.node.devices),
      "write network.nominal or network.effective into the cluster file"};
}

bool isBuilt(const Config &base, const Strategy &s) {
  if (base.optimizer.name == "lamb" || (s.offload && base.optimizer.name == "adafactor"))
    return false;
  // frontends/read_settings.cpp says why not.
  const PrecisionConfig &p = base.precision;
  return s.compression == "none" || (s.compression == "powersgd" && s.tensor == 1 && base.parallel.logicalTensor <= 1 &&
                                     !s.offload && p.compute != "fp16" && p.fp8 == Fp8::off);
}

Link linkOf(const ClusterConfig &c, int64_t ranks, int64_t stride) {
  Link l;
  l.ranks = ranks;
  if (ranks <= 1)
    return l;
  const double rounds = std::ceil(std::log2(double(ranks)));
  l.network = ranks * stride > c.node.devices;
  if (l.network) {
    // Groups of neighbours share the links of their node.
    l.rates.bandwidth = c.network.effective / double(std::min(stride, c.node.devices));
    if (c.node.bandwidth > 0)
      l.rates.bandwidth = std::min(l.rates.bandwidth, c.node.bandwidth);
    l.rates.latency = rounds * c.network.latency;
  } else {
    l.rates.bandwidth = c.node.bandwidth;
    l.rates.latency = rounds * c.node.latency;
  }
  return l;
}

const char *whatBinds(const Estimate &e, bool alongNetwork, bool outside) {
  const double collectives = e.reduce + e.gather - e.hidden;
  const std::pair<double, const char *> causes[] = {
      {e.compute + e.recompute + e.bubble, "compute"},
      {e.optimizer, "memory bandwidth"},
      {(alongNetwork ? collectives : 0) + (outside ? e.exchange : 0), "network"},
      {(alongNetwork ? 0 : collectives) + (outside ? 0 : e.exchange), "node links"},
      {e.host + e.overhead, "host"}};  // the bottleneck between steps, if neither FLOPs nor bytes explain them
  return std::max_element(std::begin(causes), std::end(causes))->second;
}

}  // namespace gptc
