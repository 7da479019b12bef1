// `gptrun sample`: continues one prompt or many.
#pragma once

#include "runtime/serve/generator.h"
#include "tools/commands/command_line.h"
#include "tools/serve/completion_request.h"

#include <optional>
#include <string>

namespace gptc {

class Communicator;
class Executor;

struct SampleCommand {
  CompletionRequest defaults;  // what the options of the command line say
  std::string prompt = "\n";
  std::string prompts;  // file with a prompt a line, "-" for standard input; "": `prompt` alone
  PromptLimits limits;
  GeneratorOptions generator;
  int64_t beams = 0;  // beam search with so many; 0: none
  double lengthPenalty = 1;
  bool jsonl = false;             // prompts and results are JSON lines
  bool time = false;              // say at the end how many tokens came in a second
  int64_t logProbs = -1;          // of the likeliest tokens; -1: not given
  int64_t slots = 0;              // 0: as many as suit
  Communicator *ranks = nullptr;  // all that continue the same texts, of which rank 0 speaks; null: there is only one
};

void addSampleOptions(Command sample, SampleCommand &command);

/// Opens `prompts`. Throws UserError(FileMissing).
int openPrompts(const SampleCommand &command);

/// Reads all of `prompts`, which is open as `fd`, and closes it. Throws UserErrors FileMissing and TooLarge.
std::string readPrompts(const SampleCommand &command, int fd);

/// Throws what samplePrompts throws for the prompt of the command line, or for options that cannot stand together.
/// Says nothing of the prompt.
void checkCommand(const SampleCommand &command, const Tokenizer &tokenizer);

/// Prints the samples of all prompts to standard output, in order. As text, a sample is printed as it grows, behind its
/// prompt and, if there are several, a line that numbers it. As JSON lines it is an object with its prompt's number
/// from 0 or its id, the sample's number, text, finish_reason, tokens and, if asked for, logprobs. Throws
/// UserError(Usage, FileMissing, DiskFull, Unwritable) and, after all samples of earlier prompts, DataInvalid for a
/// prompt that cannot be continued. Returns false if it ended early because the reader of standard output has gone.
///
/// `content`: of `prompts`, if it has been read, as one of several ranks does for all. Ranks do all of this together,
/// each with its part of the model. As they have the same prompts and draw the same numbers, and logits have the same
/// bits on all, they take the same tokens without a word. Throws UserError(RanksDiffer) if in the end they have not.
bool samplePrompts(Executor &executor, const Tokenizer &tokenizer, const SampleCommand &command,
                   std::optional<std::string> content);

}  // namespace gptc
