#include "tools/serve/task_command.h"

#include "frontends/choice_measures.h"
#include "runtime/serve/tail_scorer.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "support/stderr.h"
#include "support/terminal_line.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>

namespace gptc {
namespace {

using Clock = std::chrono::steady_clock;

/// "0.2500 +- 0.0435": the mean of as many zeros and ones, and its standard error, which one alone has none.
std::string share(int64_t right, int64_t all) {
  const double mean = double(right) / double(all);
  // The sum of squared distances from the mean is all * mean * (1 - mean).
  return all < 2 ? fmt::format("{:.4f}", mean)
                 : fmt::format("{:.4f} +- {:.4f}", mean, std::sqrt(mean * (1 - mean) / double(all - 1)));
}

/// What is wrong with a choice, with its place.
UserError placed(const UserError &e, const std::string &place, size_t choice) {
  const Diagnostic &d = e.diagnostics[0];
  return {d.code, fmt::format("{}, choice {}: {}", place, choice, d.message), d.help.empty() ? "" : d.help[0]};
}

}  // namespace

Option addTaskOptions(Command eval, TaskCommand &command) {
  const Option task =
      eval.option(
              "--task", command.file,
              "multiple choice by log-likelihoods: JSON lines of one form, HellaSwag's (ctx, or ctx_a and ctx_b, "
              "endings, label), ARC's (question, choices, answerKey), query or context with choices and gold, or "
              "context_options with continuation and gold; encoded, cut and scored as by lm-evaluation-harness 0.4: "
              "acc takes the likeliest choice, acc_norm that per character, acc_bytes per byte, acc_token per token as "
              "CORE does, of equal ones the first; context_options have acc alone")
          .type("FILE.jsonl");
  eval.option("--shots", command.shots,
              "put so many solved questions before each: the first of the file, but for itself; default: 0")
      .within(int64_t(0), int64_t(1024))
      .needs(task);
  eval.option("--shots-from", command.shotsFrom, "the first of another file").type("FILE.jsonl").needs(task);
  eval.option("--delimiter", command.delimiter, "text between a context and a choice; default: a space").needs(task);
  eval.option("--limit", command.limit, "so many questions, the first; default: all")
      .within(int64_t(1), int64_t(1) << 40)
      .needs(task);
  eval.option("--results", command.results,
              "JSON lines: the log-likelihoods of each question's choices, and which measures found the right one")
      .type("FILE")
      .needs(task);
  eval.flag("--parse-special", command.parseSpecial, "control tokens in the texts become their tokens").needs(task);
  return task;
}

TaskEvaluation::TaskEvaluation(const TaskCommand &command) : command(command) {
  const bool hasOwnShots = command.shots > 0 && command.shotsFrom.empty();
  task = readChoiceTask(command.file,
                        command.limit && hasOwnShots ? std::max(command.limit, command.shots + 1) : command.limit);
  if (!command.shotsFrom.empty()) {
    if (command.shots == 0)
      throw UserError(ErrorCode::Usage, "--shots-from: how many solved questions?", "give --shots N");
    if (std::error_code e; std::filesystem::equivalent(command.file, command.shotsFrom, e))
      throw UserError(ErrorCode::Usage, "--shots-from: the same file as --task",
                      "leave it out: the first of the file but for each question itself are taken then");
    others = readChoiceTask(command.shotsFrom, command.shots);
  }
  const ChoiceTask &from = hasOwnShots ? task : others;
  const int64_t there = int64_t(from.items.size()) - (hasOwnShots ? 1 : 0);
  if (command.shots > there)
    throw UserError(ErrorCode::Usage,
                    fmt::format("--shots {}: {} has {} question{}{}", command.shots, from.file, there,
                                there == 1 ? "" : "s", hasOwnShots ? " beside each" : ""),
                    "take fewer, or name a longer file with --shots-from");
  if (!command.results.empty())
    results.emplace(command.results);
}

std::string TaskEvaluation::shotsFor(size_t item) const {
  const bool isOwn = command.shotsFrom.empty();
  const std::vector<ChoiceItem> &from = isOwn ? task.items : others.items;
  std::string text;
  int64_t count = 0;
  for (size_t i = 0; count < command.shots; ++i)
    if (!isOwn || i != item) {
      text += solved(from[i], command.delimiter);
      ++count;
    }
  return text;
}

void TaskEvaluation::encode(const Tokenizer &tokenizer, const PromptLimits &limits, bool parseSpecial) {
  int64_t controlTokens = 0, cut = 0;
  for (size_t i = 0; i < count(); ++i) {
    const ChoiceItem &item = task.items[i];
    const std::string shots = shotsFor(i);
    questions.emplace_back();
    for (size_t c = 0; c < item.choices.size(); ++c) {
      try {
        questions.back().push_back(encoded(tokenizer, limits, shots + item.contextOf(c),
                                           command.delimiter + item.choices[c], parseSpecial, controlTokens));
      } catch (const UserError &e) {
        throw placed(e, task.placeOf(item), c);
      }
    }
    cut += llvm::any_of(questions.back(), [](const Choice &c) { return c.cut > 0; });
  }
  if (controlTokens)
    noteControlTokens(controlTokens, parseSpecial);
  if (cut)
    printError("note: {} of {} questions are longer than the context of {} tokens: their beginnings are cut off\n", cut,
               count(), limits.context);
}

TaskEvaluation::Choice TaskEvaluation::encoded(const Tokenizer &tokenizer, const PromptLimits &limits,
                                               const std::string &context, const std::string &continuation,
                                               bool parseSpecial, int64_t &controlTokens) {
  ChoiceTokens t = encodeChoice(tokenizer, context, continuation, parseSpecial);
  controlTokens += t.controlTokens;
  for (const int32_t token : t.tokens)
    if (token >= limits.vocabulary)
      throw UserError(ErrorCode::DataInvalid,
                      fmt::format("token {} is beyond the vocabulary of {}", token, limits.vocabulary),
                      "use the tokenizer that the model was trained with");
  Choice choice;
  choice.own = int64_t(t.tokens.size()) - t.context;
  if (choice.own > limits.context)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("it has {} tokens, the model's context {}", choice.own, limits.context),
                    "shorten it, leave the question out, or take a model with a longer context");
  // The last token is predicted, and takes no place.
  choice.cut = std::max<int64_t>(0, int64_t(t.tokens.size()) - limits.context - 1);
  choice.tokens.assign(t.tokens.begin() + choice.cut, t.tokens.end());
  return choice;
}

void TaskEvaluation::run(Executor &executor, const std::string &from) {
  TailScorer scorer(executor);
  const llvm::ArrayRef<ChoiceMeasure> measures = measuresOf(task.form);
  std::vector<int64_t> right(measures.size(), 0);
  TerminalLine progress;
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < count(); ++i) {
    const ChoiceItem &item = task.items[i];
    nlohmann::ordered_json line = {{"line", item.line}};
    if (!item.id.empty())
      line["id"] = parseJson<nlohmann::ordered_json>(item.id);
    line["gold"] = item.gold;
    std::vector<double> sums;
    std::vector<int64_t> tokens;
    for (const Choice &choice : questions[i]) {
      try {
        const std::vector<float> scores = scorer.score(choice.tokens, choice.own);
        sums.push_back(std::accumulate(scores.begin(), scores.end(), 0.0));
      } catch (const UserError &e) {
        if (e.diagnostics[0].code != ErrorCode::NonFinite)
          throw;
        throw placed(e, task.placeOf(item), sums.size());
      }
      tokens.push_back(choice.own);
      line["loglikelihoods"].push_back(finiteOrNull<nlohmann::ordered_json>(sums.back()));
      line["tokens"].push_back(choice.own);
      line["cut"].push_back(choice.cut);
    }
    for (size_t m = 0; m < measures.size(); ++m) {
      const int isRight = answerBy(measures[m], item, sums, tokens) == item.gold ? 1 : 0;
      right[m] += isRight;
      line[inWords(measures[m])] = isRight;
    }
    if (results)
      results->append(line.dump() + "\n");
    progress.show(fmt::format("{} of {} questions", i + 1, count()));
  }
  progress.clear();
  if (results)
    results->commit();
  fmt::print("{}: {} questions, {}, {} shots  ({}, {:.1f} s)\n", command.file, count(), inWords(task.form),
             command.shots, from, std::chrono::duration<double>(Clock::now() - start).count());
  for (size_t m = 0; m < measures.size(); ++m)
    fmt::print("{:<9} {}\n", inWords(measures[m]), share(right[m], int64_t(count())));
}

}  // namespace gptc
