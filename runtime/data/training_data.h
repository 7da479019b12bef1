// What a module trains on and is evaluated with: sequences by their numbers, and the files they come from. Token files
// (runtime/data/data.h) and files of texts with labels (runtime/data/labelled_data.h) are of this kind.
#pragma once

#include "support/files.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// Where the arguments of @train_step, @accumulate and @eval have one sequence of T tokens.
struct SequenceRow {
  int32_t *x;          // [T]
  int32_t *y;          // targets: [T]; of a text its label [1], or for each of L labels whether it is right [L]
  int64_t *documents;  // [T,2], of a text with a label; else null
  int32_t *types;      // [T], of a text with a label; else null
  float *number;       // the target of a regression [1], for which y is null; else null
};

class TrainingData {
public:
  virtual ~TrainingData() = default;

  /// Writes training sequence g, a function of (seed, g). Throws UserError(TokenOutOfRange), naming file and place, or
  /// DataInvalid if a file has become shorter.
  virtual void trainingRow(uint64_t seed, int64_t g, const SequenceRow &row) const = 0;
  /// Number of targets in training sequences first ... first + count - 1.
  virtual int64_t targets(uint64_t seed, int64_t first, int64_t count) const = 0;

  /// Number of sequences that cover the set once.
  virtual int64_t evalWindows() const = 0;
  /// Writes sequence i of those and returns its number of targets. Throws like trainingRow.
  virtual int64_t evalRow(int64_t i, const SequenceRow &row) const = 0;
  /// Writes a sequence without targets, as which a batch has no more of them.
  virtual void emptyRow(const SequenceRow &row) const = 0;
  /// Number i of `count` <= evalWindows() of those that are spread evenly.
  int64_t spreadWindow(int64_t i, int64_t count) const {  // floor(i all / count) without overflow
    const int64_t all = evalWindows();
    return all / count * i + all % count * i / count;
  }
  /// Checks the whole set now. Throws like trainingRow.
  virtual void checkTokens() const = 0;
  /// Throws UserError(DataInvalid) if the beginning of a file without header shows tokens of 32 or 64 bits.
  virtual void requireNarrowTokens() const {}
  /// What may be unintended; "" for nothing.
  virtual std::string note() const { return ""; }

  // For the fingerprint of the set (runtime/data/data_print.h); `i` numbers the files.
  virtual size_t fileCount() const = 0;
  /// Full paths; and names relative to the folder in the pattern.
  virtual std::vector<std::string> paths() const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual int64_t tokens(size_t i) const = 0;
  /// The place of its first token where all files are one stream.
  virtual int64_t firstToken(size_t) const { return 0; }
  virtual FileStamp stamp(size_t i) const = 0;
  /// How the bytes of file i are taken for tokens: what content() says of another reading does not count for this one.
  virtual std::string reading(size_t i) const = 0;
  struct Content {
    std::string hash;  // BLAKE3 of all that trains
    uint32_t largest = 0;
  };
  /// Reads all of file i; stops early if `givenUp`. Throws UserError(DataInvalid).
  virtual Content content(size_t i, const std::atomic<bool> &givenUp) const = 0;
  /// Throws a UserError if the file's largest token exceeds the vocabulary: TokenOutOfRange, naming the first such
  /// token; or DataInvalid, naming `largest`, if another look finds none.
  virtual void requireLargest(size_t i, uint32_t largest) const = 0;
  /// A hash of sizes and sampled content, as in checkpoints of earlier versions; "" if those knew no such data.
  virtual std::string sampledFingerprint() const { return ""; }

protected:
  /// Throws the DataInvalid of requireLargest. `limit`: the size of the vocabulary.
  [[noreturn]] static void changedUnnoticed(const std::string &path, uint32_t largest, int64_t limit);
};

/// The files that `pattern` names, by name in the order of bytes: a file; the *.bin of a folder; PREFIX, of a
/// PREFIX.bin with PREFIX.idx; or a glob, of which an index means its .bin. `key`: the key of model.toml, for messages.
/// Throws UserErrors FileMissing if there is none, and DataInvalid if a folder has files to train on and others whose
/// names have a word for held-out text: val, valid, validation, test, eval, evaluation, dev, heldout, holdout.
std::vector<std::string> filesOf(const std::string &pattern, const std::string &key);
/// The path relative to the folder in the pattern, which stays the same if the data is moved.
std::string nameInPattern(const std::string &path, const std::string &pattern);

}  // namespace gptc
