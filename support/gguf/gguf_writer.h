// Writes the container GGUF, version 3, little-endian (gguf_file.h has its layout).
#pragma once

#include "support/atomic_file.h"
#include "support/gguf/blocks.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gptc {

/// The type and the value of a key as they stand in a file (GgufFile::rawKeys).
struct GgufRaw {
  std::string bytes;
};

/// A value of a key. The alternatives are types of GGUF; a vector is an array.
using GgufValue = std::variant<bool, uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float,
                               double, std::string, std::vector<std::string>, std::vector<int32_t>,
                               std::vector<uint32_t>, std::vector<float>, std::vector<bool>, GgufRaw>;
/// Keys with their values, in the order of the file.
using GgufKeys = std::vector<std::pair<std::string, GgufValue>>;

/// The number that general.file_type has in llama.cpp for a file most of whose matrices are of a format that is
/// written; Q4_K's is that of Q4_K_S. nullopt for other formats.
std::optional<uint32_t> ggufFileType(GgmlType type);

/// Writes one file, which appears under its name complete, or not at all. The constructor writes the header; the bytes
/// of the tensors follow in the same order, in any number of write() calls, which need not end where tensors do. Throws
/// UserError(Unwritable, DiskFull).
class GgufWriter {
public:
  struct Tensor {
    std::string name;
    GgmlType type;
    std::vector<int64_t> shape;  // the slowest first
    int64_t bytes() const;
  };
  /// `alignment`: a power of two, which general.alignment among the keys must say if it is not 32.
  GgufWriter(const std::string &path, const GgufKeys &keys, const std::vector<Tensor> &tensors, int64_t alignment = 32);
  GgufWriter(const GgufWriter &) = delete;
  void write(const void *data, size_t bytes);
  /// Syncs the file and gives it its name. InternalError if bytes are missing.
  void finish();

private:
  void endTensors();
  /// `bytes` up to a multiple of the alignment.
  int64_t padded(int64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  const int64_t alignment;
  AtomicFile file;
  std::vector<int64_t> sizes;  // of the tensors
  size_t current = 0;
  int64_t written = 0;  // of the current tensor
};

}  // namespace gptc
