// Chooses the cuBLASLt algorithm of each product by measurement when a plan is made on a machine with its GPU, and pins
// it in the plan's schedules. gptrun never measures, so a plan gives the same bits on the same GPU and library. An
// unpinned product takes the library's first proposal, which is just as reproducible.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc::cuda {

struct LibraryTuning {
  int products = 0;     // distinct calls: shapes, types, epilogue, alignment
  int timed = 0;        // measured in this run
  int reused = 0;       // known from an earlier run
  int notFirst = 0;     // products pinned to another algorithm than the library's first
  double seconds = 0;   // total time, including the start of the GPU's context
  std::string problem;  // why nothing was measured, without a full stop; else ""
};

/// Sets Schedule::algorithm of every library matmul in a planned module (verified, checked) that has none, if the GPU
/// of this machine runs the target's code.
///
///   1. Calls that differ only in names and places are one product. Earlier measurements are kept in `cacheDir` (as
///      CudaJit's), keyed by a hash of the product, the GPU's name and size, and the versions of driver and library. A
///      record counts only if the library still proposes the same algorithms. So compiling a model twice gives one
///      plan.
///   2. Time the other products by events, those with the most arithmetic first; after two seconds begin no other. Run
///      each algorithm twice to warm up, then all in turn for five turns. A turn is one graph with enough calls to take
///      about 0.2 ms. After two turns drop those whose better turn took 1.3 times the fastest or more, and from the
///      start those that the library refuses to run, or whose call took a millisecond and twice the fastest's time.
///      Operands are random numbers, so that power draw matches a real step. They lie in memory of their own, aligned
///      as in the arena; results that accumulate grow there and are discarded.
///   3. Choose by fastest() of the medians. A product for which no time was left stays unpinned.
///
/// Never throws UserError: if the GPU, its memory or the library is missing, `problem` says so.
LibraryTuning pinAlgorithms(Module &planned, const Target &target, const std::string &cacheDir);

/// Index of the first time within 3% of the least. Smaller differences are noise, and the library's own order breaks
/// the tie. Requires at least one time, each above 0.
unsigned fastest(llvm::ArrayRef<double> times);

}  // namespace gptc::cuda
