// gptc quantize: files of every format out of a GGUF file, a run and a folder; what it says; what it refuses.
#include "tests/support/harness.h"

#include "runtime/checkpoint/gguf_rounding.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <unistd.h>

using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

struct Quantize : ::testing::Test {
  Workplace w;
  const std::string out = w.path("out"), plan = w.path("plan"), f32 = w.path("f32.gguf");

  /// A run of a small llama whose rows make blocks of 256, with a tokenizer that GGUF has, and its export.
  void train() {
    w.prepare(numberedCats(), "bpe:290");
    ASSERT_FALSE(HasFailure());
    w.compile("plan", {"model.preset=llama", "model.n_embd=256", "model.n_head=4", "model.n_layer=1",
                       "model.ffn_dim=512", "model.vocab_size=300", "model.dropout=0.0", "train.steps=3",
                       "data.train='" + w.path("data/train.bin") + "'", "data.val='" + w.path("data/val.bin") + "'",
                       "data.tokenizer='" + w.path("data/tokenizer.json") + "'", "out_dir='" + out + "'"});
    w.train(plan, "out");
    const Result r = w.gptc({"export", out, "-o", f32});
    ASSERT_EQ(r.code, 0) << r.output;
  }

  /// Runs it with --json and returns what it says.
  json quantize(const std::string &in, const std::string &to, const std::string &type,
                const std::vector<std::string> &more = {}) {
    std::vector<std::string> args = {"quantize", in, "-o", to, "--type", type, "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    json said = parseJsonOrDiscard(r.output);
    EXPECT_TRUE(said.is_object()) << r.output;
    return said;
  }

  double lossOf(const std::string &file) {
    const Result r = w.gptrun({"eval", file, "--data", w.path("data/val.bin"), "--precision", "fp32"});
    EXPECT_EQ(r.code, 0) << r.output;
    const size_t at = r.output.find("loss ");
    EXPECT_NE(at, std::string::npos) << r.output;
    return at == std::string::npos ? NAN : std::stod(r.output.substr(at + 5));
  }

  void refused(const std::vector<std::string> &args, int code, const std::string &error, const std::string &says) {
    std::vector<std::string> all = {"quantize"};
    all.insert(all.end(), args.begin(), args.end());
    const Result r = w.gptc(all);
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find("error[" + error + "]"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(says), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("help: "), std::string::npos) << "no fix is named\n" << r.output;
  }

  /// Whether both files have the same tensors, to the byte.
  static void expectSameTensors(const std::string &a, const std::string &b) {
    const GgufFile one(a), other(b);
    ASSERT_EQ(one.tensors().size(), other.tensors().size());
    for (const GgufTensor &t : one.tensors()) {
      const GgufTensor *same = other.find(t.name);
      ASSERT_TRUE(same) << t.name;
      ASSERT_EQ(same->format, t.format) << t.name;
      std::string x(size_t(t.bytes), 0), y = x;
      one.readBytes(t, 0, t.bytes, x.data());
      other.readBytes(*same, 0, t.bytes, y.data());
      EXPECT_TRUE(x == y) << t.name;
    }
  }
};

TEST_F(Quantize, FilesAreThoseOfExportInEveryFormat) {
  ASSERT_NO_FATAL_FAILURE(train());
  const double loss = lossOf(f32);
  std::map<std::string, double> errors;
  for (const auto &[type, bound] :
       {std::pair{"fp32", 0.0}, {"fp16", 0.01}, {"bf16", 0.02}, {"q8_0", 0.02}, {"q4_k", 0.2}, {"q4_0", 0.25}}) {
    const std::string file = w.path(fmt::format("{}.gguf", type)), exported = w.path(fmt::format("{}-x.gguf", type));
    const json said = quantize(f32, file, type);
    const Result r = w.gptc({"export", out, "-o", exported, "--dtype", type});
    ASSERT_EQ(r.code, 0) << r.output;
    expectSameTensors(file, exported);
    // Keys, too, but for the name, which is the file's.
    const GgufFile a(file), b(exported);
    EXPECT_EQ(a.keys(), b.keys());
    EXPECT_EQ(a.integer("general.file_type"), b.integer("general.file_type"));
    EXPECT_EQ(a.text("general.name"), "f32");
    EXPECT_EQ(a.integer("general.quantization_version"), 2);
    const auto was = GgufFile(f32).rawKeys(), is = a.rawKeys();
    ASSERT_EQ(is.size(), was.size());
    for (size_t i = 0; i < is.size(); ++i)
      EXPECT_TRUE(is[i] == was[i] || is[i].first == "general.file_type") << was[i].first;
    EXPECT_EQ(said["type"], type);
    EXPECT_EQ(said["file_bytes"], int64_t(fs::file_size(file)));
    EXPECT_EQ(said["tensors"].size(), a.tensors().size());
    int64_t tensors = 0, before = 0, after = 0;
    for (const json &f : said["formats"]) {
      tensors += f["tensors"].get<int64_t>();
      before += f["bytes_before"].get<int64_t>();
      after += f["bytes_after"].get<int64_t>();
    }
    EXPECT_EQ(tensors, int64_t(a.tensors().size()));
    EXPECT_EQ(before, said["bytes_before"].get<int64_t>());
    EXPECT_EQ(after, said["bytes_after"].get<int64_t>());
    EXPECT_EQ(said["error"].is_null(), bound == 0) << type;
    EXPECT_EQ(said["worst"].is_null(), bound == 0) << type;
    errors[type] = bound == 0 ? 0 : said["error"].get<double>();
    if (bound == 0)
      EXPECT_EQ(readFile(file), readFile(f32));
    else
      EXPECT_LT(after, before);
    EXPECT_NEAR(lossOf(file), loss, std::max(bound, 2e-4)) << type;
    const Result sample = w.gptrun({"sample", file, "--prompt", "the 12 cats", "--max-tokens", "4"});
    EXPECT_EQ(sample.code, 0) << sample.output;
  }
  EXPECT_EQ(GgufFile(w.path("q4_k.gguf")).find("blk.0.attn_q.weight")->format->type, GgmlType::q4_k);
  EXPECT_EQ(GgufFile(w.path("q4_k.gguf")).find("output_norm.weight")->format->type, GgmlType::f32);
  EXPECT_LT(errors["fp16"], errors["bf16"]);
  EXPECT_LT(errors["bf16"], errors["q8_0"]);
  EXPECT_LT(errors["q8_0"], errors["q4_k"]);
  EXPECT_LT(errors["q4_k"], errors["q4_0"]);
  EXPECT_GT(errors["q4_k"], 0.05);
  EXPECT_LT(errors["q4_k"], 0.08);
}

TEST_F(Quantize, RunsAndFoldersGiveTheSameFile) {
  ASSERT_NO_FATAL_FAILURE(train());
  const std::string want = w.path("want.gguf"), got = w.path("got.gguf"), folder = w.path("hf");
  quantize(f32, want, "q4_k", {"--threads", "1"});
  ASSERT_EQ(w.gptc({"export", out, "-o", folder}).code, 0);
  for (const std::string &in : {plan, out, out + "/checkpoints/latest", folder}) {
    quantize(in, got, "q4_k", {"--threads", "3"});  // and replaces what it wrote
    expectSameTensors(got, want);
    EXPECT_EQ(GgufFile(got).keys(), GgufFile(want).keys()) << in;
  }
  // What is left as it is has the precision of the checkpoint.
  const json said = quantize(out, got, "q4_0", {"--keep", "*attn_?.weight"});
  for (const json &t : said["tensors"])
    if (t["name"] == "blk.0.attn_q.weight") {
      EXPECT_EQ(t["to"], "F32");
      EXPECT_TRUE(t["error"].is_null());
    }
  refused({out, "-o", got, "--type", "q4_0", "--keep", "blk.7.*"}, 2, "GPTC0101", "--keep blk.7.* names no tensor");
}

TEST_F(Quantize, WhatAFolderSaysOfVectorsStaysSaid) {
  ASSERT_NO_FATAL_FAILURE(train());
  const std::string folder = w.path("hf"), file = w.path("x.gguf");
  ASSERT_EQ(w.gptc({"export", out, "-o", folder}).code, 0);
  fs::create_directory(folder + "/1_Pooling");
  writeFile(folder + "/modules.json",
            json::array({{{"type", "sentence_transformers.models.Pooling"}, {"path", "1_Pooling"}}}).dump());
  auto expectNote = [&](const char *mode, const std::string &says) {
    writeFile(folder + "/1_Pooling/config.json", json{{"pooling_mode", mode}}.dump());
    quantize(folder, file, "q8_0");
    const Result r = w.gptrun({"embed", file, "--text", "the cats"});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("note: vectors are " + says + " (--pooling"), std::string::npos) << r.output;
  };
  expectNote("lasttoken", "those of a text's last token");
  EXPECT_EQ(GgufFile(file).integer("llama.pooling_type"), 3);
  // Files out of such a file, too.
  quantize(file, w.path("y.gguf"), "bf16", {"--requantize"});
  EXPECT_EQ(GgufFile(w.path("y.gguf")).integer("llama.pooling_type"), 3);
  expectNote("cls", "those of a text's first token");
  // What gptc does not know is not said.
  expectNote("max", "the mean of a text's tokens");
  EXPECT_FALSE(GgufFile(file).has("llama.pooling_type"));
  // What is damaged is named: nobody knows which vectors are meant.
  writeFile(folder + "/1_Pooling/config.json", "{");
  const std::string none = w.path("z.gguf");
  refused({folder, "-o", none, "--type", "q8_0"}, 5, "GPTC0504", "/1_Pooling/config.json: it is no JSON object");
  EXPECT_FALSE(fs::exists(none));
}

TEST_F(Quantize, SaysWhatBecameOfTheTensors) {
  ASSERT_NO_FATAL_FAILURE(train());
  const std::string to = w.path("small.gguf");
  const Result r = w.gptc({"quantize", f32, "-o", to, "--type", "q4_k", "--keep", "blk.0.ffn_down.weight"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("from    to      tensors      before       after    error\n"), std::string::npos) << r.output;
  // Queries, keys, values, their output, and two of the MLP.
  EXPECT_NE(r.output.find("F32     Q4_K          6 "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("\nworst       blk.0."), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("note "), std::string::npos) << r.output;
  // From blocks only if asked.
  const std::string twice = w.path("twice.gguf");
  refused({to, "-o", twice, "--type", "q4_0"}, 2, "GPTC0101", "is rounded already: tensor blk.0.");
  EXPECT_FALSE(fs::exists(twice));
  const json said = quantize(to, twice, "q4_0", {"--requantize"});
  EXPECT_GT(said["error"].get<double>(), 0);
  EXPECT_EQ(GgufFile(twice).find("blk.0.attn_q.weight")->format->type, GgmlType::q4_0);
  quantize(to, twice, "fp32");  // no rounding
  EXPECT_EQ(GgufFile(twice).find("blk.0.attn_q.weight")->format->type, GgmlType::f32);
}

TEST_F(Quantize, OtherFormatsAreSaid) {
  // Rows of 96 and of 10.
  GgufWriter file(w.path("in.gguf"), {{"general.architecture", std::string("llama")}},
                  {{"blk.0.a.weight", GgmlType::f32, {4, 96}},
                   {"blk.0.b.weight", GgmlType::f32, {4, 96}},
                   {"blk.0.c.weight", GgmlType::f32, {4, 10}}});
  const std::vector<float> values(2 * 4 * 96 + 40, 0.5f);
  file.write(values.data(), values.size() * 4);
  file.finish();
  const Result r = w.gptc({"quantize", w.path("in.gguf"), "-o", w.path("x.gguf"), "--type", "q4_k"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(
      r.output.find("note        1 tensor is F16, as blk.0.c.weight: rows of 10 values are no whole blocks of Q4_K\n"),
      std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find(
                "note        2 tensors are Q8_0, as blk.0.a.weight: rows of 96 values are no whole blocks of Q4_K\n"),
            std::string::npos)
      << r.output;
}

// A scale in f16 holds nothing below 6e-8.
TEST_F(Quantize, WhatIsTooSmallIsSaid) {
  const std::string in = w.path("in.gguf");
  for (const bool isSmall : {true, false}) {
    GgufWriter file(in, {}, {{"a.weight", GgmlType::f32, {1, 32}}});
    const std::vector<float> values(32, isSmall ? 1e-7f : 1e-3f);
    file.write(values.data(), values.size() * 4);
    file.finish();
    const Result r = w.gptc({"quantize", in, "-o", w.path("to.gguf"), "--type", "q8_0"});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("warning: little is left of a.weight in Q8_0") != std::string::npos, isSmall) << r.output;
  }
}

TEST_F(Quantize, NamesNeedNotBeUtf8) {
  const std::string in = w.path("w\xff.gguf"), to = w.path("\xc3(.gguf");
  GgufWriter file(in, {{"general.name", std::string("\xff\xfe")}}, {{"a.weight", GgmlType::f32, {1, 32}}});
  const std::vector<float> values(32, 0.5f);
  file.write(values.data(), values.size() * 4);
  file.finish();
  EXPECT_EQ(quantize(in, to, "q8_0")["type"], "q8_0");
  const Result r = w.gptc({"quantize", in, "-o", to, "--type", "q8_0"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(GgufFile(to).text("general.name"), "\xff\xfe");
  refused({in, "-o", to, "--type", "q8_0", "--keep", "\xff"}, 2, "GPTC0101", "names no tensor");
}

TEST_F(Quantize, BadInput) {
  const std::string in = w.path("in.gguf"), to = w.path("to.gguf"), text = w.path("text.txt");
  {
    GgufWriter file(in, {{"general.architecture", std::string("llama")}}, {{"a.weight", GgmlType::f32, {8, 64}}});
    const std::vector<float> values(8 * 64, 0.5f);
    file.write(values.data(), values.size() * 4);
    file.finish();
  }
  const std::string whole = readFile(in);
  writeFile(text, "text");
  fs::create_directories(w.path("empty"));
  // Command lines.
  refused({in, "-o", to}, 2, "GPTC0101", "--type");
  refused({in, "--type", "q8_0"}, 2, "GPTC0101", "--out");
  refused({in, "-o", "", "--type", "q8_0"}, 2, "GPTC0101", "names no file");
  refused({in, "-o", to, "--type", "q3_k"}, 2, "GPTC0101", "q3_k");
  refused({in, "-o", to, "--type", "q8_0", "--keep", "b.weight"}, 2, "GPTC0101", "did you mean a.weight?");
  refused({in, "-o", to, "--type", "q8_0", "--threads", "-1"}, 2, "GPTC0101", "--threads");
  // What is read.
  refused({w.path("none.gguf"), "-o", to, "--type", "q8_0"}, 3, "GPTC0301", "none.gguf");
  refused({text, "-o", to, "--type", "q8_0"}, 3, "GPTC0301", "is a file, and no GGUF file");
  refused({w.path("empty"), "-o", to, "--type", "q8_0"}, 3, "GPTC0301", "no plan, no run and no checkpoint");
  refused({"/dev/zero", "-o", to, "--type", "q8_0"}, 3, "GPTC0301", "it is a device");
  writeFile(w.path("short.gguf"), whole.substr(0, whole.size() - 100));
  refused({w.path("short.gguf"), "-o", to, "--type", "q8_0"}, 5, "GPTC0504", "lies outside the file");
  // What is written.
  refused({in, "-o", in, "--type", "q8_0"}, 4, "GPTC0401", "is the file that is read");
  fs::create_hard_link(in, w.path("hard.gguf"));
  refused({in, "-o", w.path("hard.gguf"), "--type", "q8_0"}, 4, "GPTC0401", "is the file that is read");
  fs::create_symlink(w.path("elsewhere.gguf"), w.path("link.gguf"));
  refused({in, "-o", w.path("link.gguf"), "--type", "q8_0"}, 4, "GPTC0401", "no GGUF file that an export wrote");
  refused({in, "-o", text, "--type", "q8_0"}, 4, "GPTC0401", "no GGUF file that an export wrote");
  refused({in, "-o", w.path("empty"), "--type", "q8_0"}, 4, "GPTC0401", "no GGUF file that an export wrote");
  refused({in, "-o", w.path("none/to.gguf"), "--type", "q8_0"}, 4, "GPTC0401", "none/to.gguf");
  if (::geteuid() != 0) {  // who may write anywhere
    fs::permissions(w.path("empty"), fs::perms::owner_read | fs::perms::owner_exec);
    refused({in, "-o", w.path("empty/to.gguf"), "--type", "q8_0"}, 4, "GPTC0401", "empty/to.gguf");
    fs::permissions(w.path("empty"), fs::perms::owner_all);
  }
  EXPECT_EQ(readFile(in), whole);
  EXPECT_EQ(readFile(text), "text");
  EXPECT_FALSE(fs::exists(to));
  EXPECT_FALSE(fs::exists(w.path("elsewhere.gguf")));
  // Another program's file is not replaced; what this command wrote is.
  fs::copy(in, w.path("theirs.gguf"));
  refused({in, "-o", w.path("theirs.gguf"), "--type", "q8_0"}, 4, "GPTC0401", "no GGUF file that an export wrote");
  quantize(in, to, "q8_0");
  quantize(in, to, "q4_0");
  EXPECT_EQ(GgufFile(to).find("a.weight")->format->type, GgmlType::q4_0);
  // No number: a value in the middle.
  std::string bad = whole;
  bad.replace(size_t(GgufFile(in).find("a.weight")->at) + 40, 4, std::string("\x00\x00\xc0\x7f", 4));
  writeFile(w.path("bad.gguf"), bad);
  refused({w.path("bad.gguf"), "-o", to, "--type", "q8_0"}, 3, "GPTC0204", "tensor a.weight has values that are not");
  EXPECT_EQ(GgufFile(to).find("a.weight")->format->type, GgmlType::q4_0) << "the file before stays";
  quantize(w.path("bad.gguf"), to, "fp32");
}

}  // namespace
