// Rounds the weights of GGUF files: `gptc quantize` of a GGUF file, and what writeGguf (gguf_weights.h) writes.
//
// Matrices get the format that is asked for, as llama-quantize does it in essence:
//
//   matrix                  a tensor of two dimensions or more whose name ends in .weight, but for tables of positions
//                           and of segments, routers of experts, and the small tensors of other architectures than
//                           gptc's that llama-quantize leaves alone; all other tensors stay as they are
//   embedding, classifier   Q8_0 beside Q4_0 and Q4_K, because their errors are those of the result
//   rows of no whole blocks Q8_0 for Q4_K if they are a multiple of 32, else F16
//
// Where that is not the format that was asked for, and would take no fewer bytes than the tensor has, it stays as it
// is.
#pragma once

#include "support/gguf/gguf_writer.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

class ThreadPool;

struct GgufRounding {
  GgmlType type;                       // of matrices: f32, f16, bf16, q8_0, q4_0 or q4_k
  std::vector<std::string> keep = {};  // names of tensors that stay as they are, or patterns: * ? [abc]
  bool again = false;                  // matrices that are in blocks already are rounded a second time
  unsigned threads = 1;                // results do not depend on it
  bool measure = true;                 // find the errors of tensors
};

/// A tensor of a file that is written, with what rounding did to it.
struct WrittenTensor {
  std::string name;
  std::vector<int64_t> shape;  // the slowest first
  const GgmlFormat *from = nullptr, *to = nullptr;
  const GgmlFormat *refused = nullptr;  // what `to` would be if the rows were whole blocks of it; null if they are
  /// Sums of squares: of what rounding changed, and of the values before. 0 if it was not rounded, or not measured.
  double difference = 0, size = 0;

  int64_t elements() const;
  int64_t bytesBefore() const { return from->bytesOf(elements()); }
  int64_t bytesAfter() const { return to->bytesOf(elements()); }
  /// Whether values may have changed. To f32 all formats are widened exactly.
  bool isRounded() const { return from != to && to->type != GgmlType::f32; }
};

/// The RMS of what changed over the RMS of the values; 0 if nothing was rounded, or all values are 0.
double relativeError(double difference, double size);

/// A tensor, which has format `from`, with the format that it is to get. `keep` and `threads` do not count.
WrittenTensor plannedTensor(const std::string &name, llvm::ArrayRef<int64_t> shape, GgmlType from, GgmlType type);

/// Whether a pattern of `keep` names the tensor.
bool isKept(const GgufRounding &how, llvm::StringRef name);
/// Throws UserError(Usage) for a pattern that names no tensor of the file, which `file` names in the message.
void requireKept(const GgufRounding &how, const std::vector<WrittenTensor> &all, const std::string &file);

/// Sets general.file_type to the number of the format that most elements of matrices get, if that is written here, and
/// general.quantization_version to 2 if a tensor gets blocks. Other keys stay.
void setFormatKeys(GgufKeys &keys, const std::vector<WrittenTensor> &all);

/// Gives `count` elements of a tensor from element `first` on, row-major; called by several threads at once. Both are
/// multiples of 256, or `count` ends the tensor.
using ReadElements = std::function<void(int64_t first, int64_t count, float *to)>;

/// Rounds a tensor and writes it, in pieces that the threads share. With `measure`, sets its errors, whose sums do not
/// depend on the threads. Takes 8 MiB, and 256 KiB for each thread. Throws UserErrors OutOfRange, with the tensor's
/// name, for a value that is not finite in a format other than f32 and the tensor's own, and for one that the format
/// cannot hold; Unwritable, DiskFull.
void writeRounded(GgufWriter &out, WrittenTensor &t, const ReadElements &read, ThreadPool &pool, bool measure);

/// Throws UserError(Unwritable) if both are one file, by whatever names.
void requireOtherFile(const std::string &from, const std::string &to);

/// Writes the GGUF file `from` to `to` with other formats. All keys are copied byte for byte in their order, but those
/// of setFormatKeys; `marks` are added if the file lacks them. Returns the tensors in the order of the file. The file
/// appears complete or not at all. Throws UserErrors: those of GgufFile; NotBuiltYet for a matrix of a format that is
/// not readable; Usage for matrices in blocks unless `how.again`, or a pattern that names no tensor; Unwritable if
/// `to` is `from`, by whatever name; those of writeRounded.
std::vector<WrittenTensor> requantizeGguf(const std::string &from, const std::string &to, const GgufRounding &how,
                                          const GgufKeys &marks = {});

}  // namespace gptc
