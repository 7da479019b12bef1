// `gptrun eval --task`: its log-likelihoods are the sums of what `gptrun sample` says of the same texts, to the bit.
#include "tests/support/harness.h"
#include "tests/support/json_lines.h"
#include "tests/support/word_models.h"

#include "support/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>

using namespace e2e;
using gptc::test::objectLines;
using nlohmann::json;

namespace {

/// A model of 64 tokens of context, over byte-pair tokens, that was trained a little.
struct Trained {
  Trained() {
    w.prepare(catsWithNumbers(), "bpe:290");
    std::vector<std::string> settings = w.prepared();
    settings.insert(settings.end(), {"model.vocab_size=300", "model.block_size=64", "model.dropout=0",
                                     "train.global_batch_tokens=256", "train.steps=20"});
    plan = w.compile("plan", settings);
    const Result trained = w.gptrun({plan});
    EXPECT_EQ(trained.code, 0) << trained.output;
  }
  Workplace w;
  std::string plan;
};

class TaskTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() { trained = new Trained; }
  static void TearDownTestSuite() { delete std::exchange(trained, nullptr); }

  static std::string fileOf(const std::vector<json> &questions, const std::string &name = "task.jsonl") {
    std::string lines;
    for (const json &q : questions)
      lines += q.dump() + "\n";
    writeFile(trained->w.path(name), lines);
    return trained->w.path(name);
  }
  static Result run(const std::string &task, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"eval", trained->plan, "--task", task});
    return trained->w.gptrun(more);
  }
  /// The lines of results; what was printed is in `said`.
  std::vector<json> results(const std::string &task, std::vector<std::string> more = {}) {
    const std::string file = trained->w.path("results.jsonl");
    std::filesystem::remove(file);
    more.insert(more.end(), {"--results", file});
    const Result r = run(task, more);
    EXPECT_EQ(r.code, 0) << r.output;
    said = r.output;
    return objectLines(readFile(file));
  }
  /// What sample says of the tokens behind `context`: their number, and the sum of their scores. `special`: it is one
  /// control token.
  static std::pair<int64_t, double> scoresOf(const std::string &context, const std::string &rest,
                                             bool special = false) {
    const json prompt = {{"prompt", context + rest}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}};
    writeFile(trained->w.path("prompts.jsonl"), prompt.dump() + "\n");
    std::vector<std::string> args = {"sample", trained->plan, "--jsonl", "--prompts", trained->w.path("prompts.jsonl")};
    if (special)
      args.push_back("--parse-special");
    const Result r = trained->w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    const std::vector<json> all = objectLines(r.output);
    EXPECT_EQ(all.size(), 1u) << r.output;
    const json &scores = all.at(0).at("logprobs");
    int64_t count = 0;
    double sum = 0;
    for (size_t i = 0; i < scores.at("tokens").size(); ++i)
      if (special ? i > 0 : scores.at("text_offset")[i].get<size_t>() >= context.size()) {
        ++count;
        sum += scores.at("token_logprobs")[i].get<double>();
      }
    return {count, sum};
  }

  static Trained *trained;
  std::string said;
};

Trained *TaskTest::trained = nullptr;

TEST_F(TaskTest, LogLikelihoodsAreTheSumsOfASamplesScores) {
  const std::vector<json> questions = {
      {{"query", "the cat sat on"}, {"choices", {"the mats.", "a fat dog", "the mats.\nit was"}}, {"gold", 0}},
      {{"query", "the cat sat on"}, {"choices", {"number 7", "it"}}, {"gold", 1}},  // shares its context with the first
      {{"query", "it was a fat  \n"}, {"choices", {"cat", "mat", "hat", "dog"}}, {"gold", 0}, {"id", "blanks"}},
      {{"query", "completely unlike these, with numbers 12 and 345"}, {"choices", {"x", "y"}}, {"gold", 1}}};
  const std::vector<json> got = results(fileOf(questions));
  ASSERT_EQ(got.size(), questions.size()) << said;
  int right = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    std::string context = questions[i]["query"];
    const size_t end = context.find_last_not_of(" \n") + 1;
    const std::string blanks = context.substr(end);
    context.resize(end);
    const json &choices = questions[i]["choices"];
    ASSERT_EQ(got[i]["loglikelihoods"].size(), choices.size());
    size_t best = 0, bestNorm = 0;
    for (size_t c = 0; c < choices.size(); ++c) {
      const auto [count, sum] = scoresOf(context, blanks + " " + choices[c].get<std::string>());
      EXPECT_EQ(got[i]["tokens"][c], count) << i << " " << c;
      EXPECT_EQ(got[i]["loglikelihoods"][c].get<double>(), sum) << i << " " << c;
      EXPECT_EQ(got[i]["cut"][c], 0);
      auto sumOf = [&](size_t j) { return got[i]["loglikelihoods"][j].get<double>(); };
      auto perCharacter = [&](size_t j) { return sumOf(j) / double(choices[j].get<std::string>().size()); };
      best = sumOf(c) > sumOf(best) ? c : best;
      bestNorm = perCharacter(c) > perCharacter(bestNorm) ? c : bestNorm;
    }
    EXPECT_EQ(got[i]["line"], i + 1);
    EXPECT_EQ(got[i]["gold"], questions[i]["gold"]);
    EXPECT_EQ(got[i]["acc"], int(best == questions[i]["gold"].get<size_t>())) << i;
    EXPECT_EQ(got[i]["acc_norm"], int(bestNorm == questions[i]["gold"].get<size_t>())) << i;
    right += int(best == questions[i]["gold"].get<size_t>());
  }
  EXPECT_EQ(got[2]["id"], "blanks");
  const double mean = right / 4.0;
  EXPECT_NE(said.find(fmt::format("acc       {:.4f} +- {:.4f}\n", mean, std::sqrt(mean * (1 - mean) / 3))),
            std::string::npos)
      << said;
  // Whatever was scored before.
  const std::vector<json> alone = results(fileOf({questions[2], questions[0]}));
  EXPECT_EQ(alone.at(0)["loglikelihoods"], got[2]["loglikelihoods"]);
  EXPECT_EQ(alone.at(1)["loglikelihoods"], got[0]["loglikelihoods"]);
}

TEST_F(TaskTest, OfEqualChoicesTheFirstIsTaken) {
  const std::vector<json> got = results(fileOf({{{"query", "the cat"}, {"choices", {"sat", "sat"}}, {"gold", 1}},
                                                {{"query", "the cat"}, {"choices", {"sat", "sat"}}, {"gold", 0}}}));
  for (const char *measure : {"acc", "acc_norm", "acc_bytes", "acc_token"}) {
    EXPECT_EQ(got.at(0)[measure], 0) << measure;
    EXPECT_EQ(got.at(1)[measure], 1) << measure;
    EXPECT_NE(said.find(fmt::format("{:<9} 0.5000 +- 0.5000\n", measure)), std::string::npos) << said;
  }
}

TEST_F(TaskTest, OtherFormsAskTheSame) {
  auto only = [&](const json &question) { return results(fileOf({question})).at(0)["loglikelihoods"]; };
  const json choices = {"cat sat", "mats"};
  EXPECT_EQ(only({{"ctx_a", "It was."}, {"ctx_b", "a FAT"}, {"endings", {" cat [x]sat", "mats"}}, {"label", "1"}}),
            only({{"query", "It was. A fat"}, {"choices", choices}, {"gold", 0}}));
  EXPECT_EQ(only({{"question", "Who?"}, {"choices", {{"text", choices}, {"label", {"A", "B"}}}}, {"answerKey", "B"}}),
            only({{"context", "Question: Who?\nAnswer:"}, {"choices", choices}, {"gold", 0}}));
  const json schema = only({{"context_options", {"the cat", "the mats"}}, {"continuation", "was fat"}, {"gold", 0}});
  EXPECT_EQ(schema.at(0), only({{"query", "the cat"}, {"choices", {"was fat", "x"}}, {"gold", 0}}).at(0));
  EXPECT_EQ(schema.at(1), only({{"query", "the mats"}, {"choices", {"was fat", "x"}}, {"gold", 0}}).at(0));
  // An empty context is the token that ends texts.
  const auto [count, sum] = scoresOf("<|endoftext|>", " cat", true);
  EXPECT_GT(count, 0);
  EXPECT_EQ(only({{"query", ""}, {"choices", {"cat", "mats"}}, {"gold", 0}}).at(0).get<double>(), sum);
}

TEST_F(TaskTest, OneContinuationOfManyContextsHasAccAlone) {
  const std::vector<json> got =
      results(fileOf({{{"context_options", {"the cat", "the"}}, {"continuation", "sat on"}, {"gold", 0}},
                      {{"context_options", {"it", "it was a fat"}}, {"continuation", "cat"}, {"gold", 1}}}));
  ASSERT_EQ(got.size(), 2u) << said;
  for (const json &line : got) {
    const json &sums = line["loglikelihoods"];
    EXPECT_EQ(line["acc"], int((sums[1] > sums[0] ? 1 : 0) == line["gold"].get<int>())) << line;
    for (const char *measure : {"acc_norm", "acc_bytes", "acc_token"})
      EXPECT_FALSE(line.contains(measure)) << line;
  }
  EXPECT_NE(said.find("\nacc       "), std::string::npos) << said;
  EXPECT_EQ(said.find("\nacc_"), std::string::npos) << said;
}

TEST_F(TaskTest, SolvedQuestionsStandBefore) {
  auto question = [](const std::string &query, int gold) {
    return json{{"query", query}, {"choices", {"cat", "mats"}}, {"gold", gold}};
  };
  const std::vector<json> questions = {question("the fat", 0), question("on the", 1), question("it was a", 0)};
  const std::string a = "the fat cat\n\n", b = "on the mats\n\n";
  const std::vector<json> want =
      results(fileOf({question(b + "the fat", 0), question(a + "on the", 1), question(a + "it was a", 0)}));
  const std::vector<json> got = results(fileOf(questions), {"--shots", "1"});
  ASSERT_EQ(got.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(got[i]["loglikelihoods"], want.at(i)["loglikelihoods"]) << i;
  const std::string shots = fileOf({questions[0], questions[1]}, "shots.jsonl");
  const std::vector<json> two = results(fileOf({question(a + b + "it was a", 0)}));
  EXPECT_EQ(results(fileOf({questions[2]}), {"--shots", "2", "--shots-from", shots}).at(0)["loglikelihoods"],
            two.at(0)["loglikelihoods"]);
  const std::vector<json> limited = results(fileOf(questions), {"--shots", "2", "--limit", "1"});
  EXPECT_EQ(limited.size(), 1u);
  const Result r = run(fileOf(questions), {"--shots", "3"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("has 2 questions beside each"), std::string::npos) << r.output;
}

TEST_F(TaskTest, BeginningsThatAreTooLongAreCut) {
  std::string context;
  for (int i = 0; i < 200; ++i)
    context += char('A' + i * 7 % 26);  // no two of these are one token
  const std::vector<json> got =
      results(fileOf({{{"query", context}, {"choices", {"Z", "YX"}}, {"gold", 0}}}), {"--delimiter", "-"});
  EXPECT_NE(said.find("note: 1 of 1 questions are longer than the context of 64 tokens"), std::string::npos) << said;
  EXPECT_EQ(got.at(0)["tokens"], (json{2, 3}));
  EXPECT_EQ(got.at(0)["cut"], (json{200 + 2 - 65, 200 + 3 - 65}));
  // The last of 65 tokens is predicted from 64.
  const std::vector<json> want =
      results(fileOf({{{"query", context.substr(200 - 63)}, {"choices", {"Z", "Z"}}, {"gold", 0}},
                      {{"query", context.substr(200 - 62)}, {"choices", {"YX", "YX"}}, {"gold", 0}}}),
              {"--delimiter", "-"});
  EXPECT_EQ(said.find("cut off"), std::string::npos) << said;
  EXPECT_EQ(got[0]["loglikelihoods"][0], want.at(0)["loglikelihoods"][0]);
  EXPECT_EQ(got[0]["loglikelihoods"][1], want.at(1)["loglikelihoods"][0]);
  const Result r = run(fileOf({{{"query", "a"}, {"choices", {"b", context}}, {"gold", 0}}}));
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("task.jsonl:1, choice 1: it has 201 tokens, the model's context 64"), std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find("help: shorten it"), std::string::npos) << r.output;
}

TEST_F(TaskTest, BadTasksAreExplained) {
  writeFile(trained->w.path("bad.jsonl"), "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n{\n");
  const std::string bad = trained->w.path("bad.jsonl"), kept = trained->w.path("kept.jsonl");
  writeFile(kept, "kept");
  // Before the model is looked for.
  const Result r = trained->w.gptrun({"eval", trained->w.path("nix"), "--task", bad, "--results", kept});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0302]"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("bad.jsonl:2: this is no JSON"), std::string::npos) << r.output;
  EXPECT_EQ(readFile(kept), "kept");
  const Result none = run(trained->w.path("nix.jsonl"));
  EXPECT_EQ(none.code, 3) << none.output;
  EXPECT_NE(none.output.find("error[GPTC0301]"), std::string::npos) << none.output;
  EXPECT_EQ(run(bad, {"--steps", "3"}).code, 2);
  EXPECT_EQ(trained->w.gptrun({"eval", trained->plan, "--shots", "3"}).code, 2);
}

TEST_F(TaskTest, WeightsThatAreNotFiniteAreNamedAndNoResultsWritten) {
  Workplace &w = trained->w;
  const std::string dir = w.path("llama"), kept = w.path("kept.jsonl");
  std::filesystem::copy(GPTC_SOURCE_DIR "/tests/e2e/hf/llama", dir);
  writeFile(dir + "/tokenizer.json", tokenizerOf31Words(false));
  const std::string task = fileOf({{{"query", "t4 t7"}, {"choices", {"t5", "t6 t9"}}, {"gold", 0}}}),
                    whole = readFile(dir + "/model.safetensors");
  writeFile(kept, "kept");
  auto eval = [&] { return w.gptrun({"eval", dir, "--task", task, "--results", kept}); };
  uint64_t size;
  std::memcpy(&size, whole.data(), sizeof size);
  const json header = gptc::parseJson(whole.substr(8, size));
  // The logit of the last token alone, which stands in no choice, and then all logits.
  for (const char *name : {"lm_head.weight", "model.norm.weight"}) {
    std::string broken = whole;
    const auto end = header.at(name).at("data_offsets").at(1).get<size_t>();
    broken.replace(8 + size + end - 4, 4, std::string("\0\0\xc0\x7f", 4));  // a NaN of fp32
    writeFile(dir + "/model.safetensors", broken);
    const Result r = eval();
    EXPECT_EQ(r.code, 4) << name << "\n" << r.output;
    EXPECT_NE(r.output.find("error[GPTC0406]"), std::string::npos) << name << "\n" << r.output;
    EXPECT_NE(r.output.find("task.jsonl:1, choice 0: the logits of a text are not finite"), std::string::npos)
        << name << "\n"
        << r.output;
    EXPECT_NE(r.output.find("--precision fp32"), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("acc "), std::string::npos) << r.output;
    EXPECT_EQ(readFile(kept), "kept");
  }
  writeFile(dir + "/model.safetensors", whole);
  const Result good = eval();
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_EQ(objectLines(readFile(kept)).size(), 1u) << good.output;
}

}  // namespace
