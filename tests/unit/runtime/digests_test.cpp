// Digests of tensors: of every logical element, and of nothing else.
#include "runtime/train/digests.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

using namespace gptc;

namespace {

struct Digests : ::testing::Test {
  ThreadPool one{1}, several{4};
  std::string of(const Type &type, const std::vector<char> &bytes) {
    const std::string digest = digestOf(type, bytes.data(), several);
    EXPECT_EQ(digest, digestOf(type, bytes.data(), one));
    EXPECT_EQ(digest.size(), 32u);
    return digest;
  }
  static std::vector<char> random(size_t bytes) {
    std::mt19937 generator(5);
    std::vector<char> v(bytes);
    for (char &c : v)
      c = char(generator());
    return v;
  }
};

TEST_F(Digests, AreOfEveryElementWithoutPadding) {
  // [2, 3 in 5, 5 in 8]
  const Type padded(DType::bf16, {Dim(2), Dim(3, 5), Dim(5, 8)}), dense(DType::bf16, {Dim(2), Dim(3), Dim(5)});
  std::vector<char> data = random(padded.bytes());
  std::vector<char> without;
  std::vector<bool> counts(data.size());
  for (int64_t a = 0; a < 2; ++a)
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t byte = 0; byte < 10; ++byte) {
        const int64_t at = ((a * 5 + b) * 8) * 2 + byte;
        counts[at] = true;
        without.push_back(data[at]);
      }
  const std::string digest = of(padded, data);
  EXPECT_EQ(digest, of(dense, without));
  std::set<std::string> seen = {digest};
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] ^= 1;
    const std::string changed = of(padded, data);
    EXPECT_EQ(changed != digest, counts[i]) << i;
    EXPECT_EQ(seen.insert(changed).second, counts[i]) << i;
    data[i] ^= 1;
  }
}

TEST_F(Digests, OfScalars) {
  std::vector<char> four = random(4);
  const std::string digest = of(Type(DType::f32, {}), four);
  four[3] ^= 1;
  EXPECT_NE(digest, of(Type(DType::f32, {}), four));
}

// Rows longer than a piece, rows that fill pieces exactly or not, and a last piece of less.
TEST_F(Digests, OfManyPieces) {
  for (const Type &type : {Type(DType::f32, {Dim(300000)}), Type(DType::f32, {Dim(3), Dim(262144)}),
                           Type(DType::f32, {Dim(3), Dim(262145, 262160)}), Type(DType::bf16, {Dim(1025), Dim(1000)}),
                           Type(DType::f32, {Dim(7), Dim(100000)})}) {
    std::vector<char> data = random(type.bytes());
    const std::string digest = of(type, data);
    const int64_t row = type.dim(-1) * int64_t(sizeOf(type.dtype)),
                  stride = type.padded(-1) * int64_t(sizeOf(type.dtype));
    for (int64_t r : {int64_t(0), type.rows() / 2, type.rows() - 1})
      for (int64_t byte : {int64_t(0), std::min<int64_t>(row - 1, 1 << 20), row - 1}) {
        data[r * stride + byte] ^= 64;
        EXPECT_NE(digest, of(type, data)) << type.str() << " " << r << " " << byte;
        data[r * stride + byte] ^= 64;
      }
    EXPECT_EQ(digest, of(type, data));
  }
}

}  // namespace
