#include "runtime/checkpoint/new_layers.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/state_tensors.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <filesystem>
#include <set>

namespace gptc {

/// Whether it has a classifier of labels. Without one a head is that of tokens, which is no new layer.
static bool tellsLabels(const Module &m) {
  return llvm::any_of(savedStates(m, true),
                      [](const State *s) { return llvm::StringRef(s->name).starts_with("classifier."); });
}

std::vector<const State *> takeNewLayers(const Module &m, const TensorFiles &file, std::vector<std::string> &missing) {
  std::vector<const State *> fresh;
  if (!tellsLabels(m))
    return fresh;
  // BERT's head has a pooler, ModernBERT's what may stand before a head of tokens, too.
  for (const char *layer : {"pooler.dense.", "head.dense.", "head.norm.", "classifier."}) {
    std::vector<const State *> all;
    std::set<std::string> names;
    bool whole = true;
    for (const State *s : savedStates(m, true))
      if (llvm::StringRef(s->name).starts_with(layer)) {
        const std::vector<std::string> absent = StateTensors(*s, file, true).missing();
        names.insert(absent.begin(), absent.end());
        whole &= !absent.empty();
        all.push_back(s);
      }
    if (!whole)
      continue;
    fresh.insert(fresh.end(), all.begin(), all.end());
    llvm::erase_if(missing, [&](const std::string &name) { return names.count(name) != 0; });
  }
  return fresh;
}

void requireTrainedLayers(const Module &m, const std::string &path) {
  if (!tellsLabels(m))
    return;
  std::error_code e;
  const TensorFiles file(std::filesystem::is_directory(path, e) ? weightFiles(path) : std::vector{path});
  std::vector<std::string> missing;
  const std::vector<const State *> fresh = takeNewLayers(m, file, missing);
  if (!fresh.empty())
    throw UserError(ErrorCode::FileMissing,
                    fmt::format("the head has not been trained: {} has no {}", path, fresh[0]->name),
                    "run `gptrun PLAN` first");
}

}  // namespace gptc
