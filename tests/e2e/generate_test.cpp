// Many prompts with `gptrun sample`: each gets what it gets alone, and what is asked for beside the text is right.
#include "tests/support/harness.h"
#include "tests/support/json_lines.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/plan.h"
#include "runtime/serve/beam_search.h"
#include "runtime/serve/generator.h"
#include "runtime/train/session.h"
#include "support/json.h"
#include "tools/compiler/inference.h"

#include <algorithm>
#include <regex>
using namespace e2e;
using nlohmann::json;

namespace {

struct GenerateTest : ::testing::Test {
  GenerateTest() { w.useCats(); }
  void train(const std::vector<std::string> &settings = {}) {
    std::vector<std::string> all = {"train.steps=20"};
    all.insert(all.end(), settings.begin(), settings.end());
    plan = w.compile("plan", all);
    const Result r = w.gptrun({plan});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  /// Without the note on memory, which is kept.
  Result sample(std::vector<std::string> more) {
    more.insert(more.begin(), {"sample", plan});
    Result r = w.gptrun(more);
    std::smatch m;
    note = std::regex_search(r.output, m, std::regex("note: \\d+ slots of .*\n")) ? m[0].str() : "";
    if (!note.empty())
      r.output.erase(size_t(m.position()), note.size());
    return r;
  }
  /// The objects that come of lines of JSON.
  std::vector<json> objects(const std::string &lines, std::vector<std::string> more = {}) {
    writeFile(w.path("prompts.jsonl"), lines);
    more.insert(more.end(), {"--jsonl", "--prompts", w.path("prompts.jsonl")});
    const Result r = sample(more);
    EXPECT_EQ(r.code, 0) << r.output;
    return gptc::test::jsonLines(r.output);
  }
  Workplace w;
  std::string plan, note;
};

TEST_F(GenerateTest, ManyPromptsGetWhatEachGetsAlone) {
  train();
  const std::vector<std::string> prompts = {"the cat", "it was a fat", "the cat sat", "cat"};
  auto alone = [&](const std::string &prompt, const char *seed) {
    const Result r = sample({"--prompt", prompt, "--max-tokens", "40", "--temperature", "1", "--seed", seed});
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  };
  std::string lines, together;
  for (size_t i = 0; i < prompts.size(); ++i) {
    lines += prompts[i] + (i % 2 ? "\r\n" : "\n");
    together += "==> prompt " + std::to_string(i + 1) + ", sample 1 <==\n" + alone(prompts[i], "5");
  }
  writeFile(w.path("prompts.txt"), lines);
  const std::vector<std::string> options = {"--max-tokens", "40", "--temperature", "1", "--seed", "5"};
  std::vector<std::string> all = {"--prompts", w.path("prompts.txt")};
  all.insert(all.end(), options.begin(), options.end());
  EXPECT_EQ(sample(all).output, together);
  EXPECT_EQ(note.substr(0, 28), "note: 8 slots of 16 tokens: ");
  all.insert(all.end(), {"--threads", "1", "--slots", "0"});
  for (const char *slots : {"1", "2", "3", "5"}) {
    all.back() = slots;
    EXPECT_EQ(sample(all).output, together) << slots << " slots";
    EXPECT_EQ(note.empty(), slots == std::string("1"));
  }

  // As objects, each with settings of its own.
  std::string asked;
  for (const std::string &prompt : prompts)
    asked +=
        json{{"prompt", prompt}, {"max_tokens", 40}, {"temperature", 1}, {"seed", 5}, {"echo", true}, {"id", prompt}}
            .dump() +
        "\n";
  std::vector<json> got = objects(asked);
  ASSERT_EQ(got.size(), prompts.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]["id"], prompts[i]);
    EXPECT_EQ(got[i]["text"].get<std::string>() + "\n", alone(prompts[i], "5"));
    EXPECT_EQ(got[i]["tokens"], 40);
    EXPECT_EQ(got[i]["finish_reason"], "length");
  }

  // Samples of a prompt differ; the first is that of a prompt with one sample, and a second run says the same.
  const std::string two = "{\"prompt\":\"the cat\",\"n\":3}\n{\"prompt\":[1,2],\"n\":2}\n";
  std::vector<std::string> texts;
  got = objects(two, options);
  EXPECT_EQ(got, objects(two, options));
  ASSERT_EQ(got.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(got[i]["prompt"], i < 3 ? 0 : 1);
    EXPECT_EQ(got[i]["sample"], i < 3 ? i : i - 3);
  }
  EXPECT_EQ("the cat" + got[0]["text"].get<std::string>() + "\n", alone("the cat", "5"));
  EXPECT_NE(got[0]["text"], got[1]["text"]);
  EXPECT_NE(got[1]["text"], got[2]["text"]);
  EXPECT_NE(got[3]["text"], got[4]["text"]);
}

TEST_F(GenerateTest, ASampleEndsBeforeAStop) {
  train({"train.steps=150", "model.dropout=0"});
  const std::vector<std::string> greedy = {"--prompt", "the cat", "--temperature", "0", "--max-tokens", "30"};
  auto with = [&](std::vector<std::string> stops) {
    std::vector<std::string> all = greedy;
    all.insert(all.end(), stops.begin(), stops.end());
    return sample(all).output;
  };
  ASSERT_EQ(with({}).substr(0, 24), "the cat sat on the mats.") << "learned by heart";
  EXPECT_EQ(with({"--stop", "on the"}), "the cat sat \n");
  EXPECT_EQ(with({"--stop", "never", "--stop", "mat", "--stop", " on"}), "the cat sat\n");
  EXPECT_EQ(with({"--stop", "cat sat"}).substr(0, 24), "the cat sat on the mats.")
      << "the prompt is none of the answer";
  const std::string asked = "{\"prompt\":\"the cat\",\"temperature\":0,\"max_tokens\":30,\"stop\":";
  const std::vector<json> got =
      objects(asked + "\"on the\"}\n" + asked + "[\"x\",\" sat\"],\"id\":[7]}\n" + asked + "[]}\n");
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0]["text"], " sat ");
  EXPECT_EQ(got[0]["finish_reason"], "stop");
  EXPECT_EQ(got[1]["text"], "");
  EXPECT_EQ(got[1]["id"], json::array({7}));
  EXPECT_EQ(got[2]["finish_reason"], "length");
}

// Beside each token its log-probability: for the prompt's, what the evaluation says.
TEST_F(GenerateTest, LogProbabilitiesAreThoseOfTheEvaluation) {
  train();
  const std::vector<json> got =
      objects("{\"prompt\":\"the cat sat on\",\"echo\":true,\"logprobs\":3,\"max_tokens\":2,\"temperature\":0}\n"
              "{\"prompt\":\"the cat sat on\",\"echo\":true,\"logprobs\":0,\"max_tokens\":0}\n"
              "{\"prompt\":\"the cat sat on\",\"logprobs\":2,\"max_tokens\":1,\"temperature\":0}\n");
  ASSERT_EQ(got.size(), 3u);
  const json &scores = got[0]["logprobs"];
  const size_t prompt = 14;
  ASSERT_EQ(scores["tokens"].size(), prompt + 2);
  const std::string text = got[0]["text"];
  EXPECT_EQ(text.substr(0, prompt), "the cat sat on");
  EXPECT_TRUE(scores["token_logprobs"][0].is_null());
  EXPECT_TRUE(scores["top_logprobs"][0].is_null());
  for (size_t i = 0; i < prompt + 2; ++i) {
    EXPECT_EQ(scores["tokens"][i], text.substr(i, 1));
    EXPECT_EQ(scores["text_offset"][i], i);
    if (!i)
      continue;
    const json &top = scores["top_logprobs"][i];
    EXPECT_GE(top.size(), 3u);
    EXPECT_LE(top.size(), 4u);
    EXPECT_EQ(top[text.substr(i, 1)], scores["token_logprobs"][i]);
    for (const auto &[token, score] : top.items())
      EXPECT_TRUE(i < prompt || score <= scores["token_logprobs"][i]) << token << ": the likeliest was chosen";
  }
  EXPECT_EQ(got[1]["text"], "the cat sat on");
  EXPECT_EQ(got[1]["tokens"], 0);
  EXPECT_EQ(got[1]["logprobs"]["token_logprobs"],
            json(std::vector<json>(scores["token_logprobs"].begin(), scores["token_logprobs"].begin() + prompt)));
  EXPECT_EQ(got[2]["logprobs"]["tokens"], json::array({scores["tokens"][prompt]}));
  EXPECT_NEAR(got[2]["logprobs"]["token_logprobs"][0], double(scores["token_logprobs"][prompt]), 1e-5);

  // The model's whole context, against @eval.
  gptc::Session s(gptc::loadPlan(plan), cacheDir(), 2);
  gptc::loadWeights(s.executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(),
                    gptc::modelIdentity(*s.plan.planned));
  const gptc::Type &batch = s.executor.argType("eval", 0);
  std::vector<int32_t> x(size_t(batch.dim(0) * batch.dim(1))), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = int32_t(i * 7 + i * i % 5) % 15;
    y[i] = int32_t((i + 1) * 7 + (i + 1) * (i + 1) % 5) % 15;
  }
  s.executor.run("eval", {x.data(), y.data()});
  const float *first = static_cast<const float *>(s.executor.result("eval", 0));
  const std::vector<float> nll(first, first + batch.dim(1));
  x.resize(size_t(batch.dim(1)));
  int calls = 0;
  gptc::Generator generator(s.executor);
  generator.add({.prompt = x,
                 .options = {.maxTokens = 0},
                 .scores = 1,
                 .onPrompt = [&](const std::vector<gptc::TokenScores> &prompt) {
                   ++calls;
                   ASSERT_EQ(prompt.size(), x.size() - 1);
                   for (size_t i = 0; i < prompt.size(); ++i) {
                     EXPECT_EQ(prompt[i].id, y[i]);
                     EXPECT_NEAR(prompt[i].logProbability, -nll[i], 1e-4 * (1 + nll[i])) << i;
                   }
                 }});
  while (generator.step())
    ;
  EXPECT_EQ(calls, 1);
}

TEST_F(GenerateTest, WhatTheChoiceTakesBesideTheUsual) {
  train({"train.steps=150", "model.dropout=0"});
  const std::string asked = "{\"prompt\":\"the cat\",\"max_tokens\":30,\"temperature\":";
  const std::vector<json> got = objects(asked + "1}\n" + asked + "1,\"min_p\":0.999}\n" + asked + "0}\n" + asked +
                                        "0,\"repetition_penalty\":20}\n");
  EXPECT_NE(got[0]["text"], got[1]["text"]);
  EXPECT_EQ(got[1]["text"], got[2]["text"]) << "only the likeliest is left";
  EXPECT_NE(got[2]["text"], got[3]["text"]);
}

// The model's tokens that the tokenizer lacks have scores and names, too.
TEST_F(GenerateTest, TokensWithoutTextHaveNames) {
  train({"train.steps=1", "model.vocab_size=40"});
  writeFile(w.path("prompts.jsonl"), "{\"prompt\":[30,1],\"echo\":true,\"logprobs\":20,\"max_tokens\":1}\n");
  const Result r = sample({"--jsonl", "--prompts", w.path("prompts.jsonl")});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("\"tokens\":[\"token_id:30\","), std::string::npos) << r.output;
}

// Whoever came first is served first: prompts to be scored or read do not wait for later ones.
TEST_F(GenerateTest, TheFirstToComeIsServedFirst) {
  train({"train.steps=1"});
  gptc::Session s(gptc::servingPlan(gptc::loadPlan(plan), 3, cacheDir()), cacheDir(), 2);
  for (const bool scores : {false, true}) {
    gptc::Generator generator(s.executor, {.copiesPrefixes = false});
    std::vector<int> ended;
    for (int i = 0; i < 20; ++i) {
      gptc::Generation g{.prompt = std::vector<int32_t>(16, i % 15), .options = {.maxTokens = scores ? 0 : 1}};
      if (scores)
        g.onPrompt = [](const std::vector<gptc::TokenScores> &) {};
      g.onToken = [](int32_t, const gptc::TokenScores *) { return true; };
      g.onEnd = [&ended, i] { ended.push_back(i); };
      generator.add(std::move(g));
    }
    while (generator.step())
      ;
    EXPECT_EQ(ended.size(), 20u);
    EXPECT_TRUE(std::is_sorted(ended.begin(), ended.end())) << scores;
  }
}

// Where a text repeats itself, guesses save calls, and the samples stay.
TEST_F(GenerateTest, GuessesSaveCalls) {
  train({"train.steps=150", "model.dropout=0", "model.block_size=64", "train.global_batch_tokens=512",
         "train.micro_batch=4"});
  const std::vector<std::string> options = {"--prompt", "the cat", "--max-tokens", "80", "--temperature", "0.2"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), options.begin(), options.end());
    return sample(more).output;
  };
  const std::string plain = with({});
  EXPECT_EQ(with({"--lookup", "4"}), plain);
  EXPECT_EQ(with({"--lookup", "4", "--slots", "3"}), plain);
  gptc::Session s(gptc::servingPlan(gptc::loadPlan(plan), 5, cacheDir()), cacheDir(), 2);
  gptc::loadWeights(s.executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(),
                    gptc::modelIdentity(*gptc::loadPlan(plan).planned));
  std::vector<int32_t> texts[2];
  int calls[2] = {};
  for (const int guesses : {0, 4}) {
    gptc::Generator generator(s.executor, {.guesses = guesses});
    generator.add({.prompt = {1, 2, 3},
                   .options = {.maxTokens = 60, .temperature = 0},
                   .onToken = [&](int32_t token, const gptc::TokenScores *) {
                     texts[guesses / 4].push_back(token);
                     return true;
                   }});
    do
      ++calls[guesses / 4];
    while (generator.step());
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(calls[0], 60);
  EXPECT_LT(calls[1], 45);
}

// With a beam for every token, beams find the likeliest of all pairs of tokens.
TEST_F(GenerateTest, BeamsFindTheLikeliest) {
  train();
  const int vocab = 15;
  gptc::Session s(gptc::servingPlan(gptc::loadPlan(plan), vocab, cacheDir()), cacheDir(), 2);
  gptc::loadWeights(s.executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(),
                    gptc::modelIdentity(*gptc::loadPlan(plan).planned));
  gptc::CachedModel model(s.executor);
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  // Every pair and its log-probability, by scores.
  std::vector<std::pair<double, std::vector<int32_t>>> all;
  for (int32_t a = 0; a < vocab; ++a) {
    std::vector<int32_t> text = prompt;
    text.push_back(a);
    ASSERT_EQ(model.score(0, text, 0, {}), 6);
    const double first = gptc::scoresOf(model.logits(4), a, 0).logProbability;
    for (int32_t b = 0; b < vocab; ++b)
      all.push_back({-(first + double(gptc::scoresOf(model.logits(5), b, 0).logProbability)), {a, b}});
  }
  std::sort(all.begin(), all.end());
  const std::vector<gptc::Hypothesis> found = beamSearch(model, prompt, {.beams = vocab, .maxTokens = 2});
  ASSERT_EQ(found.size(), size_t(vocab));
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tokens, all[i].second) << i;
    EXPECT_NEAR(found[i].score, -all[i].first / 2, 1e-6);
    EXPECT_NEAR(found[i].logProbabilities[0] + found[i].logProbabilities[1], -all[i].first, 1e-6);
  }
  // Beams that fork again and again hold what they would hold alone: their own scores say so.
  for (const gptc::Hypothesis &h : beamSearch(model, prompt, {.beams = 5, .maxTokens = 9})) {
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), h.tokens.begin(), h.tokens.end());
    model.score(0, text, 0, {});
    for (size_t i = 0; i < h.tokens.size(); ++i)
      EXPECT_EQ(gptc::scoresOf(model.logits(int64_t(4 + i)), h.tokens[i], 0).logProbability, h.logProbabilities[i]);
  }
  // Complete ones leave the search.
  const gptc::BeamOptions ending = {.beams = 3, .maxTokens = 8, .endToken = all[0].second[0]};
  const std::vector<gptc::Hypothesis> ended = beamSearch(model, prompt, ending);
  EXPECT_EQ(ended[0].tokens.back(), ending.endToken);
  for (const gptc::Hypothesis &h : ended)
    EXPECT_EQ(std::count(h.tokens.begin(), h.tokens.end() - 1, ending.endToken), 0);
  // A penalty decides between short and long ones.
  auto firstLength = [&](double penalty) {
    gptc::BeamOptions o = ending;
    o.lengthPenalty = penalty;
    return beamSearch(model, prompt, o)[0].tokens.size();
  };
  EXPECT_EQ(firstLength(-9), 1u);
  EXPECT_EQ(firstLength(9), 8u);

  // One beam is greedy.
  const std::vector<std::string> greedy = {"--prompt", "the cat", "--max-tokens", "8"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), greedy.begin(), greedy.end());
    return sample(more).output;
  };
  EXPECT_EQ(with({"--beams", "1"}), with({"--temperature", "0"}));
  EXPECT_EQ(with({"--beams", "3", "--n", "2"}).substr(0, 17), "==> sample 1 <==\n");
  const std::vector<json> got =
      objects("{\"prompt\":\"the cat\",\"n\":3,\"max_tokens\":5,\"logprobs\":0}\n", {"--beams", "4"});
  ASSERT_EQ(got.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i]["sample"], i);
    double sum = 0;
    for (const json &score : got[i]["logprobs"]["token_logprobs"])
      sum += double(score);
    EXPECT_NEAR(got[i]["score"], sum / double(got[i]["tokens"]), 1e-6);
    EXPECT_TRUE(!i || double(got[i]["score"]) <= double(got[i - 1]["score"]));
  }
  EXPECT_EQ(sample({"--beams", "2", "--temperature", "1"}).code, 2);
  EXPECT_EQ(sample({"--beams", "2", "--n", "3"}).code, 2);
  EXPECT_EQ(sample({"--beams", "2", "--stop", "x"}).code, 2);
  EXPECT_EQ(sample({"--beams", "2", "--n", "3", "--prompts", w.path("prompts.jsonl")}).code, 2);
  EXPECT_EQ(sample({"--length-penalty", "2"}).code, 2);
  EXPECT_EQ(sample({"--beams", "2", "--prompt", std::string(16, 'c')}).code, 2);
}

TEST_F(GenerateTest, WhatCannotBeContinuedIsSaid) {
  train({"train.steps=1"});
  auto expect = [&](const std::string &lines, std::vector<std::string> more, int code, const std::string &text) {
    writeFile(w.path("bad"), lines);
    more.insert(more.end(), {"--prompts", w.path("bad"), "--max-tokens", "2"});
    const Result r = sample(more);
    EXPECT_EQ(r.code, code) << r.output;
    EXPECT_NE(r.output.find(text), std::string::npos) << r.output << "\nlacks " << text;
    return r.output;
  };
  const std::vector<std::string> jsonl = {"--jsonl"};
  EXPECT_EQ(expect("", {}, 0, ""), "");
  EXPECT_EQ(expect("cat\n\n", {}, 3, "bad, line 2: prompt: is empty").substr(0, 4), "==> ") << "the first is there";
  expect("cat\nQ\n", {}, 3, "line 2: prompt: the tokenizer's vocabulary does not hold \"Q\"");
  expect("cat\n", jsonl, 3, "line 1: this is no JSON");
  expect("[1]\n", jsonl, 3, "line 1: this is no object");
  expect("{}\n", jsonl, 3, "prompt: is missing");
  expect("{\"prompt\":[]}\n", jsonl, 3, "prompt: must be a text or an array");
  expect("{\"prompt\":[1,-1]}\n", jsonl, 3, "prompt: must be a text or an array");
  expect("{\"prompt\":[1,15]}\n", jsonl, 3, "line 1: prompt: token 15 is beyond the vocabulary of 15");
  expect("{\"prompt\":\"cat\",\"promt\":1}\n", jsonl, 3, "promt: unknown; is it prompt?");
  for (const auto &[member, what] : std::vector<std::pair<std::string, std::string>>{
           {"\"n\":0", "n: must be from 1 to 4096"},
           {"\"n\":1.5", "n: must be an integer"},
           {"\"n\":99999999999999999999", "n: must be an integer"},
           {"\"max_tokens\":0", "max_tokens: must be at least 1 without echo"},
           {"\"temperature\":\"hot\"", "temperature: must be a number"},
           {"\"temperature\":1e300", "temperature: must be from 0 to 100"},
           {"\"top_p\":0", "top_p: must be above 0"},
           {"\"seed\":-1", "seed: is out of range"},
           {"\"logprobs\":21", "logprobs: must be from 0 to 20"},
           {"\"echo\":1", "echo: must be true or false"},
           {"\"stop\":\"\"", "stop: has an empty text"},
           {"\"stop\":[1]", "stop: must be a text or an array of texts"}})
    expect("{\"prompt\":\"cat\"," + member + "}\n", jsonl, 3, "line 1: " + what);
  expect("{\"prompt\":\"" + std::string(100, 'c') + "\",\"echo\":true,\"logprobs\":1}\n", jsonl, 3,
         "100 tokens, of which the context of 16 holds no");
  EXPECT_EQ(sample({"--prompts", w.path("none")}).code, 3);
  EXPECT_EQ(sample({"--prompts", w.path("bad"), "--prompt", "x"}).code, 2);
  EXPECT_EQ(sample({"--prompts", w.path("bad"), "--echo"}).code, 2);
  EXPECT_EQ(sample({"--stop="}).code, 2);
  EXPECT_EQ(sample({"--min-p", "2"}).code, 2);
  // A full disk ends it, however many prompts are left.
  const Result full =
      Process({"/bin/sh", "-c", "yes cat | " GPTC_BIN_DIR "/gptrun sample " + plan + " --prompts - > /dev/full"},
              {{"GPTC_CACHE", cacheDir()}}, w.path("shell"))
          .wait();
  EXPECT_EQ(full.code, 4) << full.output;
  EXPECT_NE(full.output.find("cannot write to standard output: No space left on device"), std::string::npos)
      << full.output;
}

}  // namespace
