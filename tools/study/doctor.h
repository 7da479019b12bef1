// Reports what this machine offers to each target and what is missing: the content of `gptc doctor`.
#pragma once

#include <string>
#include <vector>

namespace gptc {

struct Finding {
  enum Grade {
    fine,
    absent,    // missing, but nothing that we know of needs it
    hampered,  // works, but worse than it could
    blocking   // the target cannot run
  };
  std::string name;  // "NVRTC"
  Grade grade = fine;
  bool cuda = false;          // concerns the CUDA target; else the CPU, and so both
  std::string found;          // what was found or what is wrong, for people
  std::string needed;         // "13.0 or later"; may be ""
  std::string remedy;         // set unless fine
  std::string version, path;  // of a library that was found
};

struct Diagnosis {
  std::vector<Finding> findings;
  /// Names of the findings that keep the target from running; empty if it can run.
  std::vector<std::string> blocking(bool cuda) const;
};

/// Runs all checks. `arch`: the wanted GPU architecture ("sm_90a"), "" for any.
Diagnosis examine(const std::string &arch);

}  // namespace gptc
