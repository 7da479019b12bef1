#include "runtime/rendezvous/rendezvous.h"
#include "runtime/rendezvous/wire.h"

#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <thread>

namespace gptc {

using namespace wire;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr size_t maxWaiting = 256;             // waiting requests per rank
constexpr size_t maxUnsent = size_t(4) << 20;  // bytes that a rank has not received yet
constexpr size_t maxReasons = 16;

struct Connection {
  Socket socket;
  std::string peer;  // host:port
  int rank = -1;     // -1: has not presented the token
  std::string host;  // the rank's name for its machine
  bool left = false;
  Clock::time_point heard;
  std::string in, out;
  std::string over;  // why it will be dropped; empty: it will not
};

/// A request that waits: get() for its key, barrier() for the other ranks.
struct Waiting {
  int rank;
  uint64_t id;
  Clock::time_point until;
};

}  // namespace

struct RendezvousServer::Impl {
  const Options options;
  Socket listener;
  Place place;
  Waker waker;
  std::thread thread;

  // Used only by the server's thread:
  std::list<Connection> connections;
  std::map<std::string, std::string, std::less<>> values;
  size_t stored = 0;
  std::map<std::string, std::deque<Waiting>, std::less<>> waitingFor;
  std::map<std::string, std::vector<Waiting>, std::less<>> barriers;
  std::set<int> come;
  bool told = false;  // all clients know the failure

  mutable std::mutex mutex;  // guards the following members
  bool stop = false;
  std::optional<RankFailure> failed;
  int joined = 0, left = 0;
  bool allKnow = false;
  std::vector<std::string> news;  // by rank
  std::vector<std::string> reasons;

  explicit Impl(const Options &o) : options(o), news(size_t(std::max(o.world, 1))) {
    GPTC_CHECK(o.token.size() >= 32 && o.world >= 1, "a token of 128 bits and at least one rank");
    std::string why;
    listener = listenAt(o.address, o.port, why);
    if (listener.fd < 0)
      throw UserError(ErrorCode::RendezvousFailed,
                      fmt::format("cannot listen for ranks at {}: {}", hostAndPort(o.address, o.port), why),
                      o.port ? "choose another port, or 0 for any that is free; the address must be one of this machine"
                             : "the address must be one of this machine; `ip address` lists them");
    place = localPlace(listener.fd);
    thread = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    waker.wake();
    thread.join();
  }

  void fail(const RankFailure &f) {
    std::lock_guard lock(mutex);
    if (!failed)
      failed = f;
  }
  std::string nameOf(const Connection &c) const {
    return fmt::format("rank {} of {} on {} ({})", c.rank, options.world, c.host, c.peer);
  }

  Connection *ofRank(int rank) {
    for (Connection &c : connections)
      if (c.rank == rank && c.over.empty() && !c.left)
        return &c;
    return nullptr;
  }
  void answer(int rank, uint64_t id, Status status, llvm::StringRef value) {
    if (Connection *c = ofRank(rank))
      c->out += Writer(Kind::reply).number(id).number(status).string(value).done();
  }

  void accept() {
    for (;;) {
      Socket s(::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (s.fd < 0)
        return;
      // Unauthenticated connections displace each other, never ranks.
      int unauthenticated = 0;
      Connection *oldest = nullptr;
      for (Connection &c : connections)
        if (c.rank < 0 && c.over.empty()) {
          ++unauthenticated;
          oldest = oldest ? oldest : &c;
        }
      if (unauthenticated >= maxUnauthenticated)
        oldest->over = "too many connections without the token";
      Connection &c = connections.emplace_back();
      c.peer = remotePlace(s.fd).str();
      c.socket = std::move(s);
      c.heard = Clock::now();
    }
  }

  /// Handles the greeting; if it is valid, the connection becomes a rank's.
  void greet(Connection &c, llvm::StringRef frame) {
    Reader r(frame);
    const auto kind = r.number<Kind>();
    const auto said = r.number<uint32_t>();
    const auto rank = r.number<int32_t>(), world = r.number<int32_t>();
    const std::string token = r.string().str(), host = r.string().str();
    if (!r.whole() || kind != Kind::hello) {
      c.over = "what it sent is no greeting of gptc";
      return;
    }
    std::string refusal;
    if (!equalInConstantTime(token, options.token))
      refusal = "it did not present the job's token";
    else if (world != options.world)
      refusal = fmt::format("it came for a job of {} ranks, this one has {}", world, options.world);
    else if (rank < 0 || rank >= options.world)
      refusal = fmt::format("there is no rank {} among {}", rank, options.world);
    else if (come.count(rank))
      refusal = fmt::format("rank {} has come already", rank);
    else if (said != magic) {
      refusal = "it is of another version of gptc";
      come.insert(rank);  // others need not wait for it
      fail({rank, ErrorCode::RankFailed,
            fmt::format("rank {} of {} on {} ({}) is of another version of gptc", rank, options.world,
                        host.substr(0, 256), c.peer),
            ErrorCode::RanksDiffer, "copy one build to all machines"});
    }
    if (!refusal.empty()) {
      c.out = Writer(Kind::refused).string(refusal).done();
      std::string why;
      sendSome(c.socket.fd, c.out, why);
      c.over = refusal;
      return;
    }
    come.insert(rank);
    c.rank = rank;
    c.host = host.substr(0, 256);
    c.out += Writer(Kind::welcome).number(int64_t(options.silence.count() / 4)).done();
    std::lock_guard lock(mutex);
    ++joined;
    if (failed)
      c.out += notice(*failed);
  }

  std::string notice(const RankFailure &f) const {
    return Writer(Kind::failure)
        .number(int32_t(f.rank))
        .number(int32_t(f.code))
        .number(int32_t(f.cause))
        .string(f.text)
        .string(f.help)
        .done();
  }

  /// False if there is no room.
  bool store(llvm::StringRef key, llvm::StringRef value) {
    auto at = values.find(key);
    const size_t before = at == values.end() ? 0 : key.size() + at->second.size() + 64;
    const size_t after = key.size() + value.size() + 64;
    if (stored - before + after > maxStored)
      return false;
    stored = stored - before + after;
    values[key.str()] = value.str();
    if (auto w = waitingFor.find(key); w != waitingFor.end()) {
      for (const Waiting &x : w->second)
        answer(x.rank, x.id, Status::ok, value);
      waitingFor.erase(w);
    }
    return true;
  }
  size_t waitingOf(int rank) const {
    size_t n = 0;
    for (const auto &[key, all] : waitingFor)
      for (const Waiting &w : all)
        n += w.rank == rank;
    for (const auto &[key, all] : barriers)
      for (const Waiting &w : all)
        n += w.rank == rank;
    return n;
  }

  void takeBeat(Connection &c, Reader &r) {
    const llvm::StringRef text = r.string();
    if (!r.whole() || text.size() > maxNews) {
      c.over = "it sent a heartbeat that is none";
      return;
    }
    {
      std::lock_guard lock(mutex);
      news[size_t(c.rank)] = text.str();
    }
    c.out += Writer(Kind::beat).done();
  }

  void takeReport(Connection &c, Reader &r) {
    const auto code = ErrorCode(r.number<int32_t>());
    const std::string text = r.string().str(), help = r.string().str();
    if (!r.whole()) {
      c.over = "it sent a report that is none";
      return;
    }
    // An error of one rank alone, such as a full disk, is to the others the failure of that rank.
    if (exitCodeOf(code) == exitCodeOf(ErrorCode::RankFailed))
      fail({c.rank, code, text, code, help});
    else
      fail({c.rank, ErrorCode::RankFailed, fmt::format("{} failed: {}", nameOf(c), text), code, help});
  }

  // Requests, which are answered now or later. False for a message that is none of ours.

  /// Stores a value, and answers with `said` or that there is no room.
  void storeFor(int rank, uint64_t id, llvm::StringRef key, llvm::StringRef value, llvm::StringRef said) {
    if (store(key, value))
      answer(rank, id, Status::ok, said);
    else
      answer(rank, id, Status::wrong, fmt::format("the values of all ranks exceed {} MiB", maxStored >> 20));
  }

  bool set(Connection &c, uint64_t id, llvm::StringRef key, Reader &r) {
    const llvm::StringRef value = r.string();
    if (!r.whole())
      return false;
    storeFor(c.rank, id, key, value, "");
    return true;
  }

  bool add(Connection &c, uint64_t id, llvm::StringRef key, Reader &r) {
    const auto delta = r.number<int64_t>();
    if (!r.whole())
      return false;
    int64_t now = 0;
    if (auto at = values.find(key); at != values.end() && llvm::StringRef(at->second).getAsInteger(10, now)) {
      answer(c.rank, id, Status::wrong, "the key holds no number");
      return true;
    }
    const std::string text = std::to_string(int64_t(uint64_t(now) + uint64_t(delta)));
    storeFor(c.rank, id, key, text, text);
    return true;
  }

  bool wait(Kind kind, Connection &c, uint64_t id, llvm::StringRef key, Reader &r) {
    const auto time = r.number<int64_t>();
    if (!r.whole() || time < 0)
      return false;
    if (waitingOf(c.rank) >= maxWaiting) {
      answer(c.rank, id, Status::wrong, "too many requests wait");
      return true;
    }
    const Waiting w{c.rank, id, Clock::now() + milliseconds(std::min<int64_t>(time, 1000ll * 86400 * 365))};
    if (kind == Kind::get) {
      if (auto at = values.find(key); at != values.end())
        answer(c.rank, id, Status::ok, at->second);
      else
        waitingFor[key.str()].push_back(w);
      return true;
    }
    auto &all = barriers[key.str()];
    all.push_back(w);
    if (all.size() == size_t(options.world)) {
      for (const Waiting &x : all)
        answer(x.rank, x.id, Status::ok, "");
      barriers.erase(key.str());
    }
    return true;
  }

  bool leave(Connection &c, uint64_t id, Reader &r) {
    if (!r.whole())
      return false;
    answer(c.rank, id, Status::ok, "");
    c.left = true;
    std::lock_guard lock(mutex);
    ++left;
    return true;
  }

  void serve(Connection &c, llvm::StringRef frame) {
    Reader r(frame);
    const auto kind = r.number<Kind>();
    if (kind == Kind::beat)
      return takeBeat(c, r);
    if (kind == Kind::report)
      return takeReport(c, r);
    const auto id = r.number<uint64_t>();
    const llvm::StringRef key = kind == Kind::leave ? llvm::StringRef() : r.string();
    if (key.size() > maxKey) {
      c.over = "it sent a key that is too long";
      return;
    }
    const bool known = kind == Kind::set                            ? set(c, id, key, r)
                       : kind == Kind::add                          ? add(c, id, key, r)
                       : kind == Kind::get || kind == Kind::barrier ? wait(kind, c, id, key, r)
                       : kind == Kind::leave                        ? leave(c, id, r)
                                                                    : false;
    if (!known)
      c.over = "it sent a message that is none of ours";
  }

  void read(Connection &c) {
    std::string why;
    const bool open = receiveSome(c.socket.fd, c.in, maxFrame + 4, why);
    size_t at = 0;
    std::optional<size_t> badLength;
    while (c.over.empty()) {
      const auto frame = takeFrame(c.in, at, c.rank < 0 ? maxHello : maxFrame, badLength);
      if (!frame)
        break;
      c.heard = Clock::now();
      if (c.rank < 0)
        greet(c, *frame);
      else
        serve(c, *frame);
    }
    c.in.erase(0, at);
    if (badLength)
      c.over = fmt::format("it sent a message of {} bytes; at most {} are allowed", *badLength,
                           c.rank < 0 ? maxHello : maxMessage);
    else if (!open && c.over.empty())
      c.over = why;
  }

  /// Answers those of `all` that have waited too long, and lowers `next` to when the others will have.
  template <typename All>
  void answerLate(All &all, Clock::time_point now, llvm::StringRef value, Clock::time_point &next) {
    for (size_t i = all.size(); i-- > 0;)
      if (all[i].until <= now) {
        answer(all[i].rank, all[i].id, Status::late, value);
        all.erase(all.begin() + long(i));
      } else {
        next = std::min(next, all[i].until);
      }
  }

  /// Answers requests whose time-out has passed. Returns when the next one is due.
  Clock::time_point expire() {
    const auto now = Clock::now();
    auto next = now + std::chrono::seconds(60);
    for (auto at = waitingFor.begin(); at != waitingFor.end();) {
      answerLate(at->second, now, "", next);
      at = at->second.empty() ? waitingFor.erase(at) : std::next(at);
    }
    for (auto at = barriers.begin(); at != barriers.end();) {
      const auto &all = at->second;
      std::string missing;
      for (int r = 0; r < options.world; ++r)
        if (std::none_of(all.begin(), all.end(), [&](const Waiting &w) { return w.rank == r; }))
          missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
      answerLate(at->second, now, missing, next);
      at = all.empty() ? barriers.erase(at) : std::next(at);
    }
    for (Connection &c : connections) {
      if (c.left || !c.over.empty())
        continue;
      const auto until = c.heard + (c.rank < 0 ? options.greeting : options.silence);
      if (until <= now)
        c.over = c.rank < 0 ? "it did not present the token in time"
                            : fmt::format("nothing was heard of it for {:.1f} s", options.silence.count() / 1e3);
      next = std::min(next, until);
    }
    return next;
  }

  void drop() {
    for (auto c = connections.begin(); c != connections.end();) {
      if (c->over.empty() && c->out.size() > maxUnsent)
        c->over = "it does not take what it asked for";
      if (c->over.empty()) {
        ++c;
        continue;
      }
      if (c->rank >= 0 && !c->left) {
        fail({c->rank, ErrorCode::RankFailed, fmt::format("{} is gone: {}", nameOf(*c), c->over)});
        for (auto *all : {&barriers})
          for (auto &[name, waiting] : *all)
            std::erase_if(waiting, [&](const Waiting &w) { return w.rank == c->rank; });
        for (auto &[key, waiting] : waitingFor)
          std::erase_if(waiting, [&](const Waiting &w) { return w.rank == c->rank; });
      }
      if (c->rank < 0) {
        std::lock_guard lock(mutex);
        reasons.push_back(fmt::format("{}: {}", c->peer, c->over));
        if (reasons.size() > maxReasons)
          reasons.erase(reasons.begin());
      }
      c = connections.erase(c);
    }
  }

  void tell() {
    std::optional<RankFailure> f;
    {
      std::lock_guard lock(mutex);
      f = failed;
    }
    if (!f || std::exchange(told, true))
      return;
    for (Connection &c : connections)
      if (c.rank >= 0)
        c.out += notice(*f);
  }

  void run() {
    for (;;) {
      {
        std::lock_guard lock(mutex);
        if (stop)
          return;
      }
      const Clock::time_point next = expire();
      drop();
      tell();
      std::vector<pollfd> fds = {{waker.event.fd, POLLIN, 0}, {listener.fd, POLLIN, 0}};
      for (const Connection &c : connections)
        fds.push_back(
            {c.socket.fd, short(c.in.size() < maxFrame + 4 ? POLLIN | (c.out.empty() ? 0 : POLLOUT) : POLLOUT), 0});
      const auto left = std::chrono::duration_cast<milliseconds>(next - Clock::now()).count();
      poll(fds.data(), fds.size(), int(std::clamp<int64_t>(left + 1, 1, 60000)));
      // If this process itself was stopped, the silence was its own.
      const auto now = Clock::now();
      if (now > next + options.silence / 2)
        for (Connection &c : connections)
          c.heard = now;
      if (fds[0].revents)
        waker.clear();
      size_t i = 2;
      for (auto c = connections.begin(); c != connections.end(); ++c, ++i) {
        if (c->over.empty() && fds[i].revents & (POLLIN | POLLHUP | POLLERR))
          read(*c);
      }
      for (Connection &c : connections) {
        std::string why;
        if (c.over.empty() && !sendSome(c.socket.fd, c.out, why))
          c.over = why;
      }
      if (told && come.size() == size_t(options.world)) {
        std::lock_guard lock(mutex);
        allKnow = std::all_of(connections.begin(), connections.end(),
                              [](const Connection &c) { return c.rank < 0 || !c.over.empty() || c.out.empty(); });
      }
      if (fds[1].revents)
        accept();
    }
  }
};

RendezvousServer::RendezvousServer(const Options &options) : impl(std::make_unique<Impl>(options)) {}
RendezvousServer::~RendezvousServer() = default;

uint16_t RendezvousServer::port() const { return impl->place.port; }
std::string RendezvousServer::where() const {
  const std::string &host = impl->place.host;
  return hostAndPort(host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host, impl->place.port);
}
int RendezvousServer::joined() const {
  std::lock_guard lock(impl->mutex);
  return impl->joined;
}
int RendezvousServer::left() const {
  std::lock_guard lock(impl->mutex);
  return impl->left;
}
void RendezvousServer::fail(const RankFailure &f) {
  impl->fail(f);
  impl->waker.wake();
}
std::optional<RankFailure> RendezvousServer::failure() const {
  std::lock_guard lock(impl->mutex);
  return impl->failed;
}
std::vector<std::string> RendezvousServer::news() const {
  std::lock_guard lock(impl->mutex);
  return impl->news;
}
bool RendezvousServer::allKnowFailure() const {
  std::lock_guard lock(impl->mutex);
  return impl->allKnow;
}
std::vector<std::string> RendezvousServer::dropped() const {
  std::lock_guard lock(impl->mutex);
  return impl->reasons;
}

}  // namespace gptc
