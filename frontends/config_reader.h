// Takes typed values out of the merged keys of a model file and collects every complaint. One call per key of the
// schema; a key that no call asked for is unknown.
#pragma once

#include "frontends/toml_document.h"

#include <functional>
#include <optional>
#include <set>

namespace gptc {

class ConfigReader {
public:
  /// With `laterToo` values of later work are taken like others: for forecasts of what cannot be run yet.
  ConfigReader(std::string file, const std::map<std::string, TomlValue> &values,
               const std::map<std::string, SourceLoc> &tables, bool laterToo = false)
      : laterToo(laterToo), values(values), tables(tables) {
    whole.file = std::move(file);
  }

  // Each leaves `out` alone where the key is not written or wrong.
  void integer(const char *key, int64_t &out, int64_t least, int64_t most);
  /// As integer; the strings in `words` stand for "not written".
  void integerOr(const char *key, int64_t &out, int64_t least, int64_t most, std::vector<std::string> words);
  void number(const char *key, double &out, double least, double most, bool openLeast = false, bool openMost = false);
  void boolean(const char *key, bool &out);
  /// true, false or "auto", as a word.
  void booleanOrAuto(const char *key, std::string &out);
  void string(const char *key, std::string &out);
  /// One of `built`; those in `later` are known but not built yet.
  void choice(const char *key, std::string &out, std::vector<std::string> built, std::vector<std::string> later = {});
  /// A list of `count` numbers.
  void numbers(const char *key, std::vector<double> &out, unsigned count, double least, double most);
  /// Each table of [[key]], through a reader whose keys are key.NAME; complaints about all of them are collected here.
  void eachTable(const char *key, const std::function<void(ConfigReader &)> &read);
  /// A boolean of which only `built` is built.
  void onlyBoolean(const char *key, bool built);

  /// The value as written, or null. Marks the key as known.
  const TomlValue *get(const char *key);
  /// False where the key was complained about.
  bool good(const char *key) const { return !bad.count(key); }
  SourceLoc where(const std::string &key) const;

  void complain(const char *key, ErrorCode code, std::string message, std::string label = "",
                std::vector<std::string> help = {});
  /// Nothing with `laterToo`.
  void notBuilt(const char *key, const std::string &written, const std::vector<std::string> &built);
  void missing(const char *key, std::string help);
  /// Complains about keys and tables that no call asked for. `hints` says of keys that others have why this has not.
  void unknownKeys(const std::map<std::string, std::string> &hints = {});
  /// Throws what was collected, in the order of the text.
  void finish();

  const std::vector<std::string> &keys() const { return known; }
  bool complained() const { return !diagnostics.empty(); }

private:
  void wrongType(const char *key, const TomlValue &v, const char *wanted, std::vector<std::string> help = {});
  const bool laterToo;
  SourceLoc whole;  // where keys stand that are not written
  const std::map<std::string, TomlValue> &values;
  const std::map<std::string, SourceLoc> &tables;
  std::vector<std::string> known;
  std::set<std::string> bad;
  std::vector<Diagnostic> diagnostics;
};

}  // namespace gptc
