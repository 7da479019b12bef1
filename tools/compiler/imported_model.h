// Models of other programs: Hugging Face folders and GGUF files, as `gptc import` describes them and as `gptrun serve`
// and `gptrun sample` take them without a plan on disk.
#pragma once

#include "frontends/hf_labels.h"
#include "frontends/label_names.h"
#include "frontends/toml_config.h"
#include "runtime/checkpoint/gguf_weights.h"
#include "runtime/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

/// What is wanted of a model. For vectors of texts an encoder needs no head, and no token that hides others; for their
/// labels it needs a classifier instead, which it may lack if it is to learn them. To fill masks in texts an encoder
/// needs its head, and the token that hides others is its tokenizer's. For the sizes of what continues texts it needs
/// no tokenizer.
enum class ImportFor { tokens, vectors, labels, newLabels, masks, sizes };

struct ImportedModel {
  std::string path;  // as given
  ModelConfig model;
  int64_t context = 0;        // as it is described, which model.blockSize may be too short for
  std::string family, title;  // "llama", and what it is in words
  std::vector<int64_t> ends;  // tokens that end a text
  std::string tokenizer;      // its file; "": none
  bool wide = true;           // whether a matrix is stored in more than 16 bits
  StoredWeights stored;       // how a GGUF file has matrices
  HfLabels labels;            // for labels, and new ones
  std::string note;           // what a user should know of them; "": nothing

  bool isGguf() const;  // else a folder

  /// Why its tokenizer cannot be used; "" if it can.
  std::string tokenizerProblem(ImportFor purpose = ImportFor::tokens) const;
};

/// Reads the description of a model and the headers of its weights, and checks that they fit and that all of it is
/// built. Throws UserErrors FileMissing, CheckpointDamaged, CheckpointMismatch and NotBuiltYet.
/// `labels`: new ones, with which a classifier that is there must agree.
ImportedModel importedModel(const std::string &path, ImportFor purpose = ImportFor::tokens,
                            const LabelNames &labels = {});

/// The configuration with its [model], and defaults beside it. Throws the UserErrors of the reader of configurations.
Config configOf(const ImportedModel &model);

/// The settings of a model.toml that describes it: its name and [model], with a context of at most kUsualContext.
std::vector<std::string> settingsOf(const ImportedModel &model);

/// The name of a model or a plan: that of the folder, or of the GGUF file without its ending.
std::string nameOfModel(const std::string &path);

/// Whether the path is a GGUF file or a folder with Hugging Face's config.json, rather than a plan.
bool isImportable(const std::string &path);

/// How a model is run that no model.toml describes.
struct RunAs {
  int64_t context = 0;    // tokens; 0: that of the model, at most kUsualContext
  std::string weights;    // precision.weights; "": those of the model. If they are its own: with its eight_bits
  std::string precision;  // precision.compute; "": bf16 if no matrix is wide and it is faster here, else fp32
  std::string cache;      // precision.cache; "": its default
};
inline constexpr int64_t kUsualContext = 4096;

/// Throws UserError(Usage) if something of `how` is given beside a model that says it itself: "a plan has its own".
void requireNoRunAs(const RunAs &how, const std::string &why, const std::string &help);

/// What is rounded although weights are kept as the file has them, "h.3.mlp.c_proj.weight and 2 more, of Q5_K and Q6_K,
/// are rounded to 8 bits"; "" if nothing is.
std::string roundingNote(const ImportedModel &model, const RunAs &how);

/// A plan for this machine's CPU: servingPlan makes its functions to continue texts, embeddingPlan those that make
/// vectors of them. Its run begins with the model's weights and has no data. Throws UserErrors: those of the
/// configuration, Usage for a context that the model has not, a path that is not UTF-8, or a format of a cache where
/// there is none, and FileMissing if it has no tokenizer and needs one.
Plan planOfModel(const ImportedModel &model, const RunAs &how, ImportFor purpose = ImportFor::tokens);

}  // namespace gptc
