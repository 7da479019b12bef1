#include "codegen/cudnn_attention.h"

#include "codegen/recipes/attention/attention.h"
#include "ir/ops/op_support.h"

namespace gptc {

int64_t CudnnAttention::workspace() const {
  int64_t bytes = 1 << 20;
  if (backward) {
    const int64_t rows = roundUp(tokens, 128), all = batch * heads;
    bytes += all * rows * rows * 2 + all * rows * 4 + all * rows * size * 4;
    if (heads != kvHeads)
      bytes += 2 * all * rows * size * 4;
  }
  return bytes;
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
  if (a.workspace() > CudnnAttention::mostWorkspace)
    return std::nullopt;
  return a;
}

}  // namespace gptc
