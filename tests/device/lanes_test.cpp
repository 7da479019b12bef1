// What every function of the device layer does, lane by lane, against golden/lanes.inc, which the host's shim has made:
// so a GPU and the shim, on which all other proofs stand, are shown to agree. GPTC_UPDATE_GOLDEN=1 writes it anew, from
// the shim only.
#include "tests/device/cases.h"
#include "tests/device/lanes_text.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

namespace gptc::test {
namespace {

const char *const golden =
#include "golden/lanes.inc"
    ;

// A letter for each column: a word, a float, a double (of two), a pair of f16 or bf16. A NaN is any NaN.
struct Dump {
  const char *kernel, *columns;
  bool from80 = false;
};
constexpr Dump dumps[] = {{"shuffles", "uuuuud"},
                          {"matrices", "uuuuuuuuuuuuuuuu"},
                          {"wholeWords", "uuuu"},
                          {"productF16", "ffff"},
                          {"roundings", "hhfffff"},
                          {"eights", "uuff"},
                          {"arithmetic", "fffffffuu"},
                          {"doubles", "dddd"},
                          {"copies", "uuuuuuu"},
                          {"vectors", "uuuuuuuu"},
                          // at the end: some GPUs have none of these
                          {"productBF16", "ffff", true},
                          {"productTF32", "ffff", true},
                          {"roundingsTF32", "f", true},
                          {"pairsOfBF16", "b", true}};

std::array<uint32_t, 512> input() {
  const float hard[32] = {0.0f,
                          -0.0f,
                          1.0f,
                          -1.5f,
                          0x1.01p0f,
                          0x1.03p0f,
                          0x1.010001p0f,
                          0x1.002p0f,
                          0x1.006p0f,
                          0x1.001p0f,
                          0x1.003p0f,
                          65504.0f,
                          65519.99f,
                          65520.0f,
                          -1e5f,
                          0x1p-14f,
                          0x1.ffcp-15f,
                          0x1p-24f,
                          0x1p-25f,
                          0x1.8p-25f,
                          1e-40f,
                          0x1p-126f,
                          0x1.fffffep-127f,
                          3.4e38f,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          3.1415927f,
                          0.33333334f,
                          16777217.0f,
                          -2.5f};
  std::array<uint32_t, 512> x;
  for (uint32_t i = 0; i < x.size(); ++i)
    x[i] = i < 32 ? std::bit_cast<uint32_t>(hard[i]) : 0x10000u + i;
  return x;
}

std::string half(uint32_t bits, uint32_t infinity) {
  bits &= 0xffffu;
  return (bits & 0x7fffu) > infinity ? "nan" : fmt::format("{:04x}", bits);
}

std::string line(const uint32_t *words, const char *columns) {
  std::string out;
  for (; *columns; ++columns) {
    const uint32_t w = *words++;
    switch (*columns) {
    case 'u':
      out += fmt::format(" {:x}", w);
      break;
    case 'f':
      out += std::isnan(std::bit_cast<float>(w)) ? " nan" : fmt::format(" {:08x}", w);
      break;
    case 'd': {
      const uint64_t bits = w | uint64_t(*words++) << 32;
      out += std::isnan(std::bit_cast<double>(bits)) ? " nan" : fmt::format(" {:016x}", bits);
      break;
    }
    default:
      const uint32_t infinity = *columns == 'h' ? 0x7c00u : 0x7f80u;
      out += fmt::format(" {}:{}", half(w >> 16, infinity), half(w, infinity));
    }
  }
  return out;
}

/// All lanes of all kernels as text, or what the driver said.
std::string found(TestDevice &device, const CudaCode &code, bool all, Finding &f) {
  const std::array<uint32_t, 512> x = input();
  std::string text;
  for (const Dump &dump : dumps) {
    if (dump.from80 && !all)
      continue;
    size_t words = 0;
    for (const char *c = dump.columns; *c; ++c)
      words += *c == 'd' ? 2 : 1;
    std::vector<TestDevice::Param> memory(2);
    memory[0].bytes.resize(sizeof x);
    std::memcpy(memory[0].bytes.data(), x.data(), sizeof x);
    memory[1].bytes.resize(32 * words * 4);
    const TestDevice::Outcome o = device.run({code.image, {{dump.kernel, 1, 32, 0}}, false, nullptr}, memory);
    if (!o.problem.empty()) {
      f = {.problem = fmt::format("{}: {}", dump.kernel, o.problem), .isDead = o.isDead};
      return "";
    }
    std::vector<uint32_t> y(32 * words);
    std::memcpy(y.data(), o.params[1].data(), y.size() * 4);
    text += fmt::format("{}\n", dump.kernel);
    for (int lane = 0; lane < 32; ++lane)
      text += fmt::format("{:2}:{}\n", lane, line(&y[lane * words], dump.columns));
  }
  return text;
}

/// The lines that differ.
std::string compare(const std::string &name, const std::string &is, bool all) {
  std::istringstream have(is), want(golden);
  std::string kernel, a, b, problem;
  int different = 0;
  while (std::getline(have, a)) {
    if (!std::getline(want, b))
      return problem + "the golden text has ended";
    if (b.find(':') == std::string::npos)
      kernel = b;
    if (a != b && ++different <= 20)
      problem += fmt::format("{}, {}, lane{}\n  the shim says{}\n", name, kernel, a, b);
  }
  if ((std::getline(want, b) && b != "") == all)
    problem += "the golden text goes on\n";
  return problem + (different ? fmt::format("{} lines differ", different) : "");
}

TEST(DeviceLayer, DoesWhatTheShimDoesLaneByLane) {
  const DeviceInfo &info = deviceInfo();
  const bool all = info.target.cpu != "sm_75";
  auto compile = [&] {
    return CudaJit(info.target, info.cacheDir)
        .compile({std::string(lanesHead) + lanesText + (all ? lanesTextOf80 : ""), {}}, "lanes");
  };
  compileElsewhere([&] { return compile(), std::vector<std::string>(); });
  const CudaCode code = compile();
  runCases("DeviceLayer", {{.name = "lanes", .about = {}, .run = [&](TestDevice &device) {
                              Finding f;
                              const std::string is = found(device, code, all, f);
                              if (!f.problem.empty())
                                return f;
                              if (goldenFolder && std::getenv("GPTC_UPDATE_GOLDEN")) {
                                if (device.isGpu)
                                  f.problem = "the golden text is the shim's";
                                else
                                  std::ofstream(std::string(goldenFolder) + "/lanes.inc") << "R\"(" << is << ")\"\n";
                                return f;
                              }
                              f.problem = compare(device.name, is, all);
                              return f;
                            }}});
}

}  // namespace
}  // namespace gptc::test
