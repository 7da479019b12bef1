// Saves checkpoints: each rank writes what it owns (checkpoint_files.h), and the run goes on meanwhile.
//
//   1. Rank 0 makes a temporary folder. All copy what they own into memory that is there for that; parameters of which
//      no rank has the whole are gathered, each by its owner.
//   2. Steps go on, while a thread of each rank writes its files and fsyncs them.
//   3. When all have, as ranks tell each other between two steps, rank 0 gets the checksums of all files. Its thread
//      writes the manifest, renames the folder, and removes checkpoints that are not to be kept.
//
// A kill at any moment leaves older checkpoints as they are. One save is under way at a time.
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
  /// Takes the memory that it needs, for saving `beside` steps or while they wait. UserError(OutOfMemory).
  CheckpointSaver(Executor &executor, const CheckpointStore &store, bool beside);
  /// What is not complete is given up.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver &) = delete;

  // Where the executor has ranks, all of them call each of these together, but for written(). UserErrors: DiskFull and
  // Unwritable; RanksDiffer where a rank does not see the files of another.

  /// Begins a checkpoint of the states as they are now, when the one before is complete. Afterwards all but the `keep`
  /// newest are removed (0: none is).
  void begin(const CheckpointInfo &info, int64_t keep);
  /// Whether the other ranks need not wait for this one. Throws what went wrong since the last call.
  bool written();
  /// Goes on with a checkpoint of which all ranks have written their part.
  void proceed();
  /// Returns when nothing is under way.
  void finish();
  /// A whole one, now.
  void save(const CheckpointInfo &info, int64_t keep);

private:
  enum class Phase { idle, writing, written, completing };
  /// Checksum of a file, in hexadecimal digits; zeros where there is none. A rank has two.
  using Checksums = std::array<std::array<char, 64>, 2>;

  Executor &executor;
  const CheckpointStore store;
  const bool beside;
  const int64_t rank, world;
  const OwnedFiles owned;
  std::optional<Arena> memory;  // for copies, where there are any
  std::vector<char> scratch;
  Phase phase = Phase::idle;
  std::future<void> job;
  std::atomic<bool> givenUp{false};
  CheckpointInfo info;
  int64_t keep = 0;
  std::optional<AtomicDir> dir;  // rank 0's, as which all write
  std::string folder;
  std::vector<Checksums> checksums;  // of each rank; this one's from the beginning

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
