// Tensors in files of weights beyond those of a model's parameters: which of them change nothing.
#pragma once

#include "runtime/checkpoint/tensor_files.h"

#include "llvm/ADT/StringRef.h"

#include <vector>

namespace gptc {

/// Whether a tensor changes no model: a table that other programs store (attention masks, rotary frequencies, numbers
/// of positions), or a layer behind BERT that its other tasks use, or, of a `headless` model, the head that
/// names tokens or labels.
bool isBesideModel(llvm::StringRef name, const std::vector<int64_t> &shape, bool headless);

/// The tensors that a file may hold once more, as the head's: by parameter, those that were read.
class TensorsOfHead {
public:
  void take(llvm::StringRef parameter, const std::vector<const TensorInfo *> &found);
  /// Whether `t` is the head's by its name and has the content of one of them. Only these two are read.
  bool areRepeatedBy(const TensorFiles &file, const TensorInfo &t) const;

private:
  std::vector<const TensorInfo *> weights, biases;
};

}  // namespace gptc
