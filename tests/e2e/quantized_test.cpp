// Weights of 8 and 4 bits: the same numbers from every file, less memory, and nearly the same model.
#include "tests/support/harness.h"
#include "tests/support/whole_run.h"

#include "ir/facts.h"
#include "ir/quantized.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/plan.h"
#include "runtime/serve/generator.h"
#include "runtime/train/session.h"
#include "support/gguf/gguf_file.h"
#include "tools/compiler/imported_model.h"
#include "tools/compiler/inference.h"

#include <algorithm>
#include <cmath>
#include <map>

using namespace e2e;
using namespace gptc;

namespace {

/// Opens a plan with weights from a file or a folder.
struct Opened {
  Opened(const std::string &weights, Plan plan, const ModelIdentity &model) : session(std::move(plan), cacheDir()) {
    loadWeights(session.executor, weights, model);
  }
  gptc::Session session;
  const Module &module() const { return *session.plan.planned; }
  int64_t arena() const { return fact<&MemoryFacts::arenaBytes>(module()); }
  std::map<std::string, std::string> states(StateKind kind) {
    std::map<std::string, std::string> all;
    for (const auto &s : module().states)
      if (kindOf(*s) == kind && !isInFiles(*s))
        all[s->name] = std::string(session.executor.view(*s, StateAccess::read).as<char>(), size_t(s->type.bytes()));
    return all;
  }
  std::vector<float> logits(const std::vector<int32_t> &tokens) {
    static const HowToChoose greedy{};
    CachedModel m(session.executor);
    const CachedModel::Part part{
        .slot = 0, .tokens = tokens, .begin = 0, .end = int64_t(tokens.size()), .hows = greedy};
    m.read(part);
    return m.logits(0).vec();
  }
};

struct Quantized : ::testing::Test {
  Workplace w;

  std::string newest(const std::string &out) const {
    return fmt::format("{}/checkpoints/{}", w.path(out), w.checkpoints(w.path(out)).back());
  }

  Opened open(const std::string &dir, const std::string &weights) {
    Plan plan = loadPlan(dir);
    const ModelIdentity model = modelIdentity(*plan.planned);
    return {weights, servingPlan(std::move(plan), 2, cacheDir()), model};
  }
};

TEST_F(Quantized, NumbersAreThoseOfEveryFile) {
  const std::vector<int32_t> tokens = {1, 9, 5, 3, 40, 2, 7};
  int n = 0;
  gptc::test::OneIn some(3);
  for (const std::vector<std::string> &family :
       std::vector<std::vector<std::string>>{{},
                                             {"model.preset=llama", "model.n_head=4", "model.n_kv_head=2"},
                                             {"model.preset=bloom", "model.vocab_size=67"}}) {
    std::vector<std::string> settings = family;
    settings.insert(settings.end(), {"train.steps=3", "model.n_embd=64", "model.dropout=0.0"});
    const std::string plain = w.compile(fmt::format("plain{}", n), settings);
    const std::string out = fmt::format("out{}", n);
    w.train(plain, out);
    const std::string f32 = newest(out);
    Opened wide = open(plain, f32);
    const std::vector<float> want = wide.logits(tokens);
    for (const auto &[weights, compute, bound] :
         {std::tuple{"q8_0", "fp32", 0.03}, {"q8_0", "bf16", 0.03}, {"q4_0", "fp32", 0.3}, {"q4_0", "bf16", 0.3}}) {
      if (some.skips())
        continue;
      const std::string what = fmt::format("{} {} {}", n, weights, compute), gguf = w.path(what + ".gguf");
      ASSERT_EQ(w.gptc({"export", w.path(out), "-o", gguf, "--format", "gguf", "--dtype", weights}).code, 0);
      std::vector<std::string> more = settings;
      more.insert(more.end(),
                  {fmt::format("precision.compute={}", compute), fmt::format("precision.weights={}", weights)});
      const std::string plan = w.compile(what, more);
      Opened folder = open(plan, f32), file = open(plan, gguf);
      const auto numbers = folder.states(StateKind::quantized);
      EXPECT_GE(numbers.size(), 2u * 2 * 4) << what;  // of two layers, at the least
      EXPECT_TRUE(file.states(StateKind::quantized) == numbers) << what;
      EXPECT_LT(folder.arena(), wide.arena()) << what;
      // The same model but for rounding.
      const std::vector<float> got = folder.logits(tokens);
      double difference = 0, size = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        difference += double(got[i] - want[i]) * (got[i] - want[i]);
        size += double(want[i]) * want[i];
      }
      EXPECT_GT(difference, 0) << what;
      EXPECT_LT(std::sqrt(difference / size), bound) << what;
    }
    ++n;
  }
}

// Q4_K where inputs are a multiple of 256, 8 bits elsewhere.
TEST_F(Quantized, Q4KHasTheSameNumbersFromEveryFile) {
  const std::vector<int32_t> tokens = {1, 9, 5, 3, 40, 2, 7};
  int n = 0;
  for (const std::vector<std::string> &family : std::vector<std::vector<std::string>>{
           {"model.n_embd=256"},
           {"model.n_embd=64"},  // 256 inputs of the second product of an MLP
           {"model.preset=llama", "model.n_embd=256", "model.n_head=4", "model.n_kv_head=2", "model.ffn_dim=320"}}) {
    std::vector<std::string> settings = family;
    settings.insert(settings.end(), {"train.steps=2", "model.dropout=0.0"});
    const std::string plain = w.compile(fmt::format("plain{}", n), settings), out = fmt::format("out{}", n),
                      gguf = w.path(fmt::format("{}.gguf", n));
    w.train(plain, out);
    const std::string f32 = newest(out);
    Opened wide = open(plain, f32);
    const Result exported = w.gptc({"export", w.path(out), "-o", gguf, "--format", "gguf", "--dtype", "q4_k"});
    ASSERT_EQ(exported.code, 0) << exported.output;
    auto with = [&](const char *name, std::vector<std::string> more) {
      more.insert(more.begin(), settings.begin(), settings.end());
      return w.compile(fmt::format("{}{}", name, n), more);
    };
    const std::string plan = with("few", {"precision.weights=q4_k"}), eight = with("eight", {"precision.weights=q8_0"}),
                      mixed = with("mixed", {"precision.weights=q4_k", "precision.eight_bits='h.1.mlp.*'"});
    Opened folder = open(plan, f32), file = open(plan, gguf), eights = open(eight, f32), both = open(mixed, gguf);
    EXPECT_TRUE(file.states(StateKind::quantized) == folder.states(StateKind::quantized)) << n;
    EXPECT_LT(folder.arena(), eights.arena()) << n;
    EXPECT_GT(both.arena(), folder.arena()) << n;
    int supers = 0;
    for (const auto &s : folder.module().states)
      supers += llvm::StringRef(s->name).starts_with("supers.");
    EXPECT_EQ(supers, n == 0 ? 8 : n == 1 ? 2 : 8) << n;  // of two layers; in the last one c_proj has 320 inputs
    EXPECT_EQ(both.module().state("supers.h.1.mlp.c_proj.weight"), nullptr);
    EXPECT_EQ(both.module().state("supers.h.0.mlp.c_proj.weight") == nullptr, n == 2);
    const std::vector<float> want = wide.logits(tokens), got = folder.logits(tokens);
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += double(got[i] - want[i]) * (got[i] - want[i]);
      size += double(want[i]) * want[i];
    }
    EXPECT_GT(difference, 0) << n;
    EXPECT_LT(std::sqrt(difference / size), 0.3) << n;
    ++n;
  }
}

// A file of Q4_K and Q8_0 keeps both, for texts and for vectors, also if --weights says what it has.
TEST_F(Quantized, AFileThatMixesKeepsWhatItHas) {
  w.prepare(numberedCats(), "bpe:290");
  ASSERT_FALSE(HasFailure());
  const std::string plan = w.compile("plan", {"model.preset=llama", "model.n_head=4", "model.n_embd=64",
                                              "model.ffn_dim=256", "model.vocab_size=300", "train.steps=1",
                                              "data.tokenizer='" + w.path("data/tokenizer.json") + "'"});
  w.train(plan, "out");
  const std::string gguf = w.path("x.gguf");
  const Result exported = w.gptc({"export", w.path("out"), "-o", gguf, "--dtype", "q4_k"});
  ASSERT_EQ(exported.code, 0) << exported.output;
  auto supersOf = [&](const RunAs &how, ImportFor purpose) {
    Plan made = planOfModel(importedModel(gguf, purpose), how, purpose);
    const ModelIdentity model = modelIdentity(*made.planned);
    const bool tokens = purpose == ImportFor::tokens;
    const Opened o(
        gguf, tokens ? servingPlan(std::move(made), 2, cacheDir()) : embeddingPlan(std::move(made), cacheDir()), model);
    std::vector<std::string> supers;
    int64_t numbers = 0;
    for (const auto &s : o.module().states) {
      if (llvm::StringRef(s->name).starts_with("supers."))
        supers.push_back(s->name);
      numbers += llvm::StringRef(s->name).starts_with("numbers.");
    }
    EXPECT_EQ(numbers, tokens ? 11 : 10) << "five matrices of two layers, and the classifier";
    return supers;
  };
  const std::vector<std::string> want = {"supers.h.0.mlp.c_proj.weight", "supers.h.1.mlp.c_proj.weight"};
  for (const ImportFor purpose : {ImportFor::tokens, ImportFor::vectors}) {
    EXPECT_EQ(supersOf({.precision = "fp32"}, purpose), want);
    EXPECT_EQ(supersOf({.weights = "q4_k", .precision = "fp32"}, purpose), want);
    EXPECT_EQ(supersOf({.weights = "q8_0", .precision = "fp32"}, purpose), std::vector<std::string>());
  }
  const ImportedModel imported = importedModel(gguf);
  EXPECT_EQ(imported.stored.weights, Weights::q4_k);
  EXPECT_EQ(imported.stored.eightBits.size(), 8u);
  EXPECT_EQ(roundingNote(imported, {}), "") << "Q8_0 is kept as it is";
  const Result r = w.gptrun({"eval", gguf, "--data", w.path("data/val.bin"), "--precision", "fp32"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("note: weights as q4_k and q8_0, 2 and 9 of 11 weights"), std::string::npos) << r.output;
}

TEST_F(Quantized, PatternsThatNameNoMatrixAreErrors) {
  for (const char *pattern : {"h.*.mlp.c_prj.weight", "wte.weight", "h.0.ln_1.weight"}) {
    const Result r = w.gptc({"compile", w.modelFile(), "-o", w.path("bad"), "--set", "precision.weights=q4_k", "--set",
                             fmt::format("precision.eight_bits='{}'", pattern)});
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find(fmt::format("error[GPTC0205]: no matrix of a layer is called \"{}\"", pattern)),
              std::string::npos)
        << r.output;
  }
}

// Also blocks that rounding would not give: those of llama.cpp's quantisation by importance.
TEST_F(Quantized, BlocksOfFilesAreKept) {
  const std::vector<std::string> settings = {"model.preset=llama", "model.n_embd=64", "train.steps=1"};
  w.train(w.compile("plain", settings), "out");
  for (const auto &[weights, format] : {std::pair{"q8_0", QuantFormat::q8_0}, {"q4_0", QuantFormat::q4_0}}) {
    const std::string path = w.path(fmt::format("{}.gguf", weights));
    ASSERT_EQ(w.gptc({"export", w.path("out"), "-o", path, "--format", "gguf", "--dtype", weights}).code, 0);
    const GgufTensor down = *GgufFile(path).find("blk.0.ffn_down.weight");
    if (format == QuantFormat::q4_0) {  // no number is -8 or 7, the second largest magnitudes
      std::string bytes = readFile(path);
      for (int64_t block = 0; block < down.bytes / 18; ++block)
        for (int64_t i = 2; i < 18; ++i) {
          auto &b = reinterpret_cast<uint8_t &>(bytes[size_t(down.at + block * 18 + i)]);
          b = uint8_t(std::clamp(b & 15, 1, 14) | std::clamp(b >> 4, 1, 14) << 4);
        }
      writeFile(path, bytes);
    }
    std::vector<std::string> more = settings;
    more.push_back(fmt::format("precision.weights={}", weights));
    Opened o = open(w.compile(weights, more), path);
    auto states = o.states(StateKind::quantized);
    const State &numbers = *o.module().state("numbers.h.0.mlp.c_proj.weight");
    const int64_t n = down.rows(), k = down.columns(), cols = numbers.type.dim(2);
    std::vector<float> want(size_t(n * k));
    GgufFile(path).read(down, 0, n * k, want.data());
    const auto *words = reinterpret_cast<const uint32_t *>(states[numbers.name].data());
    const auto *scales = reinterpret_cast<const _Float16 *>(states["scales.h.0.mlp.c_proj.weight"].data());
    for (int64_t row = 0; row < n; ++row)
      for (int64_t i = 0; i < k; ++i) {
        const QuantizedPlace p = quantizedPlace(i, row, k, cols, format);
        const int64_t number = int64_t(words[p.word] >> p.shift & ((1 << bitsOf(format)) - 1)) - quantOffset(format);
        ASSERT_EQ(float(number) * float(scales[p.scale]), want[size_t(row * k + i)]) << weights << row << " " << i;
      }
  }
}

/// A file of a run in which the classifier's blocks are those of the embedding: it is a model of two tables, and, with
/// the classifier as a copy, one of a tied table.
std::string tiedFile(const std::string &path) {
  const GgufFile file(path);
  const GgufTensor from = *file.find("token_embd.weight"), to = *file.find("output.weight");
  EXPECT_EQ(from.bytes, to.bytes);
  EXPECT_EQ(from.format->type, GgmlType::q8_0);
  std::string bytes = readFile(path);
  bytes.replace(size_t(to.at), size_t(to.bytes), bytes, size_t(from.at), size_t(from.bytes));
  writeFile(path, bytes);
  return path;
}

// A tied table in blocks gives the logits of two tables, of which one has the same numbers in f32 for the look-up, to
// the bit; and its session has the bytes of that one less.
TEST_F(Quantized, ATiedTableIsThereOnce) {
  const std::vector<int32_t> tokens = {1, 9, 5, 3, 40, 2, 7, 0, 63};
  int n = 0;
  for (const std::vector<std::string> &family : std::vector<std::vector<std::string>>{
           {"model.vocab_size=67"}, {"model.preset=llama", "model.n_head=4", "model.n_kv_head=2"}}) {
    const std::string out = fmt::format("tied{}", n++);
    std::vector<std::string> settings = family;
    settings.insert(settings.end(), {"train.steps=2", "model.n_embd=64", "model.dropout=0.0"});
    auto planOf = [&](bool tied, const std::vector<std::string> &more) {
      std::vector<std::string> all = settings;
      all.push_back(fmt::format("model.tie_embeddings={}", tied));
      all.insert(all.end(), more.begin(), more.end());
      return w.compile(fmt::format("{}-{}-{}", out, tied, fmt::join(more, "-")), all);
    };
    w.train(planOf(false, {}), out);
    for (const char *weights : {"q8_0", "q4_0"}) {
      const std::string path = w.path(out + weights + ".gguf");
      ASSERT_EQ(w.gptc({"export", w.path(out), "-o", path, "--format", "gguf", "--dtype", weights}).code, 0);
      const std::string file = tiedFile(path);
      for (const char *compute : {"fp32", "bf16"}) {
        const std::string what = fmt::format("{} {} {}", out, weights, compute);
        const std::vector<std::string> few = {fmt::format("precision.weights={}", weights),
                                              fmt::format("precision.compute={}", compute)};
        Opened once = open(planOf(true, few), file), twice = open(planOf(false, few), file);
        const State &table = *once.module().state("wte.weight");
        EXPECT_TRUE(isInFiles(table)) << what;
        EXPECT_FALSE(isInFiles(*twice.module().state("wte.weight"))) << what;
        EXPECT_EQ(once.states(StateKind::quantized)["numbers.wte.weight"],
                  twice.states(StateKind::quantized)["numbers.lm_head.weight"])
            << what;
        EXPECT_EQ(once.logits(tokens), twice.logits(tokens)) << what;
        EXPECT_EQ(twice.arena() - once.arena(), table.type.bytes()) << what;
        EXPECT_EQ(once.session.arena->bytes(), once.arena()) << what;
      }
    }
  }
}

/// The number behind "loss ".
double lossIn(const std::string &output) {
  const size_t at = output.find("loss ");
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? NAN : std::stod(output.substr(at + 5));
}

// What samples is evaluated: a plan's own loss where nothing is rounded, nearly so in 8 and in 4 bits; of a folder,
// too.
TEST_F(Quantized, WhatSamplesIsEvaluated) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("{} times {} is {}. ", i, i, i * i);
  w.useText(text);
  const std::vector<std::string> settings = {"train.steps=30", "model.n_embd=64", "model.dropout=0.0"};
  const std::string plain = w.compile("plain", settings);
  w.train(plain, "out");
  const std::string out = w.path("out"), data = w.path("data/val.bin");
  auto loss = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "eval");
    const Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return lossIn(r.output);
  };
  const double want = loss({plain, "--out-dir", out, "--data", data, "--steps", "0"});
  EXPECT_NEAR(loss({plain, "--out-dir", out, "--data", data, "--steps", "0", "--as-sampled"}), want, 2e-4);
  EXPECT_NEAR(loss({plain, "--out-dir", out, "--as-sampled", "--steps", "3"}),
              loss({plain, "--out-dir", out, "--steps", "3"}), 2e-4);
  for (const auto &[weights, bound] : {std::pair{"q8_0", 0.01}, {"q4_0", 0.1}}) {
    std::vector<std::string> more = settings;
    more.push_back(fmt::format("precision.weights={}", weights));
    const std::string few = w.compile(weights, more);
    const double rounded = loss({few, "--out-dir", out, "--data", data, "--steps", "0", "--as-sampled"});
    EXPECT_TRUE(rounded != want || weights == std::string("q8_0"));
    EXPECT_NEAR(rounded, want, bound) << weights;
    EXPECT_EQ(loss({few, "--out-dir", out, "--data", data, "--steps", "0"}), want) << weights;
  }
  const std::string folder = out + "/checkpoints/latest";
  EXPECT_NEAR(loss({folder, "--data", data, "--precision", "fp32"}), want, 2e-4);
  EXPECT_NE(w.gptrun({"eval", folder, "--precision", "fp32"}).code, 0) << "without data";
  EXPECT_NE(w.gptrun({"eval", plain, "--out-dir", out, "--weights", "q8_0"}).code, 0);
}

// Keys and values in 8 bits: bytes to the block, the same model but for rounding, and the same from a file.
TEST_F(Quantized, CachesTakeTheirBytesAndChangeLittle) {
  const std::vector<int32_t> tokens = {1, 9, 5, 3, 40, 2, 7, 9, 9, 5, 1, 0, 33};
  const std::vector<std::string> settings = {"model.preset=llama", "model.n_head=2", "model.n_kv_head=1",
                                             "model.n_embd=64",    "train.steps=3",  "model.dropout=0.0"};
  auto with = [&](const char *name, std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    return w.compile(name, more);
  };
  const std::string plain = with("plain", {}), eight = with("eight", {"precision.cache=q8_0"});
  w.train(plain, "out");
  Opened wide = open(plain, newest("out")), few = open(eight, newest("out"));
  EXPECT_EQ(bytesOfCaches(few.module()) * 128, bytesOfCaches(wide.module()) * 34);  // of blocks of 32
  EXPECT_LT(few.arena(), wide.arena());
  EXPECT_NE(slotsInWords(few.module(), 2).find(" of cache in 8 bits, "), std::string::npos);
  EXPECT_EQ(slotsInWords(wide.module(), 2).find("8 bits"), std::string::npos);
  const std::vector<float> want = wide.logits(tokens), got = few.logits(tokens);
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += double(got[i] - want[i]) * (got[i] - want[i]);
    size += double(want[i]) * want[i];
  }
  EXPECT_GT(difference, 0);
  // An element is off by at most a 254th of its block's largest: of values, and of keys that scores are sums with. Two
  // layers.
  EXPECT_LT(std::sqrt(difference / size), 2 * 2.0 / 254);
  // Training does not see it: a plan with it gives the same weights.
  w.train(eight, "out8");
  EXPECT_EQ(readFile(newest("out8") + "/model.safetensors"), readFile(newest("out") + "/model.safetensors"));

  const std::string gguf = w.path("cached.gguf");
  ASSERT_EQ(w.gptc({"export", w.path("out"), "-o", gguf, "--format", "gguf"}).code, 0);
  const ImportedModel imported = importedModel(gguf, ImportFor::sizes);
  auto bytesOf = [&](const RunAs &how) {
    return bytesOfCaches(*servingModule(planOfModel(imported, how, ImportFor::sizes), 2, cacheDir()));
  };
  EXPECT_EQ(bytesOf({.precision = "fp32", .cache = "q8_0"}), bytesOfCaches(few.module()));
  EXPECT_EQ(bytesOf({.precision = "fp32", .cache = "auto"}), bytesOfCaches(wide.module()));
  EXPECT_EQ(bytesOf({.precision = "fp32"}), bytesOfCaches(wide.module()));
  EXPECT_THROW(planOfModel(imported, {.cache = "q8_0"}, ImportFor::vectors), UserError);
}

// A module for training, and one whose weights have no blocks of 32, stay as they are.
TEST_F(Quantized, IsLeftOutWhereItCannotBe) {
  const std::string plan = w.compile("plan", {"precision.weights=q8_0", "train.steps=1", "model.n_embd=48"});
  const Plan p = loadPlan(plan);
  for (const auto &s : p.planned->states)
    EXPECT_NE(kindOf(*s), StateKind::quantized) << s->name;
  w.train(plan, "out");
  Opened s = open(plan, newest("out"));
  EXPECT_EQ(s.states(StateKind::quantized).size(), 2u * 2);  // the second product of two MLPs, 192 wide
}

}  // namespace
