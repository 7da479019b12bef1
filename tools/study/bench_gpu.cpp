#include "tools/study/bench_gpu.h"

#include "codegen/codegen.h"
#include "frontends/cluster_config.h"
#include "ir/facts.h"
#include "ir/random.h"
#include "passes/analysis/cost.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/device/profile.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/study/kernel_times.h"
#include "tools/study/step_runner.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

/// Valid arguments for a function: tokens of the vocabulary, 0 for positions and sequence numbers, the number of
/// targets of a step.
class Arguments {
public:
  Arguments(const Module &m, const Function &f) {
    const uint64_t vocab = uint64_t(fact<&ModelFacts::vocabSize>(m));
    const float targets =
        float(fact<&BatchFacts::microBatch>(m) * fact<&ModelFacts::blockSize>(m) * fact<&BatchFacts::accumulate>(m));
    for (const auto &arg : f.body.args) {
      const Type &t = arg->type;
      std::vector<std::byte> &bytes = memory.emplace_back(size_t(t.bytes()));
      const int64_t n = t.paddedElements();
      for (int64_t i = 0; t.dtype == DType::i32 && i < n; ++i)
        reinterpret_cast<int32_t *>(bytes.data())[i] = int32_t(randomBits(randomKey(11, 0, 0, 0), i) % vocab);
      for (int64_t i = 0; t.dtype == DType::f32 && i < n; ++i)
        reinterpret_cast<float *>(bytes.data())[i] = targets;
    }
    for (const auto &m : memory)
      pointers.push_back(m.data());
  }
  std::vector<const void *> pointers;

private:
  std::vector<std::vector<std::byte>> memory;
};

std::string computeOf(const Op &fused) {
  const KernelClass c = classOf(fused);
  if (c != KernelClass::matmul && c != KernelClass::attention && c != KernelClass::attention_grad)
    return "";
  switch (operandsOf(fused)) {
  case DType::bf16:
    return "bf16";
  case DType::f16:
    return "fp16";
  case DType::f8e4m3:
    return "";  // no roof is measured
  default:
    for (const Op &op : *fused.body)
      if (op.attrs.getBool("tf32"))
        return "tf32";
    return "fp32";
  }
}

}  // namespace

bool GpuKernelReport::memoryBound(const GpuKernelRow &row) const {
  auto it = peaks.find(row.compute);
  return it == peaks.end() || it->second.flops() <= 0 || row.bytes / copy > row.flops / it->second.flops();
}

double GpuKernelReport::ofRoof(const GpuKernelRow &row) const {
  if (!row.timed() || copy <= 0)
    return 0;
  const double least = memoryBound(row) ? row.bytes / copy : row.flops / peaks.at(row.compute).flops();
  return least / (1e-3 * row.time.ms);
}

double GpuKernelReport::kernelsMs() const {
  double sum = 0;
  for (const GpuKernelRow &row : rows)
    sum += row.stepMs();
  return sum;
}

// 1. Time the step as it runs, in its graphs.
// 2. Run every function kernel by kernel, those of the step first, and time each distinct kernel when it appears.
// 3. Measure the roofs last, once the step has its memory: copies and products use what is left.
GpuKernelReport benchGpuKernels(Plan plan, const std::string &cacheDir, unsigned threads, int calls) {
  GpuKernelReport report;
  report.calls = calls;
  const Target target = plan.target;
  report.runner = std::make_unique<StepRunner>(std::move(plan.planned), target, cacheDir, threads);
  StepRunner &runner = *report.runner;
  Session &session = runner.session;
  const Module &m = *session.plan.planned;
  auto &executor = static_cast<cuda::CudaExecutor &>(session.executor);
  report.device = executor.hardware().name;
  runner.step();
  std::vector<double> seconds;
  for (int i = 0; i < 3; ++i)
    seconds.push_back(runner.step());
  report.stepMs = 1e3 * spreadOf(seconds).median;

  cuda::KernelBench bench(calls);
  executor.observer = &bench;
  for (bool inStep : {true, false})
    for (const auto &f : m.functions)
      if ((callsPerStep(m, f->name) > 0) == inStep)
        executor.run(f->name, Arguments(m, *f).pointers);
  executor.observer = nullptr;

  std::map<std::string, double> perStep;
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::fused))
        perStep[groupKey(op)] += callsPerStep(m, f->name);
  const MachineRates rates = ratesOf(target);
  for (cuda::KernelTime &t : bench.times) {
    const Op &op = *t.op;
    const KernelCost cost = costOf(op, rates);
    GpuKernelRow row;
    row.place = describe(op), row.shapes = shapesOf(op);
    row.library = t.symbols == "cuBLASLt" || t.symbols == "cuDNN";
    row.calls = perStep.at(groupKey(op));
    row.flops = cost.flops, row.bytes = cost.bytes;
    row.compute = computeOf(op);
    row.time = std::move(t);
    report.rows.push_back(std::move(row));
  }
  report.copy = cuda::measureCopy(executor.hardware());
  for (const GpuKernelRow &row : report.rows)
    if (!row.compute.empty() && !report.peaks.count(row.compute)) {
      const Peak p = executor.peak(row.compute).get();
      report.peaks[row.compute] = {p.flops, executor.sheetPeak(row.compute).flops, p.date};
    }
  llvm::stable_sort(report.rows, [](const GpuKernelRow &a, const GpuKernelRow &b) {
    return std::pair(a.stepMs(), a.time.ms) > std::pair(b.stepMs(), b.time.ms);
  });
  return report;
}

std::string tableOf(const GpuKernelReport &r) {
  const double all = r.kernelsMs();
  std::string text = fmt::format("{:<40} {:<24} {:<16} {:>6} {:>9} {:>9} {:>6} {:>8} {:>8} {:<7} {:>6}  {}\n", "kernel",
                                 "shapes", "first in plan", "calls", "ms", "ms/step", "share", "GB/s", "TFLOP/s",
                                 "roof", "% of it", "on the GPU");
  double most = 0;
  for (const GpuKernelRow &row : r.rows) {
    text += fmt::format("{:<40.40} {:<24.24} {:<16} {:>6} ", row.place, row.shapes, row.time.name, row.calls);
    if (!row.timed()) {
      text += fmt::format("not timed: {}\n", row.time.skipped);
      continue;
    }
    const double s = 1e-3 * row.time.ms, share = r.ofRoof(row);
    most = std::max(most, share);
    text +=
        fmt::format("{:>9.4f} {:>9.3f} {:>5.1f}% {:>8.0f} {:>8.1f} {:<7} {:>5.1f}%  {}\n", row.time.ms, row.stepMs(),
                    all > 0 ? 100 * row.stepMs() / all : 0, 1e-9 * row.bytes / s, 1e-12 * row.flops / s,
                    r.memoryBound(row) ? "memory" : row.compute, 100 * share, row.time.symbols);
  }
  text +=
      fmt::format("\n{}: each kernel {} times in a graph, its memory in turn at several places; copies reach {:.0f} "
                  "GB/s, read and written",
                  r.device, r.calls, 1e-9 * r.copy);
  for (const auto &[compute, peak] : r.peaks) {
    if (peak.measured > 0)
      text += fmt::format("; {} {} by cuBLASLt's product, measured {}", compute, formatFlops(peak.measured), peak.date);
    if (peak.sheet > 0)
      text += fmt::format("{} {} by the data sheet", peak.measured > 0 ? "," : fmt::format("; {}", compute),
                          formatFlops(peak.sheet));
  }
  text += fmt::format("\nstep: {:.3f} ms of kernels one after the other, {:.3f} ms as it runs\n", all, r.stepMs);
  if (most > 1)
    text += "above 100% of a roof: what a kernel reads or writes twice it finds in the cache\n";
  return text;
}

std::string jsonOf(const GpuKernelReport &r) {
  json peaks = json::object(), kernels = json::array();
  for (const auto &[compute, peak] : r.peaks)
    peaks[compute] = {{"measured_flops", peak.measured}, {"measured", peak.date}, {"sheet_flops", peak.sheet}};
  for (const GpuKernelRow &row : r.rows) {
    json k = {{"place", row.place},
              {"shapes", row.shapes},
              {"kernel", row.time.name},
              {"symbols", row.time.symbols},
              {"library", row.library},
              {"class", nameOf(classOf(*row.time.op))},
              {"schedule", fact<&GroupFacts::schedule>(*row.time.op)},
              {"calls", row.calls},
              {"flops", row.flops},
              {"bytes", row.bytes}};
    if (row.timed()) {
      const double s = 1e-3 * row.time.ms;
      k["ms"] = row.time.ms, k["least_ms"] = row.time.least, k["most_ms"] = row.time.most;
      k["ms_per_step"] = row.stepMs();
      k["gb_per_s"] = 1e-9 * row.bytes / s, k["tflops"] = 1e-12 * row.flops / s;
      k["roof"] = r.memoryBound(row) ? "memory" : row.compute;
      k["of_roof"] = r.ofRoof(row);
      k["copies"] = row.time.copies, k["copy_bytes"] = row.time.bytes;
    } else {
      k["skipped"] = row.time.skipped;
    }
    kernels.push_back(std::move(k));
  }
  return json{{"device", r.device}, {"calls", r.calls},    {"copy_bytes_per_s", r.copy},
              {"peaks", peaks},     {"step_ms", r.stepMs}, {"kernels_ms", r.kernelsMs()},
              {"kernels", kernels}}
             .dump(2) +
         "\n";
}

}  // namespace gptc
