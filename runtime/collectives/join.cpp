#include "runtime/collectives/join.h"
#include "runtime/collectives/gloo.h"
#include "runtime/collectives/over_links.h"
#include "runtime/collectives/shared_links.h"
#include "runtime/collectives/signature.h"
#include "support/diagnostics.h"
#include "support/environment.h"

#include "llvm/ADT/STLExtras.h"

#include <cstdlib>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

namespace gptc {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t nonceBytes = 16, maxAddress = 1024;

/// What a rank publishes about itself through the rendezvous.
struct Card {
  std::string host;
  std::string nonce;                   // secret that a connecting rank must know
  std::vector<std::string> addresses;  // one for each other rank; its own is empty

  std::string str() const {
    std::string text = host + '\n' + nonce;
    for (const std::string &a : addresses)
      text += std::string{char(a.size() & 255), char(a.size() >> 8)} + a;
    return text;
  }
  static std::optional<Card> parse(llvm::StringRef text, size_t world) {
    Card c;
    const auto [host, rest] = text.split('\n');
    c.host = host.str();
    c.nonce = rest.take_front(nonceBytes).str();
    llvm::StringRef left = rest.drop_front(std::min(rest.size(), nonceBytes));
    while (left.size() >= 2) {
      const size_t n = uint8_t(left[0]) | size_t(uint8_t(left[1])) << 8;
      if (left.size() < n + 2)
        return std::nullopt;
      c.addresses.push_back(left.substr(2, n).str());
      left = left.drop_front(n + 2);
    }
    if (c.nonce.size() != nonceBytes || c.addresses.size() != world || !left.empty())
      return std::nullopt;
    return c;
  }
};

/// A bad interface stays bad after a restart: it is a configuration error, which ends the run.
void requireInterface(RendezvousClient &client, const std::string &name) {
  if (name.empty())
    return;
  ifaddrs *all = nullptr;
  ::getifaddrs(&all);
  std::vector<std::string> known, withAddress;
  for (auto *i = all; i; i = i->ifa_next) {
    const int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    if (!llvm::is_contained(known, i->ifa_name))
      known.push_back(i->ifa_name);
    if ((family == AF_INET || family == AF_INET6) && !llvm::is_contained(withAddress, i->ifa_name))
      withAddress.push_back(i->ifa_name);
  }
  ::freeifaddrs(all);
  if (llvm::is_contained(withAddress, name))
    return;
  const bool there = llvm::is_contained(known, name);
  const std::string text =
      fmt::format("GPTC_INTERFACE={}: {}", name,
                  there ? "this network interface has no address" : "there is no such network interface");
  const std::string help =
      fmt::format("{} has {}{}", hostName(), fmt::join(there ? withAddress : known, ", "), there ? " with one" : "");
  client.report(ErrorCode::RanksUnclear, text, help);
  throw UserError(ErrorCode::RanksUnclear, text, help);
}

/// A rank on its way to the others of its group.
class Joining {
public:
  Joining(RendezvousClient &client, const Group &group, const JoinOptions &options)
      : client(client), group(group), options(options), world(int(group.members.size())),
        until(Clock::now() + options.timeout), hosts(size_t(world)), nonces(size_t(world)) {
    const auto at = std::find(group.members.begin(), group.members.end(), client.rank);
    GPTC_CHECK(at != group.members.end(), "rank {} is none of group {}", client.rank, group.name);
    rank = int(at - group.members.begin());
  }

  std::unique_ptr<Communicator> run() {
    openLinks();
    connectAll();
    meetAll();
    return overLinks(std::move(links), group, {client, std::max(options.timeout, options.patience), hosts, !shares});
  }

private:
  RendezvousClient &client;
  const Group &group;
  const JoinOptions &options;
  const int world;
  const Clock::time_point until;
  int rank = 0;  // in the group, as `peer` below
  bool shares = false;
  std::unique_ptr<Links> links;
  std::string nonce;
  std::vector<std::string> hosts, nonces;  // of all ranks

  milliseconds left() const {
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(until - Clock::now()));
  }
  [[noreturn]] void fail(ErrorCode code, const std::string &text, const std::string &help) {
    const std::string all = fmt::format("rank {} of {} on {}, joining group {}: {}", client.rank, client.world,
                                        hostName(), group.name, text);
    client.report(code, all, help);
    throw UserError(code, all, help);
  }
  /// Of what came of a peer's links; where a rank has failed before, that is why.
  [[noreturn]] void failOfLink(const LinkError &e, const std::string &text, const std::string &help) {
    if (const RankFailure *f = client.failure(milliseconds(1000)))
      throw UserError(f->code, f->text, "the first rank that failed is the cause: see what it says");
    fail(e.kind == LinkError::late ? ErrorCode::CollectiveTimeout : ErrorCode::RankFailed, text, help);
  }
  std::string nameOf(int peer) const {
    return fmt::format("rank {} on {}", group.members[size_t(peer)], hosts[size_t(peer)]);
  }

  std::string keyOf(const char *what, int member) const { return fmt::format("{}/{}/{}", what, group.name, member); }
  std::string ask(const char *what, int peer) {
    try {
      return client.get(keyOf(what, peer), left());
    } catch (const UserError &error) {
      if (client.failure() || error.diagnostics[0].code != ErrorCode::CollectiveTimeout)
        throw;
      fail(ErrorCode::CollectiveTimeout,
           fmt::format("rank {} did not come in {:.1f} s", group.members[size_t(peer)], options.timeout.count() / 1e3),
           "that rank is dead, stopped or stuck, or does not join this group");
    }
  }

  /// Shared memory if all ranks can share it and none wants TCP; all ranks come to the same decision.
  void openLinks() {
    const char *variable = ownVariable("GPTC_INTERFACE");
    const std::string interface = variable ? variable : "";
    requireInterface(client, interface);
    const std::string machine = options.tcp || !interface.empty() ? "" : machineId();
    client.set(keyOf("machine", rank), machine);
    shares = !machine.empty();
    for (int peer = 0; peer < world; ++peer)
      shares &= peer == rank || ask("machine", peer) == machine;
    LinkError e;
    const std::string &local = client.localAddress();
    links = shares ? makeSharedLinks(rank, world)
                   : makeGlooLinks({local.c_str(), interface.c_str(), rank, world, options.timeout.count()}, e);
    if (!links)
      fail(ErrorCode::RendezvousFailed,
           fmt::format("cannot use {}: {}", interface.empty() ? local : "interface " + interface, e.text),
           "GPTC_INTERFACE names the network interface between ranks; `ip address` lists those of this machine");
  }

  /// Tells the others where this rank is, and connects to where they are.
  void connectAll() {
    Card card{hostName(), newToken().substr(0, nonceBytes), {}};
    nonce = card.nonce;
    hosts.assign(size_t(world), card.host);
    for (int peer = 0; peer < world; ++peer) {
      std::string address(maxAddress, '\0');
      address.resize(peer == rank ? 0 : links->address(peer, address.data(), address.size()));
      card.addresses.push_back(address);
    }
    client.set(keyOf("links", rank), card.str());
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank)
        continue;
      const std::optional<Card> other = Card::parse(ask("links", peer), size_t(world));
      if (!other)
        fail(ErrorCode::CollectiveMismatch,
             fmt::format("rank {} has another idea of the group's members", group.members[size_t(peer)]),
             "all ranks must run the same plan: start them by one gptrun");
      hosts[size_t(peer)] = other->host;
      nonces[size_t(peer)] = other->nonce;
      const std::string &address = other->addresses[size_t(rank)];
      LinkError e;
      if (!links->connect(peer, address.data(), address.size(), e))
        failOfLink(e, fmt::format("no connection from {} to {}: {}", client.localAddress(), nameOf(peer), e.text),
                   shares ? "GPTC_INTERFACE=lo makes ranks of one machine talk over TCP"
                          : "a firewall between them must let all ports through; GPTC_INTERFACE names the network "
                            "interface to use");
    }
  }

  /// Both ends of a connection prove that they have read the other's card.
  void meetAll() {
    const uint64_t slot = mix(hashOf({}), uint64_t(world));
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank)
        continue;
      LinkError e;
      char said[nonceBytes] = {};
      Links::Message *out = links->send(peer, slot, nonces[size_t(peer)].data(), nonceBytes, e);
      Links::Message *in = out ? links->receive(peer, slot, said, nonceBytes, e) : nullptr;
      const bool met = in && links->wait(in, left().count(), e) && links->wait(out, left().count(), e);
      for (Links::Message *m : {out, in})
        if (m)
          links->free(m);
      if (!met || std::memcmp(said, nonce.data(), nonceBytes) != 0)
        failOfLink(e,
                   met ? fmt::format("what came in the place of {} is not that rank", nameOf(peer))
                       : fmt::format("{} does not answer: {}", nameOf(peer), e.text),
                   "see what that rank says; ports of ranks should not be open to other machines");
    }
  }
};

}  // namespace

std::unique_ptr<Communicator> joinProcesses(RendezvousClient &client, const Group &group, const JoinOptions &options) {
  return Joining(client, group, options).run();
}

}  // namespace gptc
