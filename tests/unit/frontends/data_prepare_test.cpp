#include "frontends/data_prepare.h"

#include "frontends/megatron_writer.h"
#include "frontends/r_corpus.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
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

/// What an index of Megatron-LM's says.
struct MegatronsIndex {
  uint8_t type = 0;
  std::vector<int32_t> lengths;
  std::vector<int64_t> places, bounds;

  explicit MegatronsIndex(const std::string &text) {
    size_t at = 0;
    auto take = [&](void *to, size_t bytes) {
      ASSERT_LE(at + bytes, text.size());
      std::memcpy(to, text.data() + at, bytes);
      at += bytes;
    };
    std::string magic(9, 'x');
    uint64_t version = 0, counts[2] = {};
    take(magic.data(), magic.size());
    take(&version, sizeof version);
    take(&type, sizeof type);
    take(counts, sizeof counts);
    EXPECT_EQ(magic, std::string("MMIDIDX\0\0", 9));
    EXPECT_EQ(version, 1u);
    lengths.resize(counts[0]);
    places.resize(counts[0]);
    bounds.resize(counts[1]);
    take(lengths.data(), 4 * lengths.size());
    take(places.data(), 8 * places.size());
    take(bounds.data(), 8 * bounds.size());
    EXPECT_EQ(at, text.size());
  }
};
using Lengths = std::vector<int32_t>;
using Places = std::vector<int64_t>;

TEST_F(DataPrepare, MegatronsIndexHasTheDocuments) {
  auto index = [&](const std::string &name) { return MegatronsIndex(readInput(path("out/" + name), "index")); };
  PrepareOptions o = options({write("a.txt", "ab"), write("b.txt", "cdefgh")}, "byte");
  o.format = "megatron";
  o.valFraction = 0.25;
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(index("train.idx").type, 8);
  EXPECT_EQ(index("train.idx").lengths, (Lengths{2, 4}));
  EXPECT_EQ(index("train.idx").places, (Places{0, 4}));
  EXPECT_EQ(index("train.idx").bounds, (Places{0, 1, 2}));
  EXPECT_EQ(tokens("out/val.bin"), (Tokens{'g', 'h'}));
  EXPECT_EQ(index("val.idx").lengths, (Lengths{2}));
  // A document ends with the token that separates it from the next one.
  o = options({write("c.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\"}\n{\"text\": \"y\"}\n"), write("d.txt", "z")},
              "bpe:300");
  o.format = "megatron";
  o.valFraction = 0;
  prepareData(o);
  const uint16_t x = 'x' - '!', y = 'y' - '!', z = 'z' - '!', eot = 256;
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{x, eot, y, eot, z}));
  EXPECT_EQ(index("train.idx").lengths, (Lengths{2, 2, 1}));
  EXPECT_EQ(index("train.idx").places, (Places{0, 4, 8}));
  EXPECT_EQ(index("train.idx").bounds, (Places{0, 1, 2, 3}));
  EXPECT_FALSE(fs::exists(path("out/val.bin")));
  EXPECT_FALSE(fs::exists(path("out/val.idx"))) << "of the files before";
  // Beside another format it would make other tokens of the same bytes.
  o.format = "nanogpt";
  prepareData(o);
  EXPECT_FALSE(fs::exists(path("out/train.idx")));
  write("out/train.idx", "somebody's notes");
  prepareData(o);
  EXPECT_TRUE(fs::exists(path("out/train.idx")));
  o.format = "megatrons";
  EXPECT_EQ(codeOf([&] { prepareData(o); }), int(ErrorCode::Usage));
}

TEST_F(DataPrepare, DocumentsOfMegatronsMayHaveSeveralSequences) {
  MegatronIndexWriter writer(path("x.idx"), 4, 3);
  for (int64_t at : {0, 7, 7, 10})
    writer.beginDocument(at);
  writer.finish(14);
  writer.commit();
  const MegatronsIndex index(readInput(path("x.idx"), "index"));
  EXPECT_EQ(index.type, 4);
  EXPECT_EQ(index.lengths, (Lengths{3, 3, 1, 0, 3, 3, 1}));
  EXPECT_EQ(index.places, (Places{0, 12, 24, 28, 28, 40, 52}));
  EXPECT_EQ(index.bounds, (Places{0, 3, 4, 5, 7}));
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

TEST_F(DataPrepare, AVocabularyBeyond16BitsTakes32) {
  // 70000 different characters.
  std::string text;
  for (uint32_t c = 0x10000; c < 0x10000 + 70000; ++c)
    appendUtf8(text, c);
  PrepareOptions o = options({write("a.txt", text)}, "char");
  o.valFraction = 0;
  const PrepareResult r = prepareData(o);
  EXPECT_TRUE(r.wide);
  const std::string bytes = readInput(path("out/train.bin"), "token file");
  int32_t header[256], last;
  ASSERT_EQ(bytes.size(), sizeof header + 70000 * 4);
  std::memcpy(header, bytes.data(), sizeof header);
  std::memcpy(&last, bytes.data() + bytes.size() - 4, 4);
  EXPECT_EQ(header[0], 20240801);
  EXPECT_EQ(header[1], 7);
  EXPECT_EQ(header[2], 70000);
  EXPECT_EQ(header[3], 0);
  EXPECT_EQ(last, 69999);
}

std::string gzipped(const std::string &text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef *>(const_cast<char *>(text.data()));
  z.avail_in = uInt(text.size());
  z.next_out = reinterpret_cast<Bytef *>(out.data());
  z.avail_out = uInt(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string &text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// Text with words, numbers, runs of space and characters of several bytes.
std::string manyWords(size_t bytes) {
  std::mt19937 random(7);
  const char *words[] = {"the",   " quick", "  brown", "\n", "\n\n", " don't", "123",
                         " 4567", "né中文", "!?",      " ",  "\t",   "x"};
  std::string text;
  while (text.size() < bytes)
    text += words[random() % std::size(words)];
  return text;
}

TEST_F(DataPrepare, CompressedTextGivesTheSameTokens) {
  const std::string text = manyWords(3 << 20);  // several blocks
  auto prepared = [&](const std::string &file, const std::string &content) {
    prepareData(options({write(file, content)}, "bpe:400"));
    return readInput(path("out/train.bin"), "token file") + readInput(path("out/val.bin"), "token file");
  };
  const std::string plain = prepared("a.txt", text);
  EXPECT_EQ(prepared("a.txt.gz", gzipped(text)), plain);
  EXPECT_EQ(prepared("b.txt.gz", gzipped(text.substr(0, 1000)) + gzipped(text.substr(1000))), plain) << "two members";
  EXPECT_EQ(prepared("a.zst", zstd(text)), plain);
  EXPECT_EQ(prepared("b.zst", zstd(text.substr(0, 1000)) + zstd(text.substr(1000))), plain) << "two frames";
}

TEST_F(DataPrepare, TokensDoNotDependOnThreadsOrBlocks) {
  const std::string text = manyWords(5 << 20), more = manyWords(1000);
  for (const char *tokenizer : {"byte", "char", "bpe:500"}) {
    PrepareOptions o = options({write("a.txt", text), write("b.txt", more)}, tokenizer);
    o.threads = 1;
    prepareData(o);
    const std::string train = readInput(path("out/train.bin"), "t"), val = readInput(path("out/val.bin"), "t");
    const Tokenizer t = Tokenizer::load(path("out/tokenizer.json"));
    o.threads = 5;
    prepareData(o);
    EXPECT_EQ(readInput(path("out/train.bin"), "t"), train) << tokenizer;
    EXPECT_EQ(readInput(path("out/val.bin"), "t"), val) << tokenizer;
    // All at once.
    const bool bytes = o.tokenizer == "byte";
    const int64_t characters =
        bytes ? int64_t(text.size() + more.size()) : countCodePoints(text) + countCodePoints(more);
    const int64_t left = int64_t(double(characters) * (1 - o.valFraction));
    const size_t cut = bytes ? size_t(left) : bytesOfCodePoints(text, left);
    std::vector<int32_t> ids;
    t.encode(std::string_view(text).substr(0, cut), ids);
    EXPECT_EQ(tokens("out/train.bin"), Tokens(ids.begin(), ids.end())) << tokenizer;
    ids.clear();
    t.encode(std::string_view(text).substr(cut), ids);
    if (t.endOfText() >= 0)
      ids.push_back(t.endOfText());
    t.encode(more, ids);
    EXPECT_EQ(tokens("out/val.bin"), Tokens(ids.begin(), ids.end())) << tokenizer;
  }
}

TEST_F(DataPrepare, JsonLinesAreDocuments) {
  const std::string lines = "{\"id\": 1, \"text\": \"x\"}\n\n{\"meta\": {\"text\": \"no\"}, \"text\": \"y\\u0078\"}\n"
                            "{\"text\": \"\"}";
  PrepareOptions o = options({write("a.jsonl", lines)}, "bpe:300");
  o.valFraction = 0;
  const uint16_t x = 'x' - '!', y = 'y' - '!', eot = 256;
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{x, eot, y, x}));
  o.files = {write("a.txt", lines)};
  o.key = "text";
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{x, eot, y, x}));
  o.files = {write("a.jsonl.gz", gzipped(lines))};
  o.key = "";
  prepareData(o);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{x, eot, y, x}));
}

TEST_F(DataPrepare, DamagedTextIsNamedWithItsLine) {
  auto messageOf = [&](const std::string &name, const std::string &content) {
    PrepareOptions o = options({write(name, content)}, "byte");
    try {
      prepareData(o);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid);
      return e.diagnostics[0].message;
    }
    return std::string("none");
  };
  const std::string good = "{\"text\": \"a\"}\n", name = path("a.jsonl");
  EXPECT_NE(messageOf("a.jsonl", good + "{\"text\": \"a}\n").find(name + ":2: no JSON"), std::string::npos);
  EXPECT_NE(messageOf("a.jsonl", good + good + "[]\n").find(name + ":3: no JSON object"), std::string::npos);
  EXPECT_NE(messageOf("a.jsonl", good + "{\"txt\": \"a\"}").find(name + ":2: no \"text\""), std::string::npos);
  EXPECT_NE(messageOf("a.jsonl", "{\"text\": 3}").find(name + ":1: its \"text\" is no text"), std::string::npos);
  const std::string gz = gzipped("one\ntwo\nthree"), zst = zstd("one\ntwo\nthree");
  EXPECT_NE(messageOf("a.gz", gz.substr(0, gz.size() - 3)).find(path("a.gz") + ":3: its gzip data are cut off"),
            std::string::npos);
  std::string wrong = gz;
  wrong[wrong.size() - 6] ^= 1;  // of the checksum
  EXPECT_NE(messageOf("a.gz", wrong).find("its gzip data are damaged"), std::string::npos);
  EXPECT_NE(messageOf("a.gz", gz + "rest").find("its gzip data are damaged"), std::string::npos);
  EXPECT_NE(messageOf("a.zst", zst.substr(0, zst.size() - 3)).find("Zstandard data are cut off"), std::string::npos);
  EXPECT_NE(messageOf("a.zst", zst + "rest").find("Zstandard data are damaged"), std::string::npos);
}

TEST_F(DataPrepare, ControlTokensOfATextAreTextUnlessAskedFor) {
  prepareData(options({write("a.txt", "hello hello hello")}, "bpe:260"));
  fs::rename(path("out"), path("first"));
  PrepareOptions o = options({write("b.txt", "x<|endoftext|>y")}, path("first/tokenizer.json"));
  o.valFraction = 0;
  PrepareResult r = prepareData(o);
  EXPECT_EQ(r.controlTokens, 1);
  EXPECT_EQ(tokens("out/train.bin").size(), 15u);
  o.parseSpecial = true;
  r = prepareData(o);
  EXPECT_EQ(r.controlTokens, 1);
  EXPECT_EQ(tokens("out/train.bin"), (Tokens{'x' - '!', 259, 'y' - '!'}));
}

TEST_F(DataPrepare, SpecialTokensGoAroundDocumentsNotBlocks) {
  const std::string file = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/llama.json";
  const Tokenizer t = Tokenizer::load(file);
  ASSERT_EQ(t.cut(), CutPoint::beforeSpace);
  std::string text;
  while (text.size() < 3 << 20)
    text += "the boats of the women ";
  PrepareOptions o =
      options({write("a.txt", text), write("b.jsonl", "{\"text\": \"wall\"}\n{\"text\": \"river\"}\n")}, file);
  o.valFraction = 0;
  o.addSpecial = true;
  prepareData(o);
  std::vector<int32_t> ids;
  const EncodeOptions around{.addSpecial = true};
  t.encode(text, ids, around);
  for (const char *more : {"wall", "river"}) {
    ids.push_back(t.endOfText());
    t.encode(more, ids, around);
  }
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 3) << "one <s> a document";
  EXPECT_TRUE(tokens("out/train.bin") == Tokens(ids.begin(), ids.end()));
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
