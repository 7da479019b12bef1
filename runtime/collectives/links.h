// The interface of a plug-in: messages between two ranks of a group. over_links.h implements the collectives on it.
// Only plain types and virtual calls cross it, and no exceptions, so a plug-in may use another C++ library than the
// program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptc {

struct LinkError {
  enum Kind { none, late, gone, aborted } kind = none;  // none: no error; late: timed out; gone: the peer has left
  char text[256] = "";                                  // the engine's message
};

class Links {
public:
  /// A message under way; each implementation derives its own. Its links own it and must outlive it.
  struct Message {};

  virtual ~Links() = default;

  /// Preferred bytes per message, and preferred number of messages under way in each direction.
  virtual size_t messageBytes() const noexcept = 0;
  virtual size_t messages() const noexcept = 0;
  /// Bytes of memory that the links hold.
  virtual size_t ownBytes() const noexcept { return 0; }

  // Call first, for each other rank: give it the bytes that address() wrote, and connect to those it gave back. Both
  // ranks must do so; the first waits for the other.
  virtual size_t address(int peer, char *bytes, size_t most) noexcept = 0;
  virtual bool connect(int peer, const char *bytes, size_t n, LinkError &) noexcept = 0;

  /// Start a send or a receive. Between two ranks, messages of one slot arrive in the order of sending. A message is
  /// transferred only when both sides have started it, so slots never mix. Both sides must pass the same length, not 0,
  /// and keep the memory until wait() returns. Null if the peer is gone.
  virtual Message *send(int peer, uint64_t slot, const void *, size_t, LinkError &) noexcept = 0;
  virtual Message *receive(int peer, uint64_t slot, void *, size_t, LinkError &) noexcept = 0;
  /// Waits until the message has been transferred; false if it has not. A time-out closes all links.
  virtual bool wait(Message *, int64_t milliseconds, LinkError &) noexcept = 0;
  /// Frees a message. If it is under way, its memory is not touched any more.
  virtual void free(Message *) noexcept = 0;

  /// Ends all waits, now and later. May be called from any thread.
  virtual void abort() noexcept = 0;
  /// Closes all links at once: the other ranks see this one as gone, and no message's memory is touched any more.
  virtual void close() noexcept = 0;
  /// Closes all links in good order: sent data still arrives. No message may be under way.
  virtual void leave() noexcept = 0;
};

/// Where a plug-in listens: the interface if it is not empty, else an address of this machine.
struct LinksOptions {
  const char *address, *interface;
  int rank, world;
  int64_t milliseconds;  // time-out for connecting to one rank
};

/// The function that a plug-in exports as `linksEntry`; the number in that name changes with this interface.
using MakeLinks = Links *(const LinksOptions &, LinkError &);
inline constexpr const char linksEntry[] = "gptc_links_1";

}  // namespace gptc
