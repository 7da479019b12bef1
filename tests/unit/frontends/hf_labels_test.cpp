// What config.json says of labels and of the scores of a classifier.
#include "frontends/hf_labels.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

class HfLabelsTest : public testing::Test {
protected:
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }
  HfLabels readText(const std::string &text) const {
    std::ofstream(dir / "config.json") << text;
    return readHfLabels(dir.string());
  }
  HfLabels read(const json &more) const {
    json config = {{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}};
    for (const auto &[key, value] : more.items())
      config[key] = value;
    return readText(config.dump());
  }
  /// "208 config.json: problem_type is ...": the code and the message, without the folder; "" if nothing is thrown.
  template <typename F> std::string problemOf(F call) const {
    try {
      call();
    } catch (const UserError &e) {
      EXPECT_FALSE(e.diagnostics[0].help.empty()) << e.what();
      std::string said = e.diagnostics[0].message;
      for (size_t at; (at = said.find(dir.string() + "/")) != std::string::npos;)
        said.erase(at, dir.string().size() + 1);
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      return fmt::format("{} {}", int(e.diagnostics[0].code), said);
    }
    return "";
  }
  std::string problem(const json &more) const {
    return problemOf([&] { read(more); });
  }
  const fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-hf-labels-{}", ::getpid());
};

TEST_F(HfLabelsTest, HaveNamesOrNumbers) {
  EXPECT_EQ(read(json::object()).names, (Names{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(read({{"num_labels", 3}}).names, (Names{"LABEL_0", "LABEL_1", "LABEL_2"}));
  EXPECT_EQ(read({{"_num_labels", 1}}).names, Names{"LABEL_0"});
  // Ten and more are in no order of texts.
  json many = json::object();
  for (int i = 0; i < 12; ++i)
    many[std::to_string(i)] = std::string(1, char('a' + i));
  EXPECT_EQ(read({{"id2label", many}, {"num_labels", 12}}).names.at(10), "k");
  for (const json &wrong : {json(0), json(-1), json("2"), json(2.0), json((1 << 16) + 1)})
    EXPECT_TRUE(problem({{"num_labels", wrong}}).starts_with("504 config.json: num_labels is ")) << wrong;
}

TEST_F(HfLabelsTest, ModernBertSaysWhatItReads) {
  const json modern = {{"model_type", "modernbert"}, {"architectures", {"ModernBertForSequenceClassification"}}};
  const auto with = [&](const char *key, const json &value) {
    json config = modern;
    config[key] = value;
    return config;
  };
  EXPECT_EQ(read(modern).pooling, ClassifierPooling::cls);
  EXPECT_EQ(read(with("classifier_pooling", "cls")).pooling, ClassifierPooling::cls);
  EXPECT_EQ(read(with("classifier_pooling", "mean")).pooling, ClassifierPooling::mean);
  EXPECT_EQ(readClassifierPooling(dir.string()), ClassifierPooling::mean);
  EXPECT_EQ(problem(with("classifier_pooling", "last")),
            fmt::format("{} config.json: classifier_pooling is \"last\"", int(ErrorCode::NotBuiltYet)));
  EXPECT_EQ(read({{"classifier_pooling", "mean"}}).pooling, ClassifierPooling::cls) << "BERT has none";
  EXPECT_EQ(problem(with("model_type", "bert")).substr(0, 4), fmt::format("{} ", int(ErrorCode::CheckpointDamaged)));
}

TEST_F(HfLabelsTest, OfOneNameAreNamedWithTheirNumbers) {
  EXPECT_EQ(problem({{"id2label", {{"0", "a"}, {"1", "b"}, {"2", "a"}}}}),
            "504 config.json: id2label has the name \"a\" twice, for 0 and 2");
  EXPECT_TRUE(problem({{"id2label", {{"0", ""}}}}).starts_with("504 config.json: id2label names 0 \"\""));
}

TEST_F(HfLabelsTest, ProblemsDecideOnScores) {
  const HfLabels usual = read(json::object()), one = read({{"num_labels", 1}}),
                 several = read({{"problem_type", "multi_label_classification"}}),
                 two = read({{"problem_type", "regression"}}),
                 single = read({{"problem_type", "single_label_classification"}}),
                 oneOfSeveral = read({{"problem_type", "multi_label_classification"}, {"num_labels", 1}});
  EXPECT_TRUE(usual.scores == LabelScores::softmax && usual.problem == ProblemType::single_label_classification);
  EXPECT_TRUE(single.scores == LabelScores::softmax && single.problem == ProblemType::single_label_classification);
  EXPECT_TRUE(one.scores == LabelScores::identity && one.problem == ProblemType::regression);
  EXPECT_TRUE(two.scores == LabelScores::identity && two.problem == ProblemType::regression && two.names.size() == 2);
  EXPECT_TRUE(several.scores == LabelScores::sigmoid && several.problem == ProblemType::multi_label_classification);
  EXPECT_TRUE(oneOfSeveral.scores == LabelScores::sigmoid &&
              oneOfSeveral.problem == ProblemType::multi_label_classification);
  EXPECT_EQ(problem({{"problem_type", "ranking"}}), "208 config.json: problem_type is \"ranking\"");
  EXPECT_EQ(problem({{"problem_type", 3}}), "208 config.json: problem_type is 3");
  EXPECT_EQ(problem({{"problem_type", "single_label_classification"}, {"num_labels", 1}}),
            "209 config.json: problem_type is single_label_classification, of one label, which is then always right");
}

TEST_F(HfLabelsTest, CrossEncodersNameTheirFunction) {
  const char *const sigmoid = "torch.nn.modules.activation.Sigmoid", *const identity =
                                                                         "torch.nn.modules.linear.Identity";
  const auto scores = [&](json more) {
    more["num_labels"] = 1;
    return read(more).scores;
  };
  const json newer = {{"sentence_transformers", {{"activation_fn", sigmoid}, {"version", "4.0.1"}}}};
  EXPECT_EQ(scores(newer), LabelScores::sigmoid);
  EXPECT_EQ(scores({{"sentence_transformers", {{"version", "4.0.1"}}}}), LabelScores::identity);
  EXPECT_EQ(scores({{"sbert_ce_default_activation_function", sigmoid}}), LabelScores::sigmoid);
  EXPECT_EQ(scores({{"sbert_ce_default_activation_function", identity}}), LabelScores::identity);
  EXPECT_EQ(scores({{"sbert_ce_default_activation_function", "torch.nn.Sigmoid"}, {"problem_type", "regression"}}),
            LabelScores::sigmoid);
  // It is that of scores; labels of which one is right have probabilities.
  EXPECT_EQ(read({{"sbert_ce_default_activation_function", identity}}).scores, LabelScores::softmax);
  EXPECT_EQ(problem({{"num_labels", 1}, {"sbert_ce_default_activation_function", "torch.nn.modules.activation.Tanh"}}),
            "208 config.json: sbert_ce_default_activation_function is \"torch.nn.modules.activation.Tanh\"");
  EXPECT_EQ(problem({{"num_labels", 1}, {"sentence_transformers", {{"activation_fn", 3}}}}),
            "208 config.json: sentence_transformers.activation_fn is 3");
  std::ofstream(dir / "config_sentence_transformers.json") << json{{"activation_fn", sigmoid}}.dump();
  EXPECT_EQ(scores(json::object()), LabelScores::sigmoid);
  EXPECT_EQ(scores(newer), LabelScores::sigmoid);
  EXPECT_TRUE(problem({{"num_labels", 1}, {"sbert_ce_default_activation_function", identity}})
                  .starts_with("209 config.json: sbert_ce_default_activation_function is \"torch.nn.modules.linear."
                               "Identity\", but config_sentence_transformers.json: activation_fn is "));
  std::ofstream(dir / "config_sentence_transformers.json") << "[]";
  EXPECT_EQ(problem({{"num_labels", 1}}), "504 config_sentence_transformers.json: it is no JSON object");
}

TEST_F(HfLabelsTest, HalvesOfCharactersAreFound) {
  const auto problemOfText = [&](const std::string &text) { return problemOf([&] { readText(text); }); };
  EXPECT_EQ(problemOfText("{\n  \"id2label\": {\n    \"0\": \"\\udc00\"\n  }\n}\n"),
            "504 config.json: line 3, column 16: a \\u escape is half of a character (a surrogate without its other "
            "one)");
  for (const char *text : {R"({"a": "\ud83d"})", R"({"a": "\ud83d\u0041"})", R"({"a": "\ud83dx"})"}) {
    const std::string said = problemOfText(text);
    EXPECT_TRUE(said.starts_with("504 config.json: column ")) << said;
    EXPECT_NE(said.find("is half of a character"), std::string::npos) << said;
  }
  EXPECT_EQ(problemOfText("{\"a\": \"\\ud83d\\ude00\""), "504 config.json: it is no JSON object");
}

}  // namespace
