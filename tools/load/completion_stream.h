// The events of a streamed completion, as OpenAI's /v1/completions sends them: what came when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptc::load {

class CompletionStream {
public:
  /// Takes an event's data that came at `seconds`. Throws Failure for what is no completion, for an error in its place,
  /// and for events behind [DONE].
  void take(const std::string &data, double seconds);
  /// [DONE] has come.
  bool isDone() const { return done; }

  /// When each chunk with text came. One without text counts only if it ends nothing: it stands for tokens whose bytes
  /// are no text yet, while a last one that has only the reason is no token.
  std::vector<double> chunks;
  int64_t promptTokens = -1, outputTokens = -1;  // by the server's `usage`; -1: it has sent none

private:
  bool done = false;
};

}  // namespace gptc::load
