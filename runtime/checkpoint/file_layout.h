// Maps states to tensors in safetensors files, with the names and layouts that other programs expect. Attributes of a
// state:
//
//   hf            the tensor's name; comma-separated if the state holds several tensors side by side. | separates the
//                 names that a tensor has in files of different versions, of which the first is written
//   hf_split      the number of columns of each of those
//   hf_transpose  the file has [out, in] where the state has [in, out]
//   hf_heads      columns are queries, keys and values of that many heads: the state has all queries, then all keys,
//                 then all values; the file has for each head its query, key and value
//   hf_share      [place, count]: the tensor has the rows of that many states, which have one size, one state behind
//                 the other; only with hf_transpose. The states stand behind each other in the module, too
//
// Columns are the elements of a vector, too. A state without `hf` is stored unchanged under its own name.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/safetensors.h"

#include <vector>

namespace gptc {

struct Places;

struct FileTensor {
  TensorInfo info;
  std::vector<std::string> others = {};  // names that it has in files of other versions
  int64_t firstColumn = 0;               // of the state, where the tensor begins
  bool transposed = false;               // relative to the state
  int64_t heads = 0;                     // hf_heads
  /// hf_share: `info` is of the rows of this state alone, of which the tensor has `count` times as many.
  int64_t place = 0, count = 1;

  /// The whole tensor as the file has it.
  TensorInfo inFile() const;
};

/// The tensors that make up a state, in the order of its columns.
std::vector<FileTensor> fileTensors(const State &s);
/// Whether the tensor's bytes are exactly the whole state's.
bool isWhole(const State &s, const FileTensor &t);

/// A tensor can be read in pieces: rows, of so many elements each. A row is what an index of the first dimension has in
/// the file; of a tensor that needs no conversion of its layout, one element.
struct FileRows {
  int64_t count, elements;
};
FileRows rowsOf(const State &s, const FileTensor &t);

/// Whether fromFile can convert `stored` to `to`: equal types, or any two of f32, bf16 and f16.
bool isConvertible(DType stored, DType to);
/// Copies one tensor from the dense logical elements of a state.
void toFile(const State &s, const FileTensor &t, const void *dense, void *tensor);
/// Copies `count` rows of a tensor, from row `first` on, to a state in `memory`: its dense logical elements, or those
/// that have a place in `places`. `stored`: dtype in the file. Floats are widened exactly or rounded to nearest even.
void fromFile(const State &s, const FileTensor &t, DType stored, int64_t first, int64_t count, const void *rows,
              void *memory, const Places *places = nullptr);

}  // namespace gptc
