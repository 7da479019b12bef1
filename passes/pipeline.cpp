#include "passes/pass.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace gptc {

llvm::ArrayRef<const char *> defaultPasses(llvm::StringRef from) {
  static const char *const passes[] = {
      "canonicalize",  // first: autodiff should not differentiate what an identity removes
      "cse",           // one read per parameter, so that its uses are counted right
      "dce",           //
      "pad-vocab",     // before autodiff: gradients and moments take their parameters' types
      "shard-tensor",  // before autodiff, which makes the gradients of what ranks do together like all others
      "autodiff",      // before fusion: one graph of both directions to optimise
      "optimizer",     // needs the gradients as results; its ops fuse like any others
      "canonicalize",  // gradients leave views of views, and sums with one term
      "cse",           // statistics that forward and backward both ask for
      "dce",           // gradients that no parameter needed
      "precision",     // on the joint graph: casts are ops that fuse like any others
      "partition",     // before fusion: groups have the shapes that ranks really have; after precision, whose copies it
                       // gathers
      "pack-weights",  // behind the copies of parameters, low and whole, that products read; before fusion, which takes
                       // panels into the products' groups
      "recompute-cheap",  // before fusion, which folds the copies; after cse, which would undo them
      "fuse",             // on the whole graph, when every use of a value is known
      "order",            // after fusion: groups, not ops, hold memory
      "offload",          // on groups; before remat, which must know what the GPU holds
      "remat",          // on the order that says what lives when; its copies are settled and get recipes like all else
      "settle-writes",  // on the final order; the copies that it adds need recipes too
      "overlap-collectives",  // on settled writes, which say what may move; memory must know what is under way
      "select-recipes",       // memory must know the workspaces
      "plan-memory",          // last: exact
  };
  auto first = from.empty() ? std::begin(passes) : llvm::find(passes, from);
  GPTC_CHECK(first != std::end(passes), "'{}' is not in the default pipeline", from.str());
  return {first, std::end(passes)};
}

std::string defaultPipeline(llvm::StringRef from) { return llvm::join(defaultPasses(from), ","); }

}  // namespace gptc
