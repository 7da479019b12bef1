#include "tools/commands/command_line.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <CLI/CLI.hpp>

#include <cstdio>

namespace gptc {

// ---- options ----

Option Option::required() {
  o->required();
  return *this;
}

Option Option::type(const std::string &shown) {
  o->type_name(shown);
  return *this;
}

template <typename T> Option Option::within(T least, T most) {
  const std::string range = fmt::format("{} to {}", least, most);
  o->check(CLI::Validator(
      [=](std::string &text) {
        T value{};
        const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return good ? std::string() : fmt::format("{} is not a number from {}", text, range);
      },
      range));
  return *this;
}
template Option Option::within(int, int);
template Option Option::within(int64_t, int64_t);
template Option Option::within(double, double);

Option Option::tokens(int64_t least, int64_t most) {
  const std::string range = fmt::format("{} to {}", least, most);
  o->transform(CLI::Validator(
      [=](std::string &text) {
        const std::optional<int64_t> n = parseWholeTokens(text, least, most);
        if (!n)
          return fmt::format("{} is not a number of tokens from {}, such as 8k", text, range);
        text = fmt::format("{}", *n);
        return std::string();
      },
      range));
  return *this;
}

Option Option::oneOf(const std::vector<std::string> &words) {
  o->check(CLI::IsMember(words));
  return *this;
}

Option Option::repeated() {
  o->expected(1)->take_all();
  return *this;
}

Option Option::values(int count) {
  o->expected(count);
  return *this;
}

Option Option::mayHaveValue() {
  o->expected(0, 1);
  return *this;
}

Option Option::separatedBy(char c) {
  o->delimiter(c);
  return *this;
}

Option Option::showDefault() {
  o->capture_default_str();
  return *this;
}

Option Option::excludes(Option other) {
  o->excludes(other.o);
  return *this;
}

Option Option::needs(Option other) {
  o->needs(other.o);
  return *this;
}

Option Option::hidden() {
  o->group("");
  return *this;
}

bool Option::given() const { return o->count() > 0; }

// ---- commands ----

Command Command::command(const std::string &name, const std::string &text) {
  return Command(app->add_subcommand(name, text));
}

template <typename T> Option Command::option(const std::string &names, T &value, const std::string &text) {
  return Option(app->add_option(names, value, text));
}
template Option Command::option(const std::string &, std::string &, const std::string &);
template Option Command::option(const std::string &, std::optional<std::string> &, const std::string &);
template Option Command::option(const std::string &, std::vector<std::string> &, const std::string &);
template Option Command::option(const std::string &, std::vector<int64_t> &, const std::string &);
template Option Command::option(const std::string &, int &, const std::string &);
template Option Command::option(const std::string &, unsigned &, const std::string &);
template Option Command::option(const std::string &, int64_t &, const std::string &);
template Option Command::option(const std::string &, uint64_t &, const std::string &);
template Option Command::option(const std::string &, double &, const std::string &);

Option Command::flag(const std::string &names, bool &value, const std::string &text) {
  return Option(app->add_flag(names, value, text));
}

void Command::footer(const std::string &text) { app->footer(text); }

void Command::hidden() { app->group(""); }

void Command::requireCommand() { app->require_subcommand(1); }

void Command::run(std::function<void()> work) { app->callback(std::move(work)); }

bool Command::given() const { return app->parsed(); }

std::string Command::name() const { return app->get_name(); }

static auto allCommands(const CLI::App &app) {
  return app.get_subcommands([](const CLI::App *) { return true; });
}

/// What the help says of a value beside its type: range, default, and which options must or may not stand beside it.
static std::string limitsOf(const CLI::Option &o) {
  std::vector<std::string> all;
  const std::string type = o.get_type_name();
  if (const size_t colon = type.find(':'); colon != std::string::npos && type.find('{') == std::string::npos)
    if (llvm::StringRef range = llvm::StringRef(type).substr(colon + 1); range.contains(" to "))
      all.push_back(range.str());
  if (o.get_expected_max() > 0 && !o.get_default_str().empty())
    all.push_back("default " + o.get_default_str());
  if (o.get_required())
    all.push_back("required");
  for (const CLI::Option *other : o.get_excludes())
    all.push_back("not with " + other->get_name());
  for (const CLI::Option *other : o.get_needs())
    all.push_back("with " + other->get_name());
  return llvm::join(all, ", ");
}

static CommandEntry entryOf(const CLI::App &app, const std::string &path) {
  CommandEntry c;
  c.path = path;
  c.text = app.get_description();
  c.footer = app.get_footer();
  for (const CLI::Option *o : app.get_options()) {
    if (o->get_group().empty())
      continue;
    OptionEntry e;
    e.text = o->get_description();
    e.limits = limitsOf(*o);
    e.required = o->get_required();
    e.values = o->get_items_expected_max();
    e.optional = e.values > 0 && o->get_items_expected_min() == 0;
    if (e.values > 0)
      e.value = valueForm(o->get_type_name());
    if (o->get_positional()) {
      const std::string name = o->get_name(true);
      e.label = e.value.type.empty() || std::isupper(static_cast<unsigned char>(name.front())) ? name : e.value.type;
      c.positionals.push_back(e);
      continue;
    }
    for (const std::string &name : o->get_snames())
      e.names.push_back("-" + name);
    for (const std::string &name : o->get_lnames())
      e.names.push_back("--" + name);
    c.options.push_back(e);
  }
  for (const CLI::App *sub : allCommands(app))
    if (!sub->get_group().empty())
      c.commands.push_back(entryOf(*sub, path + " " + sub->get_name()));
  return c;
}

CommandEntry Command::tree() const { return entryOf(*app, app->get_name()); }

void addModel(Command command, std::string &file, std::vector<std::string> &settings, const std::string &what,
              const std::string &type) {
  command.option("model", file, what).required().type(type);
  command.option("--set", settings, "Overrides a key, for example train.micro_batch=4; may be repeated")
      .type("KEY=VALUE")
      .repeated();
}

// ---- the command line of a program ----

CommandLine::CommandLine(const std::string &program, const std::string &text)
    : Command(nullptr), owned(std::make_unique<CLI::App>(text, program)) {
  app = owned.get();
  app->set_version_flag("--version", program + " " GPTC_VERSION);
}

CommandLine::~CommandLine() = default;

void CommandLine::helpOfAll() { app->set_help_all_flag("--help-all", "Help of every command"); }

static bool takesWords(const CLI::App &app) {
  for (const CLI::Option *o : app.get_options())
    if (o->get_positional())
      return true;
  return false;
}

/// The error of an invalid command line, by the innermost command that was named, which determines what is allowed.
static UserError usageError(const CLI::App &app, const CLI::ParseError &e) {
  std::string command = app.get_name();
  const CLI::App *at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  std::string message = llvm::StringRef(e.what()).split('\n').first.str();
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
      for (const CLI::App *c : allCommands(*at))
        known.push_back(c->get_name());
    if (known.empty())
      continue;
    near = nearestWord(word.substr(0, word.find('=')), known);
    message = fmt::format("{} knows no {} {}", command, option ? "option" : "command", word);
    break;
  }
  return UserError(ErrorCode::Usage, message,
                   (near.empty() ? "see " : fmt::format("did you mean {}? See ", near)) + command + " --help");
}

std::optional<int> CommandLine::parse(int argc, char **argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  std::string text;
  if (argc == 3 && first == "--completion")
    text = completionScript(tree(), argv[2]);
  else if (argc == 2 && first == "--man")
    text = manPage(tree());
  if (!text.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  // `--x=` without a value: CLI11 would take the next argument as the value.
  for (int i = 1; i < argc && llvm::StringRef(argv[i]) != "--"; ++i)
    if (llvm::StringRef word = argv[i]; word.starts_with("--") && word.find('=') + 1 == word.size())
      throw UserError(ErrorCode::Usage, fmt::format("{} has no value", word.str()),
                      "write one behind the sign, or leave the option out");
  try {
    app->parse(argc, argv);
    return std::nullopt;
  } catch (const EndProgram &e) {
    return e.code;
  } catch (const CLI::CallForHelp &) {
    std::fputs(app->help().c_str(), stdout);
  } catch (const CLI::CallForAllHelp &) {
    std::fputs(app->help("", CLI::AppFormatMode::All).c_str(), stdout);
    // CLI11 tells one level; `data prepare` and the like are on the second.
    for (const CLI::App *command : allCommands(*app))
      for (const CLI::App *nested : allCommands(*command))
        if (!command->get_group().empty() && !nested->get_group().empty())
          std::fputs(("\n" + nested->help(app->get_name() + " " + command->get_name())).c_str(), stdout);
  } catch (const CLI::CallForVersion &e) {
    std::fprintf(stdout, "%s\n", e.what());
  } catch (const CLI::ParseError &e) {
    throw usageError(*app, e);
  }
  return 0;
}

std::optional<CommandLine::Foreign> CommandLine::optionForeignToCommand() const {
  for (const CLI::App *command : app->get_subcommands())
    for (const CLI::Option *option : app->get_options())
      if (option->count() && !command->get_option_no_throw(option->get_name()))
        return Foreign{option->get_name(), command->get_name()};
  return std::nullopt;
}

}  // namespace gptc
