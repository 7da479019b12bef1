// The stack that every program gives its threads.
#pragma once

#include <cstdint>

namespace gptc {

/// Bytes, whatever `ulimit -s` says: the usual size. The buffers of kernels are there.
constexpr int64_t kThreadStack = 8 << 20;

}  // namespace gptc
