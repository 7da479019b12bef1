// model.toml: what a user says about a model and its training. examples/gpt2-124m.toml holds every key.
//
// A value comes from, in rising order: the default below, the preset, the file named by `extends`, the file itself,
// --set. "auto" and "cached" mean what is built today, and are replaced by it here; an explicit value of later work is
// an error (NotBuiltYet). All errors that do not depend on each other are reported in one run.
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
  std::string preset = "none";               // gpt2 | llama | bloom | encoder: an architecture, and GPT-2 124M's sizes
  int64_t nLayer = 0, nHead = 0, nEmbd = 0;  // no default outside a preset
  int64_t nKvHead = 0;                       // default n_head
  int64_t ffnDim = 0;                        // default: see defaultFfnDim
  int64_t vocabSize = 0;                     // default: that of data.tokenizer ([MASK] added), else the preset's
  int64_t blockSize = 0;
  std::string norm = "layernorm";        // rmsnorm
  double normEps = 1e-5;                 // added to the variance, or to the mean square
  std::string activation = "gelu_tanh";  // gelu | relu | relu2 | silu | swiglu | geglu
  std::string position = "learned";      // rope | alibi | none
  bool causal = true;                    // false: an encoder, trained to fill in masked tokens
  bool bias = true;
  bool tieEmbeddings = true;
  bool embeddingNorm = false;
  double dropout = 0;
  std::string initFrom =
      "scratch";  // "hf:DIR" or "ckpt:DIR", DIR resolved: a folder with model.safetensors of these sizes

  /// Whether the feed-forward layer has a second matrix, whose activated product is the gate of the first's.
  bool gated() const { return activation == "swiglu" || activation == "geglu"; }
  /// An encoder's [MASK]: the last token, which text never holds.
  int64_t maskToken() const { return vocabSize - 1; }
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t globalBatchTokens = 0;  // default: 16384, rounded to whole sequences
  int64_t microBatch = 0;         // sequences; "auto": see autoMicroBatch
  int64_t accumulate = 1;         // passes of each rank per step; follows from the two above and the ranks
  int64_t seed = 1337;
  double gradClip = 1.0;  // 0: no clipping
  std::string onNonfinite =
      "explain";  // the step is replayed to name the first bad op; "halt"; "skip": the step changes nothing
};

/// [[optimizer.group]]: parameters with settings of their own (frontends/parameter_groups.h).
struct ParameterGroup {
  std::vector<std::pair<std::string, SourceLoc>> patterns;
  double lrScale = 1;
  std::optional<double> weightDecay;               // of vectors too
  std::optional<std::pair<double, double>> betas;  // adamw
  bool frozen = false;
};

struct OptimizerConfig {
  std::string name = "adamw";          // | sgd | adafactor
  double lr = 6e-4;                    // default with sgd 0.1, with adafactor 0.01
  double beta1 = 0.9, beta2 = 0.95;    // adamw
  double eps = 1e-8;                   // adamw; adafactor: default 2^-23
  double weightDecay = 0.1;            // of matrices; default with sgd and adafactor 0
  double firstMoment = 0;              // adafactor: the decay rate of a first moment; 0: none
  double momentum = 0.9;               // sgd; 0: none
  bool nesterov = false;               // sgd
  bool relativeStep = true;            // adafactor: steps are relative to the size of the parameter
  std::vector<ParameterGroup> groups;  // a parameter belongs to the last that matches
  std::string schedule = "cosine";     // wsd | linear | constant
  int64_t warmupSteps = 0;
  double minLrRatio = 0;
};

/// How ranks share the work (passes/partition.cpp, passes/shard_tensor.cpp): data x tensor of them.
struct ParallelConfig {
  int64_t data = 1;                  // ranks, or groups of them, that share the global batch
  int64_t tensor = 1;                // ranks that share heads and hidden features; "auto": of all `data` ranks, here 1
  int64_t zeroStage = 0;             // "auto": 1 where there are several, which costs no more and holds less than 0
  int64_t logicalShards = 1;         // of the global batch: a power of two times the ranks; "auto": as many as ranks
  std::string reduceOrder = "tree";  // | fast: the engine's order
  std::string offload = "none";      // | optimizer: moments in the host's memory, as on a CPU they always are; "auto"
  std::string compression = "none";  // | powersgd | onebit: of gradients; in forecasts only
  int64_t shardsPerRank() const { return logicalShards / data; }
};

struct PrecisionConfig {
  std::string compute = "fp32";         // | bf16 | fp16: of contractions and of what is stored between kernels
  std::string params = "fp32";          // of the master copy; in forecasts also bf16 and fp16
  std::string optimizerState = "fp32";  // | bf16: of moments, rounded stochastically
};

struct DataConfig {
  std::string train, val, tokenizer;  // paths, resolved; train and val may be globs
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
  std::string async = "auto";  // true | false: whether steps go on while one is written, which takes memory for a copy
};

struct LogConfig {
  int64_t every = 10;
  bool tensorboard = false;
  std::vector<int64_t> traceSteps;  // empty, or the first and last step to trace
  double mfuPeak = 0;               // FLOP/s; 0: "auto"; -1: "measured"
};

struct CompileConfig {
  /// What the backward part computes again rather than keeps: nothing, all but the layers' inputs ("full"), as much as
  /// a budget of bytes asks for ("8GiB"), or as much as this machine's memory asks for.
  std::string remat = "auto";
  std::string gpuMemory = "auto";  // bytes, or a GPU's name: of the GPU that the plan is for
  /// Copies of weights in panels for the products of CPUs: all that can be, none, or (nothing) those that pay.
  std::optional<bool> packWeights;
  /// cpu; cuda: the GPU of this machine; cuda:sm_90a and the like, of which no GPU need be here.
  std::string target = "cpu";
  /// auto: a CUDA plan calls cuBLASLt where that is found. off: every matmul is a generated kernel, whose sums do not
  /// depend on the micro-batch.
  std::string libraryCalls = "auto";
  /// Schedules of kernels. off: recipes' defaults, and cuBLASLt's first algorithms untimed. cached: the fastest on
  /// record (gptc tune). search: `gptc compile` tunes first, for at most autotuneSeconds.
  std::string autotune = "cached";
  double autotuneSeconds = 120;
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
  /// What is allowed but hardly meant, one line each.
  std::vector<std::string> warnings;
  /// Where each written key stands, for later messages.
  std::map<std::string, TomlValue> written;
  /// Whether "auto" stands there.
  bool isAuto(const std::string &key) const;
  /// Whether something else stands there.
  bool fixes(const std::string &key) const { return written.count(key) && !isAuto(key); }
  /// Place of a key's value; "the file as a whole" where the key was not written.
  SourceLoc where(const std::string &key) const;
};

/// What a configuration is read for. A forecast is of any machine, software and number of ranks: values of later work
/// are taken, and no data need be there.
enum class ConfigPurpose { run, forecast };

/// Reads a model file with its bases and applies `settings` (key=value, paths relative to the working directory). For
/// a .gir file, which says itself what a model file says of the model, and for "", the settings alone; data.train may
/// be missing then. `tokenizerVocab` tells the vocabulary of a tokenizer file; it is asked only when model.vocab_size
/// is not written or to compare with it. Throws UserError with every problem found.
Config loadConfig(const std::string &file, const std::vector<std::string> &settings,
                  const std::function<int64_t(const std::string &tokenizer)> &tokenizerVocab,
                  ConfigPurpose purpose = ConfigPurpose::run);

/// 4 n_embd; where gated 8/3 n_embd, as many parameters, rounded up to a multiple of 256 (of 32 below a width of 512),
/// as Llama does (Touvron et al. 2023).
int64_t defaultFfnDim(const ModelConfig &m);

/// "auto" micro-batch: the largest divisor of the global batch of at most 8192 tokens whose activations, estimated as
/// 24 values of width n_embd per token and layer and twice the logits, stay under 4 GiB; at least one sequence. For a
/// GPU four times as much of both; that is where the compiler begins to look for what fits
/// (tools/planner/micro_batch.h).
int64_t autoMicroBatch(const ModelConfig &m, int64_t sequencesPerStep, bool gpu);

/// What the graph follows from, as settings: loadConfig("", these) has the same sizes, batch, optimizer, precision and
/// compile options, but neither data nor anything that only a run is about.
std::vector<std::string> modelSettings(const Config &config);

/// Every key there is.
const std::vector<std::string> &configKeys();

}  // namespace gptc
