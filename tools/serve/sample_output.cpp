#include "tools/serve/sample_output.h"

#include "runtime/collectives/communicator.h"
#include "runtime/launch/crew.h"
#include "tools/commands/main_guard.h"

#include <cerrno>
#include <future>

namespace gptc {
namespace {

/// What rank 0 says of its reader.
enum Word : int64_t { isWaiting, readsOn, hasGone };

Word share(Communicator &ranks, Word word) {
  int64_t shared = word;
  ranks.run({{Collective::Kind::broadcast, &shared, &shared, 1, DType::i64}}, SumOrder::fast);
  return Word(shared);
}

}  // namespace

void SampleOutput::write(const std::string &text) {
  if (text.empty() || closed || (ranks && ranks->rank > 0))
    return;
  int error = 0;
  if (!ranks) {
    error = writeAll(fd, text) ? 0 : errno;
  } else {
    // If another rank fails while the reader pauses, this one ends without it.
    std::future<int> written = writeAside(fd, text);
    while (written.wait_for(betweenSigns) != std::future_status::ready)
      share(*ranks, isWaiting);
    error = written.get();
  }
  closed = error == EPIPE;
  if (error && !closed)
    throw outputError(error);
}

bool SampleOutput::isClosed() {
  if (!ranks)
    return closed;
  Word word = closed ? hasGone : readsOn;
  do
    word = share(*ranks, word);
  while (word == isWaiting);
  return word == hasGone;
}

}  // namespace gptc
