// The formats in which GGUF files hold tensors: ggml's block formats, by the numbers, names and layouts that ggml
// publishes (ggml.h, ggml-common.h). A row of a tensor is a whole number of blocks; a block of `elements` values takes
// `bytes` bytes.
//
// All formats have a name and a size, so that messages can name what a file holds and offsets can be checked. Values
// are read of f32, f16, bf16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K, and written as f32, f16, bf16,
// Q8_0, Q4_0 and Q4_K.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>

namespace gptc {

enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

struct GgmlFormat {
  GgmlType type;  // its number, which may be none of the enumerators
  const char *name;
  int elements;
  int bytes;  // 0: ggml has given the format up, and its size is no longer published

  bool readable() const;
  /// Bytes of `n` values, a multiple of `elements`.
  int64_t bytesOf(int64_t n) const { return n / elements * bytes; }
};

/// The version of the layouts of blocks, GGML_QNT_VERSION of ggml, and the key by which a file says which it has.
constexpr uint32_t kGgmlBlocks = 2;
constexpr const char *kGgmlBlocksKey = "general.quantization_version";

/// The format of this number; null if ggml has none.
const GgmlFormat *ggmlFormat(uint32_t number);
const GgmlFormat &ggmlFormat(GgmlType type);

/// Widens `n` values, a multiple of the block's, to f32. Every operation is one of f32, in the order of ggml's
/// reference, so the results are ggml's bit for bit. InternalError for a format that is not readable.
void dequantize(GgmlType type, const void *blocks, int64_t n, float *to);

/// Rounds `n` values, a multiple of the block's, to f32, f16, bf16 (to nearest even), Q8_0 (the scale is the largest
/// magnitude / 127, each value the nearest multiple, ties away from zero) or Q4_0 (the value of the largest magnitude
/// is -8 times the scale); the bytes are those of ggml's reference. Or to Q4_K by a search of our own (q4_k.h), which
/// gives the same bytes everywhere. False if a finite value became infinite: beyond f16 itself, or beyond what an f16
/// scale reaches. Blocks with scales hold no NaN and no infinity: false too, so that callers refuse such values.
/// InternalError for other formats.
bool quantize(GgmlType type, const float *values, int64_t n, void *blocks);

}  // namespace gptc
