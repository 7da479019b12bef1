#include "passes/pass.h"
namespace gptc {
bool canonicalize(Module &, const PassOptions &) { return false; }
}  // namespace gptc
