#include "tools/study/step_trace.h"

#include "ir/facts.h"
#include "ir/folds.h"
#include "tools/estimate/expected.h"

#include <cmath>
#include <vector>

namespace gptc {

namespace {

/// The functions of a step in the order of runtime/train/train_step.cpp.
std::vector<const Function *> callsOfStep(const Module &m) {
  const int64_t accumulate = fact<&BatchFacts::accumulate>(m);
  if (accumulate <= 1)
    return {m.function("train_step")};
  std::vector<const Function *> calls;
  for (int64_t k = 0; k < accumulate; ++k) {
    calls.push_back(m.function("accumulate"));
    if (const auto level = foldAfter(m, k))
      calls.push_back(m.function(nameOfFold(*level)));
  }
  calls.push_back(m.function("update"));
  return calls;
}

}  // namespace

Trace expectedTrace(const Module &planned, const Target &target, const MachineRates &rates) {
  const LinkRates link = linkOnOneMachine(target, rates);
  Trace trace(Trace::Of::forecast);
  double at = 0;  // seconds
  auto nanoseconds = [](double seconds) { return int64_t(std::llround(1e9 * seconds)); };
  for (const Function *f : callsOfStep(planned)) {
    GPTC_CHECK(f, "a plan without a function of its step");
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused))
        continue;
      const PlannedStep::Sent sent = sentBy(op);
      const double end = at + (sent.messages > 0 ? sent.seconds(link) : costOf(op, rates).seconds);
      trace.add(op, nanoseconds(at), nanoseconds(end));
      at = end;
    }
  }
  trace.span("step, forecast", 0, nanoseconds(at));
  return trace;
}

}  // namespace gptc
