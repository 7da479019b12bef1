// What precision.weights changes of a plan: which matrices are kept how, the bytes that their products read, and how
// far they are from the weights that the plan would start from.
#pragma once

#include "runtime/plan/plan.h"
#include "support/json.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// A matrix of a layer, or another weight of a product in few bits.
struct WeightKept {
  std::string name;
  std::string format;           // "q4_k"; "fp32" or "bf16": as it is computed with
  int64_t before = 0;           // bytes as it is computed with
  int64_t after = 0;            // bytes as it is kept, with scales and the padding of panels
  std::optional<double> error;  // relative, root mean square (roundingErrorOf); nullopt: not measured
};

struct WeightsKept {
  std::string weights;               // precision.weights
  std::vector<WeightKept> matrices;  // in the order of the model
  std::string note;                  // of the pass: why some are kept otherwise
  double memory = 0;                 // bytes of the arena of sampling: with few bits minus without
  std::string from;                  // where the weights are from; "": errors were not measured
  std::string unmeasured;            // why
};

/// nullopt for a plan that keeps weights as they are computed with, or that was compiled from a module. With `measure`
/// it loads the weights with which `gptrun sample` would begin (the newest checkpoint, else model.init_from), if there
/// are any and the plan may name their folder; that takes memory for all parameters in f32. Throws UserError(NonFinite)
/// for weights in few bits that are not finite; weights that cannot be loaded are no error.
std::optional<WeightsKept> weightsKeptBy(const Plan &plan, const std::string &cacheDir, bool measure);

/// A table by format, with a line for the sum.
std::string tableOf(const WeightsKept &kept);
nlohmann::ordered_json jsonOf(const WeightsKept &kept);

}  // namespace gptc
