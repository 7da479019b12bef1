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

/// Why cuDNN does not take an attention op of this shape; "" if it does.
static std::string refusalOf(const attention::Shape &shape, DType dtype) {
  if (dtype != DType::bf16 && dtype != DType::f16)
    return fmt::format("{}, where cuDNN takes 16 bits", nameOf(dtype));
  if (shape.size % 8 != 0 || shape.size > 128)
    return fmt::format("heads of {} elements, where cuDNN takes multiples of 8 up to 128", shape.size);
  if (shape.tokens < 2)
    return "sequences of one token";
  if (shape.p != 0)
    return "dropout of probabilities, which cuDNN draws by a generator of its own";
  if (shape.softcap != 0)
    return "soft-capped scores";
  if (shape.window)
    return "a sliding window";
  if (shape.alibi && !shape.causal)
    return "ALiBi without a causal mask";
  if (shape.alibi && shape.ofHeads > shape.heads)
    return "ALiBi on a part of the heads";
  return "";
}

std::optional<CudnnAttention> matchCudnnAttention(const Op &fused, std::string *whyNot) {
  CudnnAttention a;
  const Op *op = attention::onlyOp(fused, OpKind::attention);
  if (!op) {
    op = attention::onlyOp(fused, OpKind::attention_grad);
    a.backward = true;
  }
  std::string unused, &why = whyNot ? *whyNot : unused;
  why = "";
  if (!op) {
    why = "other ops in the group";
    return std::nullopt;
  }
  const unsigned first = a.backward ? 1 : 0;
  const attention::Shape shape = attention::shapeOf(*op, first);
  a.dtype = op->operand(first)->type.dtype;
  why = op->attrs.getBool("documents") ? "documents" : refusalOf(shape, a.dtype);
  if (!why.empty())
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
  if (cut(a))
    return a;
  why = fmt::format(
      "a backward pass of a sequence and head of keys takes {:.1f} GiB of workspace, where {:.0f} are allowed",
      double(a.workspace()) / (1 << 30), double(CudnnAttention::mostWorkspace) / (1 << 30));
  return std::nullopt;
}

}  // namespace gptc
