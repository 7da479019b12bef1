// Loops over elements, as the pointwise recipe makes them; other recipes use them for what their own loops do not
// cover.
#pragma once

#include "codegen/recipes/group_ctx.h"
#include "ir/kernel/schedule.h"

namespace gptc {

/// One top-level statement that computes these results (all of one shape) element by element. Uses `vec` (lanes) and
/// `task` (elements per task) of the schedule; with `threads`, blocks of that many threads that take `vec` elements
/// each.
kir::Stmt pointwiseLoops(GroupEval &g, llvm::ArrayRef<unsigned> results, const Schedule &s);

/// Elements per task so that a task moves 32 to 256 KiB, and one task where all is done in a few microseconds.
/// `bytes` is the traffic per element.
int64_t elementsPerTask(int64_t elements, double bytes, const Target &target);

/// Bytes that operands and results of the domain's size move per element, at least 4.
double trafficPerElement(const Op &fused, const Type &domain);
/// Equal logical extents; padding may differ.
bool sameExtents(llvm::ArrayRef<Dim> a, llvm::ArrayRef<Dim> b);

/// n rounded up to whole steps.
inline int64_t roundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
inline int64_t ceilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }
/// The smallest power of two that is at least n, and at most `most`.
inline int powerOfTwo(int64_t n, int most) {
  int w = 1;
  while (w < n && w < most)
    w *= 2;
  return w;
}
/// A top-level statement of `tasks` independent tasks; `t` counts them. A single task needs no loop.
kir::Stmt tasksLoop(const kir::Var &t, int64_t tasks, std::vector<kir::Stmt> body);
/// The same for CUDA: one task per thread, in blocks of at most `threads`.
kir::Stmt threadsLoop(const kir::Var &t, int64_t tasks, int64_t threads, std::vector<kir::Stmt> body);

}  // namespace gptc
