// Kernels of every op, and of groups as they come in a training step, on the device: within the error bound of their
// own operations, the same bits as the interpreter where there is no approximated function, nothing stored beside a
// parameter, and the same bits in a second run.
#include "tests/device/device.h"

#include "codegen/codegen.h"
#include "ir/diagnostics.h"
#include "ir/element.h"
#include "ir/kernel_bound.h"
#include "tests/unit/codegen/recipe_harness.h"
#include "tests/unit/codegen/support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace gptc::test {
namespace {

struct Case {
  std::string what;
  Group g;
  kir::Kernel kernel;
  std::vector<std::vector<double>> content;  // of all parameters before
};

std::vector<std::byte> bytesOf(const kir::Buffer &b, const std::vector<double> &values) {
  DeviceBuffer memory(b, values);
  const auto *at = static_cast<const std::byte *>(memory.data());
  return {at, at + b->size * int64_t(sizeOf(b->dtype))};
}

std::vector<double> valuesOf(const kir::Buffer &b, const std::vector<std::byte> &bytes) {
  DeviceBuffer memory(b, std::vector<double>(b->size, 0));
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  return memory.values();
}

/// Adds the kernel of a group with random operands.
void add(std::vector<Case> &cases, const std::string &what, Group g, std::vector<Tensor> operands) {
  const Op &fused = *g.fused;
  const Target &target = TestDevice::get().target;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  Case c{what, std::move(g), lowerGroup(fused, defaultSchedule(fused, target), target).kernel, {}};
  for (Tensor &t : operands) {
    for (double &v : t.data)
      v = roundTo(t.type.dtype, v);
    c.content.push_back(spread(t, isFloat(t.type.dtype) ? nan : 99999));  // what is behind an index is nowhere
  }
  while (c.content.size() < c.kernel.params.size()) {
    const kir::BufferNode &b = *c.kernel.params[c.content.size()];
    c.content.push_back(std::vector<double>(b.size, isFloat(b.dtype) ? nan : 1));
  }
  const std::vector<int64_t> streams = streamsOf(fused);
  for (size_t i = 0; i < streams.size(); ++i)
    c.content[c.content.size() - streams.size() + i] = {double(streams[i])};
  cases.push_back(std::move(c));
}

bool usesTensorCores(const kir::Kernel &k) { return kir::print(k).find(" mma ") != std::string::npos; }

void check(const std::vector<Case> &cases) {
  TestDevice &device = TestDevice::get();
  // Equal kernels once, all in one program.
  std::map<std::string, std::vector<CudaPhase>> phases;
  std::string text;
  for (const Case &c : cases) {
    auto [it, isNew] = phases.try_emplace(kir::print(c.kernel));
    if (isNew) {
      const CudaKernel cuda = emitCuda(c.kernel, fmt::format("k{}", phases.size()));
      it->second = cuda.phases;
      text += cuda.text;
    }
  }
  device.load(text);
  int exact = 0, bounded = 0;
  for (const Case &c : cases) {
    SCOPED_TRACE(device.name + ": " + c.what + "\n" + print(*c.g.fused));
    std::vector<std::vector<std::byte>> before;
    for (size_t i = 0; i < c.content.size(); ++i)
      before.push_back(bytesOf(c.kernel.params[i], c.content[i]));
    std::string why;
    const auto after = device.run(phases.at(kir::print(c.kernel)), before, why);
    ASSERT_EQ(why, "");
    const auto again = device.run(phases.at(kir::print(c.kernel)), before, why);
    ASSERT_EQ(why, "");

    std::vector<std::vector<kir::Bounded>> bounds = withoutErrors(c.content);
    bool hasBound = true;
    try {
      kir::boundErrors(c.kernel, bounds);
      ++bounded;
    } catch (const InternalError &e) {
      // Stochastic rounding: bits of a rounded value, of which there is no bound; those are exact.
      ASSERT_NE(std::string(e.what()).find("no bound for"), std::string::npos) << e.what();
      hasBound = false;
    }
    std::vector<std::vector<double>> want = c.content;
    // Tensor cores add in an order of their own, which their bound covers and the stand-ins do not have.
    const bool isExact = !kir::usesApproximations(c.kernel) && !(device.isGpu && usesTensorCores(c.kernel));
    if (isExact) {
      kir::interpret(c.kernel, want, true);
      ++exact;
    }
    const size_t first = c.g.fused->numOperands(), last = first + c.g.fused->numResults();
    for (size_t i = 0; i < first; ++i)
      ASSERT_TRUE(c.kernel.params[i]->written || after[i] == before[i]) << "operand " << i << " was changed";
    for (size_t i = first; i < last; ++i) {
      ASSERT_EQ(after[i], again[i]) << "result " << i - first << " has other bits in a second run";
      const std::vector<double> got = valuesOf(c.kernel.params[i], after[i]);
      for (size_t k = 0; k < got.size(); ++k) {
        if (isExact) {
          ASSERT_TRUE(sameNumber(got[k], want[i][k]))
              << "element " << k << " of result " << i - first << " is " << got[k] << ", not " << want[i][k];
        }
        if (hasBound) {
          const kir::Bounded &b = bounds[i][k];
          ASSERT_TRUE(sameNumber(got[k], b.value) || got[k] == b.value || std::abs(got[k] - b.value) <= b.error)
              << "element " << k << " of result " << i - first << " is " << got[k] << ", not " << b.value << " +- "
              << b.error;
        }
      }
    }
  }
  EXPECT_GT(bounded, 0);
  testing::Test::RecordProperty("cases", int(cases.size()));
  testing::Test::RecordProperty("kernels", int(phases.size()));
  fmt::print("{}: {} cases of {} kernels, {} to the bit, {} within a bound\n", device.name, cases.size(), phases.size(),
             exact, bounded);
}

TEST(Device, EveryOp) {
  std::vector<Case> cases;
  // The stand-ins run a thread after the other: two samples of each are enough to see that the calls are right, since
  // tests/simt runs them all.
  const unsigned seeds = TestDevice::get().isGpu ? 4 : 1;
  for (const OpDef *def : allOpDefs()) {
    if (!def->samples || !recipeOf(def->kind) || def->fusion == FusionKind::collective)
      continue;
    for (unsigned seed = 0; seed < seeds; ++seed) {
      unsigned taken = 0;
      for (const OpDef::Sample &s : def->samples(seed)) {
        if (!TestDevice::get().isGpu && taken == 2)
          break;
        Group g = groupOf(def->kind, s.operandTypes, s.attrs, s.resultTypes);
        std::vector<Tensor> operands = randomOperands(g, seed);
        for (unsigned i = 0; i < operands.size() && i < s.operandValues.size(); ++i)
          if (!s.operandValues[i].data.empty())
            operands[i] = s.operandValues[i];
        add(cases, fmt::format("{} {}", def->name, seed), std::move(g), std::move(operands));
        ++taken;
      }
    }
  }
  EXPECT_GT(cases.size(), 50u);
  check(cases);
}

TEST(Device, NarrowStorage) {
  std::vector<Case> cases;
  for (const char *type : {"bf16", "f16"}) {
    auto take = [&](const char *kind, std::string args, std::string body) {
      for (std::string *t : {&args, &body})
        for (const char *place : {"T[", "T\""})
          for (size_t at; (at = t->find(place)) != std::string::npos;)
            t->replace(at, 1, type);
      Group g = group(kind, args, body);
      std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
      for (size_t i = 0; const double v : {1e38, -65519.9, 65520.0, -3e-8, 6.1e-5, 0.1, -0.0})
        operands[0].data[i++] = v;
      add(cases, fmt::format("{} {}", type, kind), std::move(g), std::move(operands));
    };
    take("pointwise", "%x: T[1000]; %y: f32[1000]",
         "%c = cast %x {dtype=\"f32\"} : f32[1000]\n%h = add %c, %y : f32[1000]\n%r = cast %h {dtype=\"T\"} : "
         "T[1000]\nyield "
         "%r, %h");
    take("row", "%x: T[37,129]",
         "%c = cast %x {dtype=\"f32\"} : f32[37,129]\n%s = softmax %c : f32[37,129]\n"
         "%r = cast %s {dtype=\"T\"} : T[37,129]\nyield %r");
    take("fold", "%x: T[33,70]", "%s = reduce_sum %x {fold=64, lead=1} : f32[70]\nyield %s");
  }
  check(cases);
}

TEST(Device, Matmul) {
  std::vector<Case> cases;
  bool tensorCores = false;
  auto take = [&](const char *type, int64_t m, int64_t n, int64_t k, bool ta, bool tb, int64_t fold) {
    const bool tf32 = type == std::string("tf32");
    auto shape = [&](int64_t rows, int64_t columns) {
      return fmt::format("{}[{},{}]", tf32 ? "f32" : type, rows, columns);
    };
    Group g =
        group("matmul", fmt::format("%a: {}; %b: {}", ta ? shape(k, m) : shape(m, k), tb ? shape(n, k) : shape(k, n)),
              fmt::format("%s = matmul %a, %b {{out=\"f32\"{}{}{}{}}} : f32[{},{}]\nyield %s", ta ? ", ta=true" : "",
                          tb ? ", tb=true" : "", tf32 ? ", tf32=true" : "", fold ? fmt::format(", fold={}", fold) : "",
                          m, n));
    std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
    add(cases, fmt::format("matmul {} {}x{}x{}", type, m, n, k), std::move(g), std::move(operands));
    tensorCores |= usesTensorCores(cases.back().kernel);
  };
  for (const char *type : {"f32", "tf32", "bf16", "f16"}) {
    take(type, 35, 37, 39, false, true, 0);
    take(type, 33, 35, 100, true, false, 24);
    if (!TestDevice::get().isGpu)
      continue;
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        take(type, 40, 48, 72, ta, tb, 0);
        take(type, 129, 131, 127, ta, tb, 0);
        take(type, 256, 384, 512, ta, tb, 0);
      }
  }
  EXPECT_TRUE(tensorCores);
  check(cases);
}

// As a training step has it: several heads, in the type that it is stored in, and odd lengths.
TEST(Device, Attention) {
  std::vector<Case> cases;
  std::vector<std::pair<int64_t, int64_t>> shapes = {{19, 16}};
  if (TestDevice::get().isGpu)
    shapes = {{19, 16}, {70, 64}, {33, 32}, {257, 128}};
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (auto [tokens, size] : shapes)
      for (bool backward : {false, true}) {
        const Type qkv(type, {2, tokens, 3 * 2 * size}), out(type, {2, tokens, 2 * size}),
            lse(DType::f32, {2, 2, tokens});
        Group g = groupOf(backward ? OpKind::attention_grad : OpKind::attention,
                          backward ? std::vector<Type>{out, qkv, out, lse} : std::vector<Type>{qkv},
                          attrs({{"n_head", int64_t(2)}}), {});
        std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
        if (backward)  // larger than any score, so that no probability exceeds one
          for (double &v : operands[3].data)
            v = 4 + std::abs(v);
        add(cases, fmt::format("attention of {} tokens, heads of {}", tokens, size), std::move(g), std::move(operands));
      }
  check(cases);
}

}  // namespace
}  // namespace gptc::test
