#include "tools/serve/embeddings_api.h"

#include "ir/facts.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"
#include "tools/serve/completion_request.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/Base64.h"

#include <chrono>
#include <new>

namespace gptc {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t mostTexts = 2048;   // of a request, as OpenAI's
constexpr size_t textsInATurn = 32;  // after which another request may have its turn

bool isOfIds(const json &value) {
  return value.is_array() && !value.empty() && llvm::all_of(value, [](const json &v) { return v.is_number(); });
}

std::string wordOf(const json &object, const char *name, const std::string &otherwise) {
  const json &value = part(object, name);
  if (!value.is_null() && !value.is_string())
    throw RequestError{name, "must be a text"};
  return value.is_null() ? otherwise : value.get<std::string>();
}

}  // namespace

void EmbeddingsApi::Turns::lock() {
  std::unique_lock guard(mutex);
  const uint64_t own = asked++;
  changed.wait(guard, [&] { return served == own; });
}

void EmbeddingsApi::Turns::unlock() {
  const std::lock_guard guard(mutex);
  ++served;
  changed.notify_all();
}

EmbeddingsApi::EmbeddingsApi(Executor &executor, const Tokenizer &tokenizer, const VectorChoice &choice,
                             int64_t mostWaiting, ApiOptions options, std::function<void()> onFailure)
    : OpenAiApi(std::move(options)), embedder(executor), tokenizer(tokenizer), choice(choice),
      vocabulary(fact<&ModelFacts::vocabSize>(executor.planned())), most(choice.longest(embedder.context())),
      mostWaiting(mostWaiting), onFailure(std::move(onFailure)) {
  embedder.prepare();
}

void EmbeddingsApi::rethrow() const {
  if (failure)
    std::rethrow_exception(failure);
}

ordered_json EmbeddingsApi::description() const {
  return {{"max_model_len", context()}, {"dimensions", width()}, {"pooling", nameOf(choice.how)}};
}

std::vector<int32_t> EmbeddingsApi::tokensOf(const json &text, const Tokenizer &own) const {
  std::vector<int32_t> tokens;
  auto requireKnown = [&](uint64_t id, const std::string &said) {
    if (id >= uint64_t(vocabulary))
      throw RequestError{"input", fmt::format("{} is no token of a vocabulary of {}", said, vocabulary)};
  };
  if (text.is_string()) {
    try {
      tokens = tokensToEmbed(own, text.get<std::string>(), choice);
    } catch (const UserError &e) {
      throw RequestError{"input", e.diagnostics[0].message};
    }
    for (const int32_t id : tokens)
      requireKnown(uint64_t(id), fmt::format("{}", id));
  } else if (isOfIds(text)) {
    for (const json &id : text) {
      requireKnown(id.is_number_unsigned() ? id.get<uint64_t>() : ~uint64_t(0), id.dump());
      tokens.push_back(id.get<int32_t>());
    }
  } else {
    throw RequestError{"input", "must be a text, an array of token ids, or an array of these"};
  }
  if (tokens.empty())
    throw RequestError{"input", "has a text without tokens"};
  if (int64_t(tokens.size()) > context())
    throw Refusal{.message = fmt::format("a text has {} tokens; the longest has {}", tokens.size(), context()),
                  .parameter = "input",
                  .code = "context_length_exceeded"};
  return tokens;
}

std::vector<std::vector<int32_t>> EmbeddingsApi::textsOf(const json &input) const {
  const bool isMany = input.is_array() && !isOfIds(input);
  const size_t count = isMany ? input.size() : 1;
  if (count == 0 || count > mostTexts)
    throw RequestError{"input", fmt::format("has {} texts; a request has 1 to {}", count, mostTexts)};
  const Tokenizer own(tokenizer);  // each thread has one
  std::vector<std::vector<int32_t>> texts;
  for (size_t i = 0; i < count; ++i)
    texts.push_back(tokensOf(isMany ? input[i] : input, own));
  return texts;
}

/// The vectors of some texts, in a turn.
std::vector<std::vector<float>> EmbeddingsApi::embed(llvm::ArrayRef<std::vector<int32_t>> texts, HttpClient &client) {
  const std::lock_guard lock(turns);
  if (isEnding || failure)
    throw Refusal{.status = 503, .message = "the server ended before the request did"};
  if (client.isGone())
    throw Refusal{.status = 499, .message = "the client has gone"};
  try {
    return embedder.embed(texts, choice.how, choice.normalized);
  } catch (const UserError &e) {
    if (e.diagnostics[0].code == ErrorCode::NonFinite)
      throw Refusal{.status = 500, .message = e.diagnostics[0].message};
    failure = std::current_exception();
  } catch (const std::bad_alloc &) {
    throw;  // of this request
  } catch (...) {
    failure = std::current_exception();
  }
  onFailure();
  throw Refusal{.status = 503, .message = "the server cannot go on"};
}

HttpAnswer EmbeddingsApi::post(const std::string &, json object, HttpClient &client) {
  const Clock::time_point begin = Clock::now();
  for (const auto &[name, value] : object.items())
    if (!llvm::is_contained({"input", "encoding_format", "dimensions", "user"}, name))
      throw RequestError{name, "unknown"};
  const std::string format = wordOf(object, "encoding_format", "float");
  wordOf(object, "user", "");
  if (format != "float" && format != "base64")
    throw RequestError{"encoding_format", "must be float or base64"};
  if (const json &dimensions = part(object, "dimensions"); !dimensions.is_null() && dimensions != width())
    throw RequestError{"dimensions", fmt::format("must be {}, those of the model", width())};
  const std::vector<std::vector<int32_t>> texts = textsOf(part(object, "input"));
  int64_t tokens = 0;
  for (const std::vector<int32_t> &text : texts)
    tokens += int64_t(text.size());

  const int64_t count = int64_t(texts.size()), before = waiting.fetch_add(count);
  const auto leave = llvm::make_scope_exit([&] { waiting -= count; });
  if (before > 0 && before + count > mostWaiting)
    throw Refusal{.status = 503, .message = "too many texts wait already", .code = "overloaded"};
  metrics.countPrompt(tokens);
  std::string data;
  for (size_t i = 0; i < texts.size(); i += textsInATurn) {
    const auto vectors = embed(llvm::ArrayRef(texts).slice(i, std::min(textsInATurn, texts.size() - i)), client);
    for (size_t j = 0; j < vectors.size(); ++j) {
      const llvm::StringRef bytes(reinterpret_cast<const char *>(vectors[j].data()), vectors[j].size() * sizeof(float));
      data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i + j ? "," : "", i + j,
                          format == "float" ? numbersOf(vectors[j]) : '"' + llvm::encodeBase64(bytes) + '"');
    }
  }
  metrics.addTimes(-1, std::chrono::duration<double>(Clock::now() - begin).count());
  return {.body = fmt::format(
              R"({{"object":"list","data":[{}],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})"
              "\n",
              data, dumped(common.model), tokens, tokens)};
}

}  // namespace gptc
