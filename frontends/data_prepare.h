// Converts text files to token files: `gptc data prepare`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

/// How far the work is.
struct PrepareProgress {
  std::string doing;         // "counting", "learning", "encoding"
  int64_t done = 0, of = 0;  // bytes of the files; of = 0: unknown
};

struct PrepareOptions {
  /// Training text. "-" is standard input. Text files are one document each; files named *.jsonl or *.ndjson, and
  /// standard input if its first line is a JSON object, hold one document a line. .gz and .zst are read too, by
  /// content.
  std::vector<std::string> files;
  std::vector<std::string> valFiles;  // validation text; empty: the end of `files`
  double valFraction = 0.1;  // validation share of the characters (byte: of the bytes) if valFiles is empty; 0: none
  /// "char", "byte", "bpe:N", "gpt2:MERGES_FILE", or a file that Tokenizer::load takes.
  std::string tokenizer;
  std::string outDir;
  /// "nanogpt": uint16 tokens, without header, as long as the vocabulary fits; else as "llmc". "llmc": llm.c's header
  /// of 256 int32, then uint16 tokens (magic 20240520, version 1), or uint32 tokens (20240801, version 7) if the
  /// vocabulary exceeds 65536. "megatron": Megatron-LM's, uint16 or int32 tokens with the documents in train.idx and
  /// val.idx; of each document 4 bytes stay in memory.
  std::string format = "nanogpt";
  std::string key;            // of JSON lines; given: all files are JSON lines; "": "text", where files are
  bool parseSpecial = false;  // control tokens in the text become their tokens
  bool addSpecial = false;    // the tokens that the tokenizer puts around a text, around each document
  int threads = 0;            // 0: the CPUs of this process. The files do not depend on it.
  // For texts with labels (frontends/label_prepare.h):
  std::string labels;             // what names them; "": there are none
  std::string problemType;        // ProblemType by its word; "": as `labels` says, else single_label_classification
  std::string pairKey, labelKey;  // members or columns of the second text and of the label; "": text_pair, label
  int64_t context = 0;            // tokens to which texts are cut; 0: as the tokenizer's folder says, at most 512
  std::function<void(const PrepareProgress &)> progress;  // called now and then, if set
};

/// The threads that `options` ask for.
unsigned threadsOf(const PrepareOptions &options);

struct PrepareResult {
  std::string tokenizer;  // as Tokenizer::describe
  int64_t vocab = 0;
  int64_t trainTokens = 0, valTokens = 0;
  int64_t trainBytes = 0, valBytes = 0;  // bytes of text
  int64_t controlTokens = 0;             // that stand in the text, as text or as tokens
  bool wide = false;                     // tokens have 32 bits
  std::string separator;                 // the token between documents; "": none
  std::string tokenizerFile;             // path of the tokenizer
};

/// Writes train.bin, val.bin (if there is a validation split), their indices if Megatron-LM's format is asked for, and
/// the tokenizer's file into outDir, each completely or not at all, and none if one of them fails. Indices of an
/// earlier run do not stay beside files of another format. The token that ends a document, if the tokenizer has one,
/// separates documents. Tokenizers are trained on the training text only, but char collects the characters of both.
/// Needs memory for a few blocks of text per thread (frontends/corpus.h), not for the corpus, which it reads up to
/// three times. Throws UserErrors Usage (wrong tokenizer or format), FileMissing, DataInvalid (empty, damaged, not
/// UTF-8), TooLarge, Unwritable, DiskFull.
PrepareResult prepareData(const PrepareOptions &options);

}  // namespace gptc
