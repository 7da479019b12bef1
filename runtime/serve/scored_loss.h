// The loss of a set of tokens, by the functions that continue texts.
#pragma once

#include <cstdint>

namespace gptc {

class Executor;
class TrainingData;

/// Mean negative log-likelihood per target over `windows` of the sequences of TrainingData::evalRow, spread evenly (0:
/// all). Unlike @eval (runtime/train/trainer.h) it measures what `gptrun sample` computes with: weights of few bits,
/// the cache.
double scoredLoss(Executor &executor, const TrainingData &data, int64_t windows);

}  // namespace gptc
