// Cross-entropy over the last dimension, forward and backward. A row with a target outside [0, V) has no loss; -1 is
// the usual target for that.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

bool expectLogits(const Op &op, std::string &error) {
  const Type &logits = op.operand(0)->type;
  return expectFloat(op, 0, error) && expectRank(op, 0, 1, error) && expectIndices(op, 1, error) &&
         expectType(op, 1, rowsOf(logits).withDType(op.operand(1)->type.dtype), "one target per row of the logits",
                    error);
}

int64_t classesOf(const Op &op) { return op.operand(0)->type.dim(-1); }

Type perRow(const Type &logits) { return rowsOf(logits).withDType(statDType(logits.dtype)); }

/// The target of the current row as an i64, and whether the row has a loss.
struct Target {
  Expr index, valid;
  Target(LowerCtx &c) {
    int64_t v = c.op.operand(0)->type.dim(-1);
    index = kir::cast(DType::i64, c.rowOperand(1));
    valid = kir::binary(BinaryOp::and_, kir::binary(BinaryOp::ge, index, kir::imm(0)), kir::lt(index, kir::imm(v)));
  }
};

bool carriesLoss(double target, int64_t v) { return target >= 0 && target < double(v); }

OpDef::Sample sampleOf(SampleSource &s, const Type &logits, DType targets) {
  Type rows = rowsOf(logits).withDType(targets);
  int64_t v = logits.dim(-1);
  OpDef::Sample p{.operandTypes = {logits, rows}, .operandValues = {s.normals(logits), s.integers(rows, -1, v - 1)}};
  // No loss in the first row; out of range in the last, where an unguarded load would leave the buffer.
  std::vector<double> &t = p.operandValues[1].data;
  t.back() = double(t.size() > 2 ? v : v - 1);
  if (t.size() > 1)
    t.front() = -1;
  return p;
}

std::vector<OpDef::Sample> samplesForward(unsigned seed) {
  SampleSource s(seed);
  Type logits(DType::f32, {s.extent(4), s.extent(5), s.maybePadded(s.extent(129))});
  return {sampleOf(s, logits, DType::i32), sampleOf(s, logits.slice(1, 3), DType::i64)};
}

}  // namespace

OpDef define_cross_entropy() {
  return {
      .kind = OpKind::cross_entropy,
      .name = "cross_entropy",
      .summary = "per row: log of the sum of exp(logits), less the logit of the target; 0 where the target is -1",
      .shapes = "logits [..,V], targets [..] -> nll [..], lse [..]",
      .operands = {{"logits"}, {"targets"}},
      .attrs = {},
      .results = {"nll", "lse"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {0, 1}},
      .tokenSum = noTokenSum,
      .indices = {1, classesOf},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectLogits(op, error))
              return false;
            types.assign(2, perRow(op.operand(0)->type));
            return true;
          },
      .check = NotApplicable{"types say all; what a target may be is seen only when it is read"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        expectNoGradient(c, 1);
        return {
            c.b.value(OpKind::cross_entropy_grad, {c.op.operand(0), c.op.operand(1), c.op.result(1), c.dresults[0]}),
            nullptr};
      },
      .cost = [](const Op &op) { return streamCost(op, 13); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor nll(op.result(0)->type), lse(op.result(1)->type);
        int64_t v = in[0]->type.dim(-1);
        for (int64_t r = 0; r < int64_t(nll.data.size()); ++r) {
          const double *x = &in[0]->data[r * v];
          double most = *std::max_element(x, x + v), sum = 0, target = in[1]->data[r];
          for (int64_t c = 0; c < v; ++c)
            sum += std::exp(x[c] - most);
          lse.data[r] = most + std::log(sum);
          nll.data[r] = carriesLoss(target, v) ? lse.data[r] - x[int64_t(target)] : 0.0;
        }
        return {std::move(nll), std::move(lse)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr x = c.operand(0), most = c.rowMax(x);
        Expr lse = most + kir::unary(UnaryOp::log, c.rowSum(c.rowExp(x - most)));
        Target t(c);
        std::vector<Expr> at = c.index();
        // A row without a loss loads element 0 and ignores it, so that every load is in bounds.
        at.back() = kir::select(t.valid, t.index, kir::imm(0));
        return {kir::select(t.valid, lse - c.operandAt(0, at), c.f(0)), lse};
      },
      .samples = samplesForward,
  };
}

OpDef define_cross_entropy_grad() {
  return {
      .kind = OpKind::cross_entropy_grad,
      .name = "cross_entropy_grad",
      .summary = "(softmax - onehot(target)) * dnll; 0 where the target is -1",
      .shapes = "logits [..,V], targets [..], lse [..], dnll [..] -> dlogits [..,V]",
      .operands = {{"logits"}, {"targets"}, {"lse"}, {"dnll"}},
      .attrs = {},
      .results = {"dlogits"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = noTokenSum,
      .indices = {1, classesOf},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &logits = op.operand(0)->type;
            if (!expectLogits(op, error))
              return false;
            for (unsigned i : {2u, 3u})
              if (!expectType(op, i, perRow(logits), "one element per row of the logits", error))
                return false;
            types = {logits};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"a gradient itself; second derivatives are not taken"},
      .cost = [](const Op &op) { return streamCost(op, 13); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor d(op.result()->type);
        int64_t v = d.type.dim(-1);
        for (int64_t r = 0; r < d.type.rows(); ++r)
          for (int64_t c = 0; c < v; ++c) {
            double target = in[1]->data[r];
            double p = std::exp(in[0]->data[r * v + c] - in[2]->data[r]);
            if (carriesLoss(target, v))
              d.data[r * v + c] = (p - (double(c) == target ? 1.0 : 0.0)) * in[3]->data[r];
          }
        return {std::move(d)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Target t(c);
        Expr p = c.rowExp(c.operand(0) - c.rowOperand(2));
        // Columns are compared as i32 if they fit: twice the lanes.
        DType narrow = c.op.operand(0)->type.dim(-1) <= INT32_MAX ? DType::i32 : DType::i64;
        Expr hit = kir::binary(BinaryOp::eq, kir::cast(narrow, c.index().back()), kir::cast(narrow, t.index));
        Expr d = (p - kir::select(hit, c.f(1), c.f(0))) * c.rowOperand(3);
        return {kir::select(t.valid, d, c.f(0))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type logits(DType::f32, {s.extent(4), s.extent(5), s.maybePadded(s.extent(129))});
        OpDef::Sample p = sampleOf(s, logits, seed % 2 ? DType::i64 : DType::i32);
        for (int i = 0; i < 2; ++i) {
          p.operandTypes.push_back(rowsOf(logits));
          p.operandValues.push_back(s.uniforms(rowsOf(logits), 1.0, 4.0));
        }
        return {p};
      },
  };
}

}  // namespace gptc
