// Builds the graph of a transformer (GPT-2, Radford et al. 2019) from a configuration, before any pass: phase "import".
// docs/model.md describes the effect of each key of [model].
//
//   x = drop(norm?(embedding_scale wte[tok] + wpe[pos] + wtt[type]))
//   a(x) = drop(ln_1_out?(c_proj(attention(rope?(qk_norm?(c_attn x))))))
//   m(x) = drop(ln_2_out?(mlp.c_proj h)),  h = act(mlp.c_fc x), or act(mlp.c_gate x) * mlp.c_fc x
//   per layer, by norm_position:
//     pre, both      x = x + a(ln_1 x);    x = x + m(ln_2 x)       both: a and m end with a norm, ln_1_out and ln_2_out
//     output         x = x + a(x);         x = x + m(x)            and so here
//     post           x = ln_1(x + a(x));   x = ln_2(x + m(x))      without ln_f
//     or, with parallel_residual, x = x + a(ln_1 x) + m(ln_2 x); with shared_norm ln_2 is ln_1
//     without first_norm layer 0 has no ln_1: a(x) in place of a(ln_1 x)
//   Heads have D = head_dim elements. Gains of norms that add 1 to them begin at 0.
//   logits = cap?(lm_head(transform?(ln_f x)) + lm_head.bias?),  transform(x) = head.norm(act(head.dense x))
//
// Positions: the table wpe; rotated queries and keys (rope: one table of angles per function, shared by the layers;
// with window_rope_theta another one, of the layers with a window); a bias in attention (alibi); or none. An encoder
// (causal = false) has no cache and hence no @decode and @prefill; its targets are those of the masked-token loss
// (runtime/data/data.h), and a window reaches to both sides.
//
// Functions (B = micro_batch, T = block_size, V = vocab_size, P = prefill length, all static):
//   @forward(%x: i32[B,T], %y: i32[B,T], %seq0: i64[]) -> f32[]
//       Sum of the negative log likelihoods, with dropout; targets of -1 do not count. seq0: number of the
//       first sequence within its step.
//   @eval(%x: i32[B,T], %y: i32[B,T]) -> f32[B,T]
//       The negative log likelihood of each target, not summed, without dropout.
//   @decode(%tok: i32[1,1], %pos: i64[], %how: f32[1,5]) -> f32[1,V], i32[1]
//       Logits after one more token at position pos < T.
//   @prefill(%tok: i32[1,P], %pos: i64[], %last: i64[], %how: f32[1,5]) -> f32[1,V], i32[1]
//       P tokens at positions pos.., logits after token `last` of them.
//       P = min(64, T); requires pos + P <= T. A prompt of n >= P tokens is cut at 0, P, 2P, ..., and the last piece
//       begins at n - P: writing a token twice leaves the same cache. A prompt of n < P tokens is padded with arbitrary
//       tokens, with last = n - 1: @decode overwrites the entries past the end before any token attends to them. If
//       P = 1, there is no %last.
// With BuildOptions::slots = S > 0 there are these instead, for any tokens of up to S sequences:
//   @step_N(%tok: i32[1,N], %places: i64[N,2][, %rows: i64[R]], %how: f32[N or R,5]) -> f32[N or R,V], i32[N or R]
//       N = 1, 2, 4, ... up to R = S, and P. Token i joins slot places[i,0] at position places[i,1] < T, each at a
//       place of its own, and sees what its slot holds up to there, tokens of this call included; one at a negative
//       position is none. Logits after each token, or where N > R after the tokens of %rows.
//   @score(%tok: i32[1,P], %places: i64[P,2]) -> f32[P,V]
//       Logits after each token.
// With BuildOptions::embed there are these instead, without a cache:
//   @embed_N(%tok: i32[1,N], %positions: i64[N], %documents: i64[1,N,2]) -> f32[N,C]
//       N = 16, 32, ... up to the least that is at least T. What the last norm gives for each token of texts that
//       stand one after the other: token i is at positions[i] < T of its text, which takes tokens documents[0,i,0] to
//       documents[0,i,1] - 1. A token that is none is a text of its own. There are no parameters of a head.
// and with BuildOptions::fills, of an encoder that learns tokens, its head:
//   @fill(%x: f32[16,C]) -> f32[16,V]
//       Logits of the tokens in 16 places, by what @embed_N gives for [MASK] there.
// and with BuildOptions::labels = L > 0 that of a classifier:
//   @labels(%x: f32[16,C]) -> f32[16,L]
//       Logits of the labels of 16 texts by a vector of each. In BERT's form (Devlin et al. 2019) that of the first
//       token: classifier(tanh(pooler.dense x)). In ModernBERT's (Warner et al. 2024), without norms behind the
//       residual sums, what model.classifier_pooling says: classifier(head.norm(act(head.dense x))).
// With either, if there are several token types, @embed_N has a fourth argument %types: i32[1,N], the row of wtt for
// each token, by which the model tells the two texts of a pair apart. A model with model.labels = L > 0 learns the
// labels of texts, one text or pair a sequence. It has that classifier in place of the head, no [MASK], and these
// functions of training:
//   @forward(%x: i32[B,T], %y: i32[B,1], %documents: i64[B,T,2], %types: i32[B,T], %seq0: i64[]) -> f32[]
//       Sum of the negative log likelihoods of the labels y, with dropout, also of what the pooler gives. The text of
//       sequence b is tokens 0 to documents[b,0,1] - 1; tokens behind it are none: no token of the text sees them, and
//       each is a document of its own.
//   @eval(%x, %y, %documents, %types) -> f32[B,1], f32[B,1,L]
//       The negative log likelihood of each label, and the logits of all, without dropout.
// With model.problem_type = "multi_label_classification" %y is i32[B,L], 1 for each label of a text that is right and 0
// for the others, and the likelihoods are those of all labels, each by itself: @eval returns f32[B,L] of them. With
// "regression" L = 1, %y is f32[B,1], and squared errors (logit - y)^2 stand for negative log likelihoods. The mean
// over targets is in each case the loss of transformers. All other functions take row 0 of wtt.
//
// States. Parameters have Hugging Face's GPT-2 names without the leading "transformer."; a linear layer is [in,out], y
// = x W + b. Attribute hf is the name in files: that of the first family of Hugging Face's that holds the model, with
// its layout (frontends/hf/tensors.h); of a model that none holds, the same. @rng_seed and @step are i64[] counters.
// h.I.attn.k_cache and v_cache are [n_kv_head,T,D] or [S,n_kv_head,T,D], kind "cache"; D is head_dim. With
// precision.cache = "q8_0" they are numbers of 8 bits, u32 [..,D/4], beside k_scales and v_scales, f16 [..,D/32]
// (ir/quantized_cache.h). Matrices have decay=true. Initial values: embeddings normal(0.02); linear layers normal(s)
// with s = 0.02 sqrt(768 / n_embd), GPT-2's value at its own width; projections into the residual stream s / sqrt(2
// n_layer); biases 0, gains 1, or 0 if norms add 1. Every parameter and every dropout site has its own random stream.
//
// The module's attributes are those of ModelFacts, BatchFacts, OptimizerFacts, PrecisionFacts, CompileFacts and, for
// several ranks or logical shards, ParallelFacts (ir/facts.def). `fold`, the rows per block of sums over tokens, is the
// largest divisor of block_size up to 256. With compute "fp16" there are states @loss_scale (f32[], initially 2^16) and
// @good_steps (i64[]), with which autodiff and the optimizer implement dynamic loss scaling.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"

#include <memory>

namespace gptc {

struct BuildOptions {
  /// Builds attention of @forward and @eval as matmul, mask, softmax and dropout ops instead of one op. Dropout then
  /// acts on [B,H,T,T].
  bool decomposedAttention = false;
  /// Include @decode and @prefill.
  bool sampling = true;
  /// Of a decoder: not the functions of training but @step_N and @score, with a cache of so many slots; 0: those of
  /// training.
  int64_t slots = 0;
  /// Not the functions of training but @embed_N.
  bool embed = false;
  /// With `embed`, of an encoder that learns tokens: @fill.
  bool fills = false;
  /// With `embed`, of a model of the family bert: @labels of so many labels; 0: no classifier.
  int64_t labels = 0;
};

/// Requires a configuration from loadConfig, in which all sizes are known. Throws UserError(TooLarge) beyond 10^12
/// parameters or maxElements per tensor, and what applyGroups throws.
std::unique_ptr<Module> buildModel(const Config &config, const BuildOptions &options = {});

/// Largest divisor of `blockSize` that is at most 256.
int64_t foldOf(int64_t blockSize);

}  // namespace gptc
