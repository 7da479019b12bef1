#include "tools/planner/variants.h"

#include "ir/facts.h"
#include "tools/planner/codegen_passes.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

std::unique_ptr<Module> runFrom(const Module &m, const char *from, const Target &target,
                                const std::function<void(std::vector<PassUse> &)> &edit) {
  registerCodegenPasses();
  std::vector<PassUse> uses = parsePipeline(defaultPipeline(from), &target);
  if (edit)
    edit(uses);
  std::unique_ptr<Module> copy = m.clone();
  PipelineOptions options;
  options.verifyEach = false;
  options.reproFile = "";
  runPipeline(*copy, uses, options);
  return copy;
}

void setOption(std::vector<PassUse> &uses, llvm::StringRef pass, const char *option, const Attr &value) {
  for (PassUse &use : uses)
    if (pass == use.pass->name)
      use.options.values.set(option, value);
}

void removePass(std::vector<PassUse> &uses, llvm::StringRef pass) {
  llvm::erase_if(uses, [&](const PassUse &u) { return pass == u.pass->name; });
}

Forecast forecast(const Module &planned, const MachineRates &rates) {
  return {fact<&MemoryFacts::arenaBytes>(planned), costOfStep(planned, rates)};
}

}  // namespace gptc
