// The part of OpenAI's interface that makes vectors of texts.
#pragma once

#include "frontends/tokenizer/tokenizer.h"
#include "runtime/serve/embedder.h"
#include "tools/serve/embed_command.h"
#include "tools/serve/openai_api.h"

#include <mutex>
#include <string>
#include <vector>

namespace gptc {

/// Answers
///   POST /v1/embeddings   input: a text, token ids, or an array of up to 2048 of either; encoding_format "float" or
///                         "base64" (f32, little-endian)
/// Requests take turns, some texts of each at a time. A text has the same bits in any request.
class EmbeddingsApi final : public OpenAiApi {
public:
  /// `mostWaiting`: texts that may wait. All must outlive this.
  EmbeddingsApi(Executor &executor, const Tokenizer &tokenizer, const VectorChoice &choice, int64_t vocabulary,
                int64_t mostWaiting, ApiOptions options);

  int64_t width() const { return embedder.width(); }
  int64_t context() const { return embedder.context(); }

private:
  Routes ownRoutes() const override { return {{"POST", "/v1/embeddings"}}; }
  HttpAnswer post(const std::string &path, nlohmann::json object, HttpClient &client) override;
  nlohmann::ordered_json description() const override;
  std::string metricsText() const override { return metrics.text(std::nullopt); }

  std::vector<std::vector<int32_t>> textsOf(const nlohmann::json &input) const;
  std::vector<int32_t> tokensOf(const nlohmann::json &text, const Tokenizer &own) const;

  Embedder embedder;
  const Tokenizer &tokenizer;
  const VectorChoice choice;
  const int64_t vocabulary, mostWaiting;
  std::atomic<int64_t> waiting = 0;  // texts without a vector
  std::mutex turn;                   // of the embedder
};

}  // namespace gptc
