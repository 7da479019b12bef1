// The element types of graph IR and kernel IR.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>

namespace gptc {

/// f8e4m3 is OCP's 8-bit format with 4 bits of exponent and 3 of mantissa (Open Compute Project, OFP8, 2023): no
/// infinity, one NaN, 448 at most.
enum class DType : uint8_t { f32, f64, bf16, f16, f8e4m3, i32, i64, u32, pred };

/// Bytes of one stored element.
unsigned sizeOf(DType t);
/// The name used in text, e.g. "f32".
llvm::StringRef nameOf(DType t);
std::optional<DType> parseDType(llvm::StringRef name);
inline bool isFloat(DType t) { return t <= DType::f8e4m3; }
inline bool isInt(DType t) { return !isFloat(t); }
/// Whether `t` is a float that is only stored: loads widen it to f32, stores round to it.
inline bool isNarrow(DType t) { return t == DType::bf16 || t == DType::f16 || t == DType::f8e4m3; }

/// Whether ops compute with values of type `t`. f8e4m3 is read by matmul only; others move and cast it.
inline bool isArithmetic(DType t) { return isFloat(t) && t != DType::f8e4m3; }

/// Most elements of a type in a valid module, padding included: no size computed from a type overflows.
inline constexpr int64_t maxElements = int64_t(1) << 46;

}  // namespace gptc
