// Layers that weights of other models may lack when a run begins with them: those of a classifier of labels.
#pragma once

#include "ir/graph.h"

#include <string>
#include <vector>

namespace gptc {

class TensorFiles;

/// Of a model with labels, the parameters of the layers pooler.dense, head.dense, head.norm and classifier of which
/// `file` has neither weight nor bias. Their tensors are removed from `missing`.
std::vector<const State *> takeNewLayers(const Module &m, const TensorFiles &file, std::vector<std::string> &missing);

/// Throws UserError(FileMissing) if the weights at `path`, a folder or a file of safetensors, lack such a layer of `m`,
/// which only a run that begins with them makes. Throws what TensorFiles throws.
void requireTrainedLayers(const Module &m, const std::string &path);

}  // namespace gptc
