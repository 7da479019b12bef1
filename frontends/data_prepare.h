// Text files to token files: `gptc data prepare`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct PrepareOptions {
  std::vector<std::string> files;     // text to train on
  std::vector<std::string> valFiles;  // text to validate on; empty: the end of `files`
  double valFraction = 0.1;  // of the characters (bytes for byte), when valFiles is empty; 0: no validation split
  /// "char", "byte", "bpe:N", "gpt2:MERGES_FILE", or a tokenizer.json.
  std::string tokenizer;
  std::string outDir;
  /// "nanogpt": uint16 tokens; "llmc": the same behind llm.c's header of 256 int32 (magic 20240520, version 1, count).
  std::string format = "nanogpt";
};

struct PrepareResult {
  std::string tokenizer;  // as Tokenizer::describe
  int64_t vocab = 0;
  int64_t trainTokens = 0, valTokens = 0;
  int64_t trainBytes = 0, valBytes = 0;  // of text
};

/// Writes train.bin, val.bin (when there is a validation split) and tokenizer.json into outDir, each whole or not at
/// all. Every file is one document: where the tokenizer has <|endoftext|>, it stands between documents. A tokenizer is
/// trained on the training text alone, but char takes the characters of all. Throws UserError: Usage for a wrong
/// tokenizer or format, FileMissing, DataInvalid (empty, not UTF-8), TooLarge (vocabulary beyond uint16), Unwritable,
/// DiskFull.
PrepareResult prepareData(const PrepareOptions &options);

}  // namespace gptc
