// Choices of model.toml that modules keep as facts (ir/facts.def): enum classes with the words that stand for them in
// both texts.
#pragma once

#include "support/enum_words.h"

namespace gptc {

enum class Norm { layernorm, rmsnorm };
template <> inline constexpr auto wordsOf<Norm> = std::to_array({"layernorm", "rmsnorm"});

enum class Activation { gelu_tanh, gelu, relu, relu2, silu, swiglu, geglu, geglu_tanh };
template <>
inline constexpr auto wordsOf<Activation> =
    std::to_array({"gelu_tanh", "gelu", "relu", "relu2", "silu", "swiglu", "geglu", "geglu_tanh"});

enum class Position { learned, rope, alibi, none };
template <> inline constexpr auto wordsOf<Position> = std::to_array({"learned", "rope", "alibi", "none"});

/// How the angles of rotations are scaled for contexts longer than those of training. linear: Chen et al. 2023,
/// "Extending Context Window of Large Language Models via Positional Interpolation"; llama3: Grattafiori et al. 2024,
/// "The Llama 3 Herd of Models"; yarn: Peng et al. 2023, "YaRN".
enum class RopeScaling { none, linear, llama3, yarn };
template <> inline constexpr auto wordsOf<RopeScaling> = std::to_array({"none", "linear", "llama3", "yarn"});

/// What an RMS norm of queries and keys goes over: each head, or all heads together (Henry et al. 2020, "Query-Key
/// Normalization for Transformers").
enum class QkNorm { none, head, whole };
template <> inline constexpr auto wordsOf<QkNorm> = std::to_array({"none", "head", "whole"});

/// Where the norms of a layer stand: before each block (Xiong et al. 2020, "On Layer Normalization in the Transformer
/// Architecture"); behind each residual sum (Vaswani et al. 2017), without a final norm; on the output of each block;
/// before each block and on its output.
enum class NormPosition { pre, post, output, both };
template <> inline constexpr auto wordsOf<NormPosition> = std::to_array({"pre", "post", "output", "both"});

/// What a classifier of texts learns, in the words of transformers: which one label is right, which of several are, or
/// a real number.
enum class ProblemType { single_label_classification, multi_label_classification, regression };
template <>
inline constexpr auto wordsOf<ProblemType> =
    std::to_array({"single_label_classification", "multi_label_classification", "regression"});

/// Which vector of a text's tokens a classifier of ModernBERT's form reads: that of the first, or their mean.
enum class ClassifierPooling { cls, mean };
template <> inline constexpr auto wordsOf<ClassifierPooling> = std::to_array({"cls", "mean"});

enum class OptimizerKind { adamw, sgd, adafactor };
template <> inline constexpr auto wordsOf<OptimizerKind> = std::to_array({"adamw", "sgd", "adafactor"});

enum class LrSchedule { cosine, wsd, linear, constant, inverse_sqrt };
template <>
inline constexpr auto wordsOf<LrSchedule> = std::to_array({"cosine", "wsd", "linear", "constant", "inverse_sqrt"});

enum class Compute { fp32, bf16, fp16, tf32 };
template <> inline constexpr auto wordsOf<Compute> = std::to_array({"fp32", "bf16", "fp16", "tf32"});

enum class MomentType { fp32, bf16 };
template <> inline constexpr auto wordsOf<MomentType> = std::to_array({"fp32", "bf16"});

/// Where the residual stream and its gradient are stored: in f32, or as all else between kernels.
enum class Residual { fp32, compute };
template <> inline constexpr auto wordsOf<Residual> = std::to_array({"fp32", "compute"});

/// How modules that train nothing keep the weights of products: as these read them, or in 8 or 4 bits
/// (ir/quantized.h).
enum class Weights { compute, q8_0, q4_0, q4_k };
template <> inline constexpr auto wordsOf<Weights> = std::to_array({"compute", "q8_0", "q4_0", "q4_k"});

/// How keys and values of samples are kept: as attention reads them, or in 8 bits (ir/quantized_cache.h).
enum class CacheFormat { asComputed, q8_0 };
template <> inline constexpr auto wordsOf<CacheFormat> = std::to_array({"auto", "q8_0"});

/// Which forward products of parameters read f8e4m3: none, the classifier's, those of layers, all.
enum class Fp8 { off, classifier, layers, all };
template <> inline constexpr auto wordsOf<Fp8> = std::to_array({"off", "classifier", "layers", "all"});

/// The order in which ranks add: a binary tree, or the order of the collective engine.
enum class ReduceOrder { tree, fast };
template <> inline constexpr auto wordsOf<ReduceOrder> = std::to_array({"tree", "fast"});

enum class Offload { none, optimizer };
template <> inline constexpr auto wordsOf<Offload> = std::to_array({"none", "optimizer"});

}  // namespace gptc
