#include "frontends/settings_reference.h"

#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

template <typename... F> struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F> Overloaded(F...) -> Overloaded<F...>;

TomlValue toml(auto value) {
  TomlValue v;
  v.value = std::move(value);
  return v;
}

TomlValue listOf(const std::vector<TomlValue> &items) { return toml(items); }

TomlValue listOf(const PatternList &patterns) {
  std::vector<TomlValue> items;
  for (const auto &[pattern, where] : patterns)
    items.push_back(toml(pattern));
  return listOf(items);
}

/// A number, or the word that stands for it: one outside the range is never written.
template <typename T> TomlValue numberOrWord(T x, bool inside, const std::vector<values::Word> &words) {
  for (const values::Word &w : words)
    if (!inside && w.value == double(x))
      return toml(w.text);
  return toml(x);
}

std::vector<std::string> quoted(const std::vector<std::string> &words) {
  std::vector<std::string> all;
  for (const std::string &w : words)
    all.push_back(fmt::format("\"{}\"", w));
  return all;
}

/// "a, b or c".
std::string orList(const std::vector<std::string> &items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i)
    text += (i == 0 ? "" : i + 1 == items.size() ? " or " : ", ") + items[i];
  return text;
}

std::string orWords(std::string text, const std::vector<values::Word> &words) {
  std::vector<std::string> items = {std::move(text)};
  for (const values::Word &w : words)
    items.push_back(fmt::format("\"{}\"", w.text));
  return items.size() == 1 ? items[0] : items[0] + ", or " + orList({items.begin() + 1, items.end()});
}

std::string defaultText(const Setting &s) {
  if (!s.otherwise.words.empty())
    return s.otherwise.words;
  const std::optional<TomlValue> v = valueOf(s);
  return v ? v->text() : "";
}

/// `text` in lines of at most `width` characters.
std::vector<std::string> wrapped(llvm::StringRef text, size_t width) {
  std::vector<std::string> lines(1);
  llvm::SmallVector<llvm::StringRef, 32> words;
  text.split(words, ' ');
  for (llvm::StringRef word : words) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word.str();
  }
  return lines;
}

/// In the order in which they first occur.
std::vector<std::string> sectionsOf(const std::vector<Setting> &keys) {
  std::vector<std::string> all;
  for (const Setting &s : keys)
    if (!llvm::is_contained(all, s.section()))
      all.push_back(s.section());
  return all;
}

using Section = std::vector<const Setting *>;

Section keysIn(const std::string &section, const std::vector<Setting> &keys) {
  Section those;
  for (const Setting &s : keys)
    if (s.section() == section)
      those.push_back(&s);
  return those;
}

/// Calls `with` for the keys of each section; a group's stand behind those of [optimizer].
void eachSection(const KeyReference &keys,
                 const std::function<void(const std::string &section, const Section &)> &with) {
  for (const std::string &section : sectionsOf(keys.keys)) {
    with(section, keysIn(section, keys.keys));
    for (const std::string &inner : sectionsOf(keys.groupKeys))
      if (llvm::StringRef(inner).starts_with(section + "."))
        with(inner, keysIn(inner, keys.groupKeys));
  }
}

// The JSON Schema of a type.

json anyOf(json first, const std::vector<values::Word> &words) {
  if (words.empty())
    return first;
  json texts = json::array();
  for (const values::Word &w : words)
    texts.push_back(w.text);
  return {{"anyOf", {std::move(first), {{"enum", texts}}}}};
}

json schemaOf(const ValueType &type) {
  return std::visit(
      Overloaded{
          [](const values::Integer &t) {
            const json number = {{"type", "integer"}, {"minimum", t.least}, {"maximum", t.most}};
            if (t.steps)
              return json{{"anyOf", {number, {{"type", "string"}, {"pattern", "^[0-9.].*(%|tokens) *$"}}}}};
            if (!t.tokens)
              return anyOf(number, t.words);
            const json text = {{"type", "string"}, {"pattern", R"(^[0-9.]+([eE]\+?[0-9]+)?[KMBTkmbt]?$)"}};
            return json{{"anyOf", {number, text}}};
          },
          [](const values::Number &t) {
            return anyOf({{"type", "number"},
                          {t.least.open ? "exclusiveMinimum" : "minimum", t.least.value},
                          {t.most.open ? "exclusiveMaximum" : "maximum", t.most.value}},
                         t.words);
          },
          [](const values::Numbers &t) {
            json list = {{"type", "array"},
                         {"items", {{"type", "number"}, {"minimum", t.least}, {"exclusiveMaximum", t.most}}},
                         {"minItems", t.count},
                         {"maxItems", t.count}};
            return t.orNone ? json{{"anyOf", {list, {{"type", "array"}, {"maxItems", 0}}}}} : list;
          },
          [](const values::Integers &t) {
            return json{{"type", "array"},
                        {"items", {{"type", "integer"}, {"minimum", t.least}, {"maximum", t.most}}},
                        {"uniqueItems", true}};
          },
          [](const values::Boolean &t) {
            return t.orAuto ? json{{"enum", {true, false, "auto"}}} : json{{"type", "boolean"}};
          },
          [](const values::Choice &t) { return json{{"enum", t.built}}; },
          [](const values::Text &t) {
            if (t.words.empty() && t.forms.empty())
              return json{{"type", "string"}};
            json any = json::array({{{"enum", t.words}}});
            for (const values::Form &f : t.forms)
              any.push_back({{"type", "string"}, {"pattern", f.pattern}});
            return json{{"anyOf", any}};
          },
          [](const values::Path &) { return json{{"type", "string"}, {"minLength", 1}}; },
          [](const values::Patterns &t) {
            const json one = {{"type", "string"}};
            json list = {{"type", "array"}, {"items", one}};
            if (!t.orNone)
              list["minItems"] = 1;
            return json{{"anyOf", {one, list}}};
          },
          [](const values::Tables &) { return json{{"type", "array"}}; },
      },
      type);
}

json jsonOf(const TomlValue &v) {
  return std::visit(Overloaded{[](std::monostate) { return json(); }, [](const TomlTable &) { return json(); },
                               [](const std::vector<TomlValue> &items) {
                                 json list = json::array();
                                 for (const TomlValue &item : items)
                                   list.push_back(jsonOf(item));
                                 return list;
                               },
                               [](const auto &x) { return json(x); }},
                    v.value);
}

json schemaOf(const Setting &s) {
  json j = schemaOf(s.type);
  j["description"] = s.meaning + (s.otherwise.words.empty()       ? ""
                                  : s.otherwise.words == "needed" ? " It must be written."
                                                                  : " Default: " + s.otherwise.words + ".");
  if (const std::optional<TomlValue> v = s.otherwise.words.empty() ? valueOf(s) : std::nullopt)
    j["default"] = jsonOf(*v);
  return j;
}

json objectOf(const Section &keys) {
  json properties = json::object();
  for (const Setting *s : keys)
    properties[s->leaf()] = schemaOf(*s);
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
}

// A file of what holds.

std::string origin(const Config &c, const std::string &key) {
  const auto it = c.written.find(key);
  if (it == c.written.end())
    return "default";
  const SourceLoc &at = it->second.where;
  const std::string place = at.file == "--set" ? at.file : fmt::format("{}:{}", at.file, at.line);
  return (c.isAuto(key) ? "auto, " : "") + place;
}

std::string line(const Setting &s, const TomlValue &v, const std::string &from) {
  const std::string text = fmt::format("{} = {}", s.leaf(), v.text());
  return from.empty() ? text + "\n" : fmt::format("{:<34} # {}\n", text, from);
}

std::string groupFile(ParameterGroup g) {
  std::string out = "\n[[optimizer.group]]\n";
  for (const Setting &s : keysOf(g))
    if (std::holds_alternative<values::Patterns>(s.type))
      out += line(s, listOf(g.patterns), "");
    else if (const std::optional<TomlValue> v = valueOf(s))
      out += line(s, *v, "");
  return out;
}

}  // namespace

std::optional<TomlValue> valueOf(const Setting &s) {
  return std::visit(
      Overloaded{
          [](std::monostate) { return std::optional<TomlValue>(); },
          [&](const int64_t *x) -> std::optional<TomlValue> {
            const auto &t = std::get<values::Integer>(s.type);
            return numberOrWord(*x, *x >= t.least && *x <= t.most, t.words);
          },
          [&](const double *x) -> std::optional<TomlValue> {
            const auto &t = std::get<values::Number>(s.type);
            return numberOrWord(*x, t.holds(*x), t.words);
          },
          [](const bool *x) -> std::optional<TomlValue> { return toml(*x); },
          [&](const std::string *x) -> std::optional<TomlValue> {
            if (std::holds_alternative<values::Path>(s.type) && x->empty())
              return std::nullopt;
            const bool truth = std::holds_alternative<values::Boolean>(s.type) && *x != "auto";
            return truth ? toml(*x == "true") : toml(*x);
          },
          [](const WordMember &x) -> std::optional<TomlValue> { return toml(x.word()); },
          [](const NumberPair &x) -> std::optional<TomlValue> { return listOf({toml(*x.first), toml(*x.second)}); },
          [](const std::vector<int64_t> *x) -> std::optional<TomlValue> {
            std::vector<TomlValue> items;
            for (int64_t n : *x)
              items.push_back(toml(n));
            return listOf(items);
          },
          [&](const std::optional<bool> *x) -> std::optional<TomlValue> {
            return *x                                         ? std::optional(toml(**x))
                   : std::get<values::Boolean>(s.type).orAuto ? std::optional(toml(std::string("auto")))
                                                              : std::nullopt;
          },
          [](const PatternList *x) -> std::optional<TomlValue> { return listOf(*x); },
          [](const std::optional<double> *x) -> std::optional<TomlValue> {
            return *x ? std::optional(toml(**x)) : std::nullopt;
          },
          [](const std::optional<std::pair<double, double>> *x) -> std::optional<TomlValue> {
            return *x ? std::optional(listOf({toml((*x)->first), toml((*x)->second)})) : std::nullopt;
          },
      },
      s.member);
}

std::string typeText(const ValueType &type) {
  return std::visit(
      Overloaded{
          [](const values::Integer &t) {
            return t.least == t.most ? fmt::format("{}", t.least)
                                     : orWords(fmt::format("integer, {} to {}{}", t.least, t.most,
                                                           t.tokens  ? ", or a text such as \"512K\""
                                                           : t.steps ? ", \"2%\" of train.steps or \"10M tokens\""
                                                                     : ""),
                                               t.steps ? std::vector<values::Word>() : t.words);
          },
          [](const values::Number &t) {
            return orWords(fmt::format("number, {} {} and {} {}", t.least.open ? "above" : "at least", t.least.value,
                                       t.most.open ? "below" : "at most", t.most.value),
                           t.words);
          },
          [](const values::Numbers &t) {
            return fmt::format("list of {} numbers, at least {} and below {}{}", t.count, t.least, t.most,
                               t.orNone ? ", or []" : "");
          },
          [](const values::Integers &t) {
            return fmt::format("list of integers in rising order, {} to {}", t.least, t.most);
          },
          [](const values::Boolean &t) { return std::string(t.orAuto ? "true, false or \"auto\"" : "true or false"); },
          [](const values::Choice &t) {
            return orList(quoted(t.built)) +
                   (t.later.empty() ? "" : fmt::format("; not built yet: {}", orList(quoted(t.later))));
          },
          [](const values::Text &t) {
            std::vector<std::string> all = quoted(t.words);
            for (const values::Form &f : t.forms)
              all.push_back(f.description);
            return all.empty() ? std::string("text") : orList(all);
          },
          [](const values::Path &) { return std::string("path"); },
          [](const values::Patterns &t) {
            return std::string("pattern, or list of patterns") + (t.orNone ? ", or []" : "");
          },
          [](const values::Tables &) { return std::string("any number of tables"); },
      },
      type);
}

std::string keyList(const KeyReference &keys) {
  constexpr size_t nameWidth = 29, width = 110;
  std::string out;
  eachSection(keys, [&](const std::string &, const Section &those) {
    out += out.empty() ? "" : "\n";
    for (const Setting *s : those) {
      std::vector<std::string> lines =
          wrapped(fmt::format("{}  [{}]", typeText(s->type), defaultText(*s)), width - nameWidth);
      llvm::append_range(lines, wrapped(s->meaning, width - nameWidth));
      for (size_t i = 0; i < lines.size(); ++i)
        out += fmt::format("{:<{}} {}\n", i ? "" : s->key, nameWidth, lines[i]);
    }
  });
  return out;
}

/// Text of a Markdown table's cell.
static std::string inCell(llvm::StringRef text) {
  std::string out;
  for (char c : text)
    out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string keysPage(const KeyReference &keys) {
  std::string out = R"(# Keys of model.toml

`gptc config --markdown` writes this page; a test compares it with the program. `gptc config --list` shows the same in a terminal, and
`gptc config model.toml` what holds with a file, with the place that each value comes from.

A value comes from, in rising order: the default, the preset, the file that `extends` names, the file itself, `--set`. `gptc compile model.toml --set
train.steps=100` overrides one key. Paths are relative to the file that names them, and to the working folder with `--set`. An unknown key is an error
that names the nearest one.

Editors check and complete keys by a JSON Schema. `gptc config --schema > gptc.schema.json` writes it; the first line `#:schema ./gptc.schema.json` of a
model file tells taplo and VS Code's Even Better TOML where it is.

Only the sizes in [model], or a preset, and `data.train` have to be written. `"auto"` leaves a choice to the compiler, which says what it chose.
)";
  // Pages that tell more.
  const std::pair<const char *, const char *> more[] = {{"model", "[model.md](model.md)"},
                                                        {"optimizer", "[optimizers.md](optimizers.md)"},
                                                        {"parallel", "[distributed.md](distributed.md)"}};
  eachSection(keys, [&](const std::string &section, const Section &those) {
    const bool repeated = section.find('.') != std::string::npos;
    out += fmt::format("\n## {}\n\n", section.empty() ? "Outside tables"
                                      : repeated      ? "[[" + section + "]]"
                                                      : "[" + section + "]");
    for (auto [name, page] : more)
      if (section == name)
        out += fmt::format("More in {}.\n\n", page);
    out += "| key | values | default | meaning |\n|---|---|---|---|\n";
    for (const Setting *s : those)
      out +=
          fmt::format("| `{}` | {} | {} | {} |\n", s->leaf(), typeText(s->type), defaultText(*s), inCell(s->meaning));
  });
  return out;
}

std::string keySchema(const KeyReference &keys) {
  json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "model.toml"},
                 {"description", "A model and its training, for gptc."}};
  eachSection(keys, [&](const std::string &section, const Section &those) {
    json object = objectOf(those);
    if (section.empty())
      return schema.update(object);
    const size_t dot = section.find('.');
    if (dot == std::string::npos) {
      schema["properties"][section] = std::move(object);
      return;
    }
    json required = json::array();
    for (const Setting *s : those)
      if (std::holds_alternative<values::Patterns>(s->type))
        required.push_back(s->leaf());
    object["required"] = required;
    schema["properties"][section.substr(0, dot)]["properties"][section.substr(dot + 1)]["items"] = std::move(object);
  });
  return schema.dump(2) + "\n";
}

std::string resolvedFile(const Config &config) {
  Config c = config;
  eachPath(c.run, [](std::string &path) { path = absolutePath(path); });
  const std::vector<Setting> keys = keysOf(static_cast<Settings &>(c));
  std::string out = fmt::format("# What holds with {}.\n", config.file);
  for (const std::string &section : sectionsOf(keys)) {
    if (!section.empty())
      out += fmt::format("\n[{}]\n", section);
    for (const Setting *s : keysIn(section, keys)) {
      if (const std::optional<TomlValue> v = valueOf(*s))
        out += line(*s, *v, origin(c, s->key));
      if (std::holds_alternative<values::Tables>(s->type))
        for (const ParameterGroup &g : c.optimizer.groups)
          out += groupFile(g);
    }
  }
  return out;
}

}  // namespace gptc
