// The way in which every program opens what it is to read.
#pragma once

#include <cstdint>
#include <string>

namespace gptc {

/// A file opened to be read, whose descriptor is the caller's to close; or fd -1, and what is in the way.
struct OpenedFile {
  int fd = -1;
  int64_t size = 0;  // 0 for files of the kernel, as in /proc
  int error = 0;     // of errno
  std::string why;
};

/// Opens a regular file, or a link to one. Nothing else is opened and nothing waits: a pipe may never get a writer, and
/// a device may never end.
OpenedFile openRegularFile(const std::string &path);

}  // namespace gptc
