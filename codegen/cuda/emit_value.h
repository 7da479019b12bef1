// A value of emitted text. Inside a vector loop it is
//   uniform   one text, the same for all lanes;
//   linear    i64 base + stride * lane: the text of the base;
//   varying   one text per lane.
// Only emit.cpp includes this file.
#pragma once

#include "codegen/emit_index.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// The facts hold for i64 values.
struct Val : IndexFacts {
  std::string text;                // uniform or linear
  std::vector<std::string> lanes;  // varying
  bool narrow = false;             // i64: the text is an int
  std::optional<int64_t> known;

  bool scalar() const { return lanes.empty(); }
  bool uniform() const { return scalar() && stride == 0; }
};

inline Val uniformVal(std::string text) {
  Val v;
  v.text = std::move(text);
  return v;
}

}  // namespace gptc
