#include "tools/serve/sample_command.h"

#include "runtime/device/executor.h"
#include "runtime/serve/beam_search.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "tools/serve/completion.h"

#include <chrono>
#include <deque>
#include <fstream>
#include <iostream>
#include <list>
#include <unistd.h>

namespace gptc {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

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
  if (o.maxTokens < 1)
    return RequestError{"max_tokens", "must be at least 1 with beams"};
  if (int64_t(r.prompt.size()) >= command.limits.context)
    return RequestError{"prompt",
                        fmt::format("{} tokens fill the context of {}", r.prompt.size(), command.limits.context)};
  return std::nullopt;
}

/// The prompts of a command, one by one.
class Prompts {
public:
  Prompts(const SampleCommand &command, const Tokenizer &tokenizer) : command(command), tokenizer(tokenizer) {
    if (command.prompts.empty() || command.prompts == "-")
      return;
    file.open(command.prompts);
    if (!file)
      throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {}", command.prompts),
                      "--prompts FILE wants a file with a prompt a line; - is standard input");
  }
  /// The next prompt; nothing behind the last.
  std::optional<CompletionRequest> next() {
    if (command.prompts.empty()) {
      if (line++)
        return std::nullopt;
      CompletionRequest r = command.defaults;
      r.controlTokens = tokenizer.encode(command.prompt, r.prompt, {.parseSpecial = r.parseSpecial});
      if (r.prompt.empty())
        throw UserError(ErrorCode::Usage, "the prompt is empty", "give --prompt TEXT");
      if (const std::optional<RequestError> problem = problemFor(r))
        throw UserError(ErrorCode::Usage, textOf(*problem), "gptrun sample --help lists what it takes");
      return r;
    }
    std::istream &in = command.prompts == "-" ? std::cin : file;
    std::string text;
    if (!std::getline(in, text)) {
      if (in.bad())
        throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {} to its end", name()));
      return std::nullopt;
    }
    ++line;
    if (!text.empty() && text.back() == '\r')
      text.pop_back();
    return made([&] {
      if (!command.jsonl) {
        CompletionRequest r = command.defaults;
        setPrompt(r, text, tokenizer);
        return r;
      }
      const json object = parseJsonOrDiscard(text);
      if (object.is_discarded())
        throw RequestError{"", "this is no JSON"};
      return readRequest(object, command.defaults, tokenizer);
    });
  }

private:
  std::string name() const { return command.prompts == "-" ? "standard input" : command.prompts; }
  static std::string textOf(const RequestError &e) {
    return e.parameter.empty() ? e.message : e.parameter + ": " + e.message;
  }
  std::optional<RequestError> problemFor(const CompletionRequest &r) const {
    if (std::optional<RequestError> problem = promptProblem(r, command.limits))
      return problem;
    return command.beams ? problemOfBeams(r, command) : std::nullopt;
  }
  CompletionRequest made(const std::function<CompletionRequest()> &make) const {
    try {
      CompletionRequest r = make();
      if (std::optional<RequestError> problem = problemFor(r))
        throw std::move(*problem);
      return r;
    } catch (const RequestError &e) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}, line {}: {}", name(), line, textOf(e)));
    }
  }

  const SampleCommand &command;
  const Tokenizer &tokenizer;
  std::ifstream file;
  int64_t line = 0;
};

void write(const std::string &text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
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

void writeObject(const nlohmann::ordered_json &object) {
  write(object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
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
  Samples(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command)
      : tokenizer(tokenizer), command(command), generator(executor, command.generator), prompts(command, tokenizer) {}

  void run() {
    do {
      fill();
      generator.step();
      print();
      showProgress(false);
    } while ((generator.unfinished() || !isDry) && !std::ferror(stdout));
    print();
    showProgress(true);
    report();
    if (failure)
      std::rethrow_exception(failure);
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

  /// Adds generations until as many wait as run. The error of a prompt ends the reading.
  void fill() {
    // What waits to be printed behind a long sample is bounded too.
    while (!isDry && generator.unfinished() < 2 * generator.model().slots() &&
           int64_t(open.size()) < 64 * generator.model().slots()) {
      if (!current || current->added == current->request.n)
        if (!nextPrompt())
          return;
      addSample(*current);
    }
  }

  bool nextPrompt() {
    try {
      std::optional<CompletionRequest> request = prompts.next();
      if (!request) {
        isDry = true;
        return false;
      }
      noteControlTokens(*request);
      open.emplace_back();
      open.back().request = std::move(*request);
      open.back().number = read++;
      current = &open.back();
      return true;
    } catch (...) {
      failure = std::current_exception();
      isDry = true;
      return false;
    }
  }

  void noteControlTokens(const CompletionRequest &request) {
    if (!request.controlTokens || std::exchange(hasNoted, true))
      return;
    printError("note: {} control token{} in the prompt: {}\n", request.controlTokens,
               request.controlTokens == 1 ? "" : "s",
               request.parseSpecial ? "parsed" : "encoded as text (data.parse_special or --parse-special changes it)");
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
    while (!open.empty()) {
      Prompt &prompt = open.front();
      while (!prompt.samples.empty()) {
        Completion &sample = prompt.samples.front();
        if (command.jsonl ? !printObject(prompt, sample) : !printText(prompt, sample))
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

  bool printObject(const Prompt &prompt, const Completion &sample) {
    if (!sample.ended())
      return false;
    writeObject(objectOf(prompt.request, prompt.number, prompt.printed, sample));
    return true;
  }

  /// Prints what the sample has more than before. Returns whether that was all of it.
  bool printText(Prompt &prompt, const Completion &sample) {
    if (!std::exchange(prompt.headed, true))
      write(headingOf(command, prompt.request, prompt.number, prompt.printed));
    write(sample.text().substr(prompt.said));
    prompt.said = sample.text().size();
    if (sample.ended())
      write("\n");
    return sample.ended();
  }

  /// A line on the terminal, where the samples go elsewhere.
  void showProgress(bool end) {
    static const bool shows = ::isatty(STDERR_FILENO) && !::isatty(STDOUT_FILENO);
    const Clock::time_point now = Clock::now();
    if (!shows || (!end && secondsBetween(shown, now) < 0.2))
      return;
    shown = now;
    printError("\r{} sample{}, {} tokens, {:.1f} tokens/s{}", ended, ended == 1 ? "" : "s", made,
               double(made) / std::max(1e-9, secondsBetween(started, now)), end ? "\n" : "");
  }

  void report() const {
    if (!command.time)
      return;
    if (const double seconds = secondsBetween(first, last); ended == 1 && made > 1)
      printError("{} tokens after the first in {:.3f} s: {:.1f} tokens/s\n", made - 1, seconds,
                 double(made - 1) / seconds);
    if (const double seconds = secondsBetween(started, last); ended > 1 && made > 0)
      printError("{} samples, {} tokens in {:.3f} s, prompts included: {:.1f} tokens/s\n", ended, made, seconds,
                 double(made) / seconds);
  }

  const Tokenizer &tokenizer;
  const SampleCommand &command;
  Generator generator;
  Prompts prompts;
  std::optional<TokenNames> names;
  std::list<Prompt> open;     // those not printed yet, in order
  Prompt *current = nullptr;  // the one of `open` of which samples are being added
  int64_t read = 0, ended = 0, made = 0;
  bool isDry = false, hasNoted = false;
  std::exception_ptr failure;
  const Clock::time_point started = Clock::now();
  Clock::time_point first, last, shown = started;
};

void searchPrompts(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command) {
  CachedModel model(executor);
  Prompts prompts(command, tokenizer);
  std::optional<TokenNames> names;
  for (int64_t number = 0; !std::ferror(stdout); ++number) {
    const std::optional<CompletionRequest> request = prompts.next();
    if (!request)
      return;
    if (request->logProbs && !names)
      names.emplace(tokenizer);
    const std::vector<Hypothesis> found = beamSearch(model, request->prompt,
                                                     {.beams = command.beams,
                                                      .maxTokens = request->options.maxTokens,
                                                      .lengthPenalty = command.lengthPenalty,
                                                      .tokens = request->options.tokens,
                                                      .endToken = request->ignoreEnd ? -1 : tokenizer.endOfText()});
    for (int64_t i = 0; i < std::min(request->n, int64_t(found.size())); ++i) {
      const Hypothesis &h = found[size_t(i)];
      Completion sample(*request, tokenizer, names ? &*names : nullptr);
      for (size_t t = 0; t < h.tokens.size(); ++t) {
        const TokenScores scores{h.tokens[t], h.logProbabilities[t], {}};
        if (!sample.token(h.tokens[t], &scores))
          break;
      }
      sample.end();
      if (!command.jsonl) {
        write(headingOf(command, *request, number, i) + sample.text() + "\n");
        continue;
      }
      nlohmann::ordered_json object = objectOf(*request, number, i, sample);
      object["score"] = h.score;
      writeObject(object);
    }
  }
}

}  // namespace

void checkPrompt(const SampleCommand &command, const Tokenizer &tokenizer) { Prompts(command, tokenizer).next(); }

void samplePrompts(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command) {
  if (command.beams)
    searchPrompts(executor, tokenizer, command);
  else
    Samples(executor, tokenizer, command).run();
}

}  // namespace gptc
