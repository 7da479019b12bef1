// The narrow formats of floating point, as libraries on a GPU round to them.
#pragma once

#include <cstdint>
#include <cstring>

namespace gptc::cuda {

inline float fromBF16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float v;
  std::memcpy(&v, &wide, 4);
  return v;
}
/// To the nearest, ties to even.
inline uint16_t toBF16(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  u = v != v ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
  return uint16_t(u >> 16);
}
inline float fromE4M3(uint8_t bits) {
  const unsigned exponent = bits >> 3 & 15, fraction = bits & 7;
  const float v = exponent == 15 && fraction == 7 ? __builtin_nanf("")
                  : exponent                      ? __builtin_ldexpf(float(8 + fraction), int(exponent) - 10)
                                                  : __builtin_ldexpf(float(fraction), -9);
  return bits & 0x80 ? -v : v;
}
inline float fromF16(uint16_t bits) {
  _Float16 v;
  std::memcpy(&v, &bits, 2);
  return float(v);
}
inline uint16_t toF16(float v) {
  const _Float16 h = _Float16(v);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

}  // namespace gptc::cuda
