#include "kernel_case.h"

#include "ir/element.h"
#include "ir/kernel/bound.h"
#include "passes/pass.h"
#include "tests/unit/codegen/support.h"

#include <cmath>
#include <limits>

namespace gptc::conformance {
namespace {

constexpr double poison = std::numeric_limits<double>::quiet_NaN();
constexpr double intPoison = -2004318072;  // an index far out of every table

/// The fused op that the fuse pass makes of the program's only op.
Op *fuse(OneOp &one) {
  Target target = hostTarget(1);
  PipelineOptions options;
  options.reproFile.clear();
  runPipeline(*one.module, parsePipeline("fuse", &target), options);
  one.f = one.module->function("f");
  for (Op &op : one.f->body)
    if (op.is(OpKind::fused))
      return &op;
  return nullptr;
}

/// Logical elements at their padded places; what lies between must not matter.
std::vector<double> scatter(const Tensor &t, int64_t size) {
  std::vector<double> memory(size, isFloat(t.type.dtype) ? poison : intPoison);
  std::vector<int64_t> at = elementPlaces(t.type);
  for (size_t i = 0; i < at.size(); ++i)
    memory[at[i]] = t.data[i];
  return memory;
}

/// Memory of one parameter in its own dtype, with a red zone on either side.
class RawBuffer {
public:
  RawBuffer(const kir::Buffer &b, const std::vector<double> &values) : dtype(b->dtype), size(b->size) {
    bytes.assign((size + 2 * zone) * sizeOf(dtype) + 64, std::byte(0xA5));
    // Aligned as the arena aligns.
    offset = (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64 + zone * sizeOf(dtype);
    for (int64_t i = 0; i < size; ++i)
      storeElement(dtype, data(), i, values[i]);
  }
  void *data() { return bytes.data() + offset; }
  double get(int64_t i) const { return loadElement(dtype, bytes.data() + offset, i); }
  bool zonesIntact() const {
    for (size_t i = 0; i < bytes.size(); ++i)
      if ((i < offset || i >= offset + size_t(size) * sizeOf(dtype)) && bytes[i] != std::byte(0xA5))
        return false;
    return true;
  }
  bool operator==(const RawBuffer &o) const {
    return std::equal(bytes.begin() + offset, bytes.begin() + offset + size * sizeOf(dtype),
                      o.bytes.begin() + o.offset);
  }

private:
  static constexpr int64_t zone = 64;
  DType dtype;
  int64_t size;
  size_t offset = 0;
  std::vector<std::byte> bytes;
};

/// Tensors from the memory of the results.
std::vector<std::vector<double>> outputsOf(const Case &c, const std::function<double(size_t param, int64_t at)> &get) {
  std::vector<std::vector<double>> r;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    r.emplace_back();
    for (int64_t at : elementPlaces(c.outputs[i]))
      r.back().push_back(get(c.firstOutput + i, at));
  }
  return r;
}

/// Equal up to `tolerance(result, element)`; infinities and NaN must be the same.
void compare(const Case &c, const std::vector<std::vector<double>> &actual, const std::string &what,
             const std::function<double(size_t, size_t)> &tolerance) {
  for (size_t r = 0; r < actual.size(); ++r)
    for (size_t i = 0; i < actual[r].size(); ++i) {
      double want = c.expected[r].data[i], is = actual[r][i];
      if (std::isnan(want) ? std::isnan(is) : want == is)
        continue;
      ASSERT_LE(std::fabs(is - want), tolerance(r, i))
          << what << ", result " << r << ", element " << i << ": " << is << " instead of " << want << "\n"
          << c.name << "\n"
          << kir::print(c.group.kernel);
    }
}

/// 1e-12 of the element, or of the largest one of its tensor where that cancels.
std::function<double(size_t, size_t)> relative(const Case &c) {
  std::vector<double> largest;
  for (const Tensor &t : c.expected) {
    largest.push_back(0);
    for (double v : t.data)
      if (std::isfinite(v))
        largest.back() = std::max(largest.back(), std::fabs(v));
  }
  return [largest](size_t r, size_t) { return 1e-12 * largest[r]; };
}

struct RunResult {
  std::vector<RawBuffer> buffers;
  bool zonesIntact = true;
};

/// Runs compiled code, tasks in ascending order all at once, or one by one from the last.
RunResult execute(const Case &c, const CompiledKernel &code, bool backwards) {
  RunResult r;
  for (size_t i = 0; i < c.memory.size(); ++i)
    r.buffers.emplace_back(c.group.kernel.params[i], c.memory[i]);
  std::vector<void *> params;
  for (RawBuffer &b : r.buffers)
    params.push_back(b.data());
  for (const CompiledPhase &phase : code.phases) {
    if (!backwards)
      phase.run(params.data(), 0, phase.tasks);
    for (int64_t t = phase.tasks; backwards && t-- > 0;)
      phase.run(params.data(), t, t + 1);
  }
  for (const RawBuffer &b : r.buffers)
    r.zonesIntact &= b.zonesIntact();
  return r;
}

/// Inputs as memory holds them, so that code and reference start from the same numbers.
void roundInputs(OneOp &one, DType compute) {
  for (Tensor &t : one.inputs)
    for (double &v : t.data) {
      if (isInt(t.type.dtype) || compute == DType::f64)
        continue;
      v = roundTo(t.type.dtype, float(v));
    }
}

}  // namespace

std::unique_ptr<Case> makeCase(const OpDef &def, const OpDef::Sample &sample, unsigned seed, DType compute) {
  auto c = std::make_unique<Case>();
  c->one = makeOneOp(def, sample, seed);
  roundInputs(c->one, compute);
  c->name = fmt::format("{} seed {}: {}", nameOf(compute).str(), seed, print(*c->one.f));
  c->expected = c->one.reference();
  Op *fused = fuse(c->one);
  if (def.fusion == FusionKind::view) {
    EXPECT_EQ(fused, nullptr) << "a view runs no code";
    return nullptr;
  }
  if (def.fusion == FusionKind::collective)  // an engine's business
    return nullptr;
  GPTC_CHECK(fused, "nothing was fused:\n{}", print(*c->one.f));
  GPTC_CHECK(fused->numResults() == c->expected.size(), "results are missing:\n{}", print(*fused));
  Target target = hostTarget(1);
  c->group = lowerGroup(*fused, defaultSchedule(*fused, target), target, compute);
  const kir::Kernel &k = c->group.kernel;
  EXPECT_EQ(kir::verify(k), std::vector<std::string>()) << kir::print(k);
  const std::vector<int64_t> streams = streamsOf(*fused);
  const size_t firstStream = fused->numOperands() + fused->numResults() + c->group.workspaceBytes.size();
  EXPECT_EQ(k.params.size(), firstStream + streams.size());
  c->firstOutput = fused->numOperands();
  for (size_t i = 0; i < k.params.size(); ++i) {
    const kir::Buffer &b = k.params[i];
    if (i < c->firstOutput) {
      unsigned arg = fused->operand(unsigned(i))->index;  // the function's argument of that number
      c->memory.push_back(scatter(c->one.inputs[arg], b->size));
    } else if (i >= firstStream) {
      c->memory.push_back({double(streams[i - firstStream])});
    } else {
      c->memory.push_back(std::vector<double>(b->size, isFloat(b->dtype) ? poison : intPoison));
    }
  }
  for (unsigned r = 0; r < fused->numResults(); ++r)
    c->outputs.push_back(fused->result(r)->type);
  return c;
}

void checkInterpreted(const Case &c) {
  auto memory = c.memory;
  kir::interpret(c.group.kernel, memory);
  compare(c, outputsOf(c, [&](size_t p, int64_t at) { return memory[p][at]; }), "interpreted kernel", relative(c));
}

void checkEmitted(llvm::ArrayRef<std::unique_ptr<Case>> cases) {
  Jit jit(hostTarget(1), "");
  std::vector<const kir::Kernel *> kernels;
  for (const auto &c : cases)
    kernels.push_back(&c->group.kernel);
  std::vector<CompiledKernel> code = jit.compile(kernels);
  ASSERT_EQ(code.size(), cases.size());
  for (size_t n = 0; n < cases.size(); ++n) {
    const Case &c = *cases[n];
    std::vector<std::vector<kir::Bounded>> bounds = test::withoutErrors(c.memory);
    kir::boundErrors(c.group.kernel, bounds);
    std::vector<std::vector<double>> bound = outputsOf(c, [&](size_t p, int64_t at) { return bounds[p][at].error; });

    RunResult forwards = execute(c, code[n], false);
    ASSERT_TRUE(forwards.zonesIntact) << c.name << " writes outside its buffers";
    auto values = outputsOf(c, [&](size_t p, int64_t at) { return forwards.buffers[p].get(at); });
    for (size_t r = 0; r < bound.size(); ++r)
      for (size_t i = 0; i < bound[r].size(); ++i)
        ASSERT_TRUE(std::isfinite(bound[r][i]) || !std::isfinite(c.expected[r].data[i])) << c.name << ": no bound";
    // The reference itself rounds in f64, by far less than f32 does.
    auto slack = relative(c);
    compare(c, values, "machine code", [&](size_t r, size_t i) { return bound[r][i] + slack(r, i); });
    if (::testing::Test::HasFatalFailure())
      return;

    RunResult again = execute(c, code[n], true);
    for (size_t i = 0; i < c.memory.size(); ++i)
      ASSERT_TRUE(forwards.buffers[i] == again.buffers[i]) << c.name << ": the order of tasks matters";

    if (kir::usesApproximations(c.group.kernel))
      continue;
    auto memory = c.memory;
    kir::interpret(c.group.kernel, memory, true);
    auto exact = outputsOf(c, [&](size_t p, int64_t at) { return memory[p][at]; });
    for (size_t r = 0; r < exact.size(); ++r)
      for (size_t i = 0; i < exact[r].size(); ++i)
        ASSERT_TRUE(exact[r][i] == values[r][i] || (std::isnan(exact[r][i]) && std::isnan(values[r][i])))
            << c.name << "\nresult " << r << ", element " << i << ": code gives " << values[r][i]
            << ", the interpreter " << exact[r][i] << "\n"
            << kir::print(c.group.kernel);
  }
}

}  // namespace gptc::conformance
