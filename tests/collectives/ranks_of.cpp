#include "tests/collectives/ranks_of.h"
#include "ir/element.h"
#include "runtime/collectives/signature.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

namespace gptc::test {

std::pair<ErrorCode, std::string> errorOf(const std::function<void()> &f) {
  try {
    f();
  } catch (const UserError &e) {
    return {e.diagnostics[0].code, e.what()};
  }
  return {ErrorCode::Internal, "no error"};
}

void expectHas(const std::string &text, const std::string &part, const char *file, int line) {
  if (text.find(part) == std::string::npos)
    ADD_FAILURE_AT(file, line) << "no \"" << part << "\" in: " << text;
}

void fill(DType t, void *at, size_t n, uint64_t seed, bool wild) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t x = mix(seed, i);
    if (!isFloat(t)) {
      storeElement(t, at, int64_t(i), t == DType::pred ? double(x & 1) : double(x >> 34));
      continue;
    }
    const int range = t == DType::f16 ? 16 : 24;
    double v = std::ldexp(double(int64_t(x) >> 16), -47 + int(x % uint64_t(range)) - range / 2);
    if (wild && x % 61 == 0)
      v = std::ldexp(v, t == DType::f16 ? -20 : -125);
    if (wild && x % 509 == 1)
      v = x & 64 ? HUGE_VAL : -HUGE_VAL;
    storeElement(t, at, int64_t(i), v);
  }
}

std::vector<std::string> JobPlace::environment(bool tcp) const {
  return {"TEST_HOST=" + host, "TEST_TOKEN=" + token, fmt::format("TEST_PORT={}", port),
          fmt::format("TEST_TCP={}", int(tcp))};
}
JobPlace JobPlace::ofEnvironment() {
  return {std::getenv("TEST_HOST"), std::getenv("TEST_TOKEN"), uint16_t(std::atoi(std::getenv("TEST_PORT")))};
}
JobPlace JobPlace::of(const RendezvousServer &server, const std::string &token) {
  const std::string where = server.where();
  std::string host = where.substr(0, where.rfind(':'));
  if (host.front() == '[')
    host = host.substr(1, host.size() - 2);
  return {host, token, server.port()};
}

JoinOptions joinOptions(std::chrono::milliseconds timeout) {
  return {.timeout = timeout, .tcp = std::string(std::getenv("TEST_TCP")) == "1"};
}

std::string printed(const std::string &text) {
  const bool said = text.rfind("Running main()", 0) == 0;
  return said ? text.substr(std::min(text.size(), text.find('\n') + 1)) : text;
}

std::unique_ptr<RendezvousClient> joinJob(int rank, int world) {
  const JobPlace p = JobPlace::ofEnvironment();
  return std::make_unique<RendezvousClient>(
      RendezvousClient::Options{p.host, p.port, p.token, rank, world, std::chrono::seconds(20)});
}

}  // namespace gptc::test
