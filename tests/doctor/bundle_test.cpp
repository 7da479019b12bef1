// The programs of tools/bundle link, start under each of their names, and ask for nothing but glibc; tools/bundle makes
// no archive without cuDNN unless it is told to.
#include "tests/support/content.h"
#include "tests/support/shell.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace fs = std::filesystem;

namespace {

struct Answer {
  int code = -1;
  std::string text;
};

struct BundleTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-bundle-{}", ::getpid());
  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir / "bin");
  }
  void TearDown() override { fs::remove_all(dir); }

  /// In an environment of its own: what a suite says by variables is none of a program's business.
  Answer run(const std::string &command) {
    const std::string all =
        fmt::format("cd '{0}' && env -i PATH=/usr/bin:/bin HOME='{0}' {1} >'{0}/out' 2>&1", dir.string(), command);
    const int code = gptc::test::exitCodeOf(all);
    return {code, gptc::test::contentOf(dir / "out")};
  }
  void script(const fs::path &file, const std::string &text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text;
    fs::permissions(file, fs::perms::owner_all);
  }
};

#ifdef GPTC_BUNDLE
TEST_F(BundleTest, ItStartsUnderEachOfItsNames) {
  for (const char *name : {"gptc", "gptrun", "gptc-opt"}) {
    fs::create_symlink(GPTC_BUNDLE, dir / "bin" / name);
    const Answer help = run(fmt::format("bin/{} --help", name));
    EXPECT_EQ(help.code, 0) << help.text;
    EXPECT_NE(help.text.find(fmt::format("Usage: {} ", name)), std::string::npos) << help.text;
  }
  const Answer version = run("bin/gptc --version");
  EXPECT_EQ(version.code, 0) << version.text;
  EXPECT_EQ(version.text.find("gptc "), 0u) << version.text;
  const Answer tests = run("'" GPTC_BUNDLE "-device-test' --gtest_list_tests");
  EXPECT_EQ(tests.code, 0) << tests.text;
  EXPECT_NE(tests.text.find("\nSpeed.\n"), std::string::npos) << tests.text;
}

TEST_F(BundleTest, ItsDoctorExaminesTheMachine) {
  const Answer a = run("GPTC_CUDA=/nowhere '" GPTC_BUNDLE "' doctor");
  EXPECT_EQ(a.code, 0) << a.text;
  EXPECT_NE(a.text.find("cpu can run"), std::string::npos) << a.text;
}

TEST_F(BundleTest, ItNeedsNothingButGlibc) {
  const Answer a = run("readelf -dW '" GPTC_BUNDLE "' '" GPTC_BUNDLE
                       "-device-test' | sed -nE 's/.*\\(NEEDED\\).*\\[(.*)\\]/\\1/p' | "
                       "grep -vxE 'lib(c|m|dl|pthread|rt)\\.so\\.[0-9]+|ld-linux-x86-64\\.so\\.2'");
  EXPECT_EQ(a.text, "");
  EXPECT_EQ(a.code, 1) << "grep finds no other";
}
#endif

// A build folder that is made up: all that counts is what its program says of cuDNN.
TEST_F(BundleTest, WithoutCudnnItSaysSo) {
  std::ofstream(dir / "build.ninja") << "build bundle_program: phony\nbuild bundle_device_test: phony\n";
  script(dir / "bundle/gptc", "echo 'cuDNN use  none: this gptc was built without'\n");
  script(dir / "bundle/gptc-device-test", "");
  const std::string bundle = fmt::format("'{}/tools/bundle' --build '{}' -o archive", GPTC_SOURCE_DIR, dir.string());
  Answer a = run(bundle);
  EXPECT_EQ(a.code, 1) << a.text;
  EXPECT_NE(a.text.find("without cuDNN's headers"), std::string::npos) << a.text;
  EXPECT_NE(a.text.find("--without-cudnn"), std::string::npos) << a.text;
  a = run(bundle + " --without-cudnn");
  EXPECT_EQ(a.code, 1) << a.text;
  EXPECT_EQ(a.text.find("cuDNN"), std::string::npos) << "it goes on, to what a script is not: " << a.text;
}

}  // namespace
