// Groups as calls of cuBLASLt: the call's own arithmetic, in float64 on memory as it lies, against the group's meaning.
#include "codegen/cublaslt_matmul.h"

#include "examples.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tests/support/recipe_harness.h"
#include "tests/unit/passes/small_gpt.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gptc::test {
namespace {

using Epilogue = CublasLtMatmul::Epilogue;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double geluSlope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// What cublasLtMatmul documents, one array for each parameter.
void evaluate(const CublasLtMatmul &l, std::vector<std::vector<double>> &memory) {
  auto at = [&](const CublasLtMatmul::Matrix &x, int64_t batch, int64_t row, int64_t col) -> double & {
    if (x.transposed)
      std::swap(row, col);
    EXPECT_TRUE(row < x.rows && col < x.cols && x.rows <= x.ld);
    return memory[x.param][size_t(batch * x.batchStride + col * x.ld + row)];
  };
  for (int64_t s = 0; s < l.batch; ++s)
    for (int64_t j = 0; j < l.n; ++j)
      for (int64_t i = 0; i < l.m; ++i) {
        double sum = l.c ? at(*l.c, s, i, j) : 0;
        for (int64_t x = 0; x < l.k; ++x)
          sum += (l.scale < 0 ? 1 : memory[l.scale][0]) * at(l.a, s, i, x) * at(l.b, s, x, j);
        double *aux = l.aux < 0 ? nullptr : &memory[l.aux][size_t(j * l.d.ld + i)];
        switch (l.epilogue) {
        case Epilogue::none:
        case Epilogue::biasGradA:
          break;
        case Epilogue::geluGrad:
          sum *= geluSlope(*aux);
          break;
        case Epilogue::bias:
        case Epilogue::geluBias:
        case Epilogue::geluAuxBias:
          sum += memory[l.bias][size_t(i)];
          [[fallthrough]];
        case Epilogue::gelu:
        case Epilogue::geluAux:
          if (aux)
            *aux = sum;
          if (l.epilogue != Epilogue::bias)
            sum = gelu(sum);
        }
        at(l.d, s, i, j) = sum;
      }
  if (l.epilogue == Epilogue::biasGradA)
    for (int64_t i = 0; i < l.m; ++i) {
      memory[l.bias][size_t(i)] = 0;
      for (int64_t x = 0; x < l.k; ++x)
        memory[l.bias][size_t(i)] += at(l.a, 0, i, x);
    }
}

/// The logical elements of a tensor in memory; padding must still hold `fill`.
Tensor gather(const std::vector<double> &memory, const Type &type, double fill) {
  const std::vector<double> logical = spread(Tensor(type, std::vector<double>(type.elements(), 1)), 0);
  Tensor t(type);
  size_t next = 0;
  for (size_t i = 0; i < memory.size(); ++i)
    if (logical[i] == 1)
      t.data[next++] = memory[i];
    else
      EXPECT_TRUE(memory[i] == fill || (std::isnan(memory[i]) && std::isnan(fill))) << "padding was written";
  return t;
}

/// Whether the call takes the padding of D's rows and columns, which then is 0.
bool takesPadding(const Op &fused, const CublasLtMatmul &l) {
  const Type &d = fused.result(l.d.param - fused.numOperands())->type;
  return d.elements() < d.paddedElements() && l.m * l.n == d.paddedElements();
}

void expectMeaning(const Op &fused, const CublasLtMatmul &l, const std::vector<Tensor> &operands,
                   double padding = std::numeric_limits<double>::quiet_NaN()) {
  std::vector<std::vector<double>> memory;
  for (const Tensor &t : operands)
    memory.push_back(spread(t, padding));
  for (unsigned i = 0; i < fused.numResults(); ++i)
    memory.push_back(std::vector<double>(size_t(fused.result(i)->type.paddedElements()), -7));
  evaluate(l, memory);
  const std::vector<Tensor> want = interpretFused(fused, operands);
  for (unsigned r = 0; r < want.size(); ++r) {
    const Tensor got = gather(memory[fused.numOperands() + r], want[r].type, takesPadding(fused, l) ? 0 : -7);
    // The group rounds what it yields; the call here does not.
    const double unit = want[r].type.dtype == DType::bf16 ? 0x1p-8 : want[r].type.dtype == DType::f16 ? 0x1p-11 : 0;
    for (size_t i = 0; i < got.data.size(); ++i)
      ASSERT_NEAR(got.data[i], want[r].data[i], unit * std::fabs(want[r].data[i]) + 1e-9)
          << "result " << r << " element " << i << "\n"
          << print(fused);
  }
}

/// Multiples of 1/16 between -1 and 1, which all types hold.
std::vector<Tensor> exactOperands(const Op &op) {
  std::vector<Tensor> operands;
  for (unsigned i = 0; i < op.numOperands(); ++i) {
    Tensor t(op.operand(i)->type);
    for (size_t k = 0; k < t.data.size(); ++k)
      t.data[k] = double(int64_t((k + i) * 37 % 33) - 16) / 16;
    operands.push_back(std::move(t));
  }
  return operands;
}

struct Expected {
  const char *args, *body;
  std::optional<Epilogue> epilogue;  // nullopt: no call
  bool hasC = false;
};

void expectCalls(llvm::ArrayRef<Expected> cases) {
  unsigned seed = 0;
  for (const Expected &e : cases) {
    Group g = group("matmul", e.args, e.body);
    std::optional<CublasLtMatmul> l = matchCublasLtMatmul(*g.fused);
    ASSERT_EQ(l.has_value(), e.epilogue.has_value()) << print(*g.fused);
    if (!l)
      continue;
    EXPECT_EQ(l->epilogue, *e.epilogue) << print(*g.fused);
    EXPECT_EQ(l->c.has_value(), e.hasC) << print(*g.fused);
    expectMeaning(*g.fused, *l, randomOperands(g, seed++));
  }
}

TEST(CublasLtMatmul, TakesWhatTheLibraryHas) {
  expectCalls({
      {"%a: f32[3,5]; %b: f32[5,4]", "%y = matmul %a, %b : f32[3,4]\nyield %y", Epilogue::none},
      {"%a: f32[5,3]; %b: f32[4,5]", "%y = matmul %a, %b {ta=true, tb=true} : f32[3,4]\nyield %y", Epilogue::none},
      {"%a: bf16[2,3,5]; %b: bf16[7->8,5]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[2,3,7->8]\n%l = cast %y {dtype=\"bf16\"} : bf16[2,3,7->8]\n"
       "yield %l",
       Epilogue::none},
      {"%a: f32[2,3,4,6]; %b: f32[2,3,5,6]", "%y = matmul %a, %b {batch=2, tb=true} : f32[2,3,4,5]\nyield %y",
       Epilogue::none},
      {"%a: f16[2,6,3]; %b: f16[2,6,5->6]; %i: f32[3,5->6]",
       "%y = matmul %a, %b, %i {ta=true, fold=6, out=\"f32\"} : f32[3,5->6]\nyield %y", Epilogue::none, true},
      {"%a: f32[3,5]; %b: f32[5,4]; %c: f32[4]", "%y = matmul %a, %b : f32[3,4]\n%z = add %c, %y : f32[3,4]\nyield %z",
       Epilogue::bias},
      {"%a: f32[3,5]; %b: f32[5,4]; %c: f32[4]; %r: f32[3,4]",
       "%y = matmul %a, %b : f32[3,4]\n%z = add %y, %c : f32[3,4]\n%o = add %r, %z : f32[3,4]\nyield %o",
       Epilogue::bias, true},
      {"%a: bf16[3,5]; %b: bf16[5,8]; %c: bf16[8]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,8]\n%w = cast %c {dtype=\"f32\"} : f32[8]\n%z = add %y, %w : "
       "f32[3,8]\n"
       "%k = cast %z {dtype=\"bf16\"} : bf16[3,8]\n%g = gelu_tanh %z : f32[3,8]\n%l = cast %g {dtype=\"bf16\"} : "
       "bf16[3,8]\n"
       "yield %l, %k",
       Epilogue::geluAuxBias},
      // An addition to a residual stream in bf16.
      {"%a: bf16[3,5]; %b: bf16[5,8]; %c: bf16[8]; %r: bf16[3,8]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,8]\n%w = cast %c {dtype=\"f32\"} : f32[8]\n"
       "%z = add %y, %w : f32[3,8]\n%s = cast %r {dtype=\"f32\"} : f32[3,8]\n%o = add %s, %z : f32[3,8]\n"
       "%l = cast %o {dtype=\"bf16\"} : bf16[3,8]\nyield %l",
       Epilogue::bias, true},
      {"%a: f32[3,5]; %b: f32[5,4]", "%y = matmul %a, %b : f32[3,4]\n%g = gelu_tanh %y : f32[3,4]\nyield %g",
       Epilogue::gelu},
      {"%a: bf16[3,5]; %b: bf16[6->8,5]; %x: bf16[3,6->8]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[3,6->8]\n%w = cast %x {dtype=\"f32\"} : f32[3,6->8]\n"
       "%g = gelu_tanh_grad %y, %w : f32[3,6->8]\n%l = cast %g {dtype=\"bf16\"} : bf16[3,6->8]\nyield %l",
       Epilogue::geluGrad},
      {"%a: bf16[2,4,3]; %d: bf16[2,4,5]",
       "%w = cast %d {dtype=\"f32\"} : f32[2,4,5]\n%s = reduce_sum %w {fold=4, lead=2} : f32[5]\n"
       "%y = matmul %a, %d {ta=true, fold=4, out=\"f32\"} : f32[3,5]\nyield %s, %y",
       Epilogue::biasGradA},
      {"%a: f32[3,5]; %b: f32[4,5]; %x: f32[3,4]",
       "%y = matmul %a, %b {tb=true} : f32[3,4]\n%g = gelu_tanh_grad %y, %x : f32[3,4]\nyield %g", std::nullopt},
      // No calls: what gelu keeps in rows that are no multiple of 8 (above), a bias or a residual of another type than
      // the result, another activation, gelu of a sum with a residual, sums with gelu, a sum that goes on with a
      // residual, two results.
      {"%a: bf16[3,5]; %b: bf16[5,4]; %c: f32[4]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,4]\n%z = add %y, %c : f32[3,4]\n"
       "%l = cast %z {dtype=\"bf16\"} : bf16[3,4]\nyield %l",
       std::nullopt},
      {"%a: bf16[3,5]; %b: bf16[5,4]; %r: bf16[3,4]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,4]\n%w = cast %r {dtype=\"f32\"} : f32[3,4]\n"
       "%z = add %y, %w : f32[3,4]\nyield %z",
       std::nullopt},
      {"%a: f32[3,5]; %b: f32[5,4]", "%y = matmul %a, %b : f32[3,4]\n%g = silu %y : f32[3,4]\nyield %g", std::nullopt},
      {"%a: f32[3,5]; %b: f32[5,4]; %r: f32[3,4]",
       "%y = matmul %a, %b : f32[3,4]\n%z = add %y, %r : f32[3,4]\n%g = gelu_tanh %z : f32[3,4]\nyield %g",
       std::nullopt},
      {"%a: f32[3,5]; %b: f32[5,4]; %r: f32[3,4]",
       "%y = matmul %a, %b : f32[3,4]\n%g = gelu_tanh %y : f32[3,4]\n%z = add %g, %r : f32[3,4]\nyield %z",
       std::nullopt},
      {"%a: f32[3,5]; %b: f32[5,4]; %c: f32[4]",
       "%y = matmul %a, %b : f32[3,4]\n%g = gelu_tanh %y : f32[3,4]\n%z = add %g, %c : f32[3,4]\nyield %z",
       std::nullopt},
      {"%a: f16[2,6,3]; %b: f16[2,6,4]; %i: f32[3,4]; %r: f32[3,4]",
       "%y = matmul %a, %b, %i {ta=true, fold=6, out=\"f32\"} : f32[3,4]\n%z = add %y, %r : f32[3,4]\nyield %z",
       std::nullopt},
      {"%a: bf16[3,5]; %b: bf16[5,4]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,4]\n%l = cast %y {dtype=\"bf16\"} : bf16[3,4]\nyield %y, %l",
       std::nullopt},
      {"%a: f32[4,5]; %b: f32[5,4]", "%y = matmul %a, %b : f32[4,4]\n%z = add %y, %y : f32[4,4]\nyield %z",
       std::nullopt},
      {"%a: f64[3,5]; %b: f64[5,4]", "%y = matmul %a, %b : f64[3,4]\nyield %y", std::nullopt},
  });
}

// A factor, then a bias in bf16 and a residual; extents of 16, k along the rows of both.
TEST(CublasLtMatmul, TakesWhatTheLibraryHasOfF8e4m3) {
  expectCalls({
      {"%a: f8e4m3[2,16,32]; %b: f8e4m3[48,32]; %f: f32[]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[2,16,48]\n%z = mul %y, %f : f32[2,16,48]\n"
       "%l = cast %z {dtype=\"bf16\"} : bf16[2,16,48]\nyield %l",
       Epilogue::none},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]; %f: f32[]; %c: bf16[48]; %r: f32[16,48]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%z = mul %f, %y : f32[16,48]\n"
       "%w = cast %c {dtype=\"f32\"} : f32[48]\n%s = add %z, %w : f32[16,48]\n%o = add %r, %s : f32[16,48]\nyield %o",
       Epilogue::bias, true},
      {"%a: f8e4m3[5,32]; %b: f8e4m3[48,32]", "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[5,48]\nyield %y",
       Epilogue::none},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]; %f: f32[]; %t: f32[16,48]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%z = mul %f, %t : f32[16,48]\nyield %z", std::nullopt},
      {"%a: f8e4m3[16,24]; %b: f8e4m3[48,24]", "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\nyield %y",
       std::nullopt},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[32,48]", "%y = matmul %a, %b {out=\"f32\"} : f32[16,48]\nyield %y", std::nullopt},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]; %c: f32[48]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%s = add %y, %c : f32[16,48]\nyield %s", std::nullopt},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]; %f: f32[]; %c: bf16[48]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%w = cast %c {dtype=\"f32\"} : f32[48]\n"
       "%s = add %y, %w : f32[16,48]\n%z = mul %s, %f : f32[16,48]\nyield %z",
       std::nullopt},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%g = gelu_tanh %y : f32[16,48]\nyield %g",
       std::nullopt},
      {"%a: bf16[16,32]; %b: bf16[48,32]; %f: f32[]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%z = mul %y, %f : f32[16,48]\nyield %z", std::nullopt},
  });
}

TEST(CublasLtMatmul, OfAModelProductsAreCalls) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt";
  for (const auto &[compute, residual] :
       {std::pair{"fp32", "fp32"}, {"bf16", "fp32"}, {"bf16", "compute"}, {"tf32", "fp32"}}) {
    SmallGpt o;
    o.width = 8;  // what gelu keeps is in rows of a multiple of 8
    auto m = smallGpt(o);
    m->attrs.set("compute", std::string(compute));
    m->attrs.set("residual", std::string(residual));
    runPipeline(*m, parsePipeline("autodiff,optimizer,canonicalize,cse,dce,precision,fuse", &target), {});
    int calls = 0, others = 0;
    for (Op &op : m->function("train_step")->body)
      if (op.is(OpKind::fused) && op.attrs.getString("kind") == "matmul") {
        auto l = matchCublasLtMatmul(op);
        ++(l ? calls : others);
        if (!l)
          continue;
        EXPECT_EQ(l->tf32, std::string(compute) == "tf32");
        const std::vector<Tensor> operands = exactOperands(op);
        expectMeaning(op, *l, operands);
      }
    // This model has no norm between the residual stream and the classifier: where an f32 stream ends and where its
    // gradient begins a low copy is asked for beside it.
    const bool twoCopies = compute == std::string("bf16") && residual == std::string("fp32");
    EXPECT_EQ(others, twoCopies ? 2 : 0) << compute << ", residual stream " << residual;
    EXPECT_GT(calls, 5) << compute;
  }
}

// With precision.fp8 forward products of a model are calls of f8e4m3 all the same, gelu behind them is a kernel of its
// own, and padding below the classifier's weight is 0.
TEST(CublasLtMatmul, OfAModelProductsInEightBitsAreCalls) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt";
  for (bool tied : {true, false}) {
    SmallGpt o;
    o.width = 16, o.block = 8, o.tied = tied;
    auto m = smallGpt(o);
    m->attrs.set("compute", std::string("bf16"));
    m->attrs.set("residual", std::string("compute"));
    m->attrs.set("fp8", std::string("all"));
    runPipeline(
        *m, parsePipeline("pad-vocab{multiple=16},autodiff,optimizer,canonicalize,cse,dce,precision,fp8,fuse", &target),
        {});
    int eights = 0, columns = 0, forward = 0;
    for (Op &op : m->function("train_step")->body) {
      if (!op.is(OpKind::fused) || op.attrs.getString("kind") != "matmul")
        continue;
      const auto l = matchCublasLtMatmul(op);
      ASSERT_TRUE(l) << print(op);
      if (l->a.dtype != DType::f8e4m3)
        continue;
      ++eights;
      EXPECT_GE(l->scale, 0) << print(op);
      const std::vector<Tensor> operands = exactOperands(op);
      expectMeaning(op, *l, operands, 0);
      const Type &d = op.result(l->d.param - op.numOperands())->type;
      columns += d.dim(-1) < d.padded(-1) && l->m == d.padded(-1);
    }
    for (const Op &op : m->function("train_step")->body)
      if (op.is(OpKind::fused))
        for (const Op &inner : *op.body)
          forward += inner.is(OpKind::matmul) && inner.operand(0)->type.dtype == DType::f8e4m3;
    EXPECT_GT(eights, 2);
    EXPECT_EQ(eights, forward);
    EXPECT_EQ(columns, 1) << "logits";
  }
}

// What stands behind a product of 8 bits and no call takes stays out of its group: a second residual, a factor of the
// logits, gates.
TEST(CublasLtMatmul, ProductsInEightBitsAreCallsInOtherModels) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt";
  const std::vector<std::string> small = {"model.n_layer=2",
                                          "model.n_embd=64",
                                          "model.n_head=4",
                                          "model.n_kv_head=4",
                                          "model.ffn_dim=128",
                                          "model.block_size=33",
                                          "model.vocab_size=67",
                                          "train.micro_batch=2",
                                          "precision.compute=bf16",
                                          "precision.fp8=all",
                                          "train.global_batch_tokens=66"};
  const std::vector<std::string> forms[] = {
      {},
      {"model.dropout=0.1"},
      {"model.parallel_residual=true", "model.dropout=0"},
      {"model.logit_softcap=30"},
      {"model.activation=swiglu", "model.norm=rmsnorm", "model.position=rope"},
      {"model.norm_position=post", "model.causal=false", "model.embedding_norm=true"},
      {"model.norm_position=both"},
      {"model.head_bias=true", "precision.residual=compute"}};
  for (const std::vector<std::string> &form : forms) {
    std::vector<std::string> settings = small;
    settings.insert(settings.end(), form.begin(), form.end());
    const std::unique_ptr<Module> m = exampleForTarget("gpt2-124m", settings, target);
    const std::string name = form.empty() ? "plain" : form[0];
    int eights = 0;
    for (const Op &op : m->function("train_step")->body) {
      if (!op.is(OpKind::fused))
        continue;
      bool isEight = false;
      for (const Op &inner : *op.body)
        isEight |= inner.is(OpKind::matmul) && inner.operand(0)->type.dtype == DType::f8e4m3;
      eights += isEight;
      if (isEight) {
        EXPECT_TRUE(matchCublasLtMatmul(op)) << name << "\n" << print(op);
      }
    }
    EXPECT_EQ(eights, name == "model.activation=swiglu" ? 11 : 9) << name;
  }
}

// Zeros in padding are part of the product, so that no extent is odd: of the classifier's weight, which is a state, and
// of the gradient of its logits, which the row recipe stores. Of anything else nothing is known.
TEST(CublasLtMatmul, TakesPaddingThatIsZero) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt";
  for (const char *compute : {"fp32", "bf16"})
    for (bool tied : {true, false}) {
      SmallGpt o;
      o.width = 8, o.tied = tied;
      auto m = smallGpt(o);
      m->attrs.set("compute", std::string(compute));
      m->attrs.set("residual", std::string("compute"));  // so that all products are calls
      runPipeline(
          *m, parsePipeline("pad-vocab{multiple=8},autodiff,optimizer,canonicalize,cse,dce,precision,fuse", &target),
          {});
      int columns = 0, rows = 0, inner = 0;
      for (Op &op : m->function("train_step")->body) {
        const auto l = op.is(OpKind::fused) ? matchCublasLtMatmul(op) : std::nullopt;
        if (!l)
          continue;
        for (int64_t extent : {l->m, l->n, l->k})
          EXPECT_EQ(extent % 8, 0) << print(op);
        const std::vector<Tensor> operands = exactOperands(op);
        const bool padded =
            llvm::any_of(operands, [](const Tensor &t) { return t.type.elements() < t.type.paddedElements(); });
        expectMeaning(op, *l, operands, 0);
        const Type &d = op.result(l->d.param - op.numOperands())->type;
        columns += d.dim(-1) < d.padded(-1);
        rows += d.dim(0) < d.padded(0);
        inner += padded && d.elements() == d.paddedElements();
      }
      EXPECT_EQ(columns, 1) << "logits";
      EXPECT_EQ(rows, 1) << "the weight's gradient";
      EXPECT_EQ(inner, 1) << "the gradient of the classifier's input";
    }
}

}  // namespace
}  // namespace gptc::test
