// How the bytes of a token file are tokens. nanoGPT's files are bare 16-bit numbers. llm.c's two have a header of 256
// int32: magic, version, number of tokens. 20240520, version 1: uint16 tokens; 20240801, version 7: uint32 tokens, for
// vocabularies beyond 65536. The fourth number of a header holds the upper half of a count beyond 2^31 - 1, where
// llm.c's files end and have 0. Megatron-LM's are bare numbers of any width, which an index beside them tells
// (runtime/data/megatron_index.h). All are little-endian.
#pragma once

#include "support/files.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct TokenFormat {
  size_t start = 0;       // byte of the first token
  size_t width = 2;       // bytes of a token: 1, 2, 4 or 8
  bool isSigned = false;  // of 8 bytes always
  int64_t count = 0;      // tokens
  bool isTold = false;    // by a header or an index; else a file is taken for nanoGPT's
  /// Documents, where an index bounds them; other files have nothing but what their tokens say.
  std::optional<int64_t> documents = std::nullopt;

  /// Where token `i` begins.
  size_t byteOf(int64_t i) const { return start + size_t(i) * width; }
  /// The tokens of a piece of the file, which begins and ends with a token.
  std::vector<int64_t> tokens(const std::vector<char> &piece) const;
  /// The largest of those, as a vocabulary is compared with it: 2^32 - 1 for one that no vocabulary has. 0 for none.
  uint32_t largest(const std::vector<char> &piece) const;
  /// All that makes the same bytes the same tokens, for a record of them: "2 bytes at 1024".
  std::string reading() const;
};

/// Finds out the format of the file at `path`, from an index beside it, its header and its size. `key`: the key of
/// model.toml, for messages. Throws UserErrors DataInvalid for files that are empty, truncated, of odd size or of
/// another kind, and what readMegatronIndex throws.
TokenFormat formatOf(const InputFile &file, const std::string &path, const std::string &key);

}  // namespace gptc
