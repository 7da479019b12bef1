// Replaces a kernel whose text NVRTC refuses. Statements that the emitter writes as calls of templates (matmul,
// attention) become loop trees of the same meaning. The loop trees avoid what only templates need (tensor cores,
// asynchronous copies, many registers), so NVRTC cannot refuse them for the same reason.
#pragma once

#include "ir/kernel/kernel.h"

#include <optional>

namespace gptc {

/// The kernel without matmul and attention statements, with the same parameters; nullopt if it has no such statement.
///
/// A matmul statement becomes patches of 4 x 4 sums in a thread's registers, with operands loaded at each step. The
/// order of a sum stays: one chain, or one per block of `fold` steps. So the bits are those of a statement without
/// tensor cores. Tensor cores add 8 or 16 products at a time and round f32 operands to tf32, which the loop trees do
/// not. An attention statement becomes its body. Both are some tens of times slower.
std::optional<kir::Kernel> withoutTemplates(const kir::Kernel &k);

}  // namespace gptc
