// `gptrun serve`: clients get what `gptrun sample` gives, whoever asks beside them and however badly they behave.
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tests/support/http_client.h"
#include "tests/support/json_lines.h"
#include "tests/support/oracles.h"
#include "tests/support/served.h"
#include "tools/serve/http.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <random>
#include <regex>
#include <sstream>
#include <sys/resource.h>
#include <thread>
using namespace e2e;
using gptc::test::ask;
using gptc::test::HttpConnection;
using gptc::test::HttpReply;
using gptc::test::httpText;
using nlohmann::json;

namespace {

/// A model of 64 tokens of context that was trained a little, for all tests; each has a server of its own.
struct Trained {
  Trained() {
    w.useCats();
    writeFile(
        w.path("data/tokenizer_config.json"),
        json{{"chat_template", "{% for m in messages %}{{ 'the ' if m.role == 'user' else 'it ' }}{{ m.content }}.\n"
                               "{% endfor %}it"}}
            .dump());
    plan = w.compile("plan", {"train.steps=20", "model.block_size=64", "train.global_batch_tokens=256"});
    const Result r = w.gptrun({plan});
    EXPECT_EQ(r.code, 0) << r.output;
  }
  Workplace w;
  std::string plan;
};

class ServeTest : public ::testing::Test {
protected:
  static void SetUpTestSuite() { trained = new Trained; }
  static void TearDownTestSuite() { delete std::exchange(trained, nullptr); }

  void SetUp() override {
    if (!Served::isBuilt())
      GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  }

  /// Starts a server and waits until it listens.
  void serve(const std::vector<std::string> &more = {}) { serveModel(trained->plan, more); }
  void serveModel(const std::string &model, const std::vector<std::string> &more) {
    std::vector<std::string> args = {model, "--model-name", "tiny"};
    args.insert(args.end(), more.begin(), more.end());
    output = trained->w.path("serve.log");
    server.emplace(args, output);
    ASSERT_NE(server->port(), 0);
    port = server->port();
  }
  static std::vector<std::string> program(std::vector<std::string> args) {
    args.insert(args.begin(), std::string(GPTC_BIN_DIR) + "/gptrun");
    return args;
  }
  Result stop(int signal = SIGTERM) { return server->stop(signal); }
  HttpReply complete(const json &object) const { return ask(port, "/v1/completions", object.dump()); }
  std::string textOf(const json &object) const {
    const HttpReply r = complete(object);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.status == 200 ? r.json()["choices"][0]["text"].get<std::string>() : "";
  }
  /// A value of /metrics.
  int64_t metric(const std::string &name) const {
    const std::string body = ask(port, "/metrics").body;
    std::smatch m;
    return std::regex_search(body, m, std::regex("\ngptc_" + name + " (\\d+)\n")) ? std::stoll(m[1]) : -1;
  }
  /// A server that fails does so without an event.
  void awaitMetric(const std::string &name, int64_t value) const {
    ASSERT_TRUE(gptc::test::eventually([&] { return metric(name) == value; }, std::chrono::minutes(5)))
        << name << " is " << metric(name) << " instead of " << value;
  }

  static Trained *trained;
  std::optional<Served> server;
  std::string output;
  int port = 0;
};

Trained *ServeTest::trained = nullptr;

/// The objects of a stream of server-sent events, of which [DONE] is the last.
std::vector<json> eventsOf(const HttpReply &r) {
  std::vector<json> events;
  std::istringstream in(r.body);
  bool isDone = false;
  for (std::string line; std::getline(in, line);) {
    EXPECT_FALSE(isDone && !line.empty()) << line;
    if (line == "data: [DONE]")
      isDone = true;
    else if (line.rfind("data: ", 0) == 0)
      events.push_back(gptc::parseJson(line.substr(6)));
    else
      EXPECT_EQ(line, "");
  }
  EXPECT_TRUE(isDone) << r.body;
  return events;
}

TEST_F(ServeTest, GivesWhatSampleGives) {
  serve({"--slots", "4"});
  const json object = {{"prompt", "the cat"}, {"max_tokens", 20}, {"temperature", 1},       {"seed", 7}, {"n", 3},
                       {"logprobs", 2},       {"echo", true},     {"stop", {"mat.", "fat"}}};
  writeFile(trained->w.path("prompts.jsonl"), object.dump() + "\n");
  const Result sampled =
      trained->w.gptrun({"sample", trained->plan, "--jsonl", "--prompts", trained->w.path("prompts.jsonl")});
  ASSERT_EQ(sampled.code, 0) << sampled.output;
  const std::vector<json> lines = gptc::test::objectLines(sampled.output);
  ASSERT_EQ(lines.size(), 3u);

  const HttpReply r = complete(object);
  ASSERT_EQ(r.status, 200) << r.body;
  const json whole = r.json();
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["model"], "tiny");
  int64_t tokens = 0;
  for (size_t i = 0; i < 3; ++i) {
    const json &choice = whole["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], lines[i]["text"]);
    EXPECT_EQ(choice["logprobs"], lines[i]["logprobs"]);
    EXPECT_EQ(choice["finish_reason"], lines[i]["finish_reason"]);
    tokens += lines[i]["tokens"].get<int64_t>();
  }
  EXPECT_EQ(whole["usage"], (json{{"prompt_tokens", 7}, {"completion_tokens", tokens}, {"total_tokens", 7 + tokens}}));
  EXPECT_EQ(metric("generated_tokens_total"), tokens);
  EXPECT_EQ(metric("prompt_tokens_total"), 7);
}

// A checkpoint is a Hugging Face folder.
TEST_F(ServeTest, AFolderIsServedAsItsPlan) {
  const std::string folder = trained->w.path("out/checkpoints/latest");
  ASSERT_TRUE(std::filesystem::exists(folder + "/config.json"));
  const json object = {{"prompt", "the cat"}, {"max_tokens", 40}, {"temperature", 1}, {"seed", 7}, {"logprobs", 2}};
  serve();
  const HttpReply ofPlan = complete(object);
  ASSERT_EQ(ofPlan.status, 200) << ofPlan.body;
  EXPECT_EQ(stop().code, 0);
  serveModel(folder, {"--precision", "fp32"});
  const HttpReply r = complete(object);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["choices"], ofPlan.json()["choices"]);
  EXPECT_EQ(stop().code, 0);
  // In 8 bits, with a shorter context.
  serveModel(folder + "/", {"--precision", "fp32", "--weights", "q8_0", "--context", "48"});
  EXPECT_NE(readFile(output).find("note: weights as q8_0, "), std::string::npos) << readFile(output);
  const HttpReply eights = complete(object);
  ASSERT_EQ(eights.status, 200) << eights.body;
  EXPECT_NE(eights.json()["choices"], ofPlan.json()["choices"]);
}

TEST_F(ServeTest, AModelThatCannotBeServedIsExplained) {
  Workplace &w = trained->w;
  const std::string whole = w.path("out/checkpoints/latest"), copy = w.path("copy"), damaged = w.path("damaged.gguf");
  std::filesystem::create_directory(copy);
  for (const char *file : {"config.json", "model.safetensors"})
    std::filesystem::copy(whole + "/" + file, copy);
  writeFile(damaged, std::string("GGUF\3\0\0\0 and nothing else", 25));
  struct Case {
    std::vector<std::string> args;
    int code;
    const char *says;
  };
  for (const Case &c :
       std::vector<Case>{{{"serve", whole, "--context", "65"}, 2, "has a context of 64 tokens"},
                         {{"serve", whole, "--context", "0"}, 2, "--context"},
                         {{"serve", whole, "--precision", "q8"}, 2, "--precision"},
                         {{"serve", whole, "--checkpoint", "best"}, 2, "leave out --checkpoint and --out-dir"},
                         {{"sample", whole, "--out-dir", w.path("out")}, 2, "leave out --checkpoint and --out-dir"},
                         {{"sample", trained->plan, "--context", "8"}, 2, "a plan has its own"},
                         {{"sample", trained->plan, "--weights", "q8_0"}, 2, "a plan has its own"},
                         {{"sample", trained->plan, "--cache", "q8_0"}, 2, "a plan has its own"},
                         {{"serve", whole, "--cache", "q4_0"}, 2, "--cache"},
                         {{"serve", whole, "--cache", "q8_0", "--embeddings"}, 2, "nothing is cached"},
                         {{"embed", whole, "--cache", "q8_0", "--texts", "x"}, 2, "--cache"},
                         {{"sample", whole + "/config.json"}, 3, "is a file, and no GGUF file"},
                         {{"serve", w.path("nowhere"), "--context", "8"}, 3, "there is no plan"},
                         {{"serve", trained->plan, "--precision", "bf16"}, 2, "a plan has its own"},
                         {{"serve", copy}, 3, "has no tokenizer"},
                         {{"serve", damaged}, 5, "damaged.gguf"},
                         {{"sample", damaged}, 5, "damaged.gguf"},
                         {{"eval", whole}, 3, "give --data FILE"},
                         {{whole}, 2, "`gptc import"}}) {
    const Result r = w.gptrun(c.args);
    EXPECT_EQ(r.code, c.code) << r.output;
    EXPECT_NE(r.output.find(c.says), std::string::npos) << r.output;
  }
}

TEST_F(ServeTest, AStreamIsTheSameInPieces) {
  serve();
  json object = {{"prompt", {"the cat", "it was"}},
                 {"max_tokens", 15},
                 {"temperature", 1},
                 {"seed", 7},
                 {"n", 2},
                 {"logprobs", 1},
                 {"stop", "cat"},
                 {"echo", true}};
  const HttpReply whole = complete(object);
  ASSERT_EQ(whole.status, 200) << whole.body;
  object["stream"] = true;
  object["stream_options"] = {{"include_usage", true}};
  const HttpReply r = complete(object);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_NE(r.head.find("Content-Type: text/event-stream"), std::string::npos) << r.head;
  std::vector<json> events = eventsOf(r);
  EXPECT_GT(events.size(), 10u);
  EXPECT_EQ(events.back()["usage"], whole.json()["usage"]);
  EXPECT_TRUE(events.back()["choices"].empty());
  events.pop_back();
  json choices = json::array();
  for (const json &event : events) {
    ASSERT_EQ(event["choices"].size(), 1u);
    const json &piece = event["choices"][0];
    const size_t i = piece["index"].get<size_t>();
    while (choices.size() <= i)
      choices.push_back(nullptr);
    json &choice = choices[i];
    if (choice.is_null()) {
      choice = piece;
      continue;
    }
    EXPECT_TRUE(choice["finish_reason"].is_null()) << "pieces follow the last one";
    choice["finish_reason"] = piece["finish_reason"];
    choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
    for (const char *list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      for (const json &value : piece["logprobs"][list])
        choice["logprobs"][list].push_back(value);
  }
  EXPECT_EQ(choices, whole.json()["choices"]);
}

TEST_F(ServeTest, AConversationIsItsText) {
  serve();
  json object = {{"max_tokens", 12}, {"temperature", 1}, {"seed", 3}, {"n", 2}};
  object["prompt"] = "the cat.\nit sat.\nthe mats.\nit";
  object["logprobs"] = 1;
  const json text = complete(object).json();
  object.erase("prompt");
  object["messages"] = {{{"role", "user"}, {"content", "cat"}},
                        {{"role", "assistant"}, {"content", "sat"}},
                        {{"role", "user"}, {"content", json::array({json{{"type", "text"}, {"text", "mats"}}})}}};
  object["logprobs"] = true;
  object["top_logprobs"] = 1;
  const HttpReply r = ask(port, "/v1/chat/completions", object.dump());
  ASSERT_EQ(r.status, 200) << r.body;
  const json chat = r.json();
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["usage"], text["usage"]);
  for (size_t i = 0; i < 2; ++i) {
    const json &choice = chat["choices"][i], &same = text["choices"][i];
    EXPECT_EQ(choice["message"], (json{{"role", "assistant"}, {"content", same["text"]}}));
    EXPECT_EQ(choice["finish_reason"], "length");
    const json &tokens = choice["logprobs"]["content"];
    ASSERT_EQ(tokens.size(), 12u);
    for (size_t t = 0; t < 12; ++t) {
      EXPECT_EQ(tokens[t]["token"], same["logprobs"]["tokens"][t]);
      EXPECT_EQ(tokens[t]["logprob"], same["logprobs"]["token_logprobs"][t]);
      EXPECT_EQ(tokens[t]["bytes"][0], int(tokens[t]["token"].get<std::string>()[0]));
      EXPECT_EQ(tokens[t]["top_logprobs"].size(), same["logprobs"]["top_logprobs"][t].size());
    }
  }
  object["stream"] = true;
  std::string contents[2];
  json scores[2] = {json::array(), json::array()};
  for (const json &event : eventsOf(ask(port, "/v1/chat/completions", object.dump()))) {
    const json &piece = event["choices"][0];
    const size_t i = piece["index"].get<size_t>();
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(piece["delta"].contains("role"), contents[i].empty());
    contents[i] += piece["delta"].value("content", "");
    for (const json &token : piece["logprobs"]["content"])
      scores[i].push_back(token);
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json(contents[i]), chat["choices"][i]["message"]["content"]);
    EXPECT_EQ(scores[i], chat["choices"][i]["logprobs"]["content"]);
  }
  // Without max_tokens the answer may fill the context.
  object = {{"messages", object["messages"]}};
  EXPECT_EQ(ask(port, "/v1/chat/completions", object.dump()).json()["usage"]["total_tokens"], 65);
  object["messages"][0]["content"] = std::string(65, 'a');
  EXPECT_EQ(ask(port, "/v1/chat/completions", object.dump()).error(),
            "the prompt has 91 tokens; the model's context has 64");
}

TEST_F(ServeTest, ManyAtOnceGetWhatEachGetsAlone) {
  serve({"--slots", "8"});
  const int count = int(gptc::test::sized(48, 2000));
  auto request = [&](int i) {
    const std::string text = "the cat sat on the mats.\nit was a fat cat. ";
    return json{{"prompt", text.substr(size_t(i % 11), size_t(1 + i % 29))},
                {"max_tokens", 1 + i % 24},
                {"temperature", i % 3 ? 1.0 : 0.0},
                {"seed", i % 50},
                {"logprobs", 1},
                {"echo", i % 5 == 0}};
  };
  std::map<std::string, std::string> alone;  // by request
  for (int i = 0; i < count; ++i)
    if (std::string &text = alone[request(i).dump()]; text.empty())
      text = complete(request(i)).json()["choices"].dump();
  std::vector<std::string> together;
  together.resize(size_t(count));
  std::atomic<int> next = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < int(gptc::test::sized(16, 64)); ++c)
    clients.emplace_back([&] {
      HttpConnection connection(port);
      for (int i = next++; i < count; i = next++)
        if (connection.send(httpText("/v1/completions", request(i).dump())))
          together[size_t(i)] = connection.reply().json()["choices"].dump();
    });
  for (std::thread &t : clients)
    t.join();
  for (int i = 0; i < count; ++i)
    EXPECT_EQ(together[size_t(i)], alone[request(i).dump()]) << request(i);
}

TEST_F(ServeTest, BadRequestsAreExplained) {
  serve({"--queue", "10"});
  struct Case {
    std::string body;
    int status;
    std::string message;
  };
  const std::string longText(65, 'a');
  const std::vector<Case> cases = {
      {"{", 400, "the body is no JSON, or deeper than 64 levels"},
      {std::string(100000, '['), 400, "the body is no JSON, or deeper than 64 levels"},
      {"[1]", 400, "the body is no object"},
      {"{\"prompt\": \"\xff\"}", 400, "the body is no JSON, or deeper than 64 levels"},
      {R"({})", 400, "prompt: is missing"},
      {R"({"prompt": ""})", 400, "prompt: is empty"},
      {R"({"prompt": []})", 400, "prompt: must be a text or an array of token ids that is not empty"},
      {R"({"prompt": ["the", []]})", 400, "prompt: must be a text or an array of token ids that is not empty"},
      {R"({"prompt": [1, "the"]})", 400, "prompt: must be a text or an array of token ids that is not empty"},
      {R"({"prompt": [1, -1]})", 400, "prompt: must be a text or an array of token ids that is not empty"},
      {R"({"prompt": [[1], [99999]]})", 400,
       "prompt: token 99999 is beyond the vocabulary of 15: use the tokenizer that the model was trained with"},
      {R"({"prompt": "the Ω"})", 400, "prompt: "},
      {R"({"prompt": ")" + longText + R"("})", 400, "the prompt has 65 tokens; the model's context has 64"},
      {R"({"prompt": "the", "max_token": 5})", 400, "max_token: unknown; is it max_tokens?"},
      {R"({"prompt": "the", "max_tokens": 0})", 400, "max_tokens: must be at least 1 without echo"},
      {R"({"prompt": "the", "max_tokens": 1e99})", 400, "max_tokens: must be an integer"},
      {R"({"prompt": "the", "temperature": -1})", 400, "temperature: must be from 0 to 100"},
      {R"({"prompt": "the", "logprobs": 21})", 400, "logprobs: must be from 0 to 20"},
      {R"({"prompt": "the", "n": 11})", 400, "n: 11 samples; at most 10 are made at once"},
      {R"({"prompt": ["a", "a", "a"], "n": 4})", 400, "n: 12 samples; at most 10 are made at once"},
      {R"({"prompt": "the", "stop": ")" + std::string(5000, 'a') + R"("})", 400,
       "stop: has a text of more than 4096 bytes"},
      {R"({"prompt": "the", "stop": ["a", 1]})", 400, "stop: must be a text or an array of texts"},
      {R"({"prompt": "the", "stream": 1})", 400, "stream: must be true or false"},
      {R"({"prompt": "the", "stream_options": {}})", 400, "stream_options: needs stream"},
      {R"({"prompt": "the", "presence_penalty": 1})", 400,
       "presence_penalty: is not known here; repetition_penalty is"},
      {R"({"prompt": "the", "logit_bias": {"5": 1}})", 400, "logit_bias: is not known here"},
      {R"({"prompt": "the", "best_of": 2})", 400, "best_of: must be n"},
      {R"({"prompt": "the", "id": 2})", 400, "id: unknown"},
      {R"({"prompt": "the", "model": "gpt-4"})", 404, "there is no model \"gpt-4\"; here is tiny"},
  };
  for (const Case &c : cases) {
    const HttpReply r = ask(port, "/v1/completions", c.body);
    EXPECT_EQ(r.status, c.status) << c.body.substr(0, 200);
    EXPECT_EQ(r.error().substr(0, c.message == "prompt: " ? 8 : std::string::npos), c.message) << c.body.substr(0, 200);
  }
  EXPECT_EQ(ask(port, "/v1/completions", R"({"prompt": ")" + longText + R"("})").json()["error"]["code"],
            "context_length_exceeded");
  EXPECT_NE(ask(port, "/").body.find("<title>gptc</title>"), std::string::npos);
  EXPECT_EQ(ask(port, "/nix").status, 404);
  EXPECT_EQ(ask(port, "/../../etc/passwd").status, 404);
  EXPECT_EQ(ask(port, "/v1/completions").status, 405);
  EXPECT_EQ(ask(port, "/health").body, "{\"status\":\"ok\"}\n");
  EXPECT_EQ(ask(port, "/v1/models").json()["data"][0]["id"], "tiny");
  // A full context, and prompts that fill it.
  EXPECT_EQ(complete({{"prompt", longText.substr(1)}, {"max_tokens", 50}}).json()["usage"]["completion_tokens"], 1);
  EXPECT_EQ(complete({{"prompt", "the"}, {"max_tokens", 5000}}).json()["choices"][0]["finish_reason"], "length");
  // Scores of a prompt alone.
  const json echoed =
      complete({{"prompt", longText.substr(1)}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}}).json();
  EXPECT_EQ(echoed["choices"][0]["logprobs"]["token_logprobs"].size(), 64u) << echoed;
  EXPECT_EQ(stop().code, 0);
}

TEST_F(ServeTest, BadClientsDisturbNobody) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlim_t before = std::exchange(files.rlim_cur, files.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &files);
  const size_t idle = files.rlim_max > 2000 ? 1100 : 200;  // more than select() can tell apart
  serve();
  const json good = {{"prompt", "the cat"}, {"max_tokens", 10}, {"temperature", 0}};
  const std::string expected = textOf(good);
  std::vector<HttpConnection> connections;
  for (size_t i = 0; i < idle; ++i) {
    connections.emplace_back(port);
    ASSERT_TRUE(connections.back().isOpen()) << i;
  }
  EXPECT_EQ(textOf(good), expected);
  // Some send a part of a request, and no more.
  const std::string text = httpText("/v1/completions", good.dump());
  for (size_t i = 0; i < 50; ++i)
    connections[i].send(text.substr(0, 1 + i * (text.size() - 2) / 50));
  EXPECT_EQ(textOf(good), expected);
  // One ends its side behind a request: it has gone. One sends bytes that are no request.
  connections[60].send(text);
  connections[60].endSending();
  connections[61].send(std::string("\0\1\2\3\r\n\r\n", 8));
  EXPECT_EQ(connections[61].reply().status, 400);
  // Bodies and headers that never end.
  HttpConnection endless(port), headers(port), large(port), compressed(port);
  EXPECT_TRUE(endless.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
  for (int i = 0; i < 1000 && endless.send(chunk); ++i) {
  }
  EXPECT_EQ(endless.reply().status, 413);
  EXPECT_TRUE(headers.send("GET /health HTTP/1.1\r\n"));
  for (int i = 0; i < 100000 && headers.send("X-A: " + std::string(1000, 'a') + "\r\n"); ++i) {
  }
  EXPECT_EQ(headers.reply().status, 400);
  large.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6000000\r\n"
             "Content-Type: application/json\r\n\r\n" +
             std::string(6000000, ' '));
  EXPECT_EQ(large.reply().status, 413);
  EXPECT_TRUE(compressed.send(httpText("/v1/completions", "x", "Content-Encoding: gzip\r\n")));
  EXPECT_EQ(compressed.reply().status, 415);
  // Requests whose end is not certain, and a part of an answer.
  auto status = [&](const std::string &head, const std::string &body) {
    HttpConnection c(port);
    c.send(head + "Host: localhost\r\n\r\n" + body + httpText("/nix"));
    const int first = c.reply().status;
    EXPECT_EQ(c.reply().status, 0) << head;
    return first;
  };
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nContent-Length: 5\r\n", "abcde"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n", ""), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n", "{}"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: identity, chunked\r\n", "0\r\n\r\n"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\n", ""), 411);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", "2\r\n{}XX\r\n0\r\n\r\n"), 415);
  HttpConnection bare(port);
  EXPECT_TRUE(bare.send("GET /health HTTP/1.1\r\n\n"));
  for (int i = 0; i < 100000 && bare.send("a:b\r\n"); ++i) {
  }
  EXPECT_EQ(bare.reply().status, 400);
  EXPECT_EQ(ask(port, "/health", "", "Range: bytes=0-1,0-1,0-1\r\n").body, "{\"status\":\"ok\"}\n");
  EXPECT_EQ(textOf(good), expected);
  // Several requests at once in one connection are answered in order.
  HttpConnection one(port);
  EXPECT_TRUE(one.send(text + httpText("/health") + text));
  EXPECT_EQ(one.reply().json()["choices"][0]["text"], expected);
  EXPECT_EQ(one.reply().body, "{\"status\":\"ok\"}\n");
  EXPECT_EQ(one.reply().json()["choices"][0]["text"], expected);
  connections.clear();
  EXPECT_EQ(stop().code, 0);
  files.rlim_cur = before;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

TEST_F(ServeTest, WhatAClientLeavesBehindIsDropped) {
  serve({"--slots", "2", "--queue", "16384"});
  const json large = {{"prompt", {"the", "cat", "sat", "on"}}, {"max_tokens", 60}, {"n", 4096}, {"temperature", 1}};
  for (const bool stream : {false, true}) {
    json object = large;
    object["stream"] = stream;
    const int64_t before = metric("generated_tokens_total");
    {
      HttpConnection client(port);
      ASSERT_TRUE(client.send(httpText("/v1/completions", object.dump())));
      ASSERT_TRUE(gptc::test::eventually([&] { return metric("generated_tokens_total") != before; }));
      // While it is served, there is no room for more.
      const HttpReply more = complete({{"prompt", {"the", "cat", "sat", "on"}}, {"n", 4095}});
      EXPECT_EQ(more.status, 503) << more.body;
      EXPECT_EQ(more.json()["error"]["code"], "overloaded");
      EXPECT_NE(more.head.find("Retry-After: 1"), std::string::npos);
    }
    ASSERT_NO_FATAL_FAILURE(awaitMetric("sequences_running", 0));
    ASSERT_NO_FATAL_FAILURE(awaitMetric("sequences_waiting", 0));
    EXPECT_LT(metric("generated_tokens_total") - before, 900000);
  }
}

TEST_F(ServeTest, HalfSentBodiesFillNoMoreThanTheBuffers) {
  serve({"--buffers", "8MiB"});
  EXPECT_NE(server->output().find(" tokens, up to 8192.0 KiB for requests and answers\n"), std::string::npos)
      << server->output();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           "Content-Length: 4194000\r\n\r\n";
  // Few, as the server gives each only HttpOptions::body seconds.
  std::vector<HttpConnection> halfSent;
  for (int i = 0; i < 2; ++i) {
    halfSent.emplace_back(port);
    ASSERT_TRUE(halfSent.back().send(head + std::string(4191000, ' ')));
  }
  ASSERT_NO_FATAL_FAILURE(awaitMetric("bytes_held", 2 * 4191000));  // of 8388608
  const json small = {{"prompt", "the cat"}, {"max_tokens", 5}}, large = {{"prompt", std::string(7000, 'a')}};
  EXPECT_EQ(complete(small).status, 200);
  const HttpReply r = complete(large);
  EXPECT_EQ(r.status, 503) << r.body;
  EXPECT_EQ(r.json()["error"]["code"], "overloaded");
  EXPECT_EQ(r.error(), "requests and answers of all clients fill the 8 MiB that there are for them: ask again");
  EXPECT_NE(r.head.find("Retry-After: 1"), std::string::npos) << r.head;
  halfSent.clear();
  ASSERT_NO_FATAL_FAILURE(awaitMetric("bytes_held", 0));
  EXPECT_EQ(complete(large).json()["error"]["code"], "context_length_exceeded");
}

TEST_F(ServeTest, WhoTakesNothingOfAStreamIsDroppedOnceTheBuffersAreFull) {
  serve({"--buffers", "8MiB", "--queue", "16384"});
  const json object = {{"prompt", "the"}, {"max_tokens", 60}, {"n", 1000},         {"temperature", 1},
                       {"logprobs", 15},  {"stream", true},   {"ignore_eos", true}};
  HttpConnection client(port);
  ASSERT_TRUE(client.send(httpText("/v1/completions", object.dump())));
  client.receive("data: ");
  ASSERT_NO_FATAL_FAILURE(awaitMetric("sequences_waiting", 0));
  ASSERT_NO_FATAL_FAILURE(awaitMetric("sequences_running", 0));
  EXPECT_LT(metric("generated_tokens_total"), 60000);
  EXPECT_EQ(complete({{"prompt", "the cat"}, {"max_tokens", 5}}).status, 200);
  const std::string last = "\r\n0\r\n\r\n", rest = client.receive(last);
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
  // Unless nothing was taken for so long that the connection was cut before.
  if (rest.ends_with(last)) {
    EXPECT_NE(rest.find("the answer was not taken fast enough"), std::string::npos);
  }
  ASSERT_NO_FATAL_FAILURE(awaitMetric("bytes_held", 0));
}

TEST_F(ServeTest, BuffersThatHoldNoRequestAreRefused) {
  // Before a model is looked at.
  for (const char *bytes : {"7MiB", "much"}) {
    const Result r = trained->w.gptrun({"serve", trained->w.path("nowhere"), "--buffers", bytes, "--port", "0"});
    EXPECT_EQ(r.code, 2) << r.output;
    EXPECT_NE(r.output.find("is no number of bytes from 8MiB on"), std::string::npos) << r.output;
  }
}

TEST_F(ServeTest, HelpAndPagesSayTheSeconds) {
  const gptc::HttpOptions o;
  // Lines of the help are broken anywhere.
  const std::string help = std::regex_replace(trained->w.gptrun({"serve", "--help"}).output, std::regex("\\s+"), " ");
  EXPECT_NE(help.find(fmt::format("take something at least every {} s;", o.lastWrite)), std::string::npos) << help;
  const std::string page = readFile(GPTC_SOURCE_DIR "/docs/inference.md");
  EXPECT_NE(page.find(fmt::format("cuts off who takes nothing for {} s, and {} s later all", o.lastWrite, o.lastWrite)),
            std::string::npos);
  EXPECT_NE(page.find(fmt::format("longer than {} s for headers or {} s for a body", o.headers, o.body)),
            std::string::npos);
}

TEST_F(ServeTest, EndsWithTheLastAnswer) {
  serve({"--slots", "2", "--drain", "3000"});
  HttpConnection client(port), idle(port);
  ASSERT_TRUE(client.send(
      httpText("/v1/completions", json{{"prompt", "the"}, {"max_tokens", 50}, {"n", 100}, {"stream", true}}.dump())));
  client.receive("data: ");
  ::kill(server->process().pid(), SIGTERM);
  const std::string rest = client.receive();
  EXPECT_NE(rest.find("[DONE]"), std::string::npos) << rest.substr(rest.size() - std::min<size_t>(rest.size(), 500));
  EXPECT_EQ(server->process().wait().code, 0);
  EXPECT_EQ(idle.receive(), "");
}

TEST_F(ServeTest, ASecondSignalEndsItAtOnce) {
  serve({"--slots", "2", "--drain", "80000", "--queue", "16384"});
  HttpConnection client(port);
  const json large = {{"prompt", {"the", "cat", "sat", "on"}}, {"max_tokens", 60}, {"n", 4096}, {"stream", true}};
  ASSERT_TRUE(client.send(httpText("/v1/completions", large.dump())));
  client.receive("data: ");
  std::string rest;
  std::thread reader([&] { rest = client.receive(); });  // who takes nothing gets no more
  ::kill(server->process().pid(), SIGINT);
  EXPECT_TRUE(gptc::test::eventually([&] { return ask(port, "/health").status != 200; }));
  // SIGTERM never counts twice, and SIGINT not within half a second of the first.
  ::kill(server->process().pid(), SIGTERM);
  while (!server->process().hasEnded()) {
    ::kill(server->process().pid(), SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(server->process().wait().code, 0);
  reader.join();
  EXPECT_NE(rest.find("the server ended before the request did"), std::string::npos);
}

TEST_F(ServeTest, OnlyThoseWhoMayAreAnswered) {
  writeFile(trained->w.path("keys"), "\nsecret-1\r\nsecret-2\n");
  serve({"--api-keys", trained->w.path("keys")});
  const std::string body = R"({"prompt": "the", "max_tokens": 1})";
  auto status = [&](const std::string &headers) { return ask(port, "/v1/completions", body, headers).status; };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer \r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer secret\r\n"), 401);
  EXPECT_EQ(status("Authorization: secret-1\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer secret-1\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer secret-2\r\n"), 200);
  EXPECT_EQ(ask(port, "/metrics").status, 401);
  EXPECT_EQ(ask(port, "/health").status, 200);
  // The name by which a page of the web would reach this server.
  HttpConnection page(port);
  EXPECT_TRUE(page.send("GET /v1/models HTTP/1.1\r\nHost: evil.example:80\r\n\r\n"));
  EXPECT_EQ(page.reply().status, 403);
}

TEST_F(ServeTest, ThePageShowsWhatTheInterfaceAnswers) {
  GPTC_LEFT_TO_ALL();
  serve();
  const gptc::test::Compared r =
      gptc::test::compareBy("tests/e2e/page_compare.py", "http://127.0.0.1:" + std::to_string(port) + " 'fat cat'");
  if (r.isMissing())
    GTEST_SKIP() << r.said;
  EXPECT_EQ(r.code, 0) << r.said;
}

TEST_F(ServeTest, APortThatIsTakenIsExplained) {
  serve();
  const Result r = trained->w.gptrun({"serve", trained->plan, "--port", std::to_string(port)});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.output.find("cannot listen on 127.0.0.1:" + std::to_string(port) + ": Address already in use"),
            std::string::npos)
      << r.output;
}

TEST_F(ServeTest, AnEndOfItsOwnIsAnError) {
  Served full({trained->plan}, trained->w.path("full.log"),
              {{"LD_PRELOAD", std::string(GPTC_BIN_DIR) + "/../lib/libkill_shim.so"},
               {"GPTC_TEST_AT", "accept:3"},
               {"GPTC_TEST_DO", "enfile"}});
  ASSERT_NE(full.port(), 0);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ask(full.port(), "/health").status, 200);
  HttpConnection refused(full.port());
  const Result r = full.process().wait();
  EXPECT_EQ(r.code, 4) << full.output();
  EXPECT_NE(full.output().find("error[GPTC0405]: the system gave the server no more connections"), std::string::npos)
      << full.output();
}

/// Requests with bytes changed, left out and put in.
TEST_F(ServeTest, RandomRequestsAreAnswered) {
  serve();
  const std::string good = httpText("/v1/completions", R"({"prompt": ["the", [1, 2]], "max_tokens": 3, "n": 2})"
                                                       R"(, "logprobs": 2, "stop": ["cat"], "stream": true})");
  const json plain = {{"prompt", "the cat"}, {"max_tokens", 10}, {"temperature", 0}};
  const std::string expected = textOf(plain);
  std::mt19937_64 random(3);
  const int64_t rounds = gptc::test::sized(500, 100000);
  for (int64_t i = 0; i < rounds; ++i) {
    std::string text = good;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
      case 0:
        text[at] = char(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 3);
        break;
      case 2:
        text.insert(at, 1 + random() % 3, "{}[],:\"\\09e-\r\n"[random() % 14]);
        break;
      default:
        text.insert(at, good.substr(random() % good.size(), random() % 20));
        break;
      }
    }
    HttpConnection c(port);
    ASSERT_TRUE(c.isOpen()) << i;
    c.send(text);
    c.endSending();
    const HttpReply r = c.reply();
    EXPECT_TRUE(r.status < 500 || r.status == 503) << r.status << "\n" << text;
  }
  EXPECT_EQ(textOf(plain), expected);
  EXPECT_EQ(stop().code, 0);
}

}  // namespace
