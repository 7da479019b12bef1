// Sources: the configuration and modelling files of transformers 4.57 and 5.24 for each family, and the config.json
// files that are in use, which have keys of older versions.
#include "frontends/hf/family.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

#include <cmath>

namespace gptc::hf {

namespace {

// ---- translations ---------------------------------------------------------------------------------------------------

json readActivation(const json &name) {
  const std::pair<const char *, const char *> all[] = {{"gelu_new", "gelu_tanh"},
                                                       {"gelu_pytorch_tanh", "gelu_tanh"},
                                                       {"gelu_python_tanh", "gelu_tanh"},
                                                       {"gelu_fast", "gelu_tanh"},
                                                       {"gelu", "gelu"},
                                                       {"gelu_python", "gelu"},
                                                       {"relu", "relu"},
                                                       {"relu2", "relu2"},
                                                       {"silu", "silu"},
                                                       {"swish", "silu"}};
  for (const auto &[theirs, here] : all)
    if (name == theirs)
      return here;
  return nullptr;
}

json writeActivation(const json &ours) {
  return ours == "gelu_tanh"                                                     ? json("gelu_new")
         : ours == "gelu" || ours == "relu" || ours == "relu2" || ours == "silu" ? ours
                                                                                 : json();
}

/// Of a gated hidden layer, transformers names the activation of the gate.
json readGate(const json &name) {
  const json plain = readActivation(name);
  return plain == "silu"        ? json("swiglu")
         : plain == "gelu"      ? json("geglu")
         : plain == "gelu_tanh" ? json("geglu_tanh")
                                : json();
}

json writeGate(const json &ours) {
  return ours == "swiglu"       ? json("silu")
         : ours == "geglu"      ? json("gelu")
         : ours == "geglu_tanh" ? json("gelu_pytorch_tanh")
                                : json();
}

/// Scores are divided by the root of query_pre_attn_scalar.
json readScale(const json &theirs) {
  return theirs.is_number() && theirs > 0 ? json(1 / std::sqrt(theirs.get<double>())) : json();
}

/// An integer wherever one gives this scale, as transformers 5 takes nothing else.
json writeScale(const json &ours) {
  if (!ours.is_number() || ours <= 0)
    return nullptr;
  const double x = 1 / (ours.get<double>() * ours.get<double>()), whole = std::round(x);
  if (whole >= 1 && whole < 1e9 && isSame(1 / std::sqrt(whole), ours))
    return int64_t(whole);
  return x;
}

json writeCap(const json &ours) { return ours == 0.0 ? json() : ours; }

const Translation activation{readActivation, writeActivation}, gate{readGate, writeGate}, scale{readScale, writeScale},
    cap{nullptr, writeCap};

// ---- what follows from other keys -----------------------------------------------------------------------------------

int64_t get(const ModelValues &v, const char *key) {
  const auto it = v.find(key);
  return it != v.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
}

json headsOfQueries(const ModelValues &v) { return get(v, "n_head") > 0 ? json(get(v, "n_head")) : json(); }
json widthOfHead(const ModelValues &v) {
  const int64_t heads = get(v, "n_head"), width = get(v, "n_embd");
  return heads > 0 && width > 0 && width % heads == 0 ? json(width / heads) : json();
}
json fourWidths(const ModelValues &v) {
  const int64_t width = get(v, "n_embd");
  return width > 0 && width < (1 << 30) ? json(4 * width) : json();
}
json noCap(const ModelValues &) { return 0.0; }

// ---- rows that families share ---------------------------------------------------------------------------------------

Row sizes(const char *theirs, const char *ours, int64_t absent, std::vector<const char *> also = {}) {
  return {theirs, {ours}, absent, nullptr, nullptr, std::move(also)};
}
Row headDim(json absent = {}) { return {"head_dim", {"head_dim"}, std::move(absent), widthOfHead}; }
Row keyHeads(json absent = {}) { return {"num_key_value_heads", {"n_kv_head"}, std::move(absent), headsOfQueries}; }
Row attentionBias(bool absent) { return {"attention_bias", {"qkv_bias", "attention_bias"}, absent}; }
Row tied(bool absent) { return {"tie_word_embeddings", {"tie_embeddings"}, absent}; }

/// Without the rows on heads of keys and on biases.
std::vector<Row> llamaRows(int64_t vocab, int64_t width, int64_t ffn, int64_t layers, int64_t heads, double eps,
                           bool isTied, std::vector<Row> more) {
  std::vector<Row> rows = {
      sizes("vocab_size", "vocab_size", vocab),      sizes("hidden_size", "n_embd", width),
      sizes("intermediate_size", "ffn_dim", ffn),    sizes("num_hidden_layers", "n_layer", layers),
      sizes("num_attention_heads", "n_head", heads), {"hidden_act", {"activation"}, "silu", nullptr, &gate},
      {"rms_norm_eps", {"norm_eps"}, eps},           tied(isTied)};
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

json rootOfWidth(const ModelValues &v) {
  return get(v, "n_embd") > 0 ? json(std::sqrt(double(get(v, "n_embd")))) : json();
}

using Facts = std::vector<Fact>;

Facts llamaFacts(Facts more = {}) {
  Facts facts = {{"norm", "rmsnorm"}, {"position", "rope"}, {"norm_bias", false}};
  facts.insert(facts.end(), more.begin(), more.end());
  return facts;
}

Facts biased(Facts more) {
  for (const char *key : {"qkv_bias", "attention_bias", "mlp_bias", "norm_bias"})
    more.push_back({key, true});
  return more;
}

using Names = std::vector<std::pair<const char *, const char *>>;

/// Those of Llama and of what has been made of it.
Names llamaNames(Names more = {}) {
  Names names = {{"wte", "embed_tokens"},
                 {"ln_f", "norm"},
                 {"lm_head", "lm_head"},
                 {"h.*.attn.c_attn", "layers.*.self_attn.q_proj,layers.*.self_attn.k_proj,layers.*.self_attn.v_proj"},
                 {"h.*.attn.c_proj", "layers.*.self_attn.o_proj"},
                 {"h.*.attn.q_norm", "layers.*.self_attn.q_norm"},
                 {"h.*.attn.k_norm", "layers.*.self_attn.k_norm"},
                 {"h.*.mlp.c_gate", "layers.*.mlp.gate_proj"},
                 {"h.*.mlp.c_fc", "layers.*.mlp.up_proj"},
                 {"h.*.mlp.c_proj", "layers.*.mlp.down_proj"}};
  names.insert(names.end(), more.begin(), more.end());
  return names;
}
Names preNorms() {
  return {{"h.*.ln_1", "layers.*.input_layernorm"}, {"h.*.ln_2", "layers.*.post_attention_layernorm"}};
}

Tensors llamaTensors(Names more) { return {"model.", true, QkvLayout::split, llamaNames(std::move(more))}; }

// ---- the families ---------------------------------------------------------------------------------------------------

Family gpt2() {
  Names names;
  for (const char *same : {"wte", "wpe", "ln_f", "lm_head", "h.*.ln_1", "h.*.ln_2", "h.*.attn.c_attn",
                           "h.*.attn.c_proj", "h.*.mlp.c_fc", "h.*.mlp.c_proj"})
    names.emplace_back(same, same);
  return {.name = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .rows = {sizes("vocab_size", "vocab_size", 50257),
                   sizes("n_embd", "n_embd", 768, {"hidden_size"}),
                   sizes("n_layer", "n_layer", 12, {"num_hidden_layers"}),
                   sizes("n_head", "n_head", 12, {"num_attention_heads"}),
                   {"n_inner", {"ffn_dim"}, {}, fourWidths},
                   {"activation_function", {"activation"}, "gelu_new", nullptr, &activation},
                   {"layer_norm_epsilon", {"norm_eps"}, 1e-5},
                   tied(true)},
          .facts = biased({{"norm", "layernorm"}, {"position", "learned"}}),
          .positions = "n_positions",
          .defaultPositions = 1024,
          .tableOfPositions = true,
          .only = {{"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}},
          .neutral = {"reorder_and_upcast_attn", "n_ctx", "summary_activation", "summary_proj_to_labels",
                      "summary_type", "summary_use_proj", "n_special", "predict_special_tokens"},
          .dropouts = {"resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"},
          .tensors = {"transformer.", false, QkvLayout::whole, std::move(names)}};
}

Family llama() {
  return {.name = "llama",
          .architecture = "LlamaForCausalLM",
          .rows = llamaRows(32000, 4096, 11008, 32, 32, 1e-6, false,
                            {keyHeads(), headDim(), attentionBias(false), {"mlp_bias", {"mlp_bias"}, false}}),
          .facts = llamaFacts(),
          .positions = "max_position_embeddings",
          .defaultPositions = 2048,
          .rotations = Rotations{},
          .only = {{"rope_interleaved", false}},
          .neutral = {"is_llama_config"},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors(preNorms())};
}

Family mistral() {
  return {.name = "mistral",
          .architecture = "MistralForCausalLM",
          .rows = llamaRows(32000, 4096, 14336, 32, 32, 1e-6, false, {keyHeads(8), headDim()}),
          .facts = llamaFacts({{"qkv_bias", false}, {"attention_bias", false}, {"mlp_bias", false}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 131072,
          .rotations = Rotations{},
          .windows = Windows::all,
          .only = {{"attention_bias", false}, {"mlp_bias", false}},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors(preNorms())};
}

Family qwen2() {
  return {.name = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .rows = llamaRows(151936, 4096, 22016, 32, 32, 1e-6, false, {keyHeads(32), headDim()}),
          .facts = llamaFacts({{"qkv_bias", true}, {"attention_bias", false}, {"mlp_bias", false}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 32768,
          .rotations = Rotations{},
          .windows = Windows::late,
          .only = {{"use_mrope", false}},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors(preNorms())};
}

Family qwen3() {
  return {.name = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .rows =
              llamaRows(151936, 4096, 22016, 32, 32, 1e-6, false, {keyHeads(32), headDim(128), attentionBias(false)}),
          .facts = llamaFacts({{"mlp_bias", false}, {"qk_norm", "head"}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 32768,
          .rotations = Rotations{},
          .windows = Windows::late,
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors(preNorms())};
}

Family smollm3() {
  return {.name = "smollm3",
          .architecture = "SmolLM3ForCausalLM",
          .rows = llamaRows(128256, 2048, 11008, 36, 16, 1e-6, true,
                            {keyHeads(4), headDim(), attentionBias(false), {"mlp_bias", {"mlp_bias"}, false}}),
          .facts = llamaFacts(),
          .positions = "max_position_embeddings",
          .defaultPositions = 32768,
          .rotations = Rotations{.theta = 2e6},
          .windows = Windows::unrotated,
          .neutral = {"max_window_layers"},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors(preNorms())};
}

Family olmo2() {
  return {.name = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .rows = llamaRows(50304, 4096, 11008, 32, 32, 1e-5, false, {keyHeads(), headDim(), attentionBias(false)}),
          .facts = llamaFacts({{"mlp_bias", false}, {"qk_norm", "whole"}, {"norm_position", "output"}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 2048,
          .rotations = Rotations{},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors({{"h.*.ln_1_out", "layers.*.post_attention_layernorm"},
                                   {"h.*.ln_2_out", "layers.*.post_feedforward_layernorm"}})};
}

Family gptNeox() {
  return {.name = "gpt_neox",
          .architecture = "GPTNeoXForCausalLM",
          .rows = {sizes("vocab_size", "vocab_size", 50432),
                   sizes("hidden_size", "n_embd", 6144),
                   sizes("num_hidden_layers", "n_layer", 44),
                   sizes("num_attention_heads", "n_head", 64),
                   sizes("intermediate_size", "ffn_dim", 24576),
                   {"hidden_act", {"activation"}, "gelu", nullptr, &activation},
                   {"layer_norm_eps", {"norm_eps"}, 1e-5},
                   {"use_parallel_residual", {"parallel_residual"}, true},
                   attentionBias(true),
                   tied(false)},
          .facts = {{"norm", "layernorm"}, {"position", "rope"}, {"mlp_bias", true}, {"norm_bias", true}},
          .positions = "max_position_embeddings",
          .defaultPositions = 2048,
          .rotations = Rotations{.part = 0.25, .thetaToo = "rotary_emb_base", .partToo = "rotary_pct"},
          .dropouts = {"attention_dropout", "hidden_dropout", "classifier_dropout", "attention_probs_dropout_prob",
                       "hidden_dropout_prob"},
          .tensors = {"gpt_neox.",
                      true,
                      QkvLayout::perHead,
                      {{"wte", "embed_in"},
                       {"ln_f", "final_layer_norm"},
                       {"lm_head", "embed_out|lm_head"},
                       {"h.*.ln_1", "layers.*.input_layernorm"},
                       {"h.*.ln_2", "layers.*.post_attention_layernorm"},
                       {"h.*.attn.c_attn", "layers.*.attention.query_key_value"},
                       {"h.*.attn.c_proj", "layers.*.attention.dense"},
                       {"h.*.mlp.c_fc", "layers.*.mlp.dense_h_to_4h"},
                       {"h.*.mlp.c_proj", "layers.*.mlp.dense_4h_to_h"}}}};
}

Family bloom() {
  return {.name = "bloom",
          .architecture = "BloomForCausalLM",
          .rows = {sizes("vocab_size", "vocab_size", 250880),
                   sizes("hidden_size", "n_embd", 64, {"n_embed"}),
                   sizes("n_layer", "n_layer", 2, {"num_hidden_layers"}),
                   sizes("n_head", "n_head", 8, {"num_attention_heads"}),
                   {"layer_norm_epsilon", {"norm_eps"}, 1e-5},
                   tied(true)},
          .facts = biased({{"norm", "layernorm"},
                           {"position", "alibi"},
                           {"activation", "gelu_tanh"},
                           {"embedding_norm", true},
                           {"ffn_dim", {}, fourWidths}}),
          .positions = "",
          .defaultPositions = 2048,
          // Linear layers in slices, of which transformers leaves out the biases.
          .only = {{"apply_residual_connection_post_layernorm", false},
                   {"n_inner", {}},
                   {"slow_but_exact", false, "pretraining_tp"}},
          .neutral = {"seq_length", "offset_alibi", "masked_softmax_fusion", "attention_softmax_in_fp32",
                      "bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"},
          .dropouts = {"attention_dropout", "hidden_dropout"},
          .tensors = {"transformer.",
                      true,
                      QkvLayout::perHead,
                      {{"wte", "word_embeddings"},
                       {"word_embeddings_layernorm", "word_embeddings_layernorm"},
                       {"ln_f", "ln_f"},
                       {"lm_head", "lm_head"},
                       {"h.*.ln_1", "h.*.input_layernorm"},
                       {"h.*.ln_2", "h.*.post_attention_layernorm"},
                       {"h.*.attn.c_attn", "h.*.self_attention.query_key_value"},
                       {"h.*.attn.c_proj", "h.*.self_attention.dense"},
                       {"h.*.mlp.c_fc", "h.*.mlp.dense_h_to_4h"},
                       {"h.*.mlp.c_proj", "h.*.mlp.dense_4h_to_h"}}}};
}

Family phi() {
  return {
      .name = "phi",
      .architecture = "PhiForCausalLM",
      .rows = {sizes("vocab_size", "vocab_size", 51200),
               sizes("hidden_size", "n_embd", 2048),
               sizes("intermediate_size", "ffn_dim", 8192),
               sizes("num_hidden_layers", "n_layer", 24),
               sizes("num_attention_heads", "n_head", 32),
               keyHeads(),
               headDim(),
               {"hidden_act", {"activation"}, "gelu_new", nullptr, &activation},
               {"layer_norm_eps", {"norm_eps"}, 1e-5},
               tied(false)},
      .facts = biased({{"norm", "layernorm"},
                       {"position", "rope"},
                       {"parallel_residual", true},
                       {"shared_norm", true},
                       {"head_bias", true}}),
      .positions = "max_position_embeddings",
      .defaultPositions = 2048,
      .rotations = Rotations{.part = 0.5},
      .only = {{"qk_layernorm", false}},
      .dropouts = {"attention_dropout", "resid_pdrop", "embd_pdrop"},
      .tensors = {"model.",
                  true,
                  QkvLayout::split,
                  {{"wte", "embed_tokens"},
                   {"ln_f", "final_layernorm"},
                   {"lm_head", "lm_head"},
                   {"h.*.ln_1", "layers.*.input_layernorm"},
                   {"h.*.attn.c_attn", "layers.*.self_attn.q_proj,layers.*.self_attn.k_proj,layers.*.self_attn.v_proj"},
                   {"h.*.attn.c_proj", "layers.*.self_attn.dense"},
                   {"h.*.mlp.c_fc", "layers.*.mlp.fc1"},
                   {"h.*.mlp.c_proj", "layers.*.mlp.fc2"}}}};
}

Family gemma2() {
  return {.name = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .rows = {sizes("vocab_size", "vocab_size", 256000),
                   sizes("hidden_size", "n_embd", 2304),
                   sizes("intermediate_size", "ffn_dim", 9216),
                   sizes("num_hidden_layers", "n_layer", 26),
                   sizes("num_attention_heads", "n_head", 8),
                   sizes("num_key_value_heads", "n_kv_head", 4),
                   sizes("head_dim", "head_dim", 256),
                   // hidden_act stands in most files, too, and transformers does not read it.
                   {"hidden_activation", {"activation"}, "gelu_pytorch_tanh", nullptr, &gate, {"hidden_act"}},
                   {"rms_norm_eps", {"norm_eps"}, 1e-6},
                   tied(true),
                   attentionBias(false),
                   {"query_pre_attn_scalar", {"attention_scale"}, 256, nullptr, &scale},
                   {"attn_logit_softcapping", {"attention_softcap"}, 50.0, noCap, &cap},
                   {"final_logit_softcapping", {"logit_softcap"}, 30.0, noCap, &cap}},
          .facts = llamaFacts({{"mlp_bias", false},
                               {"norm_plus_one", true},
                               {"norm_position", "both"},
                               {"embedding_scale", {}, rootOfWidth}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 8192,
          .rotations = Rotations{},
          .windows = Windows::even,
          .only = {{"use_bidirectional_attention", false}},
          .neutral = {"cache_implementation"},
          .dropouts = {"attention_dropout"},
          .tensors = llamaTensors({{"h.*.ln_1", "layers.*.input_layernorm"},
                                   {"h.*.ln_1_out", "layers.*.post_attention_layernorm"},
                                   {"h.*.ln_2", "layers.*.pre_feedforward_layernorm"},
                                   {"h.*.ln_2_out", "layers.*.post_feedforward_layernorm"}})};
}

Family bert() {
  return {.name = "bert",
          .architecture = "BertForMaskedLM",
          .classifier = "BertForSequenceClassification",
          .rows = {sizes("vocab_size", "vocab_size", 30522),
                   sizes("hidden_size", "n_embd", 768),
                   sizes("num_hidden_layers", "n_layer", 12),
                   sizes("num_attention_heads", "n_head", 12),
                   sizes("intermediate_size", "ffn_dim", 3072),
                   {"hidden_act", {"activation"}, "gelu", nullptr, &activation},
                   sizes("type_vocab_size", "token_types", 2),
                   {"layer_norm_eps", {"norm_eps"}, 1e-12},
                   tied(true)},
          .facts = biased({{"norm", "layernorm"},
                           {"position", "learned"},
                           {"causal", false},
                           {"embedding_norm", true},
                           {"norm_position", "post"},
                           {"head_transform", true},
                           {"head_bias", true}}),
          .positions = "max_position_embeddings",
          .defaultPositions = 512,
          .tableOfPositions = true,
          .only = {{"position_embedding_type", "absolute"}, {"is_decoder", false}},
          .neutral = {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                      "pooler_size_per_head", "pooler_type"},
          .dropouts = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"},
          .tensors = {"bert.",
                      true,
                      QkvLayout::split,
                      {{"wte", "embeddings.word_embeddings"},
                       {"wpe", "embeddings.position_embeddings"},
                       {"wtt", "embeddings.token_type_embeddings"},
                       {"word_embeddings_layernorm", "embeddings.LayerNorm"},
                       {"h.*.attn.c_attn", "encoder.layer.*.attention.self.query,encoder.layer.*.attention.self.key,"
                                           "encoder.layer.*.attention.self.value"},
                       {"h.*.attn.c_proj", "encoder.layer.*.attention.output.dense"},
                       {"h.*.ln_1", "encoder.layer.*.attention.output.LayerNorm"},
                       {"h.*.mlp.c_fc", "encoder.layer.*.intermediate.dense"},
                       {"h.*.mlp.c_proj", "encoder.layer.*.output.dense"},
                       {"h.*.ln_2", "encoder.layer.*.output.LayerNorm"},
                       {"head.dense", "cls.predictions.transform.dense"},
                       {"head.norm", "cls.predictions.transform.LayerNorm"},
                       {"lm_head.weight", "cls.predictions.decoder.weight"},
                       {"lm_head.bias", "cls.predictions.bias|cls.predictions.decoder.bias"},
                       {"pooler.dense", "pooler.dense"},
                       {"classifier", "classifier"}},
                      true}};
}

Family modernbert() {
  return {.name = "modernbert",
          .architecture = "ModernBertForMaskedLM",
          .classifier = "ModernBertForSequenceClassification",
          .choosesVector = true,
          .rows = {sizes("vocab_size", "vocab_size", 50368),
                   sizes("hidden_size", "n_embd", 768),
                   sizes("num_hidden_layers", "n_layer", 22),
                   sizes("num_attention_heads", "n_head", 12),
                   sizes("intermediate_size", "ffn_dim", 1152),
                   {"norm_eps", {"norm_eps"}, 1e-5},
                   {"norm_bias", {"norm_bias"}, false},
                   attentionBias(false),
                   {"decoder_bias", {"head_bias"}, true},
                   tied(true)},
          .facts = {{"norm", "layernorm"},
                    {"position", "rope"},
                    {"causal", false},
                    {"activation", "geglu"},
                    {"mlp_bias", false},
                    {"embedding_norm", true},
                    {"first_norm", false},
                    {"head_transform", true}},
          .positions = "max_position_embeddings",
          .defaultPositions = 8192,
          .rotations = Rotations{.theta = 160000, .windowTheta = 10000},
          .windows = Windows::local,
          .only = {{"hidden_activation", "gelu"},
                   {"classifier_activation", "gelu"},
                   {"mlp_bias", false},
                   {"classifier_bias", false}},
          // layer_norm_eps and position_embedding_type stand in files, and transformers does not read them.
          .neutral = {"layer_norm_eps", "position_embedding_type", "classifier_pooling", "deterministic_flash_attn",
                      "initializer_cutoff_factor", "reference_compile", "repad_logits_with_grad", "sparse_prediction",
                      "sparse_pred_ignore_index"},
          .dropouts = {"attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"},
          .tensors = {"model.",
                      true,
                      QkvLayout::whole,
                      {{"wte", "embeddings.tok_embeddings"},
                       {"word_embeddings_layernorm", "embeddings.norm"},
                       {"h.*.ln_1", "layers.*.attn_norm"},
                       {"h.*.attn.c_attn", "layers.*.attn.Wqkv"},
                       {"h.*.attn.c_proj", "layers.*.attn.Wo"},
                       {"h.*.ln_2", "layers.*.mlp_norm"},
                       {"h.*.mlp.c_gate", "layers.*.mlp.Wi"},  // its first half is activated
                       {"h.*.mlp.c_fc", "layers.*.mlp.Wi"},
                       {"h.*.mlp.c_proj", "layers.*.mlp.Wo"},
                       {"ln_f", "final_norm"},
                       {"head.dense", "head.dense"},
                       {"head.norm", "head.norm"},
                       {"lm_head", "decoder"},
                       {"classifier", "classifier"}}}};
}

}  // namespace

const std::vector<Family> &families() {
  static const std::vector<Family> all = {gpt2(),    llama(), mistral(), qwen2(),  qwen3(), smollm3(),   olmo2(),
                                          gptNeox(), bloom(), phi(),     gemma2(), bert(),  modernbert()};
  return all;
}

const Family *findFamily(llvm::StringRef name) {
  for (const Family &f : families())
    if (name == f.name)
      return &f;
  return nullptr;
}

std::string familyNames() {
  std::vector<std::string> names;
  for (const Family &f : families())
    names.push_back(f.name);
  return quotedList(names);
}

const std::vector<Only> &onlyInAll() {
  static const std::vector<Only> all = {{"is_encoder_decoder", false},
                                        {"cross_attention_hidden_size", {}},
                                        {"pruned_heads", json::object()},
                                        {"add_cross_attention", false}};
  return all;
}

bool isNeutral(llvm::StringRef key) {
  static const llvm::StringSet<> all = {
      // the file
      "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
      "_commit_hash", "tokenizer_class", "finetuning_task", "task_specific_params", "prefix", "transformers.js_config",
      // special tokens
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
      "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
      // running: what is kept, split or returned, and in which order the same is computed
      "use_cache", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "return_dict",
      "output_hidden_states", "output_attentions", "output_past", "torchscript", "use_bfloat16",
      "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp", "is_decoder", "tie_encoder_decoder",
      "tf_legacy_loss", "keys_to_ignore_at_inference", "max_sequence_length",
      // initial values
      "initializer_range",
      // use of logits
      "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
      "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
      "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
      "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
      "begin_suppress_tokens",
      // heads for other tasks
      "problem_type", "num_labels", "_num_labels", "id2label", "label2id", "sentence_transformers",
      "sbert_ce_default_activation_function",
      // dropout rates of other families: evaluation ignores all
      "dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "hidden_dropout", "classifier_dropout",
      "summary_first_dropout", "summary_last_dropout"};
  return all.contains(key);
}

}  // namespace gptc::hf
