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
  int run(const std::string &environment, const std::string &arguments = "--quick") {
    const std::string command =
        fmt::format("cd '{0}' && env HOME='{0}' {1} '{2}/tools/gpu-check' --bin '{3}' {4} -o report.json >out 2>&1",
                    dir.string(), environment, GPTC_SOURCE_DIR, GPTC_BIN_DIR, arguments);
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
  /// What a check said, and all that it gave for programs.
  nlohmann::json about(const std::string &check) {
    for (const auto &c : report["checks"])
      if (c["check"] == check)
        return c;
    return {};
  }
  /// A compute-sanitizer that prints this and fails, on PATH.
  std::string sanitizer(const std::string &says) {
    fs::create_directories(dir / "bin");
    std::ofstream(dir / "bin/compute-sanitizer") << "#!/bin/sh\necho '" << says << "'\nexit 1\n";
    fs::permissions(dir / "bin/compute-sanitizer", fs::perms::owner_all);
    return "PATH='" + (dir / "bin").string() + "':\"$PATH\" ";
  }
  nlohmann::json report;
};

const std::string standins = "GPTC_CUDA='" GPTC_STANDINS "' ";

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

// Every row, on tiny models: all run on the CPU as on the GPU, and what is measured is there with its aim.
TEST_F(GpuCheckTest, EveryRowRuns) {
  EXPECT_EQ(run(standins, "--small --only '^(ten|tuning|GPT-2|copies|norm|sampling|nanoGPT)'"), 0) << report.dump(1);
  int rows = 0;
  for (const auto &[check, result] : results()) {
    EXPECT_EQ(result, "pass") << check;
    ++rows;
  }
  EXPECT_EQ(rows, 13) << report.dump(1);
  const std::string bf16 = about("ten steps, bf16")["text"];
  EXPECT_NE(bf16.find("cuBLASLt for 30 of 30 matmul groups"), std::string::npos) << bf16;
  EXPECT_NE(about("tuning")["text"].get<std::string>().find(" products: "), std::string::npos) << report.dump(1);
  for (auto [check, aim] : {std::pair{"GPT-2 124M, bf16", 50.0}, std::pair{"GPT-2 1.5B, bf16", 58.0},
                            std::pair{"nanoGPT's 10.9M, bf16", 4e6}, std::pair{"norm backward", 80.0},
                            std::pair{"sampling, GPT-2 124M", 35.0}}) {
    EXPECT_EQ(about(check)["aim"], aim) << check;
    EXPECT_TRUE(about(check)["value"].is_number()) << check;
  }
  EXPECT_EQ(report["missed"], 0) << "aims are for an H200";
}

TEST_F(GpuCheckTest, TwoGpusAreComparedWithOne) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_DEVICES=2 ", "--small --only ranks"), 0) << report.dump(1);
  EXPECT_EQ(results()["ranks: two GPUs"], "pass") << report.dump(1);
  EXPECT_EQ(run(standins, "--small --only ranks"), 0) << report.dump(1);
  EXPECT_EQ(about("ranks: two GPUs")["text"], "1 GPU: nothing to compare");
}

// A row that looks at calls of cuBLASLt passes only where it has seen some.
TEST_F(GpuCheckTest, WithoutCublasLtNothingIsTuned) {
  fs::create_directories(dir / "cuda");
  for (const auto &file : fs::directory_iterator(GPTC_STANDINS))
    if (file.path().filename() != "libcublasLt.so.13")
      fs::create_symlink(file.path(), dir / "cuda" / file.path().filename());
  EXPECT_EQ(run("GPTC_CUDA='" + (dir / "cuda").string() + "'", "--small --only tuning"), 0) << report.dump(1);
  EXPECT_EQ(results()["tuning"], "skipped");
  EXPECT_EQ(about("tuning")["text"], "cuBLASLt is not here: no product is a call");
}

// And so does one that is there for what was timed.
TEST_F(GpuCheckTest, AlgorithmsThatWereNotTimedAreAFailure) {
  fs::create_directories(dir / "bin");
  for (const char *program : {"gptrun", "test_device"})
    fs::create_symlink(fs::path(GPTC_BIN_DIR) / program, dir / "bin" / program);
  std::ofstream(dir / "bin/gptc") << "#!/bin/sh\n[ \"$1\" = compile ] && set -- \"$@\" --set compile.autotune=off\n"
                                  << "exec '" GPTC_BIN_DIR "/gptc' \"$@\"\n";
  fs::permissions(dir / "bin/gptc", fs::perms::owner_all);
  EXPECT_EQ(run(standins, "--small --only tuning --bin '" + (dir / "bin").string() + "' "), 1) << report.dump(1);
  const std::string said = about("tuning")["text"];
  EXPECT_NE(said.find("its own choice of algorithms, not timed"), std::string::npos) << said;
}

TEST_F(GpuCheckTest, ASanitizerThatCannotStartIsSkipped) {
  EXPECT_EQ(
      run(standins + sanitizer("========= Error: Device not supported. See the documentation"), "--only sanitizer"), 0);
  EXPECT_EQ(results()["compute-sanitizer"], "skipped");
  EXPECT_EQ(about("compute-sanitizer")["text"], "Error: Device not supported. See the documentation");
  EXPECT_EQ(run(standins + sanitizer("========= Invalid __global__ read of size 4 bytes"), "--only sanitizer"), 1);
  EXPECT_EQ(results()["compute-sanitizer"], "fail");
}

}  // namespace
