// For remat, which tries several numbers of chunks.
#pragma once

#include "ir/graph.h"

namespace gptc {

/// The pass chunk-classifier with this many chunks. False, and nothing changed, where the pattern is not found or the
/// number does not divide the batch.
bool chunkClassifier(Module &m, int64_t chunks);

}  // namespace gptc
