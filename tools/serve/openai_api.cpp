#include "tools/serve/openai_api.h"

#include "support/diagnostics.h"
#include "tools/serve/page_text.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"

#include <ctime>
#include <random>

namespace gptc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// How often a thread that waits for tokens looks whether its client is still there.
constexpr std::chrono::milliseconds patience(100);

/// The page has its script and style in itself, and speaks with this server only.
constexpr const char *pagePolicy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                   "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Log-probabilities of one answer, each of which takes some hundred bytes.
constexpr double mostScores = 1 << 20;

std::string dumped(const ordered_json &object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

uint64_t randomBits() {
  thread_local std::mt19937_64 bits{[] {
    std::random_device device;
    return (uint64_t(device()) << 32) ^ device();
  }()};
  return bits();
}

/// Takes as long for any two texts of equal length.
bool equalInConstantTime(const std::string &a, const std::string &b) {
  unsigned char differ = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return !differ;
}

/// Without a port.
llvm::StringRef nameOfHost(llvm::StringRef host) {
  if (host.starts_with("["))
    return host.take_front(host.find(']') + 1);
  return host.take_front(host.find(':'));
}

}  // namespace

/// Why a request is not answered.
struct OpenAiApi::Refusal {
  int status = 400;
  std::string message, parameter, code;

  HttpAnswer answer() const {
    const char *const type = status == 401   ? "authentication_error"
                             : status == 429 ? "rate_limit_error"
                             : status >= 500 ? "server_error"
                                             : "invalid_request_error";
    auto orNull = [](const std::string &text) { return text.empty() ? ordered_json() : ordered_json(text); };
    HttpAnswer a{
        .status = status,
        .body =
            dumped({{"error",
                     {{"message", message}, {"type", type}, {"param", orNull(parameter)}, {"code", orNull(code)}}}}) +
            "\n"};
    if (status == 503)
      a.headers = {{"Retry-After", "1"}};
    return a;
  }
};

/// How a request and its answers are written.
struct OpenAiApi::Form {
  bool isChat;
  const char *prefix, *object, *chunk;
  static const Form text, chat;
};

const OpenAiApi::Form OpenAiApi::Form::text = {false, "cmpl-", "text_completion", "text_completion"};
const OpenAiApi::Form OpenAiApi::Form::chat = {true, "chatcmpl-", "chat.completion", "chat.completion.chunk"};

/// Counts a request while it is being answered.
class OpenAiApi::Active {
public:
  explicit Active(std::atomic<int64_t> &count) : count(count) { ++count; }
  ~Active() { --count; }
  Active(const Active &) = delete;

private:
  std::atomic<int64_t> &count;
};

OpenAiApi::OpenAiApi(Engine &engine, const Tokenizer &tokenizer, const Conversations &conversations, ApiOptions o)
    : engine(engine), tokenizer(tokenizer), conversations(conversations), options(std::move(o)),
      started(std::time(nullptr)) {}

std::vector<std::pair<std::string, std::string>> OpenAiApi::routes() {
  return {{"GET", "/"},          {"POST", "/v1/completions"}, {"POST", "/v1/chat/completions"},
          {"GET", "/v1/models"}, {"GET", "/health"},          {"GET", "/metrics"}};
}

HttpAnswer OpenAiApi::refuse(int status, const std::string &message) const {
  return Refusal{.status = status, .message = message}.answer();
}

void OpenAiApi::log(const std::string &path, int status) {
  const bool isKnown = llvm::any_of(routes(), [&](const auto &route) { return route.second == path; });
  metrics.countRequest(isKnown ? path : "", status);
}

HttpAnswer OpenAiApi::answer(const HttpRequest &request, HttpClient &client) {
  try {
    if (request.path == "/health")
      return isDraining ? refuse(503, "the server is about to end") : HttpAnswer{.body = "{\"status\":\"ok\"}\n"};
    requireLocal(request);
    if (request.path == "/")  // asks for a key itself
      return {.type = "text/html; charset=utf-8",
              .body = page_text::page,
              .headers = {{"Content-Security-Policy", pagePolicy}}};
    requireKey(request);
    if (request.path == "/metrics")
      return {.type = "text/plain; version=0.0.4",
              .body = metrics.text({engine.slots(), std::min(engine.running(), engine.slots()), engine.waiting(),
                                    engine.generatedTokens()})};
    if (request.path == "/v1/models")
      return models();
    return complete(request, client, request.path == "/v1/completions" ? Form::text : Form::chat);
  } catch (const Refusal &refusal) {
    return refusal.answer();
  } catch (const RequestError &e) {
    const std::string message = e.parameter.empty() ? e.message : e.parameter + ": " + e.message;
    return Refusal{.message = message, .parameter = e.parameter}.answer();
  } catch (const std::bad_alloc &) {
    return Refusal{.status = 503, .message = "not enough memory for this request now"}.answer();
  }
}

void OpenAiApi::requireLocal(const HttpRequest &request) const {
  // A page of the web whose name was made to lead here must not be answered (DNS rebinding).
  const llvm::StringRef host = nameOfHost(request.host);
  const bool isLocal = llvm::StringSwitch<bool>(host).CasesLower("", "localhost", "[::1]", true).Default(false) ||
                       (host.starts_with("127.") && host.find_first_not_of("0123456789.") == llvm::StringRef::npos);
  if (options.onlyLocal && !isLocal)
    throw Refusal{.status = 403,
                  .message = "only requests to localhost are answered; gptrun serve --host opens it to others"};
}

void OpenAiApi::requireKey(const HttpRequest &request) const {
  if (options.keys.empty())
    return;
  const std::string prefix = "Bearer ";
  const bool isBearer = llvm::StringRef(request.authorization).starts_with(prefix);
  const std::string key = isBearer ? request.authorization.substr(prefix.size()) : "";
  bool isKnown = false;
  for (const std::string &known : options.keys)
    isKnown |= equalInConstantTime(key, known);
  if (!isKnown)
    throw Refusal{
        .status = 401, .message = "an API key is needed: Authorization: Bearer KEY", .code = "invalid_api_key"};
}

HttpAnswer OpenAiApi::models() const {
  const ordered_json model = {{"id", options.model},
                              {"object", "model"},
                              {"created", started},
                              {"owned_by", "gptc"},
                              {"max_model_len", options.limits.context},
                              {"has_chat_template", conversations.problem().empty()}};
  return {.body = dumped({{"object", "list"}, {"data", ordered_json::array({model})}}) + "\n"};
}

const TokenNames &OpenAiApi::names() {
  std::call_once(named, [&] { tokenNames.emplace(tokenizer); });
  return *tokenNames;
}

namespace {

/// Removes the members that do not say how to continue a text. `stream` and `withUsage` are what they say of the
/// answer.
void takeCommonMembers(json &object, bool &stream, bool &withUsage) {
  auto take = [&](const char *name) {
    json value = part(object, name);
    object.erase(name);
    return value;
  };
  auto flag = [](const json &value, const char *name) {
    if (!value.is_null() && !value.is_boolean())
      throw RequestError{name, "must be true or false"};
    return value == true;
  };
  stream = flag(take("stream"), "stream");
  const json streamOptions = take("stream_options");
  if (!streamOptions.is_null() && (!streamOptions.is_object() || !stream))
    throw RequestError{"stream_options", stream ? "must be an object" : "needs stream"};
  withUsage = flag(part(streamOptions, "include_usage"), "stream_options");
  take("user");
  for (const char *name : {"presence_penalty", "frequency_penalty"})
    if (const json value = take(name); !value.is_null() && value != 0)
      throw RequestError{name, "is not known here; repetition_penalty is"};
  if (const json value = take("logit_bias"); !value.is_null() && !value.empty())
    throw RequestError{"logit_bias", "is not known here"};
  if (const json value = take("suffix"); !value.is_null() && value != "")
    throw RequestError{"suffix", "is not known here"};
  const json &n = part(object, "n");
  if (const json value = take("best_of"); !value.is_null() && value != (n.is_null() ? json(1) : n))
    throw RequestError{"best_of", "must be n"};
}

}  // namespace

void OpenAiApi::requireServable(const std::vector<CompletionRequest> &requests) const {
  int64_t choices = 0;
  double scores = 0;
  for (const CompletionRequest &r : requests) {
    if (const std::optional<RequestError> problem = promptProblem(r, options.limits))
      throw *problem;
    if (int64_t(r.prompt.size()) > options.limits.context)
      throw Refusal{.message = fmt::format("the prompt has {} tokens; the model's context has {}", r.prompt.size(),
                                           options.limits.context),
                    .parameter = "prompt",
                    .code = "context_length_exceeded"};
    choices += r.n;
    const int64_t room = options.limits.context + 1 - int64_t(r.prompt.size()),
                  made = std::min(r.options.maxTokens, room);
    if (r.logProbs)
      scores += double(r.n) * double(made + (r.echo ? int64_t(r.prompt.size()) : 0)) * double(1 + *r.logProbs);
  }
  if (scores > mostScores)
    throw Refusal{
        .message = fmt::format("up to {:.0f} log-probabilities; at most {:.0f} are given at once", scores, mostScores),
        .parameter = "logprobs"};
  if (!engine.hasRoom(choices))
    throw Refusal{.status = 503, .message = "too many requests wait already", .code = "overloaded"};
}

HttpAnswer OpenAiApi::complete(const HttpRequest &request, HttpClient &client, const Form &form) {
  if (isDraining)
    throw Refusal{.status = 503, .message = "the server is about to end"};
  // What a page of another site may send without asking is not JSON by its type.
  if (!llvm::StringRef(request.contentType).starts_with_insensitive("application/json"))
    throw Refusal{.status = 415, .message = "the body must be JSON, with Content-Type: application/json"};
  json object = parseJsonOrDiscard(request.body);
  if (object.is_discarded())
    throw Refusal{.message = "the body is no JSON, or deeper than 64 levels"};
  if (!object.is_object())
    throw Refusal{.message = "the body is no object"};
  if (const json model = part(object, "model"); !model.is_null() && model != options.model)
    throw Refusal{.status = 404,
                  .message = fmt::format("there is no model {}; here is {}", model.dump(-1, ' ', true), options.model),
                  .parameter = "model",
                  .code = "model_not_found"};
  object.erase("model");
  bool stream = false, withUsage = false;
  takeCommonMembers(object, stream, withUsage);
  if (object.contains("id"))
    throw RequestError{"id", "unknown"};
  CompletionRequest defaults = options.defaults;
  if (form.isChat)
    defaults.options.maxTokens = options.limits.context;
  const Tokenizer own(tokenizer);  // each thread has one
  std::vector<CompletionRequest> requests;
  if (form.isChat)
    requests.push_back(conversations.read(object, defaults, own));
  else
    requests = readRequests(object, defaults, own, engine.mostWaiting());
  if (part(object, "seed").is_null())  // else equal prompts had equal samples
    for (CompletionRequest &r : requests)
      r.options.seed = randomBits();
  requireServable(requests);
  const bool scores = requests[0].logProbs.has_value();
  const auto job =
      std::make_shared<Job>(std::move(requests), tokenizer, scores ? &names() : nullptr,
                            stream ? form.isChat ? Job::Pieces::chat : Job::Pieces::text : Job::Pieces::none);
  if (!engine.submit(job))
    throw Refusal{.status = 503, .message = "too many requests wait already", .code = "overloaded"};
  metrics.countPrompt(job->promptTokens());
  return stream ? streamed(job, client, form, withUsage) : whole(job, client, form);
}

namespace {

ordered_json orNull(const char *text) { return text ? ordered_json(text) : ordered_json(); }

ordered_json usageOf(const Job &job) {
  const int64_t prompt = job.promptTokens(), made = job.generatedTokens();
  return {{"prompt_tokens", prompt}, {"completion_tokens", made}, {"total_tokens", prompt + made}};
}

/// A choice with its text in a member `name`: "message" or "delta" of a chat, else "".
ordered_json choiceOf(int64_t index, const std::string &name, std::string text, bool withRole, const json &logProbs,
                      const char *finishReason) {
  ordered_json out = {{"index", index}};
  if (name.empty())
    out["text"] = std::move(text);
  else if (withRole)
    out[name] = {{"role", "assistant"}, {"content", std::move(text)}};
  else
    out[name] = text.empty() ? ordered_json::object() : ordered_json{{"content", std::move(text)}};
  out["logprobs"] = logProbs;
  out["finish_reason"] = orNull(finishReason);
  return out;
}

}  // namespace

ordered_json OpenAiApi::headOf(const Form &form, const char *object) const {
  return {{"id", fmt::format("{}{:016x}", form.prefix, randomBits())},
          {"object", object},
          {"created", int64_t(std::time(nullptr))},
          {"model", options.model}};
}

/// A job has ended.
void OpenAiApi::note(const Job &job) { metrics.addTimes(job.secondsToFirstToken(), job.seconds()); }

HttpAnswer OpenAiApi::whole(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form) {
  const Active active(activeRequests);
  std::vector<Job::Piece> none;
  while (!job->wait(patience, none))
    if (client.isGone()) {
      job->cancel();
      return refuse(499, "the client has gone");
    }
  if (job->failed())
    throw Refusal{.status = 503, .message = "the server ended before the request did"};
  note(*job);
  ordered_json out = headOf(form, form.object);
  out["choices"] = ordered_json::array();
  for (int64_t i = 0; i < job->choices(); ++i) {
    const Completion &c = job->completion(i);
    out["choices"].push_back(choiceOf(i, form.isChat ? "message" : "", c.text(), true,
                                      form.isChat ? c.chatLogProbabilities() : c.logProbabilities(), c.finishReason()));
  }
  out["usage"] = usageOf(*job);
  return {.body = dumped(out) + "\n"};
}

/// Server-sent events, as the HTML standard has them.
HttpAnswer OpenAiApi::streamed(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form, bool withUsage) {
  auto event = [](const std::string &data) { return "data: " + data + "\n\n"; };
  auto stream = [this, job, &client, &form, head = headOf(form, form.chunk), withUsage, event,
                 active = std::make_shared<Active>(activeRequests)](const HttpWrite &write) {
    std::vector<Job::Piece> pieces;
    std::vector<bool> hasBegun(size_t(job->choices()));
    for (bool ended = false; !ended;) {
      ended = job->wait(patience, pieces);
      bool isThere = !pieces.empty() || !client.isGone();
      for (size_t i = 0; i < pieces.size() && isThere; ++i) {
        Job::Piece &p = pieces[i];
        ordered_json chunk = head;
        chunk["choices"] = ordered_json::array({choiceOf(p.choice, form.isChat ? "delta" : "", std::move(p.text),
                                                         !hasBegun[size_t(p.choice)], p.logProbs, p.finishReason)});
        hasBegun[size_t(p.choice)] = true;
        isThere = write(event(dumped(chunk)));
      }
      if (!isThere)
        return job->cancel();
    }
    if (job->failed()) {
      write(event(refuse(503, "the server ended before the request did").body));
      return;
    }
    note(*job);
    if (withUsage) {
      ordered_json chunk = head;
      chunk["choices"] = ordered_json::array();
      chunk["usage"] = usageOf(*job);
      write(event(dumped(chunk)));
    }
    write(event("[DONE]"));
  };
  return {.type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}, .stream = std::move(stream)};
}

}  // namespace gptc
