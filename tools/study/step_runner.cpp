#include "tools/study/step_runner.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/random.h"
#include "runtime/checkpoint/state.h"
#include "support/diagnostics.h"
#include "support/median.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gptc {

Spread spreadOf(const std::vector<double> &values) {
  if (values.empty())
    return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {medianOf(values), *least, *most};
}

static Plan planOf(std::unique_ptr<Module> planned, const Target &target) {
  if (const int64_t ranks = Mesh::of(*planned).ranks(); ranks > 1)
    throw UserError(
        ErrorCode::NotBuiltYet,
        fmt::format("steps of one rank are measured, and this plan is for {}: more is not built yet", ranks),
        "--set parallel.data=1 --set parallel.tensor=1 measures one");
  Plan plan;
  plan.planned = std::move(planned);
  plan.target = target;
  return plan;
}

StepRunner::StepRunner(std::unique_ptr<Module> planned, const Target &target, const std::string &cacheDir,
                       unsigned threads)
    : session(planOf(std::move(planned), target), cacheDir, threads) {
  const Module &p = *session.plan.planned;
  accumulate = fact<&BatchFacts::accumulate>(p);
  sequences = fact<&BatchFacts::microBatch>(p);
  if (const Function *f = p.function(accumulate > 1 ? "accumulate" : "train_step"))  // none if it continues texts
    fillBatch(*f);
  session.executor.prepare({"train_step", "accumulate", "update"});
  initializeStates(session.executor, 1337);
}

void StepRunner::fillBatch(const Function &f) {
  const Module &p = *session.plan.planned;
  const auto model = factsOf<ModelFacts>(p);
  const int64_t T = model.blockSize, perRow = f.body.args[1]->type.dim(1);
  const bool areBits = model.problemType == ProblemType::multi_label_classification;
  const int64_t values = !model.labels ? model.vocabSize : areBits ? 2 : model.labels;  // that a target may have
  auto draw = [](uint32_t stream, int64_t i, int64_t below) {
    return int32_t(randomBits(randomKey(7, 0, stream, 0), uint64_t(i)) % uint64_t(below));
  };
  batch.emplace(f);
  for (int64_t b = 0; b < sequences; ++b) {
    const SequenceRow row = batch->row(b);
    for (int64_t t = 0; t < T; ++t)
      row.x[t] = draw(1, b * T + t, model.vocabSize);
    for (int64_t t = 0; row.y && t < perRow; ++t)
      row.y[t] = draw(0, b * perRow + t, values);
    if (row.number)
      row.number[0] = float(draw(0, b, 5));
    for (int64_t t = 0; row.documents && t < T; ++t) {  // a text of all tokens
      row.documents[2 * t] = row.types[t] = 0;
      row.documents[2 * t + 1] = T;
    }
  }
  valid = float(accumulate * sequences * perRow);
}

double StepRunner::step() {
  const auto start = std::chrono::steady_clock::now();
  const char *last = accumulate > 1 ? "update" : "train_step";
  for (int64_t k = 0; k < accumulate; ++k) {
    const int64_t first = k * sequences;
    session.executor.run(accumulate > 1 ? "accumulate" : last, batch->args({&first, &valid}));
  }
  if (accumulate > 1)
    session.executor.run(last, {&valid});
  std::memcpy(&loss, session.executor.result(last, 0), sizeof loss);  // waits for a GPU, which run() does not
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace gptc
