// Reads an answer of HTTP/1.1 (RFC 9112) from its bytes, in whatever pieces they come.
#pragma once

#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace gptc::load {

class HttpResponse {
public:
  using Body = llvm::function_ref<void(std::string_view)>;

  static constexpr size_t mostHead = size_t(64) << 10;  // bytes of status line and fields, and of a trailer
  static constexpr size_t mostLine = size_t(1) << 10;   // of a line with the size of a chunk

  /// Takes the next bytes, and gives `body` the pieces of the answer's body that they hold. Answers 1xx before it are
  /// passed over. Throws Failure for what is no answer, a coding other than chunked, bytes behind the end, and beyond
  /// the limits.
  void take(std::string_view bytes, Body body);
  /// The connection has ended. Throws Failure if the answer has not.
  void end();

  bool hasHead() const { return state != State::head; }
  bool isComplete() const { return state == State::complete; }
  /// Valid once there is a head. The type is in lower case, without parameters: "text/event-stream".
  int status() const { return code; }
  const std::string &contentType() const { return type; }

private:
  enum class State { head, body, untilEnd, chunkSize, chunk, chunkEnd, trailer, complete };

  /// The next line without its end, once `bytes` or those before have it. Throws Failure for more than `most` bytes of
  /// lines in this state.
  bool takeLine(std::string_view &bytes, size_t most, std::string &line);
  void takeHeadLine(const std::string &line);
  void takeStatus(std::string_view line);
  void takeField(std::string_view line);
  void endHead();
  void takeChunkSize(std::string_view line);

  State state = State::head;
  std::string pending;   // the part of a line that has come
  size_t lineBytes = 0;  // of the head or trailer
  int code = 0;          // 0: the status line has not come
  std::string type;
  bool isChunked = false, hasLength = false;
  uint64_t length = 0;  // of the body, if hasLength
  uint64_t left = 0;    // bytes of the body, or of the chunk, that have not come
};

}  // namespace gptc::load
