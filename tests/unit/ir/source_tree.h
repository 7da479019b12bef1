// The source tree as the tests of its architecture read it.
#pragma once

#include "llvm/ADT/STLExtras.h"

#include <filesystem>
#include <string>
#include <vector>

namespace gptc::test {

/// The folders of the source tree: all but hidden ones and what builds write.
inline const std::vector<std::string> &topFolders() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    for (const auto &entry : std::filesystem::directory_iterator(GPTC_SOURCE_DIR))
      if (const std::string name = entry.path().filename(); entry.is_directory() && name[0] != '.' && name != "build")
        found.push_back(name);
    return found;
  }();
  return all;
}

/// The files of C++ and CUDA text, from the source folder on.
inline std::vector<std::filesystem::path> sourceFiles() {
  std::vector<std::filesystem::path> all;
  const std::filesystem::path root = GPTC_SOURCE_DIR;
  for (const std::string &folder : topFolders())
    for (const auto &entry : std::filesystem::recursive_directory_iterator(root / folder))
      if (entry.is_regular_file() && llvm::is_contained({".cpp", ".cc", ".h", ".hpp", ".def", ".inc", ".cuh", ".cu"},
                                                        entry.path().extension().string()))
        all.push_back(std::filesystem::relative(entry.path(), root));
  return all;
}

}  // namespace gptc::test
