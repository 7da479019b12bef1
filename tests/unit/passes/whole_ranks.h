// What a pass refuses that is for ranks of which each has the whole model (passes/analysis/whole_ranks.h).
#pragma once

#include "small_gpt.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace gptc::test {

/// Expects the pass to refuse the module with this attribute, in words that begin like this.
inline void expectRefusal(std::unique_ptr<Module> m, const std::string &pass, const char *name, const Attr &value,
                          const std::string &words) {
  m->attrs.set(name, value);
  try {
    runPasses(*m, pass);
    ADD_FAILURE() << name;
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::GirInvalid) << name;
    EXPECT_TRUE(e.diagnostics[0].message.starts_with(words)) << name << ": " << e.diagnostics[0].message;
  }
}

/// Expects the pass to refuse, in a module that `make` makes, all that divides the work in another way. `setting`: what
/// needs such ranks, with its value; `ofFactors`: what is said of factors in addition.
inline void expectWholeRanksAlone(llvm::function_ref<std::unique_ptr<Module>()> make, const std::string &pass,
                                  const std::string &setting, const std::string &ofFactors) {
  for (const auto &[name, value, words] :
       {std::tuple<const char *, Attr, std::string>{"zero_stage", int64_t(1), "zero_stage = 1"},
        {"mesh_tensor", int64_t(2), "parts of the model"},
        {"logical_tensor", int64_t(2), "parts of the model"},
        {"shards", int64_t(2), "shards = 2"},
        {"offload", std::string("optimizer"), "offload"},
        {"fp8", std::string("all"), "factors of fp16 or fp8" + ofFactors}})
    expectRefusal(make(), pass, name, value, setting + " with " + words);
}

}  // namespace gptc::test
