// Shrinks a module that shows a failure to a small one that still shows it.
#pragma once

#include "ir/graph.h"

#include <functional>
#include <memory>
#include <string>

namespace gptc {

struct ReduceStep {
  std::string what;  // "drop ops"
  unsigned ops;      // remaining ops
};

/// Whether a candidate, which verifies, still fails.
using StillFails = std::function<bool(const Module &)>;

/// Returns the smallest failing module found. Delta debugging (Zeller & Hildebrandt 2002, "Simplifying and isolating
/// failure-inducing input") over functions, layers, results, ops and operands; then extents, padding and attributes.
/// `m` itself must fail.
std::unique_ptr<Module> reduceModule(const Module &m, const StillFails &stillFails,
                                     const std::function<void(const ReduceStep &)> &progress = nullptr);

/// Number of ops without block terminators; includes those in fused bodies.
unsigned countOps(const Module &m);

}  // namespace gptc
