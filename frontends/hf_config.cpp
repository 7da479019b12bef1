// 1. model_type selects the family, a table of its keys: the equivalent key of [model], the meaning of an absent key
//    (transformers' default for the family), and the translation of values.
// 2. For a key that [model] cannot express only one value is built; all others are refused.
// 3. Rotations have several names and places in different versions; all that are present must agree.
// 4. Any other key must be in the list of keys that cannot change a logit, or be a dropout rate.
#include "frontends/hf_config.h"

#include "frontends/own_config.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <filesystem>
#include <set>

namespace gptc {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

/// The value of a key of [model]; null for a key outside these tables.
json ours(const ModelConfig &m, llvm::StringRef key) {
  const std::pair<const char *, json> all[] = {{"n_layer", m.nLayer},
                                               {"n_head", m.nHead},
                                               {"n_kv_head", m.nKvHead},
                                               {"n_embd", m.nEmbd},
                                               {"ffn_dim", m.ffnDim},
                                               {"vocab_size", m.vocabSize},
                                               {"block_size", m.blockSize},
                                               {"norm", nameOf(m.norm)},
                                               {"norm_eps", m.normEps},
                                               {"activation", nameOf(m.activation)},
                                               {"position", nameOf(m.position)},
                                               {"causal", m.causal},
                                               {"bias", m.bias},
                                               {"tie_embeddings", m.tieEmbeddings},
                                               {"embedding_norm", m.embeddingNorm}};
  for (const auto &[name, value] : all)
    if (key == name)
      return value;
  GPTC_UNREACHABLE("[model] has no {}", key.str());
}

/// Translates a value of config.json to [model]; null if [model] cannot express it.
using Translation = json (*)(const json &);

json same(const json &value) { return value; }

json activation(const json &name) {
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

json gatedActivation(const json &name) {
  const json plain = activation(name);
  return plain == "silu" ? json("swiglu") : plain == "gelu" ? json("geglu") : json();
}

/// Looks up the value of a key of config.json.
using Lookup = llvm::function_ref<json(const char *key)>;

struct Row {
  const char *theirs;
  const char *ours;                   // equivalent key of [model]; "": none, and only the meaning of `absent` is built
  json absent;                        // meaning of an absent or null key
  json (*derived)(Lookup) = nullptr;  // computes it from other keys, if it follows from them
  Translation translate = same;
};

json headsOfQueries(Lookup get) { return get("num_attention_heads"); }

json widthOfHead(Lookup get) {
  const json width = get("hidden_size"), heads = get("num_attention_heads");
  return width.is_number_integer() && heads.is_number_integer() && heads > 0
             ? json(width.get<int64_t>() / heads.get<int64_t>())
             : json();
}

json fourWidths(Lookup get) {
  const json width = get("n_embd");
  return width.is_number_integer() && width > 0 && width < (1 << 30) ? json(4 * width.get<int64_t>()) : json();
}

struct Family {
  const char *name;
  std::vector<Row> rows;
  /// Values that follow from the family alone.
  std::vector<std::pair<const char *, json>> facts;
  const char *positions;  // key for the number of positions
  int64_t defaultPositions;
  bool tableOfPositions;  // positions are a table, which must have exactly block_size rows
  json theta;             // base of the rotations; null: none
  json window;            // window of attention; null: none
};

Family llamaLike(const char *name, int64_t ffn, Row keyHeads, int64_t positions, json window) {
  return {.name = name,
          .rows = {{"vocab_size", "vocab_size", 32000},
                   {"hidden_size", "n_embd", 4096},
                   {"intermediate_size", "ffn_dim", ffn},
                   {"num_hidden_layers", "n_layer", 32},
                   {"num_attention_heads", "n_head", 32},
                   std::move(keyHeads),
                   {"head_dim", "", {}, widthOfHead},
                   {"hidden_act", "activation", "silu", nullptr, gatedActivation},
                   {"rms_norm_eps", "norm_eps", 1e-6},
                   {"tie_word_embeddings", "tie_embeddings", false},
                   {"attention_bias", "", false},
                   {"mlp_bias", "", false}},
          .facts =
              {{"norm", "rmsnorm"}, {"position", "rope"}, {"bias", false}, {"embedding_norm", false}, {"causal", true}},
          .positions = "max_position_embeddings",
          .defaultPositions = positions,
          .tableOfPositions = false,
          .theta = 1e4,
          .window = std::move(window)};
}

const std::vector<Family> &families() {
  static const std::vector<Family> all = {
      {.name = "gpt2",
       .rows = {{"vocab_size", "vocab_size", 50257},
                {"n_embd", "n_embd", 768},
                {"n_layer", "n_layer", 12},
                {"n_head", "n_head", 12},
                {"n_inner", "ffn_dim", {}, fourWidths},
                {"activation_function", "activation", "gelu_new", nullptr, activation},
                {"layer_norm_epsilon", "norm_eps", 1e-5},
                {"tie_word_embeddings", "tie_embeddings", true},
                {"scale_attn_weights", "", true},
                {"scale_attn_by_inverse_layer_idx", "", false},
                {"add_cross_attention", "", false}},
       .facts = {{"norm", "layernorm"},
                 {"position", "learned"},
                 {"bias", true},
                 {"embedding_norm", false},
                 {"causal", true}},
       .positions = "n_positions",
       .defaultPositions = 1024,
       .tableOfPositions = true,
       .theta = {},
       .window = {}},
      llamaLike("llama", 11008, {"num_key_value_heads", "n_kv_head", {}, headsOfQueries}, 2048, {}),
      llamaLike("mistral", 14336, {"num_key_value_heads", "n_kv_head", 8}, 131072, 4096)};
  return all;
}

/// Keys of any family for which only one value is built.
const std::vector<Row> &commonRows() {
  static const std::vector<Row> all = {{"is_encoder_decoder", "", false},
                                       {"cross_attention_hidden_size", "", {}},
                                       {"pruned_heads", "", json::object()},
                                       {"quantization_config", "", {}},
                                       {"partial_rotary_factor", "", 1.0}};
  return all;
}

/// Keys that cannot change a logit: about the file, running or training the model, the use of logits, or heads other
/// than the classifier.
const std::set<std::string> &neutral() {
  static const std::set<std::string> all = {
      // the file
      "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
      "_commit_hash", "tokenizer_class", "finetuning_task", "task_specific_params", "prefix",
      // special tokens
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
      "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
      // running: what is kept, split or returned, and in which order the same is computed
      "use_cache", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "return_dict",
      "output_hidden_states", "output_attentions", "output_past", "torchscript", "use_bfloat16",
      "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp", "reorder_and_upcast_attn", "is_decoder",
      "tie_encoder_decoder", "tf_legacy_loss", "keys_to_ignore_at_inference", "max_sequence_length", "n_ctx",
      // initial values
      "initializer_range",
      // use of logits
      "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
      "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
      "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
      "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
      "begin_suppress_tokens",
      // heads for other tasks
      "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj", "problem_type", "num_labels",
      "_num_labels", "id2label", "label2id", "n_special", "predict_special_tokens"};
  return all;
}

/// Dropout rates, which evaluation ignores; model.dropout gives the training rate.
const std::set<std::string> &dropoutRates() {
  static const std::set<std::string> all = {"attn_pdrop",        "embd_pdrop",         "resid_pdrop",
                                            "attention_dropout", "hidden_dropout",     "summary_first_dropout",
                                            "dropout",           "classifier_dropout", "summary_last_dropout"};
  return all;
}

std::string shown(const json &value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

class Comparison {
public:
  Comparison(const std::string &file, const json &theirs, const ModelConfig &model, const Family &family)
      : file(file), theirs(theirs), m(model), family(family) {}

  std::vector<Diagnostic> run() {
    for (const auto &[key, value] : family.facts)
      if (ours(m, key) != value)
        differ(fmt::format("model_type = \"{}\" has {} = {}", family.name, key, shown(value)), key, value);
    for (const Row &r : family.rows)
      compare(r);
    if (llvm::none_of(family.rows, [](const Row &r) { return r.ours == llvm::StringRef("n_kv_head"); }) &&
        m.nKvHead != m.nHead)
      differ(fmt::format("model_type = \"{}\" has as many heads of keys as of queries", family.name), "n_kv_head",
             m.nHead);
    for (const Row &r : commonRows())
      compare(r);
    positions();
    window();
    if (!family.theta.is_null())
      rotations();
    unknownKeys();
    return std::move(found);
  }

private:
  void add(ErrorCode code, const std::string &what, std::string help) {
    found.push_back({code, fmt::format("{}: {}", file, what), {}, "", {std::move(help)}});
  }

  /// Reports that config.json says `what`, which `key` of [model] would express as `value`.
  void differ(const std::string &what, const char *key, const json &value) {
    add(ErrorCode::Contradiction, fmt::format("{}, but model.{} = {}", what, key, shown(ours(m, key))),
        fmt::format("write {} = {} in [model], or take weights of another model", key, shown(value)));
  }

  /// Reports that config.json says `what`, of which only `built` is built.
  void notBuilt(const std::string &what, const std::string &built) {
    add(ErrorCode::NotBuiltYet, fmt::format("{}, but only {} is built", what, built),
        "take weights of another model: with these, gptc would compute something else than they were trained for");
  }

  bool has(llvm::StringRef key) const {
    const auto it = theirs.find(key.str());
    return it != theirs.end() && !it->is_null();
  }

  /// `key = value`, and for an absent key the family whose default it is.
  std::string said(llvm::StringRef key, const json &value) const {
    return has(key) ? fmt::format("{} = {}", key.str(), shown(value))
                    : fmt::format("no {}, which in model_type = \"{}\" means {}", key.str(), family.name, shown(value));
  }

  json meaningOfAbsence(const Row &r) const {
    return r.derived ? r.derived([&](const char *key) { return get(key); }) : r.absent;
  }

  const Row &row(llvm::StringRef key) const {
    for (const Row &r : family.rows)
      if (key == r.theirs)
        return r;
    GPTC_UNREACHABLE("model_type {} has no {}", family.name, key.str());
  }

  json get(llvm::StringRef key) const { return has(key) ? theirs.at(key.str()) : meaningOfAbsence(row(key)); }

  void compare(const Row &r) {
    known.insert(r.theirs);
    const json absent = meaningOfAbsence(r), value = has(r.theirs) ? theirs.at(r.theirs) : absent;
    if (value.is_null() || (r.derived && absent.is_null()))  // the keys it follows from are wrong themselves
      return;
    // A value that follows here from the same keys as there needs no comparison.
    if (r.derived && *r.ours && !has(r.theirs) &&
        r.derived([&](const char *key) { return ours(m, row(key).ours); }) == ours(m, r.ours))
      return;
    if (!*r.ours) {
      if (value != absent)
        notBuilt(said(r.theirs, value), absent.is_null() ? "a model without it" : shown(absent));
      return;
    }
    const json here = r.translate(value);
    if (here.is_null())
      notBuilt(said(r.theirs, value), fmt::format("what docs/model.md lists as {}", r.ours));
    else if (here != ours(m, r.ours))
      differ(said(r.theirs, value), r.ours, here);
  }

  void positions() {
    known.insert(family.positions);
    const json n = has(family.positions) ? theirs.at(family.positions) : json(family.defaultPositions);
    if (!n.is_number() || (family.tableOfPositions ? n != m.blockSize : n < m.blockSize))
      add(ErrorCode::Contradiction,
          fmt::format("{}, but model.block_size = {}", said(family.positions, n), m.blockSize),
          family.tableOfPositions
              ? fmt::format("write block_size = {} in [model], the rows of their table of positions", shown(n))
              : fmt::format("write block_size = {} in [model], or less", shown(n)));
  }

  /// A window that this model's context does not exceed has no effect.
  void window() {
    known.insert({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"});
    // Here null has its own meaning: no window.
    const json n = theirs.contains("sliding_window") ? theirs.at("sliding_window") : family.window;
    const bool used = !has("use_sliding_window") || theirs.at("use_sliding_window") != false;
    const bool hides = used && !n.is_null() && !(n.is_number() && n >= m.blockSize);
    if (hides)
      add(ErrorCode::NotBuiltYet,
          fmt::format("{}, but only attention over all of model.block_size = {} is built", said("sliding_window", n),
                      m.blockSize),
          n.is_number_integer() && n > 0 ? fmt::format("block_size = {} works, or less", shown(n))
                                         : "take weights of another model");
    if (!has("layer_types"))
      return;
    const json &types = theirs.at("layer_types");
    const bool plain = types.is_array() && llvm::all_of(types, [&](const json &t) {
                         return t == "full_attention" || (t == "sliding_attention" && !hides);
                       });
    if (!plain)
      notBuilt(said("layer_types", types), "\"full_attention\"");
  }

  /// transformers 4 has rope_theta beside rope_scaling, transformers 5 both as rope_parameters; newer files of either
  /// version have all of them.
  void rotations() {
    known.insert({"rope_theta", "rope_scaling", "rope_parameters"});
    auto theta = [&](const std::string &name, const json &value) {
      if (value != family.theta)
        notBuilt(fmt::format("{} = {}", name, shown(value)), shown(family.theta));
    };
    if (has("rope_theta"))
      theta("rope_theta", theirs.at("rope_theta"));
    for (const char *name : {"rope_scaling", "rope_parameters"}) {
      if (!has(name))
        continue;
      const json &all = theirs.at(name);
      json type = "default";
      if (all.is_object())
        for (const char *key : {"type", "rope_type"})
          if (all.contains(key) && !all.at(key).is_null())
            type = all.at(key);
      if (!all.is_object() || type != "default") {
        notBuilt(fmt::format("{} = {}", name, shown(all)), "rope_type = \"default\"");
        continue;
      }
      for (const auto &[key, value] : all.items()) {
        const std::string full = fmt::format("{}.{}", name, key);
        if (key == "rope_theta")
          theta(full, value);
        else if (key == "partial_rotary_factor" && value != 1.0)
          notBuilt(fmt::format("{} = {}", full, shown(value)), "1.0");
        else if (key != "type" && key != "rope_type" && key != "partial_rotary_factor")
          unknown(full, value);
      }
    }
  }

  void unknown(const std::string &key, const json &value) {
    add(ErrorCode::UnknownKey, fmt::format("unknown key {} = {}", key, shown(value)),
        "it may change what the model computes, and nothing in gptc knows it");
  }

  void unknownKeys() {
    for (const auto &[key, value] : theirs.items())
      if (!known.count(key) && !neutral().count(key) && !dropoutRates().count(key))
        unknown(key, value);
  }

  const std::string &file;
  const json &theirs;
  const ModelConfig &m;
  const Family &family;
  std::set<std::string> known;
  std::vector<Diagnostic> found;
};

/// Whether it is a checkpoint of ours, whose manifest says more: loading compares that.
bool isCheckpoint(const fs::path &folder) {
  constexpr size_t limit = 64 << 20;
  const json manifest = parseJsonOrDiscard<json>(readTextFile(folder / "manifest.json", limit).text);
  return manifest.is_object() && manifest.contains("model_keys");
}

}  // namespace

HfComparison compareHfConfig(const std::string &weights, const ModelConfig &model) {
  std::error_code e;
  HfComparison result;
  const fs::path folder = fs::is_regular_file(weights, e) ? fs::path(weights).parent_path() : fs::path(weights);
  result.file = (folder / "config.json").string();
  result.found = fs::exists(result.file, e) && !(fs::is_directory(weights, e) && isCheckpoint(folder));
  if (!result.found)
    return result;
  auto refuse = [&](ErrorCode code, const std::string &what, std::vector<std::string> help) {
    result.differences.push_back({code, what, {}, "", std::move(help)});
    return result;
  };
  json theirs;
  try {
    theirs = parseJsonOrDiscard<json>(readInput(result.file, "configuration"));
  } catch (const UserError &error) {
    return refuse(error.diagnostics[0].code, error.diagnostics[0].message, error.diagnostics[0].help);
  }
  if (!theirs.is_object())
    return refuse(ErrorCode::CheckpointDamaged, fmt::format("{} is no JSON object", result.file),
                  {"copy it again from where the weights are from"});
  std::vector<std::string> names;
  for (const Family &f : families())
    names.push_back(f.name);
  if (!theirs.contains("model_type"))
    return refuse(ErrorCode::MissingKey, fmt::format("{} does not say model_type", result.file),
                  {fmt::format("{} work today", quotedList(names))});
  if (theirs.at("model_type") == kOwnModelType) {
    result.differences = compareOwnConfig(result.file, theirs, model);
    return result;
  }
  for (const Family &f : families())
    if (theirs.at("model_type") == f.name) {
      result.differences = Comparison(result.file, theirs, model, f).run();
      return result;
    }
  return refuse(ErrorCode::NotBuiltYet,
                fmt::format("{}: model_type = {} is not built yet", result.file, shown(theirs.at("model_type"))),
                {fmt::format("{} work today", quotedList(names))});
}

}  // namespace gptc
