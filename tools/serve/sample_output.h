// Where samples are printed: standard output. Of several ranks, rank 0 writes for all.
#pragma once

#include <chrono>
#include <string>
#include <unistd.h>

namespace gptc {

class Communicator;

/// So often the other ranks hear from a rank 0 that waits, for requests or for a reader. Its silence would be a
/// failure.
constexpr std::chrono::seconds kBetweenSigns{5};

/// While the reader pauses, as a pager's does, rank 0 waits, and says so to the others: they wait for rank 0 alone, and
/// would take it for dead after the time-out of a collective. When the reader has gone, all ranks hear of it.
class SampleOutput {
public:
  /// `ranks`: null if there is only one. `fd`: in place of standard output.
  explicit SampleOutput(Communicator *ranks, int fd = STDOUT_FILENO,
                        std::chrono::milliseconds betweenSigns = kBetweenSigns)
      : ranks(ranks), fd(fd), betweenSigns(betweenSigns) {}
  SampleOutput(const SampleOutput &) = delete;

  /// Waits until all of it is written, or the reader has gone. Nothing on other ranks than 0. Among ranks there must be
  /// no collective between this call and the next of isClosed(). Throws UserError(DiskFull, Unwritable), and what
  /// Communicator::run throws.
  void write(const std::string &text);

  /// Whether the reader has gone, which is no error: nobody wants what would follow. All ranks must call it together,
  /// and get the same answer. Throws what Communicator::run throws.
  bool isClosed();

private:
  Communicator *const ranks;
  const int fd;
  const std::chrono::milliseconds betweenSigns;
  bool closed = false;
};

}  // namespace gptc
