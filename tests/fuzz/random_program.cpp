#include "grower.h"
#include "ir/quantized.h"
#include "support/diagnostics.h"

namespace gptc::test {

namespace {

class Program : public Grower {
public:
  using Grower::Grower;

  bool build() {
    const bool equal = pickExtent(2);
    a = equal ? 4 : extent(5), b = equal ? 4 : extent(7), c = equal && pickExtent(2) ? 4 : extent(9);
    switch (pickExtent(5)) {
    case 0:
      c = extent(131);
      break;
    case 1:
      b = extent(131);
      break;
    default:
      break;
    }
    if (a * b * c > 2000)
      a = 1 + pickExtent(2), b = std::min<int64_t>(b, 17);
    last = pickExtent(4) == 0 ? Dim(c, c + 1 + pickExtent(7)) : Dim(c);
    V = extent(9);
    f = m.addFunction("f");
    for (int i = 0; i < 4; ++i)
      state("s" + std::to_string(i), shape(pick(4)));
    state("w", Type(DType::f32, {last, last}), "param");
    state("table", Type(DType::f32, {V, last}), "param");
    state("k", Type(DType::f32, {1, b + 3, 3}));
    state("v", Type(DType::f32, {1, b + 3, 3}));
    for (const char *name : {"p", "m.p", "v.p"})
      state(name, shape(1 + pick(2) * 2));
    for (unsigned rank = 0; rank < 4; ++rank)
      values.push_back(arg("x" + std::to_string(rank), shape(rank)));
    ids = arg("ids", Type(DType::i32, {a, b}), V);
    targets = arg("targets", Type(DType::i32, {a, b}), c);
    n = arg("n", Type::scalar(DType::i64));
    pos = arg("pos", Type::scalar(DType::i64), 4);
    qkv = arg("qkv", Type(DType::f32, {1, b, 12}));
    const size_t size = 5 + pick(chance(2) ? 15 : 55);
    for (int tries = 0; f->body.size() < size && tries < 200; ++tries)
      step();
    std::vector<Value *> results;
    for (int i = 0; i < 3; ++i)
      results.push_back(chance(3) ? values[pick(values.size())]
                                  : values[values.size() - 1 - pick(std::min<size_t>(values.size(), 6))]);
    Builder(f->body).ret(results);
    return true;
  }

private:
  int64_t a, b, c, V;
  Dim last;
  Value *ids, *targets, *n, *pos, *qkv;

  Type shape(unsigned rank) {
    Type t(DType::f32);
    const Dim dims[] = {a, b, last};
    for (unsigned i = 3 - rank; i < 3; ++i)
      t.dims.push_back(dims[i]);
    return t;
  }

  /// A value of this type, recent ones more often: chains are what fuses. Null where there is none.
  Value *of(const Type &t) {
    std::vector<Value *> found;
    for (Value *v : values)
      if (v->type == t)
        found.push_back(v);
    if (found.empty())
      return nullptr;
    return found[pick(2) ? found.size() - 1 - pick(std::min<size_t>(found.size(), 3)) : pick(found.size())];
  }

  void add(Op *op) {
    for (unsigned i = 0; op && i < op->numResults(); ++i)
      if (isFloat(op->result(i)->type.dtype))
        values.push_back(op->result(i));
  }
  void add(Value *v) {
    if (v)
      values.push_back(v);
  }
  Value *small(Value *x) { return tryValue(OpKind::tanh, {x}); }
  /// Of a statistic: positive.
  Value *positive(Value *x) { return tryValue(OpKind::exp, {small(x)}); }

  /// What an op is chosen from: `x` of any rank; `y` and `z` of three dimensions; one number for each row, and a row.
  struct Operands {
    Type full, rows, columns;
    Value *x, *y, *z, *row, *g;
  };

  void step() {
    const Type full = shape(3), rows = full.slice(0, 2), columns = shape(1);
    Value *x = of(chance(4) ? shape(pick(4)) : full), *y = of(full), *z = of(full), *row = of(rows), *g = of(columns);
    if (!x || !y)
      return;
    const unsigned kind = pick(42);
    const Operands o{full, rows, columns, x, y, z, row, g};
    return kind < 16 ? rowOps(kind, o) : kind < 27 ? sumsAndProducts(kind, o) : movement(kind, o);
  }

  /// Pointwise ops, and those of a row.
  void rowOps(unsigned kind, const Operands &operands) {
    const auto [full, rows, columns, x, y, z, row, g] = operands;
    switch (kind) {
    case 0:
    case 1:
    case 2: {
      // Any pair that broadcasts.
      Value *o = values[pick(values.size())];
      OpKind kinds[] = {OpKind::add, OpKind::sub, OpKind::mul};
      return add(tryOp(kinds[pick(3)], pick(2) ? std::vector<Value *>{x, o} : std::vector<Value *>{o, x}));
    }
    case 3:
    case 4:
    case 5:
    case 6:
      return add(activation(x));
    case 7: {
      OpKind kinds[] = {OpKind::gelu_tanh_grad, OpKind::gelu_exact_grad, OpKind::relu_grad, OpKind::relu2_grad,
                        OpKind::silu_grad};
      return add(tryOp(kinds[pick(std::size(kinds))], {y, z}));
    }
    case 8:
      return add(
          tryOp(OpKind::dropout, {y, n, n, n}, attrs({{"p", chance(4) ? 0.0 : 0.5}, {"stream", integer(pick(3))}})));
    case 9:
      return add(tryOp(OpKind::softmax, {y}));
    case 10:
      return add(tryOp(OpKind::softmax_grad, {y, tryValue(OpKind::softmax, {z})}));
    case 11:
      return add(chance(2) ? tryOp(OpKind::layernorm, {y, g}, attrs({{"eps", 0.5}}))
                           : tryOp(OpKind::layernorm, {y, g, of(columns)}, attrs({{"eps", 0.5}})));
    case 12:
      return add(tryOp(OpKind::rmsnorm, {y, g}, attrs({{"eps", 0.5}})));
    case 13:
      return add(tryOp(pick(2) ? OpKind::row_sum : OpKind::row_max, {y}));
    case 14:
      return add(tryOp(OpKind::layernorm_grad, {y, z, g, row, positive(of(rows))}));
    case 15:
      return add(tryOp(OpKind::rmsnorm_grad, {y, z, g, positive(row)}));
    default:
      GPTC_UNREACHABLE("row op {}", kind);
    }
  }

  void sumsAndProducts(unsigned kind, const Operands &operands) {
    const auto [full, rows, columns, x, y, z, row, g] = operands;
    switch (kind) {
    case 16:
      return add(tryOp(OpKind::cross_entropy, {y, targets}));
    case 17: {
      Op *loss = tryOp(OpKind::cross_entropy, {small(y), targets});
      return loss ? add(tryOp(OpKind::cross_entropy_grad, {loss->operand(0), targets, loss->result(1), row})) : void();
    }
    case 18: {
      const int64_t lead = 1 + pick(2);
      std::vector<Value *> in = {small(y)};
      if (Value *init = of(shape(3 - unsigned(lead))); init && pick(2))
        in.push_back(init);
      return add(tryOp(OpKind::reduce_sum, in, attrs({{"lead", integer(lead)}, {"fold", integer(pick(4))}})));
    }
    case 19: {
      std::vector<Value *> in = {y, z, row, positive(of(rows))};
      const bool bias = chance(2);
      if (chance(2))
        for (int i = 0; i < 1 + bias; ++i)
          in.push_back(of(columns));
      return add(tryOp(OpKind::layernorm_grad_params, in, attrs({{"bias", bias}, {"fold", integer(pick(3))}})));
    }
    case 20:
      return add(tryOp(OpKind::rmsnorm_grad_params, {y, z, positive(row)}, attrs({{"fold", integer(pick(3))}})));
    case 21:
      return add(tryOp(OpKind::sum_squares, {small(x)}, attrs({{"block", integer(1 + pick(chance(2) ? 9 : 200))}})));
    case 22:
    case 23:
      return add(tryOp(OpKind::matmul, {small(y), read("w")}, attrs({{"tb", pick(2) == 0}})));
    case 24: {
      std::vector<Value *> in = {small(y), small(z)};
      if (Value *init = of(Type(DType::f32, {last, last})); init && pick(2))
        in.push_back(init);
      return add(tryOp(OpKind::matmul, in, attrs({{"ta", true}, {"fold", integer(pick(4))}})));
    }
    case 25:
      return add(seed % 4 == 1 ? fewBits() : tryValue(OpKind::embedding, {read("table"), ids}));
    case 26: {
      std::vector<Value *> in = {y, ids};
      if (chance(2))
        in.push_back(read("table"));
      Op *d = tryOp(OpKind::embedding_grad, in, attrs({{"vocab", V}, {"padded", V}}));
      if (d && chance(2))
        write("table", d->result());
      return add(d);
    }
    default:
      GPTC_UNREACHABLE("sum or product {}", kind);
    }
  }

  /// Rows of a table in 8 or 4 bits, as far as the last dimension goes.
  Value *fewBits() {
    const QuantFormat format = seed / 4 % 2 ? QuantFormat::q4_0 : QuantFormat::q8_0;
    const int64_t k = (c + quantBlock - 1) / quantBlock * quantBlock;
    const QuantizedType table = *quantizedType(Type(DType::f32, {Dim(k), Dim(V)}), 32, false, format);
    if (!m.state("few.numbers")) {
      state("few.numbers", table.numbers);
      state("few.scales", Type(DType::f32, table.scales.dims), "param");
    }
    Value *rows =
        tryValue(OpKind::quantized_embedding, {ids, read("few.numbers"), read("few.scales")},
                 attrs({{"bits", bitsOf(format)}, {"vocab", V}}), {Type(DType::f32, {Dim(a), Dim(b), Dim(k)})});
    return rows && k > c ? part(rows, 2, 0, c) : rows;
  }

  /// Views, constants and states; else one of the larger parts.
  void movement(unsigned kind, const Operands &operands) {
    const auto [full, rows, columns, x, y, z, row, g] = operands;
    switch (kind) {
    case 27: {
      std::vector<int64_t> perm = {0, 1, 2};
      std::shuffle(perm.begin(), perm.end(), random);
      return add(transpose(y, perm));
    }
    case 28: {
      Value *flat = reshape(y, {Dim(a * b), last});
      if (pick(2))
        flat = small(flat);
      return add(flat ? reshape(flat, full.dims) : nullptr);
    }
    case 29: {
      if (x->type.rank() == 0)
        return;
      const int64_t dim = pick(x->type.rank()), all = x->type.dim(int(dim)), size = 1 + pick(all),
                    start = pick(all - size + 1);
      return add(
          tryOp(OpKind::unslice, {part(x, dim, start, size)},
                attrs({{"dim", integer(dim)}, {"start", integer(pick(all - size + 1))}, {"full", integer(all)}})));
    }
    case 30:
      return add(constant(wholeConstant(), shape(pick(4))));
    case 31: {
      Value *narrow = of(shape(pick(3)));
      return narrow ? add(tryOp(OpKind::broadcast, {narrow}, {}, {full})) : void();
    }
    case 32:
    case 33: {
      const std::string name = "s" + std::to_string(pick(4));
      return add(read(name));
    }
    case 34:
    case 35: {
      const std::string name = "s" + std::to_string(pick(4));
      if (Value *v = of(m.state(name)->type))
        write(name, v);
      return;
    }
    case 36:
      return attention();
    case 37:
    case 38:
    case 39:
    case 40:
      return lowPrecision();
    default:
      return optimizer();
    }
  }

  void attention() {
    AttrMap heads = attrs({{"n_head", integer(2)}});
    if (b > 40)
      return;
    if (chance(4))
      heads.set("softcap", 1.5);
    if (chance(4))
      heads.set("window", integer(1 + pick(4)));
    Op *forward = nullptr;
    switch (pick(3)) {
    case 0: {
      heads.set("n_kv_head", integer(1));
      Op *o = tryOp(OpKind::attention_cached, {qkv, read("k"), read("v"), pos}, heads);
      if (o && chance(2)) {
        write("k", o->result(1));
        write("v", o->result(2));
      }
      return add(o);
    }
    case 1:
      heads.set("causal", chance(2));
      forward = tryOp(OpKind::attention, {qkv}, heads);
      break;
    default:
      heads.set("n_head", integer(4));
      heads.set("n_kv_head", integer(1));
      heads.set("p", 0.5);
      heads.set("stream", integer(pick(9)));
      forward = tryOp(OpKind::attention, {qkv, n, n, n}, heads);
      break;
    }
    if (!forward)
      return;
    add(forward);
    std::vector<Value *> in = {small(forward->result()), forward->operand(0), forward->result(0), forward->result(1)};
    for (unsigned i = 1; i < forward->numOperands(); ++i)
      in.push_back(forward->operand(i));
    add(tryOp(OpKind::attention_grad, in, forward->attrs));
  }

  /// A few ops on values stored in 16 bits, and back.
  void lowPrecision() {
    const DType t = lowType();
    Value *x = cast(of(shape(3)), t), *y = cast(of(shape(3)), t);
    if (!x || !y)
      return;
    for (unsigned n = 1 + pick(3); n > 0; --n) {
      Value *z = nullptr;
      switch (pick(8)) {
      case 0:
        z = tryValue(pick(2) ? OpKind::add : OpKind::mul, {x, y});
        break;
      case 1:
        z = tryValue(OpKind::softmax, {x});
        break;
      case 2:
        z = tryValue(OpKind::rmsnorm, {x, chance(2) ? of(shape(1)) : cast(of(shape(1)), t)}, attrs({{"eps", 0.5}}));
        break;
      case 3:
        z = tryValue(OpKind::matmul, {small(x), cast(read("w"), t)}, chance(2) ? attrs({{"tb", true}}) : AttrMap());
        break;
      case 4: {
        Value *sum =
            tryValue(OpKind::reduce_sum, {small(x)}, attrs({{"lead", integer(2)}, {"fold", integer(pick(4))}}));
        add(sum && sum->type.dtype == DType::f32 ? sum : cast(sum, DType::f32));
        break;
      }
      case 5: {
        AttrMap at = attrs({{"ta", true}, {"fold", integer(pick(4))}});
        if (chance(2))
          at.set("out", std::string("f32"));
        Value *product = tryValue(OpKind::matmul, {small(x), small(y)}, at);
        add(product && product->type.dtype == DType::f32 ? product : cast(product, DType::f32));
        break;
      }
      case 6:
        z = transpose(x, {0, 1, 2});
        break;
      default:
        z = tryValue(pick(2) ? OpKind::gelu_tanh : OpKind::tanh, {x});
        break;
      }
      if (z && z->type == x->type)
        x = z;
    }
    add(cast(x, DType::f32));
  }

  void optimizer() {
    Value *norm = tryValue(OpKind::sqrt, {tryValue(OpKind::sum_squares, {values[pick(values.size())]})});
    Value *scale = tryValue(OpKind::clip_scale, {norm}, attrs({{"max", 0.5}}));
    Value *lr =
        tryValue(OpKind::lr_schedule, {n},
                 attrs({{"kind", std::string("cosine")}, {"lr", 0.25}, {"warmup", integer(3)}, {"steps", integer(9)}}));
    Value *p = read("p"), *grad = of(p->type);
    Op *adam =
        tryOp(OpKind::adamw, {p, grad, read("m.p"), read("v.p"), lr, n, scale},
              attrs({{"beta1", 0.5}, {"beta2", 0.75}, {"eps", 0.25}, {"weight_decay", chance(2) ? 0.0 : 0.125}}));
    if (!adam)
      return;
    add(adam);
    if (chance(3))
      return;
    write("p", adam->result(0));
    write("m.p", adam->result(1));
    write("v.p", adam->result(2));
  }
};

}  // namespace

bool growProgram(Module &m, unsigned seed, unsigned draw) { return Program(m, seed, draw).build(); }

}  // namespace gptc::test
