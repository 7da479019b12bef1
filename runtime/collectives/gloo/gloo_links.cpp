// Links over TCP by Gloo: the whole plug-in, and the only file that includes Gloo's headers. Messages are Gloo's
// unbound buffers: the sender is notified when the receiver is ready, and data goes straight to its destination.
//
// Gloo throws exceptions; this file converts all of them to LinkErrors. Gloo writes to sockets whose other end may be
// gone, so SIGPIPE is blocked in the threads that do. Its data connections have no secret: they listen on one interface
// until the peer has connected, and the peer must then prove that it knows what only ranks can know
// (runtime/collectives/gloo.cpp).
#include "runtime/collectives/links.h"

#include <gloo/common/error.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace gptc {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

struct GlooMessage : Links::Message {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sends = false;
};

void describe(LinkError &e, LinkError::Kind kind, const char *text) {
  e.kind = kind;
  if (const char *end = *text == '[' ? std::strstr(text, "] ") : nullptr)
    text = end + 2;  // after Gloo's file and line
  std::strncpy(e.text, text, sizeof e.text - 1);
}

/// Runs `f`; converts an exception to a LinkError: late if `limit` has passed, else gone.
template <class F> bool guarded(LinkError &e, milliseconds limit, F f) noexcept {
  const auto begin = Clock::now();
  auto kind = [&] { return limit.count() > 0 && Clock::now() - begin >= limit ? LinkError::late : LinkError::gone; };
  try {
    return f();
  } catch (const std::exception &x) {
    describe(e, kind(), x.what());
  } catch (...) {
    describe(e, kind(), "an unknown error of Gloo");
  }
  return false;
}

class WithoutSigpipe {
public:
  WithoutSigpipe() {
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    if (!was)
      while (sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

private:
  sigset_t pipe, before;
  bool was;
};

/// One device for all groups of a process, because it has a thread.
std::shared_ptr<gloo::transport::Device> deviceFor(const LinksOptions &o) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<gloo::transport::Device>> devices;
  std::lock_guard lock(mutex);
  auto &known = devices[*o.interface ? std::string("interface ") + o.interface : std::string(o.address)];
  std::shared_ptr<gloo::transport::Device> device = known.lock();
  if (!device) {
    gloo::transport::tcp::attr attr(*o.interface ? "" : o.address);
    attr.iface = o.interface;
    device = gloo::transport::tcp::CreateDevice(attr);
    known = device;
  }
  return device;
}

class GlooLinks final : public Links {
public:
  explicit GlooLinks(const LinksOptions &o) : rank(o.rank), world(o.world), patience(o.milliseconds) {
    const WithoutSigpipe guard;
    device = deviceFor(o);
    context = device->createContext(rank, world);
    context->setTimeout(milliseconds(std::max<int64_t>(o.milliseconds / 5, 1)));  // Gloo waits five times as long
    for (int peer = 0; peer < world; ++peer)
      if (peer != rank)
        context->createPair(peer);
  }
  ~GlooLinks() override { context.reset(); }

  // Each message wakes threads of both ranks a few times, so few large messages are best.
  size_t messageBytes() const noexcept override { return 2 << 20; }
  size_t messages() const noexcept override { return 4; }

  size_t address(int peer, char *bytes, size_t most) noexcept override {
    try {
      const std::vector<char> a = context->getPair(peer)->address().bytes();
      if (a.size() > most)
        return 0;
      std::copy(a.begin(), a.end(), bytes);
      return a.size();
    } catch (...) {
      return 0;
    }
  }

  bool connect(int peer, const char *bytes, size_t n, LinkError &e) noexcept override {
    const WithoutSigpipe guard;
    return guarded(e, milliseconds(patience), [&] {
      context->getPair(peer)->connect(std::vector<char>(bytes, bytes + n));
      return true;
    });
  }

  Message *send(int peer, uint64_t slot, const void *at, size_t n, LinkError &e) noexcept override {
    return start(peer, slot, const_cast<void *>(at), n, true, e);
  }
  Message *receive(int peer, uint64_t slot, void *at, size_t n, LinkError &e) noexcept override {
    return start(peer, slot, at, n, false, e);
  }

  bool wait(Message *message, int64_t milliseconds_, LinkError &e) noexcept override {
    auto *m = static_cast<GlooMessage *>(message);
    const milliseconds limit(std::max<int64_t>(milliseconds_, 1));
    {
      std::lock_guard lock(mutex);
      if (aborted) {
        describe(e, LinkError::aborted, "aborted");
        return false;
      }
      waiting = m;
    }
    bool done = guarded(e, limit, [&] {
      if (m->sends ? m->buffer->waitSend(limit) : m->buffer->waitRecv(limit))
        return true;
      describe(e, LinkError::aborted, "aborted");
      return false;
    });
    std::lock_guard lock(mutex);
    waiting = nullptr;
    return done;
  }

  void free(Message *m) noexcept override { delete static_cast<GlooMessage *>(m); }

  void abort() noexcept override {
    std::lock_guard lock(mutex);
    aborted = true;
    if (waiting && waiting->sends)
      waiting->buffer->abortWaitSend();
    else if (waiting)
      waiting->buffer->abortWaitRecv();
  }

  void close() noexcept override {
    for (int peer = 0; context && peer < world; ++peer)
      if (peer != rank) {
        LinkError e;
        guarded(e, milliseconds(0), [&] {
          if (auto &pair = context->getPair(peer))
            pair->close();
          return true;
        });
      }
  }

  void leave() noexcept override { context.reset(); }

private:
  const int rank, world;
  const int64_t patience;
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
  std::mutex mutex;
  bool aborted = false;
  GlooMessage *waiting = nullptr;

  Message *start(int peer, uint64_t slot, void *at, size_t n, bool sends, LinkError &e) noexcept {
    const WithoutSigpipe guard;
    auto m = std::unique_ptr<GlooMessage>(new (std::nothrow) GlooMessage);
    const bool begun = m && guarded(e, milliseconds(0), [&] {
                         m->sends = sends;
                         m->buffer = context->createUnboundBuffer(at, n);
                         if (sends)
                           m->buffer->send(peer, slot);
                         else
                           m->buffer->recv(peer, slot);
                         return true;
                       });
    return begun ? m.release() : nullptr;
  }
};

}  // namespace

}  // namespace gptc

extern "C" __attribute__((visibility("default"))) gptc::Links *gptc_links_1(const gptc::LinksOptions &o,
                                                                            gptc::LinkError &e) {
  gptc::Links *links = nullptr;
  gptc::guarded(e, gptc::milliseconds(0), [&] {
    links = new gptc::GlooLinks(o);
    return true;
  });
  return links;
}
