// How fast memory is on the GPU of this machine: what tools/gpu-check holds kernels and sampling against.
#include "tests/device/device.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>

namespace gptc::test {
namespace {

// A copy of 1 GiB (of 4 KiB on the stand-ins, whose clock tells nothing), 16 bytes a thread: reads and writes count.
TEST(Speed, CopyBandwidth) {
  TestDevice &device = TestDevice::get();
  device.load(R"cuda(#include "gptc_device.h"
GPTC_KERNEL(copy, 256)(Global<const float> x, Global<float> y) {
  const long long at = (blockIndex() * 256ll + threadIndex()) * 4;
  storeVector<4>(y, at, loadVector<4>(x, at));
}
)cuda");
  const cuda::Gpu &gpu = device.opened();
  const cuda::Driver &d = gpu.d;
  const size_t bytes = device.isGpu ? size_t(1) << 30 : 4096;
  cuda::DeviceMemory from(gpu, bytes), to(gpu, bytes);
  d.check(d.memsetBytes(from.at, 0x3f, bytes, gpu.stream), "cuMemsetD8Async");
  cuda::EventHandle begin(gpu, cuda::eventDefault), end(gpu, cuda::eventDefault);
  float least = 0;
  for (int turn = 0; turn < 10; ++turn) {
    d.check(d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    ASSERT_EQ(device.launch({"copy", int64_t(bytes / 4096), 256, 0}, {from.at, to.at}), "");
    d.check(d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    d.check(d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    least = turn ? std::min(least, ms) : ms;
  }
  std::vector<std::byte> got(4096);
  d.check(d.copyToHost(got.data(), to.at + bytes - got.size(), got.size(), gpu.stream), "cuMemcpyDtoHAsync");
  gpu.wait();
  EXPECT_EQ(std::count(got.begin(), got.end(), std::byte(0x3f)), 4096);
  ASSERT_GT(least, 0);
  fmt::print("{}: copies {:.3f} GB/s\n", device.name, 2e-6 * double(bytes) / least);
}

}  // namespace
}  // namespace gptc::test
