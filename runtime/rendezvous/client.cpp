#include "runtime/rendezvous/rendezvous.h"
#include "runtime/rendezvous/wire.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace gptc {

using namespace wire;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct RendezvousClient::Impl {
  RendezvousClient &self;
  std::string server;  // host:port
  std::string local;
  Socket socket;
  Waker waker;
  milliseconds between{1000}, silence{0};
  std::function<std::string()> news;

  std::mutex mutex;  // guards the following members
  std::condition_variable changed;
  struct Answer {
    bool here = false;
    Status status = Status::ok;
    std::string value;
  };
  std::map<uint64_t, Answer> answers;
  uint64_t last = 0;
  std::string out;
  bool stop = false, left = false;
  RankFailure failure;  // written once, before `self.failed` points to it

  std::recursive_mutex calling;  // held while listeners are called
  struct Listener {
    std::function<void()> called;
  };
  std::vector<std::weak_ptr<Listener>> listeners;

  std::thread thread;

  explicit Impl(RendezvousClient &self) : self(self) {}

  void join(const Options &o) {
    server = hostAndPort(o.host, o.port);
    silence = o.silence;
    news = o.news;
    const auto until = Clock::now() + o.timeout;
    auto pause = milliseconds(20);
    for (;;) {
      std::string why;
      socket = connectTo(o.host, o.port, until, why);
      if (socket.fd >= 0 && greet(o, until, why))
        break;
      if (Clock::now() + pause > until)
        throw UserError(
            ErrorCode::RendezvousFailed,
            fmt::format("rank {} of {} on {} does not reach the rendezvous at {} in {:.1f} s: {}", o.rank, o.world,
                        hostName(), server, o.timeout.count() / 1e3, why),
            "see whether gptrun still runs where that address is, and whether a firewall lets this machine in");
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, milliseconds(500));
    }
    local = localPlace(socket.fd).host;
    // A crashed host does not close its connections; unacknowledged data reveals it.
    const int on = 1;
    const unsigned silence = unsigned(between.count() * 4);
    setsockopt(socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
    thread = std::thread([this] { run(); });
  }

  /// False if another attempt makes sense.
  bool greet(const Options &o, Clock::time_point until, std::string &why) {
    std::string hi = Writer(Kind::hello)
                         .number(magic)
                         .number(int32_t(o.rank))
                         .number(int32_t(o.world))
                         .string(o.token)
                         .string(hostName())
                         .done();
    std::string in;
    for (;;) {
      if (!sendSome(socket.fd, hi, why))
        return false;
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
      pollfd p{socket.fd, POLLIN, 0};
      if (left <= 0 || poll(&p, 1, int(left)) == 0) {
        why = "it accepts the connection and does not answer";
        return false;
      }
      const bool open = receiveSome(socket.fd, in, maxFrame, why);
      size_t at = 0;
      std::optional<size_t> bad;
      if (const auto frame = takeFrame(in, at, maxFrame, bad)) {
        Reader r(*frame);
        const auto kind = r.number<Kind>();
        if (kind == Kind::refused)
          throw UserError(ErrorCode::RendezvousFailed,
                          fmt::format("the rendezvous at {} refuses rank {} of {} on {}: {}", server, o.rank, o.world,
                                      hostName(), r.string().str()),
                          "all ranks of a job must be started by one gptrun, each once, and take what it hands them");
        if (kind == Kind::welcome) {
          between = milliseconds(std::clamp<int64_t>(r.number<int64_t>(), 1, news ? 500 : 60000));
          received = in.substr(at);
          return true;
        }
        bad = 0;
      }
      if (bad || !open) {
        why = bad ? "what answers there is no rendezvous of this version of gptc" : why;
        return false;
      }
    }
  }

  std::string received;  // used only by the thread

  void fail(RankFailure f) {
    {
      std::lock_guard lock(mutex);
      if (self.failed.load() || left)
        return;
      failure = std::move(f);
      self.failed.store(&failure, std::memory_order_release);
    }
    changed.notify_all();
    std::lock_guard lock(calling);
    for (const auto &l : listeners)
      if (auto called = l.lock())
        called->called();
  }

  void lost(const std::string &why) {
    fail({-1, ErrorCode::RankFailed, fmt::format("the rendezvous at {} is gone: {}", server, why)});
  }

  /// False if the frame is no message of a server.
  bool take(llvm::StringRef frame) {
    Reader r(frame);
    switch (r.number<Kind>()) {
    case Kind::reply: {
      const auto id = r.number<uint64_t>();
      const auto status = r.number<Status>();
      const llvm::StringRef value = r.string();
      if (!r.whole())
        return false;
      std::lock_guard lock(mutex);
      if (auto a = answers.find(id); a != answers.end())
        a->second = {true, status, value.str()};
      changed.notify_all();
      return true;
    }
    case Kind::failure: {
      const int rank = r.number<int32_t>();
      const auto code = ErrorCode(r.number<int32_t>()), cause = ErrorCode(r.number<int32_t>());
      const llvm::StringRef text = r.string(), help = r.string();
      if (!r.whole())
        return false;
      fail({rank, code, text.str(), cause, help.str()});
      return true;
    }
    case Kind::beat:
      return r.whole();
    default:
      return false;
    }
  }

  void run() {
    std::string why, sending;
    auto beats = Clock::now(), heard = beats;
    for (bool open = true;;) {
      // At first, what arrived with the welcome.
      size_t at = 0;
      std::optional<size_t> bad;
      while (const auto frame = takeFrame(received, at, maxFrame, bad))
        if (!take(*frame))
          return lost("it sent a message that is none of ours");
      received.erase(0, at);
      if (bad)
        return lost(fmt::format("it sent a message of {} bytes", *bad));
      if (!open)
        return lost(why);
      const auto now = Clock::now();
      if (silence.count() && now - heard > silence)
        return lost(fmt::format("nothing was heard of it for {:.1f} s", silence.count() / 1e3));
      {
        std::lock_guard lock(mutex);
        sending += std::exchange(out, "");
        if (stop) {  // first receive the answer to this rank's own report
          sendSome(socket.fd, sending, why);
          return;
        }
      }
      if (now >= beats && sending.empty())
        sending += Writer(Kind::beat).string(news ? news() : "").done();
      if (now >= beats)
        beats = now + between;
      if (!sendSome(socket.fd, sending, why))
        return lost(why);
      const auto wait = std::chrono::duration_cast<milliseconds>(beats - now).count();
      const size_t before = received.size();
      pollfd fds[2] = {{socket.fd, short(sending.empty() ? POLLIN : POLLIN | POLLOUT), 0}, {waker.event.fd, POLLIN, 0}};
      poll(fds, 2, int(wait + 1));
      if (fds[1].revents)
        waker.clear();
      open = receiveSome(socket.fd, received, maxFrame + 4, why);
      // If this process itself was stopped, the silence was its own.
      if (const auto woken = Clock::now(); received.size() > before || woken > beats + silence / 2)
        heard = woken;
    }
  }

  [[noreturn]] void throwFailure() const {
    throw UserError(failure.code, failure.text, "see what that rank says: the first that failed is the cause");
  }

  /// Sends a request and waits for the answer. The server enforces the time-out; the client allows some more for its
  /// answer.
  Answer ask(uint64_t id, const std::string &message, milliseconds wait, llvm::StringRef what) {
    std::unique_lock lock(mutex);
    if (self.failed.load())
      throwFailure();
    out += message;
    waker.wake();
    const bool done =
        changed.wait_for(lock, wait + milliseconds(5000), [&] { return answers[id].here || self.failed.load(); });
    const Answer a = answers[id];
    answers.erase(id);
    if (a.here && a.status == Status::wrong)
      throw UserError(ErrorCode::RendezvousFailed,
                      fmt::format("rank {} of {}: {} at {}: {}", self.rank, self.world, what.str(), server, a.value),
                      "this is more than a job of gptc needs: see what else writes to its rendezvous");
    if (a.here)
      return a;
    if (done)
      throwFailure();
    throw UserError(ErrorCode::CollectiveTimeout,
                    fmt::format("rank {} of {}: the rendezvous at {} does not answer {}", self.rank, self.world, server,
                                what.str()),
                    "gptrun may be stopped on that machine (continue it), or the network be down");
  }
  uint64_t next() {
    std::lock_guard lock(mutex);
    answers[++last];
    return last;
  }
};

RendezvousClient::RendezvousClient(const Options &o)
    : rank(o.rank), world(o.world), impl(std::make_unique<Impl>(*this)) {
  impl->join(o);
}

RendezvousClient::~RendezvousClient() {
  {
    std::lock_guard lock(impl->mutex);
    impl->stop = true;
  }
  impl->waker.wake();
  if (impl->thread.joinable())
    impl->thread.join();
}

static void checkKey(llvm::StringRef key) {
  GPTC_CHECK(!key.empty() && key.size() <= maxKey, "a key of {} bytes", key.size());
}

static constexpr milliseconds soon{5000};  // for requests that the server answers at once

void RendezvousClient::set(llvm::StringRef key, llvm::StringRef value) {
  checkKey(key);
  if (key.size() + value.size() > RendezvousServer::maxMessage)
    throw UserError(ErrorCode::RendezvousFailed,
                    fmt::format("rank {} of {}: {} has {} bytes, the rendezvous at {} takes {}", rank, world, key.str(),
                                value.size(), impl->server, RendezvousServer::maxMessage),
                    "send data by collectives");
  const uint64_t id = impl->next();
  impl->ask(id, Writer(Kind::set).number(id).string(key).string(value).done(), soon, "to set " + key.str());
}

std::string RendezvousClient::get(llvm::StringRef key, milliseconds timeout) {
  checkKey(key);
  const uint64_t id = impl->next();
  auto a = impl->ask(id, Writer(Kind::get).number(id).string(key).number(int64_t(timeout.count())).done(), timeout,
                     "who waits for " + key.str());
  if (a.status == Status::late)
    throw UserError(ErrorCode::CollectiveTimeout,
                    fmt::format("rank {} of {} on {}: no rank has set {} at the rendezvous {} in {:.1f} s", rank, world,
                                hostName(), key.str(), impl->server, timeout.count() / 1e3),
                    "another rank is dead, stopped or stuck: see what the others say");
  return a.value;
}

int64_t RendezvousClient::add(llvm::StringRef key, int64_t delta) {
  checkKey(key);
  const uint64_t id = impl->next();
  auto a = impl->ask(id, Writer(Kind::add).number(id).string(key).number(delta).done(), soon, "to count " + key.str());
  int64_t n = 0;
  GPTC_CHECK(!llvm::StringRef(a.value).getAsInteger(10, n), "{}", a.value);
  return n;
}

void RendezvousClient::barrier(llvm::StringRef name, milliseconds timeout) {
  checkKey(name);
  const uint64_t id = impl->next();
  auto a = impl->ask(id, Writer(Kind::barrier).number(id).string(name).number(int64_t(timeout.count())).done(), timeout,
                     "who waits at " + name.str());
  if (a.status != Status::late)
    return;
  const std::string text = fmt::format("rank {} of {} on {}: barrier {}: not all ranks came in {:.1f} s; missing: {}",
                                       rank, world, hostName(), name.str(), timeout.count() / 1e3, a.value);
  const char *help = "a missing rank is dead, stopped or stuck";
  report(ErrorCode::CollectiveTimeout, text, help);
  throw UserError(ErrorCode::CollectiveTimeout, text, help);
}

void RendezvousClient::leave() {
  const uint64_t id = impl->next();
  impl->ask(id, Writer(Kind::leave).number(id).done(), soon, "to leave");
  std::lock_guard lock(impl->mutex);
  impl->left = true;
}

const RankFailure *RendezvousClient::failure(milliseconds wait) const {
  std::unique_lock lock(impl->mutex);
  impl->changed.wait_for(lock, wait, [&] { return failed.load() != nullptr; });
  return failed.load();
}

void RendezvousClient::report(ErrorCode code, llvm::StringRef text, llvm::StringRef help) {
  if (failure())
    return;
  std::lock_guard lock(impl->mutex);
  impl->out += Writer(Kind::report)
                   .number(int32_t(code))
                   .string(text.take_front(1 << 16))
                   .string(help.take_front(1 << 12))
                   .done();
  impl->waker.wake();
}

std::shared_ptr<void> RendezvousClient::onFailure(std::function<void()> called) {
  auto listener = std::make_shared<Impl::Listener>(Impl::Listener{std::move(called)});
  std::lock_guard lock(impl->calling);
  std::erase_if(impl->listeners, [](const auto &l) { return l.expired(); });
  impl->listeners.push_back(listener);
  if (failure())
    listener->called();
  // The releasing thread waits for a call that is under way.
  std::recursive_mutex &calling = impl->calling;
  return std::shared_ptr<void>(listener.get(), [&calling, listener](void *) mutable {
    std::lock_guard lock(calling);
    listener.reset();
  });
}

const std::string &RendezvousClient::localAddress() const { return impl->local; }
const std::string &RendezvousClient::where() const { return impl->server; }

}  // namespace gptc
