// Token files of the formats of runtime/data/token_format.h. A data set may have many files, of several formats: one
// stream, in the order of their names. Where it is cut into files changes nothing.
//
// Training order. In every epoch the stream is cut into windows of T tokens (plus one for the last target), starting at
// a random offset per epoch; a random permutation orders all windows. The window of global sequence number g is a pure
// function of (seed, g), so a resumed run needs no state to continue with the same data.
//
// Objectives. A decoder's targets are the following tokens. An encoder's are masked tokens (runtime/data/masking.h),
// drawn anew for every global sequence number, but fixed for evaluation. They are made here rather than in the graph,
// because the loss divides by their number over all micro-batches of a step, which must be known before the first one
// runs.
#pragma once

#include "runtime/data/token_format.h"
#include "runtime/data/training_data.h"
#include "support/files.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// A keyed pseudo-random permutation of [0, n): a balanced Feistel network with cycle walking (Black & Rogaway 2002,
/// "Ciphers with arbitrary finite domains").
class Permutation {
public:
  Permutation(int64_t n, uint64_t seed, uint64_t epoch);
  int64_t operator()(int64_t index) const;

private:
  int64_t n;
  uint64_t seed, epoch;
  unsigned halfBits;
};

class TokenData final : public TrainingData {
public:
  /// Opens every file that `pattern` names, as filesOf says. `key`: the key of model.toml, for messages. `maskToken`:
  /// an encoder's [MASK], the last id of the vocabulary; -1 for a decoder. Throws UserErrors FileMissing, and
  /// DataInvalid for empty, truncated or odd-sized files, unknown headers, indices that do not fit, and fewer than
  /// `minTokens` tokens.
  TokenData(const std::string &pattern, const std::string &key, int64_t vocab, int64_t blockSize, int64_t minTokens,
            int64_t maskToken = -1);

  /// Tokens of all files.
  int64_t tokens() const { return all; }
  /// Writes training window g: x[T] and its targets y[T], -1 for none. Throws UserError(TokenOutOfRange), naming file
  /// and position, or DataInvalid if a file has become shorter.
  void window(uint64_t seed, int64_t g, int32_t *x, int32_t *y) const;
  void trainingRow(uint64_t seed, int64_t g, const SequenceRow &row) const override { window(seed, g, row.x, row.y); }
  int64_t targets(uint64_t seed, int64_t first, int64_t count) const override;

  /// Number of consecutive, non-overlapping windows that cover the set, including a partial last window.
  int64_t evalWindows() const override { return (all - 1 + T - 1) / T; }
  /// Writes window i of those and returns its number of targets. A partial window is filled with targets of -1: a
  /// decoder's with token 0 after the text, where it cannot see it; an encoder's with the preceding text and, if the
  /// set is shorter than a window, [MASK] after it.
  int64_t evalWindow(int64_t i, int32_t *x, int32_t *y) const;
  int64_t evalRow(int64_t i, const SequenceRow &row) const override { return evalWindow(i, row.x, row.y); }
  void emptyRow(const SequenceRow &row) const override;
  void checkTokens() const override;

  void requireNarrowTokens() const override;

  size_t fileCount() const override { return files.size(); }
  std::vector<std::string> paths() const override;
  std::vector<std::string> names() const override;
  int64_t tokens(size_t i) const override { return files[i].format.count; }
  int64_t firstToken(size_t i) const override { return files[i].first; }
  FileStamp stamp(size_t i) const override { return files[i].file->stamp(); }
  std::string reading(size_t i) const override { return files[i].format.reading(); }
  Content content(size_t i, const std::atomic<bool> &givenUp) const override;
  void requireLargest(size_t i, uint32_t largest) const override;
  std::string sampledFingerprint() const override;

private:
  struct File {
    std::string path, name;
    std::unique_ptr<InputFile> file;
    TokenFormat format;
    int64_t first = 0;  // tokens of earlier files
  };
  /// Reads the bytes of `count` tokens from `start`, which the file had when it was opened. Throws
  /// UserError(DataInvalid) if it has them no more.
  static std::vector<char> readBytes(const File &f, int64_t start, int64_t count);
  /// Reads tokens like readBytes.
  static std::vector<int64_t> read(const File &f, int64_t start, int64_t count);
  /// Throws UserError(TokenOutOfRange) if one of the tokens, read from `start` on, is not in the vocabulary.
  void requireKnown(const File &f, int64_t start, const std::vector<int64_t> &tokens) const;
  /// Checks all tokens of a file, read in pieces.
  void checkTokens(const File &f) const;
  int64_t limit() const { return maskToken < 0 ? vocab : maskToken; }
  /// Writes `targets` tokens from `start` on, and those that follow each.
  void copy(int64_t start, int64_t targets, int32_t *x, int32_t *y) const;
  std::vector<File> files;
  int64_t vocab, T, maskToken;
  int64_t all = 0;           // tokens of all files
  int64_t epochWindows = 0;  // of training
  int64_t offsets = 1;       // number of possible epoch offsets, in tokens
};

}  // namespace gptc
