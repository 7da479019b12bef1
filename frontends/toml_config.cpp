// Files and --set become one set of values, and the rules between keys of several sections.
#include "frontends/toml_config.h"

#include "frontends/check_model.h"
#include "frontends/config_reader.h"
#include "frontends/gguf/gguf_model.h"
#include "frontends/hf/values.h"
#include "frontends/hf/write.h"
#include "frontends/hf_families.h"
#include "frontends/hf_text_form.h"
#include "frontends/label_names.h"
#include "frontends/read_settings.h"
#include "frontends/schedule_steps.h"
#include "ir/quantized.h"
#include "support/files.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <tuple>

namespace gptc {

namespace {

namespace fs = std::filesystem;

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

/// The vocabulary of the weights that a run begins with, as their config.json has it; 0 if none says so. That of an
/// encoder which learned tokens here has [MASK] behind those of its tokenizer.
int64_t vocabularyOfWeights(const RunSettings &run) {
  const std::string path = llvm::StringRef(run.initFrom).split(':').second.str();
  std::error_code e;
  const fs::path folder = fs::is_regular_file(path, e) ? fs::path(path).parent_path() : fs::path(path);
  if (path.empty() || !fs::exists(folder / "config.json", e))
    return 0;
  try {
    return readHfConfig(folder.string()).vocabSize;
  } catch (const UserError &) {
    return 0;  // comparing them says what is wrong
  }
}

void checkModel(ConfigReader &r, ModelConfig &m, const RunSettings &run,
                const std::function<int64_t(const std::string &)> &tokenizerVocab) {
  const std::pair<const char *, int64_t> needed[] = {{"model.n_layer", m.nLayer},
                                                     {"model.n_head", m.nHead},
                                                     {"model.n_embd", m.nEmbd},
                                                     {"model.block_size", m.blockSize}};
  for (auto &[key, value] : needed)
    if (!value && r.good(key) && r.good("model.preset"))
      r.missing(key, "write it, or take preset = \"gpt2\" in [model]");

  checkHeads(r, m);
  if (!m.ffnDim)
    m.ffnDim = defaultFfnDim(m);
  checkArchitecture(r, m);

  bool written = r.where("model.vocab_size").line != 0;
  bool readable = !run.tokenizer.empty() && (!written || fs::exists(run.tokenizer));
  if (readable) {
    try {
      // The [MASK] of an encoder that learns tokens is an additional one.
      const bool masks = !m.causal && !m.labels;
      const int64_t tokens = tokenizerVocab(run.tokenizer),
                    vocab = std::max(tokens + masks, m.labels && !written ? vocabularyOfWeights(run) : 0);
      if (!written)
        m.vocabSize = vocab;
      else if (r.good("model.vocab_size") && vocab > m.vocabSize)
        r.complain("model.vocab_size", ErrorCode::ShapeMismatch,
                   fmt::format("a vocabulary of {} cannot hold the tokenizer's {} tokens{}", m.vocabSize, tokens,
                               masks ? " and [MASK], which causal = false needs" : ""),
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

/// Checks that so many labels can be learned in the way that is asked for, and without labels that nothing is.
void checkLabelCount(ConfigReader &r, const ModelConfig &m) {
  const int64_t count = m.labels;
  if (m.problemType == ProblemType::regression && count != 1)
    return r.complain("model.problem_type", ErrorCode::Contradiction,
                      fmt::format("a regression learns one number, and model.labels = {}", count), "",
                      {"model.labels = 1 works"});
  if (m.problemType == ProblemType::multi_label_classification && !count)
    return r.complain("model.problem_type", ErrorCode::Contradiction, "there are no labels, of which several are right",
                      "", {"name them with data.labels, or write model.labels, their number"});
  if (m.problemType == ProblemType::single_label_classification && count == 1)
    return r.complain("model.labels", ErrorCode::OutOfRange, "model.labels = 1: a single label is always right",
                      "must be 0, or at least 2", {"model.problem_type = \"regression\" learns a number"});
  // Its default, which `gptc config` writes out, says nothing.
  if (!count && m.classifierPooling != ClassifierPooling{})
    r.complain("model.classifier_pooling", ErrorCode::Contradiction,
               fmt::format("model.classifier_pooling = \"{}\" is for labels, and the model learns none",
                           nameOf(m.classifierPooling)),
               "must be left out", {"or name labels with data.labels, or write model.labels, their number"});
}

/// Reads the names of labels, whose number is the model's, and what is learned of them. A forecast needs no more than
/// the number.
void readLabels(ConfigReader &r, Config &c, bool forecast) {
  int64_t &count = c.model.labels;
  std::error_code e;
  if (!c.data.labels.empty() && !(forecast && count && !fs::exists(c.data.labels, e))) {
    LabelNames there;
    try {
      there = readLabelNames(c.data.labels);
    } catch (const UserError &error) {
      for (const Diagnostic &d : error.diagnostics)
        r.complain("data.labels", d.code, d.message, d.label,
                   forecast && d.code == ErrorCode::FileMissing
                       ? std::vector<std::string>{"write model.labels, their number, for a forecast without the file"}
                       : d.help);
      return;
    }
    c.labels = std::move(there.names);
    const int64_t named = int64_t(c.labels.size());
    if (r.where("model.labels").line && r.good("model.labels") && count != named)
      return r.complain("model.labels", ErrorCode::ShapeMismatch,
                        fmt::format("model.labels = {}, and {} names {}", count, c.data.labels, named),
                        fmt::format("must be {}{}", named, lineOf(r, "data.labels")), {"leave it out"});
    count = named;
    ProblemType &problem = c.model.problemType;
    if (r.where("model.problem_type").line && r.good("model.problem_type") && problem != there.problem)
      return r.complain("model.problem_type", ErrorCode::Contradiction,
                        fmt::format("model.problem_type = \"{}\", and {} says {}", nameOf(problem), c.data.labels,
                                    nameOf(there.problem)),
                        fmt::format("must be \"{}\"{}", nameOf(there.problem), lineOf(r, "data.labels")),
                        {"leave it out"});
    problem = there.problem;
  } else if (count) {
    c.labels = numberedLabels(size_t(count));
  }
  if (r.good("model.labels") && r.good("model.problem_type"))
    checkLabelCount(r, c.model);
}

/// Checks that a model with labels has the form of BERT or ModernBERT, and what else is built for it.
void checkLabels(ConfigReader &r, const Config &c) {
  const ModelConfig &m = c.model;
  if (!m.labels || r.complained())  // the model may be incomplete
    return;
  const char *const key = r.where("data.labels").line ? "data.labels" : "model.labels";
  const hf::ModelValues values = hf::valuesOf(m);
  const std::vector<std::string> fromBert = hf::differingKeys(*hf::findFamily("bert"), values),
                                 fromModern = hf::differingKeys(*hf::findFamily("modernbert"), values);
  if (!fromBert.empty() && !fromModern.empty())
    return r.complain(key, ErrorCode::NotBuiltYet,
                      fmt::format("labels of texts are built for models of BERT's form or ModernBERT's, and this "
                                  "differs from {}: {}",
                                  m.hasPooler() ? "the first" : "the second",
                                  fmt::join(m.hasPooler() ? fromBert : fromModern, ", ")),
                      "", {"begin with one of them: `gptc import DIR --labels` writes its keys"});
  if (m.hasPooler() && m.classifierPooling != ClassifierPooling::cls)
    return r.complain("model.classifier_pooling", ErrorCode::Contradiction,
                      fmt::format("model.classifier_pooling = \"{}\": BERT's classifier reads the first token",
                                  nameOf(m.classifierPooling)),
                      "", {"leave it out"});
  if (namesCuda(c.compile.target))
    return r.complain(key, ErrorCode::NotBuiltYet, "training with labels is built for CPUs", "",
                      {"compile.target = \"cpu\" works"});
  const TomlValue *tensor = r.get("parallel.tensor");
  const bool open = tensor && std::holds_alternative<std::string>(tensor->value) && c.parallel.data > 1;
  if (c.parallel.tensor != 1 || open)
    return r.complain("parallel.tensor", ErrorCode::NotBuiltYet,
                      "training with labels over parallel.tensor is not built yet", "",
                      {"parallel.tensor = 1 works, with more ranks along parallel.data"});
  if (c.parallel.logicalTensor > 1)
    return r.complain("parallel.logical_tensor", ErrorCode::NotBuiltYet,
                      "training with labels in parts of parallel.logical_tensor is not built yet", "",
                      {"parallel.logical_tensor = 1 works"});
}

/// `gptc data prepare` cuts texts with labels to model_max_length of the tokenizer's folder, and the model's folder
/// will say block_size instead. Notes where that is more than what is learned from.
void noteLength(ConfigReader &r, Config &c) {
  if (!c.model.labels || c.run.tokenizer.empty() || r.complained())
    return;
  int64_t most = 0;
  try {
    most = textFormBeside(c.run.tokenizer).most;
  } catch (const UserError &e) {
    for (const Diagnostic &d : e.diagnostics)
      r.complain("data.tokenizer", d.code, d.message, d.label, d.help);
  }
  if (most && most < c.model.blockSize)
    c.warnings.push_back(fmt::format(
        "{} has model_max_length = {}, to which texts are cut before they are learned, and "
        "the model's folder will have model.block_size = {}: {} would be enough",
        fs::path(c.run.tokenizer).replace_filename("tokenizer_config.json").string(), most, c.model.blockSize, most));
}

/// Checks that imported weights are those of this model, including what their shapes do not show.
void compareWeights(ConfigReader &r, Config &c) {
  const auto [kind, path] = llvm::StringRef(c.run.initFrom).split(':');
  const char *const key = "model.init_from";
  if (path.empty() || r.complained())  // the model may be incomplete
    return;
  if (kind == "gguf" || isGguf(path.str())) {
    const GgufComparison there = compareGguf(path.str(), c.model);
    for (const Diagnostic &d : there.differences)
      r.complain(key, d.code, d.message, d.label, d.help);
    if (!there.found)
      c.warnings.push_back(
          fmt::format("there is no {}: that the weights mean what [model] says is not checked", path.str()));
    return;
  }
  const HfComparison there = compareHfConfig(path.str(), c.model);
  for (const Diagnostic &d : there.differences)
    r.complain(key, d.code, d.message, d.label, d.help);
  if (c.model.labels) {
    std::string note;
    for (const Diagnostic &d :
         compareLabels(path.str(), {c.labels, c.model.problemType}, c.model.classifierPooling, note))
      r.complain(key, d.code, d.message, d.label, d.help);
    if (!note.empty())
      c.warnings.push_back(note);
  }
  // Our own checkpoint describes its model.
  if (!there.found && kind == "hf" && !fs::exists(fs::path(there.file).replace_filename("manifest.json")))
    c.warnings.push_back(
        fmt::format("there is no {}: that the weights mean what [model] says is not checked", there.file));
}

/// Checks that there is a cache, and that heads have whole blocks, of which one of 8 bits consists.
void checkCacheBlocks(ConfigReader &r, const Config &c) {
  const ModelConfig &m = c.model;
  const int64_t size = m.headSize();
  if (c.precision.cache == CacheFormat::asComputed)
    return;
  for (const char *key : {"precision.cache", "model.n_head", "model.n_embd", "model.head_dim"})
    if (!r.good(key))
      return;
  if (!m.causal && r.good("model.causal"))
    return r.complain(
        "precision.cache", ErrorCode::Contradiction,
        fmt::format("precision.cache = \"{}\": an encoder keeps no keys and values", nameOf(c.precision.cache)),
        fmt::format("contradicts causal = false{}", lineOf(r, "model.causal")),
        {"leave it out, or write causal = true"});
  if (!size || size % quantBlock == 0)
    return;
  const char *from = r.where("model.head_dim").line ? "model.head_dim" : "model.n_embd";
  r.complain("precision.cache", ErrorCode::ShapeMismatch,
             fmt::format("precision.cache = \"{}\" keeps blocks of {} elements of a head, and heads have {}",
                         nameOf(c.precision.cache), quantBlock, size),
             fmt::format("needs heads of a multiple of {}{}", quantBlock, lineOf(r, from)),
             {"cache = \"auto\" works with any heads"});
}

/// Checks that `tensor`, or logical_tensor if that is more, divides the heads, those of keys and values too, and the
/// hidden features.
void checkTensor(ConfigReader &r, const Config &c) {
  const ModelConfig &m = c.model;
  const bool logical = c.parallel.logicalTensor > 1;
  const int64_t t = logical ? c.parallel.logicalTensor : c.parallel.tensor;
  const std::string key = logical ? "parallel.logical_tensor" : "parallel.tensor",
                    name = logical ? "logical_tensor" : "tensor";
  if (t == 1 || !r.good("parallel.tensor") || !r.good("parallel.logical_tensor"))
    return;
  if (m.qkNorm == QkNorm::whole && r.good("model.qk_norm"))
    return r.complain(key.c_str(), ErrorCode::NotBuiltYet,
                      fmt::format("{} = {} with model.qk_norm = \"whole\" is not built yet", key, t),
                      fmt::format("each {} has some heads, and the norm goes over all of them{}",
                                  logical ? "part" : "rank", lineOf(r, "model.qk_norm")),
                      {fmt::format("{} = 1 works, with more ranks along parallel.data", key)});
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
    return r.complain(key.c_str(), ErrorCode::ShapeMismatch,
                      fmt::format("{} {} cannot be split over {} = {}", p.n, p.what, name, t),
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

/// What to do about a key that is nothing without `more`, a setting: --set turns that off while a model file has the
/// key, which only another --set can take back.
std::vector<std::string> helpAgainst(const ConfigReader &r, const char *key, const std::string &usual, const char *off,
                                     const char *more) {
  std::vector<std::string> help{fmt::format("or write {}", more)};
  if (r.where(off).file == "--set" && r.where(key).file != "--set")
    help.insert(help.begin(), fmt::format("--set {}={}, the default, takes it back", key, usual));
  return help;
}

/// Without outer steps, what says how they update changes nothing.
void checkOuterUpdate(ConfigReader &r, const ParallelConfig &p) {
  if (p.syncEvery > 1 || !r.good("parallel.sync_every"))
    return;
  const ParallelConfig usual;  // its values, which `gptc config` writes out, say nothing
  const std::tuple<const char *, double, double> keys[] = {
      {"parallel.outer_lr", p.outerLr, usual.outerLr},
      {"parallel.outer_momentum", p.outerMomentum, usual.outerMomentum}};
  for (const auto &[key, value, other] : keys)
    if (value != other && r.good(key))
      r.complain(key, ErrorCode::Contradiction,
                 fmt::format("{} = {:g} is for outer steps, and parallel.sync_every = 1 makes none", key, value),
                 fmt::format("must be left out{}", lineOf(r, "parallel.sync_every")),
                 helpAgainst(r, key, fmt::format("{:g}", other), "parallel.sync_every",
                             "sync_every, the steps from one outer step to the next"));
}

/// Without compression, what says how it is done changes nothing.
void checkFactors(ConfigReader &r, const ParallelConfig &p) {
  if (p.compressedRank() > 0 || !r.good("parallel.compression"))
    return;
  const ParallelConfig usual;  // as in checkOuterUpdate
  const std::tuple<const char *, int64_t, int64_t> keys[] = {
      {"parallel.gradient_rank", p.gradientRank, usual.gradientRank},
      {"parallel.compress_from", p.compressFrom, usual.compressFrom}};
  for (const auto &[key, value, other] : keys)
    if (value != other && r.good(key))
      r.complain(key, ErrorCode::Contradiction,
                 fmt::format("{} = {} is for compressed gradients, and parallel.compression = \"{}\" makes none", key,
                             value, p.compression),
                 fmt::format("must be left out{}", lineOf(r, "parallel.compression")),
                 helpAgainst(r, key, fmt::format("{}", other), "parallel.compression", "compression = \"powersgd\""));
}

/// Checks that what all ranks do with one set of parameters falls on outer steps.
void checkOuterPeriods(ConfigReader &r, const Config &c) {
  const int64_t every = c.parallel.syncEvery;
  const std::pair<const char *, int64_t> periods[] = {{"eval.every", c.run.valData.empty() ? 0 : c.run.evalEvery},
                                                      {"eval.sample_every", c.run.sampleEvery},
                                                      {"checkpoint.every", c.run.checkpointEvery}};
  for (const auto &[key, period] : periods) {
    if (period % every == 0 || !r.good(key) || !r.good("parallel.sync_every"))
      continue;
    const bool written = r.where(key).line != 0;
    const int64_t below = period / every * every, above = below + every;
    r.complain(written ? key : "parallel.sync_every", ErrorCode::ShapeMismatch,
               fmt::format("{} = {}{} falls between outer steps, when ranks have parameters of their own", key, period,
                           written ? "" : ", the default,"),
               written ? fmt::format("must be a multiple of sync_every = {}{}", every, lineOf(r, "parallel.sync_every"))
                       : fmt::format("does not divide {}", key),
               {below ? fmt::format("{} = 0, {} or {} works", key, below, above)
                      : fmt::format("{} = 0 or {} works", key, above)});
  }
}

}  // namespace

int64_t defaultFfnDim(const ModelConfig &m) {
  if (!m.gated())
    return 4 * m.nEmbd;
  const int64_t step = m.nEmbd < 512 ? 32 : 256, exact = (8 * m.nEmbd + 2) / 3;
  return (exact + step - 1) / step * step;
}

int64_t autoMicroBatch(const ModelConfig &m, int64_t sequencesPerStep, bool gpu) {
  const double heads =
      m.nHead ? double(m.nHead) * m.headSize() : double(m.nEmbd);  // of the width that is kept, a third is of attention
  const double logits = m.labels ? 0 : 2.0 * m.vocabSize;          // labels have a row of them for each sequence
  const double bytesPerToken = 4.0 * (m.nLayer * (16.0 * m.nEmbd + 8.0 * heads) + logits);
  const double bytes = gpu ? 16.0 * (1 << 30) : 4.0 * (1 << 30);
  int64_t most = int64_t(std::min(gpu ? 32768.0 : 8192.0, bytes / bytesPerToken)) / m.blockSize;
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
  readSettings(r, c, purpose);
  r.unknownKeys(
      {{"optimizer.group", "there may be several: write [[optimizer.group]], with two brackets"},
       {"precision.loss_scale", "compute = \"fp16\" scales the loss by itself: from 2^16, halved after a step "
                                "that overflows, doubled after 2000 good ones"}});
  if (c.name.empty())
    c.name = fs::path(file).stem().string();
  if (c.run.outDir.empty())
    c.run.outDir = resolveBeside("out/" + c.name, file);
  if (c.run.trainData.empty() && r.good("data.train") && !settingsOnly && !forecast)
    r.missing("data.train", "name a token file; `gptc data prepare` makes one from text");
  if (c.run.sampleEvery && c.run.tokenizer.empty())
    r.missing("data.tokenizer", "eval.sample_every needs it to turn tokens into text");
  readLabels(r, c, forecast);
  checkModel(r, c.model, c.run, tokenizerVocab);
  checkCacheBlocks(r, c);
  checkTensor(r, c);
  if (c.parallel.offload == "optimizer" && c.optimizer.name == "adafactor" && namesCuda(c.compile.target) && !forecast)
    r.complain("parallel.offload", ErrorCode::NotBuiltYet, "adafactor on the host is not built yet",
               "its statistics, of which there are few, stay on the GPU",
               {"leave the key out; optimizer.name = \"adamw\" and \"sgd\" can be there"});
  checkBatch(r, c.model, c.parallel, c.train, namesCuda(c.compile.target));
  takeScheduleSteps(r, c);
  if (!c.model.causal && c.run.sampleEvery)
    r.complain("eval.sample_every", ErrorCode::Contradiction, "an encoder cannot continue a text",
               "model.causal = false reads both ways", {"eval.sample_every = 0 works, or model.causal = true"});
  if (c.run.sampleEvery && c.run.samplePrompt.empty())
    r.complain("eval.sample_prompt", ErrorCode::OutOfRange, "eval.sample_prompt is empty",
               "a model continues at least one token",
               {"eval.sample_prompt = \"\\n\" works, or eval.sample_every = 0"});
  checkLabels(r, c);
  if (!forecast) {
    if (!settingsOnly) {  // other settings have been through here, and what these are for may have been set off since
      checkOuterUpdate(r, c.parallel);
      checkFactors(r, c.parallel);
    }
    if (!file.empty())  // else the run's settings come from elsewhere
      checkOuterPeriods(r, c);
    compareWeights(r, c);
    noteLength(r, c);
  }
  r.finish();
  if (c.optimizer.warmupSteps >= c.run.steps)
    c.warnings.push_back(
        fmt::format("the learning rate never reaches {}: optimizer.warmup_steps = {}, train.steps = {}", c.optimizer.lr,
                    c.optimizer.warmupSteps, c.run.steps));
  if (c.optimizer.decaySteps >= 0 && c.optimizer.schedule != LrSchedule::wsd)
    c.warnings.push_back(
        fmt::format("optimizer.decay_steps = {} changes nothing: it is of schedule \"wsd\", not \"{}\"",
                    c.optimizer.decaySteps, nameOf(c.optimizer.schedule)));
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
  if (c.model.labels) {
    all.push_back(fmt::format("model.labels={}", c.model.labels));
    all.push_back(fmt::format("model.problem_type={}", nameOf(c.model.problemType)));
    all.push_back(fmt::format("model.classifier_pooling={}", nameOf(c.model.classifierPooling)));
  }
  all.push_back(fmt::format("train.micro_batch={}", c.train.microBatch));
  all.push_back(fmt::format("train.global_batch_tokens={}", c.train.globalBatchTokens));
  return all;
}

const std::vector<std::string> &configKeys() {
  static const std::vector<std::string> keys = [] {
    Settings s;
    std::vector<std::string> all;
    for (const Setting &row : keysOf(s))
      all.push_back(row.key);
    llvm::sort(all);
    return all;
  }();
  return keys;
}

}  // namespace gptc
