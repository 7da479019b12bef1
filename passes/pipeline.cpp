#include "passes/pass.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace gptc {

llvm::ArrayRef<const char *> defaultPasses(llvm::StringRef from) {
  static const char *const passes[] = {
      "canonicalize",  // first: autodiff should not differentiate what an identity removes
      "cse",           // one read per parameter, so that all its uses are uses of one value
      "dce",           //
      "pad-vocab",     // before autodiff: gradients and moments take their parameters' types
      "shard-tensor",  // before autodiff, which differentiates its collectives like other ops
      "autodiff",      // before fusion, so that the passes optimise one graph of both directions
      "optimizer",     // needs the gradients as results; its ops fuse like any others
      "canonicalize",  // gradients leave views of views, and sums with one term
      "cse",           // merges the statistics that forward and backward both compute
      "dce",           // removes gradients that no parameter needs
      "precision",     // on the joint graph: casts are ops that fuse like any others
      "partition",     // before fusion, so that groups have the shapes of one rank; after precision, to gather its low
                       // copies
      "pack-weights",  // after the passes that add low and whole copies of parameters; before fusion, which takes the
                       // panels into the groups of matmuls
      "recompute-cheap",      // before fusion, which folds the copies; after cse, which would undo them
      "fuse",                 // on the whole graph, when every use of a value is known
      "order",                // after fusion: groups, not ops, hold memory
      "offload",              // on groups; before remat, which must know what the GPU's memory holds
      "remat",                // after order, which fixes live ranges; before the passes that its copies need as well
      "settle-writes",        // on the final order of groups; the copies that it adds need recipes too
      "overlap-collectives",  // on settled writes, as in-place results limit moves; before plan-memory, as ranges grow
      "select-recipes",       // plan-memory needs the sizes of workspaces
      "plan-memory",          // last: needs every value and workspace
  };
  auto first = from.empty() ? std::begin(passes) : llvm::find(passes, from);
  GPTC_CHECK(first != std::end(passes), "'{}' is not in the default pipeline", from.str());
  return {first, std::end(passes)};
}

std::string defaultPipeline(llvm::StringRef from) { return llvm::join(defaultPasses(from), ","); }

}  // namespace gptc
