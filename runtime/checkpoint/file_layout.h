// How states lie in safetensors files: under the names and in the layouts that other programs expect. State attributes
//
//   hf            the tensor's name, given here without a leading "transformer."; several, with commas between them,
//                 where the state holds several tensors side by side
//   hf_split      the columns of each of those
//   hf_transpose  the file has [out, in] where the state has [in, out]
//
// A state without `hf` lies under its own name as it is.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/safetensors.h"

#include <vector>

namespace gptc {

struct FileTensor {
  TensorInfo info;
  int64_t firstColumn = 0;
  bool transposed = false;
};

/// The tensors that hold a state, in the order of its columns.
std::vector<FileTensor> fileTensors(const State &s);
/// Whether a tensor has the bytes of the whole state.
bool isWhole(const State &s, const FileTensor &t);

/// Whether fromFile can make elements of `to` from a tensor of `stored`: where both are the same, and among f32, bf16
/// and f16.
bool isConvertible(DType stored, DType to);
/// Copies one tensor out of and into the dense logical elements of a state. `stored` is the dtype in the file. Floats
/// are widened exactly, or rounded to nearest even.
void toFile(const State &s, const FileTensor &t, const void *dense, void *tensor);
void fromFile(const State &s, const FileTensor &t, DType stored, const void *tensor, void *dense);

}  // namespace gptc
