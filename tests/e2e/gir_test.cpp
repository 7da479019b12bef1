// gptc compile takes a module of any phase and makes the plan that model.toml makes.
#include "tests/support/harness.h"

#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

TEST(Gir, EveryPhaseMakesTheSamePlan) {
  Workplace w;
  for (const char *micro : {"4", "2"}) {  // in one pass, and accumulated
    const std::string dump = w.path(std::string("dump") + micro), model = w.path(std::string("plan") + micro);
    Result r = w.gptc({"compile", w.modelFile(), "-o", model, "--set", std::string("train.micro_batch=") + micro,
                       "--set", "compile.remat=full", "--dump-dir", dump});
    ASSERT_EQ(r.code, 0) << r.output;
    int phases = 0;
    gptc::test::OneIn some(4);
    for (const auto &entry : fs::directory_iterator(dump)) {
      ++phases;
      if (some.skips())
        continue;
      const std::string file = entry.path().string();
      const std::string plan = w.path("again");
      r = w.gptc({"compile", file, "-o", plan});
      ASSERT_EQ(r.code, 0) << file << r.output;
      EXPECT_TRUE(readFile(plan + "/planned.gir") == readFile(model + "/planned.gir")) << file;
    }
    EXPECT_GE(phases, 15);
    // Its precision is the module's, and so are its steps.
    r = w.gptc({"compile", dump + "/03-dce.gir", "-o", w.path("again")});
    EXPECT_NE(r.output.find("steps       12,"), std::string::npos) << r.output;
  }
}

}  // namespace
