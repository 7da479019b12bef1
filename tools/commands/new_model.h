// Templates of the model files that `gptc new` writes.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc {

struct ModelTemplate {
  const char *name;       // "gpt2"
  const char *what;       // one-line description
  const char *tokenizer;  // matching --tokenizer of `gptc data prepare`
  const char *model, *train, *optimizer;
  const char *compute;
};

llvm::ArrayRef<ModelTemplate> modelTemplates();
/// Throws UserError(Usage) for an unknown name.
const ModelTemplate &modelTemplate(const std::string &name);
/// The file's text. `data`: the folder of token files, relative to the model file's folder.
std::string textOf(const ModelTemplate &t, const std::string &data);

}  // namespace gptc
