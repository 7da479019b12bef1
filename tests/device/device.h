// A GPU for tests, or the stand-ins for one: kernels as text in, bytes out. Where this machine has a driver of
// NVIDIA's, its first GPU runs them; else the stand-ins of tests/simt/standin do, by the same calls.
#pragma once

#include "codegen/cuda_libraries.h"
#include "codegen/emit_cuda.h"
#include "codegen/nvrtc.h"
#include "runtime/cuda/gpu.h"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc::test {

class TestDevice {
public:
  /// One for the whole program. UserError where the machine has neither a GPU nor, in this program, stand-ins.
  static TestDevice &get();

  bool isGpu = false;
  std::string name;  // "NVIDIA H200"
  Target target;     // of that GPU; sm_90a for the stand-ins
  const cuda::Gpu &opened() const { return *gpu; }

  /// Makes a module of the text in the place of the one before; its kernels are then called by name.
  void load(const std::string &text);
  /// Runs the phases in order on parameters with these bytes, and returns the bytes behind them. Each parameter stands
  /// between zones of 256 bytes; `why` says which was left, or what the driver said; else it is empty.
  std::vector<std::vector<std::byte>> run(const std::vector<CudaPhase> &phases,
                                          const std::vector<std::vector<std::byte>> &params, std::string &why);

  /// Enqueues one kernel of the text, with these addresses. "", or what the driver said.
  std::string launch(const CudaPhase &phase, std::vector<cuda::DevicePtr> pointers) const;

private:
  TestDevice();
  std::unique_ptr<cuda::Gpu> gpu;
  cuda::LoadedModule module = nullptr;
  std::string call(cuda::Result r, const char *what) const;
};

}  // namespace gptc::test
