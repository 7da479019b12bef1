// A corpus of any size, read in blocks of about a mebibyte: text files, each of which is one document, and JSON lines,
// each of which holds one; plain or compressed.
#pragma once

#include "frontends/byte_source.h"
#include "frontends/tokenizer/tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

struct CorpusBlock {
  int64_t number = 0;  // in the corpus: the same in every pass
  size_t file = 0;     // index of the file
  std::string text;
  bool jsonLines = false;
  bool startsDocument = true, endsDocument = true;  // of text: the first, the last of its file
  int64_t offset = 0, line = 1;                     // of its beginning in the file, uncompressed
};

struct CorpusOptions {
  /// "-" is standard input, from `standardInput`.
  std::vector<std::string> files;
  int standardInput = -1;
  /// The member of JSON lines that holds the text. If `keyGiven`, all files are JSON lines; else those named *.jsonl
  /// and
  /// *.ndjson (and .gz, .zst), and standard input if its first line is a JSON object.
  std::string key = "text";
  bool keyGiven = false;
  /// Where text may be cut into blocks.
  CutPoint cut = CutPoint::anywhere;
  bool anyBytes = false;  // text need not be UTF-8
};

/// Reads a corpus once. Throws UserErrors FileMissing, DataInvalid (empty, damaged, cut off) and TooLarge for a
/// document that cannot be cut and takes more than 256 MiB.
class CorpusReader {
public:
  explicit CorpusReader(const CorpusOptions &options);
  /// The next block; false at the end.
  bool next(CorpusBlock &block);
  /// Bytes of the files that were read so far.
  int64_t consumed() const { return done + (source ? source->consumed() : 0); }

private:
  void open();
  void fill(size_t bytes);
  size_t cutOf(std::string_view text) const;
  const CorpusOptions &options;
  size_t file = 0;
  int64_t number = 0, done = 0, offset = 0, line = 1;
  std::unique_ptr<ByteSource> source;
  std::string pending;
  bool ended = false, jsonLines = false, first = true;
};

/// How messages name a file.
std::string nameOfInput(const std::string &file);

/// Calls `document` for the text of each line of a block of JSON lines. Throws UserError(DataInvalid), naming file and
/// line, for what is no JSON object, has no such member, or has one that is no text.
void forDocuments(const CorpusBlock &block, const CorpusOptions &options,
                  const std::function<void(std::string &text)> &document);

/// Throws UserError(DataInvalid) with place and line if a block of text is no UTF-8.
void requireUtf8(const CorpusBlock &block, const CorpusOptions &options);

/// Size of all files in bytes; 0 if one cannot be read yet.
int64_t sizeOfFiles(const CorpusOptions &options);

/// Copies standard input to a nameless file in a folder, so that it can be read more than once. Returns a descriptor.
int keepStandardInput(const std::string &folder);

}  // namespace gptc
