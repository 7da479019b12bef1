// Reads the container GGUF, ggml's format for weights by its published specification, versions 2 and 3,
// little-endian:
//
//   magic "GGUF", version u32, number of tensors u64, number of keys u64
//   per key     name, type u32, value; an array's value is its type u32, its length u64, and its elements
//   per tensor  name, number of dimensions u32, dimensions u64 (the fastest first), format u32, offset u64
//   padding to a multiple of `general.alignment` (32 if absent), from where offsets count, and the tensors' bytes
//
// Names and strings are a length u64 and bytes. A file is hostile until it is checked: the constructor refuses sizes
// that overflow or lead out of the file, tensors that overlap or leave gaps, names twice, and arrays in arrays more
// than four deep.
//
// The file is read in pieces at given places, not mapped: a mapping ends the program when another one shortens the
// file, and memory for the pieces is all that reading takes. Long values stay in the file until they are asked for.
#pragma once

#include "support/files.h"
#include "support/gguf/blocks.h"

#include "llvm/ADT/ArrayRef.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// Types of values, by their numbers in the file.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

struct GgufTensor {
  std::string name;
  const GgmlFormat *format = nullptr;
  std::vector<int64_t> shape;  // the slowest first, as everywhere in gptc: [rows, columns]
  int64_t bytes = 0;
  int64_t at = 0;  // in the file

  int64_t columns() const { return shape.back(); }
  int64_t rows() const;
};

class GgufFile {
public:
  /// Reads and checks everything but the tensors' bytes. Throws UserErrors FileMissing, NotBuiltYet (another version,
  /// of blocks too, big-endian, a format that ggml has not or no longer) and CheckpointDamaged for anything else.
  explicit GgufFile(const std::string &path);

  const std::string path;
  uint32_t version = 0;

  const GgufTensor *find(llvm::StringRef name) const;
  /// In the order of the file.
  const std::vector<GgufTensor> &tensors() const { return all; }
  /// Reads `count` elements from element `first` on, both multiples of a block's, widened to f32. Takes one buffer of
  /// their bytes beside `to`. Any number of threads may call it. Throws UserErrors NotBuiltYet for a format that is not
  /// readable, and CheckpointDamaged if the bytes cannot be read.
  void read(const GgufTensor &t, int64_t first, int64_t count, float *to) const;
  /// Reads bytes from within the tensor. Throws UserError(CheckpointDamaged).
  void readBytes(const GgufTensor &t, int64_t offset, int64_t bytes, void *to) const;

  /// All keys, sorted.
  std::vector<std::string> keys() const;
  /// All keys in the order of the file, each with the bytes of its type and value as they stand there. Throws
  /// UserError(CheckpointDamaged) for more than 1 GiB.
  std::vector<std::pair<std::string, std::string>> rawKeys() const;
  /// The number of bytes of which the place of each tensor is a multiple.
  int64_t alignment() const { return integer("general.alignment").value_or(32); }
  bool has(llvm::StringRef key) const { return values.count(std::string_view(key)) != 0; }
  // A value; nullopt if the key is absent. Throws UserError(CheckpointDamaged) if it is of another type: any type of
  // integers suits integer(), f32 and f64 suit number().
  std::optional<int64_t> integer(llvm::StringRef key) const;
  std::optional<double> number(llvm::StringRef key) const;
  std::optional<bool> boolean(llvm::StringRef key) const;
  std::optional<std::string> text(llvm::StringRef key) const;
  std::optional<std::vector<std::string>> texts(llvm::StringRef key) const;
  std::optional<std::vector<int64_t>> integers(llvm::StringRef key) const;
  std::optional<std::vector<double>> numbers(llvm::StringRef key) const;
  /// A value as messages show it: `12`, `"gpt2"`, `an array of 50257 strings`.
  std::string shown(llvm::StringRef key) const;

  [[noreturn]] void damaged(const std::string &why) const;

private:
  friend class GgufHeader;
  struct Value {
    GgufType type = GgufType::u8;  // of the value, or of an array's elements
    bool array = false;
    int64_t at = 0;     // of the value, or of an array's first element
    int64_t count = 1;  // elements
    int64_t bytes = 0;
  };
  const Value *find(llvm::StringRef key, bool array, llvm::ArrayRef<GgufType> types, const char *wanted) const;
  std::string bytesOf(const Value &v) const;

  InputFile file;
  std::map<std::string, Value, std::less<>> values;
  std::vector<GgufTensor> all;
  std::map<std::string, size_t, std::less<>> places;  // tensor -> index in `all`
};

/// Whether `path` is a regular file that begins with GGUF's magic.
bool isGguf(const std::string &path);

}  // namespace gptc
