// Tensors in one or several safetensors files, whole or in pieces: a common view of checkpoints from any number of
// ranks and of other programs' weights.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/safetensors.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Mesh;

/// The location of a piece in its tensor: for each dimension, runs of logical indices. So the plan that loads it may
/// have another mesh and padding than the one that saved it. The piece holds the elements at all combinations of these
/// indices, row-major.
struct Piece {
  struct Run {
    int64_t whole, own, count;  // indices in the whole and in the holder's memory
  };
  std::vector<int64_t> shape;          // of the whole
  std::vector<std::vector<Run>> runs;  // per dimension

  /// The logical elements that `rank` of a mesh holds of a state.
  static Piece of(const State &s, const Mesh &mesh, int64_t rank);
  /// Parses str()'s text; nullopt if it is no piece within its whole.
  static std::optional<Piece> parse(const std::string &text);
  std::string str() const;

  /// Shape of the piece itself.
  std::vector<int64_t> ownShape() const;
  /// Whether the pieces share elements.
  bool meets(const Piece &other) const;
  /// Calls f(offset in the whole, offset in memory with these padded extents, elements) for each run along the last
  /// dimension, in file order.
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

/// The metadata key under which a file stores the Piece of this tensor.
std::string pieceKey(llvm::StringRef tensor);

class TensorFiles {
public:
  /// Throws UserErrors FileMissing, and CheckpointDamaged for anything else, such as pieces that do not make a whole.
  explicit TensorFiles(const std::vector<std::string> &paths);
  /// Whole tensors, made of their pieces.
  const TensorInfo *find(llvm::StringRef name) const;
  std::vector<const TensorInfo *> all() const;
  /// The tensors whose dtype is unknown, by name. Neither find() nor all() has them.
  const std::map<std::string, UnreadableTensor, std::less<>> &unreadable() const { return others; }
  /// Reads the dense bytes of a whole tensor from find() or all(); with `part`, only the pieces that overlap it.
  void read(const TensorInfo &t, void *to, const Piece *part = nullptr) const;
  /// Whether it is in one file, in one piece.
  bool isWhole(const TensorInfo &t) const;
  /// Reads `bytes` bytes from byte `first` on of a tensor that isWhole.
  void readPart(const TensorInfo &t, int64_t first, int64_t bytes, void *to) const;
  /// Whether two tensors of one type and shape are whole and have the same content.
  bool areEqual(const TensorInfo &one, const TensorInfo &other) const;

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
  std::map<std::string, UnreadableTensor, std::less<>> others;
};

}  // namespace gptc
