// Forecasts of serving: memory to the byte, and what must hold of times at given rates. Nothing is measured.
#include "tests/support/harness.h"

#include "ir/facts.h"
#include "runtime/device/executor.h"
#include "runtime/launch/cores.h"
#include "runtime/train/session.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/commands/estimate_serving.h"
#include "tools/compiler/inference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

using namespace gptc;
using namespace e2e;

namespace {

constexpr int64_t layers = 2, width = 64, context = 256, vocabulary = 128;

constexpr const char *model = R"(name = "served"
out_dir = "out"
[model]
n_layer = 2
n_head = 4
n_embd = 64
block_size = 256
vocab_size = 128
tie_embeddings = false
[train]
steps = 1
global_batch_tokens = 256
micro_batch = 1
[data]
train = "train.bin"
)";

constexpr const char *cpu = R"([device]
kind = "cpu"
name = "a CPU"
peak_fp32 = "500 GFLOP/s"
memory = "64 GiB"
memory_bandwidth = "50 GB/s"
cache = "16 MiB"
[node]
devices = 2
bandwidth = "10 GB/s"
)";

/// Rates at which all that a call does is read memory.
MachineRates slowMemory() {
  MachineRates r;
  r.fp32 = r.tf32 = r.bf16 = r.fp16 = r.fp8 = 1e18;
  r.scatter = r.elementwise = 1;
  r.dram = 1e9;
  r.cache = 2.5e9;
  r.packs = true;
  return r;
}

/// Rates at which all that it does is compute.
MachineRates slowArithmetic() {
  MachineRates r = slowMemory();
  r.fp32 = r.tf32 = r.bf16 = r.fp16 = r.fp8 = 1e9;
  r.dram = r.cache = 1e18;
  return r;
}

ServingMachine machineOf(const MachineRates &rates) {
  return {.rates = [rates](double) { return rates; }};
}

class EstimateServing : public testing::Test {
protected:
  EstimateServing() { writeFile(file(), model); }
  std::string file() const { return w.path("served.toml"); }
  Plan plan(std::vector<std::string> settings = {}) const {
    return planToServe({.model = file(), .settings = std::move(settings)});
  }
  std::unique_ptr<Module> module(int64_t slots, std::vector<std::string> settings = {}) const {
    return servingModule(plan(std::move(settings)), slots, cacheDir());
  }
  static ErrorCode codeOf(const std::function<void()> &f) {
    try {
      f();
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics.size(), 1u);
      EXPECT_FALSE(e.diagnostics[0].help.empty()) << e.diagnostics[0].message;
      return e.diagnostics[0].code;
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::Usage;
  }
  Workplace w;
};

TEST_F(EstimateServing, MemoryIsThatOfTheSession) {
  for (const auto &[weights, tied] : {std::pair{"compute", false}, {"q8_0", false}, {"q8_0", true}})
    for (const int64_t slots : {1, 3, 8}) {
      const std::vector<std::string> settings = {fmt::format("precision.weights={}", weights),
                                                 fmt::format("model.tie_embeddings={}", tied)};
      const ServingForecast f =
          servingForecast(*module(slots, settings), machineOf(slowMemory()), {.promptTokens = 8, .newTokens = 4});
      const Session session(servingPlan(plan(settings), slots, cacheDir()), cacheDir(), 1);
      EXPECT_EQ(f.arena, session.arena->bytes()) << slots;
      int64_t cache = 0, other = 0;
      for (const auto &s : session.plan.planned->states)
        if (!isInFiles(*s))
          (kindOf(*s) == StateKind::cache ? cache : other) += s->type.bytes();
      EXPECT_EQ(f.slots, slots);
      EXPECT_EQ(f.cache, cache);
      EXPECT_EQ(f.weights, other);
      EXPECT_EQ(f.cache, slots * layers * 2 * context * width * int64_t(sizeof(float)));
      EXPECT_GT(f.arena, f.cache + f.weights);
    }
}

// A plan on disk is served as its model.toml is, and gptc says what gptrun says.
TEST_F(EstimateServing, APlanSaysWhatItsModelSays) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "the cat sat on the mat. ";
  w.useText(text);
  const std::string compiled = w.compile("served.plan", {"train.steps=1", "checkpoint.every=1"});
  w.train(compiled, "out");
  writeFile(w.path("cpu.toml"), cpu);
  const Result ran = w.gptrun({"sample", compiled, "--out-dir", w.path("out"), "--slots", "3", "--prompt", "the cat",
                               "--max-tokens", "2", "--temperature", "0"});
  ASSERT_EQ(ran.code, 0) << ran.output;
  const size_t at = ran.output.find("3 slots of 16 tokens: ");
  ASSERT_NE(at, std::string::npos) << ran.output;
  const std::string note = ran.output.substr(at, ran.output.find('\n', at) - at);
  for (const std::string &what : {compiled, w.modelFile()}) {
    const Result said = w.gptc({"estimate", what, "--slots", "3", "--cluster", w.path("cpu.toml")});
    ASSERT_EQ(said.code, 0) << said.output;
    EXPECT_NE(said.output.find(note + ": fits into the 64.0 GiB"), std::string::npos) << said.output << note;
  }
}

// Before anything is measured.
TEST_F(EstimateServing, MoreThreadsThanCpusAreSaid) {
  const auto cpus = unsigned(orderedCpus().size());
  const std::string nowhere = w.path("nowhere.toml");
  const Result more = w.gptc({"estimate", nowhere, "--slots", "1", "--threads", std::to_string(cpus + 1)});
  EXPECT_EQ(more.output.rfind(fmt::format("note: {} threads share the {} CPU", cpus + 1, cpus), 0), 0u) << more.output;
  const Result all = w.gptc({"estimate", nowhere, "--slots", "1", "--threads", std::to_string(cpus)});
  EXPECT_EQ(all.output.find("note:"), std::string::npos) << all.output;
}

TEST_F(EstimateServing, WeightsStayAndCachesGrow) {
  std::map<int64_t, ServingForecast> all;
  for (const int64_t slots : {1, 2, 4, 8, 16, 32})
    all[slots] = servingForecast(*module(slots), machineOf(slowMemory()), {.promptTokens = 4, .newTokens = 2});
  double before = 0;
  for (const auto &[slots, f] : all) {
    EXPECT_EQ(f.weights, all[1].weights) << slots;
    EXPECT_EQ(f.cache, slots * all[1].cache) << slots;
    EXPECT_STREQ(f.decode.boundBy(), "memory") << slots;
    EXPECT_GT(f.decodeRate(), before) << slots;
    before = f.decodeRate();
  }
  // Weights are read once for all: a call for 32 takes less than 4 times as long as one for one.
  EXPECT_LT(all[32].decode.seconds(), 4 * all[1].decode.seconds());
  // All of them but the embeddings, of which it gathers rows.
  const int64_t read = all[1].weights - (vocabulary + context) * width * int64_t(sizeof(float));
  EXPECT_GT(all[1].decode.seconds() * 1e9, double(read));
  EXPECT_LT(all[1].decode.seconds() * 1e9, 1.2 * double(read));
}

// Of the cache a call reads what its tokens see, and not more.
TEST_F(EstimateServing, TheCacheIsReadAsFarAsItIsSeen) {
  constexpr int64_t slots = 8;
  for (const int64_t window : {0, 48}) {
    const std::vector<std::string> settings = {fmt::format("model.window={}", window)};
    const std::unique_ptr<Module> m = module(slots, settings);
    auto bytes = [&](int64_t prompt) {
      const ServingForecast f = servingForecast(*m, machineOf(slowMemory()), {.promptTokens = prompt, .newTokens = 8});
      EXPECT_EQ(f.decode.arithmetic + f.decode.starts + f.decode.cache, 0);
      return f.decode.seconds() * 1e9;
    };
    // New tokens see the prompt and, in the middle, four new ones.
    const double each = double(slots * layers * 2 * width * int64_t(sizeof(float)));
    EXPECT_NEAR(bytes(40) - bytes(20), 20 * each, 1e-6 * bytes(40)) << window;
    EXPECT_NEAR(bytes(200) - bytes(44), (window ? 0 : 156) * each, 1e-6 * bytes(200)) << window;
  }
}

// Products grow with tokens, attention with pairs of them: two pieces of 64 tokens have 64 x 64 pairs between them.
TEST_F(EstimateServing, APromptIsReadInPieces) {
  const std::unique_ptr<Module> m = module(2);
  const MachineRates rates = slowArithmetic();
  auto seconds = [&](int64_t prompt) {
    const ServingForecast f = servingForecast(*m, machineOf(rates), {.promptTokens = prompt, .newTokens = 1});
    EXPECT_STREQ(f.prefill.boundBy(), "arithmetic");
    EXPECT_EQ(f.prefillRate(), double(prompt) / f.prefill.seconds());
    return f.prefill.seconds();
  };
  const double pairs = 64.0 * 64 * layers * 4 * width / (rates.attention * rates.fp32);
  EXPECT_NEAR(seconds(128) - 2 * seconds(64), pairs, 1e-6 * seconds(128));
  // What is left over is a call of fewer tokens.
  EXPECT_GT(seconds(66), seconds(64));
  EXPECT_LT(seconds(66), 1.2 * seconds(64));
}

TEST_F(EstimateServing, TimesFollowTheRates) {
  const std::unique_ptr<Module> m = module(4);
  const ServingLoad load{.promptTokens = 100, .newTokens = 20};
  const ServingForecast f = servingForecast(*m, machineOf(slowMemory()), load);
  MachineRates faster = slowMemory();
  faster.dram *= 2, faster.cache *= 2;
  EXPECT_NEAR(servingForecast(*m, machineOf(faster), load).decode.seconds(), f.decode.seconds() / 2,
              1e-9 * f.decode.seconds());
  ServingMachine slower = machineOf(slowMemory());
  slower.slowdown = 3;
  EXPECT_NEAR(servingForecast(*m, slower, load).prefill.seconds(), 3 * f.prefill.seconds(), 1e-9 * f.prefill.seconds());
  // A call that fits into the cache takes the cache's rate.
  MachineRates large = slowMemory();
  large.cacheBytes = 1e9;
  const ServingForecast cached = servingForecast(*m, machineOf(large), load);
  EXPECT_STREQ(cached.decode.boundBy(), "cache");
  EXPECT_EQ(cached.decode.memory, 0);
  EXPECT_LT(cached.decode.seconds(), f.decode.seconds());
  // Starts come on top: one for each kernel of a call.
  MachineRates late = slowMemory();
  late.launch = 1;
  const ServingForecast started = servingForecast(*m, machineOf(late), load);
  EXPECT_STREQ(started.decode.boundBy(), "starts");
  EXPECT_NEAR(started.decode.seconds() - started.decode.starts, f.decode.seconds(), 1e-9);
  EXPECT_GE(started.decode.starts, 5.0 * layers);
  EXPECT_EQ(started.decode.starts, std::round(started.decode.starts));
}

// Blocks of 32: 34 bytes in 8 bits, 18 in 4. The last product has 8 bits in any case. If its matrix is the table of
// tokens, too, nothing else is kept of that; else there is one in f32 for the look-up.
TEST_F(EstimateServing, WeightsInBlocksTakeTheirBytes) {
  constexpr int64_t ofLayers = layers * 12 * width * width, last = width * vocabulary;
  std::map<std::string, int64_t> untied;
  for (const bool tied : {false, true}) {
    auto weights = [&](const char *kept) {
      const std::vector<std::string> settings = {fmt::format("precision.weights={}", kept),
                                                 fmt::format("model.tie_embeddings={}", tied)};
      return servingForecast(*module(2, settings), machineOf(slowMemory()), {.promptTokens = 8, .newTokens = 4})
          .weights;
    };
    EXPECT_EQ(weights("compute") - weights("q8_0"), (ofLayers + last) * 4 - (ofLayers + last) / 32 * 34) << tied;
    EXPECT_EQ(weights("q8_0") - weights("q4_0"), ofLayers / 32 * (34 - 18)) << tied;
    for (const char *kept : {"q8_0", "q4_0"}) {
      if (tied)
        EXPECT_EQ(untied[kept] - weights(kept), last * 4) << kept;
      else
        untied[kept] = weights(kept);
    }
  }
}

// Blocks of 32 take 34 bytes, in memory and when they are read.
TEST_F(EstimateServing, CachesInBlocksTakeTheirBytes) {
  const std::vector<std::string> settings = {"model.head_dim=32", "precision.cache=q8_0"};
  constexpr int64_t slots = 8, each = layers * 2 * 4 * 34;  // a token's, of four heads of one block
  const std::unique_ptr<Module> m = module(slots, settings);
  auto forecast = [&](int64_t prompt) {
    return servingForecast(*m, machineOf(slowMemory()), {.promptTokens = prompt, .newTokens = 8});
  };
  const ServingForecast f = forecast(8);
  EXPECT_EQ(f.slots, slots);
  EXPECT_EQ(f.cache, slots * context * each);
  EXPECT_EQ(f.arena, Session(servingPlan(plan(settings), slots, cacheDir()), cacheDir(), 1).arena->bytes());
  const double more = (forecast(40).decode.seconds() - forecast(20).decode.seconds()) * 1e9;
  EXPECT_NEAR(more, 20.0 * slots * each, 1e-6 * forecast(40).decode.seconds() * 1e9);
}

// Of two ranks each holds half of the cache, and each layer sums its rows twice: half of them go to the other rank and
// half come back.
TEST_F(EstimateServing, RanksThatShareAModelSumOverTheirLink) {
  constexpr int64_t slots = 4;
  for (const bool onGpus : {false, true}) {
    const Plan p = planToServe({.model = file()}, onGpus);
    EXPECT_EQ(p.target.isCuda(), onGpus);
    ServingMachine machine = machineOf(slowMemory());
    machine.link = {.bandwidth = 1e9, .latency = 1e-3};
    auto forecast = [&](int64_t ranks) {
      return servingForecast(*servingModule(p, slots, cacheDir(), ranks), machine, {.promptTokens = 8, .newTokens = 4});
    };
    const ServingForecast one = forecast(1), two = forecast(2);
    EXPECT_EQ(one.decode.links + one.prefill.links, 0) << onGpus;
    EXPECT_EQ(2 * two.cache, one.cache) << onGpus;
    EXPECT_LT(two.weights, one.weights) << onGpus;
    EXPECT_LT(two.arena, one.arena) << onGpus;
    const double sum = 1e-3 + double(slots * width * int64_t(sizeof(float))) / 1e9;
    EXPECT_NEAR(two.decode.links, 2 * layers * sum, 1e-12) << onGpus;
    EXPECT_STREQ(two.decode.boundBy(), "links") << onGpus;
    EXPECT_LT(two.decode.seconds() - two.decode.links, one.decode.seconds()) << onGpus;
  }
}

// The plan for a GPU has the sizes that the model has, and a token waits for the weights that are read.
TEST_F(EstimateServing, OnGpusItIsTheirPlan) {
  constexpr int64_t slots = 4, word = sizeof(float);
  const Plan p = planToServe({.model = file()}, true);
  auto forecast = [&](const Module &m) {
    return servingForecast(m, machineOf(slowMemory()), {.promptTokens = 8, .newTokens = 4});
  };
  const std::unique_ptr<Module> m = servingModule(p, slots, cacheDir());
  const ServingForecast f = forecast(*m), twice = forecast(*servingModule(p, 2 * slots, cacheDir()));
  EXPECT_EQ(f.arena, fact<&MemoryFacts::arenaBytes>(*m));
  EXPECT_EQ(f.cache, slots * layers * 2 * context * width * word);
  const double read = double(f.weights - (vocabulary + context) * width * word);
  EXPECT_STREQ(f.decode.boundBy(), "memory");
  // What does not grow with the slots are the weights; what does, activations and the 10 tokens of a cache that are
  // seen.
  const double bytes = f.decode.seconds() * 1e9, ofSlots = twice.decode.seconds() * 1e9 - bytes;
  EXPECT_NEAR(bytes - ofSlots, read, 0.1 * read);
  EXPECT_GT(ofSlots, double(slots * layers * 2 * 10 * width * word));
  // A folder of Hugging Face on GPUs of a file, whose driver takes some of their memory.
  const Result r = w.gptc({"estimate", GPTC_SOURCE_DIR "/tests/e2e/hf/llama", "--slots", "1,4", "--json", "--cluster",
                           GPTC_SOURCE_DIR "/examples/clusters/8xa100-80gb.toml"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto j = parseJson(r.output);
  EXPECT_EQ(j["machine"]["memory_bytes"], int64_t(79) << 30);
  ASSERT_EQ(j["slots"].size(), 2u);
  EXPECT_GT(double(j["slots"][1]["decode_tokens_per_s"]), double(j["slots"][0]["decode_tokens_per_s"]));
  EXPECT_EQ(j["slots"][0]["fits"], true);
}

TEST_F(EstimateServing, AFolderAndAFileNeedNoTokenizer) {
  const std::string folder = GPTC_SOURCE_DIR "/tests/e2e/hf/llama";  // two layers, a context of 20, heads of 4
  for (const int64_t asked : {0, 7}) {
    const Plan p = planToServe({.model = folder, .as = {.context = asked, .precision = "fp32"}});
    const std::unique_ptr<Module> m = servingModule(p, 5, cacheDir());
    EXPECT_EQ(fact<&ModelFacts::blockSize>(*m), asked ? asked : 20);
    EXPECT_EQ(bytesOfCaches(*m), 5 * 2 * 2 * (asked ? asked : 20) * 4 * int64_t(sizeof(float)));
  }
  const Plan gguf = planToServe({.model = GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/gpt2.gguf"});
  EXPECT_GT(
      servingForecast(*servingModule(gguf, 2, cacheDir()), machineOf(slowMemory()), {.promptTokens = 1, .newTokens = 1})
          .weights,
      0);
  EXPECT_EQ(codeOf([&] { planToServe({.model = folder, .as = {.context = 21}}); }), ErrorCode::Usage);
  EXPECT_EQ(codeOf([&] { planToServe({.model = folder, .as = {.cache = "q8_0"}}); }), ErrorCode::ShapeMismatch);
  EXPECT_EQ(codeOf([&] { planToServe({.model = folder, .settings = {"train.steps=1"}}); }), ErrorCode::Usage);
}

TEST_F(EstimateServing, SlotsAreNumbersThatStandOnce) {
  EXPECT_EQ(parseSlots("1, 1024,8"), (std::vector<int64_t>{1, 1024, 8}));
  for (const char *text : {"", "0", "-1", "x", "8x", "1.5", "1,,2", "1,", ",1", "1025", "8,08", "8,8", "1..8",
                           "99999999999999999999999"}) {
    try {
      parseSlots(text);
      ADD_FAILURE() << text;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::Usage) << text;
    }
  }
}

TEST_F(EstimateServing, TokensFitTheContext) {
  auto load = [](int64_t prompt, int64_t made, int64_t places) {
    const ServingLoad l = loadOf({.promptTokens = prompt, .newTokens = made}, places);
    return std::pair(l.promptTokens, l.newTokens);
  };
  EXPECT_EQ(load(0, 0, 4096), std::pair(int64_t(512), int64_t(128)));
  EXPECT_EQ(load(0, 0, 16), std::pair(int64_t(9), int64_t(8)));
  EXPECT_EQ(load(0, 0, 1), std::pair(int64_t(1), int64_t(1)));
  EXPECT_EQ(load(16, 0, 16), std::pair(int64_t(16), int64_t(1)));
  EXPECT_EQ(load(0, 16, 16), std::pair(int64_t(1), int64_t(16)));
  EXPECT_EQ(load(10, 7, 16), std::pair(int64_t(10), int64_t(7)));
  for (const auto &[prompt, made] : {std::pair(10, 8), {17, 0}, {0, 17}, {1 << 20, 1 << 20}})
    EXPECT_EQ(codeOf([&, prompt = prompt, made = made] { load(prompt, made, 16); }), ErrorCode::Usage);
}

TEST_F(EstimateServing, WhatCannotBeServedIsRefused) {
  auto code = [&](ServingRequest r) { return codeOf([&] { planToServe(r); }); };
  EXPECT_EQ(code({.model = w.path("nothing")}), ErrorCode::FileMissing);
  EXPECT_EQ(code({.model = w.path("nothing.gguf")}), ErrorCode::FileMissing);
  EXPECT_EQ(code({.model = w.path("")}), ErrorCode::FileMissing);  // a folder without a plan
  EXPECT_EQ(code({.model = file(), .as = {.context = 8}}), ErrorCode::Usage);
  EXPECT_EQ(code({.model = file(), .as = {.weights = "q8_0"}}), ErrorCode::Usage);
  EXPECT_EQ(code({.model = file(), .as = {.cache = "q8_0"}}), ErrorCode::Usage);
  EXPECT_EQ(code({.model = file(), .settings = {"compile.target=cuda:sm_90a"}}), ErrorCode::NotBuiltYet);
  const std::string compiled = w.compile("served.plan");
  EXPECT_EQ(code({.model = compiled, .as = {.precision = "bf16"}}), ErrorCode::Usage);
  EXPECT_EQ(code({.model = compiled, .settings = {"train.steps=1"}}), ErrorCode::Usage);
  EXPECT_EQ(code({.model = compiled + "/planned.gir"}), ErrorCode::NotBuiltYet);
}

TEST_F(EstimateServing, OptionsGoWithTheirForecast) {
  writeFile(w.path("cpu.toml"), cpu);
  auto code = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"estimate", file()};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = w.gptc(args);
    EXPECT_EQ(r.output.find("error[GPTC") == std::string::npos, r.code == 0) << r.output;
    return r.code;
  };
  const std::string on = w.path("cpu.toml");
  EXPECT_EQ(code({}), 2);
  EXPECT_EQ(code({"--slots", ""}), 2);
  EXPECT_EQ(code({"--slots", "2", "--nodes", "2"}), 2);
  for (const std::vector<std::string> &alone : {std::vector<std::string>{"--gpus", "8"},
                                                {"--tokens", "1e9"},
                                                {"--loss", "3"},
                                                {"--curve", "log.jsonl"},
                                                {"--pipeline", "2"},
                                                {"--search"},
                                                {"--by-code"},
                                                {"--svg", w.path("pictures")}}) {
    std::vector<std::string> both = {"--slots", "2", "--cluster", on};
    both.insert(both.end(), alone.begin(), alone.end());
    EXPECT_EQ(code(both), 2) << alone[0];
  }
  for (const std::vector<std::string> &alone : {std::vector<std::string>{"--context", "8"},
                                                {"--precision", "bf16"},
                                                {"--weights", "q8_0"},
                                                {"--cache", "q8_0"},
                                                {"--prompt-tokens", "8"},
                                                {"--new-tokens", "8"},
                                                {"--tensor", "2"},
                                                {"--threads", "1"}}) {
    std::vector<std::string> without = {"--cluster", on};
    without.insert(without.end(), alone.begin(), alone.end());
    EXPECT_EQ(code(without), 2) << alone[0];
  }
  EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--threads", "1"}), 2);
  EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--prompt-tokens", "0"}), 2);
  EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--prompt-tokens", "257"}), 2);
  EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--prompt-tokens", "0.201k", "--new-tokens", "50"}), 0);
  for (const char *bad : {"1.5", "0.2001k", "2M", "1e7", "8x", "-8", "nan"})
    EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--new-tokens", bad}), 2) << bad;
  EXPECT_EQ(code({"--slots", "2", "--tensor", "2"}), 2) << "of which ranks?";
  EXPECT_EQ(code({"--slots", "2", "--cluster", GPTC_SOURCE_DIR "/examples/clusters/8xh100.toml", "--tensor", "3"}), 3);
  EXPECT_EQ(code({"--slots", "2", "--cluster", on, "--tensor", "2"}), 0);
  EXPECT_EQ(code({"--slots", "2", "--cluster", GPTC_SOURCE_DIR "/examples/clusters/jean-zay.toml"}), 3);
  EXPECT_EQ(code({"--slots", "2", "--cluster", GPTC_SOURCE_DIR "/examples/clusters/8xh100.toml", "--tensor", "4"}), 0);
  EXPECT_EQ(code({"--slots", "1,2", "--cluster", on}), 0);
}

TEST_F(EstimateServing, RanksOnSeveralNodesNeedANetwork) {
  const std::string all = cpu, device = all.substr(0, all.find("[node]"));
  auto estimate = [&](const std::string &cluster) {
    writeFile(w.path("cpu.toml"), cluster);
    return w.gptc({"estimate", file(), "--slots", "2", "--tensor", "2", "--json", "--cluster", w.path("cpu.toml")});
  };
  const Result unknown = estimate(device);
  EXPECT_EQ(unknown.code, 3) << unknown.output;
  EXPECT_NE(unknown.output.find("2 GPUs take several nodes of 1, and nothing is known of the network"),
            std::string::npos)
      << unknown.output;
  const Result known = estimate(device + "[network]\neffective = \"1 GB/s\"\n");
  ASSERT_EQ(known.code, 0) << known.output;
  EXPECT_GT(double(parseJson(known.output)["slots"][0]["decode_tokens_per_s"]), 0);
}

TEST_F(EstimateServing, JsonOfAFileWhoseNameIsNotUtf8) {
  const std::string odd = w.path("odd\xff.toml");
  writeFile(odd, model);
  writeFile(w.path("cpu.toml"), cpu);
  const Result r = w.gptc({"estimate", odd, "--slots", "1,8", "--json", "--cluster", w.path("cpu.toml"),
                           "--prompt-tokens", "30", "--new-tokens", "10"});
  ASSERT_EQ(r.code, 0) << r.output;
  const auto j = parseJson(r.output);
  EXPECT_EQ(j["context"], context);
  EXPECT_EQ(j["prompt_tokens"], 30);
  EXPECT_EQ(j["new_tokens"], 10);
  EXPECT_EQ(j["machine"]["read_bytes_per_s"], 50e9);
  ASSERT_EQ(j["slots"].size(), 2u);
  const auto &one = j["slots"][0], &eight = j["slots"][1];
  EXPECT_EQ(one["arena_bytes"], fact<&MemoryFacts::arenaBytes>(*module(1)));
  EXPECT_EQ(eight["slots"], 8);
  EXPECT_EQ(eight["cache_bytes_per_slot"], one["cache_bytes"]);
  EXPECT_EQ(eight["fits"], true);
  EXPECT_DOUBLE_EQ(double(eight["decode_tokens_per_s"]), 8 * double(eight["decode_tokens_per_s_per_slot"]));
  EXPECT_DOUBLE_EQ(double(one["s_to_first_token"]) * double(one["prefill_tokens_per_s"]), 30);
}

}  // namespace
