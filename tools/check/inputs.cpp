#include "tools/check/inputs.h"

#include "ir/element.h"
#include "ir/facts.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace gptc {

namespace {

/// FNV-1a, which unlike std::hash is equal on every machine.
unsigned hashOf(const std::string &s, unsigned seed) {
  unsigned h = 2166136261u ^ (seed * 2654435761u);
  for (unsigned char c : s)
    h = (h ^ c) * 16777619u;
  return h;
}

/// The number of rows or classes that an integer argument selects from.
int64_t choicesOf(const Value &v) {
  int64_t n = 5;
  for (const Op *user : v.users())
    for (unsigned i = 0; i < user->numOperands(); ++i) {
      if (user->operand(i) != &v)
        continue;
      if (const Indices &indices = user->def().indices; indices && indices.operand == i)
        n = indices.count(*user);
    }
  return n;
}

bool mayHoldNonFinite(const Module &m) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::row_max) || op.attrs.getFloat("p") > 0)
        return false;
  return true;
}

/// The content of a narrower copy: the rounded parameter.
Tensor lowCopy(const Type &copy, const Tensor &parameter) {
  Tensor t(copy, parameter.data);
  for (double &v : t.data)
    v = roundTo(copy.dtype, v);
  return t;
}

}  // namespace

Tensor packedTensor(const State &packed, const Tensor &of, bool rounds) {
  Module m;
  Block &body = m.addFunction("pack")->body;
  // Panels of a parameter that is in files alone may be narrower.
  const DType dtype = packed.type.dtype;
  Tensor rounded = of;
  rounded.type = of.type.withDType(dtype);
  if (rounds && dtype != of.type.dtype)
    rounded = lowCopy(rounded.type, of);
  const int64_t cols = packed.type.dim(2) / stepOfPanels(dtype);
  const Op *pack = Builder(body).op(OpKind::pack, {body.addArg(rounded.type)},
                                    attrs({{"cols", cols}, {"tb", packed.attrs.getBool("tb")}}));
  const Tensor *operand = &rounded;
  return pack->def().reference(*pack, std::span(&operand, 1))[0];
}

/// Documents of 1 to 5 tokens, one behind the other.
static Tensor documentsTensor(const Type &t, std::mt19937 &random) {
  Tensor x(t);
  const int64_t rows = t.dim(1);
  for (int64_t b = 0; b < t.dim(0); ++b)
    for (int64_t begin = 0, end; begin < rows; begin = end) {
      end = std::min<int64_t>(rows, begin + 1 + random() % 5);
      for (int64_t i = begin; i < end; ++i) {
        x.data[size_t(2 * (b * rows + i))] = double(begin);
        x.data[size_t(2 * (b * rows + i) + 1)] = double(end);
      }
    }
  return x;
}

Tensor inputTensor(const std::string &name, const Type &t, int64_t below, unsigned seed) {
  std::mt19937 random(hashOf(name, seed));
  if (name == "documents" && t.dtype == DType::i64 && t.rank() == 3 && t.dim(2) == 2)
    return documentsTensor(t, random);
  Tensor x(t);
  // A second moment, which is never negative.
  const bool square = llvm::any_of(std::initializer_list<llvm::StringRef>{"v.", "row.", "column."},
                                   [&](llvm::StringRef prefix) { return llvm::StringRef(name).starts_with(prefix); });
  const bool index = llvm::StringRef(name).starts_with("pos") || t.isScalar();
  for (double &v : x.data) {
    if (name == "n_valid") {
      v = 3;
    } else if (t.dtype == DType::pred) {
      v = random() % 2;
    } else if (t.dtype == DType::u32 && t.rank() > 0) {
      v = double(uint32_t(random()));
    } else if (isInt(t.dtype)) {
      // Sometimes outside the table; scalars are counts or selectors and not negative.
      v = random() % 8 || index ? double(random() % below) : random() % 2 ? -1.0 : double(below);
    } else {
      v = roundTo(t.dtype, double(int(random() % 2048) - 1024) / 512);
      v = square ? std::fabs(v) : v;
    }
  }
  return x;
}

Inputs inputsFor(const Module &m, unsigned seed) {
  Inputs in;
  in.seed = seed;
  std::vector<const Function *> order;
  for (const auto &f : m.functions)
    for (int times = f->name == "train_step" || f->name == "accumulate" ? 2 : 1; times > 0; --times)
      order.push_back(f.get());
  const bool plant = seed % 16 == 6 && mayHoldNonFinite(m);
  for (size_t n = 0; n < order.size(); ++n) {
    Call call{order[n]->name, {}};
    for (const auto &a : order[n]->body.args) {
      call.args.push_back(inputTensor(a->name, a->type, choicesOf(*a), seed * 8 + unsigned(n)));
      Tensor &t = call.args.back();
      if (plant && n == 0 && isFloat(t.type.dtype) && t.data.size() > 2) {
        t.data[seed / 16 % t.data.size()] = std::numeric_limits<double>::quiet_NaN();
        t.data[seed / 8 % t.data.size()] = std::numeric_limits<double>::infinity();
      }
    }
    in.calls.push_back(std::move(call));
  }
  return in;
}

StateMap statesFor(const Module &m, unsigned seed) {
  StateMap all;
  for (const auto &s : m.states) {
    const std::optional<StateKind> kind = kindOf(*s);
    Tensor t(s->type);
    if (kind != StateKind::grad)
      t = inputTensor(s->name, s->type, 7, seed);
    // Scale matrices by a power of two such that products keep the size of their input.
    if (kind == StateKind::param && s->type.rank() > 1 && isFloat(s->type.dtype)) {
      const double scale = std::exp2(-std::ceil(std::log2(double(s->type.dim(-1))) / 2));
      for (double &v : t.data)
        v = roundTo(s->type.dtype, v * scale);
    }
    all[s->name] = std::move(t);
  }
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::low)
      all[s->name] = lowCopy(s->type, all[fact<&StateFacts::of>(*s)]);
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::packed)
      all[s->name] = packedTensor(*s, all[fact<&StateFacts::of>(*s)]);
  return all;
}

}  // namespace gptc
