// The texts of `gptrun embed` and `gptrun classify`: from the command line or a file, as tokens, in batches.
#pragma once

#include "tools/commands/command_line.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct TextInput {
  std::optional<std::string> text;  // none: those of `texts`
  std::string texts;                // a file with a text a line; "-": standard input
  int64_t batch = 256;  // texts that go through the model together: enough to fill calls, few enough to wait for
};

/// Adds --text, --texts and --batch. `made`: what a batch is for, "vectors".
void addTextOptions(Command command, TextInput &input, const std::string &made);
/// Throws UserError(Usage) if it names no text.
void requireTexts(const TextInput &input);

class TextBatches {
public:
  /// The tokens of a text, with those that the tokenizer puts around it; `continued`: with nothing behind.
  using Encode = std::function<std::vector<int32_t>(const std::string &text, bool continued)>;
  /// Takes up to TextInput::batch texts.
  using Take = std::function<void(llvm::ArrayRef<std::vector<int32_t>>)>;

  /// `most`: tokens of a text. Longer ones are cut as if their ends were not there.
  TextBatches(const TextInput &input, int64_t most, Encode encode, Take take);

  /// Gives all texts in order. Those that are there are given before any other is waited for; those before a bad line
  /// are. Throws UserError: FileMissing, Usage if `most` holds no token of a text that must be cut, DataInvalid for a
  /// text that has no tokens or cannot be encoded.
  void run();

private:
  void add(const std::string &text, const std::string &what);
  void cut(std::vector<int32_t> &tokens, const std::string &text);
  void stream();
  void giveAll();

  const TextInput &input;
  const int64_t most;
  const Encode encode;
  const Take take;
  std::vector<std::vector<int32_t>> texts;  // that are not given yet
  int64_t shortened = 0;
};

}  // namespace gptc
