#include "tools/driver/pass_registry.h"

#include "codegen/codegen.h"
#include "ir/diagnostics.h"
#include "passes/pass.h"

namespace gptc {

static bool runSelectRecipes(Module &m, const PassOptions &options) {
  return selectRecipes(m, options.target ? *options.target : hostTarget());
}

void registerCodegenPasses() {
  registerPass({"select-recipes", "a recipe, its sizes and workspaces for every group", runSelectRecipes, {}});
}

}  // namespace gptc
