// A bound on the bytes that a server holds for all its clients together. The server's plug-in includes this.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gptc {

/// What counts: bodies of requests as they come, until their answers are sent; whole answers, and the parts of streams
/// that are made, until the system has taken them to be sent. Other memory of a request is some times its bytes.
class ByteBudget {
public:
  /// `most`: bytes.
  explicit ByteBudget(int64_t most) : most(most) {}
  ByteBudget(const ByteBudget &) = delete;
  int64_t limit() const { return most; }
  int64_t held() const { return bytes; }

  /// What is held for one purpose, by one thread at a time. It is given back with this.
  class Share {
  public:
    explicit Share(ByteBudget &of) : of(&of) {}
    Share(Share &&other) noexcept : of(other.of), bytes(std::exchange(other.bytes, 0)) {}
    Share &operator=(Share &&other) noexcept {
      std::swap(of, other.of);
      std::swap(bytes, other.bytes);
      return *this;
    }
    ~Share() { release(); }
    int64_t held() const { return bytes; }
    /// Holds so many bytes more. False, and nothing is held, if there is no room for them.
    bool take(int64_t more) {
      int64_t before = of->bytes;
      do
        if (more > of->most - before)
          return false;
      while (!of->bytes.compare_exchange_weak(before, before + more));
      bytes += more;
      return true;
    }
    /// The same of what is there already, room or not.
    void add(int64_t more) {
      of->bytes += more;
      bytes += more;
    }
    void release() { of->bytes -= std::exchange(bytes, 0); }

  private:
    ByteBudget *of;
    int64_t bytes = 0;
  };

private:
  const int64_t most;
  std::atomic<int64_t> bytes = 0;
};

}  // namespace gptc
