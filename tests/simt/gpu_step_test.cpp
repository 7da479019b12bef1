// Forecasts of kernels and steps on a GPU from their machine code, which NVRTC makes and nvdisasm reads.
#include "examples.h"

#include "codegen/codegen.h"
#include "codegen/cuda/jit.h"
#include "codegen/cuda/nvrtc.h"
#include "ir/facts.h"
#include "passes/decisions.h"
#include "passes/pass.h"
#include "runtime/cuda/branches.h"
#include "runtime/device/binding.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tools/estimate/gpu_step.h"
#include "tools/planner/codegen_passes.h"
#include "tools/study/explain_gpu.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace gptc::test {
namespace {

class GpuStepTest : public testing::Test {
protected:
  void SetUp() override {
    std::string why;
    nvrtc = Nvrtc::find(why);
    if (!nvrtc)
      GTEST_SKIP() << why;
    if (findDisassembler().empty())
      GTEST_SKIP() << "no nvdisasm: tools/setup --cuda brings it";
  }
  const Nvrtc *nvrtc = nullptr;
  const GpuRates rates = gpuRatesOf(*gpuSheet("H200"));
};

/// Doubles rows of 256 KiB, each by a block.
struct Doubling {
  int threads = 256;
  const char *element = "float4";  // of an access
  int ahead = 4;                   // loads before the first store
  bool isChain = false;            // where the next element lies is known from the last one
  const char *pointers = "__restrict__";
};

class Doubled : public GpuStepTest {
protected:
  GpuLaunch launch(const Doubling &d) const {
    const std::string text =
        fmt::format(R"(
typedef {} E;
__device__ float4 twice(float4 v) {{ return make_float4(v.x + v.x, v.y + v.y, v.z + v.z, v.w + v.w); }}
__device__ float twice(float v) {{ return v + v; }}
__device__ unsigned short twice(unsigned short v) {{ return v + v; }}
__device__ int sign(float4 v) {{ return __float_as_int(v.x) >> 31; }}
__device__ int sign(float v) {{ return __float_as_int(v) >> 31; }}
__device__ int sign(unsigned short v) {{ return v >> 15; }}
extern "C" __global__ void __launch_bounds__({}) doubled(const E *{} x, E *{} y) {{
  constexpr int N = 262144 / sizeof(E);
  x += (long long)blockIdx.x * N;
  y += (long long)blockIdx.x * N;
#pragma unroll {}
  for (int i = threadIdx.x; i < N; i += {}) {{
    const E v = x[i];
    y[i] = twice(v);
    {}
  }}
}})",
                    d.element, d.threads, d.pointers, d.pointers, d.ahead, d.threads, d.isChain ? "i += sign(v);" : "");
    const CompiledCuda code = nvrtc->compile(text, cudaTarget("cuda:sm_90a"));
    const std::vector<SassFunction> functions = disassemble(code.cubin);
    GpuKernelShape shape;
    shape.blocks = rows, shape.threads = d.threads;
    shape.parameters = {{DType::f32, rows * 262144}, {DType::f32, rows * 262144}};
    GpuLaunch l = gpuLaunchOf(functions.at(0), shape, rates, 90);
    EXPECT_EQ(l.warp.unknownBranches, 0) << text;
    EXPECT_FALSE(l.warp.isCut);
    return l;
  }
  static constexpr int64_t rows = 132;  // one for each SM
};

TEST_F(Doubled, WithWideLoadsAheadTakesAsLongAsItsBytes) {
  const GpuLaunch good = launch({});
  EXPECT_STREQ(good.bound(), "memory");
  EXPECT_NEAR(good.bytes, 2.0 * rows * 262144, 1);
  EXPECT_DOUBLE_EQ(good.seconds(), good.bytes / (0.9 * 4.3e12));
  EXPECT_GE(good.warp.loadsInFlight, 3);
  EXPECT_EQ(good.warp.spills, 0);
  for (const WarpAccess &a : good.warp.accesses) {
    EXPECT_EQ(a.bytes, 16);
    EXPECT_EQ(a.sectors, 16);
  }
}

TEST_F(Doubled, PlantedSlownessRaisesTheForecast) {
  const double good = launch({}).seconds();
  const std::map<std::string, Doubling> slow = {
      {"2-byte accesses", {.element = "unsigned short"}},
      {"64 threads", {.threads = 64}},
      {"a load behind each store", {.ahead = 1, .pointers = ""}},
      {"a serial chain", {.ahead = 1, .isChain = true}},
      {"one warp a block", {.threads = 32}},
  };
  for (const auto &[what, how] : slow)
    EXPECT_GT(launch(how).seconds(), 1.1 * good) << what;
  EXPECT_GT(launch({.threads = 32}).seconds(), launch({.threads = 64}).seconds());
}

/// GPT-2 with two layers, its vocabulary and 1024 tokens, as GPU plans with calls of libraries have it.
std::unique_ptr<Module> gpt2(const Target &target, int64_t sequences, const std::string &residual = "fp32") {
  auto m = exampleForTarget("gpt2-124m",
                            {"model.n_layer=2", "precision.compute=bf16", "precision.residual=" + residual,
                             fmt::format("train.micro_batch={}", sequences),
                             fmt::format("train.global_batch_tokens={}", 1024 * sequences)},
                            target);
  selectRecipes(*m, target);
  runPipeline(*m, parsePipeline("horizontal-fusion", &target), {});
  return m;
}

TEST_F(GpuStepTest, PartsOfAStepAreAboveTheirFloors) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  const GpuStep step = gpuStepOf(*gpt2(target, 16), target, rates, sharedFolder("cuda-cache"));
  std::map<StepClass, double> floor, expected;
  int generated = 0, calls = 0;
  for (const GpuGroup &g : step.groups) {
    floor[g.kind] += g.calls * g.floor;
    expected[g.kind] += g.calls * g.seconds;
    EXPECT_GE(g.seconds, g.floor) << g.place;
    (g.isLibrary ? calls : generated) += int(g.calls);
    EXPECT_NE(g.launches.empty(), !g.isLibrary) << g.place;
    for (const GpuLaunch &l : g.launches) {
      EXPECT_EQ(l.warp.spills, 0) << l.symbol;
      EXPECT_FALSE(l.warp.isCut) << l.symbol;
      EXPECT_EQ(l.warp.unknownBranches, 0) << l.symbol;
    }
  }
  EXPECT_GT(generated, 20);
  // Per layer four products forward, four and four backward, and attention twice; three of the classifier.
  EXPECT_EQ(calls, 2 * 14 + 3);
  for (StepClass c : {StepClass::linear, StepClass::weight_grad, StepClass::classifier, StepClass::attention,
                      StepClass::cross_entropy, StepClass::norm, StepClass::embedding_grad, StepClass::optimizer})
    EXPECT_GT(expected[c], floor[c]) << nameOf(c);
  // By hand: three products of 16384 tokens, 768 and 50304, at 80% of 989 TFLOP/s; logits read and gradients written.
  EXPECT_NEAR(1e3 * floor[StepClass::classifier], 1e3 * 3 * 2 * 16384.0 * 768 * 50304 / (0.8 * 989e12), 0.2);
  EXPECT_NEAR(1e3 * floor[StepClass::cross_entropy], 1e3 * 2 * 16384.0 * 50304 * 2 / 4.3e12, 0.01);
}

TEST_F(GpuStepTest, ATokenReadsEveryWeightOnce) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  const auto m = gpt2(target, 16);
  const GpuStep token = gpuTokenOf(*m, target, rates, sharedFolder("cuda-cache"));
  double products = 0, bytes = 0;
  for (const GpuGroup &g : token.groups) {
    EXPECT_GE(g.seconds, g.floor) << g.place;
    EXPECT_NE(g.kind, StepClass::optimizer) << g.place;
    EXPECT_FALSE(g.isLibrary) << g.place;
    for (const GpuLaunch &l : g.launches)
      EXPECT_EQ(l.warp.spills, 0) << l.symbol;
    if (g.kind == StepClass::linear || g.kind == StepClass::classifier || g.kind == StepClass::attention)
      products += g.calls, bytes += g.calls * g.bytes;
  }
  EXPECT_EQ(products, 2 * 4 + 1);
  // Attention is in front of a product, so its caches count.
  const double weights = 2 * 12 * 768.0 * 768 + 50304 * 768.0, caches = 2 * 2 * 1024 * 768;
  EXPECT_GT(bytes, 2 * (weights + caches));
  EXPECT_LT(bytes, 1.01 * 2 * (weights + 2 * caches)) << "operands and results; what else a product touches is small";
  EXPECT_NE(tableOf(token, token, rates).find("part of a token"), std::string::npos);
  EXPECT_EQ(jsonOf(token, token, rates)["token"]["token_ms"], 1e3 * token.seconds());
  EXPECT_FALSE(jsonOf(token, {}, rates).contains("token"));
}

TEST_F(GpuStepTest, ManyGroupsOfALaunchMoveTheirBytes) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  auto m = gpt2(target, 16);
  auto optimizer = [&](double &launches) {
    double seconds = 0, bytes = 0;
    for (const GpuGroup &g : gpuStepOf(*m, target, rates, sharedFolder("cuda-cache")).groups)
      if (g.kind == StepClass::optimizer) {
        launches += g.calls * double(g.launches.size());
        seconds += g.calls * g.seconds;
        for (const GpuLaunch &l : g.launches)
          bytes += g.calls * l.bytes;
      }
    return std::pair(seconds, bytes);
  };
  double launches = 0, apart = 0;
  const auto together = optimizer(launches);
  for (auto &f : m->functions)
    for (Op &op : f->body)
      if (op.is(OpKind::fused))
        eraseFact<&GroupFacts::launch>(op);
  const auto alone = optimizer(apart);
  // 28 parameters: their norms in two phases, and their updates; then the sum of the norms, the rate and the step.
  EXPECT_EQ(launches, 2 + 1 + 3);
  EXPECT_EQ(apart, 28 * 3 + 3);
  EXPECT_NEAR(together.second, alone.second, 1e-6 * alone.second);
  // What is spared are at least the edges between kernels.
  EXPECT_LT(together.first, alone.first - (apart - launches) * rates.edge);
  EXPECT_GT(together.first, together.second / rates.copy);
}

// With 148 parameters, each of whose norms and updates would be a node. 48 nodes are sums for gradients of biases,
// which memory puts into the chain: on an H200 a step takes as long as its kernels one after the other, whatever the
// chain.
TEST(GpuGraph, OfAStepHasFewNodesAndAShortChain) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  auto m = exampleForTarget(
      "gpt2-124m",
      {"model.vocab_size=50257", "precision.compute=bf16", "train.micro_batch=64", "train.global_batch_tokens=65536"},
      target);
  selectRecipes(*m, target);
  runPipeline(*m, parsePipeline("horizontal-fusion,plan-memory{workspaces=2}", &target), {});
  Binder binder(*m, target, hostTarget(1));
  std::vector<cuda::Touches> nodes;
  std::vector<bool> isProduct;
  const BoundFunction step = binder.bind(*m->function("train_step"));
  for (const BoundGroup &g : step.groups) {
    cuda::addKernel(nodes, *g.op, g.memory, false);
    isProduct.resize(nodes.size());
    isProduct.back() = kindOf(*g.op) == RecipeKind::matmul;
  }
  EXPECT_LE(nodes.size(), 282u);
  const std::vector<cuda::Branch> branches = cuda::branchesOf(nodes, 4);
  int longest = 0;
  double products = 0;
  std::map<int, double> ofStream;
  for (size_t i = 0; i < branches.size(); ++i) {
    longest = std::max(longest, branches[i].chain);
    products += isProduct[i];
    ofStream[branches[i].stream] += isProduct[i];
  }
  EXPECT_LE(longest, 230);
  EXPECT_EQ(products, 12 * 12 + 3);
  int large = 0;
  for (const auto &[stream, count] : ofStream)
    large += count > 0.16 * products;
  EXPECT_EQ(large, 4);
  std::printf("%zu nodes, a chain of %d, %d branches with a sixth of the products each\n", nodes.size(), longest,
              large);
}

// Norms, updates, and zeros for the next sum: 148 or more of each.
TEST(GpuGraph, OfAnUpdateAfterAccumulationHasFewNodes) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  auto m = exampleForTarget(
      "gpt2-124m",
      {"model.vocab_size=50257", "precision.compute=bf16", "train.micro_batch=8", "train.global_batch_tokens=65536"},
      target);
  selectRecipes(*m, target);
  runPipeline(*m, parsePipeline("horizontal-fusion,plan-memory{workspaces=2}", &target), {});
  Binder binder(*m, target, hostTarget(1));
  std::vector<cuda::Touches> nodes;
  const BoundFunction update = binder.bind(*m->function("update"));
  for (const BoundGroup &g : update.groups)
    cuda::addKernel(nodes, *g.op, g.memory, false);
  EXPECT_GE(update.groups.size(), 3 * 148u);
  EXPECT_LE(nodes.size(), 10u);
}

TEST_F(GpuStepTest, ResidualStreamInBf16MovesFewerBytes) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  std::map<StepClass, double> bytes[2], seconds[2];
  int calls[2] = {0, 0}, i = 0;
  for (const char *residual : {"fp32", "compute"}) {
    for (const GpuGroup &g : gpuStepOf(*gpt2(target, 16, residual), target, rates, sharedFolder("cuda-cache")).groups) {
      bytes[i][g.kind] += g.calls * g.bytes;
      seconds[i][g.kind] += g.calls * g.seconds;
      calls[i] += g.isLibrary ? int(g.calls) : 0;
    }
    ++i;
  }
  EXPECT_EQ(calls[0], calls[1]) << "sums of the stream are calls, whatever its type";
  // Two projections of each layer read and write it: 2 bytes less of each of 16384 x 768 elements. Their biases become
  // bf16 with the sums.
  const double saved = 2 * 2 * 2 * 2 * 16384.0 * 768;
  EXPECT_EQ(bytes[0][StepClass::linear] - bytes[1][StepClass::linear], saved + 2 * 2 * 2 * 768);
  EXPECT_NEAR(seconds[0][StepClass::linear] - seconds[1][StepClass::linear], saved / (0.9 * 4.3e12), 1e-9);
  // A norm reads 4 and writes 2 bytes of an element forward, and backward reads 10 and writes 6; then 4 and 8 in all.
  EXPECT_LT(bytes[1][StepClass::norm], 2.0 / 3 * bytes[0][StepClass::norm]);
  EXPECT_LT(seconds[1][StepClass::norm], 0.8 * seconds[0][StepClass::norm]);
}

TEST(CudnnDecision, SaysWhatCudnnDoesNotTakeAndWhy) {
  Target target = cudaTarget("cuda:sm_90a");
  target.features = "cublaslt,cudnn";
  registerCodegenPasses();
  auto said = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.n_layer=2", "precision.compute=bf16"});
    auto m = exampleForTarget("gpt2-124m", settings, target);
    runPipeline(*m, parsePipeline("select-recipes", &target), {});
    for (const Decision &d : decisionsOf(*m))
      if (d.pass == "select-recipes")
        return d.choice + ": " + d.note;
    return std::string();
  };
  const std::vector<std::string> few = {"train.micro_batch=8", "train.global_batch_tokens=8192"},
                                 many = {"train.micro_batch=128", "train.global_batch_tokens=131072"};
  auto but = [&](const std::string &setting) {
    std::vector<std::string> all = few;
    all.push_back(setting);
    return said(all);
  };
  EXPECT_EQ(said(few), "");
  EXPECT_EQ(said(many), "6 of 6 attention groups: a backward pass is 2 calls, each with less than 2 GiB of workspace");
  EXPECT_EQ(but("model.dropout=0.1"), "2 of 6 attention groups: dropout of probabilities, which cuDNN draws by a "
                                      "generator of its own");
  EXPECT_EQ(but("model.head_dim=20"), "0 of 6 attention groups: heads of 20 elements, where cuDNN takes multiples of 8 "
                                      "up to 128");
  EXPECT_EQ(but("precision.compute=fp32"), "0 of 6 attention groups: f32, where cuDNN takes 16 bits");
}

/// A phase of a generated kernel: its launch and its code.
struct Phase {
  std::string members;  // ops of the group, "layernorm cast"
  GpuKernelShape shape;
  SassFunction code;
};

/// The groups of a training step with rows, sums by token or sums of all, one of each kind: of a sum by token the last
/// phase, which adds, and else the first, which reads the elements. `target` calls no libraries.
std::vector<Phase> phasesOf(const Module &m, const Target &target) {
  std::vector<Phase> all;
  std::set<std::string> seen;
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused) || f->name != "train_step")
        continue;
      const RecipeKind kind = *kindOf(op);
      if (kind != RecipeKind::row && kind != RecipeKind::row_fold && kind != RecipeKind::scatter &&
          kind != RecipeKind::reduce_all)
        continue;
      Phase p;
      for (const Op &member : *op.body)
        if (!member.isOneOf(OpKind::constant, OpKind::yield))
          p.members += (p.members.empty() ? "" : " ") + member.name().str();
      if (!seen.insert(p.members).second)
        continue;
      const LoweredGroup g = lowerGroup(op, defaultSchedule(op, target), target);
      const CudaCode code = CudaJit(target, sharedFolder("cuda-cache")).compile({&g.kernel})[0];
      const CudaPhase &phase = kind == RecipeKind::scatter ? code.phases.back() : code.phases.front();
      p.shape.blocks = phase.blocks, p.shape.threads = phase.threads, p.shape.sharedBytes = phase.sharedBytes;
      for (const kir::Buffer &b : g.kernel.params)
        p.shape.parameters.push_back({b->dtype, b->size * int64_t(sizeOf(b->dtype))});
      for (const SassFunction &function : disassemble(*code.image))
        if (function.name == phase.symbol)
          p.code = function;
      EXPECT_FALSE(p.code.code.empty()) << p.members;
      all.push_back(std::move(p));
    }
  return all;
}

/// Loads of global memory that stand behind a store in a loop without loops in it, where they wait for it.
int loadsBehindStores(const SassFunction &f) {
  int found = 0;
  for (int end = 0; end < int(f.code.size()); ++end) {
    const int begin = f.code[end].target;
    if (begin < 0 || begin > end)
      continue;
    bool stored = false, inner = true;
    int loads = 0;
    for (int i = begin; i <= end; ++i) {
      const SassInstruction &s = f.code[i];
      inner &= i == end || s.target < begin || s.target > i;
      stored |= s.opcode == "STG";
      loads += stored && s.opcode == "LDG";
    }
    found += inner ? loads : 0;
  }
  return found;
}

TEST_F(GpuStepTest, CodeOfRowsAndTokensIsWideAndShort) {
  const Target target = cudaTarget("cuda:sm_90a");
  // Instructions of the first warp of a block for each element of its threads, a tenth above what they were.
  const std::map<std::string, double> most = {{"cast layernorm cast", 29},
                                              {"cast cross_entropy cross_entropy_grad cast", 78},
                                              {"cast cast layernorm_grad_params layernorm_grad add cast", 65}};
  size_t bounded = 0;
  for (const Phase &p : phasesOf(*gpt2(target, 64), target)) {
    SCOPED_TRACE(p.members);
    const GpuLaunch l = gpuLaunchOf(p.code, p.shape, rates, 90);
    EXPECT_EQ(l.warp.spills, 0);
    EXPECT_EQ(loadsBehindStores(p.code), 0);
    double wide = 0, all = 0, columns = 0;
    std::map<int, double> elements;  // of a thread, by parameter
    for (const WarpAccess &a : l.warp.accesses)
      if (a.parameter >= 0 && a.lanes > 1 && p.shape.parameters[a.parameter].bytes >= 16 << 20) {
        all += a.moved();
        wide += a.bytes >= 8 ? a.moved() : 0;
        double &n = elements[a.parameter];
        n += double(a.times) * a.bytes / double(sizeOf(p.shape.parameters[a.parameter].dtype));
        columns = std::max(columns, n);
      }
    const double zeros = p.members == "cast cross_entropy cross_entropy_grad cast" ? 64 : 0;  // of a warp, in padding
    EXPECT_GT(wide, 0.99 * (all - zeros));
    auto bound = most.find(p.members);
    if (bound == most.end())
      continue;
    ++bounded;
    RecordProperty(fmt::format("instructions of {}", p.members), int(double(l.warp.instructions) / columns));
    EXPECT_LT(double(l.warp.instructions) / columns, bound->second);
  }
  EXPECT_EQ(bounded, most.size());
}

/// Milliseconds that one row of the table takes which has so many of 65536 tokens.
double msOfRow(int64_t tokens, const GpuRates &rates) {
  const Target target = cudaTarget("cuda:sm_90a");
  const std::unique_ptr<Module> m = gpt2(target, 64);
  for (const auto &f : m->functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused) || kindOf(op) != RecipeKind::scatter)
        continue;
      const LoweredGroup g = lowerGroup(op, defaultSchedule(op, target), target);
      const CudaCode code = CudaJit(target, sharedFolder("cuda-cache")).compile({&g.kernel})[0];
      const CudaPhase &phase = code.phases.back();
      GpuKernelShape shape;
      shape.blocks = 1, shape.threads = phase.threads;
      for (const kir::Buffer &b : g.kernel.params) {
        shape.parameters.push_back({b->dtype, b->size * int64_t(sizeOf(b->dtype))});
        if (b->name == "firsts")
          shape.parameters.back().growth = double(tokens);
        if (b->name == "starts")
          shape.parameters.back().growth = 0;
      }
      for (const SassFunction &function : disassemble(*code.image))
        if (function.name == phase.symbol) {
          const GpuLaunch l = gpuLaunchOf(function, shape, rates, 90);
          EXPECT_EQ(l.warp.spills, 0);
          EXPECT_FALSE(l.warp.isCut);
          return 1e3 * l.seconds();
        }
    }
  ADD_FAILURE() << "no sum by token";
  return 0;
}

TEST_F(GpuStepTest, ManyTokensOfOneIdAddInTime) {
  const double common = msOfRow(65536 / 20, rates), all = msOfRow(65536, rates);
  RecordProperty("common_us", int(1e3 * common));
  RecordProperty("all_us", int(1e3 * all));
  EXPECT_LT(common, 0.4);  // the commonest word of a text
  EXPECT_LT(all, 2);
}

TEST_F(GpuStepTest, GpusThatCannotRunAPlanAreRefused) {
  const Target hopper = cudaTarget("cuda:sm_90a"), ampere = cudaTarget("cuda:sm_80");
  EXPECT_EQ(gpuForPlan(hopper, "NVIDIA H200").name, "H200");
  EXPECT_EQ(gpuForPlan(ampere, "A10").name, "A10");
  auto codeOf = [](const Target &t, const char *gpu) {
    try {
      gpuForPlan(t, gpu);
    } catch (const UserError &e) {
      return e.diagnostics[0].code;
    }
    return ErrorCode::Internal;
  };
  EXPECT_EQ(codeOf(hopper, "A100"), ErrorCode::Usage);
  EXPECT_EQ(codeOf(ampere, "H200"), ErrorCode::Usage);
  EXPECT_EQ(codeOf(cudaTarget("cuda:sm_86"), "A100"), ErrorCode::Usage);
  EXPECT_EQ(codeOf(hopper, "H9000"), ErrorCode::UnknownValue);
  EXPECT_EQ(codeOf(hostTarget(), "H200"), ErrorCode::Usage);
}

}  // namespace
}  // namespace gptc::test
