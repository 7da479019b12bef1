// Passes that live in codegen.
#pragma once

namespace gptc {

/// Makes select-recipes known to the pipeline. To be called before a pipeline is parsed; calling it again does nothing.
void registerCodegenPasses();

}  // namespace gptc
