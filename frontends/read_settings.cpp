#include "frontends/read_settings.h"

#include "frontends/schedule_steps.h"
#include "ir/gpu_sheets.h"
#include "support/files.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <map>
#include <string_view>

namespace gptc {

std::string lineOf(const ConfigReader &r, const char *key) {
  SourceLoc at = r.where(key);
  return at.line && at.file != "--set" ? fmt::format(" (line {})", at.line) : "";
}

bool namesCuda(llvm::StringRef target) { return target == "cuda" || target.starts_with("cuda:"); }

namespace {

std::vector<std::string> textsOf(const std::vector<values::Word> &words) {
  std::vector<std::string> all;
  for (const values::Word &w : words)
    all.push_back(w.text);
  return all;
}

bool isText(ConfigReader &r, const char *key) {
  const TomlValue *v = r.get(key);
  return v && std::holds_alternative<std::string>(v->value);
}

/// The word that stands there in place of a number, or null.
const values::Word *wordAt(ConfigReader &r, const char *key, const std::vector<values::Word> &words) {
  const TomlValue *v = r.get(key);
  auto *text = v ? std::get_if<std::string>(&v->value) : nullptr;
  for (const values::Word &w : words)
    if (text && *text == w.text)
      return &w;
  return nullptr;
}

void readPath(ConfigReader &r, const char *key, std::string &out) {
  r.string(key, out);
  if (const TomlValue *v = r.get(key); v && r.good(key)) {
    if (out.empty())
      r.complain(key, ErrorCode::OutOfRange, fmt::format("{} is empty", key), "a path is needed");
    out = resolveBeside(out, v->where.file);
  }
}

void readNumbers(ConfigReader &r, const char *key, const Member &member, const values::Numbers &type) {
  auto *pair = std::get_if<NumberPair>(&member);
  auto *optional = std::get_if<std::optional<std::pair<double, double>> *>(&member);
  std::vector<double> xs = pair ? std::vector<double>{*pair->first, *pair->second} : std::vector<double>(type.count);
  r.numbers(key, xs, type.count, type.least, type.most);
  if (pair)
    *pair->first = xs[0], *pair->second = xs[1];
  if (optional && r.get(key))
    **optional = {xs[0], xs[1]};
}

void readPatterns(ConfigReader &r, const char *key, PatternList &out, bool orNone) {
  const TomlValue *v = r.get(key);
  if (!v)
    return;
  out.clear();
  auto *list = std::get_if<std::vector<TomlValue>>(&v->value);
  for (const TomlValue &item : list ? llvm::ArrayRef(*list) : llvm::ArrayRef(*v))
    if (auto *pattern = std::get_if<std::string>(&item.value))
      out.push_back({*pattern, item.where});
  const bool none = out.empty() && !(orNone && list && list->empty());
  if (none || (list && out.size() != list->size()))
    r.complain(key, ErrorCode::WrongType, fmt::format("{} must be a string or a list of strings", key),
               fmt::format("this is {}", v->kind()), {"for example \"*.bias\" or [\"wte.*\", \"h.*.ln_1.*\"]"});
}

/// Reads the value of a key by its type.
struct ByType {
  ConfigReader &r;
  const char *key;
  const Member &member;

  template <typename T> T &as() const { return *std::get<T *>(member); }

  void operator()(const values::Integer &t) const {
    if (const values::Word *w = wordAt(r, key, t.words))
      as<int64_t>() = int64_t(w->value);
    else if (t.steps && isText(r, key))
      checkStepsText(r, key);  // takeScheduleSteps reads it when train.steps and the batch are known
    else if (t.tokens)
      r.tokens(key, as<int64_t>(), t.least, t.most);
    else
      r.integerOr(key, as<int64_t>(), t.least, t.most, textsOf(t.words));
  }
  void operator()(const values::Number &t) const {
    auto *optional = std::get_if<std::optional<double> *>(&member);
    double x = 0;
    double &out = optional ? x : as<double>();
    if (const values::Word *w = wordAt(r, key, t.words))
      out = w->value;
    else
      r.number(key, out, t.least.value, t.most.value, t.least.open, t.most.open);
    if (optional && r.get(key))
      **optional = x;
  }
  void operator()(const values::Boolean &t) const {
    if (auto *optional = std::get_if<std::optional<bool> *>(&member)) {
      bool x = false;
      r.boolean(key, x);
      if (r.get(key))
        **optional = x;
    } else if (t.orAuto) {
      r.booleanOrAuto(key, as<std::string>());
    } else {
      r.boolean(key, as<bool>());
    }
  }
  void operator()(const values::Integers &t) const { r.integers(key, as<std::vector<int64_t>>(), t.least, t.most); }
  void operator()(const values::Numbers &t) const { readNumbers(r, key, member, t); }
  void operator()(const values::Choice &t) const {
    if (auto *text = std::get_if<std::string *>(&member))
      return r.choice(key, **text, t.built, t.later);
    const WordMember &choice = std::get<WordMember>(member);
    std::string word = choice.word();
    r.choice(key, word, t.built, t.later);
    choice.set(word);
  }
  void operator()(const values::Text &) const { r.string(key, as<std::string>()); }
  void operator()(const values::Path &) const { readPath(r, key, as<std::string>()); }
  void operator()(const values::Patterns &t) const { readPatterns(r, key, as<PatternList>(), t.orNone); }
  void operator()(const values::Tables &) const { GPTC_UNREACHABLE("{} has a rule of its own", key); }
};

// Rules of single keys.

struct Reading {
  ConfigReader &r;
  Settings &s;
  ConfigPurpose purpose;
};

/// What a preset stands for where the file says nothing. All have the sizes of GPT-2 124M and its vocabulary, so that
/// families compare at one size.
void takePreset(Reading &in) {
  ModelConfig &m = in.s.model;
  if (m.preset == "none")
    return;
  m.nLayer = m.nHead = 12;
  m.nEmbd = 768;
  m.blockSize = 1024;
  m.vocabSize = 50257;
  if (m.preset == "llama") {  // Touvron et al. 2023
    m.norm = Norm::rmsnorm;
    m.activation = Activation::swiglu;
    m.position = Position::rope;
    m.bias = m.tieEmbeddings = false;
  } else if (m.preset == "bloom") {  // Le Scao et al. 2022
    m.position = Position::alibi;
    m.embeddingNorm = true;
  } else if (m.preset == "encoder") {  // Devlin et al. 2019, with norms before the blocks
    m.causal = false;
    m.activation = Activation::gelu;
    m.embeddingNorm = true;
    m.blockSize = 512;
    ++m.vocabSize;  // [MASK]
  }
}

void readInitFrom(Reading &in, const Setting &s) {
  ConfigReader &r = in.r;
  std::string &from = in.s.run.initFrom;
  const char *key = s.key.c_str();
  const TomlValue *v = r.get(key);
  if (!v)
    return;
  r.string(key, from);
  auto [kind, dir] = llvm::StringRef(from).split(':');
  if ((kind == "hf" || kind == "gguf" || kind == "ckpt") && !dir.empty())
    from = kind.str() + ":" + resolveBeside(dir.str(), v->where.file);
  else if (r.good(key) && from != "scratch")
    r.complain(key, ErrorCode::UnknownValue, fmt::format("{} = \"{}\" is not known", key, from), "",
               {"\"scratch\", \"hf:DIR\", \"gguf:FILE\" and \"ckpt:DIR\" work today"});
}

void readMatch(ConfigReader &r, const char *key, ParameterGroup &g) {
  if (!r.get(key))
    return r.missing(key, "name the group's parameters, for example match = \"*.bias\"");
  readPatterns(r, key, g.patterns, false);
}

void readGroups(Reading &in, const Setting &s) {
  in.r.eachTable(s.key.c_str(), [&](ConfigReader &one) {
    ParameterGroup g;
    for (const Setting &key : keysOf(g))
      if (std::holds_alternative<values::Patterns>(key.type))
        readMatch(one, key.key.c_str(), g);
      else
        readSetting(one, key);
    in.s.optimizer.groups.push_back(std::move(g));
  });
}

/// Defaults of an optimizer where they are not those of AdamW.
void takeOptimizer(Reading &in) {
  OptimizerConfig &o = in.s.optimizer;
  if (o.name == "sgd") {
    o.lr = 0.1;
    o.weightDecay = 0;
  } else if (o.name == "adafactor") {
    o.lr = 0.01;
    o.eps = 0x1p-23;
    o.weightDecay = 0;
  }
}

void checkNesterov(Reading &in) {
  const OptimizerConfig &o = in.s.optimizer;
  if (o.name == "sgd" && o.nesterov && o.momentum == 0 && in.r.good("optimizer.momentum"))
    in.r.complain("optimizer.nesterov", ErrorCode::Contradiction,
                  "Nesterov's step looks ahead along a momentum, which is 0", "contradicts momentum = 0",
                  {"leave it out, or write momentum = 0.9"});
}

bool wantsCuda(ConfigReader &r) {
  const TomlValue *v = r.get("compile.target");
  auto *target = v ? std::get_if<std::string>(&v->value) : nullptr;
  return target && namesCuda(*target);
}

void takeCompute(Reading &in) {
  ConfigReader &r = in.r;
  PrecisionConfig &p = in.s.precision;
  if (p.compute == "tf32" && !wantsCuda(r) &&
      in.purpose == ConfigPurpose::run)  // which is the mistake then, and said where it stands
    r.complain("precision.compute", ErrorCode::Contradiction, "tf32 does not exist on the target, a CPU",
               "a format of NVIDIA's tensor cores, for compile.target = \"cuda\"",
               {"\"bf16\" is the fast one on a CPU with AVX512-BF16; \"fp32\" is exact everywhere"});
  if (p.compute == "auto")
    p.compute = "fp32";
}

void readParams(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
  const PrecisionConfig &p = in.s.precision;
  std::string &params = in.s.precision.params;
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
}

void checkOptimizerState(Reading &in) {
  ConfigReader &r = in.r;
  const PrecisionConfig &p = in.s.precision;
  const OptimizerConfig &o = in.s.optimizer;
  if (p.optimizerState == MomentType::bf16 && o.name == "adafactor")
    r.complain("precision.optimizer_state", ErrorCode::Contradiction,
               "the statistics of adafactor are fp32, of which there are few",
               "contradicts optimizer.name = \"adafactor\"", {"leave it out, or write \"fp32\""});
}

void checkFp8(Reading &in) {
  ConfigReader &r = in.r;
  if (const PrecisionConfig &p = in.s.precision;
      p.fp8 != Fp8::off && p.compute != "bf16" && r.good("precision.compute"))
    r.complain("precision.fp8", ErrorCode::Contradiction, "the other products of a model with fp8 are bf16",
               fmt::format("contradicts compute = \"{}\"{}", p.compute,
                           r.where("precision.compute").line ? lineOf(r, "precision.compute") : ", the default"),
               {"write compute = \"bf16\", or leave it out"});
}

void checkCache(Reading &in) {
  if (in.s.precision.cache != CacheFormat::asComputed && wantsCuda(in.r))
    in.r.notBuilt("precision.cache", fmt::format("\"{}\" on GPUs", nameOf(in.s.precision.cache)), {"\"auto\""});
}

void checkEightBits(Reading &in) {
  const PrecisionConfig &p = in.s.precision;
  if (!p.eightBits.empty() && (p.weights == Weights::compute || p.weights == Weights::q8_0) &&
      in.r.good("precision.weights"))
    in.r.complain(
        "precision.eight_bits", ErrorCode::Contradiction, "8 bits are for some matrices where the others have 4",
        fmt::format("contradicts weights = \"{}\"{}", nameOf(p.weights),
                    in.r.where("precision.weights").line ? lineOf(in.r, "precision.weights") : ", the default"),
        {"write weights = \"q4_0\" or \"q4_k\", or leave it out"});
}

bool isPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/// Not written: "auto".
void openParallel(Reading &in) {
  in.s.parallel.zeroStage = -1;
  in.s.parallel.logicalShards = 0;
}

/// Whether logical parts form a tree, of which each rank along "tensor" has a part, and all else keeps their order.
void checkLogicalTensor(Reading &in) {
  ConfigReader &r = in.r;
  ParallelConfig &p = in.s.parallel;
  const int64_t parts = p.logicalTensor;
  const char *key = "parallel.logical_tensor";
  if (parts == 1 || !r.good(key) || !r.good("parallel.tensor"))
    return;
  if (!isPowerOfTwo(parts) || parts % p.tensor) {
    int64_t works = 1;
    while (works < p.tensor)
      works *= 2;
    const bool ranksFit = works == p.tensor;
    r.complain(key, ErrorCode::ShapeMismatch, fmt::format("{} logical parts for tensor = {}", parts, p.tensor),
               "must be a power of two, and a multiple of tensor",
               {ranksFit ? fmt::format("{}, {} or {} work", std::max<int64_t>(2, works),
                                       2 * std::max<int64_t>(2, works), 4 * std::max<int64_t>(2, works))
                         : fmt::format("tensor = {} or {} works with a power of two", works / 2, works)});
    return;
  }
  const TomlValue *tensor = r.get("parallel.tensor");
  if (const auto *word = tensor ? std::get_if<std::string>(&tensor->value) : nullptr; word && *word == "auto")
    r.complain(key, ErrorCode::Contradiction, "logical parts with parallel.tensor = \"auto\"",
               fmt::format("a forecast may choose what does not divide {}{}", parts, lineOf(r, "parallel.tensor")),
               {"write tensor as a number: any that divides the parts gives the same bits"});
  else if (in.s.optimizer.name == "adafactor")
    r.complain(key, ErrorCode::NotBuiltYet, "logical parts with optimizer.name = \"adafactor\" are not built yet",
               fmt::format("its statistics add over ranks{}", lineOf(r, "optimizer.name")),
               {"logical_tensor = 1 works, or adamw or sgd"});
  else if (in.s.precision.optimizerState == MomentType::bf16)
    r.complain(key, ErrorCode::NotBuiltYet, "logical parts with precision.optimizer_state = \"bf16\" are not built yet",
               fmt::format("each rank rounds its piece by random numbers of its own{}",
                           lineOf(r, "precision.optimizer_state")),
               {"logical_tensor = 1 works, or fp32"});
  else if (in.s.precision.fp8 != Fp8::off)
    r.complain(key, ErrorCode::NotBuiltYet, "logical parts with precision.fp8 are not built yet",
               fmt::format("products of 8-bit floats are in one part{}", lineOf(r, "precision.fp8")),
               {"logical_tensor = 1 works, or fp8 = \"off\""});
}

/// What another key may not be beside one of [parallel].
struct Beside {
  const char *other;
  bool refused;
  std::string is;  // its value
  const char *why, *works;
  ErrorCode code = ErrorCode::Contradiction;
};

/// Complains at `key` of the first of these, as "`what` with OTHER = IS". `off`: what to write otherwise.
void refuseBeside(Reading &in, const char *key, const char *what, const char *off, std::initializer_list<Beside> all) {
  ConfigReader &r = in.r;
  for (const Beside &b : all)
    if (b.refused && r.good(b.other))
      return r.complain(key, b.code,
                        fmt::format("{} with {} = {}{}", what, b.other, b.is,
                                    b.code == ErrorCode::NotBuiltYet ? " are not built yet" : ""),
                        fmt::format("{}{}", b.why, lineOf(r, b.other)), {fmt::format("{}, or {}", b.works, off)});
}

bool isAuto(Reading &in, const char *key) {
  const TomlValue *v = in.r.get(key);
  const auto *word = v ? std::get_if<std::string>(&v->value) : nullptr;
  return word && *word == "auto";
}

/// Why each setting does not go with what is for ranks that each have the whole model and one shard of the batch.
struct WhyWholeRanks {
  const char *zeroStage, *syncEvery, *tensor, *logicalTensor, *logicalShards, *offload, *fp16, *fp8;
  ErrorCode codeOfLogicalTensor;
};

/// Complains as refuseBeside of the first setting that is against such ranks, or of `more`, which has the last place.
/// passes/analysis/whole_ranks.cpp refuses the same in modules.
void refuseBesideWholeRanks(Reading &in, const char *key, const char *what, const char *off, const WhyWholeRanks &why,
                            const Beside &more = {}) {
  const ParallelConfig &p = in.s.parallel;
  const PrecisionConfig &precision = in.s.precision;
  const bool autoTensor = isAuto(in, "parallel.tensor"), autoOffload = isAuto(in, "parallel.offload");
  constexpr ErrorCode later = ErrorCode::NotBuiltYet;
  refuseBeside(
      in, key, what, off,
      {{"parallel.zero_stage", p.zeroStage > 0, fmt::format("{}", p.zeroStage), why.zeroStage, "zero_stage = 0 works"},
       {"parallel.sync_every", p.syncEvery > 1 && why.syncEvery, fmt::format("{}", p.syncEvery), why.syncEvery,
        "sync_every = 1 works"},
       {"parallel.tensor", p.tensor > 1 || autoTensor, autoTensor ? "\"auto\"" : fmt::format("{}", p.tensor),
        why.tensor, "tensor = 1 works", later},
       {"parallel.logical_tensor", p.logicalTensor > 1, fmt::format("{}", p.logicalTensor), why.logicalTensor,
        "logical_tensor = 1 works", why.codeOfLogicalTensor},
       {"parallel.logical_shards",
        p.logicalShards && p.logicalShards != p.data && in.purpose != ConfigPurpose::forecast,
        fmt::format("{}", p.logicalShards), why.logicalShards, "leave logical_shards out"},
       {"parallel.offload", p.offload != "none" || autoOffload, fmt::format("\"{}\"", autoOffload ? "auto" : p.offload),
        why.offload, "offload = \"none\" works", later},
       {"precision.compute", precision.compute == "fp16", "\"fp16\"", why.fp16, "compute = \"bf16\" works", later},
       {"precision.fp8", precision.fp8 != Fp8::off, fmt::format("\"{}\"", nameOf(precision.fp8)), why.fp8,
        "fp8 = \"off\" works", later},
       more});
}

/// Outer steps are of ranks that each train the whole model with one shard of the batch.
void checkOuterSteps(Reading &in) {
  const char *key = "parallel.sync_every";
  if (in.s.parallel.syncEvery == 1 || !in.r.good(key))
    return;
  refuseBesideWholeRanks(
      in, key, "outer steps", "sync_every = 1",
      {.zeroStage = "between outer steps each rank updates all parameters by itself",
       .syncEvery = nullptr,
       .tensor = "each rank trains the whole model",
       .logicalTensor = "each rank trains the whole model",
       .logicalShards = "they are for the same bits on any number of ranks, and outer steps depend on it",
       .offload = "the host would have to update parameters in outer steps, too",
       .fp16 = "each rank would have a loss scale of its own",
       .fp8 = "each rank would have factors of its own",
       .codeOfLogicalTensor = ErrorCode::Contradiction});
}

/// Compressed gradients are those of ranks that each have the whole model and one shard of the batch. A forecast is of
/// other software, too (tools/estimate/estimate.cpp).
void checkCompression(Reading &in) {
  const char *key = "parallel.compression";
  if (in.s.parallel.compressedRank() == 0 || !in.r.good(key) || in.purpose == ConfigPurpose::forecast)
    return;
  refuseBesideWholeRanks(
      in, key, "compressed gradients", "compression = \"none\"",
      {.zeroStage = "ZeRO sums pieces of gradients, and factors are of whole ones",
       .syncEvery = "between outer steps no gradient is sent",
       .tensor = "factors are of whole matrices",
       .logicalTensor = "factors are of whole matrices",
       .logicalShards = "they are for the same bits on any number of ranks, and what a rank leaves out depends on it",
       .offload = "the host would have to keep what is left out",
       .fp16 = "what is left out would have to follow the loss scale",
       .fp8 = "together they have not been tried",
       .codeOfLogicalTensor = ErrorCode::NotBuiltYet},
      {"train.on_nonfinite", in.s.run.onNonfinite == "skip", "\"skip\"",
       "a step that is left out has changed what ranks keep of gradients", "on_nonfinite = \"halt\" works",
       ErrorCode::NotBuiltYet});
}

/// What "auto" is today, and whether the rest goes together.
void takeParallel(Reading &in) {
  ConfigReader &r = in.r;
  ParallelConfig &p = in.s.parallel;
  checkLogicalTensor(in);
  checkOuterSteps(in);
  checkCompression(in);
  if (p.zeroStage < 0)
    p.zeroStage = p.data > 1 && p.syncEvery == 1 && p.compression == "none" ? 1 : 0;
  if (!p.logicalShards)
    p.logicalShards = p.data;
  const bool tree = p.reduceOrder == ReduceOrder::tree;
  if (in.purpose == ConfigPurpose::forecast) {
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

void takeOffload(Reading &in) {
  if (in.s.parallel.offload == "auto")
    in.s.parallel.offload = "none";
}

void readTarget(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
  std::string wanted = "auto";
  r.string("compile.target", wanted);
  if (wanted != "auto" && wanted != "cpu" && !namesCuda(wanted))
    r.complain("compile.target", ErrorCode::UnknownValue, fmt::format("compile.target = \"{}\" is not known", wanted),
               "", {"\"cpu\" (as \"auto\" is today), \"cuda\" for the GPU here, or \"cuda:sm_90a\" and the like"});
  in.s.compile.target = wanted == "auto" ? "cpu" : wanted;
}

void readRemat(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
  std::string &remat = in.s.compile.remat;
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

void readGpuMemory(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
  std::string &memory = in.s.compile.gpuMemory;
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

void readPackWeights(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
  const TomlValue *v = r.get("compile.pack_weights");
  if (!v)
    return;
  const std::string forms = "\"auto\", true and false work";
  if (auto *b = std::get_if<bool>(&v->value))
    in.s.compile.packWeights = *b;
  else if (auto *s = std::get_if<std::string>(&v->value); !s)
    r.complain("compile.pack_weights", ErrorCode::WrongType, "compile.pack_weights must be \"auto\", true or false",
               fmt::format("this is {}", v->kind()), {forms});
  else if (*s != "auto")
    r.complain("compile.pack_weights", ErrorCode::UnknownValue,
               fmt::format("compile.pack_weights = \"{}\" is not known", *s), "", {forms});
}

/// [] or [first, last].
void readTraceSteps(Reading &in, const Setting &) {
  ConfigReader &r = in.r;
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
  in.s.run.traceSteps = {int64_t(steps[0]), int64_t(steps[1])};
}

/// What happens to a key beside or in place of reading it by its type.
struct Rule {
  void (*before)(Reading &) = nullptr;
  void (*read)(Reading &, const Setting &) = nullptr;
  void (*after)(Reading &) = nullptr;
};

const std::map<std::string_view, Rule> rules = {
    {"extends", {.read = [](Reading &in, const Setting &s) { in.r.get(s.key.c_str()); }}},  // bases are loaded before
    {"model.preset", {.after = takePreset}},
    {"model.init_from", {.read = readInitFrom}},
    {"optimizer.name", {.after = takeOptimizer}},
    {"optimizer.nesterov", {.after = checkNesterov}},
    {"optimizer.group", {.read = readGroups}},
    {"precision.compute", {.after = takeCompute}},
    {"precision.params", {.read = readParams}},
    {"precision.optimizer_state", {.after = checkOptimizerState}},
    {"precision.fp8", {.after = checkFp8}},
    {"precision.eight_bits", {.after = checkEightBits}},
    {"precision.cache", {.after = checkCache}},
    {"parallel.data", {.before = openParallel}},
    {"parallel.offload", {.after = takeOffload}},
    {"parallel.compress_from", {.after = takeParallel}},
    {"compile.target", {.read = readTarget}},
    {"compile.remat", {.read = readRemat}},
    {"compile.gpu_memory", {.read = readGpuMemory}},
    {"compile.pack_weights", {.read = readPackWeights}},
    {"log.trace_steps", {.read = readTraceSteps}},
};

}  // namespace

void readSetting(ConfigReader &r, const Setting &s) { std::visit(ByType{r, s.key.c_str(), s.member}, s.type); }

void readSettings(ConfigReader &r, Settings &s, ConfigPurpose purpose) {
  Reading in{r, s, purpose};
  for (const Setting &key : keysOf(s)) {
    const auto found = rules.find(key.key);
    const Rule rule = found == rules.end() ? Rule() : found->second;
    if (rule.before)
      rule.before(in);
    if (rule.read)
      rule.read(in, key);
    else
      readSetting(r, key);
    if (rule.after)
      rule.after(in);
  }
}

}  // namespace gptc
