#include "frontends/model_functions.h"

#include "ir/choose_token.h"
#include "ir/facts.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

#include <cmath>

namespace gptc {

namespace {

// Streams of initial values count from 0 in the order of the states; those of dropout are far above.
constexpr int64_t dropoutStreams = 1 << 20;
enum DropoutSite { attentionSite, residualSite, mlpSite, sitesPerLayer, poolerSite = mlpSite };

/// Layer -1 stands for everything outside the layers.
int64_t dropoutStream(int layer, DropoutSite site) { return dropoutStreams + (layer + 1) * sitesPerLayer + site; }

OpKind opOf(Activation activation) {
  switch (activation) {
  case Activation::gelu_tanh:
  case Activation::geglu_tanh:
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

/// Builds one function. Reads every state once, at its first use.
class FunctionBuilder {
public:
  FunctionBuilder(Module &m, const Config &config, const BuildOptions &options, const char *name)
      : m(m), c(config.model), cache(config.precision.cache), options(options), f(m.addFunction(name)), b(f->body),
        fold(foldOf(c.blockSize)) {}

  void buildLoss(int64_t batch, bool training) {
    const Type tokens(DType::i32, {batch, c.blockSize});
    Value *x = f->body.addArg(tokens, "x");
    Value *y = f->body.addArg(tokens, "y");
    if (training)
      seq0 = f->body.addArg(Type::scalar(DType::i64), "seq0");
    dropping = training && c.dropout > 0;

    Value *scores = head(finalNorm(layers(x, nullptr)));
    at("loss");
    Value *nll = b.value(OpKind::cross_entropy, {scores, y});
    // @eval returns one value per target; the caller adds them in an order that does not depend on the batch size.
    if (training)
      nll = b.value(OpKind::reduce_sum, {nll}, attrs({{"lead", int64_t(2)}, {"fold", fold}}));
    b.ret({nll});
  }

  void buildLabelLoss(int64_t batch, bool training) {
    const Type tokens(DType::i32, {batch, c.blockSize});
    Value *x = f->body.addArg(tokens, "x");
    const bool several = c.problemType == ProblemType::multi_label_classification,
               number = c.problemType == ProblemType::regression;
    Value *y = f->body.addArg(Type(number ? DType::f32 : DType::i32, {batch, several ? c.labels : 1}), "y");
    documents = f->body.addArg(Type(DType::i64, {batch, c.blockSize, 2}), "documents");
    types = f->body.addArg(tokens, "types");
    if (training)
      seq0 = f->body.addArg(Type::scalar(DType::i64), "seq0");
    dropping = training && c.dropout > 0;

    Value *h = finalNorm(layers(x, nullptr));
    at("first");
    if (c.classifierPooling == ClassifierPooling::mean)
      h = meansOfDocuments(h);
    h = slice(h, 1, 0, 1);  // [B,1,C]: rows of one token, so that sums over them are sequence by sequence
    Value *logits = labelsOf(h);
    at("loss");
    Value *loss =
        number ? squaredError(logits, y) : b.value(OpKind::cross_entropy, {several ? pairs(logits) : logits, y});
    if (training)
      b.ret({b.value(OpKind::reduce_sum, {loss}, attrs({{"lead", int64_t(2)}, {"fold", int64_t(1)}}))});
    else
      b.ret({loss, logits});
  }

  void buildCached(int64_t count, bool picks) {
    Value *tok = f->body.addArg(Type(DType::i32, {1, count}), "tok");
    Value *pos = f->body.addArg(Type::scalar(DType::i64), "pos");
    Value *last = picks ? f->body.addArg(Type::scalar(DType::i64), "last") : nullptr;
    Value *how = f->body.addArg(Type(DType::f32, {1, choose_token::columns}), "how");
    Value *h = hidden(tok, pos);
    if (last)  // before the final norm, because nothing after it mixes tokens
      h = b.value(OpKind::dynamic_slice, {h, last}, attrs({{"size", int64_t(1)}}));
    Value *logits = head(finalNorm(h));
    at("choice");
    Value *id = b.value(OpKind::choose_token, {logits, how});
    at("");
    b.ret({logits, id});
  }

  void buildStep(int64_t tokens, int64_t chosen) {
    Value *tok = f->body.addArg(Type(DType::i32, {1, tokens}), "tok");
    Value *places = f->body.addArg(Type(DType::i64, {tokens, 2}), "places");
    Value *rows = chosen < tokens ? f->body.addArg(Type(DType::i64, {chosen}), "rows") : nullptr;
    Value *how = f->body.addArg(Type(DType::f32, {chosen, choose_token::columns}), "how");
    Value *h = hidden(tok, places);
    if (rows)  // before the final norm, because nothing after it mixes tokens
      h = b.value(OpKind::embedding, {h, rows});
    Value *logits = head(finalNorm(h));
    at("choice");
    Value *id = b.value(OpKind::choose_token, {logits, how});
    at("");
    b.ret({logits, id});
  }

  void buildScore(int64_t tokens) {
    Value *tok = f->body.addArg(Type(DType::i32, {1, tokens}), "tok");
    Value *places = f->body.addArg(Type(DType::i64, {tokens, 2}), "places");
    Value *logits = head(finalNorm(hidden(tok, places)));
    at("");
    b.ret({logits});
  }

  void buildEmbed(int64_t tokens) {
    Value *tok = f->body.addArg(Type(DType::i32, {1, tokens}), "tok");
    Value *positions = f->body.addArg(Type(DType::i64, {tokens}), "positions");
    documents = f->body.addArg(Type(DType::i64, {1, tokens, 2}), "documents");
    if ((options.labels || options.fills) && c.tokenTypes > 1)
      types = f->body.addArg(Type(DType::i32, {1, tokens}), "types");
    Value *h = finalNorm(hidden(tok, positions));
    at("");
    b.ret({h});
  }

  void buildFill() {
    Value *x = f->body.addArg(Type(DType::f32, {16, c.nEmbd}), "x");
    x = head(x);
    at("");
    b.ret({x});
  }

  void buildLabels() {
    Value *x = f->body.addArg(Type(DType::f32, {16, c.nEmbd}), "x");
    x = labelsOf(x);
    at("");
    b.ret({x});
  }

private:
  /// Logits [..,L] of labels, by a vector of each text, [..,C].
  Value *labelsOf(Value *x) {
    if (c.hasPooler()) {
      at("pooler");
      x = b.value(OpKind::tanh, {linear(x, "pooler.dense", true)});
    } else {
      x = transformed(x);
    }
    at("pooler.drop");
    x = dropout(x, -1, poolerSite);
    at("classifier");
    return linear(x, "classifier", true);
  }

  /// The mean over the document of each token of [B,T,C]: attention whose queries and keys are all 0 weighs it equally.
  Value *meansOfDocuments(Value *x) {
    GPTC_CHECK(c.nHead == c.nKvHead && c.nHead * c.headSize() == c.nEmbd, "heads of {} features", c.headSize());
    Value *values =
        b.value(OpKind::unslice, {x}, attrs({{"dim", int64_t(2)}, {"start", 2 * c.nEmbd}, {"full", 3 * c.nEmbd}}));
    AttrMap how = headAttrs();
    how.set("causal", false);
    how.set("documents", true);
    return b.value(OpKind::attention, {values, documents}, how);
  }

  /// [B,L,2]: for each logit z of [B,1,L] the pair (0, z), whose softmax is (1 - sigmoid z, sigmoid z). So their cross
  /// entropy is the binary one of z, which overflows nowhere.
  Value *pairs(Value *logits) {
    const int64_t rows = logits->type.dim(0), labels = logits->type.dim(2);
    return b.value(OpKind::unslice, {reshape(logits, {rows, labels, 1})},
                   attrs({{"dim", int64_t(2)}, {"start", int64_t(1)}, {"full", int64_t(2)}}));
  }
  /// [B,1] of numbers [B,1,1] and targets [B,1]. As a sum of a row it stays f32 where activations are bf16.
  Value *squaredError(Value *numbers, Value *y) {
    Value *error = b.value(OpKind::sub, {numbers, reshape(y, {y->type.dim(0), 1, 1})});
    return b.value(OpKind::row_sum, {b.value(OpKind::mul, {error, error})});
  }

  /// The residual stream [B,t,C] behind all layers, of tokens [B,t]. `pos`: as embed takes it.
  Value *layers(Value *tok, Value *pos) {
    Value *h = embed(tok, pos);
    makeRopeTables(tok->type.dim(1), pos);
    for (int l = 0; l < c.nLayer; ++l)
      h = layer(h, l, pos);
    return h;
  }

  /// The same of one sequence: [t,C].
  Value *hidden(Value *tok, Value *pos) {
    Value *h = layers(tok, pos);
    at("last");
    return reshape(h, {tok->type.dim(1), c.nEmbd});
  }

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
  Value *slice(Value *x, int64_t dim, int64_t start, int64_t size) {
    return b.value(OpKind::slice, {x}, attrs({{"dim", dim}, {"start", start}, {"size", size}}));
  }
  Value *add(Value *x, Value *y) { return b.value(OpKind::add, {x, y}); }
  Value *scaled(Value *x, double factor) { return b.value(OpKind::mul, {x, b.constant(factor)}); }
  /// cap * tanh(x / cap)
  Value *capped(Value *x, double cap) { return scaled(b.value(OpKind::tanh, {scaled(x, 1 / cap)}), cap); }

  Value *dropout(Value *x, int layer, DropoutSite site) {
    if (!dropping)
      return x;
    return b.value(OpKind::dropout, {x, read("rng_seed"), read("step"), seq0},
                   attrs({{"p", c.dropout}, {"stream", dropoutStream(layer, site)}}));
  }

  Value *norm(Value *x, const std::string &name) {
    AttrMap how = attrs({{"eps", c.normEps}});
    if (c.norm == Norm::rmsnorm) {
      if (c.normPlusOne)
        how.set("plus_one", true);
      return b.value(OpKind::rmsnorm, {x, read(name + ".weight")}, how);
    }
    return b.value(OpKind::layernorm, {x, read(name + ".weight"), c.normBiased() ? read(name + ".bias") : nullptr},
                   how);
  }
  /// The norm `name` of a layer.
  Value *norm(Value *x, const char *name, int l) {
    at(name, l);
    return norm(x, fmt::format("h.{}.{}", l, name));
  }

  Value *linear(Value *x, const std::string &name, bool bias) {
    Value *y = b.value(OpKind::matmul, {x, read(name + ".weight")});
    return bias ? add(y, read(name + ".bias")) : y;
  }

  /// The positions, i64[t], of tokens that each have a slot and a position, i64[t,2], or a position, i64[t].
  Value *positionsOf(Value *places) {
    return places->type.rank() == 1 ? places : reshape(slice(places, 1, 1, 1), {places->type.dim(0)});
  }

  /// Position embeddings of rows from `pos` on, or of the positions of tokens; of all rows if `pos` is null.
  Value *embed(Value *tokens, Value *pos) {
    at("wte");
    Value *h = b.value(OpKind::embedding, {read("wte.weight"), tokens});
    if (c.embeddingScale != 1)
      h = scaled(h, c.embeddingScale);
    if (c.position == Position::learned) {
      at("wpe");
      Value *table = read("wpe.weight");
      if (pos && pos->type.rank())
        table = b.value(OpKind::embedding, {table, reshape(positionsOf(pos), {1, tokens->type.dim(1)})});
      else if (pos)
        table = b.value(OpKind::dynamic_slice, {table, pos}, attrs({{"size", tokens->type.dim(1)}}));
      h = add(h, table);
    }
    if (c.tokenTypes) {
      at("wtt");
      Value *table = read("wtt.weight");
      h = add(h, types ? b.value(OpKind::embedding, {table, types}) : reshape(slice(table, 0, 0, 1), {c.nEmbd}));
    }
    if (c.embeddingNorm) {
      at("word_embeddings_layernorm");
      h = norm(h, "word_embeddings_layernorm");
    }
    at("drop");
    return dropout(h, -1, residualSite);
  }

  /// Angles of `rows` positions from `pos` (null: 0) on, or of the positions of tokens: for all layers, or those
  /// without and those with a window.
  void makeRopeTables(int64_t rows, Value *pos) {
    if (c.position != Position::rope)
      return;
    at("rope");
    if (pos && pos->type.rank())
      pos = positionsOf(pos);
    ropeTable = rotations(rows, pos, c.ropeTheta);
    windowRopeTable = ropeTable;
    if (c.windowRopeTheta == 0 || c.windowRopeTheta == c.ropeTheta)
      return;
    at("window_rope");
    windowRopeTable = rotations(rows, pos, c.windowRopeTheta);
  }

  Value *rotations(int64_t rows, Value *pos, double theta) {
    AttrMap how = attrs({{"rows", rows}, {"size", c.rotated()}});
    if (theta != 10000)
      how.set("theta", theta);
    if (c.ropeScaling != RopeScaling::none) {
      how.set("scaling", std::string(nameOf(c.ropeScaling)));
      how.set("factor", c.ropeFactor);
    }
    if (c.ropeScaling == RopeScaling::llama3) {
      how.set("original", c.ropeOriginal);
      how.set("low", c.ropeLow);
      how.set("high", c.ropeHigh);
    } else if (c.ropeScaling == RopeScaling::yarn) {
      how.set("original", c.ropeOriginal);
      how.set("beta_fast", c.ropeBetaFast);
      how.set("beta_slow", c.ropeBetaSlow);
      how.set("truncate", c.ropeTruncate);
      how.set("magnitude", c.ropeMagnitude);
    }
    return b.value(OpKind::rope_table, {pos}, std::move(how));
  }

  /// One layer: attention and hidden layer one behind the other, or side by side.
  Value *layer(Value *x, int l, Value *pos) {
    const bool before = c.normPosition == NormPosition::pre || c.normPosition == NormPosition::both,
               behind = c.normPosition == NormPosition::post;
    Value *y = before && (l || c.firstNorm) ? norm(x, "ln_1", l) : x;
    Value *attended = attentionBlock(y, l, pos);
    Value *sum = added(x, attended, "attn.add", l);
    if (c.parallelResidual) {
      Value *z = c.sharedNorm ? y : norm(x, "ln_2", l);
      return added(sum, hiddenBlock(z, l), "mlp.add", l);
    }
    x = behind ? norm(sum, "ln_1", l) : sum;
    sum = added(x, hiddenBlock(before ? norm(x, "ln_2", l) : x, l), "mlp.add", l);
    return behind ? norm(sum, "ln_2", l) : sum;
  }

  Value *added(Value *x, Value *y, const char *loc, int l) {
    at(loc, l);
    return add(x, y);
  }

  /// The norm of a block's output, if there is one.
  Value *outputNorm(Value *y, const char *name, int l) {
    const bool has = c.normPosition == NormPosition::output || c.normPosition == NormPosition::both;
    return has ? norm(y, name, l) : y;
  }

  Value *attentionBlock(Value *x, int l, Value *pos) {
    const std::string h = fmt::format("h.{}.", l);
    at("attn.c_attn", l);
    Value *qkv = linear(x, h + "attn.c_attn", c.biased(c.qkvBias));
    if (c.qkNorm != QkNorm::none) {
      at("attn.qk_norm", l);
      qkv = normOfHeads(qkv, h);
    }
    if (ropeTable && !llvm::is_contained(c.layersWithoutRope, l)) {
      at("attn.rope", l);
      AttrMap how = headAttrs();
      if (c.rotated() != c.headSize())
        how.set("rotary", c.rotated());
      qkv = b.value(OpKind::rope, {qkv, hasWindow(l) ? windowRopeTable : ropeTable}, std::move(how));
    }
    at("attn", l);
    Value *y = pos && !documents             ? cachedAttention(qkv, l, pos)
               : options.decomposedAttention ? decomposed(qkv, l)
                                             : attention(qkv, l);
    at("attn.c_proj", l);
    y = linear(y, h + "attn.c_proj", c.biased(c.attentionBias));
    y = outputNorm(y, "ln_1_out", l);
    at("attn.drop", l);
    return dropout(y, l, residualSite);
  }

  /// The RMS norm of queries and keys. That of each head takes heads as a dimension.
  Value *normOfHeads(Value *qkv, const std::string &h) {
    const int64_t batch = qkv->type.dim(0), rows = qkv->type.dim(1), width = qkv->type.dim(2);
    const bool whole = c.qkNorm == QkNorm::whole;
    AttrMap how = headAttrs();
    how.set("eps", c.normEps);
    if (whole)
      how.set("whole", true);
    if (c.normPlusOne)
      how.set("plus_one", true);
    if (!whole)
      qkv = reshape(qkv, {batch, rows, c.nHead + 2 * c.nKvHead, c.headSize()});
    qkv = b.value(OpKind::qk_norm, {qkv, read(h + "attn.q_norm.weight"), read(h + "attn.k_norm.weight")}, how);
    return whole ? qkv : reshape(qkv, {batch, rows, width});
  }

  /// The hidden layer: act(x W); if gated, act(x Wg) * (x W) (Shazeer 2020, "GLU Variants Improve Transformer").
  Value *hiddenBlock(Value *x, int l) {
    const std::string h = fmt::format("h.{}.", l);
    const bool bias = c.biased(c.mlpBias);
    Value *gate = nullptr;
    if (c.gated()) {
      at("mlp.c_gate", l);
      gate = linear(x, h + "mlp.c_gate", bias);
    }
    at("mlp.c_fc", l);
    Value *y = linear(x, h + "mlp.c_fc", bias);
    at("mlp.act", l);
    Value *activated = b.value(opOf(c.activation), {gate ? gate : y});
    y = gate ? b.value(OpKind::mul, {activated, y}) : activated;
    at("mlp.c_proj", l);
    y = linear(y, h + "mlp.c_proj", bias);
    y = outputNorm(y, "ln_2_out", l);
    at("mlp.drop", l);
    return dropout(y, l, mlpSite);
  }

  AttrMap headAttrs() const { return attrs({{"n_head", c.nHead}, {"n_kv_head", c.nKvHead}}); }

  double scale() const { return c.attentionScale != 0 ? c.attentionScale : 1 / std::sqrt(double(c.headSize())); }
  bool hasWindow(int l) const { return c.window && !llvm::is_contained(c.layersWithoutWindow, l); }
  /// Tokens that a token of the layer sees, of an encoder to each side; 0: as many as there are.
  int64_t windowOf(int l) const { return c.window < c.blockSize && hasWindow(l) ? c.window : 0; }
  AttrMap attentionAttrs(int l) const {
    AttrMap a = headAttrs();
    if (c.position == Position::alibi)
      a.set("alibi", true);
    if (scale() != 1 / std::sqrt(double(c.headSize())))
      a.set("scale", c.attentionScale);
    if (c.attentionSoftcap != 0)
      a.set("softcap", c.attentionSoftcap);
    if (const int64_t window = windowOf(l))
      a.set("window", window);
    return a;
  }

  Value *attention(Value *qkv, int l) {
    AttrMap a = attentionAttrs(l);
    a.set("causal", c.causal);
    std::vector<Value *> operands = {qkv};
    if (dropping) {
      a.set("p", c.dropout);
      a.set("stream", dropoutStream(l, attentionSite));
      operands.insert(operands.end(), {read("rng_seed"), read("step"), seq0});
    }
    if (documents) {
      a.set("documents", true);
      operands.push_back(documents);
    }
    return b.value(OpKind::attention, operands, a);
  }

  Value *cachedAttention(Value *qkv, int l, Value *pos) {
    // Operands and results 1 and on: keys and values, and in 8 bits the scales of both.
    std::vector<std::string> names = {fmt::format("h.{}.attn.k_cache", l), fmt::format("h.{}.attn.v_cache", l)};
    if (cache == CacheFormat::q8_0)
      for (const char *which : {"k", "v"})
        names.push_back(fmt::format("h.{}.attn.{}_scales", l, which));
    std::vector<Value *> operands = {qkv};
    for (const std::string &name : names)
      operands.push_back(read(name));
    operands.insert(operands.begin() + 3, pos);
    Op *op = b.op(OpKind::attention_cached, operands, attentionAttrs(l));
    for (unsigned i = 0; i < names.size(); ++i)
      b.write(*m.state(names[i]), op->result(1 + i));
    return op->result(0);
  }

  /// Attention from simple ops. With G query heads per key head, of which there are K, queries have layout [B,K,G*T,D].
  Value *decomposed(Value *qkv, int l) {
    const int64_t batch = qkv->type.dim(0), T = c.blockSize, H = c.nHead, K = c.nKvHead, G = H / K, D = c.headSize();
    auto heads = [&](int64_t first, int64_t count) {
      return transpose(reshape(slice(qkv, 2, first * D, count * D), {batch, T, count, D}), {0, 2, 1, 3});
    };
    Value *q = heads(0, H);
    Value *k = heads(H, K);
    Value *v = heads(H + K, K);
    Value *s =
        b.value(OpKind::matmul, {reshape(q, {batch, K, G * T, D}), k}, attrs({{"batch", int64_t(2)}, {"tb", true}}));
    s = scaled(s, scale());
    s = reshape(s, {batch, H, T, T});
    if (c.attentionSoftcap != 0)
      s = capped(s, c.attentionSoftcap);
    if (c.position == Position::alibi)
      s = b.value(OpKind::alibi, {s});
    const int64_t window = windowOf(l);
    if (c.causal || window) {
      AttrMap how;
      if (window)
        how.set("window", window);
      if (!c.causal)
        how.set("two_sided", true);
      s = b.value(OpKind::causal_mask, {s}, std::move(how));
    }
    Value *p = dropout(b.value(OpKind::softmax, {s}), l, attentionSite);
    Value *o = b.value(OpKind::matmul, {reshape(p, {batch, K, G * T, T}), v}, attrs({{"batch", int64_t(2)}}));
    o = transpose(reshape(o, {batch, H, T, D}), {0, 2, 1, 3});
    return reshape(o, {batch, T, H * D});
  }

  /// With norms behind the residual sums the last layer ends with one.
  Value *finalNorm(Value *h) {
    if (c.normPosition == NormPosition::post)
      return h;
    at("ln_f");
    return norm(h, "ln_f");
  }

  /// What stands before the classifier with head_transform.
  Value *transformed(Value *h) {
    at("head.dense");
    h = b.value(opOf(c.activation), {linear(h, "head.dense", c.biased(c.mlpBias))});
    at("head.norm");
    return norm(h, "head.norm");
  }

  Value *head(Value *h) {
    if (c.headTransform)
      h = transformed(h);
    at("lm_head");
    h = b.value(OpKind::matmul, {h, read(c.tieEmbeddings ? "wte.weight" : "lm_head.weight")}, attrs({{"tb", true}}));
    if (c.headBias)
      h = add(h, read("lm_head.bias"));
    return c.logitSoftcap != 0 ? capped(h, c.logitSoftcap) : h;
  }

  Module &m;
  const ModelConfig &c;
  const CacheFormat cache;
  const BuildOptions &options;
  Function *f;
  Builder b;
  int64_t fold;
  Value *seq0 = nullptr;
  Value *documents = nullptr;  // where that of each token begins and ends; null: there is a cache, or one of all tokens
  Value *types = nullptr;      // of tokens; null: all are 0
  Value *ropeTable = nullptr, *windowRopeTable = nullptr;
  bool dropping = false;
  llvm::StringMap<Value *> readings;
};

}  // namespace

void buildLoss(Module &m, const Config &config, const BuildOptions &options, const char *name, bool training) {
  FunctionBuilder(m, config, options, name).buildLoss(config.train.microBatch, training);
}

void buildLabelLoss(Module &m, const Config &config, const BuildOptions &options, const char *name, bool training) {
  FunctionBuilder(m, config, options, name).buildLabelLoss(config.train.microBatch, training);
}

void buildCached(Module &m, const Config &config, const BuildOptions &options, const char *name, int64_t count,
                 bool picks) {
  FunctionBuilder(m, config, options, name).buildCached(count, picks);
}

void buildStep(Module &m, const Config &config, const BuildOptions &options, int64_t tokens, int64_t chosen) {
  const std::string name = fmt::format("step_{}", tokens);
  FunctionBuilder(m, config, options, name.c_str()).buildStep(tokens, chosen);
}

void buildScore(Module &m, const Config &config, const BuildOptions &options, int64_t tokens) {
  FunctionBuilder(m, config, options, "score").buildScore(tokens);
}

void buildEmbed(Module &m, const Config &config, const BuildOptions &options, int64_t tokens) {
  const std::string name = fmt::format("embed_{}", tokens);
  FunctionBuilder(m, config, options, name.c_str()).buildEmbed(tokens);
}

void buildFill(Module &m, const Config &config, const BuildOptions &options) {
  FunctionBuilder(m, config, options, "fill").buildFill();
}

void buildLabels(Module &m, const Config &config, const BuildOptions &options) {
  FunctionBuilder(m, config, options, "labels").buildLabels();
}

}  // namespace gptc
