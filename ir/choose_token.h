// What the op choose_token, its recipe and those who give it operands agree on (ir/ops/choose_token.cpp).
#pragma once

#include <cstdint>

namespace gptc::choose_token {

/// The columns of `how`.
enum Column {
  temperature,  // not above 0: the likeliest id
  topK,         // choose among the k likeliest; below 1: all
  topP,         // among the likeliest whose weights reach this part of all; 1 or more: all
  tokens,       // choose ids below this; below 1: all
  position,     // in [0, 1), of the weights of those that are left
};
inline constexpr int64_t columns = 5;

/// Weights are added up in the order of id mod `slots`, then of ids.
inline constexpr int64_t slots = 1024;
/// The weight of the largest logit.
inline constexpr int64_t mostWeight = int64_t(1) << 30;

}  // namespace gptc::choose_token
