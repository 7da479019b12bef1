// Writes a config.json that says of [model] what a family can hold of it.
#pragma once

#include "frontends/hf/family.h"

namespace gptc::hf {

/// The keys that determine logits, in the spelling of transformers 4, which transformers 5 reads too, and
/// rope_parameters in that of 5. A value that the family does not hold is left out, or written as one that it holds; to
/// read it back tells which (`differingKeys`). `dropout`: model.dropout.
nlohmann::ordered_json write(const Family &family, const ModelValues &values, double dropout);

/// The keys of [model] that a config.json of this family cannot say of the model, in the order of the table of
/// settings; empty if the family holds it.
std::vector<std::string> differingKeys(const Family &family, const ModelValues &values);

/// The first family that holds the model; null if none does.
const Family *familyOf(const ModelConfig &model);

}  // namespace gptc::hf
