#include "random_graph.h"

#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "tools/check/inputs.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gptc::test {

namespace {

Attr integer(int64_t v) { return v; }

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

  Value *arg(const std::string &name, Type t, int64_t below = 5) {
    Value *v = f->body.addArg(t, name);
    known[v] = inputTensor(name, t, below, seed * 8);
    return v;
  }

  State *state(const std::string &name, Type t, const char *kind = nullptr) {
    State *s = m.addState(name, t);
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
    return tryValue(OpKind::constant, {}, attrs({{"value", v}}), {t});
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

// ---- @forward -------------------------------------------------------------------------------------------------------

class Forward : public Grower {
public:
  using Grower::Grower;

  /// False where this draw leads nowhere.
  bool build() {
    const unsigned large = pickExtent(4);  // which extent may be large: T, C, the vocabulary, none
    B = 1 + pickExtent(3);
    T = large == 0 ? extent(131) : extent(9);
    D = pickExtent(2) ? extent(5) : extent(9);
    H = 1 + pickExtent(4);
    C = large == 1 ? extent(131) : D * H;
    if (C != D * H)
      H = C % 4 == 0 ? 4 : 1, D = C / H;
    if (T > 16)
      B = 1;
    if (T * C > 1200)
      C = D = extent(9), H = 1;
    V = large == 2 ? extent(131) : extent(9);
    if (V * C > 1500)
      V = extent(9);
    wide = T * C < 200 ? extent(65) : extent(17);
    if (pickExtent(6) == 0)
      B = T = C = V = D = 4, H = 1;
    m.attrs = attrs({{"fold", integer(T > 1 && chance(2) ? divisorOf(T) : T)},
                     {"accumulate", integer(chance(3) ? 2 : 1)},
                     {"lr", 0.125},
                     {"schedule", std::string(chance(2) ? "cosine" : "linear")},
                     {"warmup", integer(pick(4))},
                     {"steps", integer(200)},
                     {"min_lr_ratio", 0.25},
                     {"grad_clip", chance(3) ? 0.0 : 0.5},
                     {"beta1", 0.875},
                     {"beta2", 0.75},
                     {"eps", 0.0625},
                     {"weight_decay", 0.25},
                     {"momentum", 0.75},
                     {"first_moment", 0.75}});
    static const char *const optimizers[] = {"adamw", "adamw", "adamw", "sgd", "adafactor"};
    m.attrs.set("optimizer", std::string(optimizers[(B + T + C + V + H) % 5]));
    if (chance(3))  // what the precision pass asks for
      m.attrs.set("compute", std::string(chance(4) ? "fp16" : "bf16"));
    f = m.addFunction("forward");
    const Type tokens(DType::i32, {B, T});
    Value *x = arg("x", tokens, V), *y = arg("y", tokens, V);
    seq0 = arg("seq0", Type::scalar(DType::i64));
    state("rng_seed", Type::scalar(DType::i64), "counter");
    state("step", Type::scalar(DType::i64), "counter");
    drops = !chance(3);
    lowered = chance(4);

    const bool tied = chance(2);
    parameter("wte", Type(DType::f32, {V, C}));
    h = tryValue(OpKind::embedding, {read("wte"), x});
    if (chance(2)) {
      parameter("wpe", Type(DType::f32, {T, C}));
      take(tryValue(OpKind::add, {h, read("wpe")}));
    }
    const size_t size = 5 + pick(chance(3) ? 24 : 10);  // autodiff makes three of one
    for (layer = 0; f->body.size() < size && layer < 40; ++layer)
      step();
    layer = -1;
    if (chance(2))
      take(norm(h));
    Value *logits;
    if (tied) {
      logits = tryValue(OpKind::matmul, {h, chance(2) ? read("wte") : firstRead("wte")}, attrs({{"tb", true}}));
    } else {
      const bool tb = chance(2);
      parameter("head", tb ? Type(DType::f32, {V, C}) : Type(DType::f32, {C, V}));
      logits = tryValue(OpKind::matmul, {h, read("head")}, tb ? attrs({{"tb", true}}) : AttrMap());
    }
    Value *nll = tryValue(OpKind::cross_entropy, {logits, y});
    if (!nll)
      return false;
    Builder b(f->body);
    b.ret({b.value(OpKind::reduce_sum, {nll}, attrs({{"lead", integer(2)}, {"fold", m.attrs.getInt("fold")}}))});
    return true;
  }

private:
  int64_t B, T, C, V, H, D, wide;
  Value *h = nullptr, *seq0 = nullptr;
  bool drops = false, lowered = false;
  unsigned names = 0;

  int64_t divisorOf(int64_t n) {
    int64_t d = 1 + pick(n);
    while (n % d)
      --d;
    return d;
  }

  std::string parameter(std::string name, Type t) {
    state(name, t, "param")->attrs.set("decay", t.rank() > 1);
    return name;
  }
  Value *newParameter(Type t) { return read(parameter("p" + std::to_string(names++), t)); }
  Value *firstRead(llvm::StringRef name) {
    for (Op &op : f->body)
      if (op.is(OpKind::read) && op.state == name)
        return op.result();
    return nullptr;
  }

  /// The stream goes on with x where that exists and has its type.
  void take(Value *x) {
    if (x && x->type == h->type)
      h = x;
  }

  Value *norm(Value *x) {
    const Type columns = x->type.slice(2, 3);
    const AttrMap eps = attrs({{"eps", 0.125}});
    if (chance(3))
      return tryValue(OpKind::rmsnorm, {x, newParameter(columns)}, eps);
    Value *g = newParameter(columns);
    if (chance(2))
      return tryValue(OpKind::layernorm, {x, g}, eps);
    return tryValue(OpKind::layernorm, {x, g, newParameter(columns)}, eps);
  }

  Value *linear(Value *x, int64_t out) {
    if (!x)
      return nullptr;
    const int64_t in = x->type.dim(-1);
    const bool tb = chance(4);
    Value *w = newParameter(tb ? Type(DType::f32, {out, in}) : Type(DType::f32, {in, out}));
    AttrMap at = tb ? attrs({{"tb", true}}) : AttrMap();
    const bool low = lowered && !chance(3);
    if (low) {
      const DType t = lowType();
      x = cast(x, t), w = cast(w, t);
      if (chance(2))
        at.set("out", std::string("f32"));
    }
    Value *y = tryValue(OpKind::matmul, {x, w}, at);
    if (low && y && y->type.dtype != DType::f32)
      y = cast(y, DType::f32);
    if (y && !chance(3))
      if (Value *biased = tryValue(OpKind::add, {y, newParameter(Type(DType::f32, {out}))}))
        y = biased;
    return y;
  }

  Value *dropout(Value *x) {
    if (!drops || !x || chance(2))
      return x;
    return tryValue(OpKind::dropout, {x, read("rng_seed"), read("step"), seq0},
                    attrs({{"p", chance(5) ? 0.0 : 0.25}, {"stream", integer(layer + 1)}}));
  }

  void residual(Value *y) {
    y = dropout(y);
    if (Value *sum = chance(8) ? y : tryValue(OpKind::add, {h, y}))
      take(sum);
  }

  Value *attention(Value *x) {
    const int64_t K = H % 2 == 0 && chance(2) ? H / 2 : chance(4) ? 1 : H;
    if (C != H * D || B * H * T * T * D > 20000)
      return nullptr;
    Value *qkv = linear(x, (H + 2 * K) * D);
    if (!qkv)
      return nullptr;
    const bool causal = !chance(3);
    if (D % 2 == 0 && chance(2)) {
      Value *table = tryValue(OpKind::rope_table, {}, attrs({{"rows", T}, {"size", D}, {"theta", 100.0}}));
      qkv = tryValue(OpKind::rope, {qkv, table}, attrs({{"n_head", H}, {"n_kv_head", K}}));
      if (!qkv)
        return nullptr;
    }
    if (chance(3))
      return linear(decomposed(qkv, K, causal), C);
    AttrMap at = attrs({{"n_head", H}, {"n_kv_head", K}, {"causal", causal}});
    if (chance(3))
      at.set("alibi", true);
    if (lowered && chance(2))
      return linear(cast(tryValue(OpKind::attention, {cast(qkv, lowType())}, at), DType::f32), C);
    if (!drops || chance(2))
      return linear(tryValue(OpKind::attention, {qkv}, at), C);
    at.set("p", 0.25);
    at.set("stream", integer(100 + layer));
    return linear(tryValue(OpKind::attention, {qkv, read("rng_seed"), read("step"), seq0}, at), C);
  }

  Value *decomposed(Value *qkv, int64_t K, bool causal) {
    const int64_t G = H / K;
    auto heads = [&](int64_t start, int64_t n) {
      return transpose(reshape(part(qkv, 2, start * D, n * D), {B, T, n, D}), {0, 2, 1, 3});
    };
    Value *q = heads(0, H), *k = heads(H, K), *v = heads(H + K, K);
    Value *s =
        tryValue(OpKind::matmul, {reshape(q, {B, K, G * T, D}), k}, attrs({{"batch", integer(2)}, {"tb", true}}));
    s = reshape(tryValue(OpKind::mul, {s, constant(0.5)}), {B, H, T, T});
    if (chance(3))
      s = tryValue(OpKind::alibi, {s});
    s = causal ? tryMasked(s) : tryValue(OpKind::softmax, {s});
    Value *p = dropout(s);
    Value *o = tryValue(OpKind::matmul, {reshape(p, {B, K, G * T, T}), v}, attrs({{"batch", integer(2)}}));
    return reshape(transpose(reshape(o, {B, H, T, D}), {0, 2, 1, 3}), {B, T, H * D});
  }

  /// softmax of causal scores. The mask's infinities live only in between.
  Value *tryMasked(Value *s) {
    if (!s)
      return nullptr;
    Builder b(f->body);
    b.layer = layer;
    Op *mask = b.op(OpKind::causal_mask, {s});
    std::vector<const Tensor *> in = {&known.find(s)->second};
    known[mask->result()] = mask->def().reference(*mask, in)[0];
    return tryValue(OpKind::softmax, {mask->result()});
  }

  void step() {
    switch (pick(13)) {
    case 0:
    case 1:
      return residual(attention(chance(4) ? h : norm(h)));
    case 2:
    case 3: {
      Value *y = chance(4) ? h : norm(h);
      Value *gate = linear(y, wide);
      if (!gate)
        return;
      Value *act = activation(gate);
      if (chance(3))
        act = tryValue(OpKind::mul, {act, linear(y, wide)});
      return residual(linear(act, C));
    }
    case 4:
      return take(activation(h));
    case 5: {
      OpKind kinds[] = {OpKind::add, OpKind::sub, OpKind::mul};
      const Type whole = h->type;
      Value *p = newParameter(whole.slice(1 + pick(2), 3));
      return take(pick(2) ? tryValue(kinds[pick(3)], {h, p}) : tryValue(kinds[pick(3)], {p, h}));
    }
    case 6: {
      OpKind kinds[] = {OpKind::add, OpKind::sub, OpKind::mul, OpKind::mul};
      Value *c = constant(wholeConstant());
      return take(pick(2) ? tryValue(kinds[pick(4)], {h, c}) : tryValue(kinds[pick(4)], {c, h}));
    }
    case 7: {  // a chain of views and back
      Value *flat = reshape(h, {B * T, C});
      if (chance(2))
        flat = flat ? activation(flat) : nullptr;
      if (chance(2))
        flat = transpose(transpose(flat, {1, 0}), {1, 0});
      return take(reshape(flat, {B, T, C}));
    }
    case 8: {
      std::vector<int64_t> perm = {0, 1, 2}, back(3);
      std::shuffle(perm.begin(), perm.end(), random);
      for (int i = 0; i < 3; ++i)
        back[perm[i]] = i;
      Value *turned = transpose(h, perm);
      if (chance(2) && turned)
        turned = tryValue(OpKind::tanh, {turned});
      return take(transpose(turned, back));
    }
    case 9: {
      const int64_t dim = 1 + pick(2), all = h->type.dim(int(dim)), size = 1 + pick(all), start = pick(all - size + 1);
      Value *some = part(h, dim, start, size);
      if (some && chance(2))
        some = activation(some);
      Value *wide =
          tryValue(OpKind::unslice, {some},
                   attrs({{"dim", integer(dim)}, {"start", integer(pick(all - size + 1))}, {"full", integer(all)}}));
      return residual(wide);
    }
    case 10: {
      Value *p = tryValue(OpKind::softmax, {h});
      return take(tryValue(OpKind::add, {h, p}));
    }
    case 11: {  // a statistic of each row, spread over it
      Value *sum = tryValue(OpKind::row_sum, {tryValue(OpKind::tanh, {h})});
      if (!sum)
        return;
      Value *spread = tryValue(OpKind::broadcast, {sum}, {}, {Type(DType::f32, {C, B, T})});
      return take(tryValue(OpKind::add, {h, tryValue(OpKind::mul, {transpose(spread, {1, 2, 0}), constant(0.25)})}));
    }
    default:
      return take(dropout(h));
    }
  }
};

// ---- @f -------------------------------------------------------------------------------------------------------------

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

  void step() {
    const Type full = shape(3), rows = full.slice(0, 2), columns = shape(1);
    Value *x = of(chance(4) ? shape(pick(4)) : full), *y = of(full), *z = of(full), *row = of(rows), *g = of(columns);
    if (!x || !y)
      return;
    switch (pick(42)) {
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
      return add(tryOp(OpKind::embedding, {read("table"), ids}));
    case 26: {
      std::vector<Value *> in = {y, ids};
      if (chance(2))
        in.push_back(read("table"));
      Op *d = tryOp(OpKind::embedding_grad, in, attrs({{"vocab", V}, {"padded", V}}));
      if (d && chance(2))
        write("table", d->result());
      return add(d);
    }
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
    Op *forward = nullptr;
    switch (pick(3)) {
    case 0: {
      Op *o = tryOp(OpKind::attention_cached, {qkv, read("k"), read("v"), pos},
                    attrs({{"n_head", integer(2)}, {"n_kv_head", integer(1)}}));
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

std::unique_ptr<Module> randomModule(unsigned seed) {
  for (unsigned draw = 0;; ++draw) {
    auto m = std::make_unique<Module>();
    if (seed % 2 ? Forward(*m, seed, draw).build() : Program(*m, seed, draw).build())
      return m;
    GPTC_CHECK(draw < 50, "no module for seed {}", seed);
  }
}

}  // namespace gptc::test
