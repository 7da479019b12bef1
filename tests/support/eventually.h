// Waiting for what comes without an event, as what another process does.
#pragma once

#include <chrono>
#include <thread>

namespace gptc::test {

/// Whether a condition comes to hold, which is looked at every few milliseconds. The limit only ends a test that has
/// failed already: a machine may be busy. A test that is about a time names its own.
template <class Condition>
bool eventually(Condition holds, std::chrono::steady_clock::duration limit = std::chrono::minutes(1)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end)
      return holds();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace gptc::test
