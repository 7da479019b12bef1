// The type of a value: element type, shape with padding, and sharding.
//
// Text form:  f32[8,1024,50257->50304]{2:tp}
//   - `50257->50304` is the logical and the padded extent of a dimension; a single number is both. Memory is laid out
//     row-major over padded extents. Elements past the logical extent are never observable.
//   - `{2:tp}` says that dimension 2 is split over mesh axis `tp`. A dimension number is used rather than an axis
//     letter, because a type names no axes.
//   - `f32[]` is a scalar.
#pragma once

#include "ir/kernel/dtype.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace gptc {

/// One dimension. Invariant: 0 < logical <= padded.
struct Dim {
  int64_t logical = 1;
  int64_t padded = 1;
  Dim() = default;
  Dim(int64_t n) : logical(n), padded(n) {}  // NOLINT: a plain extent is a dimension
  Dim(int64_t logical, int64_t padded) : logical(logical), padded(padded) {}
  bool operator==(const Dim &) const = default;
};

/// "dimension `dim` is split over mesh axis `axis`".
struct Shard {
  unsigned dim;
  std::string axis;
  bool operator==(const Shard &) const = default;
};

/// Most dimensions of a type in a valid module (see also maxElements in ir/kernel/dtype.h).
inline constexpr unsigned maxRank = 8;

struct Type {
  DType dtype = DType::f32;
  llvm::SmallVector<Dim, 4> dims;
  llvm::SmallVector<Shard, 1> sharding;  // sorted by dim, each dim at most once

  // In type.cpp, as many files copy types.
  Type();
  Type(const Type &);
  Type(Type &&) noexcept;
  Type &operator=(const Type &);
  Type &operator=(Type &&) noexcept;
  ~Type();
  Type(DType dtype, llvm::ArrayRef<Dim> dims = {}) : dtype(dtype), dims(dims.begin(), dims.end()) {}
  static Type scalar(DType dtype) { return Type(dtype); }

  unsigned rank() const { return dims.size(); }
  bool isScalar() const { return dims.empty(); }
  /// Logical extent of dimension i; negative i counts from the end.
  int64_t dim(int i) const { return dims[i < 0 ? rank() + i : i].logical; }
  int64_t padded(int i) const { return dims[i < 0 ? rank() + i : i].padded; }
  /// Number of logical elements (1 for a scalar).
  int64_t elements() const;
  /// Number of stored elements, padding included.
  int64_t paddedElements() const;
  /// Bytes in memory, padding included.
  int64_t bytes() const { return paddedElements() * sizeOf(dtype); }
  /// Product of the logical extents of all dimensions but the last: the number of rows.
  int64_t rows() const;
  /// True when both have the same logical and padded extents (dtype and sharding may differ).
  bool sameShape(const Type &o) const { return dims == o.dims; }
  Type withDType(DType t) const;
  /// A type with the same dtype and only the dimensions [from, to).
  Type slice(unsigned from, unsigned to) const;

  bool operator==(const Type &) const = default;
  std::string str() const;
  /// The invariant (of Dim, of sharding, of maxRank or maxElements) that is violated; "" if none is.
  std::string invalid() const;
};

/// Parses a type at the front of `text` and removes it; nullopt (text untouched) if there is none.
/// On a malformed type `error` says what is wrong.
std::optional<Type> parseType(llvm::StringRef &text, std::string &error);

}  // namespace gptc
