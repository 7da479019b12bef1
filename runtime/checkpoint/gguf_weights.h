// Parameters out of GGUF files and into them. The files' containers: support/gguf; their tensors' names and layouts:
// gguf_names.h; their metadata: frontends/gguf.
#pragma once

#include "ir/choices.h"
#include "runtime/checkpoint/gguf_rounding.h"
#include "runtime/checkpoint/tensor_files.h"
#include "support/gguf/gguf_writer.h"

#include <string>

namespace gptc {

class Executor;

/// Loads the parameters of a GGUF file, widened to f32. Reads them in pieces of some rows into their places, with at
/// most 64 MiB of memory for all threads together. Throws UserErrors FileMissing, CheckpointDamaged, NotBuiltYet (an
/// architecture or a format of tensors), and CheckpointMismatch: for a missing tensor, another shape or number of
/// heads, or a tensor that has no place in the model. All ranks must call it together. Does not compare what shapes do
/// not show: that is frontends/gguf/gguf_model.h's.
void loadGguf(Executor &executor, const std::string &path);

/// The checks of loadGguf for a module in any phase, by the file's header alone. Returns whether a matrix, but
/// for the table of positions, is f32. `remedy`: the fix of what does not fit.
bool checkGguf(const Module &m, const std::string &path, const std::string &remedy);

/// How the matrices of layers are best kept of a file (precision.weights, precision.eight_bits): with 4 bits if it has
/// any so, in the format that most elements are in, and those of other formats in 8 bits; else in 8 bits; but as they
/// are computed with if no more than half of the elements are in blocks of integers. Matrices whose rows are no
/// multiple of 32 do not count, as no format holds them.
struct StoredWeights {
  Weights weights = Weights::compute;
  std::vector<std::string> eightBits;    // parameters
  std::vector<std::string> rounded;      // those of eightBits, or of all with q8_0, that are not Q8_0 there
  std::vector<std::string> roundedFrom;  // the formats of these, in the order of their names
};
/// `m`: a module in any phase that the file fits (checkGguf).
StoredWeights storedWeights(const Module &m, const std::string &path);

/// What a file has beside the parameters.
struct GgufContent {
  std::string architecture;
  GgufKeys keys;
  std::vector<std::pair<std::string, std::vector<float>>> tensors;  // vectors of f32
};

/// Writes the parameters of `model`, a module in any phase, whose values `source` has as checkpoints do
/// (runtime/checkpoint/file_layout.h), as a GGUF file. Matrices are rounded as `how` says; vectors and tables of
/// positions are f32, as llama.cpp wants them. Returns its tensors, in the order of the file. Takes memory for the
/// largest parameter twice. Throws UserErrors Unwritable, DiskFull, CheckpointDamaged, CheckpointMismatch for a tensor
/// that `source` lacks, Usage for a pattern of `how.keep` that names no tensor, and OutOfRange for a value that a
/// format cannot hold.
std::vector<WrittenTensor> writeGguf(const std::string &path, const Module &model, const TensorFiles &source,
                                     const GgufContent &content, const GgufRounding &how);

}  // namespace gptc
