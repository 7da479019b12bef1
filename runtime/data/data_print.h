// What a checkpoint says of the data that its run has seen, so that another run does not go on with other data
// unnoticed: of each file its name, the number of its tokens and a hash of them all, in the order of the files; and a
// hash of the tokenizer.
//
// Hashing a file takes as long as reading it. It is done beside the first steps, by one rank of each machine, and what
// it finds is kept in the private cache under the file's device and inode, as long as size and times of the file stay.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

namespace gptc {

class TokenData;

struct FilePrint {
  std::string name;  // as the plan says it, without the folder that holds all of them
  int64_t tokens = 0;
  std::string hash;  // BLAKE3 of the tokens, whatever the format of the file
  bool operator==(const FilePrint &) const = default;
};

struct DataPrint {
  std::vector<FilePrint> files;  // none: not known
  std::string tokenizer;         // BLAKE3 of its file; "" where there is none, or it cannot be read
  bool known() const { return !files.empty(); }
  /// A hash of it all.
  std::string str() const;
};

/// How the data `here`, which lies in these files, differs from what was `there`; "" where it does not. A tokenizer
/// that is not known on one side does not count.
std::string differenceOf(const DataPrint &there, const DataPrint &here, llvm::ArrayRef<std::string> paths,
                         const std::string &tokenizer);

class DataHasher {
public:
  /// Looks up in the cache ("": none) which files are known. `data` must outlive this.
  DataHasher(const TokenData &data, const std::string &tokenizer, const std::string &cacheDir);
  /// Gives up what is under way.
  ~DataHasher();
  DataHasher(const DataHasher &) = delete;

  /// Bytes of files that are not known.
  int64_t bytesToHash() const { return unknown; }
  /// Hashes them, on a thread of its own that leaves the CPUs to those that compute; little data at once. UserError as
  /// print().
  void begin();
  /// Whether print() need not wait.
  bool ended() const;
  /// The print, once all is hashed. UserErrors: TokenOutOfRange for the first token beyond the vocabulary, be it in a
  /// file that was known; DataInvalid for files that cannot be read whole, or change meanwhile.
  DataPrint print();

private:
  struct Content {
    std::string hash;  // "": not known yet
    uint16_t largest = 0;
  };
  const TokenData &data;
  const std::string tokenizer, cacheDir;
  std::vector<Content> contents;
  int64_t unknown = 0;
  std::atomic<bool> givenUp{false};
  std::future<void> job;
  void hashUnknown();
};

}  // namespace gptc
