#include "support/environment.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <cstdlib>

namespace gptc {

namespace {

struct OwnVariable {
  const char *name;
  bool byUsers;  // set by users; false: set by gptrun for its ranks
};

constexpr OwnVariable known[] = {
    {"GPTC_CACHE", true},         // folder of compiled kernels and tuning records
    {"GPTC_THREADS", true},       // number of threads if no option gives it
    {"GPTC_CPU_FEATURES", true},  // CPU features not to use: "-avx512f"
    {"GPTC_CUDA", true},          // folders to search for NVIDIA's libraries, instead of the usual ones
    {"GPTC_INTERFACE", true},     // network interface between ranks
    {"GPTC_RENDEZVOUS", true},    // HOST:PORT of the rendezvous, for ranks of another launcher
    {"GPTC_TOKEN", true},         // the secret that ranks share, or
    {"GPTC_TOKEN_FILE", true},    // the file that holds the secret
    {"GPTC_RESTARTS", true},      // number of restarts of the run by a script
    {"GPTC_RANK", false},        {"GPTC_WORLD", false},          {"GPTC_LOCAL_RANK", false},
    {"GPTC_LOCAL_WORLD", false}, {"GPTC_RESUME_AT_MOST", false}, {"GPTC_PULSE", false},
    {"GPTC_INPUT", false},
};

/// Prefixes of the variables of tests, stand-ins and scripts in the source tree: programs that those start inherit
/// them.
constexpr const char *ofTests[] = {"GPTC_TEST_",        "GPTC_STANDIN_",    "GPTC_FUZZ_",    "GPTC_FAULTS",
                                   "GPTC_CONFORMANCE_", "GPTC_UPDATE_",     "GPTC_STEPS",    "GPTC_TARGETS",
                                   "GPTC_SHAKESPEARE",  "GPTC_GPT2_MERGES", "GPTC_NO_SETUP", "GPTC_AUSTEN",
                                   "GPTC_BIN_DIR"};

}  // namespace

const char *ownVariable(const char *name) {
  const bool isKnown = llvm::any_of(known, [&](const OwnVariable &v) { return llvm::StringRef(v.name) == name; });
  GPTC_CHECK(isKnown, "{} is not in the table", name);
  return std::getenv(name);
}

std::vector<std::string> strangeVariables(const char *const *environment) {
  std::vector<std::string> all, ofUsers, sentences;
  for (const OwnVariable &v : known) {
    all.push_back(llvm::StringRef(v.name).drop_front(5).str());
    if (v.byUsers)
      ofUsers.push_back(v.name);
  }
  for (const char *const *entry = environment; entry && *entry; ++entry) {
    const llvm::StringRef name = llvm::StringRef(*entry).split('=').first;
    llvm::StringRef own = name;
    if (!own.consume_front("GPTC_") || llvm::is_contained(all, own) ||
        llvm::any_of(ofTests, [&](const char *prefix) { return name.starts_with(prefix); }))
      continue;
    // Names are compared without GPTC_: the common prefix would make all of them look alike.
    const std::string near = nearestWord(own.str(), all);
    sentences.push_back(fmt::format("the environment has {}, which no program reads; {}", name.str(),
                                    near.empty() ? fmt::format("there are {}", fmt::join(ofUsers, ", "))
                                                 : fmt::format("did you mean GPTC_{}?", near)));
  }
  return sentences;
}

}  // namespace gptc
