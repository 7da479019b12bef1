// Writes indices of Megatron-LM's data sets, as runtime/data/megatron_index.h describes and reads them.
#pragma once

#include "support/atomic_file.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace gptc {

class MegatronIndexWriter {
public:
  /// `width`: bytes of a token, 2 (uint16) or 4 (int32). `most`: tokens of a sequence, which an int32 counts; a longer
  /// document has several.
  MegatronIndexWriter(const std::string &path, size_t width, int64_t most = std::numeric_limits<int32_t>::max());
  /// A document begins at token `at` of the token file, where the one before it ends. The first one begins at 0.
  void beginDocument(int64_t at);
  /// Writes the index of a file of `tokens` tokens, where the last document ends, and syncs it. Throws as AtomicFile.
  void finish(int64_t tokens);
  void commit() { file.commit(); }

private:
  void endDocument(int64_t at);
  /// Appends values(i) for i in [0, count).
  template <typename T, typename F> void append(size_t count, F value);

  AtomicFile file;
  size_t width;
  int64_t most;
  bool isOpen = false;  // a document has begun
  int64_t begin = 0;    // of that document
  // 4 bytes a document stay in memory: an index has the numbers of all before the first of them.
  std::vector<int32_t> lengths;    // of sequences, in tokens
  std::vector<int64_t> continued;  // sequences that go on with the document before them
};

/// The index that belongs to a token file NAME.bin: NAME.idx.
std::string megatronIndexOf(const std::string &tokenFile);

/// Removes the index of a token file that has another format now, by which readers would take its bytes for other
/// tokens. A file of that name that is no index, or cannot be read, stays.
void removeMegatronIndex(const std::string &tokenFile);

}  // namespace gptc
