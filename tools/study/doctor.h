// What this machine offers to each target, and what is in the way: the content of `gptc doctor`.
#pragma once

#include <string>
#include <vector>

namespace gptc {

struct Finding {
  enum Grade {
    fine,
    absent,    // not there, and nothing that we know of asks for it
    hampered,  // something works worse than it could
    blocking   // the target cannot run
  };
  std::string name;  // "NVRTC"
  Grade grade = fine;
  bool cuda = false;          // concerns the CUDA target; else the CPU's and so both
  std::string found;          // what is there, for people; or what is wrong
  std::string needed;         // "13.0 or later"; may be empty
  std::string remedy;         // where it is not fine
  std::string version, path;  // of a library that is there
};

struct Diagnosis {
  std::vector<Finding> findings;
  /// Names of those that keep the target from running; empty where it can.
  std::vector<std::string> blocking(bool cuda) const;
};

/// Looks at everything. `arch`: the GPU architecture that is wanted ("sm_90a"), or "" for whatever is there.
Diagnosis examine(const std::string &arch);

}  // namespace gptc
