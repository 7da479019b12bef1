// Writes a model as a folder of Hugging Face's: weights of any ranks and precision as safetensors of one precision,
// with config.json and the tokenizer's files. No padding, no optimizer, a tied matrix once.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

#include <optional>
#include <string>

namespace gptc {

struct ExportOptions {
  std::optional<DType> dtype;  // f32, bf16 or f16, rounded to nearest even; none: as the checkpoint has it
  /// Weights beyond this are divided over several files, with an index: 5 GB, as transformers 4 does.
  int64_t fileBytes = 5'000'000'000;
};

struct Exported {
  int64_t tensors = 0, bytes = 0, files = 0;  // of the weights
  DType dtype = DType::f32;                   // of the first tensor
};

/// The text of the config.json that describes a checkpoint's model. Throws UserError(MissingKey) if it has none.
const std::string &describedConfig(const CheckpointStore::Published &from);

/// Writes `dir` completely or not at all, and replaces what an earlier export wrote there. Takes a few MiB of memory,
/// whatever the size. Throws UserErrors: Unwritable if `dir` has anything else, or holds the checkpoint itself;
/// Contradiction if no family of transformers holds the model; MissingKey if the checkpoint does not describe its
/// model; OutOfRange for a weight that f16 cannot hold; CheckpointDamaged, DiskFull.
Exported exportFolder(const CheckpointStore::Published &from, const std::string &dir, const ExportOptions &options);

}  // namespace gptc
