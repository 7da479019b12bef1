// Passes from libraries that `passes` may not see.
#pragma once

namespace gptc {

/// Registers select-recipes. To be called once by every program that runs pipelines.
void registerCodegenPasses();

}  // namespace gptc
