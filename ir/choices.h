// Choices of model.toml that modules keep as facts (ir/facts.def): enum classes with the words that stand for them in
// both texts.
#pragma once

#include "support/enum_words.h"

namespace gptc {

enum class Norm { layernorm, rmsnorm };
template <> inline constexpr auto wordsOf<Norm> = std::to_array({"layernorm", "rmsnorm"});

enum class Activation { gelu_tanh, gelu, relu, relu2, silu, swiglu, geglu };
template <>
inline constexpr auto wordsOf<Activation> =
    std::to_array({"gelu_tanh", "gelu", "relu", "relu2", "silu", "swiglu", "geglu"});

enum class Position { learned, rope, alibi, none };
template <> inline constexpr auto wordsOf<Position> = std::to_array({"learned", "rope", "alibi", "none"});

enum class OptimizerKind { adamw, sgd, adafactor };
template <> inline constexpr auto wordsOf<OptimizerKind> = std::to_array({"adamw", "sgd", "adafactor"});

enum class LrSchedule { cosine, wsd, linear, constant };
template <> inline constexpr auto wordsOf<LrSchedule> = std::to_array({"cosine", "wsd", "linear", "constant"});

enum class Compute { fp32, bf16, fp16, tf32 };
template <> inline constexpr auto wordsOf<Compute> = std::to_array({"fp32", "bf16", "fp16", "tf32"});

enum class MomentType { fp32, bf16 };
template <> inline constexpr auto wordsOf<MomentType> = std::to_array({"fp32", "bf16"});

/// The order in which ranks add: a binary tree, or the order of the collective engine.
enum class ReduceOrder { tree, fast };
template <> inline constexpr auto wordsOf<ReduceOrder> = std::to_array({"tree", "fast"});

enum class Offload { none, optimizer };
template <> inline constexpr auto wordsOf<Offload> = std::to_array({"none", "optimizer"});

}  // namespace gptc
