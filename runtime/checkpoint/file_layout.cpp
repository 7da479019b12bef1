#include "runtime/checkpoint/file_layout.h"

#include "ir/facts.h"
#include "ir/kernel/eval.h"
#include "runtime/checkpoint/places.h"
#include "runtime/checkpoint/transpose.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gptc {
namespace {

/// The column of the state that is column `j` of the tensor.
int64_t columnOf(const State &s, const FileTensor &t, int64_t j) {
  if (!t.heads)
    return t.firstColumn + j;
  const Type whole = wholeType(s);
  const int64_t all = whole.dim(whole.rank() - 1), width = all / (3 * t.heads);
  return j / width % 3 * (all / 3) + j / (3 * width) * width + j % width;
}

/// Calls f(index in the rows, index in the state) for every element of these rows, in cache-sized squares.
template <typename F> void forElements(const State &s, const FileTensor &t, int64_t first, int64_t count, F f) {
  const Type whole = wholeType(s);
  const int64_t end = first + count;
  if (isWhole(s, t)) {
    for (int64_t i = first; i < end; ++i)
      f(i - first, i);
    return;
  }
  if (whole.rank() == 1) {
    for (int64_t j = first; j < end; ++j)
      f(j - first, columnOf(s, t, j));
    return;
  }
  const int64_t all = whole.dim(1), elements = rowsOf(s, t).elements;
  if (!t.transposed) {
    for (int64_t r = first; r < end; ++r)
      for (int64_t c = 0; c < elements; ++c)
        f((r - first) * elements + c, r * all + columnOf(s, t, c));
    return;
  }
  constexpr int64_t kSide = 32;
  for (int64_t j0 = first; j0 < end; j0 += kSide)
    for (int64_t r0 = 0; r0 < elements; r0 += kSide)
      for (int64_t j = j0; j < std::min(end, j0 + kSide); ++j) {
        const int64_t c = columnOf(s, t, j);
        for (int64_t r = r0; r < std::min(elements, r0 + kSide); ++r)
          f((j - first) * elements + r, r * all + c);
      }
}

template <typename T> void copyOut(const State &s, const FileTensor &t, const void *dense, void *tensor) {
  const T *from = static_cast<const T *>(dense);
  T *to = static_cast<T *>(tensor);
  forElements(s, t, 0, rowsOf(s, t).count, [&](int64_t file, int64_t state) { to[file] = from[state]; });
}

/// Rows of a tensor in memory.
struct SomeRows {
  int64_t first, count;
  const void *data;
};

/// Calls f(index in the rows, row, first column, columns) for each run of elements side by side in a tensor that keeps
/// its layout.
template <typename F> void forRuns(const State &s, const SomeRows &rows, F f) {
  const int64_t all = wholeType(s).dim(-1), end = rows.first + rows.count;
  for (int64_t i = rows.first; i < end;) {
    const int64_t n = std::min(end - i, all - i % all);
    f(i - rows.first, i / all, i % all, n);
    i += n;
  }
}

template <typename From, typename To, typename F>
void copyIn(const State &s, const FileTensor &t, const SomeRows &rows, const Places *places, void *memory, F convert) {
  const From *from = static_cast<const From *>(rows.data);
  To *to = static_cast<To *>(memory);
  const int64_t elements = rowsOf(s, t).elements, end = rows.first + rows.count;
  if (t.transposed) {
    const int64_t all = wholeType(s).dim(1);
    std::vector<int64_t> across, down;
    for (int64_t j = rows.first; j < end; ++j)
      across.push_back(places ? places->column[size_t(columnOf(s, t, j))] : columnOf(s, t, j));
    for (int64_t r = 0; r < elements && !places; ++r)
      down.push_back(r * all);
    return copyTransposed(from, across, places ? llvm::ArrayRef(places->row) : llvm::ArrayRef(down), to, convert);
  }
  auto put = [&](int64_t row, int64_t column, From value) {
    if (const int64_t at = places->column[size_t(column)]; at >= 0)
      to[places->row[size_t(row)] + at] = convert(value);
  };
  if (places && isWhole(s, t))
    return forRuns(s, rows, [&](int64_t at, int64_t row, int64_t column, int64_t n) {
      for (int64_t i = 0; i < n && places->row[size_t(row)] >= 0; ++i)
        put(row, column + i, from[at + i]);
    });
  if (places && wholeType(s).rank() == 1) {
    for (int64_t j = rows.first; j < end; ++j)
      put(0, columnOf(s, t, j), from[j - rows.first]);
    return;
  }
  if (places) {
    for (int64_t r = rows.first; r < end; ++r)
      for (int64_t c = 0; c < elements && places->row[size_t(r)] >= 0; ++c)
        put(r, columnOf(s, t, c), from[(r - rows.first) * elements + c]);
    return;
  }
  forElements(s, t, rows.first, rows.count, [&](int64_t file, int64_t state) { to[state] = convert(from[file]); });
}

}  // namespace

TensorInfo FileTensor::inFile() const {
  TensorInfo whole = info;
  if (count > 1)
    whole.shape[0] *= count;
  return whole;
}

std::vector<FileTensor> fileTensors(const State &s) {
  const std::string names = fact<&FileFacts::hf>(s).value_or(s.name);
  const bool transposed = fact<&FileFacts::hfTranspose>(s);
  std::vector<int64_t> columns = fact<&FileFacts::hfSplit>(s);
  const std::vector<int64_t> share = fact<&FileFacts::hfShare>(s);
  llvm::SmallVector<llvm::StringRef, 3> parts;
  if (columns.empty())
    parts.push_back(names);
  else
    llvm::StringRef(names).split(parts, ',');
  std::vector<FileTensor> out;
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    llvm::SmallVector<llvm::StringRef, 2> versions;
    parts[i].split(versions, '|');
    FileTensor t{{versions[0].str(), s.type.dtype, {}}, {}, first, transposed, fact<&FileFacts::hfHeads>(s)};
    if (share.size() == 2)
      t.place = share[0], t.count = share[1];
    for (llvm::StringRef other : llvm::drop_begin(versions))
      t.others.push_back(other.str());
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
  return !t.transposed && !t.heads && t.info.bytes() == wholeType(s).elements() * int64_t(sizeOf(s.type.dtype));
}

FileRows rowsOf(const State &s, const FileTensor &t) {
  const int64_t elements = t.info.elements();
  return isWhole(s, t) ? FileRows{elements, 1} : FileRows{t.info.shape[0], elements / t.info.shape[0]};
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

void fromFile(const State &s, const FileTensor &t, DType stored, int64_t first, int64_t count, const void *data,
              void *memory, const Places *places) {
  const SomeRows rows{first, count, data};
  auto same = [](auto v) { return v; };
  if (stored != s.type.dtype) {
    GPTC_CHECK(isConvertible(stored, s.type.dtype), "{} from {}", s.type.str(), nameOf(stored).str());
    auto convert = [&]<typename From>(From, auto widen) {
      if (s.type.dtype == DType::f32)
        return copyIn<From, float>(s, t, rows, places, memory, widen);
      if (s.type.dtype == DType::f16)
        return copyIn<From, _Float16>(s, t, rows, places, memory, [&](From v) { return _Float16(widen(v)); });
      copyIn<From, uint16_t>(s, t, rows, places, memory,
                             [&](From v) { return kir::bitsOfBF16(kir::roundBF16(widen(v))); });
    };
    if (stored == DType::bf16)
      return convert(uint16_t(), [](uint16_t v) { return kir::floatOfBF16(v); });  // inlined, as a function is not
    if (stored == DType::f16)
      return convert(_Float16(), [](_Float16 v) { return float(v); });
    return convert(float(), same);
  }
  switch (sizeOf(s.type.dtype)) {
  case 2:
    return copyIn<uint16_t, uint16_t>(s, t, rows, places, memory, same);
  case 4:
    return copyIn<uint32_t, uint32_t>(s, t, rows, places, memory, same);
  case 8:
    return copyIn<uint64_t, uint64_t>(s, t, rows, places, memory, same);
  default:
    return copyIn<uint8_t, uint8_t>(s, t, rows, places, memory, same);
  }
}

}  // namespace gptc
