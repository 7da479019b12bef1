// Saves checkpoints: each rank writes what it owns (checkpoint_files.h) while steps go on.
//
//   1. Rank 0 makes a temporary folder. All ranks copy what they own into memory reserved for it. Parameters that no
//      rank has whole are gathered.
//   2. Steps go on, while a thread of each rank writes and fsyncs its files.
//   3. Between steps the ranks tell each other when they have finished. Then rank 0 gets the checksums of all files,
//      and its thread writes the model's description and the manifest, renames the folder, lets the links point to it,
//      and removes old checkpoints.
//
// A kill at any moment leaves older checkpoints intact. Only one save is under way at a time.
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/device/arena.h"
#include "support/files.h"

#include <atomic>
#include <future>
#include <optional>

namespace gptc {

class CheckpointSaver {
public:
  /// Allocates the memory for copies. `beside`: steps go on during a save. `described`: the files that describe the
  /// model beside its weights; must outlive this. Throws UserError(OutOfMemory).
  CheckpointSaver(Executor &executor, const CheckpointStore &store, bool beside, const HfFiles &described);
  /// Abandons an incomplete checkpoint.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver &) = delete;

  // All ranks must call each of these together, except written(). They throw UserErrors DiskFull and Unwritable, and
  // RanksDiffer if a rank does not see the files of another.

  /// Begins a checkpoint of the current states, after completing the previous one. Once it is complete, all but the
  /// `keep` newest are removed (0: none is removed).
  void begin(const CheckpointInfo &info, int64_t keep);
  /// Whether this rank has finished writing. Throws an error that occurred since the last call.
  bool written();
  /// Completes a checkpoint whose parts all ranks have written.
  void proceed();
  /// Waits until no save is under way.
  void finish();
  /// Saves a complete checkpoint before it returns.
  void save(const CheckpointInfo &info, int64_t keep);

  /// Why the links could not be set for a complete checkpoint, once; else "".
  std::string takeProblemOfLinks();

private:
  enum class Phase { idle, writing, written, completing };
  /// Checksum per file, in hexadecimal digits; zeros if there is no file. A rank has up to two files.
  using Checksums = std::array<std::array<char, 64>, 2>;

  Executor &executor;
  const CheckpointStore store;
  const bool beside;
  const HfFiles &described;
  const int64_t rank, world;
  const OwnedFiles owned;
  std::optional<Arena> memory;  // for copies, if there are any
  std::vector<char> scratch;
  Phase phase = Phase::idle;
  std::future<void> job;
  std::atomic<bool> givenUp{false};
  CheckpointInfo info;
  int64_t keep = 0;
  std::optional<AtomicDir> dir;  // on rank 0; all ranks write into it
  std::string folder;
  std::string problemOfLinks;
  std::vector<Checksums> checksums;  // per rank; a rank sets its own while it writes

  void start(const CheckpointInfo &info, int64_t keep);
  char *copyOf(const OwnedFile::Part &part) const { return reinterpret_cast<char *>(memory->at(part.at)); }
  void copyStates();
  void gatherStates();
  void launch(void (CheckpointSaver::*work)());
  void writeCopies();
  void write(const OwnedFile &file, bool copied);
  void writeOwn(bool copied);
  void complete();
};

}  // namespace gptc
