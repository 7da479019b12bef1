// Every op: its definition is complete and consistent, types follow from the rule, text survives a round trip, costs
// make sense.
#include "one_op.h"

#include <cmath>
#include <set>

namespace gptc::conformance {
namespace {

using Definition = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, Definition, ::testing::ValuesIn(allKinds()), kindName);

TEST_P(Definition, IsComplete) {
  const OpDef &d = def();
  EXPECT_EQ(d.kind, GetParam());
  EXPECT_EQ(parseOpKind(d.name), d.kind);
  EXPECT_FALSE(d.summary.empty());
  EXPECT_FALSE(d.shapes.empty());
  bool optionalSeen = false;
  std::set<std::string> names;
  for (const OperandSpec &o : d.operands) {
    EXPECT_TRUE(o.optional || !optionalSeen) << "optional operands come last";
    EXPECT_TRUE(names.insert(o.name).second) << "two operands named " << o.name;
    optionalSeen |= o.optional;
  }
  names.clear();
  for (const AttrSpec &a : d.attrs)
    EXPECT_TRUE(names.insert(a.name).second) << "two attributes named " << a.name;
  auto excused = [](const auto &rule, const char *field) {
    bool reason = rule.why() && std::string(rule.why()).size() > 10;
    EXPECT_TRUE(rule || reason) << field << " is left out without a reason";
  };
  excused(d.infer, "infer"), excused(d.check, "check"), excused(d.grad, "grad"), excused(d.cost, "cost");
  excused(d.reference, "reference"), excused(d.lower, "lower"), excused(d.samples, "samples");
  excused(d.autocast, "autocast");
  EXPECT_EQ(d.autocast == AutocastClass::low, !d.autocast.lowOperands.empty()) << "which operands may be low";
  for (unsigned i : d.autocast.lowOperands)
    EXPECT_LT(i, d.operands.size());
  if (d.fusion != FusionKind::structure) {
    EXPECT_TRUE(d.cost && d.reference && d.samples) << "an op that computes has a cost, a meaning and samples";
    EXPECT_TRUE(d.infer || d.check) << "nothing says which types are right";
  }
  // An op without an expression is the anchor of a recipe, or runs no code.
  bool anchored = d.fusion == FusionKind::matmul || d.fusion == FusionKind::attention ||
                  d.fusion == FusionKind::scatter || d.fusion == FusionKind::choice ||
                  d.fusion == FusionKind::collective || d.fusion == FusionKind::view ||
                  d.fusion == FusionKind::structure;
  EXPECT_NE(bool(d.lower), anchored);
}

TEST_P(Definition, ReferenceMatchesTheInferredTypes) {
  forEachSample(def(), [](OneOp &one, unsigned) {
    ASSERT_EQ(verify(*one.module), std::vector<std::string>());
    std::vector<Tensor> results = one.reference();
    ASSERT_EQ(results.size(), one.op->numResults());
    for (unsigned i = 0; i < results.size(); ++i) {
      const Type &t = one.op->result(i)->type;
      EXPECT_EQ(results[i].type.str(), t.str());
      EXPECT_EQ(int64_t(results[i].data.size()), t.elements());
    }
  });
}

TEST_P(Definition, TextRoundTrip) {
  forEachSample(def(), [](OneOp &one, unsigned) {
    std::string text = print(*one.module);
    std::unique_ptr<Module> again = parseModule(text, "test.gir");
    EXPECT_EQ(print(*again), text);
    EXPECT_EQ(verify(*again), std::vector<std::string>());
    const Op &parsed = *again->function("f")->body.front();
    EXPECT_EQ(parsed.kind, one.op->kind);
    EXPECT_TRUE(parsed.attrs == one.op->attrs);
    StateMap none;
    std::vector<Tensor> a = interpret(*one.f, one.inputs, none), b = interpret(*again->function("f"), one.inputs, none);
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t e = 0; e < a[i].data.size(); ++e)
        ASSERT_TRUE(a[i].data[e] == b[i].data[e] || std::isnan(a[i].data[e])) << "result " << i << " element " << e;
  });
}

TEST_P(Definition, CostCountsItsResults) {
  forEachSample(def(), [](OneOp &one, unsigned) {
    Cost c = one.op->def().cost(*one.op);
    double written = 0;
    for (unsigned i = 0; i < one.op->numResults(); ++i)
      written += double(one.op->result(i)->type.bytes());
    EXPECT_EQ(c.bytesWritten, one.op->def().fusion == FusionKind::view ? 0 : written);
    EXPECT_TRUE(std::isfinite(c.flops) && c.flops >= 0);
    EXPECT_TRUE(std::isfinite(c.bytesRead) && c.bytesRead >= 0);
  });
}

}  // namespace
}  // namespace gptc::conformance
