// The error that reports a failed GPU kernel.
#pragma once

#include "support/diagnostics.h"

namespace gptc::cuda {

/// A kernel has failed. Nothing runs in this context any more. For a graph, the GPU does not tell which kernel failed.
class KernelFault : public InternalError {
public:
  KernelFault(const std::string &error, const char *noticedBy);
  const std::string error;  // the driver's description
};

}  // namespace gptc::cuda
