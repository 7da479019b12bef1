#include "runtime/cuda/kernel_bench.h"

#include "codegen/codegen.h"
#include "ir/plan_check.h"
#include "support/diagnostics.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <map>
#include <memory>

namespace gptc::cuda {

namespace {

constexpr uint64_t granule = 256;               // alignment of addresses, in bytes
constexpr size_t leftFree = size_t(256) << 20;  // bytes left free for graphs and for what libraries allocate
constexpr int cachesFull = 3;
constexpr int graphs = 3;  // timed launches

/// A part of the arena that a kernel uses. Operands and results that begin at one place share a part.
struct Part {
  DevicePtr arena = 0;
  size_t bytes = 0, at = 0;  // at: offset within a copy
  bool read = false;
};

/// Several copies of a kernel's memory.
class Copies {
public:
  Copies(const GpuKernel &k, size_t cache, int most) : gpu(*k.gpu), kernel(k) {
    for (size_t i = 0; i < k.memory.size(); ++i) {
      Part &p = parts[k.memory[i].at];
      p.arena = k.params[i];
      p.bytes = std::max(p.bytes, size_t(k.memory[i].bytes));
      p.read |= i < k.op->numOperands();
    }
    for (auto &[place, p] : parts) {
      p.at = each;
      each += llvm::alignTo(std::max<uint64_t>(p.bytes, 1), granule);
    }
    const size_t available = gpu.available(), room = available - std::min(available, std::min(leftFree, available / 2));
    count = int(std::min<size_t>(
        size_t(std::clamp<size_t>(cachesFull * cache / each + 1, 2, size_t(std::max(2, most)))), room / each));
    if (count)
      memory = std::make_unique<DeviceMemory>(gpu, count * each);
  }

  /// The kernel's parameters, pointing into a copy.
  std::vector<DevicePtr> params(int copy) const {
    std::vector<DevicePtr> all;
    for (size_t i = 0; i < kernel.params.size(); ++i)
      all.push_back(i < kernel.memory.size() ? memory->at + copy * each + parts.at(kernel.memory[i].at).at
                                             : kernel.params[i]);
    return all;
  }
  /// Copies what the kernel reads from the arena.
  void fill() const {
    for (int copy = 0; copy < count; ++copy)
      for (const auto &[place, p] : parts)
        if (p.read)
          gpu.d.check(gpu.d.copyOnDevice(memory->at + copy * each + p.at, p.arena, p.bytes, gpu.stream),
                      "cuMemcpyDtoDAsync");
  }

  int count = 0;
  size_t each = 0;

private:
  const Gpu &gpu;
  const GpuKernel &kernel;
  std::map<int64_t, Part> parts;
  std::unique_ptr<DeviceMemory> memory;
};

class CapturedGraph {
public:
  template <class F> CapturedGraph(const Gpu &gpu, F enqueue) : gpu(gpu) {
    gpu.d.check(gpu.d.streamBeginCapture(gpu.stream, captureThreadLocal), "cuStreamBeginCapture");
    enqueue();
    Graph captured = nullptr;
    gpu.d.check(gpu.d.streamEndCapture(gpu.stream, &captured), "cuStreamEndCapture");
    gpu.d.check(gpu.d.graphInstantiate(&graph, captured, 0), "cuGraphInstantiate");
    gpu.d.check(gpu.d.graphDestroy(captured), "cuGraphDestroy");
  }
  ~CapturedGraph() {
    gpu.d.streamSynchronize(gpu.stream);
    gpu.d.graphExecDestroy(graph);
  }
  CapturedGraph(const CapturedGraph &) = delete;
  GraphExec graph = nullptr;

private:
  const Gpu &gpu;
};

}  // namespace

void KernelBench::willRun(const BoundKernel &kernel) {
  if (seen.insert(groupKey(*kernel.op)).second)
    times.push_back(time(static_cast<const GpuKernel &>(kernel)));
}

KernelTime KernelBench::time(const GpuKernel &k) const {
  const Gpu &gpu = *k.gpu;
  KernelTime t;
  t.name = k.name, t.op = k.op, t.symbols = k.symbols();
  if (runsOnHost(*k.op)) {
    t.skipped = "runs on the host";
    return t;
  }
  const Copies copies(k, size_t(gpu.cacheBytes), calls);
  t.copies = copies.count;
  t.bytes = int64_t(copies.each);
  if (!copies.count) {
    t.skipped = fmt::format("{:.2f} GB for a copy of its memory are not free", double(copies.each) * 1e-9);
    return t;
  }
  std::vector<std::function<void(Stream)>> launches;
  for (int copy = 0; copy < copies.count && t.skipped.empty(); ++copy)
    launches.push_back(k.elsewhere(copies.params(copy), t.skipped));
  if (!t.skipped.empty())
    return t;
  copies.fill();
  for (const auto &launch : launches)
    launch(gpu.stream);
  gpu.d.check(gpu.d.streamSynchronize(gpu.stream), k.name.c_str());

  const CapturedGraph graph(gpu, [&] {
    for (int i = 0; i < calls; ++i)
      launches[size_t(i) % launches.size()](gpu.stream);
  });
  const EventHandle begin(gpu, eventDefault), end(gpu, eventDefault);
  std::vector<double> ms;
  for (int i = 0; i <= graphs; ++i) {
    copies.fill();
    gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    gpu.d.check(gpu.d.graphLaunch(graph.graph, gpu.stream), "cuGraphLaunch");
    gpu.d.check(gpu.d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.d.check(gpu.d.streamSynchronize(gpu.stream), k.name.c_str());
    float all = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&all, begin.event, end.event), "cuEventElapsedTime");
    if (i)  // the first one warms up
      ms.push_back(std::max(double(all), 1e-6) / calls);
  }
  std::sort(ms.begin(), ms.end());
  t.ms = ms[ms.size() / 2], t.least = ms.front(), t.most = ms.back();
  return t;
}

}  // namespace gptc::cuda
