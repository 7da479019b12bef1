// Groups with a product of rows with a weight of 8 or 4 bits (ir/quantized.h), and operands for them.
#pragma once

#include "ir/ops/op_support.h"
#include "ir/quantized.h"
#include "tests/support/recipe_harness.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace gptc::test {

/// y [m,n] of a [m, 32 blocks] and a weight in panels of `cols` columns.
struct QuantizedShape {
  int64_t m, n, blocks, cols;
  QuantFormat format = QuantFormat::q8_0;
};

inline QuantizedType weightOf(const QuantizedShape &s) {
  return *quantizedType(Type(DType::f32, {Dim(s.blocks * quantBlock), Dim(s.n)}), s.cols, false, s.format);
}

/// A product with an epilogue, or one with a narrow result.
inline Group productOf(const QuantizedShape &s, DType stored, DType result = DType::f32) {
  const QuantizedType w = weightOf(s);
  const std::string y = Type(result, {Dim(s.m), Dim(s.n)}).str();
  return group("matmul",
               fmt::format("%a: {}; %w: {}; %d: {}; %c: f32[{}]{}",
                           Type(stored, {Dim(s.m), Dim(s.blocks * quantBlock)}).str(), w.numbers.str(), w.scales.str(),
                           s.n, w.supers ? "; %s: " + w.supers->str() : ""),
               fmt::format("%y = quantized_matmul %a, %w, %d{} {{bits={}}} : {}\n", w.supers ? ", %s" : "",
                           bitsOf(s.format), y) +
                   (result == DType::f32 ? fmt::format("%z = add %y, %c : {}\nyield %y, %z", y) : "yield %y"));
}

inline std::vector<Tensor> operandsOf(const Group &g, unsigned seed) {
  std::vector<Tensor> all = randomOperands(g, seed);
  ops::SampleSource source(seed);
  for (double &v : all[1].data)
    v = double(uint32_t(source.bits()));
  if (all.size() > 4) {
    for (double &v : all[2].data)
      v = double(uint32_t(source.bits()) & 0x3f3f3f3f);
    all[4] = source.uniforms(all[4].type, -0.01, 0.01);
    for (double &v : all[4].data)
      v = double(float(_Float16(v)));
  }
  return all;
}

/// For GPUs: rows of both kernels and their tiles' edges, K of one block and of several stages of which the last is
/// partly filled, odd numbers of columns, panels that 16 bytes do not divide, and panels that end within a block's
/// columns.
inline std::vector<QuantizedShape> gpuShapes() {
  constexpr QuantFormat q8_0 = QuantFormat::q8_0, q4_0 = QuantFormat::q4_0, q4_k = QuantFormat::q4_k;
  return {{1, 75, 1, 32, q8_0},    {1, 33, 1, 32, q4_0},   {1, 5, 8, 32, q4_k},   {2, 9, 131, 32, q8_0},
          {2, 75, 3, 16, q4_0},    {1, 41, 136, 32, q4_k}, {7, 17, 66, 16, q4_0}, {7, 33, 8, 8, q4_k},
          {8, 70, 5, 32, q8_0},    {8, 11, 2, 6, q4_0},    {8, 65, 72, 32, q4_k}, {9, 1, 1, 32, q8_0},
          {9, 67, 6, 32, q4_0},    {33, 131, 4, 32, q8_0}, {33, 40, 7, 3, q4_0},  {33, 31, 8, 32, q4_k},
          {70, 129, 16, 16, q4_k}, {130, 66, 8, 32, q8_0}};
}

}  // namespace gptc::test
