// Writes parameters as a GGUF file with metadata and vocabulary: what `gptc export --format gguf` does.
#pragma once

#include "frontends/toml_config.h"
#include "runtime/checkpoint/gguf_rounding.h"
#include "runtime/checkpoint/tensor_files.h"
#include "runtime/plan/plan.h"
#include "support/gguf/blocks.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// fp32, fp16, bf16, q8_0, q4_0, q4_k: formats of the matrices of a file that is written. nullopt for another word.
std::optional<GgmlType> ggufFormatOf(llvm::StringRef word);

struct GgufExport {
  const Config &config;       // complete, as readConfig("", plan.model) gives it: its [model] is exported
  const TensorFiles &source;  // the weights of a checkpoint, or others under its names
  const HfFiles &described;   // tokenizer.json and what lies beside it; without it the file gets no vocabulary
  std::string folder;         // of those
  std::string tokenizer;      // names tokenizer.json, or what it is made of, in messages
  std::string name;           // what other programs show
  GgufRounding rounding;
};

/// Whether it is a GGUF file that exportGguf or `gptc quantize` wrote.
bool isExportedGguf(const std::string &file);
/// Throws UserError(Unwritable) for what is there, a link too, and no export wrote.
void requireReplaceable(const std::string &file);

struct GgufExported {
  std::vector<std::string> notes;  // what a user must know of the vocabulary, a line each
  std::vector<WrittenTensor> tensors;
};

/// Throws UserErrors: those of ggufMetadata, readHfPooling, vocabularyOf, buildModel and writeGguf.
GgufExported exportGguf(const std::string &file, const GgufExport &what);

}  // namespace gptc
