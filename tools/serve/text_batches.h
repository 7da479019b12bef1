// The texts of `gptrun embed`, `classify` and `fill-mask`: from the command line or a file, as tokens, in batches.
#pragma once

#include "frontends/tokenizer/typed_text.h"
#include "tools/commands/command_line.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct TextInput {
  std::optional<std::string> text;  // none: those of `texts`
  std::optional<std::string> pair;  // the second text, beside `text`
  std::string texts;                // a file with a text a line; "-": standard input
  bool jsonl = false;               // but its lines are objects with text, text_pair and id
  int64_t batch = 256;  // texts that go through the model together: enough to fill calls, few enough to wait for
};

/// Some options, for those that need them.
struct TextOptions {
  Option text, texts;
};
/// Adds --text, --texts and --batch. `made`: what a batch is for, "vectors".
TextOptions addTextOptions(Command command, TextInput &input, const std::string &made);
/// Adds --text-pair and --jsonl, for a command that takes pairs.
void addPairOptions(Command command, TextOptions options, TextInput &input);
/// Throws UserError(Usage) if it names no text.
void requireTexts(const TextInput &input);

/// Texts or pairs that go through a model together, each with its tokens, their types, and its id as JSON.
struct TextBatch {
  std::vector<std::vector<int32_t>> tokens, types;
  std::vector<std::string> ids;  // "": its line names none

  size_t size() const { return tokens.size(); }
};

class TextBatches {
public:
  /// Takes 1 to TextInput::batch texts.
  using Take = std::function<void(const TextBatch &)>;

  /// Says why a text is not taken; "": it is.
  using Judge = std::function<std::string(const TypedText &)>;

  /// `form.most` tokens has the longest text; longer ones are cut.
  TextBatches(const TextInput &input, const Tokenizer &tokenizer, TextForm form, Take take, Judge judge = {});

  /// Gives all texts in order. Those that are there are given before any other is waited for; those before a bad line
  /// are. Throws UserError: FileMissing, what typedText says of Usage and NotBuiltYet, DataInvalid for a line that is
  /// no such object, and for a text that has no tokens, cannot be encoded or is judged so.
  void run();

private:
  struct Given {
    std::string text;
    std::optional<std::string> pair;
    std::string id;
  };
  static Given objectIn(const std::string &line);
  /// `what` the line is, for messages.
  void add(const std::string &line, const std::string &what);
  void stream();
  void giveAll();

  const TextInput &input;
  const Tokenizer &tokenizer;
  const TextForm form;
  const Take take;
  const Judge judge;
  TextBatch batch;  // not given yet
  int64_t shortened = 0;
};

}  // namespace gptc
