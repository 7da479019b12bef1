#include "frontends/hf/values.h"

#include "ir/settings/model_keys.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc::hf {

namespace {

bool isKey(const Setting &s) { return saysWhatIsComputed(s) && s.leaf() != "bias"; }

/// The value of a member; null if it is open.
json jsonOf(const Member &member) {
  if (auto *i = std::get_if<int64_t *>(&member))
    return **i;
  if (auto *x = std::get_if<double *>(&member))
    return **x;
  if (auto *b = std::get_if<bool *>(&member))
    return **b;
  if (auto *list = std::get_if<std::vector<int64_t> *>(&member))
    return **list;
  if (auto *b = std::get_if<std::optional<bool> *>(&member))
    return **b ? json(***b) : json();
  return std::get<WordMember>(member).word();
}

/// The key's value if it is an integer, else 0.
int64_t integer(const ModelValues &v, llvm::StringRef key) {
  const auto it = v.find(std::string_view(key));
  return it != v.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
}

double number(const ModelValues &v, llvm::StringRef key) {
  const auto it = v.find(std::string_view(key));
  return it != v.end() && it->second.is_number() ? it->second.get<double>() : 0;
}

const ModelValues &defaults() {
  static const ModelValues all = writtenValues(ModelConfig());
  return all;
}

bool fitsInt64(const json &value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(std::numeric_limits<int64_t>::max()));
}

using Refused = std::optional<Refusal>;

/// Checks a value by its type and assigns it to its member.
struct Assignment {
  const Setting &s;
  const json &value;

  static Refused wrongType(const char *wanted) { return Refusal{ErrorCode::WrongType, wanted}; }
  static Refused outOfRange(std::string wanted) { return Refusal{ErrorCode::OutOfRange, std::move(wanted)}; }
  template <typename T> Refused take(T x) const {
    *std::get<T *>(s.member) = std::move(x);
    return std::nullopt;
  }
  Refused operator()(const values::Integer &t) const {
    if (!value.is_number_integer())
      return wrongType("must be an integer");
    if (!fitsInt64(value) || value.get<int64_t>() < t.least || value.get<int64_t>() > t.most)
      return outOfRange(fmt::format("must be {} to {}", t.least, t.most));
    return take(value.get<int64_t>());
  }
  Refused operator()(const values::Number &t) const {
    if (!value.is_number())
      return wrongType("must be a number");
    if (!t.holds(value.get<double>()))
      return outOfRange(fmt::format("must be {} {} and {} {}", t.least.open ? "above" : "at least", t.least.value,
                                    t.most.open ? "below" : "at most", t.most.value));
    return take(value.get<double>());
  }
  Refused operator()(const values::Boolean &) const {
    if (!value.is_boolean())
      return wrongType("must be true or false");
    if (auto *optional = std::get_if<std::optional<bool> *>(&s.member))
      return **optional = value.get<bool>(), std::nullopt;
    return take(value.get<bool>());
  }
  Refused operator()(const values::Choice &t) const {
    if (!value.is_string())
      return wrongType("must be a string");
    if (!llvm::is_contained(t.built, value.get<std::string>()))
      return outOfRange(fmt::format("must be one of {}", quotedList(t.built)));
    WordMember(std::get<WordMember>(s.member)).set(value.get<std::string>());
    return std::nullopt;
  }
  Refused operator()(const values::Integers &t) const {
    if (!value.is_array() || !llvm::all_of(value, fitsInt64))
      return wrongType("must be a list of integers");
    const auto list = value.get<std::vector<int64_t>>();
    if (llvm::any_of(list, [&](int64_t n) { return n < t.least || n > t.most; }))
      return outOfRange(fmt::format("must hold {} to {}", t.least, t.most));
    return take(list);
  }
  template <typename T> Refused operator()(const T &) const { GPTC_UNREACHABLE("{} is no key of a model", s.key); }
};

}  // namespace

const std::vector<std::string> &modelKeys() {
  static const std::vector<std::string> all = [] {
    Settings s;
    std::vector<std::string> keys;
    for (const Setting &row : keysOf(s))
      if (isKey(row))
        keys.push_back(row.leaf());
    return keys;
  }();
  return all;
}

ModelValues writtenValues(const ModelConfig &m) {
  Settings s;
  s.model = m;
  ModelValues v;
  for (const Setting &row : keysOf(s))
    if (isKey(row) || row.key == "model.bias")
      v[row.leaf()] = jsonOf(row.member);
  return v;
}

ModelValues valuesOf(const ModelConfig &m) {
  ModelValues v = writtenValues(m);
  v.erase("bias");
  v["n_kv_head"] = m.nKvHead ? m.nKvHead : m.nHead;
  v["head_dim"] = m.headSize();
  v["rotary_dim"] = m.rotated();
  v["qkv_bias"] = m.biased(m.qkvBias);
  v["attention_bias"] = m.biased(m.attentionBias);
  v["mlp_bias"] = m.biased(m.mlpBias);
  v["norm_bias"] = m.normBiased();
  settle(v);
  return v;
}

void addPlainValues(ModelValues &v) {
  // Some sizes follow from others, and these keys have no plain value at all.
  for (const auto &[key, value] : defaults())
    if (!llvm::is_contained({"bias", "n_layer", "n_head", "n_embd", "n_kv_head", "head_dim", "rotary_dim", "ffn_dim",
                             "vocab_size", "block_size", "norm", "norm_eps", "activation", "position", "tie_embeddings",
                             "qkv_bias", "attention_bias", "mlp_bias", "norm_bias"},
                            llvm::StringRef(key)))
      v.try_emplace(key, value);
  const int64_t heads = integer(v, "n_head"), width = integer(v, "n_embd");
  if (heads > 0) {
    v.try_emplace("n_kv_head", heads);
    if (width > 0 && width % heads == 0)
      v.try_emplace("head_dim", width / heads);
  }
  if (v.count("head_dim"))
    v.try_emplace("rotary_dim", v.at("head_dim"));
}

void settle(ModelValues &v) {
  auto plain = [&](std::initializer_list<const char *> keys) {
    for (const char *key : keys)
      v[key] = defaults().at(key);
  };
  auto is = [&](const char *key, const char *word) { return v.count(key) && v.at(key) == word; };
  if (!is("position", "rope")) {
    plain({"rope_theta", "rope_scaling", "layers_without_rope", "window_rope_theta"});
    v["rotary_dim"] = v["head_dim"];
  }
  if (is("rope_scaling", "linear") && number(v, "rope_factor") == 1)
    v["rope_scaling"] = "none";
  if (is("rope_scaling", "none"))
    plain({"rope_factor"});
  if (!is("rope_scaling", "llama3"))
    plain({"rope_low_freq_factor", "rope_high_freq_factor"});
  if (is("rope_scaling", "none") || is("rope_scaling", "linear"))
    plain({"rope_original_block_size"});
  if (!is("rope_scaling", "yarn"))
    plain({"rope_beta_fast", "rope_beta_slow", "rope_truncate", "rope_attention_factor"});
  else if (isSame(v["rope_attention_factor"], 0.1 * std::log(std::max(1.0, number(v, "rope_factor"))) + 1))
    plain({"rope_attention_factor"});

  const int64_t layers = integer(v, "n_layer"), window = integer(v, "window");
  for (const char *key : {"layers_without_rope", "layers_without_window"})
    if (v.count(key) && v[key].is_array()) {
      std::vector<json> list = v[key];
      llvm::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
      v[key] = list;
    }
  // A window that hides nothing may still tell which layers rotate otherwise.
  if (number(v, "window_rope_theta") == number(v, "rope_theta"))
    plain({"window_rope_theta"});
  const bool rotates = number(v, "window_rope_theta") != 0,
             hides = window != 0 && !(v.count("block_size") && window >= integer(v, "block_size"));
  if ((!hides && !(rotates && window)) || (layers > 0 && int64_t(v["layers_without_window"].size()) == layers))
    plain({"window", "layers_without_window", "window_rope_theta"});
  else if (!hides)
    v["window"] = v["block_size"];  // all such windows are the same
  if (!(is("norm_position", "pre") || is("norm_position", "both")))
    plain({"first_norm"});

  if (const int64_t head = integer(v, "head_dim");
      head > 0 && isSame(v["attention_scale"], 1 / std::sqrt(double(head))))
    plain({"attention_scale"});
  if (is("norm", "rmsnorm"))
    v["norm_bias"] = false;
}

bool isSame(const json &a, const json &b) {
  if (a.is_number_float() && b.is_number_integer())
    return false;
  return a == b || (a.is_number_float() && b.is_number_float() && float(a.get<double>()) == float(b.get<double>()));
}

std::optional<Refusal> assign(ModelConfig &m, llvm::StringRef key, const json &value) {
  Settings s;
  s.model = m;
  for (const Setting &row : keysOf(s))
    if (isKey(row) && key == row.leaf()) {
      const Refused refusal = std::visit(Assignment{row, value}, row.type);
      if (!refusal)
        m = s.model;
      return refusal;
    }
  GPTC_UNREACHABLE("[model] has no {}", key.str());
}

std::string tomlOf(const json &value) {
  if (value.is_array()) {
    std::string list;
    for (const json &item : value)
      list += (list.empty() ? "" : ", ") + tomlOf(item);
    return "[" + list + "]";
  }
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

}  // namespace gptc::hf
