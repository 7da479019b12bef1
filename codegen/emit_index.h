// Facts that the emitters derive about indices. This file does not depend on LLVM's IR.
#pragma once

#include "ir/kernel/kernel.h"

#include <optional>

namespace gptc {

/// Facts about an i64 value of a kernel. The value of a lane is base + stride * lane; stride 0 means the same in all.
struct IndexFacts {
  int64_t stride = 0;
  // Facts about the base, for division and narrow comparisons:
  int64_t multiple = 1;  // the base is a multiple of this; 0: the base is 0
  int64_t bound = -1;    // the base lies in [0, bound]; -1: unknown

  static IndexFacts ofConstant(int64_t v);
  /// True when both bases are known to be at least 0.
  bool natural(const IndexFacts &o) const { return bound >= 0 && o.bound >= 0; }
  /// True when each of `width` lanes fits a non-negative i32.
  bool fits32(int width) const;
};

/// The sum or product of two bounds; -1 when one is unknown (negative) or the result overflows i64.
int64_t sumOfBounds(int64_t a, int64_t b);
int64_t productOfBounds(int64_t a, int64_t b);

/// Facts about `x op y` in a group of `width` lanes. `c` is the value of y if that is a constant. nullopt when the
/// result is not base + stride * lane, or `op` is not add, sub, mul, div, rem, min or max.
std::optional<IndexFacts> combineFacts(kir::BinaryOp op, const IndexFacts &x, const IndexFacts &y,
                                       std::optional<int64_t> c, int width);

/// Whether the body of a vector loop indexes a reg buffer by the loop's variable. The emitter must expand such a loop,
/// because indices into registers must be constant.
bool indexesRegisters(const kir::StmtNode &loop);

}  // namespace gptc
