#include "ir/graph.h"
#include "runtime/checkpoint/file_layout.h"
#include "runtime/checkpoint/transpose.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

using namespace gptc;

namespace {

State packed() {
  State s;
  s.name = "qkv";
  s.type = Type(DType::f32, {3, 40});
  s.attrs = attrs(
      {{"hf", std::string("transformer.q,k")}, {"hf_split", std::vector<int64_t>{35, 5}}, {"hf_transpose", true}});
  return s;
}

TEST(FileLayout, CutsColumnsAndTurnsRound) {
  const State s = packed();
  const std::vector<FileTensor> parts = fileTensors(s);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].info.name, "transformer.q");
  EXPECT_EQ(parts[0].info.shape, (std::vector<int64_t>{35, 3}));
  EXPECT_EQ(parts[1].info.name, "k");
  EXPECT_EQ(parts[1].info.shape, (std::vector<int64_t>{5, 3}));
  std::vector<float> dense(3 * 40), back(3 * 40, -1), k(15);
  for (int i = 0; i < 120; ++i)
    dense[i] = float(i);
  toFile(s, parts[1], dense.data(), k.data());
  for (int out = 0; out < 5; ++out)
    for (int in = 0; in < 3; ++in)
      EXPECT_EQ(k[out * 3 + in], dense[in * 40 + 35 + out]);
  for (const FileTensor &t : parts) {
    std::vector<float> tensor(t.info.bytes() / 4);
    toFile(s, t, dense.data(), tensor.data());
    fromFile(s, t, DType::f32, 0, rowsOf(s, t).count, tensor.data(), back.data());
  }
  EXPECT_EQ(back, dense);
}

TEST(FileLayout, QueriesKeysAndValuesHeadByHead) {
  constexpr int64_t in = 5, heads = 3, width = 4, out = 3 * heads * width;
  for (const bool bias : {false, true}) {
    State s;
    s.name = "h.0.attn.c_attn";
    s.type = bias ? Type(DType::f32, {out}) : Type(DType::f32, {in, out});
    s.attrs = attrs({{"hf", std::string("a|b")}, {"hf_heads", heads}});
    if (!bias)
      s.attrs.set("hf_transpose", true);
    const FileTensor t = fileTensors(s).at(0);
    EXPECT_EQ(t.info.name, "a");
    EXPECT_EQ(t.others, std::vector<std::string>{"b"});
    EXPECT_EQ(t.info.shape, bias ? std::vector<int64_t>{out} : (std::vector<int64_t>{out, in}));
    EXPECT_FALSE(isWhole(s, t));
    const int64_t rows = bias ? 1 : in;
    std::vector<float> dense(rows * out), file(dense.size()), back(dense.size(), -1);
    for (size_t i = 0; i < dense.size(); ++i)
      dense[i] = float(i);
    toFile(s, t, dense.data(), file.data());
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t which = 0; which < 3; ++which)
        for (int64_t d = 0; d < width; ++d)
          for (int64_t r = 0; r < rows; ++r)
            EXPECT_EQ(file[((h * 3 + which) * width + d) * rows + r], dense[r * out + (which * heads + h) * width + d]);
    // In pieces that end anywhere.
    const FileRows all = rowsOf(s, t);
    EXPECT_EQ(all.count, out);
    EXPECT_EQ(all.elements, rows);
    for (int64_t first = 0; first < all.count; first += 7)
      fromFile(s, t, DType::f32, first, std::min<int64_t>(7, all.count - first), file.data() + first * rows,
               back.data());
    EXPECT_EQ(back, dense);
  }
}

// As ModernBERT's gate and hidden layer have one matrix in files.
TEST(FileLayout, StatesMayShareATensor) {
  const auto m = parseModule(R"(module {
  state @gate : f32[3,2] {kind="param", hf="Wi", hf_transpose=true, hf_share=[0, 2]}
  state @fc : f32[3,2] {kind="param", hf="Wi", hf_transpose=true, hf_share=[1, 2]}
})",
                             "test");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  const FileTensor gate = fileTensors(*m->states[0]).at(0), fc = fileTensors(*m->states[1]).at(0);
  EXPECT_EQ(gate.place, 0);
  EXPECT_EQ(fc.place, 1);
  EXPECT_EQ(fc.info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(fc.inFile().shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(fc.inFile().name, "Wi");

  auto problems = [](const std::string &gate, const std::string &fc) {
    return verify(
               *parseModule("module {\n  state @gate : f32[3,2] {" + gate + "}\n  state @fc : f32[3,2] {" + fc + "}\n}",
                            "test"))
        .size();
  };
  const std::string first = "kind=\"param\", hf=\"Wi\", hf_transpose=true, hf_share=[0, 2]",
                    second = "kind=\"param\", hf=\"Wi\", hf_transpose=true, hf_share=[1, 2]";
  EXPECT_EQ(problems(first, second), 0u);
  EXPECT_EQ(problems(second, first), 2u) << "nothing before it, and nothing behind the other";
  EXPECT_EQ(problems(first, "kind=\"param\""), 1u) << "half of a tensor";
  EXPECT_EQ(problems("kind=\"param\"", first), 1u) << "half of a tensor";
  EXPECT_EQ(problems(first, "kind=\"param\", hf=\"Wo\", hf_transpose=true, hf_share=[1, 2]"), 1u);
  EXPECT_EQ(problems(first, "kind=\"param\", hf=\"Wi\", hf_share=[1, 2]"), 1u) << "not by rows";
  for (const char *share : {"[1]", "[2, 2]", "[-1, 2]", "[1, 3]", "[1, 1000000]"})
    EXPECT_EQ(problems(first, fmt::format("kind=\"param\", hf=\"Wi\", hf_transpose=true, hf_share={}", share)), 1u)
        << share;
}

TEST(FileLayout, CutsVectors) {
  State s;
  s.name = "b";
  s.type = Type(DType::f32, {8});
  s.attrs = attrs({{"hf", std::string("q,k,v")}, {"hf_split", std::vector<int64_t>{4, 2, 2}}});
  const float dense[] = {0, 1, 2, 3, 4, 5, 6, 7};
  float back[8] = {}, v[2];
  const std::vector<FileTensor> parts = fileTensors(s);
  ASSERT_EQ(parts.size(), 3u);
  toFile(s, parts[2], dense, v);
  EXPECT_EQ(v[0], 6);
  EXPECT_EQ(v[1], 7);
  for (const FileTensor &t : parts) {
    float some[4];
    toFile(s, t, dense, some);
    fromFile(s, t, DType::f32, 0, rowsOf(s, t).count, some, back);
  }
  EXPECT_EQ(std::vector<float>(back, back + 8), std::vector<float>(dense, dense + 8));
}

TEST(FileLayout, WidensNarrowFloats) {
  State s;
  s.name = "w";
  s.type = Type(DType::f32, {4});
  const FileTensor t = fileTensors(s)[0];
  EXPECT_EQ(t.info.name, "w");
  EXPECT_TRUE(isWhole(s, t));
  const uint16_t bf16[] = {0x3f80, 0xc000, 0x0000, 0x7f80};
  const _Float16 f16[] = {1, -2, 0.5, 65504};
  float x[4];
  fromFile(s, t, DType::bf16, 0, 4, bf16, x);
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[1], -2);
  EXPECT_EQ(x[3], std::numeric_limits<float>::infinity());
  fromFile(s, t, DType::f16, 0, 4, f16, x);
  EXPECT_EQ(x[2], 0.5);
  EXPECT_EQ(x[3], 65504);
}

TEST(FileLayout, RowsBecomeColumnsOfWhateverSize) {
  for (const auto &[rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {16, 16}, {32, 48}, {17, 15}, {40, 33}})
    for (const int64_t gap : {0, 1, 5}) {  // 1: neighbours trade places; 5: every fifth is missing
      std::vector<int64_t> across, down;
      for (int64_t r = 0; r < rows; ++r)
        across.push_back(gap == 5 && r % 5 == 4 ? -1 : gap == 1 ? std::min(r ^ 1, rows - 1) : r);
      for (int64_t c = 0; c < columns; ++c)
        down.push_back(gap == 5 && c % 5 == 4 ? -1 : c * (rows + 3));
      std::vector<float> from(size_t(rows * columns)), to(size_t(columns * (rows + 3)), -1), want = to;
      for (size_t i = 0; i < from.size(); ++i)
        from[i] = float(i);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          if (across[size_t(r)] >= 0 && down[size_t(c)] >= 0)
            want[size_t(down[size_t(c)] + across[size_t(r)])] = 2 * from[size_t(r * columns + c)];
      copyTransposed(from.data(), across, down, to.data(), [](float v) { return 2 * v; });
      EXPECT_EQ(to, want) << rows << " x " << columns << ", " << gap;
    }
}

}  // namespace
