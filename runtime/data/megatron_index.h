// Indices of Megatron-LM's data sets: PREFIX.idx beside PREFIX.bin, as its tools/preprocess_data.py writes them. The
// .bin has nothing but tokens, sequence after sequence; the .idx has, little-endian: "MMIDIDX" and two zeros, the
// version (uint64, 1), a code for the type of a token (uint8), the numbers of sequences and of bounds of documents
// (uint64 each); of each sequence its tokens (int32), then of each its first byte (int64); then the bounds of
// documents, numbers of sequences (int64): 0, the end of each.
#pragma once

#include "runtime/data/token_format.h"

#include <string>

namespace gptc {

/// NAME.idx for NAME.bin, if there is such a file; else "".
std::string megatronIndexBeside(const std::string &tokenFile);

/// The format that an index tells. Reads all of it, and checks that its sequences are the whole of a token file of
/// `bytes` bytes, in order and without gaps. `key`: the key of model.toml, for messages. Throws UserErrors FileMissing
/// and, with the first place that is wrong, DataInvalid.
TokenFormat readMegatronIndex(const std::string &path, const std::string &tokenFile, size_t bytes,
                              const std::string &key);

}  // namespace gptc
