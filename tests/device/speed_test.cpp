// How fast memory and products are on the GPU of this machine: what tools/gpu-check holds kernels and models against.
#include "codegen/cublaslt_matmul.h"
#include "ir/element.h"
#include "runtime/cuda/cublaslt.h"
#include "tests/device/cases.h"
#include "tests/support/recipe_harness.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gptc::test {
namespace {

using cuda::DevicePtr;

CudaCode codeOf(const std::string &text) {
  const DeviceInfo &info = deviceInfo();
  auto compile = [&] { return CudaJit(info.target, info.cacheDir).compile({text, {}}, "speed"); };
  compileElsewhere([&] { return compile(), std::vector<std::string>(); });
  return compile();
}

// A copy of 1 GiB (of 4 KiB on the stand-ins, whose clock tells nothing), 16 bytes a thread: reads and writes count.
Finding copyBandwidth(TestDevice &device, const CudaCode &code) {
  const cuda::Gpu &gpu = device.opened();
  const cuda::Driver &d = gpu.d;
  const size_t bytes = device.isGpu ? size_t(1) << 30 : 4096;
  cuda::DeviceMemory from(gpu, bytes), to(gpu, bytes);
  d.check(d.memsetBytes(from.at, 0x3f, bytes, gpu.stream), "cuMemsetD8Async");
  cuda::EventHandle begin(gpu, cuda::eventDefault), end(gpu, cuda::eventDefault);
  float least = 0;
  for (int turn = 0; turn < 10; ++turn) {
    d.check(d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    if (const std::string why = device.launch(code, {"copy", int64_t(bytes / 4096), 256, 0}, {from.at, to.at});
        !why.empty())
      return {.problem = why, .isDead = true};
    d.check(d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    d.check(d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    least = turn ? std::min(least, ms) : ms;
  }
  std::vector<std::byte> got(4096);
  d.check(d.copyToHost(got.data(), to.at + bytes - got.size(), got.size(), gpu.stream), "cuMemcpyDtoHAsync");
  gpu.wait();
  if (std::count(got.begin(), got.end(), std::byte(0x3f)) != 4096)
    return {.problem = "the copy has other bytes"};
  if (!(least > 0))
    return {.problem = "it took no time"};
  fmt::print("{}: copies {:.3f} GB/s\n", device.name, 2e-6 * double(bytes) / least);
  return {};
}

TEST(Speed, CopyBandwidth) {
  const CudaCode code = codeOf(R"cuda(#include "gptc_device.h"
GPTC_KERNEL(copy, 256)(Global<const float> x, Global<float> y) {
  const long long at = (blockIndex() * 256ll + threadIndex()) * 4;
  storeVector<4>(y, at, loadVector<4>(x, at));
}
)cuda");
  runCases("Speed", {{.name = "copies", .about = {}, .run = [&](TestDevice &d) { return copyBandwidth(d, code); }}});
}

// What cuBLASLt makes of tensor cores: 8192 x 8192 x 8192 (64 on the stand-ins) of bf16, x W^T as in a model, by the
// fastest of the algorithms that it proposes. Operands are random: constant ones change few bits, take less power, and
// so run at a clock that no model sees.
Finding libraryProduct(TestDevice &device, const CudaCode &code) {
  if (const CudaLibrary &library = CudaLibrary::find(CudaLibraryId::cublasLt); !library)
    return {.skipped = "cuBLASLt is not here: " + library.why};
  const int64_t n = device.isGpu ? 8192 : 64;
  const cuda::Gpu &gpu = device.opened();
  const cuda::Driver &d = gpu.d;
  const size_t bytes = size_t(n * n) * 2, workspaceBytes = size_t(32) << 20;
  cuda::DeviceMemory a(gpu, bytes), b(gpu, bytes), y(gpu, bytes), workspace(gpu, workspaceBytes);
  for (DevicePtr p : {a.at, b.at})
    if (const std::string why = device.launch(code, {"fill", int64_t(bytes / 4 / 256), 256, 0}, {p}); !why.empty())
      return {.problem = why, .isDead = true};
  const Group g = group("matmul", fmt::format("%a: bf16[{0},{0}]; %b: bf16[{0},{0}]", n),
                        fmt::format("%y = matmul %a, %b {{tb=true, out=\"f32\"}} : f32[{0},{0}]\n"
                                    "%l = cast %y {{dtype=\"bf16\"}} : bf16[{0},{0}]\nyield %l",
                                    n));
  const cuda::CublasLt &lt = cuda::CublasLt::get();
  cuda::LtHandle handle = nullptr;
  lt.check(lt.create(&handle), "cublasLtCreate");
  double best = 0;
  {
    const cuda::MatmulCall call(handle, *matchCublasLtMatmul(*g.fused), {a.at, b.at, y.at}, workspace.at,
                                workspaceBytes);
    cuda::EventHandle begin(gpu, cuda::eventDefault), end(gpu, cuda::eventDefault);
    const int calls = device.isGpu ? 20 : 1;
    for (unsigned i = 0; i < call.algorithms(); ++i) {
      if (call.tryEnqueue(gpu.stream, i) != cuda::ltSuccess)
        continue;
      for (int turn = 0; turn < 4; ++turn) {
        d.check(d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
        for (int k = 0; k < calls; ++k)
          call.enqueue(gpu.stream, i);
        d.check(d.eventRecord(end.event, gpu.stream), "cuEventRecord");
        gpu.wait();
        float ms = 0;
        d.check(d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
        if (turn && ms > 0)  // the first one warms up
          best = std::max(best, 2e-9 * double(n) * double(n) * double(n) * calls / ms);
      }
    }
  }
  lt.check(lt.destroy(handle), "cublasLtDestroy");
  if (!(best > 0))
    return {.problem = "no algorithm runs, or none took any time"};
  // The first row of what came out, against the sums of exact products, each rounded in f32 and the whole to bf16.
  const size_t row = size_t(n) * 2, columns = 8;
  std::vector<std::byte> x(row), w(columns * row), out(row);
  d.check(d.copyToHost(x.data(), a.at, x.size(), gpu.stream), "cuMemcpyDtoHAsync");
  d.check(d.copyToHost(w.data(), b.at, w.size(), gpu.stream), "cuMemcpyDtoHAsync");
  d.check(d.copyToHost(out.data(), y.at, out.size(), gpu.stream), "cuMemcpyDtoHAsync");
  gpu.wait();
  for (size_t j = 0; j < columns; ++j) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double p = loadElement(DType::bf16, x.data(), k) * loadElement(DType::bf16, w.data(), int64_t(j) * n + k);
      sum += p, size += std::abs(p);
    }
    const double is = loadElement(DType::bf16, out.data(), int64_t(j));
    if (!(std::abs(is - sum) <= std::abs(sum) * 0x1p-8 + size * double(n) * 0x1p-23))
      return {.problem = fmt::format("element {} is {}, not {}", j, is, sum)};
  }
  fmt::print("{}: cuBLASLt multiplies {} x {} x {} of bf16 at {:.3f} TFLOP/s\n", device.name, n, n, n, best);
  return {};
}

TEST(Speed, LibraryProduct) {
  const CudaCode code = codeOf(R"cuda(#include "gptc_device.h"
GPTC_KERNEL(fill, 256)(Global<unsigned> y) {
  const long long at = blockIndex() * 256ll + threadIndex();
  unsigned h = (unsigned)at * 2654435761u + 12345u;
  h = (h ^ (h >> 16)) * 0x45d9f3bu;
  h ^= h >> 16;
  // Two numbers of either sign, from 2^-7 to 2.
  store(y, at, (h & 0x807f807fu) | (0x3c003c00u + ((h >> 1) & 0x03800380u)));
}
)cuda");
  const Outcomes o = runCases(
      "Speed", {{.name = "product", .about = {}, .run = [&](TestDevice &d) { return libraryProduct(d, code); }}});
  if (o.skipped)
    GTEST_SKIP() << o.why;
}

}  // namespace
}  // namespace gptc::test
