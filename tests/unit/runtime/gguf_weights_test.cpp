// Parameters out of GGUF files and into them, on modules that have states only.
#include "runtime/checkpoint/gguf_weights.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/state.h"
#include "runtime/device/cpu_executor.h"
#include "support/gguf/gguf_file.h"
#include "temp_dir.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>

using namespace gptc;

namespace {

/// Puts every state at its place and gives the arena its size, as plan-memory does.
struct Model {
  explicit Model(const std::string &text, int64_t heads = 2, int64_t keyHeads = 1) : module(parseModule(text, "test")) {
    int64_t at = 0;
    for (auto &s : module->states) {
      s->attrs.set("at", at);
      at += (s->type.bytes() + 63) / 64 * 64;
    }
    module->attrs.set("arena_bytes", at);
    setFact<&ModelFacts::nHead>(*module, heads);
    setFact<&ModelFacts::nKvHead>(*module, keyHeads);
    pool = std::make_unique<ThreadPool>(3);
    arena = std::make_unique<Arena>(at, pool.get());
    const Target host = hostTarget(3);
    executor = std::make_unique<CpuExecutor>(*module, host, host, *arena, *pool, "");
  }
  float *data(const char *name) { return static_cast<float *>(executor->state(name)); }
  std::unique_ptr<Module> module;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<CpuExecutor> executor;
};

// Heads of 6: c_attn has 2 x 6 columns of queries, 6 of keys, 6 of values.
const char *kLlama = R"(module {
  state @wte.weight : f32[37->40,6] {kind="param", hf="model.embed_tokens.weight"}
  state @h.0.ln_1.weight : f32[6] {kind="param", hf="model.layers.0.input_layernorm.weight"}
  state @h.0.attn.c_attn.weight : f32[6,24] {kind="param", hf="q,k,v", hf_split=[12,6,6], hf_transpose=true}
  state @h.0.attn.c_attn.bias : f32[24] {kind="param"}
  state @h.0.attn.c_proj.weight : f32[12,6] {kind="param", hf="o", hf_transpose=true}
  state @lm_head.weight : f32[37->40,6] {kind="param"}
  state @low.lm_head.weight : bf16[37->40,6] {kind="low", of="lm_head.weight"}
  state @m.wte.weight : f32[37->40,6] {kind="moment", init="zeros"}
})";

GgufKeys llamaKeys(uint32_t heads = 2, const char *architecture = "llama") {
  return {{"general.architecture", std::string(architecture)},
          {fmt::format("{}.attention.head_count", architecture), heads},
          {fmt::format("{}.attention.head_count_kv", architecture), uint32_t(1)}};
}

using Tensors = std::vector<GgufWriter::Tensor>;
const Tensors kTensors = {{"token_embd.weight", GgmlType::f32, {37, 6}},
                          {"blk.0.attn_norm.weight", GgmlType::f32, {6}},
                          {"blk.0.attn_q.weight", GgmlType::f32, {12, 6}},
                          {"blk.0.attn_k.weight", GgmlType::f32, {6, 6}},
                          {"blk.0.attn_v.weight", GgmlType::f32, {6, 6}},
                          {"blk.0.attn_q.bias", GgmlType::f32, {12}},
                          {"blk.0.attn_k.bias", GgmlType::f32, {6}},
                          {"blk.0.attn_v.bias", GgmlType::f32, {6}},
                          {"blk.0.attn_output.weight", GgmlType::f32, {6, 12}},
                          {"output.weight", GgmlType::f32, {37, 6}}};

/// Value i of tensor t is 1000 t + i, or as `value` says.
void writeTensors(
    const std::string &path, const GgufKeys &keys, const Tensors &tensors,
    const std::function<float(size_t, int64_t)> &value = [](size_t t, int64_t i) { return float(1000 * t + i); }) {
  GgufWriter out(path, keys, tensors);
  for (size_t t = 0; t < tensors.size(); ++t) {
    int64_t n = 1;
    for (const int64_t extent : tensors[t].shape)
      n *= extent;
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(value(t, i));
    std::string blocks(size_t(tensors[t].bytes()), 0);
    quantize(tensors[t].type, values.data(), n, blocks.data());
    out.write(blocks.data(), blocks.size());
  }
  out.finish();
}

/// Row of a head of 6 in llama's order that holds element j of ours: halves (0,1,2), (3,4,5) become 0,3, 1,4, 2,5.
int64_t pairOf(int64_t j) { return j / 6 * 6 + j % 3 * 2 + j % 6 / 3; }

TEST(GgufWeights, LieWhereTheLayoutOfTheArchitectureSays) {
  TempDir dir;
  for (const bool interleaved : {true, false}) {
    const char *architecture = interleaved ? "llama" : "qwen2";
    writeTensors(dir / "x.gguf", llamaKeys(2, architecture), kTensors);
    Model m(kLlama);
    std::fill_n(m.data("wte.weight"), 40 * 6, -1.f);
    std::fill_n(m.data("m.wte.weight"), 40 * 6, -1.f);
    loadWeights(*m.executor, dir / "x.gguf", {});
    for (int64_t i = 0; i < 37 * 6; ++i) {
      ASSERT_EQ(m.data("wte.weight")[i], float(i));
      ASSERT_EQ(m.data("lm_head.weight")[i], float(9000 + i));
    }
    EXPECT_EQ(m.data("wte.weight")[37 * 6], -1) << "padding stays as it is";
    EXPECT_EQ(m.data("m.wte.weight")[0], -1);
    EXPECT_EQ(m.data("h.0.ln_1.weight")[5], 1005);
    auto row = [&](int64_t j) { return interleaved ? pairOf(j) : j; };
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t j = 0; j < 24; ++j) {
        const int64_t want = j < 12   ? 2000 + 6 * row(j) + i
                             : j < 18 ? 3000 + 6 * row(j - 12) + i
                                      : 4000 + 6 * (j - 18) + i;
        ASSERT_EQ(m.data("h.0.attn.c_attn.weight")[24 * i + j], float(want)) << architecture << " " << i << " " << j;
      }
    for (int64_t j = 0; j < 24; ++j)
      ASSERT_EQ(m.data("h.0.attn.c_attn.bias")[j], float(j < 12   ? 5000 + row(j)
                                                         : j < 18 ? 6000 + row(j - 12)
                                                                  : 7000 + j - 18));
    for (int64_t i = 0; i < 12; ++i)
      for (int64_t j = 0; j < 6; ++j)
        ASSERT_EQ(m.data("h.0.attn.c_proj.weight")[6 * i + j], float(8000 + 12 * j + i));
    // The copy that steps read.
    EXPECT_EQ(static_cast<const uint16_t *>(m.executor->state("low.lm_head.weight"))[0], 0x460d);  // 9000 rounded
  }
}

TEST(GgufWeights, FusedQueriesKeysAndValuesAreTransposedOnly) {
  TempDir dir;
  const char *gpt2 = R"(module {
    state @wpe.weight : f32[3,4] {kind="param"}
    state @h.0.attn.c_attn.weight : f32[4,12] {kind="param"}
    state @h.0.attn.c_attn.bias : f32[12] {kind="param"}
  })";
  const Tensors tensors = {{"position_embd.weight", GgmlType::f32, {5, 4}},
                           {"blk.0.attn_qkv.weight", GgmlType::f32, {12, 4}},
                           {"blk.0.attn_qkv.bias", GgmlType::f32, {12}}};
  for (const char *architecture : {"gpt2", "bloom"}) {
    GgufKeys keys = llamaKeys(2, architecture);
    keys.pop_back();
    writeTensors(dir / "x.gguf", keys, tensors);
    Model m(gpt2, 2, 2);
    loadGguf(*m.executor, dir / "x.gguf");
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(m.data("wpe.weight")[i], float(i)) << "the first rows of a longer table";
      EXPECT_EQ(m.data("h.0.attn.c_attn.bias")[i], float(2000 + i));
      for (int64_t j = 0; j < 4; ++j)
        EXPECT_EQ(m.data("h.0.attn.c_attn.weight")[12 * j + i], float(1000 + 4 * i + j));
    }
  }
}

TEST(GgufWeights, WhatDoesNotFitIsRefused) {
  TempDir dir;
  const std::string path = dir / "x.gguf";
  auto problem = [&](const GgufKeys &keys, const Tensors &tensors) {
    writeTensors(path, keys, tensors);
    Model m(kLlama);
    std::string message;
    const int code = codeThrown([&] { loadWeights(*m.executor, path, {}); }, &message);
    if (const size_t at = message.find(path); at != std::string::npos)
      message.erase(at, path.size());
    EXPECT_EQ(m.data("wte.weight")[1], code ? 0 : 1) << "nothing changes before all is checked";
    return code ? fmt::format("{} {}", code, message) : "";
  };
  const std::string before = "505  does not fit the model: ";
  EXPECT_EQ(problem(llamaKeys(), kTensors), "");
  EXPECT_EQ(problem(llamaKeys(4), kTensors), before + "n_head is 4 there and 2 in the plan");
  EXPECT_EQ(problem(llamaKeys(2, "mamba"), kTensors), "208 : general.architecture = \"mamba\", which is not built yet");
  EXPECT_EQ(problem(llamaKeys(2, "bloom"), kTensors), before + "tensor blk.0.attn_qkv.weight is missing");
  Tensors changed = kTensors;
  changed.erase(changed.begin() + 3);
  EXPECT_EQ(problem(llamaKeys(), changed), before + "tensor blk.0.attn_k.weight is missing");
  changed = kTensors;
  changed[2].shape = {6, 12};
  EXPECT_EQ(problem(llamaKeys(), changed), before + "tensor blk.0.attn_q.weight is [6,12] where the model has [12,6]");
  changed = kTensors;
  changed.push_back({"rope_freqs.weight", GgmlType::f32, {2}});
  EXPECT_EQ(problem(llamaKeys(), changed), before + "it has no place for tensor rope_freqs.weight");

  // A tied classifier may be there twice if it is the same.
  Tensors tied = {{"token_embd.weight", GgmlType::f32, {37, 6}}, {"output.weight", GgmlType::f32, {37, 6}}};
  auto loadTied = [&](float difference) {
    writeTensors(path, llamaKeys(), tied,
                 [&](size_t t, int64_t i) { return float(i) + (t && i == 221 ? difference : 0); });
    Model m("module {\n state @wte.weight : f32[37,6] {kind=\"param\"}\n}");
    const int code = codeThrown([&] { loadGguf(*m.executor, path); });
    EXPECT_EQ(codeThrown([&] { checkGguf(*m.module, path, ""); }), code) << "before anything is loaded, too";
    return code;
  };
  EXPECT_EQ(loadTied(0), 0);
  EXPECT_EQ(loadTied(0.5), 505);
  tied[1].name = "blk.0.attn_norm.weight";
  EXPECT_EQ(loadTied(0), 505) << "no classifier, whatever it equals";
}

/// Writes the states of a model, in Hugging Face's names and layouts.
void writeCheckpoint(const std::string &path, const std::vector<std::pair<TensorInfo, std::vector<float>>> &tensors) {
  std::vector<TensorInfo> infos;
  for (const auto &[info, values] : tensors)
    infos.push_back(info);
  SafetensorsWriter out(path, infos, {});
  for (const auto &[info, values] : tensors)
    out.write(values.data(), values.size() * 4);
  out.finish();
}

TEST(GgufWeights, WhatIsWrittenIsReadAgain) {
  TempDir dir;
  // Rows of 64 and of 6: the latter make no blocks of 32.
  const char *text = R"(module {
    state @wte.weight : f32[7->8,64] {kind="param", hf="transformer.wte.weight"}
    state @wpe.weight : f32[3,64] {kind="param", hf="transformer.wpe.weight"}
    state @h.0.ln_1.weight : f32[64] {kind="param", hf="transformer.h.0.ln_1.weight"}
    state @h.0.attn.c_attn.weight : f32[64,192] {kind="param", hf="q,k,v", hf_split=[64,64,64], hf_transpose=true}
    state @h.0.mlp.c_proj.weight : f32[6,64] {kind="param", hf="down", hf_transpose=true}
  })";
  const std::vector<std::pair<const char *, std::vector<int64_t>>> shapes = {
      {"wte.weight", {7, 64}}, {"wpe.weight", {3, 64}}, {"h.0.ln_1.weight", {64}}, {"q", {64, 64}},
      {"k", {64, 64}},         {"v", {64, 64}},         {"down", {64, 6}}};
  std::vector<std::pair<TensorInfo, std::vector<float>>> tensors;
  for (const auto &[name, shape] : shapes) {
    TensorInfo info{name, DType::f32, shape};
    std::vector<float> values;
    for (int64_t i = 0; i < info.bytes() / 4; ++i)
      values.push_back(std::sin(float(i * 7 + int64_t(tensors.size()))) + 2);
    tensors.emplace_back(info, values);
  }
  writeCheckpoint(dir / "model.safetensors", tensors);
  const TensorFiles source({dir / "model.safetensors"});
  Model want(text, 4, 4);
  loadWeights(*want.executor, dir / "model.safetensors", {});

  const std::string path = dir / "x.gguf";
  for (const char *architecture : {"llama", "qwen2", "gpt2"})
    for (const GgmlType type : {GgmlType::f32, GgmlType::bf16, GgmlType::f16, GgmlType::q8_0}) {
      GgufKeys keys = llamaKeys(4, architecture);
      keys.back().second = uint32_t(4);
      writeGguf(path, *want.module, source, {architecture, keys, {{"extra", {1, 2}}}}, {type});
      const GgufFile file(path);
      EXPECT_EQ(file.find("blk.0.attn_norm.weight")->format->type, GgmlType::f32);
      EXPECT_EQ(file.find("position_embd.weight")->format->type, GgmlType::f32);
      EXPECT_EQ(file.find("token_embd.weight")->format->type, type);
      EXPECT_EQ(file.find("token_embd.weight")->shape, (std::vector<int64_t>{7, 64})) << "without padding";
      EXPECT_EQ(file.find("blk.0.ffn_down.weight")->format->type, type == GgmlType::q8_0 ? GgmlType::f16 : type);
      EXPECT_EQ(file.find("blk.0.attn_q.weight") != nullptr, architecture != llvm::StringRef("gpt2"));
      float extra[2];
      file.read(*file.find("extra"), 0, 2, extra);
      EXPECT_EQ(extra[1], 2);
      Model got(text, 4, 4);
      EXPECT_EQ(codeThrown([&] { loadGguf(*got.executor, path); }), 505) << "no place for the other tensor";
      writeGguf(path, *want.module, source, {architecture, keys, {}}, {type});
      loadGguf(*got.executor, path);
      for (const auto &s : want.module->states) {
        // Values are below 3: half a unit in the last place, or half a 127th.
        const float bound = type == GgmlType::f32    ? 0
                            : type == GgmlType::f16  ? 0x1p-10f
                            : type == GgmlType::bf16 ? 0x1p-7f
                                                     : 3.f / 254 * 1.01f + 127 * 0x1p-16f;
        for (int64_t i = 0; i < s->type.elements(); ++i)
          ASSERT_NEAR(got.data(s->name.c_str())[i], want.data(s->name.c_str())[i], bound) << s->name << " " << i;
      }
    }
  // What a format cannot hold, and what is not there.
  tensors[0].second[5] = 1e5f;
  writeCheckpoint(dir / "model.safetensors", tensors);
  const TensorFiles large({dir / "model.safetensors"});
  std::string message;
  EXPECT_EQ(
      codeThrown([&] { writeGguf(path, *want.module, large, {"gpt2", llamaKeys(4), {}}, {GgmlType::f16}); }, &message),
      204);
  EXPECT_EQ(message, "tensor token_embd.weight has a value that F16 cannot hold");
  EXPECT_EQ(codeThrown([&] { writeGguf(path, *want.module, large, {"gpt2", llamaKeys(4), {}}, {GgmlType::bf16}); }), 0);
  tensors.pop_back();
  writeCheckpoint(dir / "model.safetensors", tensors);
  const TensorFiles less({dir / "model.safetensors"});
  EXPECT_EQ(
      codeThrown([&] { writeGguf(path, *want.module, less, {"gpt2", llamaKeys(4), {}}, {GgmlType::f32}); }, &message),
      505);
  EXPECT_EQ(message, "tensor down is missing");
  EXPECT_EQ(GgufFile(path).find("token_embd.weight")->format->type, GgmlType::bf16) << "the file before stays";
}

/// Bytes of the process that are resident, at most since the last reset.
int64_t peakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (llvm::StringRef rest = line; rest.consume_front("VmHWM:"))
      return std::stoll(rest.ltrim().str()) << 10;
  return 0;
}

TEST(GgufWeights, TakeLittleMemoryBesideTheArena) {
  TempDir dir;
  // 128 MiB of f32: transposed, with long rows, and not.
  const char *text = R"(module {
    state @wte.weight : f32[1024,16384] {kind="param"}
    state @h.0.mlp.c_proj.weight : f32[16384,1024] {kind="param"}
  })";
  const Tensors tensors = {{"token_embd.weight", GgmlType::q8_0, {1024, 16384}},
                           {"blk.0.ffn_down.weight", GgmlType::q8_0, {1024, 16384}}};
  writeTensors(dir / "x.gguf", llamaKeys(), tensors, [](size_t, int64_t i) { return float(i % 127); });
  Model m(text);
  std::fill_n(m.data("wte.weight"), 1024 * 16384, 0.f);
  std::fill_n(m.data("h.0.mlp.c_proj.weight"), 1024 * 16384, 0.f);
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush))
    GTEST_SKIP() << "/proc/self/clear_refs cannot be written, so the peak of memory cannot be reset";
  const int64_t before = peakMemory();
  loadGguf(*m.executor, dir / "x.gguf");
  EXPECT_LT(peakMemory() - before, 64 << 20);
  for (const int64_t i : {0, 126, 127, 16383, 16384, 999999})
    EXPECT_NEAR(m.data("wte.weight")[i], float(i % 127), 0.51);
  EXPECT_NEAR(m.data("h.0.mlp.c_proj.weight")[1024 * 5 + 7], float((7 * 16384 + 5) % 127), 0.51);
}

}  // namespace
