// The pass chunk-classifier as a function, for remat, which tries several numbers of chunks.
#pragma once

#include "ir/graph.h"

namespace gptc {

/// Runs the pass chunk-classifier. Returns false and changes nothing if no function contains the pattern, or if it
/// cannot be cut into `chunks` parts, for example because `chunks` does not divide the batch.
bool chunkClassifier(Module &m, int64_t chunks);

}  // namespace gptc
