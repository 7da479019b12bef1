// Copies each key of a merged model file into its member of Settings, as its line of the table in
// ir/settings/settings.h says, and by a rule of its own if the table cannot say all of it.
#pragma once

#include "frontends/config_reader.h"
#include "frontends/toml_config.h"

namespace gptc {

/// Reads one key into the member that its line names, and leaves the member alone if the key is not written or wrong.
void readSetting(ConfigReader &r, const Setting &s);

/// Reads every key, in the order of the table. Complaints are collected by `r`.
void readSettings(ConfigReader &r, Settings &s, ConfigPurpose purpose);

/// " (line 6)" if the key was written in a file.
std::string lineOf(const ConfigReader &r, const char *key);

/// Whether a target is a GPU: "cuda" or "cuda:ARCHITECTURE".
bool namesCuda(llvm::StringRef target);

}  // namespace gptc
