// Passes and the pipeline. Each pass has one file with one entry `bool NAME(Module &, const PassOptions &)`, which
// returns whether it changed the module, and one line in passes.def. `gptc-opt --passes='autodiff,fuse{max=8}'` runs
// any list of passes.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace gptc {

/// An option that `pass{name=value}` may set. parsePipeline throws UserError(Usage) for any other name or value, so a
/// pass reads its options without checks.
struct PassOption {
  enum Kind {
    isFlag,     // true or false
    isInteger,  // least to most
    isBudget    // a string: none, full, auto or bytes such as 8GiB; or bytes as a positive integer
  } kind;
  std::string name;
  int64_t least = 0, most = 0;  // of isInteger, both included

  static PassOption flag(const char *name) { return {isFlag, name}; }
  static PassOption integer(const char *name, int64_t least, int64_t most) { return {isInteger, name, least, most}; }
  static PassOption budget(const char *name) { return {isBudget, name}; }

  /// Whether the value has the option's kind and lies in its range.
  bool takes(const Attr &value) const;
  /// The permitted values as text: "true or false", "an integer from 1 to 65536".
  std::string allowed() const;
};

/// Options of one use of a pass, such as `fuse{max=8}`.
struct PassOptions {
  AttrMap values;
  const Target *target = nullptr;       // may be null
  ScheduleSource *schedules = nullptr;  // may be null
};

struct PassInfo {
  const char *name;
  const char *summary;
  bool (*run)(Module &, const PassOptions &);
  std::vector<PassOption> options;
};

llvm::ArrayRef<PassInfo> allPasses();
/// Null if no pass has this name.
const PassInfo *findPass(llvm::StringRef name);
/// Adds a pass of another library, such as select-recipes of codegen. It replaces a pass of the same name.
void registerPass(PassInfo info);

struct PassUse;
struct PipelineOptions {
  bool verifyEach = true;
  bool printChanged = false;  // module text to stderr after each pass that changed it
  bool timePasses = false;
  std::string dumpDir;                  // gets one .gir file per pass; empty: none is written
  std::string reproFile = "repro.gir";  // written if a pass fails or leaves an invalid module; empty: not written
  std::function<void(const PassUse &next, const Module &m)> beforePass;  // called before each pass; may be empty
};

struct PassUse {
  const PassInfo *pass;
  PassOptions options;
};
/// Parses `a,b{k=v,k2="s"},c`; `default` stands for the passes of defaultPipeline(). Throws UserError(Usage) for wrong
/// syntax, an unknown pass or option, or a value that the option does not take.
std::vector<PassUse> parsePipeline(llvm::StringRef text, const Target *target);
/// Runs the passes in order. Throws InternalError if a pass fails or leaves an invalid module, UserError(Unwritable) if
/// a file of `dumpDir` cannot be written. UserErrors of passes propagate.
void runPipeline(Module &m, llvm::ArrayRef<PassUse> passes, const PipelineOptions &options);

/// The entry of each pass of passes.def. The comment at the top of its file describes its algorithm in numbered steps.
#define GPTC_PASS(name, function, ...) bool function(Module &m, const PassOptions &options);
#include "passes/passes.def"

/// The names of the default pipeline, from an imported to a planned module, or its part from the first pass `from` on.
/// Asserts that `from` is in the pipeline. passes.def gives the reason for each place.
llvm::ArrayRef<const char *> defaultPasses(llvm::StringRef from = "");
/// The same names as text for parsePipeline.
std::string defaultPipeline(llvm::StringRef from = "");

}  // namespace gptc
