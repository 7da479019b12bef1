// gptc bench serve: sends requests to a server of OpenAI's interface and measures its answers.
//
// 1. Ask /v1/models which model there is.
// 2. Warm-up: requests that are not measured. They fail for what would fail for all, and say why.
// 3. The requests that are measured.
#include "support/files.h"
#include "support/terminal_line.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/load/failure.h"
#include "tools/load/load_report.h"
#include "tools/load/load_run.h"
#include "tools/load/plain_text.h"

#include <algorithm>

namespace gptc {

namespace {

using namespace load;

struct Options {
  std::string url = "http://localhost:8080", model, apiKeyFile, prompts, rate, promptTokens = "128", maxTokens = "64",
              svg;
  int64_t requests = 100, clients = 8, warmup = 1, vocabulary = 1000;
  uint64_t seed = 0;
  double timeout = 600, temperature = 0;
  bool ignoreEos = true, json = false;
};

/// "Bearer KEY", of the first line that is not empty.
std::string authorizationOf(const std::string &file) {
  llvm::StringRef key = "";
  const std::string text = readInput(file, "file of an API key", kConfigLimit);
  for (llvm::StringRef rest = text; key.empty() && !rest.empty();) {
    std::tie(key, rest) = rest.split('\n');
    key = key.trim();
  }
  for (char c : key)
    if (c <= ' ' || c > '~')
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: the key has characters that no header can carry", file),
                      "give a file with the key alone on its first line");
  if (key.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no key", file), "write it on the first line");
  return "Bearer " + key.str();
}

/// The error of an attempt that is not measured.
[[noreturn]] void refuse(const Server &server, const Failure &f, const std::string &help) {
  const bool isAnswer = f.kind == "malformed answer" || f.kind == "HTTP 404" || f.kind == "HTTP 405";
  const bool wantsKey = f.kind == "HTTP 401" || f.kind == "HTTP 403";
  throw UserError(isAnswer ? ErrorCode::AnswerInvalid : ErrorCode::ServerFails,
                  fmt::format("{}: {}", server.url.str(), f.text()), wantsKey ? "give --api-key-file FILE" : help);
}

/// Reaches the server, and returns the first model that it has, or "" if it cannot say.
std::string reach(Server &server, const Options &o) {
  constexpr size_t most = size_t(16) << 20;
  constexpr double patience = 30;  // seconds for a list that is ready
  Answer answer;
  try {
    answer = ask(server, "/v1/models", patience, most);
  } catch (const Failure &f) {
    refuse(server, f,
           f.kind == "connection refused"
               ? "start the server, as gptrun serve MODEL --port 8080, or correct the address"
               : "see that a server with OpenAI's interface listens there");
  }
  if (!o.model.empty())
    return o.model;  // not every server lists its models
  const nlohmann::json object = parseJsonOrDiscard(answer.body);
  if (answer.status != 200)
    refuse(server,
           {fmt::format("HTTP {}", answer.status), object.is_object() ? messageOf(object) : plainText(answer.body)},
           "this was the answer to /v1/models: see that the server has OpenAI's interface, or give --model NAME");
  const nlohmann::json &data = part(object, "data");
  const nlohmann::json &id = part(data.is_array() && !data.empty() ? data[0] : data, "id");
  if (!id.is_string())
    refuse(server, malformed("/v1/models names no model"),
           "see that the server has OpenAI's interface, or give --model NAME");
  return id.get<std::string>();
}

Workload workloadOf(const Options &o, const WorkloadOptions &w) {
  if (o.prompts.empty())
    return Workload(w);
  const std::string text = readInput(o.prompts, "file of prompts", size_t(256) << 20);
  return Workload(w, text, llvm::StringRef(o.prompts).ends_with(".jsonl"), o.prompts);
}

/// What a warm-up request's failure asks for.
std::string helpFor(const Failure &f, const Workload &workload) {
  if (f.kind.rfind("HTTP 4", 0) == 0)
    return workload.hasRandomPrompts() ? "prompts are token ids below --vocab-size, of --prompt-tokens each, and "
                                         "ignore_eos is set; --prompts FILE has texts, --no-ignore-eos leaves it out"
                                       : "see what the server's documentation says of this request";
  return f.kind == "timed out" ? "--timeout says how long a request may take" : "see what the server's own log says";
}

void warmUp(const Server &server, const Workload &workload, const Options &o) {
  if (o.warmup == 0)
    return;
  const LoadOptions few{.requests = o.warmup,
                        .clients = std::min<int64_t>(o.warmup, o.rate.empty() ? o.clients : 8),
                        .timeout = o.timeout,
                        .isWarmup = true};
  for (const Outcome &outcome : runLoad(server, workload, few, [](int64_t) {}).outcomes)
    if (outcome.failed) {
      const Failure f{outcome.failure, outcome.detail};
      refuse(server, f, helpFor(f, workload));
    }
}

void run(const Options &o) {
  Server server{.url = parseUrl(o.url)};
  WorkloadOptions w{.promptTokens = parseRange(o.promptTokens, "--prompt-tokens"),
                    .maxTokens = parseRange(o.maxTokens, "--max-tokens"),
                    .vocabulary = o.vocabulary,
                    .seed = o.seed,
                    .temperature = o.temperature,
                    .ignoreEos = o.ignoreEos};
  if (!o.rate.empty())
    w.rate = parseRate(o.rate);
  if (!o.apiKeyFile.empty())
    server.authorization = authorizationOf(o.apiKeyFile);
  Workload workload = workloadOf(o, w);
  server.resolve();
  const std::string model = reach(server, o);
  workload.setModel(model);
  warmUp(server, workload, o);
  const LoadOptions all{.requests = o.requests, .clients = w.rate ? 0 : o.clients, .timeout = o.timeout};
  TerminalLine progress;
  const LoadResult result = runLoad(server, workload, all, [&](int64_t ended) {
    progress.show(fmt::format("{} of {} requests", ended, o.requests));
  });
  progress.clear();
  const LoadReport report({.url = server.url.str(),
                           .model = plainText(model),
                           .prompts = o.prompts,
                           .promptTokens = w.promptTokens,
                           .maxTokens = w.maxTokens,
                           .requests = o.requests,
                           .clients = all.clients,
                           .rate = w.rate,
                           .seed = o.seed,
                           .temperature = o.temperature,
                           .ignoreEos = o.ignoreEos},
                          result);
  fmt::print("{}", o.json ? report.json().dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                          : report.table());
  std::fflush(stdout);
  if (!o.svg.empty())
    writeFileAtomically(o.svg, report.picture());
  if (report.failed())
    throw UserError(ErrorCode::ServerFails,
                    fmt::format("{} of {} requests failed; most often: {}", report.failed(), o.requests,
                                Failure{report.failures[0].kind, report.failures[0].example}.text()),
                    "see what the server's own log says; fewer --clients or a lower --rate ask less of it");
}

constexpr const char *footer =
    "TTFT: from the start of a request, its connection included, to its first token. ITL: between two chunks of\n"
    "tokens. TPOT: from first to last token, by token behind the first. E2EL: to the end of the answer. Percentiles\n"
    "are those of numpy.percentile. With --rate arrivals are a Poisson process and wait for no answer.\n"
    "JSON has vLLM's names: url, model_id, num_prompts, max_concurrency (clients), request_rate, prompts,\n"
    "prompt_tokens, max_tokens, seed, temperature, ignore_eos; duration (s), completed, failed, errors (kind, count,\n"
    "example), max_concurrent_requests, sent_request_rate, max_late_ms (of starts behind their times), token_counts\n"
    "(usage, chunks or mixed), short_answers (with fewer tokens than asked), total_input_tokens, total_output_tokens,\n"
    "request_throughput, output_throughput, total_token_throughput (1/s); and mean_, median_, p90_, p99_, max_ before\n"
    "ttft_ms, tpot_ms, itl_ms, e2el_ms. Null: not known, or not asked for. A request that fails: exit status 4.";

}  // namespace

void addServeBench(Command &bench) {
  Command c = bench.command("serve", "Measures a server of OpenAI's completions under load, as gptrun serve");
  auto o = std::make_shared<Options>();
  c.option("url", o->url, "The server's address [http://localhost:8080]").type("URL");
  c.option("--model", o->model, "Name of the model [the first that the server lists]").type("NAME");
  c.option("--api-key-file", o->apiKeyFile, "File with the server's API key").type("FILE");
  c.option("--requests", o->requests, "How many are measured [100]").within<int64_t>(1, 1000000);
  const Option clients =
      c.option("--clients", o->clients, "Requests in flight: the next begins as one ends [8]").within<int64_t>(1, 1024);
  c.option("--rate", o->rate, "Requests that begin in a second, whatever is in flight; or inf, for all at once")
      .type("R")
      .excludes(clients);
  const Option lengths =
      c.option("--prompt-tokens", o->promptTokens, "Tokens of random prompts: a number, or a range as 32..128 [128]")
          .type("TOKENS");
  const Option vocabulary = c.option("--vocab-size", o->vocabulary, "Token ids of random prompts are below this [1000]")
                                .within<int64_t>(1, int64_t(1) << 31);
  c.option("--prompts", o->prompts,
           "File with a prompt a line, asked in turn; a .jsonl has a JSON object a line, with "
           "prompt and perhaps max_tokens, temperature, ...")
      .type("FILE")
      .excludes(lengths)
      .excludes(vocabulary);
  c.option("--max-tokens", o->maxTokens, "Tokens of answers, a number or a range [64]").type("TOKENS");
  c.flag("--ignore-eos,!--no-ignore-eos", o->ignoreEos,
         "Answers go on behind tokens that end a text, so that all have their lengths [on]");
  c.option("--temperature", o->temperature, "Temperature of sampling [0]").within(0.0, 100.0);
  c.option("--seed", o->seed, "Of lengths, random prompts and arrivals [0]");
  c.option("--warmup", o->warmup, "Requests before, which are not measured [1]").within<int64_t>(0, 100000);
  c.option("--timeout", o->timeout, "Seconds that a request may take [600]").within(1e-3, 1e6);
  c.flag("--json", o->json, "Prints JSON instead of a table");
  c.option("--svg", o->svg, "Writes the distributions of TTFT and ITL as a picture").type("FILE.svg");
  c.footer(footer);
  c.run([o] { run(*o); });
}

}  // namespace gptc
