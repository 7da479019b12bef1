#include "ir/element.h"

#include "ir/kernel/eval.h"
#include "support/diagnostics.h"

#include <cstring>

namespace gptc {

double roundTo(DType t, double v) {
  switch (t) {
  case DType::f32:
    return float(v);
  case DType::bf16:
    return kir::roundBF16(float(v));
  case DType::f16:
    return kir::roundF16(float(v));
  case DType::f8e4m3:
    return kir::roundE4M3(float(v));
  default:
    return v;
  }
}

double loadElement(DType t, const void *memory, int64_t i) {
  auto get = [&](auto x) {
    std::memcpy(&x, static_cast<const char *>(memory) + i * int64_t(sizeof x), sizeof x);
    return x;
  };
  switch (t) {
  case DType::f32:
    return get(float());
  case DType::f64:
    return get(double());
  case DType::bf16:
    return kir::floatOfBF16(get(uint16_t()));
  case DType::f16:
    return kir::floatOfF16(get(uint16_t()));
  case DType::f8e4m3:
    return kir::floatOfE4M3(get(uint8_t()));
  case DType::i32:
    return get(int32_t());
  case DType::i64:
    return double(get(int64_t()));
  case DType::u32:
    return get(uint32_t());
  case DType::pred:
    return get(uint8_t());
  }
  GPTC_UNREACHABLE("{}", nameOf(t).str());
}

void storeElement(DType t, void *memory, int64_t i, double v) {
  auto put = [&](auto x) { std::memcpy(static_cast<char *>(memory) + i * int64_t(sizeof x), &x, sizeof x); };
  switch (t) {
  case DType::f32:
    return put(float(v));
  case DType::f64:
    return put(v);
  case DType::bf16:
    return put(kir::bitsOfBF16(float(roundTo(t, v))));
  case DType::f16:
    return put(kir::bitsOfF16(float(roundTo(t, v))));
  case DType::f8e4m3:
    return put(kir::bitsOfE4M3(float(roundTo(t, v))));
  case DType::i32:
    return put(int32_t(v));
  case DType::i64:
    return put(int64_t(v));
  case DType::u32:
    return put(uint32_t(v));
  case DType::pred:
    return put(uint8_t(v != 0));
  }
  GPTC_UNREACHABLE("{}", nameOf(t).str());
}

std::vector<int64_t> elementPlaces(const Type &t) {
  std::vector<int64_t> places(t.elements());
  for (int64_t i = 0; i < int64_t(places.size()); ++i) {
    int64_t rest = i, stride = 1;
    for (int d = int(t.rank()) - 1; d >= 0; --d) {
      places[i] += rest % t.dim(d) * stride;
      stride *= t.padded(d);
      rest /= t.dim(d);
    }
  }
  return places;
}

}  // namespace gptc
