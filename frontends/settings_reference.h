// The table of keys (ir/settings/settings.h) for people and editors: `gptc config`, docs/keys.md, and a JSON Schema.
#pragma once

#include "frontends/toml_config.h"

#include <optional>
#include <string>

namespace gptc {

/// The keys of model.toml and those of an [[optimizer.group]], with the values that hold if nothing is written.
/// Every function below picks up a new key by itself.
struct KeyReference {
  Settings settings;
  ParameterGroup group;
  std::vector<Setting> keys = keysOf(settings), groupKeys = keysOf(group);
  KeyReference() = default;
  KeyReference(const KeyReference &) = delete;  // the keys point at the members
};

/// What values a type takes, in words: "integer, 1 to 1000".
std::string typeText(const ValueType &type);

/// The value that a key's member holds, as model.toml would say it; nullopt if there is none to write.
std::optional<TomlValue> valueOf(const Setting &s);

/// One entry per key: name, type and range, [default], meaning. For a terminal.
std::string keyList(const KeyReference &keys);

/// docs/keys.md.
std::string keysPage(const KeyReference &keys);

/// A JSON Schema (draft 2020-12) of model.toml.
std::string keySchema(const KeyReference &keys);

/// A model file that says what holds with `config`: every key that has a value, each with a comment that tells where
/// the value comes from. Reading it gives the same settings; what "auto" left open is decided in it. Paths are
/// absolute.
std::string resolvedFile(const Config &config);

}  // namespace gptc
