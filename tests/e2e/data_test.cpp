// A run goes on with the data that it began with, or says that it does not.
#include "tests/support/harness.h"

#include "runtime/data/data.h"
#include "runtime/plan/manifest.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include <algorithm>
#include <filesystem>
#include <functional>

using namespace e2e;

namespace {

struct DataTest : testing::Test {
  Workplace w;
  std::vector<uint16_t> tokens = std::vector<uint16_t>(40'000);
  DataTest() {
    for (size_t i = 1; i < tokens.size(); ++i)
      tokens[i] = uint16_t((tokens[i - 1] * 5 + 3 + i / 1000) % 64);
    write();
  }
  void write() { writeFile(w.path("train.bin"), {reinterpret_cast<const char *>(tokens.data()), tokens.size() * 2}); }
  std::string compile() { return w.compile("plan", {"train.steps=8", "eval.every=0", "checkpoint.every=4"}); }
  void expectRefused(const Result &r, const char *what) {
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find(what), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("starting all ranks again"), std::string::npos) << r.output;
  }
};

TEST_F(DataTest, OtherTokensAreRefusedUnlessAllowed) {
  const std::string plan = compile(), out = w.path("out");
  w.train(plan, "out", {"--steps", "4"});
  tokens[2148] ^= 1;  // of which the sixteen samples of earlier versions knew nothing
  write();
  const char *what = "train.bin has other tokens, though as many";
  const Result refused = w.gptrun({plan, "--out-dir", out});
  expectRefused(refused, what);
  EXPECT_NE(refused.output.find("--allow-changed-data"), std::string::npos) << refused.output;
  expectRefused(w.gptrun({plan, "--out-dir", out, "--ranks-per-node", "2"}), what);
  EXPECT_EQ(w.checkpoints(out).size(), 1u);
  tokens[2148] ^= 1;
  write();
  w.train(plan, "out", {"--steps", "6"});
  tokens[2148] ^= 1;
  write();
  const Result allowed = w.gptrun({plan, "--out-dir", out, "--allow-changed-data", "--ranks-per-node", "2"});
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  EXPECT_NE(allowed.output.find("warning: the training data is not that of the checkpoint"), std::string::npos)
      << allowed.output;
  EXPECT_EQ(w.checkpoints(out).back(), "step-00000008");
}

TEST_F(DataTest, CheckpointsOfEarlierVersionsAreComparedBySamples) {
  const std::string plan = compile(), out = w.path("out"), file = out + "/checkpoints/step-00000004/manifest.json";
  w.train(plan, "out", {"--steps", "4"});
  nlohmann::ordered_json j = gptc::parseJson<nlohmann::ordered_json>(readFile(file));
  ASSERT_EQ(j.erase("data_files"), 1u);
  auto say = [&](const std::string &print) {
    j["data"] = print;
    j["blake3"] = gptc::manifestChecksum(j);
    writeFile(file, j.dump(2));
  };
  say("of other data");
  expectRefused(w.gptrun({plan, "--out-dir", out}), "train.bin has other tokens");
  say(gptc::TokenData(w.path("train.bin"), "data.train", 64, 16, 17).sampledFingerprint());
  const Result r = w.gptrun({plan, "--out-dir", out});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("only those are compared"), std::string::npos) << r.output;
  EXPECT_NE(readFile(out + "/checkpoints/step-00000008/manifest.json").find("data_files"), std::string::npos);
}

// Earlier versions took every file for itself: prints without places in a stream, or samples alone.
TEST_F(DataTest, OldRunsOfSeveralFilesAreRefusedUnlessAllowed) {
  const std::string parts = w.path("parts"), text = readFile(w.path("train.bin"));
  std::filesystem::create_directory(parts);
  writeFile(parts + "/a.bin", text.substr(0, 50'000));
  writeFile(parts + "/b.bin", text.substr(50'000));
  const std::string plan =
      w.compile("plan", {"train.steps=8", "eval.every=0", "checkpoint.every=4", "data.train=" + parts});
  using json = nlohmann::ordered_json;
  auto manifestOf = [&](const std::string &out, int step) {
    return fmt::format("{}/checkpoints/step-{:08}/manifest.json", w.path(out), step);
  };
  auto resumesOnlyIfAllowed = [&](const std::string &out, const char *what, const std::function<void(json &)> &age) {
    w.train(plan, out, {"--steps", "4"});
    json j = gptc::parseJson<json>(readFile(manifestOf(out, 4)));
    ASSERT_EQ(j.at("data_files").at(1).at("first"), 25'000);
    age(j);
    j["blake3"] = gptc::manifestChecksum(j);
    writeFile(manifestOf(out, 4), j.dump(2));
    const Result refused = w.gptrun({plan, "--out-dir", w.path(out)});
    expectRefused(refused, what);
    EXPECT_NE(refused.output.find("another order than then"), std::string::npos) << refused.output;
    EXPECT_NE(refused.output.find("--allow-changed-data"), std::string::npos) << refused.output;
    EXPECT_EQ(w.checkpoints(w.path(out)).size(), 1u);
    const Result allowed = w.gptrun({plan, "--out-dir", w.path(out), "--allow-changed-data"});
    EXPECT_EQ(allowed.code, 0) << allowed.output;
    EXPECT_NE(allowed.output.find("warning: the training data is not that of the checkpoint"), std::string::npos)
        << allowed.output;
    EXPECT_NE(allowed.output.find(what), std::string::npos) << allowed.output;
    j = gptc::parseJson<json>(readFile(manifestOf(out, 8)));
    EXPECT_EQ(j.at("data_files").at(1).value("first", 0), 25'000) << "from then on a stream";
  };
  resumesOnlyIfAllowed("prints", "b.bin goes on where ", [](json &j) {
    for (json &f : j["data_files"])
      f.erase("first");
  });
  resumesOnlyIfAllowed("samples", "parts has several files", [&](json &j) {
    j.erase("data_files");
    j["data"] = gptc::TokenData(parts, "data.train", 64, 16, 17).sampledFingerprint();
  });
}

// Large files are hashed beside the steps: those are given up.
TEST_F(DataTest, ATokenBeyondTheVocabularyIsFoundBesideTheSteps) {
  const std::string train = w.path("train.bin");
  std::filesystem::resize_file(train, 34'000'000);
  writeFile(w.path("end"), std::string("\x40\x00", 2));
  ASSERT_EQ(std::system(("cat " + w.path("end") + " >> " + train).c_str()), 0);
  const std::string plan =
      w.compile("plan", {"train.steps=100000000", "eval.every=0", "checkpoint.every=0", "log.every=1000000"});
  for (const char *ranks : {"1", "2"}) {
    expectRefused(w.gptrun({plan, "--out-dir", w.path("out"), "--ranks-per-node", ranks}),
                  "token 64 at position 17000000 is beyond the vocabulary of 64");
    EXPECT_TRUE(w.checkpoints(w.path("out")).empty());
  }
}

// However late a bad token would be drawn: nothing is saved that such data has trained.
TEST_F(DataTest, ATokenBeyondTheVocabularyEndsTheRunBeforeItsFirstCheckpoint) {
  tokens[39'000] = 64;
  write();
  const std::string plan = compile(), out = w.path("out");
  for (const char *ranks : {"1", "2"}) {
    expectRefused(w.gptrun({plan, "--out-dir", out, "--ranks-per-node", ranks, "--steps", "1"}),
                  "token 64 at position 39000 is beyond the vocabulary of 64");
    EXPECT_TRUE(w.checkpoints(out).empty());
  }
}

}  // namespace
