#include "runtime/train/train_step.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "support/diagnostics.h"

#include <bit>
#include <cstring>
#include <utility>

namespace gptc {

TrainStep::TrainStep(Session &session, const TokenData &data)
    : s(session), m(*s.plan.planned), data(data), seed(s.plan.run.seed), B(fact<&BatchFacts::microBatch>(m)),
      T(fact<&ModelFacts::blockSize>(m)), accumulate(fact<&BatchFacts::accumulate>(m)),
      shards(fact<&ParallelFacts::shards>(m)), x(B * T), y(B * T) {}

TokenData TrainStep::dataOf(const Plan &plan) {
  const int64_t T = fact<&ModelFacts::blockSize>(*plan.planned);
  return TokenData(plan.run.trainData, "data.train", fact<&ModelFacts::vocabSize>(*plan.planned), T, T + 1,
                   maskToken(*plan.planned));
}

std::vector<std::string> TrainStep::functions() const {
  std::vector<std::string> names = {"train_step", "accumulate", "update"};
  for (const auto &f : m.functions)
    if (llvm::StringRef(f->name).starts_with("fold"))
      names.push_back(f->name);
  return names;
}

int64_t TrainStep::global() const { return Mesh::of(m).data * accumulate * B; }

/// Loads the windows of the micro-batch that begins with sequence `first` of the run, unless they are loaded already.
void TrainStep::load(int64_t first) {
  if (std::exchange(loaded, -1) != first)
    for (int64_t i = 0; i < B; ++i)
      data.window(seed, first + i, &x[i * T], &y[i * T]);
  loaded = first;
}

/// Loads while a step runs, if the executor is asynchronous. Errors are ignored: they occur again when that micro-batch
/// is due, after the running step has been counted.
void TrainStep::loadAhead(int64_t first) {
  try {
    load(first);
  } catch (const UserError &) {
  }
}

StepResult TrainStep::run(int64_t done, bool more) {
  const char *last = accumulate > 1 ? "update" : "train_step";
  const int64_t begin = done * global(), own = s.executor.index("data") * accumulate * B;
  const float targets = float(data.targets(seed, begin, global()));
  for (int64_t k = 0; k < accumulate; ++k) {
    const int64_t sequence = own + k * B, perShard = accumulate / shards;
    load(begin + sequence);
    s.executor.run(accumulate > 1 ? "accumulate" : last, {x.data(), y.data(), &sequence, &targets});
    if (shards > 1 && (k + 1) % perShard == 0 && k + 1 < accumulate)  // the "fold" functions of autodiff
      s.executor.run(fmt::format("fold{}", std::countr_one(uint64_t(k / perShard))), {&targets});
  }
  if (accumulate > 1)
    s.executor.run(last, {&targets});
  if (more)
    loadAhead(begin + global() + own);
  StepResult r;
  float *to[] = {&r.loss, &r.gradNorm, &r.lr, &r.lossScale};
  for (size_t i = 0; i < m.function(last)->results().size(); ++i) {
    std::memcpy(to[i], s.executor.result(last, i), sizeof(float));
    *to[i] = plainNan(*to[i]);
  }
  return r;
}

}  // namespace gptc
