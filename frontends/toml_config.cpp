// The schema of model.toml, one call per key, and the rules between keys.
#include "frontends/toml_config.h"

#include "frontends/config_reader.h"
#include "frontends/hf_config.h"
#include "ir/gpu_sheets.h"
#include "support/files.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

namespace gptc {

namespace {

namespace fs = std::filesystem;
constexpr int64_t big = std::numeric_limits<int64_t>::max();

struct Layers {
  std::map<std::string, TomlValue> values;
  std::map<std::string, SourceLoc> tables;
};

/// Loads `file` after its bases, the deepest base first.
void loadLayers(const std::string &file, Layers &out, std::vector<std::string> &chain, const TomlValue *named) {
  std::string identity = fs::weakly_canonical(file).string();
  if (llvm::is_contained(chain, identity))
    throw UserError(Diagnostic{ErrorCode::ShapeMismatch,
                               fmt::format("extends goes in a circle: {} is its own base", file), named->where,
                               "this closes the circle"});
  chain.push_back(identity);
  TomlDocument doc;
  try {
    doc = parseTomlFile(file);
  } catch (UserError &e) {
    if (!named || e.diagnostics[0].code != ErrorCode::FileMissing)
      throw;
    e.diagnostics[0].where = named->where;
    throw UserError(e.diagnostics);
  }
  if (auto it = doc.values.find("extends"); it != doc.values.end()) {
    auto *base = std::get_if<std::string>(&it->second.value);
    if (!base)
      throw UserError(Diagnostic{ErrorCode::WrongType, "extends must be a string", it->second.where,
                                 fmt::format("this is {}", it->second.kind())});
    loadLayers(resolveBeside(*base, file), out, chain, &it->second);
  }
  for (auto &[key, value] : doc.values)
    out.values[key] = value;
  for (auto &[name, at] : doc.tables)
    out.tables[name] = at;
}

void path(ConfigReader &r, const char *key, std::string &out) {
  r.string(key, out);
  if (const TomlValue *v = r.get(key); v && r.good(key)) {
    if (out.empty())
      r.complain(key, ErrorCode::OutOfRange, fmt::format("{} is empty", key), "a path is needed");
    out = resolveBeside(out, v->where.file);
  }
}

/// Sets what a preset implies where the file says nothing. All presets have GPT-2 124M's sizes and vocabulary, so that
/// families compare at one size.
void takePreset(ModelConfig &m) {
  if (m.preset == "none")
    return;
  m.nLayer = m.nHead = 12;
  m.nEmbd = 768;
  m.blockSize = 1024;
  m.vocabSize = 50257;
  if (m.preset == "llama") {  // Touvron et al. 2023
    m.norm = "rmsnorm";
    m.activation = "swiglu";
    m.position = "rope";
    m.bias = m.tieEmbeddings = false;
  } else if (m.preset == "bloom") {  // Le Scao et al. 2022
    m.position = "alibi";
    m.embeddingNorm = true;
  } else if (m.preset == "encoder") {  // Devlin et al. 2019, with norms before the blocks
    m.causal = false;
    m.activation = "gelu";
    m.embeddingNorm = true;
    m.blockSize = 512;
    ++m.vocabSize;  // [MASK]
  }
}

void readModel(ConfigReader &r, ModelConfig &m) {
  r.choice("model.preset", m.preset, {"gpt2", "llama", "bloom", "encoder", "none"});
  takePreset(m);
  r.integer("model.n_layer", m.nLayer, 1, 1000);
  r.integer("model.n_head", m.nHead, 1, 1024);
  r.integer("model.n_embd", m.nEmbd, 1, 1 << 16);
  r.integer("model.n_kv_head", m.nKvHead, 1, 1024);
  r.integer("model.ffn_dim", m.ffnDim, 1, 1 << 20);
  r.integer("model.vocab_size", m.vocabSize, 2, 1 << 24);
  r.integer("model.block_size", m.blockSize, 1, 1 << 17);  // rows of attention scores are on the stack
  r.choice("model.norm", m.norm, {"layernorm", "rmsnorm"});
  r.number("model.norm_eps", m.normEps, 0, 1, true);
  r.choice("model.activation", m.activation, {"gelu_tanh", "gelu", "relu", "relu2", "silu", "swiglu", "geglu"});
  r.choice("model.position", m.position, {"learned", "rope", "alibi", "none"});
  r.boolean("model.causal", m.causal);
  r.boolean("model.bias", m.bias);
  r.boolean("model.tie_embeddings", m.tieEmbeddings);
  r.boolean("model.embedding_norm", m.embeddingNorm);
  r.number("model.dropout", m.dropout, 0, 1, false, true);

  if (const TomlValue *v = r.get("model.init_from")) {
    r.string("model.init_from", m.initFrom);
    auto [kind, dir] = llvm::StringRef(m.initFrom).split(':');
    if ((kind == "hf" || kind == "ckpt") && !dir.empty())
      m.initFrom = kind.str() + ":" + resolveBeside(dir.str(), v->where.file);
    else if (r.good("model.init_from") && m.initFrom != "scratch")
      r.complain("model.init_from", ErrorCode::UnknownValue,
                 fmt::format("model.init_from = \"{}\" is not known", m.initFrom), "",
                 {"\"scratch\", \"hf:DIR\" and \"ckpt:DIR\" work today"});
  }
}

void readGroup(ConfigReader &r, OptimizerConfig &o) {
  ParameterGroup g;
  const char *const match = "optimizer.group.match";
  if (const TomlValue *v = r.get(match)) {
    auto *list = std::get_if<std::vector<TomlValue>>(&v->value);
    for (const TomlValue &item : list ? llvm::ArrayRef(*list) : llvm::ArrayRef(*v))
      if (auto *pattern = std::get_if<std::string>(&item.value))
        g.patterns.push_back({*pattern, item.where});
    if (g.patterns.empty() || (list && g.patterns.size() != list->size()))
      r.complain(match, ErrorCode::WrongType, fmt::format("{} must be a string or a list of strings", match),
                 fmt::format("this is {}", v->kind()), {"for example \"*.bias\" or [\"wte.*\", \"h.*.ln_1.*\"]"});
  } else {
    r.missing(match, "name the group's parameters, for example match = \"*.bias\"");
  }
  r.number("optimizer.group.lr_scale", g.lrScale, 0, 1000, true);
  double decay = 0;
  r.number("optimizer.group.weight_decay", decay, 0, 1000);
  if (r.get("optimizer.group.weight_decay"))
    g.weightDecay = decay;
  std::vector<double> betas{o.beta1, o.beta2};
  r.numbers("optimizer.group.betas", betas, 2, 0, 1);
  if (r.get("optimizer.group.betas"))
    g.betas = {betas[0], betas[1]};
  r.boolean("optimizer.group.frozen", g.frozen);
  o.groups.push_back(std::move(g));
}

void readTraining(ConfigReader &r, TrainConfig &t, OptimizerConfig &o) {
  r.integer("train.steps", t.steps, 1, 1'000'000'000);
  // So that with 10^9 steps the tokens of a run fit 63 bits.
  r.integer("train.global_batch_tokens", t.globalBatchTokens, 1, int64_t(1) << 32);
  r.integerOr("train.micro_batch", t.microBatch, 1, 1 << 20, {"auto"});
  r.integer("train.seed", t.seed, 0, big);
  r.number("train.grad_clip", t.gradClip, 0, 1e9);
  r.choice("train.on_nonfinite", t.onNonfinite, {"explain", "halt", "skip"});

  r.choice("optimizer.name", o.name, {"adamw", "sgd", "adafactor"}, {"lamb"});
  if (o.name == "sgd") {
    o.lr = 0.1;
    o.weightDecay = 0;
  } else if (o.name == "adafactor") {
    o.lr = 0.01;
    o.eps = 0x1p-23;
    o.weightDecay = 0;
  }
  r.number("optimizer.lr", o.lr, 0, 1000);
  std::vector<double> betas{o.beta1, o.beta2};
  r.numbers("optimizer.betas", betas, 2, 0, 1);
  o.beta1 = betas[0];
  o.beta2 = betas[1];
  r.number("optimizer.eps", o.eps, 0, 1, true);
  r.number("optimizer.weight_decay", o.weightDecay, 0, 1000);
  r.choice("optimizer.schedule", o.schedule, {"cosine", "wsd", "linear", "constant"});
  r.integer("optimizer.warmup_steps", o.warmupSteps, 0, 1'000'000'000);
  r.number("optimizer.min_lr_ratio", o.minLrRatio, 0, 1);
  r.number("optimizer.momentum", o.momentum, 0, 1, false, true);
  r.boolean("optimizer.nesterov", o.nesterov);
  if (o.name == "sgd" && o.nesterov && o.momentum == 0 && r.good("optimizer.momentum"))
    r.complain("optimizer.nesterov", ErrorCode::Contradiction,
               "Nesterov's step looks ahead along a momentum, which is 0", "contradicts momentum = 0",
               {"leave it out, or write momentum = 0.9"});
  r.boolean("optimizer.relative_step", o.relativeStep);
  r.number("optimizer.first_moment", o.firstMoment, 0, 1, false, true);
  r.eachTable("optimizer.group", [&](ConfigReader &one) { readGroup(one, o); });
}

/// "(line 6)" if the key is written in a file.
std::string lineOf(const ConfigReader &r, const char *key) {
  SourceLoc at = r.where(key);
  return at.line && at.file != "--set" ? fmt::format(" (line {})", at.line) : "";
}

bool namesCuda(llvm::StringRef target) { return target == "cuda" || target.starts_with("cuda:"); }

bool wantsCuda(ConfigReader &r) {
  const TomlValue *v = r.get("compile.target");
  auto *target = v ? std::get_if<std::string>(&v->value) : nullptr;
  return target && namesCuda(*target);
}

void readPrecision(ConfigReader &r, PrecisionConfig &p, const OptimizerConfig &o, ConfigPurpose purpose) {
  r.choice("precision.compute", p.compute, {"fp32", "bf16", "fp16", "tf32", "auto"});
  if (p.compute == "tf32" && !wantsCuda(r) &&
      purpose == ConfigPurpose::run)  // that mistake is reported at its own location
    r.complain("precision.compute", ErrorCode::Contradiction, "tf32 does not exist on the target, a CPU",
               "a format of NVIDIA's tensor cores, for compile.target = \"cuda\"",
               {"\"bf16\" is the fast one on a CPU with AVX512-BF16; \"fp32\" is exact everywhere"});
  if (p.compute == "auto")
    p.compute = "fp32";
  std::string &params = p.params;
  r.string("precision.params", params);
  if (params == "bf16" || params == "fp16") {
    if (p.compute == params || !r.good("precision.compute"))
      r.notBuilt("precision.params", fmt::format("\"{}\"", params), {"\"fp32\""});
    else
      r.complain("precision.params", ErrorCode::Contradiction,
                 p.compute == "fp32" ? fmt::format("parameters in {} leave nothing to compute in fp32", params)
                                     : fmt::format("parameters in {} are no operands of {}", params, p.compute),
                 fmt::format("contradicts compute = \"{}\"{}", p.compute,
                             r.where("precision.compute").line ? lineOf(r, "precision.compute") : ", the default"),
                 {fmt::format("compute = \"{}\" with params = \"fp32\" reads {} copies of them", params, params)});
  } else if (params != "fp32") {
    r.complain("precision.params", ErrorCode::UnknownValue,
               fmt::format("precision.params = \"{}\" is not known", params), "",
               {"\"fp32\" works today; precision.compute says what kernels read"});
  }
  r.choice("precision.optimizer_state", p.optimizerState, {"fp32", "bf16"});
  if (p.optimizerState == "bf16" && o.name == "adafactor")
    r.complain("precision.optimizer_state", ErrorCode::Contradiction,
               "the statistics of adafactor are fp32, of which there are few",
               "contradicts optimizer.name = \"adafactor\"", {"leave it out, or write \"fp32\""});
}

bool isPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

void readParallel(ConfigReader &r, ParallelConfig &p, ConfigPurpose purpose) {
  r.choice("parallel.offload", p.offload, {"none", "optimizer", "auto"});
  if (p.offload == "auto")
    p.offload = "none";
  int64_t stage = -1, shards = 0;
  r.integerOr("parallel.data", p.data, 1, 1 << 20, {"auto"});
  r.integerOr("parallel.tensor", p.tensor, 1, 1 << 10, {"auto"});
  r.integerOr("parallel.zero_stage", stage, 0, 3, {"auto"});
  r.integerOr("parallel.logical_shards", shards, 1, 1 << 20, {"auto"});
  r.choice("parallel.reduce_order", p.reduceOrder, {"tree", "fast"});
  p.zeroStage = stage >= 0 ? stage : p.data > 1 ? 1 : 0;
  p.logicalShards = shards ? shards : p.data;
  r.choice("parallel.compression", p.compression, {"none"}, {"powersgd", "onebit"});
  const bool tree = p.reduceOrder == "tree";
  if (purpose == ConfigPurpose::forecast) {
    if (!tree || !isPowerOfTwo(p.data) || !isPowerOfTwo(p.logicalShards) || p.logicalShards < p.data)
      p.logicalShards = p.data;
    return;
  }
  if (tree && !isPowerOfTwo(p.data)) {
    int64_t below = 1;
    while (2 * below < p.data)
      below *= 2;
    r.complain("parallel.data", ErrorCode::ShapeMismatch,
               fmt::format("{} ranks cannot add up in the order of a binary tree", p.data),
               "reduce_order = \"tree\" needs a power of two",
               {fmt::format("{} or {} ranks work, or parallel.reduce_order = \"fast\"", below, 2 * below)});
  } else if (tree && (!isPowerOfTwo(p.logicalShards) || p.logicalShards < p.data)) {
    r.complain("parallel.logical_shards", ErrorCode::ShapeMismatch,
               fmt::format("{} logical shards for {} ranks", p.logicalShards, p.data),
               "must be a power of two, at least one for each rank",
               {fmt::format("{}, {} or {} work", p.data, 2 * p.data, 4 * p.data)});
  } else if (!tree && p.logicalShards != p.data) {
    r.complain("parallel.logical_shards", ErrorCode::Contradiction,
               "logical shards give the order of a tree, and reduce_order = \"fast\" leaves it to the engine",
               fmt::format("must be {}, the ranks", p.data), {"leave one of the two out"});
  }
}

void readTarget(ConfigReader &r, std::string &target) {
  std::string wanted = "auto";
  r.string("compile.target", wanted);
  if (wanted != "auto" && wanted != "cpu" && !namesCuda(wanted))
    r.complain("compile.target", ErrorCode::UnknownValue, fmt::format("compile.target = \"{}\" is not known", wanted),
               "", {"\"cpu\" (as \"auto\" is today), \"cuda\" for the GPU here, or \"cuda:sm_90a\" and the like"});
  target = wanted == "auto" ? "cpu" : wanted;
}

/// [] or [first, last].
void traceSteps(ConfigReader &r, std::vector<int64_t> &out) {
  const TomlValue *v = r.get("log.trace_steps");
  if (!v)
    return;
  auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
  if (items && items->empty())
    return;
  std::vector<double> steps;
  r.numbers("log.trace_steps", steps, 2, 1, 1e9);
  if (!r.good("log.trace_steps"))
    return;
  if (steps[0] > steps[1] || std::floor(steps[0]) != steps[0] || std::floor(steps[1]) != steps[1])
    return r.complain("log.trace_steps", ErrorCode::OutOfRange, "log.trace_steps must be the first and the last step",
                      "for example [10, 12]");
  out = {int64_t(steps[0]), int64_t(steps[1])};
}

void readRun(ConfigReader &r, Config &c) {
  path(r, "data.train", c.data.train);
  path(r, "data.val", c.data.val);
  path(r, "data.tokenizer", c.data.tokenizer);

  r.integer("eval.every", c.eval.every, 0, 1'000'000'000);
  r.integer("eval.steps", c.eval.steps, 0, 1'000'000'000);
  r.integer("eval.sample_every", c.eval.sampleEvery, 0, 1'000'000'000);
  r.string("eval.sample_prompt", c.eval.samplePrompt);
  r.integer("eval.sample_tokens", c.eval.sampleTokens, 1, 1 << 20);

  r.integer("checkpoint.every", c.checkpoint.every, 0, 1'000'000'000);
  r.integer("checkpoint.keep", c.checkpoint.keep, 1, 1'000'000);
  r.booleanOrAuto("checkpoint.async", c.checkpoint.async);

  r.integer("log.every", c.log.every, 1, 1'000'000'000);
  r.boolean("log.tensorboard", c.log.tensorboard);
  traceSteps(r, c.log.traceSteps);
  if (const TomlValue *v = r.get("log.mfu_peak")) {
    auto *word = std::get_if<std::string>(&v->value);
    if (word && *word == "measured")
      c.log.mfuPeak = -1;
    else if (!word || *word != "auto")
      r.number("log.mfu_peak", c.log.mfuPeak, 0, 1e21, true);
  }
}

void readGpuMemory(ConfigReader &r, std::string &memory) {
  r.string("compile.gpu_memory", memory);
  if (memory == "auto" || parseBytes(memory) || gpuSheet(memory) || !r.good("compile.gpu_memory"))
    return;
  std::vector<std::string> names;
  for (const GpuSheet &s : gpuSheets())
    names.push_back(s.name.str());
  r.complain("compile.gpu_memory", ErrorCode::UnknownValue,
             fmt::format("compile.gpu_memory = \"{}\" is neither a size nor a GPU that is known", memory), "",
             {fmt::format("\"auto\", a size such as \"80GiB\", or one of {}", quotedList(names))});
}

void readRemat(ConfigReader &r, std::string &remat) {
  const TomlValue *v = r.get("compile.remat");
  if (!v)
    return;
  const std::string forms = "\"auto\", \"none\", \"full\" and a budget such as \"8GiB\" work";
  if (auto *s = std::get_if<std::string>(&v->value)) {
    remat = *s;
    if (remat != "auto" && remat != "none" && remat != "full" && !parseBytes(remat))
      r.complain("compile.remat", ErrorCode::UnknownValue, fmt::format("compile.remat = \"{}\" is not known", remat),
                 "", {forms});
    return;
  }
  auto *bytes = std::get_if<int64_t>(&v->value);
  r.complain("compile.remat", ErrorCode::WrongType, "compile.remat must be a string",
             fmt::format("this is {}", v->kind()),
             {bytes && *bytes > 0 ? fmt::format("write \"{}B\", or a larger unit as in \"8GiB\"", *bytes) : forms});
}

void readPackWeights(ConfigReader &r, std::optional<bool> &packWeights) {
  const TomlValue *v = r.get("compile.pack_weights");
  if (!v)
    return;
  const std::string forms = "\"auto\", true and false work";
  if (auto *b = std::get_if<bool>(&v->value))
    packWeights = *b;
  else if (auto *s = std::get_if<std::string>(&v->value); !s)
    r.complain("compile.pack_weights", ErrorCode::WrongType, "compile.pack_weights must be \"auto\", true or false",
               fmt::format("this is {}", v->kind()), {forms});
  else if (*s != "auto")
    r.complain("compile.pack_weights", ErrorCode::UnknownValue,
               fmt::format("compile.pack_weights = \"{}\" is not known", *s), "", {forms});
}

void readAll(ConfigReader &r, Config &c, ConfigPurpose purpose) {
  int64_t schema = 1;
  r.integer("schema", schema, 1, 1);
  r.get("extends");
  r.string("name", c.name);
  path(r, "out_dir", c.outDir);
  readModel(r, c.model);
  readTraining(r, c.train, c.optimizer);
  readPrecision(r, c.precision, c.optimizer, purpose);
  readParallel(r, c.parallel, purpose);
  readRemat(r, c.compile.remat);
  readPackWeights(r, c.compile.packWeights);
  readTarget(r, c.compile.target);
  readGpuMemory(r, c.compile.gpuMemory);
  r.choice("compile.library_calls", c.compile.libraryCalls, {"auto", "off"});
  r.choice("compile.autotune", c.compile.autotune, {"off", "cached", "search"});
  r.number("compile.autotune_budget_s", c.compile.autotuneSeconds, 1, 1e9);
  readRun(r, c);
}

/// Attention keeps a few rows of a head on a thread's stack.
constexpr int64_t widestHead = 1024;

bool headsFit(const ModelConfig &m, int64_t heads, int64_t width) {
  const int64_t size = width / heads;
  return width % heads == 0 && size <= widestHead && !(m.position == "rope" && size % 2);
}

std::string divisors(int64_t n, int64_t most) {
  std::vector<std::string> found;
  for (int64_t d = 1; d <= n && found.size() < 12; ++d)
    if (n % d == 0 && d <= most)
      found.push_back(fmt::format("{}", d));
  return fmt::format("{}", fmt::join(found, ", "));
}

/// Remedies for a number of heads that does not fit the width: numbers of heads for this width; the nearest widths for
/// this number; and if this width allows no number, the nearest that does.
std::vector<std::string> fittingHeads(const ModelConfig &m) {
  constexpr int64_t mostHeads = 1024, widest = 1 << 16;
  std::vector<std::string> numbers, widths, help;
  for (int64_t h = 1; h <= std::min(mostHeads, m.nEmbd) && numbers.size() < 12; ++h)
    if (headsFit(m, h, m.nEmbd))
      numbers.push_back(fmt::format("{}", h));
  if (!numbers.empty())
    help.push_back(fmt::format("n_head = {} {}", fmt::join(numbers, ", "), numbers.size() > 1 ? "work" : "works"));
  auto nearest = [&](const std::function<bool(int64_t)> &fits) {
    std::vector<std::string> found;
    for (int step : {-1, 1})
      for (int64_t w = m.nEmbd + step; w >= 1 && w <= widest; w += step)
        if (fits(w)) {
          found.push_back(fmt::format("{}", w));
          break;
        }
    return found;
  };
  if (widths = nearest([&](int64_t w) { return headsFit(m, m.nHead, w); }); !widths.empty())
    help.push_back(
        fmt::format("n_embd = {} works with {} head{}", fmt::join(widths, " or "), m.nHead, m.nHead > 1 ? "s" : ""));
  if (numbers.empty()) {
    auto some = [&](int64_t w) {
      for (int64_t h = 1; h <= mostHeads; ++h)
        if (headsFit(m, h, w))
          return h;
      return int64_t(0);
    };
    for (const std::string &w : nearest([&](int64_t w) { return some(w) != 0; }))
      if (!llvm::is_contained(widths, w))
        help.push_back(fmt::format("n_embd = {} works with n_head = {}", w, some(std::stoll(w))));
  }
  return help;
}

void checkModel(ConfigReader &r, ModelConfig &m, const DataConfig &data,
                const std::function<int64_t(const std::string &)> &tokenizerVocab) {
  const std::pair<const char *, int64_t> needed[] = {{"model.n_layer", m.nLayer},
                                                     {"model.n_head", m.nHead},
                                                     {"model.n_embd", m.nEmbd},
                                                     {"model.block_size", m.blockSize}};
  for (auto &[key, value] : needed)
    if (!value && r.good(key) && r.good("model.preset"))
      r.missing(key, "write it, or take preset = \"gpt2\" in [model]");

  bool heads = m.nHead && m.nEmbd && r.good("model.n_head") && r.good("model.n_embd");
  const char *toBlame = r.where("model.n_head").line ? "model.n_head" : "model.n_embd";
  if (heads && m.nEmbd % m.nHead)
    r.complain(toBlame, ErrorCode::ShapeMismatch, fmt::format("{} heads cannot share a width of {}", m.nHead, m.nEmbd),
               fmt::format("n_head must divide n_embd = {}{}", m.nEmbd, lineOf(r, "model.n_embd")), fittingHeads(m));
  else if (heads && m.nEmbd / m.nHead > widestHead)
    r.complain(toBlame, ErrorCode::OutOfRange, fmt::format("heads of width {} are too wide", m.nEmbd / m.nHead),
               fmt::format("n_embd / n_head must be at most {}", widestHead), fittingHeads(m));
  if (!m.nKvHead)
    m.nKvHead = m.nHead;
  else if (m.nHead && r.good("model.n_kv_head") && r.good("model.n_head") && m.nHead % m.nKvHead)
    r.complain("model.n_kv_head", ErrorCode::ShapeMismatch,
               fmt::format("{} heads cannot share {} key and value heads", m.nHead, m.nKvHead),
               fmt::format("n_kv_head must divide n_head = {}{}", m.nHead, lineOf(r, "model.n_head")),
               {fmt::format("{} work", divisors(m.nHead, m.nHead))});
  if (heads && r.good(toBlame) && !headsFit(m, m.nHead, m.nEmbd))
    r.complain(
        toBlame, ErrorCode::ShapeMismatch,
        fmt::format("heads of {} elements cannot be rotated: position = \"rope\" turns pairs", m.nEmbd / m.nHead),
        fmt::format("n_embd / n_head = {} / {} must be even", m.nEmbd, m.nHead), fittingHeads(m));
  if (!m.ffnDim)
    m.ffnDim = defaultFfnDim(m);

  bool written = r.where("model.vocab_size").line != 0;
  bool readable = !data.tokenizer.empty() && (!written || fs::exists(data.tokenizer));
  if (readable) {
    try {
      // An encoder's [MASK] is an additional token.
      const int64_t tokens = tokenizerVocab(data.tokenizer), vocab = tokens + !m.causal;
      if (!written)
        m.vocabSize = vocab;
      else if (r.good("model.vocab_size") && vocab > m.vocabSize)
        r.complain("model.vocab_size", ErrorCode::ShapeMismatch,
                   fmt::format("a vocabulary of {} cannot hold the tokenizer's {} tokens{}", m.vocabSize, tokens,
                               m.causal ? "" : " and [MASK], which causal = false needs"),
                   fmt::format("must be at least {}", vocab), {"leave vocab_size out to take the tokenizer's"});
    } catch (const UserError &e) {
      for (const Diagnostic &d : e.diagnostics)
        r.complain("data.tokenizer", d.code, d.message, d.label,
                   d.code == ErrorCode::FileMissing
                       ? std::vector<std::string>{"`gptc data prepare` makes it; or write model.vocab_size"}
                       : d.help);
    }
  } else if (!m.vocabSize && r.good("model.vocab_size") && r.good("data.tokenizer") && r.good("model.preset")) {
    r.missing("model.vocab_size", "write it, or name a tokenizer file as tokenizer in [data]");
  }
}

/// Checks that imported weights are those of this model, including what their shapes do not show.
void checkWeights(ConfigReader &r, Config &c) {
  const auto [kind, path] = llvm::StringRef(c.model.initFrom).split(':');
  const char *const key = "model.init_from";
  if (path.empty() || r.complained())  // the model may be incomplete
    return;
  const HfComparison there = compareHfConfig(path.str(), c.model);
  for (const Diagnostic &d : there.differences)
    r.complain(key, d.code, d.message, d.label, d.help);
  // Our own checkpoint describes its model.
  if (!there.found && kind == "hf" && !fs::exists(fs::path(there.file).replace_filename("manifest.json")))
    c.warnings.push_back(
        fmt::format("there is no {}: that the weights mean what [model] says is not checked", there.file));
}

/// Checks that `tensor` divides the heads, those of keys and values too, and the hidden features.
void checkTensor(ConfigReader &r, const Config &c) {
  const ModelConfig &m = c.model;
  const int64_t t = c.parallel.tensor;
  if (t == 1 || !r.good("parallel.tensor"))
    return;
  const struct {
    const char *key, *what, *name;
    int64_t n;
  } parts[] = {{"model.n_head", "heads", "n_head", m.nHead},
               {"model.n_kv_head", "heads of keys and values", "n_kv_head", m.nKvHead},
               {"model.ffn_dim", "features of the hidden layer", "ffn_dim", m.ffnDim}};
  for (const auto &p : parts) {
    if (!p.n || !r.good(p.key) || p.n % t == 0)
      continue;
    int64_t common = 0;
    for (const auto &q : parts)
      common = std::gcd(common, q.n);
    return r.complain("parallel.tensor", ErrorCode::ShapeMismatch,
                      fmt::format("{} {} cannot be split over tensor = {}", p.n, p.what, t),
                      fmt::format("must divide {} = {}{}", p.name, p.n, lineOf(r, p.key)),
                      {fmt::format("{} work", divisors(common, common))});
  }
}

void checkBatch(ConfigReader &r, const ModelConfig &m, const ParallelConfig &p, TrainConfig &t, bool gpu) {
  if (!m.blockSize || !m.nEmbd)
    return;
  for (const char *key : {"model.block_size", "train.global_batch_tokens", "train.micro_batch", "parallel.data",
                          "parallel.logical_shards"})
    if (!r.good(key))
      return;
  // A micro-batch must lie within a logical shard.
  const int64_t block = m.blockSize, shards = p.logicalShards;
  if (!t.globalBatchTokens)
    t.globalBatchTokens =
        block * shards * (t.microBatch ? t.microBatch : std::max<int64_t>(1, 16384 / (block * shards)));
  const int64_t unit = block * shards * (t.microBatch ? t.microBatch : 1);
  if (t.globalBatchTokens % unit) {
    const bool written = r.where("train.global_batch_tokens").line != 0;
    int64_t below = t.globalBatchTokens / unit * unit, above = below + unit;
    const std::string share = shards == p.data ? fmt::format("ranks x ") : fmt::format("logical_shards x ");
    std::string product = t.microBatch ? fmt::format("{}micro_batch x block_size = {} x {} x {} = {}", share, shards,
                                                     t.microBatch, block, unit)
                          : shards > 1 ? fmt::format("{}block_size = {} x {} = {}", share, shards, block, unit)
                                       : fmt::format("block_size = {}", block);
    r.complain(written ? "train.global_batch_tokens" : "train.micro_batch", ErrorCode::ShapeMismatch,
               fmt::format("a global batch of {} tokens is no whole multiple of {}", t.globalBatchTokens, product),
               "must be a whole number of passes",
               {below ? fmt::format("global_batch_tokens = {} or {} works", below, above)
                      : fmt::format("global_batch_tokens = {} works", above)});
    return;
  }
  if (!t.microBatch)
    t.microBatch = autoMicroBatch(m, t.globalBatchTokens / (block * shards), gpu);
  t.accumulate = t.globalBatchTokens / (t.microBatch * block * p.data);
}

}  // namespace

int64_t defaultFfnDim(const ModelConfig &m) {
  if (!m.gated())
    return 4 * m.nEmbd;
  const int64_t step = m.nEmbd < 512 ? 32 : 256, exact = (8 * m.nEmbd + 2) / 3;
  return (exact + step - 1) / step * step;
}

int64_t autoMicroBatch(const ModelConfig &m, int64_t sequencesPerStep, bool gpu) {
  const double bytesPerToken = 4.0 * (24.0 * m.nLayer * m.nEmbd + 2.0 * m.vocabSize);
  const double bytes = gpu ? 16.0 * (1 << 30) : 4.0 * (1 << 30);
  int64_t most = std::min<int64_t>(gpu ? 32768 : 8192, int64_t(bytes / bytesPerToken)) / m.blockSize;
  int64_t best = 1;
  for (int64_t d = 1; d <= std::min(most, sequencesPerStep); ++d)
    if (sequencesPerStep % d == 0)
      best = d;
  return best;
}

bool Config::isAuto(const std::string &key) const {
  auto it = written.find(key);
  auto *word = it == written.end() ? nullptr : std::get_if<std::string>(&it->second.value);
  return word && *word == "auto";
}

SourceLoc Config::where(const std::string &key) const {
  auto it = written.find(key);
  if (it != written.end())
    return it->second.where;
  SourceLoc whole;
  whole.file = file;
  return whole;
}

Config loadConfig(const std::string &file, const std::vector<std::string> &settings,
                  const std::function<int64_t(const std::string &tokenizer)> &tokenizerVocab, ConfigPurpose purpose) {
  Layers layers;
  std::vector<std::string> chain;
  const bool settingsOnly = file.empty() || llvm::StringRef(file).ends_with(".gir");
  if (!settingsOnly)
    loadLayers(file, layers, chain, nullptr);
  for (const std::string &s : settings) {
    auto [key, value] = parseSetting(s);
    if (key == "extends")
      throw UserError(Diagnostic{ErrorCode::Usage,
                                 "extends names the base of a file; it is no key to set",
                                 value.key,
                                 "",
                                 {"write a file that extends it, or set the keys themselves"}});
    layers.values[key] = value;
  }

  Config c;
  c.file = file;
  const bool forecast = purpose == ConfigPurpose::forecast;
  ConfigReader r(file, layers.values, layers.tables, forecast);
  readAll(r, c, purpose);
  r.unknownKeys(
      {{"optimizer.group", "there may be several: write [[optimizer.group]], with two brackets"},
       {"precision.loss_scale", "compute = \"fp16\" scales the loss by itself: from 2^16, halved after a step "
                                "that overflows, doubled after 2000 good ones"}});
  if (c.name.empty())
    c.name = fs::path(file).stem().string();
  if (c.outDir.empty())
    c.outDir = resolveBeside("out/" + c.name, file);
  if (c.data.train.empty() && r.good("data.train") && !settingsOnly && !forecast)
    r.missing("data.train", "name a token file; `gptc data prepare` makes one from text");
  if (c.eval.sampleEvery && c.data.tokenizer.empty())
    r.missing("data.tokenizer", "eval.sample_every needs it to turn tokens into text");
  checkModel(r, c.model, c.data, tokenizerVocab);
  checkTensor(r, c);
  if (c.parallel.offload == "optimizer" && c.optimizer.name == "adafactor" && namesCuda(c.compile.target) && !forecast)
    r.complain("parallel.offload", ErrorCode::NotBuiltYet, "adafactor on the host is not built yet",
               "its statistics, of which there are few, stay on the GPU",
               {"leave the key out; optimizer.name = \"adamw\" and \"sgd\" can be there"});
  checkBatch(r, c.model, c.parallel, c.train, namesCuda(c.compile.target));
  if (!c.model.causal && c.eval.sampleEvery)
    r.complain("eval.sample_every", ErrorCode::Contradiction, "an encoder cannot continue a text",
               "model.causal = false reads both ways", {"eval.sample_every = 0 works, or model.causal = true"});
  if (c.eval.sampleEvery && c.eval.samplePrompt.empty())
    r.complain("eval.sample_prompt", ErrorCode::OutOfRange, "eval.sample_prompt is empty",
               "a model continues at least one token",
               {"eval.sample_prompt = \"\\n\" works, or eval.sample_every = 0"});
  if (!forecast)
    checkWeights(r, c);
  r.finish();
  if (c.optimizer.warmupSteps >= c.train.steps)
    c.warnings.push_back(
        fmt::format("the learning rate never reaches {}: optimizer.warmup_steps = {}, train.steps = {}", c.optimizer.lr,
                    c.optimizer.warmupSteps, c.train.steps));
  if (c.parallel.offload == "optimizer" && !namesCuda(c.compile.target))
    c.warnings.push_back("parallel.offload = \"optimizer\" changes nothing: on a CPU moments are in the host's memory");
  c.written = std::move(layers.values);
  return c;
}

std::vector<std::string> modelSettings(const Config &c) {
  std::vector<std::string> all;
  for (const auto &[key, value] : c.written)
    for (const char *section : {"model.", "train.", "optimizer.", "precision.", "parallel.", "compile."})
      if (llvm::StringRef(key).starts_with(section) && key != "model.init_from")
        all.push_back(key + "=" + value.text());
  // Values found in the tokenizer or chosen here.
  all.push_back(fmt::format("name={}", TomlValue{c.name, {}, {}}.text()));
  all.push_back(fmt::format("model.vocab_size={}", c.model.vocabSize));
  all.push_back(fmt::format("train.micro_batch={}", c.train.microBatch));
  all.push_back(fmt::format("train.global_batch_tokens={}", c.train.globalBatchTokens));
  return all;
}

const std::vector<std::string> &configKeys() {
  static const std::vector<std::string> keys = [] {
    std::map<std::string, TomlValue> none;
    std::map<std::string, SourceLoc> noTables;
    ConfigReader r("", none, noTables);
    Config c;
    readAll(r, c, ConfigPurpose::run);
    std::vector<std::string> all = r.keys();
    llvm::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  return keys;
}

}  // namespace gptc
