// Every key of model.toml: the members that hold the values, and below them the one table of names, types, ranges and
// meanings. What reads model.toml and --set, the run settings in a plan's manifest, `gptc config`, docs/keys.md and the
// JSON Schema for editors are all made from this table. A new key needs a member, a line in the table, and its use.
//
// A member's initial value is its key's default. Rules that the table cannot express (presets, keys that contradict
// each other) are in frontends/read_settings.cpp and frontends/toml_config.cpp.
#pragma once

#include "ir/choices.h"
#include "ir/gradient_rank.h"
#include "ir/settings/setting.h"
#include "support/diagnostics.h"

#include <functional>
#include <limits>

namespace gptc {

/// The settings of a run, which a plan's manifest holds because the graph has none of them. Paths are absolute in
/// memory; a relative path in a manifest is resolved against the plan's folder.
struct RunSettings {
  std::string outDir;  // default: out/NAME beside the model file
  int64_t steps = 1000;
  int64_t seed = 1337;
  std::string onNonfinite = "explain";
  std::string initFrom = "scratch";
  std::string trainData, valData, tokenizer;  // "": none
  bool parseSpecial = false;
  int64_t evalEvery = 250;
  int64_t evalSteps = 20;
  int64_t sampleEvery = 0;
  std::string samplePrompt = "\n";
  int64_t sampleTokens = 64;
  int64_t checkpointEvery = 1000;
  int64_t checkpointKeep = 3;
  std::string checkpointAsync = "auto";  // | "true" | "false"
  int64_t logEvery = 10;
  bool tensorboard = false;
  std::vector<int64_t> traceSteps;  // empty, or the first and the last step
  double mfuPeak = 0;               // FLOP/s; 0: "auto"; -1: "measured"
  bool operator==(const RunSettings &) const = default;
};

struct ModelConfig {
  std::string preset = "none";
  int64_t nLayer = 0, nHead = 0, nEmbd = 0;  // 0: neither the file nor a preset gives it
  int64_t nKvHead = 0;                       // default: nHead
  int64_t ffnDim = 0;                        // default: see defaultFfnDim
  int64_t vocabSize = 0;                     // default: that of data.tokenizer ([MASK] added), else the preset's
  int64_t blockSize = 0;
  Norm norm = Norm::layernorm;
  double normEps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  Position position = Position::learned;
  bool causal = true;
  bool bias = true;
  bool tieEmbeddings = true;
  bool embeddingNorm = false;
  double dropout = 0;

  // Of models of other programs. Lists of layers count from 0 and are in rising order.
  int64_t headDim = 0;  // default: nEmbd / nHead
  double ropeTheta = 10000;
  int64_t rotaryDim = 0;  // default: headDim
  RopeScaling ropeScaling = RopeScaling::none;
  double ropeFactor = 1;
  int64_t ropeOriginal = 0;  // llama3 and yarn need it
  double ropeLow = 1, ropeHigh = 4;
  double ropeBetaFast = 32, ropeBetaSlow = 1;
  bool ropeTruncate = true;
  double ropeMagnitude = 0;  // 0: of ropeFactor
  std::vector<int64_t> layersWithoutRope;
  int64_t window = 0;  // 0: none
  std::vector<int64_t> layersWithoutWindow;
  double windowRopeTheta = 0;                     // 0: ropeTheta
  double attentionScale = 0;                      // 0: 1 / sqrt(headDim)
  double attentionSoftcap = 0, logitSoftcap = 0;  // 0: none
  double embeddingScale = 1;
  std::optional<bool> qkvBias, attentionBias, mlpBias;  // default: bias
  std::optional<bool> normBias;                         // default: bias with layer norms
  bool headBias = false;
  QkNorm qkNorm = QkNorm::none;
  NormPosition normPosition = NormPosition::pre;
  bool firstNorm = true;
  bool normPlusOne = false;
  bool parallelResidual = false, sharedNorm = false;
  int64_t tokenTypes = 0;  // 0: no table of them
  bool headTransform = false;
  int64_t labels = 0;                                                  // default: as many as data.labels names, else 0
  ProblemType problemType = ProblemType::single_label_classification;  // default: as data.labels says
  ClassifierPooling classifierPooling = ClassifierPooling::cls;

  /// Elements of a head; 0 while a size is missing.
  int64_t headSize() const { return headDim ? headDim : nHead ? nEmbd / nHead : 0; }
  /// Elements of a head that are rotated with position = rope.
  int64_t rotated() const { return rotaryDim ? rotaryDim : headSize(); }
  /// Whether layers that `own` speaks of have a bias.
  bool biased(const std::optional<bool> &own) const { return own.value_or(bias); }
  bool normBiased() const { return normBias.value_or(bias) && norm == Norm::layernorm; }
  /// Whether the feed-forward layer has a second matrix, whose activated product multiplies the product of the first.
  bool gated() const { return activation >= Activation::swiglu; }
  /// Whether a classifier of labels has BERT's pooler, rather than, as ModernBERT's, what head_transform says.
  bool hasPooler() const { return normPosition == NormPosition::post; }
  /// The token [MASK] of an encoder: the last one, which text never contains.
  int64_t maskToken() const { return vocabSize - 1; }
};

/// [data] beyond what a run reads.
struct DataConfig {
  std::string labels;  // file of the names of labels, which a plan's config.json holds; "": none
};

struct TrainConfig {
  int64_t globalBatchTokens = 0;  // default: 16384, rounded to whole sequences
  int64_t microBatch = 0;         // sequences; 0: "auto", see autoMicroBatch
  int64_t accumulate = 1;         // micro-batches of each rank per step, computed from the two above and the ranks
  double gradClip = 1.0;
};

/// [[optimizer.group]]: parameters with their own settings (frontends/parameter_groups.h).
struct ParameterGroup {
  PatternList patterns;
  double lrScale = 1;
  std::optional<double> weightDecay;
  std::optional<std::pair<double, double>> betas;
  bool frozen = false;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 6e-4;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weightDecay = 0.1;
  double firstMoment = 0;
  double momentum = 0.9;
  bool nesterov = false;
  bool relativeStep = true;
  std::vector<ParameterGroup> groups;  // a parameter belongs to the last one that matches
  LrSchedule schedule = LrSchedule::cosine;
  int64_t warmupSteps = 0;
  int64_t decaySteps = -1;  // of wsd; -1: a fifth of the steps
  double minLrRatio = 0;
  double layerDecay = 1;
};

/// How data * tensor ranks share the work (passes/partition.cpp, passes/shard_tensor.cpp, passes/outer_steps.cpp,
/// passes/compress_gradients.cpp).
struct ParallelConfig {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t zeroStage = 0;      // "auto": the fastest of 0 to 3 that fits (tools/estimate/auto.cpp)
  int64_t logicalShards = 1;  // "auto": as many as ranks
  int64_t logicalTensor = 1;
  ReduceOrder reduceOrder = ReduceOrder::tree;
  int64_t syncEvery = 1;  // 1: ranks add their gradients in every step
  double outerLr = 0.7, outerMomentum = 0.9;
  std::string offload = "none";
  std::string compression = "none";
  int64_t gradientRank = 4, compressFrom = 100;
  /// The rank of what ranks send in place of gradients; 0: they send gradients.
  int64_t compressedRank() const { return compression == "powersgd" ? gradientRank : 0; }
  /// Whether each rank must have the whole model and one shard of the batch.
  bool needsWholeRanks() const { return syncEvery > 1 || compressedRank() > 0; }
  int64_t shardsPerRank() const { return logicalShards / data; }
};

struct PrecisionConfig {
  std::string compute = "fp32";
  std::string params = "fp32";  // in forecasts also bf16 and fp16
  MomentType optimizerState = MomentType::fp32;
  Residual residual = Residual::fp32;
  Fp8 fp8 = Fp8::off;
  Weights weights = Weights::compute;
  PatternList eightBits;
  CacheFormat cache = CacheFormat::asComputed;
};

struct CompileConfig {
  std::string target = "cpu";
  std::string remat = "auto";
  std::string gpuMemory = "auto";
  std::optional<bool> packWeights;  // nullopt: "auto"
  std::string libraryCalls = "auto";
  bool splitDecode = true;
  std::string autotune = "cached";
  double autotuneSeconds = 120;
};

/// The content of a model file.
struct Settings {
  int64_t schema = 1;
  std::string name;  // default: the file's name without .toml
  RunSettings run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  PrecisionConfig precision;
  CompileConfig compile;
};

// The table. `key` takes (name, member, type, meaning, Otherwise or InPlan...). Its order is that in which keys are
// read, that of candidates for nearest names, and that of keys in manifests.

/// All words of an enum in its order, followed by `more`.
template <Worded E> std::vector<std::string> wordsAnd(std::initializer_list<const char *> more) {
  std::vector<std::string> words = allWords<E>();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The longest block_size: rows of attention scores are on the stack.
constexpr int64_t kMostBlockSize = 1 << 17;

namespace values {
constexpr int64_t billion = 1'000'000'000;
inline Form sizeForm(const char *example) {
  return {std::string("a size such as ") + example, "^(?=.*[1-9])([0-9]+(\\.[0-9]*)?|\\.[0-9]+) *([KMGT]i?B|B)?$"};
}
}  // namespace values

template <typename Table> void fileKeys(Table &key, Settings &s) {
  using namespace values;
  key("schema", s.schema, Integer{1, 1}, "Version of these keys.");
  key("extends", std::monostate(), Path{}, "A model file that holds for every key that this one does not write.",
      Otherwise{"none"});
  key("name", s.name, Text{}, "Name of the model and of its plan, NAME.plan.", Otherwise{"the file's name"});
  key("out_dir", s.run.outDir, Path{}, "Folder of what a run writes: log.jsonl, checkpoints, traces.",
      Otherwise{"out/NAME"}, InPlan{"out_dir"});
}

template <typename Table> void modelKeys(Table &key, ModelConfig &m) {
  using namespace values;
  key("model.preset", m.preset, Choice{{"gpt2", "llama", "bloom", "encoder", "none"}},
      "Family whose architecture, with the sizes of GPT-2 124M, holds for keys that are not written.");
  const Otherwise sizes{"the preset's"};
  key("model.n_layer", m.nLayer, Integer{1, 1000}, "Layers.", sizes);
  key("model.n_head", m.nHead, Integer{1, 1024}, "Heads of attention. Divides n_embd, unless head_dim is written.",
      sizes);
  key("model.n_embd", m.nEmbd, Integer{1, 1 << 16}, "Width of the residual stream.", sizes);
  key("model.n_kv_head", m.nKvHead, Integer{1, 1024},
      "Heads of keys and values. Divides n_head; fewer make grouped-query attention, 1 multi-query attention.",
      Otherwise{"n_head"});
  key("model.head_dim", m.headDim, Integer{1, 1024}, "Elements of a head.", Otherwise{"n_embd / n_head, at most 1024"});
  key("model.ffn_dim", m.ffnDim, Integer{1, 1 << 20}, "Width of the hidden layer.",
      Otherwise{"4 n_embd; with a gated activation 8/3 n_embd, rounded up"});
  key("model.vocab_size", m.vocabSize, Integer{2, 1 << 24},
      "Tokens. At least those of the tokenizer; an encoder has one more, [MASK].",
      Otherwise{"the tokenizer's, else the preset's"});
  key("model.block_size", m.blockSize, Integer{1, kMostBlockSize}, "Context: tokens of a sequence.", sizes);
  key("model.norm", m.norm, Choice{allWords<Norm>()}, "Norm before attention, hidden layer and classifier.",
      Otherwise{"\"layernorm\"; preset llama: \"rmsnorm\""});
  key("model.norm_eps", m.normEps, Number{above(0), atMost(1)},
      "Added to the variance, or to the mean square, before the root.");
  key("model.activation", m.activation, Choice{allWords<Activation>()},
      "Activation of the hidden layer. swiglu, geglu and geglu_tanh are gated and have a third matrix.",
      Otherwise{"\"gelu_tanh\"; preset llama: \"swiglu\", encoder: \"gelu\""});
  key("model.position", m.position, Choice{allWords<Position>()},
      "How positions are told: a table, rotated queries and keys, a bias of the scores, or not at all.",
      Otherwise{"\"learned\"; preset llama: \"rope\", bloom: \"alibi\""});
  key("model.causal", m.causal, Boolean{}, "Whether a token sees only those before it. false makes an encoder.",
      Otherwise{"true; preset encoder: false"});
  key("model.bias", m.bias, Boolean{}, "Whether linear layers and layer norms have a bias.",
      Otherwise{"true; preset llama: false"});
  key("model.tie_embeddings", m.tieEmbeddings, Boolean{}, "Whether the classifier is the embedding table.",
      Otherwise{"true; preset llama: false"});
  key("model.embedding_norm", m.embeddingNorm, Boolean{}, "Whether a norm follows the embedding.",
      Otherwise{"false; presets bloom and encoder: true"});
  key("model.dropout", m.dropout, Number{atLeast(0), below(1)},
      "Probability that an element is dropped: of embeddings, of attention, and of what is added to the residual "
      "stream.");
}

/// Keys of [model] that say how positions are rotated.
template <typename Table> void rotationKeys(Table &key, ModelConfig &m) {
  using namespace values;
  const Number positive{above(0), atMost(1e9)};
  key("model.rope_theta", m.ropeTheta, Number{above(1), atMost(1e12)},
      "position = \"rope\": base of the angles; pair i of d elements turns by theta^(-2i/d) a token.");
  key("model.rotary_dim", m.rotaryDim, Integer{1, 1024},
      "position = \"rope\": elements of each head that are rotated, the first ones. Even.", Otherwise{"head_dim"});
  key("model.rope_scaling", m.ropeScaling, Choice{allWords<RopeScaling>()},
      "How angles are changed for contexts longer than those of training. linear: all divided by rope_factor; llama3: "
      "only slow ones; yarn: slow ones, and scores are scaled.");
  key("model.rope_factor", m.ropeFactor, Number{atLeast(1), atMost(1e6)},
      "rope_scaling: how many times longer contexts are.");
  key("model.rope_original_block_size", m.ropeOriginal, Integer{0, 1 << 24},
      "rope_scaling llama3 and yarn: tokens of the contexts of training. Both need it.");
  key("model.rope_low_freq_factor", m.ropeLow, positive,
      "llama3: angles that turn at most this often in an original context are divided by rope_factor.");
  key("model.rope_high_freq_factor", m.ropeHigh, positive,
      "llama3: angles that turn at least this often stay; those between are blended.");
  key("model.rope_beta_fast", m.ropeBetaFast, positive,
      "yarn: angles that turn more often than this in an original context stay.");
  key("model.rope_beta_slow", m.ropeBetaSlow, positive,
      "yarn: angles that turn less often than this are divided by rope_factor.");
  key("model.rope_truncate", m.ropeTruncate, Boolean{},
      "yarn: whether the bounds that rope_beta_fast and rope_beta_slow give are rounded to whole pairs.");
  key("model.rope_attention_factor", m.ropeMagnitude, Number{atLeast(0), atMost(1000)},
      "yarn: factor of rotated queries and keys. 0: 0.1 ln(rope_factor) + 1.");
  key("model.layers_without_rope", m.layersWithoutRope, Integers{0, 999},
      "position = \"rope\": layers, from 0, that do not rotate.");
}

/// Further keys of [model] on attention.
template <typename Table> void attentionKeys(Table &key, ModelConfig &m) {
  using namespace values;
  const Number cap{atLeast(0), atMost(1e9)};
  key("model.window", m.window, Integer{0, 1 << 24},
      "Tokens that a token sees at most, itself included; with causal = false so many to each side. 0: all.");
  key("model.layers_without_window", m.layersWithoutWindow, Integers{0, 999},
      "Layers, from 0, whose tokens see all others in spite of window.");
  key("model.window_rope_theta", m.windowRopeTheta, Number{atLeast(0), atMost(1e12)},
      "position = \"rope\": rope_theta of the layers with a window, above 1. 0: the same as of the others.");
  key("model.attention_scale", m.attentionScale, Number{atLeast(0), atMost(1e6)},
      "Factor of the products of queries and keys. 0: 1 / sqrt(head_dim).");
  key("model.attention_softcap", m.attentionSoftcap, cap,
      "c: scaled products s become c tanh(s / c), before what positions add. 0: they stay.");
  key("model.qk_norm", m.qkNorm, Choice{allWords<QkNorm>()},
      "RMS norm of queries and keys before they are rotated: none, of each head, or over all heads together.");
}

/// Further keys of [model] on the layers and on what surrounds them.
template <typename Table> void layerKeys(Table &key, ModelConfig &m) {
  using namespace values;
  const Otherwise bias{"bias"};
  key("model.qkv_bias", m.qkvBias, Boolean{}, "Whether queries, keys and values have a bias.", bias);
  key("model.attention_bias", m.attentionBias, Boolean{}, "Whether the projection behind attention has a bias.", bias);
  key("model.mlp_bias", m.mlpBias, Boolean{}, "Whether the linear layers of the hidden layer have a bias.", bias);
  key("model.norm_bias", m.normBias, Boolean{}, "Whether layer norms have a bias.",
      Otherwise{"bias; norm = \"rmsnorm\": false"});
  key("model.head_bias", m.headBias, Boolean{}, "Whether the classifier has a bias.");
  key("model.norm_position", m.normPosition, Choice{allWords<NormPosition>()},
      "Where norms stand: before each block; behind each residual sum, without a final norm; on the output of each "
      "block; before it and on its output.");
  key("model.first_norm", m.firstNorm, Boolean{},
      "Norms before blocks: whether attention of the first layer has one, too.");
  key("model.norm_plus_one", m.normPlusOne, Boolean{},
      "norm = \"rmsnorm\": whether norms multiply by 1 + weight, in place of the weight.");
  key("model.parallel_residual", m.parallelResidual, Boolean{},
      "Whether attention and hidden layer read the same input, and both are added to it.");
  key("model.shared_norm", m.sharedNorm, Boolean{}, "parallel_residual: whether both share one norm.");
  key("model.embedding_scale", m.embeddingScale, Number{above(0), atMost(1e6)}, "Factor of embeddings.");
  key("model.token_types", m.tokenTypes, Integer{0, 1 << 16},
      "Rows of a table of token types, of which row 0 is added to every embedding, in labels of pairs each token's. 0: "
      "no "
      "table.");
  key("model.head_transform", m.headTransform, Boolean{},
      "Whether a linear layer (its bias: mlp_bias), the activation, without its gate, and a norm stand before the "
      "classifier.");
  key("model.labels", m.labels, Integer{0, 1 << 16},
      "Labels of texts that a classifier in BERT's or ModernBERT's form tells, in place of the head that names tokens. "
      "0: none.",
      Otherwise{"as many as data.labels names, else 0"});
  key("model.problem_type", m.problemType, Choice{allWords<ProblemType>()},
      "What is learned of labels: which one is right; which are, each by itself; or, with one label, a real number.",
      Otherwise{"as data.labels says, else single_label_classification"});
  key("model.classifier_pooling", m.classifierPooling, Choice{allWords<ClassifierPooling>()},
      "Which vector the classifier of labels reads in ModernBERT's form: that of the first token, or the mean.");
  key("model.logit_softcap", m.logitSoftcap, Number{atLeast(0), atMost(1e9)},
      "c: logits l become c tanh(l / c). 0: they stay.");
}

template <typename Table> void trainKeys(Table &key, TrainConfig &t, RunSettings &run) {
  using namespace values;
  key("train.steps", run.steps, Integer{1, billion}, "Optimizer steps of the whole run.", InPlan{"steps"});
  // With this limit, the tokens of a run of 10^9 steps fit 63 bits.
  key("train.global_batch_tokens", t.globalBatchTokens, Integer{1, int64_t(1) << 32, {}, true},
      "Tokens of a step: ranks x micro_batch x block_size x a whole number, the passes over which gradients "
      "accumulate.",
      Otherwise{"16384, in whole sequences"});
  key("train.micro_batch", t.microBatch, Integer{1, 1 << 20, {{"auto", 0}}},
      "Sequences of a rank in one pass. \"auto\": on a CPU at most 8192 tokens and about 4 GiB of activations; on a "
      "GPU as many as its memory holds.");
  key("train.seed", run.seed, Integer{0, std::numeric_limits<int64_t>::max()},
      "Seed of initial values, of the order of data, and of dropout.", InPlan{"seed"});
  key("train.on_nonfinite", run.onNonfinite, Choice{{"explain", "halt", "skip"}},
      "What follows a loss or gradient that is not finite: replay the step and name the first bad op, stop, or go on "
      "without the step.",
      InPlan{"on_nonfinite"});
  // A key of [model], but here because of its place in manifests.
  key("model.init_from", run.initFrom,
      Text{{"scratch"}, {{"\"hf:DIR\"", "^hf:."}, {"\"gguf:FILE\"", "^gguf:."}, {"\"ckpt:DIR\"", "^ckpt:."}}},
      "Initial weights: random, of a GGUF file, or of a folder with model.safetensors that another program or a run of "
      "ours wrote.",
      InPlan{"init_from"});
  key("train.grad_clip", t.gradClip, Number{atLeast(0), atMost(1e9)},
      "Largest norm of the gradient; a larger one is scaled down to it. 0: no clipping.");
}

template <typename Table> void optimizerKeys(Table &key, OptimizerConfig &o) {
  using namespace values;
  key("optimizer.name", o.name, Choice{allWords<OptimizerKind>(), {"lamb"}}, "Optimizer.");
  key("optimizer.lr", o.lr, Number{atLeast(0), atMost(1000)}, "Highest learning rate.",
      Otherwise{"6e-4; sgd: 0.1, adafactor: 0.01"});
  key("optimizer.betas", NumberPair{&o.beta1, &o.beta2}, Numbers{2, 0, 1}, "adamw: decay rates of its two moments.");
  key("optimizer.eps", o.eps, Number{above(0), atMost(1)},
      "adamw: added to the root of the second moment. adafactor: the least root of a mean square.",
      Otherwise{"1e-8; adafactor: 2^-23"});
  key("optimizer.weight_decay", o.weightDecay, Number{atLeast(0), atMost(1000)}, "Weight decay, of matrices only.",
      Otherwise{"0.1; sgd and adafactor: 0"});
  key("optimizer.schedule", o.schedule, Choice{allWords<LrSchedule>()},
      "Learning rate after the warm-up: falls as a cosine; stays until decay_steps before the end, then falls evenly; "
      "falls evenly; stays; or falls with the root of the steps, whatever train.steps is.");
  key("optimizer.warmup_steps", o.warmupSteps, Integer{0, billion, {}, false, true},
      "Steps in which the learning rate rises from 0.");
  key("optimizer.decay_steps", o.decaySteps, Integer{0, billion, {{"20%", -1}}, false, true},
      "schedule wsd: the last steps, in which the learning rate falls.");
  key("optimizer.min_lr_ratio", o.minLrRatio, Number{atLeast(0), atMost(1)},
      "The last learning rate, as a part of the highest.");
  key("optimizer.layer_decay", o.layerDecay, Number{above(0), atMost(1)},
      "Factor of the learning rate from each layer to the one below it: the head and the last norm have all of it, the "
      "last layer this factor of it, embeddings the least. Groups' lr_scale multiplies.");
  key("optimizer.momentum", o.momentum, Number{atLeast(0), below(1)}, "sgd: momentum. 0: none, and no moment is kept.");
  key("optimizer.nesterov", o.nesterov, Boolean{}, "sgd: whether a step looks ahead along the momentum.");
  key("optimizer.relative_step", o.relativeStep, Boolean{},
      "adafactor: whether steps are relative to the size of the parameter, at most lr and 1/sqrt(step) of it.");
  key("optimizer.first_moment", o.firstMoment, Number{atLeast(0), below(1)},
      "adafactor: decay rate of a first moment. 0: none, which is what keeps its state small.");
  key("optimizer.group", std::monostate(), Tables{},
      "Groups of parameters with settings of their own. The last group that matches a parameter holds.",
      Otherwise{"none"});
}

/// Keys of one [[optimizer.group]].
template <typename Table> void groupKeys(Table &key, ParameterGroup &g) {
  using namespace values;
  key("optimizer.group.match", std::monostate(), Patterns{},
      "Names of parameters as checkpoints have them, without \"transformer.\"; * stands for any text, ? for "
      "a character.",
      Otherwise{"needed"});
  key("optimizer.group.lr_scale", g.lrScale, Number{above(0), atMost(1000)}, "Factor of the learning rate.");
  const Otherwise all{"the optimizer's"};
  key("optimizer.group.weight_decay", g.weightDecay, Number{atLeast(0), atMost(1000)}, "Weight decay, of vectors too.",
      all);
  key("optimizer.group.betas", g.betas, Numbers{2, 0, 1}, "adamw: decay rates of its two moments.", all);
  key("optimizer.group.frozen", g.frozen, Boolean{},
      "Whether they are left as they are: nothing is kept or computed to train them.");
}

template <typename Table> void precisionKeys(Table &key, PrecisionConfig &p) {
  using namespace values;
  key("precision.compute", p.compute, Choice{wordsAnd<Compute>({"auto"})},
      "Format of contractions and of what is kept between kernels. fp16 scales the loss by itself; tf32 is for GPUs; "
      "\"auto\" is fp32.");
  key("precision.params", p.params, Choice{{"fp32"}, {"bf16", "fp16"}}, "Format of the master copy of parameters.");
  key("precision.optimizer_state", p.optimizerState, Choice{allWords<MomentType>()},
      "Format of moments. bf16 is rounded stochastically; adafactor keeps fp32.");
  key("precision.residual", p.residual, Choice{allWords<Residual>()},
      "Format of the residual stream and its gradient between kernels. \"compute\" is that of precision.compute: fewer "
      "bytes, and every layer rounds the sum; with fp32 and tf32 the same as \"fp32\".");
  key("precision.fp8", p.fp8, Choice{allWords<Fp8>()},
      "Forward products of parameters that read 8-bit floats (e4m3): the classifier's, those of layers, or all. Needs "
      "bf16, and of GPUs sm_89 or later.");
  key("precision.weights", p.weights, Choice{allWords<Weights>()},
      "How `gptrun sample` and `gptrun serve` keep the weights of products: as precision.compute says, or in 8 "
      "or 4 bits by blocks of 32 with a scale (ggml's Q8_0, Q4_0, Q4_K; the classifier has 8 then, too), with whose "
      "integers the other operand, rounded to 8 bits, is multiplied.");
  key("precision.eight_bits", p.eightBits, Patterns{.orNone = true},
      "Matrices of layers that q4_0 and q4_k keep in 8 bits, by patterns on their names, such as "
      "\"h.*.mlp.c_proj.weight\".");
  key("precision.cache", p.cache, Choice{allWords<CacheFormat>()},
      "How the keys and values of samples are kept on CPUs: \"auto\" as precision.compute says, q8_0 in 8 bits by "
      "blocks of 32 along a head with a scale (ggml's Q8_0): about half of bf16's bytes. Heads must be multiples of "
      "32.");
}

template <typename Table> void parallelKeys(Table &key, ParallelConfig &p) {
  using namespace values;
  const Otherwise open{"\"auto\""};
  key("parallel.data", p.data, Integer{1, 1 << 20, {{"auto", 1}}},
      "Ranks, or groups of `tensor` of them, that share the batch. `gptc compile --nodes N --ranks-per-node K` "
      "sets it.",
      open);
  key("parallel.tensor", p.tensor, Integer{1, 1 << 10, {{"auto", 1}}},
      "Ranks that share heads and hidden features; there are data x tensor ranks. \"auto\": as a forecast finds "
      "fastest.");
  key("parallel.zero_stage", p.zeroStage, Integer{0, 3, {{"auto", -1}}},
      "What ranks share out rather than repeat: 0 nothing, 1 moments, 2 gradients too, 3 parameters too. \"auto\": the "
      "fastest that a forecast fits into memory.",
      open);
  key("parallel.logical_shards", p.logicalShards, Integer{1, 1 << 20, {{"auto", 0}}},
      "Parts of the batch whose gradients are added in one binary tree, whoever computes them: a power of two, at "
      "least the ranks. \"auto\": as many as ranks.",
      open);
  key("parallel.logical_tensor", p.logicalTensor, Integer{1, 1 << 10},
      "Parts in which sums over heads and hidden features are added, in one binary tree, whoever computes them: a "
      "power of two, and a multiple of `tensor`. More than 1: on CPUs `tensor` changes no bit.");
  key("parallel.reduce_order", p.reduceOrder, Choice{allWords<ReduceOrder>()},
      "Order in which ranks add gradients: tree gives the same bits with any number of ranks, fast leaves it to the "
      "engine.");
  key("parallel.sync_every", p.syncEvery, Integer{1, 1 << 20},
      "Steps that each rank along `data` does by itself, with its part of the batch, before an outer step makes "
      "parameters equal again. 1: ranks add gradients in every step.");
  key("parallel.outer_lr", p.outerLr, Number{above(0), atMost(1e9)},
      "sync_every: learning rate of the outer steps. 1, with no momentum: the mean of the ranks' parameters.");
  key("parallel.outer_momentum", p.outerMomentum, Number{atLeast(0), below(1)},
      "sync_every: Nesterov momentum of the outer steps. 0: none, and no moment is kept.");
  key("parallel.offload", p.offload, Choice{wordsAnd<Offload>({"auto"})},
      "Whether a GPU's moments and master weights are in the host's memory. \"auto\": if a forecast does not fit "
      "otherwise, or is faster.");
  key("parallel.compression", p.compression, Choice{{"none", "powersgd"}, {"onebit"}},
      "How gradients are compressed between ranks. \"powersgd\": of each matrix two factors are sent, and what they "
      "leave out is added to the next gradient.");
  key("parallel.gradient_rank", p.gradientRank, Integer{1, kMostGradientRank},
      "powersgd: rank of the factors. Matrices with no more elements than factors of this rank are sent whole.");
  key("parallel.compress_from", p.compressFrom, Integer{0, billion},
      "powersgd: the first step that compresses, counted from 0. Those before send whole gradients.");
}

template <typename Table> void compileKeys(Table &key, CompileConfig &c) {
  using namespace values;
  key("compile.target", c.target, Text{{"auto", "cpu", "cuda"}, {{"\"cuda:sm_90a\" and the like", "^cuda:."}}},
      "What the plan is for: a CPU, the GPU of this machine, or an architecture of GPUs. \"auto\" is cpu.",
      Otherwise{"\"auto\""});
  key("compile.remat", c.remat, Text{{"auto", "none", "full"}, {sizeForm("\"8GiB\"")}},
      "What the backward part computes again rather than keeps: as much as memory asks for, nothing, all but the "
      "inputs of layers, or as much as a budget asks for.");
  key("compile.pack_weights", c.packWeights, Boolean{true},
      "Whether a CPU plan keeps copies of weights as its products read them, and sampling keeps weights so in their "
      "place. \"auto\": copies that pay, and all weights.");
  key("compile.gpu_memory", c.gpuMemory,
      Text{{"auto"}, {sizeForm("\"80GiB\""), {"the name of a GPU, such as \"H200\"", "[A-Za-z]"}}},
      "Memory of the GPU that the plan is for. \"auto\": of the GPU here, or the least of the architecture.");
  key("compile.library_calls", c.libraryCalls, Choice{{"auto", "off"}},
      "Whether a CUDA plan calls cuBLASLt and cuDNN if they are found. off: every kernel is generated, and sums do not "
      "depend on the micro-batch.");
  key("compile.split_decode", c.splitDecode, Boolean{},
      "Whether a GPU shares each sum of sampling, over k and over keys, among threads and blocks: fast, and a row's "
      "bits depend on no other row. false: one chain.");
  key("compile.autotune", c.autotune, Choice{{"off", "cached", "search"}},
      "Schedules of kernels: defaults, the fastest on record (`gptc tune`), or tuned before compiling.");
  key("compile.autotune_budget_s", c.autotuneSeconds, Number{atLeast(1), atMost(1e9)},
      "Seconds that autotune = \"search\" takes at most.");
}

template <typename Table> void dataKeys(Table &key, RunSettings &run, DataConfig &d) {
  using namespace values;
  key("data.train", run.trainData, Path{},
      "Token files to train on: of nanoGPT or llm.c, PREFIX of Megatron-LM's PREFIX.bin and PREFIX.idx, the *.bin of a "
      "folder, or files of texts with labels; globs are allowed. `gptc data prepare` makes them from text.",
      Otherwise{"needed"}, InPlan{"train_data"});
  key("data.val", run.valData, Path{}, "Token files to evaluate on; globs are allowed.",
      Otherwise{"none: no evaluation"}, InPlan{"val_data"});
  key("data.tokenizer", run.tokenizer, Path{}, "tokenizer.json, for samples and for the size of the vocabulary.",
      Otherwise{"none: no samples"}, InPlan{"tokenizer"});
  key("data.labels", d.labels, Path{},
      "labels.json, the names of labels and what is learned of them: trains a classifier of texts. `gptc data prepare "
      "--labels` makes it.",
      Otherwise{"none"});
  key("data.parse_special", run.parseSpecial, Boolean{},
      "Whether control tokens such as <|im_end|> in the text of a prompt become their tokens. false: they are text "
      "like "
      "any other. `gptc data prepare --parse-special` decides for training data.",
      InPlan{"parse_special", true});
}

template <typename Table> void runKeys(Table &key, RunSettings &run) {
  using namespace values;
  const Integer steps{0, billion};
  key("eval.every", run.evalEvery, steps, "Steps between evaluations. 0: only after the last step.",
      InPlan{"eval_every"});
  key("eval.steps", run.evalSteps, steps, "Global batches of an evaluation. 0: the whole split, without overlap.",
      InPlan{"eval_steps"});
  key("eval.sample_every", run.sampleEvery, steps, "Steps between samples of text. 0: none.", InPlan{"sample_every"});
  key("eval.sample_prompt", run.samplePrompt, Text{}, "Text that a sample continues: at least one token.",
      Otherwise{"\"\\n\""}, InPlan{"sample_prompt"});
  key("eval.sample_tokens", run.sampleTokens, Integer{1, 1 << 20}, "Tokens of a sample.", InPlan{"sample_tokens"});

  key("checkpoint.every", run.checkpointEvery, steps, "Steps between checkpoints. 0: only after the last step.",
      InPlan{"checkpoint_every"});
  key("checkpoint.keep", run.checkpointKeep, Integer{1, 1'000'000},
      "Newest checkpoints that stay; the best by validation loss stays beside them.", InPlan{"checkpoint_keep"});
  key("checkpoint.async", run.checkpointAsync, Boolean{true},
      "Whether steps go on while a checkpoint is written, from a copy in memory. \"auto\": if the copy fits.",
      InPlan{"checkpoint_async", true});

  key("log.every", run.logEvery, Integer{1, billion}, "Steps between lines of progress and of log.jsonl.",
      InPlan{"log_every"});
  key("log.tensorboard", run.tensorboard, Boolean{}, "Whether events for TensorBoard are written too.",
      InPlan{"tensorboard"});
  key("log.trace_steps", run.traceSteps, Numbers{2, 1, values::billion, true},
      "First and last step whose kernels are traced.", InPlan{"trace_steps"});
  key("log.mfu_peak", run.mfuPeak, Number{above(0), atMost(1e21), {{"auto", 0}, {"measured", -1}}},
      "FLOP/s that MFU is a part of. \"auto\": a GPU's by its data sheet, else measured once.", InPlan{"mfu_peak"});
}

template <typename Table> void allKeys(Table &key, Settings &s) {
  fileKeys(key, s);
  modelKeys(key, s.model);
  rotationKeys(key, s.model);
  attentionKeys(key, s.model);
  layerKeys(key, s.model);
  trainKeys(key, s.train, s.run);
  optimizerKeys(key, s.optimizer);
  precisionKeys(key, s.precision);
  parallelKeys(key, s.parallel);
  compileKeys(key, s.compile);
  dataKeys(key, s.run, s.data);
  runKeys(key, s.run);
}

/// The table, bound to the members of `s`, which must outlive it.
std::vector<Setting> keysOf(Settings &s);
/// Keys of one [[optimizer.group]], whose names begin with "optimizer.group.".
std::vector<Setting> keysOf(ParameterGroup &g);

/// Calls `with` for each key that a plan's manifest holds, bound to `run`, in the order of the manifest.
void eachKept(RunSettings &run, const std::function<void(const Setting &)> &with);

/// Calls `with` for each path that is not empty: out_dir, those of [data], and that in init_from = "hf:DIR",
/// "gguf:FILE" or "ckpt:DIR".
void eachPath(RunSettings &run, const std::function<void(std::string &path)> &with);

}  // namespace gptc
