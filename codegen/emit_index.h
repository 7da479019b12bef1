// What the emitter knows about indices. Plain arithmetic, apart from LLVM.
#pragma once

#include "ir/kernel/kernel.h"

#include <optional>

namespace gptc {

/// Facts about an i64 value of a kernel, which is the same in all lanes, or base + stride * lane.
struct IndexFacts {
  int64_t stride = 0;
  // Of the base, for division and narrow comparisons:
  int64_t multiple = 1;  // it is a multiple of this; 0: it is 0
  int64_t bound = -1;    // it lies in [0, bound]; -1: nothing known

  static IndexFacts ofConstant(int64_t v);
  /// Both are in [0, bound].
  bool natural(const IndexFacts &o) const { return bound >= 0 && o.bound >= 0; }
  /// True when each of `width` lanes fits a non-negative i32.
  bool fits32(int width) const;
};

/// The sum or product of two bounds; -1 when one is unknown or the result does not fit.
int64_t sumOfBounds(int64_t a, int64_t b);
int64_t productOfBounds(int64_t a, int64_t b);

/// Facts about `x op y` in a group of `width` lanes; `c` is the value of y where that is constant. None when the result
/// is not base + stride * lane, or `op` is no arithmetic.
std::optional<IndexFacts> combineFacts(kir::BinaryOp op, const IndexFacts &x, const IndexFacts &y,
                                       std::optional<int64_t> c, int width);

/// Whether the body of a vector loop indexes a reg buffer with the loop's variable: such a loop must be expanded.
bool indexesRegisters(const kir::StmtNode &loop);

}  // namespace gptc
