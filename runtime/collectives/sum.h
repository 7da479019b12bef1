// Sums of arrays, rounded to their dtype.
#pragma once

#include "ir/type.h"

namespace gptc {

/// to[i] = a[i] + b[i]. `to` may be `a` or `b`. Integers wrap. Any dtype but pred.
void addElements(DType t, void *to, const void *a, const void *b, size_t n);

}  // namespace gptc
