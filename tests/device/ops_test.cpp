// Kernels of every op, and of groups as they come in a training step, on the device: within the error bound of their
// own operations, the same bits as the interpreter where there is no approximated function, nothing stored beside a
// parameter, and the same bits in a second run.
//
// All that needs no device is done before, on all cores: kernels, their code, operands, and what is to come out.
#include "tests/device/cases.h"

#include "codegen/codegen.h"
#include "ir/element.h"
#include "ir/kernel/bound.h"
#include "support/diagnostics.h"
#include "tests/support/recipe_harness.h"
#include "tests/unit/codegen/support.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <thread>

namespace gptc::test {
namespace {

struct Case {
  std::string name;  // of no other case of the test
  Group g;
  std::vector<Tensor> operands;
  kir::Kernel kernel;
  std::string printed;                            // the kernel
  std::vector<TestDevice::Param> params;          // before
  std::vector<std::vector<double>> want;          // of the results, where they are exact
  std::vector<std::vector<kir::Bounded>> bounds;  // of the results, where there are any
  CudaCode code;
  std::string problem;  // of what comes before the device

  size_t firstResult() const { return g.fused->numOperands(); }
  size_t numResults() const { return g.fused->numResults(); }
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

void add(std::vector<Case> &cases, const std::string &name, Group g, std::vector<Tensor> operands) {
  cases.push_back({.name = name, .g = std::move(g), .operands = std::move(operands)});
}

bool usesTensorCores(const Case &c) { return c.printed.find(" mma ") != std::string::npos; }

/// Calls each(case) for all of them, on all cores. What one throws is its case's problem.
void forAll(const std::vector<Case *> &cases, const std::function<void(Case &)> &each) {
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next++) < cases.size();)
      try {
        if (cases[i]->problem.empty())
          each(*cases[i]);
      } catch (const std::exception &e) {
        cases[i]->problem = e.what();
      }
  };
  std::vector<std::thread> workers;
  for (unsigned i = 1; i < std::min<size_t>(hostTarget().threads, cases.size()); ++i)
    workers.emplace_back(work);
  work();
  for (std::thread &t : workers)
    t.join();
}

void lower(Case &c) {
  const Target &target = deviceInfo().target;
  c.kernel = lowerGroup(*c.g.fused, defaultSchedule(*c.g.fused, target), target).kernel;
  c.printed = kir::print(c.kernel);
}

/// What stands in all parameters before.
std::vector<std::vector<double>> contentOf(Case &c) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::vector<double>> content;
  for (Tensor &t : c.operands) {
    for (double &v : t.data)
      v = roundTo(t.type.dtype, v);
    content.push_back(spread(t, isFloat(t.type.dtype) ? nan : 99999));  // what is behind an index is nowhere
  }
  while (content.size() < c.kernel.params.size()) {
    const kir::BufferNode &b = *c.kernel.params[content.size()];
    content.push_back(std::vector<double>(b.size, isFloat(b.dtype) ? nan : 1));
  }
  const std::vector<int64_t> streams = streamsOf(*c.g.fused);
  for (size_t i = 0; i < streams.size(); ++i)
    content[content.size() - streams.size() + i] = {double(streams[i])};
  const size_t given = content.size() - streams.size();
  for (size_t i = 0; i < content.size(); ++i)
    c.params.push_back(
        {bytesOf(c.kernel.params[i], content[i]), !leavesUninitialised() || i < c.firstResult() || i >= given});
  return content;
}

/// Operands, and what results may be.
void reckon(Case &c) {
  std::vector<std::vector<double>> content = contentOf(c);
  if (leavesUninitialised())
    return;
  auto results = [&](auto &all) {
    return std::remove_reference_t<decltype(all)>(all.begin() + c.firstResult(),
                                                  all.begin() + c.firstResult() + c.numResults());
  };
  std::vector<std::vector<kir::Bounded>> bounds = withoutErrors(content);
  try {
    kir::boundErrors(c.kernel, bounds);
    c.bounds = results(bounds);
  } catch (const InternalError &e) {
    // Stochastic rounding: bits of a rounded value, of which there is no bound; those are exact.
    if (std::string(e.what()).find("no bound for") == std::string::npos)
      throw;
  }
  // Tensor cores add in an order of their own, which their bound covers and the stand-ins do not have.
  if (!kir::usesApproximations(c.kernel) && !(deviceInfo().isGpu && usesTensorCores(c))) {
    kir::interpret(c.kernel, content, true);
    c.want = results(content);
  }
  GPTC_CHECK(!c.want.empty() || !c.bounds.empty(), "nothing is known of the results");
}

/// Equal kernels once, in programs that are compiled side by side.
CudaJit::Stats compileAll(const std::vector<Case *> &cases) {
  std::vector<const kir::Kernel *> kernels;
  std::vector<Case *> of;
  for (Case *c : cases)
    if (c->problem.empty()) {
      kernels.push_back(&c->kernel);
      of.push_back(c);
    }
  CudaJit jit(deviceInfo().target, deviceInfo().cacheDir);
  const std::vector<CudaCode> code = jit.compileEach(kernels);
  for (size_t i = 0; i < code.size(); ++i) {
    of[i]->code = code[i];
    try {
      if (code[i].refused)
        std::rethrow_exception(code[i].refused);
    } catch (const UserError &e) {
      of[i]->problem = e.diagnostics[0].message;
    }
    if (code[i].isPlain)
      of[i]->problem = "NVRTC refuses the kernel, and plain loops would take its place";
  }
  return jit.stats;
}

/// The same where this process is to have children that use the device.
CudaJit::Stats compileAllElsewhere(const std::vector<Case *> &cases) {
  CudaJit::Stats stats;
  const std::vector<std::string> said = compileElsewhere([&] {
    stats = compileAll(cases);
    std::vector<std::string> lines = {std::to_string(stats.compiled), std::to_string(stats.reused),
                                      std::to_string(stats.programs)};
    for (const Case *c : cases)
      lines.push_back(c->problem);
    return lines;
  });
  stats.compiled = std::stoi(said.at(0)), stats.reused = std::stoi(said.at(1)), stats.programs = std::stoi(said.at(2));
  for (size_t i = 0; i < cases.size(); ++i)
    cases[i]->problem = said.at(3 + i);
  compileAll(cases);  // from the cache
  return stats;
}

std::string compare(const Case &c, const std::vector<std::vector<std::byte>> &after,
                    const std::vector<std::vector<std::byte>> &again) {
  for (size_t i = 0; i < c.firstResult(); ++i)
    if (!c.kernel.params[i]->written && after[i] != c.params[i].bytes)
      return fmt::format("operand {} was changed", i);
  for (size_t r = 0; r < c.numResults(); ++r) {
    const size_t i = c.firstResult() + r;
    if (after[i] != again[i])
      return fmt::format("result {} has other bits in a second run", r);
    const std::vector<double> got = valuesOf(c.kernel.params[i], after[i]);
    for (size_t k = 0; k < got.size(); ++k) {
      if (!c.want.empty() && !sameNumber(got[k], c.want[r][k]))
        return fmt::format("element {} of result {} is {}, not {}", k, r, got[k], c.want[r][k]);
      if (c.bounds.empty())
        continue;
      const kir::Bounded &b = c.bounds[r][k];
      if (!sameNumber(got[k], b.value) && got[k] != b.value && !(std::abs(got[k] - b.value) <= b.error))
        return fmt::format("element {} of result {} is {}, not {} +- {}", k, r, got[k], b.value, b.error);
    }
  }
  return "";
}

Finding runOn(TestDevice &device, const Case &c) {
  Finding f;
  f.problem = c.problem;
  if (f.problem.empty()) {
    const TestDevice::Outcome after = device.run(c.code, c.params);
    f.problem = after.problem;
    f.isDead = after.isDead;
    if (f.problem.empty() && !leavesUninitialised()) {
      const TestDevice::Outcome again = device.run(c.code, c.params);
      f.problem = again.problem;
      f.isDead = again.isDead;
      if (f.problem.empty())
        f.problem = compare(c, after.params, again.params);
    }
  }
  f.said = std::string(c.want.empty() ? "" : "exact") + (c.bounds.empty() ? "" : "bounded");
  if (!f.problem.empty())
    f.problem += "\n" + print(*c.g.fused);
  return f;
}

/// The cases of a test of Device that are asked for.
struct Prepared {
  std::vector<Case> cases;
  size_t of = 0;  // so many, asked for or not
};

std::vector<Case> everyOp() {
  std::vector<Case> cases;
  // The stand-ins run a thread after the other: two samples of each are enough to see that the calls are right, since
  // tests/simt runs them all.
  const bool isGpu = deviceInfo().isGpu;
  const unsigned seeds = isGpu ? 4 : 1, most = isGpu ? 1000 : 2;
  for (const OpDef *def : allOpDefs()) {
    if (!def->samples || !recipeOf(def->kind) || def->fusion == FusionKind::collective)
      continue;
    for (unsigned seed = 0; seed < seeds; ++seed) {
      unsigned sample = 0;
      for (const OpDef::Sample &s : def->samples(seed)) {
        if (isForCpus(*def, s))
          continue;
        if (sample == most)
          break;
        Group g = groupOf(def->kind, s.operandTypes, s.attrs, s.resultTypes);
        std::vector<Tensor> operands = randomOperands(g, seed);
        for (unsigned i = 0; i < operands.size() && i < s.operandValues.size(); ++i)
          if (!s.operandValues[i].data.empty())
            operands[i] = s.operandValues[i];
        add(cases, fmt::format("{} {}.{}", def->name, seed, sample++), std::move(g), std::move(operands));
      }
    }
  }
  return cases;
}

std::vector<Case> narrowStorage() {
  std::vector<Case> cases;
  for (const char *type : {"bf16", "f16", "f8e4m3"}) {
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
    if (*type == 'f' && type[1] == '8')
      continue;  // products read it, and nothing else computes with it
    take("fold", "%x: T[33,70]", "%s = reduce_sum %x {fold=64, lead=1} : f32[70]\nyield %s");
  }
  return cases;
}

std::vector<Case> matmul() {
  std::vector<Case> cases;
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
    add(cases, fmt::format("{} {}x{}x{}{}{}", type, m, n, k, ta ? " transposed a" : "", tb ? " transposed b" : ""),
        std::move(g), std::move(operands));
  };
  for (const char *type : {"f32", "tf32", "bf16", "f16", "f8e4m3"}) {
    take(type, 35, 37, 39, false, true, 0);
    take(type, 33, 35, 100, true, false, 24);
    if (!deviceInfo().isGpu)
      continue;
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        take(type, 40, 48, 72, ta, tb, 0);
        take(type, 129, 131, 127, ta, tb, 0);
        take(type, 256, 384, 512, ta, tb, 0);
      }
  }
  return cases;
}

// As a training step has it: several heads, in the type that it is stored in, and odd lengths.
std::vector<Case> attention() {
  std::vector<Case> cases;
  struct Shape {
    int64_t batch, tokens, size;
  };
  std::vector<Shape> shapes = {{2, 19, 16}};
  if (deviceInfo().isGpu)  // what takes the interpreter longest comes first
    shapes = {{1, 193, 128}, {2, 70, 64}, {2, 33, 32}, {2, 19, 16}};
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (auto [batch, tokens, size] : shapes)
      for (bool backward : {false, true}) {
        const Type qkv(type, {batch, tokens, 3 * 2 * size}), out(type, {batch, tokens, 2 * size}),
            lse(DType::f32, {batch, 2, tokens});
        Group g = groupOf(backward ? OpKind::attention_grad : OpKind::attention,
                          backward ? std::vector<Type>{out, qkv, out, lse} : std::vector<Type>{qkv},
                          attrs({{"n_head", int64_t(2)}}), {});
        std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()));
        if (backward)  // larger than any score, so that no probability exceeds one
          for (double &v : operands[3].data)
            v = 4 + std::abs(v);
        add(cases,
            fmt::format("{} {}, {} tokens, heads of {}", nameOf(type).str(), backward ? "backward" : "forward", tokens,
                        size),
            std::move(g), std::move(operands));
      }
  return cases;
}

/// The cases of all tests of Device that will run, prepared together, so that all cores have work until the end.
std::map<std::string, Prepared> prepareAll() {
  const std::map<std::string, std::vector<Case> (*)()> makers = {
      {"Attention", attention}, {"EveryOp", everyOp}, {"Matmul", matmul}, {"NarrowStorage", narrowStorage}};
  std::map<std::string, Prepared> all;
  std::vector<Case *> cases;
  const testing::TestSuite &suite = *testing::UnitTest::GetInstance()->current_test_suite();
  for (int i = 0; i < suite.total_test_count(); ++i) {
    const testing::TestInfo &test = *suite.GetTestInfo(i);
    const auto make = makers.find(test.name());
    if (!test.should_run() || make == makers.end())
      continue;
    Prepared &p = all[test.name()];
    for (Case &c : make->second()) {
      ++p.of;
      if (isAskedFor(test.name(), c.name))
        p.cases.push_back(std::move(c));
    }
    for (Case &c : p.cases)
      cases.push_back(&c);
  }
  deviceInfo();  // in this thread: it may open the device, for all cases
  const auto begin = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  forAll(cases, lower);
  const double lowered = seconds();
  const CudaJit::Stats stats = compileAllElsewhere(cases);
  const double compiled = seconds();
  if (!onlyPrepares())
    forAll(cases, reckon);
  const double reckoned = seconds();
  record("Device", {{"kernels", stats.compiled + stats.reused},
                    {"compiled", stats.compiled},
                    {"programs", stats.programs},
                    {"seconds for kernels", lowered},
                    {"seconds for code", compiled - lowered},
                    {"seconds for references", reckoned - compiled}});
  fmt::print("{} kernels, {} of them compiled in {} programs: {:.1f} s; references: {:.1f} s\n",
             stats.compiled + stats.reused, stats.compiled, stats.programs, compiled, reckoned - compiled);
  return all;
}

/// Runs what is asked for of a test.
const Prepared &check(const std::string &test) {
  static const std::map<std::string, Prepared> all = prepareAll();
  const Prepared &p = all.at(test);
  std::vector<DeviceCase> cases;
  std::set<std::string> kernels;
  for (const Case &c : p.cases) {
    const Op &op = *c.g.fused->body->front();
    const Value *first = c.g.fused->numOperands() ? c.g.fused->operand(0) : c.g.fused->result(0);
    cases.push_back({.name = c.name,
                     .about = {{"op", op.name().str()},
                               {"dtype", nameOf(first->type.dtype).str()},
                               {"kernel", cudaSymbol(c.kernel)}},
                     .run = [&c](TestDevice &d) { return runOn(d, c); }});
    kernels.insert(c.printed);
  }
  Outcomes o = runCases(test, cases);
  if (onlyPrepares()) {
    for (const Case &c : p.cases)
      EXPECT_EQ(c.problem, "") << test << "/" << c.name;
    return p;
  }
  const int both = o.said["exactbounded"];
  testing::Test::RecordProperty("cases", int(cases.size()));
  testing::Test::RecordProperty("kernels", int(kernels.size()));
  fmt::print("{}: {} cases of {} kernels, {} to the bit, {} within a bound{}\n", test, cases.size(), kernels.size(),
             o.said["exact"] + both, o.said["bounded"] + both, o.failed ? fmt::format(", {} failed", o.failed) : "");
  return p;
}

TEST(Device, EveryOp) { EXPECT_GT(check("EveryOp").of, 50u); }
TEST(Device, NarrowStorage) { check("NarrowStorage"); }
TEST(Device, Matmul) {
  const Prepared &p = check("Matmul");
  EXPECT_TRUE(p.cases.size() < p.of || llvm::any_of(p.cases, usesTensorCores));
}
TEST(Device, Attention) { check("Attention"); }

}  // namespace
}  // namespace gptc::test
