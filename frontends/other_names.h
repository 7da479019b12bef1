// What other programs call the keys and tables of model.toml, for who writes one from memory of theirs.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <string>
#include <vector>

namespace gptc {

struct OtherName {
  const char *theirs;
  const char *ours;  // the key that does the same, or comes nearest to it
  const char *note = "";
};

/// The whole table. Theirs are in small letters and with _ for -.
llvm::ArrayRef<OtherName> otherNames();

/// The entry of `name`, a key without its table or a table, whose name here is among `known`; or null.
const OtherName *nameInOtherPrograms(const std::string &name, const std::vector<std::string> &known);

}  // namespace gptc
