// A TOML file as a flat list of dotted keys with source locations: all that the rest of gptc sees of TOML. toml++ stays
// in toml_document.cpp, because it takes seconds to compile.
#pragma once

#include "support/diagnostics.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gptc {

struct TomlMember;
/// The keys of a table inside an array, sorted by name.
using TomlTable = std::vector<TomlMember>;

struct TomlValue {
  /// monostate: a type that no key has (a date).
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<TomlValue>, TomlTable> value;
  SourceLoc key;    // location of the key
  SourceLoc where;  // location of the value
  /// For messages: "a string", "an integer", ...
  const char *kind() const;
  /// The value as TOML text. Not for monostate.
  std::string text() const;
};

struct TomlMember {
  std::string name;
  TomlValue value;
};

struct TomlDocument {
  std::string file;                         // as given
  std::map<std::string, TomlValue> values;  // by dotted key: "model.n_layer"
  std::map<std::string, SourceLoc> tables;  // every [table] in the file, by dotted name
};

/// Reads and parses a file. Throws UserError(FileMissing, TomlSyntax).
TomlDocument parseTomlFile(const std::string &file);
TomlDocument parseToml(const std::string &text, const std::string &file);

/// Parses one `key=value` of the command line: a dotted key and a TOML value; other text counts as a string. Throws
/// UserError(Usage) if the key or the `=` is missing.
std::pair<std::string, TomlValue> parseSetting(const std::string &setting);

}  // namespace gptc
