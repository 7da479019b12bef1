#include "tools/load/http_response.h"

#include "tools/load/failure.h"

#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>

namespace gptc::load {

namespace {

llvm::StringRef refOf(std::string_view s) { return {s.data(), s.size()}; }

}  // namespace

bool HttpResponse::takeLine(std::string_view &bytes, size_t most, std::string &line) {
  const size_t end = bytes.find('\n'), taken = end == std::string_view::npos ? bytes.size() : end + 1;
  lineBytes += taken;
  if (lineBytes > most)
    throw malformed(fmt::format("more than {} bytes of header fields or of a chunk's size", most));
  pending.append(bytes.substr(0, taken));
  bytes.remove_prefix(taken);
  if (end == std::string_view::npos)
    return false;
  pending.pop_back();
  if (!pending.empty() && pending.back() == '\r')
    pending.pop_back();
  line = std::exchange(pending, {});
  return true;
}

void HttpResponse::takeStatus(std::string_view line) {
  const llvm::StringRef l = refOf(line);
  // HTTP/1.1 200 OK: three digits, and behind them a space or nothing.
  const bool isHttp = l.size() >= 12 && l.starts_with("HTTP/1.") && l[8] == ' ' && (l.size() == 12 || l[12] == ' ');
  if (!isHttp || l.substr(9, 3).getAsInteger(10, code) || code < 100)
    throw malformed("no answer of HTTP/1.1");
}

void HttpResponse::takeField(std::string_view line) {
  const auto [name, rest] = refOf(line).split(':');
  if (name.empty() || name.size() == line.size())
    throw malformed("a header field without a colon");
  const llvm::StringRef value = rest.trim(" \t");
  if (name.equals_insensitive("content-length")) {
    uint64_t n = 0;
    if (value.empty() || value.find_first_not_of("0123456789") != llvm::StringRef::npos || value.getAsInteger(10, n) ||
        (hasLength && n != length))
      throw malformed("an invalid Content-Length");
    hasLength = true;
    length = n;
  } else if (name.equals_insensitive("transfer-encoding")) {
    if (!value.equals_insensitive("chunked") || isChunked)
      throw malformed("a transfer coding other than chunked");
    isChunked = true;
  } else if (name.equals_insensitive("content-encoding")) {
    if (!value.equals_insensitive("identity"))
      throw malformed("a compressed body, which was not asked for");
  } else if (name.equals_insensitive("content-type")) {
    type = value.split(';').first.trim().lower();
  }
}

void HttpResponse::takeHeadLine(const std::string &line) {
  if (code == 0)
    takeStatus(line);
  else if (!line.empty())
    takeField(line);
  else
    endHead();
}

/// What follows the fields: RFC 9112, 6.3.
void HttpResponse::endHead() {
  lineBytes = 0;
  if (code == 101)
    throw malformed("a change of protocols, which was not asked for");
  if (code < 200) {
    *this = HttpResponse();
    return;
  }
  if (code == 204 || code == 304)
    state = State::complete;
  else if (isChunked)
    state = State::chunkSize;
  else if (!hasLength)
    state = State::untilEnd;
  else
    state = length ? State::body : State::complete;
  left = length;
}

void HttpResponse::takeChunkSize(std::string_view line) {
  const llvm::StringRef digits = refOf(line).take_until([](char c) { return c == ';'; }).rtrim(" \t");
  if (digits.empty() || digits.find_first_not_of("0123456789abcdefABCDEF") != llvm::StringRef::npos ||
      digits.getAsInteger(16, left))
    throw malformed("a chunk without a size");
  lineBytes = 0;
  state = left ? State::chunk : State::trailer;
}

void HttpResponse::take(std::string_view bytes, Body body) {
  std::string line;
  while (!bytes.empty()) {
    switch (state) {
    case State::head:
      if (takeLine(bytes, mostHead, line))
        takeHeadLine(line);
      break;
    case State::chunkSize:
      if (takeLine(bytes, mostLine, line))
        takeChunkSize(line);
      break;
    case State::chunkEnd:
      if (takeLine(bytes, mostLine, line)) {
        if (!line.empty())
          throw malformed("a chunk that is longer than its size");
        lineBytes = 0;
        state = State::chunkSize;
      }
      break;
    case State::trailer:
      if (takeLine(bytes, mostHead, line) && line.empty())
        state = State::complete;
      break;
    case State::untilEnd:
      body(bytes);
      return;
    case State::body:
    case State::chunk: {
      const std::string_view piece = bytes.substr(0, size_t(std::min<uint64_t>(left, bytes.size())));
      bytes.remove_prefix(piece.size());
      left -= piece.size();
      if (left == 0)
        state = state == State::body ? State::complete : State::chunkEnd;
      body(piece);
      break;
    }
    case State::complete:
      throw malformed("bytes behind the end of the answer");
    }
  }
}

void HttpResponse::end() {
  if (state == State::untilEnd)
    state = State::complete;
  if (state != State::complete)
    throw Failure{"connection closed early", hasHead() ? "in the middle of an answer" : "without an answer"};
}

}  // namespace gptc::load
