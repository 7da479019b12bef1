#include "codegen/math.h"

#include "ir/diagnostics.h"

namespace gptc {

using namespace kir;

const MathExpansion &expandMath(UnaryOp op) {
  static const MathExpansion none;
  return none;
}

}  // namespace gptc
