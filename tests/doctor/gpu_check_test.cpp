// tools/gpu-check against the stand-ins: the table, the JSON and the exit codes. What it proves is tests/device's.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <sys/wait.h>

namespace fs = std::filesystem;

namespace {

struct GpuCheckTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-gpu-check-{}", ::getpid());
  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override { fs::remove_all(dir); }

  /// The exit code; the report is read into `report`.
  int run(const std::string &environment) {
    const std::string command =
        fmt::format("cd '{0}' && env HOME='{0}' {1} '{2}/tools/gpu-check' --quick --bin '{3}' -o report.json >out 2>&1",
                    dir.string(), environment, GPTC_SOURCE_DIR, GPTC_BIN_DIR);
    const int status = std::system(command.c_str());
    std::ifstream file(dir / "report.json");
    report = nlohmann::json::parse(file, nullptr, false);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  std::map<std::string, std::string> results() {
    std::map<std::string, std::string> all;
    for (const auto &c : report["checks"])
      all[c["check"]] = c["result"];
    return all;
  }
  nlohmann::json report;
};

TEST_F(GpuCheckTest, WithoutAGpuItSaysSo) {
  EXPECT_EQ(run("GPTC_CUDA=/nowhere"), 4);
  EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "fail"}}));
  EXPECT_EQ(report["doctor"]["can_run"], false);
}

TEST_F(GpuCheckTest, WithOneItChecksKernels) {
  EXPECT_EQ(run("GPTC_CUDA='" GPTC_STANDINS "'"), 0);
  std::map<std::string, std::string> all = results();
  EXPECT_EQ(all["doctor"], "pass");
  EXPECT_EQ(all["device layer"], "pass");
  EXPECT_EQ(all["conformance"], "pass");
  EXPECT_EQ(report["failed"], 0);
  EXPECT_NE(report["device"].get<std::string>().find("stand-in"), std::string::npos) << report["device"];
}

TEST_F(GpuCheckTest, WhatFailsIsCountedAndQuoted) {
  // A compiler that takes the device layer and none of the ops' kernels.
  EXPECT_EQ(run("GPTC_STANDIN_REJECT=k1_p0 GPTC_CUDA='" GPTC_STANDINS "'"), 1);
  std::map<std::string, std::string> all = results();
  EXPECT_EQ(all["device layer"], "pass");
  EXPECT_EQ(all["conformance"], "fail");
  EXPECT_EQ(report["failed"], 1);
}

}  // namespace
