// Weights of 8 and 4 bits: blocks of GGUF files are kept as they are, and all else is rounded to the format of the
// state.
#include "runtime/checkpoint/quantized_weights.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "runtime/checkpoint/gguf_weights.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/in_process.h"
#include "runtime/device/cpu_executor.h"
#include "support/gguf/gguf_file.h"
#include "temp_dir.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>

using namespace gptc;

namespace {

/// Puts every state at its place and gives the arena its size, as plan-memory does.
struct Model {
  explicit Model(const std::string &text) : module(parseModule(text, "test")) {
    int64_t at = 0;
    for (auto &s : module->states) {
      s->attrs.set("at", at);
      at += (s->type.bytes() + 63) / 64 * 64;
    }
    module->attrs.set("arena_bytes", at);
    setFact<&ModelFacts::nHead>(*module, 2);
    setFact<&ModelFacts::nKvHead>(*module, 1);
    pool = std::make_unique<ThreadPool>(3);
    arena = std::make_unique<Arena>(at, pool.get());
    const Target host = hostTarget(3);
    executor = std::make_unique<CpuExecutor>(*module, host, host, *arena, *pool, "");
  }
  template <class T> const T *data(const State &s) { return static_cast<const T *>(executor->state(s.name)); }

  /// Element (row, column) of a weight in few bits, by ir/quantized.h and ggml's order of operations.
  float value(const QuantizedWeight &w, int64_t row, int64_t column) {
    const QuantizedPlace p = quantizedPlace(row, column, w.rows(), w.numbers->type.dim(2), w.format);
    const int64_t bits = bitsOf(w.format),
                  number = int64_t(data<uint32_t>(*w.numbers)[p.word] >> p.shift & ((1 << bits) - 1)) -
                           quantOffset(w.format);
    if (w.format != QuantFormat::q4_k)
      return float(number) * float(data<_Float16>(*w.scales)[p.scale]);
    const uint32_t six = data<uint32_t>(*w.scales)[p.scale] >> p.scaleShift;
    const auto *supers = data<_Float16>(*w.supers);
    return float(supers[p.d]) * float(six & 63) * float(number) - float(supers[p.dmin]) * float(six >> 8 & 63);
  }

  std::unique_ptr<Module> module;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<CpuExecutor> executor;
};

const char *kTable = R"(module {
  state @wte.weight : f32[37->40,256] {kind="param"}
  state @h.0.attn.c_attn.weight : f32[256,24] {kind="param", memory="files"}
  state @h.0.mlp.c_proj.weight : f32[512,40] {kind="param", memory="files"}
  state @numbers.wte : u32[2,64,32] {kind="quantized", of="wte.weight", tb=true}
  state @scales.wte : f16[2,8,32] {kind="quantized", of="wte.weight", tb=true}
)";
const std::string kFour = std::string(kTable) + R"(
  state @scales.a : u32[1,4,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @supers.a : f16[1,2,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @numbers.a : u32[1,32,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @numbers.p : u32[2,64,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @scales.p : u32[2,8,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @supers.p : f16[2,4,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
})";
const std::string kEight = std::string(kTable) + R"(
  state @numbers.a : u32[1,64,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @scales.a : f16[1,8,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @numbers.p : u32[2,64,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @scales.p : f16[2,16,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
})";

struct Formats {
  GgmlType table = GgmlType::q8_0, q = GgmlType::q4_k, k = GgmlType::q4_k, v = GgmlType::q4_k, down = GgmlType::q4_k;
};

/// Random bytes are blocks of any format, but for scales in f16, which are made small; `scale` is one of them.
std::string randomBlocks(GgmlType type, int64_t n, unsigned seed, float scale = 0.1f) {
  std::mt19937 random(seed);
  std::string bytes(size_t(ggmlFormat(type).bytesOf(n)), 0);
  for (char &b : bytes)
    b = char(random());
  auto put = [&](size_t at, float x) {
    const auto half = _Float16(x);
    std::memcpy(&bytes[at], &half, 2);
  };
  const auto size = size_t(ggmlFormat(type).bytes);
  for (size_t at = 0; at < bytes.size(); at += size) {
    const float own = at == 0 ? scale : 0.1f * float(1 + random() % 9);
    if (type == GgmlType::f32) {
      std::memcpy(&bytes[at], &own, 4);
      continue;
    }
    put(at + (type == GgmlType::q6_k ? 208 : 0), own);
    if (type == GgmlType::q4_k)
      put(at + 2, 0.05f);
  }
  return bytes;
}

/// A file of two heads of queries and one of keys, each of 6; `scale` is the first one of ffn_down.
void writeModel(const std::string &path, const Formats &f, float scale = 0.1f) {
  const std::vector<GgufWriter::Tensor> tensors = {{"token_embd.weight", f.table, {37, 256}},
                                                   {"blk.0.attn_q.weight", f.q, {12, 256}},
                                                   {"blk.0.attn_k.weight", f.k, {6, 256}},
                                                   {"blk.0.attn_v.weight", f.v, {6, 256}},
                                                   {"blk.0.ffn_down.weight", f.down, {40, 512}}};
  const GgufKeys keys = {{"general.architecture", std::string("llama")},
                         {"llama.attention.head_count", uint32_t(2)},
                         {"llama.attention.head_count_kv", uint32_t(1)}};
  GgufWriter out(path, keys, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string bytes = randomBlocks(tensors[i].type, tensors[i].shape[0] * tensors[i].shape[1], unsigned(i + 1),
                                           i == 4 ? scale : 0.1f);
    out.write(bytes.data(), bytes.size());
  }
  out.finish();
}

std::vector<float> valuesIn(const GgufFile &file, const std::string &name) {
  const GgufTensor &t = *file.find(name);
  std::vector<float> values(size_t(t.rows() * t.columns()));
  file.read(t, 0, int64_t(values.size()), values.data());
  return values;
}

/// Row of a head of 6 in llama's order that holds element j of ours: halves (0,1,2), (3,4,5) become 0,3, 1,4, 2,5.
int64_t pairOf(int64_t j) { return j / 6 * 6 + j % 3 * 2 + j % 6 / 3; }

/// Calls `with` for each element (row, column) of c_attn and its value in the file.
void eachOfAttention(const std::string &path, const std::function<void(int64_t, int64_t, float)> &with) {
  const GgufFile file(path);
  const std::vector<float> q = valuesIn(file, "blk.0.attn_q.weight"), k = valuesIn(file, "blk.0.attn_k.weight"),
                           v = valuesIn(file, "blk.0.attn_v.weight");
  for (int64_t j = 0; j < 24; ++j)
    for (int64_t i = 0; i < 256; ++i)
      with(i, j,
           j < 12   ? q[size_t(pairOf(j) * 256 + i)]
           : j < 18 ? k[size_t(pairOf(j - 12) * 256 + i)]
                    : v[size_t((j - 18) * 256 + i)]);
}

TEST(QuantizedWeights, BlocksOfAFileAreKeptAsTheyAre) {
  TempDir dir;
  const std::string path = dir / "x.gguf";
  writeModel(path, {});
  Model m(kFour);
  loadGguf(*m.executor, path);
  const QuantizedWeights few(*m.module);
  ASSERT_EQ(few.byName().size(), 3u);
  const QuantizedWeight &attention = few.byName().at("h.0.attn.c_attn.weight"),
                        &down = few.byName().at("h.0.mlp.c_proj.weight"), &table = few.byName().at("wte.weight");
  EXPECT_EQ(attention.format, QuantFormat::q4_k);
  EXPECT_EQ(table.format, QuantFormat::q8_0);
  eachOfAttention(path, [&](int64_t i, int64_t j, float want) { EXPECT_EQ(m.value(attention, i, j), want) << i << j; });
  const GgufFile file(path);
  const std::vector<float> wantDown = valuesIn(file, "blk.0.ffn_down.weight"),
                           wantTable = valuesIn(file, "token_embd.weight");
  std::vector<float> all(512 * 40);
  for (int64_t j = 0; j < 40; ++j)
    for (int64_t i = 0; i < 512; ++i) {
      ASSERT_EQ(m.value(down, i, j), wantDown[size_t(j * 512 + i)]) << i << " " << j;
      all[size_t(i * 40 + j)] = wantDown[size_t(j * 512 + i)];
    }
  EXPECT_EQ(roundingErrorOf(*m.executor, down, all.data()), 0);
  all[7] += 1e6f;
  EXPECT_GT(roundingErrorOf(*m.executor, down, all.data()), 0.1) << "the error of one element counts";
  // A table that has memory has both.
  for (int64_t j = 0; j < 37; ++j)
    for (int64_t i = 0; i < 256; ++i) {
      ASSERT_EQ(m.value(table, i, j), wantTable[size_t(j * 256 + i)]) << i << " " << j;
      ASSERT_EQ(m.data<float>(*table.param)[j * 256 + i], wantTable[size_t(j * 256 + i)]);
    }
  // Columns past the last one add nothing.
  for (int64_t row = 0; row < 4; ++row)
    for (int64_t c = 8; c < 32; ++c)
      EXPECT_EQ(float(m.data<_Float16>(*down.supers)[(4 + row) * 32 + c]), 0) << row << " " << c;
}

/// The same on each of two ranks: columns of c_attn in groups, and rows of c_proj.
const char *kPart = R"(module {mesh_tensor=2} {
  state @wte.weight : f32[37->40,256] {kind="param"}
  state @h.0.attn.c_attn.weight : f32[256,12] {kind="param", memory="files", cut_tensor=[1, 24, 24, 12, 6, 6]}
  state @h.0.mlp.c_proj.weight : f32[256,40] {kind="param", memory="files", cut_tensor=[0, 512, 512, 512], init="normal", std=0.02, stream=3}
)";
const std::string kPartOfFour = std::string(kPart) + R"(
  state @numbers.a : u32[1,32,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @scales.a : u32[1,4,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @supers.a : f16[1,2,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @numbers.p : u32[2,32,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @scales.p : u32[2,4,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @supers.p : f16[2,2,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
})";
const std::string kPartOfEight = std::string(kPart) + R"(
  state @numbers.a : u32[1,64,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @scales.a : f16[1,8,32] {kind="quantized", of="h.0.attn.c_attn.weight"}
  state @numbers.p : u32[2,32,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
  state @scales.p : f16[2,8,32] {kind="quantized", of="h.0.mlp.c_proj.weight"}
})";

/// Compares what each rank has of both weights with what one rank has of the whole ones.
void expectParts(const std::string &whole, const std::string &part, const std::function<void(Executor &)> &load,
                 const char *what) {
  const std::string down = "h.0.mlp.c_proj.weight", attention = "h.0.attn.c_attn.weight";
  Model all(whole);
  load(*all.executor);
  const QuantizedWeights allFew(*all.module);
  InProcess ranks(2, std::chrono::seconds(20));
  for (int64_t r = 0; r < 2; ++r) {
    const std::unique_ptr<Communicator> rank = ranks.join(int(r));
    Model own(part);
    own.executor->ranks = rank.get();
    load(*own.executor);
    const QuantizedWeights few(*own.module);
    ASSERT_EQ(few.byName().at(down).format, allFew.byName().at(down).format);
    for (int64_t j = 0; j < 40; ++j)
      for (int64_t i = 0; i < 256; ++i)
        ASSERT_EQ(own.value(few.byName().at(down), i, j), all.value(allFew.byName().at(down), 256 * r + i, j))
            << what << ": rank " << r << ", " << i << " " << j;
    for (int64_t j = 0; j < 12; ++j) {
      const int64_t place = j < 6 ? 6 * r + j : j < 9 ? 12 + 3 * r + j - 6 : 18 + 3 * r + j - 9;
      for (int64_t i = 0; i < 256; ++i)
        ASSERT_EQ(own.value(few.byName().at(attention), i, j), all.value(allFew.byName().at(attention), i, place))
            << what << ": rank " << r << ", " << i << " " << j;
    }
  }
}

TEST(QuantizedWeights, RanksHaveTheBlocksOfTheirParts) {
  using G = GgmlType;
  TempDir dir;
  const std::string path = dir / "x.gguf";
  auto load = [&](Executor &executor) { loadGguf(executor, path); };
  writeModel(path, {});
  expectParts(kFour, kPartOfFour, load, "as they are");
  writeModel(path, {G::q8_0, G::q8_0, G::q6_k, G::f32, G::q4_k});
  expectParts(kEight, kPartOfEight, load, "rounded");
  writeModel(path, {G::q8_0, G::q8_0, G::q8_0, G::q8_0, G::q8_0});
  expectParts(kEight, kPartOfEight, load, "as they are, in 8 bits");
}

// Initial values depend on the place in the whole.
TEST(QuantizedWeights, RanksBeginWithTheirParts) {
  std::string whole = kEight;
  const std::string plain = "f32[512,40] {kind=\"param\", memory=\"files\"}";
  const size_t at = whole.find(plain);
  ASSERT_NE(at, std::string::npos);
  whole.replace(at, plain.size(),
                "f32[512,40] {kind=\"param\", memory=\"files\", init=\"normal\", std=0.02, stream=3}");
  expectParts(whole, kPartOfEight, [](Executor &executor) { initializeStates(executor, 5); }, "random");
}

// Q8_0 as it is; wider and narrower formats within half a step.
TEST(QuantizedWeights, OtherFormatsAreRoundedToEightBits) {
  TempDir dir;
  const std::string path = dir / "x.gguf";
  writeModel(path, {GgmlType::q8_0, GgmlType::q8_0, GgmlType::q6_k, GgmlType::f32, GgmlType::q4_k});
  Model m(kEight);
  loadGguf(*m.executor, path);
  const QuantizedWeights few(*m.module);
  const QuantizedWeight &attention = few.byName().at("h.0.attn.c_attn.weight");
  std::vector<float> largest(24 * 8, 0.f);
  eachOfAttention(path, [&](int64_t i, int64_t j, float want) {
    float &most = largest[size_t(j * 8 + i / 32)];
    most = std::max(most, std::fabs(want));
  });
  int different = 0;
  eachOfAttention(path, [&](int64_t i, int64_t j, float want) {
    const float got = m.value(attention, i, j);
    if (j < 12) {
      ASSERT_EQ(got, want) << i << " " << j;
    }
    // Half a step of 127, and what f16 loses of the scale.
    EXPECT_NEAR(got, want, largest[size_t(j * 8 + i / 32)] * (0.5f / 127 + 0x1p-10f)) << i << " " << j;
    different += got != want;
  });
  EXPECT_GT(different, 1000);
}

TEST(QuantizedWeights, FloatsAreRoundedToQ4K) {
  Model m(kFour);
  const QuantizedWeights few(*m.module);
  const QuantizedWeight &down = few.byName().at("h.0.mlp.c_proj.weight");
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(512 * 40);
  for (float &v : values)
    v = normal(random);
  storeQuantized(*m.executor, down, values.data());
  const double error = roundingErrorOf(*m.executor, down, values.data());
  EXPECT_GT(error, 0.02);
  EXPECT_LT(error, 0.12);
  // What ggml's block of a column says.
  std::vector<float> column(512), want(512);
  std::vector<uint8_t> blocks(2 * 144);
  for (int64_t j : {0, 31, 32, 39}) {
    for (int64_t i = 0; i < 512; ++i)
      column[size_t(i)] = values[size_t(i * 40 + j)];
    roundToBlocks(down, column.data(), 512, blocks.data());
    dequantize(GgmlType::q4_k, blocks.data(), 512, want.data());
    for (int64_t i = 0; i < 512; ++i)
      ASSERT_EQ(m.value(down, i, j), want[size_t(i)]) << i << " " << j;
  }
}

TEST(QuantizedWeights, WhatIsNotFiniteIsAnError) {
  TempDir dir;
  const std::string path = dir / "x.gguf";
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::string message;
  for (const float scale : {inf, nan}) {
    writeModel(path, {}, scale);
    Model m(kFour);
    EXPECT_EQ(codeThrown([&] { loadGguf(*m.executor, path); }, &message), 406);
    EXPECT_EQ(message, "h.0.mlp.c_proj.weight has values that are not finite");
  }
  for (const auto &[value, code] : {std::pair(1e30f, 204), {inf, 406}, {nan, 406}}) {
    writeModel(path, {.down = GgmlType::f32}, value);
    for (const std::string &text : {kFour, kEight}) {
      Model m(text);
      EXPECT_EQ(codeThrown([&] { loadGguf(*m.executor, path); }, &message), code) << value;
    }
  }
}

struct StoredAs {
  Weights weights;
  std::vector<std::string> eightBits, rounded, from;
};

TEST(QuantizedWeights, AFileSaysHowItsMatricesAreStored) {
  using G = GgmlType;
  const std::string attention = "h.0.attn.c_attn.weight", down = "h.0.mlp.c_proj.weight";
  TempDir dir;
  const std::string path = dir / "x.gguf";
  const Model m(kFour);
  for (const auto &[formats, want] : std::vector<std::pair<Formats, StoredAs>>{
           {{}, {Weights::q4_k, {}, {}, {}}},
           {{.down = G::q8_0}, {Weights::q4_k, {down}, {}, {}}},
           {{.v = G::q6_k}, {Weights::q4_k, {attention}, {attention}, {"Q4_K", "Q6_K"}}},
           {{.down = G::q6_k}, {Weights::q4_k, {down}, {down}, {"Q6_K"}}},
           {{G::q8_0, G::q4_0, G::q4_0, G::q4_0, G::q4_k}, {Weights::q4_k, {attention}, {attention}, {"Q4_0"}}},
           {{G::q8_0, G::q4_k, G::q4_k, G::q4_k, G::q4_0}, {Weights::q4_0, {attention}, {attention}, {"Q4_K"}}},
           {{G::q8_0, G::q4_0, G::q4_0, G::q4_0, G::q4_0}, {Weights::q4_0, {}, {}, {}}},
           {{G::f32, G::q8_0, G::q8_0, G::q8_0, G::q8_0}, {Weights::q8_0, {}, {}, {}}},
           {{G::q8_0, G::q8_0, G::q8_0, G::q8_0, G::q6_k}, {Weights::q8_0, {}, {down}, {"Q6_K"}}},
           {{.v = G::f32}, {Weights::q4_k, {attention}, {attention}, {"F32", "Q4_K"}}},
           {{.down = G::f32}, {Weights::compute, {}, {}, {}}}}) {
    writeModel(path, formats);
    const StoredWeights got = storedWeights(*m.module, path);
    const std::string what(ggmlFormat(formats.down).name);
    EXPECT_EQ(got.weights, want.weights) << what;
    EXPECT_EQ(got.eightBits, want.eightBits) << what;
    EXPECT_EQ(got.rounded, want.rounded) << what;
    EXPECT_EQ(got.roundedFrom, want.from) << what;
  }
}

// A matrix of 48 inputs is in no format: the others are kept nevertheless.
TEST(QuantizedWeights, MatricesWithoutBlocksDoNotCount) {
  TempDir dir;
  const std::string path = dir / "x.gguf";
  const Model m(R"(module {
    state @h.0.mlp.c_fc.weight : f32[48,256] {kind="param"}
    state @h.0.mlp.c_proj.weight : f32[256,48] {kind="param"}
  })");
  GgufWriter out(
      path,
      {{"general.architecture", std::string("llama")},
       {"llama.attention.head_count", uint32_t(2)},
       {"llama.attention.head_count_kv", uint32_t(1)}},
      {{"blk.0.ffn_up.weight", GgmlType::f16, {256, 48}}, {"blk.0.ffn_down.weight", GgmlType::q4_k, {48, 256}}});
  const std::string up(256 * 48 * 2, 0), down = randomBlocks(GgmlType::q4_k, 48 * 256, 1);
  out.write(up.data(), up.size());
  out.write(down.data(), down.size());
  out.finish();
  const StoredWeights got = storedWeights(*m.module, path);
  EXPECT_EQ(got.weights, Weights::q4_k);
  EXPECT_TRUE(got.eightBits.empty());
}

}  // namespace
