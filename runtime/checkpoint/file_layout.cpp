#include "runtime/checkpoint/file_layout.h"

#include "ir/facts.h"
#include "ir/kernel/eval.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gptc {
namespace {

/// Calls f(index in the tensor, index in the state) for every element, in cache-sized squares.
template <typename F> void forElements(const State &s, const FileTensor &t, F f) {
  if (isWhole(s, t)) {
    for (int64_t i = 0, n = wholeType(s).elements(); i < n; ++i)
      f(i, i);
    return;
  }
  constexpr int64_t kSide = 32;
  const int64_t rows = wholeType(s).dim(0), all = wholeType(s).dim(1), columns = t.info.shape[t.transposed ? 0 : 1];
  for (int64_t r0 = 0; r0 < rows; r0 += kSide)
    for (int64_t c0 = 0; c0 < columns; c0 += kSide)
      for (int64_t r = r0; r < std::min(rows, r0 + kSide); ++r)
        for (int64_t c = c0; c < std::min(columns, c0 + kSide); ++c)
          f(t.transposed ? c * rows + r : r * columns + c, r * all + t.firstColumn + c);
}

template <typename T> void copyOut(const State &s, const FileTensor &t, const void *dense, void *tensor) {
  const T *from = static_cast<const T *>(dense);
  T *to = static_cast<T *>(tensor);
  forElements(s, t, [&](int64_t file, int64_t state) { to[file] = from[state]; });
}

template <typename From, typename To, typename F>
void copyIn(const State &s, const FileTensor &t, const void *tensor, void *dense, F convert) {
  const From *from = static_cast<const From *>(tensor);
  To *to = static_cast<To *>(dense);
  forElements(s, t, [&](int64_t file, int64_t state) { to[state] = convert(from[file]); });
}

}  // namespace

std::vector<FileTensor> fileTensors(const State &s) {
  const std::string names = fact<&FileFacts::hf>(s).value_or(s.name);
  const bool transposed = fact<&FileFacts::hfTranspose>(s);
  std::vector<int64_t> columns = fact<&FileFacts::hfSplit>(s);
  llvm::SmallVector<llvm::StringRef, 3> parts;
  if (columns.empty())
    parts.push_back(names);
  else
    llvm::StringRef(names).split(parts, ',');
  std::vector<FileTensor> out;
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    FileTensor t{{parts[i].str(), s.type.dtype, {}}, first, transposed};
    for (const Dim &d : wholeType(s).dims)
      t.info.shape.push_back(d.logical);
    if (!columns.empty()) {
      t.info.shape.back() = columns[i];
      first += columns[i];
    }
    if (transposed)
      std::swap(t.info.shape[0], t.info.shape[1]);
    out.push_back(std::move(t));
  }
  return out;
}

bool isWhole(const State &s, const FileTensor &t) {
  return !t.transposed && t.info.bytes() == wholeType(s).elements() * int64_t(sizeOf(s.type.dtype));
}

void toFile(const State &s, const FileTensor &t, const void *dense, void *tensor) {
  switch (sizeOf(s.type.dtype)) {
  case 2:
    return copyOut<uint16_t>(s, t, dense, tensor);
  case 4:
    return copyOut<uint32_t>(s, t, dense, tensor);
  case 8:
    return copyOut<uint64_t>(s, t, dense, tensor);
  default:
    return copyOut<uint8_t>(s, t, dense, tensor);
  }
}

bool isConvertible(DType stored, DType to) {
  auto isFloat = [](DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; };
  return stored == to || (isFloat(stored) && isFloat(to));
}

void fromFile(const State &s, const FileTensor &t, DType stored, const void *tensor, void *dense) {
  auto same = [](auto v) { return v; };
  if (stored != s.type.dtype) {
    GPTC_CHECK(isConvertible(stored, s.type.dtype), "{} from {}", s.type.str(), nameOf(stored).str());
    auto convert = [&]<typename From>(From, auto widen) {
      if (s.type.dtype == DType::f32)
        return copyIn<From, float>(s, t, tensor, dense, widen);
      if (s.type.dtype == DType::f16)
        return copyIn<From, _Float16>(s, t, tensor, dense, [&](From v) { return _Float16(widen(v)); });
      copyIn<From, uint16_t>(s, t, tensor, dense, [&](From v) { return kir::bitsOfBF16(kir::roundBF16(widen(v))); });
    };
    if (stored == DType::bf16)
      return convert(uint16_t(), kir::floatOfBF16);
    if (stored == DType::f16)
      return convert(_Float16(), [](_Float16 v) { return float(v); });
    return convert(float(), same);
  }
  switch (sizeOf(s.type.dtype)) {
  case 2:
    return copyIn<uint16_t, uint16_t>(s, t, tensor, dense, same);
  case 4:
    return copyIn<uint32_t, uint32_t>(s, t, tensor, dense, same);
  case 8:
    return copyIn<uint64_t, uint64_t>(s, t, tensor, dense, same);
  default:
    return copyIn<uint8_t, uint8_t>(s, t, tensor, dense, same);
  }
}

}  // namespace gptc
