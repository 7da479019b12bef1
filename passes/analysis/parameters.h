// The parameters of modules that train nothing, in which a pass may keep them in another form.
#pragma once

#include "ir/graph.h"

namespace gptc {

/// Whether no function writes a parameter: sampling, serving, evaluation.
bool trainsNothing(const Module &m);

/// The parameter that a state is, or that it is a low copy of; else null, as for null.
State *parameterOf(const Module &m, const State *s);

/// Removes reads that nothing uses, as `precision` leaves them. Returns whether there were any.
bool eraseUnusedReads(Module &m);

}  // namespace gptc
