// The keys of [model] that determine what is computed, with their values, in a form in which equal models are equal.
#pragma once

#include "ir/settings/settings.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include "llvm/ADT/StringRef.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc::hf {

using json = nlohmann::json;

/// Key of [model], without "model." -> value: numbers, words, booleans, lists of numbers. All of modelKeys().
using ModelValues = std::map<std::string, json, std::less<>>;

/// The keys, in the order of the table of settings: all that say what is computed (ir/settings/model_keys.h) but bias,
/// for which qkv_bias, attention_bias, mlp_bias and norm_bias stand.
const std::vector<std::string> &modelKeys();

/// The values of a model, settled.
ModelValues valuesOf(const ModelConfig &m);
/// The values of its members as they are, 0 or null for what follows from others; with `bias`.
ModelValues writtenValues(const ModelConfig &m);

/// What the keys that other programs' models have brought stand for without them: n_kv_head = n_head, no windows, and
/// so on, given n_head and n_embd if `v` has them. A value that `v` has stays.
void addPlainValues(ModelValues &v);

/// Gives keys that have no effect in this model their plain values, and others one form: no window that is as long as
/// the context, no list of layers of it then, and the scale of attention as 0 if it is 1/sqrt(head_dim).
void settle(ModelValues &v);

/// Whether two values of a key are the same for what is computed in f32. A key whose value `b` is an integer takes no
/// other number.
bool isSame(const json &a, const json &b);

/// Why a value of a key is refused: "must be an integer" (WrongType), "must be 1 to 1000" (OutOfRange).
struct Refusal {
  ErrorCode code;
  std::string why;
};
/// Assigns a value to its member, unless the value is refused.
std::optional<Refusal> assign(ModelConfig &m, llvm::StringRef key, const json &value);

/// As it stands in a model file: `[3, 7]`, `"rope"`, `1e-05`.
std::string tomlOf(const json &value);

}  // namespace gptc::hf
