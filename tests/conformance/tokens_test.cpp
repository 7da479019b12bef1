// What definitions say of tokens and indices holds: a part of the tokens gives that part of the results, a sum over
// tokens can be continued, and indices are integers below their count.
#include "one_op.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <set>

namespace gptc::conformance {
namespace {

using TokenRules = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, TokenRules, ::testing::ValuesIn(allKinds()), kindName);

/// Positions start .. start+size of a dimension.
Tensor partOf(const Tensor &x, unsigned dim, int64_t start, int64_t size) {
  Tensor part(x.type);
  part.type.dims[dim] = Dim(size);
  part.data.clear();
  const int64_t inner = x.type.slice(dim + 1, x.type.rank()).elements(), n = x.type.dim(dim);
  for (int64_t i = 0; i < int64_t(x.data.size()); ++i)
    if (int64_t at = i / inner % n; at >= start && at < start + size)
      part.data.push_back(x.data[size_t(i)]);
  return part;
}

/// The op once more, on other operands.
std::vector<Tensor> again(const OneOp &one, std::vector<Tensor> inputs, std::vector<Type> resultTypes = {}) {
  OpDef::Sample s{.attrs = one.op->attrs, .resultTypes = std::move(resultTypes), .operandValues = std::move(inputs)};
  for (const Tensor &t : s.operandValues)
    s.operandTypes.push_back(t.type);
  return makeOneOp(one.op->def(), s, 0).reference();
}

/// Whether operand `i` is given in part, by the op's definition.
bool takesPart(const Op &op, unsigned i) {
  const Tokens &tokens = op.def().tokens;
  return tokens == Tokens::rows ? llvm::is_contained(tokens.parts, i)
                                : op.operand(i)->type.sameShape(op.result()->type);
}

/// Whether a sample has tokens: its second dimension, which all operands given in part and all results share.
bool hasTokens(const Op &op, int64_t &tokens) {
  const bool rows = op.def().tokens == Tokens::rows;
  tokens = 0;
  auto shares = [&](const Type &t, unsigned least) {
    const bool first = tokens == 0;
    if (t.rank() >= least && first)
      tokens = t.dim(1);
    return t.rank() >= least && t.dim(1) == tokens;
  };
  for (unsigned i = 0; i < op.numOperands(); ++i) {
    const Type &t = op.operand(i)->type;
    if (takesPart(op, i) ? !shares(t, rows && isFloat(t.dtype) ? 3 : 2) : !rows && t.rank() > 1)
      return false;
  }
  for (unsigned i = 0; i < op.numResults(); ++i)
    if (const Type &t = op.result(i)->type; !t.isScalar() && !shares(t, 2))
      return false;
  return tokens > 1;
}

TEST_P(TokenRules, APartOfTheTokensGivesThatPart) {
  const Tokens &tokens = def().tokens;
  ASSERT_TRUE(tokens || std::string(tokens.why()).size() > 10) << "tokens are left out without a reason";
  if (!tokens || tokens == Tokens::sequences)
    return;
  int tried = 0;
  auto check = [&](OneOp &one, unsigned) {
    int64_t T;
    if ((tokens == Tokens::rows && !tokens.byRows(*one.op)) || !hasTokens(*one.op, T))
      return;
    ++tried;
    const std::vector<Tensor> whole = one.reference();
    const bool continues = summedTokenDims(*one.op) && one.op->numOperands() > def().requiredOperands();
    double sum = 0;
    for (auto [start, size] : {std::pair(int64_t(0), T / 2), std::pair(T / 2, T - T / 2)}) {
      std::vector<Tensor> inputs = one.inputs;
      for (unsigned i = 0; i < inputs.size(); ++i)
        if (takesPart(*one.op, i))
          inputs[i] = partOf(inputs[i], 1, start, size);
      if (def().operandIndex("index0"))  // where the part begins
        inputs.push_back(
            Tensor::scalar(double(start * inputs[0].type.slice(2, inputs[0].type.rank()).elements()), DType::i64));
      std::vector<Type> types;
      for (const Tensor &t : whole)
        types.push_back(t.type.isScalar() ? t.type : partOf(t, 1, start, size).type);
      if (continues && start > 0)
        inputs.back().data[0] = sum;
      const std::vector<Tensor> part = again(one, inputs, types);
      for (size_t i = 0; i < whole.size(); ++i)
        if (!whole[i].type.isScalar()) {
          EXPECT_EQ(part[i].data, partOf(whole[i], 1, start, size).data) << "result " << i << ", tokens from " << start;
        }
      if (whole[0].type.isScalar())
        sum = continues ? part[0].data[0] : sum + part[0].data[0];
    }
    if (whole[0].type.isScalar()) {
      EXPECT_TRUE(summedTokenDims(*one.op));
      EXPECT_NEAR(sum, whole[0].data[0], 1e-9 * (1 + std::fabs(whole[0].data[0])));
    }
  };
  forEachSample(def(), check);
  if (GetParam() == OpKind::matmul) {  // whose samples of three dimensions continue sums
    OneOp one = makeOneOp(def(), {.operandTypes = {Type(DType::f32, {2, 6, 5}), Type(DType::f32, {5, 7})}}, 1);
    check(one, 1);
  }
  EXPECT_TRUE(tried || def().operands.empty()) << "no sample has tokens";
}

TEST_P(TokenRules, ASumOverTokensGoesOn) {
  if (!def().tokenSum) {
    EXPECT_GT(std::string(def().tokenSum.why()).size(), 10u) << "tokenSum is left out without a reason";
    return;
  }
  int tried = 0;
  forEachSample(def(), [&](OneOp &one, unsigned) {
    const unsigned required = def().requiredOperands();
    const int64_t n = one.op->operand(0)->type.dim(0);
    const bool turned = one.op->attrs.getBool("tb");  // what is summed over is not the operand's first dimension
    if (!summedTokenDims(*one.op) || one.op->numOperands() > required || n < 2 || turned)
      return;
    ++tried;
    std::vector<Tensor> first, second;
    for (const Tensor &x : one.inputs) {
      ASSERT_EQ(x.type.dim(0), n);
      first.push_back(partOf(x, 0, 0, n / 2));
      second.push_back(partOf(x, 0, n / 2, n - n / 2));
    }
    for (Tensor &t : again(one, first))
      second.push_back(std::move(t));
    const std::vector<Tensor> whole = one.reference(), sum = again(one, second);
    for (size_t i = 0; i < whole.size(); ++i)
      for (size_t e = 0; e < whole[i].data.size(); ++e)
        ASSERT_NEAR(sum[i].data[e], whole[i].data[e], 1e-9 * (1 + std::fabs(whole[i].data[e])));
  });
  EXPECT_GT(tried, 0) << "no sample begins a sum";
}

TEST_P(TokenRules, IndicesAreBelowTheirCount) {
  const Indices &indices = def().indices;
  ASSERT_TRUE(indices || std::string(indices.why()).size() > 10) << "indices are left out without a reason";
  if (!indices)
    return;
  std::set<double> seen;
  forEachSample(def(), [&](OneOp &one, unsigned) {
    ASSERT_TRUE(isInt(one.op->operand(indices.operand)->type.dtype));
    const int64_t count = indices.count(*one.op);
    int64_t below = 0;
    for (double v : one.inputs[indices.operand].data)
      below += v < double(count);
    EXPECT_GT(below + int64_t(one.inputs[indices.operand].type.isScalar()), 0) << "all beyond the " << count;
    seen.insert(double(count));
  });
  EXPECT_TRUE(seen.size() > 1 || numSeeds() < 3) << "the count does not follow from the shapes";
}

}  // namespace
}  // namespace gptc::conformance
