// The element types of graph IR and kernel IR.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>

namespace gptc {

enum class DType : uint8_t { f32, f64, bf16, f16, i32, i64, u32, pred };

/// Bytes of one stored element.
unsigned sizeOf(DType t);
/// The name used in text, e.g. "f32".
llvm::StringRef nameOf(DType t);
std::optional<DType> parseDType(llvm::StringRef name);
inline bool isFloat(DType t) { return t <= DType::f16; }
inline bool isInt(DType t) { return !isFloat(t); }

/// Most elements of a type in a valid module, padding included: no size computed from a type overflows.
inline constexpr int64_t maxElements = int64_t(1) << 46;

}  // namespace gptc
