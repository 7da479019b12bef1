// Random functions over small tensors whose shapes are easy to confuse: every op kind that fusion and planning treat in
// a way of its own, states read and written in any order. Values stay small, so that results can be compared.
#pragma once

#include "ir/graph.h"
#include "ir/opdef.h"

#include <random>

namespace gptc::test {

class RandomGraph {
public:
  explicit RandomGraph(unsigned seed) : random(seed) {
    // Equal extents more often than not: [4,4,4] hides the difference between a row, a suffix and a column.
    auto extent = [&] { return pick(2) ? int64_t(4) : int64_t(1 + pick(5)); };
    a = extent(), b = extent(), c = pick(3) ? 4 : 1 + pick(6);
    m = std::make_unique<Module>();
    for (int i = 0; i < 4; ++i)
      m->addState("s" + std::to_string(i), shape(pick(4)));
    m->addState("w", Type(DType::f32, {c, c}));
    m->addState("table", Type(DType::f32, {5, c}));
    Function *f = m->addFunction("f");
    for (unsigned rank = 0; rank < 4; ++rank)
      f->body.addArg(shape(rank), "x" + std::to_string(rank));
    f->body.addArg(Type(DType::i32, {a, b}), "ids");
    f->body.addArg(Type::scalar(DType::i64), "n");
    for (const auto &arg : f->body.args)
      values.push_back(arg.get());
    builder = std::make_unique<Builder>(f->body);
    for (int i = 0, n = 5 + int(pick(30)); i < n; ++i)
      step();
    std::vector<Value *> results;
    for (int i = 0; i < 3; ++i)
      results.push_back(values[pick(values.size())]);
    builder->ret(results);
  }

  std::unique_ptr<Module> m;
  int64_t a, b, c;

  std::vector<Tensor> args() {
    std::vector<Tensor> all;
    for (const auto &arg : m->function("f")->body.args)
      all.push_back(tensor(arg->type, 17 + all.size()));
    return all;
  }
  StateMap states() {
    StateMap all;
    unsigned n = 0;
    for (const auto &s : m->states)
      all[s->name] = tensor(s->type, n++);
    return all;
  }

private:
  std::mt19937 random;
  std::vector<Value *> values;
  std::unique_ptr<Builder> builder;

  unsigned pick(size_t n) { return random() % n; }

  Type shape(unsigned rank) {
    Type t(DType::f32);
    const int64_t dims[] = {a, b, c};
    for (unsigned i = 3 - rank; i < 3; ++i)
      t.dims.push_back(dims[i]);
    return t;
  }

  static Tensor tensor(const Type &t, unsigned seed) {
    std::mt19937 r(seed);
    Tensor x(t);
    for (double &v : x.data)
      v = isInt(t.dtype) ? double(r() % 5) - (t.dtype == DType::i32) : double(int(r() % 2048) - 1024) / 512;
    return x;
  }

  /// A float value of this rank (and, for rank 0 to 3, of the graph's own extents), or null.
  Value *of(const Type &t) {
    std::vector<Value *> found;
    for (Value *v : values)
      if (v->type == t)
        found.push_back(v);
    // Recent values more often: chains are what fuses.
    if (found.empty())
      return nullptr;
    return found[pick(2) ? found.size() - 1 - pick(std::min<size_t>(found.size(), 3)) : pick(found.size())];
  }
  Value *arg(unsigned i) { return values[i]; }

  void add(Op *op) {
    for (unsigned i = 0; i < op->numResults(); ++i)
      if (isFloat(op->result(i)->type.dtype))
        values.push_back(op->result(i));
  }
  void add(OpKind kind, std::vector<Value *> operands, AttrMap at = {}) {
    add(builder->op(kind, operands, std::move(at)));
  }
  void addTyped(OpKind kind, Value *x, const Type &t, AttrMap at = {}) {
    add(builder->op(kind, {x}, llvm::ArrayRef<Type>(t), std::move(at)));
  }

  void step() {
    const Type full = shape(3);
    Value *x = of(pick(4) ? full : shape(pick(4)));
    Value *y = of(full), *row = of(Type(DType::f32, {full.dims[0], full.dims[1]}));
    Value *g = of(shape(1)), *ids = arg(4), *n = arg(5);
    auto i = [](int64_t v) { return Attr(v); };
    switch (pick(26)) {
    case 0:
    case 1:
    case 2: {
      // Any pair that broadcasts.
      Value *z = values[pick(values.size())];
      if (!isFloat(z->type.dtype) || z->type.rank() > x->type.rank() ||
          x->type.slice(x->type.rank() - z->type.rank(), x->type.rank()).dims != z->type.dims)
        z = x;
      OpKind kinds[] = {OpKind::add, OpKind::sub, OpKind::mul};
      return add(kinds[pick(3)], pick(2) ? std::vector<Value *>{x, z} : std::vector<Value *>{z, x});
    }
    case 3:
    case 4:
    case 5: {
      OpKind kinds[] = {OpKind::tanh, OpKind::tanh, OpKind::neg, OpKind::relu, OpKind::gelu};
      return add(kinds[pick(5)], {x});
    }
    case 6:
      return add(OpKind::gelu_grad, {y, of(full)});
    case 7:
      return add(OpKind::dropout, {y, n, n, n}, attrs({{"p", 0.5}, {"stream", i(pick(3))}}));
    case 8:
      return add(OpKind::softmax, {y});
    case 9:
      return add(OpKind::layernorm, {y, g}, attrs({{"eps", 0.5}}));
    case 10:
      return add(pick(2) ? OpKind::row_sum : OpKind::row_max, {y});
    case 11:
      if (row)
        return add(OpKind::layernorm_grad, {y, of(full), g, row, of(row->type)});
      return;
    case 12:
      return add(OpKind::cross_entropy, {y, pick(2) ? ids : ids});
    case 13:
      if (row)
        return add(OpKind::cross_entropy_grad, {builder->value(OpKind::tanh, {y}), ids,
                                                builder->value(OpKind::cross_entropy, {y, ids}), of(row->type)});
      return;
    case 14: {
      int64_t lead = 1 + pick(2);
      std::vector<Value *> in = {builder->value(OpKind::tanh, {y})};
      if (Value *init = of(shape(3 - lead)); init && pick(2))
        in.push_back(init);
      return add(OpKind::reduce_sum, in, attrs({{"lead", i(lead)}, {"fold", i(pick(4))}}));
    }
    case 15:
      if (row)
        return add(OpKind::layernorm_grad_params, {y, of(full), row, of(row->type)},
                   attrs({{"bias", true}, {"fold", i(pick(3))}}));
      return;
    case 16:
      return add(OpKind::sum_squares, {builder->value(OpKind::tanh, {x})}, attrs({{"block", i(1 + pick(9))}}));
    case 17: {
      Value *w = builder->read(*m->state("w"));
      return add(OpKind::matmul, {builder->value(OpKind::tanh, {y}), w}, attrs({{"tb", pick(2) == 0}}));
    }
    case 18: {
      std::vector<Value *> in = {builder->value(OpKind::tanh, {y}), builder->value(OpKind::tanh, {of(full)})};
      if (Value *init = of(Type(DType::f32, {c, c})); init && pick(2))
        in.push_back(init);
      return add(OpKind::matmul, in, attrs({{"ta", true}, {"fold", i(pick(4))}}));
    }
    case 19:
      return add(OpKind::embedding, {builder->read(*m->state("table")), ids});
    case 20: {
      std::vector<int64_t> perm = {0, 1, 2};
      std::shuffle(perm.begin(), perm.end(), random);
      return add(OpKind::transpose, {y}, attrs({{"perm", perm}}));
    }
    case 21: {
      Type t(DType::f32, {Dim(y->type.dim(0) * y->type.dim(1)), y->type.dims[2]});
      Value *flat = builder->op(OpKind::reshape, {y}, llvm::ArrayRef<Type>(t))->result();
      if (pick(2))
        flat = builder->value(OpKind::tanh, {flat});
      return addTyped(OpKind::reshape, flat, full);
    }
    case 22: {
      if (x->type.rank() == 0)
        return;
      int64_t dim = pick(x->type.rank()), all = x->type.dim(dim), size = 1 + pick(all), start = pick(all - size + 1);
      Value *part =
          builder->value(OpKind::slice, {x}, attrs({{"dim", i(dim)}, {"start", i(start)}, {"size", i(size)}}));
      return add(OpKind::unslice, {part},
                 attrs({{"dim", i(dim)}, {"start", i(pick(all - size + 1))}, {"full", i(all)}}));
    }
    case 23:
      return add(builder->op(OpKind::constant, {}, llvm::ArrayRef<Type>(shape(pick(4))),
                             attrs({{"value", double(pick(5)) - 2}})));
    case 24: {
      State &s = *m->states[pick(m->states.size())];
      values.push_back(builder->read(s));
      return;
    }
    default: {
      State &s = *m->states[pick(m->states.size())];
      if (Value *v = of(s.type))
        builder->write(s, v);
      return;
    }
    }
  }
};

}  // namespace gptc::test
