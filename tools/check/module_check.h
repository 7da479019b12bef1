// Everything that must hold of any module on its way through the passes, checked on random numbers. tests/fuzz runs it
// on random graphs; gptc-reduce on the one that failed.
#pragma once

#include "tools/check/emitted.h"

namespace gptc {

struct CheckOptions {
  unsigned seed = 0;  // of the inputs and of the order of passes
  bool emit = true;   // compile and run, too
  unsigned threads = 1;
  std::string cacheDir;  // of object code; "" for none
};

/// What is wrong with `m`, with the passes that show it; "" when nothing is. `m` may be at any phase; what is
/// checked depends on it. An InternalError of a pass is one of the things that may be wrong; a UserError is thrown on.
///
///   1. The module verifies, and so does what every pass makes of it. Its text parses to the same text, at every phase.
///   2. @forward: the gradients that autodiff makes equal the difference quotient of the loss along a random direction.
///      With gradients that accumulate: one @accumulate and @update yield what @train_step does.
///   3. Each pass alone, and a legal order of passes drawn from the seed: the interpreter finds the same, to the bit.
///      Passes that run before autodiff may change the order in which gradients are added: there the bound of 4 holds.
///   4. The planned module emitted and run (tools/check/emitted.h).
std::string checkModule(const Module &m, const CheckOptions &options, BoundStats &stats);

/// Names of passes of which checkModule does not know where they may run; a test keeps it empty.
std::vector<std::string> passesWithoutPlace();

}  // namespace gptc
