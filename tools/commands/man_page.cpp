#include "tools/commands/command_tree.h"

#include "support/diagnostics.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

namespace gptc {

namespace {

/// Text as roff takes it: no line begins with a control character, and dashes are those of programs.
std::string roff(const std::string &text) {
  std::string s;
  for (char c : text) {
    if ((s.empty() || s.back() == '\n') && (c == '.' || c == '\''))
      s += "\\&";
    if (c == '\\')
      s += "\\e";
    else if (c == '-')
      s += "\\-";
    else
      s += c;
  }
  return s;
}

/// The text of an option with its limits.
std::string textOf(const OptionEntry &o) {
  return o.text + (o.limits.empty() ? "" : (o.text.empty() ? "[" : " [") + o.limits + "]");
}

/// Keeps the lines of a text that is a list.
std::string lines(const std::string &text) {
  if (text.find('\n') == std::string::npos)
    return roff(text) + "\n";
  return ".nf\n" + roff(llvm::StringRef(text).rtrim('\n').str()) + "\n.fi\n";
}

std::string bold(const std::string &text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string &text) { return "\\fI" + roff(text) + "\\fR"; }

std::string synopsis(const CommandEntry &c) {
  std::string s = bold(c.path);
  if (!c.options.empty())
    s += " [" + italic("options") + "]";
  for (const OptionEntry &p : c.positionals) {
    const std::string name = italic(p.label) + (p.values > 1 ? "..." : "");
    s += p.required ? " " + name : " [" + name + "]";
  }
  return s + (c.commands.empty() ? "" : " [" + italic("command") + "]") + "\n";
}

std::string options(const CommandEntry &c) {
  std::string s;
  for (const OptionEntry &p : c.positionals)
    s += ".TP\n" + italic(p.label) + "\n" + lines(textOf(p));
  for (const OptionEntry &o : c.options) {
    std::vector<std::string> names;
    for (const std::string &name : o.names)
      names.push_back(bold(name));
    s += ".TP\n" + llvm::join(names, ", ");
    if (o.values > 0 && !o.value.type.empty())
      s += (o.optional ? " [" : " ") + italic(o.value.type) + (o.optional ? "]" : "");
    s += "\n" + lines(textOf(o));
  }
  return s;
}

void commands(const CommandEntry &c, std::string &s) {
  for (const CommandEntry &sub : c.commands) {
    s += ".SS " + roff(sub.path) + "\n" + lines(sub.text) + ".PP\n" + synopsis(sub) + options(sub);
    if (!sub.footer.empty())
      s += ".PP\n.nf\n" + roff(sub.footer) + "\n.fi\n";
    commands(sub, s);
  }
}

}  // namespace

std::string manPage(const CommandEntry &program) {
  const std::string name = program.path;
  const auto [first, rest] = llvm::StringRef(program.text).split("\n\n");
  llvm::StringRef what = first;
  what.consume_front(name + ": ");
  std::string s = ".TH " + roff(llvm::StringRef(name).upper()) + " 1 \"\" \"gptc " GPTC_VERSION "\" \"gptc\"\n";
  s += ".SH NAME\n" + roff(name) + " \\- " + roff(what.rtrim('.').str()) + "\n.SH SYNOPSIS\n" + synopsis(program);
  if (!rest.empty())
    s += ".SH DESCRIPTION\n" + roff(rest.str()) + "\n";
  s += ".SH OPTIONS\n" + options(program);
  if (!program.commands.empty()) {
    s += ".SH COMMANDS\n";
    commands(program, s);
  }
  s += ".SH EXIT STATUS\n";
  const std::pair<const char *, const char *> codes[] = {{"0", "success"},
                                                         {"2", "wrong command line"},
                                                         {"3", "wrong configuration, missing or wrong file"},
                                                         {"4", "not enough memory, disk or another resource"},
                                                         {"5", "damaged input"},
                                                         {"6", "a rank failed"},
                                                         {"70", "a bug in gptc"}};
  for (const auto &[code, meaning] : codes)
    s += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code, meaning);
  s += ".SH SEE ALSO\n";
  std::vector<std::string> others;
  for (const char *other : {"gptc", "gptrun", "gptc-opt", "gptc-reduce"})
    if (name != other)
      others.push_back(bold(other) + "(1)");
  return s + llvm::join(others, ", ") + "\n";
}

}  // namespace gptc
