// The plug-in of `gptrun serve` by itself: how much it holds for its clients, and how it ends.
#include "tests/support/eventually.h"
#include "tests/support/http_client.h"
#include "tests/support/served.h"
#include "tools/serve/http.h"

#include <atomic>
#include <gtest/gtest.h>
#include <optional>
#include <thread>

using namespace gptc;
using gptc::test::ask;
using gptc::test::HttpConnection;
using gptc::test::HttpReply;
using gptc::test::httpText;

namespace {

/// More than the system takes of an answer before its client does.
constexpr size_t kLarge = size_t(24) << 20;

class HttpTest : public ::testing::Test {
protected:
  void SetUp() override {
    if (!e2e::Served::isBuilt())
      GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  }
  void TearDown() override {
    if (server)
      end();
  }

  void start(int64_t most, double lastWrite) {
    bytes.emplace(most);
    server = listenHttp(
        {.port = 0,
         .bytes = &*bytes,
         .body = 3000,
         .write = 3000,
         .lastWrite = lastWrite,
         .routes = {{"GET", "/small"}, {"GET", "/large"}, {"GET", "/endless"}, {"POST", "/small"}},
         .handler = [this](const HttpRequest &request, HttpClient &) { return answer(request.path); },
         .refuse = [](int status, const std::string &why) { return HttpAnswer{.status = status, .body = why}; }});
    running = std::thread([this] { EXPECT_TRUE(server->run()); });
  }
  void end() {
    server->drain();
    server->stop();
    running.join();
    server.reset();
  }
  HttpAnswer answer(const std::string &path) {
    if (path == "/endless")
      return {.stream = [this](const HttpWrite &write) {
        const std::string piece(1 << 16, '.');
        while (write(piece))
          ++pieces;
      }};
    return {.body = std::string(path == "/large" ? kLarge : 2, '.')};
  }
  void awaitHeld(int64_t held) const {
    EXPECT_TRUE(gptc::test::eventually([&] { return bytes->held() == held; }));
  }
  int port() const { return server->port(); }
  HttpReply post(size_t size) const { return ask(port(), "/small", std::string(size, ' ')); }
  /// A client that has asked for the large answer and takes nothing of it.
  HttpConnection unwilling() const {
    HttpConnection client(port());
    EXPECT_TRUE(client.send(httpText("/large")));
    awaitHeld(int64_t(kLarge));
    return client;
  }

  std::optional<ByteBudget> bytes;
  std::unique_ptr<HttpServer> server;
  std::thread running;
  std::atomic<int64_t> pieces = 0;
};

TEST_F(HttpTest, BodiesThatDoNotFitAreRefused) {
  start(1 << 20, 5);
  const std::string head = "POST /small HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n";
  std::vector<HttpConnection> halfSent;
  for (int i = 0; i < 100; ++i) {
    halfSent.emplace_back(port());
    ASSERT_TRUE(halfSent.back().send(head + std::string(10000, ' ')));
  }
  awaitHeld(1000000);
  EXPECT_EQ(post((1 << 20) - 1000000).status, 200);
  awaitHeld(1000000);
  EXPECT_EQ(post((1 << 20) - 1000000 + 1).status, 503);
  awaitHeld(1000000);
  // Once nothing more fits, small answers do, and one of them goes on.
  ASSERT_TRUE(halfSent[3].send(std::string((1 << 20) - 1000000, ' ')));
  awaitHeld(1 << 20);
  EXPECT_EQ(ask(port(), "/small").status, 200);
  ASSERT_TRUE(halfSent[7].send(std::string(100000, ' ')));
  const HttpReply r = halfSent[7].reply();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.body, "requests and answers of all clients fill the 1 MiB that there are for them: ask again");
  awaitHeld((1 << 20) - 10000);
  halfSent.clear();
  awaitHeld(0);
  EXPECT_EQ(post(1 << 20).status, 200);
}

TEST_F(HttpTest, AnswersCountUntilTheyAreTaken) {
  start(int64_t(kLarge) * 3 / 2, 5);
  HttpConnection slow = unwilling();
  EXPECT_EQ(ask(port(), "/large").status, 503);
  EXPECT_EQ(ask(port(), "/small").status, 200);
  EXPECT_EQ(slow.reply().body.size(), kLarge);
  awaitHeld(0);
  EXPECT_EQ(ask(port(), "/large").body.size(), kLarge);
  // A stream that has no chunks is whole before it is sent.
  HttpConnection old(port());
  ASSERT_TRUE(old.send("GET /endless HTTP/1.0\r\nHost: localhost\r\n\r\n"));
  EXPECT_EQ(old.reply().status, 503);
}

TEST_F(HttpTest, AnAnswerIsAwaitedUntilItIsTaken) {
  start(int64_t(kLarge) * 3, 3000);
  HttpConnection slow = unwilling();
  server->drain();
  EXPECT_EQ(server->answering(), 1);
  // Who asks now does not count.
  HttpConnection late(port());
  ASSERT_TRUE(late.send(httpText("/large")));
  awaitHeld(2 * int64_t(kLarge));
  EXPECT_EQ(server->answering(), 1);
  EXPECT_EQ(slow.reply().body.size(), kLarge);
  EXPECT_TRUE(gptc::test::eventually([&] { return server->answering() == 0; }));
  EXPECT_EQ(late.reply().body.size(), kLarge);
}

TEST_F(HttpTest, WhoTakesNothingIsCutOffOnceTheServerIsToEnd) {
  start(int64_t(kLarge) * 3, 0.05);
  HttpConnection slow = unwilling();
  EXPECT_EQ(server->answering(), 1);
  server->drain();
  EXPECT_TRUE(gptc::test::eventually([&] { return server->answering() == 0; }));  // else in 3000 s
  EXPECT_LT(slow.reply().body.size(), kLarge);
}

TEST_F(HttpTest, NoAnswerGoesOnForEver) {
  start(1 << 20, 0.2);
  std::thread client([&] {
    HttpConnection eager(port());
    EXPECT_TRUE(eager.send(httpText("/endless")));
    while (!eager.receive(std::string(1 << 16, '.')).empty()) {
    }
  });
  EXPECT_TRUE(gptc::test::eventually([&] { return pieces > 10; }));
  end();
  client.join();
}

}  // namespace
