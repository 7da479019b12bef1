#include "ir/opdef.h"
#include "ir/ops/op_support.h"
#include "ir/random.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace gptc;

namespace {

std::unique_ptr<Module> parsed(llvm::StringRef text) {
  std::unique_ptr<Module> m = parseModule(text, "t.gir");
  std::vector<std::string> errors = verify(*m);
  EXPECT_TRUE(errors.empty()) << errors.front();
  return m;
}

Tensor tensor(Type t, std::vector<double> data) { return Tensor(std::move(t), std::move(data)); }

/// Runs a function of one line: `%y = LINE`, with arguments named %a, %b.
std::vector<double> run(const std::string &line, std::vector<Tensor> args) {
  std::string text = "func @f(";
  const char *names[] = {"%a: ", "%b: "};
  for (size_t i = 0; i < args.size(); ++i)
    text += (i ? ", " : "") + (names[i] + args[i].type.str());
  text += ") {\n%y = " + line + "\nreturn %y\n}";
  StateMap state;
  return interpret(*parsed(text)->function("f"), args, state)[0].data;
}

using V = std::vector<double>;
const Tensor x23 = tensor(Type(DType::f32, {2, 3}), {0, 1, 2, 3, 4, 5});

TEST(Movement, Values) {
  EXPECT_EQ(run("reshape %a : f32[3,2]", {x23}), (V{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(run("transpose %a {perm=[1, 0]} : f32[3,2]", {x23}), (V{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(run("slice %a {dim=1, start=1, size=2} : f32[2,2]", {x23}), (V{1, 2, 4, 5}));
  EXPECT_EQ(run("slice %a {dim=0, start=1, size=1} : f32[1,3]", {x23}), (V{3, 4, 5}));
  EXPECT_EQ(run("unslice %a {dim=1, start=1, full=5} : f32[2,5]", {x23}), (V{0, 0, 1, 2, 0, 0, 3, 4, 5, 0}));
  EXPECT_EQ(run("broadcast %a : f32[2,2,3]", {x23}), (V{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(run("broadcast %a : f32[2]", {Tensor::scalar(7)}), (V{7, 7}));
  EXPECT_EQ(run("constant {value=2} : i32[3]", {}), (V{2, 2, 2}));
  EXPECT_EQ(run("constant {value=-inf} : f32[]", {}), (V{-INFINITY}));
}

// 1 + 2^-8 is a tie in bf16 and goes to the even neighbour; 2^16 is beyond f16.
TEST(LowPrecision, ResultsAreRoundedToTheirType) {
  const Tensor x = tensor(Type(DType::f32, {3}), {1 + 0x1p-8, 1 + 0x3p-8, 0x1p16});
  EXPECT_EQ(run("cast %a {dtype=\"bf16\"} : bf16[3]", {x}), (V{1, 1 + 0x1p-6, 0x1p16}));
  EXPECT_EQ(run("cast %a {dtype=\"f16\"} : f16[3]", {x}), (V{1 + 0x1p-8, 1 + 0x3p-8, INFINITY}));
  const Tensor a = tensor(Type(DType::bf16, {1, 2}), {1 + 0x1p-7, 1}),
               b = tensor(Type(DType::bf16, {2, 1}), {1, 0x1p-9});
  EXPECT_EQ(run("matmul %a, %b {out=\"f32\"} : f32[1,1]", {a, b}), (V{1 + 0x1p-7 + 0x1p-9}));
  EXPECT_EQ(run("matmul %a, %b : bf16[1,1]", {a, b}), (V{1 + 0x1p-7}));
}

TEST(Movement, TransposeOfThree) {
  Tensor x(Type(DType::f32, {2, 3, 4}));
  for (size_t i = 0; i < 24; ++i)
    x.data[i] = double(i);
  V y = run("transpose %a {perm=[2, 0, 1]} : f32[4,2,3]", {x});
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j)
      for (int k = 0; k < 3; ++k)
        EXPECT_EQ(y[(i * 2 + j) * 3 + k], x.data[(j * 3 + k) * 4 + i]);
}

TEST(Movement, DynamicSliceClamps) {
  Tensor x = tensor(Type(DType::f32, {4, 1}), {0, 1, 2, 3});
  auto at = [&](double pos) {
    return run("dynamic_slice %a, %b {size=2} : f32[2,1]", {x, Tensor::scalar(pos, DType::i64)});
  };
  EXPECT_EQ(at(1), (V{1, 2}));
  EXPECT_EQ(at(-1), (V{0, 1}));
  EXPECT_EQ(at(3), (V{2, 3}));
  EXPECT_EQ(at(1e15), (V{2, 3}));
}

TEST(Movement, Casts) {
  auto cast = [&](double v, DType from, const char *to) {
    return run(std::string("cast %a {dtype=\"") + to + "\"} : " + to + "[]", {Tensor::scalar(v, from)})[0];
  };
  EXPECT_EQ(cast(-2.75, DType::f32, "i32"), -2);
  EXPECT_EQ(cast(2.75, DType::f32, "i64"), 2);
  EXPECT_EQ(cast(4294967296.0 + 5, DType::i64, "i32"), 5);
  EXPECT_EQ(cast(4294967295.0, DType::i64, "i32"), -1);
  EXPECT_EQ(cast(-1, DType::i32, "u32"), 4294967295.0);
  EXPECT_EQ(cast(0.5, DType::f32, "pred"), 1);
  EXPECT_EQ(cast(0, DType::f32, "pred"), 0);
  EXPECT_EQ(cast(1, DType::pred, "f32"), 1);
  EXPECT_EQ(cast(0.1, DType::f64, "f32"), 0.1) << "the reference does not round";
}

TEST(Movement, ReshapeKnowsPadding) {
  auto ok = [](const std::string &from, const std::string &to) {
    return verify(*parseModule("func @f(%a: " + from + ") {\n%y = reshape %a : " + to + "\nreturn %y\n}", "t")).empty();
  };
  EXPECT_TRUE(ok("f32[2,3,5->8]", "f32[6,5->8]"));
  EXPECT_TRUE(ok("f32[6,5->8,2]", "f32[2,3,5->8,2]"));
  EXPECT_TRUE(ok("f32[1]", "f32[]"));
  EXPECT_FALSE(ok("f32[2,5->8]", "f32[10]"));
  EXPECT_FALSE(ok("f32[2,5->8]", "f32[5->8,2]"));
  EXPECT_FALSE(ok("f32[2,3->4,2]", "f32[2,6->8]"));
  EXPECT_FALSE(ok("f32[6]", "i32[6]"));
  EXPECT_FALSE(ok("f32[6]", "f32[2,2]"));
}

TEST(Movement, RulesRejectWhatDoesNotFit) {
  auto rejected = [](const std::string &line) {
    return !verify(*parseModule("func @f(%a: f32[4,5->8,6], %p: i64[]) {\n" + line + "\nreturn\n}", "t")).empty();
  };
  EXPECT_FALSE(rejected("%y = slice %a {dim=2, start=5, size=1} : f32[4,5->8,1]"));
  EXPECT_TRUE(rejected("%y = slice %a {dim=2, start=5, size=2} : f32[4,5->8,2]"));
  EXPECT_TRUE(rejected("%y = slice %a {dim=2, start=-1, size=2} : f32[4,5->8,2]"));
  EXPECT_TRUE(rejected("%y = slice %a {dim=2, start=9223372036854775807, size=1} : f32[4,5->8,1]"));
  EXPECT_TRUE(rejected("%y = slice %a {dim=1, start=0, size=2} : f32[4,2,6]")) << "a padded dimension";
  EXPECT_TRUE(rejected("%y = slice %a {dim=3, start=0, size=1} : f32[4,5->8,6]"));
  EXPECT_TRUE(rejected("%y = slice %a {dim=-1, start=0, size=1} : f32[4,5->8,1]"));
  EXPECT_FALSE(rejected("%y = unslice %a {dim=0, start=1, full=5} : f32[5,5->8,6]"));
  EXPECT_TRUE(rejected("%y = unslice %a {dim=0, start=2, full=5} : f32[5,5->8,6]"));
  EXPECT_FALSE(rejected("%y = transpose %a {perm=[2, 0, 1]} : f32[6,4,5->8]"));
  EXPECT_TRUE(rejected("%y = transpose %a {perm=[2, 0, 0]} : f32[6,4,4]"));
  EXPECT_TRUE(rejected("%y = transpose %a {perm=[1, 0]} : f32[5->8,4]"));
  EXPECT_TRUE(rejected("%y = transpose %a {perm=[0, 1, 3]} : f32[4,5->8,6]"));
  EXPECT_FALSE(rejected("%y = dynamic_slice %a, %p {size=4} : f32[4,5->8,6]"));
  EXPECT_TRUE(rejected("%y = dynamic_slice %a, %p {size=5} : f32[5,5->8,6]"));
  EXPECT_TRUE(rejected("%y = dynamic_slice %a, %a {size=1} : f32[1,5->8,6]"));
  EXPECT_TRUE(rejected("%y = broadcast %a : f32[2,4,5,6]"));
  EXPECT_TRUE(rejected("%y = cast %a {dtype=\"f33\"} : f32[4,5->8,6]"));
}

// These ops are linear: <op(x), dy> = <x, grad(dy)>.
TEST(Movement, GradientsAreAdjoint) {
  int checked = 0;
  for (OpKind kind :
       {OpKind::reshape, OpKind::transpose, OpKind::slice, OpKind::unslice, OpKind::broadcast, OpKind::cast}) {
    const OpDef &def = opDef(kind);
    for (unsigned seed = 0; seed < 10; ++seed)
      for (const OpDef::Sample &s : def.samples(seed)) {
        Module m;
        Function *f = m.addFunction("f");
        Builder b(f->body);
        Value *x = f->body.addArg(s.operandTypes[0]);
        Op *op = def.infer ? b.op(kind, {x}, s.attrs) : b.op(kind, {x}, s.resultTypes, s.attrs);
        Type y = op->result()->type;
        if (!isFloat(x->type.dtype) || !isFloat(y.dtype))
          continue;
        Value *dy = f->body.addArg(y);
        Value *grad[] = {dy};
        GradCtx ctx{b, *op, grad};
        std::vector<Value *> dx = def.grad(ctx);
        ASSERT_EQ(dx.size(), 1u);
        b.ret({op->result(), dx[0]});
        ASSERT_TRUE(verify(m).empty()) << verify(m).front();
        ops::SampleSource source(seed);
        std::vector<Tensor> args = {source.normals(x->type), source.normals(y)};
        StateMap state;
        std::vector<Tensor> r = interpret(*f, args, state);
        double left = 0, right = 0, scale = 0;
        for (size_t i = 0; i < r[0].data.size(); ++i)
          left += r[0].data[i] * args[1].data[i], scale += std::fabs(r[0].data[i] * args[1].data[i]);
        for (size_t i = 0; i < r[1].data.size(); ++i)
          right += r[1].data[i] * args[0].data[i];
        EXPECT_NEAR(left, right, 1e-12 * (1 + scale)) << print(*op);
        ++checked;
      }
  }
  EXPECT_GE(checked, 60);
}

TEST(Interpret, StateAndFusedBodies) {
  auto m = parsed(R"(
state @n : f32[2] {init="ones"}
func @f(%x: f32[2]) -> (f32[2], f32[2]) {
  %old = read @n : f32[2]
  %y = fused %old, %x {kind="pointwise"} : f32[2] {
    ^(%a: f32[2], %b: f32[2])
    %c = mul %a, %b : f32[2]
    %d = add %c, %a : f32[2]
    yield %d
  }
  write @n, %y
  %new = read @n : f32[2]
  return %old, %new
}
)");
  StateMap state;
  state["n"] = initialValue(*m->state("n"), 1);
  std::vector<Tensor> args = {tensor(Type(DType::f32, {2}), {2, 3})};
  std::vector<std::string> seen;
  auto observe = [&](const Op &op, llvm::ArrayRef<Tensor> results) {
    seen.push_back(op.name().str() + std::to_string(results.size()));
  };
  std::vector<Tensor> r = interpret(*m->function("f"), args, state, observe);
  EXPECT_EQ(r[0].data, (V{1, 1}));
  EXPECT_EQ(r[1].data, (V{3, 4}));
  EXPECT_EQ(seen, (std::vector<std::string>{"read1", "mul1", "add1", "fused1", "write0", "read1"}));
  r = interpret(*m->function("f"), args, state);
  EXPECT_EQ(r[0].data, (V{3, 4})) << "state lives on";
  EXPECT_EQ(r[1].data, (V{9, 16}));

  const Op *fused = m->function("f")->body.front()->next();
  std::vector<Tensor> operands = {r[0], args[0]};
  EXPECT_EQ(interpretFused(*fused, operands)[0].data, r[1].data);
}

TEST(Interpret, RefusesWrongArguments) {
  auto m = parsed("state @s : f32[]\nfunc @f(%x: f32[2]) {\n%s = read @s : f32[]\nreturn %x\n}");
  const Function &f = *m->function("f");
  StateMap state;
  std::vector<Tensor> none, wrong = {Tensor(Type(DType::f32, {3}))}, right = {Tensor(Type(DType::f32, {2}))};
  EXPECT_THROW(interpret(f, none, state), InternalError);
  EXPECT_THROW(interpret(f, wrong, state), InternalError);
  EXPECT_THROW(interpret(f, right, state), InternalError) << "@s has no content";
  state["s"] = Tensor::scalar(1);
  EXPECT_NO_THROW(interpret(f, right, state));
}

State stateOf(Type t, AttrMap a) { return State{"s", std::move(t), std::move(a)}; }

TEST(InitialValue, Constants) {
  Type t(DType::f32, {2, 2});
  EXPECT_EQ(initialValue(stateOf(t, {}), 1).data, (V{0, 0, 0, 0}));
  EXPECT_EQ(initialValue(stateOf(t, attrs({{"init", "ones"}})), 1).data, (V{1, 1, 1, 1}));
  EXPECT_EQ(initialValue(stateOf(t, attrs({{"init", "const"}, {"value", 0.1}})), 1).data[3], double(0.1f));
  EXPECT_EQ(initialValue(stateOf(Type::scalar(DType::f64), attrs({{"init", "const"}, {"value", 0.1}})), 1).data[0],
            0.1);
  EXPECT_EQ(initialValue(stateOf(Type::scalar(DType::bf16), attrs({{"init", "const"}, {"value", 0.1}})), 1).data[0],
            0.10009765625);
  EXPECT_EQ(initialValue(stateOf(Type::scalar(DType::i64), attrs({{"init", "const"}, {"value", 3}})), 1).data[0], 3);
}

TEST(InitialValue, Normal) {
  AttrMap a = attrs({{"init", "normal"}, {"std", 0.02}, {"stream", 5}});
  Type t(DType::f32, {100, 1000});
  Tensor v = initialValue(stateOf(t, a), 42);
  double sum = 0, squares = 0;
  for (double x : v.data) {
    EXPECT_EQ(x, double(float(x)));
    sum += x, squares += x * x;
  }
  double n = double(v.data.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 5 / std::sqrt(2 * n));
  EXPECT_EQ(v.data[7], double(float(0.02 * randomNormal(randomKey(42, 0, 5, 0), 7))));

  EXPECT_EQ(initialValue(stateOf(t, a), 42).data, v.data);
  EXPECT_NE(initialValue(stateOf(t, a), 43).data, v.data);
  a.set("stream", int64_t(6));
  EXPECT_NE(initialValue(stateOf(t, a), 42).data, v.data);
  a.set("stream", int64_t(5));
  EXPECT_EQ(initialValue(stateOf(Type(DType::f32, {100, Dim(1000, 1024)}), a), 42).data, v.data)
      << "padding changes nothing";
}

}  // namespace
