// What the GPU does at best, measured: chains of products in registers, no memory. In bf16, f16 and tf32 by the tensor
// cores as our kernels use them (mma), in f32 by fused multiply-adds.
#include "ir/diagnostics.h"
#include "runtime/cuda/cuda_executor.h"

#include <algorithm>

namespace gptc::cuda {

namespace {

constexpr int blockThreads = 256, chains = 8;

std::string peakText(const char *product) {
  return fmt::format(R"(#include "gptc_device.h"
GPTC_KERNEL(peak, {0})(Global<const int> steps, Global<float> out) {{
  const int n = load(steps, 0);
  const unsigned half = 0x3c003c00u + (unsigned)threadIndex();
  const unsigned a[4] = {{half, half, half, half}}, b[2] = {{half, half}};
  const float x = floatOf(half), y = floatOf(0x3f000000u);
  float c[{1}][4] = {{}};
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
                     blockThreads, chains, product);
}

}  // namespace

double CudaExecutor::peakFlops(DType operands) {
  const bool mma = operands != DType::f32 && target.cpu != "sm_75";
  // A warp's product of 16 x 16 by 16 x 8 is 4096 operations; four multiply-adds of a thread 8.
  const double perChain = mma ? 16.0 * 8 * 16 * 2 / 32 : 8;
  const char *product =
      mma ? "mma(bf16(), c[i], a, b);" : "for (int j = 0; j < 4; ++j) c[i][j] = fusedMultiplyAdd(x, y, c[i][j]);";
  CudaKernel text;
  text.text = peakText(product);
  const CudaCode code = jit.compile(text, "peak");
  LoadedFunction f = nullptr;
  gpu.d.check(gpu.d.moduleGetFunction(&f, load(code.image), "peak"), "cuModuleGetFunction");
  const unsigned blocks = unsigned(8 * gpu.multiprocessors);
  DeviceMemory out(gpu, size_t(blocks) * blockThreads * sizeof(float)), steps(gpu, sizeof(int));
  EventHandle begin(gpu, eventDefault), end(gpu, eventDefault);
  auto milliseconds = [&](int n) {
    gpu.d.check(gpu.d.copyToDevice(steps.at, &n, sizeof n, gpu.stream), "cuMemcpyHtoDAsync");
    void *params[] = {&steps.at, &out.at};
    gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    gpu.d.check(gpu.d.launchKernel(f, blocks, 1, 1, blockThreads, 1, 1, 0, gpu.stream, params, nullptr),
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
  return double(blocks) * blockThreads * chains * n * perChain / (ms * 1e-3);
}

}  // namespace gptc::cuda
