// The model files that `gptc new` writes.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc {

struct ModelTemplate {
  const char *name;       // "gpt2"
  const char *what;       // one line
  const char *tokenizer;  // --tokenizer of `gptc data prepare` that goes with it
  const char *model, *train, *optimizer;
  const char *compute;
};

llvm::ArrayRef<ModelTemplate> modelTemplates();
/// UserError(Usage) for a name that there is none of.
const ModelTemplate &modelTemplate(const std::string &name);
/// The file's text. `data`: the folder of token files, from the folder of the file on.
std::string textOf(const ModelTemplate &t, const std::string &data);

}  // namespace gptc
