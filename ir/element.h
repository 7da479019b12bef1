// Elements of tensors in memory, for the interpreter and for comparisons of memory with its results.
#pragma once

#include "ir/type.h"

#include <vector>

namespace gptc {

/// Rounds to a float dtype, as a store does (to narrow ones by way of f32; f8e4m3 saturates). Of other dtypes, returns
/// `v`.
double roundTo(DType t, double v);
/// Element i of an array of dtype `t`. An i64 beyond 2^53 loses bits.
double loadElement(DType t, const void *memory, int64_t i);
/// Stores `v` as element i: rounded as by roundTo, cut to an integer, or as 0 or 1 for pred.
void storeElement(DType t, void *memory, int64_t i, double v);
/// For each logical element in row-major order, its index among the stored ones, which include padding.
std::vector<int64_t> elementPlaces(const Type &t);

}  // namespace gptc
