// What it takes to compute values of the forward part of a function a second time in its backward part, instead of
// keeping them until then: Chen et al. 2016, "Training deep nets with sublinear memory cost", on fused groups.
//
// Backward begins with the first group that holds a gradient op. A value made before and used from there on may be
// dropped: it then lives to its last use in forward, and just before its first use in backward the part of its group's
// body that makes it stands once more. That part begins at the group's operands or, where those are not dropped, at
// other results of the group: a gelu starts from the stored sum before it, not from the matmul. All dropped results of
// a group are made again together. What the copy needs and was dropped itself is made again before it; what it needs
// and was not dropped lives longer.
//
// A copy holds the ops of the original on the same values in the same order, so it gives the same bits, random numbers
// included: they are functions of counters.
#pragma once

#include "passes/analysis/cost.h"

#include "llvm/ADT/DenseSet.h"

#include <memory>

namespace gptc {

class Recompute {
public:
  /// `f` consists of groups (after fuse and order). It must not change before apply().
  Recompute(Function &f, const MachineRates &rates);
  ~Recompute();

  using Dropped = llvm::DenseSet<const Value *>;

  struct Candidate {
    const Value *value;
    std::string what;  // "h*.ln_1: layernorm", the same for all layers
    int layer;
    bool leavesLayer;  // also used by the forward part of another layer
  };
  /// Every value that may be dropped, in order of definition. Empty where there is no backward part.
  const std::vector<Candidate> &candidates() const { return list; }

  struct Outcome {
    int64_t peak = 0;  // most bytes that live at one time, workspaces aside; memory planning may need a little more
    KernelCost extra;  // of what is computed twice
  };
  Outcome outcome(const Dropped &dropped) const;

  /// Rewrites the function. Afterwards this object is of no use.
  void apply(const Dropped &dropped);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
  std::vector<Candidate> list;
};

/// Whether this is an op of a backward part: NAME_grad and NAME_grad_params, as ops.def calls them.
bool isGradient(const Op &op);

/// "h3.mlp.c_fc" -> "h*.mlp.c_fc": one name for all layers.
std::string withoutLayer(llvm::StringRef loc);

}  // namespace gptc
