// The program of tests/device, on the stand-ins: a case that fails, hangs, crashes or does not compile is recorded by
// its name, and hides no other.
#include "support/json.h"
#include "tests/support/content.h"
#include "tests/support/json_lines.h"
#include "tests/support/shell.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <string>
#include <unistd.h>

namespace fs = std::filesystem;

namespace {

struct DeviceProgramTest : testing::Test {
  fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-device-program-{}", ::getpid());
  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override { fs::remove_all(dir); }

  /// The exit code; what was printed and what was recorded are kept.
  int run(const std::string &environment, const std::string &options) {
    const std::string command =
        fmt::format("cd '{0}' && env -u GTEST_OUTPUT -u GTEST_BRIEF -u GPTC_CACHE HOME='{0}' GPTC_CUDA='{1}' "
                    "{2} '{3}/test_device' --results results {4} >out 2>&1",
                    dir.string(), GPTC_STANDINS, environment, GPTC_BIN_DIR, options);
    const int code = gptc::test::exitCodeOf(command);
    out = gptc::test::contentOf(dir / "out");
    begun = 0;
    records.clear();
    for (const nlohmann::json &record : gptc::test::jsonLines(gptc::test::contentOf(dir / "results"))) {
      if (!record.contains("case"))
        continue;
      begun += record["result"] == "begun";
      records[record["case"]] = record;
    }
    return code;
  }
  /// Of three small kernels.
  int runThree(const std::string &environment, const std::string &options = "") {
    return run(environment, "--gtest_filter=Device.NarrowStorage --cases '/bf16 ' " + options);
  }
  std::map<std::string, std::string> results() const {
    std::map<std::string, std::string> all;
    for (const auto &[name, record] : records)
      all[name] = record["result"];
    return all;
  }
  std::string out;
  int begun = 0;
  std::map<std::string, nlohmann::json> records;  // the last of each case
};

using Results = std::map<std::string, std::string>;

TEST_F(DeviceProgramTest, EachCaseIsRecorded) {
  EXPECT_EQ(runThree(""), 0) << out;
  EXPECT_EQ(results(), (Results{{"bf16 fold", "pass"}, {"bf16 pointwise", "pass"}, {"bf16 row", "pass"}})) << out;
  EXPECT_EQ(begun, 3);
  const nlohmann::json &row = records["bf16 row"];
  EXPECT_EQ(row["test"], "NarrowStorage");
  EXPECT_EQ(row["dtype"], "bf16");
  EXPECT_EQ(row["kernel"].get<std::string>().find("row_cast_softmax_cast_"), 0u) << row;
  EXPECT_NE(out.find("NarrowStorage: 3 cases of 3 kernels, 2 to the bit, 3 within a bound\n"), std::string::npos)
      << out;
}

// The first of three: an error of the driver stays with the process where it came up.
TEST_F(DeviceProgramTest, NoFaultHidesAnotherCase) {
  for (auto [kind, problem] :
       {std::pair{"fail", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"}, std::pair{"crash", "the process ended by signal 6"},
        std::pair{"corrupt", "was stored to"}}) {
    EXPECT_EQ(runThree(fmt::format("GPTC_STANDIN_FAULT={}:pointwise_", kind)), 1) << kind << "\n" << out;
    EXPECT_EQ(results(), (Results{{"bf16 fold", "pass"}, {"bf16 pointwise", "fail"}, {"bf16 row", "pass"}}))
        << kind << "\n"
        << out;
    EXPECT_EQ(begun, 3) << kind;
    const nlohmann::json &failed = records["bf16 pointwise"];
    EXPECT_NE(failed["problem"].get<std::string>().find(problem), std::string::npos) << failed;
    const std::string kernel = failed["kernel"];
    EXPECT_NE(out.find(fmt::format("\nfailed: NarrowStorage/bf16 pointwise ({}): ", kernel)), std::string::npos) << out;
  }
}

TEST_F(DeviceProgramTest, ACaseThatDoesNotEndIsLeftBehind) {
  EXPECT_EQ(runThree("GPTC_STANDIN_FAULT=hang:row_", "--case-seconds 8"), 1) << out;
  EXPECT_EQ(results(), (Results{{"bf16 fold", "pass"}, {"bf16 pointwise", "pass"}, {"bf16 row", "fail"}})) << out;
  EXPECT_NE(records["bf16 row"]["problem"].get<std::string>().find("did not end within 8 s"), std::string::npos) << out;
}

TEST_F(DeviceProgramTest, AKernelThatIsNotCompiledFailsAlone) {
  EXPECT_EQ(runThree("GPTC_STANDIN_REJECT=GPTC_KERNEL\\(row_"), 1) << out;
  EXPECT_EQ(results(), (Results{{"bf16 fold", "pass"}, {"bf16 pointwise", "pass"}, {"bf16 row", "fail"}})) << out;
  EXPECT_NE(records["bf16 row"]["problem"].get<std::string>().find("told to reject"), std::string::npos) << out;
}

// With all in one process, as under compute-sanitizer, the rest is said not to have run.
TEST_F(DeviceProgramTest, InOneProcessTheRestIsNotRun) {
  EXPECT_EQ(runThree("GPTC_STANDIN_FAULT=fail:row_", "--one-process"), 1) << out;
  EXPECT_EQ(results(), (Results{{"bf16 fold", "not run"}, {"bf16 pointwise", "pass"}, {"bf16 row", "fail"}})) << out;
  EXPECT_EQ(runThree("", "--one-process --uninitialised"), 0) << out;
}

TEST_F(DeviceProgramTest, WithoutADeviceItSaysSoAndPreparesAllTheSame) {
  EXPECT_EQ(runThree("GPTC_STANDIN_DEVICES=0"), 1);
  EXPECT_NE(out.find("no GPU can be used: the driver sees no GPU"), std::string::npos) << out;
  EXPECT_EQ(runThree("GPTC_STANDIN_DEVICES=0", "--prepare sm_80"), 0) << out;
  EXPECT_NE(out.find("3 kernels, 3 of them compiled"), std::string::npos) << out;
  EXPECT_EQ(results(), Results());
  EXPECT_EQ(runThree("", "--case-seconds"), 2) << out;
  EXPECT_NE(out.find("--case-seconds N"), std::string::npos) << out;
}

}  // namespace
