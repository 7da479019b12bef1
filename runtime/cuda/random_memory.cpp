#include "runtime/cuda/random_memory.h"

#include "ir/kernel/eval.h"
#include "ir/random.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gptc::cuda {

// The pattern repeats after a prime number of elements, so no two rows of a matrix are equal.
constexpr size_t period = 1048573;

const RandomMemory::Pattern &RandomMemory::pattern(DType dtype) {
  auto [it, isNew] = patterns.try_emplace(dtype);
  Pattern &p = it->second;
  if (!isNew)
    return p;
  const size_t size = size_t(sizeOf(dtype)), n = std::clamp<size_t>((most + size - 1) / size, 1, period);
  p.bytes = n * size;
  std::vector<std::byte> host(p.bytes);
  const RandomKey key = randomKey(19, 0, uint32_t(dtype), 0);
  for (size_t i = 0; i < n; ++i) {
    const float v = float(randomBits(key, i)) * 0x1p-31f - 1.0f;
    const uint32_t bits = dtype == DType::bf16     ? uint32_t(kir::bitsOfBF16(kir::roundBF16(v)))
                          : dtype == DType::f16    ? uint32_t(kir::bitsOfF16(kir::roundF16(v)))
                          : dtype == DType::f8e4m3 ? uint32_t(kir::bitsOfE4M3(kir::roundE4M3(v)))
                                                   : 0;
    if (dtype == DType::f32)
      std::memcpy(&host[i * size], &v, size);
    else
      std::memcpy(&host[i * size], &bits, size);
  }
  p.memory = std::make_unique<DeviceMemory>(gpu, p.bytes);
  gpu.d.check(gpu.d.copyToDevice(p.memory->at, host.data(), p.bytes, gpu.stream), "cuMemcpyHtoDAsync");
  gpu.wait();
  return p;
}

void RandomMemory::fill(DevicePtr at, size_t bytes, DType dtype) {
  if (dtype != DType::f32 && !isNarrow(dtype))
    return gpu.d.check(gpu.d.memsetBytes(at, 0, bytes, gpu.stream), "cuMemsetD8Async");
  const Pattern &p = pattern(dtype);
  size_t filled = std::min(bytes, p.bytes);
  gpu.d.check(gpu.d.copyOnDevice(at, p.memory->at, filled, gpu.stream), "cuMemcpyDtoDAsync");
  // Copies twice as much each time: whole periods except for the last.
  for (size_t n; filled < bytes; filled += n) {
    n = std::min(filled, bytes - filled);
    gpu.d.check(gpu.d.copyOnDevice(at + filled, at, n, gpu.stream), "cuMemcpyDtoDAsync");
  }
}

}  // namespace gptc::cuda
