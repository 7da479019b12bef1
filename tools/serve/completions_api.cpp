#include "tools/serve/completions_api.h"

#include "support/diagnostics.h"
#include "tools/serve/page_text.h"

#include <algorithm>
#include <ctime>

namespace gptc {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// How often a thread that waits for tokens looks whether its client is still there.
constexpr std::chrono::milliseconds patience(100);

/// The page has its script and style in itself, and speaks with this server only.
constexpr const char *pagePolicy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                   "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Log-probabilities of one answer, each of which takes some hundred bytes.
constexpr double mostScores = 1 << 20;

}  // namespace

/// How a request and its answers are written.
struct CompletionsApi::Form {
  bool isChat;
  const char *prefix, *object, *chunk;
  static const Form text, chat;
};

const CompletionsApi::Form CompletionsApi::Form::text = {false, "cmpl-", "text_completion", "text_completion"};
const CompletionsApi::Form CompletionsApi::Form::chat = {true, "chatcmpl-", "chat.completion", "chat.completion.chunk"};

CompletionsApi::CompletionsApi(Engine &engine, const Tokenizer &tokenizer, const Conversations &conversations,
                               ApiOptions options, CompletionRequest defaults, PromptLimits limits)
    : OpenAiApi(std::move(options)), engine(engine), tokenizer(tokenizer), conversations(conversations),
      defaults(std::move(defaults)), limits(limits) {}

OpenAiApi::Routes CompletionsApi::ownRoutes() const {
  return {{"GET", "/"}, {"POST", "/v1/completions"}, {"POST", "/v1/chat/completions"}};
}

HttpAnswer CompletionsApi::page() const {
  return {.type = "text/html; charset=utf-8",
          .body = page_text::page,
          .headers = {{"Content-Security-Policy", pagePolicy}}};
}

ordered_json CompletionsApi::description() const {
  return {{"max_model_len", limits.context}, {"has_chat_template", conversations.problem().empty()}};
}

std::string CompletionsApi::metricsText() const {
  return metrics.text(common.bytes->held(), Metrics::Gauges{engine.slots(), std::min(engine.running(), engine.slots()),
                                                            engine.waiting(), engine.generatedTokens()});
}

const TokenNames &CompletionsApi::names() {
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

void CompletionsApi::requireServable(const std::vector<CompletionRequest> &requests) const {
  int64_t choices = 0;
  double scores = 0;
  for (const CompletionRequest &r : requests) {
    if (const std::optional<RequestError> problem = promptProblem(r, limits))
      throw *problem;
    if (int64_t(r.prompt.size()) > limits.context)
      throw Refusal{.message = fmt::format("the prompt has {} tokens; the model's context has {}", r.prompt.size(),
                                           limits.context),
                    .parameter = "prompt",
                    .code = "context_length_exceeded"};
    choices += r.n;
    const int64_t room = limits.context + 1 - int64_t(r.prompt.size()), made = std::min(r.options.maxTokens, room);
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

HttpAnswer CompletionsApi::post(const std::string &path, json object, HttpClient &client) {
  const Form &form = path == "/v1/completions" ? Form::text : Form::chat;
  bool stream = false, withUsage = false;
  takeCommonMembers(object, stream, withUsage);
  if (object.contains("id"))
    throw RequestError{"id", "unknown"};
  CompletionRequest asked = defaults;
  if (form.isChat)
    asked.options.maxTokens = limits.context;
  const Tokenizer own(tokenizer);  // each thread has one
  std::vector<CompletionRequest> requests;
  if (form.isChat)
    requests.push_back(conversations.read(object, asked, own));
  else
    requests = readRequests(object, asked, own, engine.mostWaiting());
  if (part(object, "seed").is_null())  // else equal prompts had equal samples
    for (CompletionRequest &r : requests)
      r.options.seed = randomBits();
  requireServable(requests);
  const bool scores = requests[0].logProbs.has_value();
  const auto job = std::make_shared<Job>(
      std::move(requests), tokenizer, scores ? &names() : nullptr,
      stream ? form.isChat ? Job::Pieces::chat : Job::Pieces::text : Job::Pieces::none, *common.bytes);
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

ordered_json CompletionsApi::headOf(const Form &form, const char *object) const {
  return {{"id", fmt::format("{}{:016x}", form.prefix, randomBits())},
          {"object", object},
          {"created", int64_t(std::time(nullptr))},
          {"model", common.model}};
}

/// A job has ended.
void CompletionsApi::note(const Job &job) { metrics.addTimes(job.secondsToFirstToken(), job.seconds()); }

HttpAnswer CompletionsApi::whole(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form) {
  std::optional<Job::Piece> none;
  while (!job->wait(patience, none))
    if (client.isGone()) {
      job->cancel();
      return refuse(499, "the client has gone");
    }
  if (job->failure())
    throw Refusal{.status = 503, .message = job->failure()};
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
HttpAnswer CompletionsApi::streamed(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form,
                                    bool withUsage) {
  auto event = [](const std::string &data) { return "data: " + data + "\n\n"; };
  auto stream = [this, job, &client, &form, head = headOf(form, form.chunk), withUsage, event](const HttpWrite &write) {
    std::optional<Job::Piece> piece;
    std::vector<bool> hasBegun(size_t(job->choices()));
    while (!job->wait(patience, piece)) {
      bool isThere = piece || !client.isGone();
      if (piece) {
        ordered_json chunk = head;
        chunk["choices"] =
            ordered_json::array({choiceOf(piece->choice, form.isChat ? "delta" : "", std::move(piece->text),
                                          !hasBegun[size_t(piece->choice)], piece->logProbs, piece->finishReason)});
        hasBegun[size_t(piece->choice)] = true;
        isThere = write(event(dumped(chunk)));
      }
      if (!isThere)
        return job->cancel();
    }
    if (job->failure()) {
      write(event(Refusal{.status = 503, .message = job->failure()}.answer().body));
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
