// Token files: memory-mapped, in nanoGPT's format (raw little-endian uint16) and llm.c's (1024-byte header, magic
// 20240520, version 1, then uint16). One data set may be many files; a window never crosses from one into the next.
//
// Training order. In every epoch each file is cut into windows of T tokens (plus one for the last target) from an
// offset that is random per epoch and file; a random permutation of all windows gives their order. The window of global
// sequence number g is a pure function of (seed, g): nothing is remembered, so that a resumed run goes on with the data
// it would have seen.
//
// Objectives. A decoder's targets are the tokens that follow. An encoder's are masked tokens (runtime/data/masking.h),
// drawn anew for every global sequence number, and the same at every evaluation. They are made here rather than in the
// graph, since the loss divides by their number over all micro-batches of a step, which must be known before the first
// runs.
#pragma once

#include "support/files.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// A permutation of [0, n): `index` -> permuted, a balanced Feistel network with cycle walking (Black & Rogaway 2002,
/// "Ciphers with arbitrary finite domains"), keyed by two words.
class Permutation {
public:
  Permutation(int64_t n, uint64_t seed, uint64_t epoch);
  int64_t operator()(int64_t index) const;

private:
  int64_t n;
  uint64_t seed, epoch;
  unsigned halfBits;
};

class TokenData {
public:
  /// Opens every file that `pattern` (a path, or a glob) names. `key` is the key of model.toml, for messages.
  /// `maskToken` is an encoder's [MASK], the last id of the vocabulary; -1 for a decoder. UserErrors: FileMissing;
  /// DataInvalid for empty, truncated or odd-sized files, unknown headers, and files of fewer than `minTokens` tokens.
  TokenData(const std::string &pattern, const std::string &key, int64_t vocab, int64_t blockSize, int64_t minTokens,
            int64_t maskToken = -1);

  int64_t tokens() const;
  /// Training window g: x[T] and y[T], the targets or -1. Throws UserError(TokenOutOfRange) naming file and
  /// position, or DataInvalid where a file has become shorter.
  void window(uint64_t seed, int64_t g, int32_t *x, int32_t *y) const;
  /// Number of targets of windows first .. first + count.
  int64_t targets(uint64_t seed, int64_t first, int64_t count) const;

  /// Windows of the whole set in order and without overlap, the last of a file included where it is partial.
  int64_t evalWindows() const { return allWindows; }
  /// Window i of those. Returns the number of targets. A partial one is filled up with target -1: a decoder's behind
  /// the text with token 0, which it does not see from there; an encoder's with the text before it and, where the whole
  /// file is shorter than a window, behind it with [MASK].
  int64_t evalWindow(int64_t i, int32_t *x, int32_t *y) const;
  /// Reads the whole set, for what evalWindow would find only when it comes to it. UserError(TokenOutOfRange).
  void checkTokens() const;

  /// UserError(DataInvalid) for a file whose tokens are 32 or 64 bits wide, as far as its beginning shows that.
  void requireNarrowTokens() const;

  // For the print of the whole set (runtime/data/data_print.h), of file i each.
  size_t fileCount() const { return files.size(); }
  /// As they are opened; and without the folder that the pattern names.
  std::vector<std::string> paths() const, names() const;
  int64_t tokens(size_t i) const { return files[i].count; }
  FileStamp stamp(size_t i) const { return files[i].file->stamp(); }
  struct Content {
    std::string hash;  // BLAKE3 of all tokens
    uint16_t largest = 0;
  };
  /// Reads all of it, unless `givenUp`. UserError(DataInvalid).
  Content content(size_t i, const std::atomic<bool> &givenUp) const;
  /// UserError(TokenOutOfRange), naming the first one, where the file's largest token is beyond the vocabulary.
  void requireLargest(size_t i, uint16_t largest) const;

  /// A hash of sizes and of samples of the content, as checkpoints of earlier versions have it.
  std::string sampledFingerprint() const;

private:
  struct File {
    std::string path, name;
    std::unique_ptr<InputFile> file;
    size_t start;  // byte of the first token
    int64_t count;
    int64_t firstWindow, firstEvalWindow;  // counts of the files before
    int64_t windows, evalWindows;
    int64_t offsets;  // number of possible epoch offsets
  };
  /// Tokens start.., of which the file had enough when it was opened. UserError(DataInvalid) where it has no more.
  static void read(const File &f, int64_t start, int64_t count, uint16_t *to);
  /// Tokens `start`.. of a file, as read, must be of the vocabulary.
  void requireKnown(const File &f, int64_t start, const std::vector<uint16_t> &tokens) const;
  /// All tokens of a file, in pieces.
  void checkTokens(const File &f) const;
  int64_t limit() const { return maskToken < 0 ? vocab : maskToken; }
  void copy(const File &f, int64_t start, int64_t targets, int32_t *x, int32_t *y) const;
  std::vector<File> files;
  int64_t vocab, T, maskToken, epochWindows = 0, allWindows = 0;
};

}  // namespace gptc
