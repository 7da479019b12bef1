// What both kinds of random modules are grown with.
#pragma once

#include "ir/graph.h"
#include "ir/opdef.h"
#include "tools/check/inputs.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gptc::test {

inline Attr integer(int64_t v) { return v; }

/// Grows a function op by op. Every op is run in the interpreter at once: one whose result is large or not finite is
/// taken back, for a chain of such proves nothing.
class Grower {
public:
  /// `seed` is that of the inputs; `draw` counts attempts at a module for it.
  Grower(Module &m, unsigned seed, unsigned draw)
      : m(m), seed(seed), random(seed + draw * 0x9e3779b9u), palette(seed / 20 * 2 + seed % 2 + draw * 0x9e3779b9u) {}

protected:
  Module &m;
  const unsigned seed;
  std::mt19937 random;
  std::mt19937 palette;  // of extents: 20 seeds share one, and with it many kernels
  Function *f = nullptr;
  std::vector<Value *> values;  // floats that ops may use
  llvm::DenseMap<const Value *, Tensor> known;
  llvm::DenseSet<const Value *> constants;  // and what is computed from them alone
  StateMap states;
  int layer = -1;

  unsigned pick(size_t n) { return random() % n; }
  bool chance(unsigned oneIn) { return pick(oneIn) == 0; }

  /// An extent that likes edges, at most `limit`.
  int64_t extent(int64_t limit) {
    static constexpr int64_t liked[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 12,  13,  15,  16,
                                        17, 23, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129, 131};
    size_t n = std::upper_bound(std::begin(liked), std::end(liked), limit) - std::begin(liked);
    return liked[pickExtent(n)];
  }
  unsigned pickExtent(size_t n) { return palette() % n; }

  Value *arg(const std::string &name, const Type &t, int64_t below = 5) {
    Value *v = f->body.addArg(t, name);
    known[v] = inputTensor(name, t, below, seed * 8);
    return v;
  }

  State *state(const std::string &name, Type t, const char *kind = nullptr) {
    State *s = m.addState(name, std::move(t));
    if (kind)
      s->attrs = attrs({{"kind", std::string(kind)}});
    states[name] = statesFor(m, seed)[name];
    return s;
  }

  Value *read(const std::string &name) {
    Value *v = Builder(f->body).read(*m.state(name));
    known[v] = states[name];
    return v;
  }

  void write(const std::string &name, Value *v) {
    Builder(f->body).write(*m.state(name), v);
    states[name] = known[v];
  }

  /// The op where it is legal and its results are moderate, else null and nothing happened.
  Op *tryOp(OpKind kind, std::vector<Value *> operands, AttrMap at = {}, std::vector<Type> types = {}) {
    if (llvm::is_contained(operands, nullptr))
      return nullptr;
    Op *op = f->body.insert(kind);
    op->attrs = std::move(at);
    op->layer = layer;
    for (Value *v : operands)
      op->addOperand(v);
    auto give_up = [&] {
      for (unsigned i = 0; i < op->numResults(); ++i)
        known.erase(op->result(i));
      op->erase();
      return nullptr;
    };
    // Constants are folded in the dtype of the kernel; the interpreter knows no rounding, so that only exact ones
    // agree.
    const bool fixed = !operands.empty() && llvm::all_of(operands, [&](Value *v) { return constants.contains(v); });
    if (fixed && (kind == OpKind::div || kind == OpKind::sqrt))
      return give_up();
    const OpDef &def = op->def();
    std::string error = checkSignature(*op);
    if (!error.empty() || (def.infer && !def.infer(*op, types, error)))
      return give_up();
    for (const Type &t : types)
      op->addResult(t);
    if (def.check && !def.check(*op).empty())
      return give_up();
    std::vector<const Tensor *> in;
    for (const Value *v : operands)
      in.push_back(&known.find(v)->second);
    std::vector<Tensor> out = def.reference(*op, in);
    for (const Tensor &t : out)
      for (double v : t.data)
        if (!(std::fabs(v) < 100) && isFloat(t.type.dtype))
          return give_up();
    for (unsigned i = 0; i < out.size(); ++i) {
      known[op->result(i)] = std::move(out[i]);
      if (fixed || kind == OpKind::constant)
        constants.insert(op->result(i));
    }
    return op;
  }
  Value *tryValue(OpKind kind, std::vector<Value *> operands, AttrMap at = {}, std::vector<Type> types = {}) {
    Op *op = tryOp(kind, std::move(operands), std::move(at), std::move(types));
    return op ? op->result() : nullptr;
  }
  Value *constant(double v, Type t = Type::scalar(DType::f32)) {
    return tryValue(OpKind::constant, {}, attrs({{"value", v}}), {std::move(t)});
  }
  /// Powers of four and zeros: folding them is exact.
  double wholeConstant() {
    static constexpr double some[] = {0.0, -0.0, 1.0, -1.0, 4.0, -4.0, 0.25, 2.0, 0.5};
    return some[pick(std::size(some))];
  }
  Value *cast(Value *x, DType t) {
    return x ? tryValue(OpKind::cast, {x}, attrs({{"dtype", nameOf(t).str()}})) : nullptr;
  }
  DType lowType() { return chance(4) ? DType::f16 : DType::bf16; }
  Value *reshape(Value *x, llvm::ArrayRef<Dim> dims) {
    return x ? tryValue(OpKind::reshape, {x}, {}, {Type(x->type.dtype, dims)}) : nullptr;
  }
  Value *transpose(Value *x, std::vector<int64_t> perm) {
    return tryValue(OpKind::transpose, {x}, attrs({{"perm", std::move(perm)}}));
  }
  Value *part(Value *x, int64_t dim, int64_t start, int64_t size) {
    return tryValue(OpKind::slice, {x},
                    attrs({{"dim", integer(dim)}, {"start", integer(start)}, {"size", integer(size)}}));
  }

  /// Something pointwise on x, with a gradient.
  Value *activation(Value *x) {
    static constexpr OpKind kinds[] = {OpKind::gelu_tanh, OpKind::gelu_exact, OpKind::relu, OpKind::relu2,
                                       OpKind::silu,      OpKind::tanh,       OpKind::neg};
    switch (pick(9)) {
    case 6:  // away from the poles
      return tryValue(OpKind::exp, {tryValue(OpKind::tanh, {x})});
    case 7: {
      Value *square = tryValue(OpKind::mul, {x, x});
      return tryValue(pick(2) ? OpKind::log : OpKind::sqrt, {tryValue(OpKind::add, {square, constant(1)})});
    }
    case 8: {
      Value *square = tryValue(OpKind::mul, {x, x});
      return tryValue(OpKind::div, {x, tryValue(OpKind::add, {constant(1), square})});
    }
    default:
      return tryValue(kinds[pick(std::size(kinds))], {x});
    }
  }
};

/// Grows @forward into `m`, with parameters and a loss, to be differentiated. False where this draw leads nowhere.
bool growForward(Module &m, unsigned seed, unsigned draw);

/// Grows @f into `m`: forward and backward ops, sums over tokens, optimizer and caches, states read and written in any
/// order.
bool growProgram(Module &m, unsigned seed, unsigned draw);

}  // namespace gptc::test
