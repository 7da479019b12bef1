// The text of a decision: fields separated by '|', five for the decision and five for each alternative: choice, memory,
// traffic, ms, and the note or the reason.
#include "passes/decisions.h"

#include "ir/facts.h"

#include "llvm/ADT/StringExtras.h"

#include <fmt/format.h>

namespace gptc {

namespace {

std::string field(std::string text) {
  for (char &c : text)
    if (c == '|' || c == '\n')
      c = ' ';
  return text;
}

std::string textOf(const std::string &choice, const Effect &e, const std::string &note) {
  // fmt writes the shortest text that parses back to the same number.
  return fmt::format("{}|{}|{}|{}|{}", field(choice), e.memory, e.traffic, e.ms, field(note));
}

/// Parses five fields from `at` on. Returns false if a number does not parse.
bool parse(llvm::ArrayRef<llvm::StringRef> fields, size_t at, std::string &choice, Effect &e, std::string &note) {
  choice = fields[at].str();
  note = fields[at + 4].str();
  return !fields[at + 1].getAsDouble(e.memory) && !fields[at + 2].getAsDouble(e.traffic) &&
         !fields[at + 3].getAsDouble(e.ms);
}

/// The name of a decision's attribute.
std::string attributeOf(llvm::StringRef pass, llvm::StringRef name) {
  return fmt::format("{}{}.{}", std::string_view(decisionPrefix), std::string_view(pass), std::string_view(name));
}

}  // namespace

void record(Module &m, const Decision &d) {
  std::string text = textOf(d.choice, d.effect, d.note);
  for (const Alternative &a : d.rejected)
    text += "|" + textOf(a.choice, a.effect, a.why);
  m.attrs.set(attributeOf(d.pass, d.name), text);
}

bool isDecided(const Module &m, llvm::StringRef pass, llvm::StringRef name) {
  return m.attrs.has(attributeOf(pass, name));
}

std::unique_ptr<Module> withoutDecisions(const Module &m) {
  std::unique_ptr<Module> plain = m.clone();
  for (const auto &[key, value] : m.attrs)
    if (llvm::StringRef(key).starts_with(decisionPrefix))
      plain->attrs.erase(key);
  return plain;
}

std::vector<Decision> decisionsOf(const Module &m) {
  std::vector<Decision> all;
  for (const auto &[key, value] : m.attrs) {
    llvm::StringRef name = key;
    const std::string *text = std::get_if<std::string>(&value);
    if (!name.consume_front(decisionPrefix) || !text)
      continue;
    llvm::SmallVector<llvm::StringRef, 16> fields;
    llvm::StringRef(*text).split(fields, '|');
    Decision d;
    std::tie(d.pass, d.name) = std::pair(name.split('.').first.str(), name.split('.').second.str());
    bool good = fields.size() % 5 == 0 && parse(fields, 0, d.choice, d.effect, d.note);
    for (size_t i = 5; good && i < fields.size(); i += 5) {
      Alternative &a = d.rejected.emplace_back();
      good = parse(fields, i, a.choice, a.effect, a.why);
    }
    if (good)
      all.push_back(std::move(d));
  }
  return all;
}

}  // namespace gptc
