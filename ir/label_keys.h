// The keys of [model], and the facts of a module, that say what a classifier learns of labels.
#pragma once

#include "ir/facts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

namespace gptc {

constexpr const char *kLabelKeys[] = {FactAt<&ModelFacts::labels>::name, FactAt<&ModelFacts::problemType>::name,
                                      FactAt<&ModelFacts::classifierPooling>::name};

/// `key`: without "model.".
inline bool isLabelKey(llvm::StringRef key) {
  return llvm::any_of(kLabelKeys, [&](const char *one) { return key == one; });
}

}  // namespace gptc
