#include "ir/graph.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

struct GraphTest : testing::Test {
  Module m;
  Function *f = m.addFunction("f");
  Block &block = f->body;
  Builder b{block};
  Value *x = block.addArg(Type(DType::f32, {4}), "x");
  Value *y = block.addArg(Type(DType::f32, {4}), "y");

  Value *cast(Value *v) { return b.value(OpKind::cast, {v}, attrs({{"dtype", "f32"}})); }
};

TEST(AttrMap, SortedAndTyped) {
  AttrMap a = attrs({{"z", 1}, {"a", 2.5}, {"m", "text"}, {"k", true}, {"l", std::vector<int64_t>{1, 2}}});
  std::string keys;
  for (const auto &[name, value] : a)
    keys += name;
  EXPECT_EQ(keys, "aklmz");
  EXPECT_EQ(a.getInt("z"), 1);
  EXPECT_EQ(a.getFloat("a"), 2.5);
  EXPECT_EQ(a.getFloat("z"), 1.0) << "an integer serves as a float";
  EXPECT_EQ(a.getString("m"), "text");
  EXPECT_TRUE(a.getBool("k"));
  EXPECT_EQ(a.getInts("l"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(a.getInt("absent", 7), 7);
  EXPECT_EQ(a.getString("absent", "d"), "d");
  EXPECT_THROW(a.getInt("m"), InternalError);
  EXPECT_THROW(a.getFloat("m"), InternalError);
  a.set("z", int64_t(9));
  EXPECT_EQ(a.getInt("z"), 9);
  a.erase("z");
  EXPECT_FALSE(a.has("z"));
  EXPECT_NE(a, attrs({{"a", 2.5}}));
}

TEST_F(GraphTest, UseLists) {
  Op *op = b.op(OpKind::ret, {x, y, x}, llvm::ArrayRef<Type>());
  EXPECT_EQ(x->users().size(), 2u);
  EXPECT_EQ(y->users().size(), 1u);
  op->setOperand(0, y);
  EXPECT_EQ(x->users().size(), 1u);
  EXPECT_EQ(y->users().size(), 2u);
  op->addOperand(x);
  EXPECT_EQ(x->users().size(), 2u);
  op->dropOperands();
  EXPECT_TRUE(x->unused());
  EXPECT_TRUE(y->unused());
  EXPECT_EQ(op->numOperands(), 0u);
}

TEST_F(GraphTest, ReplaceAllUses) {
  Op *first = b.op(OpKind::ret, {x, y, x}, llvm::ArrayRef<Type>());
  Op *second = b.op(OpKind::ret, {x}, llvm::ArrayRef<Type>());
  x->replaceAllUsesWith(y);
  EXPECT_TRUE(x->unused());
  EXPECT_EQ(y->users().size(), 4u);
  for (Value *v : first->operands())
    EXPECT_EQ(v, y);
  EXPECT_EQ(second->operand(0), y);
  y->replaceAllUsesWith(y);
  EXPECT_EQ(y->users().size(), 4u);
  second->erase();
  EXPECT_EQ(y->users().size(), 3u);
  first->erase();
  EXPECT_TRUE(y->unused());
}

TEST_F(GraphTest, EraseNeedsUnusedResults) {
  Value *a = cast(x);
  Value *c = cast(a);
  EXPECT_THROW(a->def->erase(), InternalError);
  c->def->erase();
  a->def->erase();
  EXPECT_TRUE(block.empty());
  EXPECT_TRUE(x->unused());
}

TEST_F(GraphTest, MoveBefore) {
  Op *a = cast(x)->def, *c = cast(x)->def, *d = cast(x)->def;
  d->moveBefore(a);
  EXPECT_EQ(block.front(), d);
  EXPECT_EQ(d->next(), a);
  EXPECT_EQ(a->prev(), d);
  EXPECT_EQ(c->next(), nullptr);
  EXPECT_EQ(d->prev(), nullptr);
  a->moveBefore(a);
  EXPECT_EQ(d->next(), a);
  Module other;
  Function *g = other.addFunction("g");
  Op *elsewhere = g->body.insert(OpKind::ret);
  EXPECT_THROW(a->moveBefore(elsewhere), InternalError);
  EXPECT_EQ(block.size(), 3u);
}

TEST_F(GraphTest, InsertBefore) {
  Op *last = b.ret({});
  Builder front(block, last);
  front.loc = "h0";
  front.layer = 3;
  Value *v = front.constant(2);
  EXPECT_EQ(v->def->next(), last);
  EXPECT_EQ(v->def->loc, "h0");
  EXPECT_EQ(v->def->layer, 3);
}

TEST_F(GraphTest, BuilderChecks) {
  EXPECT_THROW(b.op(OpKind::cast, {x}), InternalError) << "dtype is missing";
  EXPECT_THROW(b.op(OpKind::cast, {x, y}, attrs({{"dtype", "f32"}})), InternalError);
  EXPECT_THROW(b.op(OpKind::cast, {x}, attrs({{"dtype", "f33"}})), InternalError);
  EXPECT_THROW(b.op(OpKind::cast, {x}, attrs({{"dtype", "f32"}, {"more", 1}})), InternalError);
  EXPECT_THROW(b.op(OpKind::reshape, {x}), InternalError) << "its type must be given";
  EXPECT_THROW(b.op(OpKind::ret, {nullptr, x}, llvm::ArrayRef<Type>()), InternalError);
  EXPECT_EQ(b.op(OpKind::ret, {x, nullptr, nullptr}, llvm::ArrayRef<Type>())->numOperands(), 1u);
}

TEST_F(GraphTest, StateAccess) {
  State *s = m.addState("w", Type(DType::f32, {4}));
  Value *v = b.read(*s);
  EXPECT_EQ(v->type, s->type);
  EXPECT_EQ(b.write(*s, v)->state, "w");
  EXPECT_THROW(b.write(*s, b.constant(1)), InternalError);
  EXPECT_THROW(m.addState("w", s->type), InternalError);
  EXPECT_THROW(m.addFunction("f"), InternalError);
  EXPECT_EQ(m.state("w"), s);
  EXPECT_EQ(m.state("v"), nullptr);
  EXPECT_EQ(m.function("f"), f);
  m.removeFunction("f");
  EXPECT_EQ(m.function("f"), nullptr);
}

TEST_F(GraphTest, CloneIsEqualAndApart) {
  m.attrs.set("name", "n");
  m.addState("w", Type(DType::f32, {4}))->attrs.set("kind", "param");
  Value *v = cast(x);
  Op *fused = b.op(OpKind::fused, {v}, {v->type}, attrs({{"kind", "pointwise"}}));
  fused->body = std::make_unique<Block>();
  Value *p = fused->body->addArg(v->type, "p");
  Builder inner(*fused->body);
  inner.op(OpKind::yield, {inner.value(OpKind::cast, {p}, attrs({{"dtype", "f32"}}))}, llvm::ArrayRef<Type>());
  fused->layer = 2;
  fused->loc = "here";
  b.ret({fused->result()});

  std::unique_ptr<Module> copy = m.clone();
  EXPECT_EQ(print(*copy), print(m));
  EXPECT_EQ(copy->function("f")->module, copy.get());
  copy->function("f")->body.front()->loc = "changed";
  EXPECT_NE(print(*copy), print(m));

  Function *g = m.cloneFunction(*f, "g");
  EXPECT_EQ(m.function("g"), g);
  EXPECT_EQ(g->results(), f->results());
  m.removeFunction("f");
  EXPECT_EQ(g->body.size(), 3u);
}

TEST_F(GraphTest, CloneOpsMapsOperands) {
  Module other;
  Function *g = other.addFunction("g");
  Value *z = g->body.addArg(x->type, "z");
  cast(cast(x));
  llvm::DenseMap<const Value *, Value *> map{{x, z}};
  cloneOps(block, g->body, nullptr, map);
  EXPECT_EQ(g->body.size(), 2u);
  EXPECT_EQ(g->body.front()->operand(0), z);
  EXPECT_EQ(g->body.back()->operand(0), g->body.front()->result());
  EXPECT_EQ(map.lookup(block.back()->result()), g->body.back()->result());
}

TEST_F(GraphTest, BrokenOrderIsDestroyedSafely) {
  Op *a = cast(x)->def;
  Op *c = cast(a->result())->def;
  c->moveBefore(a);  // invalid: a use before its definition. The module must still go away without harm (asan).
}

TEST(Names, OfOps) {
  EXPECT_EQ(nameOf(OpKind::ret), "return");
  EXPECT_EQ(nameOf(OpKind::yield), "yield");
  EXPECT_EQ(parseOpKind("return"), OpKind::ret);
  EXPECT_EQ(parseOpKind("ret"), std::nullopt);
  EXPECT_EQ(parseOpKind("adamw"), OpKind::adamw);
  EXPECT_EQ(parseOpKind("nonsense"), std::nullopt);
}

TEST(Names, OfOpsOfBeforeAreReadAndNotWritten) {
  for (auto [former, kind] : {std::pair("gelu", OpKind::gelu_tanh),
                              {"gelu_grad", OpKind::gelu_tanh_grad},
                              {"gelu_erf", OpKind::gelu_exact},
                              {"gelu_erf_grad", OpKind::gelu_exact_grad}}) {
    EXPECT_EQ(parseOpKind(former), kind) << former;
    EXPECT_EQ(parseOpKind(nameOf(kind)), kind) << former;
    EXPECT_NE(nameOf(kind), former);
  }
}

TEST(Names, OfOpsAreFoundNearAWord) {
  EXPECT_EQ(nearestOpKind("ade"), OpKind::add);
  EXPECT_EQ(nearestOpKind("retrun"), OpKind::ret);
  EXPECT_EQ(nearestOpKind("LayerNorm"), OpKind::layernorm);
  EXPECT_EQ(nearestOpKind("RMS_Norm"), OpKind::rmsnorm);
  EXPECT_EQ(nearestOpKind("gelu_erv"), OpKind::gelu_exact);
  EXPECT_EQ(nearestOpKind("GELU_erf_gard"), OpKind::gelu_exact_grad);
  EXPECT_EQ(nearestOpKind("frobnicate"), std::nullopt);
}

TEST(Names, PlacesInTheListAreKeysOfTuningRecords) {
  EXPECT_EQ(unsigned(OpKind::read), 0u);
  EXPECT_EQ(unsigned(OpKind::gelu_tanh), 26u);
  EXPECT_EQ(unsigned(OpKind::gelu_exact_grad), 29u);
  EXPECT_EQ(unsigned(OpKind::adafactor), 77u);
}

TEST(Registry, EveryOpIsComplete) {
  for (const OpDef *def : allOpDefs()) {
    EXPECT_FALSE(def->summary.empty()) << def->name;
    for (size_t i = 0; i + 1 < def->operands.size(); ++i) {
      EXPECT_NE(def->operands[i].name, "...") << def->name;
      EXPECT_LE(def->operands[i].optional, def->operands[i + 1].optional)
          << def->name << ": optional operands come last";
    }
    auto given = [&](const auto &rule, const char *what) {
      EXPECT_TRUE(bool(rule) || (rule.why() && *rule.why()))
          << def->name << ": " << what << " says neither what nor why not";
    };
    given(def->infer, "infer");
    given(def->check, "check");
    given(def->grad, "grad");
    given(def->cost, "cost");
    given(def->reference, "reference");
    given(def->lower, "lower");
    given(def->samples, "samples");
  }
}

}  // namespace
