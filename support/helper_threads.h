// Threads that share work, as many as the system gives.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace gptc {

/// Calls help(1), ..., help(count - 1), each on a thread of its own, then `meanwhile` and help(0) on this one, and
/// waits for all; help(0) is called for any `count`. Neither may throw. If the system refuses a thread, fewer help, so
/// each must take work until there is none.
template <typename Help> void withHelpers(size_t count, const Help &help, const std::function<void()> &meanwhile = {}) {
  std::vector<std::thread> helpers;
  helpers.reserve(count);
  try {
    for (size_t i = 1; i < count; ++i)
      helpers.emplace_back([&help, i] { help(i); });
  } catch (...) {  // also where there is no memory for a thread: those that run must be joined
  }
  if (meanwhile)
    meanwhile();
  help(0);
  for (std::thread &t : helpers)
    t.join();
}

}  // namespace gptc
