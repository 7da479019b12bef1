// The CUDA C++ that emitted kernels stand on. It is written in codegen/cuda/device/*.cuh, one text per file, which the
// build embeds (cmake/embed_text.cmake). A change of these files changes the keys of compiled and measured kernels.
#pragma once

#include <string>

namespace gptc {

namespace device_text {
extern const char *const primitives, *const warp, *const common;  // the device layer
extern const char *const matmul, *const attention;  // what statements call, to stand once in front of them
}  // namespace device_text

/// The device layer for NVRTC, which kernels include as "gptc_device.h". A host that replaces primitives and warp
/// shares device_text::common.
std::string cudaDeviceLayer();

}  // namespace gptc
