// The commands and options of a program as plain data, from which its completions and its man page are made.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// What may stand where an option or a command takes a value, read from the type that its help shows.
struct ValueForm {
  std::string type;                // as shown: MODEL.toml, PLAN, auto|never|must
  std::vector<std::string> words;  // those to choose from, if any
  bool files = false, folders = false;
  std::string suffix;  // of the files: ".toml"; "" if any will do
  bool operator==(const ValueForm &) const = default;
};

/// From a type as CLI11 shows it: alternatives apart by |, of which lower-case ones are words to be written so, X.toml
/// and the like are files, and DIR, FOLDER and PLAN are folders; or choices as in "TEXT:{auto,never}".
ValueForm valueForm(const std::string &type);

struct OptionEntry {
  std::vector<std::string> names;  // with their dashes; none of a positional
  std::string label;               // of a positional: its name in the help
  std::string text;
  std::string limits;  // "1 to 1024, default 8, not with --list"; "" if there are none
  bool required = false;
  int values = 0;         // how many follow
  bool optional = false;  // none may follow, too
  ValueForm value;
};

/// Without what help does not show.
struct CommandEntry {
  std::string path;  // "gptc bench matmul"
  std::string text, footer;
  std::vector<OptionEntry> options, positionals;
  std::vector<CommandEntry> commands;

  std::string name() const { return path.substr(path.rfind(' ') + 1); }
};

/// Of the bash, zsh or fish shell: commands, options, their choices and files.
std::string bashCompletion(const CommandEntry &program);
std::string zshCompletion(const CommandEntry &program);
std::string fishCompletion(const CommandEntry &program);
const std::vector<std::string> &completionShells();
std::string completionScript(const CommandEntry &program, const std::string &shell);

/// In roff, section 1.
std::string manPage(const CommandEntry &program);

/// Prints the scripts of the programs beside this one, which are not `self`. Throws UserError(TargetUnavailable) if one
/// of them fails, or has not ended after ten seconds.
void printCompletionsBeside(const std::string &self, const std::string &shell);

}  // namespace gptc
