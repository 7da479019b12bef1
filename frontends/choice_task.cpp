#include "frontends/choice_task.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/json_problem.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <utf8proc.h>

namespace gptc {

using nlohmann::json;

namespace {

constexpr size_t kTaskLimit = size_t(1) << 30;

constexpr const char *kForms = "a line is an object of one form: ctx, endings, label (HellaSwag); question, choices, "
                               "answerKey (ARC); query or context, choices, gold; context_options, continuation, gold";

/// White space to Python, which counts the separators of ASCII.
bool isBlank(uint32_t c) { return charClass(c) == CharClass::space || (c >= 0x1c && c <= 0x1f); }

/// Where the text ends without the white space at its end.
size_t lengthWithoutBlanks(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = firstCodePoint(text.substr(at));
    at += c.length;
    if (!isBlank(c.value))
      end = at;
  }
  return end;
}

std::string_view trimmed(std::string_view text) {
  text = text.substr(0, lengthWithoutBlanks(text));
  while (!text.empty()) {
    const CodePoint c = firstCodePoint(text);
    if (!isBlank(c.value))
      break;
    text.remove_prefix(c.length);
  }
  return text;
}

/// Replaces each `from`, from left to right.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t next = text.find(from, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos)
      return out;
    out += to;
    at = next + from.size();
  }
}

/// Without what stands in brackets on one line.
std::string withoutBrackets(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : std::string_view::npos;
    if (end != std::string_view::npos && text[end] == ']')
      at = end + 1;
    else
      out += text[at++];
  }
  return out;
}

/// The first character large and all others small.
std::string capitalized(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = firstCodePoint(text.substr(at));
    const auto value = utf8proc_int32_t(c.value);
    appendUtf8(out, uint32_t(at == 0 ? utf8proc_totitle(value) : utf8proc_tolower(value)));
    at += c.length;
  }
  return out;
}

/// What is wrong with a line, and how to mend it.
struct Fault {
  std::string why, help;
};

[[noreturn]] void refuse(std::string why, std::string help = kForms) { throw Fault{std::move(why), std::move(help)}; }

std::string textIn(const json &object, const char *name) {
  const json &value = part(object, name);
  if (value.is_null())
    refuse(fmt::format("no \"{}\"", name));
  if (!value.is_string())
    refuse(fmt::format("its \"{}\" is no text", name));
  return value.get<std::string>();
}

std::vector<std::string> textsIn(const json &object, const char *name) {
  const json &value = part(object, name);
  if (value.is_null())
    refuse(fmt::format("no \"{}\"", name));
  if (!value.is_array())
    refuse(fmt::format("its \"{}\" is no list of texts", name));
  std::vector<std::string> texts;
  for (const json &one : value) {
    if (!one.is_string())
      refuse(fmt::format("its \"{}\" is no list of texts", name));
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

void requireSome(size_t choices) {
  if (choices < 2)
    refuse(fmt::format("{} to choose from; at least 2 are needed", choices),
           "give the question more, or leave its line out");
}

/// The number of the right one of `count`: an integer, or as HellaSwag has it its digits.
size_t numberIn(const json &object, const char *name, size_t count, bool asText) {
  requireSome(count);
  const json &value = part(object, name);
  const std::string help = fmt::format("\"{}\" is the number of the right choice, 0 to {}", name, count - 1);
  if (value.is_null() || (asText && value == ""))
    refuse(fmt::format("no \"{}\"", name), help);
  int64_t number = -1;
  const bool read = asText && value.is_string() ? llvm::to_integer(value.get_ref<const std::string &>(), number, 10)
                                                : value.is_number_integer();
  if (!read)
    refuse(fmt::format("its \"{}\" is no number", name), help);
  if (value.is_number_unsigned())
    number = value.get<uint64_t>() < count ? value.get<int64_t>() : -1;
  if (number < 0 || size_t(number) >= count)
    refuse(fmt::format("its \"{}\" is {}: there are {} choices, from 0 on", name, shown(value), count), help);
  return size_t(number);
}

ChoiceItem hellaswagIn(const json &object) {
  ChoiceItem item;
  const bool isInParts = !part(object, "ctx_a").is_null() && !part(object, "ctx_b").is_null();
  std::string text =
      isInParts ? textIn(object, "ctx_a") + " " + capitalized(textIn(object, "ctx_b")) : textIn(object, "ctx");
  if (!part(object, "activity_label").is_null())
    text = textIn(object, "activity_label") + ": " + text;
  item.contexts = {hellaswagText(text)};
  for (const std::string &ending : textsIn(object, "endings"))
    item.choices.push_back(hellaswagText(ending));
  item.gold = numberIn(object, "label", item.choices.size(), true);
  return item;
}

/// Hugging Face's table has lists of texts and labels; the original files have a list of both, in the question.
ChoiceItem arcIn(const json &object) {
  ChoiceItem item;
  const json &question = part(object, "question");
  const bool isOriginal = question.is_object();
  item.contexts = {"Question: " + (isOriginal ? textIn(question, "stem") : textIn(object, "question")) + "\nAnswer:"};
  const json &choices = part(isOriginal ? question : object, "choices");
  if (choices.is_null())
    refuse("no \"choices\"");
  std::vector<std::string> labels;
  if (choices.is_array())
    for (const json &one : choices) {
      item.choices.push_back(textIn(one, "text"));
      labels.push_back(textIn(one, "label"));
    }
  else {
    item.choices = textsIn(choices, "text");
    labels = textsIn(choices, "label");
  }
  requireSome(item.choices.size());
  if (labels.size() != item.choices.size())
    refuse(fmt::format("{} labels for {} choices", labels.size(), item.choices.size()), "give each choice a label");
  const std::string key = textIn(object, "answerKey");
  item.gold = size_t(std::find(labels.begin(), labels.end(), key) - labels.begin());
  if (item.gold == labels.size())
    refuse(fmt::format("its \"answerKey\" is {}: the labels are {}", shown(part(object, "answerKey")),
                       llvm::join(labels, ", ")),
           "\"answerKey\" is the label of the right choice");
  return item;
}

ChoiceItem choicesIn(const json &object) {
  ChoiceItem item;
  item.contexts = {textIn(object, part(object, "query").is_null() ? "context" : "query")};
  item.choices = textsIn(object, "choices");
  item.gold = numberIn(object, "gold", item.choices.size(), false);
  return item;
}

ChoiceItem contextsIn(const json &object) {
  ChoiceItem item;
  item.contexts = textsIn(object, "context_options");
  item.choices.assign(item.contexts.size(), textIn(object, "continuation"));
  item.gold = numberIn(object, "gold", item.contexts.size(), false);
  return item;
}

ChoiceForm formOf(const json &object) {
  if (object.contains("endings"))
    return ChoiceForm::hellaswag;
  if (object.contains("answerKey"))
    return ChoiceForm::arc;
  if (object.contains("context_options"))
    return ChoiceForm::contexts;
  if (object.contains("choices") && (object.contains("query") || object.contains("context")))
    return ChoiceForm::choices;
  refuse("this is no question of a known form");
}

ChoiceItem itemIn(const json &object, ChoiceForm form) {
  switch (form) {
  case ChoiceForm::hellaswag:
    return hellaswagIn(object);
  case ChoiceForm::arc:
    return arcIn(object);
  case ChoiceForm::choices:
    return choicesIn(object);
  case ChoiceForm::contexts:
    return contextsIn(object);
  }
  GPTC_UNREACHABLE("form {}", int(form));
}

/// Adds the question of a line that is not empty.
void addItem(ChoiceTask &task, std::string_view line, int64_t number) {
  if (findInvalidUtf8(line) != std::string_view::npos)
    refuse("this is no UTF-8 text", "save the file as UTF-8");
  const json object = parseJsonOrDiscard<json>(line);
  if (object.is_discarded()) {
    const std::string half = halfCharacterIn(line);
    refuse(half.empty() ? "this is no JSON" : half);
  }
  if (!object.is_object())
    refuse("this is no object");
  const ChoiceForm form = formOf(object);
  if (task.items.empty())
    task.form = form;
  else if (form != task.form)
    refuse(fmt::format("this has {}, line {} has {}", inWords(form), task.items[0].line, inWords(task.form)),
           "keep questions of each form in a file of their own");
  ChoiceItem item = itemIn(object, form);
  for (size_t i = 0; i < item.choices.size(); ++i)
    if (item.choices[i].empty())
      refuse(fmt::format("choice {} is empty", i), "give it a text, or leave the question out");
  item.line = number;
  const json &id = part(object, part(object, "id").is_null() ? "ind" : "id");
  item.id = id.is_null() ? "" : id.dump();
  task.items.push_back(std::move(item));
}

}  // namespace

const char *inWords(ChoiceForm form) {
  switch (form) {
  case ChoiceForm::hellaswag:
    return "HellaSwag's form";
  case ChoiceForm::arc:
    return "ARC's form";
  case ChoiceForm::choices:
    return "the form of choices";
  case ChoiceForm::contexts:
    return "the form of contexts";
  }
  GPTC_UNREACHABLE("form {}", int(form));
}

std::string ChoiceTask::placeOf(const ChoiceItem &item) const { return fmt::format("{}:{}", file, item.line); }

ChoiceTask readChoiceTask(const std::string &file, int64_t most) {
  const std::string content = readInput(file, "task", kTaskLimit);
  ChoiceTask task;
  task.file = file;
  std::string_view rest = content;
  if (rest.starts_with("\xef\xbb\xbf"))
    rest.remove_prefix(3);
  for (int64_t number = 1; !rest.empty() && (most == 0 || int64_t(task.items.size()) < most); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (llvm::StringRef(line).trim().empty())
      continue;
    try {
      addItem(task, line, number);
    } catch (const Fault &f) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}:{}: {}", file, number, f.why), f.help);
    }
  }
  if (task.items.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no questions", file), kForms);
  return task;
}

std::string hellaswagText(std::string_view text) {
  const std::string marked = replaced(trimmed(text), " [title]", ". ");
  return replaced(withoutBrackets(marked), "  ", " ");
}

std::string solved(const ChoiceItem &item, const std::string &delimiter) {
  const std::string &context = item.contextOf(item.gold);
  return context + (context.empty() ? "" : delimiter) + item.choices[item.gold] + "\n\n";
}

ChoiceTokens encodeChoice(const Tokenizer &tokenizer, std::string_view context, std::string_view continuation,
                          bool parseSpecial) {
  const size_t end = lengthWithoutBlanks(context);
  const std::string before(context.substr(0, end)),
      after = std::string(context.substr(end)) + std::string(continuation);
  const EncodeOptions options = {.parseSpecial = parseSpecial, .addSpecial = true, .continued = true};
  auto encoded = [&](const std::string &text, int64_t &found) {
    std::vector<int32_t> tokens;
    found = tokenizer.encode(text, tokens, options);
    if (tokens.size() > 1 && tokens[0] == tokens[1] && tokenizer.isControl(tokens[0]))
      tokens.erase(tokens.begin());  // the text has it too
    return tokens;
  };
  ChoiceTokens out;
  int64_t ofContext = 0;
  out.tokens = encoded(before, ofContext);
  const std::vector<int32_t> whole = encoded(before + after, out.controlTokens);
  if (whole.size() <= out.tokens.size())
    throw UserError(ErrorCode::DataInvalid, "the choice adds no tokens to its context",
                    "change its text, or leave the question out");
  const size_t first = out.tokens.size();
  if (out.tokens.empty()) {
    if (tokenizer.endOfText() < 0)
      throw UserError(ErrorCode::DataInvalid,
                      "the context is empty, and the tokenizer has no token to stand before a text",
                      "give the question a context");
    out.tokens.push_back(tokenizer.endOfText());
  }
  out.context = int64_t(out.tokens.size());
  out.tokens.insert(out.tokens.end(), whole.begin() + ptrdiff_t(first), whole.end());
  return out;
}

}  // namespace gptc
