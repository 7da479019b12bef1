// Layers that weights of other models may lack when a run begins with them: those of a classifier of labels.
#pragma once

#include "ir/graph.h"

#include <string>
#include <vector>

namespace gptc {

class TensorFiles;

/// The parameters of the layers pooler.dense and classifier of which `file` has neither weight nor bias. Their tensors
/// are removed from `missing`.
std::vector<const State *> takeNewLayers(const Module &m, const TensorFiles &file, std::vector<std::string> &missing);

}  // namespace gptc
