// The input of the runtime's collective engines: a group of collectives (ir/ops/collective.cpp), which is one bucket
// and one exchange.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct CollectiveCall {
  /// all_reduce, reduce_scatter, all_gather or broadcast_from; also own_part and axis_index, which need no exchange.
  OpKind kind;
  unsigned from, to;  // operand and result of the fused op; axis_index has no operand
  int64_t count;      // elements of x (all_reduce, broadcast_from) or of a segment of a piece
  DType dtype;
  int root = 0;  // the sending rank of broadcast_from
  /// The first element of this call, in both operand and result.
  int64_t offset = 0;
  /// The number of segments of a piece. It exceeds 1 if the tensor is divided along another dimension than the first:
  /// then a piece takes one segment from each part of the whole.
  int64_t segments = 1;
  /// Padding rows at the end of x, as first element and number of elements. The engine must zero them before it cuts x
  /// into pieces, because no kernel need have written there.
  int64_t paddingFrom = 0, padding = 0;
  /// Set if the group's kernel adds a sum, because the GPUs' engine has no tree order. `met` is the workspace that
  /// receives the ranks' values, one after the other in rank order. `summed` is set if each rank of an all_reduce adds
  /// only its part, into that workspace, and the parts are gathered from there; else each rank adds the whole.
  std::optional<unsigned> met, summed;
};

struct Collectives {
  std::string axis;  // of the mesh
  int64_t ranks;     // along the axis
  bool tree;         // sums between ranks have the tree's order; else the engine's order
  std::vector<CollectiveCall> calls;
};

}  // namespace gptc
