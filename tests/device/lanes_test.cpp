// What every function of the device layer does, lane by lane, against golden/lanes.inc, which the host's shim has made:
// so a GPU and the shim, on which all other proofs stand, are shown to agree. GPTC_UPDATE_GOLDEN=1 writes it anew, from
// the shim only.
#include "tests/device/device.h"
#include "tests/device/lanes_text.h"

#include "ir/diagnostics.h"

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

TEST(DeviceLayer, DoesWhatTheShimDoesLaneByLane) {
  TestDevice &device = TestDevice::get();
  const bool all = device.target.cpu != "sm_75";
  device.load(std::string(lanesHead) + lanesText + (all ? lanesTextOf80 : ""));
  const std::array<uint32_t, 512> x = input();
  std::string found;
  for (const Dump &dump : dumps) {
    if (dump.from80 && !all)
      continue;
    size_t words = 0;
    for (const char *c = dump.columns; *c; ++c)
      words += *c == 'd' ? 2 : 1;
    std::vector<std::vector<std::byte>> memory(2);
    memory[0].resize(sizeof x);
    std::memcpy(memory[0].data(), x.data(), sizeof x);
    memory[1].resize(32 * words * 4);
    std::string why;
    memory = device.run({{dump.kernel, 1, 32}}, memory, why);
    ASSERT_EQ(why, "") << dump.kernel;
    std::vector<uint32_t> y(32 * words);
    std::memcpy(y.data(), memory[1].data(), y.size() * 4);
    found += fmt::format("{}\n", dump.kernel);
    for (int lane = 0; lane < 32; ++lane)
      found += fmt::format("{:2}:{}\n", lane, line(&y[lane * words], dump.columns));
  }
#ifdef GPTC_SOURCE_DIR  // not in the program of tools/bundle
  if (std::getenv("GPTC_UPDATE_GOLDEN")) {
    ASSERT_FALSE(device.isGpu) << "the golden text is the shim's";
    std::ofstream(GPTC_SOURCE_DIR "/tests/device/golden/lanes.inc") << "R\"(" << found << ")\"\n";
    return;
  }
#endif
  std::istringstream have(found), want(golden);
  std::string kernel, a, b;
  int different = 0;
  while (std::getline(have, a)) {
    ASSERT_TRUE(std::getline(want, b));
    if (b.find(':') == std::string::npos)
      kernel = b;
    if (a != b && ++different <= 20)
      ADD_FAILURE() << device.name << ", " << kernel << ", lane" << a << "\n  the shim says" << b;
  }
  EXPECT_NE(std::getline(want, b) && b != "", all) << "the golden text goes on";
  EXPECT_EQ(different, 0) << "lines differ";
}

}  // namespace
}  // namespace gptc::test
