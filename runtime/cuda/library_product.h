// When two calls of cuBLASLt are the same product: what the library decides for one holds for the other.
#pragma once

#include "codegen/library_matmul.h"
#include "runtime/device/binding.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc::cuda {

constexpr int64_t productAlignment = 256;  // the library takes no larger one for granted

/// Equal for calls that differ in names and places only. Places (operands, results, workspace) count by their
/// alignment, and by which of them are one.
std::string productText(const LibraryMatmul &m, llvm::ArrayRef<Place> memory);

}  // namespace gptc::cuda
