// Evaluates the body of a fused op to symbolic expressions.
//
// Each value of the body is a function from a point (logical indices) to an expression. A block argument becomes a load
// from its buffer, and a constant an immediate. A member's result becomes what its OpDef::lower makes of the operands'
// expressions. A recipe evaluates the outputs at a point made of its loop variables and gets one expression DAG. Equal
// (value, point) pairs give the same node.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/kernel.h"
#include "ir/opdef.h"

#include <functional>
#include <map>
#include <set>

namespace gptc {

/// Consecutive dimensions that one index walks, row-major over their logical extents. `index` is i64.
struct Axis {
  kir::Expr index;
  llvm::SmallVector<int64_t, 4> dims;
  int64_t extent() const;
};

/// A position in a tensor: axes that together cover all its dimensions, in order. A scalar's point has no axes.
struct Point {
  llvm::SmallVector<Axis, 4> axes;
  unsigned rank() const;
  Point &add(kir::Expr index, llvm::ArrayRef<Dim> dims);
};

class GroupEval {
public:
  /// `compute` is the dtype of float arithmetic: f32 or f64. With f64 every float buffer is f64 too.
  GroupEval(const Op &fused, DType compute);

  const Op &fused;
  const Block &body;
  const DType compute;
  /// Whether ops may take instructions of a GPU whose results are not those of the CPU to the last bit.
  bool approximates = false;
  /// Global buffers of the fused op's operands and results, in order.
  std::vector<kir::Buffer> inputs, outputs;
  /// The body's value that becomes result i.
  const Value *output(unsigned i) const { return body.back()->operand(i); }
  /// The value (i64) of the kernel argument for a member's attribute `stream`; 0 if the member has none.
  kir::Expr stream(const Op &member) const;
  /// The parameters of the kernel: inputs, outputs, `workspaces`, streams.
  std::vector<kir::Buffer> params(llvm::ArrayRef<kir::Buffer> workspaces = {}) const;
  /// A readable name for the kernel, from the members.
  std::string kernelName() const;

  /// Sets the point of the loops in the group's domain, from which at() takes the column of a row result and the rows
  /// of a fold result. For row results the last axis must cover the last dimension alone. A recipe may set several
  /// domains one after another; earlier results stay valid.
  void setDomain(Point p) { domain = std::move(p); }

  /// The element of `v` at `p`, in compute dtype for floats and in the stored dtype for integers. A Reduce node stands
  /// for each sum or maximum: a row Reduce runs over the domain's column index, a fold Reduce over its rows.
  kir::Expr at(const Value *v, const Point &p);
  /// Makes at() return f(p) for `v`. A recipe so gives the result of its anchor (the accumulators of a matmul).
  void bind(const Value *v, std::function<kir::Expr(const Point &)> f) { bound[v] = std::move(f); }

  /// The offset in memory (elements, padded, row-major) of a point in a tensor of this type.
  kir::Expr offset(const Type &t, const Point &p);
  /// The dtype of a tensor's elements in a buffer (storageOf) and in expressions (valueOf).
  DType storageOf(DType t) const { return isFloat(t) && compute == DType::f64 ? DType::f64 : t; }
  DType valueOf(DType t) const { return isFloat(t) ? compute : t; }
  /// The load of a buffer that holds a tensor of type `t`.
  kir::Expr loadAt(const kir::Buffer &b, const Type &t, const Point &p);
  /// The value of output i at a point, without a rounding that its store makes again.
  kir::Expr stored(unsigned result, const Point &p);
  /// The store output[p] = e, with e in compute dtype.
  kir::Stmt storeOutput(unsigned result, const Point &p, kir::Expr e);

  // Parts of points: the last or first `rank` dimensions, and one index per dimension. An axis that is only partly
  // wanted is split by div and rem.
  Point suffix(const Point &p, unsigned rank);
  Point prefix(const Point &p, unsigned rank);
  std::vector<kir::Expr> indices(const Point &p);
  /// The point of the same element in type `to`, which has as many elements (a reshape). Each axis keeps its index.
  Point reshaped(const Point &p, const Type &to);

  /// For each split of an axis with this index the number of elements inside. A recipe that can choose its axes makes a
  /// trial evaluation and then cuts the axes at these places, which saves the div and rem.
  std::set<int64_t> splitsOf(const kir::Expr &index) const;

private:
  class MemberCtx;
  using Key = std::pair<const void *, std::vector<const void *>>;
  struct Entry {
    Point keepAlive;
    std::vector<kir::Expr> exprs;
  };

  std::pair<Axis, Axis> split(const Axis &a, unsigned at);
  const std::vector<kir::Expr> &member(const Op &op, const Point &domainOfOp);
  Point domainOf(const Op &op, const Value *v, const Point &p);

  std::vector<int64_t> streamNumbers;
  std::vector<kir::Buffer> streams;  // one i64 each
  Point domain;
  std::map<Key, Entry> memo;
  std::map<const Value *, std::function<kir::Expr(const Point &)>> bound;
  struct Split {
    Axis whole, left, right;
  };
  std::map<std::pair<const void *, int64_t>, Split> splitMemo;  // by index and number of elements inside
};

/// The type that the group's loops walk: the largest over which a member of the body is defined.
Type groupDomain(const Op &fused);

}  // namespace gptc
