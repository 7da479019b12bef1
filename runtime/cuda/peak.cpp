#include "runtime/cuda/peak.h"

#include "codegen/cuda/libraries.h"
#include "ir/gpu_sheets.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/random_memory.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace gptc::cuda {

namespace {

constexpr int64_t smallest = 128, largest = 8192;  // n
constexpr double longest = 60e-3;                  // seconds per product
constexpr double roundSeconds = 20e-3;
constexpr int rounds = 3, mostCalls = 8;

class Stopwatch {
public:
  explicit Stopwatch(const Gpu &gpu) : gpu(gpu), begin(gpu, eventDefault), end(gpu, eventDefault) {}
  /// Seconds that the work of `enqueue` takes on the stream.
  template <class F> double time(F enqueue) const {
    gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    enqueue();
    gpu.d.check(gpu.d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    return std::max(1e-3 * double(ms), 1e-7);
  }

private:
  const Gpu &gpu;
  EventHandle begin, end;
};

class Products {
public:
  Products(const Gpu &gpu, llvm::StringRef compute)
      : gpu(gpu), watch(gpu), tf32(compute == "tf32"), dtype(compute == "bf16"   ? DType::bf16
                                                             : compute == "fp16" ? DType::f16
                                                                                 : DType::f32) {
    lt.check(lt.create(&handle), "cublasLtCreate");
  }
  ~Products() {
    gpu.d.streamSynchronize(gpu.stream);
    lt.destroy(handle);
  }
  Products(const Products &) = delete;

  /// Seconds of a product of that size: one run of the library's first algorithm, or the best of all algorithms.
  /// nullopt if memory or the library do not allow it.
  std::optional<double> seconds(int64_t n, bool atBest) const {
    try {
      return secondsOf(n, atBest);
    } catch (const UserError &e) {
      if (e.diagnostics[0].code == ErrorCode::OutOfMemory)
        return std::nullopt;
      throw;
    }
  }

private:
  std::optional<double> secondsOf(int64_t n, bool atBest) const {
    const size_t bytes = size_t(n * n) * size_t(sizeOf(dtype));
    const DeviceMemory a(gpu, bytes), b(gpu, bytes), d(gpu, bytes), workspace(gpu, size_t(libraryWorkspace));
    RandomMemory random(gpu, bytes);
    random.fill(a.at, bytes, dtype);
    random.fill(b.at, bytes, dtype);
    CublasLtMatmul m;
    m.m = m.n = m.k = n;
    CublasLtMatmul::Matrix *const all[] = {&m.a, &m.b, &m.d};
    for (unsigned i = 0; i < 3; ++i) {
      all[i]->param = i, all[i]->dtype = dtype;
      all[i]->rows = all[i]->cols = all[i]->ld = n;
    }
    m.tf32 = tf32;
    const MatmulCall call(handle, m, {a.at, b.at, d.at}, workspace.at, size_t(libraryWorkspace));
    std::optional<double> best;
    for (unsigned algorithm = 0; algorithm < call.algorithms(); ++algorithm) {
      if (call.tryEnqueue(gpu.stream, algorithm) != ltSuccess)
        continue;
      gpu.wait();
      const double once = watch.time([&] { call.enqueue(gpu.stream, algorithm); });
      best = std::min(best.value_or(once), once);
      if (!atBest)
        break;
      const int calls = std::clamp(int(roundSeconds / once), 1, mostCalls);
      for (int round = 0; round < rounds; ++round)
        best = std::min(*best, watch.time([&] {
          for (int i = 0; i < calls; ++i)
            call.enqueue(gpu.stream, algorithm);
        }) / calls);
    }
    return best;
  }

  const Gpu &gpu;
  const CublasLt &lt = CublasLt::get();
  const Stopwatch watch;
  LtHandle handle = nullptr;
  const bool tf32;
  const DType dtype;
};

}  // namespace

// 1. Double n while the next product is expected to end in time.
// 2. Time the largest n by each algorithm.
ProductPeak measureProduct(const Gpu &gpu, llvm::StringRef compute) {
  ProductPeak best;
  if (!CudaLibrary::find(CudaLibraryId::cublasLt))
    return best;
  const Products products(gpu, compute);
  for (int64_t n = smallest; n <= largest; n *= 2) {
    const std::optional<double> seconds = products.seconds(n, false);
    if (!seconds)
      break;
    best.n = n;
    if (8 * *seconds > longest)
      break;
  }
  if (best.n)
    if (const std::optional<double> seconds = products.seconds(best.n, true))
      best.flops = 2 * std::pow(double(best.n), 3) / *seconds;
  return best;
}

SheetPeak sheetPeak(llvm::StringRef gpu, llvm::StringRef compute) {
  const GpuSheet *s = gpuSheet(gpu);
  if (!s || (s->arch == "sm_75" && (compute == "bf16" || compute == "tf32")))
    return {};
  return {1e12 * (compute == "fp32" ? s->fp32 : compute == "tf32" ? s->tf32 : s->half), s->name.str()};
}

double measureCopy(const Gpu &gpu) {
  const Stopwatch watch(gpu);
  const size_t bytes = std::clamp<size_t>(gpu.available() / 4, 1 << 20, size_t(1) << 30) / 4096 * 4096;
  const DeviceMemory from(gpu, bytes), to(gpu, bytes);
  RandomMemory(gpu, bytes).fill(from.at, bytes, DType::f32);
  double best = 0;
  for (int i = 0; i < 6; ++i)
    best = std::max(best, 2 * double(bytes) / watch.time([&] {
      gpu.d.check(gpu.d.copyOnDevice(to.at, from.at, bytes, gpu.stream), "cuMemcpyDtoDAsync");
    }));
  return best;
}

PeakRecord peakOfGpu(const Gpu &gpu, llvm::StringRef compute, const std::string &cacheDir) {
  const CudaLibrary &library = CudaLibrary::find(CudaLibraryId::cublasLt);
  return {cacheDir,
          fmt::format("{} {} {} multiprocessors driver {} cublaslt {} product {}", gpu.name, gpu.cpu,
                      gpu.multiprocessors, CudaLibrary::get(CudaLibraryId::driver).version.str(),
                      library ? library.version.str() : "none", compute.str()),
          [&gpu, compute = compute.str()] { return measureProduct(gpu, compute).flops; }, "cuBLASLt's product"};
}

}  // namespace gptc::cuda
