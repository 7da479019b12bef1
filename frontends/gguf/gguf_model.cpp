// 1. general.architecture selects a row of the table of architectures: the values of [model] that follow from it, and
//    whether it has more keys than those that all have.
// 2. The file's keys fill in the others. What [model] has no key for has one value that is built; others are refused.
// 3. Comparing is reading, and then comparing each key of [model]; writing is choosing the architecture which, with the
//    keys that it has, differs from the model in nothing.
#include "frontends/gguf/gguf_model.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

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
  bool grouped;  // fewer heads of keys and values than of queries
};
constexpr Architecture kArchitectures[] = {
    {"gpt2", Norm::layernorm, Activation::gelu_tanh, Position::learned, true, false, false},
    {"llama", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true},
    {"qwen2", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true},
    {"qwen3", Norm::rmsnorm, Activation::swiglu, Position::rope, false, false, true},
    {"bloom", Norm::layernorm, Activation::gelu_tanh, Position::alibi, true, true, false}};

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
                     *kRotated = "rope.dimension_count";

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
      {"pooling_type", {"0"}},
      {"logit_scale", {"1"}},
      {"residual_scale", {"1"}},
      {"embedding_scale", {"1"}},
      {"attn_logit_softcapping", {"0"}},
      {"final_logit_softcapping", {"0"}},
      {"rope.scaling.factor", {"1"}},
      {"rope.scaling.finetuned", {"false", "true"}},
      // Meta's own layout of q and k is what converted files have too, whatever this key of older files says.
      {"tensor_data_layout", {"\"Meta AI original pth\""}}};
  return all;
}

/// Keys of any architecture that describe the file or the tokenizer, and no computation.
bool isNeutral(llvm::StringRef key) {
  return key.starts_with("general.") || key.starts_with("tokenizer.") || key.starts_with("quantize.");
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
        else if constexpr (std::is_same_v<M, int64_t *> || std::is_same_v<M, double *> || std::is_same_v<M, bool *>)
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

/// The values of all keys of [model] that say what a model computes: key without "model.", text.
std::vector<std::pair<std::string, std::string>> keysOfModel(const ModelConfig &m) {
  Settings s;
  s.model = m;
  s.model.normEps = double(float(m.normEps));  // as exact as a file has it
  std::vector<std::pair<std::string, std::string>> all;
  for (const Setting &row : keysOf(s))
    if (row.section() == "model" && row.leaf() != "preset" && row.leaf() != "dropout" && row.leaf() != "init_from")
      all.emplace_back(row.leaf(), textOf(row.member));
  return all;
}

/// The shortest number that is this f32.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

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
    m.norm = a->norm;
    m.activation = a->activation;
    m.position = a->position;
    m.bias = a->bias;
    m.embeddingNorm = a->embeddingNorm;
    for (const auto &[key, value] : keysOfModel(m))
      said[key] = fmt::format("general.architecture = \"{}\" has {} = {}", name, key, value);
    for (const Row &r : kRows)
      m.*r.member = needed(r.theirs, r.ours);
    m.nKvHead = f.integer(prefix + kKeyHeads).value_or(m.nHead);
    say(kKeyHeads, "n_kv_head", fmt::format("{}", m.nKvHead));
    if (!a->grouped && m.nKvHead != m.nHead)
      notBuilt(shown(kKeyHeads), fmt::format("as many as {}", shown("attention.head_count")));
    epsilon(epsilonOf(*a));
    rotations(*a);
    tensors();
    onlyOneValue();
    if (problems.empty())
      ranges();
    return m;
  }

  std::vector<Diagnostic> problems;
  /// What the file says of a key of [model], as messages quote it.
  std::map<std::string, std::string> said;

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

  /// Sizes of heads, and how they are rotated.
  void rotations(const Architecture &a) {
    const int64_t head = m.nHead > 0 ? m.nEmbd / m.nHead : 0;
    for (const char *key : {"attention.key_length", "attention.value_length", kRotated}) {
      if (key == kRotated && a.position != Position::rope)
        continue;
      known.insert(key);
      if (const auto size = f.integer(prefix + key); size && *size != head)
        notBuilt(shown(key), fmt::format("{}embedding_length / {}attention.head_count = {}", prefix, prefix, head));
    }
    if (a.position != Position::rope)
      return;
    known.insert(kTheta);
    if (const auto theta = f.number(prefix + kTheta); theta && *theta != 1e4)
      notBuilt(shown(kTheta), "10000");
  }

  /// What tensors say: the vocabulary, a classifier of its own, and parts that [model] has no key for.
  void tensors() {
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
    m.tieEmbeddings = !f.find("output.weight");
    said["tie_embeddings"] = m.tieEmbeddings ? "no tensor output.weight" : "a tensor output.weight";
    const std::pair<const char *, const char *> parts[] = {
        {"blk.0.attn_q.bias", "a model without biases of queries, keys and values"},
        {"blk.0.attn_q_norm.weight", "a model without norms of queries and keys"},
        {"rope_freqs.weight", "rotations without factors of their own"}};
    if (!m.bias)
      for (const auto &[tensor, without] : parts)
        if (f.find(tensor))
          notBuilt(fmt::format("it has a tensor {}", tensor), without);
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
      if (!own.empty() && known.count(own))
        continue;
      if (only == onlyBuilt().end() || own.empty())
        add(ErrorCode::UnknownKey, fmt::format("unknown key {} = {}", key, f.shown(key)),
            "it may change what the model computes, and nothing in gptc knows it");
      else if (!only->second.count(f.shown(key)))
        notBuilt(fmt::format("{} = {}", key, f.shown(key)), *only->second.begin());
    }
  }

  /// That each value may stand in a model.toml, and that heads divide the width.
  void ranges() {
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
    if (problems.empty() && (m.nEmbd % m.nHead || m.nHead % m.nKvHead))
      add(ErrorCode::ShapeMismatch,
          fmt::format("{}, {} and {} do not divide each other", said["n_embd"], said["n_head"], said["n_kv_head"]),
          "heads of keys and values divide those of queries, and these the width");
  }

  const GgufFile &f;
  std::string prefix;
  ModelConfig m;
  std::set<std::string> known;
};

/// A model.toml with the keys whose values are not the defaults, and all sizes.
std::string tomlOf(const GgufFile &f, const ModelConfig &m, const std::string &weights) {
  std::set<std::string> formats;
  for (const GgufTensor &t : f.tensors())
    formats.insert(t.format->name);
  std::string text = fmt::format("# The model of a GGUF file: architecture {}, tensors of {}.\n[model]\n",
                                 f.text("general.architecture").value_or(""), fmt::join(formats, ", "));
  const auto usual = keysOfModel(ModelConfig());
  const auto own = keysOfModel(m);
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i].second != usual[i].second && !(own[i].first == "n_kv_head" && m.nKvHead == m.nHead))
      text += fmt::format("{} = {}\n", own[i].first,
                          own[i].first == "norm_eps" ? fmt::format("{}", m.normEps) : own[i].second);
  std::string quoted;
  for (const char c : weights)
    quoted += c == '"' || c == '\\' ? fmt::format("\\{}", c) : std::string(1, c);
  text +=
      fmt::format("init_from = \"gguf:{}\"\n\n[data]\ntrain = \"train.bin\"  # `gptc data prepare` makes it\n", quoted);
  return text;
}

/// What an architecture holds of a model: its own values, and those that its keys can say.
ModelConfig heldBy(const Architecture &a, const ModelConfig &m) {
  ModelConfig held;
  held.norm = a.norm;
  held.activation = a.activation;
  held.position = a.position;
  held.bias = a.bias;
  held.embeddingNorm = a.embeddingNorm;
  for (const Row &r : kRows)
    held.*r.member = m.*r.member;
  held.nKvHead = a.grouped ? m.nKvHead : m.nHead;
  held.normEps = m.normEps;
  held.vocabSize = m.vocabSize;
  held.tieEmbeddings = m.tieEmbeddings;
  return held;
}

}  // namespace

GgufImport importGguf(const std::string &file, const std::string &weights) {
  const GgufFile f(file);
  Reading reading(f);
  const ModelConfig m = reading.run();
  if (!reading.problems.empty())
    throw UserError(reading.problems);
  return {m, tomlOf(f, m, weights)};
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
    const auto theirs = keysOfModel(there), ours = keysOfModel(model);
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto &[key, value] = ours[i];
      const bool isContext = key == "block_size";
      if (isContext ? model.blockSize <= there.blockSize : value == theirs[i].second)
        continue;
      const std::string shown = key == "norm_eps" ? fmt::format("{}", model.normEps) : value;
      const std::string wanted = key == "norm_eps" ? fmt::format("{}", there.normEps) : theirs[i].second;
      result.differences.push_back({ErrorCode::Contradiction,
                                    fmt::format("{}: {}, but model.{} = {}", file, reading.said[key], key, shown),
                                    {},
                                    "",
                                    {fmt::format("write {} = {} in [model]{}, or take weights of another model", key,
                                                 wanted, isContext ? " or less" : "")}});
    }
  } catch (const UserError &error) {
    for (const Diagnostic &d : error.diagnostics)
      result.differences.push_back({d.code, d.message, {}, "", d.help});
  }
  return result;
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
  const std::pair<GgmlType, uint32_t> kinds[] = {
      {GgmlType::f32, 0}, {GgmlType::f16, 1}, {GgmlType::q8_0, 7}, {GgmlType::bf16, 32}};
  const auto *kind = llvm::find_if(kinds, [&](const auto &k) { return k.first == type; });
  GPTC_CHECK(kind != std::end(kinds), "files of {} are not written", ggmlFormat(type).name);
  const std::string prefix = std::string(chosen->name) + ".";
  GgufMetadata out{chosen->name, {}};
  auto say = [&](const std::string &key, GgufValue value) { out.keys.emplace_back(key, std::move(value)); };
  say("general.architecture", std::string(chosen->name));
  say("general.type", std::string("model"));
  say("general.name", name);
  say("general.file_type", kind->second);
  say("general.quantization_version", uint32_t(2));
  for (const Row &r : kRows)
    say(prefix + r.theirs, uint32_t(model.*r.member));
  say(prefix + kKeyHeads, uint32_t(model.nKvHead));
  say(prefix + epsilonOf(*chosen), float(model.normEps));
  say(prefix + kVocabSize, uint32_t(model.vocabSize));
  if (chosen->position == Position::rope) {
    say(prefix + kRotated, uint32_t(model.nEmbd / model.nHead));
    say(prefix + kTheta, 1e4F);
  }
  return out;
}

}  // namespace gptc
