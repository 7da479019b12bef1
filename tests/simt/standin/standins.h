// The stand-ins in the place of NVIDIA's libraries, for a whole test program.
#pragma once

#include "codegen/codegen.h"
#include "codegen/emit_cuda.h"
#include "codegen/nvrtc.h"
#include "runtime/cuda/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gptc::test {

inline void useStandins() { setenv("GPTC_CUDA", GPTC_STANDINS, 1); }

}  // namespace gptc::test
