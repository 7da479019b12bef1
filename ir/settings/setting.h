// The description of a key of model.toml: its name, the member that holds its value, its type and range, and its
// meaning. ir/settings/settings.h has one for every key.
#pragma once

#include "support/diagnostics.h"
#include "support/enum_words.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gptc {

/// Types of values.
namespace values {

/// A word that may be written instead of a number, and the number that the member gets.
struct Word {
  std::string text;
  double value;
};

struct Integer {
  int64_t least, most;
  std::vector<Word> words;
  bool tokens = false;  // may also be a text that parseWholeTokens reads: "512K"
  bool steps = false;   // may also be a text of frontends/schedule_steps.h: "2%" of train.steps, or "10M tokens"
};

struct Bound {
  double value;
  bool open;  // the value itself is outside
};
inline Bound atLeast(double x) { return {x, false}; }
inline Bound above(double x) { return {x, true}; }
inline Bound atMost(double x) { return {x, false}; }
inline Bound below(double x) { return {x, true}; }

struct Number {
  Bound least, most;
  std::vector<Word> words;
  /// False for NaN.
  bool holds(double x) const {
    return (least.open ? x > least.value : x >= least.value) && (most.open ? x < most.value : x <= most.value);
  }
};

/// A list of `count` numbers, each at least `least` and below `most`; with `orNone` also the empty list.
struct Numbers {
  unsigned count;
  double least, most;
  bool orNone = false;
};

/// A list of any number of integers, in rising order.
struct Integers {
  int64_t least, most;
};

/// true or false; with `orAuto` also "auto".
struct Boolean {
  bool orAuto = false;
};

/// One of the words in `built`. Words in `later` are not built yet: outside forecasts they are an error.
struct Choice {
  std::vector<std::string> built, later;
};

/// What text may look like.
struct Form {
  std::string description;
  std::string pattern;  // a regular expression of JSON Schema (ECMA-262)
};

/// One of the words, or text of one of the forms; any text if there are neither.
struct Text {
  std::vector<std::string> words;
  std::vector<Form> forms;
};

/// A file or folder. Relative to the folder of the file that names it, or to the working folder if --set does.
struct Path {};

/// A pattern on names of parameters, or a list of them; with `orNone` also the empty list.
struct Patterns {
  bool orNone = false;
};

/// [[key]]: any number of tables, of the keys that groupKeys lists.
struct Tables {};

}  // namespace values

using ValueType = std::variant<values::Integer, values::Number, values::Numbers, values::Integers, values::Boolean,
                               values::Choice, values::Text, values::Path, values::Patterns, values::Tables>;

/// A member of an enum class with words, whatever enum it is.
class WordMember {
public:
  template <Worded E>
  explicit WordMember(E &member)
      : at(&member), words(wordsOf<E>), index([](const void *e) { return size_t(*static_cast<const E *>(e)); }),
        assign([](void *e, size_t i) { *static_cast<E *>(e) = E(i); }) {}
  std::string word() const { return words[index(at)]; }
  /// `word` must be a word of the enum (else InternalError).
  void set(const std::string &word) const;

private:
  void *at;
  llvm::ArrayRef<const char *> words;
  size_t (*index)(const void *);
  void (*assign)(void *, size_t);
};

/// The two members that hold a list of two numbers.
struct NumberPair {
  double *first, *second;
};

/// Patterns on names of parameters (frontends/parameter_groups.h), each with its place.
using PatternList = std::vector<std::pair<std::string, SourceLoc>>;

/// The member that holds a value; monostate: no member of a plain type.
using Member = std::variant<std::monostate, int64_t *, double *, bool *, std::string *, WordMember, NumberPair,
                            std::vector<int64_t> *, PatternList *, std::optional<bool> *, std::optional<double> *,
                            std::optional<std::pair<double, double>> *>;

/// The value of a key that is not written, in words. Without this it is the member's initial value.
struct Otherwise {
  std::string words;
};

/// The key is kept in a plan's manifest, under this name.
struct InPlan {
  std::string name;
  /// Plans of schema 2 that are older than this key lack it and get the default. True for every key that is added
  /// without a new schema.
  bool newer = false;
};

struct Setting {
  std::string key;  // "eval.every"
  Member member;
  ValueType type;
  std::string meaning;
  Otherwise otherwise;
  InPlan inPlan;  // without a name: not in manifests

  /// "eval"; "" for a key outside tables. "optimizer.group" for a group's.
  std::string section() const { return key.find('.') == std::string::npos ? "" : key.substr(0, key.rfind('.')); }
  /// "every".
  std::string leaf() const { return key.substr(key.rfind('.') + 1); }
};

}  // namespace gptc
