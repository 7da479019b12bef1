// Identifies equal cuBLASLt products, so that the library's answer for one call holds for the others.
#pragma once

#include "codegen/cublaslt_matmul.h"
#include "runtime/device/binding.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc::cuda {

constexpr int64_t productAlignment = 256;  // bytes; the library assumes no larger alignment

/// Equal for calls that differ only in names and places. A place (operand, result, workspace) counts by its alignment,
/// its bytes, and which other places coincide with it.
std::string productText(const CublasLtMatmul &m, llvm::ArrayRef<Place> memory);

}  // namespace gptc::cuda
