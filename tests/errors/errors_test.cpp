// Runs golden/NAME.txt, each of which is one mistake of a user, with the text and exit code that the program must
// answer:
//
//   $ printf '[model]\n' > model.toml
//   $ gptc compile model.toml
//   exit 3
//   error[GPTC0207]: model.n_layer is missing
//   ...
//
// Lines of `$ ` are a shell script (`> ` continues a line, for here-documents). It runs in an empty folder with the
// programs in PATH; all but the last command must succeed, and what the last one writes to stderr is compared. The
// folder's own path reads `$DIR`. `. "$LIB/tiny.sh"` brings functions that make a tiny plan to damage,
// `. "$LIB/cluster.sh"` writes a model.toml and a cluster.toml to forecast. `$STANDINS` holds stand-ins for NVIDIA's
// libraries (tests/simt/standin).
//
// To add a case, write the `$ ` lines and run the suite once with GPTC_UPDATE_GOLDEN=1; read what it wrote before
// committing it. Every code of support/errors.def needs a case, or a reason below why it has none.
#include "runtime/cuda/cudnn.h"
#include "runtime/device/fault_place.h"
#include "support/diagnostics.h"
#include "tests/support/content.h"
#include "tests/support/shell.h"
#include "tests/support/whole_run.h"
#include "tests/unit/runtime/temp_dir.h"
#include "tools/commands/main_guard.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

const fs::path goldenDir = GPTC_SOURCE_DIR "/tests/errors/golden";

struct Case {
  std::string commands;  // as written
  std::string script;
  int exitCode = -1;
  std::string expected;
};

Case parseCase(const std::string &text) {
  Case c;
  std::istringstream in(text);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("exit ", 0) == 0) {
      c.exitCode = std::atoi(line.c_str() + 5);
      break;
    }
    c.commands += line + "\n";
    if (line.rfind("$ ", 0) == 0 || line.rfind("> ", 0) == 0)
      c.script += line.substr(2) + "\n";
    else if (line == ">")
      c.script += '\n';
  }
  std::ostringstream rest;
  rest << in.rdbuf();
  c.expected = rest.str();
  return c;
}

void replaceAll(std::string &text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (auto &entry : fs::directory_iterator(goldenDir))
    if (entry.path().extension() == ".txt")
      all.push_back(entry.path().stem().string());
  std::sort(all.begin(), all.end());
  return all;
}

class Golden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Errors, Golden, testing::ValuesIn(names()), [](auto &info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](char ch) { return !std::isalnum((unsigned char)ch); }, '_');
  return name;
});

TEST_P(Golden, TextAndExitCode) {
  const fs::path file = goldenDir / (GetParam() + ".txt");
  const Case c = parseCase(test::contentOf(file));
  ASSERT_NE(c.script, "") << file;
  if (GetParam().find("cudnn") != std::string::npos && cuda::cudnnFrontend().empty())
    GTEST_SKIP() << "built without cuDNN's headers";

  // One for all cases but those that meddle with it.
  const TempDir own;
  const std::string &cache = c.script.find("GPTC_CACHE") == std::string::npos ? test::sharedFolder("errors") : own.path;
  const fs::path dir = fs::canonical(testing::TempDir()) / fmt::format("gptc-errors-{}-{}", ::getpid(), GetParam());
  fs::remove_all(dir);
  fs::create_directories(dir / "work");
  std::ofstream(dir / "script") << "set -e\n" << c.script;
  const std::string command =
      fmt::format("cd '{0}/work' && env -i PATH='{1}':/usr/bin:/bin HOME='{0}' LANG=C.UTF-8 GPTC_CACHE='{3}' "
                  "ASAN_OPTIONS=\"$ASAN_OPTIONS\" GPTC_TEST_SHARED=\"$GPTC_TEST_SHARED\" LIB='{2}' "
                  "STANDINS='{1}/../lib/standin' bash ../script >'{0}/out' 2>'{0}/err' "
                  "</dev/null",
                  dir.string(), GPTC_BIN_DIR, goldenDir.parent_path().string(), cache);
  const int code = test::exitCodeOf(command);
  std::string text = test::contentOf(dir / "err");
  replaceAll(text, (dir / "work").string(), "$DIR");
  fs::remove_all(dir);

  if (std::getenv("GPTC_UPDATE_GOLDEN")) {
    std::ofstream(file) << c.commands << fmt::format("exit {}\n", code) << text;
    return;
  }
  EXPECT_EQ(code, c.exitCode) << c.script << text;
  EXPECT_EQ(text, c.expected) << "from " << file << "\nGPTC_UPDATE_GOLDEN=1 writes it anew";
}

// A wrong kernel meets a guard page of the arena.
TEST(Errors, AFaultOfMemoryNamesTheKernel) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer reports it";
#else
  EXPECT_EXIT(std::exit(guardedMain([] {
                const FaultPlace place("kernel train_step.3, h0.ln1 (layernorm)");
                return std::raise(SIGSEGV);
              })),
              testing::ExitedWithCode(70), "fault of memory in kernel train_step.3, h0.ln1 \\(layernorm\\)\n");
#endif
}

TEST(Errors, EveryCodeHasAGoldenTextAndTheExitCodeOfItsClass) {
  if (std::getenv("GPTC_UPDATE_GOLDEN"))
    GTEST_SKIP();
  // Codes that cannot be provoked by a short script, and where they are tested instead.
  const std::map<int, const char *> elsewhere = {
      {506, "needs a server: tests/load/bench_serve_test.cpp"},
      {601, "needs several ranks: tests/simt/standin/nccl_test.cpp, tests/collectives/failures_test.cpp"},
      {602, "needs several ranks: tests/simt/standin/nccl_test.cpp, tests/collectives/failures_test.cpp"},
      {603, "needs a server: tests/collectives/rendezvous_test.cpp"},
      {604, "needs several ranks: tests/collectives/conformance_test.cpp"},
  };
  std::map<int, int> exitCodes;
  for (const std::string &name : names()) {
    const Case c = parseCase(test::contentOf(goldenDir / (name + ".txt")));
    size_t at = c.expected.find("[GPTC");
    ASSERT_NE(at, std::string::npos) << name;
    exitCodes[std::atoi(c.expected.c_str() + at + 5)] = c.exitCode;
  }
#define GPTC_ERROR(name, number, exit_code, title, remedy)                                                             \
  if (exitCodes.count(number))                                                                                         \
    EXPECT_EQ(exitCodes[number], exit_code) << #name;                                                                  \
  else                                                                                                                 \
    EXPECT_TRUE(elsewhere.count(number)) << #name << " (" << number << ") has no golden text";
#include "support/errors.def"
#undef GPTC_ERROR
}

}  // namespace
