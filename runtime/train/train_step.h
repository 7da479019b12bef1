// An optimizer step: the windows of data that it reads, and the functions that it calls.
#pragma once

#include "runtime/data/training_data.h"
#include "runtime/train/sequence_batch.h"
#include "runtime/train/session.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// Makes a NaN positive, because its sign differs between machines and would be printed.
template <typename T> T plainNan(T v) { return std::isnan(v) ? std::fabs(v) : v; }

/// What a step reports: of all ranks, or with outer steps of this one. NaNs are positive.
struct StepResult {
  float loss = 0, gradNorm = 0, lr = 0;
  float lossScale = 0;  // 0: not scaled
  bool finite() const { return std::isfinite(loss) && std::isfinite(gradNorm); }
  /// The loss is finite but gradients overflowed fp16: the optimizer has only halved the scale. At scale 1 it cannot
  /// halve again.
  bool overflowed() const { return std::isfinite(loss) && !std::isfinite(gradNorm) && lossScale > 1; }
};

class TrainStep {
public:
  /// `data`: what the plan trains on. Both must outlive this.
  TrainStep(Session &session, const TrainingData &data);

  /// The training data of a plan. Throws what TokenData and LabelledData throw.
  static std::unique_ptr<TrainingData> dataOf(const Plan &plan);
  /// Data to evaluate a plan with: token files or files of texts with labels that `pattern` names. `key`: of model.toml
  /// or the command line, for messages. Throws the same.
  static std::unique_ptr<TrainingData> evalDataOf(const Plan &plan, const std::string &pattern, const std::string &key);
  /// Names of the functions that steps call.
  std::vector<std::string> functions() const;
  /// Steps from one outer step to the next (passes/outer_steps.cpp); 1: all ranks do every step together.
  const int64_t syncEvery;
  /// Whether all ranks have the same parameters after `done` steps: always, or after an outer step.
  bool isShared(int64_t done) const { return done % syncEvery == 0 || done == s.plan.run.steps; }
  /// The first step after `done` behind which they have.
  int64_t nextShared(int64_t done) const {
    const int64_t next = (done / syncEvery + 1) * syncEvery;
    return done < s.plan.run.steps ? std::min(next, s.plan.run.steps) : next;
  }
  /// The outer step. All ranks must call it together, after each step behind which parameters are shared.
  void synchronize() { s.executor.run("outer", {}); }
  /// Tokens per step, of all ranks.
  int64_t tokens() const { return global() * batch.tokens(); }
  /// Does a step. The states must be those after `done` steps. `more`: another step follows, whose first windows are
  /// loaded while this one runs. Throws the UserErrors of TrainingData::trainingRow; parameters have not changed then.
  StepResult run(int64_t done, bool more);

private:
  Session &s;
  const Module &m;
  const TrainingData &data;
  const uint64_t seed;
  const int64_t accumulate;
  const int64_t whole;  // steps at the beginning that send whole gradients (beginsWhole)
  SequenceBatch batch;
  int64_t loaded = -1;  // number of its first sequence

  /// The function that ends the step after `done` steps.
  const char *lastFunction(int64_t done) const;
  /// Sequences per step. Ranks along "tensor" share theirs.
  int64_t global() const;
  void load(int64_t first);
  void loadAhead(int64_t first);
};

}  // namespace gptc
