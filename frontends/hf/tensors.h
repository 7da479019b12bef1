// Names and layouts of parameters in files of weights, by the table of a family.
#pragma once

#include "frontends/hf/family.h"

namespace gptc::hf {

/// What FileFacts say of a parameter (ir/facts.def, runtime/checkpoint/file_layout.h).
struct FileName {
  std::string names;             // hf
  std::vector<int64_t> columns;  // hf_split
  bool transposed = false;       // hf_transpose
  int64_t heads = 0;             // hf_heads
  std::vector<int64_t> share;    // hf_share
};

/// Of the parameter with our name, "h.0.ln_1.weight". `family`: that of the model; null for a model that none holds,
/// which has our own names, those of GPT-2, and layouts.
FileName fileNameOf(const Family *family, const ModelConfig &model, llvm::StringRef parameter);

}  // namespace gptc::hf
