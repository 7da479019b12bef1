// gptrun classify: labels of texts, against what transformers computes (labels/*/golden.json, by hf/make.py).
#include "tests/support/harness.h"
#include "tests/support/word_models.h"

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
  /// A copy of a model, with its tokenizer or one of single texts.
  std::string folder(const std::string &name) {
    const std::string to = w.path(name);
    copyWordModel(models + name, to, true);
    return to;
  }
  /// Changes a JSON file of a folder.
  static void change(const std::string &file, const json &changes) {
    json content = json::parse(readFile(file));
    content.merge_patch(changes);
    writeFile(file, content.dump());
  }
  /// The texts and pairs of a golden as a file for --jsonl.
  std::string objectsOf(const json &golden) {
    std::string lines;
    for (const json &one : golden) {
      json line = {{"text", one.at("text")}};
      if (one.contains("text_pair"))
        line["text_pair"] = one.at("text_pair");
      lines += line.dump() + "\n";
    }
    writeFile(w.path("texts.jsonl"), lines);
    return w.path("texts.jsonl");
  }
  static json goldenOf(const std::string &name) { return json::parse(readFile(models + name + "/golden.json")); }
  /// The texts of these ids, without the tokens around them.
  static std::vector<std::string> textsOf(const json &golden) {
    std::vector<std::string> texts;
    for (const json &one : golden)
      texts.push_back(textBetween(one.at("ids")));
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
  /// The logits of each text as text, bit for bit.
  std::vector<std::string> logitsBy(const std::string &dir, const std::string &precision,
                                    std::vector<std::string> more) {
    more.insert(more.begin(), {dir, "--precision", precision, "--logits"});
    std::vector<std::string> all;
    for (const std::string &line : linesOf(std::move(more)))
      all.push_back(json::parse(line).at("logits").dump());
    return all;
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

/// The logits of a line of results: those of text i of a golden, within 1e-5 of their norm, or of `least` if that is
/// more.
std::vector<double> logitsOf(const json &line, size_t i, const json &golden, double least) {
  EXPECT_EQ(line.at("text"), i);
  EXPECT_EQ(line.at("tokens"), golden[i].at("ids").size());
  const std::vector<double> want = golden[i].at("logits");
  std::vector<double> got = line.at("logits");
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t j = 0; j < std::min(got.size(), want.size()); ++j) {
    difference += std::pow(got[j] - want[j], 2);
    norm += std::pow(want[j], 2);
  }
  EXPECT_LE(std::sqrt(difference), 1e-5 * std::max(least, std::sqrt(norm))) << line;
  return got;
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
      const std::vector<double> got = logitsOf(line, i, golden, 0);
      ASSERT_EQ(got.size(), names.size());
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
    auto logits = [&](const std::vector<std::string> &more) { return logitsBy(dir, precision, more); };
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

double sigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

TEST_F(ClassifyTest, PairsAreReadAndScoredAsByTransformers) {
  for (const std::string name : {"pair", "score", "several"}) {
    const json golden = goldenOf(name);
    const std::string dir = folder(name), file = objectsOf(golden);
    const json config = json::parse(readFile(dir + "/config.json"));
    const std::vector<std::string> args = {dir, "--precision", "fp32", "--logits", "--jsonl", "--texts", file};
    const std::vector<std::string> lines = linesOf(args);
    ASSERT_EQ(lines.size(), golden.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const json line = json::parse(lines[i]);
      const std::vector<double> got = logitsOf(line, i, golden, 1);
      const json &labels = config.at("id2label"), &scores = line.at("scores");
      ASSERT_EQ(scores.size(), labels.size());
      ASSERT_EQ(got.size(), labels.size());
      std::vector<std::string> names;
      for (size_t j = 0; j < labels.size(); ++j)
        names.push_back(labels.at(std::to_string(j)));
      if (name == "score") {  // its number is the score, and names nothing
        EXPECT_EQ(line.at("score"), line.at("logits")[0]);
        EXPECT_EQ(scores.at("LABEL_0"), line.at("score"));
        EXPECT_FALSE(line.contains("label"));
        continue;
      }
      size_t best = 0;
      if (name == "pair") {
        best = bestOf(line, names, got);
      } else {
        for (size_t j = 0; j < names.size(); ++j) {
          EXPECT_NEAR(scores.at(names[j]).get<double>(), sigmoidOf(got[j]), 1e-6) << line;
          best = got[j] > got[best] ? j : best;
        }
      }
      EXPECT_EQ(line.at("label"), names[best]);
      EXPECT_EQ(line.at("score"), scores.at(names[best]));
    }
    const int64_t most = name == "pair" ? 16 : 20;
    EXPECT_NE(run(args).output.find(fmt::format("cut to {} tokens", most)), std::string::npos) << name;
  }
}

TEST_F(ClassifyTest, LabelsAboveAThresholdAreRight) {
  const std::string dir = folder("several"), text = textsOf(goldenOf("several"))[3];
  const auto labelsBy = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {dir, "--text", text});
    const json line = json::parse(linesOf(more).at(0));
    return std::pair(line.at("labels"), line.at("scores"));
  };
  const json scores = labelsBy({}).second;
  const auto above = [&](double threshold) {
    json right = json::array();
    for (const char *name : {"toxic", "insult", "threat", "spam"})
      if (scores.at(name).get<double>() > threshold)
        right.push_back(name);
    return right;
  };
  EXPECT_EQ(labelsBy({}).first, above(0.5));
  const double second = scores.at("toxic").get<double>() - 1e-3;
  EXPECT_NE(above(0.8), above(0.5));
  for (const double threshold : {0.0, 0.8, second, 1.0})
    EXPECT_EQ(labelsBy({"--threshold", fmt::format("{}", threshold)}).first, above(threshold)) << threshold;
  EXPECT_EQ(labelsBy({"--top", "1"}).first, above(0.5)) << "whatever is shown of the scores";
  refuses({dir, "--text", text, "--threshold", "1.5"}, 2, "--threshold");
  refuses({folder("two"), "--text", text, "--threshold", "0.5"}, 2,
          "--threshold: the model's problem_type is single_label_classification");
  EXPECT_FALSE(json::parse(linesOf({folder("two"), "--text", text}).at(0)).contains("labels"));
}

TEST_F(ClassifyTest, APairHasTheSameBitsAloneAndAmongOthers) {
  const json golden = goldenOf("pair");
  const std::string dir = folder("pair"), file = objectsOf(golden);
  for (const char *precision : {"fp32", "bf16"}) {
    auto logits = [&](const std::vector<std::string> &more) { return logitsBy(dir, precision, more); };
    const std::vector<std::string> together = logits({"--jsonl", "--texts", file});
    ASSERT_EQ(together.size(), golden.size());
    EXPECT_EQ(logits({"--batch", "3", "--threads", "1", "--jsonl", "--texts", file}), together) << precision;
    for (const size_t i : {5, 9, 15})
      EXPECT_EQ(logits({"--text", golden[i].at("text"), "--text-pair", golden[i].at("text_pair")}),
                std::vector{together[i]})
          << precision << " " << i;
    // Text by text the same words are something else.
    EXPECT_NE(logits({"--text",
                      golden[5].at("text").get<std::string>() + " " + golden[5].at("text_pair").get<std::string>()}),
              std::vector{together[5]});
  }
}

TEST_F(ClassifyTest, LinesOfObjectsHaveNumbersOrIds) {
  const std::string dir = folder("pair"), file = w.path("texts.jsonl");
  writeFile(file, "{\"text\": \"t4\", \"id\": \"a\\n\u00e9\"}\n{\"text\": \"t4\", \"text_pair\": null, \"id\": null}\n"
                  "{\"id\": {\"b\": [1, 2.5]}, \"text_pair\": \"\", \"text\": \"t4\"}\n");
  const std::vector<std::string> lines = linesOf({dir, "--jsonl", "--texts", file});
  ASSERT_EQ(lines.size(), 3u);
  json first = json::parse(lines[0]), second = json::parse(lines[1]), third = json::parse(lines[2]);
  EXPECT_EQ(first.at("id"), "a\n\u00e9");
  EXPECT_FALSE(first.contains("text"));
  EXPECT_EQ(second.at("text"), 1);
  EXPECT_FALSE(second.contains("id"));
  EXPECT_EQ(third.at("id"), json::parse("{\"b\": [1, 2.5]}"));
  EXPECT_EQ(first.at("scores"), second.at("scores"));
  EXPECT_EQ(first.at("scores"), third.at("scores")) << "an empty text_pair is none";
  // Without --jsonl lines are texts.
  EXPECT_NE(json::parse(linesOf({dir, "--texts", file}).at(0)).at("scores"), first.at("scores"));
  // Lines before a bad one are done, and it is named.
  const std::pair<const char *, const char *> bad[] = {
      {"t4", "this is no JSON"},
      {"[]", "this is no object"},
      {"{}", "text: is missing"},
      {"{\"text\": [\"t4\"]}", "text: must be a text"},
      {"{\"text\": \"t4\", \"text_pair\": 3}", "text_pair: must be a text"},
      {"{\"text\": \"t4\", \"text_pairs\": \"t4\"}", "\"text_pairs\": unknown; is it text_pair?"},
      {"{\"text\": \"\\ud83d\"}", "column 17: a \\u escape is half of a character"}};
  for (const auto &[line, why] : bad) {
    writeFile(file, fmt::format("{{\"text\": \"t4\"}}\n{}\n", line));
    const Result r = run({dir, "--jsonl", "--texts", file});
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find("{\"text\":0,"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find(fmt::format("texts.jsonl, line 2: {}", why)), std::string::npos) << why << "\n" << r.output;
  }
  refuses({dir, "--jsonl", "--text", "t4"}, 2, "--texts");
  refuses({dir, "--text-pair", "t4", "--texts", file}, 2, "--text");
}

TEST_F(ClassifyTest, PairsThatAModelOrTokenizerHasNotAreRefused) {
  const std::vector<std::string> pair = {"--text", "t4", "--text-pair", "t5"};
  auto with = [&](const std::string &dir) {
    std::vector<std::string> args = {dir};
    args.insert(args.end(), pair.begin(), pair.end());
    return args;
  };
  refuses(with(folder("two")), 3, "does not say how a pair of texts is read");
  // Types of a tokenizer of other models, and a model that has one type.
  const std::string dir = folder("pair");
  json tokenizer = json::parse(readFile(dir + "/tokenizer.json"));
  for (json &part : tokenizer.at("post_processor").at("pair"))
    for (json &of : part)
      of["type_id"] = of.at("type_id").get<int>() * 2;
  writeFile(dir + "/tokenizer.json", tokenizer.dump());
  refuses(with(dir), 3, "the tokenizer gives tokens the type 2, and the model has 2 types");
  EXPECT_EQ(run({dir, "--text", "t4"}).code, 0);
  change(dir + "/tokenizer_config.json", {{"model_input_names", {"input_ids"}}});
  EXPECT_EQ(run(with(dir)).code, 0) << "without types";
  change(dir + "/tokenizer_config.json", {{"model_max_length", "long"}});
  refuses(with(dir), 5, "tokenizer_config.json: model_max_length is \"long\"");
}

TEST_F(ClassifyTest, ScoresOfCrossEncodersAreWhatTheySay) {
  const std::string dir = folder("score");
  const json golden = goldenOf("score"), &one = golden[8];
  auto lineOf = [&] {
    return json::parse(
        linesOf({dir, "--precision", "fp32", "--logits", "--text", one.at("text"), "--text-pair", one.at("text_pair")})
            .at(0));
  };
  change(dir + "/config.json",
         {{"problem_type", nullptr},
          {"sentence_transformers", {{"activation_fn", "torch.nn.modules.activation.Sigmoid"}, {"version", "4.0.1"}}}});
  const json line = lineOf();
  EXPECT_NEAR(line.at("score").get<double>(), sigmoidOf(one.at("logits")[0]), 1e-5) << line;
  EXPECT_NEAR(line.at("logits")[0].get<double>(), one.at("logits")[0].get<double>(), 1e-5) << line;
  change(dir + "/config.json", {{"sentence_transformers", {{"activation_fn", "torch.nn.modules.linear.Identity"}}}});
  EXPECT_EQ(lineOf().at("score"), line.at("logits")[0]);
  change(dir + "/config.json", {{"sentence_transformers", {{"activation_fn", "torch.nn.modules.activation.Tanh"}}}});
  refuses({dir, "--text", "t4"}, 3, "activation_fn is \"torch.nn.modules.activation.Tanh\"");
  // A regression of several numbers has no score that stands for all.
  const std::string several = folder("several");
  change(several + "/config.json", {{"problem_type", "regression"}});
  const json numbers = json::parse(linesOf({several, "--logits", "--top", "4", "--text", "t4"}).at(0));
  EXPECT_FALSE(numbers.contains("label") || numbers.contains("score")) << numbers;
  EXPECT_EQ(numbers.at("scores").at("toxic"), numbers.at("logits")[0]);
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
  with("problem_type", "ranking", 3, "problem_type is \"ranking\"");
  const std::string modern = w.path("modern");  // another family's layers
  fs::copy(GPTC_SOURCE_DIR "/tests/e2e/hf/modernbert", modern);
  json mixed = json::parse(readFile(modern + "/config.json"));
  mixed["architectures"] = {"BertForSequenceClassification"};
  writeFile(modern + "/config.json", mixed.dump());
  writeFile(modern + "/tokenizer.json", tokenizerOf31Words(true));
  refuses({modern, "--text", text}, 5, "model_type \"modernbert\"");
  mixed["architectures"] = {"ModernBertForSequenceClassification"};
  writeFile(modern + "/config.json", mixed.dump());
  refuses({modern, "--text", text}, 5, "classifier.weight");
  with("num_labels", 3, 5, "num_labels is 3, id2label has 2 names");
  with("id2label", {{"0", "a"}, {"2", "b"}}, 5, "id2label has 2 names, and one for \"2\"");
  with("id2label", {{"0", "a"}, {"01", "b"}}, 5, "one for \"01\"");
  with("id2label", {{"0", "a"}, {"1", "a"}}, 5, "config.json: id2label has the name \"a\" twice, for 0 and 1");
  with("id2label", {{"0", "a"}, {"1", ""}}, 5, "id2label names 1 \"\"");
  with("id2label", {{"0", "a"}, {"1", 7}}, 5, "id2label names 1 7");
  with("id2label", json::object(), 5, "id2label is no object of ");
  with("id2label", {{"0", "a"}}, 5, "label2id is not the reverse");
  with("label2id", {{"dull", 1}, {"bright", 0}}, 5, "label2id is not the reverse");
  with("label2id", 3, 5, "label2id is not the reverse");
  // Half of a character, as Python writes it.
  std::string half = readFile(models + "two/config.json");
  half.replace(half.find("dull"), 4, "\\udc00");
  writeFile(dir + "/config.json", half);
  refuses({dir, "--text", text}, 5, "config.json: line 15, column 16: a \\u escape is half of a character");
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
