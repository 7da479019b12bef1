// Passes and the pipeline. One pass, one file, one entry `bool NAME(Module &, const PassOptions &)`, listed in
// passes.def with one line of summary. A pass returns whether it changed the module. `gptc-opt
// --passes='autodiff,fuse{max=8}'` runs any list.
#pragma once

#include "ir/graph.h"
#include "ir/schedule.h"

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace gptc {

/// Options of one pass use, as written: `fuse{max=8}`. Unknown options are a UserError(Usage).
struct PassOptions {
  AttrMap values;
  const Target *target = nullptr;
};

struct PassInfo {
  const char *name;
  const char *summary;
  bool (*run)(Module &, const PassOptions &);
  std::vector<std::string> options;  // names that `values` may hold
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

/// Parses `a,b{k=v,k2="s"},c`. Throws UserError(Usage) naming an unknown pass or option.
struct PassUse {
  const PassInfo *pass;
  PassOptions options;
};
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
