// 1. A family fixes the values of some keys of [model] and holds any value of others; every key that its table does not
//    name must have its default.
// 2. The family with the fewest differing keys is the nearest; with none, it holds the model.
// 3. Its config.json says explicitly what transformers would otherwise fill in, such as GPT-2's end of text, which
//    another vocabulary may not have.
#include "frontends/hf_families.h"

#include "frontends/own_config.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"

#include <functional>
#include <map>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct Family {
  const char *name;
  /// Keys with the values that the family holds; none: any value.
  std::map<std::string, std::vector<json>> holds;
  bool sharesKeyHeads;  // n_kv_head may differ from n_head
  std::function<void(const ModelConfig &, json &)> write;
};

/// The activation as transformers names it; of gated ones, that of the gate.
const char *activationOf(const ModelConfig &m) {
  switch (m.activation) {
  case Activation::gelu_tanh:
    return "gelu_new";
  case Activation::gelu:
  case Activation::geglu:
    return "gelu";
  case Activation::silu:
  case Activation::swiglu:
    return "silu";
  case Activation::relu:
    return "relu";
  case Activation::relu2:
    return "relu2";
  }
  return "";
}

void writeGpt2(const ModelConfig &m, json &c) {
  c["architectures"] = json::array({"GPT2LMHeadModel"});
  c["vocab_size"] = m.vocabSize;
  c["n_positions"] = m.blockSize;
  c["n_ctx"] = m.blockSize;
  c["n_embd"] = m.nEmbd;
  c["n_layer"] = m.nLayer;
  c["n_head"] = m.nHead;
  c["n_inner"] = m.ffnDim;
  c["activation_function"] = activationOf(m);
  c["layer_norm_epsilon"] = m.normEps;
  c["scale_attn_weights"] = true;
  for (const char *rate : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
    c[rate] = m.dropout;
}

void writeLlama(const ModelConfig &m, json &c) {
  constexpr double theta = 10000;
  c["architectures"] = json::array({"LlamaForCausalLM"});
  c["vocab_size"] = m.vocabSize;
  c["max_position_embeddings"] = m.blockSize;
  c["hidden_size"] = m.nEmbd;
  c["intermediate_size"] = m.ffnDim;
  c["num_hidden_layers"] = m.nLayer;
  c["num_attention_heads"] = m.nHead;
  c["num_key_value_heads"] = m.nKvHead;
  c["head_dim"] = m.nEmbd / m.nHead;
  c["hidden_act"] = activationOf(m);
  c["rms_norm_eps"] = m.normEps;
  c["attention_bias"] = false;
  c["mlp_bias"] = false;
  c["attention_dropout"] = m.dropout;
  // transformers 4 reads the first two, transformers 5 the third.
  c["rope_theta"] = theta;
  c["rope_scaling"] = nullptr;
  c["rope_parameters"] = {{"rope_theta", theta}, {"rope_type", "default"}};
}

const std::vector<Family> &families() {
  static const std::vector<Family> all = {{.name = "gpt2",
                                           .holds = {{"n_layer", {}},
                                                     {"n_head", {}},
                                                     {"n_embd", {}},
                                                     {"ffn_dim", {}},
                                                     {"vocab_size", {}},
                                                     {"block_size", {}},
                                                     {"norm_eps", {}},
                                                     {"tie_embeddings", {}},
                                                     {"norm", {"layernorm"}},
                                                     {"position", {"learned"}},
                                                     {"bias", {true}},
                                                     {"activation", {"gelu_tanh", "gelu", "relu", "relu2", "silu"}}},
                                           .sharesKeyHeads = false,
                                           .write = writeGpt2},
                                          {.name = "llama",
                                           .holds = {{"n_layer", {}},
                                                     {"n_head", {}},
                                                     {"n_embd", {}},
                                                     {"ffn_dim", {}},
                                                     {"vocab_size", {}},
                                                     {"block_size", {}},
                                                     {"norm_eps", {}},
                                                     {"tie_embeddings", {}},
                                                     {"norm", {"rmsnorm"}},
                                                     {"position", {"rope"}},
                                                     {"bias", {false}},
                                                     {"activation", {"swiglu", "geglu"}}},
                                           .sharesKeyHeads = true,
                                           .write = writeLlama}};
  return all;
}

std::vector<std::string> differencesFrom(const Family &f, const ModelConfig &m) {
  std::vector<std::string> keys;
  const json values = modelValues(m), absent = modelValues(ModelConfig());
  for (const auto &[key, value] : values.items()) {
    const auto held = f.holds.find(key);
    const bool fits = key == "n_kv_head"      ? f.sharesKeyHeads || m.nKvHead == m.nHead
                      : held == f.holds.end() ? value == absent.at(key)
                                              : held->second.empty() || llvm::is_contained(held->second, value);
    if (!fits)
      keys.push_back(key);
  }
  return keys;
}

}  // namespace

HfDescription describeForHf(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens) {
  HfDescription d;
  const Family *family = nullptr;
  for (const Family &f : families()) {
    std::vector<std::string> keys = differencesFrom(f, model);
    if (family && keys.size() >= d.differing.size())
      continue;
    family = &f;
    d.differing = std::move(keys);
  }
  if (!d.differing.empty()) {
    d.config = ownConfig(model, dtype, tokens, d.differing);
    return d;
  }
  d.family = family->name;
  json c;
  c["model_type"] = d.family;
  family->write(model, c);
  c["tie_word_embeddings"] = model.tieEmbeddings;
  writeTokens(tokens, c);
  c["torch_dtype"] = dtype;
  c["dtype"] = dtype;
  d.config = c.dump(2) + "\n";
  return d;
}

}  // namespace gptc
