// `gptrun eval --task`: multiple choice by log-likelihoods.
#pragma once

#include "frontends/choice_task.h"
#include "support/atomic_file.h"
#include "tools/commands/command_line.h"
#include "tools/serve/completion_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class Executor;

struct TaskCommand {
  std::string file;             // "": no task
  int64_t shots = 0;            // solved questions before each
  std::string shotsFrom;        // file that has them; "": the task's own
  std::string delimiter = " ";  // between a context and a choice
  int64_t limit = 0;            // questions; 0: all
  std::string results;          // file of what each question got; "": none
  bool parseSpecial = false;    // control tokens in texts become their tokens
};

/// Adds --task and the options that need it, and returns --task.
Option addTaskOptions(Command eval, TaskCommand &command);

/// A task on its way: read, encoded, scored. What is wrong with it is found before a model's weights are loaded.
class TaskEvaluation {
public:
  /// Reads the questions, and begins the file of results. Throws readChoiceTask's and AtomicFile's errors, and
  /// UserError(Usage) if there are fewer solved questions than wanted.
  explicit TaskEvaluation(const TaskCommand &command);
  TaskEvaluation(const TaskEvaluation &) = delete;

  /// Encodes all questions. Beginnings that the context does not hold are cut off, which a note says. Throws
  /// UserError(DataInvalid) with file and line for a choice that has no tokens, more than the context holds, or one
  /// that the vocabulary lacks.
  void encode(const Tokenizer &tokenizer, const PromptLimits &limits, bool parseSpecial);

  /// Prints accuracies with their standard errors, by each measure of the task's form (frontends/choice_measures.h).
  /// Writes the results, a JSON line for each question: its line, id, gold, log-likelihoods, tokens of the choices,
  /// tokens that were cut off, and whether each measure found it right. `from`: the weights, in words. Throws
  /// UserError(NonFinite) with file and line if a logit is not finite; the results are not written then.
  void run(Executor &executor, const std::string &from);

private:
  struct Choice {
    std::vector<int32_t> tokens;  // of context and choice
    int64_t own = 0;              // the choice's
    int64_t cut = 0;              // of the context, before these
  };
  /// How many questions are asked; those behind are there as solved ones only.
  size_t count() const {
    return command.limit ? std::min(task.items.size(), size_t(command.limit)) : task.items.size();
  }
  std::string shotsFor(size_t item) const;
  static Choice encoded(const Tokenizer &tokenizer, const PromptLimits &limits, const std::string &context,
                        const std::string &continuation, bool parseSpecial, int64_t &controlTokens);

  const TaskCommand &command;
  ChoiceTask task;
  ChoiceTask others;  // solved questions of another file
  std::optional<AtomicFile> results;
  std::vector<std::vector<Choice>> questions;  // as task.items
};

}  // namespace gptc
