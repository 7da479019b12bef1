// Checks on random numbers everything that must hold of any module on its way through the passes. tests/fuzz runs it on
// random graphs, gptc-reduce on failing ones.
#pragma once

#include "tools/check/emitted.h"

namespace gptc {

struct CheckOptions {
  unsigned seed = 0;  // for the inputs and the order of passes
  bool emit = true;   // also compile and run
  unsigned threads = 1;
  std::string cacheDir;  // for object code; "" for none
};

/// Describes what is wrong with `m`, with the passes that show it; "" if nothing is. `m` may be at any phase, which
/// determines the checks. An InternalError of a pass is reported as a problem; a UserError is passed on.
///
///   1. The module verifies, and so does the result of every pass. Its text parses to the same text at every phase.
///   2. @forward: autodiff's gradients equal the difference quotient of the loss along a random direction. With
///      accumulation, one @accumulate and @update equal @train_step.
///   3. After each single pass, and after a legal random order of passes, the interpreter gives the same bits. Passes
///      before autodiff may change the order in which gradients are added; for them the bound of 4 applies.
///   4. The planned module is emitted and run (tools/check/emitted.h).
std::string checkModule(const Module &m, const CheckOptions &options, BoundStats &stats);

/// Names of passes for which checkModule has no place; a test requires that there are none.
std::vector<std::string> passesWithoutPlace();

}  // namespace gptc
