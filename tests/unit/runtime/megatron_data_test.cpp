// Megatron-LM's data sets, made by hand and by megatron-core, and streams that are cut into files.
#include "runtime/data/data.h"
#include "runtime/data/data_print.h"
#include "support/diagnostics.h"
#include "temp_dir.h"
#include "tests/support/oracles.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

template <typename T> std::string bytesOf(const std::vector<T> &values) {
  return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
}
template <typename T> std::string bytesOf(T value) { return bytesOf(std::vector<T>{value}); }

/// What an index says; each test changes what it is about.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> places, bounds;
  std::string more = "";  // behind all else

  Index(uint8_t code, int64_t width, const std::vector<int32_t> &lengths) : code(code), lengths(lengths), bounds{0} {
    int64_t at = 0;
    for (int32_t n : lengths) {
      places.push_back(at);
      at += n * width;
      bounds.push_back(int64_t(places.size()));
    }
  }
  std::string str() const {
    return magic + bytesOf(version) + bytesOf(code) + bytesOf(uint64_t(lengths.size())) +
           bytesOf(uint64_t(bounds.size())) + bytesOf(lengths) + bytesOf(places) + bytesOf(bounds) + more;
  }
};

/// All that training and evaluation see of a set: the tokens of some windows.
std::vector<int32_t> seen(const TokenData &d, int64_t T, int64_t windows) {
  std::vector<int32_t> all, x(T), y(T);
  auto add = [&] {
    all.insert(all.end(), x.begin(), x.end());
    all.insert(all.end(), y.begin(), y.end());
  };
  for (int64_t g = 0; g < windows; ++g) {
    d.window(11, g, x.data(), y.data());
    add();
  }
  for (int64_t i = 0; i < d.evalWindows(); ++i) {
    all.push_back(int32_t(d.evalWindow(i, x.data(), y.data())));
    add();
  }
  return all;
}

constexpr int kT = 8;

template <typename T> std::string counted(int n) {
  std::vector<T> tokens(n);
  for (int i = 0; i < n; ++i)
    tokens[i] = T(i);
  return bytesOf(tokens);
}

struct MegatronData : ::testing::Test {
  TempDir dir;
  int64_t vocab = 1000;
  void SetUp() override { writeFile(dir / "plain.bin", counted<uint16_t>(60)); }
  TokenData open(const std::string &pattern) const { return {dir / pattern, "data.train", vocab, kT, kT + 1}; }
  std::vector<int32_t> seenOf(const std::string &pattern) const { return seen(open(pattern), kT, 30); }
  void write(const std::string &name, const std::string &tokens, const Index &index) const {
    writeFile(dir / (name + ".bin"), tokens);
    writeFile(dir / (name + ".idx"), index.str());
  }
  /// The message with which m.bin, of 60 tokens, and this index are refused; "" if they are not.
  std::string refused(const Index &index) const {
    write("m", counted<uint16_t>(60), index);
    std::string message;
    const int code = codeThrown([&] { open("m"); }, &message);
    EXPECT_TRUE(code == 0 || code == int(ErrorCode::DataInvalid)) << code;
    EXPECT_TRUE(code == 0 || message.find("m.idx: ") != std::string::npos) << message;
    return code ? message : "";
  }
};

const std::vector<int32_t> kLengths = {20, 0, 1, 30, 9};

TEST_F(MegatronData, OfEveryTypeIsTheSameTokens) {
  const std::vector<int32_t> plain = seenOf("plain.bin");
  write("u8", counted<uint8_t>(60), Index(1, 1, kLengths));
  write("i8", counted<int8_t>(60), Index(2, 1, kLengths));
  write("i16", counted<int16_t>(60), Index(3, 2, kLengths));
  write("i32", counted<int32_t>(60), Index(4, 4, kLengths));
  write("i64", counted<int64_t>(60), Index(5, 8, kLengths));
  write("u16", counted<uint16_t>(60), Index(8, 2, kLengths));
  for (const std::string name : {"u8", "i8", "i16", "i32", "i64", "u16"}) {
    EXPECT_EQ(seenOf(name), plain) << name;
    EXPECT_EQ(seenOf(name + ".bin"), plain) << name;
    EXPECT_EQ(seenOf(name + ".idx"), plain) << name;
    open(name).requireNarrowTokens();
    open(name).checkTokens();
    EXPECT_EQ(open(name).paths(), std::vector<std::string>{dir / (name + ".bin")});
    EXPECT_EQ(open(name).names(), std::vector<std::string>{name + ".bin"});
  }
  EXPECT_EQ(open("u*").paths(), (std::vector<std::string>{dir / "u16.bin", dir / "u8.bin"})) << "an index is its .bin";
  EXPECT_EQ(open("u*").tokens(), 120);
}

TEST_F(MegatronData, OfFloatsOrOfOtherKindsIsRefused) {
  Index good(8, 2, kLengths);
  EXPECT_EQ(refused(good), "");
  for (uint8_t code : {6, 7}) {
    Index floats = good;
    floats.code = code;
    EXPECT_NE(refused(floats).find("tokens are whole numbers"), std::string::npos);
  }
  Index other = good;
  other.magic = std::string("TNTIDX\0\0\0", 9);
  EXPECT_NE(refused(other).find("begins with MMIDIDX"), std::string::npos);
  Index modes = good;
  modes.more = std::string(kLengths.size(), '\0');
  EXPECT_NE(refused(modes).find("multimodal"), std::string::npos);
  EXPECT_NE(refused(Index(8, 2, {})), "");
  writeFile(dir / "m.idx", "");
  EXPECT_EQ(codeThrown([&] { open("m.bin"); }), int(ErrorCode::DataInvalid));
  fs::remove(dir / "m.bin");
  writeFile(dir / "m.idx", good.str());
  EXPECT_EQ(codeThrown([&] { open("m"); }), int(ErrorCode::FileMissing));
  std::string message;
  EXPECT_EQ(codeThrown([&] { open("m.idx"); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("an index of Megatron-LM's"), std::string::npos) << message;
}

TEST_F(MegatronData, SaysWhereSequencesAreWrong) {
  Index i(8, 2, kLengths);
  i.lengths[3] = -30;
  EXPECT_NE(refused(i).find("sequence 3 has -30 tokens"), std::string::npos);
  i = Index(8, 2, kLengths);
  i.places[3] = 40;  // where sequence 2 lies
  EXPECT_NE(refused(i).find("sequence 3 begins at byte 40 of "), std::string::npos);
  i.places[3] = -2;
  EXPECT_NE(refused(i).find("sequence 3 begins at byte -2 of "), std::string::npos);
  i = Index(8, 2, kLengths);
  i.lengths[1] = 2;  // overlaps the next one
  EXPECT_NE(refused(i).find("sequence 2 begins at byte 40 of "), std::string::npos);
  EXPECT_NE(refused(Index(8, 2, {20, 40, 1})).find("sequence 2 has 1 tokens of 16 bits at byte 120"),
            std::string::npos);
  EXPECT_NE(refused(Index(8, 2, {20, 39})).find("end at byte 118"), std::string::npos);
  EXPECT_NE(refused(Index(8, 2, {20, 2'000'000'000})).find("sequence 1 has 2000000000 tokens"), std::string::npos);
  i = Index(8, 2, kLengths);
  i.bounds = {0, 3, 2, 5};
  EXPECT_NE(refused(i).find("bound 2 of its documents is sequence 2"), std::string::npos);
  i.bounds = {1, 5};
  EXPECT_NE(refused(i).find("bound 0 of its documents"), std::string::npos);
  i.bounds = {0, 4};
  EXPECT_NE(refused(i).find("documents end at sequence 4 of 5"), std::string::npos);
  i.bounds = {0, 6};
  EXPECT_NE(refused(i).find("bound 1 of its documents is sequence 6 of 5"), std::string::npos);
  i.bounds = {0, 0, 5};  // an empty document
  EXPECT_EQ(refused(i), "");
}

TEST_F(MegatronData, CutAnywhereOrWithAnyByteChangedIsRefusedOrTheSame) {
  const Index good(8, 2, kLengths);
  write("m", counted<uint16_t>(60), good);
  const std::vector<int32_t> plain = seenOf("m");
  const std::string index = good.str(), tokens = counted<uint16_t>(60);
  int harmless = 0, bad = 0;
  for (size_t at = 0; at < index.size(); ++at)
    for (int value = 0; value < 256; ++value) {
      std::string changed = index;
      changed[at] = char(value);
      if (changed == index)
        continue;
      writeFile(dir / "m.idx", changed);
      std::string message;
      std::vector<int32_t> now;
      const int code = codeThrown([&] { now = seenOf("m"); }, &message);
      if (code == 0) {
        ++harmless;
        EXPECT_EQ(now, plain) << "byte " << at << ", " << value;
        EXPECT_TRUE(at == 17 || at >= 34 + 12 * kLengths.size()) << "only the type int16 and documents may differ";
      } else {
        ++bad;
        EXPECT_EQ(code, int(ErrorCode::DataInvalid)) << message;
      }
    }
  EXPECT_GT(harmless, 0);
  EXPECT_GT(bad, 20000);
  for (size_t size = 0; size < index.size(); ++size) {
    writeFile(dir / "m.idx", index.substr(0, size));
    EXPECT_EQ(codeThrown([&] { open("m"); }), int(ErrorCode::DataInvalid)) << size;
  }
  writeFile(dir / "m.idx", index + "x");
  EXPECT_EQ(codeThrown([&] { open("m"); }), int(ErrorCode::DataInvalid));
  writeFile(dir / "m.idx", index);
  for (size_t size = 0; size < tokens.size(); ++size) {
    writeFile(dir / "m.bin", tokens.substr(0, size));
    EXPECT_EQ(codeThrown([&] { open("m"); }), int(ErrorCode::DataInvalid)) << size;
  }
  writeFile(dir / "m.bin", tokens + "xx");
  EXPECT_EQ(codeThrown([&] { open("m"); }), int(ErrorCode::DataInvalid));
}

TEST_F(MegatronData, TokensThatNoVocabularyHasAreNamedWithTheirPlace) {
  std::vector<int64_t> tokens(60, 5);
  const std::pair<int64_t, const char *> bad[] = {{-1, "token -1 at position 59 is negative"},
                                                  {1000, "token 1000 at position 59 is beyond"},
                                                  {int64_t(1) << 32, "token 4294967296 at position 59 is beyond"},
                                                  {INT64_MAX, "token 9223372036854775807 at position 59 is beyond"},
                                                  {INT64_MIN, "token -9223372036854775808 at position 59 is negative"}};
  for (const auto &[token, said] : bad) {
    tokens[59] = token;
    write("m", bytesOf(tokens), Index(5, 8, kLengths));
    const TokenData d = open("m");
    std::string message;
    EXPECT_EQ(codeThrown([&] { seen(d, kT, 0); }, &message), int(ErrorCode::TokenOutOfRange));
    EXPECT_NE(message.find(said), std::string::npos) << message;
    EXPECT_EQ(codeThrown([&] { DataHasher(d, "", "").print(); }, &message), int(ErrorCode::TokenOutOfRange));
    EXPECT_NE(message.find(said), std::string::npos) << message;
  }
}

// The same bytes are other tokens with another index, or without one, and those of the one are not those of the other.
// The indices are links to older files: their times do not tell.
TEST_F(MegatronData, WhatTheCacheKnowsIsOfOneReading) {
  const std::string cache = dir / "cache";
  writeFile(dir / "32.idx", Index(4, 4, {30}).str());
  writeFile(dir / "signed.idx", Index(3, 2, {60}).str());
  writeFile(dir / "unsigned.idx", Index(8, 2, {60}).str());
  auto indexIs = [&](const std::string &name) {
    fs::remove(dir / "n.idx");
    if (!name.empty())
      fs::create_symlink(dir / name, dir / "n.idx");
  };
  auto unknown = [&] {
    const TokenData d = open("n.bin");
    return DataHasher(d, "", cache).bytesToHash();
  };
  auto learn = [&] {  // what has just been written is not kept
    for (int tries = 0; tries < 500 && unknown(); ++tries) {
      const TokenData d = open("n.bin");
      DataHasher(d, "", cache).print();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(unknown(), 0);
  };
  std::string message;
  auto code = [&] {
    const TokenData d = open("n.bin");
    return codeThrown([&] { DataHasher(d, "", cache).print(); }, &message);
  };
  writeFile(dir / "n.bin", bytesOf(std::vector<uint16_t>(60, 1)));
  learn();
  indexIs("32.idx");
  EXPECT_EQ(unknown(), 120);
  EXPECT_EQ(code(), int(ErrorCode::TokenOutOfRange));
  EXPECT_EQ(message, (dir / "n.bin") + ": token 65537 at position 0 is beyond the vocabulary of 1000");
  vocab = 100'000;
  learn();
  vocab = 1000;
  indexIs("");
  EXPECT_EQ(unknown(), 120);
  EXPECT_EQ(code(), 0) << message;

  vocab = 100'000;
  writeFile(dir / "n.bin", bytesOf(std::vector<int16_t>(60, -1)));
  indexIs("unsigned.idx");
  learn();
  indexIs("signed.idx");
  EXPECT_EQ(unknown(), 120);
  EXPECT_EQ(code(), int(ErrorCode::TokenOutOfRange));
  EXPECT_EQ(message, (dir / "n.bin") + ": token -1 at position 0 is negative");
}

TEST_F(MegatronData, TheIndexTellsHowManyDocuments) {
  auto documents = [&](const std::string &name) {
    const InputFile file(dir / name, "data.train");
    return formatOf(file, dir / name, "data.train").documents;
  };
  EXPECT_FALSE(documents("plain.bin"));
  Index i(8, 2, kLengths);
  write("m", counted<uint16_t>(60), i);
  EXPECT_EQ(documents("m.bin"), 5);
  i.bounds = {0, 3, 5};
  write("m", counted<uint16_t>(60), i);
  EXPECT_EQ(documents("m.bin"), 2);
}

// ---- streams of many files -----------------------------------------------------------------------------------------

std::string llmc(const std::string &body, bool wide) {
  std::vector<int32_t> header(256, 0);
  header[0] = wide ? 20240801 : 20240520;
  header[1] = wide ? 7 : 1;
  header[2] = int32_t(body.size() / (wide ? 4 : 2));
  return bytesOf(header) + body;
}

TEST(TokenStream, WhereItIsCutIntoFilesChangesNothing) {
  constexpr int n = 333;
  std::mt19937 random(5);
  std::vector<uint32_t> stream(n);
  for (uint32_t &t : stream)
    t = random() % 500;
  TempDir whole;
  writeFile(whole / "all.bin", llmc(bytesOf(stream), true));
  for (const int64_t mask : {-1, 500}) {
    auto all = [&](const std::string &pattern) {
      const TokenData d(pattern, "data.train", 501, kT, kT + 1, mask);
      EXPECT_EQ(d.tokens(), n);
      return seen(d, kT, 100);
    };
    const std::vector<int32_t> expected = all(whole / "all.bin");
    for (int round = 0; round < 60; ++round) {
      TempDir dir;
      size_t at = 0;
      for (int file = 0; at < n; ++file) {
        const size_t count = std::min<size_t>(n - at, random() % (round % 2 ? 12 : 200));  // also none, also one
        const std::vector<uint32_t> wide(stream.begin() + at, stream.begin() + at + count);
        const std::vector<uint16_t> narrow(wide.begin(), wide.end());
        const std::string name = fmt::format("train_{:06}", file);
        const unsigned kind = random() % 4;
        if (kind == 0)
          writeFile(dir / (name + ".bin"), llmc(bytesOf(wide), true));
        else if (kind == 1 || count == 0)
          writeFile(dir / (name + ".bin"), llmc(bytesOf(narrow), false));
        else
          writeFile(dir / (name + ".bin"), bytesOf(narrow));
        if (kind == 3 && count)
          writeFile(dir / (name + ".idx"), Index(8, 2, {int32_t(count)}).str());
        at += count;
      }
      ASSERT_EQ(all(dir / "train_*.bin"), expected) << round;
      ASSERT_EQ(all(dir / "train_*"), expected) << round;
      ASSERT_EQ(all(dir.path), expected) << round;
      ASSERT_EQ(all(dir.path + "/"), expected) << round;
    }
  }
}

TEST(TokenStream, NeedsEnoughTokensInAllFilesTogether) {
  TempDir dir;
  writeFile(dir / "a.bin", counted<uint16_t>(4));
  writeFile(dir / "b.bin", counted<uint16_t>(4));
  std::string message;
  auto open = [&] { TokenData(dir.path, "data.train", 100, kT, kT + 1); };
  EXPECT_EQ(codeThrown(open, &message), int(ErrorCode::DataInvalid));
  EXPECT_EQ(message, dir.path + ": 8 tokens, and 9 are needed (block_size + 1)");
  writeFile(dir / "b.bin", counted<uint16_t>(5));
  EXPECT_EQ(codeThrown(open), 0);
  writeFile(dir / "c.bin", "");
  EXPECT_EQ(codeThrown(open, &message), int(ErrorCode::DataInvalid));
  EXPECT_EQ(message, (dir / "c.bin") + ": the file is empty");
}

TEST(TokenStream, AFolderIsItsTokenFilesByName) {
  TempDir dir;
  fs::create_directories(dir / "data/more");
  writeFile(dir / "data/more/z.bin", counted<uint16_t>(9));
  writeFile(dir / "data/.hidden.bin", counted<uint16_t>(9));
  writeFile(dir / "data/notes.txt", "not tokens");
  std::string message;
  EXPECT_EQ(codeThrown([&] { filesOf(dir / "data", "data.train"); }, &message), int(ErrorCode::FileMissing));
  EXPECT_EQ(message, "data.train: no file *.bin in the folder " + (dir / "data"));
  for (const char *name : {"fineweb_train_000010.bin", "fineweb_train_000002.bin", "fineweb_train_000001.bin"})
    writeFile(dir / ("data/" + std::string(name)), counted<uint16_t>(9));
  const TokenData d(dir / "data", "data.train", 100, kT, kT + 1);
  EXPECT_EQ(d.names(), (std::vector<std::string>{"fineweb_train_000001.bin", "fineweb_train_000002.bin",
                                                 "fineweb_train_000010.bin"}));
  EXPECT_EQ(d.paths()[2], dir / "data/fineweb_train_000010.bin");
  // Nobody trains on validation data unknowingly.
  writeFile(dir / "data/fineweb_val_000000.bin", counted<uint16_t>(9));
  EXPECT_EQ(codeThrown([&] { filesOf(dir / "data", "data.train"); }, &message), int(ErrorCode::DataInvalid));
  EXPECT_NE(message.find("fineweb_val_000000.bin beside fineweb_train_000001.bin"), std::string::npos) << message;
  EXPECT_EQ(filesOf(dir / "data/*train*.bin", "data.train").size(), 3u);
  fs::remove(dir / "data/fineweb_val_000000.bin");
  for (const char *name : {"val", "a.valid", "Validation", "test_7", "eval", "x-eval-0", "evaluation", "DEV", "my_dev",
                           "heldout", "held_out", "Held-Out_1", "holdout", "hold.out"}) {
    const std::string file = std::string(name) + ".bin";
    writeFile(dir / ("data/" + file), counted<uint16_t>(9));
    EXPECT_EQ(codeThrown([&] { filesOf(dir / "data", "data.train"); }, &message), int(ErrorCode::DataInvalid)) << file;
    EXPECT_NE(message.find(" has " + file + " beside fineweb_train_000001.bin"), std::string::npos) << message;
    fs::remove(dir / ("data/" + file));
  }
  for (const char *name : {"evaluate", "devices", "value", "latest", "held", "out", "uphold_out"}) {
    const std::string file = dir / ("data/" + std::string(name) + ".bin");
    writeFile(file, counted<uint16_t>(9));
    EXPECT_EQ(codeThrown([&] { filesOf(dir / "data", "data.train"); }, &message), 0) << message;
    fs::remove(file);
  }
  fs::create_directories(dir / "val");
  writeFile(dir / "val/val_0.bin", counted<uint16_t>(9));
  writeFile(dir / "val/val_1.bin", counted<uint16_t>(9));
  EXPECT_EQ(filesOf(dir / "val", "data.val").size(), 2u);
}

// ---- megatron-core -------------------------------------------------------------------------------------------------

TEST(MegatronCore, FindsTheSameTokens) {
  TempDir dir;
  const test::Compared made = test::compareBy("tests/unit/runtime/megatron/write.py", "'" + dir.path + "'");
  if (made.isMissing())
    GTEST_SKIP() << made.said;
  ASSERT_EQ(made.code, 0) << made.said;
  for (const std::string name : {"uint8", "int8", "int16", "int32", "int64", "uint16", "merged"}) {
    const TokenData ours(dir / name, "data.train", 100'000, kT, kT + 1),
        theirs(dir / (name + ".tokens.bin"), "data.train", 100'000, kT, kT + 1);
    EXPECT_GT(ours.tokens(), 1000) << name;
    EXPECT_EQ(ours.tokens(), theirs.tokens()) << name;
    EXPECT_EQ(seen(ours, kT, 300), seen(theirs, kT, 300)) << name;
  }
}

}  // namespace
