#include "runtime/checkpoint/quantized_weights.h"

#include "ir/facts.h"
#include "runtime/checkpoint/state.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"
#include "support/gguf/q4_k.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace gptc {
namespace {

int64_t bytesOfBlock(QuantFormat format) { return ggmlFormat(ggmlTypeOf(format)).bytes; }

/// ggml's block of Q4_0 if it can hold these values as they are: files have some whose largest magnitude is not -8,
/// which is what rounding makes of it. Byte i has element i in its lower half and element i + 16 in its upper one.
bool exactBlock(const float *x, uint8_t *block) {
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
      uint8_t q[quantBlock / 2] = {};
      bool fits = true;
      for (int64_t i = 0; i < quantBlock && fits; ++i) {
        const float n = x[i] / scale;
        fits = n == std::floor(n) && n >= -8 && n <= 7 && n * scale == x[i];
        q[i % 16] |= uint8_t(int(fits ? n + 8 : 0) << (i / 16 * 4));
      }
      if (!fits)
        continue;
      std::memcpy(block, &half, 2);
      std::memcpy(block + 2, q, sizeof q);
      return true;
    }
  return false;
}

/// The scale of block g of Q4_K's eight, and 8 bits higher its minimum.
uint32_t sixBits(const uint8_t *p, int64_t g) {
  const SixBits six(p, int(g));
  return uint32_t(six.scale | six.least << 8);
}

/// The 32 integers of block g of a block of ggml, as words have them.
void unpack(QuantFormat format, const uint8_t *block, int64_t g, uint8_t *to) {
  const uint8_t *four = format == QuantFormat::q4_0 ? block + 2 : block + 16 + g / 2 * quantBlock;
  for (int64_t i = 0; i < quantBlock; ++i)
    to[i] = format == QuantFormat::q8_0   ? uint8_t(block[2 + i] + 128)
            : format == QuantFormat::q4_0 ? four[i % 16] >> (i / 16 * 4) & 15
                                          : four[i] >> (g % 2 * 4) & 15;
}

bool isFiniteHalf(const uint8_t *bytes) {
  _Float16 h;
  std::memcpy(&h, bytes, 2);
  return std::isfinite(float(h));
}

/// The memory of a weight.
class Panels {
public:
  Panels(Executor &executor, const QuantizedWeight &w, StateAccess access)
      : n(w.columns()), k(w.rows()), cols(w.numbers->type.dim(2)), words(quantBlock * bitsOf(w.format) / 32),
        unit(elementsOf(w.format)), w(w), numbersView(executor, *w.numbers, access),
        scalesView(executor, *w.scales, access) {
    if (w.supers)
      supersView.emplace(executor, *w.supers, access);
  }

  const int64_t n, k, cols;
  const int64_t words, unit;  // in memory, of a block of 32; elements of a block of ggml

  int64_t count() const { return w.numbers->type.dim(0); }
  int64_t columnsOf(int64_t panel) const { return std::min(cols, n - panel * cols); }

  /// Makes the scales of columns past the last one 0.
  void clear(int64_t panel) {
    auto zero = [&](const StateView &view, const Type &type) {
      const int64_t bytes = type.bytes() / type.dim(0);
      std::memset(view.as<char>() + panel * bytes, 0, size_t(bytes));
    };
    if (columnsOf(panel) == cols)
      return;
    zero(numbersView, w.numbers->type);
    zero(scalesView, w.scales->type);
    if (w.supers)
      zero(*supersView, w.supers->type);
  }

  /// Puts block `at` of ggml's of a column into its place. False if a scale is not finite.
  bool place(int64_t column, int64_t at, const uint8_t *block) {
    const int64_t panel = column / cols, c = column % cols, blocks = k / quantBlock, first = at * unit / quantBlock;
    uint8_t e[quantBlock];
    for (int64_t g = 0; g < unit / quantBlock; ++g) {
      unpack(w.format, block, g, e);
      uint32_t *to = numbersView.as<uint32_t>() + (panel * blocks + first + g) * words * cols + c;
      for (int64_t i = 0; i < words; ++i) {
        uint32_t word = 0;
        for (int64_t t = 0; t < 4; ++t)
          word |= uint32_t(words == 8 ? e[t * 8 + i] : e[t * 8 + i] | e[t * 8 + i + 4] << 4) << (8 * t);
        to[i * cols] = word;
      }
    }
    if (w.format != QuantFormat::q4_k) {
      std::memcpy(scalesView.as<uint16_t>() + (panel * blocks + first) * cols + c, block, 2);
      return isFiniteHalf(block);
    }
    for (int64_t g = 0; g < unit / quantBlock; g += 2)
      scalesView.as<uint32_t>()[(panel * blocks + first + g) / 2 * cols + c] =
          sixBits(block + 4, g) | sixBits(block + 4, g + 1) << 16;
    uint16_t *super = supersView->as<uint16_t>() + (panel * (k / superBlock) + at) * 2 * cols + c;
    std::memcpy(super, block, 2);
    std::memcpy(super + cols, block + 2, 2);
    return isFiniteHalf(block) && isFiniteHalf(block + 2);
  }

  float value(int64_t row, int64_t column) const {
    const QuantizedPlace p = quantizedPlace(row, column, k, cols, w.format);
    const uint32_t mask = (1u << bitsOf(w.format)) - 1;
    const auto number = float(int64_t(numbersView.as<uint32_t>()[p.word] >> p.shift & mask) - quantOffset(w.format));
    if (w.format != QuantFormat::q4_k)
      return number * float(scalesView.as<_Float16>()[p.scale]);
    const uint32_t six = scalesView.as<uint32_t>()[p.scale] >> p.scaleShift;
    const auto *supers = supersView->as<_Float16>();
    return float(supers[p.d]) * float(six & 63) * number - float(supers[p.dmin]) * float(six >> 8 & 63);
  }

private:
  const QuantizedWeight &w;
  const StateView numbersView, scalesView;
  std::optional<StateView> supersView;
};

[[noreturn]] void notFinite(const QuantizedWeight &w) {
  throw UserError(ErrorCode::NonFinite, fmt::format("{} has values that are not finite", w.param->name),
                  "take other weights; precision.weights = \"compute\" keeps them as they are");
}

}  // namespace

int64_t QuantizedWeight::rows() const { return param->type.dim(tb ? 1 : 0); }
int64_t QuantizedWeight::columns() const { return param->type.dim(tb ? 0 : 1); }

GgmlType ggmlTypeOf(QuantFormat format) {
  return format == QuantFormat::q8_0 ? GgmlType::q8_0 : format == QuantFormat::q4_0 ? GgmlType::q4_0 : GgmlType::q4_k;
}

QuantizedWeights::QuantizedWeights(const Module &m) {
  std::map<std::string, std::vector<const State *>> states;
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::quantized)
      states[fact<&StateFacts::of>(*s)].push_back(s.get());
  for (const auto &[name, of] : states) {
    QuantizedWeight w{.param = m.state(name), .tb = fact<&StateFacts::tb>(*of[0])};
    GPTC_CHECK(w.param, "@{} of @{}", of[0]->name, name);
    // The types are different ones within a format, and no two formats have the same.
    for (const QuantFormat format : quantFormats) {
      const auto type = quantizedType(w.param->type, of[0]->type.dim(2), w.tb, format);
      auto find = [&](const Type &t) {
        const auto it = llvm::find_if(of, [&](const State *s) { return s->type == t; });
        return it == of.end() ? nullptr : *it;
      };
      if (!type || of.size() != (type->supers ? 3 : 2) || !find(type->numbers) || !find(type->scales) ||
          (type->supers && !find(*type->supers)))
        continue;
      w.format = format;
      w.numbers = find(type->numbers);
      w.scales = find(type->scales);
      w.supers = type->supers ? find(*type->supers) : nullptr;
    }
    GPTC_CHECK(w.numbers, "@{} of @{} is in none of the formats", of[0]->name, name);
    all[name] = w;
  }
}

const QuantizedWeight *QuantizedWeights::of(const State &param) const {
  const auto it = all.find(param.name);
  return it == all.end() ? nullptr : &it->second;
}

void roundToBlocks(const QuantizedWeight &w, const float *values, int64_t n, uint8_t *blocks) {
  if (!quantize(ggmlTypeOf(w.format), values, n, blocks)) {
    if (!llvm::all_of(llvm::ArrayRef(values, size_t(n)), [](float x) { return std::isfinite(x); }))
      notFinite(w);
    throw UserError(ErrorCode::OutOfRange,
                    fmt::format("{} has values too large for few bits with a scale in f16", w.param->name),
                    "precision.weights = \"compute\" keeps weights as they are computed with");
  }
  if (w.format == QuantFormat::q4_0)
    for (int64_t i = 0; i < n; i += quantBlock)
      exactBlock(values + i, blocks + i / quantBlock * bytesOfBlock(w.format));
}

void storeQuantized(Executor &executor, const QuantizedWeight &w, const float *values) {
  const Type &type = w.param->type;
  const int64_t ld = type.padded(1);
  {
    Panels panels(executor, w, StateAccess::write);
    executor.threads().each(panels.count(), [&](int64_t panel) {
      panels.clear(panel);
      float x[superBlock];
      std::vector<uint8_t> block(size_t(bytesOfBlock(w.format)));
      // Elements of neighbouring columns are neighbours in memory.
      for (int64_t at = 0; at < panels.k / panels.unit; ++at)
        for (int64_t c = 0; c < panels.columnsOf(panel); ++c) {
          const int64_t column = panel * panels.cols + c, k0 = at * panels.unit;
          for (int64_t i = 0; i < panels.unit; ++i)
            x[i] = values[w.tb ? column * ld + k0 + i : (k0 + i) * ld + column];
          roundToBlocks(w, x, panels.unit, block.data());
          panels.place(column, at, block.data());
        }
    });
  }
  if (isInFiles(*w.param))
    return;
  storeRounded(executor, type.dtype, values, executor.view(*w.param, StateAccess::write).data, type.paddedElements());
}

void storeBlocks(Executor &executor, const QuantizedWeight &w, const BlocksOfColumn &blocksOf) {
  Panels panels(executor, w, StateAccess::write);
  const int64_t count = panels.k / panels.unit, bytes = bytesOfBlock(w.format);
  executor.threads().each(panels.count(), [&](int64_t panel) {
    panels.clear(panel);
    std::vector<uint8_t> blocks(size_t(count * bytes));
    for (int64_t c = 0; c < panels.columnsOf(panel); ++c) {
      blocksOf(panel * panels.cols + c, blocks.data());
      for (int64_t at = 0; at < count; ++at)
        if (!panels.place(panel * panels.cols + c, at, blocks.data() + at * bytes))
          notFinite(w);
    }
  });
}

double roundingErrorOf(Executor &executor, const QuantizedWeight &w, const float *values) {
  const Panels panels(executor, w, StateAccess::read);
  const int64_t ld = w.param->type.padded(1);
  std::vector<std::pair<double, double>> sums(size_t(panels.count()));  // of squares, by panel: in a fixed order
  executor.threads().each(panels.count(), [&](int64_t panel) {
    auto &[error, size] = sums[size_t(panel)];
    for (int64_t row = 0; row < panels.k; ++row)
      for (int64_t c = 0; c < panels.columnsOf(panel); ++c) {
        const int64_t column = panel * panels.cols + c;
        const double x = values[w.tb ? column * ld + row : row * ld + column], d = panels.value(row, column) - x;
        error += d * d;
        size += x * x;
      }
  });
  double error = 0, size = 0;
  for (const auto &[e, s] : sums) {
    error += e;
    size += s;
  }
  return size > 0 ? std::sqrt(error / size) : 0;
}

}  // namespace gptc
