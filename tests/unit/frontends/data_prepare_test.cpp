#include "frontends/data_prepare.h"

#include "frontends/r_corpus.h"
#include "frontends/tokenizer.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

class InFolder : public testing::Test {
protected:
  fs::path dir;
  void SetUp() override {
    dir = fs::path(testing::TempDir()) / ("gptc-frontends-" + std::to_string(::getpid()));
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override { fs::remove_all(dir); }
  std::string path(const std::string &name) const { return (dir / name).string(); }
  std::string write(const std::string &name, const std::string &text) const {
    std::ofstream(dir / name, std::ios::binary) << text;
    return path(name);
  }
  std::vector<uint16_t> tokens(const std::string &name, size_t skip = 0) const {
    std::string bytes = readInput(path(name), "token file").substr(skip);
    std::vector<uint16_t> out(bytes.size() / 2);
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  template <typename F> static int codeOf(F f) {
    try {
      f();
    } catch (const UserError &e) {
      return int(e.diagnostics[0].code);
    }
    return 0;
  }
};

class DataPrepare : public InFolder {
protected:
  PrepareOptions options(const std::vector<std::string> &files, const std::string &tokenizer) const {
    PrepareOptions o;
    o.files = files;
    o.tokenizer = tokenizer;
    o.outDir = path("out");
    return o;
  }
};
using Tokens = std::vector<uint16_t>;

TEST_F(DataPrepare, SplitsByCharacters) {
  PrepareResult r = prepareData(options({write("a.txt", "éabcdefghi")}, "char"));
  EXPECT_EQ(r.trainTokens, 9);
  EXPECT_EQ(r.valTokens, 1);
  EXPECT_EQ(r.vocab, 10);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{9, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(tokens("out/val.bin"), (Tokens{8}));
  EXPECT_EQ(Tokenizer::load(path("out/tokenizer.json")).vocabSize(), 10);
}

TEST_F(DataPrepare, TheSplitMayFallIntoAnyFile) {
  PrepareOptions o = options({write("a.txt", "abcd"), write("b.txt", "efgh")}, "byte");
  o.valFraction = 0.75;
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{'a', 'b'}));
  EXPECT_EQ(tokens("out/val.bin"), (Tokens{'c', 'd', 'e', 'f', 'g', 'h'}));
}

TEST_F(DataPrepare, EndOfTextStandsBetweenDocuments) {
  PrepareOptions o = options({write("a.txt", "x"), write("b.txt", "y")}, "bpe:300");
  o.valFiles = {write("v.txt", "xy")};
  PrepareResult r = prepareData(o);
  EXPECT_EQ(r.vocab, 257);  // too little text for a merge
  const uint16_t x = 'x' - '!', y = 'y' - '!', eot = 256;
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{x, eot, y}));
  EXPECT_EQ(tokens("out/val.bin"), (Tokens{x, y}));
}

TEST_F(DataPrepare, WritesLlmcHeader) {
  PrepareOptions o = options({write("a.txt", "hello")}, "byte");
  o.format = "llmc";
  o.valFraction = 0;
  prepareData(o);
  std::string bytes = readInput(path("out/train.bin"), "token file");
  int32_t header[256];
  ASSERT_EQ(bytes.size(), sizeof header + 10);
  std::memcpy(header, bytes.data(), sizeof header);
  EXPECT_EQ(header[0], 20240520);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], 5);
  EXPECT_EQ(tokens("out/train.bin", sizeof header), (Tokens{'h', 'e', 'l', 'l', 'o'}));
  EXPECT_FALSE(fs::exists(path("out/val.bin")));
}

TEST_F(DataPrepare, RemovesTheValidationSplitOfAnEarlierTokenizer) {
  PrepareOptions o = options({write("a.txt", "hello world")}, "char");
  prepareData(o);
  EXPECT_TRUE(fs::exists(path("out/val.bin")));
  o.valFraction = 0;
  prepareData(o);
  EXPECT_FALSE(fs::exists(path("out/val.bin")));
}

TEST_F(DataPrepare, ATokenizerCanBeUsedAgain) {
  prepareData(options({write("a.txt", "hello hello hello")}, "bpe:260"));
  Tokens first = tokens("out/train.bin");
  fs::rename(path("out"), path("first"));
  PrepareOptions o = options({path("a.txt")}, path("first/tokenizer.json"));
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), first);
}

TEST_F(DataPrepare, NothingIsReplacedWhenTheTextIsWrong) {
  prepareData(options({write("a.txt", "abcabcabc")}, "char"));
  Tokens before = tokens("out/train.bin");
  PrepareOptions o = options({path("a.txt")}, path("out/tokenizer.json"));
  o.valFiles = {write("v.txt", "xyz")};
  EXPECT_EQ(codeOf([&] { prepareData(o); }), 302);
  EXPECT_EQ(tokens("out/train.bin"), before);
}

TEST_F(DataPrepare, TooManyCharactersForSixteenBits) {
  // 70000 different characters.
  std::string text;
  for (uint32_t c = 0x10000; c < 0x10000 + 70000; ++c) {
    text += char(0xf0 | c >> 18);
    for (int shift : {12, 6, 0})
      text += char(0x80 | (c >> shift & 0x3f));
  }
  EXPECT_EQ(codeOf([&] { prepareData(options({write("a.txt", text)}, "char")); }), 404);
}

// ---- R's files ------------------------------------------------------------------------------------------------------

void integer(std::string &s, uint32_t v) {
  for (int shift : {24, 16, 8, 0})
    s += char(v >> shift);
}

std::string record(const std::string &content, uint32_t claimed = 0) {
  uLongf n = compressBound(content.size());
  std::string z(n, '\0');
  compress(reinterpret_cast<Bytef *>(z.data()), &n, reinterpret_cast<const Bytef *>(content.data()), content.size());
  std::string out;
  integer(out, claimed ? claimed : uint32_t(content.size()));
  return out + z.substr(0, n);
}

std::string characterVector(const std::vector<std::string> &lines, uint32_t flags = 0x40009) {
  std::string s = "X\n";
  for (uint32_t v : {3u, 0x40201u, 0x30500u, 5u})
    integer(s, v);
  s += "UTF-8";
  integer(s, 16);
  integer(s, lines.size());
  for (const std::string &l : lines) {
    integer(s, flags);
    integer(s, l.size());
    s += l;
  }
  return s;
}

using RCorpus = InFolder;

TEST_F(RCorpus, WritesEveryTextUnderItsTitle) {
  std::string other = "X\n";
  for (uint32_t v : {2u, 0u, 0u, 254u})
    integer(other, v);  // NULL: no text
  const std::string file = write("Rdata.rdb", record(characterVector({"", "PRIDE & PREJUDICE", "one"})) +
                                                  record(other) + record(characterVector({"Emma", "caf\xe9"}, 0x4009)));
  auto written = extractRTexts(file, path("out"));
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0].first, path("out/pride-prejudice.txt"));
  EXPECT_EQ(readInput(written[0].first, "text"), "\nPRIDE & PREJUDICE\none\n");
  EXPECT_EQ(readInput(path("out/emma.txt"), "text"), "Emma\ncafé\n");
}

TEST_F(RCorpus, RefusesDamage) {
  const std::string whole = record(characterVector({"Emma", "text text text"}));
  for (const std::string &bad : {whole.substr(0, 3), whole.substr(0, whole.size() - 5), record("X\n"), record("A\n123"),
                                 record(characterVector({"x"}), 3), record(characterVector({"x"}), 0xffffffff),
                                 record(characterVector({"x"}).substr(0, 30)), whole + "garbage"})
    EXPECT_EQ(codeOf([&] { extractRTexts(write("bad.rdb", bad), path("out")); }), 302) << bad.size();
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
