// Metadata of GGUF files <-> keys of [model], by the architecture that a file names: gpt2, llama, qwen2, qwen3 and
// bloom, with llama.cpp's keys and meanings. Tensor shapes do not show all of it (heads, rotations, epsilons), so every
// key that can change a logit is read, and a key that no table here names is refused.
#pragma once

#include "ir/settings/settings.h"
#include "support/gguf/gguf_file.h"
#include "support/gguf/gguf_writer.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Reads the model of a GGUF file, complete. Throws UserErrors: NotBuiltYet, MissingKey, UnknownKey, Contradiction and
/// OutOfRange for what [model] cannot express; all of them together. A context longer than block_size may be is cut to
/// that, unless a table has a row for each position; `context` gets the file's.
ModelConfig importGguf(const GgufFile &file, int64_t *context = nullptr);

struct GgufComparison {
  bool found = false;  // false: the file does not exist, and nothing was compared
  /// Diagnostics without a location. Each names the file, and the keys with both values.
  std::vector<Diagnostic> differences;
};

/// Compares a GGUF file with a complete [model]. A context shorter than the file's is no difference.
GgufComparison compareGguf(const std::string &file, const ModelConfig &model);

struct GgufMetadata {
  std::string architecture;
  GgufKeys keys;
  /// Vectors of f32 beside the parameters: what Llama 3's scaling divides angles by.
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
};

/// The key that says that gptc wrote a file, and its values: of a model of its own, and of a file of another program
/// with other formats. Other programs pass over it.
constexpr const char *kGgufMadeBy = "gptc.made_by", *kGgufMaker = "gptc export", *kGgufRounder = "gptc quantize";

/// The architecture that holds a complete [model], and its keys in a file whose matrices are of format `type`. `name`
/// is what other programs show. Throws UserError(NotBuiltYet) if none does, with the keys that differ from the nearest.
GgufMetadata ggufMetadata(const ModelConfig &model, const std::string &name, GgmlType type);

/// How vectors of texts are made of those of their tokens, by ARCHITECTURE.pooling_type: "mean", "cls" or "last". None
/// if the file does not say, or says that each token has its own. Throws UserError(CheckpointDamaged).
std::optional<std::string> ggufPooling(const GgufFile &file);
/// Adds the key that says so.
void addPooling(GgufMetadata &metadata, const std::string &pooling);

}  // namespace gptc
