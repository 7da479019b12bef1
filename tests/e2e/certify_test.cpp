// Certificates of runs: a replay gives the bits of the run, and what was changed anywhere is found and named.
#include "runtime/checkpoint/state.h"
#include "runtime/plan/manifest.h"
#include "runtime/train/replay.h"
#include "support/files.h"
#include "support/json.h"
#include "tests/support/harness.h"

#include <cstring>
#include <filesystem>
#include <utility>

using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

struct CertifyTest : ::testing::Test {
  Result verify(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"verify", w.path("out")});
    return w.gptc(more);
  }
  /// Expects that a replay finds a difference, and says all of `words`.
  void expectDiffers(const std::vector<std::string> &words, std::vector<std::string> more = {}) {
    const Result r = verify(std::move(more));
    EXPECT_EQ(r.code, 1) << r.output;
    for (const std::string &word : words)
      EXPECT_NE(r.output.find(word), std::string::npos) << word << " is not in\n" << r.output;
  }
  void expectEqual(const std::string &words, std::vector<std::string> more = {}) {
    const Result r = verify(std::move(more));
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << words << " is not in\n" << r.output;
  }
  std::string steps() const { return w.path("out/certificate/steps.jsonl"); }
  std::string checkpoint(int step) const { return fmt::format("{}/checkpoints/step-{:08}", w.path("out"), step); }
  /// Flips a bit of the first element of a tensor in a checkpoint, whose manifest then has the right checksums again.
  void flipTensor(const std::string &folder, const std::string &name, bool seals = true) {
    const std::string file = folder + "/model.safetensors";
    std::string bytes = readFile(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    const json j = parseJson<json>(bytes.substr(8, header));
    ASSERT_TRUE(j.contains(name)) << j.dump(1);
    bytes[8 + header + j.at(name).at("data_offsets")[0].get<size_t>()] ^= 1;
    writeFile(file, bytes);
    if (!seals)
      return;
    json manifest = parseJson<json>(readFile(folder + "/manifest.json"));
    manifest["files"]["model.safetensors"] = blake3(bytes);
    manifest["blake3"] = manifestChecksum(manifest);
    writeFile(folder + "/manifest.json", manifest.dump(2));
  }
  Workplace w;
};

TEST_F(CertifyTest, ARunIsEqualToItsReplay) {
  w.train(w.compile("plan"), "out", {"--certify", "5"});
  expectEqual("equal: steps 1 to 12 replayed, 3 steps certified, 12 lines of the log, 2 checkpoints compared");
  expectEqual("equal: steps 1 to 12 replayed", {"--threads", "1"});
  expectEqual("equal: steps 10 to 12 replayed, 2 steps certified, 3 lines of the log, 1 checkpoint ",
              {"--steps", "11..12"});
  expectEqual("equal: steps 1 to 5 replayed, 1 step certified", {"--steps", "4"});
  const json j = parseJson<json>(verify({"--json"}).output);
  EXPECT_EQ(j.at("equal"), true);
  EXPECT_EQ(j.at("certified"), 3);
  EXPECT_TRUE(j.at("differences").empty());
  // What is certified counts, whatever is left beside it.
  const std::string log = readFile(w.path("out/log.jsonl"));
  writeFile(w.path("out/log.jsonl"), "");
  fs::rename(w.path("out/checkpoints"), w.path("checkpoints"));
  expectEqual("equal: steps 1 to 12 replayed, 3 steps certified, 0 lines of the log, 0 checkpoints compared");
  writeFile(w.path("out/log.jsonl"), log);
  fs::rename(w.path("checkpoints"), w.path("out/checkpoints"));
  // The folder may move: it has its plan.
  fs::rename(w.path("out"), w.path("elsewhere"));
  fs::remove_all(w.path("plan"));
  const Result moved = w.gptc({"verify", w.path("elsewhere")});
  EXPECT_EQ(moved.code, 0) << moved.output;
}

TEST_F(CertifyTest, CertifyingChangesNoBit) {
  const std::string plan = w.compile("plan");
  EXPECT_EQ(w.train(plan, "out", {"--certify", "1"}), w.train(plan, "other"));
  EXPECT_EQ(logLines(w.path("out")), logLines(w.path("other")));
}

struct Settings {
  const char *name;
  std::vector<std::string> settings;
};
struct Forms : CertifyTest, ::testing::WithParamInterface<Settings> {};
INSTANTIATE_TEST_SUITE_P(
    CertifyTest, Forms,
    ::testing::Values(Settings{"bf16", {"precision.compute=bf16"}}, Settings{"fp16", {"precision.compute=fp16"}},
                      Settings{"accumulate", {"train.global_batch_tokens=256", "parallel.logical_shards=4"}},
                      Settings{"remat", {"compile.remat=full"}}, Settings{"adafactor", {"optimizer.name=adafactor"}},
                      Settings{"encoder", {"model.causal=false", "model.vocab_size=65"}}),
    [](auto &info) { return info.param.name; });

TEST_P(Forms, AreEqualToTheirReplay) {
  w.train(w.compile("plan", GetParam().settings), "out", {"--certify", "2"});
  expectEqual("equal: steps 1 to 12 replayed, 6 steps certified, 12 lines of the log, ");
}

TEST_F(CertifyTest, ARunGoesOnWithItsCertificate) {
  const std::string plan = w.compile("plan");
  w.train(plan, "out", {"--certify", "1", "--steps", "5"});
  w.train(plan, "out", {"--certify", "1"});
  expectEqual("equal: steps 1 to 12 replayed, 12 steps certified");
  // From an earlier checkpoint again: what was later is dropped.
  fs::remove_all(checkpoint(12));
  w.train(plan, "out", {"--certify", "1"});
  expectEqual("equal: steps 1 to 12 replayed, 12 steps certified");
  // Another run begins a certificate of its own, and keeps the old one.
  w.train(plan, "out", {"--certify", "12", "--resume", "never"});
  expectEqual("equal: steps 1 to 12 replayed, 1 step certified");
  EXPECT_TRUE(fs::exists(w.path("out/old-1/certificate/steps.jsonl")));
}

// Steps of another plan or of other data are not taken for those of the first.
TEST_F(CertifyTest, EachProcessSaysWhatItsStepsAreOf) {
  const std::vector<std::string> keeps = {"checkpoint.keep=10"};
  w.train(w.compile("plan", keeps), "out", {"--certify", "1", "--steps", "3"});
  w.train(w.compile("plan", {keeps[0], "train.seed=7"}), "out", {"--certify", "1", "--steps", "6"});
  expectEqual("equal: steps 1 to 6 replayed, 6 steps certified");
  // Other data, and no certificate for a while.
  const std::string file = w.path("train.bin"), tokens = readFile(file);
  std::string other = tokens;
  other[2000] ^= 1;
  writeFile(file, other);
  w.train(w.path("plan"), "out", {"--steps", "9", "--allow-changed-data"});
  writeFile(file, tokens);
  expectDiffers({"the training data: " + file + " has other tokens"});
  w.train(w.path("plan"), "out", {"--certify", "1", "--allow-changed-data"});
  expectEqual("equal: steps 1 to 12 replayed, 9 steps certified");
  const Certificate c = Certificate::read(w.path("out"));
  ASSERT_EQ(c.parts.size(), 4u);
  EXPECT_EQ(c.parts[2].origin.since, 6);
  EXPECT_TRUE(c.parts[2].steps.empty());
  // Without the checkpoint from which the second process went on.
  fs::remove_all(checkpoint(3));
  expectDiffers({"steps 4 to 6 cannot be replayed: no good checkpoint of step 3"});
  expectEqual("equal: steps 10 to 12 replayed, 3 steps certified", {"--steps", "10..12"});
}

TEST_F(CertifyTest, APlanOfTheSameBitsGoesOn) {
  w.train(w.compile("plan"), "out", {"--certify", "2", "--steps", "6"});
  w.train(w.compile("halves", {"train.micro_batch=2"}), "out", {"--certify", "2"});
  expectEqual("equal: steps 1 to 12 replayed, 6 steps certified, 12 lines of the log, 2 checkpoints compared");
  const Certificate c = Certificate::read(w.path("out"));
  ASSERT_EQ(c.parts.size(), 2u);
  EXPECT_NE(c.parts[0].origin.plan, c.parts[1].origin.plan);
}

TEST_F(CertifyTest, DataMayMove) {
  w.train(w.compile("plan"), "out", {"--certify", "6"});
  fs::rename(w.path("train.bin"), w.path("moved.bin"));
  EXPECT_EQ(verify().code, 3);
  fs::create_directories(w.path("other"));
  fs::rename(w.path("moved.bin"), w.path("other/train.bin"));
  expectEqual("2 steps certified", {"--data", w.path("other/train.bin")});
}

TEST_F(CertifyTest, KernelsAreDigestedWithAllTheirResults) {
  struct Fake : BoundKernel {
    const void *result(unsigned i) const override { return results[i].data(); }
    std::vector<std::vector<char>> results;
  };
  const Plan plan = loadPlan(w.compile("plan"));
  ThreadPool pool(2);
  int several = 0;
  for (const PlannedKernel &k : kernelsOf(*plan.planned)) {
    Fake fake;
    fake.name = k.name;
    fake.op = k.op;
    for (unsigned i = 0; i < k.op->numResults(); ++i)
      fake.results.emplace_back(k.op->result(i)->type.bytes());
    auto digest = [&] {
      KernelDigests digests(pool);
      digests.ran(fake, 0, 0);
      return digests.all();
    };
    const std::string was = digest();
    EXPECT_EQ(was.size(), KernelDigests::digits);
    for (std::vector<char> &result : fake.results) {
      result[0] ^= 1;
      EXPECT_NE(digest(), was) << k.name;
      result[0] ^= 1;
    }
    several += fake.results.size() > 1;
  }
  EXPECT_GT(several, 0);
}

TEST_F(CertifyTest, ARunOfSeveralRanksIsReplayedByOne) {
  const std::string plan = w.compile(
      "plan", {"train.micro_batch=1", "parallel.logical_shards=4", "parallel.data=2", "parallel.zero_stage=2"});
  w.train(plan, "out", {"--certify", "4"});
  expectEqual("equal: steps 1 to 12 replayed, 3 steps certified, 12 lines of the log, 2 checkpoints compared");
  // As a run of one rank would be certified, but for kernels, of which each rank has its own.
  w.train(w.compile("alone", {"train.micro_batch=1", "parallel.logical_shards=4"}), "alone", {"--certify", "4"});
  const Certificate ranks = Certificate::read(w.path("out")), alone = Certificate::read(w.path("alone"));
  ASSERT_EQ(ranks.parts.size(), 1u);
  ASSERT_EQ(alone.parts.size(), 1u);
  EXPECT_EQ(ranks.parts[0].origin.results, alone.parts[0].origin.results);
  ASSERT_EQ(ranks.parts[0].steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ranks.parts[0].steps[i].after, alone.parts[0].steps[i].after);
    EXPECT_EQ(ranks.parts[0].steps[i].kernels, "");
    EXPECT_NE(alone.parts[0].steps[i].kernels, "");
  }
}

TEST_F(CertifyTest, AFlippedWeightOfACheckpointIsNamed) {
  w.train(w.compile("plan"), "out", {"--certify", "3"});
  const std::string kept = w.path("kept");
  fs::copy(checkpoint(9), kept, fs::copy_options::recursive);
  flipTensor(checkpoint(9), "transformer.h.1.mlp.c_fc.weight", false);
  expectDiffers({"step-00000009", "model.safetensors", "steps 1 to 12 replayed"});
  // With the checksums of the changed weights, only the certificate and the replay can tell.
  fs::remove_all(checkpoint(9));
  fs::copy(kept, checkpoint(9), fs::copy_options::recursive);
  flipTensor(checkpoint(9), "transformer.h.1.mlp.c_fc.weight");
  const std::string words = "the checkpoint of step 9 is not as certified: state h.1.mlp.c_fc.weight differs";
  expectDiffers({words});
  // What has been loaded of it is gone before the replay begins with initial values.
  const Result r = verify({"--steps", "10..12"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("steps 1 to 12 replayed, 4 steps certified"), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("differs: step "), std::string::npos) << r.output;
}

// What a run that goes on from it cannot be told from: a weight that changes in memory between two steps.
TEST_F(CertifyTest, AFlippedWeightOfARunIsNamed) {
  const std::string plan = w.compile("plan");
  w.train(plan, "out", {"--certify", "1", "--steps", "5"});
  flipTensor(checkpoint(5), "transformer.h.0.attn.c_proj.weight");
  w.train(plan, "out", {"--certify", "1"});
  fs::remove_all(checkpoint(5));
  expectDiffers({"step 6: before it state h.0.attn.c_proj.weight differs"});
  expectEqual("5 steps certified", {"--steps", "1..5"});
}

/// Flips a bit of a kernel's first result, once `inner` has seen it.
class Flip : public KernelObserver {
public:
  Flip(KernelObserver *inner, std::string kernel) : inner(inner), kernel(std::move(kernel)) {}
  void ran(const BoundKernel &k, int64_t begin, int64_t end) override {
    inner->ran(k, begin, end);
    place += !done;
    if (k.name == kernel && !std::exchange(done, true))
      *static_cast<char *>(const_cast<void *>(k.result(0))) ^= 1;
  }
  KernelObserver *const inner;
  const std::string kernel;
  bool done = false;
  int place = 0;  // number of kernels that ran up to the flip
};

TEST_F(CertifyTest, AFlippedGradientIsFoundByTheKernelThatReadsIt) {
  const std::string plan = w.compile("plan", {"train.global_batch_tokens=128"});
  const Plan loaded = loadPlan(plan);
  ReplayRequest request{.outDir = w.path("none"), .comparesData = false, .to = 3};
  request.say = [](const std::string &) {};
  std::vector<std::string> kernels;  // of the micro-batches and the update
  for (const PlannedKernel &k : kernelsOf(*loaded.planned))
    if (k.name.starts_with("accumulate.") || k.name.starts_with("update."))
      kernels.push_back(k.name);
  ASSERT_GT(kernels.size(), 20u);
  int found = 0, inKernels = 0;
  for (size_t i = 0; i < kernels.size(); i += kernels.size() / 8) {
    Session session(loadPlan(plan), e2e::cacheDir(), 1);
    const auto data = TrainStep::dataOf(session.plan);
    TrainStep train(session, *data);
    initializeStates(session.executor, session.plan.run.seed);
    train.run(0, true);
    CertifyingStep certifying(session.executor, 2);
    Flip flip(session.executor.observer, kernels[i]);
    session.executor.observer = &flip;
    const StepResult r = train.run(1, false);
    session.executor.observer = flip.inner;
    const CertifiedStep faulty = certifying.end(r);
    ASSERT_TRUE(flip.done) << kernels[i];

    Session again(loadPlan(plan), e2e::cacheDir(), 1);
    request.certified = {faulty};
    request.origin.plan = again.plan.hash;
    request.to = 2;
    const ReplayReport report = replay(again, request);
    if (report.differences.empty())
      continue;  // the bit was not read again
    ++found;
    EXPECT_EQ(report.differences.size(), 1u);
    EXPECT_EQ(report.differences[0].substr(0, 8), "step 2: ");
    EXPECT_EQ(report.differences[0].find("before it state"), std::string::npos) << report.differences[0];
    // Not the kernel itself, whose result was right: one that runs later.
    const size_t equal = report.differences[0].find("before it ");
    if (equal == std::string::npos)
      continue;
    ++inKernels;
    EXPECT_GE(std::stoi(report.differences[0].substr(equal + 10)), flip.place) << report.differences[0];
  }
  EXPECT_GE(found, 5);
  EXPECT_GE(inKernels, 4);
}

TEST_F(CertifyTest, AChangedTokenFileIsNamed) {
  w.train(w.compile("plan"), "out", {"--certify", "6"});
  const std::string file = w.path("train.bin");
  std::string tokens = readFile(file);
  const auto time = fs::last_write_time(file);
  tokens[2000] ^= 1;
  writeFile(file, tokens);
  fs::last_write_time(file, time);
  expectDiffers({"the training data: " + file + " has other tokens, though as many"});
  tokens.pop_back();
  tokens.pop_back();
  writeFile(file, tokens);
  expectDiffers({file, "tokens and had"});
  fs::remove(file);
  EXPECT_EQ(verify().code, 3);
}

TEST_F(CertifyTest, AChangedCertificateOrLogIsFound) {
  w.train(w.compile("plan"), "out", {"--certify", "4"});
  const std::string whole = readFile(steps());
  // Any byte, but for those of the last line's end, without which it is incomplete.
  for (size_t at = 0; at + 1 < whole.size(); at += 97) {
    std::string changed = whole;
    changed[at] ^= 1;
    writeFile(steps(), changed);
    EXPECT_NE(Certificate::read(w.path("out")).problem, "") << at;
  }
  std::string changed = whole;
  changed[whole.size() / 2] ^= 1;
  writeFile(steps(), changed);
  expectDiffers({"steps.jsonl is not what was written"});
  // Without a line in the middle; the lines before an incomplete last one count.
  const size_t first = whole.find('\n') + 1, second = whole.find('\n', first) + 1;
  writeFile(steps(), whole.substr(0, first) + whole.substr(second));
  expectDiffers({"line 2 of"});
  writeFile(steps(), whole.substr(0, whole.size() - 1));
  expectEqual("2 steps certified");
  writeFile(steps(), whole);
  expectEqual("3 steps certified");
  // Another fourth decimal of a loss in the log.
  const std::string log = readFile(w.path("out/log.jsonl"));
  const size_t point = log.find('.', log.find("\"step\": 7"));
  changed = log;
  changed[point + 4] = changed[point + 4] == '9' ? '1' : char(changed[point + 4] + 1);
  writeFile(w.path("out/log.jsonl"), changed);
  expectDiffers({"step 7: the loss is", "and the log has"});
}

TEST_F(CertifyTest, ARunIsCertifiedAfterwards) {
  const std::string plan = w.compile("plan"), out = w.path("out");
  w.train(plan, "out");
  const Result r = w.gptc({"certify", out, "--plan", plan, "--every", "3"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("steps 1 to 12 replayed, 0 steps certified, 12 lines of the log, 2 checkpoints compared; 4 "
                          "certified in"),
            std::string::npos)
      << r.output;
  expectEqual("equal: steps 1 to 12 replayed, 4 steps certified");
  EXPECT_EQ(w.gptc({"certify", out, "--plan", plan}).code, 2);  // there is one
  w.train(plan, "more");
  const Result beyond = w.gptc({"certify", w.path("more"), "--plan", plan, "--steps", "1..13"});
  EXPECT_EQ(beyond.code, 2) << beyond.output;
  EXPECT_NE(beyond.output.find("the run has 12 steps"), std::string::npos) << beyond.output;
  // As the run itself would have written it.
  const std::string afterwards = readFile(steps());
  w.train(plan, "live", {"--certify", "3"});
  EXPECT_EQ(readFile(w.path("live/certificate/steps.jsonl")), afterwards);
  // A run that this plan does not give is not certified.
  fs::remove_all(out + "/certificate");
  const Result other = w.gptc({"certify", out, "--plan", w.compile("other", {"train.seed=7"})});
  EXPECT_EQ(other.code, 1) << other.output;
  EXPECT_NE(other.output.find("nothing is certified"), std::string::npos) << other.output;
  EXPECT_FALSE(fs::exists(out + "/certificate"));
}

// A replay makes no outer steps: it says so, and calls no honest run false.
TEST_F(CertifyTest, OuterStepsAreNotReplayed) {
  auto refused = [](const Result &r, const std::string &words) {
    EXPECT_EQ(r.code, 3) << r.output;
    for (const std::string &word : {std::string("GPTC0208"), std::string("parallel.sync_every = 3"), words})
      EXPECT_NE(r.output.find(word), std::string::npos) << word << " is not in\n" << r.output;
  };
  const std::vector<std::string> keeps = {"checkpoint.every=6", "checkpoint.keep=10"};
  std::vector<std::string> apart = keeps;
  apart.insert(apart.end(), {"parallel.sync_every=3", "parallel.outer_momentum=0"});
  const std::string plan = w.compile("plan", keeps), outer = w.compile("outer", apart);
  w.train(outer, "alone");
  refused(w.gptc({"certify", w.path("alone"), "--plan", outer}), "cannot be replayed");
  EXPECT_FALSE(fs::exists(w.path("alone/certificate")));
  // A part of a run: the others are replayed.
  w.train(plan, "out", {"--certify", "1", "--steps", "6"});
  w.train(outer, "out");
  refused(verify(), "begin behind step 6");
  const Result compressed =
      w.gptc({"certify", w.path("alone"), "--plan",
              w.compile("compressed", {"train.micro_batch=1", "parallel.data=2", "parallel.compression=powersgd",
                                       "parallel.gradient_rank=1", "parallel.compress_from=4"})});
  EXPECT_EQ(compressed.code, 3) << compressed.output;
  EXPECT_NE(compressed.output.find("parallel.compression, and"), std::string::npos) << compressed.output;
  expectEqual("equal: steps 1 to 6 replayed, 6 steps certified", {"--steps", "1..6"});
}

TEST_F(CertifyTest, BadInput) {
  const std::string plan = w.compile("plan"), out = w.path("out");
  auto refused = [&](const std::vector<std::string> &args, int code, const std::string &words) {
    const Result r = w.gptc(args);
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << words << " is not in\n" << r.output;
  };
  refused({"verify", out}, 3, "there is no certificate");
  refused({"certify", out, "--plan", plan}, 3, "there is no run");
  refused({"certify", out}, 2, "--plan");
  w.train(plan, "out", {"--certify", "6"});
  for (const char *span : {"", "0", "2..1", "a..b", "1..", "..3", "-1..2", "1..99999999999999999999"})
    refused({"verify", out, "--steps", span}, 2, "--steps");
  refused({"verify", out, "--steps", "13..14"}, 2, "has no step to replay in 13..14");
  EXPECT_EQ(w.gptrun({plan, "--certify", "0"}).code, 2);
  EXPECT_EQ(w.gptrun({plan, "--certify", "1", "--check"}).code, 2);
  EXPECT_EQ(w.gptrun({plan, "--certify", "1", "--profile"}).code, 2);
  EXPECT_EQ(w.gptrun({"sample", plan, "--certify", "1"}).code, 2);
  const std::string tensor = w.compile("tensor", {"parallel.tensor=2"});
  const Result notYet = w.gptrun({tensor, "--out-dir", w.path("tensors"), "--certify", "1"});
  EXPECT_EQ(notYet.code, 3) << notYet.output;
  EXPECT_NE(notYet.output.find("GPTC0208"), std::string::npos) << notYet.output;
  const std::string copy = Certificate::planOf(Certificate::folder(out), Certificate::read(out).parts.at(0).origin),
                    gir = copy + "/planned.gir";
  std::string text = readFile(gir);
  text[text.size() / 2] ^= 1;
  writeFile(gir, text);
  refused({"verify", out}, 5, "GPTC0503");
  fs::remove_all(copy);
  refused({"verify", out}, 3, "GPTC0301");
  // A hostile certificate: sealed, and without sense.
  for (const std::string body : {R"({"certificate":1)", R"({"step":1)", R"([1)", R"({"certificate":99)",
                                 R"({"certificate":1,"since":"x")", "{"}) {
    writeFile(steps(), fmt::format("{},\"seal\":\"{}\"}}\n", body, blake3(body)));
    const Result r = verify();
    EXPECT_TRUE(r.code == 1 || r.code == 3) << body << "\n" << r.output;
  }
  writeFile(steps(), "");
  expectDiffers({"is empty"});
  for (const std::string part :
       {R"("since":9223372036854775807)", R"("since":-1)", R"("since":0,"step":1e300)", R"("since":"0")"}) {
    const std::string body =
        R"({"certificate":1,"plan":"","manifest":"","results":"","data_files":[],"tokenizer":"",)" + part;
    writeFile(steps(), fmt::format("{},\"seal\":\"{}\"}}\n", body, blake3(body)));
    const int code = verify().code;
    EXPECT_TRUE(code > 0 && code < 70) << part << ": " << code;
  }
}

}  // namespace
