#include "tools/commands/command_tree.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FileUtilities.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <unistd.h>

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
  constexpr unsigned most = 10;  // seconds; all take less than one
  const char *help = "install the programs of one version together";
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char *name : {"gptc", "gptrun", "gptc-opt", "gptc-reduce"}) {
    const std::string program = folder / name;
    if (name == self || ::access(program.c_str(), X_OK) != 0)
      continue;
    // By way of a file: only this program writes standard output, and reports it if that is full.
    llvm::SmallString<128> file;
    if (const std::error_code e = llvm::sys::fs::createTemporaryFile("gptc", "completion", file))
      throw UserError(ErrorCode::DiskFull, fmt::format("cannot write a temporary file: {}", e.message()),
                      "free some space, or set TMPDIR to another folder");
    const llvm::FileRemover remover(file);
    const std::optional<llvm::StringRef> redirects[] = {std::nullopt, file.str(), std::nullopt};
    std::string why;
    const int code =
        llvm::sys::ExecuteAndWait(program, {program, "--completion", shell}, std::nullopt, redirects, most, 0, &why);
    if (llvm::StringRef(why).starts_with("Child timed out"))
      throw UserError(ErrorCode::TargetUnavailable,
                      fmt::format("{} has not said within {} s what it takes", program, most), help);
    const auto text = llvm::MemoryBuffer::getFile(file);
    if (code != 0 || !text)
      throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} does not say what it takes", program), help);
    std::fwrite((*text)->getBufferStart(), 1, (*text)->getBufferSize(), stdout);
  }
}

}  // namespace gptc
