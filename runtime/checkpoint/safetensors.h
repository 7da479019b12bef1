// The safetensors format: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape",
// "data_offsets"}}, the tensors' bytes back to back. Hugging Face's tools read what is written here, and the other way
// round.
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
  int64_t bytes() const;
};

/// Writes one file: all tensors are announced first, then their bytes follow in the same order, in any number of
/// pieces.
class SafetensorsWriter {
public:
  SafetensorsWriter(const std::string &path, const std::vector<TensorInfo> &tensors,
                    const std::map<std::string, std::string> &metadata);
  void write(const void *data, size_t bytes);
  /// fsyncs and closes; returns the BLAKE3 of the whole file.
  std::string finish();

private:
  SyncedFile file;
  Hasher hasher;
  size_t expected = 0, written = 0;
};

/// A file with a verified header: offsets lie inside the file, do not overlap and fit shape and dtype.
class SafetensorsFile {
public:
  /// Throws UserError: FileMissing, or CheckpointDamaged for everything else. Tensors of a dtype unknown here are left
  /// out.
  explicit SafetensorsFile(const std::string &path);
  const TensorInfo *find(llvm::StringRef name) const;
  /// All tensors, sorted by name.
  std::vector<const TensorInfo *> all() const;
  /// Reads the dense bytes of a tensor found above. Throws UserError(CheckpointDamaged).
  void read(const TensorInfo &t, void *to) const;
  /// What the header says beside tensors, null where it has no such key.
  const std::string *metadata(llvm::StringRef key) const;

private:
  std::string path;
  InputFile file;
  std::map<std::string, std::pair<TensorInfo, int64_t>, std::less<>> tensors;  // with the offset from the file's start
  std::map<std::string, std::string, std::less<>> words;
};

}  // namespace gptc
