// What a folder of sentence-transformers (Reimers & Gurevych 2019) says of how vectors of texts are made: modules.json,
// the config.json of its pooling module, sentence_bert_config.json and config_sentence_transformers.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gptc {

struct HfPooling {
  std::optional<std::string> pooling;  // "mean", "cls" or "last"; none: the folder does not say
  bool normalized = false;             // vectors have length 1
  int64_t mostTokens = 0;              // to which longer texts are cut; 0: those of the model
  std::string prompt;                  // stands before each text
};

/// `pooling`: whether that is asked for. Throws UserError: CheckpointDamaged for files that are no such description,
/// NotBuiltYet for modules and poolings that gptc does not know.
HfPooling readHfPooling(const std::string &dir, bool pooling = true);

}  // namespace gptc
