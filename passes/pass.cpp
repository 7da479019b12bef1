#include "passes/pass.h"

#include "support/diagnostics.h"
#include "support/stderr.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace gptc {

// ---- registry -------------------------------------------------------------------------------------------------------

static std::vector<PassInfo> &registry() {
  static std::vector<PassInfo> passes = [] {
    std::vector<PassInfo> list = {
#define GPTC_PASS(name, function, summary, ...) PassInfo{name, summary, function, {__VA_ARGS__}},
#include "passes/passes.def"
    };
    list.reserve(64);  // PassUse keeps pointers into this list
    return list;
  }();
  return passes;
}

llvm::ArrayRef<PassInfo> allPasses() { return registry(); }

const PassInfo *findPass(llvm::StringRef name) {
  auto it = llvm::find_if(registry(), [&](const PassInfo &p) { return name == p.name; });
  return it == registry().end() ? nullptr : &*it;
}

void registerPass(PassInfo info) {
  for (PassInfo &p : registry())
    if (llvm::StringRef(p.name) == info.name) {
      p = std::move(info);
      return;
    }
  GPTC_CHECK(registry().size() < registry().capacity(), "too many passes");
  registry().push_back(std::move(info));
}

llvm::ArrayRef<const char *> defaultPasses(llvm::StringRef from) {
  static const char *const passes[] = {
#define GPTC_PIPELINE(name) name,
#include "passes/passes.def"
  };
  auto first = from.empty() ? std::begin(passes) : llvm::find(passes, from);
  GPTC_CHECK(first != std::end(passes), "'{}' is not in the default pipeline", from.str());
  return {first, std::end(passes)};
}

std::string defaultPipeline(llvm::StringRef from) { return llvm::join(defaultPasses(from), ","); }

bool PassOption::takes(const Attr &value) const {
  const int64_t *i = std::get_if<int64_t>(&value);
  const std::string *s = std::get_if<std::string>(&value);
  switch (kind) {
  case isFlag:
    return std::holds_alternative<bool>(value);
  case isInteger:
    return i && *i >= least && *i <= most;
  case isBudget:
    return i ? *i > 0 : s && (*s == "none" || *s == "full" || *s == "auto" || parseBytes(*s));
  }
  return false;
}

std::string PassOption::allowed() const {
  return kind == isFlag      ? "true or false"
         : kind == isInteger ? fmt::format("an integer from {} to {}", least, most)
                             : "none, full, auto or bytes such as 8GiB";
}

// ---- pipeline text --------------------------------------------------------------------------------------------------

namespace {

/// A recursive-descent parser of the pipeline text. Every error quotes the text and points at the place.
struct PipelineParser {
  llvm::StringRef text;
  const Target *target;
  size_t at = 0;

  [[noreturn]] void fail(const std::string &message, size_t where, unsigned length, const std::string &help = "") {
    Diagnostic d;
    d.code = ErrorCode::Usage;
    d.message = message;
    d.where = {"--passes", 1, unsigned(where + 1), std::max(1u, length), text.str()};
    if (!help.empty())
      d.help.push_back(help);
    throw UserError(d);
  }

  void skipSpace() {
    while (at < text.size() && isspace((unsigned char)text[at]))
      ++at;
  }
  bool take(char c) {
    skipSpace();
    if (at >= text.size() || text[at] != c)
      return false;
    ++at;
    return true;
  }
  static bool isWordChar(char c) { return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.' || c == '+'; }
  llvm::StringRef word() {
    skipSpace();
    size_t begin = at;
    while (at < text.size() && isWordChar(text[at]))
      ++at;
    return text.slice(begin, at);
  }

  Attr value() {
    skipSpace();
    size_t begin = at;
    if (take('"')) {
      size_t end = text.find('"', at);
      if (end == llvm::StringRef::npos)
        fail("a string that does not end", begin, 1);
      Attr v = text.slice(at, end).str();
      at = end + 1;
      return v;
    }
    llvm::StringRef w = word();
    if (w.empty())
      fail("expected a value", begin, 1, "write option=value, e.g. fuse{max=8}");
    if (w == "true" || w == "false")
      return w == "true";
    int64_t i;
    if (!w.getAsInteger(10, i))
      return i;
    double f;
    if (!w.getAsDouble(f))
      return f;
    return w.str();
  }

  std::string nearest(llvm::StringRef name, const std::vector<std::string> &known) {
    const std::string near = nearestWord(name.str(), known);
    return near.empty() ? fmt::format("known: {}", fmt::join(known, ", ")) : fmt::format("did you mean '{}'?", near);
  }

  PassUse pass() {
    skipSpace();
    size_t begin = at;
    llvm::StringRef name = word();
    if (name.empty())
      fail("expected the name of a pass", begin, 1, "gptc-opt --list-passes shows them");
    PassUse use{nullptr, {}};
    use.options.target = target;
    std::vector<std::string> known;
    for (const PassInfo &p : allPasses())
      known.push_back(p.name);
    use.pass = findPass(name);
    if (!use.pass) {
      known.push_back("default");
      fail(fmt::format("no pass is called '{}'", name.str()), begin, name.size(), nearest(name, known));
    }
    if (!take('{'))
      return use;
    while (!take('}')) {
      skipSpace();
      size_t where = at;
      llvm::StringRef key = word();
      if (key.empty())
        fail("expected an option or '}'", where, 1);
      auto option = llvm::find_if(use.pass->options, [&](const PassOption &o) { return key == o.name; });
      if (option == use.pass->options.end()) {
        std::vector<std::string> names;
        for (const PassOption &o : use.pass->options)
          names.push_back(o.name);
        fail(fmt::format("pass '{}' has no option '{}'", name.str(), key.str()), where, key.size(),
             names.empty() ? "it takes none" : nearest(key, names));
      }
      if (use.options.values.has(key))
        fail(fmt::format("option '{}' of pass '{}' is given twice", key.str(), name.str()), where, key.size(),
             "leave one of the two out");
      if (!take('='))
        fail(fmt::format("option '{}' needs a value", key.str()), where, key.size(),
             fmt::format("{}=... takes {}", option->name, option->allowed()));
      skipSpace();
      where = at;
      Attr written = value();
      if (!option->takes(written))
        fail(
            fmt::format("option '{}' of pass '{}' cannot be {}", option->name, name.str(), text.slice(where, at).str()),
            where, at - where, fmt::format("it takes {}", option->allowed()));
      use.options.values.set(key, std::move(written));
      take(',');
    }
    return use;
  }

  std::vector<PassUse> list() {
    std::vector<PassUse> uses;
    skipSpace();
    if (at == text.size())
      return uses;
    do {
      skipSpace();
      const size_t begin = at;
      if (word() == "default") {
        llvm::append_range(uses, PipelineParser{defaultPipeline(), target}.list());
      } else {
        at = begin;
        uses.push_back(pass());
      }
    } while (take(','));
    skipSpace();
    if (at != text.size())
      fail("expected ',' between passes", at, 1);
    return uses;
  }
};

std::string textOf(const PassUse &use) {
  std::string s = use.pass->name;
  if (use.options.values.empty())
    return s;
  s += '{';
  for (const auto &[key, value] : use.options.values)
    s += fmt::format("{}{}={}", s.back() == '{' ? "" : ",", key, gptc::textOf(value));
  return s + "}";
}

void writeFile(const std::string &path, const std::string &text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out)
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot write {}", path),
                    "give another folder, or free space there");
}

}  // namespace

std::vector<PassUse> parsePipeline(llvm::StringRef text, const Target *target) {
  return PipelineParser{text, target}.list();
}

// ---- running --------------------------------------------------------------------------------------------------------

// 1. If `reproFile` is given, copies the module before each pass, so that a failure can be reproduced.
// 2. Runs the pass, then the verifier over the whole module. A violation is a bug of the pass.
// 3. On a failure writes the copy to `reproFile` with the command that repeats it. The InternalError names that file.
void runPipeline(Module &m, llvm::ArrayRef<PassUse> passes, const PipelineOptions &options) {
  struct Time {
    std::string name;
    double pass, verifier;
  };
  std::vector<Time> times;
  auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  if (!options.dumpDir.empty()) {
    std::error_code ec;
    std::filesystem::create_directories(options.dumpDir, ec);
    if (ec)
      throw UserError(ErrorCode::Unwritable, fmt::format("cannot create {}: {}", options.dumpDir, ec.message()));
  }

  for (size_t i = 0; i < passes.size(); ++i) {
    const PassUse &use = passes[i];
    if (options.beforePass)
      options.beforePass(use, m);
    std::unique_ptr<Module> before = options.reproFile.empty() ? nullptr : m.clone();
    auto fail = [&](const std::string &what) {
      std::string where;
      if (before) {
        std::ofstream(options.reproFile) << "// gptc-opt " << options.reproFile << " --passes='" << textOf(use) << "'\n"
                                         << print(*before);
        where = fmt::format("\nto repeat: gptc-opt {} --passes='{}'", options.reproFile, textOf(use));
      }
      GPTC_UNREACHABLE("pass '{}': {}{}", use.pass->name, what, where);
    };

    auto start = std::chrono::steady_clock::now();
    bool changed = false;
    try {
      changed = use.pass->run(m, use.options);
    } catch (const InternalError &e) {
      fail(e.what());
    }
    times.push_back({use.pass->name, seconds(start), 0});

    if (options.verifyEach) {
      start = std::chrono::steady_clock::now();
      std::vector<std::string> errors = verify(m);
      times.back().verifier = seconds(start);
      if (!errors.empty()) {
        size_t shown = std::min<size_t>(errors.size(), 5);
        fail(fmt::format("left an invalid module:\n  {}{}", fmt::join(errors.begin(), errors.begin() + shown, "\n  "),
                         shown < errors.size() ? fmt::format("\n  and {} more", errors.size() - shown) : ""));
      }
    }
    if (options.printChanged)
      std::cerr << "// after " << textOf(use) << (changed ? "\n" + print(m) : ": unchanged\n");
    if (!options.dumpDir.empty())
      writeFile(fmt::format("{}/{:02}-{}.gir", options.dumpDir, i + 1, use.pass->name), print(m));
  }

  if (options.timePasses) {
    double pass = 0, verifier = 0;
    printError("{:>10} {:>10}  pass\n", "ms", "verify ms");
    for (const Time &t : times) {
      printError("{:10.2f} {:10.2f}  {}\n", t.pass * 1e3, t.verifier * 1e3, t.name);
      pass += t.pass;
      verifier += t.verifier;
    }
    printError("{:10.2f} {:10.2f}  total\n", pass * 1e3, verifier * 1e3);
  }
}

}  // namespace gptc
