// Tensors as memory holds them, element by element, for the interpreter and whatever compares memory with it.
#pragma once

#include "ir/type.h"

#include <vector>

namespace gptc {

/// The nearest value that the dtype can hold; integers stay as they are.
double roundTo(DType t, double v);
/// Element i of an array of `t`; i64 beyond 2^53 lose bits.
double loadElement(DType t, const void *memory, int64_t i);
/// Rounds as roundTo; a pred is 0 or 1.
void storeElement(DType t, void *memory, int64_t i, double v);
/// Where the logical elements stand among the padded ones, in row-major order.
std::vector<int64_t> elementPlaces(const Type &t);

}  // namespace gptc
