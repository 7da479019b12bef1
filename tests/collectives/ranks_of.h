// Ranks of each engine, for tests that hold for all of them.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/rendezvous/rendezvous.h"

#include <functional>
#include <string>

namespace gptc::test {

/// The error that `f` ends with, as its code and text.
std::pair<ErrorCode, std::string> errorOf(const std::function<void()> &f);

void expectHas(const std::string &text, const std::string &part, const char *file, int line);
#define EXPECT_HAS(text, part) ::gptc::test::expectHas(text, part, __FILE__, __LINE__)

/// What makes float sums show their order: of many magnitudes and both signs, a few of them infinite or denormal where
/// `wild`. The same for the same arguments.
void fill(DType t, void *at, size_t n, uint64_t seed, bool wild = false);

/// Where a rank process finds the others: the test program hosts the rendezvous.
struct JobPlace {
  std::string host, token;
  uint16_t port;
  /// With `tcp`, ranks talk over TCP though they are on one machine.
  std::vector<std::string> environment(bool tcp) const;
  static JobPlace ofEnvironment();
  static JobPlace of(const RendezvousServer &server, const std::string &token);
};
std::unique_ptr<RendezvousClient> joinJob(int rank, int world);
JoinOptions joinOptions(std::chrono::milliseconds timeout);

/// What a rank process printed, without what GoogleTest says first.
std::string printed(const std::string &text);

}  // namespace gptc::test
