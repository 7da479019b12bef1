#include "frontends/labelled_texts.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/json_problem.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <unistd.h>

namespace gptc {

using nlohmann::json;

namespace {

constexpr size_t kMostOfRecord = size_t(16) << 20;  // bytes; more is a quote that nothing closes
constexpr const char *kByteOrderMark = "\xef\xbb\xbf";

std::string quoted(const std::string &name) { return fmt::format("\"{}\"", name); }

}  // namespace

LabelledReader::LabelledReader(const std::string &file, LabelledKeys keys, ProblemType problem)
    : file(file), keys(std::move(keys)), problem(problem), kind(kindOf(file)), options(optionsOf(file)),
      reader(options) {}

LabelledReader::Kind LabelledReader::kindOf(const std::string &file) {
  llvm::StringRef name = file;
  if (!name.consume_back(".gz"))
    name.consume_back(".zst");
  if (name == "-" || name.ends_with(".jsonl") || name.ends_with(".ndjson"))
    return Kind::json;
  if (name.ends_with(".csv"))
    return Kind::csv;
  if (name.ends_with(".tsv"))
    return Kind::tsv;
  throw UserError(ErrorCode::Usage, fmt::format("{}: which form have its texts and labels?", file),
                  "call JSON lines *.jsonl, tables *.csv or *.tsv");
}

/// Blocks of whole lines.
CorpusOptions LabelledReader::optionsOf(const std::string &file) {
  CorpusOptions o;
  o.files = {file};
  o.standardInput = STDIN_FILENO;
  o.keyGiven = true;
  return o;
}

std::string LabelledReader::placeOf(int64_t line) const { return fmt::format("{}:{}", nameOfInput(file), line); }

void LabelledReader::refuse(int64_t line, const std::string &why, const std::string &help) const {
  throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", placeOf(line), why), help);
}

bool LabelledReader::nextLine(std::string &line) {
  while (at == block.text.size()) {
    if (!reader.next(block))
      return false;
    at = 0;
  }
  const size_t end = std::min(block.text.find('\n', at), block.text.size());
  line.assign(block.text, at, end - at);
  at = std::min(end + 1, block.text.size());
  ++number;
  if (number == 1 && llvm::StringRef(line).starts_with(kByteOrderMark))
    line.erase(0, 3);
  if (!line.empty() && line.back() == '\r')
    line.pop_back();
  if (findInvalidUtf8(line) != std::string::npos)
    refuse(number, "this is no UTF-8 text", "convert it, for example `iconv -f latin1 -t utf8`");
  return true;
}

bool LabelledReader::next(LabelledText &out) {
  if (kind != Kind::json)
    return takeRow(out);
  std::string line;
  do
    if (!nextLine(line))
      return false;
  while (llvm::StringRef(line).trim().empty());
  began = number;
  take(line, out);
  check(out);
  return true;
}

void LabelledReader::take(const std::string &line, LabelledText &out) const {
  const std::string help = fmt::format(
      "each line is an object with {} and {}, and of pairs {}; --key, --label-key and --pair-key name others",
      quoted(keys.text), quoted(keys.label), quoted(keys.pair));
  const json object = parseJsonOrDiscard<json>(line);
  if (object.is_discarded()) {
    const std::string half = halfCharacterIn(line);
    refuse(number, half.empty() ? "this is no JSON" : half, help);
  }
  if (!object.is_object())
    refuse(number, "this is no object", help);
  const json &text = part(object, keys.text.c_str()), &pair = part(object, keys.pair.c_str()),
             &label = part(object, keys.label.c_str());
  for (const auto &[key, value] : {std::pair(&keys.text, &text), std::pair(&keys.label, &label)})
    if (value->is_null())
      refuse(number, fmt::format("no {}", quoted(*key)), help);
  if (!text.is_string())
    refuse(number, fmt::format("its {} is no text", quoted(keys.text)), help);
  if (!pair.is_null() && !pair.is_string())
    refuse(number, fmt::format("its {} is no text", quoted(keys.pair)), help);
  out.labels.clear();
  if (problem == ProblemType::multi_label_classification && label.is_array())
    for (const json &one : label)
      out.labels.push_back(labelIn(one));
  else
    out.labels.push_back(labelIn(label));
  out.text = text.get<std::string>();
  out.pair.reset();
  if (pair.is_string() && !pair.get_ref<const std::string &>().empty())
    out.pair = pair.get<std::string>();
  out.line = number;
}

std::string LabelledReader::labelIn(const json &value) const {
  if (value.is_string())
    return value.get<std::string>();
  if (problem == ProblemType::regression) {
    if (!value.is_number())
      refuse(number, fmt::format("its label is {}, and no number", value.dump()), "a regression learns one");
  } else if (!value.is_number_unsigned()) {
    refuse(number, fmt::format("its label is {}, neither a name nor the number of one", value.dump()),
           value.is_array() ? "--problem-type multi_label_classification takes several labels of a text"
                            : "give the name, or a number from 0 on");
  }
  return value.dump();
}

void LabelledReader::check(const LabelledText &out) const {
  if (out.text.empty())
    refuse(began, "the text is empty", "leave it out, or write what it says");
  if (llvm::is_contained(out.labels, ""))
    refuse(began, "the label is empty", "leave the text out, or name its label");
}

/// RFC 4180, section 2: fields may stand in quotes, where a quote is doubled.
std::vector<std::string> LabelledReader::fieldsOf(const std::string &record) const {
  std::vector<std::string> fields(1);
  if (kind == Kind::tsv) {
    llvm::StringRef rest = record;
    for (size_t tab; (tab = rest.find('\t')) != llvm::StringRef::npos; rest = rest.drop_front(tab + 1)) {
      fields.back() = rest.take_front(tab).str();
      fields.emplace_back();
    }
    fields.back() = rest.str();
    return fields;
  }
  bool quoted = false;
  for (size_t i = 0; i < record.size(); ++i) {
    const char c = record[i];
    std::string &field = fields.back();
    const bool begins = i == 0 || (!quoted && record[i - 1] == ',');
    if (quoted && c == '"' && i + 1 < record.size() && record[i + 1] == '"') {
      field += '"';
      ++i;
    } else if (c == '"' && (quoted || begins)) {
      quoted = !quoted;
      if (!quoted && i + 1 < record.size() && record[i + 1] != ',')
        refuse(began, "something stands behind the quote that ends a field", "double a quote within quotes: \"\"");
    } else if (c == '"') {
      refuse(began, "a quote within a field that has no quotes around it",
             "put the field in quotes, and double it: \"\"");
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      field += c;
    }
  }
  return fields;
}

bool LabelledReader::nextRow(std::vector<std::string> &fields) {
  std::string record, line;
  do
    if (!nextLine(record))
      return false;
  while (record.empty());
  began = number;
  // A record goes on while a quote is open.
  for (auto quotes = std::count(record.begin(), record.end(), '"'); kind == Kind::csv && quotes % 2;
       quotes += std::count(line.begin(), line.end(), '"')) {
    if (record.size() > kMostOfRecord || !nextLine(line))
      refuse(began, "nothing closes a quote", "double a quote within quotes: \"\"");
    record += "\n" + line;
  }
  fields = fieldsOf(record);
  return true;
}

void LabelledReader::readHeader() {
  hasHeader = true;
  if (!nextRow(columns))
    refuse(1, "no line names the columns", "the first line is text,label");
  const auto columnOf = [&](const std::string &name) { return size_t(llvm::find(columns, name) - columns.begin()); };
  textColumn = columnOf(keys.text), pairColumn = columnOf(keys.pair), labelColumn = columnOf(keys.label);
  for (const auto &[name, column] : {std::pair(&keys.text, textColumn), std::pair(&keys.label, labelColumn)})
    if (column == columns.size())
      refuse(
          began, fmt::format("no column is called {}, but {}", quoted(*name), quotedList(columns)),
          "the first line names the columns; --key, --label-key and --pair-key say which are the text and its label");
  for (const std::string *name : {&keys.text, &keys.pair, &keys.label})
    if (llvm::count(columns, *name) > 1)
      refuse(began, fmt::format("two columns are called {}", quoted(*name)),
             "give one of them another name, or name others: --key, --label-key, --pair-key");
}

bool LabelledReader::takeRow(LabelledText &out) {
  if (!hasHeader)
    readHeader();
  std::vector<std::string> fields;
  if (!nextRow(fields))
    return false;
  if (fields.size() != columns.size())
    refuse(began,
           fmt::format("{} field{}, and the first line names {} columns", fields.size(), fields.size() == 1 ? "" : "s",
                       columns.size()),
           kind == Kind::csv ? "put fields with commas or line ends in quotes"
                             : "a tab stands between fields, and nowhere else");
  out.text = std::move(fields[textColumn]);
  out.labels.clear();
  if (problem != ProblemType::multi_label_classification)
    out.labels.push_back(std::move(fields[labelColumn]));
  else if (!fields[labelColumn].empty())
    for (const llvm::StringRef one : llvm::split(fields[labelColumn], ','))
      out.labels.push_back(one.trim().str());
  out.pair.reset();
  if (pairColumn < columns.size() && !fields[pairColumn].empty())
    out.pair = std::move(fields[pairColumn]);
  out.line = began;
  check(out);
  return true;
}

}  // namespace gptc
