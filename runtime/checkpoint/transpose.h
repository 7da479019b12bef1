// Copies rows of a file to columns in memory.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <algorithm>
#include <cstdint>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gptc {

/// How many rows of `columns` elements to copy at a time, about `elements` in all: sixteen or a multiple where that is
/// at most twice as much, so that a piece writes whole lines of a cache.
inline int64_t rowsAtATime(int64_t elements, int64_t columns) {
  constexpr int64_t kSide = 16;
  const int64_t rows = std::max<int64_t>(1, elements / columns);
  return rows >= kSide ? rows / kSide * kSide : kSide * columns <= 2 * elements ? kSide : rows;
}

/// Copies sixteen elements. A whole line of a cache is written without being read first.
template <typename T> void copySixteen(const T *from, T *to) {
#if defined(__x86_64__)
  if (sizeof(T) == 4 && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    for (int i = 0; i < 4; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i *>(to) + i,
                       _mm_load_si128(reinterpret_cast<const __m128i *>(from) + i));
    return;
  }
#endif
  std::copy_n(from, 16, to);
}

/// to[down[c] + across[r]] = convert(from[r * down.size() + c]), for all r and c whose places are not -1.
///
/// Squares go through a buffer, and leave it in whole lines of a cache. Rows of `to` are often a multiple of 4 KiB
/// apart, and then share so few places in the first-level cache that single elements would push each other's lines out.
template <typename From, typename To, typename F>
void copyTransposed(const From *from, llvm::ArrayRef<int64_t> across, llvm::ArrayRef<int64_t> down, To *to, F convert) {
  constexpr int64_t kSide = 16;
  const int64_t rows = int64_t(across.size()), columns = int64_t(down.size());
  alignas(64) To square[kSide][kSide];
  for (int64_t r0 = 0; r0 < rows; r0 += kSide) {
    const int64_t height = std::min(kSide, rows - r0);
    bool adjacent = across[r0] >= 0;
    for (int64_t r = 1; r < height; ++r)
      adjacent = adjacent && across[r0 + r] == across[r0] + r;
    for (int64_t c0 = 0; c0 < columns; c0 += kSide) {
      const int64_t width = std::min(kSide, columns - c0);
      const From *corner = from + r0 * columns + c0;
      if (height == kSide && width == kSide) {
        for (int64_t r = 0; r < kSide; ++r)
          for (int64_t c = 0; c < kSide; ++c)
            square[c][r] = convert(corner[r * columns + c]);
      } else {
        for (int64_t r = 0; r < height; ++r)
          for (int64_t c = 0; c < width; ++c)
            square[c][r] = convert(corner[r * columns + c]);
      }
      for (int64_t c = 0; c < width; ++c) {
        if (down[c0 + c] < 0)
          continue;
        To *row = to + down[c0 + c];
        if (adjacent && height == kSide)
          copySixteen(square[c], row + across[r0]);
        else if (adjacent)
          std::copy_n(square[c], height, row + across[r0]);
        else
          for (int64_t r = 0; r < height; ++r)
            if (across[r0 + r] >= 0)
              row[across[r0 + r]] = square[c][r];
      }
    }
  }
#if defined(__x86_64__)
  _mm_sfence();  // other threads see the lines
#endif
}

}  // namespace gptc
