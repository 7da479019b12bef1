// Running kernels from doubles, for tests that compare with the interpreter.
#pragma once

#include "codegen/codegen.h"
#include "ir/kernel/bound.h"
#include "ir/kernel/eval.h"

#include <cstring>
#include <stdexcept>

namespace gptc::test {

/// Memory of one parameter, with red zones on both sides.
class DeviceBuffer {
public:
  DeviceBuffer(const kir::Buffer &b, const std::vector<double> &v)
      : node(b), bytes(zone * 2 + b->size * sizeOf(b->dtype), red) {
    for (int64_t i = 0; i < b->size; ++i)
      put(i, v[i]);
  }
  void *data() { return bytes.data() + zone; }
  std::vector<double> values() const {
    std::vector<double> v(node->size);
    for (int64_t i = 0; i < node->size; ++i)
      v[i] = get(i);
    return v;
  }
  bool zonesIntact() const {
    for (size_t i = 0; i < zone; ++i)
      if (bytes[i] != red || bytes[bytes.size() - 1 - i] != red)
        return false;
    return true;
  }

private:
  static constexpr size_t zone = 256;
  static constexpr unsigned char red = 0xA5;
  kir::Buffer node;
  std::vector<unsigned char> bytes;

  template <typename T> void as(int64_t i, double v) {
    T t = T(v);
    std::memcpy(bytes.data() + zone + i * sizeof t, &t, sizeof t);
  }
  template <typename T> T as(int64_t i) const {
    T t;
    std::memcpy(&t, bytes.data() + zone + i * sizeof t, sizeof t);
    return t;
  }
  void put(int64_t i, double v) {
    switch (node->dtype) {
    case DType::f32:
      return as<float>(i, v);
    case DType::f64:
      return as<double>(i, v);
    case DType::bf16:
      return as<uint16_t>(i, kir::bitsOfBF16(float(v)));
    case DType::f16:
      return as<uint16_t>(i, kir::bitsOfF16(float(v)));
    case DType::f8e4m3:
      return as<uint8_t>(i, kir::bitsOfE4M3(float(v)));
    case DType::i32:
      return as<int32_t>(i, v);
    case DType::u32:
      return as<uint32_t>(i, v);
    case DType::i64:
      return as<int64_t>(i, v);
    case DType::pred:
      return as<uint8_t>(i, v);
    default:
      throw std::logic_error("no such test buffer");
    }
  }
  double get(int64_t i) const {
    switch (node->dtype) {
    case DType::f32:
      return as<float>(i);
    case DType::f64:
      return as<double>(i);
    case DType::bf16:
      return kir::floatOfBF16(as<uint16_t>(i));
    case DType::f16:
      return kir::floatOfF16(as<uint16_t>(i));
    case DType::f8e4m3:
      return kir::floatOfE4M3(as<uint8_t>(i));
    case DType::i32:
      return as<int32_t>(i);
    case DType::u32:
      return as<uint32_t>(i);
    case DType::i64:
      return double(as<int64_t>(i));
    case DType::pred:
      return as<uint8_t>(i);
    default:
      throw std::logic_error("no such test buffer");
    }
  }
};

/// Runs all phases on this thread; `b` is read and replaced. Throws when something outside of a buffer was written.
inline void runKernel(const kir::Kernel &k, const CompiledKernel &c, std::vector<std::vector<double>> &b) {
  std::vector<DeviceBuffer> memory;
  std::vector<void *> params;
  for (size_t i = 0; i < b.size(); ++i)
    memory.emplace_back(k.params[i], b[i]);
  for (DeviceBuffer &m : memory)
    params.push_back(m.data());
  for (const CompiledPhase &p : c.phases)
    p.run(params.data(), 0, p.tasks);
  for (size_t i = 0; i < b.size(); ++i) {
    if (!memory[i].zonesIntact())
      throw std::logic_error("memory around parameter " + k.params[i]->name + " was overwritten");
    b[i] = memory[i].values();
  }
}

/// Contents of parameters without errors of their own, for boundErrors.
inline std::vector<std::vector<kir::Bounded>> withoutErrors(const std::vector<std::vector<double>> &contents) {
  std::vector<std::vector<kir::Bounded>> all;
  for (const std::vector<double> &values : contents) {
    all.emplace_back();
    for (double v : values)
      all.back().push_back({v, 0});
  }
  return all;
}

/// Equal as numbers, any NaN equal to any; -0 differs from +0.
inline bool sameNumber(double a, double b) {
  return (a != a && b != b) || std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

/// The machine we run on, as if its CPU lacked a feature ("": as it is).
inline Target maskedTarget(const char *mask) {
  if (*mask)
    setenv("GPTC_CPU_FEATURES", mask, 1);
  Target t = hostTarget(1);
  unsetenv("GPTC_CPU_FEATURES");
  return t;
}

}  // namespace gptc::test
