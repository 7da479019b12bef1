// The body of a fused op as symbolic expressions.
//
// Every value of a body is a function from a point (logical indices) to an expression. A block argument is a load from
// its buffer, a constant an immediate, and a member's result what its OpDef::lower says, with the operands' expressions
// in place of its operands. Recipes ask for the outputs at a point made of their loop variables and get one expression
// DAG; equal (value, point) pairs give the same node.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/kernel.h"
#include "ir/opdef.h"

#include <functional>
#include <map>
#include <set>

namespace gptc {

/// A run of consecutive dimensions walked by one index (row-major over logical extents). `index` is i64.
struct Axis {
  kir::Expr index;
  llvm::SmallVector<int64_t, 4> dims;
  int64_t extent() const;
};

/// A position in a tensor: axes that together cover all its dimensions, in order. A scalar's point has none.
struct Point {
  llvm::SmallVector<Axis, 4> axes;
  unsigned rank() const;
  Point &add(kir::Expr index, llvm::ArrayRef<Dim> dims);
};

class GroupEval {
public:
  /// `compute` is the dtype of float arithmetic: f32, or f64, where every float buffer is f64 too.
  GroupEval(const Op &fused, DType compute);

  const Op &fused;
  const Block &body;
  const DType compute;
  /// Global buffers of the fused op's operands and results, in order.
  std::vector<kir::Buffer> inputs, outputs;
  /// The body's value that becomes result i.
  const Value *output(unsigned i) const { return body.back()->operand(i); }
  /// The attribute `stream` of a member, i64: what its kernel argument holds, or 0 where it has none.
  kir::Expr stream(const Op &member) const;
  /// inputs, outputs, `workspaces`, streams: the parameters of the kernel.
  std::vector<kir::Buffer> params(llvm::ArrayRef<kir::Buffer> workspaces = {}) const;
  /// A readable name for the kernel, from the members.
  std::string kernelName() const;

  /// The point of the loops in the group's domain; needed before a row result (its column is the last axis, which must
  /// cover the last dimension alone) or a fold result (its rows are the leading axes) is asked for. Clears nothing:
  /// several domains may be used one after another.
  void setDomain(Point p) { domain = std::move(p); }

  /// Element of `v` at `p`: compute dtype for floats, the stored dtype for integers. Holds Reduce nodes where the group
  /// reduces; a row Reduce is free in the domain's column index, a fold Reduce in its rows.
  kir::Expr at(const Value *v, const Point &p);
  /// From now on `v` is what `f` says: how a recipe gives the result of its anchor (the accumulators of a matmul).
  void bind(const Value *v, std::function<kir::Expr(const Point &)> f) { bound[v] = std::move(f); }

  /// Position in memory (padded, row-major) of a point in a tensor of this type.
  kir::Expr offset(const Type &t, const Point &p);
  /// The type in a buffer of a tensor of this dtype, and in expressions.
  DType storageOf(DType t) const { return isFloat(t) && compute == DType::f64 ? DType::f64 : t; }
  DType valueOf(DType t) const { return isFloat(t) ? compute : t; }
  /// The load of a buffer that holds a tensor of type `t`.
  kir::Expr loadAt(const kir::Buffer &b, const Type &t, const Point &p);
  /// output[p] = e, with e in compute dtype.
  kir::Stmt storeOutput(unsigned result, const Point &p, kir::Expr e);

  // Parts of points. They split an axis by div and rem where they must.
  Point suffix(const Point &p, unsigned rank);
  Point prefix(const Point &p, unsigned rank);
  std::vector<kir::Expr> indices(const Point &p);
  /// Axes as one index each over the dimensions of another type with the same elements (a reshape).
  Point reshaped(const Point &p, const Type &to);

  /// Number of elements inside each place where an axis with this index had to be split: recipes that can choose their
  /// axes look here after a trial evaluation, and cut the axes there instead.
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

/// The type with most elements that a member of the body is defined over: what the group's loops walk.
Type groupDomain(const Op &fused);

}  // namespace gptc
