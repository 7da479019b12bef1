// tools/gpu-check against the stand-ins: the table, the JSON, the archive and the exit codes, and what becomes of them
// when kernels fail, hang or corrupt memory. What it proves is tests/device's.
#include "support/json.h"
#include "tests/support/content.h"
#include "tests/support/json_lines.h"
#include "tests/support/shell.h"
#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace fs = std::filesystem;

namespace {

struct GpuCheckTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-gpu-check-{}", ::getpid());
  // Kernels of the stand-ins take seconds to compile: once for all tests.
  const std::string &cache = gptc::test::sharedFolder("gpu-check");

  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir / "tmp");
  }
  void TearDown() override { fs::remove_all(dir); }

  std::string commandOf(const std::string &environment, const std::string &arguments) const {
    return fmt::format("cd '{0}' && exec env HOME='{0}' TMPDIR='{0}/tmp' GPTC_CACHE='{1}' {2} "
                       "'{3}/tools/gpu-check' --bin '{4}' -d results {5} >out 2>&1",
                       dir.string(), cache, environment, GPTC_SOURCE_DIR, GPTC_BIN_DIR, arguments);
  }
  static std::string nameOf(const std::string &arguments) {
    for (const char *half : {"figures", "proof"})
      if (arguments.find(std::string("--") + half) != std::string::npos)
        return std::string("gpu-check-") + half;
    return "gpu-check";
  }
  /// The exit code; the report is read into `report`.
  int run(const std::string &environment, const std::string &arguments) {
    const int code = gptc::test::exitCodeOf(commandOf(environment, arguments));
    readReport(arguments);
    return code;
  }
  void readReport(const std::string &arguments) {
    name = nameOf(arguments);
    std::ifstream file(dir / "results" / (name + ".json"));
    report = nlohmann::json::parse(file, nullptr, false);
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
  std::string textOf(const std::string &check) {
    const nlohmann::json row = about(check);
    return row.contains("text") ? row["text"].get<std::string>() : "";
  }
  /// A file of the archive; "" where it has none of that name.
  std::string archived(const std::string &file) {
    const std::string command = fmt::format("tar -xzOf '{}/results/{}.tar.gz' '{}/{}' >'{}/file' 2>/dev/null",
                                            dir.string(), name, name, file, dir.string());
    if (std::system(command.c_str()) != 0)
      return "";
    return gptc::test::contentOf(dir / "file");
  }
  /// Of what it started, and of what it wrote while it ran.
  void expectNothingLeft() {
    EXPECT_TRUE(fs::is_empty(dir / "tmp"));
    EXPECT_FALSE(fs::exists(dir / "results" / (name + ".running.log")));
    for (const auto &process : fs::directory_iterator("/proc")) {
      const std::string command = gptc::test::contentOf(process.path() / "cmdline");
      EXPECT_EQ(command.find((dir / "tmp").string()), std::string::npos) << command;
    }
  }
  /// A program in the place of one of ours, for --bin.
  std::string instead(const std::string &program, const std::string &script) {
    fs::create_directories(dir / "bin");
    for (const char *each : {"gptc", "gptrun", "test_device"})
      if (each != program)
        fs::create_symlink(fs::path(GPTC_BIN_DIR) / each, dir / "bin" / each);
    std::ofstream(dir / "bin" / program) << "#!/bin/bash\n" << script;
    fs::permissions(dir / "bin" / program, fs::perms::owner_all);
    return fmt::format(" --bin '{}'", (dir / "bin").string());
  }
  /// A compute-sanitizer that prints this and fails, on PATH.
  std::string sanitizer(const std::string &says) {
    fs::create_directories(dir / "bin");
    std::ofstream(dir / "bin/compute-sanitizer") << "#!/bin/sh\necho '" << says << "'\nexit 1\n";
    fs::permissions(dir / "bin/compute-sanitizer", fs::perms::owner_all);
    return "PATH='" + (dir / "bin").string() + "':\"$PATH\" ";
  }
  nlohmann::json report;
  std::string name;
};

const std::string standins = "GPTC_CUDA='" GPTC_STANDINS "' ";

TEST_F(GpuCheckTest, WithoutAGpuItSaysSo) {
  EXPECT_EQ(run("GPTC_CUDA=/nowhere", "--figures"), 4);
  EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "fail"}}));
  EXPECT_EQ(report["doctor"]["can_run"], false);
  EXPECT_EQ(report["state"], "complete");
  EXPECT_NE(archived("doctor.txt").find("cuda cannot run"), std::string::npos);
  expectNothingLeft();
}

// What doctor finds unfit ends it before anything runs.
TEST_F(GpuCheckTest, WhatCannotRunIsSaidAsDoctorSaysIt) {
  for (const char *unfit : {"GPTC_STANDIN_DRIVER=12040 ", "GPTC_STANDIN_ARCH=70 "}) {
    EXPECT_EQ(run(standins + unfit, "--proof"), 4) << report.dump(1);
    EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "fail"}}));
    EXPECT_EQ(report["doctor"]["can_run"], false);
    const std::string doctor = archived("doctor.txt");
    EXPECT_NE(
        doctor.find(unfit[13] == 'D' ? "is version 12.4, and 13.0 or later is needed" : "needed:  sm_75 or later"),
        std::string::npos)
        << doctor;
  }
}

// Libraries of another major version are none; rows that need memory which others hold fail with their coded errors.
TEST_F(GpuCheckTest, WhatDoesNotFitEndsRowsWithoutACrash) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_CUBLASLT=140000 GPTC_STANDIN_CUDNN=100000 ",
                "--figures --small --only '^(cuBLASLt|tuning)'"),
            0)
      << report.dump(1);
  EXPECT_EQ(textOf("cuBLASLt, 8192^3"), "cuBLASLt is not here");
  EXPECT_EQ(results()["tuning"], "skipped");
  EXPECT_EQ(run(standins + "GPTC_STANDIN_TAKEN=1073700000 ", "--proof --small --only 'char$'"), 1);
  const std::string said = textOf("ten steps, shakespeare-char");
  EXPECT_NE(said.find("error[GPTC0403]: the plan needs "), std::string::npos) << report.dump(1);
  EXPECT_EQ(report["state"], "complete");
}

// Who has mistyped a name is not told that all is well.
TEST_F(GpuCheckTest, NoRowIsNoPass) {
  EXPECT_EQ(run(standins, "--proof --only nothing"), 2);
  EXPECT_EQ(run(standins, "--proof --only '['"), 2);
}

TEST_F(GpuCheckTest, WithOneItChecksKernels) {
  EXPECT_EQ(run(standins, "--proof --only '^(device layer|conformance)$'"), 0);
  std::map<std::string, std::string> all = results();
  EXPECT_EQ(all["doctor"], "pass");
  EXPECT_EQ(all["device layer"], "pass");
  EXPECT_EQ(all["conformance"], "pass");
  EXPECT_EQ(report["failed"], 0);
  EXPECT_NE(report["device"].get<std::string>().find("stand-in"), std::string::npos) << report["device"];
  nlohmann::json figures;
  for (const nlohmann::json &record : gptc::test::jsonLines(archived("logs/cases-Device.jsonl")))
    if (record.contains("programs"))
      figures = record;
  EXPECT_GT(figures["compiled"], 100) << figures;
  EXPECT_LE(figures["compiled"], 20 * figures["programs"].get<int>()) << "one program keeps one core busy";
}

TEST_F(GpuCheckTest, WhatFailsIsCountedAndQuoted) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_FAULT=fail:row_layernorm_", "--proof --only '^(device layer|conformance)$'"),
            1);
  std::map<std::string, std::string> all = results();
  EXPECT_EQ(all["device layer"], "pass");
  EXPECT_EQ(all["conformance"], "fail");
  EXPECT_EQ(report["failed"], 1);
  EXPECT_EQ(about("conformance")["log"], "logs/conformance.log");
  EXPECT_NE(archived("logs/conformance.log").find("was told to access an illegal address"), std::string::npos);
  // Every case is there, whatever became of the others.
  std::map<std::string, int> count;
  for (const nlohmann::json &record : gptc::test::jsonLines(archived("logs/cases-Device.jsonl"))) {
    if (record.contains("result"))
      ++count[record["result"]];
    if (record.value("result", "") == "fail") {
      const std::string kernel = record["kernel"];
      EXPECT_EQ(kernel.find("row_layernorm_"), 0u) << record;
      EXPECT_NE(textOf("conformance").find(kernel), std::string::npos) << textOf("conformance");
    }
  }
  EXPECT_GE(count["fail"], 2);
  EXPECT_GT(count["pass"], 100);
  EXPECT_EQ(count["begun"], count["fail"] + count["pass"] + count["skipped"]);
}

// Of both halves some rows that pass.
TEST_F(GpuCheckTest, RowsOfBothHalvesRun) {
  EXPECT_EQ(run(standins, "--small --only '^(tuning|GPT-2 124M, 16|copies|ten steps, bf16)'"), 0) << report.dump(1);
  const std::map<std::string, std::string> all = results();
  for (const auto &[check, result] : all)
    EXPECT_EQ(result, "pass") << check;
  EXPECT_EQ(all.size(), 5u) << report.dump(1);
  EXPECT_EQ(report["halves"], (nlohmann::json{"figures", "proof"}));
  const std::string bf16 = textOf("ten steps, bf16");
  EXPECT_NE(bf16.find("cuBLASLt for 24 of 24 matmul groups"), std::string::npos) << bf16;
  EXPECT_EQ(about("GPT-2 124M, 16 x 1024")["aim"], 50.0);
  EXPECT_TRUE(about("copies")["value"].is_number());
  EXPECT_EQ(gptc::parseJson(archived("gpu-check.json")), report);
  expectNothingLeft();
}

// Every row of both halves, on tiny models: all run on the CPU as on the GPU, and what is measured is there with its
// aim.
TEST_F(GpuCheckTest, EveryRowRuns) {
  GPTC_LEFT_TO_ALL();
  EXPECT_EQ(run(standins, "--small --only '^(ten|tuning|GPT|copies|cuBLASLt|kernels|norm|sampling|nanoGPT)'"), 0)
      << report.dump(1);
  int rows = 0;
  for (const auto &[check, result] : results()) {
    EXPECT_EQ(result, "pass") << check;
    ++rows;
  }
  EXPECT_EQ(rows, 17) << report.dump(1);
  EXPECT_EQ(report["halves"], (nlohmann::json{"figures", "proof"}));
  const std::string bf16 = textOf("ten steps, bf16");
  EXPECT_NE(bf16.find("cuBLASLt for 24 of 24 matmul groups"), std::string::npos) << bf16;
  EXPECT_NE(textOf("tuning").find(" products: "), std::string::npos) << report.dump(1);
  EXPECT_NE(textOf("kernels").find(" ms a step in kernels; most take "), std::string::npos) << textOf("kernels");
  for (auto [check, aim] : {std::pair{"GPT-2 124M, 64 x 1024", 50.0}, std::pair{"GPT-2 124M, 16 x 1024", 50.0},
                            std::pair{"GPT-2 1.5B, 4 x 2048", 58.0}, std::pair{"nanoGPT's 10.9M, bf16", 4e6},
                            std::pair{"norm backward", 80.0}, std::pair{"sampling, GPT-2 124M", 35.0}}) {
    EXPECT_EQ(about(check)["aim"], aim) << check;
    EXPECT_TRUE(about(check)["value"].is_number()) << check;
  }
  for (const char *check : {"copies", "cuBLASLt, 8192^3", "GPT 1.3B, 4 x 2048"}) {
    EXPECT_TRUE(about(check)["value"].is_number()) << check;
    EXPECT_FALSE(about(check).contains("aim")) << check;
  }
  EXPECT_EQ(report["missed"], 0) << "aims are for an H200";
  // What is kept of it.
  EXPECT_NE(archived("profiles/gpt2-large.txt").find("all kernels"), std::string::npos);
  EXPECT_NE(archived("plans/gpt2/schedules.json").find("algorithm="), std::string::npos);
  EXPECT_NE(archived("runs/bf16-cuda.jsonl").find("\"loss\""), std::string::npos);
  EXPECT_NE(archived("logs/tuning.log").find(" products: "), std::string::npos);
  EXPECT_EQ(gptc::parseJson(archived("gpu-check.json")), report);
  EXPECT_LE(fs::file_size(dir / "results/gpu-check.tar.gz"), size_t(16) << 20);
  expectNothingLeft();
}

TEST_F(GpuCheckTest, TwoGpusAreComparedWithOne) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_DEVICES=2 ", "--proof --small --only ranks"), 0) << report.dump(1);
  EXPECT_EQ(results()["ranks: two GPUs"], "pass") << report.dump(1);
  EXPECT_EQ(run(standins, "--proof --small --only ranks"), 0) << report.dump(1);
  EXPECT_EQ(textOf("ranks: two GPUs"), "1 GPU: nothing to compare");
}

// Of each half rows that need the kernel, and one that does not: what can be had is had, and all ends in order.
TEST_F(GpuCheckTest, AKernelThatFailsEndsItsRowsOnly) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_FAULT=fail:layernorm ",
                "--small --only '^(copies|GPT-2 124M, 16|kernels|sampling|ten steps, bf16)'"),
            1);
  EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "pass"},
                                                           {"copies", "pass"},
                                                           {"GPT-2 124M, 16 x 1024", "fail"},
                                                           {"kernels", "fail"},
                                                           {"sampling, GPT-2 124M", "skipped"},
                                                           {"ten steps, bf16", "fail"}}))
      << report.dump(1);
  EXPECT_EQ(report["state"], "complete");
  for (const char *row : {"GPT-2 124M, 16 x 1024", "ten steps, bf16"}) {
    EXPECT_NE(textOf(row).find("was told to access an illegal address"), std::string::npos) << report.dump(1);
    EXPECT_NE(textOf(row).find("kernel train_step."), std::string::npos) << "it is named: " << report.dump(1);
  }
  expectNothingLeft();
}

TEST_F(GpuCheckTest, AKernelThatCorruptsMemoryIsSeen) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_FAULT=corrupt:layernorm ",
                "--small --only '^(copies|GPT-2 124M, 16|ten steps, bf16)'"),
            1);
  EXPECT_EQ(results()["copies"], "pass") << report.dump(1);
  EXPECT_EQ(results()["GPT-2 124M, 16 x 1024"], "fail") << report.dump(1);
  EXPECT_EQ(results()["ten steps, bf16"], "fail") << report.dump(1);
  EXPECT_EQ(report["state"], "complete");
  expectNothingLeft();
}

// gptrun, which is told to end, waits for a kernel that never does.
TEST_F(GpuCheckTest, AKernelThatHangsTakesTheLimitAndNoMore) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_FAULT=hang:layernorm ",
                "--figures --small --seconds 15 --only '^(GPT-2 124M, 16|kernels)'"),
            1);
  EXPECT_EQ(results()["GPT-2 124M, 16 x 1024"], "fail") << report.dump(1);
  EXPECT_NE(textOf("GPT-2 124M, 16 x 1024").find("took longer than"), std::string::npos) << report.dump(1);
  EXPECT_EQ(results()["kernels"], "skipped") << report.dump(1);
  EXPECT_EQ(textOf("kernels"), "no time is left of 15 s");
  EXPECT_EQ(report["state"], "out of time");
  expectNothingLeft();
}

// Whoever ends it gets what there is until then.
TEST_F(GpuCheckTest, WhatIsInterruptedIsWrittenDown) {
  const std::string arguments = "--figures --only '^(cuBLASLt|copies)'";
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", commandOf(standins + "GPTC_STANDIN_FAULT=hang:copy ", arguments).c_str(), nullptr);
    _exit(127);
  }
  const fs::path log = dir / "results/gpu-check-figures.running.log";
  int status = 0;
  while (!fs::exists(log) && ::waitpid(child, &status, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  readReport(arguments);
  EXPECT_EQ(report["state"], "running");
  EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "pass"}}));
  ::kill(child, SIGTERM);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 130);
  readReport(arguments);
  EXPECT_EQ(report["state"], "interrupted");
  EXPECT_EQ(results(), (std::map<std::string, std::string>{{"doctor", "pass"}, {"copies", "fail"}}));
  EXPECT_EQ(textOf("copies"), "interrupted");
  EXPECT_EQ(gptc::parseJson(archived(name + ".json")), report);
  expectNothingLeft();
}

// Compiled kernels of a check are in its archive, and those of earlier archives in the same folder are used.
TEST_F(GpuCheckTest, KernelsTravelFromOneCheckToTheNext) {
  fs::create_directories(dir / "gpu-check-proof/cache");
  fs::create_directories(dir / "results");
  std::ofstream(dir / "gpu-check-proof/cache/0123") << "kernel";
  std::ofstream(dir / "gpu-check-proof/cache/tuning.key") << "secret";
  const std::string pack =
      fmt::format("tar -C '{0}' -czf '{0}/results/gpu-check-proof.tar.gz' gpu-check-proof", dir.string());
  ASSERT_EQ(std::system(pack.c_str()), 0);
  EXPECT_EQ(run("GPTC_CACHE= " + standins, "--figures --only '^nothing'"), 2);
  EXPECT_EQ(archived("cache/0123"), "kernel");
  EXPECT_EQ(archived("cache/tuning.key"), "");
}

// Parts of it by themselves.
TEST_F(GpuCheckTest, TheArchiveHasALimitAndOnlyTheProgramItselfEndsIt) {
  std::ofstream(dir / "script") << "set -euo pipefail\n"
                                   "name=gpu-check dir=$PWD/results work=$PWD/work bin=" GPTC_BIN_DIR
                                   " halves=(proof) budget=480\n"
                                   "mkdir -p work results\nset +u\n"
                                   ". '" GPTC_SOURCE_DIR "/tools/gpu_check/report.sh'\n"
                                   // A subshell that still has the traps when it is told to end takes nothing away.
                                   "(at_exit)\n[ -d \"$work\" ]\n[ ! -e results/gpu-check.json ]\ntrap - EXIT\n"
                                   // Logs that do not fit give way from their beginnings on, and kernels before them.
                                   "limit_of_archive=20000\nmkdir $keep/cache\n"
                                   "head -c 30000 /dev/urandom >$keep/cache/kernel\n"
                                   "head -c 60000 /dev/urandom >$keep/logs/long.log\n"
                                   "echo short >$keep/logs/short.log\n"
                                   "echo the end >>$keep/logs/long.log\npack\n";
  const std::string command = fmt::format("cd '{}' && GPTC_CACHE=$PWD bash script", dir.string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  name = "gpu-check";
  EXPECT_LE(fs::file_size(dir / "results/gpu-check.tar.gz"), 20000u);
  EXPECT_EQ(archived("cache/kernel"), "");
  EXPECT_EQ(archived("logs/short.log"), "short\n");
  const std::string log = archived("logs/long.log");
  EXPECT_EQ(log.find("(only the end of it)\n"), 0u);
  EXPECT_EQ(log.substr(log.size() - 8), "the end\n");
}

// Whatever a program prints, the report can be read.
TEST_F(GpuCheckTest, BytesThatAreNoTextAreLeftOut) {
  const std::string bin = instead("test_device", "printf 'is \\\"\\xff\\xfe\\033[1m\\tb\\\\ad%5000s\\n' end; exit 1\n");
  EXPECT_EQ(run(standins, "--figures --only '^copies$'" + bin), 1);
  ASSERT_FALSE(report.is_discarded());
  EXPECT_EQ(textOf("copies").substr(0, 12), "is \"[1m\tb\\ad");
  EXPECT_LE(textOf("copies").size(), 1000u);
}

// A row that looks at calls of cuBLASLt passes only where it has seen some.
TEST_F(GpuCheckTest, WithoutCublasLtNothingIsTuned) {
  fs::create_directories(dir / "cuda");
  for (const auto &file : fs::directory_iterator(GPTC_STANDINS))
    if (file.path().filename() != "libcublasLt.so.13")
      fs::create_symlink(file.path(), dir / "cuda" / file.path().filename());
  EXPECT_EQ(run("GPTC_CUDA='" + (dir / "cuda").string() + "'", "--figures --small --only '^(tuning|cuBLASLt)'"), 0)
      << report.dump(1);
  EXPECT_EQ(results()["tuning"], "skipped");
  EXPECT_EQ(textOf("tuning"), "cuBLASLt is not here: no product is a call");
  EXPECT_EQ(results()["cuBLASLt, 8192^3"], "skipped");
}

// And so does one that is there for what was timed.
TEST_F(GpuCheckTest, AlgorithmsThatWereNotTimedAreAFailure) {
  const std::string bin = instead("gptc", "[ \"$1\" = compile ] && set -- \"$@\" --set compile.autotune=off\n"
                                          "exec '" GPTC_BIN_DIR "/gptc' \"$@\"\n");
  EXPECT_EQ(run(standins, "--figures --small --only tuning" + bin), 1) << report.dump(1);
  const std::string said = textOf("tuning");
  EXPECT_NE(said.find("its own choice of algorithms, not timed"), std::string::npos) << said;
}

TEST_F(GpuCheckTest, ACallThatAGeneratedKernelReplacesIsAFailure) {
  EXPECT_EQ(run(standins + "GPTC_STANDIN_REFUSE=3 ", "--proof --small --only bf16"), 1) << report.dump(1);
  const std::string said = textOf("ten steps, bf16");
  EXPECT_NE(said.find("warning: generated kernels take the place of "), std::string::npos) << said;
}

// Whether it was built with cuDNN's headers or not: a cuDNN that is here is called.
TEST_F(GpuCheckTest, ACudnnThatIsNotCalledIsAFailure) {
  const fs::path cuda = dir / "cuda";
  fs::create_directories(cuda);
  for (const auto &file : fs::directory_iterator(GPTC_STANDINS))
    fs::create_symlink(file.path(), cuda / file.path().filename());
  if (!fs::exists(cuda / "libcudnn.so.9"))
    fs::copy_file(GPTC_FAKE_CUDA, cuda / "libcudnn.so.9");
  const std::string bin = instead("gptc", "set -o pipefail; '" GPTC_BIN_DIR "/gptc' \"$@\" | sed '/^ *cuDNN for /d'\n");
  EXPECT_EQ(run("GPTC_CUDA='" + cuda.string() + "'", "--proof --small --only bf16" + bin), 1) << report.dump(1);
  const std::string said = textOf("ten steps, bf16");
  EXPECT_NE(said.find("cuDNN is here, and "), std::string::npos) << said;
}

TEST_F(GpuCheckTest, ASanitizerThatCannotStartIsSkipped) {
  EXPECT_EQ(run(standins + sanitizer("========= Error: Device not supported. See the documentation"),
                "--proof --only sanitizer"),
            0);
  EXPECT_EQ(results()["compute-sanitizer"], "skipped");
  EXPECT_EQ(textOf("compute-sanitizer"), "Error: Device not supported. See the documentation");
  EXPECT_EQ(run(standins + sanitizer("========= Invalid __global__ read of size 4 bytes\n"
                                     "=========     at matmul_0123abcd_p0+0x10"),
                "--proof --only sanitizer"),
            1);
  EXPECT_EQ(results()["compute-sanitizer"], "fail");
  const std::string said = textOf("compute-sanitizer");
  EXPECT_NE(said.find("memcheck: Invalid __global__ read of size 4 bytes matmul_0123abcd_p0"), std::string::npos)
      << said;
}

// All three of its tools see matmul, attention and scattered sums.
TEST_F(GpuCheckTest, ASanitizerSeesWhatSharesMemory) {
  sanitizer("");
  std::ofstream(dir / "bin/compute-sanitizer") << "#!/bin/sh\necho \"tool: $2\"\nshift 6\nexec \"$@\"\n";
  EXPECT_EQ(run(standins + "PATH='" + (dir / "bin").string() + "':\"$PATH\" ", "--proof --only sanitizer"), 0);
  const std::string said = textOf("compute-sanitizer");
  EXPECT_EQ(said.find("memcheck, racecheck and initcheck are silent: EveryOp: "), 0u) << said;
  EXPECT_NE(said.find(" cases,NarrowStorage: 8 cases,Matmul: 10 cases,Attention: 6 cases"), std::string::npos) << said;
  const std::string log = archived("logs/compute-sanitizer.log");
  size_t at = 0;
  for (const char *tool : {"memcheck", "racecheck", "initcheck"})
    EXPECT_NE(at = log.find(std::string("tool: ") + tool, at), std::string::npos) << tool;
  for (const char *kernel :
       {"\"kernel\":\"matmul_", "\"kernel\":\"attention_grad_", "\"kernel\":\"scatter_embedding_grad_"})
    EXPECT_NE(archived("logs/cases-initcheck.jsonl").find(kernel), std::string::npos) << kernel;
}

}  // namespace
