// An attention group, forward or backward, as a call of cuDNN: o = softmax(q k^T / sqrt(D)) v with its statistics, or
// the gradients of q, k and v.
//
// Supported groups have
//   - bf16 or f16 and heads of 8 to 128 elements, a multiple of 8, so rows of whole 16 bytes. Every GPU from sm_80 on
//     supports these sizes;
//   - any number of query heads per key head, with or without a causal mask, and sequences of at least two tokens.
// Not supported are
//   - dropout: this compiler draws from seed, step, stream and position, and cuDNN from a generator of its own;
//   - ALiBi without a causal mask: cuDNN's bias is the slope times the signed distance;
//   - ALiBi on a subset of the heads: which heads these are is known only at run time;
//   - a backward pass that would need more than mostWorkspace for a single sequence and head of keys.
//
// A backward pass that would need more than mostWorkspace becomes several calls behind each other, each for some of the
// sequences, or for some of the heads of one. They share the workspace.
//
// Both kinds of kernel use the same statistics: lse_i = max_j s_ij + ln sum_j exp(s_ij - max_j s_ij) of the scaled
// scores, f32[B,H,T]. So one pass may call the library while the other one is generated.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct CudnnAttention {
  bool backward = false;
  bool causal = true;
  DType dtype = DType::bf16;  // of q, k, v, o and their gradients
  int64_t batch = 0, tokens = 0, heads = 0, kvHeads = 0, size = 0;
  double scale = 1;
  std::vector<float> slopes;  // of ALiBi, one per query head; empty without ALiBi
  /// Into how many calls sequences are cut, and the heads of each: divisors of `batch` and of `kvHeads`. Heads are cut
  /// only where a call has one sequence.
  int64_t batchCuts = 1, headCuts = 1;
  // Parameters of the group's kernel: operands come first, then results.
  unsigned qkv = 0, o = 0, lse = 0;
  unsigned dout = 0, dqkv = 0;  // backward only

  bool operator==(const CudnnAttention &) const = default;
  int64_t width() const { return (heads + 2 * kvHeads) * size; }  // elements of a row of qkv
  /// Bytes that a plan reserves for a call. Planning needs no GPU and so cannot ask the library: this is an upper
  /// bound from the description of its algorithms. If the library needs more, it is not called.
  /// Forward: 1 MiB for counters of tiles. Backward, with sums in a fixed order (cudnn-frontend, `use_dp_workspace`),
  /// the same 1 MiB and
  ///   - the gradient of all scores in 16 bits, with rows and columns rounded up to tiles of 128;
  ///   - delta = do . o, one f32 per row and head;
  ///   - on GPUs that order sums otherwise (sm_100) dq in f32 instead, with rows rounded up to 128;
  ///   - dk and dv of each query head in f32, if heads share keys.
  int64_t workspace() const;
  static constexpr int64_t mostWorkspace = int64_t(2) << 30;
};

/// The call that computes the group, or nullopt if there is none (codegen/recipes/attention/cudnn.cpp). `whyNot`: "" or
/// the reason for that.
std::optional<CudnnAttention> matchCudnnAttention(const Op &fused, std::string *whyNot = nullptr);

}  // namespace gptc
