#include "tools/serve/text_batches.h"

#include "support/diagnostics.h"
#include "support/json.h"
#include "support/json_problem.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/serve/lines.h"

#include "llvm/ADT/STLExtras.h"

#include <cstdio>

namespace gptc {

using nlohmann::json;

TextOptions addTextOptions(Command command, TextInput &input, const std::string &made) {
  const Option text = command.option("--text", input.text, "the text");
  const Option texts =
      command.option("--texts", input.texts, "every line of a file; -: of standard input").type("FILE").excludes(text);
  command
      .option("--batch", input.batch,
              fmt::format("texts whose {} are made together, with the same results; default: {}", made, input.batch))
      .within(int64_t(1), int64_t(1) << 20);
  return {text, texts};
}

void addPairOptions(Command command, TextOptions options, TextInput &input) {
  command.option("--text-pair", input.pair, "the second of a pair of texts, behind --text; an empty one is none")
      .needs(options.text);
  command
      .flag("--jsonl", input.jsonl,
            "lines of --texts are objects with a text and any of text_pair, the second of a pair, and id, which stands "
            "in the result for its number")
      .needs(options.texts);
}

void requireTexts(const TextInput &input) {
  if (!input.text && input.texts.empty())
    throw UserError(ErrorCode::Usage, "which texts?", "give --text TEXT, or --texts FILE with a text a line");
}

TextBatches::TextBatches(const TextInput &input, const Tokenizer &tokenizer, TextForm form, Take take, Judge judge)
    : input(input), tokenizer(tokenizer), form(std::move(form)), take(std::move(take)), judge(std::move(judge)) {}

void TextBatches::run() {
  if (input.text)
    add(*input.text, "the text");
  else
    stream();
  giveAll();
  if (shortened)
    printError("note: {} text{} cut to {} tokens\n", shortened, shortened == 1 ? "" : "s", form.most);
}

TextBatches::Given TextBatches::objectIn(const std::string &line) {
  const auto refuse = [](const std::string &why) { throw UserError(ErrorCode::DataInvalid, why); };
  const json object = parseJsonOrDiscard<json>(line);
  if (object.is_discarded()) {
    const std::string half = halfCharacterIn(line);
    refuse(half.empty() ? "this is no JSON" : half);
  }
  if (!object.is_object())
    refuse("this is no object");
  const std::vector<std::string> known = {"text", "text_pair", "id"};
  for (const auto &[name, value] : object.items())
    if (!llvm::is_contained(known, name)) {
      const std::string near = nearestWord(name, known);
      refuse(fmt::format("{}: unknown{}", json(name).dump(), near.empty() ? "" : fmt::format("; is it {}?", near)));
    }
  const json &text = part(object, "text"), &pair = part(object, "text_pair"), &id = part(object, "id");
  if (!text.is_string())
    refuse(text.is_null() ? "text: is missing" : "text: must be a text");
  if (!pair.is_null() && !pair.is_string())
    refuse("text_pair: must be a text");
  Given given = {.text = text.get<std::string>(), .pair = std::nullopt, .id = id.is_null() ? "" : id.dump()};
  if (pair.is_string())
    given.pair = pair.get<std::string>();
  return given;
}

void TextBatches::add(const std::string &line, const std::string &what) {
  Given given{line, input.pair, ""};
  TypedText text;
  try {
    if (input.jsonl)
      given = objectIn(line);
    text = typedText(tokenizer, given.text, given.pair, form);
  } catch (const UserError &e) {
    const ErrorCode code = e.diagnostics[0].code;
    if (code == ErrorCode::Usage || code == ErrorCode::NotBuiltYet)
      throw;
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", what, e.diagnostics[0].message));
  }
  if (text.tokens.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no tokens", what), "leave it out");
  if (const std::string why = judge ? judge(text) : ""; !why.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", what, why), "correct it, or leave it out");
  shortened += text.isCut;
  batch.tokens.push_back(std::move(text.tokens));
  batch.types.push_back(std::move(text.types));
  batch.ids.push_back(std::move(given.id));
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
    if (int64_t(batch.size()) == input.batch || !lines.ready())
      giveAll();
}

void TextBatches::giveAll() {
  if (batch.size())
    take(batch);
  batch = {};
  std::fflush(stdout);
}

}  // namespace gptc
