// Text from one rank to all others.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

/// Returns rank 0's `text`, any bytes, on all ranks, which must call it together. That of the others is not read.
/// Throws what Communicator::run throws.
std::string shareText(Communicator &ranks, std::string text);

}  // namespace gptc
