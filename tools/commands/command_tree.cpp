#include "tools/commands/command_tree.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <cstdio>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace gptc {

ValueForm valueForm(const std::string &type) {
  ValueForm v;
  llvm::StringRef shown = type;
  if (auto [before, choices] = shown.split('{'); !choices.empty()) {
    llvm::SmallVector<llvm::StringRef, 8> words;
    choices.split('}').first.split(words, ',');
    for (llvm::StringRef w : words)
      v.words.push_back(w.str());
    v.type = llvm::join(v.words, "|");
    return v;
  }
  llvm::SmallVector<llvm::StringRef, 4> alternatives;
  shown.trim("[]").split(alternatives, '|');
  for (llvm::StringRef a : alternatives) {
    // Behind a colon stands a range, or what the user has to fill in.
    const llvm::StringRef word = a.split(':').first;
    if (const size_t dot = word.rfind('.'); dot != llvm::StringRef::npos)
      v.files = true, v.suffix = word.substr(dot).str();
    else if (word == "FILE" || word == "FILES")
      v.files = true;
    else if (word == "DIR" || word == "FOLDER" || word == "PLAN")
      v.folders = true;
    else if (!word.empty() && llvm::isLower(word.front()) && !llvm::is_contained(v.words, word))
      v.words.push_back(word.str());
  }
  v.type = (v.words.empty() ? shown.split(':').first : shown).str();
  return v;
}

void printCompletionsBeside(const std::string &self, const std::string &shell) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char *name : {"gptc", "gptrun", "gptc-opt", "gptc-reduce"}) {
    std::string program = folder / name, option = "--completion", value = shell;
    if (name == self || ::access(program.c_str(), X_OK) != 0)
      continue;
    std::fflush(stdout);
    char *arguments[] = {program.data(), option.data(), value.data(), nullptr};
    pid_t child;
    int status = 0;
    if (::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0 ||
        ::waitpid(child, &status, 0) != child || (WIFEXITED(status) && WEXITSTATUS(status) != 0))
      throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} does not say what it takes", program),
                      "install the programs of one version together");
  }
}

}  // namespace gptc
