// GGUF files with other formats: which tensors are rounded, to what, with what error, and what is refused.
#include "runtime/checkpoint/gguf_rounding.h"

#include "support/gguf/gguf_file.h"
#include "temp_dir.h"

#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <random>
#include <sys/resource.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

using Tensors = std::vector<GgufWriter::Tensor>;

/// A part of a model: matrices that are rounded, of rows that make blocks of 256, of 32 and of neither, and tensors
/// that stay as they are.
const Tensors kModel = {{"token_embd.weight", GgmlType::f32, {24, 256}},
                        {"position_embd.weight", GgmlType::f32, {8, 256}},
                        {"blk.0.attn_norm.weight", GgmlType::f32, {256}},
                        {"blk.0.attn_q.weight", GgmlType::f32, {300, 256}},
                        {"blk.0.attn_q.bias", GgmlType::f32, {300}},
                        {"blk.0.ffn_down.weight", GgmlType::f32, {16, 96}},
                        {"blk.0.ffn_gate_inp.weight", GgmlType::f32, {2, 256}},
                        {"blk.0.ffn_up_exps.weight", GgmlType::f32, {2, 3, 256}},
                        {"blk.0.odd.weight", GgmlType::f32, {4, 10}},
                        {"table", GgmlType::f32, {2, 256}},
                        {"blk.0.ssm_conv1d.weight", GgmlType::f32, {4, 256}}};

int64_t elementsOf(const GgufWriter::Tensor &t) {
  int64_t n = 1;
  for (const int64_t extent : t.shape)
    n *= extent;
  return n;
}

std::vector<float> valuesOf(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> v;
  for (int64_t i = 0; i < n; ++i)
    v.push_back(float(int(random() >> 16) + int(random() >> 16) - 65535) * 0x1p-20f);
  return v;
}

struct GgufRounded : ::testing::Test {
  TempDir dir;
  const std::string in = dir / "in.gguf", out = dir / "out.gguf";
  const GgufKeys keys = {{"general.architecture", std::string("llama")},
                         {"general.file_type", uint32_t(0)},
                         {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "b"}}};

  /// Tensor t has the values of seed t, but for those given.
  void write(const Tensors &tensors, const std::map<size_t, std::vector<float>> &given = {}) {
    GgufWriter file(in, keys, tensors);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const auto at = given.find(t);
      const std::vector<float> v = at == given.end() ? valuesOf(elementsOf(tensors[t]), unsigned(t)) : at->second;
      std::string blocks(size_t(tensors[t].bytes()), 0);
      if (ggufFileType(tensors[t].type))  // else zeros will do
        quantize(tensors[t].type, v.data(), int64_t(v.size()), blocks.data());
      file.write(blocks.data(), blocks.size());
    }
    file.finish();
  }

  std::vector<WrittenTensor> round(const GgufRounding &how) { return requantizeGguf(in, out, how); }

  /// `CODE message` without the folder, and what is in the folder afterwards.
  std::string problem(const GgufRounding &how, const std::string &from = "", const std::string &to = "") {
    std::string message;
    const int code =
        codeThrown([&] { requantizeGguf(from.empty() ? in : from, to.empty() ? out : to, how); }, &message);
    for (size_t at; (at = message.find(dir.path + "/")) != std::string::npos;)
      message.erase(at, dir.path.size() + 1);
    return code ? fmt::format("{} {}", code, message) : "";
  }
  int64_t files() const { return std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()); }

  static std::string bytesOf(const GgufFile &f, const std::string &name) {
    const GgufTensor &t = *f.find(name);
    std::string bytes(size_t(t.bytes), 0);
    f.readBytes(t, 0, t.bytes, bytes.data());
    return bytes;
  }
};

TEST_F(GgufRounded, MatricesGetTheFormatAndTheRestStays) {
  write(kModel);
  using T = GgmlType;
  struct Case {
    T type, embedding, q, down, experts, odd;
    int64_t fileType;
  };
  for (const Case &c : {Case{T::q4_k, T::q8_0, T::q4_k, T::q8_0, T::q4_k, T::f16, 14},
                        {T::q4_0, T::q8_0, T::q4_0, T::q4_0, T::q4_0, T::f16, 2},
                        {T::q8_0, T::q8_0, T::q8_0, T::q8_0, T::q8_0, T::f16, 7},
                        {T::bf16, T::bf16, T::bf16, T::bf16, T::bf16, T::bf16, 32},
                        {T::f16, T::f16, T::f16, T::f16, T::f16, T::f16, 1},
                        {T::f32, T::f32, T::f32, T::f32, T::f32, T::f32, 0}}) {
    const std::map<std::string, T> formats = {{"token_embd.weight", c.embedding},
                                              {"blk.0.attn_q.weight", c.q},
                                              {"blk.0.ffn_down.weight", c.down},
                                              {"blk.0.ffn_up_exps.weight", c.experts},
                                              {"blk.0.odd.weight", c.odd}};
    const std::vector<WrittenTensor> written = round({.type = c.type});
    const GgufFile f(out);
    ASSERT_EQ(written.size(), kModel.size());
    ASSERT_EQ(f.tensors().size(), kModel.size());
    for (size_t t = 0; t < kModel.size(); ++t) {
      const std::string &name = kModel[t].name;
      const auto at = formats.find(name);
      const T want = at == formats.end() ? T::f32 : at->second;
      EXPECT_EQ(f.tensors()[t].name, name);
      EXPECT_EQ(f.tensors()[t].shape, kModel[t].shape);
      EXPECT_EQ(f.tensors()[t].format->type, want) << name;
      EXPECT_EQ(written[t].to, f.tensors()[t].format) << name;
      EXPECT_EQ(written[t].isRounded(), want != T::f32) << name;
      // The bytes are those of rounding all of it at once, and so is the error.
      const std::vector<float> v = valuesOf(elementsOf(kModel[t]), unsigned(t));
      std::string blocks(size_t(f.tensors()[t].bytes), 0);
      quantize(want, v.data(), int64_t(v.size()), blocks.data());
      EXPECT_EQ(bytesOf(f, name), blocks) << name;
      std::vector<float> again(v.size());
      dequantize(want, blocks.data(), int64_t(v.size()), again.data());
      double difference = 0, size = 0;
      for (size_t i = 0; i < v.size(); ++i) {
        const double off = double(again[i]) - v[i];
        difference += off * off;
        size += double(v[i]) * v[i];
      }
      EXPECT_NEAR(relativeError(written[t].difference, written[t].size), std::sqrt(difference / size), 1e-9) << name;
    }
    EXPECT_EQ(f.integer("general.file_type"), c.fileType);
    EXPECT_EQ(f.integer("general.quantization_version"),
              ggmlFormat(c.type).elements > 1 ? std::optional<int64_t>(2) : std::nullopt);
    EXPECT_EQ(f.texts("tokenizer.ggml.tokens"), (std::vector<std::string>{"a", "", "b"}));
    // Rows of 96 make no blocks of 256, those of 10 none at all.
    EXPECT_EQ(written[5].refused, c.type == T::q4_k ? &ggmlFormat(c.type) : nullptr);
    EXPECT_EQ(written[8].refused, ggmlFormat(c.type).elements > 1 ? &ggmlFormat(c.type) : nullptr);
    EXPECT_FALSE(written[3].refused);
    EXPECT_FALSE(written[0].refused) << "an embedding is Q8_0 whatever its rows are";
  }
}

TEST_F(GgufRounded, ThreadsChangeNoByte) {
  // More than a batch of pieces, and no whole number of pieces.
  const Tensors large = {{"blk.0.attn_q.weight", GgmlType::f32, {8320, 256}},
                         {"blk.1.attn_q.weight", GgmlType::f32, {131, 256}}};
  write(large);
  for (const GgmlType type : {GgmlType::q4_0, GgmlType::q8_0}) {
    const std::vector<WrittenTensor> one = round({.type = type});
    const std::string bytes = readFile(out);
    const std::vector<WrittenTensor> three = round({.type = type, .threads = 3});
    EXPECT_TRUE(readFile(out) == bytes);
    for (size_t t = 0; t < large.size(); ++t) {
      EXPECT_EQ(one[t].difference, three[t].difference);
      EXPECT_EQ(one[t].size, three[t].size);
      EXPECT_GT(one[t].difference, 0);
      const std::vector<float> v = valuesOf(elementsOf(large[t]), unsigned(t));
      std::string blocks(size_t(one[t].bytesAfter()), 0);
      quantize(type, v.data(), int64_t(v.size()), blocks.data());
      EXPECT_TRUE(bytesOf(GgufFile(out), large[t].name) == blocks) << large[t].name;
    }
  }
}

// Python's file has no matrix of a model, so all of it is copied: values of every type, and an alignment of 64.
TEST_F(GgufRounded, KeysAreCopiedByteForByte) {
  const std::string all = GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/all-types.gguf";
  requantizeGguf(all, out, {GgmlType::q4_k}, {{"a.mark", uint32_t(5)}, {"a.u8", uint32_t(6)}});
  const GgufFile from(all), to(out);
  auto want = from.rawKeys();
  const auto got = to.rawKeys();
  ASSERT_EQ(got.size(), want.size() + 1);
  EXPECT_EQ(got.back().first, "a.mark");
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
  ASSERT_EQ(to.tensors().size(), from.tensors().size());
  for (const GgufTensor &t : from.tensors()) {
    EXPECT_EQ(to.find(t.name)->at % 64, 0);
    EXPECT_EQ(bytesOf(to, t.name), bytesOf(from, t.name)) << t.name;
  }
}

TEST_F(GgufRounded, TheFileTypeIsThatOfMostElements) {
  auto fileType = [&](const GgufRounding &how) {
    round(how);
    return GgufFile(out).integer("general.file_type");
  };
  // 300 x 256 of 300 x 256 + 24 x 256 + others.
  write(kModel);
  EXPECT_EQ(fileType({.type = GgmlType::q4_0, .keep = {"blk.0.attn_q.weight"}}), 0);
  EXPECT_EQ(GgufFile(out).integer("general.quantization_version"), 2);
  EXPECT_EQ(fileType({.type = GgmlType::q4_0, .keep = {"*embd*"}}), 2);
  // What most get in place of the format counts.
  write({{"blk.0.ffn_down.weight", GgmlType::f32, {16, 96}}, {"blk.0.ffn_up.weight", GgmlType::f32, {4, 256}}});
  EXPECT_EQ(fileType({.type = GgmlType::q4_k}), 7);
}

TEST_F(GgufRounded, BlocksAreRoundedTwiceOnlyIfAsked) {
  write({{"blk.0.attn_norm.weight", GgmlType::f32, {256}}, {"blk.0.attn_q.weight", GgmlType::q8_0, {3, 256}}});
  for (const GgmlType type : {GgmlType::q4_k, GgmlType::q4_0, GgmlType::f16, GgmlType::bf16}) {
    EXPECT_EQ(problem({.type = type}), "101 in.gguf is rounded already: tensor blk.0.attn_q.weight is Q8_0");
    EXPECT_EQ(files(), 1);
  }
  const GgufFile from(in);
  std::vector<float> v(3 * 256), got(v.size());
  from.read(*from.find("blk.0.attn_q.weight"), 0, int64_t(v.size()), v.data());
  // Not rounded: the same format, and one that holds every value.
  EXPECT_EQ(round({.type = GgmlType::q8_0})[1].difference, 0);
  EXPECT_EQ(bytesOf(GgufFile(out), "blk.0.attn_q.weight"), bytesOf(from, "blk.0.attn_q.weight"));
  EXPECT_FALSE(round({.type = GgmlType::f32})[1].isRounded());
  GgufFile(out).read(*GgufFile(out).find("blk.0.attn_q.weight"), 0, int64_t(v.size()), got.data());
  EXPECT_EQ(got, v);
  EXPECT_EQ(problem({.type = GgmlType::q4_k, .keep = {"blk.0.attn_q.weight"}}), "") << "it stays as it is";
  const std::vector<WrittenTensor> twice = round({.type = GgmlType::q4_k, .again = true});
  EXPECT_EQ(twice[1].to->type, GgmlType::q4_k);
  EXPECT_EQ(twice[1].from->type, GgmlType::q8_0);
  std::string blocks(size_t(twice[1].bytesAfter()), 0);
  quantize(GgmlType::q4_k, v.data(), int64_t(v.size()), blocks.data());
  EXPECT_EQ(bytesOf(GgufFile(out), "blk.0.attn_q.weight"), blocks);
}

// In place of the format that was asked for, one that takes no fewer bytes is none.
TEST_F(GgufRounded, NothingGrowsForWantOfBlocks) {
  write({{"blk.0.a.weight", GgmlType::bf16, {3, 10}},
         {"blk.0.b.weight", GgmlType::q5_0, {3, 96}},
         {"blk.0.c.weight", GgmlType::f16, {3, 96}},
         {"token_embd.weight", GgmlType::q4_1, {3, 256}}});
  const std::vector<WrittenTensor> all = round({.type = GgmlType::q4_k, .again = true});
  const GgmlType want[] = {GgmlType::bf16, GgmlType::q5_0, GgmlType::q8_0, GgmlType::q4_1};
  for (size_t t = 0; t < 4; ++t)
    EXPECT_EQ(all[t].to->type, want[t]) << all[t].name;
  EXPECT_EQ(problem({.type = GgmlType::q4_k}), "") << "what stays is not rounded twice";
}

TEST_F(GgufRounded, WhatNoFormatHoldsIsRefusedByName) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Tensors tensors = {{"blk.0.attn_norm.weight", GgmlType::f32, {256}},
                           {"blk.0.attn_q.weight", GgmlType::f32, {300, 256}}};
  for (const float bad : {inf, -inf, nan}) {
    std::vector<float> v = valuesOf(300 * 256, 1);
    v[70000] = bad;  // not in the first piece
    write(tensors, {{1, v}});
    for (const GgmlType type : {GgmlType::q4_k, GgmlType::q4_0, GgmlType::q8_0, GgmlType::f16, GgmlType::bf16}) {
      EXPECT_EQ(problem({.type = type, .threads = 2}),
                "204 tensor blk.0.attn_q.weight has values that are not finite: NaN or infinite");
      EXPECT_EQ(files(), 1) << "nothing is left";
    }
    EXPECT_EQ(problem({.type = GgmlType::f32}), "");
    EXPECT_EQ(bytesOf(GgufFile(out), "blk.0.attn_q.weight"), bytesOf(GgufFile(in), "blk.0.attn_q.weight"));
    EXPECT_EQ(problem({.type = GgmlType::q4_k, .keep = {"*attn_q*"}}), "");
    fs::remove(out);
    // What is not rounded may be so.
    std::vector<float> norm(256, bad);
    write(tensors, {{0, norm}});
    EXPECT_EQ(problem({.type = GgmlType::q4_k}), "");
    fs::remove(out);
  }
  std::vector<float> large = valuesOf(300 * 256, 1);
  large[5] = 1e8f;
  write(tensors, {{1, large}});
  for (const auto &[type, name] :
       {std::pair{GgmlType::q4_k, "Q4_K"}, {GgmlType::q4_0, "Q4_0"}, {GgmlType::q8_0, "Q8_0"}, {GgmlType::f16, "F16"}})
    EXPECT_EQ(problem({.type = type}),
              fmt::format("204 tensor blk.0.attn_q.weight has a value that {} cannot hold", name));
  EXPECT_EQ(problem({.type = GgmlType::bf16}), "");
}

TEST_F(GgufRounded, PatternsNameTensors) {
  write(kModel);
  const std::vector<WrittenTensor> all =
      round({.type = GgmlType::q8_0, .keep = {"token_embd.weight", "blk.?.ffn_*", "*.bias"}});
  for (const WrittenTensor &t : all)
    EXPECT_EQ(t.isRounded(), t.name == "blk.0.attn_q.weight" || t.name == "blk.0.odd.weight") << t.name;
  fs::remove(out);
  EXPECT_EQ(problem({.type = GgmlType::q8_0, .keep = {"*.bias", "token_embed.weight"}}),
            "101 --keep token_embed.weight names no tensor of in.gguf");
  EXPECT_EQ(problem({.type = GgmlType::q8_0, .keep = {"blk.1.*"}}), "101 --keep blk.1.* names no tensor of in.gguf");
  EXPECT_EQ(problem({.type = GgmlType::q8_0, .keep = {""}}), "101 --keep  names no tensor of in.gguf");
  EXPECT_EQ(files(), 1);
}

TEST_F(GgufRounded, TheFileThatIsReadIsNotReplaced) {
  write(kModel);
  const std::string before = readFile(in), link = dir / "link.gguf", hard = dir / "hard.gguf";
  fs::create_symlink(in, link);
  fs::create_hard_link(in, hard);
  EXPECT_EQ(problem({GgmlType::q8_0}, in, in), "401 in.gguf is the file that is read");
  EXPECT_EQ(problem({GgmlType::q8_0}, in, link), "401 link.gguf is the file that is read");
  EXPECT_EQ(problem({GgmlType::q8_0}, link, hard), "401 hard.gguf is the file that is read");
  EXPECT_EQ(problem({GgmlType::q8_0}, in, dir / "./in.gguf"), "401 ./in.gguf is the file that is read");
  EXPECT_EQ(readFile(in), before);
  EXPECT_EQ(files(), 3);
}

TEST_F(GgufRounded, APartOfAModelIsRefused) {
  GgufWriter part(in, {{"general.architecture", std::string("llama")}, {"split.count", uint32_t(3)}}, {});
  part.finish();
  EXPECT_EQ(problem({GgmlType::q8_0}), "208 in.gguf is one of 3 files of a model");
  EXPECT_EQ(files(), 1);
}

TEST_F(GgufRounded, FilesThatCannotBeReadOrWritten) {
  EXPECT_EQ(codeThrown([&] { round({GgmlType::q8_0}); }), 301);
  writeFile(in, "text");
  EXPECT_EQ(problem({GgmlType::q8_0}), "504 in.gguf is no valid GGUF file: it does not begin with GGUF");
  write(kModel);
  const std::string whole = readFile(in);
  for (const size_t length : {size_t(20), size_t(200), whole.size() - 40}) {
    writeFile(in, whole.substr(0, length));
    EXPECT_EQ(codeThrown([&] { round({GgmlType::q8_0}); }), 504) << length;
  }
  writeFile(in, whole);
  EXPECT_EQ(codeThrown([&] { requantizeGguf(in, dir / "none/out.gguf", {GgmlType::q8_0}); }), 401);
  EXPECT_EQ(codeThrown([&] { requantizeGguf(in, dir.path, {GgmlType::q8_0}); }), 401);
  EXPECT_EQ(files(), 1);
  // A format that is not read is only copied.
  write({{"blk.0.attn_q.weight", GgmlType(20), {3, 256}}, {"blk.0.attn_k.weight", GgmlType::f32, {3, 256}}});
  EXPECT_EQ(problem({.type = GgmlType::q8_0, .again = true}),
            "208 in.gguf: tensor blk.0.attn_q.weight is IQ4_NL, which is not built yet");
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(problem({.type = GgmlType::q8_0, .keep = {"*attn_q*"}}), "");
  EXPECT_EQ(bytesOf(GgufFile(out), "blk.0.attn_q.weight"), bytesOf(GgufFile(in), "blk.0.attn_q.weight"));
}

TEST_F(GgufRounded, AFullDiskLeavesWhatWasThere) {
  write(kModel);
  writeFile(out, "before");
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{60000, old.rlim_max};  // bytes: less than the tensors, more than the header
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const int code = codeThrown([&] { round({GgmlType::q8_0}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, 402);
  EXPECT_EQ(readFile(out), "before");
  EXPECT_EQ(files(), 2);
}

}  // namespace
