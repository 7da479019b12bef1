// Names of other programs for the keys and tables of model.toml, for users who know those.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <string>
#include <vector>

namespace gptc {

struct OtherName {
  const char *theirs;
  const char *ours;  // the equivalent key, or the nearest to it
  const char *note = "";
};

/// The whole table. `theirs` is in lower case with _ for -.
llvm::ArrayRef<OtherName> otherNames();

/// The entry of `name` (a key without its table, or a table) whose `ours` is among `known`; null if there is none.
const OtherName *nameInOtherPrograms(const std::string &name, const std::vector<std::string> &known);

}  // namespace gptc
