// Ops put together at random: infer and check must say what is wrong, and whatever they accept must have a meaning of
// the stated types. Memory errors show in the asan preset.
#include "one_op.h"

#include "ir/random.h"

#include <cmath>

namespace gptc::conformance {
namespace {

class Dice {
public:
  explicit Dice(uint64_t seed) : key(randomKey(seed, 0, 9, 0)) {}
  uint64_t below(uint64_t n) { return randomBits(key, next++) % n; }
  template <typename T> T pick(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }

private:
  RandomKey key;
  uint64_t next = 0;
};

Type randomType(Dice &dice) {
  Type t(dice.below(3) ? DType::f32 : DType(dice.below(8)));
  for (uint64_t rank = dice.below(5); rank > 0; --rank) {
    int64_t n = dice.pick<int64_t>({1, 2, 2, 3, 3, 4, 6, 6, 12});
    t.dims.push_back(Dim(n, n + int64_t(dice.below(6) ? 0 : 2)));
  }
  return t;
}

Attr randomAttr(Dice &dice, const AttrSpec &spec) {
  constexpr int64_t huge = INT64_MAX;
  switch (spec.kind) {
  case AttrSpec::Bool:
    return dice.below(2) == 0;
  case AttrSpec::Int:
    if (dice.below(3))
      return int64_t(dice.below(5));
    return dice.pick<int64_t>({-1, 7, 4096, huge, -huge - 1, int64_t(1) << 32, int64_t(1) << 46});
  case AttrSpec::Float:
    if (dice.below(3))
      return double(dice.below(100)) / 100;
    return dice.pick<double>({-1.0, 0.0, 1e300, -1e300, INFINITY, -INFINITY, NAN, 5e-324});
  case AttrSpec::String:
    return dice.pick<std::string>({"", "f32", "i32", "pred", "bf16", "cosine", "linear", "wsd", "constant", "x\ny"});
  case AttrSpec::Ints: {
    std::vector<int64_t> v;
    for (uint64_t n = dice.below(5); n > 0; --n)
      v.push_back(dice.below(8) ? int64_t(dice.below(4)) : dice.pick<int64_t>({-1, huge, -huge}));
    return v;
  }
  }
  return false;
}

/// A sample with some of its types and attributes replaced: nearly right, which gets further than noise.
void disturb(Dice &dice, const OpDef &def, OpDef::Sample &s) {
  for (Type &t : s.operandTypes) {
    if (dice.below(4) == 0)
      t = randomType(dice);
    if (!t.dims.empty() && dice.below(4) == 0) {
      Dim &d = t.dims[dice.below(t.dims.size())];
      d = dice.below(2) ? Dim(1) : Dim(d.logical, d.logical + 3);
    }
    if (dice.below(12) == 0)
      t.dtype = DType(dice.below(8));
  }
  if (dice.below(8) == 0 && !s.operandTypes.empty())
    s.operandTypes.pop_back();
  if (dice.below(8) == 0)
    s.operandTypes.push_back(randomType(dice));
  for (const AttrSpec &a : def.attrs)
    if (dice.below(3) == 0)
      s.attrs.set(a.name, randomAttr(dice, a));
  for (Type &t : s.resultTypes)
    if (dice.below(3) == 0)
      t = randomType(dice);
}

using Hostile = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, Hostile, ::testing::ValuesIn(allKinds()), kindName);

TEST_P(Hostile, WrongUsesAreExplained) {
  const OpDef &d = def();
  if (!d.samples)
    return;
  int accepted = 0, rejected = 0;
  for (uint64_t round = 0; round < 150 * numSeeds(); ++round) {
    Dice dice(round);
    std::vector<OpDef::Sample> samples = d.samples(unsigned(round % 13));
    OpDef::Sample s = samples[dice.below(samples.size())];
    disturb(dice, d, s);

    Module m;
    Function *f = m.addFunction("f");
    Op *op = f->body.insert(d.kind);
    op->attrs = s.attrs;
    for (const Type &t : s.operandTypes)
      op->addOperand(f->body.addArg(t));
    Builder b(f->body);
    std::vector<Type> types = s.resultTypes;
    std::string error = checkSignature(*op);
    if (error.empty() && d.infer) {
      types.clear();
      bool ok = d.infer(*op, types, error);
      ASSERT_EQ(ok, error.empty()) << print(*op) << " says '" << error << "'";
    }
    if (error.empty()) {
      for (const Type &t : types) {
        ASSERT_EQ(t.invalid(), "") << print(*op);
        op->addResult(t);
      }
      if (d.check)
        error = d.check(*op);
    }
    if (!error.empty()) {
      ++rejected;
      EXPECT_GT(error.size(), 8u) << print(*op);
      EXPECT_EQ(error.find('\n'), std::string::npos) << error;
      op->dropOperands();
      continue;
    }
    ++accepted;
    // What is accepted means something, even for values that make no sense.
    int64_t total = 0;
    for (const Value *v : op->operands())
      total += v->type.elements();
    for (unsigned i = 0; i < op->numResults(); ++i)
      total += op->result(i)->type.elements();
    Cost c = d.cost(*op);
    EXPECT_TRUE(c.flops >= 0 && c.bytesRead >= 0 && c.bytesWritten >= 0) << print(*op);
    if (total > 100000)
      continue;  // too slow here; the rules are the same
    std::vector<Tensor> inputs;
    for (const Value *v : op->operands()) {
      Tensor t(v->type);
      for (double &x : t.data)
        x = isFloat(v->type.dtype)         ? dice.pick<double>({0.0, 1.0, -2.5, 1e30, -1e30, INFINITY, NAN})
            : v->type.dtype == DType::pred ? double(dice.below(2))
            : v->type.dtype == DType::u32  ? dice.pick<double>({0.0, 1.0, 4294967295.0})
                                           : dice.pick<double>({0.0, 1.0, -1.0, 2147483647.0, -2147483648.0});
      inputs.push_back(std::move(t));
    }
    // Of a collective the operands of all ranks, which here have the same.
    const int64_t ranks = d.fusion == FusionKind::collective ? op->attrs.getInt("ranks") : 1;
    if (ranks * total > 1000000)
      continue;
    std::vector<const Tensor *> in;
    for (int64_t r = 0; r < ranks; ++r)
      for (const Tensor &t : inputs)
        in.push_back(&t);
    std::vector<Tensor> results = d.reference(*op, std::span<const Tensor *const>(in));
    ASSERT_EQ(results.size(), size_t(ranks) * op->numResults()) << print(*op);
    for (unsigned i = 0; i < op->numResults(); ++i)
      ASSERT_EQ(int64_t(results[i].data.size()), op->result(i)->type.elements()) << print(*op);
  }
  // Both kinds occur, else this tests nothing.
  EXPECT_GT(accepted, 0);
  EXPECT_TRUE(rejected > 0 || d.operands.empty());
}

}  // namespace
}  // namespace gptc::conformance
