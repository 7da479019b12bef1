// What takes the place of a kernel whose text a compiler refuses: statements that emitters write as templates (matmul,
// attention) become loop trees of the same meaning. Only the template's own text is left out, so that what it alone
// needs (tensor cores, asynchronous copies, its many registers) cannot be refused twice.
#pragma once

#include "ir/kernel/kernel.h"

#include <optional>

namespace gptc {

/// The kernel without matmul and attention statements, with the same parameters; nullopt where it has none.
///
/// A matmul statement becomes patches of 4 x 4 sums in a thread's registers, read from memory as they are needed, in
/// the statement's order: one chain per sum, or per block of `fold` steps. So without tensor cores the bits stay; with
/// them products are added one by one rather than 8 or 16 at a time, and operands of f32 are not rounded to tf32. An
/// attention statement becomes its body. Both take some tens of times as long.
std::optional<kir::Kernel> withoutTemplates(const kir::Kernel &k);

}  // namespace gptc
