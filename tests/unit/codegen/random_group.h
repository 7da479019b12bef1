// Random pointwise and row groups, for whoever builds kernels of them.
#pragma once

#include "tests/support/recipe_harness.h"

#include <random>
#include <string>
#include <vector>

namespace gptc::test {

/// Random choices, the same for the same seed.
class Source {
public:
  explicit Source(unsigned seed) : random(seed) {}
  int64_t between(int64_t lo, int64_t hi) { return lo + int64_t(random() % uint64_t(hi - lo + 1)); }
  template <typename T> const T &pick(const std::vector<T> &from) {
    return from[size_t(between(0, int64_t(from.size()) - 1))];
  }
  int64_t extent() { return pick(std::vector<int64_t>{1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129}); }

private:
  std::mt19937_64 random;
};

inline std::string shapeText(const std::vector<Dim> &dims, size_t from) {
  std::string s = "f32[";
  for (size_t i = from; i < dims.size(); ++i) {
    s += (i > from ? "," : "") + std::to_string(dims[i].logical);
    if (dims[i].padded != dims[i].logical)
      s += "->" + std::to_string(dims[i].padded);
  }
  return s + "]";
}

/// Values of a body under construction: name and number of leading dimensions that it lacks (the rank: a scalar).
struct RandomValue {
  std::string name;
  size_t from;
};

/// A random body of pointwise ops over `dims` and its suffixes; with `rows`, also row ops.
inline Group randomGroup(Source &s, bool rows) {
  std::vector<Dim> dims;
  size_t rank = size_t(s.between(rows ? 1 : 0, rows ? 3 : 4));
  int64_t elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    int64_t n = s.extent();
    if (elements * n > 20000)
      n = s.between(1, 3);
    elements *= n;
    dims.push_back(Dim(n, n + (s.between(0, 5) == 0 ? s.between(1, 9) : 0)));
  }
  auto type = [&](size_t from) { return shapeText(dims, from); };
  std::string args, body;
  std::vector<RandomValue> values;
  for (int64_t i = 0, n = s.between(2, 4); i < n; ++i) {
    size_t from = i == 0 ? 0 : s.pick(std::vector<size_t>{0, size_t(s.between(0, int64_t(rank))), rank});
    values.push_back({"%a" + std::to_string(i), from});
    args += (i ? "; " : "") + values.back().name + ": " + type(from);
  }
  auto define = [&](const std::string &text, size_t from) {
    std::string name = "%v" + std::to_string(values.size());
    body += name + " = " + text + " : " + type(from) + "\n";
    values.push_back({name, from});
  };
  std::string gain;
  if (rows) {
    gain = "%gain";
    args += "; %gain: " + type(rank - 1);
  }
  size_t wanted = values.size() + size_t(s.between(1, 9));
  while (values.size() < wanted) {
    RandomValue a = s.pick(values), b = s.pick(values);
    size_t from = std::min(a.from, b.from);
    switch (s.between(0, rows ? 8 : 6)) {
    case 0:
      define("add " + a.name + ", " + b.name, from);
      break;
    case 1:
      define("sub " + a.name + ", " + b.name, from);
      break;
    case 2:
      define("mul " + a.name + ", " + b.name, from);
      break;
    case 3:
      define("relu " + a.name, a.from);
      break;
    case 4:
      define("gelu_tanh " + a.name, a.from);
      break;
    case 5:
      define("tanh " + a.name, a.from);
      break;
    case 6:
      if (a.from == rank && rank > 0)
        define("broadcast " + a.name, size_t(s.between(0, int64_t(rank) - 1)));
      break;
    case 7:
      if (a.from == 0)
        define("softmax " + a.name, 0);
      break;
    case 8:
      if (a.from == 0) {
        std::string n = std::to_string(values.size());
        std::vector<Dim> leading(dims.begin(), dims.end() - 1);
        body += "%v" + n + ", %r" + n + " = rmsnorm " + a.name + ", " + gain + " {eps=0.1} : " + type(0) + ", " +
                shapeText(leading, 0) + "\n";
        values.push_back({"%v" + n, 0});
      }
      break;
    }
  }
  std::string yielded = values.back().name;
  for (size_t i = values.size() - 1; i-- > 0;)
    if (values[i].name[1] == 'v' && s.between(0, 3) == 0 && (!rows || values[i].from == 0))
      yielded += ", " + values[i].name;
  // The row recipe takes results of the domain's shape and smaller ones without sums.
  if (rows && values.back().from != 0) {
    body += "%last = add %a0, " + values.back().name + " : " + type(0) + "\n";
    yielded = "%last" + (yielded.find(',') == std::string::npos ? "" : yielded.substr(yielded.find(',')));
  }
  return group(rows ? "row" : "pointwise", args, body + "yield " + yielded);
}

}  // namespace gptc::test
