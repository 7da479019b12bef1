// The work that is running, for the report of a memory fault.
#pragma once

#include <atomic>
#include <string>

namespace gptc {

/// Sets the current place for all threads as long as it lives.
class FaultPlace {
public:
  explicit FaultPlace(std::string place) : place(std::move(place)) { current = this->place.c_str(); }
  ~FaultPlace() { current = nullptr; }
  FaultPlace(const FaultPlace &) = delete;
  /// The current place; null if none is set. Safe in a signal handler.
  static const char *now() { return current; }

private:
  const std::string place;
  static inline std::atomic<const char *> current{nullptr};
};

}  // namespace gptc
