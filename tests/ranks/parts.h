// What ranks hold of a model in the interpreter, and whether they come to the same as one.
#pragma once

#include "ir/mesh.h"
#include "ir/opdef.h"
#include "ir/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

/// Calls f(logical index, padded index) for all logical elements.
template <typename F> void forLogical(const Type &t, F f) {
  std::vector<int64_t> at(t.rank(), 0);
  for (int64_t i = 0, n = t.elements(); i < n; ++i) {
    int64_t padded = 0;
    for (unsigned d = 0; d < t.rank(); ++d)
      padded = padded * t.padded(int(d)) + at[d];
    f(i, padded);
    for (int d = int(t.rank()) - 1; d >= 0 && ++at[d] == t.dim(d); --d)
      at[d] = 0;
  }
}

inline std::vector<double> withPadding(const Type &t, const std::vector<double> &logical) {
  std::vector<double> v(t.paddedElements(), 0.0);
  forLogical(t, [&](int64_t i, int64_t p) { v[p] = logical[i]; });
  return v;
}

inline std::vector<double> withoutPadding(const Type &t, const std::vector<double> &padded) {
  std::vector<double> v(t.elements());
  forLogical(t, [&](int64_t i, int64_t p) { v[i] = padded[p]; });
  return v;
}

/// What a rank holds of a state whose whole, with padding, is `v`.
inline Tensor partOf(const State &s, const Mesh &mesh, int64_t rank, std::vector<double> v) {
  for (const char *axis : {"tensor", "data"})
    if (const auto cut = Cut::of(s, axis)) {
      const Type whole = axis == std::string("tensor") ? wholeType(s) : wholeAlongData(s);
      std::vector<double> part(whole.paddedElements() / mesh.extent(axis));
      cut->forEachRun(whole, mesh.extent(axis), mesh.index(axis, rank), [&](int64_t from, int64_t to, int64_t n) {
        std::copy_n(v.begin() + from, n, part.begin() + to);
      });
      v = std::move(part);
    }
  return Tensor(s.type, withoutPadding(s.type, v));
}

/// The whole of what all ranks hold, with padding. Ranks that hold the same must hold the same bits.
inline std::vector<double> wholeOf(const State &s, const Mesh &mesh, const std::function<const Tensor &(int64_t)> &of) {
  std::vector<double> whole(wholeType(s).paddedElements(), NAN);
  const auto byTensor = Cut::of(s, "tensor"), byData = Cut::of(s, "data");
  for (int64_t r = 0; r < mesh.ranks(); ++r) {
    const Type along = wholeAlongData(s);
    const std::vector<double> own = withPadding(s.type, of(r).data);
    std::vector<std::pair<int64_t, double>> placed;  // in one tensor rank's part
    auto place = [&](int64_t to, int64_t from, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        placed.push_back({to + i, own[from + i]});
    };
    if (byData)
      byData->forEachRun(along, mesh.data, mesh.index("data", r), place);
    else
      place(0, 0, int64_t(own.size()));
    std::vector<int64_t> at(along.paddedElements());
    for (size_t i = 0; i < at.size(); ++i)
      at[i] = int64_t(i);
    if (byTensor)
      byTensor->forEachRun(wholeType(s), mesh.tensor, mesh.index("tensor", r),
                           [&](int64_t to, int64_t from, int64_t n) {
                             for (int64_t i = 0; i < n; ++i)
                               at[from + i] = to + i;
                           });
    for (auto [part, value] : placed) {
      double &v = whole[at[part]];
      EXPECT_TRUE(std::isnan(v) || v == value) << s.name << " of rank " << r;
      v = value;
    }
  }
  return whole;
}

/// All parameters away from what would hide a mistake: biases from 0, gains from 1.
inline std::vector<double> initialWhole(const State &s) {
  State whole = s;
  whole.type = wholeType(s);
  Tensor t = initialValue(whole, 5);
  if (s.attrs.getString("kind") == "param") {
    uint32_t stream = 0;
    for (char c : s.name)
      stream = stream * 31 + uint32_t(c);
    const RandomKey key = randomKey(11, 0, stream, 0);
    for (size_t i = 0; i < t.data.size(); ++i)
      t.data[i] += 0.2 * randomNormal(key, i);
  }
  if (s.name == "rng_seed")
    t.data[0] = 99;
  return withPadding(whole.type, t.data);
}

inline std::vector<StateMap> initialStates(const Module &m) {
  const Mesh mesh = Mesh::of(m);
  std::vector<StateMap> states(mesh.ranks());
  for (const auto &s : m.states) {
    const std::string of = s->attrs.getString("of");
    const std::vector<double> whole = initialWhole(of.empty() ? *s : *m.state(of));
    for (int64_t r = 0; r < mesh.ranks(); ++r)
      states[r][s->name] = partOf(*s, mesh, r, whole);
  }
  return states;
}

inline void expectNear(const std::vector<double> &got, const std::vector<double> &expected, const std::string &what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double worst = 0, most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::fabs(got[i] - expected[i]));
    most = std::max(most, std::fabs(expected[i]));
  }
  // Float64 sums of some thousand terms, in other orders; what gradients of keys' biases cancel to is no more than
  // that.
  EXPECT_LE(worst, 1e-9 * std::max(most, 1e-3)) << what;
}

}  // namespace gptc
