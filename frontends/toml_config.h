// model.toml: a user's description of a model and its training. examples/gpt2-124m.toml has every key.
//
// Values come from, in ascending priority: the defaults below, the preset, the file named by `extends`, the file
// itself, --set. "auto" and "cached" mean what is built today, and are resolved here; an explicit value that is not
// built yet is an error (NotBuiltYet). Reports all independent errors together.
#pragma once

#include "frontends/toml_document.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct ModelConfig {
  std::string preset = "none";               // gpt2 | llama | bloom | encoder: an architecture with GPT-2 124M's sizes
  int64_t nLayer = 0, nHead = 0, nEmbd = 0;  // no default outside a preset
  int64_t nKvHead = 0;                       // default n_head
  int64_t ffnDim = 0;                        // default: see defaultFfnDim
  int64_t vocabSize = 0;                     // default: that of data.tokenizer (plus [MASK]), else the preset's
  int64_t blockSize = 0;                     // context length in tokens
  std::string norm = "layernorm";            // rmsnorm
  double normEps = 1e-5;                     // added to the variance or the mean square
  std::string activation = "gelu_tanh";      // gelu | relu | relu2 | silu | swiglu | geglu
  std::string position = "learned";          // rope | alibi | none
  bool causal = true;                        // false: an encoder, trained on masked tokens
  bool bias = true;                          // of linear layers and layernorms
  bool tieEmbeddings = true;
  bool embeddingNorm = false;
  double dropout = 0;
  std::string initFrom =
      "scratch";  // "hf:DIR" or "ckpt:DIR", DIR resolved: a folder with model.safetensors of these sizes

  /// Whether the feed-forward layer is gated: the activated product with a second matrix multiplies that with the
  /// first.
  bool gated() const { return activation == "swiglu" || activation == "geglu"; }
  /// An encoder's [MASK]: the last token, which text never contains.
  int64_t maskToken() const { return vocabSize - 1; }
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t globalBatchTokens = 0;  // default: 16384, rounded to whole sequences
  int64_t microBatch = 0;         // sequences; "auto": see autoMicroBatch
  int64_t accumulate = 1;         // passes per rank and step; follows from the batch sizes and the ranks
  int64_t seed = 1337;
  double gradClip = 1.0;  // 0: no clipping
  std::string onNonfinite =
      "explain";  // the step is replayed to name the first bad op; "halt"; "skip": the step changes nothing
};

/// [[optimizer.group]]: parameters with their own settings (frontends/parameter_groups.h).
struct ParameterGroup {
  std::vector<std::pair<std::string, SourceLoc>> patterns;
  double lrScale = 1;                              // factor on the learning rate
  std::optional<double> weightDecay;               // also of vectors
  std::optional<std::pair<double, double>> betas;  // adamw
  bool frozen = false;
};

struct OptimizerConfig {
  std::string name = "adamw";          // | sgd | adafactor
  double lr = 6e-4;                    // default with sgd 0.1, with adafactor 0.01
  double beta1 = 0.9, beta2 = 0.95;    // adamw
  double eps = 1e-8;                   // adamw; adafactor: default 2^-23
  double weightDecay = 0.1;            // of matrices; default 0 with sgd and adafactor
  double firstMoment = 0;              // adafactor: decay rate of a first moment; 0: none
  double momentum = 0.9;               // sgd; 0: none
  bool nesterov = false;               // sgd
  bool relativeStep = true;            // adafactor: steps relative to the parameter's size
  std::vector<ParameterGroup> groups;  // a parameter belongs to the last one that matches
  std::string schedule = "cosine";     // wsd | linear | constant
  int64_t warmupSteps = 0;             // of linear warm-up
  double minLrRatio = 0;               // final learning rate relative to `lr`
};

/// Division of the work among data x tensor ranks (passes/partition.cpp, passes/shard_tensor.cpp).
struct ParallelConfig {
  int64_t data = 1;       // ranks, or groups of ranks, that share the global batch
  int64_t tensor = 1;     // ranks that share heads and hidden features; "auto": chosen from all `data` ranks, here 1
  int64_t zeroStage = 0;  // "auto": 1 with several ranks, which costs no more than 0 and needs less memory
  int64_t logicalShards = 1;         // of the global batch: a power of two times the ranks; "auto": the number of ranks
  std::string reduceOrder = "tree";  // | fast: the engine's order
  std::string offload = "none";      // | optimizer: moments in host memory, where a CPU has them anyway; "auto"
  std::string compression = "none";  // | powersgd | onebit: of gradients; for forecasts only
  int64_t shardsPerRank() const { return logicalShards / data; }
};

struct PrecisionConfig {
  std::string compute = "fp32";         // | bf16 | fp16: of contractions and of values stored between kernels
  std::string params = "fp32";          // of the master copy; bf16 and fp16 for forecasts only
  std::string optimizerState = "fp32";  // | bf16: of moments, with stochastic rounding
};

struct DataConfig {
  std::string train, val, tokenizer;  // absolute paths; train and val may be globs
};

struct EvalConfig {
  int64_t every = 250;      // 0: only after the last step
  int64_t steps = 20;       // 0: the whole split
  int64_t sampleEvery = 0;  // 0: never
  std::string samplePrompt = "\n";
  int64_t sampleTokens = 64;
};

struct CheckpointConfig {
  int64_t every = 1000;  // 0: only after the last step
  int64_t keep = 3;
  std::string async = "auto";  // true | false: whether steps go on during a save, which needs memory for a copy
};

struct LogConfig {
  int64_t every = 10;
  bool tensorboard = false;
  std::vector<int64_t> traceSteps;  // empty, or the first and last step to trace
  double mfuPeak = 0;               // FLOP/s; 0: "auto"; -1: "measured"
};

struct CompileConfig {
  /// What the backward pass recomputes instead of keeping: nothing ("none"), all but the layers' inputs ("full"), as
  /// much as a budget of bytes requires ("8GiB"), or as much as this machine's memory requires ("auto").
  std::string remat = "auto";
  std::string gpuMemory = "auto";  // of the plan's GPU: bytes or a GPU's name
  /// Copies of weights in panels for CPU products: all that are possible, none, or (unset) those that pay.
  std::optional<bool> packWeights;
  /// cpu; cuda: this machine's GPU; cuda:sm_90a and the like: needs no GPU here.
  std::string target = "cpu";
  /// auto: a CUDA plan calls cuBLASLt if it is installed. off: every matmul is a generated kernel, whose sums do not
  /// depend on the micro-batch.
  std::string libraryCalls = "auto";
  /// Choice of schedules. off: recipes' defaults, and cuBLASLt's first proposals untimed. cached: the fastest on record
  /// (gptc tune). search: `gptc compile` tunes first, for at most autotuneSeconds.
  std::string autotune = "cached";
  double autotuneSeconds = 120;  // limit of a search
};

struct Config {
  std::string file;
  std::string name;    // default: the file's name without .toml
  std::string outDir;  // default: out/NAME beside the file
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  PrecisionConfig precision;
  DataConfig data;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LogConfig log;
  CompileConfig compile;
  /// Values that are allowed but probably unintended, one line each.
  std::vector<std::string> warnings;
  /// The written keys with their locations, for later messages.
  std::map<std::string, TomlValue> written;
  /// Whether the key is written as "auto".
  bool isAuto(const std::string &key) const;
  /// Whether the key is written with another value.
  bool fixes(const std::string &key) const { return written.count(key) && !isAuto(key); }
  /// Location of a key's value; that of the file if the key is absent.
  SourceLoc where(const std::string &key) const;
};

/// The purpose of reading a configuration. A forecast may be for any machine, software and number of ranks: it accepts
/// values that are not built yet, and missing data.
enum class ConfigPurpose { run, forecast };

/// Reads a model file with its bases and applies `settings` (key=value, paths relative to the working directory). For a
/// .gir file, which describes the model itself, and for "", uses the settings only; data.train may be missing then.
/// `tokenizerVocab` returns the vocabulary size of a tokenizer file; it is called if model.vocab_size is absent, or to
/// compare with it. Throws UserError with every problem.
Config loadConfig(const std::string &file, const std::vector<std::string> &settings,
                  const std::function<int64_t(const std::string &tokenizer)> &tokenizerVocab,
                  ConfigPurpose purpose = ConfigPurpose::run);

/// 4 n_embd. If gated, 8/3 n_embd, which has as many parameters, rounded up to a multiple of 256 (of 32 below a width
/// of 512), like Llama (Touvron et al. 2023).
int64_t defaultFfnDim(const ModelConfig &m);

/// The "auto" micro-batch: the largest divisor of the global batch with at most 8192 tokens whose activations,
/// estimated as 24 values of width n_embd per token and layer plus twice the logits, stay below 4 GiB; at least one
/// sequence. For a GPU four times as much of both, from where the compiler searches for the largest that fits
/// (tools/planner/micro_batch.h).
int64_t autoMicroBatch(const ModelConfig &m, int64_t sequencesPerStep, bool gpu);

/// The settings that determine the graph: loadConfig("", these) gives the same sizes, batch, optimizer, precision and
/// compile options, without data and run settings.
std::vector<std::string> modelSettings(const Config &config);

/// All keys of model.toml.
const std::vector<std::string> &configKeys();

}  // namespace gptc
