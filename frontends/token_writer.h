// Writes a token file (runtime/data/data.h reads it) piece by piece.
#pragma once

#include "support/atomic_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

class TokenWriter {
public:
  /// `header`: llm.c's. `wide`: 32 bits a token, which need the header.
  TokenWriter(const std::string &path, bool header, bool wide);
  void append(const std::vector<int32_t> &tokens);
  int64_t count() const { return tokens; }
  /// Writes the number of tokens into the header and syncs the file.
  void finish();
  void commit() { file.commit(); }

private:
  AtomicFile file;
  bool header, wide;
  int64_t tokens = 0;
};

}  // namespace gptc
