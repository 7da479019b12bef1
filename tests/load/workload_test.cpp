#include "tools/load/workload.h"

#include "support/diagnostics.h"
#include "tools/load/failure.h"
#include "tools/load/server.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

using namespace gptc;
using namespace gptc::load;
using nlohmann::json;

namespace {

std::string messageFrom(const std::function<void()> &f) {
  try {
    f();
    return "";
  } catch (const UserError &e) {
    return e.diagnostics[0].message;
  }
}

TEST(LoadWorkload, RandomPromptsAreAFunctionOfTheSeed) {
  WorkloadOptions o{.promptTokens = {3, 5}, .maxTokens = {7, 8}, .vocabulary = 4, .seed = 1, .temperature = 0.5};
  Workload w(o);
  w.setModel("m");
  std::set<int64_t> prompts, answers, tokens;
  std::set<std::string> bodies;
  for (int64_t i = 0; i < 200; ++i) {
    const Workload::Request r = w.request(i);
    const json body = parseJson(r.body);
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["temperature"], 0.5);
    EXPECT_EQ(body["max_tokens"], r.maxTokens);
    EXPECT_EQ(int64_t(body["prompt"].size()), r.promptTokens);
    prompts.insert(r.promptTokens);
    answers.insert(r.maxTokens);
    for (const json &token : body["prompt"])
      tokens.insert(token.get<int64_t>());
    bodies.insert(r.body);
    EXPECT_EQ(w.request(i).body, r.body);
  }
  EXPECT_EQ(prompts, (std::set<int64_t>{3, 4, 5}));
  EXPECT_EQ(answers, (std::set<int64_t>{7, 8}));
  EXPECT_EQ(tokens, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_GT(bodies.size(), 150u);
  EXPECT_NE(w.request(0, true).body, w.request(0).body);
  o.seed = 2;
  o.ignoreEos = false;
  EXPECT_NE(Workload(o).request(0).body, w.request(0).body);
  EXPECT_FALSE(parseJson(Workload(o).request(0).body).contains("ignore_eos"));
}

TEST(LoadWorkload, ArrivalsArePoisson) {
  const int n = 20000;
  const std::vector<double> times = Workload({.seed = 3, .rate = 4}).arrivals(n + 1);
  ASSERT_EQ(times.size(), size_t(n + 1));
  EXPECT_EQ(times.front(), 0);
  EXPECT_NEAR(times.back(), n / 4.0, 1e-6);  // the rate, whatever the seed
  double squares = 0;
  int wide = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    ASSERT_GE(gap, 0);
    squares += gap * gap;
    wide += gap > 0.25;
  }
  // Exponential: a deviation of the mean's size, and a share of 1/e above the mean. Seeded, so that this never wavers.
  EXPECT_NEAR(std::sqrt(squares / n - 0.25 * 0.25), 0.25, 0.01);
  EXPECT_NEAR(double(wide) / n, std::exp(-1), 0.01);
  EXPECT_NE(Workload({.seed = 4, .rate = 4}).arrivals(9), Workload({.seed = 3, .rate = 4}).arrivals(9));
  EXPECT_EQ(Workload({.rate = 4}).arrivals(0), std::vector<double>());
  EXPECT_EQ(Workload({.rate = 4}).arrivals(1), std::vector<double>{0});
  EXPECT_EQ(Workload({.rate = parseRate("inf")}).arrivals(3), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(Workload(WorkloadOptions()).arrivals(3), std::vector<double>());
}

TEST(LoadWorkload, PromptsOfAFile) {
  Workload lines({.maxTokens = {9, 9}}, "one\r\n\n  \ntwo {\n", false, "f");
  EXPECT_EQ(parseJson(lines.request(0).body)["prompt"], "one");
  EXPECT_EQ(parseJson(lines.request(1).body)["prompt"], "two {");
  EXPECT_EQ(parseJson(lines.request(2).body)["prompt"], "one");
  EXPECT_EQ(lines.request(0).promptTokens, -1);
  EXPECT_EQ(lines.request(0).maxTokens, 9);
  Workload objects({.maxTokens = {9, 9}, .temperature = 1},
                   R"({"prompt": "one", "id": 7, "max_tokens": 3, "temperature": 0, "top_k": 2, "stream": false})"
                   "\n"
                   R"({"prompt": [4, 5]})",
                   true, "f.jsonl");
  objects.setModel("m");
  const json first = parseJson(objects.request(0).body);
  EXPECT_EQ(first, (json{{"prompt", "one"},
                         {"max_tokens", 3},
                         {"temperature", 0},
                         {"top_k", 2},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}},
                         {"ignore_eos", true},
                         {"model", "m"}}));
  EXPECT_EQ(objects.request(0).maxTokens, 3);
  EXPECT_EQ(objects.request(1).promptTokens, 2);
  EXPECT_EQ(objects.request(1).maxTokens, 9);
  const std::pair<const char *, const char *> wrong[] = {
      {"", "f has no prompt"},
      {"\n{", "f, line 2: this is no JSON object"},
      {"[1]", "f, line 1: this is no JSON object"},
      {"{}", "f, line 1: prompt must be a text or an array of token ids that is not empty"},
      {R"({"prompt": ""})", "f, line 1: prompt must be a text or an array of token ids that is not empty"},
      {R"({"prompt": [1, -1]})", "f, line 1: prompt must be a text or an array of token ids that is not empty"},
      {R"({"prompt": ["a"]})", "f, line 1: prompt must be a text or an array of token ids that is not empty"},
      {R"({"prompt": "a", "max_tokens": 0})", "f, line 1: max_tokens must be an integer from 1 to 2^30"},
      {R"({"prompt": "a", "n": 2})", "f, line 1: n must be 1: times are taken of one answer"},
  };
  for (const auto &[text, message] : wrong)
    EXPECT_EQ(messageFrom([&] { Workload({}, text, true, "f"); }), message) << text;
}

TEST(LoadWorkload, NumbersOfTheCommandLine) {
  EXPECT_EQ(parseRange("5", "--x").str(), "5");
  EXPECT_EQ(parseRange("5..7", "--x").str(), "5..7");
  EXPECT_EQ(parseRange("2K", "--x").str(), "2000");
  EXPECT_EQ(parseRange("1.5k..1M", "--x").str(), "1500..1000000");
  for (const char *wrong : {"", "0", "-1", "7..5", "5..", "..5", "5...7", "a", "5..6..7", "99999999999", "1.5",
                            "1.5..2K", "2B", "K", "2K..1K", "5G"})
    EXPECT_EQ(messageFrom([&] { parseRange(wrong, "--x"); }), fmt::format("--x {} is no number of tokens", wrong));
  EXPECT_DOUBLE_EQ(parseRate("0.5"), 0.5);
  EXPECT_TRUE(std::isinf(parseRate("inf")));
  for (const char *wrong : {"", "0", "-1", "nan", "infinite", "1e9", "x"})
    EXPECT_NE(messageFrom([&] { parseRate(wrong); }), "") << wrong;
}

TEST(LoadServer, Addresses) {
  const std::pair<const char *, const char *> good[] = {
      {"http://localhost:8080", "http://localhost:8080"},
      {"localhost:8080", "http://localhost:8080"},
      {"HTTP://10.0.0.1/", "http://10.0.0.1:80"},
      {"http://a:81/v1/", "http://a:81"},
      {"http://a:81/proxy/v1", "http://a:81/proxy"},
      {"http://[::1]:8080", "http://[::1]:8080"},
      {"[::1]", "http://[::1]:80"},
  };
  for (const auto &[text, url] : good)
    EXPECT_EQ(parseUrl(text).str(), url);
  for (const char *wrong : {"", "https://a", "ftp://a", "http://", "http://:80", "a:", "a:0", "a:65536", "a:b",
                            "a:80:90", "user@a", "a b", "a/?x", "a\r\nX: y", "[::1]x", "a:-1"})
    EXPECT_NE(messageFrom([&] { parseUrl(wrong); }), "") << wrong;
  Server s{.url = parseUrl("[::1]:81/p"), .authorization = "Bearer k"};
  EXPECT_EQ(s.request("/v1/models", ""),
            "GET /p/v1/models HTTP/1.1\r\nHost: [::1]:81\r\nUser-Agent: gptc/" GPTC_VERSION "\r\n"
            "Connection: close\r\nAuthorization: Bearer k\r\n\r\n");
  EXPECT_NE(s.request("/v1/completions", "{}").find("\r\nContent-Length: 2\r\n\r\n{}"), std::string::npos);
}

/// Sends a request of 64 MiB, more than sockets hold, to a server that says `answer` and closes without reading all.
/// The status that came, or what failed.
std::string statusOfUnread(const std::string &answer) {
  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(listening, reinterpret_cast<sockaddr *>(&at), size), 0);
  EXPECT_EQ(::listen(listening, 1), 0);
  EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr *>(&at), &size), 0);
  std::thread server([&] {
    const int fd = ::accept(listening, nullptr, nullptr);
    char byte;
    EXPECT_EQ(::recv(fd, &byte, 1, 0), 1);
    EXPECT_EQ(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL), ssize_t(answer.size()));
    ::close(fd);  // resets the connection, as there is something unread
  });
  Server::Address address{};
  std::memcpy(&address.bytes, &at, sizeof at);
  address.size = sizeof at;
  std::string said;
  try {
    Connection c(address, std::string(size_t(64) << 20, 'x'));
    for (bool isComplete = false; !isComplete; isComplete = c.advance([](std::string_view) {})) {
      pollfd p{c.descriptor(), short(c.isSending() ? POLLOUT : POLLIN), 0};
      ::poll(&p, 1, -1);
    }
    said = std::to_string(c.response().status());
  } catch (const Failure &f) {
    said = f.kind;
  }
  server.join();
  ::close(listening);
  return said;
}

TEST(LoadServer, AnAnswerToHalfARequestIsTaken) {
  EXPECT_EQ(statusOfUnread("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\n{}"), "413");
  EXPECT_EQ(statusOfUnread(""), "connection reset");
}

}  // namespace
