#include "codegen/recipes/group_ctx.h"

#include "codegen/codegen.h"
#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

using namespace kir;

int64_t Axis::extent() const {
  int64_t n = 1;
  for (int64_t d : dims)
    n *= d;
  return n;
}

unsigned Point::rank() const {
  unsigned n = 0;
  for (const Axis &a : axes)
    n += a.dims.size();
  return n;
}

Point &Point::add(Expr index, llvm::ArrayRef<Dim> dims) {
  if (dims.empty())
    return *this;
  Axis a{std::move(index), {}};
  for (const Dim &d : dims)
    a.dims.push_back(d.logical);
  axes.push_back(std::move(a));
  return *this;
}

GroupEval::GroupEval(const Op &fused, DType compute)
    : fused(fused), body(*fused.body), compute(compute), streamNumbers(streamsOf(fused)) {
  GPTC_CHECK(fused.is(OpKind::fused) && fused.body && fused.body->back()->is(OpKind::yield), "{}", fused.name());
  for (auto [i, v] : llvm::enumerate(fused.operands()))
    inputs.push_back(
        makeBuffer(fmt::format("in{}", i), storageOf(v->type.dtype), Storage::global, v->type.paddedElements()));
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    const Type &t = fused.result(i)->type;
    outputs.push_back(
        makeBuffer(fmt::format("out{}", i), storageOf(t.dtype), Storage::global, t.paddedElements(), true));
  }
  for (size_t i = 0; i < streamNumbers.size(); ++i)
    streams.push_back(makeBuffer(fmt::format("stream{}", i), DType::i64, Storage::global, 1));
}

Expr GroupEval::stream(const Op &member) const {
  if (!member.attrs.has("stream"))
    return imm(0);
  auto it = llvm::find(streamNumbers, member.attrs.getInt("stream"));
  GPTC_CHECK(it != streamNumbers.end(), "the stream of {} is not listed", member.name());
  return load(streams[size_t(it - streamNumbers.begin())], imm(0));
}

std::vector<Buffer> GroupEval::params(llvm::ArrayRef<Buffer> workspaces) const {
  std::vector<Buffer> all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  all.insert(all.end(), workspaces.begin(), workspaces.end());
  all.insert(all.end(), streams.begin(), streams.end());
  return all;
}

std::string GroupEval::kernelName() const {
  std::string name = fact<&GroupFacts::kind>(fused);
  unsigned shown = 0;
  for (const Op &op : body)
    if (!op.isOneOf(OpKind::constant, OpKind::yield) && ++shown <= 6)
      name += "_" + op.name().str();
  return name;
}

// ---- points ---------------------------------------------------------------------------------------------------------

std::pair<Axis, Axis> GroupEval::split(const Axis &a, unsigned at) {
  Axis left, right;
  left.dims.assign(a.dims.begin(), a.dims.begin() + at);
  right.dims.assign(a.dims.begin() + at, a.dims.end());
  int64_t inside = right.extent();
  Split &s = splitMemo[{a.index.get(), inside}];
  if (!s.left.index) {
    s.whole = a;
    s.left.index = left.extent() == 1 ? imm(0) : inside == 1 ? a.index : a.index / imm(inside);
    s.right.index = inside == 1 ? imm(0) : left.extent() == 1 ? a.index : a.index % imm(inside);
  }
  left.index = s.left.index, right.index = s.right.index;
  return {left, right};
}

std::set<int64_t> GroupEval::splitsOf(const Expr &index) const {
  std::set<int64_t> sizes;
  for (const auto &[key, s] : splitMemo) {
    if (key.first != index.get() || s.right.index == index)
      continue;
    // A split of the right part has the same number of elements inside as seen from the whole. A split of the left part
    // has all elements of the right part inside too.
    if (key.second > 1)
      sizes.insert(key.second);
    sizes.merge(splitsOf(s.right.index));
    if (s.left.index != s.whole.index)
      for (int64_t inner : splitsOf(s.left.index))
        sizes.insert(inner * key.second);
  }
  return sizes;
}

Point GroupEval::suffix(const Point &p, unsigned rank) {
  GPTC_CHECK(rank <= p.rank(), "rank {} of {}", rank, p.rank());
  Point out;
  unsigned have = 0;
  for (auto it = p.axes.rbegin(); it != p.axes.rend() && have < rank; ++it) {
    unsigned n = it->dims.size();
    out.axes.insert(out.axes.begin(), have + n <= rank ? *it : split(*it, n - (rank - have)).second);
    have += n;
  }
  return out;
}

Point GroupEval::prefix(const Point &p, unsigned rank) {
  GPTC_CHECK(rank <= p.rank(), "rank {} of {}", rank, p.rank());
  Point out;
  unsigned have = 0;
  for (const Axis &a : p.axes) {
    if (have >= rank)
      break;
    unsigned n = a.dims.size();
    out.axes.push_back(have + n <= rank ? a : split(a, rank - have).first);
    have += n;
  }
  return out;
}

std::vector<Expr> GroupEval::indices(const Point &p) {
  std::vector<Expr> out;
  for (const Axis &axis : p.axes) {
    Axis a = axis;
    // Split from the innermost dimension outwards: then each rem is by the extent of one dimension.
    std::vector<Expr> parts;
    while (a.dims.size() > 1) {
      auto [left, right] = split(a, a.dims.size() - 1);
      parts.push_back(right.index);
      a = left;
    }
    parts.push_back(a.index);
    out.insert(out.end(), parts.rbegin(), parts.rend());
  }
  return out;
}

Point GroupEval::reshaped(const Point &p, const Type &to) {
  Point out;
  unsigned next = 0;
  for (unsigned i = 0; i < p.axes.size(); ++i) {
    // Take whole dimensions of `to`, and merge axes until both products agree.
    Axis a{p.axes[i].index, {}};
    int64_t extent = p.axes[i].extent(), have = 1;
    while (true) {
      while (have < extent && next < to.rank()) {
        a.dims.push_back(to.dim(next));
        have *= to.dim(next++);
      }
      if (have == extent)
        break;
      GPTC_CHECK(have > extent && i + 1 < p.axes.size(), "reshape to a different number of elements: {}", to.str());
      const Axis &more = p.axes[++i];
      a.index = a.index * imm(more.extent()) + more.index;
      extent *= more.extent();
    }
    if (!a.dims.empty())
      out.axes.push_back(std::move(a));
  }
  for (; next < to.rank(); ++next) {
    GPTC_CHECK(to.dim(next) == 1, "reshape to a different number of elements: {}", to.str());
    out.axes.push_back({imm(0), {1}});
  }
  return out;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

Expr GroupEval::offset(const Type &t, const Point &p) {
  GPTC_CHECK(p.rank() == t.rank(), "a point of rank {} in {}", p.rank(), t.str());
  llvm::SmallVector<int64_t, 4> stride(t.rank(), 1);
  for (int d = int(t.rank()) - 2; d >= 0; --d)
    stride[d] = stride[d + 1] * t.dims[d + 1].padded;
  Expr sum;
  auto term = [&](const Expr &index, int64_t s) {
    Expr e = s == 1 ? index : index * imm(s);
    sum = sum ? sum + e : e;
  };
  unsigned d = 0;
  for (const Axis &axis : p.axes) {
    Axis a = axis;
    // Split the axis at padding inside of it, outermost split first, so that terms are added from the outside in.
    unsigned begin = d, end = d + a.dims.size();
    for (unsigned i = begin; i < end; ++i)
      GPTC_CHECK(a.dims[i - begin] == t.dim(i), "axis of {} in dimension {} of {}", a.dims[i - begin], i, t.str());
    for (unsigned i = begin + 1; i < end; ++i) {
      if (t.dims[i].logical == t.dims[i].padded)
        continue;
      auto [left, right] = split(a, i - d);
      term(left.index, stride[i - 1]);
      a = right, d = i;
    }
    term(a.index, stride[end - 1]);
    d = end;
  }
  return sum ? sum : imm(0);
}

Expr GroupEval::loadAt(const Buffer &b, const Type &t, const Point &p) {
  Expr e = load(b, offset(t, p));
  return isFloat(t.dtype) && e->dtype != compute ? cast(compute, e) : e;
}

Expr GroupEval::stored(unsigned result, const Point &p) {
  const Expr e = at(output(result), p);
  const DType t = storageOf(fused.result(result)->type.dtype);
  const bool again = e->kind == ExprKind::Unary && isNarrow(t) && e->uop == roundingTo(t);
  return again ? e->args[0] : e;
}

Stmt GroupEval::storeOutput(unsigned result, const Point &p, Expr e) {
  const Type &t = fused.result(result)->type;
  DType stored = storageOf(t.dtype);
  if (isNarrow(stored))
    stored = DType::f32;  // the store rounds
  return store(outputs[result], offset(t, p), e->dtype == stored ? e : cast(stored, e));
}

// ---- members --------------------------------------------------------------------------------------------------------

class GroupEval::MemberCtx : public LowerCtx {
public:
  MemberCtx(const Op &op, GroupEval &g, const Point &p) : LowerCtx(op), g(g), p(p) {}
  std::vector<Expr> index() override { return g.indices(p); }
  Expr operand(unsigned i) override {
    const Value *v = op.operand(i);
    return g.at(v, g.suffix(p, v->type.rank()));
  }
  Expr rowOperand(unsigned i) override {
    const Value *v = op.operand(i);
    GPTC_CHECK(v->type.rank() + 1 == p.rank(), "operand {} of {} has no element per row", i, op.name());
    return g.at(v, g.prefix(p, v->type.rank()));
  }
  Expr operandAt(unsigned i, llvm::ArrayRef<Expr> index) override {
    const Value *v = op.operand(i);
    GPTC_CHECK(index.size() == v->type.rank(), "operand {} of {}: {} indices for {}", i, op.name(), index.size(),
               v->type.str());
    Point at;
    for (auto [d, e] : llvm::enumerate(index))
      at.add(e, v->type.dims[d]);
    return g.at(v, at);
  }
  Expr stream() override { return g.stream(op); }
  DType compute() override { return g.compute; }
  Expr rowExp(Expr x) override {
    return unary(g.approximates && g.compute == DType::f32 ? UnaryOp::exp_approx : UnaryOp::exp, std::move(x));
  }

private:
  GroupEval &g;
  const Point &p;
};

/// The memo compares indices by address: a point of the same loop variables gives the same nodes.
static std::pair<const void *, std::vector<const void *>> keyOf(const void *what, const Point &p) {
  std::vector<const void *> at;
  for (const Axis &a : p.axes)
    at.push_back(a.index.get());
  return {what, std::move(at)};
}

Expr GroupEval::at(const Value *v, const Point &p) {
  GPTC_CHECK(p.rank() == v->type.rank(), "a point of rank {} in a value of type {}", p.rank(), v->type.str());
  // A value of a narrow type must be rounded, even if it is never stored.
  const DType narrow = v->type.dtype;
  auto asStored = [&](Expr e) {
    return compute != DType::f64 && isNarrow(narrow) ? cast(compute, cast(narrow, std::move(e))) : e;
  };
  if (auto it = bound.find(v); it != bound.end())
    return asStored(it->second(p));
  if (!v->def) {
    GPTC_CHECK(v->owner == &body && v->index < inputs.size(), "a value from outside the body");
    auto [it, isNew] = memo.try_emplace(keyOf(v, p));
    if (isNew)
      it->second = {p, {loadAt(inputs[v->index], v->type, p)}};
    return it->second.exprs[0];
  }
  const Op &op = *v->def;
  if (op.is(OpKind::constant)) {
    const Attr *value = op.attrs.find("value");
    GPTC_CHECK(value, "constant without a value");
    if (isFloat(v->type.dtype))
      return fimm(op.attrs.getFloat("value"), compute);
    return std::holds_alternative<double>(*value) ? imm(int64_t(std::get<double>(*value)), v->type.dtype)
           : std::holds_alternative<bool>(*value) ? imm(std::get<bool>(*value), v->type.dtype)
                                                  : imm(op.attrs.getInt("value"), v->type.dtype);
  }
  if (op.is(OpKind::reshape))
    return at(op.operand(0), reshaped(p, op.operand(0)->type));
  return asStored(member(op, domainOf(op, v, p))[v->index]);
}

/// The point in the domain of `op` at which to evaluate it for its result `v` at `p`.
Point GroupEval::domainOf(const Op &op, const Value *v, const Point &p) {
  switch (op.def().fusion) {
  case FusionKind::pointwise:
  case FusionKind::gather:
  case FusionKind::pack:
    return p;
  case FusionKind::row: {
    unsigned rank = op.operand(0)->type.rank();
    if (v->type.rank() == rank)
      return p;
    GPTC_CHECK(v->type.rank() + 1 == rank && !domain.axes.empty() && domain.axes.back().dims.size() == 1 &&
                   domain.axes.back().dims[0] == op.operand(0)->type.dim(-1),
               "no column for {}", op.name());
    Point q = p;
    q.axes.push_back(domain.axes.back());
    return q;
  }
  case FusionKind::fold: {
    const Type &in = op.operand(0)->type;
    GPTC_CHECK(domain.rank() >= in.rank(), "no rows for {}", op.name());
    Point q = prefix(suffix(domain, in.rank()), in.rank() - v->type.rank());
    q.axes.append(p.axes.begin(), p.axes.end());
    return q;
  }
  case FusionKind::reduce_all:
    return suffix(domain, op.operand(0)->type.rank());
  default:
    GPTC_UNREACHABLE("{} has no element expression", op.name());
  }
}

const std::vector<Expr> &GroupEval::member(const Op &op, const Point &p) {
  auto [it, isNew] = memo.try_emplace(keyOf(&op, p));
  if (isNew) {
    // `lower` evaluates operands, which inserts into the memo; references into a std::map stay valid.
    it->second.keepAlive = p;
    MemberCtx ctx(op, *this, it->second.keepAlive);
    it->second.exprs = op.def().lower(ctx);
    GPTC_CHECK(it->second.exprs.size() == op.numResults(), "{} lowers to {} results", op.name(),
               it->second.exprs.size());
  }
  return it->second.exprs;
}

Type groupDomain(const Op &fused) {
  Type best = Type::scalar(DType::f32);
  bool any = false;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield))
      continue;
    // A cast of an operand does not count: the operand may be the table of a gather, larger than the domain.
    if (op.is(OpKind::cast) && !op.operand(0)->def &&
        llvm::none_of(op.result()->users(), [](const Op *user) { return user->is(OpKind::yield); }))
      continue;
    FusionKind f = op.def().fusion;
    bool ofOperand = f == FusionKind::row || f == FusionKind::fold || f == FusionKind::reduce_all;
    const Type &t = ofOperand ? op.operand(0)->type : op.result(0)->type;
    if (!any || t.elements() > best.elements() || (t.elements() == best.elements() && t.rank() > best.rank()))
      best = t, any = true;
  }
  return best;
}

}  // namespace gptc
