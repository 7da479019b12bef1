#include "tools/driver/kernel_times.h"

#include "codegen/peak.h"
#include "ir/diagnostics.h"
#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "runtime/tuning_records.h"

#include <algorithm>
#include <cstring>

namespace gptc {

GroupsByProblem::GroupsByProblem(const Module &m, const Target &target) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused))
        continue;
      const std::string problem = problemOf(op, target).problem;
      ops[problem].push_back(&op);
      problems[&op] = problem;
      calls[problem] += callsPerStep(m, f->name);
    }
}

void TimesByProblem::ran(const BoundKernel &kernel, int64_t begin, int64_t end) {
  times[groups.problems.at(kernel.op)].push_back(1e-6 * double(end - begin));
}

Timing TimesByProblem::timing(const std::string &problem) const {
  auto it = times.find(problem);
  if (it == times.end())
    return {};
  const Spread s = spreadOf(it->second);
  return {1e-3 * s.median, 1e-3 * s.least, 1e-3 * s.most, int(it->second.size())};
}

double TimesByProblem::noise(const std::string &problem) const {
  std::vector<double> v = times.at(problem);
  std::sort(v.begin(), v.end());
  return (v[v.size() * 3 / 4] - v[v.size() / 4]) / (2 * v[v.size() / 2]);
}

double flopsOf(const Op &fused) {
  double sum = 0;
  for (const Op &op : *fused.body)
    if (op.def().cost)
      sum += double(op.def().cost(op).flops);
  return sum;
}

double bytesOf(const Op &fused) {
  double sum = 0;
  for (const Value *v : fused.operands())
    sum += double(v->type.bytes());
  for (unsigned i = 0; i < fused.numResults(); ++i)
    sum += double(fused.result(i)->type.bytes());
  return sum;
}

/// The best of several.
static double copyRate(ThreadPool &pool, const Target &target) {
  const size_t bytes = size_t(std::max<int64_t>(64 << 20, 2 * target.l3Bytes));
  std::vector<char> from(bytes, 1), to(bytes, 2);
  struct Call {
    char *to;
    const char *from;
    size_t each;
  } call{to.data(), from.data(), bytes / 64};
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const int64_t t = monotonicNow();
    pool.run(
        64,
        [](void *c, int64_t begin, int64_t end) {
          auto &call = *static_cast<Call *>(c);
          std::memcpy(call.to + begin * int64_t(call.each), call.from + begin * int64_t(call.each),
                      size_t(end - begin) * call.each);
        },
        &call);
    best = std::max(best, 2e9 * double(bytes) / double(monotonicNow() - t));
  }
  return best;
}

std::string shapesOf(const Op &fused) {
  std::string text;
  for (const Value *v : fused.operands().take_front(2)) {
    std::string one;
    for (const Dim &d : v->type.dims)
      one += fmt::format("{}{}", one.empty() ? "" : "x", d.logical);
    text += (text.empty() ? "" : " ") + one;
  }
  return text;
}

DType operandsOf(const Op &fused) { return fused.numOperands() ? fused.operand(0)->type.dtype : DType::f32; }

MachineSpeed measureSpeed(ThreadPool &pool, const Target &target) {
  return {measurePeakFlops(pool, target), measurePeakFlops(pool, target, DType::bf16), copyRate(pool, target)};
}

}  // namespace gptc
