// Maps states to tensors in safetensors files, with the names and layouts that other programs expect. Attributes of a
// state:
//
//   hf            the tensor's name; comma-separated if the state holds several tensors side by side
//   hf_split      the number of columns of each of those
//   hf_transpose  the file has [out, in] where the state has [in, out]
//
// A state without `hf` is stored unchanged under its own name.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/safetensors.h"

#include <vector>

namespace gptc {

/// What begins the names of a GPT-2 with its classifier. Older files, other programs' and ours, leave it out; without
/// it, transformers 4 takes the whole file for a GPT-2 without a classifier.
constexpr const char *kPrefix = "transformer.";

struct FileTensor {
  TensorInfo info;
  int64_t firstColumn = 0;  // of the state, where the tensor begins
  bool transposed = false;  // relative to the state
};

/// The tensors that make up a state, in the order of its columns.
std::vector<FileTensor> fileTensors(const State &s);
/// Whether the tensor's bytes are exactly the whole state's.
bool isWhole(const State &s, const FileTensor &t);

/// Whether fromFile can convert `stored` to `to`: equal types, or any two of f32, bf16 and f16.
bool isConvertible(DType stored, DType to);
/// Copy one tensor from and to the dense logical elements of a state. `stored`: dtype in the file. Floats are widened
/// exactly or rounded to nearest even.
void toFile(const State &s, const FileTensor &t, const void *dense, void *tensor);
void fromFile(const State &s, const FileTensor &t, DType stored, const void *tensor, void *dense);

}  // namespace gptc
