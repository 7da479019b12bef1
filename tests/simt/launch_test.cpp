// Kernels that start together, on the host: each gets the bits that it has by itself, and no block touches what belongs
// to another one.
#include "cases.h"
#include "examples.h"

#include "codegen/cuda/launch.h"
#include "codegen/cuda/nvrtc.h"
#include "ir/facts.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tests/unit/passes/small_gpt.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

namespace gptc::test {
namespace {

/// The launches of a small model's training step, each with its groups.
std::vector<std::vector<Group>> launchesOf(const SmallGpt &o, const char *compute, const char *optimizer) {
  const Target target = cudaTarget("cuda:sm_90a");
  std::unique_ptr<Module> m = smallGpt(o);
  m->attrs.set("compute", std::string(compute));
  m->attrs.set("optimizer_state", std::string(compute));
  m->attrs.set("optimizer", std::string(optimizer));
  m->attrs.set("momentum", 0.75);
  runPipeline(
      *m,
      parsePipeline("autodiff,optimizer,canonicalize,cse,dce,precision,fuse,order,settle-writes,horizontal-fusion",
                    &target),
      {});
  std::map<std::pair<std::string, int64_t>, std::vector<Group>> launches;
  for (const auto &f : m->functions)
    for (const Op &op : f->body)
      if (const int64_t launch = op.is(OpKind::fused) ? fact<&GroupFacts::launch>(op) : 0)
        launches[{f->name, launch}].push_back(alone(op));
  std::vector<std::vector<Group>> all;
  for (auto &[number, groups] : launches)
    all.push_back(std::move(groups));
  return all;
}

/// A launch's cases, its code on the host, and that of each case by itself.
class OnHost {
public:
  explicit OnHost(std::vector<Group> groups) {
    std::vector<const kir::Kernel *> kernels;
    unsigned seed = 0;
    for (Group &g : groups) {
      std::vector<Tensor> operands = randomOperands(g, ++seed, 3);
      cases.push_back(makeCase(std::move(g), std::move(operands)));
    }
    for (const Case &c : cases)
      kernels.push_back(&c.gpu);
    launch = std::make_unique<CudaLaunch>(kernels);
    std::string text = launch->cuda().text;
    std::vector<std::string> symbols;
    auto add = [&](const CudaKernel &k) {
      for (const CudaPhase &p : k.phases)
        symbols.push_back(p.symbol);
    };
    add(launch->cuda());
    for (const Case &c : cases) {
      alone.push_back(emitCuda(c.gpu, fmt::format("alone{}", alone.size())));
      text += alone.back().text;
      add(alone.back());
    }
    module = std::make_unique<simt::HostModule>(text, symbols);
  }

  std::vector<Case> cases;
  std::unique_ptr<CudaLaunch> launch;
  std::vector<CudaKernel> alone;
  std::unique_ptr<simt::HostModule> module;

  /// Runs some members. "", or what was found.
  std::string run(llvm::ArrayRef<size_t> members, bool backwards,
                  std::vector<std::vector<std::vector<double>>> &content) {
    std::deque<CaseMemory> memory;
    std::vector<std::vector<uint64_t>> params;
    std::map<uint64_t, simt::Param> at;
    for (size_t member : members) {
      params.emplace_back();
      for (const simt::Param &p : memory.emplace_back(cases[member], true).params()) {
        params.back().push_back(reinterpret_cast<uint64_t>(p.data));
        simt::Param &known = at.try_emplace(params.back().back(), p).first->second;
        known.written |= p.written;
      }
    }
    auto resolve = [&](uint64_t address) -> std::optional<simt::Param> {
      auto it = at.find(address);
      return it == at.end() ? std::nullopt : std::optional(it->second);
    };
    for (size_t phase = 0; phase < launch->cuda().phases.size(); ++phase) {
      std::vector<uint64_t> table = launch->table(phase, members, params);
      const CudaPhase &p = launch->cuda().phases[phase];
      int64_t blocks = 0;
      for (size_t member : members)
        blocks += launch->blocks(member, phase);
      EXPECT_EQ(table.empty(), blocks == 0);
      if (!blocks)
        continue;
      const std::string found =
          simt::launch(module->find(p.symbol), {{"table", table.data(), int64_t(8 * table.size()), false}}, blocks,
                       p.threads, backwards, p.sharedBytes, resolve);
      if (!found.empty())
        return found;
    }
    content.clear();
    for (const CaseMemory &m : memory)
      content.push_back(m.content());
    return "";
  }
};

void expectTheBitsOfEachAlone(OnHost &h) {
  std::vector<size_t> all;
  for (size_t i = 0; i < h.cases.size(); ++i)
    all.push_back(i);
  std::vector<std::vector<std::vector<double>>> want(h.cases.size());
  for (size_t i : all)
    ASSERT_EQ(runOnShim(h.cases[i], *h.module, h.alone[i], false, true, want[i]), "");
  auto compare = [&](llvm::ArrayRef<size_t> members, bool backwards) {
    std::vector<std::vector<std::vector<double>>> got;
    ASSERT_EQ(h.run(members, backwards, got), "") << h.launch->cuda().text;
    for (size_t i = 0; i < members.size(); ++i)
      for (size_t p = 0; p < got[i].size(); ++p)
        for (size_t k = 0; k < got[i][p].size(); ++k)
          ASSERT_TRUE(sameNumber(got[i][p][k], want[members[i]][p][k]))
              << "element " << k << " of " << h.cases[members[i]].gpu.params[p]->name << " of member " << members[i];
  };
  for (bool backwards : {false, true})
    compare(all, backwards);
  for (size_t i : all)
    compare(i, false);
}

TEST(CudaLaunch, GivesEachKernelTheBitsThatItHasAlone) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  struct Model {
    SmallGpt shape;
    const char *compute, *optimizer;
  };
  size_t launches = 0, kernels = 0, members = 0;
  for (const Model &m :
       {Model{{.width = 64, .vocab = 65}, "fp32", "adamw"}, Model{{.width = 16, .vocab = 33}, "bf16", "adamw"},
        Model{{.width = 32, .vocab = 65}, "bf16", "sgd"}})
    for (std::vector<Group> &groups : launchesOf(m.shape, m.compute, m.optimizer)) {
      OnHost h(std::move(groups));
      ++launches;
      members += h.cases.size();
      for (const CudaPhase &p : h.launch->cuda().phases)
        kernels += p.blocks > 0;
      expectTheBitsOfEachAlone(h);
    }
  EXPECT_EQ(launches, 9u) << "two runs of norms, and the updates, of three models";
  EXPECT_GE(kernels, 15u) << "norms have two phases";
  EXPECT_EQ(members, 39u);
}

// What a table names and memory does not have is found, so that the test above would see a wrong table.
TEST(CudaLaunch, WrongTablesAreNoticed) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  OnHost h(std::move(launchesOf({}, "fp32", "adamw").back()));
  const CudaPhase &p = h.launch->cuda().phases[0];
  std::vector<uint64_t> params(h.cases[0].gpu.params.size(), 64);
  std::vector<uint64_t> table = h.launch->table(0, size_t(0), params);
  const std::string found = simt::launch(
      h.module->find(p.symbol), {{"table", table.data(), int64_t(8 * table.size()), false}}, h.launch->blocks(0, 0),
      p.threads, false, p.sharedBytes, [](uint64_t) { return std::optional<simt::Param>(); });
  EXPECT_NE(found.find("nothing begins at address 0x40"), std::string::npos) << found;
}

// Launches of all examples at full size, with states in bf16 too.
TEST(CudaLaunch, OfEveryExampleCompilesWithoutSpills) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  OneIn some(5);
  for (const char *gpu : {"cuda:sm_75", "cuda:sm_90a"})
    for (const std::string &name : exampleNames()) {
      if (some.skips())
        continue;
      const Target target = cudaTarget(gpu);
      const std::unique_ptr<Module> m = exampleForTarget(
          name, {"model.vocab_size=1024", "precision.compute=bf16", "precision.optimizer_state=bf16"}, target);
      runPipeline(*m, parsePipeline("horizontal-fusion", &target), {});
      std::map<std::pair<std::string, int64_t>, std::vector<kir::Kernel>> launches;
      for (const auto &f : m->functions)
        for (const Op &op : f->body)
          if (const int64_t launch = op.is(OpKind::fused) ? fact<&GroupFacts::launch>(op) : 0)
            launches[{f->name, launch}].push_back(lowerGroup(op, defaultSchedule(op, target), target).kernel);
      EXPECT_GE(launches.size(), 2u) << name;
      for (const auto &[of, kernels] : launches) {
        std::vector<const kir::Kernel *> pointers;
        for (const kir::Kernel &k : kernels)
          pointers.push_back(&k);
        const CompiledCuda c = nvrtc->compile(CudaLaunch(pointers).cuda().text, target);
        EXPECT_EQ(c.spilledBytes, 0) << name << " " << of.first << " " << of.second << " on " << gpu;
      }
    }
}

}  // namespace
}  // namespace gptc::test
