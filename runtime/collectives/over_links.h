// Collectives made of messages between two ranks.
//
//   sums      by recursive halving: with the rank at distance 1 each exchanges half of the chunks and adds, then with
//   that
//             at distance 2 half of what is left, and so on; rank r ends with chunk r. As neighbours are added first,
//             the order is exactly SumOrder::tree, for as few bytes as there can be: (1 - 1/P) of the whole per rank.
//             Where the ranks are no power of two: round a ring.
//   gathers   the same backwards: the chunks double. Or round a ring.
//   broadcast along a chain from the root, piece by piece, so that all links are busy at once.
//
// all_reduce is the first two. All buffers of a bucket go together: a chunk is a part of each. Messages are a few
// hundred KiB; while one is added, on the caller's thread, the next ones arrive.
//
// Before data, neighbours exchange what they are about to do. Data of ranks that differ never meets, as the hash of
// that is in the slot of its messages.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/links.h"
#include "runtime/rendezvous/rendezvous.h"

namespace gptc {

struct LinksPlace {
  RendezvousClient &client;
  std::chrono::milliseconds timeout;
  std::vector<std::string> hosts;  // of the members
  bool beside;                     // Communicator::beside
};
/// The links are connected.
std::unique_ptr<Communicator> overLinks(std::unique_ptr<Links> links, const Group &group, LinksPlace place);

}  // namespace gptc
