// The arrows of the architecture, read from the sources: who may include whom, where LLVM's heavy headers may stand,
// and how long files and functions may grow.
#include "tests/unit/ir/function_lines.h"
#include "tests/unit/ir/source_tree.h"

#include "llvm/ADT/StringRef.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace fs = std::filesystem;
using gptc::test::functionLines;
using gptc::test::sourceFiles;
using gptc::test::topFolders;

namespace {

struct Source {
  std::string path;  // from the source folder on
  std::string room;  // its folder
  std::vector<std::string> includes;
  std::set<std::string> quoted;  // of these, what is written as ours or as LLVM's
  size_t lines = 0;

  std::string top() const { return room.substr(0, room.find('/')); }
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
  for (const fs::path &path : sourceFiles()) {
    Source s{path.string(), path.parent_path().string(), {}};
    std::ifstream in(fs::path(GPTC_SOURCE_DIR) / path);
    for (std::string line; std::getline(in, line); ++s.lines)
      if (llvm::StringRef name = included(line); !name.empty()) {
        s.includes.push_back(name.str());
        if (name.data()[-1] == '"')
          s.quoted.insert(name.str());
      }
    all.push_back(std::move(s));
  }
  return all;
}

using Rooms = std::vector<std::string>;

/// A room and those whose headers its files may include, beside its own. A room stands behind all that it may see, so
/// that there is no circle.
const std::vector<std::pair<std::string, Rooms>> &rooms() {
  static const std::vector<std::pair<std::string, Rooms>> all = [] {
    std::vector<std::pair<std::string, Rooms>> table = {
        {"cmake", {}},
        {"support", {}},
        {"support/gguf", {"support"}},
        {"ir/kernel", {"support"}},
        {"ir", {"support", "ir/kernel"}},
        {"ir/ops", {"support", "ir"}},
        {"ir/settings", {"support", "ir"}},
        {"passes/analysis", {"support", "ir/kernel", "ir"}},
        {"passes", {"support", "ir/kernel", "ir", "passes/analysis"}},
        {"codegen", {"support", "ir/kernel", "ir"}},
        {"codegen/cpu", {"support", "ir/kernel", "ir", "codegen"}},
        {"codegen/recipes", {"support", "ir/kernel", "ir", "codegen"}},
        {"codegen/recipes/attention", {"support", "ir/kernel", "ir", "ir/ops", "codegen", "codegen/recipes"}},
        {"codegen/recipes/matmul",
         {"support", "ir/kernel", "ir", "codegen", "codegen/recipes", "codegen/recipes/attention"}},
        {"codegen/cuda/device", {}},
        {"codegen/cuda", {"support", "ir/kernel", "ir", "ir/ops", "codegen", "codegen/recipes"}},
        {"codegen/tuner", {"support", "ir/kernel", "ir", "codegen", "codegen/recipes"}},
        {"frontends/chat", {"support"}},
        {"frontends/tokenizer", {"support", "support/gguf"}},
        {"frontends/gguf", {"support", "support/gguf", "ir/settings", "frontends/tokenizer"}},
        {"frontends/hf", {"support", "ir", "ir/settings"}},
        {"frontends",
         {"support", "support/gguf", "ir", "ir/settings", "frontends/gguf", "frontends/hf", "frontends/tokenizer"}},
        {"runtime/rendezvous", {"support"}},
        {"runtime/launch", {"support", "runtime/rendezvous"}},
        {"runtime/collectives", {"support", "ir", "runtime/rendezvous", "runtime/launch"}},
        {"runtime/collectives/gloo", {"runtime/collectives"}},
        {"runtime/plan", {"support", "ir/kernel", "ir", "ir/settings", "codegen"}},
        {"runtime/device", {"support", "ir", "codegen", "codegen/cpu", "runtime/collectives", "runtime/plan"}},
        {"runtime/cuda",
         {"support", "ir/kernel", "ir", "codegen", "codegen/cuda", "codegen/tuner", "runtime/launch",
          "runtime/collectives", "runtime/plan", "runtime/device"}},
        {"runtime/tuning", {"support", "ir/kernel", "ir", "codegen", "codegen/tuner", "runtime/cuda"}},
        {"runtime/data", {"support", "ir", "codegen"}},
        {"runtime/checkpoint",
         {"support", "support/gguf", "ir/kernel", "ir", "runtime/launch", "runtime/collectives", "runtime/plan",
          "runtime/device", "runtime/data"}},
        {"runtime/serve", {"support", "ir", "runtime/plan", "runtime/device", "runtime/data"}},
        {"runtime/train",
         {"support", "ir", "runtime/serve", "runtime/launch", "runtime/collectives", "runtime/plan", "runtime/device",
          "runtime/cuda", "runtime/data", "runtime/checkpoint"}},
    };
    // The tools see everything but how ops, kernels and recipes are made, and of each other what follows.
    Rooms seen = {"support",        "support/gguf",       "ir",        "ir/kernel",
                  "passes",         "passes/analysis",    "codegen",   "codegen/cpu",
                  "codegen/cuda",   "codegen/tuner",      "frontends", "frontends/chat",
                  "frontends/gguf", "frontends/tokenizer"};
    for (const auto &[room, sees] : table)
      if (room.rfind("runtime/", 0) == 0)
        seen.push_back(room);
    for (const auto &[room, more] : std::vector<std::pair<std::string, Rooms>>{
             {"tools/planner", {}},
             {"tools/check", {"tools/planner"}},
             {"tools/estimate", {"tools/planner"}},
             {"tools/compiler", {"tools/planner", "tools/estimate"}},
             {"tools/study", {"tools/planner", "tools/estimate", "tools/compiler"}},
             {"tools/load", {}},
             {"tools/report", {}},
             {"tools/commands",
              {"tools/planner", "tools/estimate", "tools/compiler", "tools/study", "tools/load", "tools/report"}},
             {"tools/serve", {"tools/commands"}},
             {"tools/serve/http", {"tools/serve"}},
             {"tools/run", {"tools/planner", "tools/compiler", "tools/serve", "tools/commands"}},
             {"tools",
              {"tools/planner", "tools/check", "tools/estimate", "tools/compiler", "tools/study", "tools/serve",
               "tools/commands", "tools/run"}},
             {"tools/bundle_program", {}}}) {
      Rooms sees = seen;
      sees.insert(sees.end(), more.begin(), more.end());
      table.emplace_back(room, sees);
    }
    return table;
  }();
  return all;
}

/// A room and those whose headers its files may include; null for a room that is not known. Tests see everything.
const Rooms *seenBy(const std::string &room) {
  for (const auto &[name, sees] : rooms())
    if (name == room)
      return &sees;
  return nullptr;
}

TEST(Architecture, IncludesPointOneWay) {
  size_t checked = 0;
  for (const Source &s : sources()) {
    if (s.room == "tests/planted")  // texts that are wrong on purpose
      continue;
    const Rooms *sees = seenBy(s.room);
    if (s.top() != "tests" && !sees) {
      ADD_FAILURE() << s.path << ": the table above does not know the folder " << s.room;
      continue;
    }
    for (const std::string &i : s.includes) {
      EXPECT_EQ(i.find(".."), std::string::npos) << s.path << " includes " << i << ": from the source folder on";
      if (!llvm::is_contained(topFolders(), i.substr(0, i.find('/')))) {
        EXPECT_TRUE(s.top() == "tests" || !s.quoted.count(i) || i.rfind("llvm/", 0) == 0)
            << s.path << " includes " << i << ": no folder of ours has it";
        continue;  // a library's, or beside tests a neighbour in the same folder
      }
      ++checked;
      EXPECT_TRUE(fs::exists(fs::path(GPTC_SOURCE_DIR) / i)) << s.path << " includes " << i << ", which is not there";
      const std::string room = fs::path(i).parent_path().string();
      EXPECT_TRUE(!sees || room == s.room || llvm::is_contained(*sees, room)) << s.path << " includes " << i;
    }
  }
  EXPECT_GT(checked, 1000u) << "nothing was read";
}

TEST(Architecture, RoomsHaveNoCircle) {
  std::set<std::string> before;
  for (const auto &[room, sees] : rooms()) {
    for (const std::string &other : sees)
      EXPECT_TRUE(before.count(other)) << room << " sees " << other << ", which stands behind it";
    before.insert(room);
    EXPECT_TRUE(fs::is_directory(fs::path(GPTC_SOURCE_DIR) / room)) << room;
  }
}

TEST(Architecture, HeavyHeadersStayInTwoFiles) {
  // Light parts of LLVM; all others cost seconds of compile time each.
  const std::set<std::string> light = {"ADT", "Config", "Support", "TargetParser"};
  std::set<std::string> heavy;
  for (const Source &s : sources())
    for (const std::string &i : s.includes)
      if (i.rfind("llvm/", 0) == 0 && !light.count(i.substr(5, i.find('/', 5) - 5))) {
        EXPECT_EQ(s.top(), "codegen") << s.path << " includes " << i;
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

// Those that begin and end in the first column, tests among them; clang-tidy counts those of classes.
TEST(Architecture, FunctionsStaySmall) {
  int functions = 0;
  for (const Source &s : sources()) {
    if (!llvm::StringRef(s.path).ends_with(".cpp") && !llvm::StringRef(s.path).ends_with(".h"))
      continue;
    std::ifstream text(fs::path(GPTC_SOURCE_DIR) / s.path);
    for (const auto &[head, lines] : functionLines(text)) {
      EXPECT_LE(lines, 100) << s.path << ": " << head;
      ++functions;
    }
  }
  EXPECT_GT(functions, 3000) << "they are found";
}

// What stands in literals and comments neither ends a function nor begins one.
TEST(Architecture, LengthsOfFunctionsCountLiterals) {
  const std::string text = R"--(int first() {
  const char *a = R"(
func @f() {
}
)";  // R"( in a comment opens nothing
  const char *b = u8R"x(
)"
}
)x", *c = "R\"(", d = '"';
  const int64_t e = 1'000'000;
/*
}
int inComment() {
*/
  return VALUE_OF_R"(plain";
}

int second() {
  return R"(})"[0];
}
)--";
  std::istringstream in(text);
  std::vector<std::pair<std::string, int>> found;
  for (const auto &[head, lines] : functionLines(in))
    found.emplace_back(head, lines);
  EXPECT_EQ(found, (std::vector<std::pair<std::string, int>>{{"int first() {", 16}, {"int second() {", 3}}));
  std::istringstream longer("void f() {\n  g(R\"(\n" + std::string(98, '\n') + "}\nint x;\n)\");\n}\n");
  const auto one = functionLines(longer);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].lines, 104);
}

}  // namespace
