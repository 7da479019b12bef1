// The families of models that Hugging Face's transformers has, one table each, named by model_type. A table says
//
//   - for each key of config.json the equivalent key of [model], the value that an absent key stands for
//     (transformers' default for the family), and the translation both ways;
//   - what is the same in every model of the family;
//   - the name and the layout of each parameter in files of weights.
//
// The same table reads config.json (frontends/hf/read.h), writes it (frontends/hf_families.h) and names tensors
// (frontends/hf/tensors.h). What it does not name is refused: it may change what a model computes.
#pragma once

#include "frontends/hf/values.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc::hf {

/// A translation between values of config.json and of [model]. Either direction gives null for a value that the other
/// side cannot express.
struct Translation {
  json (*read)(const json &theirs);  // null: the value itself
  json (*write)(const json &ours);
};

/// A key of config.json and what it says of [model].
struct Row {
  const char *theirs;
  std::vector<const char *> ours;  // keys of [model], which all get the value
  json absent;                     // the value of config.json that an absent or null key stands for
  /// If set: the value of [model] that follows from others. It stands for a key that is null, and for an absent one if
  /// `absent` is null.
  json (*derived)(const ModelValues &) = nullptr;
  const Translation *translation = nullptr;  // null: the value itself
  std::vector<const char *> also = {};       // other names for the key; all that are present must agree
};

/// A key of [model] and the value that every model of a family has, or how it follows from others.
struct Fact {
  const char *ours;
  json value;
  json (*derived)(const ModelValues &) = nullptr;
};

/// A key of config.json of which one value is built. An absent or null key means that value.
struct Only {
  const char *theirs;
  json value;
  const char *ifAbove1 = nullptr;  // if set: it has an effect only if the value of this key is above 1
};

/// Rotated positions: rope_theta and rope_scaling (transformers 4), rope_parameters (5), partial_rotary_factor (both).
struct Rotations {
  double theta = 1e4;
  double part = 1;  // of a head that is rotated; 1: always the whole
  /// Older names of rope_theta and partial_rotary_factor in this family.
  const char *thetaToo = nullptr, *partToo = nullptr;
  /// If not 0: that of layers with a window, and `theta` of the others. They are global_rope_theta and local_rope_theta
  /// (4), or stand in rope_parameters.full_attention and sliding_attention (5). Then angles are not scaled.
  double windowTheta = 0;
};

/// Which layers see a window of tokens only.
enum class Windows {
  none,
  all,        // all layers if sliding_window is set (Mistral)
  late,       // those from max_window_layers on, with use_sliding_window; or as layer_types say (Qwen2, Qwen3)
  unrotated,  // those that do not rotate, with use_sliding_window; or as layer_types say (SmolLM3)
  even,       // layers 0, 2, ...; or as layer_types say (Gemma 2)
  local       // half of local_attention tokens to each side, but for layers 0, n, 2n, ... with n =
              // global_attn_every_n_layers; or as layer_types say (ModernBERT)
};

/// How files store the queries, keys and values of a layer.
enum class QkvLayout {
  whole,   // as we do: side by side
  split,   // as three tensors
  perHead  // side by side within each head: rows [n_head, 3, head_dim]
};

/// Names of parameters in files of weights.
struct Tensors {
  const char *base;  // what names of all but the head begin with; files of models without a head leave it out
  bool transposed;   // linear layers are [out, in]
  QkvLayout qkv;
  /// Our name, with or without ".weight" or ".bias", -> theirs, without `base`; `*` stands for the number of a layer,
  /// commas separate the tensors of a split one, and | the names that a tensor has in files of different versions.
  /// Several of ours with one name of theirs follow each other there by rows, in this order; they are linear.
  std::vector<std::pair<const char *, const char *>> names;
  bool gammaBeta = false;  // old files have gamma and beta for the weight and the bias of a LayerNorm
};

struct Family {
  const char *name;                  // model_type
  const char *architecture;          // its class in transformers
  const char *classifier = nullptr;  // its class with a classifier of texts; null: that is not built
  bool choosesVector = false;  // classifier_pooling says which vector of a text that reads; else the first token's
  std::vector<Row> rows;       // in the order in which derived ones can be computed
  std::vector<Fact> facts;     // keys of [model] that neither these nor rows mention are plain (addPlainValues)
  const char *positions;       // the key for the number of positions; "": none
  int64_t defaultPositions;
  bool tableOfPositions = false;  // positions are a table of that many rows, of which a model may use the first ones
  std::optional<Rotations> rotations = {};
  Windows windows = Windows::none;
  std::vector<Only> only = {};
  /// Keys that cannot change a logit, beyond those of all families.
  std::vector<const char *> neutral = {};
  std::vector<const char *> dropouts = {};  // keys for rates, which evaluation ignores; written as model.dropout
  Tensors tensors;
};

/// All families. Where several can hold a model, the first one does.
const std::vector<Family> &families();
/// The family of this model_type; null if there is none.
const Family *findFamily(llvm::StringRef name);
/// "\"gpt2\", \"llama\", ...".
std::string familyNames();

/// Keys of config.json of any family of which one value is built.
const std::vector<Only> &onlyInAll();
/// Whether a key cannot change a logit in any family.
bool isNeutral(llvm::StringRef key);

}  // namespace gptc::hf
