// Attention over packed queries, keys and values, forward, backward, and with a cache for sampling.
//
// A row of qkv holds H query heads, then Hkv key heads, then Hkv value heads, each of D elements: the output of GPT-2's
// c_attn. Query head h uses key and value head h / (H / Hkv) (grouped queries, Ainslie et al. 2023). With scale =
// 1/sqrt(D), unless it is given:
//   s_ij = scale * q_i . k_j,   j <= i if causal, and j > i - window if there is a window, without `causal`
//   |i - j| < window (Beltagy et al. 2020);
//   with a soft cap, cap * tanh(s_ij / cap) in its place (Bello et al. 2017); with ALiBi minus the head's slope times
//   |i - j|
//   lse_i = log sum_j exp(s_ij),   p_ij = exp(s_ij - lse_i),   o_i = sum_j m_ij p_ij v_j
// where m_ij is 0 or 1/(1-p) by dropout, drawn at index (h*T + i)*T + j of the sequence: what the dropout op would draw
// for [B,H,T,T]. If the op has only some of `of_heads` heads, head0 is the first of them, from which slopes and indices
// count. With documents, several texts in a sequence, a query sees only keys of its own, as if the text stood alone.
// Backward, as in Dao et al. 2022, with delta_i = do_i . o_i:
//   dv_j = sum_i m_ij p_ij do_i,   ds_ij = p_ij (m_ij do_i . v_j - delta_i),   dq_i = scale sum_j ds_ij k_j,   dk_j =
//   scale sum_i ds_ij q_i
// where a soft cap multiplies ds_ij by 1 - tanh^2 (s_ij / cap).
// With `tf32` a kernel may round the factors of these products to 10 bits of mantissa, as NVIDIA's tensor cores do with
// f32; the reference rounds nothing.
#include "ir/element.h"
#include "ir/ops/heads.h"
#include "ir/ops/op_support.h"
#include "ir/quantized_cache.h"
#include "ir/random.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

namespace gptc {
using namespace ops;

namespace {

double dot(const double *a, const double *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += a[i] * b[i];
  return sum;
}

bool causal(const Op &op) { return op.attrs.getBool("causal", true); }

/// The index of the op's first head among all of_heads heads.
int64_t firstHead(const Op &op, std::span<const Tensor *const> in) {
  return op.attrs.getInt("of_heads") ? int64_t(in.back()->data[0]) : 0;
}

/// The first key that query i sees.
int64_t firstKey(const Op &op, int64_t i) {
  const int64_t window = op.attrs.getInt("window");
  return window ? std::max<int64_t>(0, i - window + 1) : 0;
}

/// The end of the keys that query i of `rows` sees.
int64_t endOfKeys(const Op &op, int64_t rows, int64_t i) {
  const int64_t window = op.attrs.getInt("window");
  return causal(op) ? i + 1 : window ? std::min(rows, i + window) : rows;
}

/// The keys that query i of sequence b sees: begin to end - 1. Bounds of documents are taken as including i.
struct Seen {
  int64_t begin, end;
  Seen(const Op &op, const Heads &n, std::span<const Tensor *const> in, int64_t b, int64_t i)
      : begin(firstKey(op, i)), end(endOfKeys(op, n.rows, i)) {
    if (!op.attrs.getBool("documents"))
      return;
    const double *document = &in[documentsOperand(op)]->data[size_t(2 * (b * n.rows + i))];
    begin = std::max(begin, int64_t(std::clamp(document[0], 0.0, double(i))));
    end = std::min(end, int64_t(std::clamp(document[1], double(i + 1), double(n.rows))));
  }
};

/// Scores s_ij of head h, computed from given products q . k.
class Scores {
public:
  Scores(const Op &op, const Heads &n, std::span<const Tensor *const> in, int64_t head)
      : scale(n.scale()), cap(op.attrs.getFloat("softcap")),
        slope(op.attrs.getBool("alibi") ? alibiSlope(firstHead(op, in) + head, n.ofHeads) : 0) {}
  double operator()(int64_t i, int64_t j, double product) const {
    const double s = scale * product;
    return (cap != 0 ? cap * std::tanh(s / cap) : s) - slope * double(std::abs(i - j));
  }
  /// The derivative of a score with respect to its product.
  double derivative(double product) const {
    const double t = cap != 0 ? std::tanh(scale * product / cap) : 0;
    return scale * (1 - t * t);
  }

private:
  double scale, cap, slope;
};

/// Check rule: how scores are made, and which keys a query sees. Outside of the limits f32 would overflow or lose all.
std::string checkScores(const Op &op) {
  constexpr double least = 1e-6, most = 1e6;
  constexpr int64_t longest = 1 << 30;
  for (const char *name : {"scale", "softcap"})
    if (const double v = op.attrs.getFloat(name); v != 0 && !(v >= least && v <= most))
      return fmt::format("{} = {} must be 0 or between {} and {}", name, v, least, most);
  const int64_t window = op.attrs.getInt("window");
  if (window < 0 || window > longest)
    return fmt::format("window = {} must be between 0 and {}", window, longest);
  return "";
}

std::string checkAttention(const Op &op) {
  const std::string error = checkDropoutAttrs(op);
  return error.empty() ? checkScores(op) : error;
}

/// Factors m_ij of one sequence; all 1 without dropout.
class DropoutFactors {
public:
  DropoutFactors(const Op &op, std::span<const Tensor *const> in, unsigned first, int64_t sequence)
      : p(op.attrs.getFloat("p")), drops(in.size() >= first + 3), head0(firstHead(op, in)) {
    if (drops)
      key = dropoutKey(op, *in[first], *in[first + 1], *in[first + 2], sequence);
  }
  double at(const Heads &h, int64_t head, int64_t i, int64_t j) const {
    if (!drops)
      return 1;
    return randomUniform(key, uint64_t(((head0 + head) * h.rows + i) * h.rows + j)) < p ? 0 : 1 / (1 - p);
  }

private:
  double p;
  bool drops;
  int64_t head0;
  RandomKey key{};
};

/// Rule for the optional operands from `first` on: seed, step and seq0, all three or none, then documents if the
/// attribute says so, then head0 if there is of_heads.
bool expectOptionalOperands(const Op &op, unsigned first, int64_t heads, std::string &error) {
  constexpr int64_t most = 1 << 24;
  const int64_t all = op.attrs.getInt("of_heads");
  if (all != 0 && (all < heads || all > most))
    return fail(error, "of_heads = {} must be at least the {} heads that are here, and at most {}", all, heads, most);
  const bool documents = op.attrs.getBool("documents");
  const unsigned given = op.numOperands() - first, n = given - documents - (all != 0);
  if (all != 0 && (given == documents || given == 3u + documents))
    return fail(error, "of_heads = {} needs the operand head0", all);
  if (n != 0 && n != 3)
    return fail(error, "seed, step and seq0 must be given together, and documents and head0 only with documents = true "
                       "and of_heads");
  for (unsigned i = first; i < op.numOperands(); ++i)
    if (!(documents && i == documentsOperand(op)) && !expectScalar(op, i, DType::i64, error))
      return false;
  if (n == 0 && op.attrs.getFloat("p") != 0)
    return fail(error, "p = {} needs the operands seed, step and seq0", op.attrs.getFloat("p"));
  return true;
}

bool expectDocuments(const Op &op, const Heads &n, std::string &error) {
  return !op.attrs.getBool("documents") || expectType(op, documentsOperand(op), Type(DType::i64, {n.batch, n.rows, 2}),
                                                      "where the document of each token begins and ends", error);
}

std::vector<AttrSpec> attentionAttrs() {
  return {{AttrSpec::Int, "n_head", true, int64_t(1)},    {AttrSpec::Int, "n_kv_head", false, int64_t(0)},
          {AttrSpec::Int, "of_heads", false, int64_t(0)}, {AttrSpec::Bool, "causal", false, true},
          {AttrSpec::Bool, "alibi", false, false},        {AttrSpec::Float, "p", false, 0.0},
          {AttrSpec::Int, "stream", false, int64_t(0)},   {AttrSpec::Bool, "tf32", false, false},
          {AttrSpec::Float, "scale", false, 0.0},         {AttrSpec::Float, "softcap", false, 0.0},
          {AttrSpec::Int, "window", false, int64_t(0)},   {AttrSpec::Bool, "documents", false, false}};
}

std::vector<Tensor> referenceAttention(const Op &op, std::span<const Tensor *const> in) {
  Heads n(op, op.operand(0)->type);
  const double *x = in[0]->data.data();
  Tensor o(op.result(0)->type), lse(op.result(1)->type);
  std::vector<double> s(n.rows);
  for (int64_t b = 0; b < n.batch; ++b) {
    DropoutFactors factor(op, in, 1, b);
    for (int64_t h = 0; h < n.queries; ++h) {
      const Scores score(op, n, in, h);
      for (int64_t i = 0; i < n.rows; ++i) {
        const auto [begin, end] = Seen(op, n, in, b, i);
        for (int64_t j = begin; j < end; ++j)
          s[j] = score(i, j, dot(x + n.q(b, i, h), x + n.k(b, j, h), n.size));
        double most = *std::max_element(s.begin() + begin, s.begin() + end), sum = 0;
        for (int64_t j = begin; j < end; ++j)
          sum += std::exp(s[j] - most);
        double l = lse.data[n.lse(b, i, h)] = most + std::log(sum);
        for (int64_t j = begin; j < end; ++j)
          for (int64_t c = 0; c < n.size; ++c)
            o.data[n.o(b, i, h) + c] += factor.at(n, h, i, j) * std::exp(s[j] - l) * x[n.v(b, j, h) + c];
      }
    }
  }
  return {std::move(o), std::move(lse)};
}

std::vector<Tensor> referenceAttentionGrad(const Op &op, std::span<const Tensor *const> in) {
  Heads n(op, op.operand(1)->type);
  const double *dout = in[0]->data.data(), *x = in[1]->data.data(), *out = in[2]->data.data();
  Tensor result(op.result()->type);
  double *d = result.data.data();
  for (int64_t b = 0; b < n.batch; ++b) {
    DropoutFactors factor(op, in, 4, b);
    for (int64_t h = 0; h < n.queries; ++h) {
      const Scores score(op, n, in, h);
      for (int64_t i = 0; i < n.rows; ++i) {
        const double *di = dout + n.o(b, i, h);
        double delta = dot(di, out + n.o(b, i, h), n.size);
        const auto [begin, end] = Seen(op, n, in, b, i);
        for (int64_t j = begin; j < end; ++j) {
          const double product = dot(x + n.q(b, i, h), x + n.k(b, j, h), n.size);
          double p = std::exp(score(i, j, product) - in[3]->data[n.lse(b, i, h)]);
          double m = factor.at(n, h, i, j);
          double ds = score.derivative(product) * p * (m * dot(di, x + n.v(b, j, h), n.size) - delta);
          for (int64_t c = 0; c < n.size; ++c) {
            d[n.q(b, i, h) + c] += ds * x[n.k(b, j, h) + c];
            d[n.k(b, j, h) + c] += ds * x[n.q(b, i, h) + c];
            d[n.v(b, j, h) + c] += m * p * di[c];
          }
        }
      }
    }
  }
  return {std::move(result)};
}

constexpr double tanhFlops = 25;

/// The cost of `products` matrix products over all computed pairs (query, key), and of the exponentials.
Cost attentionCost(const Op &op, const Type &qkv, double products) {
  Heads n(op, qkv);
  double pairs = double(n.batch) * double(n.queries) * double(n.rows) * double(n.rows) / (causal(op) ? 2 : 1);
  if (const double seen = double(op.attrs.getInt("window")); seen != 0 && seen < double(n.rows))
    pairs = double(n.batch) * double(n.queries) *
            (causal(op) ? seen * (double(n.rows) - seen / 2) : seen * (2 * double(n.rows) - seen) - double(n.rows));
  Cost c = streamCost(op, 0);
  const double perPair = (op.attrs.getBool("alibi") ? 12 : 10) + (op.attrs.getFloat("softcap") != 0 ? tanhFlops : 0);
  c.flops = pairs * (2 * products * double(n.size) + perPair);
  return c;
}

/// Documents of 1 to 12 tokens, or one of all.
Tensor sampleOfDocuments(SampleSource &s, int64_t batch, int64_t rows) {
  Tensor documents(Type(DType::i64, {batch, rows, 2}));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t begin = 0, end; begin < rows; begin = end) {
      end = std::min(rows, begin + (s.between(0, 7) ? s.between(1, 12) : rows));
      for (int64_t i = begin; i < end; ++i) {
        documents.data[size_t(2 * (b * rows + i))] = double(begin);
        documents.data[size_t(2 * (b * rows + i) + 1)] = double(end);
      }
    }
  return documents;
}

/// Samples of attention or, with `backward`, of its gradient, with o and lse as the forward op would yield them.
std::vector<OpDef::Sample> samplesAttention(bool backward, unsigned seed) {
  SampleSource s(seed);
  struct Shape {
    int64_t heads, keyHeads;
    bool causal, alibi = false;
    double p = 0;
    int64_t ofHeads = 0;
    double scale = 0, softcap = 0;
    bool window = false, documents = false;
  };
  std::vector<OpDef::Sample> samples;
  for (Shape shape :
       {Shape{2, 2, true, false, 0.0},
        Shape{4, 2, true, false, 0.25},
        Shape{3, 1, false, false, 0.0},
        Shape{1, 1, false, false, 0.5},
        Shape{2, 1, true, true, 0.0},
        Shape{6, 2, true, true, 0.3},
        Shape{4, 4, false, true, 0.25},
        Shape{3, 1, false, true, 0.0},
        Shape{2, 1, true, false, 0.4, 1 << 24},
        Shape{2, 2, true, true, 0.0, 12},
        Shape{2, 1, false, true, 0.3, 8},
        Shape{.heads = 2, .keyHeads = 2, .causal = false, .scale = 0.3},
        Shape{.heads = 2, .keyHeads = 1, .causal = false, .softcap = 1.5},
        Shape{.heads = 2, .keyHeads = 2, .causal = true, .window = true},
        Shape{.heads = 4, .keyHeads = 2, .causal = true, .p = 0.25, .scale = 0.7, .softcap = 2, .window = true},
        Shape{.heads = 2, .keyHeads = 1, .causal = true, .alibi = true, .softcap = 0.8, .window = true},
        Shape{.heads = 2, .keyHeads = 1, .causal = false, .window = true},
        Shape{.heads = 2, .keyHeads = 2, .causal = false, .alibi = true, .p = 0.25, .softcap = 1.5, .window = true},
        Shape{.heads = 1, .keyHeads = 1, .causal = false, .alibi = true, .p = 0.5, .scale = 1.25, .softcap = 3},
        Shape{.heads = 2, .keyHeads = 2, .causal = true, .documents = true},
        Shape{.heads = 4, .keyHeads = 2, .causal = false, .documents = true},
        Shape{.heads = 2, .keyHeads = 1, .causal = true, .p = 0.25, .window = true, .documents = true},
        Shape{.heads = 2, .keyHeads = 1, .causal = false, .window = true, .documents = true},
        Shape{.heads = 2,
              .keyHeads = 2,
              .causal = false,
              .alibi = true,
              .p = 0.3,
              .ofHeads = 8,
              .softcap = 2,
              .documents = true}}) {
    // Finite differences of backward take quadratic time in rows for each element; the forward samples have the long
    // rows.
    int64_t rows = s.extent(backward ? 33 : 17), size = s.extent(9);
    Type qkv(DType::f32, {s.between(1, 2), rows, (shape.heads + 2 * shape.keyHeads) * size});
    AttrMap at = attrs({{"n_head", shape.heads}, {"causal", shape.causal}});
    if (shape.keyHeads != shape.heads)
      at.set("n_kv_head", shape.keyHeads);
    if (shape.alibi)
      at.set("alibi", true);
    if (shape.scale != 0)
      at.set("scale", shape.scale);
    if (shape.softcap != 0)
      at.set("softcap", shape.softcap);
    if (shape.window)
      at.set("window", s.between(1, rows));
    std::vector<Tensor> inputs = {s.normals(qkv)};
    if (shape.p > 0) {
      at.set("p", shape.p);
      at.set("stream", s.between(0, 100));
      for (int i = 0; i < 3; ++i)
        inputs.push_back(Tensor::scalar(double(s.between(0, 1000)), DType::i64));
    }
    if (shape.documents) {
      at.set("documents", true);
      inputs.push_back(sampleOfDocuments(s, qkv.dim(0), rows));
    }
    if (shape.ofHeads) {
      at.set("of_heads", shape.ofHeads);
      inputs.push_back(Tensor::scalar(double(s.between(1, shape.ofHeads - shape.heads)), DType::i64));
    }
    if (backward) {
      Module m;
      Function *f = m.addFunction("forward");
      std::vector<Value *> args;
      for (const Tensor &t : inputs)
        args.push_back(f->body.addArg(t.type));
      Builder b(f->body);
      Op *forward = b.op(OpKind::attention, args, at);
      std::vector<const Tensor *> in;
      for (const Tensor &t : inputs)
        in.push_back(&t);
      std::vector<Tensor> results = referenceAttention(*forward, in);
      Tensor dout = s.normals(results[0].type);
      std::vector<Tensor> all = {std::move(dout), inputs[0], std::move(results[0]), std::move(results[1])};
      all.insert(all.end(), inputs.begin() + 1, inputs.end());
      inputs = std::move(all);
    }
    OpDef::Sample sample{.attrs = std::move(at)};
    for (const Tensor &t : inputs)
      sample.operandTypes.push_back(t.type);
    sample.operandValues = std::move(inputs);
    samples.push_back(std::move(sample));
  }
  return samples;
}

// ---- with a cache ---------------------------------------------------------------------------------------------------

/// Where a cache of slots has its slots: in a dimension before the heads.
bool hasSlots(const Op &op) { return op.operand(1)->type.rank() == 4; }

/// The operands before head0: with a cache of 8 bits those of its scales are the last of them.
unsigned cachedOperands(const Op &op) { return hasQuantizedCache(op) ? 6 : 4; }

/// Rule for the scales of a cache of 8 bits, whose numbers are operands 1 and 2. `one`: the type of the numbers of one
/// sequence.
bool expectScales(const Op &op, const Type &one, int64_t size, std::string &error) {
  Type whole = op.operand(1)->type;
  whole.dims.back() = Dim(size);
  const auto want = quantizedCacheType(whole);
  if (!want || one.dim(2) != size / 4)
    return fail(error, "heads of {} elements have no cache of 8 bits in {}: blocks have {} elements, in words of 4",
                size, op.operand(1)->type.str(), quantBlock);
  for (unsigned i : {4, 5})
    if (i >= op.numOperands() || !expectType(op, i, want->scales, "a scale for each block of the cache", error))
      return error.empty() ? fail(error, "a cache of 8 bits needs the operands k_scales and v_scales") : false;
  return true;
}

bool inferCached(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &qkv = op.operand(0)->type;
  Heads n;
  if (!Heads::from(op, qkv, n, error))
    return false;
  const Type &k = op.operand(1)->type;
  const bool slots = k.rank() == 4, quantized = hasQuantizedCache(op);
  if (n.batch != 1)
    return fail(error, "the tokens of all slots are one row of qkv, which has {}", n.batch);
  const Type one = slots ? k.slice(1, 4) : k;
  if (one.rank() != 3 || (k.dtype != qkv.dtype && !quantized) || one.dims[0] != Dim(n.keyValues) ||
      (!quantized && one.dims[2] != Dim(n.size)) || one.dim(1) != one.padded(1) || one.dim(2) != one.padded(2) ||
      k.dim(0) != k.padded(0) || (!slots && one.dim(1) < n.rows))
    return fail(error, "the cache must be {}[{},S,{}] with S at least {}, or have slots before these, not {}",
                nameOf(qkv.dtype).str(), n.keyValues, n.size, n.rows, k.str());
  if (op.numOperands() > cachedOperands(op) + 1)
    return fail(error, "scales are of a cache of u32, not of {}", k.str());
  if ((quantized && !expectScales(op, one, n.size, error)) ||
      !expectSame(k, op.operand(2)->type, "the caches of keys and values", error) ||
      !(slots ? expectType(op, 3, Type(DType::i64, {n.rows, 2}), "a slot and a position for each token", error)
              : expectScalar(op, 3, DType::i64, error)) ||
      !expectOptionalOperands(op, cachedOperands(op), n.queries, error))
    return false;
  types = {n.outType(qkv), k, k};
  if (quantized)
    types.insert(types.end(), 2, op.operand(4)->type);
  return true;
}

/// The caches of keys and values while new rows join them. Of 8 bits, rows are rounded when they join, and read as they
/// are kept.
class Caches {
public:
  /// `size`: elements of a row.
  Caches(const Op &op, std::span<const Tensor *const> in, int64_t size) : quantized(hasQuantizedCache(op)), size(size) {
    for (unsigned i : {1, 2, 4, 5})
      if (i < 3 || quantized)
        kept.push_back(*in[i]);
    for (int side = 0; side < 2; ++side)
      for (int64_t row = 0; quantized && row < kept[0].type.elements() / (size / 4); ++row)
        for (int64_t e = 0; e < size; ++e)
          wide[side].push_back(element(side, row, e));
  }
  /// Row `row` of all heads of keys (side 0) or values (1) becomes x.
  void join(int side, int64_t row, const double *x) {
    if (!quantized) {
      std::copy_n(x, size, &kept[size_t(side)].data[size_t(row * size)]);
      return;
    }
    Tensor &numbers = kept[size_t(side)], &scales = kept[size_t(2 + side)];
    std::vector<uint32_t> words(size_t(size / 4), 0);
    for (int64_t first = 0; first < size; first += quantBlock) {
      float elements[quantBlock];
      std::transform(x + first, x + first + quantBlock, elements, [](double v) { return float(v); });
      const CacheBlock block = roundCacheBlock(elements);
      for (int64_t i = 0; i < quantBlock; ++i) {
        const CachePlace p = cachePlace(first + i, size);
        words[size_t(p.word)] |= uint32_t(block.q[i] + 128) << p.shift;
      }
      scales.data[size_t((row * size + first) / quantBlock)] = block.scale;
    }
    std::copy(words.begin(), words.end(), &numbers.data[size_t(row * (size / 4))]);
    for (int64_t e = 0; e < size; ++e)
      wide[side][size_t(row * size + e)] = element(side, row, e);
  }
  const double *row(int side, int64_t row) const {
    return &(quantized ? wide[side] : kept[size_t(side)].data)[size_t(row * size)];
  }
  /// The results behind o.
  std::vector<Tensor> take() && { return std::move(kept); }

private:
  double element(int side, int64_t row, int64_t e) const {
    const CachePlace p = cachePlace(e, size);
    const auto word = uint32_t(kept[size_t(side)].data[size_t(row * (size / 4) + p.word)]);
    return cacheNumber(word, p.shift) * kept[size_t(2 + side)].data[size_t(row * (size / quantBlock) + p.scale)];
  }

  const bool quantized;
  const int64_t size;
  std::vector<Tensor> kept;     // keys, values and, of 8 bits, their scales
  std::vector<double> wide[2];  // of 8 bits: all elements
};

std::vector<Tensor> referenceCached(const Op &op, std::span<const Tensor *const> in) {
  Heads n(op, op.operand(0)->type);
  const double *x = in[0]->data.data(), *places = in[3]->data.data();
  Tensor o(op.result(0)->type);
  Caches caches(op, in, n.size);
  const bool slots = hasSlots(op);
  const Type &cache = op.operand(1)->type;
  const int64_t capacity = cache.dim(slots ? 2 : 1), most = slots ? cache.dim(0) - 1 : 0;
  auto slotOf = [&](int64_t t) { return slots ? int64_t(std::clamp(places[2 * t], 0.0, double(most))) : 0; };
  auto positionOf = [&](int64_t t) {
    return slots ? int64_t(std::clamp(places[2 * t + 1], -1.0, double(capacity - 1)))
                 : int64_t(std::clamp(places[0], 0.0, double(capacity - n.rows))) + t;
  };
  auto at = [&](int64_t t, int64_t h, int64_t row) {
    return (slotOf(t) * n.keyValues + n.keyHead(h)) * capacity + row;
  };
  for (int64_t h = 0; h < n.queries; ++h)
    for (int64_t t = 0; t < n.rows; ++t)
      if (const int64_t position = positionOf(t); position >= 0) {
        caches.join(0, at(t, h, position), x + n.k(0, t, h));
        caches.join(1, at(t, h, position), x + n.v(0, t, h));
      }
  for (int64_t h = 0; h < n.queries; ++h) {
    const Scores score(op, n, in, h);
    for (int64_t i = 0; i < n.rows; ++i) {
      const int64_t position = positionOf(i), first = position < 0 ? 0 : firstKey(op, position);
      if (position < 0)
        continue;
      std::vector<double> s(position + 1 - first);
      for (int64_t j = 0; j < int64_t(s.size()); ++j)
        s[j] = score(position, first + j, dot(x + n.q(0, i, h), caches.row(0, at(i, h, first + j)), n.size));
      double most = *std::max_element(s.begin(), s.end()), sum = 0;
      for (double e : s)
        sum += std::exp(e - most);
      for (int64_t j = 0; j < int64_t(s.size()); ++j)
        for (int64_t c = 0; c < n.size; ++c)
          o.data[n.o(0, i, h) + c] += std::exp(s[j] - most) / sum * caches.row(1, at(i, h, first + j))[c];
    }
  }
  std::vector<Tensor> results = std::move(caches).take();
  results.insert(results.begin(), std::move(o));
  return results;
}

/// Tokens of several sequences in a cache of slots: some in a row, some alone, some none.
OpDef::Sample sampleOfSlots(SampleSource &s, AttrMap at) {
  const int64_t heads = at.getInt("n_head"), keyHeads = at.getInt("n_kv_head"), size = s.extent(33),
                slots = s.between(1, 4), capacity = s.between(4, 40), rows = s.extent(9);
  const Type cache(DType::f32, {slots, keyHeads, capacity, size}), places(DType::i64, {rows, 2});
  Tensor place(places);
  std::vector<int64_t> next;
  for (int64_t i = 0; i < slots; ++i)
    next.push_back(s.between(0, capacity - 1));
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t slot = s.between(0, slots - 1);
    int64_t &position = next[size_t(slot)];
    place.data[2 * t] = double(slot);
    place.data[2 * t + 1] = position < capacity && s.between(0, 4) ? double(position++) : -1;
  }
  return {.operandTypes = {Type(DType::f32, {1, rows, (heads + 2 * keyHeads) * size}), cache, cache, places},
          .attrs = std::move(at),
          .operandValues = {Tensor(), Tensor(), Tensor(), std::move(place)}};
}

/// The sample with a cache of 8 bits, whose heads have a few blocks. Some elements of new rows are 0, and some small.
OpDef::Sample sampleOfBytes(SampleSource &s, OpDef::Sample sample) {
  const int64_t heads = sample.attrs.getInt("n_head"), all = heads + 2 * sample.attrs.getInt("n_kv_head"),
                size = quantBlock * s.between(1, 3);
  Type &qkv = sample.operandTypes[0], &cache = sample.operandTypes[1];
  qkv.dims.back() = Dim(all * size);
  cache.dims.back() = Dim(size);
  const QuantizedCacheType kept = *quantizedCacheType(cache);
  std::vector<Tensor> &values = sample.operandValues;
  values[0] = s.normals(qkv);
  for (double &v : values[0].data)
    v = s.between(0, 9) ? float(v * (s.between(0, 20) ? 1 : 0.01)) : 0;
  std::vector<Tensor> scales;
  for (unsigned i : {1, 2}) {
    values[i] = Tensor(kept.numbers);
    for (double &v : values[i].data)
      v = double(uint32_t(s.bits()));
    sample.operandTypes[i] = kept.numbers;
    scales.push_back(s.uniforms(kept.scales, 0, 0.02));
    for (double &v : scales.back().data)
      v = roundTo(DType::f16, v);
  }
  sample.operandTypes.insert(sample.operandTypes.begin() + 4, 2, kept.scales);
  values.insert(values.begin() + 4, scales.begin(), scales.end());
  return sample;
}

std::vector<OpDef::Sample> samplesCached(unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> samples;
  struct Shape {
    int64_t heads, keyHeads;
    bool alibi = false;
    int64_t ofHeads = 0;
    double scale = 0, softcap = 0;
    bool window = false;
  };
  for (auto [heads, keyHeads, alibi, ofHeads, scale, softcap, window] :
       {Shape{2, 2}, Shape{4, 1}, Shape{3, 3, true}, Shape{4, 2, true}, Shape{2, 2, true, 6},
        Shape{.heads = 2, .keyHeads = 1, .scale = 0.4}, Shape{.heads = 2, .keyHeads = 2, .softcap = 1.5},
        Shape{.heads = 2, .keyHeads = 1, .window = true},
        Shape{.heads = 3, .keyHeads = 1, .alibi = true, .scale = 0.6, .softcap = 2, .window = true}}) {
    int64_t rows = s.extent(9), size = s.extent(33), capacity = rows + s.between(0, 40);
    Type cache(DType::f32, {keyHeads, capacity, size});
    // At the start, within, and beyond the end of the cache.
    for (int64_t pos : {int64_t(0), s.between(0, capacity - rows), capacity + 7}) {
      samples.push_back({.operandTypes = {Type(DType::f32, {1, rows, (heads + 2 * keyHeads) * size}), cache, cache,
                                          Type::scalar(DType::i64)},
                         .attrs = attrs({{"n_head", heads}, {"n_kv_head", keyHeads}, {"alibi", alibi}}),
                         .operandValues = {Tensor(), Tensor(), Tensor(), Tensor::scalar(double(pos), DType::i64)}});
      AttrMap &at = samples.back().attrs;
      if (scale != 0)
        at.set("scale", scale);
      if (softcap != 0)
        at.set("softcap", softcap);
      if (window)
        at.set("window", s.between(1, capacity));
      if (OpDef::Sample &part = samples.back(); ofHeads) {
        part.attrs.set("of_heads", ofHeads);
        part.operandTypes.push_back(Type::scalar(DType::i64));
        part.operandValues.push_back(Tensor::scalar(double(s.between(1, ofHeads - heads)), DType::i64));
      }
    }
  }
  for (AttrMap at : {attrs({}), attrs({{"alibi", true}}), attrs({{"softcap", 1.5}, {"window", int64_t(5)}})})
    for (const int64_t heads : {2, 4}) {
      at.set("n_head", heads);
      at.set("n_kv_head", int64_t(2));
      samples.push_back(sampleOfSlots(s, at));
    }
  const std::vector<OpDef::Sample> wide = samples;  // of one sequence and of slots, with all that scores may have
  for (size_t i = 0; i < wide.size(); i += 4)
    samples.push_back(sampleOfBytes(s, wide[i]));
  return samples;
}

}  // namespace

OpDef define_attention() {
  return {
      .kind = OpKind::attention,
      .name = "attention",
      .summary =
          "softmax(scale q k^T) v per head over packed qkv, scale 1/sqrt(D) unless given; scores s become softcap "
          "tanh(s / softcap) if asked for, then get the bias of the alibi op, and with a window a query sees only the "
          "last `window` keys up to its own, without `causal` those fewer than `window` keys away on both sides. "
          "Dropout on the probabilities: element (h,i,j) of a sequence draws index "
          "(h*T+i)*T+j. Where these are some of of_heads heads, h counts from head0. With documents a query sees only "
          "keys of its own document, of which row i of `documents` says where it begins and ends, before or at i and "
          "behind it; they follow each other without gaps, else the results are not defined",
      .shapes = "qkv [B,T,(H+2Hkv)D][, seed, step, seq0][, documents i64[B,T,2]][, head0] -> o [B,T,HD], lse [B,H,T]",
      .operands = {{"qkv"}, {"seed", true}, {"step", true}, {"seq0", true}, {"documents", true}, {"head0", true}},
      .attrs = attentionAttrs(),
      .results = {"o", "lse"},
      .fusion = FusionKind::attention,
      .autocast = {AutocastClass::low, {0}},
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &qkv = op.operand(0)->type;
            Heads n;
            if (!Heads::from(op, qkv, n, error) || !expectOptionalOperands(op, 1, n.queries, error) ||
                !expectDocuments(op, n, error))
              return false;
            types = {n.outType(qkv), n.lseType(qkv)};
            return true;
          },
      .check = checkAttention,
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        expectNoGradient(c, 1);
        std::vector<Value *> operands = {c.dresults[0], c.op.operand(0), c.op.result(0), c.op.result(1)};
        for (unsigned i = 1; i < c.op.numOperands(); ++i)
          operands.push_back(c.op.operand(i));
        std::vector<Value *> grads(c.op.numOperands(), nullptr);
        grads[0] = c.b.value(OpKind::attention_grad, operands, c.op.attrs);
        return grads;
      },
      .cost = [](const Op &op) { return attentionCost(op, op.operand(0)->type, 2); },
      .reference = referenceAttention,
      .lower = NotApplicable{"the attention recipe builds the loops around it"},
      .samples = [](unsigned seed) { return samplesAttention(false, seed); },
  };
}

OpDef define_attention_grad() {
  return {
      .kind = OpKind::attention_grad,
      .name = "attention_grad",
      .summary = "gradient of attention with respect to qkv; probabilities are recomputed from lse",
      .shapes = "do [B,T,HD], qkv [B,T,(H+2Hkv)D], o [B,T,HD], lse [B,H,T][, seed, step, seq0][, documents "
                "i64[B,T,2]][, head0] -> dqkv [B,T,(H+2Hkv)D]",
      .operands = {{"do"},
                   {"qkv"},
                   {"o"},
                   {"lse"},
                   {"seed", true},
                   {"step", true},
                   {"seq0", true},
                   {"documents", true},
                   {"head0", true}},
      .attrs = attentionAttrs(),
      .results = {"dqkv"},
      .fusion = FusionKind::attention,
      .autocast = {AutocastClass::low, {0, 1, 2}},
      .tokens = madeByAutodiff,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &qkv = op.operand(1)->type;
            Heads n;
            if (!Heads::from(op, qkv, n, error) ||
                !expectType(op, 0, n.outType(qkv), "the type of attention's result", error) ||
                !expectType(op, 2, n.outType(qkv), "the type of attention's result", error) ||
                !expectType(op, 3, n.lseType(qkv), "one element per head and row", error) ||
                !expectOptionalOperands(op, 4, n.queries, error) || !expectDocuments(op, n, error))
              return false;
            types = {qkv};
            return true;
          },
      .check = checkAttention,
      .grad = NotApplicable{"a gradient itself; second derivatives are not taken"},
      .cost = [](const Op &op) { return attentionCost(op, op.operand(1)->type, 5); },
      .reference = referenceAttentionGrad,
      .lower = NotApplicable{"the attention recipe builds the loops around it"},
      .samples = [](unsigned seed) { return samplesAttention(true, seed); },
  };
}

OpDef define_attention_cached() {
  return {
      .kind = OpKind::attention_cached,
      .name = "attention_cached",
      .summary =
          "attention of new tokens to a cache of keys and values, which they join at rows pos..; token i sees "
          "rows <= pos+i, of these the last `window` if there is a window. In a cache with slots row i of pos is "
          "the slot of token i and its row there, one of its own, and a token whose row is negative is none: its "
          "result is 0. With scales the cache has 8 bits (ir/quantized_cache.h): new rows are rounded when they join "
          "it, and all are read as they are kept",
      .shapes = "qkv [1,t,(H+2Hkv)D], k and v [Hkv,S,D], pos i64[][, head0 i64[]] -> o [1,t,HD], k, v; or k and v "
                "[slots,Hkv,S,D], pos i64[t,2]; or k and v u32 [..,S,D/4] with k_scales and v_scales f16 [..,S,D/32], "
                "which are results, too",
      .operands = {{"qkv"},
                   {"k"},
                   {"v"},
                   {"pos"},
                   {"k_scales", true, false},
                   {"v_scales", true, false},
                   {"head0", true, false}},
      .attrs = {{AttrSpec::Int, "n_head", true, int64_t(1)},
                {AttrSpec::Int, "n_kv_head", false, int64_t(0)},
                {AttrSpec::Int, "of_heads", false, int64_t(0)},
                {AttrSpec::Bool, "alibi", false, false},
                {AttrSpec::Float, "scale", false, 0.0},
                {AttrSpec::Float, "softcap", false, 0.0},
                {AttrSpec::Int, "window", false, int64_t(0)}},
      .results = {"o", "k", "v", "k_scales", "v_scales"},
      .fusion = FusionKind::attention,
      .autocast = {AutocastClass::low, {0, 1, 2}},
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = {3, [](const Op &op) { return op.operand(1)->type.dim(-2); }},
      .infer = inferCached,
      .check = checkScores,  // pos is clamped so that rows exist
      .grad = NotApplicable{"sampling only"},
      .cost =
          [](const Op &op) {
            Heads n(op, op.operand(0)->type);
            Cost c = streamCost(op, 0);
            const int64_t window = op.attrs.getInt("window"), capacity = op.operand(1)->type.dim(-2);
            const double seen = double(window ? std::min(window, capacity) : capacity);
            c.flops = 4.0 * double(n.rows) * seen * double(n.queries * n.size);
            return c;
          },
      .reference = referenceCached,
      .lower = NotApplicable{"the attention recipe builds the loops around it"},
      .samples = samplesCached,
  };
}

}  // namespace gptc
