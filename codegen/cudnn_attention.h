// An attention group, forward or backward, as one call of cuDNN: o = softmax(q k^T / sqrt(D)) v with its statistics, or
// the gradients of q, k and v.
//
// Taken are groups of
//   - bf16 or f16, heads of 8 to 128 elements, a multiple of 8: rows of 16 bytes, and what every GPU from sm_80 on has;
//   - any number of query heads per key head, causal or not, sequences of two tokens and more.
// Not taken are
//   - dropout: ours is a function of seed, step, stream and place, cuDNN's is its own;
//   - ALiBi without a causal mask: cuDNN's bias is the slope times the signed distance; or of some of all heads, as
//     which these are is known only where it runs;
//   - a backward pass that would need more than mostWorkspace.
//
// The statistics are ours: lse_i = max_j s_ij + ln sum_j exp(s_ij - max_j s_ij) of the scaled scores, f32[B,H,T]. So
// either pass may be the library's and the other one generated.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <vector>

namespace gptc {

struct CudnnAttention {
  bool backward = false;
  bool causal = true;
  DType dtype = DType::bf16;  // of q, k, v, o and their gradients
  int64_t batch = 0, tokens = 0, heads = 0, kvHeads = 0, size = 0;
  double scale = 1;
  std::vector<float> slopes;  // ALiBi's, of each query head; none without
  // Parameters of the group's kernel: its operands, then its results.
  unsigned qkv = 0, o = 0, lse = 0;
  unsigned dout = 0, dqkv = 0;  // backward only

  bool operator==(const CudnnAttention &) const = default;
  int64_t width() const { return (heads + 2 * kvHeads) * size; }  // elements of a row of qkv
  /// Bytes that are planned for the call, made without asking the library, which is asked only where a GPU is. A bound
  /// of what the library needs by its own description of its algorithms; where it needs more, it is not called.
  /// Forward: counters of tiles, 1 MiB. Backward, for sums of one order (cudnn-frontend, `use_dp_workspace`), beside as
  /// much:
  ///   - the gradient of all scores in 16 bits, rows and columns in tiles of 128;
  ///   - delta = do . o, one f32 for each row and head;
  ///   - where the GPU (sm_100) orders sums otherwise, dq in f32 instead, in tiles of 128;
  ///   - dk and dv of each query head in f32 where heads share keys.
  int64_t workspace() const;
  static constexpr int64_t mostWorkspace = int64_t(2) << 30;
};

/// nullopt where the group is no such call (codegen/recipes/attention/cudnn.cpp).
std::optional<CudnnAttention> matchCudnnAttention(const Op &fused);

}  // namespace gptc
