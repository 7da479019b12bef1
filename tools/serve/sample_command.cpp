#include "tools/serve/sample_command.h"

#include "runtime/collectives/share_text.h"
#include "runtime/device/executor.h"
#include "runtime/serve/beam_search.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "support/terminal_line.h"
#include "tools/serve/completion.h"
#include "tools/serve/lines.h"
#include "tools/serve/sample_output.h"

#include <chrono>
#include <list>
#include <unistd.h>

namespace gptc {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

/// Whether this process says what all ranks would.
bool speaks(const SampleCommand &command) { return !command.ranks || command.ranks->rank == 0; }

double secondsBetween(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

/// What a request may not ask of a beam search, which goes by likelihood alone.
std::optional<RequestError> problemOfBeams(const CompletionRequest &r, const SampleCommand &command) {
  const SampleOptions &o = r.options, none = command.defaults.options;
  if (r.n > command.beams)
    return RequestError{"n", fmt::format("must be at most {}, the beams", command.beams)};
  if (o.temperature != none.temperature || o.topK != none.topK || o.topP != none.topP || o.minP != none.minP ||
      o.seed != none.seed || o.repetitionPenalty != none.repetitionPenalty)
    return RequestError{"", "beams go by likelihood: temperature, seed and the like have no meaning"};
  if (r.logProbs.value_or(0) > 0 || (r.logProbs && r.echo))
    return RequestError{"logprobs", "must be 0 with beams, and without echo"};
  if (!r.stops.empty())
    return RequestError{"stop", "beams end at the token that ends a text, not at stops"};
  if (o.maxTokens < 1)
    return RequestError{"max_tokens", "must be at least 1 with beams"};
  if (int64_t(r.prompt.size()) >= command.limits.context)
    return RequestError{"prompt",
                        fmt::format("{} tokens fill the context of {}", r.prompt.size(), command.limits.context)};
  return std::nullopt;
}

constexpr const char *kPromptsHelp = "--prompts FILE wants a file with a prompt a line";

/// The prompts of a command, one by one.
class Prompts {
public:
  /// `content`: of the file, if it has been read. `notes`: whether it says something of them.
  Prompts(const SampleCommand &command, const Tokenizer &tokenizer, std::optional<std::string> content, bool notes)
      : command(command), tokenizer(tokenizer), notes(notes) {
    if (content)
      lines.emplace(command.prompts, Lines::Text{std::move(*content)});
    else if (!command.prompts.empty())
      lines.emplace(command.prompts, kPromptsHelp);
  }
  /// Whether next() would not wait for standard input.
  bool ready() { return !lines || lines->ready(); }
  /// The next prompt; nothing behind the last.
  std::optional<CompletionRequest> next() {
    if (!lines) {
      if (line++)
        return std::nullopt;
      CompletionRequest r = command.defaults;
      encodePrompt(r, command.prompt, tokenizer);
      if (r.prompt.empty())
        throw UserError(ErrorCode::Usage, "the prompt is empty", "give --prompt TEXT");
      if (const std::optional<RequestError> problem = problemFor(r))
        throw UserError(ErrorCode::Usage, textOf(*problem), "gptrun sample --help lists what it takes");
      return noted(std::move(r));
    }
    std::optional<std::string> text = lines->next();
    if (!text)
      return std::nullopt;
    ++line;
    return noted(made([&] {
      if (!command.jsonl) {
        CompletionRequest r = command.defaults;
        setPrompt(r, *text, tokenizer);
        return r;
      }
      const json object = parseJsonOrDiscard(*text);
      if (object.is_discarded())
        throw RequestError{"", "this is no JSON"};
      return readRequest(object, command.defaults, tokenizer);
    }));
  }

private:
  static std::string textOf(const RequestError &e) {
    return e.parameter.empty() ? e.message : e.parameter + ": " + e.message;
  }
  std::optional<RequestError> problemFor(const CompletionRequest &r) const {
    if (std::optional<RequestError> problem = promptProblem(r, command.limits))
      return problem;
    return command.beams ? problemOfBeams(r, command) : std::nullopt;
  }
  /// Says once that there are control tokens in a prompt.
  CompletionRequest noted(CompletionRequest r) {
    if (r.controlTokens && notes && !std::exchange(hasNoted, true))
      noteControlTokens(r.controlTokens, r.parseSpecial);
    return r;
  }
  CompletionRequest made(const std::function<CompletionRequest()> &make) const {
    try {
      CompletionRequest r = make();
      if (std::optional<RequestError> problem = problemFor(r))
        throw std::move(*problem);
      return r;
    } catch (const RequestError &e) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}, line {}: {}", lines->name(), line, textOf(e)));
    }
  }

  const SampleCommand &command;
  const Tokenizer &tokenizer;
  const bool notes;
  std::optional<Lines> lines;  // none: the one prompt of the command line
  int64_t line = 0;
  bool hasNoted = false;
};

/// Throws UserError(RanksDiffer) unless this rank has taken the tokens that rank 0 has.
void requireSameTokens(Communicator *ranks, uint64_t digest) {
  const std::string mine = fmt::format("{:016x}", digest);
  if (ranks && shareText(*ranks, mine) != mine)
    throw UserError(ErrorCode::RanksDiffer,
                    fmt::format("rank {} has taken other tokens than rank 0: the samples are wrong", ranks->rank),
                    "all machines must have the same weights, and CPUs of one kind");
}

/// A sample as an object. `number` is the prompt's.
nlohmann::ordered_json objectOf(const CompletionRequest &request, int64_t number, int64_t sample, const Completion &c) {
  nlohmann::ordered_json line;
  if (request.id.is_null())
    line["prompt"] = number;
  else
    line["id"] = request.id;
  line["sample"] = sample;
  line["text"] = c.text();
  line["finish_reason"] = c.finishReason();
  line["tokens"] = c.tokens();
  if (const json scores = c.logProbabilities(); !scores.is_null())
    line["logprobs"] = scores;
  return line;
}

std::string lineOf(const nlohmann::ordered_json &object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

/// The line before a sample as text; "" if there is only one.
std::string headingOf(const SampleCommand &command, const CompletionRequest &request, int64_t number, int64_t sample) {
  if (!command.prompts.empty())
    return fmt::format("==> prompt {}, sample {} <==\n", number + 1, sample + 1);
  return request.n > 1 ? fmt::format("==> sample {} <==\n", sample + 1) : "";
}

/// Keeps the generator busy and prints what it makes.
class Samples {
public:
  Samples(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command,
          std::optional<std::string> content)
      : tokenizer(tokenizer), command(command), generator(executor, command.generator),
        prompts(command, tokenizer, std::move(content), speaks(command)), output(command.ranks) {}

  bool run() {
    do {
      fill();
      generator.step();
      print();
      showProgress(false);
      if (output.isClosed())
        return false;
    } while (generator.unfinished() || !isDry);
    showProgress(true);
    report();
    requireSameTokens(command.ranks, generator.taken());
    if (failure)
      std::rethrow_exception(failure);
    return true;
  }

private:
  /// The samples of a prompt.
  struct Prompt {
    CompletionRequest request;
    int64_t number = 0;
    int64_t added = 0;              // samples that the generator has
    std::list<Completion> samples;  // of these, those that are not printed in whole
    int64_t printed = 0;            // those that are
    bool headed = false;            // whether the heading of the next one is printed
    size_t said = 0;                // how many of its bytes are
  };

  /// Adds generations until as many wait as run, but waits for no prompt while there is work. The error of a prompt
  /// ends the reading.
  void fill() {
    // What waits to be printed behind a long sample is bounded too.
    try {
      while (!isDry && generator.unfinished() < 2 * generator.model().slots() &&
             int64_t(open.size()) < 64 * generator.model().slots()) {
        if ((!current || current->added == current->request.n) && !nextPrompt())
          return;
        addSample(*current);
      }
    } catch (...) {
      failure = std::current_exception();
      isDry = true;
    }
  }

  bool nextPrompt() {
    if (generator.unfinished() && !prompts.ready())
      return false;
    std::optional<CompletionRequest> request = prompts.next();
    isDry = !request;
    if (isDry)
      return false;
    open.emplace_back();
    open.back().request = std::move(*request);
    open.back().number = read++;
    current = &open.back();
    return true;
  }

  void addSample(Prompt &prompt) {
    const CompletionRequest &r = prompt.request;
    if (r.logProbs && !names)
      names.emplace(tokenizer);
    prompt.samples.emplace_back(r, tokenizer, names ? &*names : nullptr);
    Completion &sample = prompt.samples.back();
    Generation g{.prompt = r.prompt, .options = r.options, .sample = uint64_t(prompt.added++), .scores = r.logProbs};
    if (r.echo && r.logProbs)
      g.onPrompt = [&sample](const std::vector<TokenScores> &scores) { sample.prompt(scores); };
    g.onToken = [this, &sample](int32_t token, const TokenScores *scores) {
      last = Clock::now();
      if (made++ == 0)
        first = last;
      return sample.token(token, scores);
    };
    g.onEnd = [this, &sample] {
      sample.end();
      ++ended;
    };
    generator.add(std::move(g));
  }

  /// Prints what is next in order, as far as it is there.
  void print() {
    std::string text;
    take(text);
    output.write(text);
  }

  void take(std::string &text) {
    while (!open.empty()) {
      Prompt &prompt = open.front();
      while (!prompt.samples.empty()) {
        Completion &sample = prompt.samples.front();
        if (command.jsonl ? !takeObject(prompt, sample, text) : !takeText(prompt, sample, text))
          return;
        prompt.samples.pop_front();
        ++prompt.printed;
        prompt.headed = false;
        prompt.said = 0;
      }
      if (prompt.printed < prompt.request.n)
        return;
      if (current == &prompt)
        current = nullptr;
      open.pop_front();
    }
  }

  bool takeObject(const Prompt &prompt, const Completion &sample, std::string &text) const {
    if (sample.ended())
      text += lineOf(objectOf(prompt.request, prompt.number, prompt.printed, sample));
    return sample.ended();
  }

  /// Takes what the sample has more than before. Returns whether that was all of it.
  bool takeText(Prompt &prompt, const Completion &sample, std::string &text) const {
    if (!std::exchange(prompt.headed, true))
      text += headingOf(command, prompt.request, prompt.number, prompt.printed);
    text += sample.text().substr(prompt.said);
    prompt.said = sample.text().size();
    if (sample.ended())
      text += '\n';
    return sample.ended();
  }

  /// A line on the terminal, where the samples go elsewhere.
  void showProgress(bool end) {
    const Clock::time_point now = Clock::now();
    if (!end && !progress.isDue(now))
      return;
    const std::string text = fmt::format("{} sample{}, {} tokens, {:.1f} tokens/s", ended, ended == 1 ? "" : "s", made,
                                         double(made) / std::max(1e-9, secondsBetween(started, now)));
    if (end)
      progress.end(text);
    else
      progress.show(text, now);
  }

  void report() const {
    if (!command.time || !speaks(command))
      return;
    if (const double seconds = secondsBetween(first, last); ended == 1 && made > 1)
      printError("{} tokens after the first in {:.3f} s: {:.1f} tokens/s; the first after {:.3f} s\n", made - 1,
                 seconds, double(made - 1) / seconds, secondsBetween(started, first));
    if (const double seconds = secondsBetween(started, last); ended > 1 && made > 0)
      printError("{} samples, {} tokens in {:.3f} s, prompts included: {:.1f} tokens/s\n", ended, made, seconds,
                 double(made) / seconds);
  }

  const Tokenizer &tokenizer;
  const SampleCommand &command;
  Generator generator;
  Prompts prompts;
  SampleOutput output;
  std::optional<TokenNames> names;
  std::list<Prompt> open;     // those not printed yet, in order
  Prompt *current = nullptr;  // the one of `open` of which samples are being added
  int64_t read = 0, ended = 0, made = 0;
  bool isDry = false;
  std::exception_ptr failure;
  const Clock::time_point started = Clock::now();
  Clock::time_point first, last;
  TerminalLine progress{stderr, speaks(command) && ::isatty(STDERR_FILENO) && !::isatty(STDOUT_FILENO)};
};

bool searchPrompts(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command,
                   std::optional<std::string> content) {
  CachedModel model(executor);
  Prompts prompts(command, tokenizer, std::move(content), speaks(command));
  SampleOutput output(command.ranks);
  std::optional<TokenNames> names;
  TokenDigest taken;
  for (int64_t number = 0; !output.isClosed(); ++number) {
    std::optional<CompletionRequest> request;
    std::exception_ptr failure;
    try {
      request = prompts.next();
    } catch (const UserError &) {
      failure = std::current_exception();
    }
    if (!request) {
      requireSameTokens(command.ranks, taken.value());
      if (failure)
        std::rethrow_exception(failure);
      return true;
    }
    if (request->logProbs && !names)
      names.emplace(tokenizer);
    const std::vector<Hypothesis> found = beamSearch(model, request->prompt,
                                                     {.beams = command.beams,
                                                      .maxTokens = request->options.maxTokens,
                                                      .lengthPenalty = command.lengthPenalty,
                                                      .tokens = request->options.tokens,
                                                      .endToken = request->ignoreEnd ? -1 : tokenizer.endOfText()});
    std::string text;
    for (int64_t i = 0; i < std::min(request->n, int64_t(found.size())); ++i) {
      const Hypothesis &h = found[size_t(i)];
      Completion sample(*request, tokenizer, names ? &*names : nullptr);
      for (size_t t = 0; t < h.tokens.size(); ++t) {
        taken.add(h.tokens[t]);
        const TokenScores scores{h.tokens[t], h.logProbabilities[t], {}};
        if (!sample.token(h.tokens[t], &scores))
          break;
      }
      sample.end();
      if (!command.jsonl) {
        text += headingOf(command, *request, number, i) + sample.text() + "\n";
        continue;
      }
      nlohmann::ordered_json object = objectOf(*request, number, i, sample);
      object["score"] = h.score;
      text += lineOf(object);
    }
    output.write(text);
  }
  return false;
}

template <typename T> std::string withDefault(const char *text, const T &value) {
  return fmt::format("{}; default: {}", text, value);
}

}  // namespace

void addSampleOptions(Command sample, SampleCommand &command) {
  CompletionRequest &r = command.defaults;
  const Option prompt = sample.option("--prompt", command.prompt, "text to continue; default: the end of a line");
  sample.option("--prompts", command.prompts, "continue a prompt from every line of a file; -: of standard input")
      .type("FILE")
      .excludes(prompt);
  const Option jsonl =
      sample.flag("--jsonl", command.jsonl,
                  "JSON lines: prompts are objects with a prompt and any of id, n, max_tokens, temperature, top_k, "
                  "top_p, min_p, repetition_penalty, seed, stop, logprobs, echo, ignore_eos; results are objects");
  sample.flag("--parse-special", r.parseSpecial, "control tokens in a prompt become their tokens");
  const Option beams =
      sample
          .option("--beams", command.beams,
                  "beam search: follow so many of the likeliest sequences; --n of them are the results; default: none")
          .within(int64_t(1), int64_t(256));
  sample
      .option("--length-penalty", command.lengthPenalty,
              withDefault("beams are ordered by their log-probability / length^this", command.lengthPenalty))
      .within(-10.0, 10.0)
      .needs(beams);
  sample.option("--n", r.n, withDefault("samples of each prompt", r.n));
  sample.option("--max-tokens", r.options.maxTokens, withDefault("tokens to generate", r.options.maxTokens))
      .tokens(0, mostNewTokens);
  const Option choice[] = {
      sample.option("--temperature", r.options.temperature,
                    withDefault("0: always the likeliest token", r.options.temperature)),
      sample.option("--top-k", r.options.topK, withDefault("choose among the k likeliest; 0: all", r.options.topK)),
      sample.option("--top-p", r.options.topP,
                    withDefault("choose among the likeliest that together reach this probability", r.options.topP)),
      sample.option("--min-p", r.options.minP,
                    withDefault("leave out what is less likely than this part of the likeliest", r.options.minP)),
      sample.option("--repetition-penalty", r.options.repetitionPenalty,
                    withDefault("above 1: what occurred becomes less likely", r.options.repetitionPenalty)),
      sample.option("--seed", r.options.seed, withDefault("seed of the choice", r.options.seed))};
  for (Option o : choice)
    o.excludes(beams);
  sample.option("--stop", r.stops, "a sample ends before this text; may be given several times").repeated();
  sample.flag("--ignore-eos", r.ignoreEnd, "go on after the token that ends a text");
  sample
      .option("--logprobs", command.logProbs,
              "log-probability of each token, and of so many of the likeliest beside it")
      .within(int64_t(0), mostLogProbs)
      .needs(jsonl);
  sample.flag("--echo", r.echo, "results begin with the prompt, as they do without --jsonl").needs(jsonl);
  sample
      .option("--slots", command.slots,
              "samples that are continued at once, on CPUs with the same results; default: 8 for many, 1 for one")
      .within(int64_t(1), int64_t(1024))
      .excludes(beams);
  sample
      .option("--lookup", command.generator.guesses,
              withDefault("guess up to so many tokens by what stood before, where slots are free: on CPUs the same "
                          "results, sooner where a text repeats itself",
                          command.generator.guesses))
      .within(int64_t(0), int64_t(64))
      .excludes(beams);
  sample.flag("--time", command.time, "say at the end how many tokens came in a second").excludes(beams);
}

int openPrompts(const SampleCommand &command) { return openLines(command.prompts, kPromptsHelp); }

std::string readPrompts(const SampleCommand &command, int fd) { return Lines(command.prompts, fd).rest(); }

void checkCommand(const SampleCommand &command, const Tokenizer &tokenizer) {
  if (command.prompts.empty())
    Prompts(command, tokenizer, std::nullopt, false).next();
  else if (command.beams)
    if (const std::optional<RequestError> problem = problemOfBeams(command.defaults, command))
      throw UserError(ErrorCode::Usage, problem->parameter + ": " + problem->message,
                      "gptrun sample --help lists what it takes");
}

bool samplePrompts(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command,
                   std::optional<std::string> content) {
  return command.beams ? searchPrompts(executor, tokenizer, command, std::move(content))
                       : Samples(executor, tokenizer, command, std::move(content)).run();
}

}  // namespace gptc
