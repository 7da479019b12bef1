// gptc bench serve: against gptrun serve, and against servers that do what a test says.
#include "tests/load/scripted_server.h"
#include "tests/support/harness.h"
#include "tests/support/port.h"
#include "tests/support/served.h"

#include "support/json.h"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <regex>

using namespace e2e;
using gptc::parseJson;
using gptc::parseJsonOrDiscard;
using gptc::test::Peer;
using gptc::test::ScriptedServer;
using nlohmann::json;

namespace {

using Args = std::vector<std::string>;

class BenchServe : public ::testing::Test {
protected:
  Result bench(const std::string &url, const Args &more) {
    Args args = {"bench", "serve", url};
    args.insert(args.end(), more.begin(), more.end());
    return w.gptc(args);
  }
  /// The JSON that it prints, with an error behind it perhaps.
  static json jsonOf(const Result &r) {
    const json j = parseJsonOrDiscard(r.output.substr(0, r.output.find("\n}\n") + 3));
    EXPECT_TRUE(j.is_object()) << r.output;
    return j;
  }
  Workplace w;
};

/// Lets no one go on before `count` have come.
class Gate {
public:
  explicit Gate(int count) : missing(count) {}
  void pass() {
    std::unique_lock lock(mutex);
    if (--missing <= 0)
      changed.notify_all();
    // A client that starts fewer requests fails the test, and does not hang it.
    changed.wait_for(lock, std::chrono::seconds(120), [&] { return missing <= 0; });
  }

private:
  std::mutex mutex;
  std::condition_variable changed;
  int missing;
};

int maxTokensOf(const std::string &body) { return parseJson(body)["max_tokens"].get<int>(); }

TEST_F(BenchServe, OurServerIsMeasured) {
  if (!Served::isBuilt())
    GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  w.useCats();
  const std::string plan = w.compile("plan", {"train.steps=1", "model.block_size=64", "train.global_batch_tokens=256"});
  ASSERT_EQ(w.gptrun({plan}).code, 0);
  Served server({plan, "--model-name", "tiny", "--slots", "3"}, w.path("serve.log"));
  ASSERT_NE(server.port(), 0);
  const std::string url = "localhost:" + std::to_string(server.port());
  const Args load = {"--requests", "20", "--prompt-tokens", "5..30", "--max-tokens", "2..20", "--vocab-size", "10"};
  Args args = load;
  args.insert(args.end(), {"--clients", "4", "--json", "--svg", w.path("picture.svg")});
  const Result r = bench(url, args);
  ASSERT_EQ(r.code, 0) << r.output;
  const json j = jsonOf(r);
  EXPECT_EQ(j["model_id"], "tiny");
  EXPECT_EQ(j["completed"], 20);
  EXPECT_EQ(j["failed"], 0);
  EXPECT_EQ(j["errors"], json::array());
  EXPECT_EQ(j["token_counts"], "usage");
  EXPECT_EQ(j["short_answers"], 0);
  EXPECT_EQ(j["max_concurrent_requests"], 4);
  EXPECT_GE(j["total_input_tokens"], 20 * 5);
  EXPECT_LE(j["total_input_tokens"], 20 * 30);
  EXPECT_GE(j["total_output_tokens"], 20 * 2);
  EXPECT_LE(j["total_output_tokens"], 20 * 20);
  const double seconds = j["duration"];
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(double(j["request_throughput"]), 20 / seconds, 1e-6 * 20 / seconds);
  for (const char *name : {"ttft", "tpot", "itl", "e2el"}) {
    double last = 0;
    for (const char *figure : {"median", "p90", "p99", "max"}) {
      const double v = j[std::string(figure) + "_" + name + "_ms"];
      EXPECT_GE(v, last) << figure << name;
      last = v;
    }
    EXPECT_LE(last, 1e3 * seconds);
  }
  EXPECT_LE(double(j["max_ttft_ms"]), double(j["max_e2el_ms"]));
  const std::string svg = readFile(w.path("picture.svg"));
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("Time to first token, 20 values"), std::string::npos) << svg;
  // The same requests again are the same tokens; as a table, with arrivals that wait for nothing.
  args = load;
  args.insert(args.end(), {"--rate", "inf", "--model", "tiny"});
  const Result table = bench(url, args);
  ASSERT_EQ(table.code, 0) << table.output;
  std::smatch m;
  ASSERT_TRUE(std::regex_search(table.output, m, std::regex("output tokens +(\\d+), "))) << table.output;
  EXPECT_EQ(std::stoi(m[1]), j["total_output_tokens"]);
  EXPECT_NE(table.output.find("tiny at http://localhost:"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("inf asked, "), std::string::npos) << table.output;
  // Texts, of which the server says how long they are.
  writeFile(w.path("prompts.jsonl"), R"({"prompt": "the cat", "max_tokens": 3, "id": "a"})"
                                     "\n"
                                     R"({"prompt": [1, 2], "max_tokens": 4, "temperature": 1, "seed": 3})");
  const json texts = jsonOf(bench(url, {"--prompts", w.path("prompts.jsonl"), "--requests", "4", "--json"}));
  EXPECT_EQ(texts["total_input_tokens"], 2 * (7 + 2));
  EXPECT_EQ(texts["total_output_tokens"], 2 * (3 + 4));
  // What it refuses is said before anything is measured.
  const Result beyond = bench(url, {"--vocab-size", "1000", "--prompt-tokens", "20"});
  EXPECT_EQ(beyond.code, 4) << beyond.output;
  EXPECT_NE(beyond.output.find("HTTP 400: prompt: token "), std::string::npos) << beyond.output;
  EXPECT_NE(beyond.output.find("--vocab-size"), std::string::npos) << beyond.output;
  EXPECT_EQ(server.stop().code, 0);
}

TEST_F(BenchServe, TokensAndHeadersAreAsAsked) {
  ScriptedServer server([](const std::string &body, int, Peer &peer) {
    peer.send(ScriptedServer::streamOf(ScriptedServer::completion(maxTokensOf(body), true, 11)));
  });
  writeFile(w.path("key"), "\n secret-1 \nother\n");
  const Result r = bench(server.url() + "/v1/", {"--requests", "6", "--clients", "2", "--max-tokens", "3", "--warmup",
                                                 "2", "--api-key-file", w.path("key"), "--json", "--seed", "5"});
  ASSERT_EQ(r.code, 0) << r.output;
  const json j = jsonOf(r);
  EXPECT_EQ(j["model_id"], "scripted");
  EXPECT_EQ(j["total_output_tokens"], 18);  // without those of the warm-up
  EXPECT_EQ(j["total_input_tokens"], 66);
  EXPECT_EQ(j["num_prompts"], 6);
  EXPECT_EQ(j["seed"], 5);
  const std::vector<std::string> requests = server.requests();
  ASSERT_EQ(requests.size(), 1u + 2 + 6);
  for (const std::string &text : requests)
    EXPECT_NE(text.find("\r\nAuthorization: Bearer secret-1\r\n"), std::string::npos) << text;
  EXPECT_EQ(requests[0].rfind("GET /v1/models HTTP/1.1\r\n", 0), 0u) << requests[0];
  EXPECT_EQ(requests[1].rfind("POST /v1/completions HTTP/1.1\r\n", 0), 0u) << requests[1];
}

// Each client has one request in flight, and no more: none is answered before all clients have theirs.
TEST_F(BenchServe, ClientsKeepTheirNumberInFlight) {
  std::atomic<int> inFlight = 0, most = 0;
  Gate gate(5);
  ScriptedServer server([&](const std::string &body, int number, Peer &peer) {
    if (number == 0)  // the warm-up
      return peer.send(ScriptedServer::streamOf(ScriptedServer::completion(1)));
    const int now = ++inFlight;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    gate.pass();
    --inFlight;
    peer.send(ScriptedServer::streamOf(ScriptedServer::completion(maxTokensOf(body))));
  });
  const Result r = bench(server.url(), {"--requests", "30", "--clients", "5", "--json", "--timeout", "60"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(jsonOf(r)["max_concurrent_requests"], 5);
  EXPECT_EQ(most, 5);
}

// Arrivals do not wait for completions: none is answered before all have come.
TEST_F(BenchServe, ARateWaitsForNoAnswer) {
  for (const char *rate : {"inf", "500"}) {
    Gate gate(40);
    ScriptedServer server([&](const std::string &, int number, Peer &peer) {
      if (number > 0)
        gate.pass();
      peer.send(ScriptedServer::streamOf(ScriptedServer::completion(2)));
    });
    const Result r = bench(server.url(), {"--requests", "40", "--rate", rate, "--json", "--timeout", "60"});
    ASSERT_EQ(r.code, 0) << r.output;
    const json j = jsonOf(r);
    EXPECT_EQ(j["max_concurrent_requests"], 40);
    EXPECT_TRUE(j["max_concurrency"].is_null());
    EXPECT_EQ(j["request_rate"].dump(), rate == std::string("inf") ? "\"inf\"" : "500.0");
    EXPECT_GT(double(j["sent_request_rate"]), 0);
    EXPECT_GE(double(j["max_late_ms"]), 0);
  }
}

TEST_F(BenchServe, WithoutUsageChunksAreCounted) {
  ScriptedServer server([](const std::string &, int, Peer &peer) {
    peer.send(ScriptedServer::streamOf(ScriptedServer::completion(4, false)));
  });
  writeFile(w.path("prompts"), "one\ntwo\n");
  const Result r =
      bench(server.url(), {"--requests", "3", "--max-tokens", "5", "--prompts", w.path("prompts"), "--json"});
  ASSERT_EQ(r.code, 0) << r.output;
  const json j = jsonOf(r);
  EXPECT_EQ(j["token_counts"], "chunks");
  EXPECT_EQ(j["total_output_tokens"], 12);
  EXPECT_EQ(j["short_answers"], 3);
  EXPECT_TRUE(j["total_input_tokens"].is_null());
  EXPECT_TRUE(j["total_token_throughput"].is_null());
}

// Failures are counted by kind beside what succeeds, and end in exit status 4.
TEST_F(BenchServe, FailuresAreCountedByKind) {
  const std::string good = ScriptedServer::streamOf(ScriptedServer::completion(2));
  ScriptedServer server([&](const std::string &, int number, Peer &peer) {
    switch (number) {
    case 1:
      return peer.send(ScriptedServer::answerOf(503, R"({"error": {"message": "full"}})"));
    case 2:
      return peer.send(ScriptedServer::answerOf(503, "busy\x1b[2J\n", "text/plain"));
    case 3:
      return peer.send(good.substr(0, good.size() / 2));
    case 4:
      peer.send(good.substr(0, good.size() / 2));
      return peer.reset();
    case 5:
      return peer.send("HTTP/1.1 404 No\r\n\r\n");
    case 6:
      return peer.send(ScriptedServer::streamOf({"{\"choices\": [", "[DONE]"}));
    case 7:
      return peer.send(ScriptedServer::streamOf({R"({"error": {"message": "out of memory"}})"}));
    case 8:
      return peer.send(ScriptedServer::streamOf({}));
    case 9:
      return peer.send(ScriptedServer::answerOf(200, R"({"choices": [{"text": "whole"}]})"));
    case 10:
      return peer.send("220 mail.example ESMTP\r\n");
    default:
      return peer.send(good);
    }
  });
  const Result r = bench(server.url(), {"--requests", "12", "--clients", "1", "--json"});
  EXPECT_EQ(r.code, 4) << r.output;
  const json j = jsonOf(r);
  EXPECT_EQ(j["completed"], 2);
  EXPECT_EQ(j["failed"], 10);
  EXPECT_EQ(j["total_output_tokens"], 4);
  std::map<std::string, int> counts;
  for (const json &e : j["errors"])
    counts[e["kind"]] = e["count"];
  EXPECT_EQ(counts, (std::map<std::string, int>{{"HTTP 503", 2},
                                                {"connection closed early", 1},
                                                {"connection reset", 1},
                                                {"HTTP 404", 1},
                                                {"malformed answer", 4},
                                                {"error in the stream", 1}}));
  EXPECT_NE(
      r.output.find("error[GPTC0408]: 10 of 12 requests failed; most often: malformed answer: an event that is no "
                    "JSON object: {\"choices\": ["),
      std::string::npos)
      << r.output;
}

TEST_F(BenchServe, AServerThatNeverAnswersIsGivenUp) {
  ScriptedServer server([](const std::string &, int number, Peer &peer) {
    if (number > 0)  // a part of an answer
      peer.send(ScriptedServer::streamOf(ScriptedServer::completion(1)).substr(0, 150));
    peer.awaitEnd();
  });
  const Result r =
      bench(server.url(), {"--requests", "5", "--clients", "2", "--warmup", "0", "--timeout", "0.05", "--json"});
  EXPECT_EQ(r.code, 4) << r.output;
  const json j = jsonOf(r);
  EXPECT_EQ(j["failed"], 5);
  EXPECT_EQ(j["errors"].dump(), R"([{"count":5,"example":"no whole answer within 0.05 s","kind":"timed out"}])");
  EXPECT_TRUE(j["mean_e2el_ms"].is_null());
  const Result first = bench(server.url(), {"--requests", "1", "--timeout", "0.05"});
  EXPECT_EQ(first.code, 4) << first.output;
  EXPECT_NE(first.output.find(": timed out: no whole answer within 0.05 s\n  = help: --timeout says"),
            std::string::npos)
      << first.output;
}

TEST_F(BenchServe, AServerThatGoesIsNoticed) {
  std::optional<ScriptedServer> server;
  server.emplace([&](const std::string &, int number, Peer &peer) {
    peer.send(ScriptedServer::streamOf(ScriptedServer::completion(1)));
  });
  const std::string url = server->url();
  EXPECT_EQ(bench(url, {"--requests", "1"}).code, 0);
  server.reset();
  const Result r = bench(url, {"--requests", "1"});
  EXPECT_EQ(r.code, 4);
  EXPECT_NE(r.output.find("error[GPTC0408]: " + url + ": connection refused\n"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("help: start the server"), std::string::npos) << r.output;
}

TEST_F(BenchServe, WhatIsNoServerOfOpenAIIsExplained) {
  struct Case {
    std::string models;
    int code;
    const char *says;
  };
  const std::string tooLong = "HTTP/1.1 200 OK\r\n" + std::string(100000, 'a');
  for (const Case &c : std::vector<Case>{
           {ScriptedServer::answerOf(404, "<h1>no</h1>", "text/html"), 5, "error[GPTC0506]"},
           {ScriptedServer::answerOf(200, "<h1>hello</h1>", "text/html"), 5, "/v1/models names no model"},
           {ScriptedServer::answerOf(200, R"({"data": []})"), 5, "/v1/models names no model"},
           {ScriptedServer::answerOf(200, R"({"data": [{"id": 5}]})"), 5, "/v1/models names no model"},
           {ScriptedServer::answerOf(200, std::string(100000, '[')), 5, "/v1/models names no model"},
           {ScriptedServer::answerOf(401, R"({"error": {"message": "an API key is needed"}})"), 4,
            "HTTP 401: an API key is needed\n  = help: give --api-key-file FILE"},
           {ScriptedServer::answerOf(503, R"({"error": {"message": "Loading model"}})"), 4, "HTTP 503: Loading model"},
           {"SSH-2.0-OpenSSH_9.2\r\n", 5, "malformed answer: no answer of HTTP/1.1"},
           {tooLong, 5, "malformed answer: more than 65536 bytes of header fields"},
           {"", 4, "connection closed early: without an answer"}}) {
    ScriptedServer server([](const std::string &, int, Peer &peer) {}, c.models);
    const Result r = bench(server.url(), {"--requests", "1"});
    EXPECT_EQ(r.code, c.code) << r.output;
    EXPECT_NE(r.output.find(c.says), std::string::npos) << c.says << "\n" << r.output;
  }
  // A server without a list of models is measured if the model is named; its warm-up says what it does not know.
  ScriptedServer server(
      [](const std::string &, int number, Peer &peer) {
        peer.send(number ? ScriptedServer::answerOf(404, "no such page", "text/plain")
                         : ScriptedServer::streamOf(ScriptedServer::completion(1)));
      },
      ScriptedServer::answerOf(404, "no"));
  EXPECT_EQ(bench(server.url(), {"--requests", "1", "--model", "m", "--warmup", "0"}).code, 0);
  const Result r = bench(server.url(), {"--requests", "1", "--model", "m"});
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("HTTP 404: no such page"), std::string::npos) << r.output;
}

TEST_F(BenchServe, WrongCommandLinesAreExplained) {
  writeFile(w.path("empty"), "\n");
  writeFile(w.path("newline-key"), "a\tb\n");
  writeFile(w.path("bad.jsonl"), "{\"prompt\": 5}\n");
  const gptc::test::Port port;  // at which nobody listens
  const std::string url = "http://127.0.0.1:" + std::to_string(port.number());
  struct Case {
    Args args;
    int code;
    const char *says;
  };
  for (const Case &c : std::vector<Case>{{{url, "--requests", "0"}, 2, "--requests"},
                                         {{url, "--clients", "1025"}, 2, "--clients"},
                                         {{url, "--clients", "2", "--rate", "5"}, 2, "--rate"},
                                         {{url, "--rate", "0"}, 2, "--rate 0 is no number of requests in a second"},
                                         {{url, "--prompt-tokens", "9..2"}, 2, "--prompt-tokens 9..2 is no number"},
                                         {{url, "--max-tokens", "none"}, 2, "--max-tokens none is no number"},
                                         {{url, "--timeout", "nan"}, 2, "--timeout"},
                                         {{"https://localhost"}, 2, "https is not spoken here"},
                                         {{"http://local host"}, 2, "characters that do not belong there"},
                                         {{url, "--prompts", w.path("none")}, 3, "file of prompts"},
                                         {{url, "--prompts", w.path("empty")}, 3, "has no prompt"},
                                         {{url, "--prompts", w.path("bad.jsonl")}, 3, "line 1: prompt must be"},
                                         {{url, "--prompts", w.path("empty"), "--prompt-tokens", "5"}, 2, "--prompt"},
                                         {{url, "--api-key-file", w.path("empty")}, 3, "has no key"},
                                         {{url, "--api-key-file", w.path("newline-key")}, 3, "no header can carry"},
                                         {{url}, 4, "connection refused"},
                                         {{"http://host.invalid:80"}, 4, "host.invalid: "}}) {
    Args args = {"bench", "serve"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Result r = w.gptc(args);
    EXPECT_EQ(r.code, c.code) << r.output;
    EXPECT_NE(r.output.find(c.says), std::string::npos) << c.says << "\n" << r.output;
  }
}

}  // namespace
