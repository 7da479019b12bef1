// Tensors that lie in one safetensors file or in several, whole or in pieces: what checkpoints of any number of ranks,
// and other programs' weights, look like to who loads them.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/safetensors.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Mesh;

/// Where a piece of a tensor lies in the whole: along each dimension runs of logical places, so that neither mesh nor
/// padding of the plan that loads it need be those of the plan that saved it. A piece holds the elements at all
/// combinations of these places, row-major.
struct Piece {
  struct Run {
    int64_t whole, own, count;  // places in the whole, and in the memory of the rank that holds the piece
  };
  std::vector<int64_t> shape;  // of the whole
  std::vector<std::vector<Run>> runs;

  /// The logical elements of what `rank` of a mesh holds of a state.
  static Piece of(const State &s, const Mesh &mesh, int64_t rank);
  /// Reads what str() wrote; nullopt for anything that is no piece within its whole.
  static std::optional<Piece> parse(const std::string &text);
  std::string str() const;

  std::vector<int64_t> ownShape() const;
  /// Whether the two have elements in common.
  bool meets(const Piece &other) const;
  /// Calls f(place in the whole, place in memory of these padded extents, elements) for each run along the last
  /// dimension, in the order in which a file has them.
  template <typename F> void forEachRun(llvm::ArrayRef<int64_t> ownExtents, F f) const {
    walk(0, 0, 0, ownExtents, [&](int64_t whole, int64_t own, int64_t n) { f(whole, own, n); });
  }

private:
  template <typename F> void walk(size_t d, int64_t whole, int64_t own, llvm::ArrayRef<int64_t> extents, F f) const {
    if (d == shape.size())
      return f(whole, own, 1);  // a scalar
    for (const Run &r : runs[d]) {
      const int64_t w = whole * shape[d] + r.whole, o = own * extents[d] + r.own;
      if (d + 1 == shape.size())
        f(w, o, r.count);
      else
        for (int64_t i = 0; i < r.count; ++i)
          walk(d + 1, w + i, o + i, extents, f);
    }
  }
};

/// The key of safetensors' metadata under which a file says where the piece of that name lies in its tensor.
std::string pieceKey(llvm::StringRef tensor);

class TensorFiles {
public:
  /// UserErrors: FileMissing, and CheckpointDamaged for all else, pieces that do not make wholes included.
  explicit TensorFiles(const std::vector<std::string> &paths);
  /// As wholes.
  const TensorInfo *find(llvm::StringRef name) const;
  std::vector<const TensorInfo *> all() const;
  /// Reads the dense bytes of the whole of a tensor found above; with `part`, only pieces that meet it.
  void read(const TensorInfo &t, void *to, const Piece *part = nullptr) const;

private:
  struct Found {
    const SafetensorsFile *file;
    const TensorInfo *tensor;
    std::optional<Piece> piece;  // none: the whole
  };
  struct Whole {
    TensorInfo info;
    std::vector<Found> found;
  };
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, Whole, std::less<>> tensors;
};

}  // namespace gptc
