// Where the elements of a state lie in the memory of a rank, which may hold a piece of it, with padding.
#pragma once

#include "ir/graph.h"
#include "runtime/checkpoint/tensor_files.h"
#include "support/diagnostics.h"

#include <cstdint>
#include <vector>

namespace gptc {

/// Element (r, c) of the whole is at row[r] + column[c], counted in elements; -1: another rank has it. A state of one
/// dimension has one row.
struct Places {
  std::vector<int64_t> row, column;
  bool whole = true;  // column j is at j

  /// Of a state of one or two dimensions, of which this rank holds `own`.
  Places(const State &s, const Piece &own) {
    const unsigned rank = s.type.rank();
    GPTC_CHECK(rank == 1 || rank == 2, "@{} : {}", s.name, s.type.str());
    row = rank == 2 ? along(own, 0, s.type.padded(1)) : std::vector<int64_t>{0};
    column = along(own, rank - 1, 1);
    for (size_t j = 0; j < column.size(); ++j)
      whole = whole && column[j] == int64_t(j);
  }

private:
  static std::vector<int64_t> along(const Piece &own, unsigned dim, int64_t stride) {
    std::vector<int64_t> at(size_t(own.shape[dim]), -1);
    for (const Piece::Run &r : own.runs[dim])
      for (int64_t i = 0; i < r.count; ++i)
        at[size_t(r.whole + i)] = (r.own + i) * stride;
    return at;
  }
};

}  // namespace gptc
