#include "runtime/cuda/peak.h"

#include "ir/diagnostics.h"
#include "runtime/cuda/cuda_executor.h"

#include <algorithm>

namespace gptc::cuda {

PeakKernel peakKernel(const Target &target, llvm::StringRef compute) {
  constexpr int threads = 256, chains = 8;
  // Steps of k that a tensor core takes at once, of a warp's product of 16 rows by 8 columns.
  const int k = compute == "fp16"          ? 16
                : target.architecture < 80 ? 0
                : compute == "bf16"        ? 16
                : compute == "tf32"        ? 8
                                           : 0;
  const char *product = k == 0              ? "for (int j = 0; j < 4; ++j) c[i][j] = fusedMultiplyAdd(x, y, c[i][j]);"
                        : compute == "fp16" ? "mma(f16(), c[i], a, b);"
                        : compute == "bf16" ? "mma(bf16(), c[i], a, b);"
                                            : "mma(0.0f, c[i], a, b);";
  const double operations = chains * (k ? 2.0 * 16 * 8 * k / 32 : 2.0 * 4);
  return {fmt::format(R"(#include "gptc_device.h"
GPTC_KERNEL(peak, {0})(Global<const int> steps, Global<float> out) {{
  const int n = load(steps, 0);
  const unsigned half = 0x3c003c00u + (unsigned)threadIndex();
  const unsigned a[4] = {{half, half, half, half}}, b[2] = {{half, half}};
  const float x = floatOf(half), y = floatOf(0x3f000000u);
  float c[{1}][4] = {{}};
#pragma unroll 1
  for (int s = 0; s < n; ++s) {{
#pragma unroll
    for (int i = 0; i < {1}; ++i) {{
      {2}
    }}
  }}
  float sum = x + y + floatOf(a[3] + b[1]);
#pragma unroll
  for (int i = 0; i < {1}; ++i)
    sum += (c[i][0] + c[i][1]) + (c[i][2] + c[i][3]);
  store(out, blockIndex() * {0} + threadIndex(), sum);
}}
)",
                      threads, chains, product),
          threads, operations};
}

double CudaExecutor::peakFlops(llvm::StringRef compute) {
  const PeakKernel kernel = peakKernel(target, compute);
  CudaKernel text;
  text.text = kernel.text;
  const CudaCode code = jit.compile(text, "peak");
  LoadedFunction f = nullptr;
  gpu.d.check(gpu.d.moduleGetFunction(&f, load(code.image), "peak"), "cuModuleGetFunction");
  const unsigned blocks = unsigned(8 * gpu.multiprocessors);
  DeviceMemory out(gpu, size_t(blocks) * kernel.threads * sizeof(float)), steps(gpu, sizeof(int));
  EventHandle begin(gpu, eventDefault), end(gpu, eventDefault);
  auto milliseconds = [&](int n) {
    gpu.d.check(gpu.d.copyToDevice(steps.at, &n, sizeof n, gpu.stream), "cuMemcpyHtoDAsync");
    void *params[] = {&steps.at, &out.at};
    gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    gpu.d.check(gpu.d.launchKernel(f, blocks, 1, 1, kernel.threads, 1, 1, 0, gpu.stream, params, nullptr),
                "cuLaunchKernel");
    gpu.d.check(gpu.d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    return double(ms);
  };
  // Long enough that a launch does not count.
  int n = 1;
  double ms = milliseconds(n);
  while (ms < 5 && n < 1 << 24)
    ms = milliseconds(n *= 2);
  for (int i = 0; i < 4; ++i)
    ms = std::min(ms, milliseconds(n));
  return double(blocks) * kernel.threads * n * kernel.operationsPerStep / (ms * 1e-3);
}

}  // namespace gptc::cuda
