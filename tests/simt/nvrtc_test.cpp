// Emitted CUDA text in the compiler for GPUs, without a GPU: it compiles, and no kernel spills registers.
#include "pipeline.h"

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/plain_kernel.h"
#include "frontends/model_builder.h"
#include "support/diagnostics.h"
#include "tests/device/lanes_text.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"
#include "tests/unit/codegen/random_kernel.h"
#include "tools/compiler/compile.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace gptc::test {
namespace {

class NvrtcTest : public testing::Test {
protected:
  void SetUp() override {
    std::string why;
    nvrtc = Nvrtc::find(why);
    if (!nvrtc)
      GTEST_SKIP() << why;
  }
  const Nvrtc *nvrtc = nullptr;
};

/// The kernels of all groups of GPT-2 124M but matmul and attention, once each, by their text.
std::map<std::string, kir::Kernel> kernelsOfGpt2(const Target &target, const std::vector<std::string> &settings) {
  Config config = readConfig(GPTC_SOURCE_DIR "/examples/gpt2-124m.toml", settings);
  std::unique_ptr<Module> m = buildModel(config);
  PipelineOptions options;
  options.reproFile = "";
  options.verifyEach = false;
  runPipeline(*m, parsePipeline(passesUntilFused(), nullptr), options);
  std::map<std::string, kir::Kernel> kernels;
  for (const auto &f : m->functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::fused)) {
        kir::Kernel k = lowerGroup(op, defaultSchedule(op, target), target).kernel;
        std::string text = kir::print(k);
        kernels.emplace(std::move(text), std::move(k));
      }
  return kernels;
}

TEST_F(NvrtcTest, KernelsOfGpt2CompileWithoutSpills) {
  const std::pair<const char *, std::vector<std::string>> runs[] = {
      {"cuda:sm_90a", {"model.dropout=0.1", "precision.compute=bf16", "precision.optimizer_state=bf16"}},
      {"cuda:sm_80", {"model.dropout=0.1"}}};
  OneIn some(2);
  for (const auto &[name, settings] : runs) {
    if (some.skips())
      continue;
    const Target target = cudaTarget(name);
    std::map<std::string, kir::Kernel> kernels = kernelsOfGpt2(target, settings);
    ASSERT_GT(kernels.size(), 10u);
    int number = 0;
    std::map<std::string, int> sameName;  // with moments in bf16, each parameter's kernel has random numbers of its own
    for (const auto &[text, k] : kernels) {
      if (++sameName[k.name] > sized(2, 8))
        continue;
      EXPECT_EQ(kir::verify(k), std::vector<std::string>()) << text;
      const CudaKernel cuda = emitCuda(k, fmt::format("k{}_{}", number++, k.name));
      const CompiledCuda c = nvrtc->compile(cuda.text, target);
      EXPECT_FALSE(c.cubin.empty());
      EXPECT_EQ(c.spilledBytes, 0) << name << "\n" << c.log << cuda.text;
      EXPECT_GT(c.registers, 0) << c.log;
      // Two blocks of 1024 threads, or four of 512, must find room on a multiprocessor of 65536 registers.
      // Of matmul and attention a block or two; with a cache it has a block for each head and token.
      const bool multiplies = k.name.find("attention_cached") != std::string::npos ||
                              cuda.text.find("GPTC_matmul") != std::string::npos ||
                              cuda.text.find("GPTC_attention") != std::string::npos ||
                              cuda.text.find("GPTC_TILE_KERNEL") != std::string::npos;
      // One block takes no room from others.
      const int most = multiplies                   ? std::min(65536 / cuda.phases[0].threads, 255)
                       : cuda.phases[0].blocks == 1 ? 128
                                                    : 64;
      EXPECT_LE(c.registers, most) << k.name << "\n" << c.log << cuda.text;
    }
  }
}

// What takes the place of matmul's and attention's templates, in shared memory that the smallest GPU has too.
TEST_F(NvrtcTest, LoopTreesInPlaceOfTemplatesCompile) {
  OneIn some(2);
  for (const auto &[name, settings] :
       {std::pair<const char *, std::vector<std::string>>{"cuda:sm_75", {"model.dropout=0.1"}},
        {"cuda:sm_90a", {"precision.compute=bf16"}}}) {
    if (some.skips())
      continue;
    const Target target = cudaTarget(name);
    std::string text;
    int number = 0;
    for (const auto &[printed, k] : kernelsOfGpt2(target, settings))
      if (std::optional<kir::Kernel> plain = withoutTemplates(k)) {
        EXPECT_EQ(kir::verify(*plain), std::vector<std::string>()) << kir::print(*plain);
        const CudaKernel cuda = emitCuda(*plain, fmt::format("k{}", number++));
        text += cuda.text;
        for (const CudaPhase &p : cuda.phases)
          EXPECT_LE(p.sharedBytes, target.sharedBytes) << k.name;
      }
    EXPECT_GT(number, 10);
    EXPECT_EQ(text.find("GPTC_matmul"), std::string::npos);
    EXPECT_EQ(text.find("GPTC_attention"), std::string::npos);
    // A few spilled bytes are nothing beside operands that are read from memory for each step.
    EXPECT_FALSE(nvrtc->compile(text, target).cubin.empty());
  }
}

TEST_F(NvrtcTest, TheDeviceLayerCompilesForEveryGpu) {
  for (const char *name :
       {"cuda:sm_75", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100", "cuda:sm_120"}) {
    const Target target = cudaTarget(name);
    const std::string text = std::string(lanesHead) + lanesText + (target.cpu == "sm_75" ? "" : lanesTextOf80);
    const CompiledCuda c = nvrtc->compile(text, target);
    EXPECT_EQ(c.spilledBytes, 0) << name << "\n" << c.log;
  }
}

TEST_F(NvrtcTest, EveryOpCompiles) {
  const Target target = cudaTarget("cuda:sm_80");
  std::string text;
  std::set<std::string> known;
  // Of f64, in which only references compute; and of attention, whose samples are forms of one text: NvrtcAttention
  // compiles it for every GPU.
  gptc::test::OneIn wide(5), forms(5);
  for (const OpDef *def : allOpDefs()) {
    if (!def->samples || !recipeOf(def->kind) || def->fusion == FusionKind::collective)
      continue;
    for (const OpDef::Sample &s : def->samples(0)) {
      if (isForCpus(*def, s) || (def->fusion == FusionKind::attention && forms.skips()))
        continue;
      Group g = groupOf(def->kind, s.operandTypes, s.attrs, s.resultTypes);
      for (DType compute : {DType::f32, DType::f64}) {
        // Compiling attention of f64 takes long, as it is unrolled.
        if (compute == DType::f64 && (def->fusion == FusionKind::attention || wide.skips()))
          continue;
        kir::Kernel k = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target, compute).kernel;
        if (known.insert(kir::print(k)).second)
          text += emitCuda(k, fmt::format("k{}", known.size())).text;
      }
    }
  }
  EXPECT_GT(known.size(), 100u);
  const CompiledCuda c = nvrtc->compile(text, target);
  EXPECT_EQ(c.spilledBytes, 0) << c.log;
}

TEST_F(NvrtcTest, RandomKernelsCompile) {
  std::string text;
  for (unsigned seed = 0; seed < 8; ++seed) {
    kir::Kernel k = RandomKernel(seed, DType::f64).build();  // those in f32 hold pairs
    inOneThread(k);
    text += emitCuda(k, fmt::format("k{}", seed)).text;
  }
  EXPECT_FALSE(nvrtc->compile(text, cudaTarget("cuda:sm_90a")).cubin.empty());
}

TEST_F(NvrtcTest, EveryStorageTypeCompiles) {
  const Target target = cudaTarget("cuda:sm_80");
  for (const char *type : {"f32", "bf16", "f16"})
    for (const char *body : {"%y = gelu_tanh %x : {}[4,65536]\nyield %y", "%y = softmax %x : {}[4,65536]\nyield %y"}) {
      std::string text = body, shape = fmt::format("%x: {}[4,65536]", type);
      text.replace(text.find("{}"), 2, type);
      Group g = group(text.find("gelu") != std::string::npos ? "pointwise" : "row", shape, text);
      kir::Kernel k = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target).kernel;
      EXPECT_EQ(nvrtc->compile(emitCuda(k, "k").text, target).spilledBytes, 0);
    }
}

// Without this, the tests that expect no spills could not fail.
TEST_F(NvrtcTest, SpillsAreSeen) {
  std::string text = "#include \"gptc_device.h\"\nGPTC_KERNEL(k, 1024)(Global<const float> x, Global<float> y) {\n";
  for (int i = 0; i < 100; ++i)
    text += fmt::format("  const float v{0} = load(x, threadIndex() * 101 + {0});\n", i);
  text += "  barrier();\n";
  for (int i = 0; i < 100; ++i)
    text += fmt::format("  store(y, {0} * 1024 + threadIndex(), v{0} * v{1});\n", i, (i + 31) % 100);
  const CompiledCuda c = nvrtc->compile(text + "}\n", cudaTarget("cuda:sm_80"));
  EXPECT_GT(c.spilledBytes, 100) << c.log;
}

TEST_F(NvrtcTest, TextThatDoesNotCompileIsOurMistake) {
  try {
    nvrtc->compile("this is no kernel", cudaTarget("cuda:sm_80"));
    FAIL();
  } catch (const InternalError &e) {
    EXPECT_NE(std::string(e.what()).find("error:"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace gptc::test
