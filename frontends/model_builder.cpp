#include "frontends/model_builder.h"

#include "frontends/parameter_groups.h"
#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <cmath>

namespace gptc {

int64_t foldOf(int64_t blockSize) {
  int64_t d = std::min<int64_t>(blockSize, 256);
  while (blockSize % d)
    --d;
  return d;
}

namespace {

// Streams of initial values count from 0 in the order of the states; those of dropout are far above.
constexpr int64_t dropoutStreams = 1 << 20;
enum DropoutSite { attentionSite, residualSite, mlpSite, sitesPerLayer };

/// Layer -1 stands for everything outside the layers.
int64_t dropoutStream(int layer, DropoutSite site) { return dropoutStreams + (layer + 1) * sitesPerLayer + site; }

OpKind opOf(Activation activation) {
  switch (activation) {
  case Activation::gelu_tanh:
    return OpKind::gelu_tanh;
  case Activation::gelu:
  case Activation::geglu:
    return OpKind::gelu_exact;
  case Activation::relu:
    return OpKind::relu;
  case Activation::relu2:
    return OpKind::relu2;
  case Activation::silu:
  case Activation::swiglu:
    return OpKind::silu;
  }
  GPTC_UNREACHABLE("activation {}", int(activation));
}

/// Declares the states, which the functions below read by name.
class Parameters {
public:
  Parameters(Module &m, const ModelConfig &c) : m(m), c(c) {}

  void declare() {
    // GPT-2's 0.02 suits its own width of 768. Activations keep unit size at any width with 1/sqrt(width), hence this
    // scaling; narrow models learn much faster with it (docs/lab/training.md).
    const double linearStd = 0.02 * std::sqrt(768.0 / double(c.nEmbd));
    const double projection = linearStd / std::sqrt(2.0 * c.nLayer);
    const int64_t head = c.nEmbd / c.nHead;
    const int64_t qkv = (c.nHead + 2 * c.nKvHead) * head;
    matrix("wte.weight", c.vocabSize, c.nEmbd, 0.02);
    if (c.position == Position::learned)
      matrix("wpe.weight", c.blockSize, c.nEmbd, 0.02);
    if (c.embeddingNorm)
      norm("word_embeddings_layernorm");
    for (int64_t l = 0; l < c.nLayer; ++l) {
      const std::string h = fmt::format("h.{}.", l);
      norm(h + "ln_1");
      linear(h + "attn.c_attn", c.nEmbd, qkv, linearStd);
      if (llama)
        setFact<&FileFacts::hfSplit>(*m.state(h + "attn.c_attn.weight"),
                                     {c.nHead * head, c.nKvHead * head, c.nKvHead * head});
      linear(h + "attn.c_proj", c.nEmbd, c.nEmbd, projection);
      norm(h + "ln_2");
      if (c.gated())
        linear(h + "mlp.c_gate", c.nEmbd, c.ffnDim, linearStd);
      linear(h + "mlp.c_fc", c.nEmbd, c.ffnDim, linearStd);
      linear(h + "mlp.c_proj", c.ffnDim, c.nEmbd, projection);
    }
    norm("ln_f");
    if (!c.tieEmbeddings)
      matrix("lm_head.weight", c.vocabSize, c.nEmbd, 0.02);
    counter("rng_seed");
    counter("step");
  }

  void declareLossScale() {
    State *scale = addState(m, "loss_scale", Type::scalar(DType::f32), StateKind::counter);
    setFact<&InitialFacts::init>(*scale, Initial::constant);
    setFact<&InitialFacts::value>(*scale, 0x1p16);
    counter("good_steps");
  }

  void declareCaches() {
    for (int64_t l = 0; l < c.nLayer; ++l)
      for (const char *which : {"k", "v"}) {
        const Type type(DType::f32, {c.nKvHead, c.blockSize, c.nEmbd / c.nHead});
        addState(m, fmt::format("h.{}.attn.{}_cache", l, which), type, StateKind::cache);
      }
  }

private:
  State *parameter(const std::string &name, Type type, Initial init) {
    State *s = addState(m, name, std::move(type), StateKind::param);
    setFact<&InitialFacts::init>(*s, init);
    setFact<&FileFacts::hf>(*s, fileName(name));
    return s;
  }
  State *matrix(const std::string &name, int64_t rows, int64_t columns, double std) {
    State *s = parameter(name, Type(DType::f32, {rows, columns}), Initial::normal);
    setFact<&InitialFacts::std>(*s, std);
    setFact<&InitialFacts::stream>(*s, nextStream++);
    setFact<&TrainedFacts::decay>(*s, true);
    return s;
  }
  void linear(const std::string &name, int64_t in, int64_t out, double std) {
    State *s = matrix(name + ".weight", in, out, std);
    if (llama)
      setFact<&FileFacts::hfTranspose>(*s, true);
    if (c.bias)
      parameter(name + ".bias", Type(DType::f32, {out}), Initial::zeros);
  }
  void norm(const std::string &name) {
    parameter(name + ".weight", Type(DType::f32, {c.nEmbd}), Initial::ones);
    if (c.bias && c.norm == Norm::layernorm)
      parameter(name + ".bias", Type(DType::f32, {c.nEmbd}), Initial::zeros);
  }

  /// The name in Hugging Face's GPT-2, or in its Llama if the model is one.
  std::string fileName(const std::string &name) const {
    if (name == "lm_head.weight")
      return name;
    if (!llama)
      return "transformer." + name;
    auto [layer, part] = llvm::StringRef(name).substr(2).split('.');
    if (!llvm::StringRef(name).starts_with("h."))
      return llvm::StringSwitch<std::string>(name)
          .Case("wte.weight", "model.embed_tokens.weight")
          .Case("ln_f.weight", "model.norm.weight");
    const std::string in = "model.layers." + layer.str() + ".";
    if (part == "attn.c_attn.weight")
      return fmt::format("{0}self_attn.q_proj.weight,{0}self_attn.k_proj.weight,{0}self_attn.v_proj.weight", in);
    const std::string theirs = llvm::StringSwitch<std::string>(part)
                                   .Case("ln_1.weight", "input_layernorm.weight")
                                   .Case("attn.c_proj.weight", "self_attn.o_proj.weight")
                                   .Case("ln_2.weight", "post_attention_layernorm.weight")
                                   .Case("mlp.c_gate.weight", "mlp.gate_proj.weight")
                                   .Case("mlp.c_fc.weight", "mlp.up_proj.weight")
                                   .Case("mlp.c_proj.weight", "mlp.down_proj.weight");
    return in + theirs;
  }

  void counter(const std::string &name) { addState(m, name, Type::scalar(DType::i64), StateKind::counter); }

  Module &m;
  const ModelConfig &c;
  const bool llama = c.causal && c.norm == Norm::rmsnorm && c.activation == Activation::swiglu &&
                     c.position == Position::rope && !c.bias && !c.embeddingNorm;
  int64_t nextStream = 0;
};

/// Builds one function. Reads every state once, at its first use.
class FunctionBuilder {
public:
  FunctionBuilder(Module &m, const Config &config, const BuildOptions &options, const char *name)
      : m(m), c(config.model), options(options), f(m.addFunction(name)), b(f->body), fold(foldOf(c.blockSize)) {}

  /// Returns the negative log likelihoods of the targets, for training their sum.
  void buildLoss(int64_t batch, bool training) {
    const Type tokens(DType::i32, {batch, c.blockSize});
    Value *x = f->body.addArg(tokens, "x");
    Value *y = f->body.addArg(tokens, "y");
    if (training)
      seq0 = f->body.addArg(Type::scalar(DType::i64), "seq0");
    dropping = training && c.dropout > 0;

    Value *h = embed(x, nullptr);
    makeRopeTable(c.blockSize, nullptr);
    for (int l = 0; l < c.nLayer; ++l)
      h = block(h, l, nullptr);
    h = finalNorm(h);
    Value *scores = head(h);
    at("loss");
    Value *nll = b.value(OpKind::cross_entropy, {scores, y});
    // @eval returns one value per target; the caller adds them in an order that does not depend on the batch size.
    if (training)
      nll = b.value(OpKind::reduce_sum, {nll}, attrs({{"lead", int64_t(2)}, {"fold", fold}}));
    b.ret({nll});
  }

  /// Processes `count` tokens through the KV cache; with `chooses`, an argument selects the token that the logits
  /// follow.
  void buildCached(int64_t count, bool chooses) {
    Value *tok = f->body.addArg(Type(DType::i32, {1, count}), "tok");
    Value *pos = f->body.addArg(Type::scalar(DType::i64), "pos");
    Value *last = chooses ? f->body.addArg(Type::scalar(DType::i64), "last") : nullptr;
    Value *h = embed(tok, pos);
    makeRopeTable(count, pos);
    for (int l = 0; l < c.nLayer; ++l)
      h = block(h, l, pos);
    at("last");
    h = reshape(h, {count, c.nEmbd});
    if (last)  // before the final norm, because nothing after it mixes tokens
      h = b.value(OpKind::dynamic_slice, {h, last}, attrs({{"size", int64_t(1)}}));
    h = finalNorm(h);
    Value *logits = head(h);
    at("");
    b.ret({logits});
  }

private:
  void at(const std::string &loc, int layer = -1) {
    b.loc = layer < 0 ? loc : fmt::format("h{}.{}", layer, loc);
    b.layer = layer;
  }

  Value *read(const std::string &name) {
    Value *&v = readings[name];
    if (!v) {
      State *s = m.state(name);
      GPTC_CHECK(s, "no state {}", name);
      v = b.read(*s);
    }
    return v;
  }

  Value *reshape(Value *x, llvm::ArrayRef<int64_t> shape) {
    Type t(x->type.dtype);
    t.dims.append(shape.begin(), shape.end());
    return b.op(OpKind::reshape, {x}, llvm::ArrayRef<Type>(t))->result();
  }
  Value *transpose(Value *x, std::vector<int64_t> perm) {
    return b.value(OpKind::transpose, {x}, attrs({{"perm", std::move(perm)}}));
  }
  Value *add(Value *x, Value *y) { return b.value(OpKind::add, {x, y}); }

  Value *dropout(Value *x, int layer, DropoutSite site) {
    if (!dropping)
      return x;
    return b.value(OpKind::dropout, {x, read("rng_seed"), read("step"), seq0},
                   attrs({{"p", c.dropout}, {"stream", dropoutStream(layer, site)}}));
  }

  Value *norm(Value *x, const std::string &name) {
    const AttrMap eps = attrs({{"eps", c.normEps}});
    if (c.norm == Norm::rmsnorm)
      return b.value(OpKind::rmsnorm, {x, read(name + ".weight")}, eps);
    return b.value(OpKind::layernorm, {x, read(name + ".weight"), c.bias ? read(name + ".bias") : nullptr}, eps);
  }

  Value *linear(Value *x, const std::string &name) {
    Value *y = b.value(OpKind::matmul, {x, read(name + ".weight")});
    return c.bias ? add(y, read(name + ".bias")) : y;
  }

  /// Position embeddings of rows from `pos` on; of all rows if `pos` is null.
  Value *embed(Value *tokens, Value *pos) {
    at("wte");
    Value *h = b.value(OpKind::embedding, {read("wte.weight"), tokens});
    if (c.position == Position::learned) {
      at("wpe");
      Value *table = read("wpe.weight");
      if (pos)
        table = b.value(OpKind::dynamic_slice, {table, pos}, attrs({{"size", tokens->type.dim(1)}}));
      h = add(h, table);
    }
    if (c.embeddingNorm) {
      at("word_embeddings_layernorm");
      h = norm(h, "word_embeddings_layernorm");
    }
    at("drop");
    return dropout(h, -1, residualSite);
  }

  /// Angles of `rows` positions from `pos` (null: 0) on, for all layers.
  void makeRopeTable(int64_t rows, Value *pos) {
    if (c.position != Position::rope)
      return;
    at("rope");
    ropeTable = b.value(OpKind::rope_table, {pos}, attrs({{"rows", rows}, {"size", c.nEmbd / c.nHead}}));
  }

  Value *block(Value *x, int l, Value *pos) {
    const std::string h = fmt::format("h.{}.", l);
    at("ln_1", l);
    Value *y = norm(x, h + "ln_1");
    at("attn.c_attn", l);
    Value *qkv = linear(y, h + "attn.c_attn");
    if (ropeTable) {
      at("attn.rope", l);
      qkv = b.value(OpKind::rope, {qkv, ropeTable}, headAttrs());
    }
    at("attn", l);
    y = pos ? cachedAttention(qkv, h, pos) : options.decomposedAttention ? decomposed(qkv, l) : attention(qkv, l);
    at("attn.c_proj", l);
    y = linear(y, h + "attn.c_proj");
    at("attn.drop", l);
    y = dropout(y, l, residualSite);
    at("attn.add", l);
    x = add(x, y);

    at("ln_2", l);
    y = norm(x, h + "ln_2");
    y = feedForward(y, h, l);
    at("mlp.c_proj", l);
    y = linear(y, h + "mlp.c_proj");
    at("mlp.drop", l);
    y = dropout(y, l, mlpSite);
    at("mlp.add", l);
    return add(x, y);
  }

  /// The hidden layer: act(x W); if gated, act(x Wg) * (x W) (Shazeer 2020, "GLU Variants Improve Transformer").
  Value *feedForward(Value *x, const std::string &h, int l) {
    Value *gate = nullptr;
    if (c.gated()) {
      at("mlp.c_gate", l);
      gate = linear(x, h + "mlp.c_gate");
    }
    at("mlp.c_fc", l);
    Value *y = linear(x, h + "mlp.c_fc");
    at("mlp.act", l);
    Value *activated = b.value(opOf(c.activation), {gate ? gate : y});
    return gate ? b.value(OpKind::mul, {activated, y}) : activated;
  }

  AttrMap headAttrs() const { return attrs({{"n_head", c.nHead}, {"n_kv_head", c.nKvHead}}); }
  AttrMap attentionAttrs() const {
    AttrMap a = headAttrs();
    if (c.position == Position::alibi)
      a.set("alibi", true);
    return a;
  }

  Value *attention(Value *qkv, int l) {
    AttrMap a = attentionAttrs();
    a.set("causal", c.causal);
    if (!dropping)
      return b.value(OpKind::attention, {qkv}, a);
    a.set("p", c.dropout);
    a.set("stream", dropoutStream(l, attentionSite));
    return b.value(OpKind::attention, {qkv, read("rng_seed"), read("step"), seq0}, a);
  }

  Value *cachedAttention(Value *qkv, const std::string &h, Value *pos) {
    const std::string k = h + "attn.k_cache", v = h + "attn.v_cache";
    Op *op = b.op(OpKind::attention_cached, {qkv, read(k), read(v), pos}, attentionAttrs());
    b.write(*m.state(k), op->result(1));
    b.write(*m.state(v), op->result(2));
    return op->result(0);
  }

  /// Attention from simple ops. With G query heads per key head, of which there are K, queries have layout [B,K,G*T,D].
  Value *decomposed(Value *qkv, int l) {
    const int64_t batch = qkv->type.dim(0), T = c.blockSize, H = c.nHead, K = c.nKvHead, G = H / K, D = c.nEmbd / H;
    auto part = [&](int64_t start, int64_t size) {
      return b.value(OpKind::slice, {qkv}, attrs({{"dim", int64_t(2)}, {"start", start}, {"size", size}}));
    };
    auto heads = [&](Value *x) { return transpose(reshape(x, {batch, T, K, D}), {0, 2, 1, 3}); };
    Value *q = transpose(reshape(part(0, H * D), {batch, T, H, D}), {0, 2, 1, 3});
    Value *k = heads(part(H * D, K * D));
    Value *v = heads(part((H + K) * D, K * D));
    Value *s =
        b.value(OpKind::matmul, {reshape(q, {batch, K, G * T, D}), k}, attrs({{"batch", int64_t(2)}, {"tb", true}}));
    s = b.value(OpKind::mul, {s, b.constant(1 / std::sqrt(double(D)))});
    s = reshape(s, {batch, H, T, T});
    if (c.position == Position::alibi)
      s = b.value(OpKind::alibi, {s});
    if (c.causal)
      s = b.value(OpKind::causal_mask, {s});
    Value *p = dropout(b.value(OpKind::softmax, {s}), l, attentionSite);
    Value *o = b.value(OpKind::matmul, {reshape(p, {batch, K, G * T, T}), v}, attrs({{"batch", int64_t(2)}}));
    o = transpose(reshape(o, {batch, H, T, D}), {0, 2, 1, 3});
    return reshape(o, {batch, T, H * D});
  }

  Value *finalNorm(Value *h) {
    at("ln_f");
    return norm(h, "ln_f");
  }

  Value *head(Value *h) {
    at("lm_head");
    return b.value(OpKind::matmul, {h, read(c.tieEmbeddings ? "wte.weight" : "lm_head.weight")}, attrs({{"tb", true}}));
  }

  Module &m;
  const ModelConfig &c;
  const BuildOptions &options;
  Function *f;
  Builder b;
  int64_t fold;
  Value *seq0 = nullptr;
  Value *ropeTable = nullptr;
  bool dropping = false;
  llvm::StringMap<Value *> readings;
};

/// The enumerator of a word that the configuration's reader has judged.
template <typename E> E chosen(const std::string &word) {
  const std::optional<E> value = parseWord<E>(word);
  GPTC_CHECK(value, "nothing is called {}", word);
  return *value;
}

/// What passes and the runtime read of the configuration.
void sayFacts(Module &m, const Config &config) {
  const ModelConfig &c = config.model;
  const OptimizerConfig &o = config.optimizer;
  // Equal models say the same, however their keys are written.
  auto unlessBias = [&](const std::optional<bool> &own) {
    return c.biased(own) == c.bias ? std::nullopt : std::optional(c.biased(own));
  };
  writeFacts(m, ModelFacts{.name = config.name,
                           .nLayer = c.nLayer,
                           .nHead = c.nHead,
                           .nKvHead = c.nKvHead,
                           .nEmbd = c.nEmbd,
                           .ffnDim = c.ffnDim,
                           .vocabSize = c.vocabSize,
                           .blockSize = c.blockSize,
                           .norm = c.norm,
                           .normEps = c.normEps,
                           .activation = c.activation,
                           .position = c.position,
                           .causal = c.causal,
                           .bias = c.bias,
                           .tieEmbeddings = c.tieEmbeddings,
                           .embeddingNorm = c.embeddingNorm,
                           .headDim = c.headSize() == c.nEmbd / c.nHead ? 0 : c.headSize(),
                           .ropeTheta = c.ropeTheta,
                           .rotaryDim = c.rotated() == c.headSize() ? 0 : c.rotated(),
                           .ropeScaling = c.ropeScaling,
                           .ropeFactor = c.ropeFactor,
                           .ropeOriginal = c.ropeOriginal,
                           .ropeLow = c.ropeLow,
                           .ropeHigh = c.ropeHigh,
                           .ropeBetaFast = c.ropeBetaFast,
                           .ropeBetaSlow = c.ropeBetaSlow,
                           .ropeTruncate = c.ropeTruncate,
                           .ropeMagnitude = c.ropeMagnitude,
                           .layersWithoutRope = c.layersWithoutRope,
                           .window = c.window,
                           .layersWithoutWindow = c.layersWithoutWindow,
                           .attentionScale = c.attentionScale,
                           .attentionSoftcap = c.attentionSoftcap,
                           .logitSoftcap = c.logitSoftcap,
                           .embeddingScale = c.embeddingScale,
                           .qkvBias = unlessBias(c.qkvBias),
                           .attentionBias = unlessBias(c.attentionBias),
                           .mlpBias = unlessBias(c.mlpBias),
                           .normBias = c.norm == Norm::layernorm ? unlessBias(c.normBias) : std::nullopt,
                           .headBias = c.headBias,
                           .qkNorm = c.qkNorm,
                           .normPosition = c.normPosition,
                           .normPlusOne = c.normPlusOne,
                           .parallelResidual = c.parallelResidual,
                           .sharedNorm = c.sharedNorm,
                           .tokenTypes = c.tokenTypes,
                           .headTransform = c.headTransform});
  writeFacts(m, BatchFacts{.microBatch = config.train.microBatch,
                           .accumulate = config.train.accumulate,
                           .fold = foldOf(c.blockSize)});
  writeFacts(m, OptimizerFacts{.optimizer = chosen<OptimizerKind>(o.name),
                               .steps = config.run.steps,
                               .warmup = o.warmupSteps,
                               .schedule = o.schedule,
                               .lr = o.lr,
                               .minLrRatio = o.minLrRatio,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .momentum = o.momentum,
                               .nesterov = o.nesterov,
                               .relativeStep = o.relativeStep,
                               .firstMoment = o.firstMoment,
                               .weightDecay = o.weightDecay,
                               .gradClip = config.train.gradClip});
  writeFacts(m, PrecisionFacts{.compute = chosen<Compute>(config.precision.compute),
                               .optimizerState = config.precision.optimizerState});
  if (const ParallelConfig &p = config.parallel; p.logicalShards > 1 || p.tensor > 1)
    writeFacts(m, ParallelFacts{.data = p.data,
                                .tensor = p.tensor,
                                .zeroStage = p.zeroStage,
                                .reduceOrder = p.reduceOrder,
                                .shards = p.shardsPerRank()});
  const bool gpu = config.compile.target != "cpu";
  writeFacts(m, CompileFacts{.remat = config.compile.remat,
                             .packWeights = config.compile.packWeights,
                             .offload = gpu ? chosen<Offload>(config.parallel.offload) : Offload::none});
}

}  // namespace

std::unique_ptr<Module> buildModel(const Config &config, const BuildOptions &options) {
  const ModelConfig &c = config.model;
  const double parameters =
      double(c.nLayer) * c.nEmbd *
          (2.0 * c.nEmbd + 2.0 * c.nEmbd * c.nKvHead / c.nHead + (c.gated() ? 3.0 : 2.0) * c.ffnDim) +
      double(c.vocabSize) * c.nEmbd;
  if (parameters > 1e12)
    throw UserError(ErrorCode::TooLarge, fmt::format("a model of {:.3g} parameters", parameters),
                    "10^12 is the most; make n_layer, n_embd or vocab_size smaller");

  const double widest =
      std::max({double(c.nEmbd) * (1 + 2.0 * c.nKvHead / c.nHead), double(c.ffnDim), double(c.vocabSize)});
  const double elements = widest * c.blockSize * config.train.microBatch;
  if (elements > double(maxElements))
    throw UserError(ErrorCode::TooLarge, fmt::format("a tensor of {:.3g} elements in every step", elements),
                    fmt::format("{:.3g} is the most; make train.micro_batch, model.block_size or the model smaller",
                                double(maxElements)));

  auto m = std::make_unique<Module>();
  const int64_t prefill = std::min<int64_t>(64, c.blockSize);
  sayFacts(*m, config);
  Parameters declarations(*m, c);
  declarations.declare();
  applyGroups(config, *m);
  if (config.precision.compute == "fp16")
    declarations.declareLossScale();
  FunctionBuilder(*m, config, options, "forward").buildLoss(config.train.microBatch, true);
  FunctionBuilder(*m, config, options, "eval").buildLoss(config.train.microBatch, false);
  if (!c.causal)
    setFact<&BatchFacts::maskToken>(*m, c.maskToken());
  if (options.sampling && c.causal) {
    setFact<&BatchFacts::prefill>(*m, prefill);
    declarations.declareCaches();
    FunctionBuilder(*m, config, options, "decode").buildCached(1, false);
    FunctionBuilder(*m, config, options, "prefill").buildCached(prefill, prefill > 1);
  }
  return m;
}

}  // namespace gptc
