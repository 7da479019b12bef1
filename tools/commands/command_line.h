// Command lines: programs, commands and options, with our error messages. CLI11 parses them; only command_line.cpp
// includes it, because it takes a second of compilation per file.
#pragma once

#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/commands/command_tree.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gptc {

/// Handle of an option, a flag or a positional argument of a Command. Each setter returns the handle.
class Option {
public:
  explicit Option(CLI::Option *o) : o(o) {}
  Option required();
  /// What the help shows for the value: "MODEL.toml". Completion reads it too (valueForm).
  Option type(const std::string &shown);
  /// Accepts a number from `least` to `most`; rejects NaN. T: int, int64_t or double.
  template <typename T> Option within(T least, T most);
  /// Accepts a whole number of tokens from `least` to `most`, as parseWholeTokens reads it: "65k", "1e6".
  Option tokens(int64_t least, int64_t most);
  Option oneOf(const std::vector<std::string> &words);
  /// Takes one value each time it is given, and keeps all of them.
  Option repeated();
  /// Takes exactly `count` values.
  Option values(int count);
  /// Takes one value or none.
  Option mayHaveValue();
  /// Splits a value into several at this character.
  Option separatedBy(char c);
  /// The help shows the variable's present value as the default.
  Option showDefault();
  Option excludes(Option other);
  Option needs(Option other);
  /// The help does not show it.
  Option hidden();
  /// Whether the command line has it; valid after parsing.
  bool given() const;

private:
  CLI::Option *o;
};

/// Handle of a command, which its CommandLine owns. Variables given to option() and flag() must outlive the parsing.
class Command {
public:
  explicit Command(CLI::App *app) : app(app) {}
  Command command(const std::string &name, const std::string &text);
  /// `names`: "-o,--out", or one word for a positional argument. T: std::string, a vector or optional of it, int,
  /// unsigned, int64_t, uint64_t, double, or a vector of int64_t.
  template <typename T> Option option(const std::string &names, T &value, const std::string &text);
  /// `names` may hold "!--no-x", which sets false.
  Option flag(const std::string &names, bool &value, const std::string &text = "");
  void footer(const std::string &text);
  /// The help does not show it.
  void hidden();
  /// One of its commands must be given.
  void requireCommand();
  /// The work of this command, done as soon as its arguments are parsed.
  void run(std::function<void()> work);
  /// Whether the command line names it; valid after parsing.
  bool given() const;
  std::string name() const;
  /// The command with all its options and commands, as plain data.
  CommandEntry tree() const;

protected:
  CLI::App *app;
};

/// Thrown by a command that has reported what is wrong: the program ends with this code.
struct EndProgram {
  int code;
};

/// The command line of a program, with --help and --version. `--completion SHELL` and `--man` are answered too, and are
/// not shown.
class CommandLine : public Command {
public:
  CommandLine(const std::string &program, const std::string &text);
  ~CommandLine();
  /// Adds --help-all.
  void helpOfAll();
  /// Parses the command line and runs the work of commands. Returns an exit code if nothing is left to do (--help,
  /// --version, EndProgram). Throws UserError(Usage) for an invalid command line.
  std::optional<int> parse(int argc, char **argv);
  struct Foreign {
    std::string option, command;
  };
  /// An option of the program that was given beside a command that has no option of this name.
  std::optional<Foreign> optionForeignToCommand() const;

private:
  std::unique_ptr<CLI::App> owned;
};

/// Adds the model file, for a command that does not read the model's data, and --set. `what`, `type`: in the help.
void addModel(Command command, std::string &file, std::vector<std::string> &settings,
              const std::string &what = "model.toml; its data is not read", const std::string &type = "MODEL.toml");

}  // namespace gptc
