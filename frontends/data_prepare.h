// Converts text files to token files: `gptc data prepare`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct PrepareOptions {
  std::vector<std::string> files;     // training text
  std::vector<std::string> valFiles;  // validation text; empty: the end of `files`
  double valFraction = 0.1;  // validation share of the characters (byte: of the bytes) if valFiles is empty; 0: none
  /// "char", "byte", "bpe:N", "gpt2:MERGES_FILE", or a tokenizer.json.
  std::string tokenizer;
  std::string outDir;
  /// "nanogpt": uint16 tokens; "llmc": the same after llm.c's header of 256 int32 (magic 20240520, version 1, count).
  std::string format = "nanogpt";
};

struct PrepareResult {
  std::string tokenizer;  // as Tokenizer::describe
  int64_t vocab = 0;
  int64_t trainTokens = 0, valTokens = 0;
  int64_t trainBytes = 0, valBytes = 0;  // bytes of text
};

/// Writes train.bin, val.bin (if there is a validation split) and tokenizer.json into outDir, each completely or not at
/// all. Every file is one document; <|endoftext|>, if the tokenizer has it, separates documents. Tokenizers are trained
/// on the training text only, but char collects the characters of both. Throws UserErrors Usage (wrong tokenizer or
/// format), FileMissing, DataInvalid (empty, not UTF-8), TooLarge (vocabulary beyond uint16), Unwritable, DiskFull.
PrepareResult prepareData(const PrepareOptions &options);

}  // namespace gptc
