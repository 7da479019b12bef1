// A GPU for tests, or the stand-ins for one: kernels as code in, bytes out. Where this machine has a driver of
// NVIDIA's, its first GPU runs them; else the stand-ins of tests/simt/standin do, by the same calls.
#pragma once

#include "codegen/cuda/jit.h"
#include "codegen/cuda/libraries.h"
#include "runtime/cuda/gpu.h"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc::test {

/// What tests must know of the device before they run anything on it.
struct DeviceInfo {
  bool isGpu = false;
  std::string name;  // "NVIDIA H200"
  Target target;     // of that GPU; sm_90a for the stand-ins
  /// Of compiled kernels: the user's. Of the stand-ins, whose code depends on files that are in no key, only one that
  /// GPTC_CACHE names.
  std::string cacheDir;
};

/// Opens the device, in the process that calls it: it cannot be opened in one that was forked from that later.
class TestDevice {
public:
  /// One for the whole process. UserError where the machine has neither a GPU nor, in this program, stand-ins.
  static TestDevice &get();

  bool isGpu = false;
  std::string name, architecture;  // "sm_90a"
  const cuda::Gpu &opened() const { return *gpu; }

  struct Param {
    std::vector<std::byte> bytes;
    bool isInitialised = true;  // else the device's memory holds what it did
  };
  struct Outcome {
    std::vector<std::vector<std::byte>> params;  // what is there behind the last phase
    std::string problem;                         // "" where all went well
    bool isDead = false;                         // the driver has said an error: this process can use it no more
  };
  /// Runs the phases in order. Each parameter stands between zones of 256 bytes; the problem says which was stored to,
  /// or what the driver said. Where a parameter is not initialised no zone is either, and none is looked at.
  Outcome run(const CudaCode &code, const std::vector<Param> &params);

  /// Enqueues one kernel, with these addresses. "", or what the driver said.
  std::string launch(const CudaCode &code, const CudaPhase &phase, std::vector<cuda::DevicePtr> pointers);

private:
  TestDevice();
  std::unique_ptr<cuda::Gpu> gpu;
  std::map<std::shared_ptr<const std::string>, cuda::LoadedModule> modules;
  std::string call(cuda::Result r, const char *what) const;
};

}  // namespace gptc::test
