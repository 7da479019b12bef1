// Which states a checkpoint holds, in which files, and which rank writes what.
#pragma once

#include "ir/mesh.h"
#include "runtime/checkpoint/tensor_files.h"

#include <array>
#include <string>
#include <vector>

namespace gptc {

constexpr const char *kManifestFile = "manifest.json", *kIndexFile = "model.safetensors.index.json";

/// Parameters of a module, or what else is saved of it: moments and counters. Gradients, which are zero between steps,
/// caches of one sample, and copies of parameters are not.
std::vector<const State *> savedStates(const Module &m, bool parameters);

/// Of one kind of file, parameters or the rest. A piece of a state is written by whoever has it; what several ranks
/// have alike by one of them, so that each writes about as much. Parameters are written whole.
class Ownership {
public:
  Ownership(const Module &m, bool parameters);
  bool writes(size_t state, int64_t rank) const;
  /// "model.safetensors"; of several ranks "model-00001-of-00004.safetensors". "" for one that writes nothing.
  std::string fileOf(int64_t rank) const;
  const std::vector<const State *> states;

private:
  const Mesh mesh;
  const bool parameters;
  std::vector<int64_t> middle;  // of each state, among the bytes of all
  int64_t total = 0;
  std::vector<int64_t> numbers;  // of ranks among those that write, from 1; 0: nothing
};

/// What one rank writes into one file, and where it has it.
struct OwnedFile {
  struct Part {
    const State *state = nullptr;
    const State *source = nullptr;  // whose memory has it: the state, or the copy of it that is whole
    bool gathered = false;          // from all ranks' pieces
    std::optional<Piece> piece;     // of which it is written; none: the whole
    int64_t at = 0;                 // in the memory for copies
    /// In memory, padding included.
    Type type() const { return gathered ? wholeType(*state) : source->type; }
  };
  std::string name;  // "": none
  std::vector<Part> parts;
};

struct OwnedFiles {
  std::array<OwnedFile, 2> files;  // parameters, and the rest
  /// Parameters of which no rank has the whole: all ranks gather them together, in this order.
  std::vector<const State *> gathered;
  int64_t largestGathered = 0;  // bytes
  int64_t copyBytes = 0;        // of memory for copies: of all parts; or of the gathered ones
  static OwnedFiles of(const Module &planned, int64_t rank, bool copyAll);
};

/// Memory beside the arena in which a rank of this plan, the one that needs most, saves while steps go on (`beside`),
/// or while they wait.
int64_t memoryToSave(const Module &planned, bool beside);

}  // namespace gptc
