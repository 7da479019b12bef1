// What runs at the moment, for whoever reports a fault of memory in it.
#pragma once

#include <atomic>
#include <string>

namespace gptc {

/// Says so for as long as it lives, to all threads.
class FaultPlace {
public:
  explicit FaultPlace(std::string place) : place(std::move(place)) { current = this->place.c_str(); }
  ~FaultPlace() { current = nullptr; }
  FaultPlace(const FaultPlace &) = delete;
  /// Null where nobody has said anything. To be read by a signal handler.
  static const char *now() { return current; }

private:
  const std::string place;
  static inline std::atomic<const char *> current{nullptr};
};

}  // namespace gptc
