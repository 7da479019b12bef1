// What a kernel that failed on the GPU is reported by.
#pragma once

#include "support/diagnostics.h"

namespace gptc::cuda {

/// A kernel has failed: nothing runs in this context any more, and of a graph the GPU does not say which one it was.
class KernelFault : public InternalError {
public:
  KernelFault(const std::string &error, const char *noticedBy);
  const std::string error;  // the driver's, in words
};

}  // namespace gptc::cuda
