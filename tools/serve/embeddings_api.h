// The part of OpenAI's interface that makes vectors of texts.
#pragma once

#include "frontends/tokenizer/tokenizer.h"
#include "runtime/serve/embedder.h"
#include "tools/serve/embed_command.h"
#include "tools/serve/openai_api.h"

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace gptc {

/// Answers
///   POST /v1/embeddings   input: a text, token ids, or an array of up to 2048 of either; encoding_format "float" or
///                         "base64" (f32, little-endian)
/// Requests take turns in the order of their coming, some texts of each at a time. A text has the same bits in any
/// request.
class EmbeddingsApi final : public OpenAiApi {
public:
  /// `mostWaiting`: texts that may wait for others. `onFailure` is called when no more vectors can be made. All must
  /// outlive this.
  EmbeddingsApi(Executor &executor, const Tokenizer &tokenizer, const VectorChoice &choice, int64_t mostWaiting,
                ApiOptions options, std::function<void()> onFailure);

  int64_t width() const { return embedder.width(); }
  /// Of a text, in tokens: that of the model, or less if its folder says so.
  int64_t context() const { return most; }
  /// Requests that have not ended fail.
  void end() { isEnding = true; }
  /// Throws what was the failure, if there was one.
  void rethrow() const;

private:
  Routes ownRoutes() const override { return {{"POST", "/v1/embeddings"}}; }
  HttpAnswer post(const std::string &path, nlohmann::json object, HttpClient &client) override;
  nlohmann::ordered_json description() const override;
  std::string metricsText() const override { return metrics.text(common.bytes->held(), std::nullopt); }

  std::vector<std::vector<int32_t>> textsOf(const nlohmann::json &input) const;
  std::vector<int32_t> tokensOf(const nlohmann::json &text, const Tokenizer &own) const;
  std::vector<std::vector<float>> embed(llvm::ArrayRef<std::vector<int32_t>> texts, HttpClient &client);

  /// A lock that threads get in the order in which they ask.
  class Turns {
  public:
    void lock();
    void unlock();

  private:
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t asked = 0, served = 0;
  };

  Embedder embedder;
  const Tokenizer &tokenizer;
  const VectorChoice choice;
  const int64_t vocabulary, most, mostWaiting;
  const std::function<void()> onFailure;
  std::atomic<int64_t> waiting = 0;  // texts without a vector
  std::atomic<bool> isEnding = false;
  Turns turns;                 // of the embedder
  std::exception_ptr failure;  // in a turn
};

}  // namespace gptc
