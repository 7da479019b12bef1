#include "tools/planner/codegen_passes.h"

#include "codegen/codegen.h"
#include "codegen/cudnn_attention.h"
#include "ir/facts.h"
#include "passes/decisions.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

#include <optional>
#include <set>
#include <string>

namespace gptc {

namespace {

/// Records, where a plan calls cuDNN, why it does not take all groups of attention, and which backward passes are
/// several calls. Nothing if it takes all as they are.
void recordCudnn(Module &m, const Target &target) {
  if (!target.callsCudnn() || target.architecture < 80)
    return;
  int64_t groups = 0, calls = 0;
  std::set<std::string> notes;
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused) || (kindOf(op) != RecipeKind::attention && kindOf(op) != RecipeKind::attention_grad))
        continue;
      ++groups;
      std::string why;
      const std::optional<CudnnAttention> call = matchCudnnAttention(op, &why);
      Schedule schedule;
      if (!Schedule::parse(fact<&GroupFacts::schedule>(op), schedule) || !schedule.library) {
        notes.insert(call ? "a generated kernel was given" : why);
        continue;
      }
      ++calls;
      if (const int64_t pieces = call->batchCuts * call->headCuts; pieces > 1)
        notes.insert(fmt::format("a backward pass is {} calls, each with less than 2 GiB of workspace", pieces));
    }
  if (!notes.empty())
    record(m, {.pass = "select-recipes",
               .name = "cudnn",
               .choice = fmt::format("{} of {} attention groups", calls, groups),
               .note = fmt::format("{}", fmt::join(notes, "; "))});
}

}  // namespace

void registerCodegenPasses() {
  registerPass({"select-recipes",
                "a schedule and the bytes of workspaces for every group",
                [](Module &m, const PassOptions &o) {
                  const Target target = o.target ? *o.target : hostTarget();
                  const bool changed = selectRecipes(m, target, o.schedules);
                  recordCudnn(m, target);
                  return changed;
                },
                {}});
}

}  // namespace gptc
