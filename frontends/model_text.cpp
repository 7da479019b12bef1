#include "frontends/model_text.h"

#include "frontends/hf/values.h"
#include "frontends/toml_config.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

constexpr std::pair<const char *, const char *> comments[] = {
    {"n_embd", "the width"},
    {"block_size", "the context, in tokens; a shorter one works, too"},
    {"n_kv_head", "heads of keys and values"},
    {"window", "tokens that a token sees at most"},
    {"tie_embeddings", "whether the classifier is the embedding table"},
};

/// Whether it has the value that it would have if it were not written.
bool isDefault(const ModelConfig &m, const std::string &key, const hf::json &value, const hf::json &usual) {
  if (llvm::is_contained({"n_layer", "n_head", "n_embd", "vocab_size", "block_size"}, key))
    return false;
  if (key == "n_kv_head")
    return !m.nKvHead || m.nKvHead == m.nHead;
  if (key == "head_dim")
    return !m.headDim || m.headDim * m.nHead == m.nEmbd;
  if (key == "rotary_dim")
    return m.rotated() == m.headSize();
  if (key == "ffn_dim")
    return !m.ffnDim || m.ffnDim == defaultFfnDim(m);
  if (llvm::is_contained({"qkv_bias", "attention_bias", "mlp_bias"}, key))
    return value == m.bias;
  if (key == "norm_bias")
    return value == (m.bias && m.norm == Norm::layernorm);
  return value == usual;
}

}  // namespace

std::string modelText(const ModelConfig &model, int64_t context) {
  const hf::ModelValues values = hf::writtenValues(model), usual = hf::writtenValues(ModelConfig());
  std::string text;
  Settings s;
  for (const Setting &row : keysOf(s)) {
    const auto it = values.find(row.leaf());
    if (row.section() != "model" || it == values.end() || it->second.is_null() ||
        isDefault(model, row.leaf(), it->second, usual.find(row.leaf())->second))
      continue;
    const std::string line = fmt::format("{} = {}", row.leaf(), hf::tomlOf(it->second));
    const auto *found = llvm::find_if(comments, [&](const auto &c) { return row.leaf() == c.first; });
    std::string comment = found == std::end(comments) ? "" : found->second;
    if (row.leaf() == "block_size" && context > model.blockSize)
      comment = fmt::format("the longest context that gptc takes, in tokens; that of the weights is {}", context);
    text += comment.empty() ? line + "\n" : fmt::format("{:<31} # {}\n", line, comment);
  }
  return text;
}

std::string tomlString(const std::string &text) {
  std::string quoted = "\"";
  for (const char c : text)
    quoted += c == '"' || c == '\\'             ? std::string("\\") + c
              : uint8_t(c) < ' ' || c == '\x7f' ? fmt::format("\\u{:04x}", int(uint8_t(c)))
                                                : std::string(1, c);
  return quoted + "\"";
}

}  // namespace gptc
