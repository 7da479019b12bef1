// Ports for tests in which someone else, as torchrun does, says where ranks meet.
#pragma once

namespace gptc::test {

/// Two free TCP ports of 127.0.0.1, `port` and the one behind it, that no other Port of this machine has while this one
/// lives. They lie below those that systems choose themselves (ip_local_port_range), so that only a program that asks
/// for just these could come between; and nobody listens at them yet.
class Port {
public:
  Port();
  ~Port();
  Port(const Port &) = delete;
  Port &operator=(const Port &) = delete;
  int number() const { return port; }

private:
  int lock = -1, port = 0;
};

}  // namespace gptc::test
