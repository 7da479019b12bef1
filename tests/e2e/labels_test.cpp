// Training with labels: from texts to a classifier that `gptrun classify` and transformers take.
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/pass.h"
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/headless.h"
#include "tests/support/json_lines.h"
#include "tests/support/oracles.h"
#include "tests/support/word_models.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string here = GPTC_SOURCE_DIR "/tests/e2e/";

struct LabelsTest : ::testing::Test {
  static constexpr int texts = 24;
  Workplace w;

  /// A copy of a model with a tokenizer that puts t2 and t3 around texts.
  std::string folder(const std::string &of) {
    const std::string to = w.path(fs::path(of).filename());
    copyWordModel(here + of, to, true);
    return to;
  }
  /// Text i: a word that tells the label, t7 or t9, among others.
  static std::string text(int i) {
    std::vector<std::string> words;
    for (int j = 0; j < i / 2 % 4; ++j)
      words.push_back(fmt::format("t{}", 10 + (i * 5 + j * 3) % 12));
    words.insert(words.begin() + i % int(words.size() + 1), i % 2 ? "t7" : "t9");
    return fmt::format("{}", fmt::join(words, " "));
  }
  static std::string label(int i) { return i % 2 ? "bright" : "dull"; }
  static constexpr const char *several = "multi_label_classification", *regression = "regression";
  /// The same as several labels, of which one is always right, and as a number.
  static json labelOf(int i, const std::string &problem) {
    if (problem == several)
      return i % 2 ? json::array({"toxic"}) : json::array({"spam", "toxic"});
    return problem == regression ? json(i % 2 ? 1.5 : -0.25) : json(label(i));
  }
  std::string writeTexts(const std::string &problem = "") {
    std::string lines;
    for (int i = 0; i < texts; ++i)
      lines += json{{"text", text(i)}, {"label", labelOf(i, problem)}}.dump() + "\n";
    writeFile(w.path("texts.jsonl"), lines);
    return w.path("texts.jsonl");
  }

  void good(const Result &r) { ASSERT_EQ(r.code, 0) << r.output; }
  void refuses(const Result &r, int code, const std::string &why) {
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << why << "\n" << r.output;
  }

  /// Prepares the texts and writes model.toml, to begin with a folder. "": one label is right.
  void prepare(const std::string &dir, const std::string &labels, const std::string &problem = "") {
    std::vector<std::string> args = {
        "data",        "prepare", writeTexts(problem), "--tokenizer", dir + "/tokenizer.json",
        "--labels",    labels,    "--val-fraction",    "0",           "--out",
        w.path("data")};
    if (!problem.empty())
      args.insert(args.end(), {"--problem-type", problem});
    good(w.gptc(args));
    const Result r =
        w.gptc({"import", dir, "--labels", w.path("data/labels.json"), "--force", "-o", w.path("model.toml")});
    good(r);
  }
  std::string compile(const std::string &name, const std::vector<std::string> &settings) {
    std::vector<std::string> args = {"compile", w.path("model.toml"), "-o", w.path(name)};
    std::vector<std::string> all = {"model.block_size=8",
                                    fmt::format("train.global_batch_tokens={}", 8 * texts),
                                    "train.micro_batch=24",
                                    "optimizer.lr=0.01",
                                    "optimizer.schedule=constant",
                                    "optimizer.warmup_steps=0",
                                    "optimizer.weight_decay=0",
                                    "eval.every=0",
                                    "eval.steps=0",
                                    "checkpoint.every=0",
                                    "log.every=1",
                                    "log.mfu_peak=1e11",
                                    "data.val='" + w.path("data/train.bin") + "'"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string &s : all)
      args.insert(args.end(), {"--set", s});
    good(w.gptc(args));
    return w.path(name);
  }
  /// A member of what a classifier says of the texts.
  std::vector<json> saidBy(std::vector<std::string> args, const char *member) {
    std::string lines;
    for (int i = 0; i < texts; ++i)
      lines += text(i) + "\n";
    writeFile(w.path("texts.txt"), lines);
    args.insert(args.begin(), "classify");
    args.insert(args.end(), {"--texts", w.path("texts.txt"), "--precision", "fp32"});
    if (fs::exists(args[1] + "/planned.gir"))
      args.resize(args.size() - 2);
    const Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    std::vector<json> found;
    for (const json &line : gptc::test::objectLines(r.output))
      found.push_back(line.at(member));
    return found;
  }
  std::vector<std::string> labelsBy(const std::vector<std::string> &args) {
    const std::vector<json> all = saidBy(args, "label");
    return {all.begin(), all.end()};
  }
  /// Of how many texts the label is the one to be learned.
  static int right(const std::vector<std::string> &labels) {
    int n = 0;
    for (size_t i = 0; i < labels.size(); ++i)
      n += labels[i] == label(int(i));
    return n;
  }
  /// The line of the log of the last evaluation.
  static json lastMeasures(const std::string &out) {
    json last = json::object();
    for (const json &line : gptc::test::jsonLines(readFile(out + "/log.jsonl")))
      if (line.contains("val_loss"))
        last = line;
    return last;
  }
};

// A classifier with the right names, that it had before; one without a head; and one of many labels is refused.
TEST_F(LabelsTest, AKeywordIsLearned) {
  for (const std::string of : {"labels/two", "hf/bert", "hf/modernbert"}) {
    const std::string dir = folder(of), name = fs::path(dir).filename();
    const bool head = of == "labels/two";
    prepare(dir, head ? dir : "auto");
    const bool modern = of == "hf/modernbert";
    const std::string plan =
        compile(name + ".plan", {"train.steps=400", "train.micro_batch=8", "optimizer.schedule=linear",
                                 modern ? "optimizer.lr=0.003" : "optimizer.lr=0.01"});
    const std::string out = w.path(name + "-out");
    const Result trained = w.gptrun({plan, "--out-dir", out});
    good(trained);
    for (const char *layer : {"pooler.dense", "classifier"})
      EXPECT_EQ(trained.output.find(fmt::format("has no {}: it begins at random", layer)) == std::string::npos,
                head || (modern && layer == std::string("pooler.dense")))
          << trained.output;
    const double accuracy = lastMeasures(out).value("val_accuracy", 0.0);
    EXPECT_GT(accuracy, 0.9) << trained.output;  // by chance: half
    const std::string shown = fmt::format("accuracy {:.4f}", accuracy);
    EXPECT_NE(trained.output.find(shown), std::string::npos) << trained.output;
    const Result evaluated = w.gptrun({"eval", plan, "--out-dir", out, "--data", w.path("data/train.bin")});
    good(evaluated);
    EXPECT_NE(evaluated.output.find(shown), std::string::npos) << evaluated.output;

    const std::string latest = out + "/checkpoints/latest", mine = w.path(name + "-mine");
    const json config = json::parse(readFile(latest + "/config.json"));
    EXPECT_EQ(config.at("architectures"),
              json::array({modern ? "ModernBertForSequenceClassification" : "BertForSequenceClassification"}));
    EXPECT_EQ(config.at("problem_type"), "single_label_classification");
    const json names = head ? json{{"0", "dull"}, {"1", "bright"}} : json{{"0", "bright"}, {"1", "dull"}};
    EXPECT_EQ(config.at("id2label"), names);
    good(w.gptc({"export", out, "-o", mine}));
    const std::vector<std::string> said = labelsBy({plan, "--out-dir", out});
    EXPECT_EQ(right(said), std::lround(accuracy * texts));
    EXPECT_EQ(labelsBy({latest}), said);
    EXPECT_EQ(labelsBy({mine}), said);
    good(w.gptrun({"embed", plan, "--out-dir", out, "--text", "t7"}));
    refuses(w.gptrun({"sample", plan, "--out-dir", out, "--prompt", "t7"}), 3, "a classifier of texts cannot continue");
    // What was made here is a beginning again, its head included.
    good(w.gptc({"import", mine, "--labels", w.path("data/labels.json"), "--force", "-o", w.path("again.toml")}));
  }
}

// An encoder as transformers saves it alone: all of the head is new.
TEST_F(LabelsTest, AnEncoderAloneIsABeginning) {
  const std::pair<const char *, std::vector<std::string>> heads[] = {
      {"hf/bert", {"pooler.dense", "classifier"}}, {"hf/modernbert", {"head.dense", "head.norm", "classifier"}}};
  for (const auto &[of, layers] : heads) {
    const std::string dir = folder(of), file = dir + "/model.safetensors", name = fs::path(of).filename();
    writeFile(file, withoutHead(readFile(file)));
    prepare(dir, "auto");
    const std::string plan = compile(name + ".plan", {"train.steps=2"}), out = plan + "-out";
    refuses(w.gptrun({"eval", plan, "--out-dir", out}), 3, "has no " + layers[0] + ".weight");
    const Result trained = w.gptrun({plan, "--out-dir", out});
    good(trained);
    for (const std::string &layer : layers)
      EXPECT_NE(trained.output.find(fmt::format("has no {}: it begins at random", layer)), std::string::npos)
          << trained.output;
    good(w.gptrun({"eval", plan, "--out-dir", out, "--data", w.path("data/train.bin")}));
  }
}

TEST_F(LabelsTest, SeveralLabelsAndNumbersAreLearned) {
  const auto has = [](const json &names, const char *name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string dir = folder("hf/bert");
  for (const std::string problem : {several, regression}) {
    prepare(dir, problem == several ? "spam,threat,toxic" : "score", problem);
    const std::string plan = compile(problem, {"train.steps=400", "train.micro_batch=8", "optimizer.schedule=linear"}),
                      out = plan + "-out";
    good(w.gptrun({plan, "--out-dir", out}));
    const Result evaluated = w.gptrun({"eval", plan, "--out-dir", out, "--data", w.path("data/train.bin")});
    good(evaluated);
    EXPECT_NE(evaluated.output.find("  of 24 texts  ("), std::string::npos) << evaluated.output;
    const json last = lastMeasures(out);
    const std::string latest = out + "/checkpoints/latest";
    EXPECT_EQ(json::parse(readFile(latest + "/config.json")).at("problem_type"), problem);
    if (problem == several) {
      // "spam" is right of half of the texts: without a look at them F1 is 0.86 at most, and the accuracy 0.83.
      EXPECT_GT(last.at("val_micro_f1").get<double>(), 0.9);
      EXPECT_GT(last.at("val_accuracy").get<double>(), 0.9);
      const std::vector<json> said = saidBy({plan, "--out-dir", out}, "labels");
      ASSERT_EQ(said.size(), size_t(texts));
      int right = 0;  // of three labels each
      for (int i = 0; i < texts; ++i)
        for (const char *name : {"spam", "threat", "toxic"})
          right += has(said[size_t(i)], name) == has(labelOf(i, problem), name);
      EXPECT_EQ(right, std::lround(last.at("val_accuracy").get<double>() * 3 * texts));
      EXPECT_EQ(saidBy({latest}, "labels"), said);
    } else {
      // The loss is the mean of squared errors.
      EXPECT_NEAR(last.at("val_mse").get<double>(), last.at("val_loss").get<double>(), 1e-5);
      constexpr double variance = 0.875 * 0.875;  // of the numbers, which are 1.5 or -0.25: without a look at the texts
      EXPECT_LT(last.at("val_mse").get<double>(), variance / 2);
      EXPECT_GT(last.at("val_pearson").get<double>(), 0.8);
      const std::vector<json> scores = saidBy({plan, "--out-dir", out}, "score");
      ASSERT_EQ(scores.size(), size_t(texts));
      double squares = 0;
      for (int i = 0; i < texts; ++i)
        squares += std::pow(scores[size_t(i)].get<double>() - labelOf(i, problem).get<double>(), 2);
      EXPECT_NEAR(squares / texts, last.at("val_mse").get<double>(), 1e-5);
      EXPECT_EQ(saidBy({latest}, "score").size(), scores.size());
    }
    // A head is a beginning for its own problem alone.
    good(w.gptc({"import", latest, "--labels", w.path("data/labels.json"), "--force", "-o", w.path("again.toml")}));
    writeFile(w.path("other.json"), "[\"a\", \"b\", \"c\"]");
    refuses(w.gptc({"import", latest, "--labels", w.path("other.json"), "--force", "-o", w.path("again.toml")}), 3,
            "the head there is of " + problem);
    // And so is a file of texts.
    good(w.gptc({"data", "prepare", writeTexts(), "--tokenizer", dir + "/tokenizer.json", "--labels", "auto", "--out",
                 w.path("other")}));
    refuses(w.gptrun({"eval", plan, "--out-dir", out, "--data", w.path("other/train.bin")}), 3,
            "its labels are for single_label_classification, and the model's for " + problem);
  }
}

TEST_F(LabelsTest, OtherProblemsKeepTheirBits) {
  const std::string dir = folder("hf/bert");
  for (const std::string problem : {several, regression}) {
    prepare(dir, problem == several ? "spam,threat,toxic" : "score", problem);
    const auto named = [&](const std::string &name) { return problem + "-" + name; };
    const std::string whole = compile(named("whole"), {"train.steps=6", "model.dropout=0.1"}),
                      state = w.train(whole, named("whole-out"));
    ASSERT_FALSE(state.empty());
    EXPECT_EQ(
        w.train(compile(named("5"), {"train.steps=6", "model.dropout=0.1", "train.micro_batch=3"}), named("5-out")),
        state);
    // Measures too.
    const std::string sharded = compile(named("sharded"),
                                        {"train.steps=4", "train.micro_batch=6", "parallel.logical_shards=2"}),
                      both = w.train(sharded, named("one-rank"));
    EXPECT_EQ(w.train(sharded, named("two-ranks"), {"--ranks-per-node", "2"}), both);
    EXPECT_EQ(logLines(w.path(named("two-ranks"))), logLines(w.path(named("one-rank"))));
  }
}

TEST_F(LabelsTest, AHeadThatIsNotTrainedIsNamed) {
  prepare(folder("hf/bert"), "auto");
  const std::string written = readFile(w.path("model.toml")), train = w.path("data/train.bin"),
                    val = w.path("data/val.bin");
  EXPECT_NE(written.find(fmt::format("\ntrain = \"{}\"", train)), std::string::npos) << written;
  EXPECT_NE(written.find(fmt::format("\n# val = \"{}\"", val)), std::string::npos) << "there is none";
  const std::string plan = compile("plan", {"train.steps=1", "model.block_size=12", "train.global_batch_tokens=288"}),
                    out = w.path("out");
  const std::string untrained = "the head has not been trained";
  refuses(w.gptrun({"eval", plan, "--out-dir", out}), 3, untrained);
  refuses(w.gptrun({"classify", plan, "--out-dir", out, "--text", "t7"}), 3, untrained);
  const Result trained = w.gptrun({plan, "--out-dir", out});
  good(trained);
  EXPECT_NE(trained.output.find("the longest text has 6 tokens, and each takes model.block_size = 12"),
            std::string::npos)
      << trained.output;
  good(w.gptrun({"eval", plan, "--out-dir", out}));
}

TEST_F(LabelsTest, NothingButTheTextsChangesBits) {
  prepare(folder("hf/bert"), "auto");
  const std::vector<std::string> steps = {"train.steps=12", "model.dropout=0.1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), steps.begin(), steps.end());
    return more;
  };
  const std::string whole = compile("whole", steps), state = w.train(whole, "whole-out");
  ASSERT_FALSE(state.empty());
  EXPECT_EQ(w.train(whole, "one-thread", {"--threads", "1"}), state);
  for (const int micro : {8, 3, 1})
    EXPECT_EQ(w.train(compile(fmt::format("micro-{}", micro), with({fmt::format("train.micro_batch={}", micro)})),
                      fmt::format("micro-{}-out", micro)),
              state)
        << micro;
  // In parts, and of other seeds other bits.
  w.train(whole, "parts", {"--steps", "5"});
  EXPECT_EQ(w.train(whole, "parts"), state);
  EXPECT_EQ(logLines(w.path("parts")), logLines(w.path("whole-out")));
  EXPECT_NE(w.train(compile("seed", with({"train.seed=3"})), "seed-out"), state);
  // Shards of the batch are added in a tree, whoever has them.
  const std::string sharded = compile("sharded", with({"train.micro_batch=6", "parallel.logical_shards=2"})),
                    both = w.train(sharded, "one-rank");
  EXPECT_EQ(w.train(sharded, "two-ranks", {"--ranks-per-node", "2"}), both);
  EXPECT_EQ(logLines(w.path("two-ranks")), logLines(w.path("one-rank")));
}

TEST_F(LabelsTest, EvaluationDoesNotDependOnTheMicroBatch) {
  prepare(folder("labels/two"), "auto");
  std::string first;
  for (const int micro : {24, 5, 1}) {  // of 24 texts 5 do not divide
    const std::string plan =
        compile(fmt::format("micro-{}", micro),
                {fmt::format("train.micro_batch={}", micro), fmt::format("train.global_batch_tokens={}", 8 * micro)});
    const Result r = w.gptrun({"eval", plan, "--out-dir", w.path("none"), "--steps", "0"});
    good(r);
    const std::string said = r.output.substr(0, r.output.find(" ("));
    EXPECT_NE(said.find("accuracy "), std::string::npos) << said;
    first = first.empty() ? said : first;
    EXPECT_EQ(said, first);
  }
}

// `gptc import` names the files that lie beside labels.json, wherever that is.
TEST_F(LabelsTest, FilesOfTextsAreBesideTheirLabels) {
  const std::string two = folder("labels/two"), texts = writeTexts();
  for (const std::string at : {"texts/prepared", "."}) {
    good(w.gptc({"data", "prepare", texts, "--tokenizer", two + "/tokenizer.json", "--labels", "auto", "--val-fraction",
                 "0.5", "--out", w.path(at)}));
    const std::string labels =
        fs::path(w.path(at)).lexically_normal().lexically_relative(fs::current_path()) / "labels.json";
    good(w.gptc({"import", two, "--labels", labels, "--force", "-o", w.path("model.toml")}));
    const std::string written = readFile(w.path("model.toml")), folder = at == "." ? "" : at + "/";
    for (const char *name : {"train", "val"})
      EXPECT_NE(written.find(fmt::format("\n{} = \"{}{}.bin\"\n", name, folder, name)), std::string::npos) << written;
    EXPECT_NE(written.find(fmt::format("\nlabels = \"{}labels.json\"\n", folder)), std::string::npos) << written;
    good(w.gptc({"compile", w.path("model.toml"), "-o", w.path("plan"), "--set", "model.block_size=8"}));
    good(w.gptrun({"eval", w.path("plan"), "--out-dir", w.path("none"), "--steps", "0"}));
  }
  // A folder with a classifier names labels, and no data, whatever lies beside it.
  const std::string classifier = w.path("beside/two");
  fs::create_directories(w.path("beside"));
  fs::copy(two, classifier);
  writeFile(w.path("beside/train.bin"), "");
  good(w.gptc({"import", two, "--labels", classifier, "--force", "-o", w.path("model.toml")}));
  const std::string written = readFile(w.path("model.toml"));
  for (const char *name : {"train", "val"})
    EXPECT_NE(written.find(fmt::format("\n{0} = \"data/{0}.bin\"\n", name)), std::string::npos) << written;
}

TEST_F(LabelsTest, WhatDoesNotFitIsNamed) {
  const std::string two = folder("labels/two"), bert = folder("hf/bert"), five = folder("labels/five");
  prepare(two, "auto");  // in another order than the head's, which is a note
  const std::string names = w.path("data/labels.json"), toml = w.path("model.toml");
  const auto compiled = [&](const std::vector<std::string> &settings) {
    std::vector<std::string> args = {"compile", toml, "-o", w.path("plan"), "--set", "model.block_size=8"};
    for (const std::string &s : settings)
      args.insert(args.end(), {"--set", s});
    return w.gptc(args);
  };
  refuses(w.gptc({"import", five, "--labels", names, "-o", w.path("five.toml")}), 3,
          "the head there tells 5 labels, and the model 2");
  refuses(compiled({"model.init_from='hf:" + five + "'", "model.n_embd=12"}), 3, "the head there tells 5 labels");
  refuses(compiled({"model.labels=3"}), 3, "names 2");
  refuses(compiled({"data.labels='" + w.path("none.json") + "'"}), 3, "none.json");
  refuses(compiled({"model.norm_position=pre"}), 3, "labels of texts are built for models of BERT's form");
  refuses(compiled({"compile.target=cuda:sm_90a"}), 3, "training with labels is built for CPUs");
  refuses(compiled({"parallel.tensor=2"}), 3, "parallel.tensor is not built yet");
  // Other data than the model's.
  good(compiled({}));
  const std::string plan = w.path("plan");
  writeFile(w.path("labels.json"), "[\"dull\", \"bright\"]");
  good(w.gptc({"data", "prepare", w.path("texts.jsonl"), "--tokenizer", two + "/tokenizer.json", "--labels",
               w.path("labels.json"), "--out", w.path("other")}));
  refuses(w.gptrun({"eval", plan, "--data", w.path("other/train.bin")}), 3,
          "its labels are \"dull\" and \"bright\", and the model's \"bright\" and \"dull\"");
  refuses(w.gptrun({"eval", plan, "--data", w.path("val.bin")}), 3, "no file of texts with labels");
  good(compiled({"model.block_size=4"}));
  refuses(w.gptrun({plan, "--out-dir", w.path("out")}), 3, "--context 4");
  // Half of a layer is no new one.
  std::string weights = readFile(two + "/model.safetensors");
  const std::string bias = "\"classifier.bias\"";
  ASSERT_NE(weights.find(bias), std::string::npos);
  weights.replace(weights.find(bias), bias.size(), "\"classifier.b1as\"");
  const std::string half = w.path("half");
  fs::copy(two, half);
  writeFile(half + "/model.safetensors", weights);
  refuses(w.gptc({"import", half, "--labels", names, "-o", w.path("half.toml")}), 5, "classifier.bias is missing");
  // What tells no labels.
  refuses(w.gptrun({"classify", bert, "--text", "t7"}), 3, "no classifier of texts");
  const std::string unlabelled = w.compile("tiny");
  refuses(w.gptrun({"classify", unlabelled, "--text", "t7"}), 3, "tells no labels");
  refuses(w.gptrun({"classify", two, "--checkpoint", "best", "--text", "t7"}), 2, "has weights, and no run");
}

// The gradients of the graph that a run differentiates, of what is new in it.
void compareGradients(gptc::ProblemType problem) {
  using namespace gptc;
  SCOPED_TRACE(nameOf(problem));
  const bool areSeveral = problem == ProblemType::multi_label_classification,
             isNumber = problem == ProblemType::regression;
  Config c;
  c.name = "small";
  ModelConfig &m = c.model;
  m.nLayer = 1;
  m.nHead = m.nKvHead = 2;
  m.nEmbd = 8;
  m.ffnDim = 12;
  m.vocabSize = 11;
  m.blockSize = 4;
  m.causal = false;
  m.embeddingNorm = m.headTransform = m.headBias = true;
  m.normPosition = NormPosition::post;
  m.activation = Activation::gelu;
  m.tokenTypes = 2;
  m.labels = isNumber ? 1 : 3;
  m.problemType = problem;
  m.qkvBias = m.attentionBias = m.mlpBias = m.normBias = true;
  c.train.microBatch = 3;
  c.train.accumulate = 1;
  const auto forward = buildModel(c);
  const auto joint = forward->clone();
  PipelineOptions quiet;
  quiet.reproFile = "";
  runPipeline(*joint, parsePipeline("autodiff", nullptr), quiet);
  StateMap states;
  for (const auto &s : forward->states) {
    Tensor &t = states[s->name] = initialValue(*s, 3);
    if (s->type.rank() == 1)
      for (size_t i = 0; i < t.data.size(); ++i)
        t.data[i] += 0.2 * std::cos(double(3 * i + s->name.size()));
  }
  std::vector<double> tokens(12), labels = {2, 0, 1}, documents(24), types(12);
  Type labelType(DType::i32, {3, 1});
  if (areSeveral) {
    labels = {0, 1, 1, 0, 0, 0, 1, 0, 1};
    labelType.dims[1] = Dim(3);
  } else if (isNumber) {
    labels = {0.5, -1.25, 3};
    labelType.dtype = DType::f32;
  }
  const auto targets = double(labels.size());
  const int lengths[] = {3, 1, 4};
  for (int b = 0; b < 3; ++b)
    for (int t = 0; t < 4; ++t) {
      const int i = 4 * b + t;
      const bool text = t < lengths[b];
      tokens[size_t(i)] = text ? i * 5 % 11 : 0;
      types[size_t(i)] = text && t > 0;
      documents[size_t(2 * i)] = text ? 0 : t;
      documents[size_t(2 * i + 1)] = text ? lengths[b] : t + 1;
    }
  std::vector<Tensor> args = {Tensor(Type(DType::i32, {3, 4}), tokens), Tensor(labelType, labels),
                              Tensor(Type(DType::i64, {3, 4, 2}), documents), Tensor(Type(DType::i32, {3, 4}), types),
                              Tensor::scalar(0, DType::i64)};
  const auto loss = [&] { return interpret(*forward->function("forward"), args, states)[0].data[0] / targets; };
  std::vector<Tensor> all = args;
  all.push_back(Tensor::scalar(targets));
  const std::vector<Tensor> results = interpret(*joint->function("train_step"), all, states);
  EXPECT_NEAR(results[0].data[0], loss(), 1e-12);
  size_t next = 1, compared = 0;
  for (const auto &s : forward->states) {
    if (kindOf(*s) != StateKind::param)
      continue;
    const Tensor &gradient = results.at(next++);
    const llvm::StringRef name = s->name;
    if (!name.starts_with("classifier.") && !name.starts_with("pooler.") && name != "wtt.weight" &&
        name != "wpe.weight")
      continue;
    ++compared;
    double worst = 0, most = 0;
    for (size_t i = 0; i < gradient.data.size(); ++i) {
      double &x = states[s->name].data[i];
      const double kept = x, h = 1e-4;
      double d[2];
      for (int k = 0; k < 2; ++k) {  // two central differences and Richardson's step
        x = kept + h * (k + 1);
        const double up = loss();
        x = kept - h * (k + 1);
        d[k] = (up - loss()) / (2 * h * (k + 1));
      }
      x = kept;
      const double numeric = (4 * d[0] - d[1]) / 3;
      worst = std::max(worst, std::abs(numeric - gradient.data[i]));
      most = std::max(most, std::abs(numeric));
    }
    EXPECT_GT(most, 1e-6) << s->name;
    EXPECT_LE(worst, 1e-6 * most) << s->name;
  }
  EXPECT_EQ(compared, 6u);
  EXPECT_EQ(next, results.size());
}

TEST(LabelledModule, GradientsAreFiniteDifferences) {
  for (const gptc::ProblemType problem : {gptc::ProblemType::single_label_classification,
                                          gptc::ProblemType::multi_label_classification, gptc::ProblemType::regression})
    compareGradients(problem);
}

struct LabelsCompared : LabelsTest {
  /// Ten steps of AdamW by transformers, on all texts at once. False if there is no transformers.
  bool compare(const std::string &name, const std::string &dir, const std::string &problem) {
    const std::string out = w.path(name + "-out"), mine = w.path(name + "-mine");
    prepare(dir, dir, problem);
    const std::string plan =
        compile(name + ".plan", {"train.steps=10", "optimizer.lr=0.003", "optimizer.betas=[0.9, 0.95]",
                                 "optimizer.weight_decay=0.1", "train.grad_clip=0", "train.micro_batch=6"});
    good(w.gptrun({plan, "--out-dir", out}));
    good(w.gptc({"export", out, "-o", mine}));
    const Result classified = w.gptrun({"classify", mine, "--precision", "fp32", "--logits", "--text", text(7)});
    good(classified);
    const std::vector<json> lines = gptc::test::objectLines(classified.output);
    if (lines.size() != 1) {
      ADD_FAILURE() << classified.output;
      return true;
    }
    const std::string logits = lines[0].at("logits").dump();
    for (const std::string &version : gptc::test::transformersPaths()) {
      const gptc::test::Compared r =
          gptc::test::compareBy("tests/e2e/labels_compare.py",
                                fmt::format("'{}' '{}' '{}' '{}' '{}' '{}'", dir, w.path("texts.jsonl"),
                                            out + "/log.jsonl", mine, text(7), logits),
                                version);
      if (r.isMissing())
        return false;
      EXPECT_EQ(r.code, 0) << name << ": " << r.said;
      std::printf("%s", r.said.c_str());
    }
    return true;
  }
};

TEST_F(LabelsCompared, LossesAreThoseOfTransformers) {
  const std::pair<const char *, std::string> heads[] = {{"two", ""}, {"several", several}, {"score", regression}};
  for (const auto &[head, problem] : heads)
    if (!compare(head, folder(std::string("labels/") + head), problem))
      GTEST_SKIP() << "no Python with transformers and PyTorch";
}

// ModernBERT's head begins where a step of training from weights without a classifier has led.
TEST_F(LabelsCompared, LossesOfModernBertAreThoseOfTransformers) {
  for (const std::string pooling : {"cls", "mean"}) {
    const std::string dir = folder("hf/modernbert"), begin = w.path(pooling + "-begin");
    json config = json::parse(readFile(dir + "/config.json"));
    config["classifier_pooling"] = pooling;
    writeFile(dir + "/config.json", config.dump());
    prepare(dir, "auto");
    EXPECT_EQ(readFile(w.path("model.toml")).find("classifier_pooling = \"mean\"") != std::string::npos,
              pooling == "mean");
    const Result first = w.gptrun({compile(pooling + "-first", {"train.steps=1"}), "--out-dir", w.path(pooling)});
    good(first);
    EXPECT_NE(first.output.find("has no classifier: it begins at random"), std::string::npos) << first.output;
    good(w.gptc({"export", w.path(pooling), "-o", begin}));
    config = json::parse(readFile(begin + "/config.json"));
    EXPECT_EQ(config.at("architectures"), json::array({"ModernBertForSequenceClassification"}));
    EXPECT_EQ(config.at("classifier_pooling"), pooling);
    if (!compare(pooling, begin, ""))
      GTEST_SKIP() << "no Python with transformers and PyTorch";
  }
}

}  // namespace
