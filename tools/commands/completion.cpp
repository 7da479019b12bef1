// Completions of the three shells. Each script walks over the words so far, to know which command they name and whether
// an option waits for its value; then it offers that value, options behind a dash, or commands and files.
#include "support/diagnostics.h"
#include "tools/commands/command_tree.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <functional>

namespace gptc {

namespace {

std::string replaced(std::string text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// A word of bash and zsh.
std::string quoted(const std::string &text) { return "'" + replaced(text, "'", "'\\''") + "'"; }
std::string fishQuoted(const std::string &text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

/// The first line of a text, without what ends it.
std::string brief(const std::string &text) { return llvm::StringRef(text).split('\n').first.rtrim(".:; ").str(); }

std::string identifier(const CommandEntry &program) { return replaced(program.path, "-", "_"); }

void forAll(const CommandEntry &c, const std::function<void(const CommandEntry &)> &f) {
  f(c);
  for (const CommandEntry &sub : c.commands)
    forAll(sub, f);
}

/// The options of a command that a value follows in any case, each once with all its names.
std::vector<const OptionEntry *> valued(const CommandEntry &c) {
  std::vector<const OptionEntry *> all;
  for (const OptionEntry &o : c.options)
    if (o.values > 0 && !o.optional)
      all.push_back(&o);
  return all;
}

/// What a command takes beside options and commands; null if nothing that could be offered.
const ValueForm *positional(const CommandEntry &c) {
  return c.positionals.empty() ? nullptr : &c.positionals.front().value;
}

/// Patterns of a `case` over "$at $word".
struct Patterns {
  std::vector<std::string> commands, options;
  explicit Patterns(const CommandEntry &program) {
    forAll(program, [&](const CommandEntry &c) {
      for (const CommandEntry &sub : c.commands)
        commands.push_back(quoted(sub.path));
      for (const OptionEntry *o : valued(c))
        for (const std::string &name : o->names)
          options.push_back(quoted(c.path + " " + name));
    });
  }
};

std::string patternsOf(const CommandEntry &c, const OptionEntry &o) {
  std::vector<std::string> all;
  for (const std::string &name : o.names)
    all.push_back(quoted(c.path + " " + name));
  return llvm::join(all, " | ");
}

/// The loop over the words before the current one, which sets `at` and `option`.
std::string walk(const CommandEntry &program, const std::string &skip) {
  const Patterns p(program);
  std::string s = skip + "    if [[ -n $option ]]; then option=; continue; fi\n    case \"$at $word\" in\n";
  if (!p.commands.empty())
    s += "      " + llvm::join(p.commands, " | ") + ") at+=\" $word\" ;;\n";
  if (!p.options.empty())
    s += "      " + llvm::join(p.options, " | ") + ") option=$word ;;\n";
  return s + "    esac\n  done\n";
}

std::string heading(const CommandEntry &program, const char *shell) {
  return fmt::format("# Completion of {0} for {1}, as `{0} --completion {1}` prints it.\n", program.path, shell);
}

std::string bashValue(const ValueForm &v) {
  std::string s;
  if (!v.words.empty())
    s += " words=" + quoted(llvm::join(v.words, " "));
  if (v.files)
    s += " files=" + quoted("*" + v.suffix);
  if (v.folders)
    s += " folders=1";
  return s;
}

std::string zshValue(const ValueForm &v) {
  std::string s;
  if (!v.words.empty())
    s += " compadd -- " + llvm::join(v.words, " ") + ";";
  if (v.files)
    s += v.suffix.empty() ? " _files;" : " _files -g " + quoted("*" + v.suffix) + ";";
  else if (v.folders)
    s += " _files -/;";
  return s;
}

/// The arguments of `complete` that say what a value is.
std::string fishValue(const ValueForm &v) {
  std::vector<std::string> offers;
  for (const std::string &word : v.words)
    offers.push_back(word);
  if (v.files && !v.suffix.empty())
    offers.push_back(fmt::format(R"((__fish_complete_path (commandline -ct) | string match -er '(?:/|{})(?:\t|$)'))",
                                 replaced(v.suffix, ".", "\\.")));
  else if (!v.files && v.folders)
    offers.push_back("(__fish_complete_directories)");
  return (v.files && v.suffix.empty() ? " -F" : "") +
         (offers.empty() ? std::string() : " -a " + fishQuoted(llvm::join(offers, " ")));
}

}  // namespace

std::string bashCompletion(const CommandEntry &program) {
  std::string values, options, words;
  forAll(program, [&](const CommandEntry &c) {
    for (const OptionEntry *o : valued(c))
      if (const std::string v = bashValue(o->value); !v.empty())
        values += fmt::format("      {}){} ;;\n", patternsOf(c, *o), v);
    std::vector<std::string> names;
    for (const OptionEntry &o : c.options)
      names.insert(names.end(), o.names.begin(), o.names.end());
    options += fmt::format("      {}) words={} ;;\n", quoted(c.path), quoted(llvm::join(names, " ")));
    ValueForm all = positional(c) ? *positional(c) : ValueForm();
    for (const CommandEntry &sub : c.commands)
      all.words.push_back(sub.name());
    if (const std::string v = bashValue(all); !v.empty())
      words += fmt::format("      {}){} ;;\n", quoted(c.path), v);
  });
  // bash cuts words at `=`, which then stands alone between an option and its value.
  return heading(program, "bash") + "_" + identifier(program) + "() {\n  local at=" + program.path +
         R"sh( current=${COMP_WORDS[COMP_CWORD]} option= words= files= folders= word i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
)sh" + walk(program, "    if [[ $word == = ]]; then continue; fi\n") +
         R"sh(  if [[ $current == = ]]; then current=; fi
  if [[ -n $option ]]; then
    case "$at $option" in
)sh" + values +
         R"sh(      *) ;;
    esac
  elif [[ $current == -* ]]; then
    case $at in
)sh" + options +
         R"sh(    esac
  else
    case $at in
)sh" + words +
         R"sh(      *) ;;
    esac
  fi
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$current"
    if [[ -n $files ]]; then compgen -f -X "!$files" -- "$current"; fi
    if [[ -n $folders || ( -n $files && $files != '*' ) ]]; then compgen -d -- "$current"; fi
  )
  if [[ -n $files$folders ]]; then compopt -o filenames 2>/dev/null; fi
}
complete -F _)sh" +
         identifier(program) + " " + program.path + "\n";
}

std::string zshCompletion(const CommandEntry &program) {
  std::string values, options, words;
  forAll(program, [&](const CommandEntry &c) {
    for (const OptionEntry *o : valued(c))
      if (const std::string v = zshValue(o->value); !v.empty())
        values += fmt::format("      {}){} ;;\n", patternsOf(c, *o), v);
    auto entry = [](const std::string &name, const std::string &text) {
      return " " + quoted(name + ":" + brief(text));
    };
    options += fmt::format("      {}) entries=(", quoted(c.path));
    for (const OptionEntry &o : c.options)
      for (const std::string &name : o.names)
        options += entry(name, o.text);
    options += " ) ;;\n";
    std::string offers;
    if (!c.commands.empty()) {
      offers += " entries=(";
      for (const CommandEntry &sub : c.commands)
        offers += entry(sub.name(), sub.text);
      offers += " ); _describe command entries;";
    }
    if (const ValueForm *v = positional(c))
      offers += zshValue(*v);
    if (!offers.empty())
      words += fmt::format("      {}){};\n", quoted(c.path), offers);
  });
  const std::string function = "_" + identifier(program);
  return "#compdef " + program.path + "\n" + heading(program, "zsh") + function + "() {\n  local at=" + program.path +
         R"sh( option= word i
  local -a entries
  for ((i = 2; i < CURRENT; ++i)); do
    word=$words[i]
)sh" + walk(program, "") +
         R"sh(  if [[ -z $option && $PREFIX == --*=* ]]; then
    option=${PREFIX%%=*}
    compset -P '*='
  fi
  if [[ -n $option ]]; then
    case "$at $option" in
)sh" + values +
         R"sh(      *) ;;
    esac
  elif [[ $PREFIX == -* ]]; then
    case $at in
)sh" + options +
         R"sh(    esac
    _describe -o option entries
  else
    case $at in
)sh" + words +
         "      *) ;;\n    esac\n  fi\n}\n"
         // Read by compinit, the file is the function's body; sourced, it defines it.
         "if [[ ${funcstack[1]-} == " +
         function + " ]]; then\n  " + function + " \"$@\"\nelse\n  compdef " + function + " " + program.path + "\nfi\n";
}

std::string fishCompletion(const CommandEntry &program) {
  const Patterns p(program);
  const std::string function = "__" + identifier(program) + "_at", complete = "complete -c " + program.path;
  std::string s = heading(program, "fish") + "function " + function + "\n    set -l at " + program.path +
                  "\n    set -l skip 0\n    for word in (commandline -opc)[2..]\n        if test $skip = 1\n"
                  "            set skip 0\n            continue\n        end\n        switch \"$at $word\"\n";
  if (!p.commands.empty())
    s += "            case " + llvm::join(p.commands, " ") + "\n                set at \"$at $word\"\n";
  if (!p.options.empty())
    s += "            case " + llvm::join(p.options, " ") + "\n                set skip 1\n";
  s += "        end\n    end\n    test \"$at\" = \"$argv\"\nend\n" + complete + " -f\n";
  forAll(program, [&](const CommandEntry &c) {
    const std::string here = fmt::format("{} -n \"{} {}\"", complete, function, c.path);
    for (const CommandEntry &sub : c.commands)
      s += fmt::format("{} -a {} -d {}\n", here, sub.name(), fishQuoted(brief(sub.text)));
    for (const OptionEntry &o : c.options) {
      s += here;
      for (const std::string &name : o.names)
        s += llvm::StringRef(name).starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (o.values > 0 && !o.optional) {
        const std::string value = fishValue(o.value);
        s += (llvm::StringRef(value).starts_with(" -F") ? " -r" : " -x") + value;
      }
      s += " -d " + fishQuoted(brief(o.text)) + "\n";
    }
    if (const ValueForm *v = positional(c))
      if (const std::string value = fishValue(*v); !value.empty())
        s += here + value + "\n";
  });
  return s;
}

const std::vector<std::string> &completionShells() {
  static const std::vector<std::string> all = {"bash", "zsh", "fish"};
  return all;
}

std::string completionScript(const CommandEntry &program, const std::string &shell) {
  if (shell == "bash")
    return bashCompletion(program);
  if (shell == "zsh")
    return zshCompletion(program);
  if (shell == "fish")
    return fishCompletion(program);
  throw UserError(ErrorCode::Usage, fmt::format("no completion for the shell {}", shell), "bash, zsh and fish work");
}

}  // namespace gptc
