// The choice of the next token of each sequence: greedy, or by temperature with top-k and top-p.
//
// Likelihoods are integers, so that their sums have no order and a choice is the same on every machine:
//
//   weight(id) = trunc(exp((logit - most) / temperature) * 2^30); 2^30 of the largest logit, 0 of NaN.
#include "ir/choose_token.h"

#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gptc {
using namespace ops;

namespace {

constexpr int64_t mostTokens = std::numeric_limits<int32_t>::max();

/// What one row of `how` holds.
struct How {
  double temperature, topP, position;
  int64_t topK, tokens;
};

/// Of a row's numbers `h`.
How howOf(const double *h, int64_t vocab) {
  auto count = [&](double x) { return x >= 1 ? int64_t(std::min(x, double(vocab))) : 0; };
  const int64_t tokens = count(h[choose_token::tokens]);
  return {h[choose_token::temperature], h[choose_token::topP], h[choose_token::position], count(h[choose_token::topK]),
          tokens ? tokens : vocab};
}

/// The largest logit that is no NaN.
double mostOf(llvm::ArrayRef<double> logits) {
  double most = -std::numeric_limits<double>::infinity();
  for (double x : logits)
    most = x > most ? x : most;
  return most;
}

std::vector<int64_t> weightsOf(llvm::ArrayRef<double> logits, double temperature) {
  const double most = mostOf(logits);
  std::vector<int64_t> weights;
  for (double x : logits)
    weights.push_back(x == most  ? choose_token::mostWeight
                      : x < most ? int64_t(std::exp((x - most) / temperature) * choose_token::mostWeight)
                                 : 0);
  return weights;
}

/// Ids by likelihood: of equal logits the smaller id first, NaN last.
std::vector<int64_t> ranked(llvm::ArrayRef<double> logits) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
    return std::isnan(logits[b]) ? !std::isnan(logits[a]) : logits[a] > logits[b];
  });
  return ids;
}

/// Ids in the order in which their weights are added up.
std::vector<int64_t> inSlots(int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t slot = 0; slot < std::min(count, choose_token::slots); ++slot)
    for (int64_t id = slot; id < count; id += choose_token::slots)
      ids.push_back(id);
  return ids;
}

/// The part of `total` that a fraction stands for, downwards.
int64_t partOf(int64_t total, double fraction) { return int64_t(double(total) * fraction); }

/// Weights of 0 for the ids that top-k and top-p exclude.
void exclude(std::vector<int64_t> &weights, llvm::ArrayRef<int64_t> order, const How &how) {
  const int64_t count = order.size();
  if (how.topK > 0)
    for (int64_t i = how.topK; i < count; ++i)
      weights[order[i]] = 0;
  if (!(how.topP < 1))
    return;
  const int64_t need =
      std::max<int64_t>(1, partOf(std::accumulate(weights.begin(), weights.end(), int64_t(0)), std::max(how.topP, 0.)));
  int64_t sum = 0, i = 0;
  while (i < count && sum < need)
    sum += weights[order[i++]];
  for (; i < count; ++i)
    weights[order[i]] = 0;
}

int64_t chosen(llvm::ArrayRef<double> logits, const How &how) {
  logits = logits.take_front(how.tokens);
  if (!(how.temperature > 0)) {
    const auto first = llvm::find(logits, mostOf(logits));
    return first == logits.end() ? 0 : first - logits.begin();
  }
  std::vector<int64_t> weights = weightsOf(logits, how.temperature);
  if (how.topK > 0 || how.topP < 1)
    exclude(weights, ranked(logits), how);
  const int64_t at = partOf(std::accumulate(weights.begin(), weights.end(), int64_t(0)), how.position);
  int64_t sum = 0;
  for (int64_t id : inSlots(logits.size()))
    if ((sum += weights[id]) > at)
      return id;
  return 0;  // all are NaN
}

/// Sets the position to the middle of the weight of an id that is likely, so that no rounding changes the choice, and
/// with `nucleus` top_p to the middle of another.
void aim(SampleSource &s, llvm::ArrayRef<double> logits, double *how, bool nucleus) {
  How h = howOf(how, logits.size());
  logits = logits.take_front(h.tokens);
  const std::vector<int64_t> order = ranked(logits);
  std::vector<int64_t> weights = weightsOf(logits, h.temperature);
  h.topP = 1;
  exclude(weights, order, h);
  auto total = [&] { return double(std::accumulate(weights.begin(), weights.end(), int64_t(0))); };
  how[choose_token::position] = 0.5;
  if (total() == 0)
    return;
  auto isLikely = [&](int64_t id) { return double(weights[id]) * 4000 > total(); };
  if (nucleus) {
    int64_t before = 0, last = s.between(0, std::min<int64_t>(3, order.size() - 1));
    if (!isLikely(order[last]))
      last = 0;
    for (int64_t i = 0; i < last; ++i)
      before += weights[order[i]];
    how[choose_token::topP] = h.topP = float((double(before) + double(weights[order[last]]) / 2) / total());
    exclude(weights, order, h);
  }
  int64_t id = order[0];
  for (int tries = 0; tries < 20 && id == order[0]; ++tries)
    if (const int64_t other = order[s.between(0, order.size() - 1)]; isLikely(other))
      id = other;
  double before = 0;
  for (int64_t other : inSlots(logits.size())) {
    if (other == id)
      break;
    before += double(weights[other]);
  }
  how[choose_token::position] = float((before + double(weights[id]) / 2) / total());
}

OpDef::Sample sample(SampleSource &s, int64_t vocab) {
  const Type logits(DType::f32, {s.extent(5), s.maybePadded(vocab)}),
      how(DType::f32, {logits.dim(0), choose_token::columns});
  Tensor l(logits), h(how);
  for (double &x : l.data)
    x = double(s.between(-32, 16)) / 4;  // exact in 16 bits, and often equal
  for (int64_t row = 0; row < logits.dim(0); ++row) {
    double *to = h.data.data() + row * choose_token::columns, *x = l.data.data() + row * vocab;
    const int kind = int(s.between(0, 9));
    if (kind == 0)
      std::fill(x, x + vocab, std::nan(""));
    if (kind <= 2)
      x[s.between(0, vocab - 1)] = std::nan("");
    if (kind == 3)
      x[s.between(0, vocab - 1)] = std::numeric_limits<double>::infinity();
    if (kind == 4)
      std::fill(x, x + vocab, -std::numeric_limits<double>::infinity());
    if (kind == 5)
      x[s.between(0, vocab - 1)] = -0.0, x[s.between(0, vocab - 1)] = 0;
    to[choose_token::temperature] = double(s.between(0, 4)) / 2;
    to[choose_token::topK] = s.between(0, 2) ? double(s.between(1, vocab)) : 0;
    to[choose_token::topP] = 1;
    to[choose_token::tokens] = s.between(0, 2) ? 0 : double(s.between(1, vocab));
    if (to[choose_token::temperature] > 0)
      aim(s, llvm::ArrayRef(x, vocab), to, s.between(0, 1));
  }
  return {.operandTypes = {logits, how}, .operandValues = {std::move(l), std::move(h)}};
}

}  // namespace

OpDef define_choose_token() {
  return {
      .kind = OpKind::choose_token,
      .name = "choose_token",
      .summary =
          "an id for each row: the likeliest, or by the columns temperature, top_k, top_p, tokens, position of how",
      .shapes = "logits [B,V], how f32[B,5] -> id i32[B]",
      .operands = {{"logits"}, {"how"}},
      .attrs = {},
      .results = {"id"},
      .fusion = FusionKind::choice,
      .autocast = NotApplicable{"an integer, chosen by f32 whatever the logits are"},
      .tokens = NotApplicable{"it follows the last token that a sequence has"},
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &logits = op.operand(0)->type;
            if (!expectFloat(op, 0, error))
              return false;
            if (logits.rank() != 2 || logits.dim(1) > mostTokens)
              return fail(error, "logits must be [B,V] with V up to {}: {}", mostTokens, logits.str());
            Type how(DType::f32, {logits.dims[0], choose_token::columns});
            if (!expectType(op, 1, how, "five numbers for each row", error))
              return false;
            types = {rowsOf(logits).withDType(DType::i32)};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"a choice has no gradient"},
      .cost = [](const Op &op) { return streamCost(op, 4); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor id(op.result()->type);
        const int64_t vocab = in[0]->type.dim(1);
        for (int64_t row = 0; row < int64_t(id.data.size()); ++row)
          id.data[row] = double(chosen(llvm::ArrayRef(in[0]->data).slice(row * vocab, vocab),
                                       howOf(in[1]->data.data() + row * choose_token::columns, vocab)));
        return {std::move(id)};
      },
      .lower = NotApplicable{"the choice recipe builds the loops around it"},
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (int i = 0; i < 6; ++i)
          samples.push_back(sample(s, s.extent(129)));
        samples.push_back(sample(s, choose_token::slots + s.extent(129)));
        return samples;
      },
  };
}

}  // namespace gptc
