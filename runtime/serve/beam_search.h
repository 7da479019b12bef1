// The likeliest continuations of a prompt.
#pragma once

#include "runtime/serve/cached_model.h"

#include <cstdint>
#include <vector>

namespace gptc {

struct BeamOptions {
  int64_t beams = 4;  // sequences that are followed at once, each in a slot; and how many are returned
  int64_t maxTokens = 256;
  double lengthPenalty = 1;  // the score is the sum of log-probabilities / length^lengthPenalty
  int64_t tokens = 0;        // only ids below this; 0: all of the model's
  int32_t endToken = -1;     // a sequence that has it is complete; -1: none
};

struct Hypothesis {
  std::vector<int32_t> tokens;          // behind the prompt, with the end token if it has one
  std::vector<float> logProbabilities;  // of these
  double score = 0;
};

/// Beam search (Graves 2012, Sutskever et al. 2014): of all continuations of the sequences followed by a token, the
/// likeliest go on. Returns the best by their scores, falling; of equal ones those found first. It ends at maxTokens,
/// at the end of the context, or once as many sequences are complete as there are beams and no other, at its present
/// length, has a better score than the worst of them. The prompt must be shorter than the context, and the model have a
/// slot for each beam. Deterministic: of equal candidates that of the earlier beam comes first, then the smaller id.
std::vector<Hypothesis> beamSearch(CachedModel &model, const std::vector<int32_t> &prompt, const BeamOptions &options);

}  // namespace gptc
