// Messages between two ranks of a group: what a plug-in provides, and all that it does. The algorithms stand on it in
// over_links.h. Only plain types and virtual calls cross, and no exception, so that a plug-in may have another C++
// library than the program that loads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptc {

struct LinkError {
  enum Kind { none, late, gone, aborted } kind = none;
  char text[256] = "";  // the engine's words
};

class Links {
public:
  /// A message on its way. Belongs to its links, which must outlive it.
  class Message;

  virtual ~Links() = default;

  /// Of one message, and messages under way in each direction: what suits the engine.
  virtual size_t messageBytes() const noexcept = 0;
  virtual size_t messages() const noexcept = 0;
  /// Memory that they hold.
  virtual size_t ownBytes() const noexcept { return 0; }

  // Before anything else, for each other rank: hand it what address() wrote, and connect to what it handed back. Both
  // must do so; who comes first waits for the other one.
  virtual size_t address(int peer, char *bytes, size_t most) noexcept = 0;
  virtual bool connect(int peer, const char *bytes, size_t n, LinkError &) noexcept = 0;

  /// Begins to send or to receive. Of two ranks, the messages of one slot arrive in the order in which they were sent;
  /// a message flows only when both sides have named it, so that those of different slots never meet. The length must
  /// be the same on both sides and not 0, and the memory stay until wait(). Null where the peer is gone.
  virtual Message *send(int peer, uint64_t slot, const void *, size_t, LinkError &) noexcept = 0;
  virtual Message *receive(int peer, uint64_t slot, void *, size_t, LinkError &) noexcept = 0;
  /// Until it has been sent or received. False where it has not; when it was late, all links are closed.
  virtual bool wait(Message *, int64_t milliseconds, LinkError &) noexcept = 0;
  /// Frees it; one that is on its way does not touch its memory any more.
  virtual void free(Message *) noexcept = 0;

  /// From any thread: whoever waits, now or later, does so no longer.
  virtual void abort() noexcept = 0;
  /// Of all links, at once: the other ranks see this one as gone, and no memory of a message is touched any more.
  virtual void close() noexcept = 0;
  /// Of all links, in good order: what has been sent still arrives. No message may be left.
  virtual void leave() noexcept = 0;
};

/// Where a plug-in listens: an address of this machine, or an interface where that is not empty.
struct LinksOptions {
  const char *address, *interface;
  int rank, world;
  int64_t milliseconds;  // to connect to one rank
};

/// What a plug-in exports under the name `linksEntry`, whose number changes with this file.
using MakeLinks = Links *(const LinksOptions &, LinkError &);
inline constexpr const char linksEntry[] = "gptc_links_1";

}  // namespace gptc
