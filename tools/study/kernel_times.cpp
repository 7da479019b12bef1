#include "tools/study/kernel_times.h"

#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "runtime/tuning/tuning_records.h"
#include "support/diagnostics.h"
#include "support/median.h"

#include <algorithm>

namespace gptc {

GroupsByProblem::GroupsByProblem(const Module &m, const Target &target) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused) || runsOnHost(op))
        continue;
      const std::string problem = problemOf(op, target).problem;
      ops[problem].push_back(&op);
      problems[&op] = problem;
      calls[problem] += callsPerStep(m, f->name);
    }
}

void TimesByProblem::ran(const BoundKernel &kernel, int64_t begin, int64_t end) {
  if (auto it = groups.problems.find(kernel.op); it != groups.problems.end())
    times[it->second].push_back(1e-6 * double(end - begin));
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
  return (v[v.size() * 3 / 4] - v[v.size() / 4]) / (2 * medianOf(v));
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

MachineSpeed measureArithmetic(ThreadPool &pool, const Target &target, const std::string &cacheDir) {
  return {peakOfCpu(pool, target, DType::f32, cacheDir).get().flops,
          peakOfCpu(pool, target, DType::bf16, cacheDir).get().flops,
          {}};
}

MachineSpeed measureSpeed(ThreadPool &pool, const Target &target, const std::string &cacheDir) {
  MachineSpeed speed = measureArithmetic(pool, target, cacheDir);
  speed.memory = measureMemory(pool, target);
  return speed;
}

std::string noteOnShares(double mostOfPeak, double mostOfMemory) {
  std::string text;
  if (mostOfPeak > 100)
    text += "above 100% of peak: something else ran when the peak was measured; `gptc bench peak` measures it again\n";
  if (mostOfMemory > 100)
    text += "above 100% of memory: the kernel's operands came from the caches\n";
  return text;
}

}  // namespace gptc
