// Assigns the states of a checkpoint to files and to the ranks that write them.
#pragma once

#include "ir/mesh.h"
#include "runtime/checkpoint/tensor_files.h"

#include <array>
#include <string>
#include <vector>

namespace gptc {

constexpr const char *kManifestFile = "manifest.json", *kIndexFile = "model.safetensors.index.json",
                     *kStateFolder = "state";

/// The parameters of a module, or the other saved states: moments and counters. Not saved are gradients (zero between
/// steps), caches of sampling, and copies of parameters.
std::vector<const State *> savedStates(const Module &m, bool parameters);

/// Decides which rank writes which state, for one kind of file: parameters or the rest. A piece of a state is written
/// by the rank that has it; identical copies are written by one rank, such that all ranks write about the same amount.
/// Parameters are written whole.
class Ownership {
public:
  Ownership(const Module &m, bool parameters);
  bool writes(size_t state, int64_t rank) const;
  /// "model.safetensors", "state/optimizer.safetensors"; with several ranks "model-00001-of-00004.safetensors"; "" for
  /// a rank that writes nothing.
  std::string fileOf(int64_t rank) const;
  const std::vector<const State *> states;

private:
  const Mesh mesh;
  const bool parameters;
  std::vector<int64_t> middle;  // of each state: the byte position of its middle among all states
  int64_t total = 0;
  std::vector<int64_t> numbers;  // file number of each rank, from 1; 0 if it writes nothing
};

/// A file that one rank writes, with the location of its data.
struct OwnedFile {
  struct Part {
    const State *state = nullptr;
    const State *source = nullptr;  // state whose memory has the data: the state itself or its whole copy
    bool gathered = false;          // from the pieces of all ranks
    std::optional<Piece> piece;     // the piece to write; none: the whole
    int64_t at = 0;                 // byte offset in the memory for copies
    /// Type of the data in memory, including padding.
    Type type() const { return gathered ? wholeType(*state) : source->type; }
  };
  std::string name;  // "": no file
  std::vector<Part> parts;
};

struct OwnedFiles {
  std::array<OwnedFile, 2> files;  // parameters, then the rest
  /// Parameters that no rank has whole. All ranks gather them together, in this order.
  std::vector<const State *> gathered;
  int64_t largestGathered = 0;  // bytes
  int64_t copyBytes = 0;        // bytes of memory for copies: of all parts if `copyAll`, else of the gathered ones
  static OwnedFiles of(const Module &planned, int64_t rank, bool copyAll);
};

/// Bytes of memory besides the arena that a save needs, on the rank that needs most. `beside`: steps go on during the
/// save.
int64_t memoryToSave(const Module &planned, bool beside);

/// Ranks that have moments of their own, because they meet in outer steps alone (passes/outer_steps.cpp) or leave out
/// parts of gradients (passes/compress_gradients.cpp); 1 if all ranks have the same.
int64_t ranksApart(const Module &m);
/// What a checkpoint with the moments of `there` such ranks is to a plan with another number of them, "" if it has the
/// same; `remedy` gets what it would fit.
std::string differenceOfRanks(int64_t there, const Module &planned, std::string &remedy);

/// Whether the module has no parameters of a head of tokens, which files may have: it makes vectors of texts (@embed_N)
/// and fills no masks, or tells labels.
bool isHeadless(const Module &m);

}  // namespace gptc
