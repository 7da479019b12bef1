// Which algorithm of cuBLASLt a plan's products take: measured when a plan is made where its GPU is, and pinned in its
// schedules. gptrun never measures, so that a plan has the same bits wherever GPU and library are the same; without a
// pin it takes what the library proposes first, which is as certain.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc::cuda {

struct LibraryTuning {
  int products = 0;     // distinct calls: shapes, types, epilogue, alignment
  int timed = 0;        // of these now
  int reused = 0;       // known from an earlier time
  int notFirst = 0;     // for which another algorithm than the library's first is pinned
  double seconds = 0;   // that this took, the start of the GPU's context included
  std::string problem;  // why nothing was measured, without a full stop; "" where it was
};

/// Sets Schedule::algorithm of every library call of a planned module (verified, checked) whose schedule has none, if
/// the GPU of this machine runs the target's code.
///
///   1. Calls that differ in names and places only are one product. What an earlier measurement found stands in
///      `cacheDir` (as CudaJit's), under a hash of the product, the GPU's name and size, and the versions of driver and
///      library; it counts only if the library still proposes the same algorithms. So a model that is compiled twice
///      gives one plan.
///   2. The others are timed by events, those with most to compute first, for at most two seconds in all: each
///      algorithm twice to warm up, then in turns, so many calls in one graph that a turn takes some 0.2 ms, five
///      times; after two turns only those go on whose better one took less than 1.3 times the fastest. One that the
///      library refuses to run is left out. Operands are random numbers, which draw as much power as those of a step,
///      in memory of their own, at addresses aligned as in the arena; results that go on from what they hold grow and
///      are lost.
///   3. The choice is fastest()'s of the medians. A product for which no time was left gets no pin.
///
/// UserError never: without a GPU, its memory or the library it says so in `problem`.
LibraryTuning pinAlgorithms(Module &planned, const Target &target, const std::string &cacheDir);

/// The first of these times that is within 3% of the least: what differs by less is noise, and the library's own order
/// breaks the tie. At least one time, each above 0.
unsigned fastest(llvm::ArrayRef<double> times);

}  // namespace gptc::cuda
