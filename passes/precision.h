// What passes after precision do as it does.
#pragma once

#include "ir/graph.h"

namespace gptc {

/// Makes the addition of a bias (an f32 state of one dimension) read it rounded to `low`, and widened again.
void readBiasNarrow(Op &addition, DType low);
/// Replaces casts of parameters to `low` by reads of copies in states of kind "low", which are written with the
/// parameter.
void copyCastParameters(Module &m, DType low);

}  // namespace gptc
