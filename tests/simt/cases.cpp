#include "cases.h"

#include "codegen/cuda/plain_kernel.h"
#include "ir/access.h"
#include "ir/element.h"
#include "ir/facts.h"
#include "ir/kernel/bound.h"
#include "support/diagnostics.h"
#include "tests/unit/codegen/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace gptc::test {

namespace {

constexpr double poison = std::numeric_limits<double>::quiet_NaN();

/// What memory holds before anybody writes it: the same in padding of operands and in results, which may share memory.
double poisonOf(DType t) { return isFloat(t) ? poison : 99999; }

}  // namespace

Case makeCase(Group g, std::vector<Tensor> operands, std::optional<Schedule> schedule, const char *gpu) {
  static const Target host = hostTarget(1);
  const Target cuda = cudaTarget(gpu);
  Case c{std::move(g), std::move(operands)};
  const Op &fused = *c.g.fused;
  c.sameOrder = !llvm::StringRef(fused.attrs.getString("kind")).starts_with("attention");
  LoweredGroup low = lowerGroup(fused, schedule ? *schedule : defaultSchedule(fused, cuda), cuda);
  c.gpu = std::move(low.kernel);
  const RecipeKind kind = *kindOf(fused);
  if (kind != RecipeKind::row_fold && kind != RecipeKind::row_matmul && kind != RecipeKind::attention_split)
    c.cpu = lowerGroup(fused, defaultSchedule(fused, host), host).kernel;
  c.sameOrder &= kir::print(c.gpu).find(" mma threads ") == std::string::npos &&
                 kir::print(c.cpu).find("dot(") == std::string::npos;
  EXPECT_EQ(kir::verify(c.gpu), std::vector<std::string>()) << kir::print(c.gpu);
  for (const Tensor &t : c.operands)
    c.content.push_back(spread(t, poisonOf(t.type.dtype)));
  for (unsigned r = 0; r < fused.numResults(); ++r) {
    const kir::Buffer &b = c.gpu.params[c.content.size()];
    if (auto operand = inPlaceOperand(fused, r))  // what lies there stands in for sharing its memory
      c.content.push_back(std::vector<double>(c.content[*operand]));
    else
      c.content.push_back(std::vector<double>(b->size, poisonOf(b->dtype)));
  }
  std::set<unsigned> taken;
  for (unsigned r = 0; r < fused.numResults(); ++r)
    for (unsigned o = 0; o < fused.numOperands(); ++o)
      if (mayShare(fused, r, o) && taken.insert(o).second) {
        c.inPlace.push_back({r, o});
        break;
      }
  return c;
}

/// The content of all parameters of a kernel before it runs.
static std::vector<std::vector<double>> withWorkspaces(const Case &c, const kir::Kernel &k) {
  std::vector<std::vector<double>> all = c.content;
  while (all.size() < k.params.size())
    all.push_back(std::vector<double>(k.params[all.size()]->size, poison));
  const std::vector<int64_t> streams = streamsOf(*c.g.fused);
  for (size_t i = 0; i < streams.size(); ++i)
    all[all.size() - streams.size() + i] = {double(streams[i])};
  return all;
}

CaseMemory::CaseMemory(const Case &c, bool inPlace) : c(c), inPlace(inPlace) {
  const std::vector<std::vector<double>> before = withWorkspaces(c, c.gpu);
  for (size_t i = 0; i < before.size(); ++i)
    memory.emplace_back(c.gpu.params[i], before[i]);
  for (size_t i = 0; i < before.size(); ++i) {
    const kir::BufferNode &b = *c.gpu.params[i];
    all.push_back({b.name, memory[i].data(), b.size * int64_t(sizeOf(b.dtype)), b.written});
  }
  for (auto [r, o] : c.inPlace)
    if (inPlace)
      all[c.g.fused->numOperands() + r].data = all[o].data;
}

std::vector<std::vector<double>> CaseMemory::content() const {
  std::vector<std::vector<double>> after;
  for (const DeviceBuffer &b : memory)
    after.push_back(b.values());
  for (auto [r, o] : c.inPlace)
    if (inPlace)
      after[c.g.fused->numOperands() + r] = after[o];
  return after;
}

std::string runOnShim(const Case &c, const simt::HostModule &module, const CudaKernel &text, bool backwards,
                      bool inPlace, std::vector<std::vector<double>> &content) {
  const CaseMemory memory(c, inPlace);
  for (const CudaPhase &p : text.phases) {
    std::string found =
        simt::launch(module.find(p.symbol), memory.params(), p.blocks, p.threads, backwards, p.sharedBytes);
    if (!found.empty())
      return found;
  }
  content = memory.content();
  return "";
}

bool isNoticed(const Case &c, const simt::HostModule &module, const CudaKernel &text,
               const std::vector<std::vector<double>> &right, bool inPlace) {
  for (bool backwards : {false, true}) {
    std::vector<std::vector<double>> got;
    if (!runOnShim(c, module, text, backwards, inPlace, got).empty())
      return true;
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t k = 0; k < got[i].size(); ++k)
        if (got[i][k] != right[i][k] && (got[i][k] == got[i][k] || right[i][k] == right[i][k]))
          return true;
  }
  return false;
}

/// Zeroes in what a CPU has left the padding of results that a GPU zeroes.
static void zeroPadding(const Case &c, std::vector<std::vector<double>> &content) {
  for (unsigned r = 0; r < c.g.fused->numResults(); ++r) {
    const std::vector<bool> zeroed = zeroedOnGpu(*c.g.fused, r);
    for (size_t k = 0; k < zeroed.size(); ++k)
      if (zeroed[k])
        content[c.g.fused->numOperands() + r][k] = 0;
  }
}

static void expectSameBits(const Case &c, const std::vector<std::vector<double>> &got,
                           const std::vector<std::vector<double>> &want, const char *what) {
  for (size_t i = c.g.fused->numOperands(); i < c.content.size(); ++i)
    for (size_t k = 0; k < got[i].size(); ++k)
      ASSERT_TRUE(sameNumber(got[i][k], want[i][k])) << what << ": element " << k << " of " << c.gpu.params[i]->name
                                                     << " is " << got[i][k] << ", not " << want[i][k] << "\n"
                                                     << print(*c.g.fused) << kir::print(c.gpu);
}

std::vector<Case> withLoopTrees(std::vector<Case> cases) {
  std::vector<Case> plain;
  for (Case &c : cases)
    if (std::optional<kir::Kernel> k = withoutTemplates(c.gpu)) {
      EXPECT_EQ(kir::verify(*k), std::vector<std::string>()) << kir::print(*k);
      c.gpu = std::move(*k);
      plain.push_back(std::move(c));
    }
  return plain;
}

static bool attentionByTf32(const Op &fused) {
  bool found = false;
  for (const Op &op : *fused.body)
    found |= op.attrs.getBool("tf32");
  return found && llvm::StringRef(fused.attrs.getString("kind")).starts_with("attention");
}

/// As tests/simt/attention_test.cpp derives it: both factors of both products are rounded to tf32.
static void allowTf32(const Case &c, std::vector<std::vector<kir::Bounded>> &bounds) {
  if (!attentionByTf32(*c.g.fused))
    return;
  for (size_t i = 0; i < c.operands.size(); ++i)
    if (c.operands[i].type.dtype == DType::f32 && c.operands[i].type.rank() == 3)
      for (kir::Bounded &b : bounds[i])
        b.error = 0x1p-10 * std::abs(b.value);
}

void check(const std::vector<Case> &cases, bool perturbed) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  // Equal kernels have equal text.
  std::string text;
  std::vector<std::string> symbols;
  std::map<std::string, CudaKernel> emitted;
  std::vector<const CudaKernel *> kernels;
  std::vector<const kir::Kernel *> cpu;
  for (const Case &c : cases) {
    auto [it, isNew] = emitted.try_emplace(kir::print(c.gpu));
    if (isNew) {
      it->second = emitCuda(c.gpu, fmt::format("k{}", emitted.size()));
      text += it->second.text;
      for (const CudaPhase &p : it->second.phases)
        symbols.push_back(p.symbol);
    }
    kernels.push_back(&it->second);
    if (!c.cpu.params.empty())
      cpu.push_back(&c.cpu);
  }
  const simt::HostModule module(text, symbols, perturbed ? "-DGPTC_PERTURB" : "");
  Jit jit(hostTarget(1), "");
  const std::vector<CompiledKernel> code = jit.compile(cpu);
  size_t compiled = 0;
  size_t exact = 0, unbounded = 0;
  int64_t judged = 0, unjudged = 0;  // elements with a finite bound, and those of which only NaN could be told
  for (size_t n = 0; n < cases.size(); ++n) {
    const Case &c = cases[n];
    SCOPED_TRACE(kernels[n]->text);
    std::vector<std::vector<double>> forwards, other;
    ASSERT_EQ(runOnShim(c, module, *kernels[n], false, false, forwards), "");
    ASSERT_EQ(runOnShim(c, module, *kernels[n], true, false, other), "");
    expectSameBits(c, other, forwards, "backwards");
    if (!c.inPlace.empty()) {
      ASSERT_EQ(runOnShim(c, module, *kernels[n], false, true, other), "");
      expectSameBits(c, other, forwards, "in place");
    }

    const bool onCpu = !c.cpu.params.empty();
    if (onCpu) {
      other = withWorkspaces(c, c.cpu);
      runKernel(c.cpu, code[compiled++], other);
      zeroPadding(c, other);
    }
    if (c.sameOrder && onCpu && !perturbed)
      expectSameBits(c, forwards, other, "CPU");

    std::vector<std::vector<kir::Bounded>> bounds = withoutErrors(withWorkspaces(c, c.gpu)),
                                           ofCpu = withoutErrors(withWorkspaces(c, c.cpu));
    allowTf32(c, bounds);
    bool bounded = true;
    try {
      kir::boundErrors(c.gpu, bounds);
      if (!c.sameOrder)
        kir::boundErrors(c.cpu, ofCpu);
    } catch (const InternalError &e) {
      ASSERT_NE(std::string(e.what()).find("no bound for"), std::string::npos) << e.what();
      bounded = false, ++unbounded;  // stochastic rounding: bits of a rounded value, of which there is no bound
    }
    // Attention statements take sums in an order of their own: tests/simt/attention_test.cpp derives the factor.
    for (std::vector<kir::Bounded> &values : bounds)
      for (kir::Bounded &b : values)
        b.error *= c.sameOrder ? 1 : 4;
    for (size_t i = c.operands.size(); bounded && !c.sameOrder && i < c.content.size(); ++i)
      for (size_t k = 0; k < bounds[i].size(); ++k) {
        const double cpu = other[i][k], gpu = forwards[i][k];
        ASSERT_TRUE(sameNumber(cpu, gpu) || std::abs(cpu - gpu) <= bounds[i][k].error + ofCpu[i][k].error)
            << "element " << k << " of " << c.gpu.params[i]->name << " is " << gpu << " here and " << cpu
            << " on the CPU, bounds " << bounds[i][k].error << " and " << ofCpu[i][k].error << "\n"
            << print(*c.g.fused);
      }
    for (size_t i = c.operands.size(); bounded && i < c.content.size(); ++i)
      for (size_t k = 0; k < bounds[i].size(); ++k) {
        const double want = bounds[i][k].value, got = forwards[i][k];
        if (std::isfinite(want))
          ++(std::isfinite(bounds[i][k].error) ? judged : unjudged);
        ASSERT_TRUE(sameNumber(got, want) || got == want || std::abs(got - want) <= bounds[i][k].error)
            << "element " << k << " of " << c.gpu.params[i]->name << " is " << got << ", not " << want << " +- "
            << bounds[i][k].error << "\n"
            << print(*c.g.fused);
      }
    if (!kir::usesApproximations(c.gpu)) {
      other = withWorkspaces(c, c.gpu);
      kir::interpret(c.gpu, other, true);
      expectSameBits(c, forwards, other, "interpreter");
      ++exact;
    }
    if (testing::Test::HasFatalFailure())
      return;
  }
  testing::Test::RecordProperty("cases", int(cases.size()));
  testing::Test::RecordProperty("kernels", int(emitted.size()));
  EXPECT_TRUE(exact > 0u || !cases[0].sameOrder || perturbed);
  EXPECT_LE(unbounded, cases.size() / 10);
  EXPECT_GT(judged, 99 * unjudged) << unjudged << " elements without a bound";
}

}  // namespace gptc::test
