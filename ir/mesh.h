// The mesh of ranks that a module is made for, the groups of ranks that take part in a collective, and the part of a
// state that each rank holds.
//
// Module attributes `mesh_data` and `mesh_tensor` (default 1) are the extents of the axes "data" and "tensor". Rank r
// is at data = r / tensor, tensor = r mod tensor: neighbours, which usually share a machine, communicate most.
//
// A state may be cut along each axis. Its attribute cut_AXIS = [dim, logical, padded, groups...] gives the dimension
// `dim` that is cut, its logical and padded extents in the whole, and the sizes of groups of places, which add up to
// the padded extent. Each of n ranks has one of n equal parts of every group; rank i has the i-th parts, one behind the
// other. The rows of a matrix are one group. The columns of packed queries, keys and values are three groups, so that a
// rank gets whole heads of each. The cut along "tensor" comes first: ranks along "data" divide one tensor rank's part.
#pragma once

#include "ir/graph.h"

namespace gptc {

struct Mesh {
  int64_t data = 1, tensor = 1;
  static Mesh of(const Module &m);
  int64_t ranks() const { return data * tensor; }
  /// Extent of "data" or "tensor"; 0 for any other name.
  int64_t extent(llvm::StringRef axis) const { return axis == "data" ? data : axis == "tensor" ? tensor : 0; }
  /// The index of a rank along an axis.
  int64_t index(llvm::StringRef axis, int64_t rank) const { return axis == "data" ? rank / tensor : rank % tensor; }
  /// The ranks that differ from `rank` only along `axis`, itself included, in order. Empty for an unknown axis.
  std::vector<int64_t> group(llvm::StringRef axis, int64_t rank) const {
    std::vector<int64_t> members;
    for (int64_t i = 0; i < extent(axis); ++i)
      members.push_back(axis == "data" ? i * tensor + rank % tensor : rank / tensor * tensor + i);
    return members;
  }
};

/// The order (attribute `order`) in which ranks along "tensor" add: "tree" if their number is a power of two.
inline const char *tensorOrder(int64_t ranks) { return (ranks & (ranks - 1)) == 0 ? "tree" : "fast"; }

/// How a state is cut along one axis.
struct Cut {
  unsigned dim = 0;
  Dim whole;
  std::vector<int64_t> groups;

  /// The cut of `s` along `axis`; nullopt if there is none.
  static std::optional<Cut> of(const State &s, llvm::StringRef axis);
  /// Changes type and attributes of `s` to those of one rank's part. InternalError if they do not divide.
  void apply(State &s, llvm::StringRef axis, int64_t ranks) const;
  /// Calls f(offset in the whole, offset in the part, elements) for each contiguous run of the index-th part. Offsets
  /// count elements, row-major over padded extents. `type` is the type of the whole.
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

/// Logical parts of heads and hidden features (module attribute logical_tensor, pass shard-tensor). Of each parameter
/// that they share, a part has an equal share of every group of places of a rank's piece along "tensor", as ranks have
/// of the whole.
struct LogicalParts {
  unsigned dim = 0;
  std::vector<int64_t> groups;

  /// How many parts a rank along "tensor" has: consecutive ones, so that the tree of their sums is a part of the whole
  /// tree. At least 1. Throws UserError(GirInvalid) if all parts are no power of two or no multiple of the ranks.
  static int64_t ofRank(const Module &m);
  /// nullopt if the parts do not share the state. Throws UserError(GirInvalid) if a group does not divide by ofRank(m).
  static std::optional<LogicalParts> of(const Module &m, const State &s);
};

/// The sum of a power of two of values of one type, as ranks add in the order "tree": ((t0+t1)+(t2+t3))+....
Value *sumInTree(Builder &b, std::vector<Value *> terms);

/// The type of a state's pieces along "data" together: one tensor rank's part of the whole.
Type wholeAlongData(const State &s);

}  // namespace gptc
