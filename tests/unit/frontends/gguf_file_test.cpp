// The container GGUF and ggml's block formats. gguf/ has what Python's package gguf writes and computes
// (gguf/make_goldens.py).
#include "support/gguf/gguf_file.h"
#include "support/gguf/gguf_writer.h"

#include "frontends/gguf/gguf_model.h"
#include "frontends/gguf/vocabulary.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/StringExtras.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <unistd.h>

using namespace gptc;

namespace {

const std::string goldens = GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/";

class Gguf : public testing::Test {
protected:
  std::filesystem::path dir;
  void SetUp() override {
    dir = std::filesystem::path(testing::TempDir()) / ("gptc-gguf-" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  std::string written(const std::string &content) {
    const std::string path = (dir / "x.gguf").string();
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  /// "" for a file that can be read with all its values and tensors, else `CODE message`.
  std::string problemOf(const std::string &content) {
    const std::string path = written(content);
    try {
      const GgufFile f(path);
      for (const std::string &key : f.keys())
        f.shown(key);
      f.texts("a.strings");
      f.integers("a.integers");
      for (const GgufTensor &t : f.tensors()) {
        if (t.bytes > 1 << 20)
          continue;
        std::vector<float> values(size_t(t.rows() * t.columns()));
        f.read(t, 0, int64_t(values.size()), values.data());
      }
    } catch (const UserError &e) {
      std::string text = e.diagnostics[0].message;
      EXPECT_FALSE(e.diagnostics[0].help.empty()) << text;
      if (const size_t at = text.find(path); at != std::string::npos)
        text.erase(at, path.size());
      return fmt::format("{} {}", int(e.diagnostics[0].code), text);
    }
    return "";
  }
};

std::string readFile(const std::string &path) { return readInput(path, "test"); }

/// A file made by hand, field by field.
struct Raw {
  std::string bytes = "GGUF";
  template <typename T> Raw &put(T value) {
    bytes.append(reinterpret_cast<const char *>(&value), sizeof value);
    return *this;
  }
  Raw &name(const std::string &text) {
    put(uint64_t(text.size()));
    bytes += text;
    return *this;
  }
  Raw &header(uint64_t tensors, uint64_t keys, uint32_t version = 3) { return put(version).put(tensors).put(keys); }
  Raw &key(const std::string &text, uint32_t type) { return name(text).put(type); }
  Raw &tensor(const std::string &text, const std::vector<uint64_t> &dims, uint32_t format, uint64_t offset) {
    name(text).put(uint32_t(dims.size()));
    for (const uint64_t d : dims)
      put(d);
    return put(format).put(offset);
  }
  Raw &data(size_t n) {
    bytes.resize((bytes.size() + 31) / 32 * 32 + n);
    return *this;
  }
};

template <typename T> std::vector<T> valuesOf(const std::string &hex) {
  const std::string bytes = llvm::fromHex(hex);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(Gguf, BlocksAreReadAndWrittenAsGgmlDoes) {
  std::istringstream lines(readFile(goldens + "blocks.txt"));
  int read = 0, wrote = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, from, to;
    words >> name;
    const bool writes = name == "to";
    if (writes)
      words >> name;
    words >> from >> to;
    const GgmlFormat *format = nullptr;
    for (uint32_t i = 0; ggmlFormat(i); ++i)
      if (name == ggmlFormat(i)->name)
        format = ggmlFormat(i);
    ASSERT_TRUE(format && format->readable()) << name;
    if (writes) {
      const auto values = valuesOf<float>(from);
      std::string blocks(size_t(format->bytesOf(int64_t(values.size()))), 0);
      EXPECT_TRUE(quantize(format->type, values.data(), int64_t(values.size()), blocks.data()));
      EXPECT_EQ(llvm::toHex(blocks, true), to) << name;
      ++wrote;
      continue;
    }
    const auto blocks = valuesOf<uint8_t>(from);
    const auto want = valuesOf<uint32_t>(to);
    std::vector<uint32_t> got(want.size());
    ASSERT_EQ(format->bytesOf(int64_t(want.size())), int64_t(blocks.size())) << name;
    dequantize(format->type, blocks.data(), int64_t(want.size()), reinterpret_cast<float *>(got.data()));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(got[i], want[i]) << name << " " << i;
    ++read;
  }
  EXPECT_EQ(read, 11);
  EXPECT_EQ(wrote, 4);
}

// ggml's roundf, not the nearest even number.
TEST_F(Gguf, HalvesOfQ8AreRoundedAwayFromZero) {
  std::vector<float> v(32, 0.f);
  v[0] = 127;  // so that the scale is 1
  v[1] = 0.5f, v[2] = -0.5f, v[3] = 2.5f, v[4] = -126.5f;
  std::vector<int8_t> block(34);
  ASSERT_TRUE(quantize(GgmlType::q8_0, v.data(), 32, reinterpret_cast<char *>(block.data())));
  EXPECT_EQ(std::vector<int>(block.begin() + 2, block.begin() + 8), (std::vector<int>{127, 1, -1, 3, -127, 0}));
}

/// Sums of twelve uniform numbers, about normal with a deviation of 1/32: the same on every machine.
std::vector<float> nearlyNormal(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> v(n);
  for (float &x : v) {
    int sum = 0;
    for (int i = 0; i < 12; ++i)
      sum += int(random() >> 20);
    x = float(sum - 6 * 4095) * 0x1p-17f;
  }
  return v;
}

struct Rounded {
  std::string blocks;
  std::vector<float> values;
  double error = 0;  // RMS of the difference over that of the values
};

Rounded rounded(GgmlType type, const std::vector<float> &v) {
  Rounded r{std::string(size_t(ggmlFormat(type).bytesOf(int64_t(v.size()))), 0), std::vector<float>(v.size())};
  EXPECT_TRUE(quantize(type, v.data(), int64_t(v.size()), r.blocks.data()));
  dequantize(type, r.blocks.data(), int64_t(v.size()), r.values.data());
  double difference = 0, size = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    difference += double(r.values[i] - v[i]) * (r.values[i] - v[i]);
    size += double(v[i]) * v[i];
  }
  r.error = std::sqrt(difference / size);
  return r;
}

TEST_F(Gguf, Q4_KRoundsNormalNumbersBetterThanQ4_0) {
  const std::vector<float> v = nearlyNormal(256 * 64, 7);
  const Rounded k = rounded(GgmlType::q4_k, v), zero = rounded(GgmlType::q4_0, v);
  EXPECT_GT(k.error, 0.068);
  EXPECT_LT(k.error, 0.071);
  EXPECT_NEAR(zero.error, 0.085, 0.0005);
  EXPECT_NEAR(rounded(GgmlType::q8_0, v).error, 0.005, 0.0005);
  // Compilers and options do not show in the bytes.
  EXPECT_EQ(blake3(k.blocks), "f15f2a08c3e6eccdf12984ef9677159286fe212edf8229a26972c9840128c190");
}

// Numbers of 0 to 15 times six bits, less six bits, both times an f16: what a block holds exactly if its largest scale
// and minimum are 63, and groups use 0 and 15.
TEST_F(Gguf, ValuesOfAGridOfQ4_KStayAsTheyAre) {
  std::mt19937 random(3);
  for (int block = 0; block < 50; ++block) {
    std::vector<float> v;
    for (int g = 0; g < 8; ++g) {
      const unsigned scale = g == 3 ? 63 : 1 + random() % 63, least = g == 5 ? 63 : random() % 64;
      for (int i = 0; i < 32; ++i) {
        const unsigned number = i == 0 ? 0 : i == 1 ? 15 : random() % 16;
        v.push_back(0x1p-7f * float(scale * number) - 0x1p-6f * float(least));
      }
    }
    EXPECT_EQ(rounded(GgmlType::q4_k, v).values, v) << block;
  }
}

TEST_F(Gguf, Q4_KOfEqualAndOfSmallValues) {
  EXPECT_EQ(rounded(GgmlType::q4_k, std::vector<float>(256, 0.f)).blocks, std::string(144, 0));
  for (const float c : {1.f, -1.f, 0.37f, -6e4f, 0.1f})  // to half a unit in the last place of an f16
    EXPECT_LT(rounded(GgmlType::q4_k, std::vector<float>(256, c)).error, 0x1p-11) << c;
  for (const float c : {1e-40f, -1e-40f, 1e-38f})  // below half of the smallest f16
    EXPECT_EQ(rounded(GgmlType::q4_k, std::vector<float>(256, c)).values, std::vector<float>(256, 0.f)) << c;
  // Scales among the smallest f16, 2^-24 apart.
  const std::vector<float> v = nearlyNormal(256, 1);
  std::vector<float> small = v;
  for (float &x : small)
    x *= 0x1p-14f;
  const Rounded r = rounded(GgmlType::q4_k, small);
  EXPECT_LT(r.error, 0.15);
  EXPECT_GT(r.error, rounded(GgmlType::q4_k, v).error);
  // Values of one sign, far from 0 and near together: no minimum is negative, so positive ones have coarse steps.
  std::vector<float> above(256), below(256);
  for (size_t i = 0; i < 256; ++i) {
    above[i] = 10 + v[i];
    below[i] = -above[i];
  }
  EXPECT_LT(rounded(GgmlType::q4_k, above).error, 0.01);
  EXPECT_LT(rounded(GgmlType::q4_k, below).error, 0.01);
}

TEST_F(Gguf, Q4_KSaysWhatNoF16Reaches) {
  for (const auto &[value, fits] : std::vector<std::pair<float, bool>>{{5e7f, true},
                                                                       {8e7f, false},
                                                                       {-4e6f, true},
                                                                       {-5e6f, false},
                                                                       {3e38f, false},
                                                                       {-3e38f, false},
                                                                       {INFINITY, false},
                                                                       {-INFINITY, false},
                                                                       {NAN, false}}) {
    std::vector<float> v(512, 1.f);
    v[256 + 77] = value;  // in the second of two blocks
    std::string blocks(288, 'x');
    EXPECT_EQ(quantize(GgmlType::q4_k, v.data(), 512, blocks.data()), fits) << value;
    EXPECT_EQ(blocks.substr(144) == std::string(144, 0), !fits) << value;
  }
}

TEST_F(Gguf, ValuesThatAFormatCannotHoldAreSaid) {
  std::vector<float> v(32, 1.f);
  std::vector<char> out(256);
  const float large = std::numeric_limits<float>::max(), inf = std::numeric_limits<float>::infinity();
  for (const auto &[type, value, fits] : std::vector<std::tuple<GgmlType, float, bool>>{{GgmlType::f16, 65504, true},
                                                                                        {GgmlType::f16, 65520, false},
                                                                                        {GgmlType::f16, inf, true},
                                                                                        {GgmlType::bf16, large, false},
                                                                                        {GgmlType::bf16, 3e38f, true},
                                                                                        {GgmlType::q8_0, 8e6f, true},
                                                                                        {GgmlType::q8_0, 9e6f, false},
                                                                                        {GgmlType::q8_0, inf, false},
                                                                                        {GgmlType::q4_0, 5e5f, true},
                                                                                        {GgmlType::q4_0, 6e5f, false},
                                                                                        {GgmlType::f32, inf, true}}) {
    v[7] = value;
    EXPECT_EQ(quantize(type, v.data(), 32, out.data()), fits) << ggmlFormat(type).name << " " << value;
  }
}

TEST_F(Gguf, ReadsWhatPythonWrites) {
  const GgufFile f(goldens + "all-types.gguf");
  EXPECT_EQ(f.version, 3u);
  EXPECT_EQ(f.text("general.architecture"), "nothing");
  const std::pair<const char *, int64_t> integers[] = {{"a.u8", 200},
                                                       {"a.i8", -100},
                                                       {"a.u16", 60000},
                                                       {"a.i16", -30000},
                                                       {"a.u32", 4000000000},
                                                       {"a.i32", -2000000000},
                                                       {"a.u64", int64_t(1) << 40},
                                                       {"a.i64", -(int64_t(1) << 40)}};
  for (const auto &[key, value] : integers) {
    EXPECT_EQ(f.integer(key), value) << key;
    EXPECT_THROW(f.number(key), UserError) << key;
  }
  EXPECT_EQ(f.number("a.f32"), double(0.1f));
  EXPECT_EQ(f.number("a.f64"), 1e300);
  EXPECT_EQ(f.boolean("a.true"), true);
  EXPECT_EQ(f.boolean("a.false"), false);
  EXPECT_EQ(f.text("a.string"), "h\u00e9llo");
  EXPECT_EQ(f.texts("a.strings"), (std::vector<std::string>{"", "one", "two words"}));
  EXPECT_EQ(f.integers("a.integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(f.numbers("a.numbers"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(f.shown("a.strings"), "an array of 3 strings");
  EXPECT_EQ(f.shown("a.booleans"), "an array of 2 booleans");
  EXPECT_EQ(f.shown("a.string"), "\"h??llo\"");
  EXPECT_EQ(f.shown("a.f32"), "0.1");
  EXPECT_EQ(f.integer("a.other"), std::nullopt);
  EXPECT_THROW(f.integer("a.f32"), UserError);
  EXPECT_THROW(f.text("a.strings"), UserError);
  EXPECT_THROW(f.integers("a.u8"), UserError);
  const GgufTensor *matrix = f.find("t.matrix");
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(matrix->at % 64, 0);
  float row[3];
  f.read(*matrix, 3, 3, row);
  EXPECT_EQ(row[2], 5);
  float vector[5];
  f.read(*f.find("t.vector"), 0, 5, vector);
  EXPECT_EQ(vector[4], 4);
  EXPECT_EQ(f.find("t.none"), nullptr);
}

TEST_F(Gguf, WhatIsWrittenIsRead) {
  const GgufKeys keys = {{"general.architecture", std::string("gpt2")},
                         {"a.bool", true},
                         {"a.u8", uint8_t(1)},
                         {"a.i8", int8_t(-1)},
                         {"a.u16", uint16_t(2)},
                         {"a.i16", int16_t(-2)},
                         {"a.u32", uint32_t(3)},
                         {"a.i32", int32_t(-3)},
                         {"a.u64", uint64_t(4)},
                         {"a.i64", int64_t(-4)},
                         {"a.f32", 0.5f},
                         {"a.f64", -0.25},
                         {"a.strings", std::vector<std::string>{"x", ""}},
                         {"a.integers", std::vector<int32_t>{7, -7}},
                         {"a.numbers", std::vector<float>{1.5f}},
                         {"a.bools", std::vector<bool>{true, false, true}}};
  const std::string path = (dir / "made.gguf").string();
  std::vector<float> values(3 * 64);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = float(i) - 90;
  {
    GgufWriter out(path, keys, {{"v", GgmlType::f32, {3}}, {"m", GgmlType::f32, {3, 64}}, {"h", GgmlType::f16, {5}}});
    EXPECT_FALSE(std::filesystem::exists(path)) << "incomplete";
    // In pieces that end anywhere, even across tensors.
    std::string bytes(reinterpret_cast<const char *>(values.data()), 12);
    bytes.append(reinterpret_cast<const char *>(values.data()), values.size() * 4).append(10, '\0');
    for (size_t at = 0; at < bytes.size(); at += 7)
      out.write(bytes.data() + at, std::min<size_t>(7, bytes.size() - at));
    out.finish();
  }
  const GgufFile f(path);
  for (const auto &[key, value] : keys)
    EXPECT_TRUE(f.has(key)) << key;
  EXPECT_EQ(f.integer("a.i8"), -1);
  EXPECT_EQ(f.integer("a.u16"), 2);
  EXPECT_EQ(f.integer("a.i64"), -4);
  EXPECT_EQ(f.number("a.f64"), -0.25);
  EXPECT_EQ(f.boolean("a.bool"), true);
  EXPECT_EQ(f.texts("a.strings"), (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(f.integers("a.integers"), (std::vector<int64_t>{7, -7}));
  EXPECT_EQ(f.shown("a.bools"), "an array of 3 booleans");
  std::vector<float> back(values.size());
  f.read(*f.find("m"), 0, int64_t(back.size()), back.data());
  EXPECT_EQ(back, values);
  EXPECT_EQ(f.find("h")->at % 32, 0);
  EXPECT_TRUE(isGguf(path));
  EXPECT_FALSE(isGguf(goldens + "blocks.txt"));
  EXPECT_FALSE(isGguf(dir.string()));
}

// Python's file has every type of value, and an alignment of 64.
TEST_F(Gguf, KeysAreCopiedAsTheyStandInAFile) {
  const GgufFile from(goldens + "all-types.gguf");
  const auto raw = from.rawKeys();
  ASSERT_EQ(raw.size(), from.keys().size());
  GgufKeys keys;
  for (const auto &[key, bytes] : raw)
    keys.emplace_back(key, GgufRaw{bytes});
  const std::string path = (dir / "copy.gguf").string();
  const float one = 1;
  {
    GgufWriter out(path, keys, {{"a", GgmlType::f32, {1}}, {"b", GgmlType::f32, {1}}}, from.alignment());
    out.write(&one, 4);
    out.write(&one, 4);
    out.finish();
  }
  const GgufFile copy(path);
  EXPECT_EQ(copy.rawKeys(), raw);
  EXPECT_EQ(copy.alignment(), 64);
  EXPECT_EQ(copy.find("b")->at - copy.find("a")->at, 64);
  EXPECT_EQ(copy.texts("a.strings"), from.texts("a.strings"));
  // Behind the numbers of tensors and keys the two files are the same up to the first tensor's description.
  size_t bytes = 24;
  for (const auto &[key, value] : raw)
    bytes += 8 + key.size() + value.size();
  EXPECT_EQ(readFile(path).substr(24, bytes - 24), readFile(goldens + "all-types.gguf").substr(24, bytes - 24));
}

TEST_F(Gguf, AFileThatIsNotFinishedLeavesNothing) {
  const std::string path = (dir / "made.gguf").string();
  std::ofstream(path) << "before";
  {
    GgufWriter out(path, {}, {{"v", GgmlType::f32, {3}}});
    out.write("1234", 4);
    EXPECT_THROW(out.finish(), InternalError);
  }
  EXPECT_EQ(readFile(path), "before");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 1);
  EXPECT_THROW(GgufWriter(dir.string(), {}, {}), UserError);
  EXPECT_THROW(GgufWriter((dir / "none/x.gguf").string(), {}, {}), UserError);
}

TEST_F(Gguf, WhatIsNoGgufOrAnotherOneIsRefusedByName) {
  EXPECT_EQ(problemOf("GGUX"), "504  is no valid GGUF file: it does not begin with GGUF");
  EXPECT_EQ(problemOf(""), "504  is no valid GGUF file: it does not begin with GGUF");
  EXPECT_EQ(problemOf(Raw().header(0, 0).bytes), "");
  EXPECT_EQ(problemOf(Raw().header(0, 0, 2).bytes), "");
  EXPECT_EQ(problemOf(Raw().header(0, 0, 1).bytes), "208  is GGUF of version 1, and versions 2 and 3 are read");
  EXPECT_EQ(problemOf(Raw().header(0, 0, 4).bytes), "208  is GGUF of version 4, and versions 2 and 3 are read");
  EXPECT_EQ(problemOf(Raw().header(0, 0, __builtin_bswap32(3)).bytes),
            "208  is a big-endian GGUF file, and only little-endian ones are read");
  EXPECT_EQ(problemOf(Raw().header(1, 0).tensor("t", {256}, 20, 0).data(256 / 32 * 18).bytes),
            "208 : tensor t is IQ4_NL, which is not built yet");
  EXPECT_EQ(problemOf(Raw().header(1, 0).tensor("t", {256}, 4, 0).data(999).bytes),
            "208 : tensor t is of ggml's type Q4_2, which ggml no longer has");
  EXPECT_EQ(problemOf(Raw().header(1, 0).tensor("t", {256}, 4711, 0).data(999).bytes),
            "208 : tensor t is of ggml's type 4711, which gptc does not know");
  auto versioned = [&](uint32_t version, uint32_t format, size_t bytes) {
    return problemOf(Raw()
                         .header(1, 1)
                         .key("general.quantization_version", 4)
                         .put(version)
                         .tensor("t", {256}, format, 0)
                         .data(bytes)
                         .bytes);
  };
  EXPECT_EQ(versioned(2, uint32_t(GgmlType::q8_0), 256 / 32 * 34), "");
  EXPECT_EQ(versioned(3, uint32_t(GgmlType::f16), 512), "");
  EXPECT_EQ(versioned(3, uint32_t(GgmlType::q8_0), 256 / 32 * 34),
            "208 : general.quantization_version = 3, and blocks of Q8_0, as of tensor t, are read of version 2");
}

TEST_F(Gguf, HostileSizesAndNamesAreRefused) {
  const uint64_t huge = UINT64_MAX, half = uint64_t(1) << 63;
  auto damaged = [&](const Raw &raw) {
    const std::string text = problemOf(raw.bytes), before = "504  is no valid GGUF file: ";
    EXPECT_EQ(text.substr(0, before.size()), before);
    return text.substr(std::min(before.size(), text.size()));
  };
  EXPECT_EQ(damaged(Raw().header(huge, 0)), "it claims 18446744073709551615 tensors and 0 keys");
  EXPECT_EQ(damaged(Raw().header(0, huge)), "it claims 0 tensors and 18446744073709551615 keys");
  EXPECT_EQ(damaged(Raw().header(0, 1)), "it ends within its header");
  EXPECT_EQ(damaged(Raw().header(0, 1).put(huge)), "the name of a key is longer than the file: 18446744073709551615");
  EXPECT_EQ(damaged(Raw().header(0, 1).key("k", 13)), "k is of type 13, which GGUF does not have");
  EXPECT_EQ(damaged(Raw().header(0, 1).key("k", 8).put(huge)), "k is longer than the file: 18446744073709551615");
  EXPECT_EQ(damaged(Raw().header(0, 1).key("k", 9).put(4u).put(half)),
            "k is longer than the file: 9223372036854775808 elements");
  EXPECT_EQ(damaged(Raw().header(0, 1).key("k", 9).put(10u).put(uint64_t(40)).data(64)),
            "k is longer than the file: 40 elements");
  EXPECT_EQ(damaged(Raw().header(0, 1).key("k", 7).put(uint8_t(2))), "k has 2 for true or false");
  EXPECT_EQ(damaged(Raw().header(0, 2).key("k", 7).put(uint8_t(1)).key("k", 7).put(uint8_t(1))),
            "it has the key k twice");
  Raw deep = Raw().header(0, 1).key("k", 9);
  for (int i = 0; i < 5; ++i)
    deep.put(9u).put(uint64_t(1));
  EXPECT_EQ(damaged(deep.put(4u).put(uint64_t(0)).data(64)), "k has arrays in arrays more than 4 deep");
  Raw nested = Raw().header(0, 1).key("k", 9).put(9u).put(uint64_t(2));
  nested.put(4u).put(uint64_t(1)).put(7u).put(8u).put(uint64_t(1)).name("inside");
  EXPECT_EQ(problemOf(nested.bytes), "");

  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("../../etc/x", {4}, 0, 0).data(16)),
            "\"../../etc/x\" is no name of a tensor");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("/x", {4}, 0, 0).data(16)), "\"/x\" is no name of a tensor");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("a\x1b[31m", {4}, 0, 0).data(16)), "\"a?[31m\" is no name of a tensor");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor(std::string(65, 'x'), {4}, 0, 0).data(16)),
            "the name of a tensor has 65 bytes, and 64 is the most");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {}, 0, 0).data(16)), "tensor t has 0 dimensions");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).data(16)), "tensor t has 5 dimensions");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {4, 0}, 0, 0).data(16)), "tensor t has an impossible shape");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {half, 2}, 0, 0).data(16)), "tensor t has an impossible shape");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {uint64_t(1) << 32, uint64_t(1) << 32}, 0, 0).data(16)),
            "tensor t has an impossible shape");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {uint64_t(1) << 62}, 0, 0).data(16)),
            "tensor t has an impossible shape");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {33}, 8, 0).data(99)),
            "tensor t has rows of 33 values, no multiple of the 32 of a block of Q8_0");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {4}, 0, huge).data(16)), "tensor t lies outside the file");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {4}, 0, 32).data(16)), "tensor t lies outside the file");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {5}, 0, 0).data(16)), "tensor t lies outside the file");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {4}, 0, 8).data(99)),
            "tensor t is not at a multiple of general.alignment = 32");
  EXPECT_EQ(damaged(Raw().header(2, 0).tensor("t", {9}, 0, 0).tensor("u", {4}, 0, 32).data(99)),
            "tensors t and u overlap");
  EXPECT_EQ(damaged(Raw().header(2, 0).tensor("t", {8}, 0, 0).tensor("u", {8}, 0, 64).data(96)),
            "tensor u does not follow the one before it");
  EXPECT_EQ(damaged(Raw().header(2, 0).tensor("t", {8}, 0, 32).tensor("u", {8}, 0, 0).data(64)),
            "tensor t does not follow the one before it");
  EXPECT_EQ(damaged(Raw().header(1, 0).tensor("t", {8}, 0, 0).data(64)), "its last 32 bytes belong to no tensor");
  Raw padded = Raw().header(1, 0).tensor("t", {8}, 0, 0).data(63);
  EXPECT_EQ(problemOf(padded.bytes), "");
  padded.bytes.back() = 1;
  EXPECT_EQ(damaged(padded), "the bytes behind tensor t are no padding");
  EXPECT_EQ(damaged(Raw().header(0, 0).put(uint8_t(1)).data(0)), "the bytes behind its header are no padding");
  Raw longer = Raw().header(1, 0).tensor("t", {8}, 0, 0).data(32);
  longer.bytes.back() = 1;
  EXPECT_EQ(problemOf(longer.bytes), "");
  longer.bytes[longer.bytes.find('t') + 5] = 7;  // the dimension
  EXPECT_EQ(damaged(longer), "the bytes behind tensor t are no padding");
  EXPECT_EQ(damaged(Raw().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(99)),
            "it has the tensor t twice");
  for (const uint32_t alignment : {0u, 3u, 48u, 1u << 30})
    EXPECT_EQ(damaged(Raw().header(0, 1).key("general.alignment", 4).put(alignment)),
              fmt::format("general.alignment = {} is no power of two up to 1048576", alignment));
  EXPECT_EQ(problemOf(Raw().header(1, 0).tensor("t", {4}, 0, 0).data(16).bytes), "");
}

/// A file that knows the place and the kind of every number and name of its header.
struct Recorded {
  enum Kind { version, count, length, type, format, dims, alignment, name };
  struct Field {
    Kind kind;
    size_t at, size;
    std::string of;
  };
  std::string bytes = "GGUF", of = "header";
  std::vector<Field> fields;

  template <typename T> void raw(T value) { bytes.append(reinterpret_cast<const char *>(&value), sizeof value); }
  template <typename T> void put(Kind kind, T value) {
    fields.push_back({kind, bytes.size(), sizeof value, of});
    raw(value);
  }
  void text(const std::string &value) {
    put(length, uint64_t(value.size()));
    bytes += value;
  }
  void key(const std::string &key, GgufType t) {
    of = key;
    put(length, uint64_t(key.size()));
    fields.push_back({name, bytes.size(), key.size(), of});
    bytes += key;
    put(type, uint32_t(t));
  }
  template <typename T> void key(const std::string &name, GgufType t, T value) {
    key(name, t);
    raw(value);
  }
  template <typename T> void array(const std::string &name, GgufType t, const std::vector<T> &values) {
    key(name, GgufType::array);
    put(type, uint32_t(t));
    put(length, uint64_t(values.size()));
    for (const T &v : values)
      if constexpr (std::is_same_v<T, std::string>)
        text(v);
      else
        raw(v);
  }
  /// Of f32, [rows, 64]: another format or shape takes other room.
  void tensor(const std::string &tensor, uint64_t rows, uint64_t offset) {
    of = tensor;
    put(length, uint64_t(tensor.size()));
    fields.push_back({name, bytes.size(), tensor.size(), of});
    bytes += tensor;
    put(dims, uint32_t(2));
    put(length, uint64_t(64));
    put(length, rows);
    put(format, uint32_t(GgmlType::f32));
    put(length, offset);
  }
};

Recorded recordedFile() {
  Recorded r;
  r.put(Recorded::version, uint32_t(3));
  r.put(Recorded::count, uint64_t(3));
  r.put(Recorded::count, uint64_t(17));
  r.key("general.architecture", GgufType::string);
  r.text("nothing");
  r.key("general.alignment", GgufType::u32);
  r.put(Recorded::alignment, uint32_t(32));
  r.key("a.u8", GgufType::u8, uint8_t(2));
  r.key("a.i8", GgufType::i8, int8_t(3));
  r.key("a.u16", GgufType::u16, uint16_t(400));
  r.key("a.i16", GgufType::i16, int16_t(500));
  r.key("a.u32", GgufType::u32, uint32_t(70'000));
  r.key("a.i32", GgufType::i32, int32_t(80'000));
  r.key("a.u64", GgufType::u64, uint64_t(1) << 40);
  r.key("a.i64", GgufType::i64, int64_t(1) << 41);
  r.key("a.f32", GgufType::f32, 0.1f);
  r.key("a.f64", GgufType::f64, 0.3);
  r.key("a.boolean", GgufType::boolean, uint8_t(1));
  r.array("a.strings", GgufType::string, std::vector<std::string>{"", "one", "two words"});
  r.array("a.integers", GgufType::i32, std::vector<int32_t>{1, 2, 3});
  r.array("a.numbers", GgufType::f32, std::vector<float>{0.5f, -1.5f});
  r.key("a.nested", GgufType::array);
  r.put(Recorded::type, uint32_t(GgufType::array));
  r.put(Recorded::length, uint64_t(2));
  for (const uint16_t value : {uint16_t(7), uint16_t(9)}) {
    r.put(Recorded::type, uint32_t(GgufType::u16));
    r.put(Recorded::length, uint64_t(1));
    r.raw(value);
  }
  r.tensor("t.first", 3, 0);
  r.tensor("t.second", 2, 768);
  r.tensor("t.third", 1, 1280);
  r.bytes.resize((r.bytes.size() + 31) / 32 * 32);
  for (int i = 0; i < 6 * 64; ++i)
    r.raw(float(i) + 0.25f);
  return r;
}

/// What the recorded file means to who asks for each of its keys by its type, and for its tensors.
std::vector<std::string> meaningOf(const GgufFile &f) {
  std::vector<std::string> all = f.keys();
  for (const char *key : {"a.u8", "a.i8", "a.u16", "a.i16", "a.u32", "a.i32", "a.u64", "a.i64"})
    all.push_back(fmt::format("{} {}", key, f.integer(key).value()));
  for (const char *key : {"a.f32", "a.f64"})
    all.push_back(fmt::format("{} {}", key, f.number(key).value()));
  all.push_back(fmt::format("{} {}", f.boolean("a.boolean").value(), f.text("general.architecture").value()));
  all.push_back(fmt::format("{} {} {}", fmt::join(f.texts("a.strings").value(), ","),
                            fmt::join(f.integers("a.integers").value(), ","),
                            fmt::join(f.numbers("a.numbers").value(), ",")));
  all.push_back(f.shown("a.nested"));
  for (const GgufTensor &t : f.tensors()) {
    std::vector<float> values(size_t(t.rows() * t.columns()));
    f.read(t, 0, int64_t(values.size()), values.data());
    all.push_back(fmt::format("{} {} {}", t.name, fmt::join(t.shape, ","), fmt::join(values, ",")));
  }
  return all;
}

/// The other values that a field is given, as its bytes.
std::vector<std::string> othersOf(const Recorded &file, const Recorded::Field &field) {
  const std::string was = file.bytes.substr(field.at, field.size);
  std::vector<std::string> others;
  if (field.kind == Recorded::name) {
    for (const char c : {'/', '\\', '\0', '\x1b', '\xff', ' ', '.'})
      others.push_back(std::string(1, c) + was.substr(1));
    return others;
  }
  uint64_t old = 0;
  std::memcpy(&old, was.data(), was.size());
  std::vector<uint64_t> values = {0,
                                  1,
                                  old + 1,
                                  old - 1,
                                  2 * old,
                                  1 << 20,
                                  1u << 31,
                                  1u << 30,
                                  uint64_t(1) << 32,
                                  uint64_t(1) << 62,
                                  uint64_t(1) << 63,
                                  UINT64_MAX,
                                  old + (uint64_t(1) << 40)};
  if (field.kind == Recorded::type || field.kind == Recorded::format || field.kind == Recorded::version)
    for (uint64_t i = 0; i < 42; ++i)
      values.push_back(i);
  for (uint64_t i = 1; field.kind == Recorded::alignment && i <= uint64_t(1) << 21; i *= 2)
    values.insert(values.end(), {i, 3 * i});
  for (const uint64_t v : values)
    if (std::string text(reinterpret_cast<const char *>(&v), field.size); text != was)
      others.push_back(std::move(text));
  return others;
}

// Counts, types, lengths, nesting, dimensions, formats, offsets, alignment and names: each is given other values. A
// file with one is refused, or means what it meant before: no other value is taken for the one that was there.
TEST_F(Gguf, AMutatedHeaderIsRefusedOrMeansTheSame) {
  const Recorded file = recordedFile();
  const std::vector<std::string> meaning = meaningOf(GgufFile(written(file.bytes)));
  int tried = 0, refused = 0;
  for (const Recorded::Field &field : file.fields)
    for (const std::string &other : othersOf(file, field)) {
      ++tried;
      SCOPED_TRACE(fmt::format("field {} of {} at {}: {}", int(field.kind), field.of, field.at, llvm::toHex(other)));
      const std::string path = written(std::string(file.bytes).replace(field.at, field.size, other));
      try {
        EXPECT_EQ(meaningOf(GgufFile(path)), meaning);
      } catch (const UserError &e) {
        ++refused;
        const ErrorCode code = e.diagnostics[0].code;
        EXPECT_TRUE(code == ErrorCode::CheckpointDamaged || code == ErrorCode::NotBuiltYet) << e.what();
        EXPECT_NE(e.diagnostics[0].message.find(path), std::string::npos) << e.what();
        EXPECT_FALSE(e.diagnostics[0].help.empty()) << e.what();
      }
    }
  EXPECT_GE(tried, 500);
  EXPECT_GE(refused, 450);
  EXPECT_LT(refused, tried) << "another type of integers holds the same value";
}

/// Bytes of real files are changed, cut, and moved. Each result is a coded error or can be read; the sanitizers' builds
/// see whatever is read beyond its bounds.
TEST_F(Gguf, FiveHundredMutationsAreRefusedOrRead) {
  std::mt19937 random(11);
  int refused = 0, read = 0, imported = 0, words = 0;
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.tokens = {"a", "b", "ab"};
  vocabulary.types = {1, 1, 1};
  vocabulary.merges = {"a b"};
  vocabulary.eos = 2;
  GgufKeys keys;
  addVocabulary(keys, &vocabulary);
  GgufWriter((dir / "words.gguf").string(), keys, {}).finish();
  const std::vector<std::string> originals = {readFile(goldens + "all-types.gguf"), readFile(goldens + "llama.gguf"),
                                              readFile((dir / "words.gguf").string())};
  for (int i = 0; i < 500; ++i) {
    std::string text = originals[i % 3];
    // Most places are in the header, which is what is parsed.
    auto place = [&](size_t room) { return random() % std::min<size_t>(room, random() % 4 ? 1200 : room); };
    for (unsigned n = 1 + random() % 3; n; --n)
      switch (random() % 5) {
      case 0:
        text[place(text.size())] ^= char(1 << random() % 8);
        break;
      case 1:
        text.resize(place(text.size()));
        text.resize(std::max<size_t>(text.size(), 16));
        break;
      case 2: {
        const uint64_t values[] = {0, 1, 0xff, 0xffffffff, UINT64_MAX, uint64_t(1) << 63, uint64_t(1) << 62, 1 << 20};
        const uint64_t value = values[random() % 8];
        const size_t at = place(text.size() - 8);
        std::memcpy(text.data() + at, &value, random() % 2 ? 8 : 4);
        break;
      }
      case 3:
        text.erase(place(text.size()), 1 + random() % 9);
        break;
      case 4:
        text.insert(place(text.size()), std::string(1 + random() % 9, char(random())));
        break;
      }
    const std::string problem = problemOf(text);
    ++(problem.empty() ? read : refused);
    EXPECT_TRUE(problem.empty() || problem.rfind("504", 0) == 0 || problem.rfind("208", 0) == 0) << problem;
    // What its metadata mean is read or refused too, each problem with the file's name and what to do.
    const std::string path = (dir / "x.gguf").string();
    auto isTaken = [&](auto read) {
      try {
        read(GgufFile(path));
        return true;
      } catch (const UserError &e) {
        EXPECT_FALSE(e.diagnostics.empty());
        for (const Diagnostic &d : e.diagnostics) {
          EXPECT_NE(int(d.code), 0) << d.message;
          EXPECT_NE(d.message.find(path), std::string::npos) << d.message;
          EXPECT_FALSE(d.help.empty() || d.help[0].empty()) << d.message;
        }
        return false;
      }
    };
    imported += isTaken([](const GgufFile &f) { importGguf(f); });
    words += isTaken([](const GgufFile &f) { readVocabulary(f); });
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 5);
  EXPECT_GT(imported, 0);
  EXPECT_GT(words, 0);
}

}  // namespace
