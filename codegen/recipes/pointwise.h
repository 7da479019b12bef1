// The loops over elements of the pointwise recipe. Other recipes call them for results whose shape differs from that
// of their own loops.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "ir/kernel/schedule.h"

namespace gptc {

/// A top-level statement that computes the given results (all of one shape) element by element. Uses `vec` (lanes) and
/// `task` (elements per task) of the schedule. If `threads` is set, blocks of so many threads take `vec` elements per
/// thread.
kir::Stmt pointwiseLoops(GroupEval &g, llvm::ArrayRef<unsigned> results, const Schedule &s);

/// Whether the pointwise recipe stores zeros to the padding of a result on CUDA: of f8e4m3, below its last row, where a
/// product of a library reads them.
inline bool zeroesRowsBelow(const Type &t) {
  return t.dtype == DType::f8e4m3 && t.paddedElements() > t.elements() &&
         t.paddedElements() * t.dim(0) == t.elements() * t.padded(0);
}

/// Elements per task so that a task moves 32 to 256 KiB; all elements if they move less than 160 KiB. `bytes` is
/// the traffic per element.
int64_t elementsPerTask(int64_t elements, double bytes, const Target &target);

/// Bytes moved per domain element, over operands and results with as many elements as the domain; at least 4.
double trafficPerElement(const Op &fused, const Type &domain);
/// Whether logical extents are equal. Padding may differ.
bool sameExtents(llvm::ArrayRef<Dim> a, llvm::ArrayRef<Dim> b);

/// n rounded up to a multiple of `step`.
inline int64_t roundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
inline int64_t ceilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }
/// The smallest power of two that is at least n, and at most `most`.
inline int powerOfTwo(int64_t n, int most) {
  int w = 1;
  while (w < n && w < most)
    w *= 2;
  return w;
}
/// A top-level statement of `tasks` independent tasks, counted by `t`. A single task becomes no loop.
kir::Stmt tasksLoop(const kir::Var &t, int64_t tasks, std::vector<kir::Stmt> body);
/// The same for CUDA: one task per thread, in blocks of at most `threads` threads.
kir::Stmt threadsLoop(const kir::Var &t, int64_t tasks, int64_t threads, std::vector<kir::Stmt> body);

}  // namespace gptc
