// CLI11 with our error messages: an invalid command line is UserError(Usage).
#pragma once

#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/commands/command_tree.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>

namespace gptc {

/// Whether a command takes positional arguments.
inline bool takesWords(const CLI::App &app) {
  for (const CLI::Option *o : app.get_options())
    if (o->get_positional())
      return true;
  return false;
}

/// For Option::check: a number from `least` to `most`; rejects NaN.
template <typename T> CLI::Validator within(T least, T most) {
  const std::string range = fmt::format("{} to {}", least, most);
  return {[=](std::string &text) {
            T value{};
            const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return good ? std::string() : fmt::format("{} is not a number from {}", text, range);
          },
          range};
}

/// Adds the model file, for a command that does not read the model's data, and --set.
inline void addModel(CLI::App &command, std::string &file, std::vector<std::string> &settings) {
  command.add_option("model", file, "model.toml; its data is not read")->required()->type_name("MODEL.toml");
  command.add_option("--set", settings, "Overrides a key, for example train.micro_batch=4; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

/// Parses the command line and runs callbacks. Returns an exit code if nothing is left to do (--help, --version, a
/// command that threw CLI::RuntimeError).
inline std::optional<int> parseCommandLine(CLI::App &app, int argc, char **argv) {
  if (answersForTools(app, argc, argv))
    return 0;
  // `--x=` without a value: CLI11 would take the next argument as the value.
  for (int i = 1; i < argc && llvm::StringRef(argv[i]) != "--"; ++i)
    if (llvm::StringRef word = argv[i]; word.starts_with("--") && word.find('=') + 1 == word.size())
      throw UserError(ErrorCode::Usage, fmt::format("{} has no value", word.str()),
                      "write one behind the sign, or leave the option out");
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp &) {
    std::fputs(app.help().c_str(), stdout);
  } catch (const CLI::CallForAllHelp &) {
    std::fputs(app.help("", CLI::AppFormatMode::All).c_str(), stdout);
  } catch (const CLI::CallForVersion &e) {
    std::fprintf(stdout, "%s\n", e.what());
  } catch (const CLI::RuntimeError &e) {
    return e.get_exit_code();  // the command has reported, and chose the exit code
  } catch (const CLI::ParseError &e) {
    // The innermost command determines what is allowed.
    std::string command = app.get_name();
    const CLI::App *at = &app;
    while (!at->get_subcommands().empty()) {
      at = at->get_subcommands().front();
      command += " " + at->get_name();
    }
    std::string message = e.what();
    if (size_t line = message.find('\n'); line != std::string::npos)
      message.resize(line);
    std::string near;
    for (const std::string &word : at->remaining()) {
      std::vector<std::string> known;
      const bool option = word.size() > 2 && word.compare(0, 2, "--") == 0;
      if (option)
        for (const CLI::Option *o : at->get_options())
          for (const std::string &name : o->get_lnames())
            known.push_back("--" + name);
      else if (takesWords(*at))
        continue;  // a surplus word rather than a wrong command
      else
        for (const CLI::App *c : at->get_subcommands([](const CLI::App *) { return true; }))
          known.push_back(c->get_name());
      if (known.empty())
        continue;
      near = nearestWord(word.substr(0, word.find('=')), known);
      message = fmt::format("{} knows no {} {}", command, option ? "option" : "command", word);
      break;
    }
    throw UserError(ErrorCode::Usage, message,
                    (near.empty() ? "see " : fmt::format("did you mean {}? See ", near)) + command + " --help");
  }
  return 0;
}

}  // namespace gptc
