#include "one_op.h"

#include "ir/random.h"

#include <cmath>
#include <cstdlib>

namespace gptc::conformance {

std::vector<const Tensor *> OneOp::pointers() const {
  std::vector<const Tensor *> p;
  for (const Tensor &t : inputs)
    p.push_back(&t);
  return p;
}

std::vector<Tensor> OneOp::reference() const {
  std::vector<const Tensor *> in = pointers();
  return op->def().reference(*op, std::span<const Tensor *const>(in));
}

Tensor normals(const Type &t, unsigned seed) {
  Tensor x(t);
  RandomKey key = randomKey(seed, 0, 77, 0);
  for (size_t i = 0; i < x.data.size(); ++i)
    x.data[i] = randomNormal(key, i);
  return x;
}

OneOp makeOneOp(const OpDef &def, const OpDef::Sample &sample, unsigned seed) {
  OneOp one;
  one.module = std::make_unique<Module>();
  one.f = one.module->addFunction("f");
  Builder b(one.f->body);
  std::vector<Value *> operands;
  for (size_t i = 0; i < sample.operandTypes.size(); ++i) {
    const Type &t = sample.operandTypes[i];
    operands.push_back(one.f->body.addArg(t, "x" + std::to_string(i)));
    bool given = i < sample.operandValues.size() && !sample.operandValues[i].data.empty();
    Tensor value = given ? sample.operandValues[i] : normals(t, 100 * seed + unsigned(i));
    if (isInt(t.dtype))
      for (double &v : value.data)
        v = given ? v : std::floor(10 * v);
    EXPECT_TRUE(value.type.dtype == t.dtype && value.type.sameShape(t)) << value.type.str() << " for " << t.str();
    one.inputs.push_back(std::move(value));
  }
  one.op =
      def.infer ? b.op(def.kind, operands, sample.attrs) : b.op(def.kind, operands, sample.resultTypes, sample.attrs);
  std::vector<Value *> results;
  for (unsigned i = 0; i < one.op->numResults(); ++i)
    results.push_back(one.op->result(i));
  b.ret(results);
  return one;
}

unsigned numSeeds() {
  const char *text = std::getenv("GPTC_CONFORMANCE_SEEDS");
  int n = text ? std::atoi(text) : 6;
  return n > 0 ? unsigned(n) : 1;
}

void forEachSample(const OpDef &def, const std::function<void(OneOp &, unsigned)> &f) {
  if (!def.samples) {
    EXPECT_EQ(def.fusion, FusionKind::structure) << def.name << " computes and must have samples";
    return;
  }
  for (unsigned seed = 0; seed < numSeeds(); ++seed) {
    std::vector<OpDef::Sample> samples = def.samples(seed);
    EXPECT_FALSE(samples.empty()) << def.name;
    for (size_t i = 0; i < samples.size(); ++i) {
      OneOp one = makeOneOp(def, samples[i], seed);
      SCOPED_TRACE(fmt::format("seed {}, sample {}: {}", seed, i, print(*one.f)));
      f(one, seed);
      if (::testing::Test::HasFatalFailure())
        return;
    }
  }
}

const std::vector<OpKind> &allKinds() {
  static const std::vector<OpKind> kinds = {
#define GPTC_OP(name) OpKind::name,
#include "ir/ops.def"
#undef GPTC_OP
  };
  return kinds;
}

std::string kindName(const ::testing::TestParamInfo<OpKind> &info) {
  static const char *names[] = {
#define GPTC_OP(name) #name,
#include "ir/ops.def"
#undef GPTC_OP
  };
  return names[size_t(info.param)];
}

}  // namespace gptc::conformance
