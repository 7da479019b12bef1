#include "codegen/cuda/device_text.h"

namespace gptc {

std::string cudaDeviceLayer() {
  return std::string(device_text::primitives) + "\n" + device_text::warp + "\n" + device_text::common;
}

}  // namespace gptc
