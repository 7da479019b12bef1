// Matmul on CUDA: tiles of every kind at their edges, every order of operands, what stands around them; and that a
// barrier, a wait or an index that is not as it should be is found.
#include "cases.h"

#include "codegen/cuda/nvrtc.h"
#include "ir/element.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <regex>

namespace gptc::test {
namespace {

struct Shape {
  int64_t m, n, k;
  const char *type = "f32";
  bool ta = false, tb = false;
  int64_t fold = 0, batch = 1;
  bool init = false;
  const char *epilogue = "";  // of %2 : OUT, yielding %y
};

Case matmulCase(const Shape &s, std::optional<Schedule> schedule = {}, const char *gpu = "cuda:sm_90a") {
  const std::string batch = s.batch > 1 ? fmt::format("{},", s.batch) : "";
  auto type = [&](const char *t, int64_t rows, int64_t cols) {
    return fmt::format("{}[{}{},{}]", t, batch, rows, cols);
  };
  const bool tf32 = s.type == std::string("tf32");
  const char *stored = tf32 ? "f32" : s.type;
  const std::string a = s.ta ? type(stored, s.k, s.m) : type(stored, s.m, s.k);
  const std::string b = s.tb ? type(stored, s.n, s.k) : type(stored, s.k, s.n), y = type("f32", s.m, s.n);
  std::string attrs = "out=\"f32\"";
  if (s.ta)
    attrs += ", ta=true";
  if (s.tb)
    attrs += ", tb=true";
  if (s.batch > 1)
    attrs += ", batch=1";
  if (s.fold)
    attrs += fmt::format(", fold={}", s.fold);
  if (tf32)
    attrs += ", tf32=true";
  std::string args = fmt::format("%a: {}; %b: {}", a, b);
  if (s.init)
    args += "; %i: " + y;
  std::string body = fmt::format("%s = matmul %a, %b{} {{{}}} : {}\n", s.init ? ", %i" : "", attrs, y);
  std::string after = s.epilogue;
  if (after.empty())
    body += "yield %s";
  else
    body += std::regex_replace(after, std::regex("OUT"), y);
  const size_t bias = after.find("%bias");
  if (bias != std::string::npos)
    args += fmt::format("; %bias: f32[{}]", s.n);
  Group g = group("matmul", args, body);
  std::vector<Tensor> operands = randomOperands(g, unsigned(s.m * 7 + s.n * 3 + s.k));
  for (double &v : operands[1].data)  // so that sums are about as large as 1
    v = roundTo(operands[1].type.dtype, v * 0.125);
  return makeCase(std::move(g), std::move(operands), schedule, gpu);
}

Schedule tile(const char *text) {
  Schedule s;
  EXPECT_TRUE(Schedule::parse(text, s)) << text;
  return s;
}

// Small tiles, so that each edge comes soon: by tensor cores and by multiply-adds.
const char *const kMma = "matmul threads=128 mr=16 nr=16 mc=32 nc=32 kc=32 stages=3 mma=1";
const char *const kFma = "matmul threads=64 mr=4 nr=4 mc=32 nc=32 kc=8 stages=3";

TEST(CudaMatmul, EdgesOfTiles) {
  std::vector<Case> cases;
  for (const char *type : {"f32", "bf16"}) {
    const Schedule s = tile(*type == 'f' ? kFma : kMma);
    for (int64_t m : {1, 31, 32, 33, 127})
      cases.push_back(matmulCase({m, 33, 37, type}, s));
    for (int64_t n : {1, 2, 31, 32, 67})
      cases.push_back(matmulCase({33, n, 64, type}, s));
    for (int64_t k : {1, 7, 8, 31, 32, 33, 96, 101})
      cases.push_back(matmulCase({34, 36, k, type}, s));
  }
  check(cases);
}

TEST(CudaMatmul, OrdersOfOperands) {
  std::vector<Case> cases;
  for (const char *type : {"f32", "bf16", "f16", "tf32"})
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        const Schedule s = tile(*type == 'f' && type[1] == '3' ? kFma : kMma);
        // Rows that take copies of 16 bytes, of 8 and 4, and of single elements.
        cases.push_back(matmulCase({40, 48, 72, type, ta, tb}, s));
        cases.push_back(matmulCase({42, 34, 38, type, ta, tb}, s));
        cases.push_back(matmulCase({35, 37, 39, type, ta, tb}, s));
      }
  check(cases);
}

// f8e4m3 by multiply-adds: copies of 16 bytes, of 4, and of single elements.
TEST(CudaMatmul, EightBits) {
  std::vector<Case> cases;
  for (bool ta : {false, true})
    for (bool tb : {false, true}) {
      cases.push_back(matmulCase({48, 64, 80, "f8e4m3", ta, tb}));
      cases.push_back(matmulCase({36, 44, 52, "f8e4m3", ta, tb}));
      cases.push_back(matmulCase({35, 37, 39, "f8e4m3", ta, tb}));
    }
  check(cases);
}

TEST(CudaMatmul, FoldsBatchesAndInitialValues) {
  std::vector<Case> cases;
  for (const char *type : {"f32", "bf16", "tf32"}) {
    const Schedule s = tile(*type == 'f' ? kFma : kMma);
    cases.push_back(matmulCase({40, 36, 128, type, true, false, 32}, s));
    cases.push_back(matmulCase({33, 35, 100, type, true, false, 24, 1, true}, s));
    cases.push_back(matmulCase({33, 32, 90, type, true, false, 7, 1, true}, s));
    cases.push_back(matmulCase({20, 36, 24, type, false, true, 0, 3}, s));
    cases.push_back(matmulCase({33, 31, 40, type, true, true, 0, 3, true}, s));
    cases.push_back(matmulCase({64, 64, 64, type, false, false, 0, 1, true}, s));
  }
  check(cases);
}

TEST(CudaMatmul, WhatStandsAroundIt) {
  std::vector<Case> cases;
  const char *gelu = "%h = add %s, %bias : OUT\n%y = gelu_tanh %h : OUT\nyield %h, %y";
  for (const char *type : {"f32", "bf16"}) {
    cases.push_back(matmulCase({70, 96, 64, type, false, false, 0, 1, false, gelu}));
    cases.push_back(matmulCase({70, 97, 64, type, false, true, 0, 1, false, gelu}));
  }
  auto add = [&](const char *args, const char *body) {
    Group g = group("matmul", args, body);
    std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
    cases.push_back(makeCase(std::move(g), std::move(operands)));
  };
  // A padded vocabulary, a residual, dropout, a bias gradient.
  add("%a: bf16[2,33,64]; %b: bf16[129->136,64]", "%y = matmul %a, %b {tb=true} : bf16[2,33,129->136]\nyield %y");
  add("%a: bf16[2,33,64]; %b: bf16[64,40]; %r: bf16[2,33,40]; %seed: i64[]; %step: i64[]; %seq: i64[]",
      "%s = matmul %a, %b {out=\"f32\"} : f32[2,33,40]\n"
      "%d = dropout %s, %seed, %step, %seq {p=0.25, stream=3} : f32[2,33,40]\n"
      "%c = cast %r {dtype=\"f32\"} : f32[2,33,40]\n%h = add %c, %d : f32[2,33,40]\n"
      "%y = cast %h {dtype=\"bf16\"} : bf16[2,33,40]\nyield %y");
  for (const char *t : {"f32", "bf16"}) {
    const std::string args = fmt::format("%x: {0}[96,24]; %d: {0}[96,40]; %w: f32[24,40]; %v: f32[40]", t);
    std::string sum = "%d";
    std::string body = "%g = matmul %x, %d, %w {ta=true, fold=32, out=\"f32\"} : f32[24,40]\n";
    if (*t == 'b') {
      body += "%c = cast %d {dtype=\"f32\"} : f32[96,40]\n";
      sum = "%c";
    }
    body += fmt::format("%h = reduce_sum {}, %v {{lead=1, fold=32}} : f32[40]\nyield %g, %h", sum);
    add(args.c_str(), body.c_str());
  }
  check(cases);
}

// Where a compiler refuses the template: what multiplies one by one has the CPU's bits for bf16 and f16 too.
TEST(CudaMatmul, LoopTreesInItsPlace) {
  std::vector<Case> cases;
  for (const char *type : {"f32", "bf16", "tf32"}) {
    const Schedule s = tile(*type == 'f' ? kFma : kMma);
    cases.push_back(matmulCase({31, 33, 37, type, false, true}, s));
    cases.push_back(matmulCase({64, 32, 21, type}, s));
    cases.push_back(matmulCase({64, 36, 64, type, true, false, 32, 1, true}, s));
    cases.push_back(matmulCase({33, 35, 100, type, true, true, 24, 1, true}, s));
    cases.push_back(matmulCase({20, 36, 24, type, false, true, 0, 3, true}, s));
  }
  // More threads than patches; and a group whose bias gradient is a phase of its own.
  cases.push_back(matmulCase({17, 16, 8, "f32"}, tile("matmul threads=32 mr=4 nr=4 mc=16 nc=32 kc=8 stages=2")));
  Group g = group("matmul", "%x: f32[96,24]; %d: f32[96,40]",
                  "%g = matmul %x, %d {ta=true, fold=32, out=\"f32\"} : f32[24,40]\n"
                  "%h = reduce_sum %d {lead=1, fold=32} : f32[40]\nyield %g, %h");
  std::vector<Tensor> operands = randomOperands(g, 9);
  cases.push_back(makeCase(std::move(g), std::move(operands)));
  const size_t all = cases.size();
  cases = withLoopTrees(std::move(cases));
  EXPECT_EQ(cases.size(), all);
  check(cases);
}

// The default tiles of every kind, and the largest.
TEST(CudaMatmul, LargeTiles) {
  std::vector<Case> cases;
  for (const char *gpu : {"cuda:sm_75", "cuda:sm_90a"}) {
    for (const char *type : {"f32", "bf16", "f16"})
      cases.push_back(matmulCase({129, 200, 40, type}, {}, gpu));
    cases.push_back(matmulCase({130, 132, 64, "bf16", true, false, 32, 1, true}, {}, gpu));
  }
  for (const char *s : {"matmul threads=256 mr=64 nr=64 mc=128 nc=256 kc=32 stages=3 mma=1",
                        "matmul threads=128 mr=64 nr=64 mc=128 nc=128 kc=32 stages=4 mma=1",
                        "matmul threads=128 mr=64 nr=32 mc=128 nc=64 kc=64 stages=2 mma=1"})
    cases.push_back(matmulCase({140, 260, 80, "bf16", false, true}, tile(s)));
  check(cases);
}

/// One kernel of three stages, with sums that go on and fold; either has one operand in each order.
Case faultCase(bool mma) {
  return mma ? matmulCase({40, 72, 136, "bf16", true, false, 40, 1, true}, tile(kMma))
             : matmulCase({40, 70, 133, "f32", false, true, 40, 1, true}, tile(kFma));
}

TEST(CudaMatmul, FaultsAreNoticed) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  for (const bool mma : {false, true}) {
    const Case c = faultCase(mma);
    const CudaKernel whole = emitCuda(c.gpu, "k");
    std::vector<std::vector<double>> right;
    {
      const simt::HostModule module(whole.text, {whole.phases[0].symbol});
      ASSERT_EQ(runOnShim(c, module, whole, false, false, right), "");
    }
    auto noticed = [&](const CudaKernel &text) {
      return isNoticed(c, simt::HostModule(text.text, {text.phases[0].symbol}), text, right);
    };
    EXPECT_FALSE(noticed(whole));
    std::vector<std::pair<std::string, std::string>> faults = {
        {"asyncWait<STAGES - 2>", "asyncWait<STAGES - 1>"},
        {"piece < STAGES - 1; ++piece", "piece < STAGES; ++piece"},
        {"fetch(piece + STAGES - 1)", "fetch(piece + STAGES - 2)"},
        {"at = piece % STAGES * STAGE;\n    f(", "at = (piece + 1) % STAGES * STAGE;\n    f("},
        {"piece + STAGES - 1 < pieces.count", "piece + STAGES < pieces.count"},
        {"cols - c * E - v", "cols - c * E - v + 1"},
        {"== perFold - 1", "== perFold"},
        {"r * CHUNKS + swizzledChunk<CHUNKS>(r, c)) * E;", "r * CHUNKS + c) * E;"},
    };
    if (mma) {
      faults.push_back({"piece / perFold * fold", "piece / perFold * (fold + 1)"});
      faults.push_back({"lda, length, rows", "lda, length + 1, rows"});
      faults.push_back({"ldb, length, cols", "ldb, length, cols + 1"});
      faults.push_back({"(long long)k * lda + row", "(long long)k * lda + row + 1"});
      faults.push_back({"h * 4 + lane / 4", "h * 2 + lane / 4"});
      faults.push_back({"(IS_A ? matrix / 2 : matrix % 2)", "(IS_A ? matrix % 2 : matrix % 2)"});
    } else {
      faults.push_back({"== k ? piece * steps", "== k ? piece * (steps + 1)"});
      faults.push_back({"lda, rows, length", "lda, rows + 1, length"});
      faults.push_back({"ldb, cols, length", "ldb, cols, length + 1"});
      faults.push_back({"(long long)col * ldb + k", "(long long)col * ldb + k + 1"});
      faults.push_back({"steps(s, length - s)", "steps(s, length - s - 1)"});
      faults.push_back({"y + i * DOWN", "y + (i ^ 1) * DOWN + (i & 1)"});
    }
    const std::string word = "barrier();";
    // Each barrier in turn; this text must be the first at its place.
    const std::string other = mma ? "matmulFma(C &c" : "matmulMma(C &c";
    const size_t unused = whole.text.find(other), usedAgain = whole.text.find("\n}\n", unused);
    int tried = 0, found = 0;
    OneIn some(4);
    auto expectNoticed = [&](size_t at, size_t length, const std::string &by) {
      if (some.skips())
        return;
      CudaKernel broken = whole;
      broken.text.replace(at, length, by);
      ++tried;
      const bool is = noticed(broken);
      found += is;
      EXPECT_TRUE(is) << whole.text.substr(at - std::min<size_t>(at, 100), 100 + length) << " -> " << by;
    };
    for (const auto &[from, to] : faults) {
      const size_t at = whole.text.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      expectNoticed(at, from.size(), to);
    }
    for (size_t at = whole.text.find(word); at != std::string::npos; at = whole.text.find(word, at + 1))
      if (at < unused || at > usedAgain)
        expectNoticed(at, word.size(), ";");
    EXPECT_GE(tried, (int(faults.size()) + 5) / sized(4, 1));
    std::printf("planted faults, matmul by %s: %d of %d noticed\n", mma ? "tensor cores" : "multiply-adds", found,
                tried);
  }
}

TEST(CudaMatmul, CompilesForEveryGpuWithoutSpills) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  const std::pair<const char *, std::vector<const char *>> gpus[] = {
      {"cuda:sm_75", {"f16"}},          {"cuda:sm_80", {"f32", "bf16", "f16", "tf32"}}, {"cuda:sm_86", {"bf16"}},
      {"cuda:sm_89", {"bf16"}},         {"cuda:sm_90a", {"bf16", "f32", "f8e4m3"}},     {"cuda:sm_100", {"bf16"}},
      {"cuda:sm_120", {"bf16", "tf32"}}};
  OneIn some(3);
  for (const auto &[gpu, types] : gpus) {
    if (some.skips())
      continue;
    std::string text;
    int n = 0;
    for (const char *type : types)
      for (const Shape &s : {Shape{4096, 768, 768, type, false, true},
                             Shape{768, 3072, 4096, type, true, false, 256, 1, true}, Shape{1, 768, 768, type}})
        text += emitCuda(matmulCase(s, {}, gpu).gpu, fmt::format("k{}", n++)).text;
    const CompiledCuda out = nvrtc->compile(text, cudaTarget(gpu));
    EXPECT_EQ(out.spilledBytes, 0) << gpu << "\n" << out.log;
  }
}

}  // namespace
}  // namespace gptc::test
