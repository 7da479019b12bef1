#pragma once

#include "support/diagnostics.h"
#include "tests/support/content.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>

/// A folder that lives as long as the test.
class TempDir {
public:
  TempDir() {
    std::string name = ::testing::TempDir() + "gptc-XXXXXX";
    path = ::mkdtemp(name.data()) ? name : "";
  }
  ~TempDir() {
    std::error_code e;
    std::filesystem::remove_all(path, e);
  }
  std::string operator/(const std::string &name) const { return path + "/" + name; }
  std::string path;
};

inline void writeFile(const std::string &path, const std::string &content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string readFile(const std::string &path) { return gptc::test::contentOf(path); }

/// Flips one bit of a file.
inline void damageFile(const std::string &path, size_t at) {
  std::string text = readFile(path);
  text.at(at) ^= 1;
  writeFile(path, text);
}

/// Runs `f` and returns the code of the UserError it throws, 0 when it throws none.
template <typename F> int codeThrown(F f, std::string *message = nullptr) {
  try {
    f();
  } catch (const gptc::UserError &e) {
    if (message)
      *message = e.diagnostics[0].message;
    return int(e.diagnostics[0].code);
  }
  return 0;
}
