// Reads typed values from the merged keys of a model file and collects all errors. The schema makes one call per key; a
// key without a call is unknown.
#pragma once

#include "frontends/toml_document.h"

#include <functional>
#include <optional>
#include <set>

namespace gptc {

class ConfigReader {
public:
  /// `laterToo`: accept values that are not built yet, for forecasts.
  ConfigReader(std::string file, const std::map<std::string, TomlValue> &values,
               const std::map<std::string, SourceLoc> &tables, bool laterToo = false)
      : laterToo(laterToo), values(values), tables(tables) {
    whole.file = std::move(file);
  }

  // The readers leave `out` unchanged if the key is absent or invalid. `least` and `most` are inclusive unless open.
  void integer(const char *key, int64_t &out, int64_t least, int64_t most);
  /// Like integer; the strings in `words` also count as absent.
  void integerOr(const char *key, int64_t &out, int64_t least, int64_t most, std::vector<std::string> words);
  /// Like integer, also of a text that parseWholeTokens reads.
  void tokens(const char *key, int64_t &out, int64_t least, int64_t most);
  void number(const char *key, double &out, double least, double most, bool openLeast = false, bool openMost = false);
  void boolean(const char *key, bool &out);
  /// true, false or "auto", as a string.
  void booleanOrAuto(const char *key, std::string &out);
  void string(const char *key, std::string &out);
  /// One of `built`. Values in `later` are known but not built: UserError(NotBuiltYet).
  void choice(const char *key, std::string &out, std::vector<std::string> built, std::vector<std::string> later = {});
  /// A list of exactly `count` numbers.
  void numbers(const char *key, std::vector<double> &out, unsigned count, double least, double most);
  /// A list of any number of integers in rising order.
  void integers(const char *key, std::vector<int64_t> &out, int64_t least, int64_t most);
  /// Reads each table of [[key]] through a reader whose keys are key.NAME; collects their errors here.
  void eachTable(const char *key, const std::function<void(ConfigReader &)> &read);

  /// The value as written; null if absent. Marks the key as known.
  const TomlValue *get(const char *key);
  /// Whether the key has no errors.
  bool good(const char *key) const { return !bad.count(key); }
  SourceLoc where(const std::string &key) const;

  void complain(const char *key, ErrorCode code, std::string message, std::string label = "",
                std::vector<std::string> help = {});
  /// Does nothing with `laterToo`.
  void notBuilt(const char *key, const std::string &written, const std::vector<std::string> &built);
  void missing(const char *key, std::string help);
  /// Reports keys and tables that no call asked for. `hints`: explanations for keys that other tables have.
  void unknownKeys(const std::map<std::string, std::string> &hints = {});
  /// Throws the collected errors, in the order of the text.
  void finish();

  const std::vector<std::string> &keys() const { return known; }
  bool complained() const { return !diagnostics.empty(); }

private:
  void wrongType(const char *key, const TomlValue &v, const char *wanted, std::vector<std::string> help = {});
  const bool laterToo;
  SourceLoc whole;  // location of absent keys
  const std::map<std::string, TomlValue> &values;
  const std::map<std::string, SourceLoc> &tables;
  std::vector<std::string> known;
  std::set<std::string> bad;
  std::vector<Diagnostic> diagnostics;
};

}  // namespace gptc
