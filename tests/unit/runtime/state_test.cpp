// Initial values, checkpoints and weights on a module that has states only.
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/new_layers.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/state.h"
#include "runtime/checkpoint/tensor_files.h"
#include "runtime/device/cpu_executor.h"
#include "runtime/plan/plan.h"
#include "runtime/train/weights.h"

#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "temp_dir.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

/// Puts every state at its place and gives the arena its size, as plan-memory does.
struct Fixture {
  explicit Fixture(const char *text, unsigned threads = 2) : module(parseModule(text, "test")) {
    int64_t at = 0;
    for (auto &s : module->states) {
      s->attrs.set("at", at);
      at += (s->type.bytes() + 63) / 64 * 64;
    }
    module->attrs.set("arena_bytes", at);
    pool = std::make_unique<ThreadPool>(threads);
    arena = std::make_unique<Arena>(at, pool.get());
    Target host = hostTarget(threads);
    executor = std::make_unique<CpuExecutor>(*module, host, host, *arena, *pool, "");
  }
  template <typename T = float> T *data(const char *name) { return static_cast<T *>(executor->state(name)); }
  std::unique_ptr<Module> module;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<CpuExecutor> executor;
};

const char *kStates = R"(module {
  state @wte.weight : f32[37->40,129] {kind="param", init="normal", std=0.02, stream=3, decay=true}
  state @ln_f.weight : f32[129] {kind="param", init="ones"}
  state @ln_f.bias : f32[129] {kind="param", init="zeros"}
  state @m.wte.weight : f32[37->40,129] {kind="moment", init="zeros"}
  state @grad.wte.weight : f32[37->40,129] {kind="grad", init="zeros"}
  state @step : i64[] {kind="counter", init="zeros"}
  state @rng_seed : i64[] {kind="counter", init="zeros"}
  state @c : f32[] {kind="counter", init="const", value=0.25}
})";

/// The same in a model of so long a context.
std::string withContext(int64_t tokens) {
  std::string text = kStates;
  return text.insert(text.find('{'), "{block_size=" + std::to_string(tokens) + "} ");
}

int64_t counter(const Fixture &f, const char *name) { return *static_cast<const int64_t *>(f.executor->state(name)); }

TEST(InitialValues, AgreeWithTheInterpreter) {
  Fixture f(kStates);
  initializeStates(*f.executor, 99);
  for (const auto &s : f.module->states) {
    if (s->name == "rng_seed")
      continue;
    Tensor want = initialValue(*s, 99);
    if (s->type.dtype != DType::f32)
      continue;
    std::vector<float> got(s->type.elements());
    copyFromPadded(s->type, f.executor->state(s->name), got.data());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want.data[i], 4e-6 * s->attrs.getFloat("std", 1)) << s->name << " " << i;
  }
  EXPECT_EQ(counter(f, "rng_seed"), 99);
  for (int i = 37 * 129; i < 40 * 129; ++i)
    ASSERT_EQ(f.data("wte.weight")[i], 0) << "padding";
}

TEST(InitialValues, AreNormalAndIndependentOfThreads) {
  const char *text = R"(module {
    state @a : f32[1000,1001] {kind="param", init="normal", std=2.0, stream=1}
    state @b : f32[1000,1001] {kind="param", init="normal", std=2.0, stream=2}
  })";
  Fixture one(text, 1), two(text, 2);
  initializeStates(*one.executor, 5);
  initializeStates(*two.executor, 5);
  const int n = 1000 * 1001;
  EXPECT_EQ(std::memcmp(one.data("a"), two.data("a"), n * 4), 0);
  double sum = 0, squares = 0, product = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    double a = one.data("a")[i] / 2, b = one.data("b")[i] / 2;
    sum += a;
    squares += a * a;
    fourth += a * a * a * a;
    product += a * b;
  }
  EXPECT_NEAR(sum / n, 0, 4e-3);
  EXPECT_NEAR(squares / n, 1, 6e-3);
  EXPECT_NEAR(fourth / n, 3, 5e-2);
  EXPECT_NEAR(product / n, 0, 4e-3);
}

TEST(LowCopies, AreTheParametersRoundedToNearest) {
  Fixture f(R"(module {
    state @w : f32[3->4,5000] {kind="param", init="normal", std=1.0, stream=1}
    state @low.w : bf16[3->4,5000] {kind="low", of="w"}
    state @half.w : f16[3->4,5000] {kind="low", of="w"}
  })");
  ASSERT_EQ(verify(*f.module), std::vector<std::string>());
  initializeStates(*f.executor, 5);
  f.data("w")[0] = 1 + 0x1p-8f, f.data("w")[1] = 1 + 0x3p-8f, f.data("w")[2] = 1e6f;  // ties, and beyond fp16
  fillCopies(*f.executor);
  const uint16_t *low = f.data<uint16_t>("low.w");
  const _Float16 *half = f.data<_Float16>("half.w");
  EXPECT_EQ(low[0], 0x3f80);
  EXPECT_EQ(low[1], 0x3f82);
  EXPECT_TRUE(std::isinf(float(half[2])));
  for (int i = 3; i < 3 * 5000; ++i) {
    const float w = f.data("w")[i];
    const uint32_t bits = uint32_t(low[i]) << 16;
    float back;
    std::memcpy(&back, &bits, sizeof back);
    ASSERT_LE(std::fabs(back - w), std::fabs(w) * 0x1p-8f) << i;
    ASSERT_LE(std::fabs(float(half[i]) - w), std::fabs(w) * 0x1p-11f + 0x1p-25f) << i;
  }
}

TEST(PackedStates, ArePanelsOfParametersAndTheirCopies) {
  Fixture f(R"(module {
    state @w : f32[5->6,7] {kind="param", init="normal", std=1.0, stream=1}
    state @panels.w : f32[2,5,4] {kind="packed", of="w"}
    state @turned.w : f32[2,7,3] {kind="packed", of="w", tb=true}
    state @panels.low.w : bf16[2,3,8] {kind="packed", of="low.w"}
    state @turned.low.w : bf16[1,4,16] {kind="packed", of="low.w", tb=true}
    state @low.w : bf16[5->6,7] {kind="low", of="w"}
  })");
  ASSERT_EQ(verify(*f.module), std::vector<std::string>());
  initializeStates(*f.executor, 5);
  fillCopies(*f.executor);
  const float *w = f.data("w");
  const uint16_t *low = f.data<uint16_t>("low.w");
  // What stands in panels of `cols` columns at element (k, n) of [K,N], or of [N,K] turned round.
  for (int64_t k = 0; k < 5; ++k)
    for (int64_t n = 0; n < 8; ++n) {
      const int64_t at = (n / 4 * 5 + k) * 4 + n % 4, pair = (n / 4 * 3 + k / 2) * 8 + n % 4 * 2 + k % 2;
      EXPECT_EQ(f.data("panels.w")[at], n < 7 ? w[k * 7 + n] : 0) << k << " " << n;
      EXPECT_EQ(f.data<uint16_t>("panels.low.w")[pair], n < 7 ? low[k * 7 + n] : 0) << k << " " << n;
    }
  for (int64_t n = 0; n < 4; ++n)  // the odd k has no partner
    EXPECT_EQ(f.data<uint16_t>("panels.low.w")[2 * 8 + n * 2 + 1], 0);
  for (int64_t k = 0; k < 7; ++k)
    for (int64_t n = 0; n < 6; ++n) {
      const int64_t at = (n / 3 * 7 + k) * 3 + n % 3;
      EXPECT_EQ(f.data("turned.w")[at], n < 5 ? w[n * 7 + k] : 0) << k << " " << n;
    }
  for (int64_t k = 0; k < 8; ++k)
    for (int64_t n = 0; n < 8; ++n)
      EXPECT_EQ(f.data<uint16_t>("turned.low.w")[k / 2 * 16 + n * 2 + k % 2], n < 5 && k < 7 ? low[n * 7 + k] : 0)
          << k << " " << n;
}

TEST(Padding, IsZeroBesideLoadedElements) {
  const Type t(DType::f32, {Dim(2, 3), Dim(3, 5)});
  const std::vector<float> dense = {1, 2, 3, 4, 5, 6};
  std::vector<float> padded(15, NAN);
  copyToPadded(t, dense.data(), padded.data());
  EXPECT_EQ(padded, (std::vector<float>{1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Padding, BehindTheEndLeavesNoGaps) {
  EXPECT_TRUE(isDense(Type::scalar(DType::f32)));
  EXPECT_TRUE(isDense(Type(DType::f32, {Dim(3, 4), Dim(5)})));
  EXPECT_TRUE(isDense(Type(DType::f32, {Dim(3, 4)})));
  EXPECT_FALSE(isDense(Type(DType::f32, {Dim(3), Dim(5, 8)})));
  EXPECT_FALSE(isDense(Type(DType::f32, {Dim(2), Dim(3, 4), Dim(5)})));
}

struct CheckpointTest : ::testing::Test {
  CheckpointTest() : f(kStates), store(dir.path) {
    initializeStates(*f.executor, 1);
    for (int i = 0; i < 100; ++i)
      f.data("m.wte.weight")[i] = i;
    model = modelIdentity(*f.module);
    model.keys["n_head"] = "2";
  }
  void save(int64_t step, int64_t keep = 10, std::optional<double> valLoss = {}) {
    writeCounter(*f.executor, "step", step);
    store.save(*f.executor, {step, "plan", model, "data", "", "", {}, {}, valLoss});
    store.prune(keep, {"plan"});
  }
  std::optional<CheckpointInfo> load(Fixture &into, bool parametersOnly = false) {
    warnings.clear();
    return store.loadNewest(*into.executor, model, parametersOnly,
                            [&](const std::string &w) { warnings.push_back(w); });
  }
  std::string stepDir(int step) { return dir / fmt::format("checkpoints/step-{:08}", step); }
  TempDir dir;
  Fixture f;
  CheckpointStore store;
  ModelIdentity model;
  std::vector<std::string> warnings;
};

TEST_F(CheckpointTest, RoundTrip) {
  save(7);
  Fixture g(kStates);
  auto info = load(g);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 7);
  EXPECT_EQ(info->planHash, "plan");
  EXPECT_EQ(info->dataFingerprint, "data");
  EXPECT_EQ(std::memcmp(f.arena->data(), g.arena->data(), f.arena->bytes()), 0);
  Fixture h(kStates);
  ASSERT_TRUE(load(h, true));
  EXPECT_EQ(std::memcmp(f.data("wte.weight"), h.data("wte.weight"), 37 * 129 * 4), 0);
  EXPECT_EQ(h.data("m.wte.weight")[5], 0);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (int s : {1, 2, 3, 4, 5})
    save(s, 2);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 4}));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), fs::directory_iterator()), 3)
      << "and the link to the newest";
  save(5, 2);  // the same step again replaces it
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 4}));
}

TEST_F(CheckpointTest, SayWhatDataTheyHaveSeen) {
  CheckpointInfo info{1, "plan", model, "data", "", "", {}};
  store.save(*f.executor, info);
  Fixture g(kStates);
  ASSERT_TRUE(load(g));
  EXPECT_FALSE(load(g)->data.known()) << "as those of earlier versions";
  for (int i = 0; i < 20'000; ++i)  // more than a megabyte
    info.data.files.push_back({fmt::format("part-{:05}.bin", i), i, std::string(64, 'a')});
  info.data.tokenizer = "t";
  info.step = 2;
  store.save(*f.executor, info);
  const auto got = load(g);
  ASSERT_TRUE(got && got->step == 2);
  EXPECT_EQ(got->data.files, info.data.files);
  EXPECT_EQ(got->data.tokenizer, "t");
}

// A folder may hold checkpoints of another run: it had the same out_dir, or somebody's plan named it.
TEST_F(CheckpointTest, RemovesThoseOfItsOwnPlansOnly) {
  auto saveOf = [&](const CheckpointInfo &info) { store.save(*f.executor, info); };
  saveOf({1, "theirs", model, "data", "", "", {}});
  saveOf({2, "first", model, "data", "", "", {}});
  Fixture g(kStates);
  auto info = load(g);
  ASSERT_TRUE(info);
  EXPECT_TRUE(info->earlierPlans.empty());
  // The run goes on with another plan, and with a third one from there.
  saveOf({3, "second", model, "data", "", "", {}, info->plansBefore("second")});
  info = load(g);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->plansBefore("second"), std::vector<std::string>{"first"});
  saveOf({4, "third", model, "data", "", "", {}, info->plansBefore("third")});
  info = load(g);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->ownPlans(), (std::vector<std::string>{"first", "second", "third"}));
  store.prune(1, {"third"});
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{4, 3, 2, 1}));
  damageFile(stepDir(3) + "/manifest.json", 20);
  store.prune(1, info->ownPlans());
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{4, 3, 1})) << "theirs stays, and what cannot be told";
}

TEST_F(CheckpointTest, KeepsTheBest) {
  EXPECT_FALSE(store.best());
  save(1, 2, 3.0);
  save(2, 2, 1.5);
  save(3, 2, 2.0);
  save(4, 2);
  save(5, 2, INFINITY);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{5, 4, 2}));
  EXPECT_EQ(CheckpointStore(dir.path).best(), 2) << "as another process sees it";
  save(6, 2, 1.5);
  EXPECT_EQ(store.best(), 6) << "of equal ones the newest";
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{6, 5}));
  save(7, 2);
  store.noteValidation(7, 1.25);
  EXPECT_EQ(store.best(), 7);
  Fixture g(kStates);
  auto info = load(g);
  ASSERT_TRUE(info) << "its checksum is right";
  EXPECT_EQ(info->step, 7);
  EXPECT_EQ(info->valLoss, 1.25);
  EXPECT_EQ(warnings, std::vector<std::string>());
  damageFile(stepDir(7) + "/manifest.json", 20);
  EXPECT_EQ(store.best(), 6);
}

TEST_F(CheckpointTest, OfAStepAndInAFolder) {
  save(1);
  f.data("wte.weight")[0] = 77;
  save(2);
  Fixture g(kStates);
  EXPECT_EQ(store.loadParameters(*g.executor, model, 1).step, 1);
  EXPECT_NE(g.data("wte.weight")[0], 77);
  EXPECT_EQ(CheckpointStore::loadParameters(*g.executor, model, stepDir(2)).step, 2);
  EXPECT_EQ(g.data("wte.weight")[0], 77);
  EXPECT_EQ(g.data("m.wte.weight")[5], 0) << "nothing but parameters";
  damageFile(stepDir(2) + "/model.safetensors", 400);
  EXPECT_EQ(codeThrown([&] { store.loadParameters(*g.executor, model, 2); }), int(ErrorCode::CheckpointDamaged))
      << "who names one gets no other";
}

TEST_F(CheckpointTest, WhichWeights) {
  RunSettings run;
  run.outDir = dir.path;
  std::string message;
  auto missing = [&](const std::string &text) {
    message.clear();
    return codeThrown([&] { requireWeights(run, WeightsChoice::parse(text)); }, &message);
  };
  const int absent = int(ErrorCode::FileMissing);
  EXPECT_EQ(missing("12"), absent);
  EXPECT_NE(message.find("there is no checkpoint under"), std::string::npos) << message;
  for (int step = 1; step <= 12; ++step)
    fs::create_directories(stepDir(step));
  EXPECT_EQ(missing("12"), 0);
  EXPECT_EQ(missing("0012"), 0);
  EXPECT_EQ(missing("13"), absent);
  EXPECT_NE(message.find(", but of steps ..., 5, 6, 7, 8, 9, 10, 11, 12"), std::string::npos) << message;
  EXPECT_EQ(missing("best"), absent);
  EXPECT_NE(message.find("validation loss"), std::string::npos) << message;
  EXPECT_EQ(missing(dir / "nothing"), absent);
  EXPECT_NE(message.find("there is no folder"), std::string::npos) << message;
  for (const char *word : {"", "newest", "-1", "99999999999999999999"})
    EXPECT_EQ(missing(word), int(ErrorCode::Usage)) << word;
  EXPECT_EQ(WeightsChoice::parse(stepDir(3)).path, stepDir(3));
}

TEST_F(CheckpointTest, FallsBackFromEveryKindOfDamage) {
  save(1);
  for (const char *name : {"manifest.json", "model.safetensors", "state/optimizer.safetensors"})
    for (const char *how : {"flip", "truncate", "remove"}) {
      save(2);
      std::string path = stepDir(2) + "/" + name;
      size_t size = fs::file_size(path);
      if (*how == 'f')
        damageFile(path, size - 3);
      else if (*how == 't')
        fs::resize_file(path, size / 2);
      else
        fs::remove(path);
      Fixture g(kStates);
      auto info = load(g);
      ASSERT_TRUE(info) << name << how;
      EXPECT_EQ(info->step, 1);
      EXPECT_EQ(counter(g, "step"), 1);
      EXPECT_EQ(warnings.size(), 1u);
    }
  damageFile(stepDir(1) + "/manifest.json", 20);
  Fixture g(kStates);
  EXPECT_EQ(codeThrown([&] { load(g); }), int(ErrorCode::CheckpointDamaged));
}

TEST_F(CheckpointTest, OfAnotherModelIsRefused) {
  save(1);
  std::string message;
  model.keys["n_head"] = "4";
  EXPECT_EQ(codeThrown([&] { load(f); }, &message), int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("n_head is 2 there and 4 in the plan"), std::string::npos) << message;
  model.keys.clear();
  model.parameters = "other";
  EXPECT_EQ(codeThrown([&] { load(f); }), int(ErrorCode::CheckpointMismatch));
}

// As those of earlier versions, and of plans made from a .gir that says less.
TEST_F(CheckpointTest, KeysThatItDoesNotSayAreTakenToAgree) {
  save(1);
  EXPECT_TRUE(load(f)->notes.empty());
  model.keys["activation"] = "\"relu\"";
  auto info = load(f);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->notes,
            (std::vector<std::string>{"the checkpoint does not say model.activation: taken to be the plan's"}));
}

// Keys of later versions: a whole model that does not say one has its default.
TEST_F(CheckpointTest, KeysThatStandForTheirDefaultsMustAgree) {
  model.keys["norm"] = "\"rmsnorm\"";
  model.keys["norm_eps"] = "1e-05";
  save(1);
  std::string message;
  model.keys["window"] = "8";
  EXPECT_EQ(codeThrown([&] { load(f); }, &message), int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("window has its default there and is 8 in the plan"), std::string::npos) << message;
  save(2);
  EXPECT_TRUE(load(f)->notes.empty());
  model.keys.erase("window");
  model.keys["qkv_bias"] = "true";
  Fixture g(withContext(16).c_str());
  EXPECT_EQ(codeThrown([&] { loadWeights(*g.executor, stepDir(2), model); }, &message),
            int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("window is 8 there and has its default in the plan"), std::string::npos) << message;
  EXPECT_NE(message.find("qkv_bias has its default there and is true in the plan"), std::string::npos) << message;
  model.keys["gone"] = "1";  // of a version that is later still
  model.keys.erase("qkv_bias");
  model.keys["window"] = "8";
  EXPECT_TRUE(load(f));
}

// Windows of the context's length and longer hide nothing. Such a one may still say which layers rotate otherwise.
TEST_F(CheckpointTest, WindowsBeyondTheContextAreNone) {
  using Keys = std::map<std::string, std::string>;
  Fixture g(withContext(16).c_str());
  const Keys common = {{"norm", "\"rmsnorm\""}, {"norm_eps", "1e-05"}};
  int64_t step = 0;
  auto difference = [&](const Keys &saved, const Keys &planned) {
    model.keys = common;
    model.keys.insert(saved.begin(), saved.end());
    save(++step);
    model.keys = common;
    model.keys.insert(planned.begin(), planned.end());
    std::string message;
    const int code = codeThrown([&] { loadWeights(*g.executor, stepDir(step), model); }, &message);
    EXPECT_EQ(code, message.empty() ? 0 : int(ErrorCode::CheckpointMismatch)) << message;
    return message.substr(std::min(message.size(), message.rfind(": ") + 2));
  };
  for (const char *window : {"16", "17", "4096"}) {
    const Keys hidesNothing = {{"window", window}},
               rotates = {{"window", window}, {"window_rope_theta", "10000.0"}, {"layers_without_window", "2"}};
    EXPECT_EQ(difference(hidesNothing, {}), "") << window;
    EXPECT_EQ(difference({}, hidesNothing), "") << window;
    EXPECT_EQ(difference(hidesNothing, {{"window", "16"}}), "") << window;
    EXPECT_EQ(difference({{"window", window}, {"layers_without_window", "2"}}, {}), "") << window;
    Keys longest = rotates, others = rotates;
    longest["window"] = "16", others["layers_without_window"] = "3";
    EXPECT_EQ(difference(rotates, longest), "") << window;
    EXPECT_EQ(difference(rotates, others), "layers_without_window is 2 there and 3 in the plan") << window;
    EXPECT_NE(difference(rotates, {}).find("window_rope_theta is 10000.0 there and has its default"), std::string::npos)
        << window;
  }
  EXPECT_EQ(difference({{"window", "15"}}, {}), "window is 15 there and has its default in the plan");
  EXPECT_EQ(difference({}, {{"window", "15"}}), "window has its default there and is 15 in the plan");
  EXPECT_EQ(difference({{"window", "15"}}, {{"window", "15"}}), "");
}

TEST_F(CheckpointTest, OfAnotherPrecisionIsConverted) {
  const int n = 37 * 129;
  float *m = f.data("m.wte.weight");
  for (int i = 0; i < n; ++i)
    m[i] = (i % 2 ? 1 : -1) * (1 + float(i) * 0x1p-13f);
  m[0] = 1 + 0x1p-8f, m[1] = 1 + 0x3p-8f;  // ties
  save(1);
  std::string low(kStates);
  low.replace(low.find("@m.wte.weight : f32"), 19, "@m.wte.weight : bf16");
  low.insert(low.rfind('}'), R"(state @loss_scale : f32[] {kind="counter", init="const", value=65536.0}
      state @good_steps : i64[] {kind="counter"})");
  Fixture g(low.c_str());
  g.data("loss_scale")[0] = 3, *g.data<int64_t>("good_steps") = 7;
  auto info = load(g);
  ASSERT_TRUE(info);
  EXPECT_EQ(warnings, std::vector<std::string>());
  EXPECT_EQ(info->notes,
            (std::vector<std::string>{"moments are f32 in the checkpoint and bf16 in the plan: rounded to nearest",
                                      "not in the checkpoint: loss_scale, good_steps; starting at 65536, 0"}));
  EXPECT_EQ(g.data("loss_scale")[0], 65536);
  EXPECT_EQ(counter(g, "good_steps"), 0);
  EXPECT_EQ(std::memcmp(f.data("wte.weight"), g.data("wte.weight"), n * 4), 0);
  const uint16_t *rounded = g.data<uint16_t>("m.wte.weight");
  EXPECT_EQ(rounded[0], 0x3f80);
  EXPECT_EQ(rounded[1], 0x3f82);
  for (int i = 0; i < n; ++i)
    ASSERT_LE(std::fabs(std::bit_cast<float>(uint32_t(rounded[i]) << 16) - m[i]), 0x1p-8f) << i;

  // And back: widened, with a loss scale that this plan does not have.
  store.save(*g.executor, {2, "plan", model, "data", "", {}});
  Fixture h(kStates);
  info = load(h);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 2);
  EXPECT_EQ(info->notes, (std::vector<std::string>{
                             "moments are bf16 in the checkpoint and f32 in the plan: widened, which is exact"}));
  for (int i = 0; i < n; ++i)
    ASSERT_EQ(h.data("m.wte.weight")[i], std::bit_cast<float>(uint32_t(rounded[i]) << 16)) << i;
}

TEST_F(CheckpointTest, OfAnotherOptimizerIsNotCalledDamaged) {
  save(1);
  std::string more(kStates);
  more.insert(more.rfind('}'), "state @v.wte.weight : f32[37->40,129] {kind=\"moment\"}");
  Fixture g(more.c_str());
  g.data("wte.weight")[0] = 5;
  std::string message;
  EXPECT_EQ(codeThrown([&] { load(g); }, &message), int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("of another optimizer: tensor v.wte.weight is missing"), std::string::npos) << message;
  EXPECT_EQ(g.data("wte.weight")[0], 5) << "nothing is read of a checkpoint that does not fit";
}

// A run may go on without compression; what it left out of gradients is lost then.
TEST_F(CheckpointTest, DroppedErrorsOfGradientsAreSaid) {
  std::string more(kStates);
  more.insert(more.rfind('}'), R"(state @error.wte.weight : f32[37->40,129] {kind="moment", init="zeros"}
                                  state @factor.wte.weight : f32[2,129] {kind="moment", init="zeros"} )");
  Fixture compressed(more.c_str());
  store.save(*compressed.executor, {1, "plan", model, "data", "", {}});
  const std::vector<std::string> said = {
      "the errors of compressed gradients in the checkpoint are dropped: the plan has none"};
  EXPECT_EQ(load(f)->notes, said);
  EXPECT_EQ(load(f, true)->notes, std::vector<std::string>()) << "weights alone have none";
  EXPECT_EQ(load(compressed)->notes, std::vector<std::string>());
}

TEST_F(CheckpointTest, NoneIsNoError) { EXPECT_FALSE(load(f)); }

TEST_F(CheckpointTest, LeftoversAreCleanedUp) {
  save(1);
  fs::create_directories(dir / "checkpoints/.step-00000002.tmp");
  fs::create_directories(dir / "checkpoints/.step-00000000.removed/x");
  store.cleanUp();
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "checkpoints"), fs::directory_iterator()), 2)
      << "the checkpoint, and the link to it";
}

TEST_F(CheckpointTest, FailedSaveLeavesNothingAndKeepsOlder) {
  save(1);
  writeFile(dir / "file", "");
  CheckpointStore nowhere(dir / "file");
  EXPECT_EQ(codeThrown([&] { nowhere.save(*f.executor, {2, "", model, "", "", {}}); }), int(ErrorCode::Unwritable));
  if (::geteuid() != 0) {
    fs::permissions(dir / "checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_EQ(codeThrown([&] { save(2); }), int(ErrorCode::Unwritable));
    fs::permissions(dir / "checkpoints", fs::perms::owner_all);
  }
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{1}));
}

TEST_F(CheckpointTest, WeightsLoadFromOtherFolders) {
  save(1);
  Fixture g(kStates);
  loadWeights(*g.executor, stepDir(1), modelIdentity(*g.module));
  EXPECT_EQ(std::memcmp(f.data("wte.weight"), g.data("wte.weight"), 37 * 129 * 4), 0);
  Fixture other(R"(module { state @wte.weight : f32[37,128] {kind="param", init="zeros"} })");
  std::string message;
  f.module->attrs.set("n_head", int64_t(2)), g.module->attrs.set("n_head", int64_t(4));
  store.save(*f.executor, {2, "plan", modelIdentity(*f.module), "data", "", {}});
  EXPECT_EQ(codeThrown([&] { loadWeights(*g.executor, stepDir(2), modelIdentity(*g.module)); }, &message),
            int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("n_head is 2 there and 4 in the plan"), std::string::npos) << message;
  EXPECT_EQ(codeThrown([&] { loadWeights(*other.executor, stepDir(1), modelIdentity(*other.module)); }, &message),
            int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("wte.weight is f32[37,129] where the model has f32[37,128]"), std::string::npos) << message;
  EXPECT_EQ(codeThrown([&] { loadWeights(*other.executor, dir / "nothing", modelIdentity(*other.module)); }),
            int(ErrorCode::FileMissing));
}

TEST_F(CheckpointTest, WeightsWithoutAPlaceAreRefused) {
  auto write = [&](const char *name, std::vector<int64_t> shape, float value) {
    const std::vector<TensorInfo> infos = {{"wte.weight", DType::f32, {4, 8}}, {name, DType::f32, shape}};
    SafetensorsWriter w(dir / "w.safetensors", infos, {});
    w.write(std::vector<float>(32, 1).data(), 128);
    w.write(std::vector<float>(size_t(infos[1].bytes() / 4), value).data(), size_t(infos[1].bytes()));
    w.finish();
  };
  Fixture g(R"(module { state @wte.weight : f32[4,8] {kind="param", init="zeros"} })");
  std::string message;
  auto load = [&] {
    return codeThrown([&] { loadWeights(*g.executor, dir / "w.safetensors", modelIdentity(*g.module)); }, &message);
  };
  write("h.0.attn.c_attn.bias", {24}, 0);
  EXPECT_EQ(load(), int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("h.0.attn.c_attn.bias"), std::string::npos) << message;
  // What other programs compute is no weight; nor is a classifier that is tied to the embedding.
  write("transformer.h.0.attn.bias", {1, 1, 2, 2}, 1);
  EXPECT_EQ(load(), 0);
  write("lm_head.weight", {4, 8}, 1);
  EXPECT_EQ(load(), 0);
  write("lm_head.weight", {4, 8}, 2);
  EXPECT_EQ(load(), int(ErrorCode::CheckpointMismatch));
  // Before anything is loaded, too.
  auto check = [&] { return codeThrown([&] { checkWeights(*g.module, dir / "w.safetensors", ""); }, &message); };
  EXPECT_EQ(check(), int(ErrorCode::CheckpointMismatch));
  EXPECT_NE(message.find("no place for tensor lm_head.weight"), std::string::npos) << message;
  for (const char *name : {"embed_out.weight", "decoder.weight", "cls.predictions.decoder.weight",
                           "transformer.lm_head.weight", "model.lm_head.weight", "gpt_neox.embed_out.weight"}) {
    write(name, {4, 8}, 1);
    for (const int code : {check(), load()})
      EXPECT_EQ(code, 0) << name << message;
    write(name, {4, 8}, 2);
    for (const int code : {check(), load()})
      EXPECT_EQ(code, int(ErrorCode::CheckpointMismatch)) << name;
    EXPECT_NE(message.find(fmt::format("no place for tensor {}", name)), std::string::npos) << message;
  }
  // A layer that is no head counts, whatever it equals.
  for (const char *name : {"h.0.lm_head.weight", "model.h.0.lm_head.weight", "model.norm.weight", "lm_head.bias",
                           "transformer.lm_head.bias", "lm_head"}) {
    write(name, {4, 8}, 1);
    for (const int code : {check(), load()})
      EXPECT_EQ(code, int(ErrorCode::CheckpointMismatch)) << name;
    EXPECT_NE(message.find(fmt::format("no place for tensor {}", name)), std::string::npos) << message;
  }
}

// Of an untied head, which may stand behind the name of the whole model, too.
TEST_F(CheckpointTest, AHeadIsFoundBehindTheNameOfTheWholeModel) {
  auto write = [&](const std::string &head, float again) {
    std::vector<std::pair<TensorInfo, float>> tensors = {{{"wte.weight", DType::f32, {4, 8}}, 1},
                                                         {{head, DType::f32, {4, 8}}, 3}};
    if (again)
      tensors.push_back({{"gpt_neox.lm_head.weight", DType::f32, {4, 8}}, again});
    std::vector<TensorInfo> infos;
    for (const auto &t : tensors)
      infos.push_back(t.first);
    SafetensorsWriter w(dir / "w.safetensors", infos, {});
    for (const auto &[t, value] : tensors)
      w.write(std::vector<float>(32, value).data(), 128);
    w.finish();
  };
  const std::string states = R"( {
    state @wte.weight : f32[4,8] {kind="param", init="zeros"}
    state @lm_head.weight : f32[4,8] {kind="param", init="zeros"} })",
                    embedding = states.substr(0, states.find("state @lm_head")) + "}";
  const Fixture g(("module" + states).c_str()), headless(("module {labels=3}" + embedding).c_str());
  auto load = [&](const Fixture &to) {
    return codeThrown([&] { loadWeights(*to.executor, dir / "w.safetensors", modelIdentity(*to.module)); });
  };
  for (const char *head : {"lm_head.weight", "transformer.lm_head.weight", "model.lm_head.weight"}) {
    write(head, 0);
    *static_cast<float *>(g.executor->state("lm_head.weight")) = 0;
    ASSERT_EQ(load(g), 0) << head;
    EXPECT_EQ(*static_cast<const float *>(g.executor->state("lm_head.weight")), 3) << head;
    EXPECT_EQ(load(headless), 0) << head << ": it needs none";
    write(head, 3);
    EXPECT_EQ(load(g), 0) << head << " under two names";
    write(head, 4);
    EXPECT_EQ(load(g), int(ErrorCode::CheckpointMismatch)) << head << " and another one";
  }
}

// A norm of a fresh model is all ones, like each other one, and changes what the model computes.
TEST_F(CheckpointTest, ANormTooManyIsRefusedThoughItEqualsAnother) {
  Fixture g(R"(module {
    state @wte.weight : f32[4,8] {kind="param", init="zeros"}
    state @lm_head.bias : f32[8] {kind="param", hf="cls.predictions.bias", init="zeros"}
    state @ln_f.weight : f32[8] {kind="param", hf="model.norm.weight", init="zeros"} })");
  auto problem = [&](const char *more) {
    const std::vector<TensorInfo> infos = {{"wte.weight", DType::f32, {4, 8}},
                                           {"cls.predictions.bias", DType::f32, {8}},
                                           {"model.norm.weight", DType::f32, {8}},
                                           {more, DType::f32, {8}}};
    SafetensorsWriter w(dir / "w.safetensors", infos, {});
    for (const TensorInfo &t : infos)
      w.write(std::vector<float>(size_t(t.bytes() / 4), 1).data(), size_t(t.bytes()));
    w.finish();
    std::string message, loading;
    const int code = codeThrown([&] { checkWeights(*g.module, dir / "w.safetensors", ""); }, &message);
    EXPECT_EQ(codeThrown([&] { loadWeights(*g.executor, dir / "w.safetensors", modelIdentity(*g.module)); }, &loading),
              code)
        << loading;
    return code ? message : "";
  };
  const std::string norm = "model.layers.0.post_feedforward_layernorm.weight";
  EXPECT_NE(problem(norm.c_str()).find("does not fit the model, which has no place for tensor " + norm),
            std::string::npos);
  EXPECT_EQ(problem("cls.predictions.decoder.bias"), "") << "BERT's bias has two names";
}

TEST_F(CheckpointTest, AHeadThatIsNotTrainedIsNamed) {
  const auto module = parseModule(R"(module {
    state @wte.weight : f32[4,8] {kind="param"}
    state @pooler.dense.weight : f32[2,2] {kind="param"}
    state @pooler.dense.bias : f32[2] {kind="param"}
    state @classifier.weight : f32[2,3] {kind="param"}
    state @classifier.bias : f32[3] {kind="param"} })",
                                  "test");
  const auto problem = [&](const Module &m, std::vector<TensorInfo> more) {
    more.insert(more.begin(), TensorInfo{"wte.weight", DType::f32, {4, 8}});
    SafetensorsWriter w(dir / "w.safetensors", more, {});
    for (const TensorInfo &t : more)
      w.write(std::vector<float>(size_t(t.bytes() / 4), 1).data(), size_t(t.bytes()));
    w.finish();
    std::string message;
    const int code = codeThrown([&] { requireTrainedLayers(m, dir / "w.safetensors"); }, &message);
    EXPECT_EQ(message.find("the head has not been trained") == std::string::npos, code == 0) << message;
    return code;
  };
  const std::vector<TensorInfo> pooler = {{"pooler.dense.weight", DType::f32, {2, 2}},
                                          {"pooler.dense.bias", DType::f32, {2}}};
  std::vector<TensorInfo> whole = pooler;
  whole.insert(whole.end(), {{"classifier.weight", DType::f32, {2, 3}}, {"classifier.bias", DType::f32, {3}}});
  EXPECT_EQ(problem(*module, whole), 0);
  for (const std::vector<TensorInfo> &tensors : {std::vector<TensorInfo>(), pooler})
    EXPECT_EQ(problem(*module, tensors), int(ErrorCode::FileMissing));
  EXPECT_EQ(problem(*parseModule(R"(module { state @wte.weight : f32[4,8] {kind="param"} })", "test"), {}), 0);
}

// In ModernBERT's form; without a classifier the same layers are part of the head of tokens.
TEST_F(CheckpointTest, TheHeadOfLabelsMayBeginAnewLayerByLayer) {
  const std::string head = R"(
    state @wte.weight : f32[4,8] {kind="param"}
    state @head.dense.weight : f32[2,2] {kind="param"}
    state @head.dense.bias : f32[2] {kind="param"}
    state @head.norm.weight : f32[2] {kind="param"} )";
  const auto labels = parseModule(
                 "module {labels=3} {" + head + R"(state @classifier.weight : f32[3,2] {kind="param"} })", "test"),
             tokens = parseModule("module {" + head + R"(state @lm_head.bias : f32[4] {kind="param"} })", "test");
  const TensorInfo table{"wte.weight", DType::f32, {4, 8}}, half{"head.dense.bias", DType::f32, {2}};
  using Names = std::vector<std::string>;
  const auto fresh = [&](const Module &m, const std::vector<TensorInfo> &tensors, Names missing) {
    SafetensorsWriter w(dir / "w.safetensors", tensors, {});
    for (const TensorInfo &t : tensors)
      w.write(std::vector<float>(size_t(t.bytes() / 4), 1).data(), size_t(t.bytes()));
    w.finish();
    Names names;
    for (const State *s : takeNewLayers(m, TensorFiles({dir / "w.safetensors"}), missing))
      names.push_back(s->name);
    return std::pair(names, missing);
  };
  EXPECT_EQ(fresh(*labels, {table}, {"head.dense.weight", "head.norm.weight", "h.0.ln_1.weight"}),
            std::pair(Names{"head.dense.weight", "head.dense.bias", "head.norm.weight", "classifier.weight"},
                      Names{"h.0.ln_1.weight"}));
  EXPECT_EQ(fresh(*labels, {table, half}, {"head.dense.weight", "head.norm.weight"}),
            std::pair(Names{"head.norm.weight", "classifier.weight"}, Names{"head.dense.weight"}));
  try {
    checkWeights(*labels, dir / "w.safetensors", "another folder", true);
    ADD_FAILURE() << "half a layer";
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics.at(0).help.at(0), "another folder") << "a head of tokens would not do";
  }
  EXPECT_EQ(fresh(*tokens, {table}, {"head.dense.weight"}), std::pair(Names(), Names{"head.dense.weight"}));
}

TEST_F(CheckpointTest, HeadersTellWhatIsMissingOrOfAnotherDtype) {
  const auto module = parseModule(R"(module {
    state @wte.weight : f32[4,8] {kind="param", hf="bert.wte.weight"}
    state @ln_f.weight : f32[2] {kind="param", hf="bert.ln_f.weight"}
    state @head.dense.bias : f32[2] {kind="param", hf="cls.dense.bias"}
    state @lm_head.bias : f32[2] {kind="param", hf="cls.bias"} })",
                                  "test");
  auto check = [&](const std::string &tensors) -> std::string {
    const std::string header = "{" + tensors + "}";
    const uint64_t n = header.size();
    writeFile(dir / "w.safetensors", std::string(reinterpret_cast<const char *>(&n), 8) + header + std::string(512, 0));
    try {
      checkWeights(*module, dir / "w.safetensors", "another folder");
    } catch (const UserError &e) {
      std::string text = e.diagnostics.at(0).message;
      text.erase(0, (dir / "w.safetensors").size());
      return fmt::format("{}{} | {}", int(e.diagnostics[0].code), text, e.diagnostics[0].help.at(0));
    }
    return "";
  };
  auto tensor = [](const char *name, const char *dtype, const char *shape, int from, int to) {
    return fmt::format(R"("{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})", name, dtype, shape, from,
                       to);
  };
  const std::string norm = tensor("ln_f.weight", "F32", "[2]", 128, 136),
                    body = tensor("wte.weight", "F32", "[4,8]", 0, 128) + "," + norm,
                    whole = body + "," + tensor("cls.dense.bias", "F32", "[2]", 136, 144) + "," +
                            tensor("cls.bias", "F32", "[2]", 144, 152);
  EXPECT_EQ(check(whole), "");
  EXPECT_EQ(check(body),
            "505 does not fit the model: tensors cls.dense.bias, cls.bias are missing | take a folder with "
            "the head that gives tokens: models that only encode have none, and `gptrun embed` takes them");
  EXPECT_EQ(check(norm), "505 does not fit the model: tensors bert.wte.weight, cls.dense.bias, cls.bias are missing | "
                         "another folder");
  const std::string floats = "take weights of f32, bf16 or f16, or convert them: in PyTorch, model.to(torch.bfloat16)";
  EXPECT_EQ(check(tensor("wte.weight", "F8_E4M3", "[4,8]", 0, 32)),
            "208: tensor bert.wte.weight has dtype F8_E4M3, which is not built yet | " + floats);
  EXPECT_EQ(check(tensor("wte.weight", "F64", "[4,8]", 0, 256)),
            "208: tensor wte.weight has dtype F64, which is not built yet | " + floats);
  EXPECT_EQ(check(whole + "," + tensor("scale", "F8_E8M0", "[4]", 152, 156)),
            "505 does not fit the model, which has no place for tensor scale (F8_E8M0) | another folder");
  EXPECT_EQ(check(whole + "," + tensor("h.0.attn.bias", "U8", "[1,1,2,2]", 152, 156)), "") << "a mask";
}

}  // namespace
