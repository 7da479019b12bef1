#include "runtime/checkpoint/quantized_weights.h"

#include "ir/facts.h"
#include "ir/quantized.h"
#include "runtime/checkpoint/state.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"
#include "support/gguf/blocks.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

namespace gptc {
namespace {

/// ggml's block of 32 values. Of 4 bits, byte i has element i in its lower half and element i + 16 in its upper one.
struct Block {
  uint16_t scale;
  uint8_t q[quantBlock];
};
static_assert(sizeof(Block) == 34);

/// ggml's block of 4 bits if it can hold these values as they are: files have some whose largest magnitude is not -8,
/// which is what rounding makes of it.
std::optional<Block> exactBlock(const float *x) {
  float largest = 0;
  for (int64_t i = 0; i < quantBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(largest))
      largest = x[i];
  for (int m = 7; m >= 1 && largest != 0; --m)
    for (const int number : {m, -m}) {
      const float scale = largest / float(number);
      const auto half = _Float16(scale);
      if (float(half) != scale || scale * float(number) != largest)
        continue;
      Block b{std::bit_cast<uint16_t>(half), {}};
      bool fits = true;
      for (int64_t i = 0; i < quantBlock && fits; ++i) {
        const float q = x[i] / scale;
        fits = q == std::floor(q) && q >= -8 && q <= 7 && q * scale == x[i];
        b.q[i % 16] |= uint8_t(int(fits ? q + 8 : 0) << (i / 16 * 4));
      }
      if (fits)
        return b;
    }
  return std::nullopt;
}

/// Words of a block as ir/quantized.h has them.
uint32_t wordOf8(const Block &b, int64_t w) {
  uint32_t word = 0;
  for (int t = 0; t < 4; ++t)
    word |= uint32_t(uint8_t(b.q[t * 8 + w] + 128)) << (8 * t);
  return word;
}
uint32_t wordOf4(const Block &b, int64_t w) {
  // Elements 8t + w and, in the upper halves, 8t + w + 4.
  auto element = [&](int64_t i) { return uint32_t(b.q[i % 16] >> (i / 16 * 4) & 15); };
  uint32_t word = 0;
  for (int t = 0; t < 4; ++t)
    word |= (element(t * 8 + w) | element(t * 8 + w + 4) << 4) << (8 * t);
  return word;
}

struct Panels {
  const float *values;
  int64_t n, k, ld, cols, bits;
  bool tb;
  uint32_t *numbers;
  uint16_t *scales;  // f16

  /// Fills one panel. False if a scale is beyond f16.
  bool fill(int64_t panel) const {
    const int64_t words = quantBlock * bits / 32, blocks = k / quantBlock, first = panel * cols,
                  here = std::min(cols, n - first);
    std::fill_n(numbers + panel * blocks * words * cols, blocks * words * cols, 0);
    std::fill_n(scales + panel * blocks * cols, blocks * cols, uint16_t(0));
    bool fits = true;
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t c = 0; c < here; ++c) {
        const int64_t k0 = block * quantBlock;
        float x[quantBlock];
        for (int64_t i = 0; i < quantBlock; ++i)
          x[i] = values[tb ? (first + c) * ld + k0 + i : (k0 + i) * ld + first + c];
        Block rounded;
        fits &= quantize(bits == 8 ? GgmlType::q8_0 : GgmlType::q4_0, x, quantBlock, &rounded);
        if (bits == 4)
          rounded = exactBlock(x).value_or(rounded);
        uint32_t *to = numbers + (panel * blocks + block) * words * cols + c;
        for (int64_t w = 0; w < words; ++w)
          to[w * cols] = bits == 8 ? wordOf8(rounded, w) : wordOf4(rounded, w);
        scales[(panel * blocks + block) * cols + c] = rounded.scale;
      }
    return fits;
  }
};

}  // namespace

QuantizedWeights::QuantizedWeights(const Module &m) {
  for (const auto &s : m.states) {
    if (kindOf(*s) != StateKind::quantized)
      continue;
    const std::string of = fact<&StateFacts::of>(*s);
    QuantizedWeight &w = all[of];
    w.param = m.state(of);
    const State *&to = s->type.dtype == DType::u32 ? w.numbers : w.scales;
    GPTC_CHECK(w.param && !to, "@{} of @{}", s->name, of);
    to = s.get();
  }
  for (auto &[name, w] : all) {
    GPTC_CHECK(w.numbers && w.scales, "@{} has numbers or scales alone", name);
    const bool tb = fact<&StateFacts::tb>(*w.numbers);
    w.bits = w.numbers->type.dim(1) * 32 / w.param->type.dim(tb ? 1 : 0);
    const auto type = quantizedType(w.param->type, w.numbers->type.dim(2), tb, w.bits);
    GPTC_CHECK(type && w.numbers->type == type->numbers && w.scales->type == type->scales, "@{} and @{} of @{}",
               w.numbers->name, w.scales->name, name);
  }
}

const QuantizedWeight *QuantizedWeights::of(const State &param) const {
  const auto it = all.find(param.name);
  return it == all.end() ? nullptr : &it->second;
}

void storeQuantized(Executor &executor, const QuantizedWeight &w, const float *values) {
  const Type &type = w.param->type;
  const StateView numbers = executor.view(*w.numbers, StateAccess::write),
                  scales = executor.view(*w.scales, StateAccess::write);
  const bool tb = fact<&StateFacts::tb>(*w.numbers);
  const Panels panels{
      values, type.dim(tb ? 0 : 1),   type.dim(tb ? 1 : 0), type.padded(1), w.numbers->type.dim(2), w.bits,
      tb,     numbers.as<uint32_t>(), scales.as<uint16_t>()};
  std::atomic<bool> fits = true;
  executor.threads().each(w.numbers->type.dim(0), [&](int64_t panel) {
    if (!panels.fill(panel))
      fits = false;
  });
  if (!fits)
    throw UserError(ErrorCode::OutOfRange,
                    fmt::format("{} has values too large for few bits with a scale in f16", w.param->name),
                    "precision.weights = \"compute\" keeps weights as they are computed with");
  if (isInFiles(*w.param))
    return;
  storeRounded(executor, type.dtype, values, executor.view(*w.param, StateAccess::write).data, type.paddedElements());
}

}  // namespace gptc
