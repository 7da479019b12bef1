// The bytes of a file of text: plain, or compressed by gzip or Zstandard, which its first bytes tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace gptc {

class ByteSource {
public:
  virtual ~ByteSource() = default;
  /// Reads up to `bytes` bytes. Returns their number, 0 at the end, or -1: then `why` says what is wrong with what
  /// follows.
  virtual int64_t read(char *to, int64_t bytes) = 0;
  std::string why;
  /// Bytes of the file that were read so far, for progress.
  virtual int64_t consumed() const = 0;
};

/// Reads the file behind a descriptor, from its beginning if it has one. Closes the descriptor at last.
std::unique_ptr<ByteSource> openSource(int fd);

}  // namespace gptc
