#include "tools/estimate/forecast.h"

#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/planner/plan_module.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gptc {

std::string Strategy::name() const {
  std::string s = data() > 1 || zeroStage ? zeroStage ? fmt::format("ZeRO-{}", zeroStage) : "DDP" : "one rank";
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
  return s;
}

const Workload &Forecaster::workload(int64_t microBatch) {
  auto it = workloads.find(microBatch);
  if (it == workloads.end()) {
    Config c = base;
    c.train.microBatch = microBatch;
    it = workloads.emplace(microBatch, workloadOf(c, machines)).first;
  }
  return it->second;
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

namespace {

/// A lower bound on the bytes behind the states of a GPU plan: the peaks that every plan has. Only a plan shows what
/// else it keeps (operands of delayed products, parameters gathered early), so what does not fit by this bound does not
/// fit at all; tests/estimate/memory_test.cpp compares. `parameters` are this rank's.
double regionOnGpu(const Config &c, const Strategy &s, const Workload &w, double parameters) {
  const ModelConfig &m = c.model;
  const double D = double(s.data()), t = double(s.tensor), undivided = w.undivided(s.data());
  const double width = c.precision.compute == "fp32" || c.precision.compute == "tf32" ? 4 : 2;
  const bool alone = s.data() == 1;
  // Gradients; the embedding's part of them, which sums two uses if it is tied; the layers' part.
  const double G = 4 * parameters, E = 4.0 * double(m.vocabSize) * m.nEmbd, layers = G - (m.tieEmbeddings ? 1 : 2) * E;
  // In tree order ranks exchange through a workspace as large as the data they add; an all_reduce adds its part in
  // another workspace.
  const bool tree = c.parallel.reduceOrder == "tree";
  auto met = [&](double ranks) { return tree && ranks > 1 ? 1 + 1 / ranks : 0; };
  // The sum of the embedding's gradient: along "tensor" first, because each of those ranks has it whole.
  const double sum = t > 1 ? E * (1 + met(t)) : (m.tieEmbeddings ? E : 0) + (tree && !alone ? E : 0);

  double work = (s.remat ? w.checkpointed : w.activations) / t;
  if (s.accumulate == 1)
    work += E;
  else if (s.zeroStage == 3)  // parameters are gathered
    work += width / 4 * E;
  // Sums over ranks are kept until the norm of all is known. Of the workspaces, the last two; the larger one counts.
  double update = sum;
  if (s.zeroStage > 0)
    update += layers * (undivided + (1 - undivided) / D);
  else if (t > 1)
    update += s.accumulate > 1 && alone ? 0 : layers;
  else if (!alone)
    update = G + E * met(D);
  else if (s.accumulate == 1)
    update += E;
  return std::max(work, update);
}

}  // namespace

Estimate Forecaster::estimate(const Strategy &s) {
  Estimate e;
  e.strategy = s;
  const ModelConfig &m = base.model;
  const SoftwareSpec &soft = machines.software;
  const int64_t sharers = perNode(s);
  const DeviceSpec dev = shareOf(machines.device, sharers);
  const bool ours = soft.isGptc();
  const int64_t data = s.data();
  const double T = double(m.blockSize), t = double(s.tensor), p = double(s.pipeline), D = double(data);
  const double acc = double(s.accumulate), L = double(m.nLayer);

  auto cannot = [&](std::string problem, std::string remedy) {
    e.problem = std::move(problem);
    e.remedy = std::move(remedy);
    return e;
  };
  if (const int64_t group = s.tensor * s.pipeline; s.gpus % group)
    return cannot(fmt::format("{} GPUs do not divide into groups of {} x {}", s.gpus, s.tensor, s.pipeline),
                  fmt::format("{} GPUs do", std::max<int64_t>(1, s.gpus / group) * group));
  if (s.accumulate < 1)
    return cannot(
        fmt::format("a global batch of {} tokens has no whole pass of {} ranks", base.train.globalBatchTokens, data),
        fmt::format("{} tokens are one pass of each", s.microBatch * m.blockSize * data));
  if (m.nHead % s.tensor || m.nKvHead % s.tensor || m.ffnDim % s.tensor)
    return cannot(fmt::format("tensor = {} does not divide {} heads, {} heads of keys and {} hidden features", s.tensor,
                              m.nHead, m.nKvHead, m.ffnDim),
                  fmt::format("{} does", std::gcd(std::gcd(m.nHead, m.nKvHead), std::gcd(m.ffnDim, s.tensor))));
  if (m.nLayer % s.pipeline)
    return cannot(fmt::format("{} layers do not divide into {} stages", m.nLayer, s.pipeline),
                  fmt::format("{} stages do", std::gcd(m.nLayer, s.pipeline)));
  if (s.compression != "none" && s.zeroStage > 0)
    return cannot(fmt::format("{} compresses whole gradients, and ZeRO sums pieces of them", s.compression),
                  "parallel.zero_stage = 0, or parallel.compression = \"none\"");
  if (s.gpus > machines.node.devices && !(machines.network.effective > 0))
    return cannot(fmt::format("{} GPUs take several nodes of {}, and nothing is known of the network", s.gpus,
                              machines.node.devices),
                  "write network.nominal or network.effective into the cluster file");
  if (s.offload && !machines.node.knowsHost())
    return cannot("offload needs node.host_link and node.host_bandwidth, which the cluster file does not have",
                  "write them, such as host_link = \"25 GB/s\" and host_bandwidth = \"300 GB/s\"");
  if (ours && base.parallel.reduceOrder == "tree" && !llvm::isPowerOf2_64(uint64_t(data))) {
    const uint64_t below = llvm::bit_floor(uint64_t(data));
    return cannot(fmt::format("{} ranks cannot add up in the order of a binary tree", data),
                  fmt::format("{} or {} ranks, or parallel.reduce_order = \"fast\"", below, 2 * below));
  }
  const bool refused =
      s.compression != "none" || base.optimizer.name == "lamb" || (s.offload && base.optimizer.name == "adafactor");
  e.predictedOnly = s.pipeline > 1 || (ours && refused);

  const Workload &w = workload(s.microBatch);
  const std::string &compute = base.precision.compute;
  const double width = compute == "fp32" || compute == "tf32" ? 4 : 2;
  const bool low = width < 4;
  const double gradientWidth = soft.gradients == "fp32" ? 4 : width;
  const double slow = soft.slowdown.known ? double(soft.slowdown) : 1;

  // Parameters of one rank. gptc keeps embedding and classifier whole along `tensor`, Megatron divides them. A pipeline
  // stage has its layers, and the first and last one of the two.
  const double embedding = double(m.vocabSize) * m.nEmbd * (m.tieEmbeddings ? 1 : 2);
  const double layersShare = std::max(0.0, w.parameters - embedding) / (t * p);
  const double N = layersShare + (ours ? embedding : embedding / t) / (p > 1 ? (m.tieEmbeddings ? 1 : 2) : 1);

  // A data rank's part of what ZeRO divides. gptc keeps whole what does not divide into equal rows.
  const double undivided = ours && s.zeroStage > 0 ? w.undivided(data) : 0;
  const double part = undivided + (1 - undivided) / D;

  // 1. Computation. `tensor` divides rows, `pipeline` divides layers. Pipeline stages are balanced at best, and none is
  // shorter than the part outside the layers.
  const double whole = ours ? w.seconds * double(sharers) : w.flops / dev.peak(compute);
  const double layers = 3 * (ours ? w.forwardSeconds * double(sharers) : w.forwardFlops / dev.peak(compute));
  const double perPass = std::max(whole / p, p > 1 ? whole - layers : 0) / t;
  const double again =
      s.remat ? (ours ? w.forwardSeconds * double(sharers) : w.forwardFlops / dev.peak(compute)) / (t * p) : 0;
  e.compute = acc * perPass * slow;
  e.recompute = acc * again * slow;
  e.bubble = s.pipeline > 1 ? (p - 1) / acc * (e.compute + e.recompute) : 0;  // 1F1B's (Narayanan et al. 2021)

  // 2. Collectives along `data`: once per step, or per pass if gradients or parameters are held in parts.
  const Link along = linkOf(machines, data, s.tensor * s.pipeline);
  auto send = [&](double &sent, double bytes, double times, double messages) {
    if (data <= 1)
      return 0.0;
    sent += times * along.share() * bytes;
    return times * (along.share() * bytes / along.rates.bandwidth + messages * along.rates.latency);
  };
  // gptc first accumulates gradients, unless the order of sums between ranks is free.
  const bool reducesEachPass = s.zeroStage >= 2 && (!ours || base.parallel.reduceOrder == "fast");
  const double perPassReduces = reducesEachPass ? acc : 1;
  const double buckets = std::max(1.0, N * gradientWidth / 100e6);
  if (s.compression == "powersgd") {
    // Vogels et al. 2019: factors P and Q of each matrix; everything else is small.
    const double rows =
        L * (8.0 * m.nEmbd + 2.0 * m.ffnDim + (m.gated() ? m.nEmbd + m.ffnDim : 0)) + double(m.vocabSize) + m.nEmbd;
    e.reduce = send(e.bytesReduced, 2 * rows * double(soft.powersgdRank) * gradientWidth, 1, 2 * buckets);
    // The gradient with its error is read for each factor and for the remainder.
    e.optimizer += 6 * N * 4 / dev.bandwidth;
  } else if (s.compression == "onebit") {
    // Tang et al. 2021: a sign per element and a scale, in both directions.
    e.reduce = send(e.bytesReduced, 2 * N / 8, 1, 2 * buckets);
    e.optimizer += 6 * N * 4 / dev.bandwidth;
  } else if (s.zeroStage == 0) {
    e.reduce = send(e.bytesReduced, 2 * N * gradientWidth, 1, 2 * buckets);
  } else {
    // DeepSpeed implements stages 1 and 2 with the same code.
    const double times = s.zeroStage <= 2 && soft.zero1 == "all_reduce" ? 2 : 1 + undivided;
    e.reduce = send(e.bytesReduced, times * N * gradientWidth, perPassReduces, times * buckets);
    e.gather = s.zeroStage <= 2 ? send(e.bytesGathered, (1 - undivided) * N * width, 1, buckets)
                                : send(e.bytesGathered, 2 * (1 - undivided) * N * width, acc, 2 * L);
  }

  // 3. Activations: two all_reduces per layer and direction, or as many bytes in parts (Korthikanti et al. 2023);
  //    recomputation repeats those of the forward part. Pipeline stages pass on a layer's output and return its
  //    gradient.
  const double activation = double(s.microBatch) * T * m.nEmbd * width;
  if (s.tensor > 1) {
    const Link l = linkOf(machines, s.tensor, 1);
    const double times = acc * L / p * (s.remat ? 6 : 4);
    e.bytesExchanged += times * 2 * l.share() * activation;
    e.exchange += times * (2 * l.share() * activation / l.rates.bandwidth + 2 * l.rates.latency);
  }
  if (s.pipeline > 1) {
    const Link l = linkOf(machines, s.pipeline, s.tensor);
    e.bytesExchanged += acc * 2 * activation / t;
    e.exchange += acc * 2 * (activation / t / l.rates.bandwidth + l.rates.latency);
  }

  // 4. What the backward part hides: that of one pass if gradients are reduced once, else of all passes.
  const double everyPass = s.zeroStage == 3 || reducesEachPass ? acc : 1;
  e.hidden = std::min(soft.overlap * (e.compute * 2 / 3 + e.recompute) / acc * everyPass, e.reduce + e.gather);
  const double exposed = e.reduce + e.gather - e.hidden;
  e.overNetwork = along.network ? exposed : 0;

  // 5. The optimizer, at the speed of memory; of host memory if the states are there.
  const double owned = s.zeroStage > 0 ? part : 1;
  const double stateBytes = (low && base.precision.params == "fp32" ? 4 : 0) + w.momentBytes;
  if (s.offload) {
    const double bytes = N * owned;
    e.host = bytes * (gradientWidth + width) / machines.node.hostLink +
             bytes * (2 * stateBytes + gradientWidth + width) * double(std::min(machines.node.devices, s.gpus)) /
                 machines.node.hostBandwidth;
  } else {
    e.optimizer += w.updateBytes * owned * (N / w.parameters) / dev.bandwidth;
  }
  e.overhead = soft.stepOverhead.known ? double(soft.stepOverhead) : 0;
  e.step = e.compute + e.recompute + e.bubble + exposed + e.exchange + e.optimizer + e.host + e.overhead;

  e.tokensPerStep = double(s.microBatch) * T * D * acc;
  e.tokensPerSecond = e.tokensPerStep / e.step;
  const double peak = flopsOf(s);
  e.flops = (w.flops + (s.remat ? w.forwardFlops : 0)) / double(w.rows) * e.tokensPerStep;
  e.mfu = flopsPerToken * e.tokensPerSecond / peak;
  e.hfu = std::max(e.mfu, e.flops / e.step / peak);

  // 6. Memory of one device.
  const double master =
      low && base.precision.params == "fp32" ? 4 * N * owned : 0;  // besides the copies that kernels read
  e.parameters = width * N * (s.zeroStage == 3 ? part : 1);
  e.gradients = gradientWidth * N;
  // gptc looks up a tied embedding in f32, whole, and keeps the gradients of its two uses until they are added.
  if (ours && m.tieEmbeddings) {
    if (low && (s.zeroStage == 1 || s.zeroStage == 2))
      e.parameters += 4 * embedding;
    if (s.accumulate > 1)
      e.gradients += gradientWidth * embedding;
  }
  // gptc scatters gradients immediately, but if they accumulate over passes they are whole until then.
  if (reducesEachPass || (ours && s.zeroStage >= 1 && s.accumulate == 1))
    e.gradients *= part;
  e.moments = (master + w.momentBytes * N * owned);
  if (s.offload)
    e.moments = 0;
  if (s.compression != "none")
    e.moments += gradientWidth * N;  // the error of compression, added to the next gradient
  if (s.zeroStage == 3)
    e.inFlight = 2 * width * std::max(layersShare / (L / p), ours ? 0.0 : embedding / t);
  const Buffers &live = s.remat ? w.checkpointedBuffers : w.buffers;
  // A pipeline stage has as many passes under way as there are stages after it.
  const double passes = s.pipeline > 1 ? std::min(p, acc) : 1;
  e.activations = (s.remat ? w.checkpointed : w.activations) / (t * p) * passes;
  if (ours && !machines.device.isCpu) {
    // gptc's memory is that of the plan's functions (regionOnGpu), which includes the gradients if there is one pass
    // per step; then keys and values for samples.
    if (s.accumulate == 1)
      e.gradients = 0;
    e.inFlight = 0;
    e.activations = regionOnGpu(base, s, w, N) + (m.causal ? 8.0 * L / p * T * m.nEmbd / m.nHead * m.nKvHead / t : 0);
  }
  e.reserved = soft.context + soft.fragmentation * e.activations;
  for (const auto &[name, bytes] : live)
    e.buffers[name] += bytes / (t * p) * passes;
  e.buffers["parameters"] = e.parameters;
  e.buffers["gradients"] = e.gradients;
  e.buffers["optimizer state"] = e.moments;
  e.buffers["parameters gathered"] = e.inFlight;
  e.buffers["driver and allocator"] = e.reserved;
  e.outOfMemory = e.bytesPeak() > dev.memory;
  if (s.offload)
    takeHost(e, N * owned * stateBytes);

  e.binds = whatBinds(e, along.network, s.tensor > machines.node.devices);
  return e;
}

}  // namespace gptc
