#include "frontends/config_reader.h"

#include "frontends/other_names.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cmath>

namespace gptc {

const TomlValue *ConfigReader::get(const char *key) {
  known.push_back(key);
  auto it = values.find(key);
  return it == values.end() ? nullptr : &it->second;
}

SourceLoc ConfigReader::where(const std::string &key) const {
  auto it = values.find(key);
  return it != values.end() ? it->second.where : whole;
}

void ConfigReader::complain(const char *key, ErrorCode code, std::string message, std::string label,
                            std::vector<std::string> help) {
  bad.insert(key);
  diagnostics.push_back({code, std::move(message), where(key), std::move(label), std::move(help)});
}

void ConfigReader::notBuilt(const char *key, const std::string &written, const std::vector<std::string> &built) {
  if (laterToo)
    return;
  complain(key, ErrorCode::NotBuiltYet, fmt::format("{} = {} is not built yet", key, written), "",
           {built.size() == 1 ? fmt::format("leave the key out or write {}", built[0])
                              : fmt::format("{} work today", fmt::join(built, ", "))});
}

void ConfigReader::missing(const char *key, std::string help) {
  bad.insert(key);
  diagnostics.push_back({ErrorCode::MissingKey, fmt::format("{} is missing", key), whole, "", {std::move(help)}});
}

void ConfigReader::wrongType(const char *key, const TomlValue &v, const char *wanted, std::vector<std::string> help) {
  complain(key, ErrorCode::WrongType, fmt::format("{} must be {}", key, wanted), fmt::format("this is {}", v.kind()),
           std::move(help));
}

void ConfigReader::integer(const char *key, int64_t &out, int64_t least, int64_t most) {
  integerOr(key, out, least, most, {});
}

void ConfigReader::integerOr(const char *key, int64_t &out, int64_t least, int64_t most,
                             std::vector<std::string> words) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  if (auto *s = std::get_if<std::string>(&v->value); s && llvm::is_contained(words, *s))
    return;
  auto *i = std::get_if<int64_t>(&v->value);
  if (!i) {
    std::string wanted = words.empty() ? "an integer" : fmt::format("an integer or {}", quotedList(words, "or"));
    std::vector<std::string> help;
    if (auto *d = std::get_if<double>(&v->value); d && std::abs(*d) < 1e15 && std::floor(*d) == *d)
      help.push_back(fmt::format("write {}", int64_t(*d)));
    return wrongType(key, *v, wanted.c_str(), help);
  }
  if (*i < least || *i > most)
    return complain(key, ErrorCode::OutOfRange, fmt::format("{} = {} is out of range", key, *i),
                    fmt::format("must be {} to {}", least, most));
  out = *i;
}

void ConfigReader::tokens(const char *key, int64_t &out, int64_t least, int64_t most) {
  const TomlValue *v = get(key);
  const auto *text = v ? std::get_if<std::string>(&v->value) : nullptr;
  if (!text)
    return integer(key, out, least, most);
  const std::optional<int64_t> n = parseWholeTokens(*text, least, most);
  if (!n)
    return complain(key, ErrorCode::WrongType, fmt::format("{} = \"{}\" is no number of tokens", key, *text),
                    fmt::format("must be whole, {} to {}", least, most),
                    {"such as \"512K\": K, M, B or T behind a number"});
  out = *n;
}

void ConfigReader::number(const char *key, double &out, double least, double most, bool openLeast, bool openMost) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  double x;
  if (auto *d = std::get_if<double>(&v->value))
    x = *d;
  else if (auto *i = std::get_if<int64_t>(&v->value))
    x = double(*i);
  else
    return wrongType(key, *v, "a number");
  bool inside = (openLeast ? x > least : x >= least) && (openMost ? x < most : x <= most);
  if (!inside)  // also true for NaN
    return complain(key, ErrorCode::OutOfRange, fmt::format("{} = {} is out of range", key, x),
                    fmt::format("must be {} {} and {} {}", openLeast ? "above" : "at least", least,
                                openMost ? "below" : "at most", most));
  out = x;
}

void ConfigReader::boolean(const char *key, bool &out) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *b = std::get_if<bool>(&v->value);
  if (!b)
    return wrongType(key, *v, "true or false");
  out = *b;
}

void ConfigReader::booleanOrAuto(const char *key, std::string &out) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  if (auto *b = std::get_if<bool>(&v->value))
    out = *b ? "true" : "false";
  else if (auto *word = std::get_if<std::string>(&v->value); word && *word == "auto")
    out = *word;
  else
    wrongType(key, *v, "true, false or \"auto\"");
}

void ConfigReader::string(const char *key, std::string &out) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *s = std::get_if<std::string>(&v->value);
  if (!s)
    return wrongType(key, *v, "a string");
  out = *s;
}

void ConfigReader::choice(const char *key, std::string &out, std::vector<std::string> built,
                          std::vector<std::string> later) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *s = std::get_if<std::string>(&v->value);
  if (!s)
    return wrongType(key, *v, "a string", {fmt::format("one of {}", quotedList(built, "or"))});
  if (llvm::is_contained(later, *s) && !laterToo) {
    std::vector<std::string> quoted;
    for (auto &b : built)
      quoted.push_back(fmt::format("\"{}\"", b));
    return notBuilt(key, fmt::format("\"{}\"", *s), quoted);
  }
  if (llvm::is_contained(built, *s) || llvm::is_contained(later, *s)) {
    out = *s;
    return;
  }
  std::vector<std::string> all = built;
  all.insert(all.end(), later.begin(), later.end());
  std::string near = nearestWord(*s, all);
  complain(key, ErrorCode::UnknownValue, fmt::format("{} = \"{}\" is not known", key, *s),
           near.empty() ? "" : fmt::format("did you mean \"{}\"?", near),
           {fmt::format("{} work today", quotedList(built))});
}

void ConfigReader::numbers(const char *key, std::vector<double> &out, unsigned count, double least, double most) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
  std::vector<double> xs;
  if (items)
    for (const TomlValue &item : *items) {
      if (auto *d = std::get_if<double>(&item.value))
        xs.push_back(*d);
      else if (auto *i = std::get_if<int64_t>(&item.value))
        xs.push_back(double(*i));
    }
  if (!items || xs.size() != items->size() || xs.size() != count)
    return wrongType(key, *v, fmt::format("a list of {} numbers", count).c_str());
  for (double x : xs)
    if (!(x >= least && x < most))
      return complain(key, ErrorCode::OutOfRange, fmt::format("{} holds {}", key, x),
                      fmt::format("must be at least {} and below {}", least, most));
  out = std::move(xs);
}

void ConfigReader::integers(const char *key, std::vector<int64_t> &out, int64_t least, int64_t most) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
  std::vector<int64_t> xs;
  if (items)
    for (const TomlValue &item : *items)
      if (auto *i = std::get_if<int64_t>(&item.value))
        xs.push_back(*i);
  if (!items || xs.size() != items->size())
    return wrongType(key, *v, "a list of integers");
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i] < least || xs[i] > most)
      return complain(key, ErrorCode::OutOfRange, fmt::format("{} holds {}", key, xs[i]),
                      fmt::format("must be {} to {}", least, most));
    if (i && xs[i] <= xs[i - 1])
      return complain(key, ErrorCode::OutOfRange, fmt::format("{} holds {} behind {}", key, xs[i], xs[i - 1]),
                      "must rise, each number once");
  }
  out = std::move(xs);
}

void ConfigReader::eachTable(const char *key, const std::function<void(ConfigReader &)> &read) {
  const TomlValue *v = get(key);
  if (!v)
    return;
  auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
  if (!items || !llvm::all_of(*items, [](const TomlValue &item) { return bool(std::get_if<TomlTable>(&item.value)); }))
    return wrongType(key, *v, "a list of tables", {fmt::format("write [[{}]] on a line of its own", key)});
  const std::map<std::string, SourceLoc> noTables;
  for (const TomlValue &item : *items) {
    std::map<std::string, TomlValue> written;
    for (const auto &[name, value] : std::get<TomlTable>(item.value))
      written[fmt::format("{}.{}", key, name)] = value;
    ConfigReader one(whole.file, written, noTables, laterToo);
    one.whole = item.where;
    read(one);
    one.unknownKeys();
    diagnostics.insert(diagnostics.end(), one.diagnostics.begin(), one.diagnostics.end());
    if (!one.diagnostics.empty())
      bad.insert(key);
  }
}

void ConfigReader::unknownKeys(const std::map<std::string, std::string> &hints) {
  auto leafOf = [](const std::string &key) { return key.substr(key.rfind('.') + 1); };
  std::set<std::string> sections;
  std::vector<std::string> sectionNames;
  for (const std::string &k : known)
    if (size_t dot = k.find('.'); dot != std::string::npos && sections.insert(k.substr(0, dot)).second)
      sectionNames.push_back(k.substr(0, dot));

  std::set<std::string> strange;  // tables reported as a whole; their keys are not reported again
  for (auto &[name, at] : tables) {
    if (sections.count(name))
      continue;
    strange.insert(name);
    if (name.find('.') != std::string::npos && strange.count(name.substr(0, name.find('.'))))
      continue;
    if (llvm::is_contained(known, name)) {
      Diagnostic d{ErrorCode::WrongType, fmt::format("{} is a value, not a table", name), at, ""};
      if (auto hint = hints.find(name); hint != hints.end())
        d.help = {hint->second};
      diagnostics.push_back(std::move(d));
      continue;
    }
    std::string near = nearestWord(name, sectionNames);
    if (const OtherName *other = near.empty() ? nameInOtherPrograms(name, sectionNames) : nullptr)
      near = other->ours;
    diagnostics.push_back({ErrorCode::UnknownKey, fmt::format("unknown table [{}]", name), at,
                           near.empty() ? "" : fmt::format("did you mean [{}]?", near)});
  }
  for (auto &[key, v] : values) {
    if (llvm::is_contained(known, key))
      continue;
    if (auto hint = hints.find(key); hint != hints.end()) {
      diagnostics.push_back({ErrorCode::UnknownKey, fmt::format("unknown key {}", key), v.key, "", {hint->second}});
      continue;
    }
    size_t dot = key.rfind('.');
    if (dot != std::string::npos && strange.count(key.substr(0, dot)))
      continue;
    const bool set = v.key.file == "--set";
    if (sections.count(key)) {
      diagnostics.push_back(
          {ErrorCode::WrongType,
           fmt::format("{} is a table", key),
           v.key,
           "",
           {set ? fmt::format("--set {}.KEY=VALUE", key) : fmt::format("write [{}] on a line of its own", key)}});
      continue;
    }
    // In a group itself, its keys are known.
    auto ofGroups = [](llvm::StringRef k) { return k.starts_with("optimizer.group."); };
    if (ofGroups(key) && llvm::none_of(known, ofGroups)) {
      diagnostics.push_back({ErrorCode::UnknownKey,
                             fmt::format("{} is a key of each [[optimizer.group]]", key),
                             v.key,
                             "",
                             {fmt::format("{}", set ? "--set 'optimizer.group=[{match=\"*.bias\", lr_scale=0.5}]'"
                                                    : "write it below [[optimizer.group]], with two brackets")}});
      continue;
    }
    // A correct name in the wrong table is likelier than a typing error. Several tables may have it.
    std::vector<std::string> right;
    for (const std::string &k : known)
      if (leafOf(k) == leafOf(key) && !llvm::is_contained(right, k))
        right.push_back(k);
    std::string near = fmt::format("{}", fmt::join(right, " or "));
    std::vector<std::string> help;
    if (const OtherName *other = near.empty() ? nameInOtherPrograms(leafOf(key), known) : nullptr) {
      near = other->ours;
      if (*other->note)
        help.push_back(other->note);
    }
    // Names are compared without their table, whose letters would make all of them similar: first within the same
    // table, then among all.
    const std::string table = key.substr(0, key.size() - leafOf(key).size());
    for (bool here : {true, false}) {
      std::vector<std::string> leaves;
      for (const std::string &k : known)
        if (!here || k == table + leafOf(k))
          leaves.push_back(leafOf(k));
      const std::string leaf = near.empty() ? nearestWord(leafOf(key), leaves) : "";
      for (const std::string &k : known)
        if (!leaf.empty() && leafOf(k) == leaf && (!here || k == table + leaf))
          near = k;
    }
    diagnostics.push_back({ErrorCode::UnknownKey, fmt::format("unknown key {}", key), v.key,
                           near.empty() ? "" : fmt::format("did you mean {}?", near), std::move(help)});
  }
}

void ConfigReader::finish() {
  if (diagnostics.empty())
    return;
  std::stable_sort(diagnostics.begin(), diagnostics.end(), [](const Diagnostic &a, const Diagnostic &b) {
    return std::tie(a.where.file, a.where.line, a.where.column) < std::tie(b.where.file, b.where.line, b.where.column);
  });
  throw UserError(diagnostics);
}

}  // namespace gptc
