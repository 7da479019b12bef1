#include "frontends/model_builder.h"

#include "frontends/hf/tensors.h"
#include "frontends/hf/write.h"
#include "frontends/model_functions.h"
#include "frontends/parameter_groups.h"
#include "ir/facts.h"
#include "ir/quantized_cache.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>

namespace gptc {

int64_t foldOf(int64_t blockSize) {
  int64_t d = std::min<int64_t>(blockSize, 256);
  while (blockSize % d)
    --d;
  return d;
}

namespace {

/// Declares the states, which the functions below read by name.
class Parameters {
public:
  Parameters(Module &m, const ModelConfig &c) : m(m), c(c) {}

  /// `labels`: of a classifier; 0: there is none.
  void declare(bool hasHead, int64_t labels) {
    // GPT-2's 0.02 suits its own width of 768. Activations keep unit size at any width with 1/sqrt(width), hence this
    // scaling; narrow models learn much faster with it (docs/lab/training.md).
    const double linearStd = 0.02 * std::sqrt(768.0 / double(c.nEmbd));
    const double projection = linearStd / std::sqrt(2.0 * c.nLayer);
    const int64_t head = c.headSize(), heads = c.nHead * head, keyHeads = c.nKvHead * head;
    const bool before = c.normPosition != NormPosition::output,
               ofOutput = c.normPosition == NormPosition::output || c.normPosition == NormPosition::both;
    matrix("wte.weight", c.vocabSize, c.nEmbd, 0.02);
    if (c.position == Position::learned)
      matrix("wpe.weight", c.blockSize, c.nEmbd, 0.02);
    if (c.tokenTypes)
      matrix("wtt.weight", c.tokenTypes, c.nEmbd, 0.02);
    if (c.embeddingNorm)
      norm("word_embeddings_layernorm");
    for (int64_t l = 0; l < c.nLayer; ++l) {
      const std::string h = fmt::format("h.{}.", l);
      if (before && (l || c.firstNorm))
        norm(h + "ln_1");
      linear(h + "attn.c_attn", c.nEmbd, heads + 2 * keyHeads, linearStd, c.biased(c.qkvBias));
      linear(h + "attn.c_proj", heads, c.nEmbd, projection, c.biased(c.attentionBias));
      if (c.qkNorm != QkNorm::none) {
        const bool whole = c.qkNorm == QkNorm::whole;
        gain(h + "attn.q_norm.weight", whole ? heads : head);
        gain(h + "attn.k_norm.weight", whole ? keyHeads : head);
      }
      if (ofOutput)
        norm(h + "ln_1_out");
      if (before && !c.sharedNorm)
        norm(h + "ln_2");
      const bool bias = c.biased(c.mlpBias);
      if (c.gated())
        linear(h + "mlp.c_gate", c.nEmbd, c.ffnDim, linearStd, bias);
      linear(h + "mlp.c_fc", c.nEmbd, c.ffnDim, linearStd, bias);
      linear(h + "mlp.c_proj", c.ffnDim, c.nEmbd, projection, bias);
      if (ofOutput)
        norm(h + "ln_2_out");
    }
    if (c.normPosition != NormPosition::post)
      norm("ln_f");
    if ((hasHead && c.headTransform) || (labels && !c.hasPooler())) {
      linear("head.dense", c.nEmbd, c.nEmbd, linearStd, c.biased(c.mlpBias));
      norm("head.norm");
    }
    if (hasHead) {
      if (!c.tieEmbeddings)
        matrix("lm_head.weight", c.vocabSize, c.nEmbd, 0.02);
      if (c.headBias)
        parameter("lm_head.bias", Type(DType::f32, {c.vocabSize}), Initial::zeros);
    }
    if (labels) {
      if (c.hasPooler())
        linear("pooler.dense", c.nEmbd, c.nEmbd, linearStd, true);
      linear("classifier", c.nEmbd, labels, linearStd, true);
    }
    counter("rng_seed");
    counter("step");
  }

  void declareLossScale() {
    State *scale = addState(m, "loss_scale", Type::scalar(DType::f32), StateKind::counter);
    setFact<&InitialFacts::init>(*scale, Initial::constant);
    setFact<&InitialFacts::value>(*scale, 0x1p16);
    counter("good_steps");
  }

  /// Of one sequence, or of `slots`.
  void declareCaches(int64_t slots, CacheFormat format) {
    Type type(DType::f32, {c.nKvHead, c.blockSize, c.headSize()});
    if (slots)
      type.dims.insert(type.dims.begin(), slots);
    const auto eightBits = quantizedCacheType(type);
    GPTC_CHECK(format == CacheFormat::asComputed || eightBits, "heads of {} have no blocks", c.headSize());
    for (int64_t l = 0; l < c.nLayer; ++l)
      for (const char *which : {"k", "v"}) {
        if (format == CacheFormat::asComputed) {
          addState(m, fmt::format("h.{}.attn.{}_cache", l, which), type, StateKind::cache);
          continue;
        }
        addState(m, fmt::format("h.{}.attn.{}_cache", l, which), eightBits->numbers, StateKind::cache);
        addState(m, fmt::format("h.{}.attn.{}_scales", l, which), eightBits->scales, StateKind::cache);
      }
  }

private:
  State *parameter(const std::string &name, Type type, Initial init) {
    State *s = addState(m, name, std::move(type), StateKind::param);
    setFact<&InitialFacts::init>(*s, init);
    const hf::FileName file = hf::fileNameOf(family, c, name);
    writeFacts(*s, FileFacts{.hf = file.names,
                             .hfSplit = file.columns,
                             .hfTranspose = file.transposed,
                             .hfHeads = file.heads,
                             .hfShare = file.share});
    return s;
  }
  State *matrix(const std::string &name, int64_t rows, int64_t columns, double std) {
    State *s = parameter(name, Type(DType::f32, {rows, columns}), Initial::normal);
    setFact<&InitialFacts::std>(*s, std);
    setFact<&InitialFacts::stream>(*s, nextStream++);
    setFact<&TrainedFacts::decay>(*s, true);
    return s;
  }
  void linear(const std::string &name, int64_t in, int64_t out, double std, bool bias) {
    matrix(name + ".weight", in, out, std);
    if (bias)
      parameter(name + ".bias", Type(DType::f32, {out}), Initial::zeros);
  }
  void norm(const std::string &name) {
    gain(name + ".weight", c.nEmbd);
    if (c.normBiased())
      parameter(name + ".bias", Type(DType::f32, {c.nEmbd}), Initial::zeros);
  }

  void gain(const std::string &name, int64_t size) {
    parameter(name, Type(DType::f32, {size}), c.normPlusOne ? Initial::zeros : Initial::ones);
  }

  void counter(const std::string &name) { addState(m, name, Type::scalar(DType::i64), StateKind::counter); }

  Module &m;
  const ModelConfig &c;
  const hf::Family *family = hf::familyOf(c);  // whose names and layouts the parameters have in files
  int64_t nextStream = 0;
};

/// The enumerator of a word that the configuration's reader has judged.
template <typename E> E chosen(const std::string &word) {
  const std::optional<E> value = parseWord<E>(word);
  GPTC_CHECK(value, "nothing is called {}", word);
  return *value;
}

/// What [model] says, without what follows from the rest of it: equal models say the same, however their keys are
/// written.
ModelFacts modelFacts(const Config &config) {
  const ModelConfig &c = config.model;
  auto unlessBias = [&](const std::optional<bool> &own) {
    return c.biased(own) == c.bias ? std::nullopt : std::optional(c.biased(own));
  };
  const bool ownScale = c.attentionScale != 1 / std::sqrt(double(c.headSize()));
  return {.name = config.name,
          .nLayer = c.nLayer,
          .nHead = c.nHead,
          .nKvHead = c.nKvHead,
          .nEmbd = c.nEmbd,
          .ffnDim = c.ffnDim,
          .vocabSize = c.vocabSize,
          .blockSize = c.blockSize,
          .norm = c.norm,
          .normEps = c.normEps,
          .activation = c.activation,
          .position = c.position,
          .causal = c.causal,
          .bias = c.bias,
          .tieEmbeddings = c.tieEmbeddings,
          .embeddingNorm = c.embeddingNorm,
          .headDim = c.headSize() == c.nEmbd / c.nHead ? 0 : c.headSize(),
          .ropeTheta = c.ropeTheta,
          .rotaryDim = c.rotated() == c.headSize() ? 0 : c.rotated(),
          .ropeScaling = c.ropeScaling,
          .ropeFactor = c.ropeFactor,
          .ropeOriginal = c.ropeOriginal,
          .ropeLow = c.ropeLow,
          .ropeHigh = c.ropeHigh,
          .ropeBetaFast = c.ropeBetaFast,
          .ropeBetaSlow = c.ropeBetaSlow,
          .ropeTruncate = c.ropeTruncate,
          .ropeMagnitude = c.ropeMagnitude,
          .layersWithoutRope = c.layersWithoutRope,
          .window = c.window,
          .layersWithoutWindow = c.layersWithoutWindow,
          .windowRopeTheta = c.windowRopeTheta,
          .attentionScale = ownScale ? c.attentionScale : 0,
          .attentionSoftcap = c.attentionSoftcap,
          .logitSoftcap = c.logitSoftcap,
          .embeddingScale = c.embeddingScale,
          .qkvBias = unlessBias(c.qkvBias),
          .attentionBias = unlessBias(c.attentionBias),
          .mlpBias = unlessBias(c.mlpBias),
          .normBias = c.norm == Norm::layernorm ? unlessBias(c.normBias) : std::nullopt,
          .headBias = c.headBias,
          .qkNorm = c.qkNorm,
          .normPosition = c.normPosition,
          .normPlusOne = c.normPlusOne,
          .firstNorm = c.firstNorm,
          .parallelResidual = c.parallelResidual,
          .sharedNorm = c.sharedNorm,
          .tokenTypes = c.tokenTypes,
          .headTransform = c.headTransform,
          .labels = c.labels,
          .problemType = c.problemType,
          .classifierPooling = c.classifierPooling};
}

/// What passes and the runtime read of the configuration.
void sayFacts(Module &m, const Config &config) {
  const OptimizerConfig &o = config.optimizer;
  writeFacts(m, modelFacts(config));
  writeFacts(m, BatchFacts{.microBatch = config.train.microBatch,
                           .accumulate = config.train.accumulate,
                           .fold = foldOf(config.model.blockSize)});
  writeFacts(m, OptimizerFacts{.optimizer = chosen<OptimizerKind>(o.name),
                               .steps = config.run.steps,
                               .warmup = o.warmupSteps,
                               .schedule = o.schedule,
                               .decaySteps = o.decaySteps,
                               .lr = o.lr,
                               .minLrRatio = o.minLrRatio,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .momentum = o.momentum,
                               .nesterov = o.nesterov,
                               .relativeStep = o.relativeStep,
                               .firstMoment = o.firstMoment,
                               .weightDecay = o.weightDecay,
                               .gradClip = config.train.gradClip});
  writeFacts(m, PrecisionFacts{.compute = chosen<Compute>(config.precision.compute),
                               .optimizerState = config.precision.optimizerState,
                               .residual = config.precision.residual,
                               .fp8 = config.precision.fp8,
                               .weights = config.precision.weights});
  if (const ParallelConfig &p = config.parallel;
      p.logicalShards > 1 || p.tensor > 1 || p.logicalTensor > 1 || p.needsWholeRanks())
    writeFacts(m, ParallelFacts{.data = p.data,
                                .tensor = p.tensor,
                                .zeroStage = p.zeroStage,
                                .reduceOrder = p.reduceOrder,
                                .shards = p.shardsPerRank(),
                                .logicalTensor = p.logicalTensor,
                                .syncEvery = p.syncEvery,
                                .outerLr = p.outerLr,
                                .outerMomentum = p.outerMomentum,
                                .gradientRank = p.compressedRank(),
                                .compressFrom = p.compressedRank() > 0 ? p.compressFrom : 0});
  const bool gpu = config.compile.target != "cpu";
  writeFacts(m, CompileFacts{.remat = config.compile.remat,
                             .packWeights = config.compile.packWeights,
                             .offload = gpu ? chosen<Offload>(config.parallel.offload) : Offload::none,
                             .splitDecode = !gpu || config.compile.splitDecode});
}

}  // namespace

std::unique_ptr<Module> buildModel(const Config &config, const BuildOptions &options) {
  const ModelConfig &c = config.model;
  const double heads = double(c.nHead) * c.headSize(), keyHeads = double(c.nKvHead) * c.headSize();
  const double parameters =
      double(c.nLayer) * c.nEmbd * (2 * heads + 2 * keyHeads + (c.gated() ? 3.0 : 2.0) * c.ffnDim) +
      double(c.vocabSize) * c.nEmbd;
  if (parameters > 1e12)
    throw UserError(ErrorCode::TooLarge, fmt::format("a model of {:.3g} parameters", parameters),
                    "10^12 is the most; make n_layer, n_embd or vocab_size smaller");

  const double widest = std::max({double(c.nEmbd), heads + 2 * keyHeads, double(c.ffnDim), double(c.vocabSize)});
  const double elements = widest * c.blockSize * config.train.microBatch;
  if (elements > double(maxElements))
    throw UserError(ErrorCode::TooLarge, fmt::format("a tensor of {:.3g} elements in every step", elements),
                    fmt::format("{:.3g} is the most; make train.micro_batch, model.block_size or the model smaller",
                                double(maxElements)));

  auto m = std::make_unique<Module>();
  const int64_t prefill = std::min<int64_t>(64, c.blockSize);
  sayFacts(*m, config);
  Parameters declarations(*m, c);
  declarations.declare((!options.embed || options.fills) && !c.labels, options.embed ? options.labels : c.labels);
  applyGroups(config, *m);
  applyLayerDecay(config, *m);
  applyEightBits(config, *m);
  if (config.precision.compute == "fp16")
    declarations.declareLossScale();
  if (options.embed) {
    for (int64_t tokens = 16, before = 0; before < c.blockSize; before = tokens, tokens *= 2)
      buildEmbed(*m, config, options, tokens);
    if (options.fills)
      buildFill(*m, config, options);
    if (options.labels)
      buildLabels(*m, config, options);
    return m;
  }
  if (options.slots) {
    GPTC_CHECK(c.causal, "an encoder has no cache");
    setFact<&BatchFacts::prefill>(*m, prefill);
    declarations.declareCaches(options.slots, config.precision.cache);
    const int64_t all = options.slots;
    for (int64_t tokens = 1; tokens < all; tokens *= 2)
      buildStep(*m, config, options, tokens, tokens);
    buildStep(*m, config, options, all, all);
    if (prefill > all)
      buildStep(*m, config, options, prefill, all);
    buildScore(*m, config, options, prefill);
    return m;
  }
  if (c.labels) {
    buildLabelLoss(*m, config, options, "forward", true);
    buildLabelLoss(*m, config, options, "eval", false);
    return m;
  }
  buildLoss(*m, config, options, "forward", true);
  buildLoss(*m, config, options, "eval", false);
  if (!c.causal)
    setFact<&BatchFacts::maskToken>(*m, c.maskToken());
  if (options.sampling && c.causal) {
    setFact<&BatchFacts::prefill>(*m, prefill);
    declarations.declareCaches(0, config.precision.cache);
    buildCached(*m, config, options, "decode", 1, false);
    buildCached(*m, config, options, "prefill", prefill, prefill > 1);
  }
  return m;
}

}  // namespace gptc
