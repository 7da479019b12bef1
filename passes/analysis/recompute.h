// Recomputation of forward values in the backward part of a function instead of keeping them until then: Chen et al.
// 2016, "Training deep nets with sublinear memory cost", on fused groups.
//
// The backward part begins with the first group that contains a gradient op. A value that is computed before that and
// used after it may be dropped. It then lives until its last use in the forward part, and a copy of the part of its
// group that computes it is inserted just before its first use in the backward part. The copy starts from the operands
// of the group or from results of the group that are not dropped: a gelu starts from the stored sum before it, not from
// the matmul. One copy computes all dropped results of a group. If an operand of the copy was dropped too, its own copy
// comes first; if it was not, it lives longer.
//
// A copy has the ops of the original, in the same order, on the same values. So it gives the same bits. That includes
// random numbers, which are functions of counters.
#pragma once

#include "passes/analysis/cost.h"

#include "llvm/ADT/DenseSet.h"

#include <memory>

namespace gptc {

class Recompute {
public:
  /// `f` must consist of groups (after fuse and order) and must not change before apply().
  Recompute(Function &f, const MachineRates &rates);
  ~Recompute();

  using Dropped = llvm::DenseSet<const Value *>;

  struct Candidate {
    const Value *value;
    std::string what;  // "h*.ln_1: layernorm", equal for all layers
    int layer;
    bool leavesLayer;  // the forward part of another layer uses the value too
  };
  /// Every value that may be dropped, in order of definition. Empty if the function has no backward part.
  const std::vector<Candidate> &candidates() const { return list; }

  struct Outcome {
    int64_t peak = 0;  // maximum of live bytes, without workspaces; memory planning may need a little more
    KernelCost extra;  // of all copies
  };
  /// The effect of dropping these values. Does not change the function.
  Outcome outcome(const Dropped &dropped) const;

  /// Inserts the copies and makes the backward part use them. May be called once, as the last call on this object.
  void apply(const Dropped &dropped);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
  std::vector<Candidate> list;
};

/// Whether ops.def names the op NAME_grad or NAME_grad_params. Such ops occur in backward parts only.
bool isGradient(const Op &op);

/// Replaces the layer number: "h3.mlp.c_fc" -> "h*.mlp.c_fc". Other names stay as they are.
std::string withoutLayer(llvm::StringRef loc);

}  // namespace gptc
