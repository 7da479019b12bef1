// Models that learn labels of texts: their graphs, by the interpreter, and their keys.
#include "frontends/hf_families.h"
#include "frontends/label_names.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tests/support/interpreter_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

/// A model in BERT's form that learns three labels.
Config labelledConfig() {
  Config c;
  c.name = "small";
  c.model.nLayer = 2;
  c.model.nHead = c.model.nKvHead = 2;
  c.model.nEmbd = 8;
  c.model.ffnDim = 16;
  c.model.vocabSize = 11;
  c.model.blockSize = 6;
  c.model.causal = false;
  c.model.embeddingNorm = c.model.headTransform = c.model.headBias = true;
  c.model.normPosition = NormPosition::post;
  c.model.tokenTypes = 3;
  c.model.labels = 3;
  c.train.microBatch = 2;
  c.train.globalBatchTokens = 24;
  c.train.accumulate = 2;
  return c;
}

using Types = std::vector<std::string>;

/// "-" for a state that is missing.
Types typesOf(const Module &m, const std::vector<std::string> &names) {
  Types types;
  for (const std::string &name : names)
    types.push_back(m.state(name) ? m.state(name)->type.str() : "-");
  return types;
}

/// Texts of 4, 1 and 6 tokens, in rows of 6.
struct LabelledArgs {
  std::vector<double> tokens, labels, documents, types;
  explicit LabelledArgs(int64_t rows)
      : tokens(size_t(6 * rows)), documents(size_t(12 * rows)), types(size_t(6 * rows)) {
    const size_t lengths[] = {4, 1, 6};
    for (size_t b = 0; b < size_t(rows); ++b) {
      labels.push_back(double(b % 3));
      for (size_t t = 0; t < 6; ++t) {
        const bool text = t < lengths[b % 3];
        tokens[6 * b + t] = text ? double((5 * b + 3 * t) % 11) : 0;
        types[6 * b + t] = text && t > 1;
        documents[2 * (6 * b + t)] = text ? 0 : double(t);
        documents[2 * (6 * b + t) + 1] = text ? double(lengths[b % 3]) : double(t + 1);
      }
    }
  }
  std::vector<Tensor> args() const {
    const int64_t rows = int64_t(labels.size());
    return {integers(Type(DType::i32, {rows, 6}), tokens), integers(Type(DType::i32, {rows, 1}), labels),
            integers(Type(DType::i64, {rows, 6, 2}), documents), integers(Type(DType::i32, {rows, 6}), types)};
  }
};

/// States with biases and gains away from 0 and 1, so that every term counts.
StateMap unevenStates(const Module &m) {
  StateMap states = initialStates(m, 5);
  for (const auto &s : m.states)
    if (s->type.rank() == 1)
      for (size_t i = 0; i < states[s->name].data.size(); ++i)
        states[s->name].data[i] += 0.3 * std::sin(double(i + s->name.size()));
  return states;
}

TEST(LabelledModel, LabelsAreLearnedByTheFirstToken) {
  Config c = labelledConfig();
  c.train.microBatch = 3;
  const auto m = buildModel(c);
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  ASSERT_EQ(m->functions.size(), 2u) << "it continues no text";
  EXPECT_EQ(m->attrs.getInt("labels"), 3);
  EXPECT_FALSE(m->attrs.has("mask_token"));
  EXPECT_EQ(typesOf(*m, {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias",
                         "lm_head.bias", "head.dense.weight"}),
            (Types{"f32[8,8]", "f32[8]", "f32[8,3]", "f32[3]", "-", "-"}));
  const std::vector<Type> results = m->function("eval")->results();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].str(), "f32[3,1]");
  EXPECT_EQ(results[1].str(), "f32[3,1,3]");
  StateMap states = unevenStates(*m);
  LabelledArgs given(3);
  const std::vector<Tensor> evaluated = interpret(*m->function("eval"), given.args(), states);
  std::vector<Tensor> args = given.args();
  args.push_back(Tensor::scalar(0, DType::i64));
  double sum = 0;
  for (size_t b = 0; b < 3; ++b) {
    const double *logits = &evaluated[1].data[3 * b];
    const double nll = std::log(std::exp(logits[0]) + std::exp(logits[1]) + std::exp(logits[2])) - logits[b];
    EXPECT_NEAR(evaluated[0].data[b], nll, 1e-12) << b;
    sum += nll;
  }
  EXPECT_NEAR(interpret(*m->function("forward"), args, states)[0].data[0], sum, 1e-12);

  const auto logitsOf = [&] { return interpret(*m->function("eval"), given.args(), states)[1].data; };
  const std::vector<double> before = logitsOf();
  given.tokens[5] = 9, given.types[5] = 2, given.tokens[6 + 3] = 4;  // behind the texts
  EXPECT_EQ(logitsOf(), before) << "what is no text changes nothing";
  given.types[2] = 0;
  const std::vector<double> typed = logitsOf();
  EXPECT_GT(std::abs(typed[0] - before[0]), 1e-9) << "the first token sees the types of its text";
  EXPECT_EQ(std::vector(typed.begin() + 3, typed.end()), std::vector(before.begin() + 3, before.end()));

  // The functions of `gptrun classify` give the same of a text alone.
  c.model.blockSize = 6;
  const auto embeds = buildModel(c, {.embed = true, .labels = 3});
  std::vector<double> tokens(16, 0), positions(16, 0), documents(32), types(16, 0);
  for (size_t i = 0; i < 16; ++i) {
    documents[2 * i] = i < 6 ? 0 : double(i);
    documents[2 * i + 1] = i < 6 ? 6 : double(i + 1);
    if (i < 6)
      tokens[i] = given.tokens[12 + i], types[i] = given.types[12 + i], positions[i] = double(i);
  }
  const Tensor text[] = {integers(Type(DType::i32, {1, 16}), tokens), integers(Type(DType::i64, {16}), positions),
                         integers(Type(DType::i64, {1, 16, 2}), documents), integers(Type(DType::i32, {1, 16}), types)};
  const std::vector<double> vectors = interpret(*embeds->function("embed_16"), text, states)[0].data;
  Tensor first(Type(DType::f32, {16, 8}));
  std::copy(vectors.begin(), vectors.begin() + 8, first.data.begin());
  const Tensor firsts[] = {first};
  const std::vector<double> alone = interpret(*embeds->function("labels"), firsts, states)[0].data;
  for (size_t l = 0; l < 3; ++l)
    EXPECT_NEAR(alone[l], typed[6 + l], 1e-12);
}

/// Evaluates three texts with targets %y. Returns losses and logits, and checks that the sum that trains is theirs.
std::vector<Tensor> evaluatedWith(const Module &m, const Tensor &y, const StateMap &given) {
  StateMap states = given;
  std::vector<Tensor> args = LabelledArgs(3).args();
  args[1] = y;
  const std::vector<Tensor> evaluated = interpret(*m.function("eval"), args, states);
  args.push_back(Tensor::scalar(0, DType::i64));
  double sum = 0;
  for (const double loss : evaluated[0].data)
    sum += loss;
  EXPECT_NEAR(interpret(*m.function("forward"), args, states)[0].data[0], sum, 1e-12 * std::max(1.0, sum));
  return evaluated;
}

// PyTorch's binary_cross_entropy_with_logits, whose mean over labels and texts transformers takes.
TEST(LabelledModel, SeveralLabelsAreLearnedEachByItself) {
  Config c = labelledConfig();
  c.train.microBatch = 3;
  c.model.problemType = ProblemType::multi_label_classification;
  const auto m = buildModel(c);
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  EXPECT_EQ(m->attrs.getString("problem_type"), "multi_label_classification");
  const Type targets(DType::i32, {3, 3});
  EXPECT_EQ(m->function("eval")->body.args[1]->type.str(), targets.str());
  StateMap states = unevenStates(*m);
  const std::vector<double> right = {1, 0, 1, 0, 0, 0, 1, 1, 1};
  const std::vector<Tensor> evaluated = evaluatedWith(*m, integers(targets, right), states);
  EXPECT_EQ(evaluated[0].type.str(), "f32[3,3]");
  EXPECT_EQ(evaluated[1].type.str(), "f32[3,1,3]");
  for (size_t i = 0; i < right.size(); ++i) {
    const double z = evaluated[1].data[i], p = 1 / (1 + std::exp(-z));
    EXPECT_NEAR(evaluated[0].data[i], -right[i] * std::log(p) - (1 - right[i]) * std::log(1 - p), 1e-12) << i;
  }
  // A text that is none has no loss, and a large logit has a finite one.
  states["classifier.bias"].data = {2000, -2000, 0};
  const std::vector<double> some = {0, 1, 0, 1, 0, 0, -1, -1, -1};
  const std::vector<double> losses = evaluatedWith(*m, integers(targets, some), states)[0].data;
  EXPECT_NEAR(losses[0], 2000, 10);
  EXPECT_NEAR(losses[1], 2000, 10);
  EXPECT_NEAR(losses[3], 0, 1e-12);
  EXPECT_NEAR(losses[4], 0, 1e-12);
  EXPECT_EQ(std::vector(losses.begin() + 6, losses.end()), std::vector<double>(3, 0));
}

// PyTorch's mse_loss.
TEST(LabelledModel, ARegressionLearnsSquaredErrors) {
  Config c = labelledConfig();
  c.train.microBatch = 3;
  c.model.problemType = ProblemType::regression;
  c.model.labels = 1;
  const auto m = buildModel(c);
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  EXPECT_EQ(typesOf(*m, {"classifier.weight", "classifier.bias"}), (Types{"f32[8,1]", "f32[1]"}));
  Tensor y(Type(DType::f32, {3, 1}));
  EXPECT_EQ(m->function("eval")->body.args[1]->type.str(), y.type.str());
  y.data = {3.5, -0.25, 1};
  const std::vector<Tensor> evaluated = evaluatedWith(*m, y, unevenStates(*m));
  EXPECT_EQ(evaluated[0].type.str(), "f32[3,1]");
  EXPECT_EQ(evaluated[1].type.str(), "f32[3,1,1]");
  for (size_t b = 0; b < 3; ++b)
    EXPECT_NEAR(evaluated[0].data[b], std::pow(evaluated[1].data[b] - y.data[b], 2), 1e-12) << b;
}

/// A model in ModernBERT's form that learns three labels.
Config modernConfig(ClassifierPooling pooling) {
  Config c = labelledConfig();
  ModelConfig &m = c.model;
  m.normPosition = NormPosition::pre;
  m.position = Position::rope;
  m.activation = Activation::geglu;
  m.ffnDim = 12;
  m.bias = m.firstNorm = m.headBias = false;
  m.tokenTypes = 0;
  m.window = 3;
  m.layersWithoutWindow = {0};
  m.classifierPooling = pooling;
  c.train.microBatch = 3;
  return c;
}

/// x W + b of a row.
std::vector<double> linearOf(const std::vector<double> &x, const StateMap &states, const std::string &name, bool bias) {
  const std::vector<double> &w = states.find(name + ".weight")->second.data;
  const size_t out = w.size() / x.size();
  std::vector<double> y = bias ? states.find(name + ".bias")->second.data : std::vector<double>(out);
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t j = 0; j < out; ++j)
      y[j] += x[i] * w[i * out + j];
  return y;
}

// What @embed gives for a text alone, pooled, and what transformers' ModernBertPredictionHead makes of it, by hand.
TEST(LabelledModel, ModernBertsHeadReadsTheFirstTokenOrTheMean) {
  for (const ClassifierPooling pooling : {ClassifierPooling::cls, ClassifierPooling::mean}) {
    const Config c = modernConfig(pooling);
    const auto m = buildModel(c), embeds = buildModel(c, {.embed = true, .labels = 3});
    EXPECT_EQ(verify(*m), std::vector<std::string>{});
    EXPECT_EQ(typesOf(*m, {"head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias",
                           "classifier.weight", "classifier.bias", "pooler.dense.weight", "lm_head.weight"}),
              (Types{"f32[8,8]", "-", "f32[8]", "-", "f32[8,3]", "f32[3]", "-", "-"}));
    StateMap states = unevenStates(*m);
    const LabelledArgs given(3);
    const std::vector<Tensor> evaluated = evaluatedWith(*m, given.args()[1], states);
    const size_t lengths[] = {4, 1, 6};
    for (size_t b = 0; b < 3; ++b) {
      std::vector<double> tokens(16, 0), positions(16, 0), documents(32);
      for (size_t i = 0; i < 16; ++i) {
        const bool text = i < lengths[b];
        tokens[i] = text ? given.tokens[6 * b + i] : 0;
        positions[i] = text ? double(i) : 0;
        documents[2 * i] = text ? 0 : double(i);
        documents[2 * i + 1] = text ? double(lengths[b]) : double(i + 1);
      }
      const Tensor text[] = {integers(Type(DType::i32, {1, 16}), tokens), integers(Type(DType::i64, {16}), positions),
                             integers(Type(DType::i64, {1, 16, 2}), documents)};
      const std::vector<double> vectors = interpret(*embeds->function("embed_16"), text, states)[0].data;
      const size_t pooled = pooling == ClassifierPooling::mean ? lengths[b] : 1;
      std::vector<double> x(8);
      for (size_t i = 0; i < 8 * pooled; ++i)
        x[i % 8] += vectors[i] / double(pooled);
      Tensor rows(Type(DType::f32, {16, 8}));
      std::copy(x.begin(), x.end(), rows.data.begin());
      const Tensor firsts[] = {rows};
      const std::vector<double> alone = interpret(*embeds->function("labels"), firsts, states)[0].data;

      std::vector<double> y = linearOf(x, states, "head.dense", false);
      double mean = 0, square = 0;
      for (double &one : y) {
        one *= 0.5 * std::erfc(-one / std::sqrt(2.0));
        mean += one / 8;
      }
      for (const double one : y)
        square += (one - mean) * (one - mean) / 8;
      for (size_t i = 0; i < 8; ++i)
        y[i] = (y[i] - mean) / std::sqrt(square + c.model.normEps) * states["head.norm.weight"].data[i];
      y = linearOf(y, states, "classifier", true);
      for (size_t l = 0; l < 3; ++l) {
        EXPECT_NEAR(alone[l], y[l], 1e-12) << nameOf(pooling) << b;
        EXPECT_NEAR(evaluated[1].data[3 * b + l], y[l], 1e-12) << nameOf(pooling) << b;
      }
    }
  }
}

TEST(LabelledModel, DropoutOfLabelsHasItsOwnStreams) {
  Config c = labelledConfig();
  c.model.dropout = 0.25;
  const auto m = buildModel(c);
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  std::multiset<int64_t> streams;
  for (const Op &op : m->function("forward")->body)
    if (op.isOneOf(OpKind::dropout, OpKind::attention))
      streams.insert(op.attrs.getInt("stream"));
  // Of the embedding, of three sites in two layers, and of the pooler.
  EXPECT_EQ(streams.size(), 8u);
  EXPECT_EQ(std::set<int64_t>(streams.begin(), streams.end()).size(), 8u);
  for (const Op &op : m->function("eval")->body)
    EXPECT_FALSE(op.is(OpKind::dropout) || op.attrs.getFloat("p") != 0) << print(op);
}

class LabelKeys : public testing::Test {
protected:
  void SetUp() override {
    fs::create_directories(dir);
    std::ofstream(dir / "labels.json") << textOfLabels({{"no", "yes", "so"}});
    std::ofstream(dir / "tokenizer.json") << "{}";
  }
  void TearDown() override { fs::remove_all(dir); }
  /// A model in BERT's form, whose tokenizer has 31 tokens.
  static Config load(std::vector<std::string> more, ConfigPurpose purpose = ConfigPurpose::run) {
    std::vector<std::string> settings = {
        "model.n_layer=1",           "model.n_head=2",           "model.n_embd=8",
        "model.block_size=4",        "model.causal=false",       "model.activation=gelu",
        "model.embedding_norm=true", "model.norm_position=post", "model.token_types=2",
        "model.head_transform=true", "model.head_bias=true"};
    settings.insert(settings.end(), more.begin(), more.end());
    return loadConfig("", settings, [](const std::string &) { return 31; }, purpose);
  }
  /// The messages; "" if nothing is thrown.
  static std::string problem(const std::vector<std::string> &more) {
    try {
      load(more);
    } catch (const UserError &e) {
      return e.what();
    }
    return "";
  }
  std::string file(const char *name) const { return "'" + (dir / name).string() + "'"; }
  const fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-label-keys-{}", ::getpid());
};

TEST_F(LabelKeys, NamesSayHowMany) {
  const std::string names = "data.labels=" + file("labels.json"),
                    tokenizer = "data.tokenizer=" + file("tokenizer.json");
  Config c = load({names, tokenizer});
  EXPECT_EQ(c.model.labels, 3);
  EXPECT_EQ(c.labels, (std::vector<std::string>{"no", "yes", "so"}));
  EXPECT_EQ(c.model.vocabSize, 31) << "there is no [MASK]";
  EXPECT_EQ(load({tokenizer}).model.vocabSize, 32);
  EXPECT_EQ(load({names, "model.labels=3", "model.vocab_size=31"}).model.labels, 3);
  // A plan is made anew from what it says of the model.
  std::vector<std::string> again = modelSettings(c);
  const Config same = loadConfig("", again, [](const std::string &) { return 0; });
  EXPECT_EQ(same.model.labels, 3);
  EXPECT_EQ(same.labels, (std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2"}));
}

TEST_F(LabelKeys, TheFileSaysWhatIsLearned) {
  const std::string names = "data.labels=" + file("score.json"), vocab = "model.vocab_size=31";
  std::ofstream(dir / "score.json") << textOfLabels({{"score"}, ProblemType::regression});
  std::ofstream(dir / "some.json") << textOfLabels({{"a"}, ProblemType::multi_label_classification});
  const Config c = load({names, vocab});
  EXPECT_EQ(c.model.problemType, ProblemType::regression);
  EXPECT_EQ(c.model.labels, 1);
  EXPECT_EQ(c.labels, std::vector<std::string>{"score"});
  EXPECT_EQ(loadConfig("", modelSettings(c), [](const std::string &) { return 0; }).model.problemType,
            ProblemType::regression);
  const nlohmann::json described = nlohmann::json::parse(describeForHf(c.model, "float32", {}, c.labels).config);
  EXPECT_EQ(described.at("problem_type"), "regression");
  EXPECT_EQ(described.at("id2label"), (nlohmann::json{{"0", "score"}}));
  const std::string several = "model.problem_type=multi_label_classification", number = "model.problem_type=regression";
  EXPECT_EQ(load({"data.labels=" + file("some.json"), vocab}).model.problemType,
            ProblemType::multi_label_classification);
  EXPECT_EQ(load({vocab, "model.labels=1", several}).model.problemType, ProblemType::multi_label_classification);
  EXPECT_EQ(load({vocab, "model.labels=1", number}).labels, std::vector<std::string>{"LABEL_0"});
  EXPECT_NE(problem({names, vocab, several}).find("model.problem_type = \"multi_label_classification\", and"),
            std::string::npos);
  EXPECT_NE(problem({vocab, number}).find("model.labels = 0"), std::string::npos);
  EXPECT_NE(problem({vocab, number, "model.labels=2"}).find("a regression learns one number"), std::string::npos);
  EXPECT_NE(problem({vocab, several}).find("there are no labels"), std::string::npos);
  const std::string unknown = problem({vocab, "model.labels=2", "model.problem_type=ranking"});
  for (const char *word :
       {"\"ranking\"", "\"single_label_classification\"", "\"multi_label_classification\"", "\"regression\""})
    EXPECT_NE(unknown.find(word), std::string::npos) << unknown;
}

TEST_F(LabelKeys, WithoutLabelsNothingIsSaidOfThem) {
  const std::string said = problem({"model.vocab_size=31", "model.classifier_pooling=mean"});
  EXPECT_NE(said.find("model.classifier_pooling = \"mean\" is for labels, and the model learns none"),
            std::string::npos)
      << said;
  EXPECT_NE(problem({"model.vocab_size=31", "model.problem_type=multi_label_classification"}), "");
  EXPECT_NE(problem({"model.vocab_size=31", "model.problem_type=regression"}), "");
  EXPECT_EQ(problem({"model.vocab_size=31"}), "");
  // As `gptc config` writes the defaults.
  EXPECT_EQ(problem({"model.vocab_size=31", "model.classifier_pooling=cls",
                     "model.problem_type=single_label_classification"}),
            "");
  EXPECT_EQ(problem({"model.vocab_size=31", "model.labels=2", "model.problem_type=single_label_classification"}), "");
  EXPECT_EQ(problem({"model.vocab_size=31", "model.labels=2", "model.classifier_pooling=cls"}), "");
}

// The folder of a plan names its block_size in place of the length to which its texts were cut.
TEST_F(LabelKeys, ALengthThatIsReplacedIsSaid) {
  const std::string names = "data.labels=" + file("labels.json"),
                    tokenizer = "data.tokenizer=" + file("tokenizer.json");
  for (const auto &[length, notes] : {std::pair(3, 1u), {4, 0u}, {512, 0u}}) {
    std::ofstream(dir / "tokenizer_config.json") << fmt::format("{{\"model_max_length\": {}}}", length);
    const Config c = load({names, tokenizer});
    ASSERT_EQ(c.warnings.size(), notes) << length;
    if (notes) {
      EXPECT_NE(c.warnings[0].find("model_max_length = 3"), std::string::npos) << c.warnings[0];
      EXPECT_NE(c.warnings[0].find("model.block_size = 4"), std::string::npos) << c.warnings[0];
    }
  }
  std::ofstream(dir / "tokenizer_config.json") << "{\"model_max_length\": 3}";
  EXPECT_TRUE(load({tokenizer}).warnings.empty()) << "a model of tokens learns all of them";
  std::ofstream(dir / "tokenizer_config.json") << "{\"model_max_length\": \"long\"}";
  EXPECT_NE(problem({names, tokenizer}).find("model_max_length is \"long\""), std::string::npos);
}

// The weights of an encoder that learned tokens here have a row for [MASK].
TEST_F(LabelKeys, AnEncoderOfItsOwnIsABeginning) {
  const std::string names = "data.labels=" + file("labels.json"),
                    tokenizer = "data.tokenizer=" + file("tokenizer.json"),
                    from = "model.init_from='ckpt:" + dir.string() + "'";
  EXPECT_EQ(load({names, tokenizer, from}).model.vocabSize, 31) << "nothing says so";
  const HfDescription encoder = describeForHf(load({tokenizer}).model, "float32", {});
  ASSERT_EQ(encoder.family, "bert");
  std::ofstream(dir / "config.json") << encoder.config;
  EXPECT_EQ(load({names, tokenizer, from}).model.vocabSize, 32);
  EXPECT_NE(problem({names, tokenizer, from, "model.vocab_size=31"}).find("vocab_size"), std::string::npos);
  std::ofstream(dir / "config.json") << "{";
  EXPECT_NE(problem({names, tokenizer, from}), "") << "what is no description is named, and no fault of ours";
}

// A forecast needs the number of labels, not their names.
TEST_F(LabelKeys, AForecastWithoutTheFileSaysWhatItNeeds) {
  const auto said = [&](std::vector<std::string> more) -> std::string {
    more.insert(more.end(), {"model.vocab_size=31", "data.labels=" + file("none.json")});
    try {
      return std::to_string(load(more, ConfigPurpose::forecast).model.labels);
    } catch (const UserError &e) {
      return e.diagnostics[0].message + " | " + e.diagnostics[0].help.at(0);
    }
  };
  EXPECT_EQ(said({"model.labels=5"}), "5");
  const std::string without = said({});
  EXPECT_NE(without.find("none.json"), std::string::npos) << without;
  EXPECT_NE(without.find("write model.labels"), std::string::npos) << without;
}

TEST_F(LabelKeys, ModernBertsFormLearnsLabels) {
  const std::vector<std::string> modern = {"model.vocab_size=31",    "model.labels=2",          "model.position=rope",
                                           "model.activation=geglu", "model.norm_position=pre", "model.bias=false",
                                           "model.first_norm=false", "model.token_types=0",     "model.head_bias=true",
                                           "model.rope_theta=160000"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), modern.begin(), modern.end());
    return more;
  };
  EXPECT_EQ(problem(modern), "");
  const Config c = load(with({"model.classifier_pooling=mean"}));
  const auto config = nlohmann::json::parse(describeForHf(c.model, "float32", {}, c.labels).config);
  EXPECT_EQ(config.at("architectures"), nlohmann::json::array({"ModernBertForSequenceClassification"}));
  EXPECT_EQ(config.at("classifier_pooling"), "mean");
  EXPECT_EQ(loadConfig("", modelSettings(c), [](const std::string &) { return 0; }).model.classifierPooling,
            ClassifierPooling::mean);
  EXPECT_NE(problem(with({"model.embedding_norm=false"})).find("differs from the second: embedding_norm"),
            std::string::npos);
  EXPECT_NE(problem({"model.vocab_size=31", "model.labels=2", "model.classifier_pooling=mean"})
                .find("BERT's classifier reads the first token"),
            std::string::npos);
  EXPECT_NE(problem(with({"model.classifier_pooling=last"})).find("classifier_pooling"), std::string::npos);
}

TEST_F(LabelKeys, WhatContradictsIsRefused) {
  const std::string vocab = "model.vocab_size=31";
  EXPECT_EQ(problem({vocab, "model.labels=2"}), "");
  EXPECT_NE(problem({vocab, "model.labels=1"}).find("a single label is always right"), std::string::npos);
  EXPECT_NE(problem({vocab, "model.labels=2", "data.labels=" + file("labels.json")}).find("model.labels = 2"),
            std::string::npos);
  EXPECT_NE(problem({vocab, "data.labels=" + file("none.json")}).find("none.json"), std::string::npos);
  EXPECT_NE(problem({vocab, "data.labels=" + file("tokenizer.json")}).find("this is no list of texts"),
            std::string::npos);
  for (const char *other :
       {"model.causal=true", "model.norm_position=pre", "model.position=rope", "model.activation=swiglu"})
    EXPECT_NE(problem({vocab, "model.labels=2", other}).find("models of BERT's form"), std::string::npos) << other;
  EXPECT_NE(problem({vocab, "model.labels=2", "compile.target=cuda:sm_90a"}).find("built for CPUs"), std::string::npos);
  EXPECT_NE(problem({vocab, "model.labels=2", "parallel.tensor=2"}).find("parallel.tensor"), std::string::npos);
  EXPECT_NE(problem({vocab, "model.labels=2", "parallel.tensor=auto", "parallel.data=2"}).find("parallel.tensor"),
            std::string::npos);
  EXPECT_EQ(problem({vocab, "model.labels=2", "parallel.data=2"}), "");
  EXPECT_NE(problem({vocab, "model.labels=2", "parallel.logical_tensor=2"}).find("parallel.logical_tensor"),
            std::string::npos);
}

}  // namespace
