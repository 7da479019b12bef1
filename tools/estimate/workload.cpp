#include "tools/estimate/workload.h"

#include "codegen/codegen.h"
#include "frontends/model_builder.h"
#include "ir/facts.h"
#include "ir/gpu_sheets.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/pass.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"
#include "tools/estimate/planned.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace gptc {

MachineRates ratesOf(const DeviceSpec &d, double rows) {
  MachineRates r;
  r.fp32 = d.peak("fp32");
  r.tf32 = d.peak("tf32");
  r.fp16 = d.peak("fp16");
  r.bf16 = d.peak("bf16");
  const GpuSheet *sheet = gpuSheet(d.name);
  r.fp8 = d.isCpu || (sheet && !multipliesEights(sheet->arch)) ? r.fp32 : 2 * r.bf16;
  r.dram = d.bandwidth;
  r.cache = d.cacheBandwidth;
  r.cacheBytes = d.cacheBytes;
  r.launch = d.launch;
  r.packs = d.packs;
  r.matmul = d.matmul * d.efficiencyAt(rows);
  r.attention = d.attention;
  r.attentionGrad = d.attentionGrad;
  r.elementwise = d.elementwise;
  r.scatter = d.scatter;
  return r;
}

Target targetOnGpus(const Config &config) {
  Target t = cudaTarget("cuda:sm_90a");
  if (config.compile.libraryCalls == "auto")
    t.features = "cublaslt,cudnn";
  return t;
}

double parameterCount(const Config &config) {
  const std::unique_ptr<Module> m = buildModel(config, {.sampling = false});
  double n = 0;
  for (const auto &s : m->states)
    if (kindOf(*s) == StateKind::param)
      n += double(s->type.elements());
  return n;
}

double modelFlopsPerToken(const Config &config) {
  const ModelConfig &m = config.model;
  const double positions = m.position == Position::learned ? double(m.blockSize) * m.nEmbd : 0;
  ModelFacts sizes;
  sizes.nLayer = m.nLayer, sizes.nHead = m.nHead, sizes.nEmbd = m.nEmbd, sizes.headDim = m.headSize();
  sizes.causal = m.causal, sizes.blockSize = m.blockSize, sizes.window = m.window,
  sizes.layersWithoutWindow = m.layersWithoutWindow;
  return 6 * (parameterCount(config) - positions) + attentionFlopsPerToken(sizes);
}

namespace {

/// "h3.attn" -> "attn".
std::string placeOf(llvm::StringRef loc) {
  auto [layer, rest] = loc.split('.');
  if (layer.size() > 1 && layer[0] == 'h' && llvm::all_of(layer.drop_front(), [](char c) { return std::isdigit(c); }))
    return rest.str();
  return loc.str();
}

std::string labelOf(const LiveRange &r) {
  if (!r.value)
    return "workspace";
  const Op *op = r.value->def;
  if (!op)
    return "tokens";
  // A cast is named after its source.
  const Op *maker = op;
  while (maker->is(OpKind::cast) && maker->operand(0)->def)
    maker = maker->operand(0)->def;
  if (op->is(OpKind::fused)) {
    const Op *yield = op->body->back();
    if (const Op *inner = yield->operand(r.value->index)->def)
      maker = inner;
  }
  const std::string place = placeOf(maker->loc.empty() ? op->loc : maker->loc);
  std::string what =
      maker->is(OpKind::softmax) || maker->is(OpKind::softmax_grad) ? "attention probabilities" : maker->name().str();
  return place.empty() ? what : fmt::format("{} of {}", what, place);
}

/// Live ranges of a function. In a planned one, a result in its operand's place shares the operand's range.
/// `lossInPlace`: gradients of logits overwrite the logits.
std::vector<LiveRange> piecesOf(const Function &f, bool lossInPlace) {
  std::vector<LiveRange> ranges = liveRanges(f);
  if (lossInPlace)
    llvm::erase_if(ranges, [](const LiveRange &r) {
      return r.value && r.value->def && r.value->def->is(OpKind::cross_entropy_grad);
    });
  std::map<std::pair<int64_t, int>, LiveRange *> endsAt;  // by offset and last position
  auto offset = [](const LiveRange &r) -> std::optional<int64_t> {
    if (!r.value || !r.value->def || !hasFact<&GroupFacts::at>(*r.value->def))
      return std::nullopt;
    const std::vector<int64_t> at = fact<&GroupFacts::at>(*r.value->def);
    return r.value->index < at.size() ? std::optional(at[r.value->index]) : std::nullopt;
  };
  for (LiveRange &r : ranges)
    if (auto at = offset(r))
      endsAt[{*at, r.end}] = &r;
  for (LiveRange &r : ranges)
    if (auto at = offset(r))
      if (auto it = endsAt.find({*at, r.begin}); it != endsAt.end() && it->second != &r)
        it->second->end = r.begin - 1;
  return ranges;
}

/// Live bytes before the first op and at each op.
std::vector<double> curveOf(llvm::ArrayRef<LiveRange> pieces, const Function &f) {
  const int n = int(f.body.size()) + 2;
  std::vector<double> bytes(size_t(n) + 1, 0.0);
  for (const LiveRange &r : pieces) {
    bytes[size_t(r.begin + 1)] += double(r.bytes);
    bytes[size_t(std::min(r.end, n - 2) + 2)] -= double(r.bytes);
  }
  for (size_t i = 1; i < bytes.size(); ++i)
    bytes[i] += bytes[i - 1];
  bytes.pop_back();
  return bytes;
}

}  // namespace

double peakOf(const Function &f, Buffers &buffers, bool lossInPlace) {
  const std::vector<LiveRange> pieces = piecesOf(f, lossInPlace);
  const std::vector<double> bytes = curveOf(pieces, f);
  const auto peak = std::max_element(bytes.begin(), bytes.end());
  const int at = int(peak - bytes.begin()) - 1;
  for (const LiveRange &r : pieces)
    if (r.begin <= at && at <= r.end)
      buffers[labelOf(r)] += double(r.bytes);
  return *peak;
}

namespace {

/// All measurements of a graph of one depth.
struct Measured {
  Workload w;
  double evalFlops = 0, evalSeconds = 0;
};

class Measurement {
public:
  Measurement(const Config &config, const ClusterConfig &cluster, int64_t layers, InParts shared = {})
      : software(cluster.software), target(cluster.device.isCpu ? Target() : targetOnGpus(config)) {
    c = config;
    c.model.nLayer = layers;
    // One rank with accumulated gradients, so that forward and backward form a function of their own.
    c.parallel = ParallelConfig();
    c.parallel.tensor = shared.tensor;
    c.parallel.logicalTensor = shared.parts;
    c.train.accumulate = 2;
    c.train.globalBatchTokens = 2 * c.train.microBatch * c.model.blockSize;
    if (c.optimizer.name == "lamb")
      c.optimizer.name = "adamw";  // has the same two moments; its norms sum over data that is read anyway
    c.compile.remat = "none";
    rates = ratesOf(cluster.device, double(c.train.microBatch * c.model.blockSize));
  }

  Measured run() {
    std::unique_ptr<Module> m = through("none");
    Measured out;
    Workload &w = out.w;
    const Function &micro = *m->function("accumulate");
    const KernelCost cost = costOfKernels(micro), eval = costOfKernels(*m->function("eval"));
    w.flops = cost.flops;
    w.seconds = cost.seconds;
    out.evalFlops = eval.flops;
    out.evalSeconds = eval.seconds;
    w.updateBytes = costOf(*m->function("update"), rates).bytes;
    double moments = 0;
    for (const auto &s : m->states) {
      const std::optional<StateKind> kind = kindOf(*s);
      if (kind == StateKind::param) {
        w.parameters += double(s->type.paddedElements());
        w.byRows[s->type.rank() > 1 ? s->type.padded(0) : 1] += double(s->type.paddedElements());
      } else if (kind == StateKind::moment) {
        moments += double(s->type.bytes());
      }
    }
    w.momentBytes = moments;
    w.activations = peakOf(micro, w.buffers, software.lossInPlace());
    if (software.fusedKernels) {
      const std::unique_ptr<Module> full = through("full");
      w.checkpointed = peakOf(*full->function("accumulate"), w.checkpointedBuffers, software.lossInPlace());
    }
    w.rows = c.train.microBatch * c.model.blockSize;
    return out;
  }

  /// The graph as the software runs it.
  std::unique_ptr<Module> through(const char *remat) {
    BuildOptions build;
    build.decomposedAttention = !software.fusedAttention;
    build.sampling = false;
    std::unique_ptr<Module> m = buildModel(c, build);
    std::string passes = "canonicalize,cse,dce";
    if (software.paddedVocab)
      passes += ",pad-vocab";
    const bool inParts = c.parallel.logicalTensor > 1;
    passes += fmt::format("{},autodiff,optimizer,canonicalize,cse,dce,precision,fp8{}", inParts ? ",shard-tensor" : "",
                          inParts ? ",logical-tensor" : "");
    if (software.fusedKernels)
      passes += fmt::format(",recompute-cheap,fuse,order,remat{{budget=\"{}\"}},settle-writes,plan-memory", remat);
    PipelineOptions options;
    options.verifyEach = false;
    options.reproFile = "";
    runPipeline(*m, parsePipeline(passes, &target), options);
    return m;
  }

private:
  KernelCost costOfKernels(const Function &f) const {
    KernelCost sum;
    for (const Op &op : f.body)
      if (classOf(op) != KernelClass::communication)
        sum += costOf(op, rates);
    return sum;
  }

  const SoftwareSpec &software;
  const Target target;  // the results here do not depend on the CPU
  Config c;
  MachineRates rates;
};

}  // namespace

std::vector<double> memoryCurve(const Config &config, const ClusterConfig &cluster, bool remat) {
  const bool alone = remat && !cluster.software.fusedKernels;
  const std::unique_ptr<Module> m =
      Measurement(config, cluster, config.model.nLayer).through(remat && !alone ? "full" : "none");
  const Function &micro = *m->function("accumulate");
  std::vector<double> bytes = curveOf(piecesOf(micro, cluster.software.lossInPlace()), micro);
  if (!alone)
    return bytes;
  // Checkpointing as frameworks do it, drawn from its parts: the layers' inputs accumulate, then one layer at a time is
  // live.
  const Workload w = workloadOf(config, cluster);
  const double outside = w.checkpointed - w.perLayer - double(config.model.nLayer) * w.layerInput;
  bytes.clear();
  for (int64_t l = 0; l < config.model.nLayer; ++l)
    bytes.insert(bytes.end(), {double(l) * w.layerInput + 0.5 * w.perLayer, double(l + 1) * w.layerInput});
  bytes.push_back(double(config.model.nLayer) * w.layerInput + outside);
  for (int64_t l = config.model.nLayer; l > 0; --l)
    bytes.insert(bytes.end(), {double(l) * w.layerInput + 0.5 * w.perLayer, double(l) * w.layerInput + w.perLayer,
                               double(l - 1) * w.layerInput});
  return bytes;
}

double Workload::undivided(int64_t ranks) const {
  double whole = 0;
  for (const auto &[rows, elements] : byRows)
    whole += rows % ranks ? elements : 0;
  return whole / parameters;
}

Buffers lineThrough(const Buffers &less, const Buffers &deeper, double more) {
  Buffers all = less, out;
  all.insert(deeper.begin(), deeper.end());
  auto in = [](const Buffers &some, const std::string &name) {
    auto it = some.find(name);
    return it == some.end() ? 0.0 : it->second;
  };
  for (const auto &[name, bytes] : all) {
    const double a = in(less, name), b = in(deeper, name);
    if (const double n = b + more * (b - a); n > 0)
      out[name] = n;
  }
  return out;
}

Workload workloadOf(const Config &config, const ClusterConfig &cluster, int64_t shallow, InParts shared) {
  const int64_t layers = config.model.nLayer;
  shallow = std::min(shallow, layers);
  const double width = config.precision.compute == "fp32" || config.precision.compute == "tf32" ? 4 : 2;
  auto finish = [&](Workload w, double evalFlopsPerLayer, double evalSecondsPerLayer) {
    w.forwardFlops = evalFlopsPerLayer * double(layers);
    w.forwardSeconds = evalSecondsPerLayer * double(layers);
    w.layerInput = width * double(w.rows) * double(config.model.nEmbd);
    w.momentBytes /= w.parameters;
    if (!cluster.software.fusedKernels) {
      // Each layer keeps its input; one layer at a time is recomputed, besides what is outside the layers.
      const double outside = w.activations - w.perLayer * double(layers);
      w.checkpointed = double(layers) * w.layerInput + w.perLayer + std::max(outside, 0.0);
      w.checkpointedBuffers = {{"inputs of layers", double(layers) * w.layerInput},
                               {"one layer, computed again", w.perLayer},
                               {"outside layers", std::max(outside, 0.0)}};
    }
    return w;
  };
  const Measured less = Measurement(config, cluster, shallow, shared).run(),
                 deeper = Measurement(config, cluster, shallow + 1, shared).run();
  const double more = double(layers - shallow);
  auto line = [&](double a, double b) { return a + more * (b - a); };
  Workload w;
  w.rows = less.w.rows;
  w.flops = line(less.w.flops, deeper.w.flops);
  w.seconds = line(less.w.seconds, deeper.w.seconds);
  w.updateBytes = line(less.w.updateBytes, deeper.w.updateBytes);
  w.parameters = line(less.w.parameters, deeper.w.parameters);
  for (const auto &[rows, elements] : deeper.w.byRows)
    w.byRows[rows] = line(less.w.byRows.at(rows), elements);
  w.momentBytes = line(less.w.momentBytes, deeper.w.momentBytes);
  w.activations = line(less.w.activations, deeper.w.activations);
  w.perLayer = deeper.w.activations - less.w.activations;
  w.checkpointed = line(less.w.checkpointed, deeper.w.checkpointed);
  w.buffers = lineThrough(less.w.buffers, deeper.w.buffers, more - 1);
  w.checkpointedBuffers = lineThrough(less.w.checkpointedBuffers, deeper.w.checkpointedBuffers, more - 1);
  return finish(w, deeper.evalFlops - less.evalFlops, deeper.evalSeconds - less.evalSeconds);
}

}  // namespace gptc
