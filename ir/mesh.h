// The mesh of ranks that a module is made for, which of them take part in a collective together, and which part of a
// state each holds.
//
// Module attributes `mesh_data` and `mesh_tensor` (1 where absent) are the extents of the axes "data" and "tensor".
// Rank r stands at data = r / tensor, tensor = r mod tensor: neighbours, which usually share a machine, exchange most.
//
// A state may be cut along each axis. Its attribute cut_AXIS = [dim, logical, padded, groups...] says that dimension
// `dim` of the whole has these extents and consists of groups of so many places, which add up to the padded extent; the
// i-th of n ranks has the i-th of n equal parts of each group, one behind the other. Rows of a matrix are one group;
// the columns of packed queries, keys and values are three, so that a rank gets whole heads of each. The cut along
// "tensor" comes first: what ranks along "data" share out is one tensor rank's part.
#pragma once

#include "ir/graph.h"

namespace gptc {

struct Mesh {
  int64_t data = 1, tensor = 1;
  static Mesh of(const Module &m) { return {m.attrs.getInt("mesh_data", 1), m.attrs.getInt("mesh_tensor", 1)}; }
  int64_t ranks() const { return data * tensor; }
  /// Extent of "data" or "tensor"; 0 for any other name.
  int64_t extent(llvm::StringRef axis) const { return axis == "data" ? data : axis == "tensor" ? tensor : 0; }
  /// A rank's place along an axis.
  int64_t index(llvm::StringRef axis, int64_t rank) const { return axis == "data" ? rank / tensor : rank % tensor; }
  /// The ranks that `rank` meets along an axis, itself included, in order.
  std::vector<int64_t> group(llvm::StringRef axis, int64_t rank) const {
    std::vector<int64_t> members;
    for (int64_t i = 0; i < extent(axis); ++i)
      members.push_back(axis == "data" ? i * tensor + rank % tensor : rank / tensor * tensor + i);
    return members;
  }
};

/// In what order ranks along "tensor" add: the tree, where they are a power of two.
inline const char *tensorOrder(int64_t ranks) { return (ranks & (ranks - 1)) == 0 ? "tree" : "fast"; }

/// How a state is cut along one axis.
struct Cut {
  unsigned dim = 0;
  Dim whole;
  std::vector<int64_t> groups;

  /// Of a state that is cut along `axis`.
  static std::optional<Cut> of(const State &s, llvm::StringRef axis);
  /// Makes `s` one rank's part of what it is now.
  void apply(State &s, llvm::StringRef axis, int64_t ranks) const;
  /// Calls f(place in the whole, place in the part, elements) for each run of elements of the index-th part, both
  /// row-major over padded extents. `type` is that of the whole.
  template <typename F> void forEachRun(const Type &type, int64_t ranks, int64_t index, F f) const {
    int64_t outer = 1, inner = 1;
    for (unsigned d = 0; d < type.rank(); ++d)
      if (d != dim)
        (d < dim ? outer : inner) *= type.padded(int(d));
    for (int64_t o = 0; o < outer; ++o) {
      int64_t begin = o * whole.padded;
      for (int64_t group : groups) {
        const int64_t each = group / ranks;
        f((begin + index * each) * inner, begin / ranks * inner, each * inner);
        begin += group;
      }
    }
  }
};

/// The type of what all ranks along "data" hold together of a state: one tensor rank's part.
Type wholeAlongData(const State &s);

}  // namespace gptc
