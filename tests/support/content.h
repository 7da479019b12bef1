// Reading a file of a test whole.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace gptc::test {

/// The bytes of a file; "" if it cannot be opened.
inline std::string contentOf(const std::filesystem::path &file) {
  // A process may end while its files in /proc are read: iterators would throw, this ends.
  std::ostringstream bytes;
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return bytes.str();
}

}  // namespace gptc::test
