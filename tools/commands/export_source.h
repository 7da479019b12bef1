// The models that `gptc export` and `gptc quantize` write: those of plans, runs and checkpoints, and folders of other
// programs.
#pragma once

#include "frontends/toml_config.h"
#include "runtime/checkpoint/checkpoint.h"
#include "support/files.h"
#include "tools/compiler/imported_model.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct ExportSource {
  CheckpointStore::Published checkpoint;
  std::string shown;                       // where it is from
  std::unique_ptr<AtomicDir> folder = {};  // of the checkpoint, if it lives only as long as this
  std::string tokenizer = {};              // of such a checkpoint, for messages: what its tokenizer was made of
};

/// Whether `path` has what makes a plan, a run or a checkpoint of ours, so that exportSource takes it.
bool isExportable(const std::string &path);

/// `run`: a plan, the out_dir of its run, or a checkpoint. `choice`: STEP or best, else the newest checkpoint that is
/// whole; of a plan that has not run, the weights of init_from, in a folder beside `out`, which must not replace them.
/// Throws UserErrors: Usage, FileMissing, Unwritable, those of loadPlan and of CheckpointStore::published.
ExportSource exportSource(const std::string &run, const std::string &out, const std::optional<std::string> &choice);

/// A model as exportGguf takes it.
struct GgufSource {
  Config config;                              // complete: its [model] counts
  std::vector<std::string> weights;           // safetensors files
  HfFiles described;                          // tokenizer.json and what lies beside it, if there is one
  std::string folder;                         // of those
  std::string tokenizer;                      // names tokenizer.json, or what it is made of, in messages
  std::string shown;                          // where it is from
  std::unique_ptr<AtomicDir> temporary = {};  // ExportSource::folder
};

/// Throws UserError(MissingKey) if nothing describes the checkpoint's model.
GgufSource ggufSource(ExportSource from);
/// Of a Hugging Face folder. Throws UserErrors: those of describeFolder, and of the reader of configurations.
GgufSource ggufSource(const ImportedModel &folder);

}  // namespace gptc
