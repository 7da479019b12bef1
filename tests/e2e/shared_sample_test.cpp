// `gptrun sample` and `serve` on ranks that share the model: what they say is what one rank says.
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tests/support/http_client.h"
#include "tests/support/json_lines.h"
#include "tests/support/port.h"
#include "tests/support/served.h"

#include "ir/facts.h"
#include "runtime/plan/plan.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/json.h"
#include "tools/compiler/inference.h"
#include "tools/serve/followers.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <thread>
#include <tuple>

using namespace e2e;
using gptc::test::jsonLines;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> gpt2 = {"model.ffn_dim=128"};
const std::vector<std::string> llama = {"model.preset=llama", "model.n_kv_head=4", "model.ffn_dim=96"};

struct SharedSampleTest : ::testing::Test {
  SharedSampleTest() { w.prepare(catsWithNumbers(), "bpe:290"); }
  std::string compile(const std::string &name, const std::vector<std::string> &form,
                      const std::vector<std::string> &more = {}) {
    std::vector<std::string> settings = w.prepared();
    settings.insert(settings.end(), {"model.vocab_size=300", "model.n_head=4", "model.n_embd=64", "model.block_size=32",
                                     "model.dropout=0", "train.global_batch_tokens=128", "train.micro_batch=4",
                                     "train.steps=80", "precision.compute=fp32"});
    settings.insert(settings.end(), form.begin(), form.end());
    settings.insert(settings.end(), more.begin(), more.end());
    return w.compile(name, settings);
  }
  /// A trained plan, with its run in its out_dir.
  std::string trained(const std::vector<std::string> &form, const std::vector<std::string> &more = {}) {
    const std::string plan = compile("plan", form, more);
    const Result r = w.gptrun({plan, "--resume", "never"});
    EXPECT_EQ(r.code, 0) << r.output;
    return plan;
  }
  /// What `gptrun sample WORDS` prints, standard error apart. `from`: "PROGRAM |".
  std::string sample(const std::string &words, const std::map<std::string, std::string> &env = {},
                     const std::string &from = "") {
    std::map<std::string, std::string> all = env;
    all.try_emplace("GPTC_CACHE", cacheDir());
    const Result r = Process({"/bin/sh", "-c", from + GPTC_BIN_DIR "/gptrun sample " + words + " 2> " + w.path("err")},
                             all, w.path("samples"))
                         .wait();
    said = readFile(w.path("err"));
    EXPECT_EQ(r.code, 0) << words << "\n" << said << r.output;
    return r.output;
  }
  /// The file of prompts that ask for all kinds of things.
  std::string prompts(const std::string &stop = " on") {
    std::string longest = "the cat sat on the mats. ";
    for (int i = 0; i < 5; ++i)
      longest += longest.substr(0, 25);
    writeFile(w.path("prompts.jsonl"),
              R"({"prompt":"the cat","temperature":0,"max_tokens":20,"logprobs":2}
{"prompt":"it was a fat","temperature":1,"seed":9,"max_tokens":15,"n":3,"logprobs":0}
{"prompt":"the cat","temperature":0,"max_tokens":20,"logprobs":1,"echo":true,"id":"stopped","stop":)" +
                  json(stop).dump() + R"(}
{"prompt":)" + json(longest).dump() +
                  R"(,"temperature":0,"max_tokens":40}
{"prompt":"cat","temperature":0.8,"seed":3,"top_k":5,"top_p":0.9,"min_p":0.01,"repetition_penalty":1.3,"max_tokens":15}
{"prompt":"the cat sat on the","temperature":0.5,"seed":4,"max_tokens":1}
)");
    return w.path("prompts.jsonl");
  }
  Workplace w;
  std::string said;  // on standard error
};

/// The same texts; log-probabilities as near as float32 sums in another order are: through two layers and the
/// classifier, sums of at most 128 terms below 2^4, each within an ulp of 2^-20 of what it would be.
void expectAlike(const std::vector<json> &got, const std::vector<json> &want, const std::string &what,
                 double bound = 5 * 128 * 0x1p-20) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    for (const char *key : {"prompt", "id", "sample", "text", "tokens", "finish_reason"})
      EXPECT_EQ(got[i].value(key, json()), want[i].value(key, json())) << what << " " << i << " " << key;
    ASSERT_EQ(got[i].contains("logprobs"), want[i].contains("logprobs")) << what;
    if (!want[i].contains("logprobs"))
      continue;
    const json &a = got[i]["logprobs"]["token_logprobs"], &b = want[i]["logprobs"]["token_logprobs"];
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t j = 0; j < a.size(); ++j) {
      ASSERT_EQ(a[j].is_null(), b[j].is_null()) << what;
      if (!b[j].is_null()) {
        EXPECT_NEAR(a[j].get<double>(), b[j].get<double>(), bound) << what << " " << i << " " << j;
      }
    }
  }
}

/// The largest difference between log-probabilities of the same texts.
double apart(const std::vector<json> &a, const std::vector<json> &b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const json &x = a[i]["logprobs"]["token_logprobs"], &y = b.at(i)["logprobs"]["token_logprobs"];
    for (size_t j = 0; j < x.size(); ++j)
      if (!x[j].is_null())
        most = std::max(most, std::fabs(x[j].get<double>() - y.at(j).get<double>()));
  }
  return most;
}

TEST_F(SharedSampleTest, RanksSayWhatOneSays) {
  for (const std::vector<std::string> &form : {gpt2, llama}) {
    const std::string plan = trained(form), words = plan + " --jsonl --prompts " + prompts();
    const std::string likeliest = jsonLines(sample(words))[0]["text"];
    prompts(likeliest.substr(likeliest.size() / 2, 3));
    const std::vector<json> one = jsonLines(sample(words + " --slots 1"));
    ASSERT_EQ(one.size(), 8u);
    EXPECT_EQ(one[4]["id"], "stopped");
    EXPECT_EQ(one[4]["finish_reason"], "stop") << one[4];
    for (const auto &[tensor, slots] : {std::pair<std::string, std::string>{"2", "1"}, {"2", "3"}, {"4", "3"}}) {
      const std::string lines = sample(words + " --tensor " + tensor + " --slots " + slots);
      expectAlike(jsonLines(lines), one, tensor + " ranks, " + slots + " slots");
      EXPECT_NE(said.find("note: " + tensor + " ranks on this machine\n"), std::string::npos) << said;
      EXPECT_NE(said.find(", on each of " + tensor + " ranks\n"), std::string::npos) << said;
      EXPECT_EQ(said.find("of cache", said.find("of cache") + 1), std::string::npos) << "one voice: " << said;
    }
    // What is guessed and what is shared by slots changes nothing; as text, and by beams.
    expectAlike(jsonLines(sample(words + " --tensor 2 --slots 4 --lookup 3 --threads 1")), one, "guesses");
    const std::string text = plan + " --prompt 'the cat' --temperature 0 --max-tokens 12 --n 2";
    EXPECT_EQ(sample(text + " --tensor 2"), sample(text));
    const std::string beams = plan + " --prompt 'the cat' --beams 3 --n 2 --max-tokens 8";
    EXPECT_EQ(sample(beams + " --ranks-per-node 2"), sample(beams));
  }
  EXPECT_FALSE(fs::exists(w.path("out/ranks"))) << "samples leave no logs";
}

// Over TCP, with ranks of another launcher, and with prompts that come on standard input.
TEST_F(SharedSampleTest, HoweverRanksAndPromptsCome) {
  const std::string plan = trained(llama), file = prompts(), words = plan + " --jsonl --prompts ";
  const std::vector<json> one = jsonLines(sample(words + file));
  expectAlike(jsonLines(sample(words + file + " --tensor 2", {{"GPTC_INTERFACE", "lo"}})), one, "TCP");
  expectAlike(jsonLines(sample(words + file + " --nodes 2")), one, "nodes");
  expectAlike(jsonLines(sample(words + "- --tensor 2 < " + file)), one, "standard input");
  expectAlike(jsonLines(sample(words + "- --tensor 2 < /dev/null")), {}, "nothing");
  // What is a file for the launcher alone.
  expectAlike(jsonLines(sample(words + "/dev/stdin --tensor 2 < " + file)), one, "a file as /dev/stdin");
  expectAlike(jsonLines(sample(words + "/dev/stdin --tensor 2", {}, "cat " + file + " | ")), one, "a pipe");
  expectAlike(jsonLines(sample(words + "/dev/fd/9 --tensor 2 9<&0 < /dev/null", {}, "cat " + file + " | ")), one,
              "another descriptor");

  // With the variables of torchrun, and with those of gptrun's own launcher, which here passes no prompts.
  using Variables = std::map<std::string, std::string>;
  const gptc::test::Port port;
  const std::string token = gptc::newToken();
  const gptc::RendezvousServer meeting({.token = token, .world = 2});
  const Variables torchrun = {{"WORLD_SIZE", "2"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", std::to_string(port.number())}};
  const Variables own = {{"GPTC_WORLD", "2"},
                         {"GPTC_LOCAL_WORLD", "2"},
                         {"GPTC_RENDEZVOUS", meeting.where()},
                         {"GPTC_TOKEN", token},
                         {"GPTC_THREADS", "1"}};
  for (const auto &[prefix, common] : {std::pair<std::string, Variables>{"", torchrun}, {"GPTC_", own}}) {
    auto env = [&prefix = prefix, &common = common](const char *rank) {
      Variables all = common;
      all.insert({{prefix + "RANK", rank}, {prefix + "LOCAL_RANK", rank}});
      return all;
    };
    Process other = w.start("gptrun", {"sample", plan, "--jsonl", "--prompts", w.path("not-here")}, env("1"));
    expectAlike(jsonLines(sample(words + file + " < /dev/null", env("0"))), one, prefix + "RANK");
    const Result rest = other.wait();
    EXPECT_EQ(rest.code, 0) << rest.output;
    EXPECT_EQ(rest.output, "") << "rank 0 reads and prints for all";
  }
}

// A plan says how many ranks share it; so do its caches, to the byte.
TEST_F(SharedSampleTest, APlanForRanksThatShareLayersIsSampledOnAsMany) {
  const std::string plan = compile("plan", gpt2, {"parallel.tensor=2", "train.steps=10"});
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  const std::string words = plan + " --prompt 'the cat' --temperature 0 --max-tokens 10";
  const std::string two = sample(words);
  EXPECT_NE(said.find("note: 2 ranks on this machine\n"), std::string::npos) << said;
  EXPECT_EQ(sample(words + " --tensor 1"), two);
  EXPECT_EQ(said.find("ranks"), std::string::npos) << said;
  EXPECT_EQ(sample(words + " --ranks-per-node 4"), two);

  const gptc::Plan loaded = gptc::loadPlan(plan);
  const auto one = gptc::servingModule(loaded, 3, cacheDir()), half = gptc::servingModule(loaded, 3, cacheDir(), 2);
  EXPECT_EQ(gptc::bytesOfCaches(*half) * 2, gptc::bytesOfCaches(*one));
  EXPECT_LT(gptc::fact<&gptc::MemoryFacts::arenaBytes>(*half), gptc::fact<&gptc::MemoryFacts::arenaBytes>(*one));
}

// Folders and files of other programs, with weights in 8 bits as they lie in the file or rounded.
TEST_F(SharedSampleTest, ModelsOfOtherProgramsAreSharedToo) {
  const std::string plan = trained(llama, {"model.ffn_dim=128"}), dir = w.path("hf"), gguf = w.path("x.gguf");
  ASSERT_EQ(w.gptc({"export", plan, "-o", dir}).code, 0);
  ASSERT_EQ(w.gptc({"export", plan, "-o", gguf, "--format", "gguf", "--dtype", "q8_0"}).code, 0);
  // Of texts that are given: no choice among nearly equal tokens comes into it.
  writeFile(w.path("given.jsonl"),
            R"({"prompt":"the cat sat on the mats.\nit was a fat cat","max_tokens":0,"echo":true,"logprobs":0}
{"prompt":"number 27. mats on the cat: 3","max_tokens":0,"echo":true,"logprobs":0}
)");
  auto scores = [&](const std::string &words) {
    return jsonLines(sample(words + " --jsonl --prompts " + w.path("given.jsonl")));
  };
  const std::string wide = dir + " --precision fp32 --cache auto";
  const std::vector<json> exact = scores(wide);
  ASSERT_EQ(exact.size(), 2u);
  for (const char *ranks : {"2", "4"})
    expectAlike(scores(wide + " --tensor " + ranks), exact, std::string("folder on ranks: ") + ranks);
  // In bf16 and in 8 bits sums in another order may round to the next value, which moves others by a step. Ranks round
  // as often as one does, so that both are about as far from the exact result, and at most twice that from each other.
  // Where it is little by chance, a few steps of bf16.
  for (const std::string &model :
       {dir + " --precision bf16", dir + " --precision fp32 --weights q8_0", gguf + " --precision fp32"}) {
    const std::vector<json> one = scores(model);
    const double rounding = apart(one, exact);
    EXPECT_GT(rounding, 0) << model;
    const double bound = std::max(0.02, 2 * rounding);
    EXPECT_LT(bound, 0.5) << model << ": a wrong weight would be no farther off";
    expectAlike(scores(model + " --tensor 2"), one, model, bound);
  }
  // Blocks of 32 inputs, and 16 on each rank.
  const Result r = w.gptrun({"sample", gguf, "--prompt", "the cat", "--tensor", "4"});
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0206]: 64 inputs of h.0.attn.c_proj.weight on 4 ranks are 16 on each"),
            std::string::npos)
      << r.output;
}

/// The processes that gptrun `launcher` has started, by rank.
std::map<int, int> ranksOf(int launcher) {
  std::map<int, int> found;
  for (const auto &entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const std::string stat = readFile(entry.path() / "stat"), environ = readFile(entry.path() / "environ");
    const size_t end = stat.rfind(") ");
    if (end == std::string::npos || std::atoi(stat.c_str() + end + 4) != launcher)
      continue;
    if (const size_t at = environ.find("GPTC_RANK="); at != std::string::npos)
      found[std::atoi(environ.c_str() + at + 10)] = std::stoi(name);
  }
  return found;
}

TEST_F(SharedSampleTest, ARankThatDiesEndsAll) {
  const std::string plan = trained(gpt2);
  const std::vector<std::string> endless = {"sample",       plan,       "--prompt", "the cat",     "--max-tokens",
                                            "100000000000", "--tensor", "2",        "--ignore-eos"};
  for (const bool killed : {true, false}) {
    std::vector<std::string> args = endless;
    args.insert(args.begin(), GPTC_BIN_DIR "/gptrun");
    const std::string file = w.path(killed ? "killed" : "stopped");
    Process p(args, {{"GPTC_CACHE", cacheDir()}}, file);
    while (readFile(file).size() < 1000 && !p.hasEnded())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_FALSE(p.hasEnded()) << readFile(file);
    const std::map<int, int> ranks = ranksOf(p.pid());
    ASSERT_EQ(ranks.size(), 2u) << readFile(file);
    ::kill(killed ? ranks.at(1) : p.pid(), killed ? SIGKILL : SIGTERM);
    const Result r = p.wait();
    const std::string tail = r.output.substr(r.output.size() - std::min<size_t>(r.output.size(), 2000));
    EXPECT_EQ(r.code, killed ? 6 : 130) << tail;
    EXPECT_EQ(tail.find("error[GPTC0601]: rank 1 on ") != std::string::npos, killed) << tail;
    EXPECT_EQ(tail.find(" was killed by SIGKILL") != std::string::npos, killed) << tail;
    for (const auto &[rank, pid] : ranks)
      EXPECT_NE(::kill(pid, 0), 0) << "rank " << rank << " is left";
  }
}

// By SIGPIPE, unless whoever started it ignores that, and without a word.
TEST_F(SharedSampleTest, RanksThatNobodyReadsEndAsOneDoes) {
  const std::string plan = trained(gpt2, {"train.steps=3"});
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += "the cat\n";
  writeFile(w.path("many"), lines);
  for (const auto &[before, code] : {std::pair<std::string, std::string>{"", "141\n"}, {"trap '' PIPE; ", "0\n"}})
    for (const char *how : {" --ignore-eos --max-tokens 100000000000", " --beams 2 --max-tokens 4"})
      for (const char *tensor : {"1", "2"}) {
        const std::string what = before + how + " --tensor " + tensor;
        const Result r =
            Process({"/bin/bash", "-c",
                     before + "exec 3> >(:); wait $!; " GPTC_BIN_DIR "/gptrun sample " + plan + " --prompts " +
                         w.path("many") + how + " --tensor " + tensor + " 2> " + w.path("err") + " >&3; echo $?"},
                    {{"GPTC_CACHE", cacheDir()}}, w.path("unread"))
                .wait();
        EXPECT_EQ(r.output, code) << what << readFile(w.path("err"));
        EXPECT_EQ(readFile(w.path("err")).find("error["), std::string::npos) << what << readFile(w.path("err"));
      }
}

// A full disk is an error of all, which is said once.
TEST_F(SharedSampleTest, SamplesThatCannotBeWrittenAreAnError) {
  const std::string plan = trained(gpt2, {"train.steps=3"});
  for (const char *tensor : {"1", "2"}) {
    const Result r = Process({"/bin/sh", "-c",
                              GPTC_BIN_DIR "/gptrun sample " + plan + " --prompt 'the cat' --tensor " + tensor +
                                  " --ignore-eos --max-tokens 100000000000 > /dev/full"},
                             {{"GPTC_CACHE", cacheDir()}}, w.path("full"))
                         .wait();
    EXPECT_EQ(r.code, 4) << r.output;
    const std::string error = "error[GPTC0402]: cannot write to standard output: No space left on device";
    EXPECT_NE(r.output.find(error), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
  }
}

TEST_F(SharedSampleTest, ControlTokensOfThePromptAreNotedOnce) {
  const std::string plan = trained(gpt2, {"train.steps=3"});
  for (const char *tensor : {"1", "2"}) {
    sample(plan + " --prompt 'the<|endoftext|>cat' --max-tokens 3 --tensor " + tensor);
    const std::string note = "note: 1 control token in the prompt: ";
    EXPECT_NE(said.find(note), std::string::npos) << said;
    EXPECT_EQ(said.find(note, said.find(note) + 1), std::string::npos) << said;
  }
}

TEST_F(SharedSampleTest, AServerOnRanksAnswersAsOneDoes) {
  if (!Served::isBuilt())
    GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  const std::string plan = trained(gpt2);
  const std::vector<json> asked = {
      {{"prompt", "the cat"}, {"temperature", 0}, {"max_tokens", 12}, {"logprobs", 1}},
      {{"prompt", {"it was", "a fat cat"}}, {"temperature", 1}, {"seed", 7}, {"n", 2}, {"max_tokens", 9}},
      {{"prompt", "the cat sat"},
       {"temperature", 0},
       {"max_tokens", 20},
       {"stop", "a"},
       {"echo", true},
       {"logprobs", 0}},
      {{"prompt", "the cat sat on the mats"}, {"temperature", 0.7}, {"seed", 3}, {"min_p", 0.02}, {"max_tokens", 30}},
      {{"prompt", "cat"}, {"seed", 5}, {"repetition_penalty", 1.2}, {"top_k", 9}, {"top_p", 0.9}, {"max_tokens", 7}}};
  // All at once: slots are shared, prompts are read beside new tokens, some wait.
  auto answersOf = [&](int port) {
    std::vector<std::vector<std::string>> answers(asked.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < asked.size(); ++i)
      clients.emplace_back([&, i] {
        const gptc::test::HttpReply r = gptc::test::ask(port, "/v1/completions", asked[i].dump());
        EXPECT_EQ(r.status, 200) << r.body;
        const json answer = r.status == 200 ? r.json() : json();
        if (r.status == 200)
          for (const json &choice : answer["choices"])
            answers[i].push_back(choice["text"].get<std::string>() + "|" + choice["finish_reason"].get<std::string>());
      });
    for (std::thread &t : clients)
      t.join();
    return answers;
  };
  Served one({plan, "--slots", "3"}, w.path("one.log"));
  ASSERT_NE(one.port(), 0);
  const auto want = answersOf(one.port());
  EXPECT_EQ(one.stop().code, 0);
  ASSERT_EQ(want[1].size(), 4u);

  for (const bool killed : {false, true}) {
    Served two({plan, "--slots", "3", "--tensor", "2"}, w.path(killed ? "killed.log" : "two.log"));
    ASSERT_NE(two.port(), 0);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(answersOf(two.port()), want) << round;
      for (int client = 0; client < 3; ++client) {  // they leave before their answer
        gptc::test::HttpConnection c(two.port());
        c.send(gptc::test::httpText("/v1/completions", asked[3].dump()));
      }
    }
    const std::map<int, int> ranks = ranksOf(two.process().pid());
    ASSERT_EQ(ranks.size(), 2u);
    if (killed)
      ::kill(ranks.at(1), SIGKILL);
    const Result r = killed ? two.process().wait() : two.stop();
    EXPECT_EQ(r.code, killed ? 6 : 0) << r.output;
    EXPECT_EQ(r.output.find("error[GPTC0601]: rank 1 on ") != std::string::npos, killed) << r.output;
    for (const auto &[rank, pid] : ranks)
      EXPECT_NE(::kill(pid, 0), 0) << "rank " << rank << " is left";
  }
}

// systemd signals all processes of a unit, and the launcher passes it on: one request to end.
TEST_F(SharedSampleTest, AServerOnRanksEndsWithItsLastAnswerWhoeverGetsTheSignal) {
  if (!Served::isBuilt())
    GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  const std::string plan = trained(gpt2, {"train.steps=3"});
  Served two({plan, "--slots", "2", "--tensor", "2", "--drain", "3000"}, w.path("two.log"));
  ASSERT_NE(two.port(), 0);
  const std::map<int, int> ranks = ranksOf(two.process().pid());
  ASSERT_EQ(ranks.size(), 2u);
  gptc::test::HttpConnection client(two.port());
  const json asked = {{"prompt", "the"}, {"max_tokens", 25}, {"n", 200}, {"stream", true}, {"ignore_eos", true}};
  ASSERT_TRUE(client.send(gptc::test::httpText("/v1/completions", asked.dump())));
  client.receive("data: ");
  ::kill(two.process().pid(), SIGTERM);
  EXPECT_TRUE(gptc::test::eventually([&] { return gptc::test::ask(two.port(), "/health").status != 200; }))
      << "rank 0 has not heard of it";
  for (const auto &[rank, pid] : ranks)
    ::kill(pid, SIGTERM);
  const std::string rest = client.receive();
  EXPECT_NE(rest.find("[DONE]"), std::string::npos) << rest.substr(rest.size() - std::min<size_t>(rest.size(), 500));
  const Result r = two.process().wait();
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST(SharedServing, OrdersHaveAllThatTokensDependOn) {
  gptc::Orders orders;
  orders.taken = ~uint64_t(0);
  orders.dropped = {3, 1};
  gptc::CompletionRequest r;
  r.prompt = {5, 0, 2147483647};
  r.options = {.maxTokens = int64_t(1) << 40,
               .temperature = 0.1,
               .topK = 7,
               .topP = 1.0 / 3,
               .seed = ~uint64_t(0) - 1,
               .tokens = 290,
               .minP = 5e-324,
               .repetitionPenalty = 1.1};
  r.stops = {"", "\xff\n", "on"};
  r.logProbs = 0;
  r.echo = r.ignoreEnd = true;
  r.ends = {2, 4};
  orders.begun = {{8, 2, r}, {9, 0, {}}};
  const gptc::Orders got = gptc::Orders::parse(orders.bytes());
  EXPECT_FALSE(got.ends);
  EXPECT_EQ(got.taken, orders.taken);
  EXPECT_EQ(got.dropped, orders.dropped);
  ASSERT_EQ(got.begun.size(), 2u);
  EXPECT_EQ(got.begun[0].number, 8);
  EXPECT_EQ(got.begun[0].sample, 2u);
  const gptc::CompletionRequest &g = got.begun[0].request;
  EXPECT_EQ(g.prompt, r.prompt);
  EXPECT_EQ(std::tie(g.options.maxTokens, g.options.temperature, g.options.topK, g.options.topP, g.options.seed),
            std::tie(r.options.maxTokens, r.options.temperature, r.options.topK, r.options.topP, r.options.seed));
  EXPECT_EQ(std::tie(g.options.tokens, g.options.minP, g.options.repetitionPenalty),
            std::tie(r.options.tokens, r.options.minP, r.options.repetitionPenalty));
  EXPECT_EQ(std::tie(g.stops, g.logProbs, g.echo, g.ends, g.ignoreEnd),
            std::tie(r.stops, r.logProbs, r.echo, r.ends, r.ignoreEnd));
  EXPECT_FALSE(got.begun[1].request.logProbs) << "none is not zero";
  orders.ends = true;
  EXPECT_TRUE(gptc::Orders::parse(orders.bytes()).ends);
}

// A prompt that cannot be continued ends the reading, after all samples before it.
TEST_F(SharedSampleTest, AnErrorOfAPromptComesOnce) {
  const std::string plan = trained(gpt2, {"train.steps=3"});
  writeFile(w.path("prompts.jsonl"),
            "{\"prompt\":\"the cat\",\"max_tokens\":9}\n{\"prompt\":\"\"}\n{\"prompt\":\"it\"}\n");
  for (const std::vector<std::string> &more : {std::vector<std::string>{}, {"--beams", "2"}}) {
    std::vector<std::string> args = {"sample", plan, "--tensor", "2", "--jsonl", "--prompts", w.path("prompts.jsonl")};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_NE(r.output.find("{\"prompt\":0,\"sample\":0,"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("error[GPTC0302]: " + w.path("prompts.jsonl") + ", line 2: "), std::string::npos)
        << r.output;
    EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
  }
}

}  // namespace
