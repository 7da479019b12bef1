// The stand-ins in the place of NVIDIA's libraries, for a whole test program.
#pragma once

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/nvrtc.h"
#include "runtime/cuda/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gptc::test {

/// Several GPUs, of which most tests see the first alone.
inline void useStandins() {
  setenv("GPTC_CUDA", GPTC_STANDINS, 1);
  setenv("GPTC_STANDIN_DEVICES", "8", 0);
}

}  // namespace gptc::test
