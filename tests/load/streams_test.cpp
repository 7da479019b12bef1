// What reads a server's bytes: the same whatever pieces they come in, and an error for what is none of its language.
#include "tests/load/scripted_server.h"
#include "tools/load/completion_stream.h"
#include "tools/load/event_stream.h"
#include "tools/load/failure.h"
#include "tools/load/http_response.h"
#include "tools/load/plain_text.h"

#include <gtest/gtest.h>

#include <optional>

using namespace gptc::load;
using gptc::test::ScriptedServer;

namespace {

struct Read {
  int status = 0;
  std::string type, body, failure;
  bool operator==(const Read &) const = default;
};

std::ostream &operator<<(std::ostream &out, const Read &r) {
  return out << r.status << " " << r.type << " '" << r.body << "' " << r.failure;
}

/// Reads an answer that comes in these pieces, and ends.
Read readIn(const std::vector<std::string> &pieces) {
  HttpResponse response;
  Read r;
  try {
    for (const std::string &p : pieces)
      response.take(p, [&](std::string_view body) { r.body += body; });
    response.end();
  } catch (const Failure &f) {
    r.failure = f.text();
    r.body.clear();
  }
  r.status = response.status();
  r.type = response.contentType();
  return r;
}

/// What `in` makes of a text in one piece; it must make the same of one cut in two anywhere, and byte by byte.
template <class In> auto inAnyPieces(const In &in, const std::string &text) {
  auto whole = in({text});
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(in({text.substr(0, i), text.substr(i)}), whole) << "cut at " << i << " of " << text;
    bytes.push_back(text.substr(i, 1));
  }
  EXPECT_EQ(in(bytes), whole) << text;
  return whole;
}

Read read(const std::string &text) { return inAnyPieces(readIn, text); }

TEST(LoadHttpResponse, BodiesOfEveryKind) {
  const Read ok{200, "text/plain", "hello", ""};
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Type: Text/Plain; charset=utf-8\r\nContent-Length: 5\r\n\r\nhello"), ok);
  EXPECT_EQ(read("HTTP/1.0 200 OK\r\ncontent-type:text/plain\r\n\r\nhello"), ok);
  EXPECT_EQ(read("HTTP/1.1 200\r\nContent-Type: text/plain\r\nTransfer-Encoding: CHUNKED\r\n\r\n"
                 "2;a=b\r\nhe\r\n03 \r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n"),
            ok);
  // The coding counts, not the length: RFC 9112, 6.3.
  EXPECT_EQ(
      read("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
           "5\r\nhello\r\n0\r\n\r\n"),
      ok);
  EXPECT_EQ(read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\nContent-Length: 9\r\n\r\n"
                 "HTTP/1.1 204 No\r\n\r\n"),
            (Read{204, "", "", ""}));
  EXPECT_EQ(read("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"), (Read{500, "", "", ""}));
  EXPECT_EQ(read("HTTP/1.1 200 OK\nContent-Length: 5\nContent-Type: text/plain\n\nhello"), ok);  // bare line feeds
}

TEST(LoadHttpResponse, WhatIsNoAnswerIsAnError) {
  const std::string ok = "HTTP/1.1 200 OK\r\n", chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
  const std::pair<std::string, const char *> cases[] = {
      {"", "connection closed early: without an answer"},
      {"HTTP/1.1 200 OK\r\nContent-Le", "connection closed early: without an answer"},
      {ok + "Content-Length: 5\r\n\r\nhell", "connection closed early: in the middle of an answer"},
      {chunked + "5\r\nhello\r\n", "connection closed early: in the middle of an answer"},
      {chunked + "5\r\nhello\r\n0\r\n", "connection closed early: in the middle of an answer"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "malformed answer: no answer of HTTP/1.1"},
      {"HTTP/2 200\r\n\r\n", "malformed answer: no answer of HTTP/1.1"},
      {"HTTP/1.1 20 OK\r\n\r\n", "malformed answer: no answer of HTTP/1.1"},
      {"HTTP/1.1 099 OK\r\n\r\n", "malformed answer: no answer of HTTP/1.1"},
      {"HTTP/1.1 2000 OK\r\n\r\n", "malformed answer: no answer of HTTP/1.1"},
      {"HTTP/1.1 101 Other\r\n\r\n", "malformed answer: a change of protocols, which was not asked for"},
      {ok + "nonsense\r\n\r\n", "malformed answer: a header field without a colon"},
      {ok + "Content-Length: -5\r\n\r\n", "malformed answer: an invalid Content-Length"},
      {ok + "Content-Length: 99999999999999999999\r\n\r\n", "malformed answer: an invalid Content-Length"},
      {ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "malformed answer: an invalid Content-Length"},
      {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", "malformed answer: a transfer coding other than chunked"},
      {ok + "Content-Encoding: gzip\r\n\r\n", "malformed answer: a compressed body, which was not asked for"},
      {chunked + "x\r\n", "malformed answer: a chunk without a size"},
      {chunked + "\r\n", "malformed answer: a chunk without a size"},
      {chunked + "ffffffffffffffffff\r\n", "malformed answer: a chunk without a size"},
      {chunked + "2\r\nhello\r\n", "malformed answer: a chunk that is longer than its size"},
      {ok + "Content-Length: 5\r\n\r\nhello!", "malformed answer: bytes behind the end of the answer"},
  };
  for (const auto &[text, failure] : cases)
    EXPECT_EQ(read(text).failure, failure) << text;
  const std::string tooLong = "malformed answer: more than 65536 bytes of header fields or of a chunk's size";
  EXPECT_EQ(readIn({ok, std::string(HttpResponse::mostHead, 'a')}).failure, tooLong);
  std::vector<std::string> fields(10000, "a: bcdefg\r\n");
  fields[0] = ok;
  EXPECT_EQ(readIn(fields).failure, tooLong);
  fields[0] = chunked + "0\r\n";
  EXPECT_EQ(readIn(fields).failure, tooLong);
  EXPECT_EQ(readIn({chunked, "1;" + std::string(HttpResponse::mostLine, 'a')}).failure,
            "malformed answer: more than 1024 bytes of header fields or of a chunk's size");
  // Many chunks are no long line.
  std::string many = chunked;
  for (int i = 0; i < 50000; ++i)
    many += "1\r\na\r\n";
  EXPECT_EQ(readIn({many + "0\r\n\r\n"}).body.size(), 50000u);
}

std::vector<std::string> eventsIn(const std::vector<std::string> &pieces) {
  EventStream stream;
  std::vector<std::string> all;
  for (const std::string &p : pieces)
    stream.take(p, [&](const std::string &data) { all.push_back(data); });
  return all;
}

std::vector<std::string> events(const std::string &text) { return inAnyPieces(eventsIn, text); }

TEST(LoadEventStream, EventsOfTheStandard) {
  using Events = std::vector<std::string>;
  EXPECT_EQ(events("data: a\n\ndata: b\n\n"), (Events{"a", "b"}));
  EXPECT_EQ(events("data: a\r\n\r\ndata: b\r\n\r\n"), (Events{"a", "b"}));
  EXPECT_EQ(events("data: a\r\rdata: b\r\r"), (Events{"a", "b"}));
  EXPECT_EQ(events("data: a\r\ndata: b\r\n\r\n"), (Events{"a\nb"}));
  EXPECT_EQ(events("data: a\ndata:b\ndata:  c\n\n"), (Events{"a\nb\n c"}));
  EXPECT_EQ(events("\xef\xbb\xbf"
                   "data: a\n\n"),
            (Events{"a"}));
  EXPECT_EQ(events(": ping\n\nevent: x\nid: 5\nretry: 9\ndata: a: b\ndatab: c\n\n"), (Events{"a: b"}));
  EXPECT_EQ(events("data\n\ndata:\n\n"), (Events{"", ""}));
  EXPECT_EQ(events("data: a\n\ndata: is cut off\n"), (Events{"a"}));
  EXPECT_EQ(events("\n\n\nevent: x\n\n"), Events{});
}

TEST(LoadEventStream, AnEventHasALimit) {
  const std::string megabyte(size_t(1) << 20, 'a');
  EXPECT_THROW(eventsIn(std::vector<std::string>(17, megabyte)), Failure);
  EXPECT_THROW(eventsIn(std::vector<std::string>(17, "data: " + megabyte + "\n")), Failure);
  EXPECT_EQ(eventsIn(std::vector<std::string>(20, "data: " + megabyte + "\n\n")).size(), 20u);
}

TEST(LoadCompletionStream, CountsChunksAndUsage) {
  CompletionStream s;
  double time = 0;
  for (const std::string &e : ScriptedServer::completion(3))
    s.take(e, ++time);
  EXPECT_TRUE(s.isDone());
  EXPECT_EQ(s.chunks, (std::vector<double>{1, 2, 3}));  // the last one, of the reason alone, is no token
  EXPECT_EQ(s.outputTokens, 3);
  EXPECT_EQ(s.promptTokens, 5);
  CompletionStream other;
  other.take(R"({"choices": [{"text": ""}]})", 1);  // half a character
  other.take(R"({"choices": [{"text": "é", "finish_reason": "length"}], "usage": null})", 2);
  EXPECT_EQ(other.chunks, (std::vector<double>{1, 2}));
  EXPECT_EQ(other.outputTokens, -1);
  EXPECT_FALSE(other.isDone());
}

TEST(LoadCompletionStream, WhatIsNoCompletionIsAnError) {
  const std::pair<std::string, const char *> cases[] = {
      {"{", "malformed answer: an event that is no JSON object: {"},
      {"[1]", "malformed answer: an event that is no JSON object: [1]"},
      {"{}", "malformed answer: an event without choices: {}"},
      {R"({"choices": [1]})", "malformed answer: a choice without text: {\"choices\": [1]}"},
      {R"({"choices": [{"delta": {"content": "a"}}]})",
       "malformed answer: a choice without text: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}"},
      {R"({"error": {"message": "out of\nmemory"}})", "error in the stream: out of memory"},
      {R"({"error": "broken"})", "error in the stream: broken"},
  };
  for (const auto &[data, failure] : cases)
    try {
      CompletionStream().take(data, 0);
      ADD_FAILURE() << data;
    } catch (const Failure &f) {
      EXPECT_EQ(f.text(), failure);
    }
  CompletionStream s;
  s.take("[DONE]", 0);
  EXPECT_THROW(s.take("[DONE]", 0), Failure);
}

TEST(LoadPlainText, TerminalsGetNothingToObey) {
  EXPECT_EQ(plainText(" a\x1b[2J\nb\x7f\xc2\x9b"
                      "c\xff "),
            "a [2J b  c\xef\xbf\xbd");
  EXPECT_EQ(plainText("é"), "é");
  EXPECT_EQ(plainText(std::string(300, 'a')), std::string(200, 'a') + "...");
  EXPECT_EQ(messageOf({{"error", {{"message", "m"}}}}), "m");
  EXPECT_EQ(messageOf({{"detail", "d"}}), "d");
  EXPECT_EQ(messageOf({{"other", 1}}), R"({"other":1})");
}

}  // namespace
