#include "tools/planner/codegen_passes.h"

#include "codegen/codegen.h"
#include "passes/pass.h"

namespace gptc {

void registerCodegenPasses() {
  registerPass({"select-recipes",
                "a schedule and the bytes of workspaces for every group",
                [](Module &m, const PassOptions &o) {
                  return selectRecipes(m, o.target ? *o.target : hostTarget(), o.schedules);
                },
                {}});
}

}  // namespace gptc
