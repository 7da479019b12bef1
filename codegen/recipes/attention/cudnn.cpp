#include "codegen/cudnn_attention.h"

#include "codegen/recipes/attention/attention.h"
#include "ir/ops/op_support.h"

namespace gptc {

int64_t CudnnAttention::workspace() const {
  int64_t bytes = 1 << 20;
  if (backward) {
    const int64_t rows = roundUp(tokens, 128), all = batch / batchCuts * (heads / headCuts);
    bytes += all * rows * rows * 2 + all * rows * 4 + all * rows * size * 4;
    if (heads != kvHeads)
      bytes += 2 * all * rows * size * 4;
  }
  return bytes;
}

/// The least number of calls that keep to mostWorkspace: the batch is cut first. False if there is none.
static bool cut(CudnnAttention &a) {
  // Statistics, f32, of a call must begin at a multiple of 16 bytes, and cuDNN's slopes are those of all heads.
  const bool mayCutBatch = a.heads * a.tokens % 4 == 0, mayCutHeads = a.slopes.empty() && a.tokens % 4 == 0;
  auto fits = [&] { return a.workspace() <= CudnnAttention::mostWorkspace; };
  auto next = [&](int64_t &cuts, int64_t of) {
    do
      ++cuts;
    while (of % cuts != 0);
  };
  while (!fits())
    if (a.batchCuts < a.batch && mayCutBatch)
      next(a.batchCuts, a.batch);
    else if (a.headCuts < a.kvHeads && mayCutHeads)
      next(a.headCuts, a.kvHeads);
    else
      return false;
  return true;
}

std::optional<CudnnAttention> matchCudnnAttention(const Op &fused) {
  CudnnAttention a;
  const Op *op = attention::onlyOp(fused, OpKind::attention);
  if (!op) {
    op = attention::onlyOp(fused, OpKind::attention_grad);
    a.backward = true;
  }
  if (!op)
    return std::nullopt;
  const unsigned first = a.backward ? 1 : 0;
  const attention::Shape shape = attention::shapeOf(*op, first);
  a.dtype = op->operand(first)->type.dtype;
  if ((a.dtype != DType::bf16 && a.dtype != DType::f16) || shape.size % 8 != 0 || shape.size > 128 ||
      shape.tokens < 2 || (shape.alibi && (!shape.causal || shape.ofHeads > shape.heads)) || shape.p != 0)
    return std::nullopt;
  if (shape.softcap != 0 || shape.window)  // the graph describes neither
    return std::nullopt;
  a.causal = shape.causal;
  a.batch = shape.batch, a.tokens = shape.tokens, a.heads = shape.heads, a.kvHeads = shape.kvHeads, a.size = shape.size;
  a.scale = shape.scale();
  for (int64_t h = 0; shape.alibi && h < shape.heads; ++h)
    a.slopes.push_back(float(ops::alibiSlope(h, shape.heads)));
  const unsigned results = fused.numOperands();
  a.qkv = op->operand(first)->index;
  if (a.backward) {
    a.dout = op->operand(0)->index;
    a.o = op->operand(2)->index;
    a.lse = op->operand(3)->index;
    a.dqkv = results;
  } else {
    a.o = results;
    a.lse = results + 1;
  }
  return cut(a) ? std::optional(a) : std::nullopt;
}

}  // namespace gptc
