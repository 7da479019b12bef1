// Variables of the environment: none that is gptc's own is read past the table, and a slip is told.
#include "support/diagnostics.h"
#include "support/environment.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

TEST(Environment, NamesTheNearestVariable) {
  auto told = [](std::vector<const char *> environment) {
    environment.push_back(nullptr);
    return strangeVariables(environment.data());
  };
  using Sentences = std::vector<std::string>;
  EXPECT_EQ(told({"GPTC_CAHCE=/tmp"}),
            Sentences{"the environment has GPTC_CAHCE, which no program reads; did you mean GPTC_CACHE?"});
  EXPECT_EQ(told({"HOME=/", "GPTC_CACHE=/tmp", "GPTC_THREAD=3", "GPTC_TOKENFILE=x"}),
            (Sentences{"the environment has GPTC_THREAD, which no program reads; did you mean GPTC_THREADS?",
                       "the environment has GPTC_TOKENFILE, which no program reads; did you mean GPTC_TOKEN_FILE?"}));
  const Sentences far = told({"GPTC_COLOUR=1"});
  ASSERT_EQ(far.size(), 1u);
  EXPECT_NE(far[0].find("there are GPTC_CACHE, GPTC_THREADS, "), std::string::npos) << far[0];
  EXPECT_EQ(far[0].find("GPTC_PULSE"), std::string::npos) << "nobody sets it by hand";
  EXPECT_EQ(told({"GPTC_STANDIN_ORDER=1", "GPTC_TEST_AT=x", "GPTC_UPDATE_GOLDEN=1", "GPTC_FAULTS=50", "GPTC_RANK=0",
                  "GPTC_WORLD=1", "GPTC_LOCAL_RANK=0", "GPTC_LOCAL_WORLD=1", "GPTC_PULSE=3", "GPTC_INPUT=0",
                  "GPTC_BIN_DIR=build", "XGPTC_CAHCE=1", "GPTC"}),
            Sentences{});
  EXPECT_TRUE(strangeVariables(nullptr).empty());
}

TEST(Environment, OnlyKnownOnesAreRead) {
  ASSERT_EQ(::setenv("GPTC_CACHE", "there", 1), 0);
  EXPECT_STREQ(ownVariable("GPTC_CACHE"), "there");
  ASSERT_EQ(::unsetenv("GPTC_CACHE"), 0);
  EXPECT_EQ(ownVariable("GPTC_CACHE"), nullptr);
  EXPECT_THROW(ownVariable("GPTC_CAHCE"), InternalError);
}

TEST(Environment, ProgramsReadThemThroughTheTable) {
  const std::regex past("getenv\\(\\s*\"GPTC_");
  for (const char *folder : {"support", "ir", "passes", "codegen", "runtime", "frontends", "tools"})
    for (const auto &entry : fs::recursive_directory_iterator(fs::path(GPTC_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h")
        continue;
      EXPECT_FALSE(std::regex_search(test::contentOf(entry.path()), past))
          << entry.path() << ": ownVariable() of support/environment.h knows what there is";
    }
}

}  // namespace
