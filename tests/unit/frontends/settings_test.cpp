// The table of keys, and what is made of it: reader, list, page, schema.
#include "frontends/read_settings.h"
#include "frontends/settings_reference.h"
#include "support/json.h"
#include "tests/support/content.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <regex>

using namespace gptc;
using json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

using test::contentOf;

json jsonOf(const TomlValue &v) {
  if (auto *items = std::get_if<std::vector<TomlValue>>(&v.value)) {
    json list = json::array();
    for (const TomlValue &item : *items)
      list.push_back(jsonOf(item));
    return list;
  }
  if (auto *table = std::get_if<TomlTable>(&v.value)) {
    json object = json::object();
    for (const auto &[key, value] : *table)
      object[key] = jsonOf(value);
    return object;
  }
  if (auto *text = std::get_if<std::string>(&v.value))
    return *text;
  if (auto *truth = std::get_if<bool>(&v.value))
    return *truth;
  if (auto *n = std::get_if<int64_t>(&v.value))
    return *n;
  if (auto *x = std::get_if<double>(&v.value))
    return *x;
  return json();
}

/// A file as JSON has it.
json jsonOf(const TomlDocument &doc) {
  json file = json::object();
  for (const auto &[key, value] : doc.values)
    if (const size_t dot = key.find('.'); dot == std::string::npos)
      file[key] = jsonOf(value);
    else
      file[key.substr(0, dot)][key.substr(dot + 1)] = jsonOf(value);
  return file;
}

/// What JSON Schema says against `value`, by the keywords that our schema uses; a failure for any other keyword.
std::string problemOf(const json &schema, const json &value, const std::string &at = "$");

bool isOfType(const json &value, const std::string &type) {
  return type == "integer"   ? value.is_number_integer()
         : type == "number"  ? value.is_number()
         : type == "string"  ? value.is_string()
         : type == "boolean" ? value.is_boolean()
         : type == "array"   ? value.is_array()
                             : type == "object" && value.is_object();
}

std::string membersProblem(const json &schema, const json &value, const std::string &at) {
  for (const auto &[name, member] : value.items()) {
    const auto known = schema.at("properties").find(name);
    if (known == schema.at("properties").end())
      return schema.value("additionalProperties", true) ? "" : at + "." + name + " is not known";
    if (std::string p = problemOf(*known, member, at + "." + name); !p.empty())
      return p;
  }
  for (const json &name : schema.value("required", json::array()))
    if (!value.contains(name))
      return at + " lacks " + name.get<std::string>();
  return "";
}

std::string problemOf(const json &schema, const json &value, const std::string &at) {
  for (const auto &[keyword, limit] : schema.items()) {
    bool good = true;
    if (keyword == "type")
      good = isOfType(value, limit);
    else if (keyword == "enum")
      good = std::find(limit.begin(), limit.end(), value) != limit.end();
    else if (keyword == "anyOf")
      good = llvm::any_of(limit, [&](const json &one) { return problemOf(one, value).empty(); });
    else if (keyword == "minimum" || keyword == "exclusiveMinimum")
      good = !value.is_number() || (keyword == "minimum" ? value >= limit : value > limit);
    else if (keyword == "maximum" || keyword == "exclusiveMaximum")
      good = !value.is_number() || (keyword == "maximum" ? value <= limit : value < limit);
    else if (keyword == "minLength")
      good = !value.is_string() || value.get<std::string>().size() >= limit.get<size_t>();
    else if (keyword == "pattern")
      good = !value.is_string() || std::regex_search(value.get<std::string>(), std::regex(limit.get<std::string>()));
    else if (keyword == "minItems")
      good = !value.is_array() || value.size() >= limit.get<size_t>();
    else if (keyword == "maxItems")
      good = !value.is_array() || value.size() <= limit.get<size_t>();
    else if (keyword == "uniqueItems" && value.is_array())
      good = std::set<json>(value.begin(), value.end()).size() == value.size();
    else if (keyword == "items" && value.is_array()) {
      for (const json &item : value)
        if (std::string p = problemOf(limit, item, at + "[]"); !p.empty())
          return p;
    } else if (keyword == "properties" && value.is_object()) {
      if (std::string p = membersProblem(schema, value, at); !p.empty())
        return p;
    } else if (!llvm::is_contained({"$schema", "title", "description", "default", "required", "additionalProperties",
                                    "items", "properties", "uniqueItems"},
                                   keyword)) {
      ADD_FAILURE() << "the schema uses " << keyword;
    }
    if (!good)
      return fmt::format("{}: {} is against {} {}", at, value.dump(), keyword, limit.dump());
  }
  return "";
}

std::vector<std::string> modelFiles() {
  std::vector<std::string> all;
  for (auto &entry : fs::directory_iterator(GPTC_SOURCE_DIR "/examples"))
    if (entry.path().extension() == ".toml")
      all.push_back(entry.path().string());
  EXPECT_GE(all.size(), 6u);
  return all;
}

/// Reads the one key that `setting` (key=value) names, and tells whether its value was taken.
bool isTaken(const std::string &setting, Settings &s) {
  auto [key, value] = parseSetting(setting);
  std::map<std::string, TomlValue> all = {{key, value}};
  if (key == "precision.eight_bits")  // which stand beside 4
    all.insert(parseSetting("precision.weights=q4_k"));
  ConfigReader r("", all, {});
  readSettings(r, s, ConfigPurpose::run);
  return r.good(key.c_str());
}

TEST(Keys, ThePageIsCurrent) {
  EXPECT_EQ(contentOf(GPTC_SOURCE_DIR "/docs/keys.md"), keysPage(KeyReference()))
      << "write it anew: gptc config --markdown > docs/keys.md";
}

TEST(Keys, EachHasANameOfItsOwnATypeAndAMeaning) {
  const KeyReference keys;
  std::set<std::string> names, kept;
  for (const std::vector<Setting> *of : {&keys.keys, &keys.groupKeys})
    for (const Setting &s : *of) {
      EXPECT_TRUE(names.insert(s.key).second) << s.key;
      EXPECT_TRUE(s.inPlan.name.empty() || kept.insert(s.inPlan.name).second) << s.key;
      EXPECT_TRUE(llvm::StringRef(s.meaning).ends_with(".")) << s.key;
      EXPECT_FALSE(typeText(s.type).empty()) << s.key;
      EXPECT_TRUE(valueOf(s) || !s.otherwise.words.empty()) << s.key << " has no default to show";
      for (const std::string &text : {keyList(keys), keysPage(keys)})
        EXPECT_NE(text.find(s.meaning.substr(0, 12)), std::string::npos) << s.key;
      EXPECT_NE(keyList(keys).find("\n" + s.key + " "), s.key == "schema" ? 0 : std::string::npos) << s.key;
    }
  EXPECT_GT(names.size(), 70u);
}

TEST(Keys, DefaultsCanBeWritten) {
  const json schema = parseJson<json>(keySchema(KeyReference()));
  for (const Setting &s : KeyReference().keys) {
    Settings defaults, read;
    const auto find = [&](Settings &of) {
      for (const Setting &other : keysOf(of))
        if (other.key == s.key)
          return other;
      return s;
    };
    const std::optional<TomlValue> value = valueOf(find(defaults));
    if (!value || !s.otherwise.words.empty())
      continue;
    EXPECT_TRUE(isTaken(s.key + "=" + value->text(), read)) << s.key << " = " << value->text();
    EXPECT_EQ(valueOf(find(read))->text(), value->text()) << s.key;
    EXPECT_EQ(problemOf(schema, jsonOf(parseToml(s.key + " = " + value->text(), "f"))), "");
  }
}

TEST(Keys, TheSchemaTakesTheExamples) {
  const json schema = parseJson<json>(keySchema(KeyReference()));
  for (const std::string &file : modelFiles())
    EXPECT_EQ(problemOf(schema, jsonOf(parseTomlFile(file))), "") << file;
  for (const char *wrong :
       {"stpes = 3", "[train]\nstpes = 3", "[parallell]\ndata = 2", "[[optimizer.group]]\nfrozen = true",
        "[optimizer]\ngroup = 3", "model = 3", "[[optimizer.group]]\nmatch = \"*\"\nlr = 3"})
    EXPECT_NE(problemOf(schema, jsonOf(parseToml(wrong, "f"))), "") << wrong;
}

// What an editor takes is what the compiler takes, at every bound.
TEST(Keys, SchemaAndReaderAgree) {
  const json schema = parseJson<json>(keySchema(KeyReference()));
  int taken = 0, refused = 0;
  for (const Setting &s : KeyReference().keys) {
    if (std::holds_alternative<values::Tables>(s.type) || s.key == "extends")
      continue;
    std::vector<std::string> texts = {"true",           "3",  "-1",         "0.5",   "\"auto\"",  "\"\"",
                                      "\"nonsense 7\"", "[]", "[0.5, 0.5]", "[0.5]", "[1, 2, 3]", "1979-05-27"};
    auto bound = [&](double x) {
      for (double at : {x, std::nextafter(x, -1e300), std::nextafter(x, 1e300)})
        texts.push_back(TomlValue{at, {}, {}}.text());
    };
    if (auto *t = std::get_if<values::Integer>(&s.type))
      for (int64_t at : {t->least, t->most})
        for (int64_t by : {-1, 0, 1})
          if (by <= 0 || at < std::numeric_limits<int64_t>::max())
            texts.push_back(fmt::format("{}", at + by));
    if (auto *t = std::get_if<values::Integer>(&s.type); t && t->tokens)
      for (const char *text : {"512K", "1.5m", "2e3", "4B", "7", "1.5", "K", "512G", "-1K", "512 KB"})
        if (std::string(text) != "1.5")  // only the compiler can tell that it is not whole
          texts.push_back(fmt::format("\"{}\"", text));
    if (auto *t = std::get_if<values::Number>(&s.type))
      bound(t->least.value), bound(t->most.value);
    if (auto *t = std::get_if<values::Choice>(&s.type))
      for (const std::vector<std::string> *words : {&t->built, &t->later})
        for (const std::string &word : *words)
          texts.push_back("\"" + word + "\"");
    if (auto *t = std::get_if<values::Text>(&s.type); t && !t->words.empty())
      for (const char *word : {"none", "full", "scratch", "hf:x", "ckpt:x", "ckpt:", "cpu", "cuda", "cuda:sm_90a",
                               "8GiB", "2.5 MB", "1000", "0.5TB", "8 giga", "H200"})
        texts.push_back(fmt::format("\"{}\"", word));
    for (const std::string &text : texts) {
      // What only the compiler can tell: tf32 is for GPUs, 8 bits are for bf16, a word may name a GPU, ranks are powers
      // of two.
      const bool word = text[0] == '"' && text != "\"auto\"" && text.find_first_of("acfghnsu") != std::string::npos;
      const bool ranks =
          s.key == "parallel.data" || s.key == "parallel.logical_shards" || s.key == "parallel.logical_tensor";
      const bool eights = s.key == "precision.fp8" && word && text != "\"off\"" && text != "\"nonsense 7\"";
      if (text == "\"tf32\"" || eights || (word && s.key == "compile.gpu_memory") ||
          (ranks && (text == "3" || text == "1023" || text == "1048575")))
        continue;
      Settings read;
      const bool good = isTaken(s.key + "=" + text, read);
      const std::string problem = problemOf(schema, jsonOf(parseToml(s.key + " = " + text, "f")));
      EXPECT_EQ(good, problem.empty()) << s.key << " = " << text << "; " << problem;
      ++(good ? taken : refused);
    }
  }
  EXPECT_GT(taken, 200);
  EXPECT_GT(refused, 400);
}

std::string withoutComments(const std::string &text) { return std::regex_replace(text, std::regex(" *# .*\n"), "\n"); }

TEST(Keys, WhatHoldsCanBeReadAgain) {
  const auto tokenizer = [](const std::string &) { return int64_t(50257); };
  const std::string file = testing::TempDir() + "/resolved.toml";
  for (const std::string &example : modelFiles()) {
    const std::string text = resolvedFile(loadConfig(example, {"optimizer.betas=[0.5, 0.75]"}, tokenizer));
    std::ofstream(file) << text;
    const Config again = loadConfig(file, {}, tokenizer);
    EXPECT_EQ(withoutComments(resolvedFile(again)), withoutComments(text));
    EXPECT_NE(text.find("betas = [0.5, 0.75]                # --set"), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("# {}:", example)), std::string::npos);
    for (const Setting &s : KeyReference().keys)
      EXPECT_TRUE(again.written.count(s.key) || s.key == "extends" || s.key == "optimizer.group" ||
                  std::holds_alternative<values::Path>(s.type))
          << s.key;
  }
  fs::remove(file);
}

TEST(Keys, ANewOneIsALineOfTheTable) {
  KeyReference keys;
  int64_t member = 7;
  keys.keys.push_back({"eval.patience",
                       &member,
                       values::Integer{1, 9, {{"never", 0}}},
                       "Evaluations without a better loss after which a run ends.",
                       {},
                       {}});
  EXPECT_NE(keyList(keys).find("eval.patience                 integer, 1 to 9, or \"never\"  [7]\n"), std::string::npos)
      << keyList(keys);
  EXPECT_NE(keysPage(keys).find("| `patience` | integer, 1 to 9, or \"never\" | 7 | Evaluations without"),
            std::string::npos);
  const json schema = parseJson<json>(keySchema(keys));
  EXPECT_EQ(problemOf(schema, json{{"eval", {{"patience", "never"}}}}), "");
  EXPECT_NE(problemOf(schema, json{{"eval", {{"patience", 10}}}}), "");
  for (auto [text, value] : {std::pair{"3", 3}, {"\"never\"", 0}, {"10", 7}}) {
    member = 7;
    auto [key, written] = parseSetting(fmt::format("eval.patience={}", text));
    const std::map<std::string, TomlValue> all = {{key, written}};
    ConfigReader r("", all, {});
    readSetting(r, keys.keys.back());
    EXPECT_EQ(member, value);
    EXPECT_EQ(r.good("eval.patience"), value != 7);
  }
}

TEST(Settings, SeveralLinesAreTextAndNoFurtherKeys) {
  for (const char *text : {"4\n[model]", "4\nmodel.n_layer=7", "a\nb"}) {
    const auto [key, value] = parseSetting(std::string("train.steps=") + text);
    EXPECT_EQ(key, "train.steps");
    const auto *read = std::get_if<std::string>(&value.value);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, text);
  }
}

}  // namespace
