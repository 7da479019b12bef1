// How many descriptors this process may have open.
#pragma once

namespace gptc {

/// Raises the limit, which is often 1024 at first, to what the system allows: a connection is a descriptor.
void raiseDescriptorLimit();

}  // namespace gptc
