// What a strategy costs by formulas over the graph of one micro-batch: seconds of a step in five parts, and bytes of a
// device.
//
//   1. Computation: rows are shared out along `tensor`, layers along `pipeline`.
//   2. Collectives along `data`, of gradients and parameters.
//   3. Activations that ranks along `tensor` and `pipeline` exchange.
//   4. What of the collectives the backward part hides.
//   5. The optimizer, at the speed of memory or of the host.
//   6. Memory of one device.
#include "support/diagnostics.h"
#include "tools/estimate/forecast.h"

#include "llvm/ADT/bit.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace gptc {

namespace {

/// Bytes that the functions of a plan for GPUs have behind its states, from below: the peaks that any plan has. What it
/// keeps beside them (operands of products that wait, parameters gathered early) only the plan itself says, so that
/// what does not fit by this does not fit; tests/estimate/memory_test.cpp compares. `parameters` are this rank's.
double regionOnGpu(const Config &c, const Strategy &s, const Workload &w, double live, double parameters) {
  const ModelConfig &m = c.model;
  const double D = double(s.data()), t = double(s.tensor), undivided = w.undivided(s.data());
  const double width = c.precision.compute == "fp32" || c.precision.compute == "tf32" ? 4 : 2;
  const bool alone = s.data() == 1 || c.parallel.syncEvery > 1;  // in the functions of a step
  // Gradients, and of these the embedding's, which is summed of its two uses where it is tied.
  const double G = 4 * parameters, E = 4.0 * double(m.vocabSize) * m.nEmbd, layers = G - (m.tieEmbeddings ? 1 : 2) * E;
  // In the order of a tree ranks meet in a workspace of as many bytes as they add; an all_reduce adds its part in
  // another.
  const bool tree = c.parallel.reduceOrder == ReduceOrder::tree;
  auto met = [&](double ranks) { return tree && ranks > 1 ? 1 + 1 / ranks : 0; };
  // The sum of the embedding's gradient: along "tensor" first, as it is whole on each of those ranks.
  const double sum = t > 1 ? E * (1 + met(t)) : (m.tieEmbeddings ? E : 0) + (tree && !alone ? E : 0);

  double work = live;
  if (s.accumulate == 1)
    work += E;
  else if (s.zeroStage == 3)  // gathered
    work += width / 4 * E;
  // Sums over ranks are kept till the norm of all is known; of workspaces, the last two, of which the largest is
  // counted.
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

std::optional<Refusal> refusalOfSizes(const Config &base, const Strategy &s) {
  const ModelConfig &m = base.model;
  if (const int64_t group = s.tensor * s.pipeline; s.gpus % group)
    return Refusal{fmt::format("{} GPUs do not divide into groups of {} x {}", s.gpus, s.tensor, s.pipeline),
                   fmt::format("{} GPUs do", std::max<int64_t>(1, s.gpus / group) * group)};
  if (s.accumulate < 1)
    return Refusal{fmt::format("a global batch of {} tokens has no whole pass of {} ranks",
                               base.train.globalBatchTokens, s.data()),
                   fmt::format("{} tokens are one pass of each", s.microBatch * m.blockSize * s.data())};
  if (m.nHead % s.tensor || m.nKvHead % s.tensor || m.ffnDim % s.tensor)
    return Refusal{fmt::format("tensor = {} does not divide {} heads, {} heads of keys and {} hidden features",
                               s.tensor, m.nHead, m.nKvHead, m.ffnDim),
                   fmt::format("{} does", std::gcd(std::gcd(m.nHead, m.nKvHead), std::gcd(m.ffnDim, s.tensor)))};
  if (base.parallel.logicalTensor > 1 && base.parallel.logicalTensor % s.tensor)
    return Refusal{fmt::format("tensor = {} does not divide {} logical parts", s.tensor, base.parallel.logicalTensor),
                   fmt::format("{} does", std::gcd(base.parallel.logicalTensor, s.tensor))};
  if (s.tensor > 1 && m.qkNorm == QkNorm::whole)
    return Refusal{fmt::format("tensor = {} with qk_norm = \"whole\" is not built yet", s.tensor), "tensor = 1 does"};
  if (m.nLayer % s.pipeline)
    return Refusal{fmt::format("{} layers do not divide into {} stages", m.nLayer, s.pipeline),
                   fmt::format("{} stages do", std::gcd(m.nLayer, s.pipeline))};
  return std::nullopt;
}

std::optional<Refusal> refusalOf(const Config &base, const ClusterConfig &machines, const Strategy &s) {
  if (std::optional<Refusal> r = refusalOfSizes(base, s))
    return r;
  if (s.compression != "none" && s.zeroStage > 0)
    return Refusal{fmt::format("{} compresses whole gradients, and ZeRO sums pieces of them", s.compression),
                   "parallel.zero_stage = 0, or parallel.compression = \"none\""};
  if (base.parallel.syncEvery > 1 &&
      (s.zeroStage > 0 || s.tensor > 1 || s.pipeline > 1 || s.offload || s.compression != "none"))
    return Refusal{fmt::format("{}: between outer steps each rank trains the whole model by itself", s.name()),
                   "parallel.sync_every = 1, or ranks along parallel.data alone, without ZeRO and offload"};
  if (std::optional<Refusal> r = refusalOfNetwork(machines, s.gpus))
    return r;
  if (s.offload && !machines.node.knowsHost())
    return Refusal{"offload needs node.host_link and node.host_bandwidth, which the cluster file does not have",
                   "write them, such as host_link = \"25 GB/s\" and host_bandwidth = \"300 GB/s\""};
  const bool ours = machines.software.isGptc();
  if (ours && base.parallel.reduceOrder == ReduceOrder::tree && !llvm::isPowerOf2_64(uint64_t(s.data()))) {
    const uint64_t below = llvm::bit_floor(uint64_t(s.data()));
    return Refusal{fmt::format("{} ranks cannot add up in the order of a binary tree", s.data()),
                   fmt::format("{} or {} ranks, or parallel.reduce_order = \"fast\"", below, 2 * below)};
  }
  return std::nullopt;
}

/// The steps of an estimate, in the order in which they are to be called.
class StepEstimate {
public:
  /// `inParts`: of a rank of s.tensor that share layers in logical parts; null without such parts. `times`: of the
  /// plan's code, instead of the formula's; null without.
  StepEstimate(const Config &config, const ClusterConfig &machines, int64_t sharers, const Workload &workload,
               const Workload *inParts, const CodeTimes *times, Estimate &e)
      : config(config), machines(machines), sharers(sharers), w(workload), inParts(inParts), times(times),
        s(e.strategy), e(e) {}

  void computation();
  void collectives();
  void exchanges();
  void overlap();
  void optimizer();
  void memory();

  const char *binds() const { return whatBinds(e, along.network, s.tensor > machines.node.devices); }
  double hostStateBytes() const { return parameters * owned * stateBytes; }

private:
  const Config &config;
  const ClusterConfig &machines;
  const int64_t sharers;  // ranks of one device
  const Workload &w;
  const Workload *inParts;
  const CodeTimes *times;
  const Strategy &s;
  Estimate &e;

  const ModelConfig &m = config.model;
  const SoftwareSpec &software = machines.software;
  const DeviceSpec device = shareOf(machines.device, sharers);
  const bool ours = software.isGptc();
  const double ranks = double(s.data()), tensor = double(s.tensor), stages = double(s.pipeline);
  const double passes = double(s.accumulate), layers = double(m.nLayer);
  // What a rank of `tensor` does in a pass is an equal share of it all. With logical parts it is measured: it does what
  // stands between blocks for all tokens, and adds up its parts.
  const Workload &pass = inParts ? *inParts : w;
  const double split = inParts ? 1 : tensor;

  // Bytes of an element: as computed with, and of a gradient.
  const double width = config.precision.compute == "fp32" || config.precision.compute == "tf32" ? 4 : 2;
  const bool low = width < 4;
  const double gradientWidth = software.gradients == "fp32" ? 4 : width;

  // Parameters of one rank: gptc leaves embedding and classifier whole along `tensor`, Megatron divides them. A stage
  // of a pipeline has its layers, and at its ends one of the two.
  const double embedding = double(m.vocabSize) * m.nEmbd * (m.tieEmbeddings ? 1 : 2);
  const double ofLayers = std::max(0.0, w.parameters - embedding) / (tensor * stages);
  const double parameters =
      ofLayers + (ours ? embedding : embedding / tensor) / (stages > 1 ? (m.tieEmbeddings ? 1 : 2) : 1);

  // The part that a rank along `data` holds of what ZeRO divides. gptc divides only tensors with equal rows for all
  // ranks.
  const double undivided = ours && s.zeroStage > 0 ? w.undivided(s.data()) : 0;
  const double part = undivided + (1 - undivided) / ranks;
  const double owned = s.zeroStage > 0 ? part : 1;
  const double stateBytes = (low && config.precision.params == "fp32" ? 4 : 0) + w.momentBytes;

  const Link along = linkOf(machines, s.data(), s.tensor *s.pipeline);  // of the ranks of `data`
  // Ours add gradients up over passes before, unless the order of sums between ranks is free.
  const bool reducesEachPass = s.zeroStage >= 2 && (!ours || config.parallel.reduceOrder == ReduceOrder::fast);

  double send(double &sent, double bytes, double times, double messages) const;
  void memoryOfStates();
  void memoryOfPasses();
};

void StepEstimate::computation() {
  const double slow = software.slowdown.known ? double(software.slowdown) : 1;
  const double peak = device.peak(config.precision.compute);
  const double whole = ours ? pass.seconds * double(sharers) : w.flops / peak;
  const double forward = ours ? pass.forwardSeconds * double(sharers) : w.forwardFlops / peak;
  // Stages of a pipeline are balanced at best, and none is shorter than what stands outside the layers.
  const double perPass = std::max(whole / stages, stages > 1 ? whole - 3 * forward : 0) / split;
  const double again = s.remat ? forward / (split * stages) : 0;
  e.compute = passes * perPass * slow;
  e.recompute = passes * again * slow;
  if (times) {
    const double share = again / (perPass + again);
    e.compute = (1 - share) * times->passes;
    e.recompute = share * times->passes;
  }
  // Of 1F1B (Narayanan et al. 2021).
  e.bubble = s.pipeline > 1 ? (stages - 1) / passes * (e.compute + e.recompute) : 0;
}

/// Seconds of a collective along `data` over so many bytes, in so many messages, `times` in a step.
double StepEstimate::send(double &sent, double bytes, double times, double messages) const {
  if (s.data() <= 1)
    return 0.0;
  sent += times * along.share() * bytes;
  return times * (along.share() * bytes / along.rates.bandwidth + messages * along.rates.latency);
}

/// Once a step, or with every pass where parts of gradients or parameters are held, or once in `sync_every` steps.
void StepEstimate::collectives() {
  const double buckets = std::max(1.0, parameters * gradientWidth / 100e6);
  if (config.parallel.syncEvery > 1) {
    // In f32: what parameters have moved. Parameter, anchor, difference and moment are read and written.
    const double often = 1 / double(config.parallel.syncEvery);
    e.reduce = send(e.bytesReduced, 2 * parameters * 4, often, 2 * std::max(1.0, parameters * 4 / 100e6));
    if (!times)  // else the code of @outer is in the plan's times
      e.optimizer += often * 9 * parameters * 4 / device.bandwidth;
  } else if (s.compression == "powersgd" && s.data() > 1) {  // one rank sends nothing
    // Vogels et al. 2019: factors P and Q of each matrix; everything else is small.
    const double heads = double(m.nHead) * m.headSize();
    const double rows = layers * (4.0 * m.nEmbd + 4.0 * heads + 2.0 * m.ffnDim + (m.gated() ? m.nEmbd + m.ffnDim : 0)) +
                        double(m.vocabSize) + m.nEmbd;
    const int64_t rank =
        ours || config.fixes("parallel.gradient_rank") ? config.parallel.gradientRank : software.powersgdRank;
    e.reduce = send(e.bytesReduced, 2 * rows * double(rank) * gradientWidth, 1, 2 * buckets);
    // Two products with the gradient, and two that make one of the factors. The gradient with its error is read for
    // either factor and for what is left. Times by code have these kernels.
    if (!times)
      e.optimizer +=
          8 * parameters * double(rank) / device.peak(config.precision.compute) + 6 * parameters * 4 / device.bandwidth;
  } else if (s.compression == "onebit") {
    // Tang et al. 2021: a sign per element and a scale, there and back.
    e.reduce = send(e.bytesReduced, 2 * parameters / 8, 1, 2 * buckets);
    e.optimizer += 6 * parameters * 4 / device.bandwidth;
  } else if (s.zeroStage == 0) {
    e.reduce = send(e.bytesReduced, 2 * parameters * gradientWidth, 1, 2 * buckets);
  } else {
    // DeepSpeed runs stages 1 and 2 by one code.
    const double times = s.zeroStage <= 2 && software.zero1 == "all_reduce" ? 2 : 1 + undivided;
    const double reductions = reducesEachPass ? passes : 1;
    e.reduce = send(e.bytesReduced, times * parameters * gradientWidth, reductions, times * buckets);
    e.gather = s.zeroStage <= 2 ? send(e.bytesGathered, (1 - undivided) * parameters * width, 1, buckets)
                                : send(e.bytesGathered, 2 * (1 - undivided) * parameters * width, passes, 2 * layers);
  }
}

/// Two all_reduces per layer and direction, or as many bytes in parts (Korthikanti et al. 2023); recomputation repeats
/// those of the forward part. Stages hand a layer's output on and its gradient back.
void StepEstimate::exchanges() {
  const double activation = double(s.microBatch) * double(m.blockSize) * m.nEmbd * width;
  if (s.tensor > 1) {
    const Link l = linkOf(machines, s.tensor, 1);
    const double times = passes * layers / stages * (s.remat ? 6 : 4);
    e.bytesExchanged += times * 2 * l.share() * activation;
    e.exchange += times * (2 * l.share() * activation / l.rates.bandwidth + 2 * l.rates.latency);
  }
  if (s.pipeline > 1) {
    const Link l = linkOf(machines, s.pipeline, s.tensor);
    e.bytesExchanged += passes * 2 * activation / tensor;
    e.exchange += passes * 2 * (activation / tensor / l.rates.bandwidth + l.rates.latency);
  }
}

/// Of one pass where gradients are reduced once, else of all.
void StepEstimate::overlap() {
  const double everyPass = s.zeroStage == 3 || reducesEachPass ? passes : 1;
  const double most = software.overlap * (e.compute * 2 / 3 + e.recompute) / passes * everyPass;
  // An outer step has nothing beside it, and gptc's factors need all gradients.
  if (config.parallel.syncEvery == 1 && !(ours && s.compression == "powersgd"))
    e.hidden = std::min(most, e.reduce + e.gather);
  e.overNetwork = along.network ? e.reduce + e.gather - e.hidden : 0;
}

void StepEstimate::optimizer() {
  if (!s.offload && times) {
    e.optimizer += times->optimizer;
    return;
  }
  if (!s.offload) {
    e.optimizer += w.updateBytes * owned * (parameters / w.parameters) / device.bandwidth;
    return;
  }
  const double bytes = parameters * owned;
  e.host = bytes * (gradientWidth + width) / machines.node.hostLink +
           bytes * (2 * stateBytes + gradientWidth + width) * double(std::min(machines.node.devices, s.gpus)) /
               machines.node.hostBandwidth;
}

void StepEstimate::memory() {
  memoryOfStates();
  memoryOfPasses();
  e.buffers["parameters"] = e.parameters;
  e.buffers["gradients"] = e.gradients;
  e.buffers["optimizer state"] = e.moments;
  e.buffers["parameters gathered"] = e.inFlight;
  e.buffers["driver and allocator"] = e.reserved;
  e.outOfMemory = e.bytesPeak() > device.memory;
}

void StepEstimate::memoryOfStates() {
  // Beside the copies that kernels read.
  const double master = low && config.precision.params == "fp32" ? 4 * parameters * owned : 0;
  e.parameters = width * parameters * (s.zeroStage == 3 ? part : 1);
  e.gradients = gradientWidth * parameters;
  // Ours: a tied embedding is looked up in f32, whole, and has a gradient of each of its two uses till they are added.
  if (ours && m.tieEmbeddings) {
    if (low && (s.zeroStage == 1 || s.zeroStage == 2))
      e.parameters += 4 * embedding;
    if (s.accumulate > 1)
      e.gradients += gradientWidth * embedding;
  }
  // gptc scatters a gradient as soon as it is computed; one that adds up over passes stays whole until the last pass.
  if (reducesEachPass || (ours && s.zeroStage >= 1 && s.accumulate == 1))
    e.gradients *= part;
  e.moments = s.offload ? 0 : master + w.momentBytes * parameters * owned;
  if (s.compression == "onebit" || (s.compression != "none" && s.data() > 1))
    e.moments += gradientWidth * parameters;  // what compression has lost, added to the next gradient
  if (config.parallel.syncEvery > 1)
    e.moments += (config.parallel.outerMomentum > 0 ? 8 : 4) * parameters;  // anchors, and moments of outer steps
}

void StepEstimate::memoryOfPasses() {
  if (s.zeroStage == 3)
    e.inFlight = 2 * width * std::max(ofLayers / (layers / stages), ours ? 0.0 : embedding / tensor);
  // The first stage of a pipeline keeps activations of as many passes as there are stages.
  const double underWay = s.pipeline > 1 ? std::min(stages, passes) : 1;
  const double live = (s.remat ? pass.checkpointed : pass.activations) / split;
  e.activations = live / stages * underWay;
  if (ours && !machines.device.isCpu) {
    // gptc holds nothing but what the plan's functions do (regionOnGpu); those of one pass a step have gradients there.
    // Behind them lie keys and values of samples.
    if (s.accumulate == 1)
      e.gradients = 0;
    e.inFlight = 0;
    const double cached =
        m.causal ? 2 * width * layers / stages * double(m.blockSize) * m.headSize() * m.nKvHead / tensor : 0;
    e.activations = regionOnGpu(config, s, w, live, parameters) + cached;
  }
  e.reserved = software.context + software.fragmentation * e.activations;
  for (const auto &[name, bytes] : s.remat ? pass.checkpointedBuffers : pass.buffers)
    e.buffers[name] += bytes / (split * stages) * underWay;
}

}  // namespace

Estimate Forecaster::estimate(const Strategy &s) { return estimate(s, nullptr); }

Estimate Forecaster::estimate(const Strategy &s, const CodeTimes *times) {
  Estimate e;
  e.byCode = times != nullptr;
  e.strategy = s;
  if (std::optional<Refusal> r = refusalOf(base, machines, s)) {
    e.problem = std::move(r->problem);
    e.remedy = std::move(r->remedy);
    return e;
  }
  e.predictedOnly = s.pipeline > 1 || (machines.software.isGptc() && !isBuilt(base, s));

  const Workload &w = workload(s.microBatch);
  const bool parts = machines.software.isGptc() && base.parallel.logicalTensor > 1;
  const Workload *inParts = parts ? &workload(s.microBatch, s.tensor) : nullptr;
  StepEstimate step(base, machines, perNode(s), w, inParts, times, e);
  step.computation();
  step.collectives();
  step.exchanges();
  step.overlap();
  step.optimizer();
  e.overhead = machines.software.stepOverhead.known ? double(machines.software.stepOverhead) : 0;
  const double exposed = e.reduce + e.gather - e.hidden;
  e.step = e.compute + e.recompute + e.bubble + exposed + e.exchange + e.optimizer + e.host + e.overhead;

  e.tokensPerStep = double(s.microBatch) * double(base.model.blockSize) * double(s.data()) * double(s.accumulate);
  e.tokensPerSecond = e.tokensPerStep / e.step;
  const double peak = flopsOf(s);
  const Workload &pass = inParts ? *inParts : w;
  e.flops = (pass.flops + (s.remat ? pass.forwardFlops : 0)) * double(inParts ? s.tensor : 1) / double(w.rows) *
            e.tokensPerStep;
  e.mfu = flopsPerToken * e.tokensPerSecond / peak;
  e.hfu = std::max(e.mfu, e.flops / e.step / peak);

  step.memory();
  if (s.offload)
    takeHost(e, step.hostStateBytes());
  e.binds = step.binds();
  return e;
}

}  // namespace gptc
