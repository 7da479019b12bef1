#include "support/environment.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <cstdlib>

namespace gptc {

namespace {

struct OwnVariable {
  const char *name;
  bool byUsers;  // set by users; else by gptrun for its ranks
};

constexpr OwnVariable known[] = {
    {"GPTC_CACHE", true},         // folder of compiled kernels and tuning records
    {"GPTC_THREADS", true},       // threads where no option says how many
    {"GPTC_CPU_FEATURES", true},  // features of the CPU that are not to be used: -avx512f
    {"GPTC_CUDA", true},          // the only folders in which NVIDIA's libraries are looked for
    {"GPTC_INTERFACE", true},     // network interface between ranks
    {"GPTC_RENDEZVOUS", true},    // HOST:PORT at which ranks of another launcher meet
    {"GPTC_TOKEN", true},         // what they show each other, or
    {"GPTC_TOKEN_FILE", true},    // the file that holds it
    {"GPTC_RESTARTS", true},      // how often a script has started the run again
    {"GPTC_RANK", false},        {"GPTC_WORLD", false},          {"GPTC_LOCAL_RANK", false},
    {"GPTC_LOCAL_WORLD", false}, {"GPTC_RESUME_AT_MOST", false}, {"GPTC_PULSE", false},
};

/// Of tests, stand-ins and scripts of the source tree, whose programs inherit them.
constexpr const char *ofTests[] = {"GPTC_TEST_",        "GPTC_STANDIN_",    "GPTC_FUZZ_",   "GPTC_FAULTS",
                                   "GPTC_CONFORMANCE_", "GPTC_UPDATE_",     "GPTC_STEPS",   "GPTC_TARGETS",
                                   "GPTC_SHAKESPEARE",  "GPTC_GPT2_MERGES", "GPTC_NO_SETUP"};

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
    // What all have in common says nothing of which one is meant.
    const std::string near = nearestWord(own.str(), all);
    sentences.push_back(fmt::format("the environment has {}, which no program reads; {}", name.str(),
                                    near.empty() ? fmt::format("there are {}", fmt::join(ofUsers, ", "))
                                                 : fmt::format("did you mean GPTC_{}?", near)));
  }
  return sentences;
}

}  // namespace gptc
