// The mesh of ranks that a module is made for, and which of them take part in a collective together.
//
// Module attributes `mesh_data` and `mesh_tensor` (1 where absent) are the extents of the axes "data" and "tensor".
// Rank r stands at data = r / tensor, tensor = r mod tensor: neighbours, which usually share a machine, exchange most.
#pragma once

#include "ir/graph.h"

namespace gptc {

struct Mesh {
  int64_t data = 1, tensor = 1;
  static Mesh of(const Module &m) { return {m.attrs.getInt("mesh_data", 1), m.attrs.getInt("mesh_tensor", 1)}; }
  int64_t ranks() const { return data * tensor; }
  /// Extent of "data" or "tensor"; 0 for any other name.
  int64_t extent(llvm::StringRef axis) const { return axis == "data" ? data : axis == "tensor" ? tensor : 0; }
  /// The ranks that `rank` meets along an axis, itself included, in order.
  std::vector<int64_t> group(llvm::StringRef axis, int64_t rank) const {
    std::vector<int64_t> members;
    for (int64_t i = 0; i < extent(axis); ++i)
      members.push_back(axis == "data" ? i * tensor + rank % tensor : rank / tensor * tensor + i);
    return members;
  }
};

}  // namespace gptc
