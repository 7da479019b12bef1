// What gptrun says to bad input: a coded error with the fix, the right exit code, nothing lost.
#include "runtime/plan/manifest.h"
#include "support/files.h"
#include "support/json.h"
#include "tests/support/eventually.h"
#include "tests/support/harness.h"

#include <cstring>
#include <filesystem>
#include <functional>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

struct BadInput : ::testing::Test {
  void expect(const Result &r, int exitCode, const std::string &code, const std::string &says) {
    EXPECT_EQ(r.code, exitCode) << r.output;
    EXPECT_NE(r.output.find("error[" + code + "]"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(says), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("help: "), std::string::npos) << "no fix is named\n" << r.output;
  }
  Workplace w;
};

TEST_F(BadInput, CommandLines) {
  expect(w.gptrun({}), 2, "GPTC0101", "which plan?");
  expect(w.gptrun({"plan", "--steps", "-1"}), 2, "GPTC0101", "--steps");
  expect(w.gptrun({"plan", "--resume", "perhaps"}), 2, "GPTC0101", "--resume");
  expect(w.gptrun({"plan", "--unknown"}), 2, "GPTC0101", "--unknown");
  expect(w.gptrun({"sample", "plan", "--top-p", "2"}), 2, "GPTC0101", "--top-p");
  expect(w.gptrun({w.path("nothing")}), 3, "GPTC0301", "no plan");
  EXPECT_EQ(w.gptrun({"--help"}).code, 0);
}

TEST_F(BadInput, StepsBeyondTheScheduleAreSaid) {
  const std::string said = "warning: --steps 13 goes beyond the 12 steps of the plan";
  Result r = w.gptrun({w.compile("plan"), "--steps", "13"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find(said), std::string::npos) << r.output;
  r = w.gptrun({w.compile("constant", {"optimizer.schedule=constant"}), "--steps", "13", "--out-dir", w.path("other")});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("goes beyond"), std::string::npos) << "its rate goes on as it was\n" << r.output;
}

TEST_F(BadInput, TokenFiles) {
  std::string plan = w.compile("plan"), train = w.path("train.bin"), good = readFile(train);
  fs::remove(train);
  expect(w.gptrun({plan}), 3, "GPTC0301", "train.bin");
  writeFile(train, "");
  expect(w.gptrun({plan}), 3, "GPTC0302", "train.bin: the file is empty");
  writeFile(train, good.substr(0, 999));
  expect(w.gptrun({plan}), 3, "GPTC0302", "odd number");
  writeFile(train, good.substr(0, 20));
  expect(w.gptrun({plan}), 3, "GPTC0302", "10 tokens, and 17 are needed");
  std::string bad = good;
  for (size_t i = 1001; i < bad.size(); i += 100)
    bad[i] = 1;  // the upper byte: tokens from 256 on
  writeFile(train, bad);
  expect(w.gptrun({plan}), 3, "GPTC0303", "beyond the vocabulary of 64");
  bad = good;
  bad[2 * 1300 + 1] = 1;  // the third step reads it
  writeFile(train, bad);
  expect(w.gptrun({plan}), 3, "GPTC0303", "at position 1300");
  EXPECT_TRUE(w.checkpoints(w.path("out")).empty()) << "found before the first checkpoint";
  fs::remove_all(w.path("out"));
  writeFile(train, good);
  std::string val = w.path("val.bin");
  writeFile(val, readFile(val) + std::string("\x40\x00", 2));
  expect(w.gptrun({plan}), 3, "GPTC0303", "token 64 at position 301");
  EXPECT_TRUE(w.checkpoints(w.path("out")).empty()) << "found before the first step";
  fs::remove(val);
  expect(w.gptrun({plan}), 3, "GPTC0301", "val.bin");
}

TEST_F(BadInput, Plans) {
  std::string plan = w.compile("plan"), file = plan + "/planned.gir", good = readFile(file);
  // Checksums find an accident; forged_plan_test has damage that a checksum hides.
  std::string bad = good;
  size_t at = bad.find("at=[", bad.find("fused"));
  ASSERT_NE(at, std::string::npos);
  bad.insert(at + 4, "9");
  writeFile(file, bad);
  expect(w.gptrun({plan}), 5, "GPTC0503", "checksum");
  writeFile(file, good.substr(0, good.size() / 2));
  expect(w.gptrun({plan}), 5, "GPTC0503", "checksum");
  fs::remove(file);
  expect(w.gptrun({plan}), 5, "GPTC0503", "planned.gir");
  writeFile(file, good);
  for (const auto &[text, problem] : {std::pair{"{}", "it lacks \"schema\""},
                                      {"{\n\"schema\": 2,\n", "it is no JSON: line 3"},
                                      {"[1]", "a value is not of the type that belongs there"}}) {
    writeFile(plan + "/manifest.json", text);
    expect(w.gptrun({plan}), 5, "GPTC0503", std::string("damaged: manifest.json: ") + problem + "\n");
  }
  fs::remove(plan + "/manifest.json");
  expect(w.gptrun({plan}), 3, "GPTC0301", "no manifest.json");
}

TEST_F(BadInput, Folders) {
  std::string plan = w.compile("plan");
  writeFile(w.path("file"), "");
  expect(w.gptrun({plan, "--out-dir", w.path("file/out")}), 4, "GPTC0401", "file/out");
  expect(w.gptrun({plan, "--out-dir", w.path("file")}), 4, "GPTC0401", "file");
  expect(w.gptrun({plan, "--out-dir", "/proc/nothing"}), 4, "GPTC0401", "/proc/nothing");
  expect(w.gptrun({plan, "--resume", "must"}), 3, "GPTC0301", "no checkpoint");
  expect(w.gptrun({"eval", plan}), 3, "GPTC0301", "no checkpoint");
}

TEST_F(BadInput, Checkpoints) {
  std::string plan = w.compile("plan");
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  std::string other = w.compile("other", {"model.n_embd=64"});
  expect(w.gptrun({other}), 5, "GPTC0505", "another model");
  for (const std::string &name : w.checkpoints(w.path("out")))
    writeFile(w.path("out/checkpoints/" + name + "/manifest.json"), "nonsense");
  std::string log = readFile(w.path("out/log.jsonl"));
  const Result nonsense = w.gptrun({plan});
  expect(nonsense, 5, "GPTC0504", "none of the 2 checkpoints");
  EXPECT_NE(nonsense.output.find("manifest.json: it is no JSON: line 1\n"), std::string::npos) << nonsense.output;
  EXPECT_EQ(readFile(w.path("out/log.jsonl")), log) << "a refused run must not touch the log";
  // Starting over keeps what was there.
  ASSERT_EQ(w.gptrun({plan, "--resume", "never"}).code, 0);
  EXPECT_EQ(readFile(w.path("out/old-1/log.jsonl")), log);
  EXPECT_EQ(w.checkpoints(w.path("out")).size(), 2u);
}

TEST_F(BadInput, DivergenceIsExplained) {
  std::vector<std::string> wild = {"optimizer.lr=900", "train.grad_clip=0", "train.steps=100", "eval.every=0"};
  std::string plan = w.compile("plan", wild);
  Result r = w.gptrun({plan});
  expect(r, 4, "GPTC0406", "first value that is not finite");
  std::vector<std::string> saved = w.checkpoints(w.path("out"));
  ASSERT_FALSE(saved.empty()) << "the last good state is kept";
  // The error names the step after the saved one, and running again comes to the same end.
  EXPECT_NE(r.output.find("step " + std::to_string(std::stoi(saved.back().substr(5)) + 1) + ":"), std::string::npos)
      << r.output;
  expect(w.gptrun({plan}), 4, "GPTC0406", "first value that is not finite");
  wild.push_back("train.on_nonfinite=halt");
  wild.push_back("out_dir=" + w.path("halt"));
  expect(w.gptrun({w.compile("halt-plan", wild)}), 4, "GPTC0406", "gradient norm");
  EXPECT_TRUE(w.finalState(w.path("halt")) == w.finalState(w.path("out")));
  wild[wild.size() - 2] = "train.on_nonfinite=skip";
  wild.back() = "out_dir=" + w.path("skip");
  Result skip = w.gptrun({w.compile("skip-plan", wild)});
  EXPECT_NE(skip.output.find("skipped"), std::string::npos) << skip.output;
  // In fp16 infinities meet; the sign of the NaN they make is the machine's business.
  wild.back() = "out_dir=" + w.path("fp16");
  wild.push_back("precision.compute=fp16");
  skip = w.gptrun({w.compile("fp16-plan", wild)});
  EXPECT_NE(skip.output.find("norm nan"), std::string::npos) << skip.output;
  EXPECT_EQ(skip.output.find("-nan"), std::string::npos) << skip.output;
}

// What --check finds ends a run behind the outer step of its step, so that what is saved is what a run without it has.
TEST_F(BadInput, AFindingIsSavedBehindItsOuterStep) {
  const std::string plan = w.compile("plan", {"train.steps=4", "parallel.sync_every=3"});
  ASSERT_EQ(w.gptrun({plan, "--steps", "3"}).code, 0);
  // First moments whose quotients overflow: the loss, which comes before the update, is good.
  const std::string folder = w.path("out/checkpoints/step-00000003"), name = "state/optimizer.safetensors";
  std::string bytes = readFile(folder + "/" + name);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto tensors = gptc::parseJson<nlohmann::ordered_json>(bytes.substr(sizeof header, header));
  const auto places = tensors.at("m.wte.weight").at("data_offsets").get<std::vector<size_t>>();
  constexpr float large = 3e38f;
  for (size_t at = places[0]; at < places[1]; at += sizeof large)
    std::memcpy(bytes.data() + sizeof header + header + at, &large, sizeof large);
  writeFile(folder + "/" + name, bytes);
  auto manifest = gptc::parseJson<nlohmann::ordered_json>(readFile(folder + "/manifest.json"));
  manifest["files"][name] = gptc::blake3(bytes);
  manifest["blake3"] = gptc::manifestChecksum(manifest);
  writeFile(folder + "/manifest.json", manifest.dump(2));
  fs::copy(w.path("out"), w.path("checked"), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  expect(w.gptrun({plan, "--out-dir", w.path("checked"), "--check"}), 4, "GPTC0406", "step 4: a value that is not");
  EXPECT_EQ(w.finalState(w.path("out")).rfind("step-00000004", 0), 0u);
  EXPECT_TRUE(w.finalState(w.path("checked")) == w.finalState(w.path("out")));
}

TEST_F(BadInput, AnErrorKeepsTheOlderCheckpoints) {
  // Trains normally at first; then a checkpoint is kept, and the learning rate of another plan of the model is wild.
  std::string plan = w.compile("plan", {"checkpoint.keep=1", "train.steps=6"});
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  std::string wild =
      w.compile("wild", {"checkpoint.keep=1", "checkpoint.every=0", "optimizer.lr=900", "train.grad_clip=0",
                         "eval.every=0", "train.steps=100", "train.on_nonfinite=halt"});
  expect(w.gptrun({wild}), 4, "GPTC0406", "gradient norm");
  std::vector<std::string> saved = w.checkpoints(w.path("out"));
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved[0], "step-00000006");
  // Running into it again does no harm either.
  expect(w.gptrun({wild}), 4, "GPTC0406", "gradient norm");
  EXPECT_EQ(w.checkpoints(w.path("out")), saved);
}

TEST_F(BadInput, ATraceThatCannotBeWrittenSpoilsNoCheckpoint) {
  std::string plan = w.compile("plan", {"checkpoint.every=0"});
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("whole")}).code, 0);
  std::string traced = w.compile("traced", {"checkpoint.every=0", "log.trace_steps=[2, 3]"});
  fs::create_directories(w.path("out/trace.json"));
  expect(w.gptrun({traced}), 4, "GPTC0401", "trace.json");
  ASSERT_EQ(w.checkpoints(w.path("out")), std::vector<std::string>{"step-00000003"});
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  EXPECT_TRUE(w.finalState(w.path("out")) == w.finalState(w.path("whole"))) << "other bits after the error";
  EXPECT_EQ(logLines(w.path("out")), logLines(w.path("whole")));
}

TEST_F(BadInput, DataCutShortDuringARun) {
  std::string plan = w.compile("plan", {"train.steps=1000000", "checkpoint.every=0", "eval.every=0"});
  Process p = w.start("gptrun", {plan});
  ASSERT_TRUE(gptc::test::eventually([&] { return logLines(w.path("out")).size() >= 3; }));
  fs::resize_file(w.path("train.bin"), 10);
  expect(p.wait(), 3, "GPTC0302", "train.bin");
  EXPECT_EQ(w.checkpoints(w.path("out")).size(), 1u) << "what was trained is kept";
}

TEST_F(BadInput, TheLargestBatchesAreCounted) {
  Result r = w.gptc({"compile", w.modelFile(), "-o", w.path("plan"), "--set", "train.steps=1000000000", "--set",
                     "train.global_batch_tokens=4294967296"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("4,294,967,296,000,000,000 tokens"), std::string::npos) << r.output;
  r = w.gptc({"compile", w.modelFile(), "-o", w.path("plan"), "--set", "train.global_batch_tokens=4294967360"});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("must be 1 to 4294967296"), std::string::npos) << r.output;
}

TEST_F(BadInput, ProfilesCountTheirOwnSteps) {
  // A traced step is in no profile: where all are traced there is nothing to print.
  std::string plan = w.compile("plan", {"log.trace_steps=[1, 12]"});
  Result r = w.gptrun({plan, "--profile"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("all kernels"), std::string::npos) << "no step was profiled\n" << r.output;
}

TEST_F(BadInput, TracesAndEvents) {
  std::string plan = w.compile("plan", {"log.trace_steps=[2, 3]", "log.tensorboard=true"});
  Result r = w.gptrun({plan, "--profile"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("GFLOP/s"), std::string::npos);
  EXPECT_NE(r.output.find("attention"), std::string::npos);
  EXPECT_NE(r.output.find("all kernels"), std::string::npos);
  nlohmann::json trace = gptc::parseJson(readFile(w.path("out/trace.json")));
  int steps = 0, kernels = 0;
  for (auto &e : trace["traceEvents"]) {
    if (e["ph"] == "M")
      continue;
    steps += e["cat"] == "step";
    kernels += e["cat"] == "attention";
    EXPECT_GE(e["dur"], 0);
  }
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(kernels, 2 * 2);  // two steps, two layers
  EXPECT_EQ(std::distance(fs::directory_iterator(w.path("out/events")), fs::directory_iterator()), 1);
}

}  // namespace
