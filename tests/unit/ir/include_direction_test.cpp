// The arrows of the architecture, read from the sources: who may include whom, where LLVM's heavy headers may stand,
// and how long a file may grow.
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace fs = std::filesystem;

namespace {

struct Source {
  std::string path;    // from the source folder on
  std::string folder;  // its first component
  std::vector<std::string> includes;
  size_t lines = 0;
};

/// The header that a line includes; empty for any other line.
llvm::StringRef included(llvm::StringRef line) {
  line = line.ltrim();
  if (!line.consume_front("#"))
    return {};
  line = line.ltrim();
  if (!line.consume_front("include"))
    return {};
  line = line.ltrim();
  if (!line.consume_front("<") && !line.consume_front("\""))
    return {};
  return line.take_until([](char c) { return c == '>' || c == '"'; });
}

std::vector<Source> sources() {
  std::vector<Source> all;
  const fs::path root = GPTC_SOURCE_DIR;
  for (const char *folder : {"ir", "passes", "codegen", "runtime", "frontends", "tools", "tests"}) {
    if (!fs::exists(root / folder))
      continue;
    for (const auto &entry : fs::recursive_directory_iterator(root / folder)) {
      std::string extension = entry.path().extension().string();
      if (!entry.is_regular_file() || (extension != ".cpp" && extension != ".h" && extension != ".def"))
        continue;
      Source s{fs::relative(entry.path(), root).string(), folder, {}};
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line); ++s.lines)
        if (llvm::StringRef name = included(line); !name.empty())
          s.includes.push_back(name.str());
      all.push_back(std::move(s));
    }
  }
  return all;
}

TEST(Architecture, IncludesPointOneWay) {
  const std::map<std::string, std::set<std::string>> mayInclude = {
      {"ir", {"ir"}},
      {"passes", {"ir", "passes"}},
      {"codegen", {"ir", "codegen"}},
      {"runtime", {"ir", "codegen", "runtime"}},
      {"frontends", {"ir", "frontends"}},
      {"tools", {"ir", "passes", "codegen", "runtime", "frontends", "tools"}},
      {"tests", {"ir", "passes", "codegen", "runtime", "frontends", "tools", "tests"}},
  };
  const std::set<std::string> ours = mayInclude.at("tests");
  size_t checked = 0;
  for (const Source &s : sources())
    for (const std::string &i : s.includes) {
      size_t slash = i.find('/');
      std::string folder = i.substr(0, slash == std::string::npos ? 0 : slash);
      if (!ours.count(folder))
        continue;  // a library's
      ++checked;
      EXPECT_TRUE(mayInclude.at(s.folder).count(folder)) << s.path << " includes " << i;
    }
  EXPECT_GT(checked, 50u) << "nothing was read";
}

TEST(Architecture, HeavyHeadersStayInTwoFiles) {
  // Light parts of LLVM; all others cost seconds of compile time each.
  const std::set<std::string> light = {"ADT", "Config", "Support", "TargetParser"};
  std::set<std::string> heavy;
  for (const Source &s : sources())
    for (const std::string &i : s.includes)
      if (i.rfind("llvm/", 0) == 0 && !light.count(i.substr(5, i.find('/', 5) - 5))) {
        EXPECT_EQ(s.folder, "codegen") << s.path << " includes " << i;
        heavy.insert(s.path);
      }
  // A header counts as a part of the one file that includes it.
  for (const std::string &path : std::set<std::string>(heavy))
    if (path.size() > 2 && path.substr(path.size() - 2) == ".h") {
      std::vector<std::string> users;
      for (const Source &s : sources())
        if (llvm::is_contained(s.includes, path))
          users.push_back(s.path);
      EXPECT_EQ(users.size(), 1u) << path << ": " << testing::PrintToString(users);
      heavy.erase(path);
      heavy.insert(users.begin(), users.end());
    }
  EXPECT_LE(heavy.size(), 2u) << testing::PrintToString(heavy);
}

TEST(Architecture, FilesStaySmall) {
  for (const Source &s : sources())
    EXPECT_LE(s.lines, 800u) << s.path << " has become two things";
}

}  // namespace
