#include "runtime/data/data.h"

#include "runtime/data/masking.h"
#include "support/diagnostics.h"
#include "temp_dir.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

using namespace gptc;

namespace {

std::string tokens(int n, int first = 0) {
  std::vector<uint16_t> t(n);
  for (int i = 0; i < n; ++i)
    t[i] = first + i;
  return {reinterpret_cast<char *>(t.data()), t.size() * 2};
}

std::string llmc(const std::string &body, int32_t magic = 20240520, int32_t version = 1, int32_t count = -1) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count >= 0 ? count : int32_t(body.size() / 2);
  return std::string(reinterpret_cast<char *>(header.data()), 1024) + body;
}

TEST(Permutation, IsABijectionForEverySizeAndDiffersByEpochAndSeed) {
  for (int64_t n : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    Permutation p(n, 7, 0), q(n, 7, 1), r(n, 8, 0);
    std::set<int64_t> seen;
    int same = 0, sameSeed = 0;
    for (int64_t i = 0; i < n; ++i) {
      int64_t v = p(i);
      ASSERT_TRUE(v >= 0 && v < n);
      seen.insert(v);
      same += v == q(i);
      sameSeed += v == r(i);
    }
    EXPECT_EQ(int64_t(seen.size()), n);
    if (n >= 100) {
      EXPECT_LT(same, 10);
      EXPECT_LT(sameSeed, 10);
    }
  }
}

TEST(TokenData, WindowsOfAnEpochDoNotOverlapAndTargetsFollow) {
  TempDir dir;
  const int T = 8, n = 103;
  writeFile(dir / "a.bin", tokens(n));
  TokenData d(dir / "a.bin", "data.train", 1000, T, T + 1);
  EXPECT_EQ(d.tokens(), n);
  const int64_t W = (n - T) / T;  // an epoch
  std::set<int> offsets;
  std::set<std::vector<int>> orders;
  for (int epoch = 0; epoch < 20; ++epoch) {
    std::set<int> seen;
    std::vector<int> order;
    for (int64_t i = 0; i < W; ++i) {
      int32_t x[T], y[T];
      d.window(3, epoch * W + i, x, y);
      for (int k = 0; k < T; ++k) {
        EXPECT_EQ(y[k], x[k] + 1);
        EXPECT_TRUE(seen.insert(x[k]).second) << "token seen twice in one epoch";
      }
      offsets.insert(x[0] % T);
      order.push_back(x[0] / T);
    }
    EXPECT_EQ(seen.size(), size_t(W * T));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 20u) << "every epoch has an order of its own";
  EXPECT_GT(offsets.size(), 4u) << "epochs should start at different offsets";
}

TEST(TokenData, AWindowIsAFunctionOfSeedAndNumber) {
  TempDir dir;
  writeFile(dir / "a.bin", tokens(500));
  TokenData d(dir / "a.bin", "data.train", 1000, 4, 5), again(dir / "a.bin", "data.train", 1000, 4, 5);
  int32_t x[4], y[4], u[4], v[4];
  int differs = 0;
  for (int64_t g : {0, 1, 50, 123, 1000, 123456}) {
    d.window(1, g, x, y);
    again.window(1, g, u, v);
    EXPECT_TRUE(std::equal(x, x + 4, u));
    again.window(2, g, u, v);
    differs += !std::equal(x, x + 4, u);
  }
  EXPECT_GT(differs, 3);
}

TEST(TokenData, ManyFilesAreOneStream) {
  TempDir dir;
  const int T = 4;
  writeFile(dir / "s1.bin", tokens(T, 100));  // shorter than a window and its target
  writeFile(dir / "s2.bin", llmc(tokens(21, 100 + T)));
  TokenData d(dir / "s*.bin", "data.train", 1000, T, T + 1);
  EXPECT_EQ(d.tokens(), T + 21);
  std::set<int> starts;
  for (int64_t g = 0; g < (T + 21 - T) / T; ++g) {  // an epoch
    int32_t x[T], y[T];
    d.window(5, g, x, y);
    for (int i = 0; i < T; ++i) {
      EXPECT_EQ(x[i], x[0] + i);
      EXPECT_EQ(y[i], x[i] + 1);
    }
    starts.insert(x[0]);
  }
  EXPECT_EQ(starts.size(), 5u);
  EXPECT_LT(*starts.begin(), 100 + T) << "a window begins in the first file";
}

TEST(TokenData, EvaluationSeesEveryTargetOnce) {
  TempDir dir;
  const int T = 8;
  for (int n : {2, 8, 9, 10, 16, 17, 18, 41}) {
    writeFile(dir / "v.bin", tokens(n));
    TokenData d(dir / "v.bin", "data.val", 1000, T, 2);
    std::vector<int> targets;
    for (int64_t i = 0; i < d.evalWindows(); ++i) {
      int32_t x[T], y[T];
      int64_t count = d.evalWindow(i, x, y);
      for (int k = 0; k < T; ++k) {
        EXPECT_EQ(y[k], k < count ? x[k] + 1 : -1);
        if (k >= count) {
          EXPECT_EQ(x[k], 0);
        } else {
          targets.push_back(y[k]);
        }
      }
    }
    ASSERT_EQ(int(targets.size()), n - 1);
    for (int i = 0; i < n - 1; ++i)
      EXPECT_EQ(targets[i], i + 1);
  }
}

TEST(TokenData, AnEncodersTargetsAreMasked) {
  TempDir dir;
  const int T = 64, n = 5000, mask = 5000;
  writeFile(dir / "a.bin", tokens(n));
  TokenData d(dir / "a.bin", "data.train", mask + 1, T, T + 1, mask),
      plain(dir / "a.bin", "data.train", mask, T, T + 1);
  int targets = 0, hidden = 0, kept = 0, replaced = 0;
  for (int64_t g = 0; g < 500; ++g) {
    int32_t x[T], y[T], again[T], text[T], next[T];
    d.window(3, g, x, y);
    plain.window(3, g, text, next);
    int here = 0;
    for (int i = 0; i < T; ++i) {
      if (y[i] < 0) {
        EXPECT_EQ(x[i], text[i]);
        continue;
      }
      ++here;
      EXPECT_EQ(y[i], text[i]);
      hidden += x[i] == mask;
      kept += x[i] == y[i];
      replaced += x[i] != mask && x[i] != y[i];
    }
    EXPECT_EQ(d.targets(3, g, 1), here);
    EXPECT_GE(here, 1);
    targets += here;
    int32_t other[T];
    d.window(3, g, again, other);
    EXPECT_TRUE(std::equal(x, x + T, again) && std::equal(y, y + T, other));
  }
  EXPECT_EQ(d.targets(3, 0, 500), targets);
  EXPECT_EQ(plain.targets(3, 0, 500), 500 * T);
  // Five standard deviations of 32000 draws at 15%, and of 4800 at 80% and at 10%.
  EXPECT_NEAR(targets / (500.0 * T), 0.15, 0.01);
  EXPECT_NEAR(double(hidden) / targets, 0.8, 0.03);
  EXPECT_NEAR(double(kept) / targets, 0.1, 0.022);
  EXPECT_NEAR(double(replaced) / targets, 0.1, 0.022);
}

TEST(Masking, ARandomTokenIsNeverTheMask) {
  const int64_t n = 20000;
  std::vector<int32_t> x(n, 0), y(n);
  const int64_t targets = maskTokens(randomKey(7, 0, 0, 0), n, 1, x.data(), y.data());  // one token beside the mask
  // Five standard deviations of 3000 draws at 80%; were the mask among the random tokens, it would be 85%.
  EXPECT_NEAR(double(std::count(x.begin(), x.end(), 1)) / double(targets), 0.8, 0.037);
}

TEST(TokenData, AnEncodersEvaluationIsAlwaysTheSame) {
  TempDir dir;
  const int T = 8, mask = 100;
  for (int n : {2, 7, 9, 40}) {
    writeFile(dir / "v.bin", tokens(n, 1));
    TokenData d(dir / "v.bin", "data.val", mask + 1, T, 2, mask);
    std::set<int> seen;
    for (int64_t w = 0; w < d.evalWindows(); ++w) {
      int32_t x[T], y[T], x2[T], y2[T];
      const int64_t targets = d.evalWindow(w, x, y);
      EXPECT_EQ(d.evalWindow(w, x2, y2), targets);
      EXPECT_TRUE(std::equal(x, x + T, x2) && std::equal(y, y + T, y2));
      EXPECT_EQ(T - std::count(y, y + T, -1), targets);
      EXPECT_GE(targets, 1);
      for (int i = 0; i < T; ++i)
        if (y[i] >= 0) {
          EXPECT_TRUE(seen.insert(y[i]).second) << "a target seen twice";
        }
    }
  }
  // The vocabulary's last token is no text.
  writeFile(dir / "x.bin", tokens(20, 90));
  std::string message;
  TokenData d(dir / "x.bin", "data.train", 101, 8, 9, 100);
  int32_t x[8], y[8];
  EXPECT_EQ(codeThrown([&] { d.evalWindow(1, x, y); }, &message), int(ErrorCode::TokenOutOfRange));
  EXPECT_NE(message.find("[MASK]"), std::string::npos) << message;
}

TEST(TokenData, BadFilesAreNamed) {
  TempDir dir;
  auto open = [&](const std::string &content) {
    writeFile(dir / "x.bin", content);
    std::string message;
    int code = codeThrown([&] { TokenData(dir / "x.bin", "data.train", 50, 8, 9); }, &message);
    EXPECT_TRUE(code == 0 || message.find("x.bin") != std::string::npos) << message;
    return code;
  };
  EXPECT_EQ(codeThrown([&] { TokenData(dir / "none.bin", "data.train", 50, 8, 9); }), int(ErrorCode::FileMissing));
  EXPECT_EQ(codeThrown([&] { TokenData(dir / "none-*.bin", "data.train", 50, 8, 9); }), int(ErrorCode::FileMissing));
  EXPECT_EQ(codeThrown([&] { TokenData(dir.path, "data.train", 50, 8, 9); }), int(ErrorCode::FileMissing));
  EXPECT_EQ(open(""), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(tokens(40) + "x"), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(tokens(8)), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(tokens(9)), 0);
  EXPECT_EQ(open(llmc(tokens(20))), 0);
  EXPECT_EQ(open(llmc(tokens(20), 20240520, 1, 30)), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(llmc(tokens(20), 20240520, 2)), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(llmc(tokens(20), 20240801, 7)), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(llmc(tokens(20), 20240801, 7, 10)), 0);
  EXPECT_EQ(open(llmc(tokens(20), 20240801, 1, 10)), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(llmc(tokens(20) + "x", 20240801, 7, 10)), int(ErrorCode::DataInvalid));
  std::string manyMore = llmc(tokens(20));
  manyMore[15] = char(0x7f);  // the upper half of the count: more bytes than 64 bits can count
  EXPECT_EQ(open(manyMore), int(ErrorCode::DataInvalid));
  manyMore[15] = char(0x80);
  EXPECT_EQ(open(manyMore), int(ErrorCode::DataInvalid));
  EXPECT_EQ(open(llmc(tokens(20)).substr(0, 900)), int(ErrorCode::DataInvalid));
}

TEST(TokenData, TokensBeyondTheVocabularyAreNamedWithTheirPlace) {
  TempDir dir;
  std::string t = tokens(9);
  uint16_t big = 50;
  std::memcpy(&t[8 * 2], &big, 2);  // the last token: a target only
  writeFile(dir / "x.bin", t);
  TokenData d(dir / "x.bin", "data.train", 50, 8, 9);
  int32_t x[8], y[8];
  std::string message;
  EXPECT_EQ(codeThrown([&] { d.window(0, 0, x, y); }, &message), int(ErrorCode::TokenOutOfRange));
  EXPECT_NE(message.find("token 50 at position 8"), std::string::npos) << message;
  EXPECT_EQ(codeThrown([&] { d.evalWindow(0, x, y); }), int(ErrorCode::TokenOutOfRange));
  EXPECT_EQ(codeThrown([&] { d.checkTokens(); }, &message), int(ErrorCode::TokenOutOfRange));
  EXPECT_NE(message.find("token 50 at position 8"), std::string::npos) << message;
  EXPECT_EQ(codeThrown([&] { TokenData(dir / "x.bin", "data.val", 51, 8, 2).checkTokens(); }), 0);
}

TEST(TokenData, WiderTokensAreNoticed) {
  TempDir dir;
  auto check = [&](const std::string &content) {
    writeFile(dir / "a.bin", content);
    return codeThrown([&] { TokenData(dir / "a.bin", "data.val", 1 << 16, 4, 2).requireNarrowTokens(); });
  };
  std::vector<int32_t> wide(50);
  for (int i = 0; i < 50; ++i)
    wide[i] = i;
  const std::string bytes(reinterpret_cast<char *>(wide.data()), wide.size() * 4);
  EXPECT_EQ(check(bytes), int(ErrorCode::DataInvalid));
  EXPECT_EQ(check(tokens(100, 1)), 0);
  EXPECT_EQ(check(std::string(400, '\0')), 0) << "nothing but token 0";
  EXPECT_EQ(check(bytes.substr(0, 40)), 0) << "too few to tell";
  EXPECT_EQ(check(llmc(bytes)), 0) << "its header tells";
  EXPECT_EQ(check("\x93NUMPY" + bytes), int(ErrorCode::DataInvalid));
}

TEST(TokenData, TokensOf32BitsAreReadWhole) {
  TempDir dir;
  std::vector<uint32_t> wide(30);
  for (int i = 0; i < 30; ++i)
    wide[i] = 100'000 + i;
  auto bytes = [&] { return std::string(reinterpret_cast<char *>(wide.data()), wide.size() * 4); };
  writeFile(dir / "w.bin", llmc(bytes(), 20240801, 7, 30));
  TokenData d(dir / "w.bin", "data.train", 100'030, 8, 9);
  EXPECT_EQ(d.tokens(), 30);
  int32_t x[8], y[8];
  EXPECT_EQ(d.evalWindow(1, x, y), 8);
  EXPECT_EQ(x[0], 100'008);
  EXPECT_EQ(y[7], 100'016);
  EXPECT_EQ(d.evalWindow(3, x, y), 5);  // tokens 24 to 29
  EXPECT_EQ(y[4], 100'029);
  d.window(7, 0, x, y);
  EXPECT_EQ(y[3], x[3] + 1);
  d.checkTokens();
  d.requireNarrowTokens();
  const std::atomic<bool> on = false;
  const TokenData::Content content = d.content(0, on);
  EXPECT_EQ(content.largest, 100'029u);
  EXPECT_EQ(content.hash, blake3(bytes()));
  std::string message;
  wide[29] = 1u << 31;  // no int32
  writeFile(dir / "w.bin", llmc(bytes(), 20240801, 7, 30));
  EXPECT_EQ(codeThrown([&] { TokenData(dir / "w.bin", "data.train", 100'030, 8, 9).checkTokens(); }, &message),
            int(ErrorCode::TokenOutOfRange));
  EXPECT_NE(message.find("token 2147483648 at position 29"), std::string::npos) << message;
}

TEST(TokenData, TheWholeSetIsChecked) {
  TempDir dir;
  std::string t((size_t(3) << 20) * 2 + 2, '\0');  // tokens of three reads, and one more
  t[t.size() - 2] = 7;
  writeFile(dir / "x.bin", t);
  std::string message;
  TokenData d(dir / "x.bin", "data.val", 7, 8, 2);
  EXPECT_EQ(codeThrown([&] { d.checkTokens(); }, &message), int(ErrorCode::TokenOutOfRange));
  EXPECT_NE(message.find(fmt::format("token 7 at position {}", 3 << 20)), std::string::npos) << message;
}

TEST(TokenData, AFileCutShortWhileInUseIsNamed) {
  TempDir dir;
  writeFile(dir / "x.bin", tokens(5000));
  TokenData d(dir / "x.bin", "data.train", 60000, 8, 9);
  std::filesystem::resize_file(dir / "x.bin", 100);
  int32_t x[8], y[8];
  std::string message;
  EXPECT_EQ(codeThrown([&] { d.evalWindow(0, x, y); }), 0);
  EXPECT_EQ(codeThrown([&] { d.evalWindow(600, x, y); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("x.bin"), std::string::npos) << message;
}

// What checkpoints of earlier versions have: its formula stays.
TEST(TokenData, SampledFingerprintFollowsContentNotPath) {
  TempDir dir;
  writeFile(dir / "a.bin", tokens(5000));
  writeFile(dir / "b.bin", tokens(5000));
  writeFile(dir / "c.bin", tokens(5000, 1));
  auto print = [&](const char *name) { return TokenData(dir / name, "k", 60000, 8, 9).sampledFingerprint(); };
  EXPECT_EQ(print("a.bin"), print("b.bin"));
  EXPECT_NE(print("a.bin"), print("c.bin"));
  EXPECT_EQ(print("a.bin"), "611763eb05fca12998fdcce5d6e1dcba9b73deb561f5c71ff46dc2433b1913a3");
}

}  // namespace
