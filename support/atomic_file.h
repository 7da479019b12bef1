// A file that is written piece by piece and appears complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gptc {

/// Functions throw UserErrors DiskFull and Unwritable, whose help is for files that a user named.
class AtomicFile {
public:
  /// Opens a temporary file in the folder of `path`, its name with .tmp and the number of this process, and locks it
  /// until it is renamed; removes those of processes that are no more, an hour after they were last written. Refuses a
  /// path that is there and no regular file.
  explicit AtomicFile(std::string path);
  /// Removes the temporary file if commit() was not called.
  ~AtomicFile();
  AtomicFile(const AtomicFile &) = delete;
  void append(std::string_view content);
  /// Writes over what was appended.
  void writeAt(int64_t offset, std::string_view content);
  /// Syncs the content: from then on there is room for it on the disk. commit() calls it.
  void finish();
  /// Renames the temporary file to `path`, which it replaces, and syncs the folder.
  void commit();

private:
  std::string path, temporary;
  int fd = -1;
  bool renamed = false;
};

}  // namespace gptc
