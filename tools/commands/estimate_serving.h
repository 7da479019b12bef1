// gptc estimate MODEL --slots N: forecasts `gptrun sample` and `gptrun serve`, on CPUs and GPUs.
#pragma once

#include "tools/compiler/imported_model.h"
#include "tools/estimate/serving.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct ServingRequest {
  std::string model;                        // a model.toml, a plan, a Hugging Face folder or a GGUF file
  std::vector<std::string> settings;        // key=value, of a model.toml
  std::string slots;                        // "1,8,32"
  std::string cluster;                      // a file with the rates of devices; "": this CPU is measured
  int64_t tensor = 1;                       // ranks that share the model, of a cluster
  RunAs as;                                 // of a folder or GGUF file
  int64_t promptTokens = 0, newTokens = 0;  // 0: not given
  unsigned threads = 0;                     // 0: all cores
  bool json = false;
};

/// Numbers of slots, each from 1 to 1024 and once, in the order of the text. Throws UserError(Usage).
std::vector<int64_t> parseSlots(const std::string &text);

/// What `gptrun sample` and `serve` would make servingPlan of. No weights are read, and no tokenizer is needed.
/// `onGpus`: for those of a cluster, whatever the model's own target is. Throws UserErrors: those of loadPlan,
/// importedModel, planOfModel, readConfig and requireGenerator; Usage for options that the model has not; FileMissing;
/// NotBuiltYet for a module, and for a GPU's plan without `onGpus`.
Plan planToServe(const ServingRequest &request, bool onGpus = false);

/// The tokens of each slot; what is not given becomes 512 and 128, or what the context has room for. Throws
/// UserError(Usage) if the context is too short.
ServingLoad loadOf(const ServingRequest &request, int64_t context);

/// Prints the forecast. Throws what these throw, and the UserErrors of loadCluster and of measuring.
void estimateServing(const ServingRequest &request);

}  // namespace gptc
