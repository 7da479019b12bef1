#include "tools/serve/text_batches.h"

#include "support/diagnostics.h"
#include "support/stderr.h"
#include "tools/serve/lines.h"

#include <algorithm>
#include <cstdio>

namespace gptc {

void addTextOptions(Command command, TextInput &input, const std::string &made) {
  const Option text = command.option("--text", input.text, "the text");
  command.option("--texts", input.texts, "every line of a file; -: of standard input").type("FILE").excludes(text);
  command
      .option("--batch", input.batch,
              fmt::format("texts whose {} are made together, with the same results; default: {}", made, input.batch))
      .within(int64_t(1), int64_t(1) << 20);
}

void requireTexts(const TextInput &input) {
  if (!input.text && input.texts.empty())
    throw UserError(ErrorCode::Usage, "which texts?", "give --text TEXT, or --texts FILE with a text a line");
}

TextBatches::TextBatches(const TextInput &input, int64_t most, Encode encode, Take take)
    : input(input), most(most), encode(std::move(encode)), take(std::move(take)) {}

void TextBatches::run() {
  if (input.text)
    add(*input.text, "the text");
  else
    stream();
  giveAll();
  if (shortened)
    printError("note: {} text{} cut to {} tokens\n", shortened, shortened == 1 ? "" : "s", most);
}

void TextBatches::add(const std::string &text, const std::string &what) {
  std::vector<int32_t> tokens;
  try {
    tokens = encode(text, false);
    if (int64_t(tokens.size()) > most)
      cut(tokens, text);
  } catch (const UserError &e) {
    if (e.diagnostics[0].code == ErrorCode::Usage)
      throw;
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", what, e.diagnostics[0].message));
  }
  if (tokens.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no tokens", what), "leave it out");
  texts.push_back(std::move(tokens));
}

void TextBatches::cut(std::vector<int32_t> &tokens, const std::string &text) {
  const auto around = int64_t(encode("", false).size());
  if (around >= most)
    throw UserError(ErrorCode::Usage,
                    fmt::format("texts are cut to {} token{}, and the tokenizer puts {} around each", most,
                                most == 1 ? "" : "s", around),
                    "give a longer --context, or a model that takes longer texts");
  const auto behind = int64_t(tokens.size() - encode(text, true).size());
  tokens.erase(tokens.begin() + (most - behind), tokens.end() - behind);
  ++shortened;
}

void TextBatches::stream() {
  Lines lines(input.texts, "--texts FILE wants a file with a text a line");
  int64_t number = 0;
  auto next = [&] {
    try {
      const std::optional<std::string> line = lines.next();
      if (line)
        add(*line, fmt::format("{}, line {}", lines.name(), ++number));
      return line.has_value();
    } catch (...) {
      giveAll();
      throw;
    }
  };
  while (!std::ferror(stdout) && next())
    if (int64_t(texts.size()) == input.batch || !lines.ready())
      giveAll();
}

void TextBatches::giveAll() {
  if (!texts.empty())
    take(texts);
  texts.clear();
  std::fflush(stdout);
}

}  // namespace gptc
