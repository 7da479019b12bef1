// Which tensors of a GGUF file make up a parameter, by the architecture that the file names (llama.cpp's names). Beside
// file_layout.h, which says the same of safetensors.
//
//   gpt2, bloom           attn_qkv is c_attn's transpose: queries, keys, values, concatenated
//   llama, qwen2, qwen3   attn_q, attn_k, attn_v
//   all                   matrices are [out, in] where the state has [in, out]; tied models have no output.weight
//
// Rotations of llama pair the neighbours of a head, those of Hugging Face and of ours its halves (as qwen2 and qwen3
// do). So for llama the rows of q and k are in another order: row j of half i of a head is its row 2 j + i there.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct GgufPart {
  std::string name;
  int64_t firstColumn = 0;       // of the state (of its only dimension, if it has one), where the tensor begins
  std::vector<int64_t> shape;    // [rows, columns] or [elements]
  bool transposed = false;       // relative to the state
  int64_t interleavedHeads = 0;  // heads whose rows are in llama's order; 0: they are as in the state

  /// The row of the state's order at which row `r` of the tensor is.
  int64_t rowOf(int64_t r) const;
};

/// How many heads there are of queries, and of keys and values.
struct GgufHeads {
  int64_t queries = 0, keys = 0;
};

/// The architectures that the tables know.
const std::vector<std::string> &ggufArchitectures();

/// The tensors that make up a parameter, in the order of its columns; nullopt if the architecture has no place for it.
std::optional<std::vector<GgufPart>> ggufParts(const State &s, llvm::StringRef architecture, const GgufHeads &heads);

}  // namespace gptc
