// Registers the passes that live in codegen.
#pragma once

namespace gptc {

/// Adds select-recipes to the pipeline's passes. Call it before parsing a pipeline; repeated calls do nothing.
void registerCodegenPasses();

}  // namespace gptc
