// The rules among the keys of [model]: sizes of heads, and keys that contradict each other.
#pragma once

#include "frontends/config_reader.h"
#include "ir/settings/settings.h"

namespace gptc {

/// Reports heads that do not fit the width, the heads of keys and values, or rotations. Sets n_kv_head, head_dim and
/// rotary_dim where they are not written.
void checkHeads(ConfigReader &r, ModelConfig &m);

/// Reports values other than a key's default where they have no effect or contradict another key. Sets the biases that
/// are not written.
void checkArchitecture(ConfigReader &r, ModelConfig &m);

/// "1, 2, 4": the divisors of `n` up to `most`, at most 12 of them.
std::string divisors(int64_t n, int64_t most);

}  // namespace gptc
