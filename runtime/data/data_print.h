// The fingerprint of training data in a checkpoint, which keeps another run from continuing with other data unnoticed:
// per file, in order, its name, its number of tokens and a hash of them; and a hash of the tokenizer.
//
// Hashing takes as long as reading the files. One rank of each machine does it during the first steps. Results are kept
// in the private cache under the file's device and inode, and count as long as its size and times stay the same and its
// bytes are read as tokens of the same format.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

namespace gptc {

class TrainingData;

struct FilePrint {
  std::string name;  // relative to the folder that holds all files, as in the plan
  int64_t tokens = 0;
  std::string hash;   // BLAKE3 of the tokens, independent of the file format
  int64_t first = 0;  // place of its first token in the stream of all files; not in checkpoints of before there was one
  bool operator==(const FilePrint &) const = default;
};

struct DataPrint {
  std::vector<FilePrint> files;  // empty: unknown
  std::string tokenizer;         // BLAKE3 of its file; "" if it is missing or unreadable
  bool known() const { return !files.empty(); }
  /// A hash of all fields.
  std::string str() const;
};

/// The files as JSON, [{"name", "tokens", "blake3", "first"}], the last only where it is not 0; and read from it.
/// Throws nlohmann's exceptions; and std::invalid_argument, naming the file and the value, for what jsonOf does not
/// write: numbers that count no tokens, other hashes than BLAKE3's, and places that are not those of one stream.
nlohmann::ordered_json jsonOf(const std::vector<FilePrint> &files);
std::vector<FilePrint> filePrintsOf(const nlohmann::ordered_json &files);

/// How the data `here`, in the files `paths`, differs from `there`; "" if it does not. A tokenizer unknown on one side
/// does not count.
std::string differenceOf(const DataPrint &there, const DataPrint &here, llvm::ArrayRef<std::string> paths,
                         const std::string &tokenizer);

class DataHasher {
public:
  /// Looks known files up in the cache ("": no cache). `data` must outlive this.
  DataHasher(const TrainingData &data, const std::string &tokenizer, const std::string &cacheDir);
  /// Abandons hashing that is under way.
  ~DataHasher();
  DataHasher(const DataHasher &) = delete;

  /// Bytes of the files that are not in the cache.
  int64_t bytesToHash() const { return unknown; }
  /// Starts hashing them on a thread of low priority; hashes small data before it returns. Throws like print().
  void begin();
  /// Whether print() would return without waiting.
  bool ended() const;
  /// The fingerprint; waits for the hashing. Throws UserErrors TokenOutOfRange for the first token beyond the
  /// vocabulary, also in a cached file, and DataInvalid for files that cannot be read completely or change meanwhile.
  DataPrint print();

private:
  struct Content {
    std::string hash;  // "": not known yet
    uint32_t largest = 0;
  };
  const TrainingData &data;
  const std::string tokenizer, cacheDir;
  std::vector<Content> contents;
  int64_t unknown = 0;
  std::atomic<bool> givenUp{false};
  std::future<void> job;
  void hashUnknown();
};

}  // namespace gptc
