// A one-layer GPT small enough for the interpreter, and means to run its functions.
#pragma once

#include "ir/graph.h"
#include "ir/opdef.h"
#include "passes/pass.h"
#include "tests/support/interpreter_inputs.h"

#include <gtest/gtest.h>

namespace gptc::test {

struct SmallGpt {
  int64_t batch = 2, block = 4, width = 6, vocab = 7, heads = 2, accumulate = 1;
  double dropout = 0;
  bool tied = true, bias = true, decomposed = false, rmsnorm = false;
  bool rope = false, alibi = false, gated = false, causal = true;  // rope: heads of an even size
};

inline void addParam(Module &m, const char *name, const std::vector<int64_t> &shape) {
  Type t(DType::f32);
  for (int64_t n : shape)
    t.dims.push_back(n);
  State *s = m.addState(name, t);
  s->attrs = attrs({{"kind", std::string("param")},
                    {"init", std::string("normal")},
                    {"std", 0.3},
                    {"stream", int64_t(m.states.size())},
                    {"decay", shape.size() > 1}});
}

inline std::unique_ptr<Module> smallGpt(const SmallGpt &o) {
  auto m = std::make_unique<Module>();
  m->attrs = attrs({{"accumulate", o.accumulate},
                    {"fold", int64_t(2)},
                    {"grad_clip", 0.5},
                    {"lr", 1e-2},
                    {"schedule", std::string("cosine")},
                    {"warmup", int64_t(1)},
                    {"steps", int64_t(10)},
                    {"min_lr_ratio", 0.1},
                    {"beta1", 0.9},
                    {"beta2", 0.95},
                    {"eps", 1e-8},
                    {"weight_decay", 0.1}});
  const int64_t C = o.width, B = o.batch, T = o.block, H = o.heads, D = C / H;
  addParam(*m, "wte", {o.vocab, C});
  addParam(*m, "wpe", {T + 1, C});
  addParam(*m, "ln.g", {C});
  if (o.bias && !o.rmsnorm)
    addParam(*m, "ln.b", {C});
  addParam(*m, "qkv.w", {C, 3 * C});
  if (o.bias)
    addParam(*m, "qkv.b", {3 * C});
  addParam(*m, "fc.w", {C, 2 * C});
  if (o.gated)
    addParam(*m, "gate.w", {C, 2 * C});
  addParam(*m, "proj.w", {2 * C, C});
  if (!o.tied)
    addParam(*m, "head", {o.vocab, C});
  for (const char *name : {"rng_seed", "step"})
    m->addState(name, Type::scalar(DType::i64))->attrs =
        attrs({{"kind", std::string("counter")}, {"init", std::string("zeros")}});

  Function *f = m->addFunction("forward");
  Value *x = f->body.addArg(Type(DType::i32, {B, T}), "x");
  Value *y = f->body.addArg(Type(DType::i32, {B, T}), "y");
  Value *seq0 = f->body.addArg(Type::scalar(DType::i64), "seq0");
  Builder b(f->body);
  auto read = [&](const char *name) { return b.read(*m->state(name)); };
  auto drop = [&](Value *v, int64_t stream) {
    return o.dropout == 0 ? v
                          : b.value(OpKind::dropout, {v, read("rng_seed"), read("step"), seq0},
                                    attrs({{"p", o.dropout}, {"stream", stream}}));
  };
  auto norm = [&](Value *v) {
    if (o.rmsnorm)
      return b.value(OpKind::rmsnorm, {v, read("ln.g")}, attrs({{"eps", 1e-5}}));
    return b.value(OpKind::layernorm, {v, read("ln.g"), o.bias ? read("ln.b") : nullptr}, attrs({{"eps", 1e-5}}));
  };
  auto reshape = [&](Value *v, const std::vector<Dim> &dims) {
    return b.op(OpKind::reshape, {v}, llvm::ArrayRef<Type>(Type(DType::f32, dims)))->result();
  };
  auto part = [&](Value *v, int64_t start) {
    v = b.value(OpKind::slice, {v}, attrs({{"dim", int64_t(2)}, {"start", start}, {"size", C}}));
    return b.value(OpKind::transpose, {reshape(v, {B, T, H, D})}, attrs({{"perm", std::vector<int64_t>{0, 2, 1, 3}}}));
  };

  Value *h = b.value(OpKind::embedding, {read("wte"), x});
  Value *pos = b.value(OpKind::slice, {read("wpe")}, attrs({{"dim", int64_t(0)}, {"start", int64_t(1)}, {"size", T}}));
  h = drop(b.value(OpKind::add, {h, pos}), 101);
  b.layer = 0;
  Value *n = norm(h);
  Value *qkv = b.value(OpKind::matmul, {n, read("qkv.w")});
  if (o.bias)
    qkv = b.value(OpKind::add, {qkv, read("qkv.b")});
  if (o.rope)
    qkv = b.value(OpKind::rope, {qkv, b.value(OpKind::rope_table, {}, attrs({{"rows", T}, {"size", D}}))},
                  attrs({{"n_head", H}, {"n_kv_head", H}}));
  Value *a;
  if (o.decomposed) {
    Value *s = b.value(OpKind::matmul, {part(qkv, 0), part(qkv, C)}, attrs({{"batch", int64_t(2)}, {"tb", true}}));
    s = b.value(OpKind::mul, {s, b.constant(0.5)});
    if (o.alibi)
      s = b.value(OpKind::alibi, {s});
    if (o.causal)
      s = b.value(OpKind::causal_mask, {s});
    s = b.value(OpKind::softmax, {s});
    a = b.value(OpKind::matmul, {s, part(qkv, 2 * C)}, attrs({{"batch", int64_t(2)}}));
    a = reshape(b.value(OpKind::transpose, {a}, attrs({{"perm", std::vector<int64_t>{0, 2, 1, 3}}})), {B, T, C});
  } else {
    AttrMap at = attrs({{"n_head", H}, {"n_kv_head", H}, {"causal", o.causal}, {"alibi", o.alibi}});
    a = b.value(OpKind::attention, {qkv}, at);
  }
  h = b.value(OpKind::add, {h, drop(a, 102)});
  Value *n2 = norm(h), *up = b.value(OpKind::matmul, {n2, read("fc.w")});
  up = o.gated ? b.value(OpKind::mul, {b.value(OpKind::silu, {b.value(OpKind::matmul, {n2, read("gate.w")})}), up})
               : b.value(OpKind::gelu_tanh, {up});
  Value *down = drop(b.value(OpKind::matmul, {up, read("proj.w")}), 103);
  h = b.value(OpKind::add, {h, down});
  b.layer = -1;
  Value *logits = b.value(OpKind::matmul, {h, read(o.tied ? "wte" : "head")}, attrs({{"tb", true}}));
  Value *nll = b.value(OpKind::cross_entropy, {logits, y});
  b.ret({b.value(OpKind::reduce_sum, {nll}, attrs({{"lead", int64_t(2)}, {"fold", int64_t(2)}}))});
  return m;
}

inline StateMap initialState(const Module &m, uint64_t seed = 5) {
  StateMap state = initialStates(m, seed);
  if (state.count("rng_seed"))
    state["rng_seed"].data[0] = 99;
  return state;
}

/// Tokens of sequences [first, first + count) of an endless, deterministic text; targets are shifted by one and some
/// are -1.
inline Tensor tokens(const SmallGpt &o, int64_t first, int64_t count, bool target) {
  Tensor t(Type(DType::i32, {count, o.block}));
  for (int64_t s = 0; s < count; ++s)
    for (int64_t i = 0; i < o.block; ++i) {
      int64_t p = (first + s) * 31 + i + target;
      t.data[s * o.block + i] = target && p % 7 == 3 ? -1 : double((p * p + 3 * p) % o.vocab);
    }
  return t;
}

inline Tensor scalar(double v, DType t) { return Tensor::scalar(v, t); }

/// Targets that carry a loss among the first `count` sequences.
inline double validTokens(const SmallGpt &o, int64_t count) {
  double n = 0;
  for (double v : tokens(o, 0, count, true).data)
    n += v >= 0;
  return n;
}

/// One training step over `sequences` sequences in micro-batches of o.batch; returns what the step returns.
inline std::vector<Tensor> trainStep(const Module &m, const SmallGpt &o, int64_t sequences, StateMap &state) {
  Tensor valid = scalar(validTokens(o, sequences), DType::f32);
  if (const Function *f = m.function("train_step")) {
    std::vector<Tensor> args = {tokens(o, 0, o.batch, false), tokens(o, 0, o.batch, true), scalar(0, DType::i64),
                                valid};
    return interpret(*f, args, state);
  }
  for (int64_t s = 0; s < sequences; s += o.batch) {
    std::vector<Tensor> args = {tokens(o, s, o.batch, false), tokens(o, s, o.batch, true),
                                scalar(double(s), DType::i64), valid};
    interpret(*m.function("accumulate"), args, state);
  }
  std::vector<Tensor> args = {valid};
  return interpret(*m.function("update"), args, state);
}

inline void runPasses(Module &m, const std::string &passes) {
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(m, parsePipeline(passes, nullptr), options);
}

}  // namespace gptc::test
