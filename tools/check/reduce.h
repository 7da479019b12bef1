// Shrinks a module that shows a failure to a small one that still does.
#pragma once

#include "ir/graph.h"

#include <functional>
#include <memory>
#include <string>

namespace gptc {

struct ReduceStep {
  std::string what;  // e.g. "drop ops"
  unsigned ops;      // left
};

/// Whether a candidate, which verifies, still shows the failure.
using StillFails = std::function<bool(const Module &)>;

/// The smallest module found that still fails. Delta debugging (Zeller & Hildebrandt 2002, "Simplifying and isolating
/// failure-inducing input") over functions, layers, results, ops and operands; then extents, padding and attributes.
/// `m` itself fails.
std::unique_ptr<Module> reduceModule(const Module &m, const StillFails &stillFails,
                                     const std::function<void(const ReduceStep &)> &progress = nullptr);

/// Ops that do something: all but the ends of blocks; those of fused bodies count.
unsigned countOps(const Module &m);

}  // namespace gptc
