// A group of collectives (ir/ops/collective.cpp) as the runtime's engines take it: one bucket, in one exchange.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct CollectiveCall {
  /// all_reduce, reduce_scatter, all_gather or broadcast_from; own_part and axis_index, of which each rank knows its
  /// own
  OpKind kind;
  unsigned from, to;  // operand (axis_index: none) and result of the fused op
  int64_t count;      // elements of x (all_reduce, broadcast_from) or of a segment of a piece
  DType dtype;
  int root = 0;  // of broadcast_from
  /// Of both operand and result, the element at which this begins.
  int64_t offset = 0;
  /// A piece of another dimension than the first consists of so many segments, one from each part of the whole.
  int64_t segments = 1;
  /// Rows of padding at the end of x, which are to be zero before it is cut into pieces: elements from the first, and
  /// their number. A kernel need not have written there.
  int64_t paddingFrom = 0, padding = 0;
  /// Of a sum that the group's kernel adds, as GPUs' engine knows no tree: the workspace in which the ranks' values
  /// meet, one behind the other in their order. Of an all_reduce each rank may add its part alone, in the workspace
  /// `summed`, from which all are gathered; without, all add the whole.
  std::optional<unsigned> met, summed;
};

struct Collectives {
  std::string axis;  // of the mesh
  int64_t ranks;     // along it
  bool tree;         // the order of sums between ranks; else the engine's
  std::vector<CollectiveCall> calls;
};

}  // namespace gptc
