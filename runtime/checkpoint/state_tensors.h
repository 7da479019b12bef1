// The tensors in files that make up a state: found under any of their names, checked, and read in pieces, so that
// reading takes a few megabytes beside the state itself.
#pragma once

#include "runtime/checkpoint/file_layout.h"
#include "runtime/checkpoint/tensor_files.h"
#include "support/thread_pool.h"

#include "llvm/ADT/StringRef.h"

#include <string>
#include <vector>

namespace gptc {

/// A tensor's name in a file without what begins the names of a whole model ("transformer.", "model.", ...), if it
/// does.
llvm::StringRef withoutBase(llvm::StringRef name);

class StateTensors {
public:
  /// Looks for them under their names in files, with and without what begins the names of a model without its head
  /// ("transformer.", "model.", ...), and then under the state's own name and layout, which checkpoints of earlier
  /// versions have. `file` and `s` must outlive this. `first`: a table of positions may have more rows than the model,
  /// which takes the first ones.
  StateTensors(const State &s, const TensorFiles &file, bool first = false);

  /// The first tensor whose dtype cannot be read or converted, in words; "" if there is none.
  std::string unbuilt() const;
  /// The names of those that are missing.
  std::vector<std::string> missing() const;
  /// Why they cannot be the state's content, "" if they can: one is missing, or has another shape or type.
  std::string problem() const;
  /// Those that were found.
  std::vector<const TensorInfo *> found() const;
  /// Reads all dense logical elements, in this thread or those of `pool`. With `part`, elements outside it may be left
  /// as they are. There must be no problem.
  void read(void *dense, const Piece *part = nullptr, ThreadPool *pool = nullptr) const;
  /// The same as f32, whatever the state's dtype is.
  void readWide(float *dense, ThreadPool &pool) const;
  /// Whether no file has a part only of a tensor.
  bool areWhole() const;
  /// If they are: reads the elements that have a place in `places`, a piece at a time.
  void read(void *memory, const Places &places, ThreadPool &pool) const;

private:
  struct Tensor {
    FileTensor want;
    const TensorInfo *is;  // null: missing
  };
  void read(const Tensor &t, void *dense, const Piece *part, ThreadPool *pool) const;
  void readPieces(const Tensor &t, void *memory, const Places *places, ThreadPool *pool) const;

  const State &s;
  const TensorFiles &file;
  const bool first;
  std::vector<Tensor> tensors;
};

}  // namespace gptc
