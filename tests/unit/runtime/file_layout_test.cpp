#include "runtime/checkpoint/file_layout.h"

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
    fromFile(s, t, DType::f32, tensor.data(), back.data());
  }
  EXPECT_EQ(back, dense);
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
  fromFile(s, t, DType::bf16, bf16, x);
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[1], -2);
  EXPECT_EQ(x[3], std::numeric_limits<float>::infinity());
  fromFile(s, t, DType::f16, f16, x);
  EXPECT_EQ(x[2], 0.5);
  EXPECT_EQ(x[3], 65504);
}

}  // namespace
