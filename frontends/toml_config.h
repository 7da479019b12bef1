// model.toml: a user's description of a model and its training. ir/settings/settings.h is the table of its keys,
// docs/keys.md the same for readers.
//
// Values come from, in ascending priority: the defaults in the table, the preset, the file named by `extends`, the file
// itself, --set. "auto" and "cached" mean what is built today, and are resolved here; an explicit value that is not
// built yet is an error (NotBuiltYet). Reports all independent errors together.
#pragma once

#include "frontends/toml_document.h"
#include "ir/settings/settings.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct Config : Settings {
  std::string file;
  /// The names of model.labels: those that data.labels names, else LABEL_0, LABEL_1, ...
  std::vector<std::string> labels;
  /// Values that are allowed but probably unintended, one line each.
  std::vector<std::string> warnings;
  /// The written keys with their locations, for later messages.
  std::map<std::string, TomlValue> written;
  /// Whether the key is written as "auto".
  bool isAuto(const std::string &key) const;
  /// Whether the key is written with another value.
  bool fixes(const std::string &key) const { return written.count(key) && !isAuto(key); }
  /// Location of a key's value; that of the file if the key is absent.
  SourceLoc where(const std::string &key) const;
};

/// The purpose of reading a configuration. A forecast may be for any machine, software and number of ranks: it accepts
/// values that are not built yet, and missing data.
enum class ConfigPurpose { run, forecast };

/// Reads a model file with its bases and applies `settings` (key=value, paths relative to the working directory). For a
/// .gir file, which describes the model itself, and for "", uses the settings only; data.train may be missing then.
/// `tokenizerVocab` returns the vocabulary size of a tokenizer file; it is called if model.vocab_size is absent, or to
/// compare with it. Throws UserError with every problem.
Config loadConfig(const std::string &file, const std::vector<std::string> &settings,
                  const std::function<int64_t(const std::string &tokenizer)> &tokenizerVocab,
                  ConfigPurpose purpose = ConfigPurpose::run);

/// 4 n_embd. If gated, 8/3 n_embd, which has as many parameters, rounded up to a multiple of 256 (of 32 below a width
/// of 512), like Llama (Touvron et al. 2023).
int64_t defaultFfnDim(const ModelConfig &m);

/// The "auto" micro-batch: the largest divisor of the global batch with at most 8192 tokens whose activations,
/// estimated as 24 values of width n_embd per token and layer plus twice the logits, stay below 4 GiB; at least one
/// sequence. For a GPU four times as much of both, from where the compiler searches for the largest that fits
/// (tools/planner/micro_batch.h).
int64_t autoMicroBatch(const ModelConfig &m, int64_t sequencesPerStep, bool gpu);

/// The settings that determine the graph: loadConfig("", these) gives the same sizes, batch, optimizer, precision and
/// compile options, without data and run settings.
std::vector<std::string> modelSettings(const Config &config);

/// All keys of model.toml.
const std::vector<std::string> &configKeys();

}  // namespace gptc
