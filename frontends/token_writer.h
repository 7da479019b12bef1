// Writes a token file (runtime/data/token_format.h says which there are) piece by piece.
#pragma once

#include "frontends/megatron_writer.h"
#include "support/atomic_file.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// nanoGPT's bare 16-bit tokens, llm.c's header before them, or Megatron-LM's index beside them.
enum class TokenFileKind { nanogpt, llmc, megatron };

class TokenWriter {
public:
  /// `path`: NAME.bin. `wide`: 32 bits a token, which nanoGPT's files do not have.
  TokenWriter(const std::string &path, TokenFileKind kind, bool wide);
  void append(const std::vector<int32_t> &tokens);
  /// A document begins at token `at` of the file, where the one before it ends; at 0 the first one.
  void beginDocument(int64_t at);
  int64_t count() const { return tokens; }
  /// Writes the number of tokens into the header, or the index, and syncs the files.
  void finish();
  /// Leaves no index of Megatron-LM's beside a file of another kind.
  void commit();

private:
  const std::string path;
  const TokenFileKind kind;
  const bool wide;
  AtomicFile file;
  std::optional<MegatronIndexWriter> index;
  int64_t tokens = 0;
};

}  // namespace gptc
