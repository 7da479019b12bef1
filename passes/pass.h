// Passes and the pipeline. One pass, one file, one entry `bool NAME(Module &, const PassOptions &)`, listed in
// passes.def with one line of summary. A pass returns whether it changed the module. `gptc-opt
// --passes='autodiff,fuse{max=8}'` runs any list.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace gptc {

/// What `pass{name=value}` may say. Anything else is a UserError(Usage), so that a pass reads its options unchecked.
struct PassOption {
  enum Kind {
    isFlag,     // true or false
    isInteger,  // least to most
    isBudget    // a string: none, full, auto or bytes such as 8GiB; or bytes as a positive integer
  } kind;
  std::string name;
  int64_t least = 0, most = 0;

  static PassOption flag(const char *name) { return {isFlag, name}; }
  static PassOption integer(const char *name, int64_t least, int64_t most) { return {isInteger, name, least, most}; }
  static PassOption budget(const char *name) { return {isBudget, name}; }

  bool takes(const Attr &value) const;
  /// "true or false", "an integer from 1 to 65536".
  std::string allowed() const;
};

/// Options of one pass use, as written: `fuse{max=8}`.
struct PassOptions {
  AttrMap values;
  const Target *target = nullptr;
  ScheduleSource *schedules = nullptr;  // may be null
};

struct PassInfo {
  const char *name;
  const char *summary;
  bool (*run)(Module &, const PassOptions &);
  std::vector<PassOption> options;
};

llvm::ArrayRef<PassInfo> allPasses();
/// Null where there is none of that name.
const PassInfo *findPass(llvm::StringRef name);
/// Adds a pass from another library (select-recipes lives in codegen and needs it).
void registerPass(PassInfo info);

struct PassUse;
struct PipelineOptions {
  bool verifyEach = true;
  bool printChanged = false;  // module text to stderr after each pass that changed it
  bool timePasses = false;
  std::string dumpDir;                  // one .gir per pass
  std::string reproFile = "repro.gir";  // written when a pass fails or leaves an invalid module
  std::function<void(const PassUse &next, const Module &m)> beforePass;  // sees the module between passes; may be empty
};

struct PassUse {
  const PassInfo *pass;
  PassOptions options;
};
/// Parses `a,b{k=v,k2="s"},c`; `default` stands for the passes of defaultPipeline(). Throws UserError(Usage) naming an
/// unknown pass or option, or a value that the option does not take.
std::vector<PassUse> parsePipeline(llvm::StringRef text, const Target *target);
void runPipeline(Module &m, llvm::ArrayRef<PassUse> passes, const PipelineOptions &options);

/// Each pass of passes.def; its file holds its algorithm as a numbered comment.
#define GPTC_PASS(name, function, ...) bool function(Module &m, const PassOptions &options);
#include "passes/passes.def"
#undef GPTC_PASS

/// The default pipeline from import to planned, one line per pass with the reason for its place; or what is left of it
/// from the first `from` on. pipeline.cpp
llvm::ArrayRef<const char *> defaultPasses(llvm::StringRef from = "");
/// The same as text for parsePipeline.
std::string defaultPipeline(llvm::StringRef from = "");

}  // namespace gptc
