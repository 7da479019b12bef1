// The folder that a run writes in.
#pragma once

#include <cstdint>
#include <string>

namespace gptc {

/// Locks OUT_DIR for this process. Throws UserError(Unwritable), also if another run holds the folder.
class RunLock {
public:
  static std::string pathIn(const std::string &outDir) { return outDir + "/.lock"; }
  /// Whether a process holds the folder. It looks by taking the lock for a moment, in which a run that starts would
  /// find the folder taken.
  static bool isHeld(const std::string &outDir);
  explicit RunLock(const std::string &outDir);
  ~RunLock();
  RunLock(const RunLock &) = delete;
  /// Writes a number that no other run has written, so that other ranks can tell whether they see the same folder.
  /// Throws UserError(Unwritable).
  void mark(uint64_t number);

private:
  const std::string path;
  int fd;
};

/// Moves an earlier run's files aside, so that nothing is lost or mistaken for this run's. Returns the folder that has
/// them now; "" if there were none.
std::string setAside(const std::string &outDir);

}  // namespace gptc
