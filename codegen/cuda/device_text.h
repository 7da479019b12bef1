// The CUDA C++ that emitted kernels call. The build embeds codegen/cuda/device/*.cuh, one text per file
// (cmake/embed_text.cmake). A change of these files changes the keys of compiled and measured kernels.
#pragma once

#include <string>

namespace gptc {

namespace device_text {
extern const char *const primitives, *const warp, *const common;  // the device layer
extern const char *const matmul, *const attention;  // templates that statements call; each stands once before kernels
}  // namespace device_text

/// The device layer for NVRTC, which kernels include as "gptc_device.h". A host version replaces `primitives` and
/// `warp` and uses the same `common`.
std::string cudaDeviceLayer();

}  // namespace gptc
