// A TOML file as a flat list of dotted keys, each with the place where it stands. This is all that the rest of gptc
// sees of TOML; toml++ itself stays inside toml_document.cpp, because it takes seconds to compile.
#pragma once

#include "support/diagnostics.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gptc {

struct TomlValue;
/// The keys of a table inside an array, in the order of their names.
using TomlTable = std::vector<std::pair<std::string, TomlValue>>;

struct TomlValue {
  /// monostate: a value that no key of ours takes (a date).
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<TomlValue>, TomlTable> value;
  SourceLoc key;    // the key's text
  SourceLoc where;  // the value's text
  /// "a string", "an integer", ...: for messages.
  const char *kind() const;
  /// As it could stand in a file. Not for monostate.
  std::string text() const;
};

struct TomlDocument {
  std::string file;                         // as given
  std::map<std::string, TomlValue> values;  // by dotted key, e.g. "model.n_layer"
  std::map<std::string, SourceLoc> tables;  // every [table] that was written, by dotted name
};

/// Reads and parses a file. Throws UserError(FileMissing) or UserError(TomlSyntax).
TomlDocument parseTomlFile(const std::string &file);
TomlDocument parseToml(const std::string &text, const std::string &file);

/// One `key=value` of the command line: dotted key, TOML value; what is no TOML value is taken as a string.
/// Throws UserError(Usage) where there is no key or no `=`.
std::pair<std::string, TomlValue> parseSetting(const std::string &setting);

}  // namespace gptc
