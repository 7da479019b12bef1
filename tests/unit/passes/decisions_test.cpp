// Decisions travel as attributes of the module.
#include "passes/decisions.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

TEST(Decisions, SurviveTextAndReplaceEarlierOnes) {
  Module m;
  Decision d{"remat", "budget", "12 layers", {-3.5e8, 1e9, 12.25}, "keeps | only\ninputs", {}};
  d.rejected.push_back({"none", {3.5e8, -1e9, -12.25}, "needs 2364 MiB"});
  d.rejected.push_back({"full", {-1, 0.1, 2.0 / 3}, ""});
  record(m, {"remat", "budget", "earlier", {}, "", {}});
  record(m, d);
  record(m, {"pad-vocab", "vocab", "50257 -> 50304", {}, "", {}});
  m.attrs.set("decision.of.nobody", std::string("no fields"));
  d.note = "keeps   only inputs";
  auto back = decisionsOf(*parseModule(print(m), "t.gir"));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].pass, "pad-vocab");
  EXPECT_EQ(back[1], d);
}

}  // namespace
}  // namespace gptc
