// 1. general.architecture selects a row of the table of architectures: the values of [model] that follow from it, and
//    whether it has more keys than those that all have.
// 2. The file's keys fill in the others. What [model] has no key for has one value that is built; others are refused.
// 3. Comparing is reading, and then comparing each key of [model]; writing is choosing the architecture which, with the
//    keys that it has, differs from the model in nothing.
#include "frontends/gguf/gguf_model.h"

#include "ir/settings/model_keys.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

namespace gptc {
namespace {

/// What follows from an architecture alone.
struct Architecture {
  const char *name;
  Norm norm;
  Activation activation;
  Position position;
  bool bias, embeddingNorm;
  bool grouped;   // fewer heads of keys and values than of queries
  bool biases;    // tensors say whether linear layers have biases; else all or none have
  bool qkvBias;   // queries, keys and values always have biases
  bool headNorm;  // norms of the heads of queries and keys
};
/// Where several hold a model, the first one does.
constexpr Architecture kArchitectures[] = {
    {"gpt2", Norm::layernorm, Activation::gelu_tanh, Position::learned, true, false, false, false, true, false},
    {"qwen2", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true, false, true, false},
    {"qwen3", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true, false, false, true},
    {"llama", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true, true, false, false},
    {"bloom", Norm::layernorm, Activation::gelu_tanh, Position::alibi, true, true, false, false, true, false}};

const Architecture *architectureOf(llvm::StringRef name) {
  const auto *at = llvm::find_if(kArchitectures, [&](const Architecture &a) { return name == a.name; });
  return at == std::end(kArchitectures) ? nullptr : at;
}

std::vector<std::string> architectureNames() {
  std::vector<std::string> names;
  for (const Architecture &a : kArchitectures)
    names.emplace_back(a.name);
  return names;
}

/// A key that all architectures have: without "ARCHITECTURE.", and the key of [model].
struct Row {
  const char *theirs, *ours;
  int64_t ModelConfig::*member;
};
constexpr Row kRows[] = {{"block_count", "n_layer", &ModelConfig::nLayer},
                         {"embedding_length", "n_embd", &ModelConfig::nEmbd},
                         {"feed_forward_length", "ffn_dim", &ModelConfig::ffnDim},
                         {"context_length", "block_size", &ModelConfig::blockSize},
                         {"attention.head_count", "n_head", &ModelConfig::nHead}};
constexpr const char *kKeyHeads = "attention.head_count_kv", *kVocabSize = "vocab_size", *kTheta = "rope.freq_base",
                     *kRotated = "rope.dimension_count", *kKeyLength = "attention.key_length",
                     *kValueLength = "attention.value_length", *kScaling = "rope.scaling.type",
                     *kFactor = "rope.scaling.factor", *kOriginal = "rope.scaling.original_context_length",
                     *kBetaFast = "rope.scaling.yarn_beta_fast", *kBetaSlow = "rope.scaling.yarn_beta_slow",
                     *kFactors = "rope_freqs.weight", *kPooling = "pooling_type";

/// Of vectors of texts, as llama.cpp numbers them. 0 is none.
constexpr std::pair<const char *, uint32_t> kPoolings[] = {{"mean", 1}, {"cls", 2}, {"last", 3}};

/// The bounds of YaRN that llama.cpp has for these architectures.
constexpr double kGgufBetaFast = 32, kGgufBetaSlow = 1;

/// Keys of our own for the numbers behind rope_freqs.weight, which no key of llama.cpp's says. The standard ones would
/// make llama.cpp scale a second time.
struct OwnRow {
  const char *theirs, *ours;
};
constexpr OwnRow kOwnFactor = {"gptc.model.rope_factor", "rope_factor"},
                 kOwnOriginal = {"gptc.model.rope_original_block_size", "rope_original_block_size"},
                 kOwnLow = {"gptc.model.rope_low_freq_factor", "rope_low_freq_factor"},
                 kOwnHigh = {"gptc.model.rope_high_freq_factor", "rope_high_freq_factor"};

/// The architecture's values of [model].
void setFacts(ModelConfig &m, const Architecture &a) {
  m.norm = a.norm;
  m.activation = a.activation;
  m.position = a.position;
  m.bias = a.bias;
  m.embeddingNorm = a.embeddingNorm;
  m.qkvBias = a.qkvBias;
  m.qkNorm = a.headNorm ? QkNorm::head : QkNorm::none;
}

const char *epsilonOf(const Architecture &a) {
  return a.norm == Norm::rmsnorm ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
}

/// Keys of which only some values are built, as GgufFile::shown() shows them.
const std::map<std::string, std::set<std::string>> &onlyBuilt() {
  static const std::map<std::string, std::set<std::string>> all = {
      {"attention.causal", {"true"}},
      {"attention.sliding_window", {"0"}},
      {"attention.max_alibi_bias", {"8"}},
      {"attention.clamp_kqv", {"0"}},
      {"rope.scaling.type", {"\"none\""}},
      {"rope.scale_linear", {"1"}},
      {"expert_count", {"0"}},
      {"expert_used_count", {"0"}},
      {"use_parallel_residual", {"false"}},
      {kPooling, {"0", "1", "2", "3"}},
      {"logit_scale", {"1"}},
      {"residual_scale", {"1"}},
      {"embedding_scale", {"1"}},
      {"attn_logit_softcapping", {"0"}},
      {"final_logit_softcapping", {"0"}},
      {"rope.scaling.attn_factor", {"1"}},
      {"rope.scaling.yarn_attn_factor", {"1"}},
      {"rope.scaling.yarn_ext_factor", {"1"}},
      // llama.cpp takes these values for the architectures here, whatever a file says. Which of the two the weights
      // were trained with, nobody knows.
      {kBetaFast, {"32"}},
      {kBetaSlow, {"1"}},
      {"rope.scaling.finetuned", {"false", "true"}},
      // Meta's own layout of q and k is what converted files have too, whatever this key of older files says.
      {"tensor_data_layout", {"\"Meta AI original pth\""}}};
  return all;
}

/// Keys of any architecture that describe the file or the tokenizer, and no computation.
bool isNeutral(llvm::StringRef key) {
  return key.starts_with("general.") || key.starts_with("tokenizer.") || key.starts_with("quantize.") ||
         key == kGgufMadeBy;
}

/// The text of a key's value, as model.toml would have it.
std::string textOf(const Member &member) {
  return std::visit(
      [](const auto &m) -> std::string {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, WordMember>)
          return fmt::format("\"{}\"", m.word());
        else if constexpr (std::is_same_v<M, std::string *>)
          return fmt::format("\"{}\"", *m);
        else if constexpr (std::is_same_v<M, double *>)
          return fmt::format("{}", float(*m));  // files have no more digits
        else if constexpr (std::is_same_v<M, int64_t *> || std::is_same_v<M, bool *>)
          return fmt::format("{}", *m);
        else if constexpr (std::is_same_v<M, std::optional<bool> *>)
          return *m ? fmt::format("{}", **m) : "";
        else if constexpr (std::is_same_v<M, std::vector<int64_t> *>)
          return fmt::format("[{}]", fmt::join(*m, ", "));
        else
          return "";
      },
      member);
}

using KeyTexts = std::vector<std::pair<std::string, std::string>>;

/// With the values of keys that follow from others where they are not written.
ModelConfig resolved(ModelConfig m) {
  m.nKvHead = m.nKvHead ? m.nKvHead : m.nHead;
  m.headDim = m.headSize();
  m.rotaryDim = m.rotated();
  m.qkvBias = m.biased(m.qkvBias);
  m.attentionBias = m.biased(m.attentionBias);
  m.mlpBias = m.biased(m.mlpBias);
  m.normBias = m.normBiased();
  return m;
}

/// The values of all keys of [model] that say what a model computes: key without "model.", text.
KeyTexts keysOfModel(const ModelConfig &m) {
  Settings s;
  s.model = resolved(m);
  KeyTexts texts;
  for (const Setting &row : keysOf(s))
    if (saysWhatIsComputed(row))
      texts.emplace_back(row.leaf(), textOf(row.member));
  return texts;
}

/// Keys that follow from others if they are not written, and a model without them.
bool isDerived(const std::string &key) {
  static const std::set<std::string> keys = {"n_kv_head",      "head_dim", "rotary_dim", "qkv_bias",
                                             "attention_bias", "mlp_bias", "norm_bias"};
  return keys.count(key) != 0;
}
ModelConfig withoutDerived(ModelConfig m) {
  m.headDim = m.rotaryDim = m.nKvHead = 0;
  m.qkvBias = m.attentionBias = m.mlpBias = m.normBias = std::nullopt;
  return m;
}

/// The shortest number that is this f32.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

/// What Llama 3's scaling divides the angle of each pair of a head by (transformers' rope_type "llama3"): nothing where
/// it turns at least ropeHigh times in an original context, ropeFactor where at most ropeLow times, and a blend
/// between.
std::vector<float> llama3Factors(const ModelConfig &m) {
  const int64_t size = m.headSize();
  std::vector<float> factors;
  for (int64_t i = 0; i < size / 2; ++i) {
    const double turns = double(m.ropeOriginal) * std::pow(m.ropeTheta, -2.0 * double(i) / double(size)) / (2 * M_PI);
    const double blend = std::clamp((turns - m.ropeLow) / (m.ropeHigh - m.ropeLow), 0.0, 1.0);
    factors.push_back(float(1 / ((1 - blend) / m.ropeFactor + blend)));
  }
  return factors;
}

/// Reads a file's metadata. Problems are collected.
class Reading {
public:
  explicit Reading(const GgufFile &f) : f(f) {}

  ModelConfig run() {
    const std::string name = f.text("general.architecture").value_or("");
    const Architecture *a = architectureOf(name);
    if (!a) {
      notBuilt(name.empty() ? "no general.architecture" : "general.architecture = " + f.shown("general.architecture"),
               quotedList(architectureNames(), "or"));
      return m;
    }
    prefix = name + ".";
    setFacts(m, *a);
    for (const auto &[key, value] : keysOfModel(m))
      said[key] = fmt::format("general.architecture = \"{}\" has {} = {}", name, key, value);
    for (const Row &r : kRows)
      m.*r.member = needed(r.theirs, r.ours);
    context = m.blockSize;
    if (a->position != Position::learned)  // no table has that many rows
      m.blockSize = std::min(m.blockSize, kMostBlockSize);
    m.nKvHead = f.integer(prefix + kKeyHeads).value_or(m.nHead);
    say(kKeyHeads, "n_kv_head", fmt::format("{}", m.nKvHead));
    if (!a->grouped && m.nKvHead != m.nHead)
      notBuilt(shown(kKeyHeads), fmt::format("as many as {}", shown("attention.head_count")));
    epsilon(epsilonOf(*a));
    headSizes(*a);
    if (a->position == Position::rope)
      rotations();
    tensors(*a);
    onlyOneValue();
    if (problems.empty())
      ranges();
    return m;
  }

  std::vector<Diagnostic> problems;
  /// What the file says of a key of [model], as messages quote it.
  std::map<std::string, std::string> said;
  int64_t context = 0;  // as the file says it

private:
  void add(ErrorCode code, const std::string &what, std::string help) {
    problems.push_back({code, fmt::format("{}: {}", f.path, what), {}, "", {std::move(help)}});
  }
  void notBuilt(const std::string &what, const std::string &built) {
    add(ErrorCode::NotBuiltYet, fmt::format("{}, but only {} is built", what, built),
        "take weights of another model: with these, gptc would compute something else than they were trained for");
  }
  /// `llama.block_count = 30`.
  std::string shown(const std::string &key) const {
    return f.has(prefix + key) ? fmt::format("{}{} = {}", prefix, key, f.shown(prefix + key))
                               : fmt::format("no {}{}", prefix, key);
  }
  /// Notes what the file says of a key of [model], whose absence means `value`.
  void say(const std::string &theirs, const std::string &ours, const std::string &value) {
    known.insert(theirs);
    said[ours] = f.has(prefix + theirs) ? shown(theirs) : fmt::format("no {}{}, which means {}", prefix, theirs, value);
  }

  int64_t needed(const char *theirs, const char *ours) {
    const std::optional<int64_t> value = f.integer(prefix + theirs);
    if (!value)
      add(ErrorCode::MissingKey, fmt::format("it does not say {}{}, which is model.{}", prefix, theirs, ours),
          "convert the original weights again with a newer llama.cpp");
    say(theirs, ours, "nothing");
    return value.value_or(0);
  }

  void epsilon(const char *key) {
    const std::optional<double> eps = f.number(prefix + key);
    if (!eps)
      add(ErrorCode::MissingKey, fmt::format("it does not say {}{}, which is model.norm_eps", prefix, key),
          "convert the original weights again with a newer llama.cpp");
    else
      m.normEps = shortest(float(*eps));
    say(key, "norm_eps", "nothing");
  }

  void headSizes(const Architecture &a) {
    const int64_t equal = m.nHead > 0 ? m.nEmbd / m.nHead : 0;
    m.headDim = f.integer(prefix + kKeyLength).value_or(equal);
    say(kKeyLength, "head_dim", fmt::format("{}", equal));
    known.insert(kValueLength);
    if (const auto size = f.integer(prefix + kValueLength); size && *size != m.headDim)
      notBuilt(shown(kValueLength), fmt::format("{}, as {}{}", m.headDim, prefix, kKeyLength));
    // A part of a head is not rotated as other programs do it: their pairs would be those of the part.
    if (a.position != Position::rope)
      return;
    known.insert(kRotated);
    if (const auto size = f.integer(prefix + kRotated); size && *size != m.headDim)
      notBuilt(shown(kRotated), fmt::format("{}, the whole head,", m.headDim));
    else
      said["rotary_dim"] = f.has(prefix + kRotated) ? shown(kRotated) : said["head_dim"];
  }

  /// A number of the scaling of rotations, beside `ours` of [model].
  double scaling(const char *theirs, const char *ours, double absent) {
    const double value = f.number(prefix + theirs).value_or(absent);
    say(theirs, ours, fmt::format("{}", absent));
    return shortest(float(value));
  }

  void rotations() {
    m.ropeTheta = scaling(kTheta, "rope_theta", 10000);
    known.insert({kScaling, kFactor, kOriginal});
    // llama.cpp takes a factor alone for a linear one.
    const bool scaled = f.number(prefix + kFactor).value_or(1) != 1;
    const std::string type = f.text(prefix + kScaling).value_or(scaled ? "linear" : "none");
    say(kScaling, "rope_scaling", "none");
    if (const GgufTensor *factors = f.find(kFactors))
      return scaledLikeLlama3(*factors, type);
    if (type == "none")
      return;
    if (type != "linear" && type != "yarn") {
      notBuilt(shown(kScaling), "\"none\", \"linear\" or \"yarn\"");
      return;
    }
    m.ropeScaling = type == "linear" ? RopeScaling::linear : RopeScaling::yarn;
    m.ropeFactor = scaling(kFactor, "rope_factor", 1);
    if (m.ropeScaling == RopeScaling::linear)
      return;
    m.ropeOriginal = needed(kOriginal, "rope_original_block_size");
    m.ropeBetaFast = kGgufBetaFast;
    m.ropeBetaSlow = kGgufBetaSlow;
    for (const auto &[theirs, ours, value] :
         {std::tuple{kBetaFast, "rope_beta_fast", m.ropeBetaFast}, {kBetaSlow, "rope_beta_slow", m.ropeBetaSlow}})
      said[ours] = fmt::format("llama.cpp has {}{} = {} for every file", prefix, theirs, value);
  }

  /// Llama 3's scaling is a tensor of what each angle is divided by. Its numbers are in keys of our own if an export
  /// wrote the file, else they are found again. Either way they must give this tensor.
  void scaledLikeLlama3(const GgufTensor &factors, const std::string &type) {
    // The tensor has a place in one architecture only: llama.cpp opens no other file that has it.
    if (prefix != "llama.")
      return notBuilt(fmt::format("it has a tensor {}", kFactors), "a model without it");
    const int64_t pairs = m.headDim / 2;
    std::vector<float> there(size_t(std::clamp<int64_t>(pairs, 1, 512)));
    const bool fits = type == "none" && factors.shape == std::vector<int64_t>{int64_t(there.size())} &&
                      factors.format->type == GgmlType::f32 && m.headDim % 2 == 0;
    if (fits)
      f.read(factors, 0, pairs, there.data());
    for (const ModelConfig &trial : fits ? llama3Trials(*llvm::max_element(there)) : std::vector<ModelConfig>()) {
      const std::vector<float> ours = llama3Factors(trial);
      bool equal = true;
      for (size_t i = 0; i < ours.size(); ++i)
        equal &= std::fabs(ours[i] - there[i]) <= 1e-5f * std::fabs(there[i]);
      if (!equal)
        continue;
      m = trial;
      for (const char *key :
           {"rope_scaling", "rope_factor", "rope_original_block_size", "rope_low_freq_factor", "rope_high_freq_factor"})
        said[key] = fmt::format("rope_freqs.weight is that of rope_scaling = \"llama3\" with rope_factor = {} and "
                                "rope_original_block_size = {}",
                                m.ropeFactor, m.ropeOriginal);
      return;
    }
    if (f.has(kOwnFactor.theirs))
      return add(ErrorCode::Contradiction,
                 fmt::format("{} is not what {} = {} and the keys beside it give", kFactors, kOwnFactor.theirs,
                             f.shown(kOwnFactor.theirs)),
                 "export the model again");
    notBuilt(fmt::format("it has a tensor {}", kFactors),
             "one that Llama 3's scaling gives, with low and high factors 1 and 4 and no other scaling,");
  }

  /// Models whose scaling may have given a tensor with this largest factor.
  std::vector<ModelConfig> llama3Trials(float largest) {
    ModelConfig trial = m;
    trial.ropeScaling = RopeScaling::llama3;
    std::vector<ModelConfig> trials;
    if (f.has(kOwnFactor.theirs)) {
      for (const OwnRow &r : {kOwnFactor, kOwnOriginal, kOwnLow, kOwnHigh})
        known.insert(r.theirs);
      trial.ropeFactor = shortest(float(f.number(kOwnFactor.theirs).value_or(0)));
      trial.ropeOriginal = f.integer(kOwnOriginal.theirs).value_or(0);
      trial.ropeLow = shortest(float(f.number(kOwnLow.theirs).value_or(0)));
      trial.ropeHigh = shortest(float(f.number(kOwnHigh.theirs).value_or(0)));
      trials.push_back(trial);
      return trials;
    }
    trial.ropeFactor = shortest(largest);
    for (trial.ropeOriginal = 1024; trial.ropeOriginal <= 1 << 20; trial.ropeOriginal *= 2)
      trials.push_back(trial);
    return trials;
  }

  /// What tensors say: the vocabulary, a classifier of its own, and parts that an architecture may have.
  void tensors(const Architecture &a) {
    const GgufTensor *embeddings = f.find("token_embd.weight");
    known.insert(kVocabSize);
    if (!embeddings || embeddings->shape.size() != 2) {
      add(ErrorCode::MissingKey, "it has no table token_embd.weight",
          "name the file with the weights, not one of a part of them");
      return;
    }
    m.vocabSize = embeddings->shape[0];
    said["vocab_size"] = fmt::format("token_embd.weight has {} rows", m.vocabSize);
    if (const auto size = f.integer(prefix + kVocabSize); size && *size != m.vocabSize)
      add(ErrorCode::Contradiction, fmt::format("{}, but {}", shown(kVocabSize), said["vocab_size"]),
          "convert the original weights again with a newer llama.cpp");
    auto has = [&](const char *tensor, const char *ours) {
      said[ours] = fmt::format("{} tensor {}", f.find(tensor) ? "a" : "no", tensor);
      return f.find(tensor) != nullptr;
    };
    m.tieEmbeddings = !has("output.weight", "tie_embeddings");
    if (a.biases) {
      m.qkvBias = has("blk.0.attn_q.bias", "qkv_bias");
      m.attentionBias = has("blk.0.attn_output.bias", "attention_bias");
      m.mlpBias = has("blk.0.ffn_up.bias", "mlp_bias");
    }
    for (const char *tensor : {"rope_factors_long.weight", "rope_factors_short.weight", "blk.0.attn_q_norm.weight",
                               "blk.0.ffn_gate_inp.weight"})
      if (f.find(tensor) && !(a.headNorm && llvm::StringRef(tensor).contains("q_norm")))
        notBuilt(fmt::format("it has a tensor {}", tensor), "a model without it");
  }

  void onlyOneValue() {
    if (f.has("general.type") && f.text("general.type") != "model")
      notBuilt("general.type = " + f.shown("general.type"), "\"model\"");
    if (f.integer("split.count").value_or(1) > 1)
      notBuilt("split.count = " + f.shown("split.count"),
               "a model in one file (`llama-gguf-split --merge` of llama.cpp joins them)");
    for (const std::string &key : f.keys()) {
      if (isNeutral(key) || key.rfind("split.", 0) == 0)
        continue;
      const std::string own = key.rfind(prefix, 0) == 0 ? key.substr(prefix.size()) : "";
      const auto only = onlyBuilt().find(own);
      if (known.count(own.empty() ? key : own))
        continue;
      if (only == onlyBuilt().end() || own.empty())
        add(ErrorCode::UnknownKey, fmt::format("unknown key {} = {}", key, f.shown(key)),
            "it may change what the model computes, and nothing in gptc knows it");
      else if (!only->second.count(f.shown(key)))
        notBuilt(fmt::format("{} = {}", key, f.shown(key)), fmt::format("{}", fmt::join(only->second, " or ")));
    }
  }

  /// That each value may stand in a model.toml, and that heads divide the width.
  void ranges() {
    m = resolved(m);
    Settings s;
    s.model = m;
    for (const Setting &row : keysOf(s)) {
      const auto *integer = std::get_if<values::Integer>(&row.type);
      const auto *number = std::get_if<values::Number>(&row.type);
      auto *const *whole = std::get_if<int64_t *>(&row.member);
      auto *const *real = std::get_if<double *>(&row.member);
      const bool holds = integer && whole ? **whole >= integer->least && **whole <= integer->most
                         : number && real ? number->holds(**real)
                                          : true;
      if (row.section() == "model" && !holds)
        add(ErrorCode::OutOfRange, fmt::format("{}, which is no {}", said[row.leaf()], row.key),
            fmt::format("docs/keys.md has the values that {} takes", row.leaf()));
    }
    const bool whole = problems.empty() && (f.has(prefix + kKeyLength) || m.nEmbd % m.nHead == 0);
    if (problems.empty() && (!whole || m.nHead % m.nKvHead))
      add(ErrorCode::ShapeMismatch,
          fmt::format("{}, {} and {} do not divide each other", said["n_embd"], said["n_head"], said["n_kv_head"]),
          "heads of keys and values divide those of queries, and these the width");
  }

  const GgufFile &f;
  std::string prefix;
  ModelConfig m;
  std::set<std::string> known;  // keys that are read, those of the architecture without its prefix
};

/// What an architecture holds of a model: its own values, and those that its keys can say.
ModelConfig heldBy(const Architecture &a, const ModelConfig &m) {
  ModelConfig held;
  setFacts(held, a);
  for (const Row &r : kRows)
    held.*r.member = m.*r.member;
  held.nKvHead = a.grouped ? m.nKvHead : m.nHead;
  held.headDim = m.headDim;
  held.normEps = m.normEps;
  if (a.biases) {
    held.qkvBias = m.biased(m.qkvBias);
    held.attentionBias = m.biased(m.attentionBias);
    held.mlpBias = m.biased(m.mlpBias);
  }
  if (a.position == Position::rope) {
    held.ropeTheta = m.ropeTheta;
    held.ropeFactor = m.ropeFactor;
    held.ropeOriginal = m.ropeOriginal;
    if (m.ropeScaling != RopeScaling::llama3) {
      held.ropeScaling = m.ropeScaling;
    } else if (a.name == llvm::StringRef("llama")) {  // the one with a place for rope_freqs.weight
      held.ropeScaling = m.ropeScaling;
      held.ropeLow = m.ropeLow;
      held.ropeHigh = m.ropeHigh;
    }
    // llama.cpp ignores the keys for these two.
    held.ropeBetaFast = kGgufBetaFast;
    held.ropeBetaSlow = kGgufBetaSlow;
    if (m.ropeScaling != RopeScaling::yarn) {  // they have no effect
      held.ropeBetaFast = m.ropeBetaFast;
      held.ropeBetaSlow = m.ropeBetaSlow;
    }
  }
  held.vocabSize = m.vocabSize;
  held.tieEmbeddings = m.tieEmbeddings;
  return held;
}

}  // namespace

ModelConfig importGguf(const GgufFile &file, int64_t *context) {
  Reading reading(file);
  ModelConfig m = reading.run();
  if (context)
    *context = reading.context;
  if (!reading.problems.empty())
    throw UserError(reading.problems);
  return m;
}

GgufComparison compareGguf(const std::string &file, const ModelConfig &model) {
  GgufComparison result;
  std::error_code e;
  result.found = std::filesystem::exists(file, e);
  if (!result.found)
    return result;
  try {
    const GgufFile f(file);
    Reading reading(f);
    const ModelConfig there = reading.run();
    result.differences = std::move(reading.problems);
    if (!result.differences.empty())
      return result;
    const KeyTexts theirs = keysOfModel(there), ours = keysOfModel(model),
                   theirsFollow = keysOfModel(withoutDerived(there)), oursFollow = keysOfModel(withoutDerived(model));
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto &[key, value] = ours[i];
      if (isDerived(key) && ours[i] == oursFollow[i] && theirs[i] == theirsFollow[i])
        continue;  // the key from which both follow is said
      const bool isContext = key == "block_size";
      if (isContext ? model.blockSize <= there.blockSize : value == theirs[i].second)
        continue;
      result.differences.push_back({ErrorCode::Contradiction,
                                    fmt::format("{}: {}, but model.{} = {}", file, reading.said[key], key, value),
                                    {},
                                    "",
                                    {fmt::format("write {} = {} in [model]{}, or take weights of another model", key,
                                                 theirs[i].second, isContext ? " or less" : "")}});
    }
  } catch (const UserError &error) {
    for (const Diagnostic &d : error.diagnostics)
      result.differences.push_back({d.code, d.message, {}, "", d.help});
  }
  return result;
}

std::optional<std::string> ggufPooling(const GgufFile &file) {
  const auto number = file.integer(file.text("general.architecture").value_or("") + "." + kPooling);
  for (const auto &[word, theirs] : kPoolings)
    if (number == theirs)
      return word;
  return std::nullopt;
}

void addPooling(GgufMetadata &metadata, const std::string &pooling) {
  for (const auto &[word, theirs] : kPoolings)
    if (pooling == word)
      metadata.keys.emplace_back(metadata.architecture + "." + kPooling, theirs);
}

GgufMetadata ggufMetadata(const ModelConfig &model, const std::string &name, GgmlType type) {
  const Architecture *chosen = nullptr;
  std::vector<std::string> fewest;
  std::string nearest;
  for (const Architecture &a : kArchitectures) {
    const auto held = keysOfModel(heldBy(a, model)), ours = keysOfModel(model);
    std::vector<std::string> differences;
    for (size_t i = 0; i < ours.size(); ++i)
      if (ours[i].second != held[i].second)
        differences.push_back(fmt::format("{} = {}, not {}", ours[i].first, held[i].second, ours[i].second));
    if (differences.empty()) {
      chosen = &a;
      break;
    }
    if (nearest.empty() || differences.size() < fewest.size()) {
      fewest = differences;
      nearest = a.name;
    }
  }
  if (!chosen)
    throw UserError(
        ErrorCode::NotBuiltYet,
        fmt::format("no architecture of GGUF that gptc writes holds this model: {} has {}", nearest,
                    fmt::join(fewest, "; ")),
        fmt::format("{} work today; a model that is to be exported takes their keys", quotedList(architectureNames())));
  const std::optional<uint32_t> kind = ggufFileType(type);
  GPTC_CHECK(kind, "files of {} are not written", ggmlFormat(type).name);
  const std::string prefix = std::string(chosen->name) + ".";
  GgufMetadata out{chosen->name, {}, {}};
  auto say = [&](const std::string &key, GgufValue value) { out.keys.emplace_back(key, std::move(value)); };
  say("general.architecture", std::string(chosen->name));
  say("general.type", std::string("model"));
  say("general.name", name);
  say("general.file_type", *kind);
  say(kGgmlBlocksKey, kGgmlBlocks);
  say(kGgufMadeBy, std::string(kGgufMaker));
  for (const Row &r : kRows)
    say(prefix + r.theirs, uint32_t(model.*r.member));
  say(prefix + kKeyHeads, uint32_t(model.nKvHead));
  say(prefix + epsilonOf(*chosen), float(model.normEps));
  say(prefix + kVocabSize, uint32_t(model.vocabSize));
  const auto head = uint32_t(model.headSize());
  if (chosen->headNorm || model.headSize() * model.nHead != model.nEmbd) {
    say(prefix + kKeyLength, head);
    say(prefix + kValueLength, head);
  }
  if (chosen->position != Position::rope)
    return out;
  say(prefix + kRotated, head);
  say(prefix + kTheta, float(model.ropeTheta));
  if (model.ropeScaling == RopeScaling::llama3) {
    out.tensors.emplace_back(kFactors, llama3Factors(model));
    say(kOwnFactor.theirs, float(model.ropeFactor));
    say(kOwnOriginal.theirs, uint32_t(model.ropeOriginal));
    say(kOwnLow.theirs, float(model.ropeLow));
    say(kOwnHigh.theirs, float(model.ropeHigh));
  }
  if (model.ropeScaling == RopeScaling::linear || model.ropeScaling == RopeScaling::yarn) {
    say(prefix + kScaling, std::string(nameOf(model.ropeScaling)));
    say(prefix + kFactor, float(model.ropeFactor));
  }
  if (model.ropeScaling == RopeScaling::yarn)
    say(prefix + kOriginal, uint32_t(model.ropeOriginal));
  return out;
}

}  // namespace gptc
