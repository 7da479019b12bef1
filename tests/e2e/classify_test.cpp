// gptrun classify: labels of texts, against what transformers computes (labels/*/golden.json, by hf/make.py).
#include "tests/support/harness.h"
#include "tests/support/words_tokenizer.h"

#include "support/json.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>
#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string models = GPTC_SOURCE_DIR "/tests/e2e/labels/";

struct ClassifyTest : ::testing::Test {
  /// A copy of a model, with a tokenizer.
  std::string folder(const std::string &name) {
    const std::string to = w.path(name);
    fs::create_directories(to);
    for (const char *file : {"config.json", "model.safetensors"})
      fs::copy(models + name + "/" + file, to, fs::copy_options::overwrite_existing);
    writeFile(to + "/tokenizer.json", tokenizerOf31Words(true));
    return to;
  }
  static json goldenOf(const std::string &name) { return json::parse(readFile(models + name + "/golden.json")); }
  /// The texts of these ids, without the tokens around them.
  static std::vector<std::string> textsOf(const json &golden) {
    std::vector<std::string> texts;
    for (const json &one : golden) {
      std::vector<std::string> words;
      for (const int64_t id : one.at("ids"))
        words.push_back(fmt::format("t{}", id));
      texts.push_back(llvm::join(words.begin() + 1, words.end() - 1, " "));
    }
    return texts;
  }
  std::string fileOf(const std::vector<std::string> &texts) {
    writeFile(w.path("texts.txt"), llvm::join(texts, "\n") + "\n");
    return w.path("texts.txt");
  }
  Result run(std::vector<std::string> args) {
    args.insert(args.begin(), "classify");
    return w.gptrun(args);
  }
  /// The lines of a run that must succeed, as text.
  std::vector<std::string> linesOf(std::vector<std::string> args) {
    const Result r = run(std::move(args));
    EXPECT_EQ(r.code, 0) << r.output;
    std::vector<std::string> lines;
    for (llvm::StringRef line : llvm::split(llvm::StringRef(r.output), '\n'))
      if (line.starts_with("{"))
        lines.push_back(line.str());
    return lines;
  }
  void refuses(const std::vector<std::string> &args, int code, const std::string &message) {
    const Result r = run(args);
    EXPECT_EQ(r.code, code) << message << "\n" << r.output;
    EXPECT_NE(r.output.find(message), std::string::npos) << message << "\n" << r.output;
  }

  Workplace w;
};

/// The likeliest, and whether all scores are the softmax of the logits.
size_t bestOf(const json &line, const std::vector<std::string> &names, const std::vector<double> &logits) {
  size_t best = 0;
  double sum = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    best = logits[i] > logits[best] ? i : best;
    sum += std::exp(logits[i]);
  }
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_NEAR(line.at("scores").at(names[i]).get<double>(), std::exp(logits[i]) / sum, 1e-6) << line;
  return best;
}

TEST_F(ClassifyTest, LogitsAreThoseOfTransformers) {
  const std::pair<const char *, std::vector<std::string>> all[] = {{"two", {"dull", "bright"}},
                                                                   {"five", {"a", "b", "c\u00e9", "d \"e\"", "f"}}};
  for (const auto &[name, names] : all) {
    const json golden = goldenOf(name);
    const std::vector<std::string> lines =
        linesOf({folder(name), "--precision", "fp32", "--logits", "--texts", fileOf(textsOf(golden))});
    ASSERT_EQ(lines.size(), golden.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const json line = json::parse(lines[i]);
      EXPECT_EQ(line.at("text"), i);
      EXPECT_EQ(line.at("tokens"), golden[i].at("ids").size());
      const std::vector<double> want = golden[i].at("logits"), got = line.at("logits");
      ASSERT_EQ(got.size(), names.size());
      double difference = 0, norm = 0;
      for (size_t j = 0; j < want.size(); ++j) {
        difference += std::pow(got[j] - want[j], 2);
        norm += std::pow(want[j], 2);
      }
      EXPECT_LE(std::sqrt(difference / norm), 1e-5) << name << " " << i;
      const size_t best = bestOf(line, names, got);
      EXPECT_EQ(line.at("label"), names[best]);
      EXPECT_EQ(line.at("score"), line.at("scores").at(names[best]));
    }
  }
}

TEST_F(ClassifyTest, ATextHasTheSameBitsAloneAndAmongOthers) {
  const std::vector<std::string> texts = textsOf(goldenOf("five"));
  for (const char *precision : {"fp32", "bf16"}) {
    const std::string dir = folder("five");
    auto logits = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {dir, "--precision", precision, "--logits"});
      std::vector<std::string> all;
      for (const std::string &line : linesOf(std::move(more)))
        all.push_back(json::parse(line).at("logits").dump());
      return all;
    };
    const std::vector<std::string> together = logits({"--texts", fileOf(texts)});
    ASSERT_EQ(together.size(), texts.size());
    EXPECT_EQ(logits({"--batch", "3", "--threads", "1", "--texts", fileOf(texts)}), together) << precision;
    for (const size_t i : {0, 1, 9, 18})
      EXPECT_EQ(logits({"--text", texts[i]}), std::vector{together[i]}) << precision << " " << i;
  }
}

TEST_F(ClassifyTest, LinesAreAsAskedFor) {
  const std::string dir = folder("five"), text = textsOf(goldenOf("five"))[3];
  const json all = json::parse(linesOf({dir, "--text", text}).at(0));
  EXPECT_FALSE(all.contains("logits"));
  EXPECT_EQ(all.at("scores").size(), 5u);
  const std::string top = linesOf({dir, "--top", "2", "--text", text}).at(0);
  const json two = json::parse(top);
  EXPECT_EQ(two.at("scores").size(), 2u);
  EXPECT_EQ(two.at("label"), all.at("label"));
  EXPECT_NE(top.find("\"scores\":{" + all.at("label").dump() + ":"), std::string::npos) << top;  // best first
  EXPECT_EQ(json::parse(linesOf({dir, "--top", "9", "--text", text}).at(0)).at("scores").size(), 5u);
  EXPECT_TRUE(linesOf({dir, "--texts", fileOf({})}).size() == 1);  // an empty line is a text
  // Longer texts are cut, and end as others do.
  const Result cut = run({dir, "--context", "4", "--text", "t7 t8 t9 t10"});
  EXPECT_NE(cut.output.find("note: 1 text cut to 4 tokens"), std::string::npos) << cut.output;
  EXPECT_NE(cut.output.find(linesOf({dir, "--context", "4", "--text", "t7 t8"}).at(0)), std::string::npos);
  // Its vectors are made as before.
  EXPECT_EQ(w.gptrun({"embed", dir, "--text", text}).code, 0);
}

TEST_F(ClassifyTest, WhatIsNoClassifierIsExplained) {
  const std::string dir = folder("two"), text = "t4 t5";
  refuses({dir}, 2, "which texts?");
  refuses({dir, "--text", text, "--texts", "-"}, 2, "--text");
  refuses({dir, "--context", "2", "--text", text}, 2, "the tokenizer puts 2 around each");
  refuses({dir, "--context", "21", "--text", text}, 2, "has a context of 20 tokens");
  refuses({w.path("nowhere"), "--text", text}, 3, "there is no ");
  refuses({w.path("two") + "/tokenizer.json", "--text", text}, 3, "is a file, and no GGUF file");
  writeFile(w.path("file.gguf"), std::string("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));
  refuses({w.path("file.gguf"), "--text", text}, 3, "names no labels");
  fs::create_directory_symlink(dir, w.path("two\xff"));
  refuses({w.path("two\xff"), "--text", text}, 2, "is not UTF-8");
  const json good = json::parse(readFile(dir + "/config.json"));
  auto with = [&](const char *key, const json &value, int code, const std::string &message) {
    json changed = good;
    changed[key] = value;
    if (value == "none")
      changed.erase(key);
    writeFile(dir + "/config.json", changed.dump());
    refuses({dir, "--text", text}, code, message);
  };
  with("architectures", "none", 3, "no classifier of texts, architectures is missing");
  with("architectures", {"BertForMaskedLM"}, 3, "`gptrun embed` makes vectors");
  with("architectures", {"RobertaForSequenceClassification"}, 3, "the classifier RobertaForSequenceClassification");
  with("problem_type", "regression", 3, "problem_type is \"regression\"");
  with("problem_type", "multi_label_classification", 3, "problem_type is ");
  with("num_labels", 3, 5, "num_labels is 3, id2label has 2 names");
  with("id2label", {{"0", "a"}, {"2", "b"}}, 5, "id2label has 2 names, and one for \"2\"");
  with("id2label", {{"0", "a"}, {"01", "b"}}, 5, "one for \"01\"");
  with("id2label", {{"0", "a"}, {"1", "a"}}, 5, "the name \"a\" twice");
  with("id2label", {{"0", "a"}, {"1", ""}}, 5, "id2label names 1 \"\"");
  with("id2label", {{"0", "a"}, {"1", 7}}, 5, "id2label names 1 7");
  with("id2label", json::object(), 5, "id2label is no object of ");
  with("id2label", {{"0", "a"}}, 3, "regression");
  with("label2id", {{"dull", 1}, {"bright", 0}}, 5, "label2id is not the reverse");
  with("label2id", 3, 5, "label2id is not the reverse");
  // A classifier of other sizes than the weights, and none at all.
  json more = good;
  more["id2label"]["2"] = "third";
  more.erase("label2id");
  writeFile(dir + "/config.json", more.dump());
  refuses({dir, "--text", text}, 5, "classifier.weight");
  fs::copy(GPTC_SOURCE_DIR "/tests/e2e/hf/bert/model.safetensors", dir, fs::copy_options::overwrite_existing);
  writeFile(dir + "/config.json", good.dump());
  refuses({dir, "--text", text}, 5, "pooler.dense.weight");
  // A weight that is not finite, of the classifier: its last number.
  std::string weights = readFile(models + "two/model.safetensors");
  const size_t size = size_t(uint8_t(weights[0])) | size_t(uint8_t(weights[1])) << 8;
  const json header = json::parse(weights.substr(8, size));
  const size_t end = header.at("classifier.bias").at("data_offsets").at(1);
  weights.replace(8 + size + end - 4, 4, std::string("\0\0\xc0\x7f", 4));
  writeFile(dir + "/model.safetensors", weights);
  refuses({dir, "--text", text}, 4, "not finite");
}

}  // namespace
