#include "tools/study/experiment.h"

#include "frontends/config_reader.h"
#include "frontends/toml_config.h"
#include "support/files.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace gptc {

namespace {

constexpr size_t kLongestName = 200;  // bytes; file systems take 255
constexpr int64_t kMostSteps = 1'000'000'000;
constexpr double kMostTokens = 1e18, kMostFlops = 1e30, kMostSeconds = 1e9;

struct Variant {
  std::string name;
  std::vector<std::string> settings;
};

struct GridKey {
  std::string key, shown;  // shown: its last part, if no other key has the same
  std::vector<TomlValue> values;
};

/// A value as a part of a run's name.
std::string inName(const TomlValue &value) {
  const auto *text = std::get_if<std::string>(&value.value);
  std::string name = text ? *text : value.text();
  std::erase(name, ' ');
  for (char &c : name)
    if (c == '/' || c == '"' || (unsigned char)(c) < 0x20 || c == 0x7f)
      c = '-';
  return name;
}

class Reader {
public:
  Reader(const TomlDocument &doc, const std::string &file) : doc(doc), file(file) {
    for (const auto &[name, at] : doc.tables)
      if (name != "grid" && !llvm::StringRef(name).starts_with("grid."))
        tables.emplace(name, at);
    reader.emplace(file, doc.values, tables);
  }

  Experiment read(int64_t most) {
    Experiment e;
    e.file = file;
    std::string model;
    reader->string("model", model);
    if (!doc.values.count("model"))
      reader->missing("model", "name the model file: model = \"model.toml\"");
    e.model = absolutePath(resolveBeside(model, file));
    readBudget(e.budget);
    readSeeds();
    common = settingsOf(*reader, "set");
    readGrid();
    readVariants();
    if (!grid.empty() && doc.values.count("variant"))
      reader->complain("variant", ErrorCode::Contradiction, "there are both [grid] and [[variant]]", "",
                       {"leave one of them out, or make two files of them"});
    reader->unknownKeys();
    reader->finish();
    refuseMany(most);
    expand(e);
    return e;
  }

private:
  const TomlDocument &doc;
  const std::string file;
  std::map<std::string, SourceLoc> tables;
  std::optional<ConfigReader> reader;
  std::vector<std::string> common;
  std::vector<int64_t> seeds;
  std::vector<GridKey> grid;
  std::vector<Variant> variants;

  void readBudget(Budget &budget) {
    int64_t steps = 0, tokens = 0;
    double flops = 0, seconds = 0;
    reader->integer("steps", steps, 1, kMostSteps);
    reader->tokens("tokens", tokens, 1, int64_t(kMostTokens));
    reader->number("flops", flops, 0, kMostFlops, true);
    reader->number("seconds", seconds, 0, kMostSeconds, true);
    const char *first = nullptr;
    auto take = [&](const char *key, Budget::Kind kind, double amount) {
      if (!doc.values.count(key))
        return;
      if (first)
        reader->complain(key, ErrorCode::Contradiction,
                         fmt::format("{} and {} both say how long runs train", first, key), "",
                         {"leave one of them out"});
      first = key;
      budget = {kind, amount};
    };
    take("steps", Budget::Kind::steps, double(steps));
    take("tokens", Budget::Kind::tokens, double(tokens));
    take("flops", Budget::Kind::flops, flops);
    take("seconds", Budget::Kind::seconds, seconds);
    if (first && budget.kind != Budget::Kind::seconds)
      reserved["train.steps"] = fmt::format("{} decides over it", first);
  }

  /// Keys that the experiment itself sets.
  std::map<std::string, std::string> reserved;

  /// Complains of a key that models do not have, or that is the experiment's own.
  void checkKey(ConfigReader &of, const char *at, const std::string &key) {
    if (!llvm::is_contained(configKeys(), key)) {
      const std::string near = nearestWord(key, configKeys());
      of.complain(at, ErrorCode::UnknownKey, fmt::format("a model has no key {}", key),
                  near.empty() ? "" : fmt::format("did you mean {}?", near), {"`gptc config --list` has every key"});
    } else if (key == "extends" || key == "schema" || key == "name" || key == "out_dir") {
      of.complain(at, ErrorCode::Contradiction, fmt::format("{} is the experiment's own to decide", key), "",
                  {"leave it out"});
    } else if (auto why = reserved.find(key); why != reserved.end()) {
      of.complain(at, ErrorCode::Contradiction, fmt::format("{} is set, but {}", key, why->second), "",
                  {"leave one of them out"});
    }
  }

  /// A list of KEY=VALUE.
  std::vector<std::string> settingsOf(ConfigReader &of, const char *key) {
    std::vector<std::string> settings;
    const TomlValue *v = of.get(key);
    if (!v)
      return settings;
    const auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
    if (!items ||
        !llvm::all_of(*items, [](const TomlValue &i) { return std::holds_alternative<std::string>(i.value); })) {
      of.complain(key, ErrorCode::WrongType, fmt::format("{} must be a list of texts", key), "",
                  {"such as [\"optimizer.lr=1e-3\"]"});
      return settings;
    }
    for (const TomlValue &item : *items) {
      const std::string &setting = std::get<std::string>(item.value);
      try {
        checkKey(of, key, parseSetting(setting).first);
        settings.push_back(setting);
      } catch (const UserError &e) {
        of.complain(key, ErrorCode::WrongType, fmt::format("{}: {}", key, e.diagnostics[0].message), "",
                    {"write KEY=VALUE, such as \"optimizer.lr=1e-3\""});
      }
    }
    return settings;
  }

  void readSeeds() {
    const TomlValue *v = reader->get("seeds");
    if (!v)
      return;
    const auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
    if (!items || items->empty())
      return reader->complain("seeds", items ? ErrorCode::OutOfRange : ErrorCode::WrongType,
                              "seeds must be a list of at least one integer", "",
                              {"leave it out for the model's own seed"});
    for (const TomlValue &item : *items) {
      const int64_t *seed = std::get_if<int64_t>(&item.value);
      if (!seed || *seed < 0)
        return reader->complain("seeds", ErrorCode::WrongType, "seeds must be integers of at least 0");
      if (llvm::is_contained(seeds, *seed))
        return reader->complain("seeds", ErrorCode::Contradiction, fmt::format("seeds has {} twice", *seed));
      seeds.push_back(*seed);
    }
    if (!seeds.empty())
      reserved["train.seed"] = "seeds decides over it";
  }

  void readGrid() {
    std::vector<std::pair<std::string, const TomlValue *>> keys;
    for (const auto &[name, value] : doc.values)
      if (llvm::StringRef(name).starts_with("grid."))
        keys.emplace_back(name, &value);
    auto place = [](const auto &k) { return std::tuple(k.second->key.line, k.second->key.column); };
    std::sort(keys.begin(), keys.end(), [&](const auto &a, const auto &b) { return place(a) < place(b); });
    if (keys.empty() && doc.tables.count("grid"))
      throw UserError(Diagnostic{ErrorCode::OutOfRange,
                                 "[grid] has no key",
                                 doc.tables.at("grid"),
                                 "",
                                 {"write KEY = [VALUES], or leave [grid] out"}});
    for (const auto &[name, value] : keys) {
      const char *at = name.c_str();
      reader->get(at);
      GridKey k;
      k.key = name.substr(llvm::StringRef("grid.").size());
      checkKey(*reader, at, k.key);
      const auto *items = std::get_if<std::vector<TomlValue>>(&value->value);
      if (!items || items->empty()) {
        reader->complain(at, items ? ErrorCode::OutOfRange : ErrorCode::WrongType,
                         fmt::format("{} must be a list of at least one value", k.key),
                         items ? "this one is empty" : fmt::format("this is {}", value->kind()));
        continue;
      }
      const bool dated =
          llvm::any_of(*items, [](const TomlValue &i) { return std::holds_alternative<std::monostate>(i.value); });
      if (dated) {
        reader->complain(at, ErrorCode::WrongType, fmt::format("{} has a value of a type that no key has", k.key));
        continue;
      }
      k.values = *items;
      grid.push_back(std::move(k));
    }
    auto last = [](const std::string &key) { return key.substr(key.rfind('.') + 1); };
    for (GridKey &k : grid)
      k.shown =
          llvm::count_if(grid, [&](const GridKey &o) { return last(o.key) == last(k.key); }) == 1 ? last(k.key) : k.key;
  }

  void readVariants() {
    const TomlValue *v = reader->get("variant");
    if (!v)
      return;
    if (const auto *items = std::get_if<std::vector<TomlValue>>(&v->value); items && items->empty())
      reader->complain("variant", ErrorCode::OutOfRange, "variant is an empty list");
    std::set<std::string> names;
    reader->eachTable("variant", [&](ConfigReader &one) {
      Variant variant;
      one.string("variant.name", variant.name);
      if (!one.get("variant.name"))
        one.missing("variant.name", "a variant needs a name, which is its folder's");
      else if (const std::string problem = problemOfRunName(variant.name); one.good("variant.name") && !problem.empty())
        one.complain("variant.name", ErrorCode::UnknownValue, fmt::format("a run cannot be named \"{}\"", variant.name),
                     problem);
      else if (one.good("variant.name") && !names.insert(variant.name).second)
        one.complain("variant.name", ErrorCode::Contradiction,
                     fmt::format("two variants are named \"{}\"", variant.name));
      variant.settings = settingsOf(one, "variant.set");
      variants.push_back(std::move(variant));
    });
  }

  void refuseMany(int64_t most) const {
    double count = double(std::max<size_t>(1, seeds.size()) * std::max<size_t>(1, variants.size()));
    for (const GridKey &k : grid)
      count *= double(k.values.size());
    if (count > double(kMostRuns))
      throw UserError(ErrorCode::OutOfRange,
                      fmt::format("{} asks for {:.15g} runs, and at most {} can be listed", file, count, kMostRuns),
                      "shorten its lists, or make several files of them");
    if (count > double(most))
      throw UserError(ErrorCode::OutOfRange,
                      fmt::format("{} asks for {:.15g} runs: more than {} need --yes", file, count, most),
                      "give --yes if you mean it, or shorten its lists");
  }

  /// The combinations of the grid: the last key changes fastest.
  std::vector<Variant> combinations() const {
    std::vector<Variant> all = {{}};
    for (const GridKey &k : grid) {
      std::vector<Variant> longer;
      for (const Variant &before : all)
        for (const TomlValue &value : k.values) {
          Variant v = before;
          v.name += fmt::format("{}{}={}", v.name.empty() ? "" : ",", k.shown, inName(value));
          v.settings.push_back(fmt::format("{}={}", k.key, value.text()));
          longer.push_back(std::move(v));
        }
      all = std::move(longer);
    }
    return all;
  }

  void expand(Experiment &e) const {
    std::vector<Variant> all = !variants.empty() ? variants
                               : grid.empty()    ? std::vector<Variant>{{"model", {}}}
                                                 : combinations();
    std::vector<std::optional<int64_t>> each(seeds.begin(), seeds.end());
    if (each.empty())
      each.push_back(std::nullopt);
    std::set<std::string> names;
    for (const Variant &v : all)
      for (const std::optional<int64_t> &seed : each) {
        ExperimentRun run{seed ? fmt::format("{},seed={}", v.name, *seed) : v.name, v.name, seed, common};
        run.settings.insert(run.settings.end(), v.settings.begin(), v.settings.end());
        if (seed)
          run.settings.push_back(fmt::format("train.seed={}", *seed));
        if (const std::string problem = problemOfRunName(run.name); !problem.empty())
          throw UserError(ErrorCode::UnknownValue,
                          fmt::format("{}: a run cannot be named \"{}\": {}", file, run.name, problem),
                          "give such runs names by [[variant]]");
        if (!names.insert(run.name).second)
          throw UserError(ErrorCode::Contradiction, fmt::format("{}: two runs are named \"{}\"", file, run.name),
                          "write each value once, or give runs names by [[variant]]");
        e.runs.push_back(std::move(run));
      }
  }
};

}  // namespace

std::string Budget::str() const {
  constexpr const char *names[] = {"model", "steps", "tokens", "flops", "seconds"};
  return kind == Kind::model ? names[0] : fmt::format("{} {}", names[size_t(kind)], amount);
}

int64_t Budget::stepsFor(double each) const {
  return int64_t(std::clamp(std::floor(amount / each), 1.0, double(kMostSteps)));
}

std::string problemOfRunName(std::string_view name) {
  if (name.empty())
    return "it is empty";
  if (name.size() > kLongestName)
    return fmt::format("it has {} bytes, and may have {}", name.size(), kLongestName);
  if (name.find('/') != std::string_view::npos)
    return "a slash would lead into another folder";
  if (name.front() == '.')
    return "it begins with a point";
  if (name == kExperimentFile || name == kResultsFile)
    return "a file of the experiment has that name";
  for (unsigned char c : name)
    if (c < 0x20 || c == 0x7f)
      return "it has control characters";
  return "";
}

Experiment parseExperiment(const std::string &text, const std::string &file, int64_t most) {
  const TomlDocument doc = parseToml(text, file);
  Experiment e = Reader(doc, file).read(most);
  e.hash = blake3(text);
  return e;
}

Experiment readExperiment(const std::string &file, int64_t most) {
  return parseExperiment(readInput(file, "experiment", kConfigLimit), file, most);
}

}  // namespace gptc
