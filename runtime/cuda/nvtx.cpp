#include "runtime/cuda/nvtx.h"

#include "codegen/cuda/libraries.h"

namespace gptc::cuda {

namespace {

struct Nvtx {
  int (*nvtxRangePushA)(const char *) = nullptr;
  int (*nvtxRangePop)() = nullptr;
};

const Nvtx &nvtx() {
  static const Nvtx found = [] {
    Nvtx n;
    if (const CudaLibrary &library = CudaLibrary::find(CudaLibraryId::nvtx))
      if (!library.bind(n.nvtxRangePushA, "nvtxRangePushA") || !library.bind(n.nvtxRangePop, "nvtxRangePop"))
        n = {};
    return n;
  }();
  return found;
}

}  // namespace

NvtxRange::NvtxRange(const std::string &name) {
  if (nvtx().nvtxRangePushA)
    nvtx().nvtxRangePushA(name.c_str());
}
NvtxRange::~NvtxRange() {
  if (nvtx().nvtxRangePop)
    nvtx().nvtxRangePop();
}

}  // namespace gptc::cuda
