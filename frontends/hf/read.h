// Reads what a config.json says of [model], by the table of its family.
#pragma once

#include "frontends/hf/family.h"
#include "support/diagnostics.h"

#include <functional>

namespace gptc::hf {

/// What config.json says of one key of [model].
struct Said {
  json value;        // of [model]
  std::string what;  // where: `n_layer = 3`; `no n_inner, which in model_type = "gpt2" means 3072`
  /// Set if it follows from other keys of [model], and how.
  std::function<json(const ModelValues &)> derived;
};

struct Reading {
  /// By key of [model]; keys of which config.json says nothing that can be expressed are absent, and a problem says
  /// why. `block_size` is the number of positions, if the family has a key for it.
  std::map<std::string, Said, std::less<>> said;
  /// Keys that nothing knows, values that are not built, keys that contradict each other: without a place, each with
  /// the file's name, the key and its value.
  std::vector<Diagnostic> problems;
  /// The number of positions as config.json has it. The block_size of a family without a table of positions is at most
  /// what [model] takes.
  int64_t context = 0;

  /// Values as `settle` leaves them.
  ModelValues values() const;
};

/// `file`: for messages. `block`: the context of the model that is to take the weights, which decides whether a window
/// hides anything; 0: all positions that config.json speaks of.
Reading read(const std::string &file, const json &config, const Family &family, int64_t block);

}  // namespace gptc::hf
