// The safetensors format: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape",
// "data_offsets"}}, then the tensors' bytes without gaps. Compatible with Hugging Face's tools in both directions.
#pragma once

#include "ir/type.h"
#include "support/files.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t elements() const;
  int64_t bytes() const;
};

/// Writes one file. The constructor declares all tensors; their bytes follow in the same order, in any number of
/// write() calls. Throws UserError(Unwritable, DiskFull).
class SafetensorsWriter {
public:
  SafetensorsWriter(const std::string &path, const std::vector<TensorInfo> &tensors,
                    const std::map<std::string, std::string> &metadata);
  void write(const void *data, size_t bytes);
  /// Closes the file after fsync and returns its BLAKE3.
  std::string finish();

private:
  SyncedFile file;
  Hasher hasher;
  size_t expected = 0, written = 0;
};

/// What files call it: "BF16".
const char *safetensorsName(DType dtype);

/// A tensor of a dtype that gptc has not.
struct UnreadableTensor {
  std::string dtype;  // as the file calls it: "F8_E4M3"
  std::vector<int64_t> shape;
};

/// A file whose header has been verified: offsets lie inside the file, do not overlap, and fit shape and dtype.
class SafetensorsFile {
public:
  /// Throws UserError: FileMissing, or CheckpointDamaged for anything else.
  explicit SafetensorsFile(const std::string &path);
  /// The tensor of this name; null if there is none.
  const TensorInfo *find(llvm::StringRef name) const;
  /// All tensors, sorted by name.
  std::vector<const TensorInfo *> all() const;
  /// The tensors whose dtype is unknown, by name. Neither find() nor all() has them.
  const std::map<std::string, UnreadableTensor, std::less<>> &unreadable() const { return others; }
  /// Reads the dense bytes of a tensor from find() or all(). Throws UserError(CheckpointDamaged).
  void read(const TensorInfo &t, void *to) const { read(t, 0, to, t.bytes()); }
  /// Reads `bytes` of them, from byte `from` on.
  void read(const TensorInfo &t, int64_t from, void *to, int64_t bytes) const;
  /// A value of the header's metadata; null if there is no such key.
  const std::string *metadata(llvm::StringRef key) const &;
  const std::string *metadata(llvm::StringRef key) && = delete;

private:
  std::string path;
  InputFile file;
  std::map<std::string, std::pair<TensorInfo, int64_t>, std::less<>> tensors;  // each with its byte offset in the file
  std::map<std::string, UnreadableTensor, std::less<>> others;
  std::map<std::string, std::string, std::less<>> words;
};

}  // namespace gptc
