// docs/planning.md: its commands print what stands there, and its picture is what they draw. examples/clusters/
// every-key.toml has every key.
#include "support.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gptc::estimate_test {
namespace {

namespace fs = std::filesystem;

using test::contentOf;

/// A part of the page: text, or a block of lines `$ command` each with what it prints below it.
struct Part {
  bool commands = false;
  std::string text;
};

std::vector<Part> partsOf(const std::string &page) {
  std::vector<Part> parts(1);
  bool inBlock = false;
  std::istringstream in(page);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) {
      inBlock = !inBlock;
      if (inBlock)
        parts.back().text += line + "\n";
      parts.push_back({inBlock && line == "```", ""});
      if (!inBlock)
        parts.back().text = line + "\n";
      continue;
    }
    parts.back().text += line + "\n";
  }
  for (Part &p : parts)
    p.commands &= p.text.rfind("$ ", 0) == 0;
  return parts;
}

TEST(Planning, CommandsPrintWhatThePageSays) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("gptc-planning-{}", ::getpid());
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::create_directory_symlink(sourceFile("examples"), folder / "examples");
  const std::string page = readSource("docs/planning.md");
  std::string anew;
  int commands = 0;
  for (const Part &part : partsOf(page)) {
    if (!part.commands) {
      anew += part.text;
      continue;
    }
    std::string printed;
    std::istringstream in(part.text);
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("$ ", 0) != 0)
        continue;
      std::string command = line.substr(2);
      printed += line + "\n";
      while (command.ends_with('\\') && std::getline(in, line)) {
        command += "\n" + line;
        printed += line + "\n";
      }
      std::ofstream(folder / "script") << "export PATH=" GPTC_BIN_DIR ":$PATH LANG=C.UTF-8\n" << command << "\n";
      const int status =
          std::system(fmt::format("cd '{}' && bash script > out 2>&1 < /dev/null", folder.string()).c_str());
      EXPECT_EQ(status, 0) << command << "\n" << contentOf(folder / "out");
      printed += contentOf(folder / "out");
      ++commands;
    }
    EXPECT_EQ(part.text, printed) << "GPTC_UPDATE_PLANNING=1 writes the page anew";
    anew += printed;
  }
  EXPECT_GE(commands, 7);
  const std::string picture = contentOf(folder / "pictures" / "days.svg");
  EXPECT_NE(picture, "");
  if (std::getenv("GPTC_UPDATE_PLANNING")) {
    std::ofstream(sourceFile("docs/planning.md"), std::ios::binary) << anew;
    std::ofstream(sourceFile("docs/bloom-days.svg"), std::ios::binary) << picture;
  } else {
    EXPECT_TRUE(picture == readSource("docs/bloom-days.svg")) << "the picture is another one";
  }
  fs::remove_all(folder);
}

TEST(Planning, AnExampleHasEveryKeyOfTheClusterFile) {
  // The reader's own list: what is asked for as r.KIND("table.key", ...) and the short keys of observations.
  const std::string source = readSource("frontends/cluster_config.cpp"),
                    example = readSource("examples/clusters/every-key.toml");
  int keys = 0;
  for (const char *table : {"device", "node", "network", "software", "limits", "observation"}) {
    size_t begin = example.find(fmt::format("[{}]", table));
    ASSERT_NE(begin, std::string::npos) << table;
    const std::string part = example.substr(begin, example.find("\n\n", begin) - begin);
    for (size_t at = 0; (at = source.find(fmt::format("\"{}.", table), at)) != std::string::npos;) {
      at += std::string(table).size() + 2;
      const std::string key = source.substr(at, source.find('"', at) - at);
      if (key.empty() || key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
        continue;
      EXPECT_TRUE(part.find(fmt::format("\n{} = ", key)) != std::string::npos ||
                  part.find(fmt::format("\n# {} = ", key)) != std::string::npos)
          << table << "." << key;
      ++keys;
    }
  }
  EXPECT_GT(keys, 60);
}

}  // namespace
}  // namespace gptc::estimate_test
