// Table look-up and its gradient. An id outside [0, V) is clamped: data loading checks ids, but no id may ever access
// memory outside of the table.
#include "ir/ops/op_support.h"

#include <algorithm>

namespace gptc {
using namespace ops;
using kir::Expr;

namespace {

int64_t clampId(double id, int64_t v) { return int64_t(std::min(std::max(id, 0.0), double(v - 1))); }

Type idsOf(SampleSource &s, unsigned rank) {
  Type ids(rank == 2 ? DType::i32 : DType::i64);
  for (unsigned i = 0; i < rank; ++i)
    ids.dims.push_back(s.extent(9));
  return ids;
}

}  // namespace

OpDef define_embedding() {
  return {
      .kind = OpKind::embedding,
      .name = "embedding",
      .summary = "row ids[..] of a table; ids are clamped to it",
      .shapes = "table [V,C], ids [B,T] -> y [B,T,C]",
      .operands = {{"table"}, {"ids"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::gather,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {1}},
      .tokenSum = noTokenSum,
      .indices = {1, [](const Op &op) { return op.operand(0)->type.dim(0); }},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &table = op.operand(0)->type, &ids = op.operand(1)->type;
            if (!expectFloat(op, 0, error) || !expectIndices(op, 1, error))
              return false;
            if (table.rank() != 2)
              return fail(error, "the table must have two dimensions: {}", table.str());
            Type y = ids.withDType(table.dtype);
            y.dims.push_back(table.dims[1]);
            if (std::string why = y.invalid(); !why.empty())
              return fail(error, "the result would have {}", why);
            types = {y};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        const Dim &v = c.op.operand(0)->type.dims[0];
        AttrMap at = attrs({{"vocab", v.logical}});
        if (v.padded != v.logical)
          at.set("padded", v.padded);
        return {c.b.value(OpKind::embedding_grad, {c.dresults[0], c.op.operand(1)}, std::move(at)), nullptr};
      },
      .cost =
          [](const Op &op) {
            Cost c = streamCost(op, 0);
            c.bytesRead = c.bytesWritten + double(op.operand(1)->type.bytes());
            return c;
          },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        int64_t v = in[0]->type.dim(0), n = in[0]->type.dim(1);
        for (int64_t r = 0; r < int64_t(in[1]->data.size()); ++r)
          for (int64_t c = 0; c < n; ++c)
            y.data[r * n + c] = in[0]->data[clampId(in[1]->data[r], v) * n + c];
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr id = kir::cast(DType::i64, c.rowOperand(1));
        id = kir::min(kir::max(id, kir::imm(0)), kir::imm(c.op.operand(0)->type.dim(0) - 1));
        Expr at[] = {id, c.index().back()};
        return {c.operandAt(0, at)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (unsigned rank : {2u, 1u, 0u}) {
          Type table(DType::f32, {s.maybePadded(s.extent()), s.maybePadded(s.extent(129))}), ids = idsOf(s, rank);
          samples.push_back({.operandTypes = {table, ids},
                             .operandValues = {s.normals(table), s.integers(ids, -2, table.dim(0) + 1)}});
        }
        return samples;
      },
  };
}

OpDef define_embedding_grad() {
  return {
      .kind = OpKind::embedding_grad,
      .name = "embedding_grad",
      .summary = "row v: the sum of dy over the positions whose id is v, in their order, continuing init",
      .shapes = "dy [B,T,C], ids [B,T][, init [V,C]] -> dtable [V,C]",
      .operands = {{"dy"}, {"ids"}, {"init", true}},
      .attrs = {{AttrSpec::Int, "vocab", true, int64_t(1)}, {AttrSpec::Int, "padded", false, int64_t(0)}},
      .results = {"dtable"},
      .fusion = FusionKind::scatter,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = leadingDims,
      .indices = {1, [](const Op &op) { return op.result()->type.dim(0); }},
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &dy = op.operand(0)->type, &ids = op.operand(1)->type;
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error) || !expectIndices(op, 1, error) ||
                !expectType(op, 1, rowsOf(dy).withDType(ids.dtype), "one id per row of dy", error))
              return false;
            int64_t vocab = op.attrs.getInt("vocab"), padded = op.attrs.getInt("padded", vocab);
            if (vocab < 1 || vocab > maxElements || padded < vocab || padded > maxElements)
              return fail(error, "vocab = {}, padded = {}: no extent of a table", vocab, padded);
            Type table(dy.dtype, {Dim(vocab, padded), dy.dims.back()});
            if (std::string why = table.invalid(); !why.empty())
              return fail(error, "the result would have {}", why);
            if (op.numOperands() > 2 && !expectType(op, 2, table, "the type of the result", error))
              return false;
            types = {table};
            return true;
          },
      .check = NotApplicable{"types and attributes are checked when the result type is inferred"},
      .grad = NotApplicable{"a gradient itself; second derivatives are not taken"},
      .cost =
          [](const Op &op) {
            Cost c = streamCost(op, 0);
            c.flops = double(op.operand(0)->type.elements());
            return c;
          },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor d = in.size() > 2 ? *in[2] : Tensor(op.result()->type);
        int64_t v = d.type.dim(0), n = d.type.dim(1);
        for (int64_t r = 0; r < int64_t(in[1]->data.size()); ++r)
          for (int64_t c = 0; c < n; ++c)
            d.data[clampId(in[1]->data[r], v) * n + c] += in[0]->data[r * n + c];
        return {std::move(d)};
      },
      .lower = NotApplicable{"the scatter recipe builds the loops around it"},
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (bool init : {false, true}) {
          Dim vocab = s.maybePadded(s.extent()), columns = s.maybePadded(s.extent(65));
          Type ids = idsOf(s, 1 + unsigned(init)), dy = ids.withDType(DType::f32), table(DType::f32, {vocab, columns});
          dy.dims.push_back(columns);
          OpDef::Sample p{.operandTypes = {dy, ids},
                          .attrs = attrs({{"vocab", vocab.logical}, {"padded", vocab.padded}}),
                          .operandValues = {s.normals(dy), s.integers(ids, -1, vocab.logical)}};
          if (init) {
            p.operandTypes.push_back(table);
            p.operandValues.push_back(s.normals(table));
          }
          samples.push_back(std::move(p));
        }
        return samples;
      },
  };
}

}  // namespace gptc
