// Collectives implemented with messages between pairs of ranks.
//
//   sums       recursive halving: with the rank at distance 1, each exchanges half of the chunks and adds; then with
//              the rank at distance 2 half of the rest, and so on, until rank r has chunk r. Neighbours are added
//              first, so the order is exactly SumOrder::tree, with the fewest possible bytes: (1 - 1/P) of the whole
//              per rank. A ring if the number of ranks is not a power of two.
//   gathers    the reverse, doubling the chunks; or a ring.
//   broadcast  along a chain from the root, piece by piece, so that all links are busy at once.
//
// all_reduce is a sum followed by a gather. All buffers of a bucket are sent together: a chunk is a part of each.
// Messages are a few hundred KiB; while the caller's thread adds one, the next ones arrive.
//
// Before data, neighbours exchange what they are about to do. The slot of a message contains a hash of that, so data of
// ranks that differ never mixes.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/links.h"
#include "runtime/rendezvous/rendezvous.h"

namespace gptc {

struct LinksPlace {
  RendezvousClient &client;
  std::chrono::milliseconds timeout;
  std::vector<std::string> hosts;  // host name of each member
  bool beside;                     // Communicator::beside
};
/// `links` must be connected.
std::unique_ptr<Communicator> overLinks(std::unique_ptr<Links> links, const Group &group, LinksPlace place);

}  // namespace gptc
