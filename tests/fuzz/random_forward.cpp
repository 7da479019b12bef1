#include "grower.h"

namespace gptc::test {

namespace {

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

  std::string parameter(std::string name, const Type &t) {
    state(name, t, "param")->attrs.set("decay", t.rank() > 1);
    return name;
  }
  Value *newParameter(const Type &t) { return read(parameter("p" + std::to_string(names++), t)); }
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
    AttrMap eps = attrs({{"eps", 0.125}});
    if (chance(3)) {
      if (chance(3))
        eps.set("plus_one", true);
      return tryValue(OpKind::rmsnorm, {x, newParameter(columns)}, eps);
    }
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
    if (chance(4))
      qkv = normedHeads(qkv, K);
    if (D % 2 == 0 && chance(2))
      qkv = rotated(qkv, K);
    if (!qkv)
      return nullptr;
    if (chance(3))
      return linear(decomposed(qkv, K, causal), C);
    AttrMap at = attrs({{"n_head", H}, {"n_kv_head", K}, {"causal", causal}});
    if (chance(3))
      at.set("alibi", true);
    if (chance(4))
      at.set("scale", 0.375);
    if (chance(4))
      at.set("softcap", 1.5);
    if (chance(4))
      at.set("window", integer(1 + pick(unsigned(T))));
    if (lowered && chance(2))
      return linear(cast(tryValue(OpKind::attention, {cast(qkv, lowType())}, at), DType::f32), C);
    if (!drops || chance(2))
      return linear(tryValue(OpKind::attention, {qkv}, at), C);
    at.set("p", 0.25);
    at.set("stream", integer(100 + layer));
    return linear(tryValue(OpKind::attention, {qkv, read("rng_seed"), read("step"), seq0}, at), C);
  }

  Value *rotated(Value *qkv, int64_t K) {
    const int64_t rotary = D > 2 && chance(3) ? 2 : D;
    Value *table = tryValue(OpKind::rope_table, {}, attrs({{"rows", T}, {"size", rotary}, {"theta", 100.0}}));
    AttrMap at = attrs({{"n_head", H}, {"n_kv_head", K}});
    if (rotary < D)
      at.set("rotary", rotary);
    return tryValue(OpKind::rope, {qkv, table}, at);
  }

  /// Queries and keys over their root mean square, each head by itself or all of a token together.
  Value *normedHeads(Value *qkv, int64_t K) {
    AttrMap at = attrs({{"n_head", H}, {"n_kv_head", K}, {"eps", 0.125}});
    if (chance(3))
      at.set("plus_one", true);
    const int64_t heads = H + 2 * K;
    if (chance(2)) {
      at.set("whole", true);
      return tryValue(OpKind::qk_norm,
                      {qkv, newParameter(Type(DType::f32, {H * D})), newParameter(Type(DType::f32, {K * D}))}, at);
    }
    Value *parts = reshape(qkv, {B, T, heads, D});
    Value *y = tryValue(OpKind::qk_norm,
                        {parts, newParameter(Type(DType::f32, {D})), newParameter(Type(DType::f32, {D}))}, at);
    return y ? reshape(y, {B, T, heads * D}) : nullptr;
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

}  // namespace

bool growForward(Module &m, unsigned seed, unsigned draw) { return Forward(m, seed, draw).build(); }

}  // namespace gptc::test
