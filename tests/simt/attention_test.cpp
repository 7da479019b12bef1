// Attention statements: their text on the host against what they mean, in every form that there is, and with faults.
//
// The tolerance is the bound of the meaning's own errors (ir/kernel/bound.h), which rounds where the text does, four
// times:
//   - a step of a tensor core rounds once, by at most a unit in the last place (kir::evalMma), where the meaning does
//     so 8 or 16 times by half of one: these errors are no larger;
//   - online softmax rounds a sum once more for each piece of columns, where the meaning adds 16 or more elements;
//   - the argument of the exponential is rounded in other places, but not in more than four for the meaning's two, and
//     the exponential and the factor before it have up to two units instead of one.
// tf32 also rounds operands: twice 2^-11 of each, as both factors of the second product come from rounded ones.
#include "simt.h"

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/nvrtc.h"
#include "ir/element.h"
#include "ir/kernel/bound.h"
#include "ir/ops/op_support.h"
#include "support/diagnostics.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"
#include "tests/unit/codegen/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

namespace gptc::test {
namespace {

struct Problem {
  DType type = DType::f32;
  int64_t batch = 1, tokens = 40, heads = 2, keyHeads = 2, size = 16;
  bool causal = true, alibi = false;
  double p = 0;
  const char *target = "cuda:sm_90a";
  std::string schedule;  // "": the default
  bool tf32 = false;
  int64_t head0 = -1, ofHeads = 0;  // -1: these are all heads
  double scale = 0, softcap = 0;
  int64_t window = 0;
};

std::string describe(const Problem &n) {
  return fmt::format("{}[{},{}] heads {}/{} from {} of {} size {}{}{} p {} {} {}{} scale {} softcap {} window {}",
                     nameOf(n.type).str(), n.batch, n.tokens, n.heads, n.keyHeads, n.head0, n.ofHeads, n.size,
                     n.causal ? " causal" : "", n.alibi ? " alibi" : "", n.p, n.target, n.schedule,
                     n.tf32 ? " tf32" : "", n.scale, n.softcap, n.window);
}

struct Case {
  Problem problem;
  Group group;
  std::vector<Tensor> operands;
  kir::Kernel kernel;
  std::vector<std::vector<double>> content;  // of all parameters before
};

Tensor normals(const Type &t, std::mt19937 &rng) {
  std::normal_distribution<double> normal;
  Tensor r(t);
  for (double &v : r.data)
    v = roundTo(t.dtype, normal(rng));
  return r;
}

Case makeCase(const Problem &n, bool backward, unsigned seed,
              const std::function<void(std::vector<Tensor> &)> &change = nullptr) {
  std::mt19937 rng(seed);
  AttrMap at = attrs({{"n_head", n.heads}, {"n_kv_head", n.keyHeads}, {"causal", n.causal}});
  if (n.alibi)
    at.set("alibi", true);
  if (n.tf32)
    at.set("tf32", true);
  if (n.scale != 0)
    at.set("scale", n.scale);
  if (n.softcap != 0)
    at.set("softcap", n.softcap);
  if (n.window)
    at.set("window", n.window);
  std::vector<Tensor> operands = {normals(Type(n.type, {n.batch, n.tokens, (n.heads + 2 * n.keyHeads) * n.size}), rng)};
  if (change)
    change(operands);
  if (n.p > 0) {
    at.set("p", n.p);
    at.set("stream", int64_t(7));
    for (int64_t v : {3, 11, 5})
      operands.push_back(Tensor::scalar(double(v), DType::i64));
  }
  if (n.head0 >= 0) {
    at.set("of_heads", n.ofHeads);
    operands.push_back(Tensor::scalar(double(n.head0), DType::i64));
  }
  auto typesOf = [](const std::vector<Tensor> &tensors) {
    std::vector<Type> types;
    for (const Tensor &t : tensors)
      types.push_back(t.type);
    return types;
  };
  Case c;
  c.problem = n;
  c.group = groupOf(OpKind::attention, typesOf(operands), at, {});
  if (backward) {
    for (const Op &op : *c.group.fused->body)
      if (op.is(OpKind::attention)) {
        std::vector<const Tensor *> in;
        for (const Tensor &t : operands)
          in.push_back(&t);
        std::vector<Tensor> results = op.def().reference(op, in);
        for (Tensor &t : results)
          for (double &v : t.data)
            v = roundTo(t.type.dtype, v);
        std::vector<Tensor> all = {normals(results[0].type, rng), operands[0], results[0], results[1]};
        all.insert(all.end(), operands.begin() + 1, operands.end());
        operands = std::move(all);
        break;
      }
    c.group = groupOf(OpKind::attention_grad, typesOf(operands), at, {});
  }
  c.operands = std::move(operands);
  const Target target = cudaTarget(n.target);
  Schedule s = defaultSchedule(*c.group.fused, target);
  if (!n.schedule.empty()) {
    EXPECT_TRUE(Schedule::parse((backward ? "attention_grad " : "attention ") + n.schedule, s)) << n.schedule;
  }
  c.kernel = lowerGroup(*c.group.fused, s, target).kernel;
  EXPECT_EQ(kir::verify(c.kernel), std::vector<std::string>()) << kir::print(c.kernel);
  for (const Tensor &t : c.operands)
    c.content.push_back(t.data);
  while (c.content.size() < c.kernel.params.size())
    c.content.push_back(
        std::vector<double>(c.kernel.params[c.content.size()]->size, std::numeric_limits<double>::quiet_NaN()));
  if (n.p > 0)
    c.content.back() = {7};
  return c;
}

/// What is in memory afterwards, or what went wrong.
std::string runText(const Case &c, const simt::HostModule &module, const CudaKernel &text, bool backwards,
                    std::vector<std::vector<double>> &content) {
  content = c.content;
  std::vector<DeviceBuffer> memory;
  std::vector<simt::Param> params;
  for (size_t i = 0; i < content.size(); ++i)
    memory.emplace_back(c.kernel.params[i], content[i]);
  for (size_t i = 0; i < content.size(); ++i) {
    const kir::BufferNode &b = *c.kernel.params[i];
    params.push_back({b.name, memory[i].data(), b.size * int64_t(sizeOf(b.dtype)), b.written});
  }
  for (const CudaPhase &p : text.phases)
    if (std::string found = simt::launch(module.find(p.symbol), params, p.blocks, p.threads, backwards, p.sharedBytes);
        !found.empty())
      return found;
  for (size_t i = 0; i < content.size(); ++i)
    content[i] = memory[i].values();
  return "";
}

std::vector<std::vector<kir::Bounded>> boundsOf(const Case &c) {
  std::vector<std::vector<kir::Bounded>> bounds = withoutErrors(c.content);
  if (c.problem.tf32)
    for (size_t i = 0; i < c.operands.size(); ++i)
      if (c.operands[i].type.dtype == DType::f32 && c.operands[i].type.rank() == 3)
        for (kir::Bounded &b : bounds[i])
          b.error = 0x1p-10 * std::abs(b.value);
  kir::boundErrors(c.kernel, bounds);
  return bounds;
}

/// The first element of a result that is outside of its bound; "" when there is none.
std::string compare(const Case &c, const std::vector<std::vector<kir::Bounded>> &bounds,
                    const std::vector<std::vector<double>> &got, int64_t *judged = nullptr) {
  for (size_t i = c.operands.size(); i < c.operands.size() + c.group.fused->numResults(); ++i)
    for (size_t k = 0; k < got[i].size(); ++k) {
      const auto [want, error] = bounds[i][k];
      if (std::isfinite(want) != std::isfinite(got[i][k]) ||
          (std::isfinite(want) && std::isfinite(error) && std::abs(got[i][k] - want) > 4 * error))
        return fmt::format("element {} of {} is {}, not {} +- 4 * {}", k, c.kernel.params[i]->name, got[i][k], want,
                           error);
      if (judged && std::isfinite(want) && std::isfinite(error) && error < 0.2 * std::abs(want) + 0.05)
        ++*judged;
    }
  return "";
}

void check(const std::vector<Case> &cases, const std::string &options = "") {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  std::string text;
  std::vector<std::string> symbols;
  std::vector<CudaKernel> kernels;
  for (const Case &c : cases) {
    kernels.push_back(emitCuda(c.kernel, fmt::format("k{}", kernels.size())));
    text += kernels.back().text;
    for (const CudaPhase &p : kernels.back().phases)
      symbols.push_back(p.symbol);
  }
  const simt::HostModule module(text, symbols, options);
  for (size_t n = 0; n < cases.size(); ++n) {
    const Case &c = cases[n];
    SCOPED_TRACE(describe(c.problem) + "\n" + kir::print(c.kernel));
    std::vector<std::vector<double>> forwards, other;
    ASSERT_EQ(runText(c, module, kernels[n], false, forwards), "");
    ASSERT_EQ(runText(c, module, kernels[n], true, other), "");
    for (size_t i = c.operands.size(); i < c.operands.size() + c.group.fused->numResults(); ++i)
      for (size_t k = 0; k < forwards[i].size(); ++k)
        ASSERT_TRUE(sameNumber(forwards[i][k], other[i][k])) << "backwards, element " << k;
    int64_t judged = 0;
    ASSERT_EQ(compare(c, boundsOf(c), forwards, &judged), "");
    EXPECT_GT(judged, int64_t(forwards[c.operands.size()].size() * 9 / 10));
  }
}

std::vector<Case> bothDirections(const std::vector<Problem> &problems) {
  std::vector<Case> cases;
  OneIn some(3);
  for (const Problem &n : problems)
    for (bool backward : {false, true}) {
      if (some.skips())
        continue;
      Problem m = n;
      if (!m.schedule.empty() && backward)
        m.schedule += " qb=16 kb=32";
      cases.push_back(makeCase(m, backward, unsigned(cases.size())));
    }
  return cases;
}

TEST(CudaAttention, EveryForm) {
  check(bothDirections({
      {.type = DType::bf16},
      {.type = DType::f16, .alibi = true},
      {.type = DType::f32, .tf32 = true},
      {.type = DType::f32, .alibi = true},
      {.type = DType::bf16, .heads = 4, .keyHeads = 2, .p = 0.25},
      {.type = DType::f16, .heads = 3, .keyHeads = 1, .causal = false, .p = 0.5},
      {.type = DType::f32, .heads = 6, .keyHeads = 2, .causal = false, .alibi = true, .p = 0.25, .tf32 = true},
      {.type = DType::f32, .batch = 2, .heads = 3, .keyHeads = 3, .causal = false, .alibi = true, .p = 0.1},
      {.type = DType::bf16, .target = "cuda:sm_75"},
      {.type = DType::f16, .target = "cuda:sm_75"},
      // Some of all heads; the last of so many that an index takes 64 bits.
      {.type = DType::f16, .heads = 3, .keyHeads = 1, .alibi = true, .head0 = 6, .ofHeads = 12},
      {.type = DType::bf16, .p = 0.25, .head0 = 2, .ofHeads = 4},
      {.type = DType::f32, .causal = false, .alibi = true, .p = 0.1, .head0 = 4, .ofHeads = 8},
      {.type = DType::f32, .p = 0.3, .head0 = (1 << 24) - 2, .ofHeads = 1 << 24},
  }));
}

// 2^v as CUDA computes it, and sums of tensor cores in another order: what follows from the operations still holds.
TEST(CudaAttention, FunctionsTwoUlpsOffAreWithinTheBounds) {
  check(bothDirections({
            {.type = DType::bf16},
            {.type = DType::f16, .alibi = true},
            {.type = DType::f32, .tf32 = true},
            {.type = DType::bf16, .heads = 4, .keyHeads = 2, .p = 0.25},
        }),
        "-DGPTC_PERTURB");
}

TEST(CudaAttention, Sizes) {
  // Head sizes that need zeros behind, that no 16 bytes divide, and the largest; numbers of tokens around the tiles.
  check(bothDirections({
      {.type = DType::bf16, .tokens = 1, .heads = 1, .keyHeads = 1, .size = 8},
      {.type = DType::bf16, .tokens = 65, .heads = 1, .keyHeads = 1, .size = 40},
      {.type = DType::f16, .tokens = 33, .heads = 1, .keyHeads = 1, .size = 7},
      {.type = DType::f32, .tokens = 37, .heads = 2, .keyHeads = 1, .size = 20, .tf32 = true},
      {.type = DType::f32, .tokens = 31, .heads = 1, .keyHeads = 1, .size = 5},
      {.type = DType::bf16, .tokens = 129, .heads = 1, .keyHeads = 1, .size = 64},
      {.type = DType::f16, .tokens = 70, .heads = 1, .keyHeads = 1, .size = 128, .p = 0.1},
  }));
}

TEST(CudaAttention, Schedules) {
  std::vector<Problem> problems;
  for (const char *s : {"threads=32 mr=16 nr=16 stages=1", "threads=64 mr=32 nr=16 stages=2",
                        "threads=96 mr=16 nr=48 stages=2", "threads=64 mr=16 nr=64 stages=1"}) {
    problems.push_back({.type = DType::bf16, .tokens = 77, .schedule = std::string(s) + " mma=1"});
    problems.push_back({.type = DType::f32, .tokens = 50, .p = 0.2, .schedule = s});
  }
  check(bothDirections(problems));
}

// Windows that end within a piece, at its edge, and pieces that no row of a tile sees; caps on scores, with everything
// else.
TEST(CudaAttention, ScalesCapsAndWindows) {
  check(bothDirections({
      {.type = DType::bf16, .tokens = 129, .heads = 1, .keyHeads = 1, .window = 20},
      {.type = DType::f16, .tokens = 129, .heads = 2, .keyHeads = 1, .size = 64, .window = 1},
      {.type = DType::bf16, .tokens = 160, .heads = 1, .keyHeads = 1, .window = 64},
      {.type = DType::f32, .tokens = 80, .scale = 0.3, .window = 33},
      {.type = DType::f32, .tf32 = true, .softcap = 2},
      {.type = DType::bf16, .causal = false, .softcap = 1.5},
      {.type = DType::f16,
       .tokens = 90,
       .heads = 4,
       .keyHeads = 2,
       .p = 0.25,
       .scale = 0.3,
       .softcap = 3,
       .window = 31},
      {.type = DType::f32, .tokens = 70, .alibi = true, .softcap = 3, .window = 17},
      {.type = DType::bf16, .tokens = 77, .alibi = true, .target = "cuda:sm_75", .softcap = 5, .window = 40},
      {.type = DType::bf16,
       .tokens = 150,
       .heads = 1,
       .keyHeads = 1,
       .schedule = "threads=64 mr=32 nr=16 stages=2 mma=1",
       .window = 40},
      {.type = DType::bf16,
       .tokens = 150,
       .heads = 1,
       .keyHeads = 1,
       .schedule = "threads=64 mr=16 nr=64 stages=1 mma=1",
       .window = 70},
  }));
}

// What a mask hides is not looked at, even where it is no number.
TEST(CudaAttention, HiddenNonFiniteRows) {
  std::vector<Case> cases;
  for (const Problem &n : {Problem{.type = DType::bf16, .tokens = 80},
                           {.type = DType::f32, .tokens = 80},
                           {.type = DType::bf16, .tokens = 80, .window = 20}})
    for (bool backward : {false, true}) {
      cases.push_back(makeCase(n, backward, 5, [&](std::vector<Tensor> &operands) {
        const int64_t width = 6 * n.size;
        for (int64_t x = 0; x < width; ++x)  // all of row 70; queries and values of row 33, in one head
          operands[0].data[70 * width + x] = std::numeric_limits<double>::quiet_NaN();
        operands[0].data[33 * width + 3] = std::numeric_limits<double>::infinity();
        operands[0].data[34 * width + 4 * n.size + 2] = std::numeric_limits<double>::quiet_NaN();
      }));
    }
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  for (const Case &c : cases) {
    const CudaKernel text = emitCuda(c.kernel, "k");
    std::vector<std::string> symbols;
    for (const CudaPhase &p : text.phases)
      symbols.push_back(p.symbol);
    const simt::HostModule module(text.text, symbols);
    std::vector<std::vector<double>> got;
    ASSERT_EQ(runText(c, module, text, false, got), "");
    EXPECT_EQ(compare(c, boundsOf(c), got), "") << describe(c.problem);
  }
}

// One query of so large elements that multiplying its scores rounds by more than what exponentials can take: its row is
// the value of its largest score, and no other row changes a bit. Both ways, the second from what the first left.
TEST(CudaAttention, HugeScores) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  struct Tried {
    Problem problem;
    double huge;
    Case before[2], after[2];  // forward, backward; without and with
  };
  std::vector<Tried> tried;
  std::string text;
  std::vector<std::string> symbols;
  std::vector<CudaKernel> kernels;
  const int64_t planted = 30, head = 1;
  for (const Problem &n : {Problem{.type = DType::bf16, .size = 16},
                           {.type = DType::bf16, .size = 24, .alibi = true},
                           {.type = DType::f16, .size = 16, .causal = false},
                           {.type = DType::f32, .size = 24},
                           {.type = DType::f32, .size = 12, .causal = false, .alibi = true},
                           {.type = DType::f32, .size = 20, .tf32 = true}})
    for (double huge : {1e6, -1e30}) {
      if (n.type == DType::f16)
        huge = huge > 0 ? 2e4 : -2e4;  // there is not more
      const int64_t width = (n.heads + 2 * n.keyHeads) * n.size;
      auto plant = [&](std::vector<Tensor> &operands) {
        for (int64_t x = 0; x < n.size; ++x)
          operands[0].data[planted * width + head * n.size + x] = roundTo(n.type, huge * (1 + double(x % 3)));
      };
      Tried t{n,
              huge,
              {makeCase(n, false, 9), makeCase(n, true, 9)},
              {makeCase(n, false, 9, plant), makeCase(n, true, 9, plant)}};
      if (huge > 0)
        for (const Case &c : t.before) {
          kernels.push_back(emitCuda(c.kernel, fmt::format("k{}", kernels.size())));
          text += kernels.back().text;
          for (const CudaPhase &p : kernels.back().phases)
            symbols.push_back(p.symbol);
        }
      tried.push_back(std::move(t));
    }
  const simt::HostModule module(text, symbols);
  for (size_t i = 0; i < tried.size(); ++i) {
    Tried &t = tried[i];
    const Problem &n = t.problem;
    SCOPED_TRACE(fmt::format("{} of {}", describe(n), t.huge));
    const CudaKernel &forward = kernels[i / 2 * 2], &backward = kernels[i / 2 * 2 + 1];
    auto both = [&](Case(&c)[2], std::vector<std::vector<double>> &out, std::vector<std::vector<double>> &grad) {
      ASSERT_EQ(runText(c[0], module, forward, false, out), "");
      c[1].content[2] = out[1], c[1].content[3] = out[2];
      ASSERT_EQ(runText(c[1], module, backward, false, grad), "");
    };
    std::vector<std::vector<double>> outBefore, gradBefore, out, grad;
    both(t.before, outBefore, gradBefore);
    both(t.after, out, grad);
    const std::vector<Tensor> want = interpretFused(*t.after[0].group.fused, t.after[0].operands);
    std::vector<Tensor> operands = t.after[1].operands;
    operands[2] = want[0], operands[3] = want[1];
    const Tensor exact = interpretFused(*t.after[1].group.fused, operands)[0];
    for (int64_t row = 0; row < n.tokens; ++row)
      for (int64_t h = 0; h < n.heads; ++h) {
        const bool here = row == planted && h == head;
        for (int64_t x = 0; x < n.size; ++x) {
          const int64_t at = (row * n.heads + h) * n.size + x;
          if (here) {  // tf32 rounds values
            ASSERT_NEAR(out[1][at], want[0].data[at], (n.tf32 ? 0x1p-10 : 0) * std::fabs(want[0].data[at]));
          } else {
            ASSERT_EQ(out[1][at], outBefore[1][at]) << "row " << row << " of head " << h;
          }
        }
        const int64_t at = h * n.tokens + row;
        if (here) {
          ASSERT_NEAR(out[2][at] / want[1].data[at], 1, n.tf32 ? 1e-2 : 1e-5);
        } else {
          ASSERT_EQ(out[2][at], outBefore[2][at]);
        }
      }
    const int64_t width = (n.heads + 2 * n.keyHeads) * n.size;
    for (size_t k = 0; k < exact.data.size(); ++k) {
      const double got = grad[4][k];
      ASSERT_TRUE(std::isfinite(got) || n.type == DType::f16) << k;  // f16 may not have it
      const int64_t row = int64_t(k) / width, at = int64_t(k) % width / n.size;
      if (at >= n.heads + n.keyHeads) {
        ASSERT_NEAR(got, exact.data[k], n.type == DType::f32 && !n.tf32 ? 1e-4 : 0.1) << "of values";
      } else if (at < n.heads && (row != planted || at != head)) {
        ASSERT_EQ(got, gradBefore[4][k]) << "of other queries";
      }
    }
  }
}

// A fault in the text: what takes its place is found by the machinery around the threads, or by a wrong result.
struct Fault {
  const char *what, *from, *to;
};
constexpr Fault faults[] = {
    {"no barrier in front of a piece", "    barrier();\n    f(piece", "    f(piece"},
    {"no barrier behind a piece", "    barrier();  // the place is free\n", ""},
    {"a wait for all but two", "asyncWait<STAGES == 1 ? 0 : 1>()", "asyncWait<STAGES == 1 ? 1 : 2>()"},
    {"no commit", "    asyncCommit();\n    asyncWait", "    asyncWait"},
    {"the next piece to the same place", "fetch(piece + 1, (piece + 1) % STAGES)", "fetch(piece + 1, piece % STAGES)"},
    {"a row too far", "to, r * S::LD + c, from", "to, (r + 1) * S::LD + c, from"},
    {"rows of pieces from one too far", "(long long)(first + r) * stride + c : 0ll, valid",
     "(long long)(first + r + 1) * stride + c : 0ll, valid"},
    {"the diagonal is hidden", "j <= i", "j < i"},
    {"one behind the diagonal is seen", "j <= i", "j <= i + 1"},
    {"a mask only where the diagonal is passed", "column + C::N > row + 1)", "column + C::N > row + 2 + C::N)"},
    {"the other half of rows", "s[h / 2][j][h % 2 * 2 + e] = -infinity",
     "s[h / 2][j][(1 - h % 2) * 2 + e] = -infinity"},
    {"no maximum over the quad", "m = maximum(m, shuffleXor(m, 2));", ""},
    {"no sum over the quad", "sum[h] += shuffleXor(sum[h], 2);", ""},
    {"sums are not scaled again", "acc[h / 2][d][h % 2 * 2] *= again, ", ""},
    {"columns of the second product turned", "lane / 16 * 8);\n        const unsigned left[2]",
     "(1 - lane / 16) * 8);\n        const unsigned left[2]"},
    {"operands of the second product turned", "s[i][k + r / 2][r % 2 * 2]", "s[i][k + r % 2][r / 2 * 2]"},
    {"fragments of rows from one column on", "k + lane / 16 * S::PIECE", "k + (1 - lane / 16) * S::PIECE"},
    {"fragments of columns from the wrong row", "(j * 8 + lane / 16 * 8 + lane % 8)", "(j * 8 + lane % 16)"},
    {"delta is added", "d * C::KEPT : 0.0f) - of.v[1]", "d * C::KEPT : 0.0f) + of.v[1]"},
    {"lse of the neighbour", "(j * 8 + lane % 4 * 2 + e) * 2);", "(j * 8 + lane % 4 * 2 + (e ^ 1)) * 2);"},
    {"dropped probabilities stay for dv", "p = keeps ? p : 0.0f;", ""},
    {"dropout of another query", "((Index)(head0 + head) * C::TOKENS + query)",
     "((Index)(head0 + head) * C::TOKENS + query + 1)"},
    {"a head of keys too far", "head / (C::HEADS / C::KEY_HEADS)", "head % C::KEY_HEADS"},
    {"queries of other heads", "keyHead * SHARE + piece / perHead", "piece / perHead"},
    {"a piece of keys too few", "(seen + C::N - 1) / C::N", "seen / C::N"},
    {"the last rows are lost", "r < C::TOKENS) {", "r < C::TOKENS - 1) {"},
    {"rows behind the last are stored", "    if (r < C::TOKENS) {", "    {"},
    {"the first key of a window is hidden", "j > i - C::WINDOW", "j > i - C::WINDOW + 1"},
    {"one before the window is seen", "j > i - C::WINDOW", "j >= i - C::WINDOW"},
    {"a window begins a piece too late", "maximum(i + 1 - C::WINDOW, 0)", "maximum(i + 1 - C::WINDOW, 0) + C::N"},
    {"windows are not masked", "C::WINDOW != 0 && column < i + rows - C::WINDOW", "false"},
    {"windows of queries are not masked for keys", "(C::WINDOW != 0 && column + C::N > row + C::WINDOW) ||", ""},
    {"the last queries of a window are lost", "minimum(first + S::ROWS - 1 + C::WINDOW, C::TOKENS)",
     "minimum(first + C::WINDOW, C::TOKENS)"},
    {"a warp looks away too early", "column < row + C::M * 16 - 1 + C::WINDOW", "column < row + C::WINDOW"},
    {"a cap has another unit", "caps * (C::MMA ? C::CAP * 0x1.715476p+0f : C::CAP)", "caps * C::CAP"},
    {"a cap without its derivative", "fusedMultiplyAdd(-caps, caps, 1.0f)", "1.0f"},
    {"slopes without their sign", "C::CAUSAL ? (float)ahead :", "C::CAUSAL ? -(float)ahead :"},
    {"pieces are not searched", "if (!barrierOr(found))\n    return;", "return;"},
    {"no zeros in place of what was found", "      store(b, place, 0.0f);", "      ;"},
    {"no barrier before zeros are stored", "    });\n  barrier();\n#pragma unroll 1", "    });\n#pragma unroll 1"},
    {"no barrier behind zeros", "store(b, place, 0.0f);\n  }\n  barrier();", "store(b, place, 0.0f);\n  }\n"},
};

TEST(CudaAttention, FaultsAreFound) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  std::vector<Case> cases;
  for (bool backward : {false, true}) {
    const std::string schedule = "threads=64 mr=16 nr=32 stages=2 mma=1";
    cases.push_back(makeCase({.type = DType::bf16,
                              .tokens = 70,
                              .heads = 4,
                              .alibi = true,
                              .p = 0.25,
                              .schedule = schedule + (backward ? " qb=16 kb=32" : "")},
                             backward, 1, [](std::vector<Tensor> &operands) {
                               const int64_t width = 8 * 16;
                               operands[0].data[69 * width + 6 * 16 + 1] = std::numeric_limits<double>::quiet_NaN();
                               operands[0].data[40 * width + 1] = std::numeric_limits<double>::infinity();
                             }));
    cases.push_back(makeCase({.type = DType::bf16,
                              .tokens = 110,
                              .heads = 2,
                              .keyHeads = 1,
                              .schedule = schedule + (backward ? " qb=16 kb=32" : ""),
                              .softcap = 1.5,
                              .window = 41},
                             backward, 2));
  }
  std::vector<std::vector<std::vector<kir::Bounded>>> bounds;
  for (const Case &c : cases)
    bounds.push_back(boundsOf(c));
  size_t found = 0, tried = 0;
  OneIn some(4);
  for (const Fault &f : faults) {
    if (some.skips())
      continue;
    ++tried;
    std::string outcome;
    bool stands = false;
    for (size_t n = 0; n < cases.size() && outcome.empty(); ++n) {
      CudaKernel text = emitCuda(cases[n].kernel, "k");
      std::vector<std::string> symbols;
      for (const CudaPhase &p : text.phases)
        symbols.push_back(p.symbol);
      for (size_t at = 0; (at = text.text.find(f.from, at)) != std::string::npos; at += std::strlen(f.to)) {
        text.text.replace(at, std::strlen(f.from), f.to);
        stands = true;
      }
      const simt::HostModule module(text.text, symbols);
      std::vector<std::vector<double>> got;
      outcome = runText(cases[n], module, text, false, got);
      if (outcome.empty())
        outcome = compare(cases[n], bounds[n], got);
    }
    EXPECT_TRUE(stands) << f.what << ": the text has changed";
    found += !outcome.empty();
    if (outcome.empty())
      std::printf("not found: %s\n", f.what);
  }
  std::printf("planted faults, attention: %zu of %zu noticed\n", found, tried);
  // At least 95 in a hundred.
  EXPECT_GE(100 * found, 95 * tried);
}

constexpr const char *gpus[] = {"cuda:sm_75",  "cuda:sm_80",  "cuda:sm_86", "cuda:sm_89",
                                "cuda:sm_90a", "cuda:sm_100", "cuda:sm_120"};

class NvrtcAttention : public testing::TestWithParam<const char *> {};

// A few shapes for each target, one program each: no spills, and room for two blocks on a multiprocessor.
TEST_P(NvrtcAttention, CompilesWithoutSpills) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  const Target target = cudaTarget(GetParam());
  std::string text;
  int number = 0;
  OneIn some(3);  // of each, two GPUs at least: its neighbours begin with the next
  for (const char *const *gpu = gpus; llvm::StringRef(*gpu) != GetParam(); ++gpu)
    some.skips();
  for (const Problem &n : {Problem{.type = DType::bf16, .tokens = 256, .size = 64, .p = 0.2},
                           Problem{.type = DType::f16, .tokens = 256, .size = 128, .alibi = true, .p = 0.1},
                           Problem{.type = DType::f32, .tokens = 256, .size = 64, .tf32 = true},
                           Problem{.type = DType::bf16, .tokens = 256, .size = 128, .softcap = 50, .window = 100},
                           Problem{.type = DType::f16, .tokens = 256, .size = 64, .p = 0.1, .softcap = 50}})
    for (bool backward : {false, true}) {
      if (some.skips())
        continue;
      Problem m = n;
      m.target = GetParam();
      Case c = makeCase(m, backward, 1);
      const CudaKernel kernel = emitCuda(c.kernel, fmt::format("k{}", number++));
      text += kernel.text;
      for (const CudaPhase &p : kernel.phases)
        EXPECT_LE(p.sharedBytes, target.sharedBytes);
    }
  const CompiledCuda c = nvrtc->compile(text, target);
  EXPECT_EQ(c.spilledBytes, 0) << c.log;
}
INSTANTIATE_TEST_SUITE_P(Targets, NvrtcAttention, testing::ValuesIn(gpus),
                         [](const auto &i) { return std::string(i.param).substr(5); });

}  // namespace
}  // namespace gptc::test
