// Every kernel of every example: on the host at sizes that fibers can run, and compiled for GPUs at full size.
#include "cases.h"
#include "examples.h"

#include "codegen/cuda/emit.h"
#include "codegen/cuda/nvrtc.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

#include "tests/support/whole_run.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace gptc::test {
namespace {

using Settings = std::vector<std::string>;

Settings with(Settings a, const Settings &b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// ---- on the host ----------------------------------------------------------------------------------------------------

/// Three layers, so that there is one between others. Heads of 12 fill no fragment, 33 tokens no tile, and 67 tokens of
/// vocabulary are padded.
const Settings small = {"model.n_layer=3",     "model.n_embd=48",     "model.n_head=4",     "model.ffn_dim=100",
                        "model.block_size=33", "model.vocab_size=67", "train.micro_batch=2"};
const char *const oneMicroBatch = "train.global_batch_tokens=66", *const two = "train.global_batch_tokens=132";

struct Variant {
  Settings settings;
  bool library = false;  // groups as they are where cuBLASLt is: each has a generated kernel, too
  const char *only = nullptr;
};
const Variant variants[] = {
    {{two, "model.dropout=0.1"}},
    {{two, "model.dropout=0.1", "precision.compute=bf16", "precision.optimizer_state=bf16"}},
    {{oneMicroBatch, "precision.compute=bf16"}, true},
    {{oneMicroBatch, "precision.compute=bf16", "precision.residual=compute"}, true, "gpt2-124m"},
    {{"train.global_batch_tokens=128", "precision.compute=bf16", "precision.fp8=all", "model.n_embd=64",
      "model.ffn_dim=128", "model.block_size=32"},
     true,
     "gpt2-124m"},
    {{oneMicroBatch, "precision.compute=fp16"}, false, "llama-small"},
    {{oneMicroBatch, "precision.compute=tf32"}, false, "bloom-small"},
};

TEST(Examples, EveryKernelRunsOnTheHost) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  std::set<std::string> known, functions;
  std::set<OpKind> ops;
  std::vector<Case> cases;
  OneIn some(5);
  for (const std::string &name : exampleNames())
    for (const Variant &v : variants) {
      if ((v.only && name != v.only) || some.skips())
        continue;
      Target target = cudaTarget("cuda:sm_90a");
      target.features = v.library ? "cublaslt" : "";
      Settings settings = with(small, v.settings);
      settings.push_back(name == "llama-small" ? "model.n_kv_head=2" : "model.n_kv_head=4");
      const std::unique_ptr<Module> m = exampleForTarget(name, settings, target);
      for (const auto &f : m->functions) {
        functions.insert(f->name);
        for (const Op &op : f->body) {
          if (!op.is(OpKind::fused) || !known.insert(groupKey(op)).second)
            continue;
          for (const Op &inner : *op.body)
            ops.insert(inner.kind);
          Group g = alone(op);
          std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 3);
          cases.push_back(makeCase(std::move(g), std::move(operands)));
        }
      }
    }
  EXPECT_EQ(functions, (std::set<std::string>{"accumulate", "decode", "eval", "prefill", "train_step", "update"}));
  EXPECT_GT(cases.size(), sized(100u, 400u));
  check(cases);
  std::printf("%zu kernels of the examples, of %zu kinds of ops, ran on the host\n", cases.size(), ops.size());
}

// ---- where they lie
// ---------------------------------------------------------------------------------------------------

/// Expects that the planned offset is a multiple of what cuBLASLt wants of a workspace.
void expectAligned(llvm::ArrayRef<int64_t> offsets, const std::string &what) {
  for (int64_t at : offsets)
    EXPECT_EQ(at % 256, 0) << what << " at " << at;
}

TEST(Examples, WhatPlansForGpusPlaceIsAlignedAsLibrariesWantIt) {
  for (const std::string &name : exampleNames()) {
    Target target = cudaTarget("cuda:sm_90a");
    target.features = "cublaslt,cudnn";
    Settings settings = with(small, {two, "precision.compute=bf16", "model.n_kv_head=4"});
    const std::unique_ptr<Module> m = exampleForTarget(name, settings, target);
    PipelineOptions options;
    options.reproFile = "";
    runPipeline(*m, parsePipeline("select-recipes,plan-memory", &target), options);
    int64_t calls = 0;
    for (const auto &s : m->states)
      expectAligned(s->attrs.getInt("at"), name + " @" + s->name);
    for (const auto &f : m->functions) {
      expectAligned(f->attrs.getInts("args_at"), name + " @" + f->name);
      for (const Op &op : f->body) {
        expectAligned(op.attrs.getInts("at"), name + " " + print(op));
        expectAligned(op.attrs.getInts("ws_at"), name + " workspace of " + print(op));
        calls +=
            op.attrs.getString("schedule").find("library=1") != std::string::npos && !op.attrs.getInts("ws_at").empty();
      }
    }
    EXPECT_GT(calls, 0) << name;
  }
}

// ---- for GPUs -------------------------------------------------------------------------------------------------------

struct Kernel {
  std::string what, text;
};

/// All that differ, at full size, of plans in fp32 as they stand and in bf16 with dropout; with and without cuBLASLt.
std::vector<Kernel> kernelsOf(const std::vector<std::string> &examples, const char *gpu) {
  std::set<std::string> known;
  std::vector<Kernel> kernels;
  for (const std::string &name : examples)
    for (const Settings &v : {Settings{}, Settings{"precision.compute=bf16", "model.dropout=0.1"}})
      for (const char *library : {"", "cublaslt"}) {
        Target target = cudaTarget(gpu);
        target.features = library;
        // What the tokenizers of their data would say.
        const std::string vocab = name == "gpt2-124m" ? "50257" : name == "austen" ? "2048" : "66";
        const std::unique_ptr<Module> m = exampleForTarget(name, with({"model.vocab_size=" + vocab}, v), target);
        target.features = "";  // of a call, the kernel that takes its place
        for (const auto &f : m->functions)
          for (const Op &op : f->body)
            if (op.is(OpKind::fused) && known.insert(groupKey(op)).second) {
              const Schedule schedule = defaultSchedule(op, target);
              const kir::Kernel k = lowerGroup(op, schedule, target).kernel;
              kernels.push_back({fmt::format("{} with {}:\n{}", name, schedule.str(), print(op)),
                                 emitCuda(k, fmt::format("k{}", kernels.size())).text});
            }
      }
  return kernels;
}

/// Compiled by two threads, some kernels in one program; expects that none spills.
void expectNoSpills(const Nvrtc &nvrtc, const std::vector<Kernel> &kernels, const char *gpu) {
  const Target target = cudaTarget(gpu);
  constexpr size_t together = 8;
  std::atomic<size_t> next = 0;
  std::mutex lock;
  std::vector<std::string> wrong;
  auto work = [&] {
    for (size_t first; (first = together * next++) < kernels.size();) {
      const size_t last = std::min(kernels.size(), first + together);
      // "" or what is wrong.
      auto problem = [&](size_t begin, size_t end) -> std::string {
        std::string text;
        for (size_t i = begin; i < end; ++i)
          text += kernels[i].text;
        try {
          const CompiledCuda c = nvrtc.compile(text, target);
          return c.spilledBytes ? fmt::format("{} registers and {} spilled bytes", c.registers, c.spilledBytes) : "";
        } catch (const std::exception &e) {
          return e.what();
        }
      };
      if (problem(first, last).empty())
        continue;
      for (size_t i = first; i < last; ++i)
        if (const std::string found = problem(i, i + 1); !found.empty()) {
          std::lock_guard guard(lock);
          wrong.push_back(fmt::format("{}: {}, {}", gpu, found, kernels[i].what));
        }
    }
  };
  std::thread other(work);
  work();
  other.join();
  for (const std::string &w : wrong)
    ADD_FAILURE() << w;
}

// sm_90a for all, and one more for each; one for one example in the short run. GPTC_TARGETS=sm_75,sm_80 asks for all of
// these, and takes minutes.
TEST(Examples, EveryKernelCompilesWithoutSpills) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  const char *const others[] = {"cuda:sm_80", "cuda:sm_75", "cuda:sm_86", "cuda:sm_89", "cuda:sm_100", "cuda:sm_120"};
  const std::vector<std::string> names = exampleNames();
  ASSERT_EQ(names.size(), std::size(others)) << "each GPU has an example";
  auto run = [&](const std::vector<std::string> &examples, const char *gpu) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Kernel> kernels = kernelsOf(examples, gpu);
    expectNoSpills(*nvrtc, kernels, gpu);
    std::printf("%s: %zu kernels of %zu examples in %.0f s\n", gpu, kernels.size(), examples.size(),
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  };
  if (const char *asked = std::getenv("GPTC_TARGETS")) {
    llvm::SmallVector<llvm::StringRef, 8> gpus;
    llvm::StringRef(asked).split(gpus, ',');
    for (llvm::StringRef gpu : gpus)
      run(names, ("cuda:" + gpu.str()).c_str());
    return;
  }
  if (!everything())
    return run({"llama-small"}, "cuda:sm_90a");
  run(names, "cuda:sm_90a");
  for (size_t i = 0; i < std::size(others); ++i)
    run({names[i]}, others[i]);
}

}  // namespace
}  // namespace gptc::test
