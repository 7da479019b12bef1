// gptc-reduce: shrinks a .gir that shows a bug to a few ops that still show it, for bug reports and regression tests.
#include "tools/check/module_check.h"
#include "tools/check/reduce.h"
#include "tools/commands/command_line.h"
#include "tools/commands/main_guard.h"
#include "tools/planner/gir_file.h"

#include "ir/graph.h"
#include "support/diagnostics.h"
#include "support/stderr.h"

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sys/wait.h>
#include <unistd.h>

using namespace gptc;

namespace {

void writeOutput(const std::string &path, const std::string &text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out)
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot write {}", path),
                    "give another file, or free space there");
}

/// A private folder for candidates and object code.
struct WorkFolder {
  std::string path = (std::filesystem::temp_directory_path() / "gptc-reduce-XXXXXX").string();
  WorkFolder() {
    if (!::mkdtemp(path.data()))
      throw UserError(ErrorCode::Unwritable, fmt::format("cannot create a folder like {}", path), "set TMPDIR");
  }
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// The symptom of a failure; a reduction must keep it.
struct Failure {
  std::string what;        // "" if there is no failure
  bool outOfTime = false;  // the time limit passed: nothing is known
  std::string kind() const {
    // The words of the first line after the list of passes, without names and numbers.
    std::string line = what.substr(0, what.find('\n')), words;
    if (size_t at = line.find("': "); llvm::StringRef(line).starts_with("after '") && at != std::string::npos)
      line.erase(0, at + 3);
    for (char c : line)
      if (std::isalpha((unsigned char)c) || c == ' ')
        words += c;
    return words.substr(0, 24);
  }
};

/// Runs `work` in a child process, because a candidate may crash it or never end.
Failure inChild(const std::function<std::string()> &work, int seconds) {
  int ends[2];
  GPTC_CHECK(::pipe(ends) == 0, "no pipe");
  std::cout.flush();
  const pid_t child = ::fork();
  GPTC_CHECK(child >= 0, "no process");
  if (child == 0) {
    for (int signal : {SIGSEGV, SIGBUS, SIGABRT})
      ::signal(signal, SIG_DFL);
    ::alarm(unsigned(seconds));
    std::string text;
    try {
      text = work();
    } catch (const UserError &e) {
      text = "";  // an invalid candidate rather than a failing one
    } catch (const std::exception &e) {
      text = e.what();
    }
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(ends[1], text.data() + at, text.size() - at);
      if (n <= 0)
        break;
      at += size_t(n);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  Failure f;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    f.what.append(buffer, size_t(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  f.outOfTime = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
  if (f.outOfTime)
    f.what.clear();
  else if (WIFSIGNALED(status))
    f.what = fmt::format("ends by signal: {}", strsignal(WTERMSIG(status)));
  return f;
}

Failure builtIn(const Module &m, CheckOptions options, int seconds) {
  return inChild(
      [&] {
        BoundStats stats;
        return checkModule(m, options, stats);
      },
      seconds);
}

/// The exit code of a command on a candidate, whose path replaces {} or comes last; signals count as 128 + n.
int exitCodeOf(std::string command, const std::string &path) {
  bool placed = false;
  for (size_t at; (at = command.find("{}")) != std::string::npos; placed = true)
    command.replace(at, 2, path);
  if (!placed)
    command += " " + path;
  const int status = std::system(("(" + command + ") >/dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run(int argc, char **argv) {
  std::string input = "-", output = "-", test;
  CheckOptions options;
  int seconds = 60;
  bool quiet = false;
  CommandLine app(
      "gptc-reduce",
      "Shrinks a module that shows a bug to a small one that still shows it.\n\n"
      "Without --test, a module fails where passes change what it means, crash or break its text, or where\n"
      "machine code leaves its memory or is further off than its error bound (tools/check/module_check.h).");
  app.option("input", input, "a .gir file, or - for standard input").type("FILE.gir");
  app.option("-o,--output", output, "where the small module goes; - for standard output (default)").type("FILE.gir");
  app.option("--test", test,
             "a command that fails on the module; a candidate counts when it ends with the same exit code. {} in it "
             "stands for the candidate's path, else that comes last");
  app.option("--seed", options.seed, "of the numbers and the order of passes in the built-in check");
  app.option("--timeout", seconds,
             "seconds for one candidate in the built-in check; one that takes longer counts as good (default 60)")
      .within(1, 3600);
  app.flag("--quiet", quiet, "no progress on standard error");
  if (std::optional<int> done = app.parse(argc, argv))
    return *done;

  std::unique_ptr<Module> m = loadGir(input);
  if (m->functions.empty())
    throw UserError(ErrorCode::GirInvalid, fmt::format("{} has no function", input), "there is nothing to reduce");

  const WorkFolder folder;
  const std::string candidate = folder.path + "/candidate.gir";
  options.cacheDir = folder.path;
  StillFails stillFails;
  std::string shows;
  if (!test.empty()) {
    writeOutput(candidate, print(*m));
    const int code = exitCodeOf(test, candidate);
    if (code == 0)
      throw UserError(ErrorCode::Usage, fmt::format("`{}` succeeds on {}", test, input),
                      "the command must fail on the module that is to be reduced");
    if (code == 126 || code == 127)
      throw UserError(ErrorCode::Usage, fmt::format("`{}` cannot be run: exit code {}", test, code),
                      "check its name and PATH");
    shows = fmt::format("exit code {}", code);
    stillFails = [=](const Module &c) {
      writeOutput(candidate, print(c));
      return exitCodeOf(test, candidate) == code;
    };
  } else {
    options.emit = false;
    Failure first = builtIn(*m, options, seconds);
    if (first.what.empty() && !first.outOfTime) {
      options.emit = true;
      first = builtIn(*m, options, seconds);
    }
    if (first.outOfTime)
      throw UserError(ErrorCode::TooLarge, fmt::format("{} is not judged within {} seconds", input, seconds),
                      "raise --timeout; or give a --test, where not to end is the failure: --test='timeout 60 ...'");
    if (first.what.empty())
      throw UserError(ErrorCode::Usage, fmt::format("nothing is wrong with {}", input),
                      "give the --seed with which it fails, or a --test");
    shows = first.what.substr(0, first.what.find('\n'));
    stillFails = [=, kind = first.kind()](const Module &c) { return builtIn(c, options, seconds).kind() == kind; };
  }
  const unsigned before = countOps(*m);
  if (!quiet)
    printError("{} ops: {}\n", before, shows);
  auto small = reduceModule(*m, stillFails, [&](const ReduceStep &s) {
    if (!quiet)
      printError("{:4} ops left: {}\n", s.ops, s.what);
  });
  std::string text = fmt::format("// {} of {} ops\n", countOps(*small), before);
  text += test.empty() ? fmt::format("// gptc-reduce --seed={} shows: {}\n", options.seed, shows)
                       : fmt::format("// {} gives {}\n", test, shows);
  text += print(*small);
  if (output == "-")
    std::fwrite(text.data(), 1, text.size(), stdout);
  else
    writeOutput(output, text);
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  return guardedMain([&] { return run(argc, argv); });
}
