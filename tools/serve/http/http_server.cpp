// The plug-in of tools/serve/http.h, on cpp-httplib: that parses requests, routes and frames answers. Ours are the
// threads, one for each connection, and the reading of sockets: by cpp-httplib's, a client that sends a byte every few
// seconds would never end, a body in chunks could have any size, and no descriptor might be above 1023.
#include "tools/serve/http.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <poll.h>
#include <set>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>

namespace gptc {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Whether one of the descriptors has one of its events by then.
template <size_t n> bool awaitAny(pollfd (&fds)[n], Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = ::poll(fds, n, int(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready > 0)
      return true;
    if (left <= 0 || (ready < 0 && errno != EINTR))
      return false;
  }
}

bool awaitEvents(int fd, short events, Clock::time_point deadline) {
  pollfd fds[] = {{fd, events, 0}};
  return awaitAny(fds, deadline);
}

/// How far the server is with its end, for threads that wait for their clients.
class Ending {
public:
  explicit Ending(double lastWrite) : lastWrite(lastWrite) {}
  ~Ending() { ::close(began); }
  Ending(const Ending &) = delete;
  bool isUsable() const { return began >= 0; }

  void drain() {
    if (hasBegun.exchange(true))
      return;
    const uint64_t one = 1;
    // It is never read, so that it wakes all threads, and those that come to wait later.
    if (::write(began, &one, sizeof(one)) < 0) {
      // Cannot be: the count is 0.
    }
  }
  void stop() {
    drain();
    last = after(lastWrite).time_since_epoch().count();
  }
  bool isDraining() const { return hasBegun; }
  /// When the last answer must be sent.
  Clock::time_point end() const { return Clock::time_point(Clock::duration(last)); }

  /// Whether the connection takes more within so many seconds, or so many of the end.
  bool awaitRoom(int fd, double seconds) const {
    const Clock::time_point patience = after(seconds);
    pollfd fds[] = {{fd, POLLOUT, 0}, {began, POLLIN, 0}};
    if (!awaitAny(fds, patience))
      return false;
    // Of the time that it had not taken anything before the end began, nothing counts.
    return fds[0].revents != 0 || awaitEvents(fd, POLLOUT, std::min({patience, after(lastWrite), end()}));
  }

private:
  const double lastWrite;
  const int began = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // readable since then
  std::atomic<bool> hasBegun = false;
  std::atomic<Clock::rep> last = Clock::time_point::max().time_since_epoch().count();
};

/// Counts a request while it is being answered.
class Answering {
public:
  explicit Answering(std::atomic<int64_t> &count) : count(count) { ++count; }
  ~Answering() { --count; }
  Answering(const Answering &) = delete;

private:
  std::atomic<int64_t> &count;
};

class Connection final : public httplib::Stream, public HttpClient {
public:
  Connection(int fd, const HttpOptions &options, const Ending &ending)
      : held(*options.bytes), fd(fd), options(options), ending(ending) {}

  /// Waits for a request. False if none comes.
  bool await() {
    finish();
    phase = Phase::idle;
    deadline = after(options.idle);
    budget = mostHeaders;
    lineLength = 0;
    if (from == till && !fill())
      return false;
    phase = Phase::headers;
    begun = Clock::now();
    deadline = after(options.headers);
    return true;
  }
  /// A request was answered: nothing is held for it any more.
  void finish() {
    answering.reset();
    held.release();
  }
  /// No more is read: wakes await(), from another thread, and ends a request that is not complete.
  void endReading() { ::shutdown(fd, SHUT_RD); }
  /// Ends the sending and waits so long for the client to do so: to close with bytes unread would take back the answer.
  void close(double lingering = 1) {
    ::shutdown(fd, SHUT_WR);
    const Clock::time_point end = after(lingering);
    char buffer[1 << 14];
    while (Clock::now() < end && awaitEvents(fd, POLLIN, end) && ::recv(fd, buffer, sizeof(buffer), 0) > 0) {
    }
    ::close(fd);
  }
  bool isGone() const override {
    pollfd p{fd, POLLRDHUP, 0};
    return ::poll(&p, 1, 0) > 0;
  }

  bool is_readable() const override { return from < till || !isGone(); }
  bool is_writable() const override { return ending.awaitRoom(fd, options.write); }
  /// cpp-httplib reads the headers byte by byte; the body begins behind an empty line.
  ssize_t read(char *to, size_t size) override {
    if (from == till && !fill())
      return -1;
    size = std::min({size, till - from, budget, phase == Phase::headers ? size_t(1) : size});
    isTooLarge |= budget == 0 && phase == Phase::body;
    if (size == 0)
      return -1;
    if (phase == Phase::body && !held.take(int64_t(size))) {
      lacksRoom = true;
      return -1;
    }
    std::copy_n(buffer + from, size, to);
    from += size;
    budget -= size;
    if (phase == Phase::headers)
      countHeader(*to);
    return ssize_t(size);
  }
  ssize_t write(const char *data, size_t size) override {
    for (size_t done = 0; done < size;) {
      if (Clock::now() > ending.end())  // who takes a little now and then would go on for as long as he likes
        return -1;
      const ssize_t n = ::send(fd, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0)
        done += size_t(n);
      else if ((errno != EAGAIN && errno != EINTR) || !ending.awaitRoom(fd, options.write))
        return -1;
    }
    return ssize_t(size);
  }
  void get_remote_ip_and_port(std::string &ip, int &port) const override { nameOf(::getpeername, ip, port); }
  void get_local_ip_and_port(std::string &ip, int &port) const override { nameOf(::getsockname, ip, port); }
  /// cpp-httplib, built to use select(), refuses descriptors above 1023. It does nothing else with this.
  socket_t socket() const override { return 0; }

  Clock::time_point begun;  // of the request
  bool mustClose = false;   // a part of the request may be unread
  bool isTooLarge = false;  // its body
  bool lacksRoom = false;   // for it, among all that the server holds
  ByteBudget::Share held;   // for the request and its answer
  std::optional<Answering> answering;

private:
  enum class Phase { idle, headers, body };
  static constexpr size_t mostHeaders = 64 << 10, mostFraming = 64 << 10;

  /// For cpp-httplib headers end with a line of CR and LF alone.
  void countHeader(char c) {
    if (c == '\n' && lineLength == 1 && last == '\r')
      beginBody();
    lineLength = c == '\n' ? 0 : lineLength + 1;
    last = c;
  }
  void beginBody() {
    phase = Phase::body;
    budget = options.mostBody + mostFraming;
    deadline = after(options.body);
  }
  bool fill() {
    from = till = 0;
    ssize_t n = 0;
    do {
      if (!awaitEvents(fd, POLLIN, deadline))
        return false;
      n = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    till = size_t(std::max<ssize_t>(0, n));
    return n > 0;
  }
  template <class Get> void nameOf(Get get, std::string &ip, int &port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    char host[NI_MAXHOST] = "", service[NI_MAXSERV] = "0";
    if (get(fd, reinterpret_cast<sockaddr *>(&address), &size) == 0)
      ::getnameinfo(reinterpret_cast<sockaddr *>(&address), size, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    ip = host;
    port = std::atoi(service);
  }

  const int fd;
  const HttpOptions &options;
  const Ending &ending;
  Phase phase = Phase::idle;
  Clock::time_point deadline;
  size_t budget = 0, lineLength = 0;  // bytes that may still come; those of the header line so far
  char last = 0;                      // of these
  char buffer[1 << 12];
  size_t from = 0, till = 0;  // of the buffer, what is not read yet
};

thread_local Connection *current = nullptr;
thread_local bool isOneTooMany = false;

/// A thread for each connection, up to a number of them.
class Threads : public httplib::TaskQueue {
public:
  explicit Threads(int64_t most) : most(most) {}
  void enqueue(std::function<void()> task) override {
    if (!begin(task)) {
      isOneTooMany = true;
      task();
      isOneTooMany = false;
    }
  }
  void shutdown() override {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return count == 0; });
  }

private:
  bool begin(const std::function<void()> &task) {
    const std::lock_guard lock(mutex);
    if (count >= most)
      return false;
    try {
      std::thread([this, task] {
        task();
        const std::lock_guard lock(mutex);
        --count;
        ended.notify_all();
      }).detach();
    } catch (const std::system_error &) {
      return false;
    }
    ++count;
    return true;
  }
  const int64_t most;
  std::mutex mutex;
  std::condition_variable ended;
  int64_t count = 0;
};

class Server final : public HttpServer, private httplib::Server {
public:
  explicit Server(const HttpOptions &o) : options(o), ending(o.lastWrite) {
    new_task_queue = [this] { return new Threads(options.mostConnections); };
    set_tcp_nodelay(true);
    set_payload_max_length(options.mostBody);
    set_keep_alive_timeout(time_t(options.idle));
    set_keep_alive_max_count(1 << 20);
    // Not SO_REUSEPORT, by which another program of this user could take a part of the clients.
    set_socket_options([](int fd) {
      const int yes = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    for (const auto &[method, path] : options.routes) {
      auto handler = [this](const httplib::Request &q, httplib::Response &r) { answer(q, r); };
      const std::string pattern = std::regex_replace(path, std::regex("\\."), "\\.");
      if (method == "GET")
        Get(pattern, handler);
      else
        Post(pattern, handler);
    }
    set_expect_100_continue_handler(
        [this](const httplib::Request &q, httplib::Response &r) { return tooLarge(q) ? r.status = 413 : 100; });
    // Before the body is read. One that is compressed could become any size.
    set_pre_routing_handler([](const httplib::Request &q, httplib::Response &r) {
      r.status = q.has_header("Content-Encoding") ? 415 : problemOfFraming(q);
      if (r.status)
        return HandlerResponse::Handled;
      r.status = -1;
      // Of a body in chunks, cpp-httplib may leave a rest that is no request.
      current->mustClose |= q.has_header("Transfer-Encoding");
      return HandlerResponse::Unhandled;
    });
    set_error_handler(HandlerWithResponse([this](const httplib::Request &q, httplib::Response &r) {
      if (!r.body.empty())
        return HandlerResponse::Unhandled;
      current->mustClose = true;
      if (current->isTooLarge)
        r.status = 413;
      if (current->lacksRoom)
        r.status = 503;
      r.set_header("Connection", "close");
      const std::string why = whyRefused(q, r);  // may set the status
      give(options.refuse(r.status, why), q, r);
      return HandlerResponse::Handled;
    }));
    set_exception_handler([this](const httplib::Request &q, httplib::Response &r, const std::exception_ptr &) {
      current->mustClose = true;
      give(options.refuse(500, "the server failed at this request"), q, r);
    });
    if (options.log)
      set_logger([this](const httplib::Request &q, const httplib::Response &r) {
        options.log({.client = q.remote_addr,
                     .method = q.method,
                     .path = q.path,
                     .status = r.status,
                     .seconds = std::chrono::duration<double>(Clock::now() - current->begun).count()});
      });
  }

  bool bind(std::string &why) {
    if (!ending.isUsable()) {
      why = std::strerror(errno);
      return false;
    }
    boundPort = options.port ? options.port : bind_to_any_port(options.host);
    errno = 0;
    const bool isBound = options.port ? bind_to_port(options.host, options.port) : boundPort > 0;
    // More clients may connect at once than cpp-httplib expects.
    if (isBound && ::listen(svr_sock_, SOMAXCONN) == 0)
      return true;
    why = errno ? std::strerror(errno) : "no such address here";
    return false;
  }
  int port() const override { return boundPort; }
  bool run() override {
    isStarted = true;
    if (!isStopping)
      listen_after_bind();
    isEnded = true;
    return isStopping;
  }
  void drain() override { ending.drain(); }
  int64_t answering() const override { return requests; }
  void stop() override {
    isStopping = true;
    ending.stop();
    while (isStarted && !isEnded && !is_running())
      std::this_thread::yield();
    httplib::Server::stop();
    const std::lock_guard lock(mutex);
    for (Connection *c : connections)
      c->endReading();
  }

private:
  bool process_and_close_socket(socket_t fd) override {
    Connection c(fd, options, ending);
    current = &c;
    if (isOneTooMany) {
      refuseOneTooMany(c);
    } else {
      enter(c);
      try {
        // Ranges are for files; cpp-httplib would cut them out of any answer.
        const auto withoutRanges = [](httplib::Request &q) { q.ranges.clear(); };
        for (bool isLast = false; !isLast && !c.mustClose && c.await();)
          if (!process_request(c, isStopping, isLast, withoutRanges) || isStopping)
            break;
      } catch (...) {  // as for want of memory: this connection ends
      }
      leave(c);
    }
    current = nullptr;
    c.close(isOneTooMany ? 0 : 1);  // the former in the thread that accepts connections
    return true;
  }
  void enter(Connection &c) {
    const std::lock_guard lock(mutex);
    connections.insert(&c);
    if (isStopping)
      c.endReading();
  }
  void leave(Connection &c) {
    c.finish();
    const std::lock_guard lock(mutex);
    connections.erase(&c);
  }
  void refuseOneTooMany(Connection &c) {
    const HttpAnswer a = options.refuse(503, "too many connections");
    c.write_format("HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                   "Retry-After: 1\r\nConnection: close\r\n\r\n",
                   a.type.c_str(), a.body.size());
    c.httplib::Stream::write(a.body);
  }

  void answer(const httplib::Request &q, httplib::Response &r) {
    if (!ending.isDraining())
      current->answering.emplace(requests);
    give(options.handler(requestOf(q), *current), q, r);
  }

  static HttpRequest requestOf(const httplib::Request &q) {
    return {.method = q.method,
            .path = q.path,
            .body = q.body,
            .host = q.get_header_value("Host"),
            .contentType = q.get_header_value("Content-Type"),
            .authorization = q.get_header_value("Authorization")};
  }
  void give(HttpAnswer a, const httplib::Request &q, httplib::Response &r) const {
    bool hasRoom = true;
    if (a.stream && q.version == "HTTP/1.0")  // has no chunks
      hasRoom = collect(a);
    else if (!a.stream && a.body.size() > surelyBuffered)
      hasRoom = current->held.take(int64_t(a.body.size()));
    if (!hasRoom)
      a = options.refuse(503, noRoom());
    r.status = a.status;
    for (const auto &[name, value] : a.headers)
      r.set_header(name, value);
    if (!a.stream)
      return r.set_content(a.body, a.type);
    r.set_chunked_content_provider(a.type, [stream = std::move(a.stream)](size_t, httplib::DataSink &sink) {
      try {
        stream([&](std::string_view piece) { return piece.empty() || sink.write(piece.data(), piece.size()); });
      } catch (...) {
        return false;
      }
      sink.done();
      return true;
    });
  }
  /// Makes a whole answer of a stream. False if there is no room for it.
  static bool collect(HttpAnswer &a) {
    bool hasRoom = true;
    std::exchange(a.stream, nullptr)([&](std::string_view piece) {
      hasRoom = hasRoom && current->held.take(int64_t(piece.size()));
      if (hasRoom)
        a.body += piece;
      return hasRoom && !current->isGone();
    });
    return hasRoom;
  }
  std::string noRoom() const {
    return "requests and answers of all clients fill the " + std::to_string(options.bytes->limit() >> 20) +
           " MiB that there are for them: ask again";
  }
  /// The status for a request of which it is not certain where it ends; 0 if it is.
  static int problemOfFraming(const httplib::Request &q) {
    const size_t lengths = q.get_header_value_count("Content-Length"),
                 encodings = q.get_header_value_count("Transfer-Encoding");
    const std::string length = q.get_header_value("Content-Length");
    const bool isPlain = length.size() < 16 &&
                         std::all_of(length.begin(), length.end(), [](unsigned char c) { return std::isdigit(c); });
    if (lengths + encodings > 1 || !isPlain || (lengths == 1 && length.empty()) ||
        (encodings == 1 && q.get_header_value("Transfer-Encoding") != "chunked"))
      return 400;
    if (q.method == "GET" || q.method == "HEAD")
      return encodings > 0 || (lengths > 0 && length != "0") ? 400 : 0;
    return lengths + encodings == 0 ? 411 : 0;
  }
  bool tooLarge(const httplib::Request &q) const {
    return q.has_header("Content-Length") && q.get_header_value<uint64_t>("Content-Length") > options.mostBody;
  }
  std::string whyRefused(const httplib::Request &q, httplib::Response &r) const {
    const bool isKnown = std::any_of(options.routes.begin(), options.routes.end(),
                                     [&](const auto &route) { return route.second == q.path; });
    if (r.status == 404 && isKnown)
      r.status = 405;
    switch (r.status) {
    case 404:
      return "there is no " + q.path.substr(0, 200);
    case 405:
      return q.path + " does not take " + q.method;
    case 411:
      return "a body needs a Content-Length";
    case 413:
      return "the body is larger than " + std::to_string(options.mostBody >> 10) + " KiB";
    case 414:
      return "the path is too long";
    case 415:
      return "compressed bodies are not taken";
    case 503:
      return noRoom();
    default:
      return "this is no request of HTTP/1.1, or it did not come in time";
    }
  }

  /// So much a connection's buffer takes whatever its client does.
  static constexpr size_t surelyBuffered = 16 << 10;
  const HttpOptions options;
  Ending ending;
  std::atomic<int64_t> requests = 0;  // that are being answered
  int boundPort = 0;
  std::atomic<bool> isStarted = false, isStopping = false, isEnded = false;
  std::mutex mutex;
  std::set<Connection *> connections;
};

}  // namespace

}  // namespace gptc

extern "C" __attribute__((visibility("default"))) gptc::HttpServer *GPTC_HTTP_ENTRY(const gptc::HttpOptions &options,
                                                                                    std::string &why) {
  auto server = std::make_unique<gptc::Server>(options);
  return server->bind(why) ? server.release() : nullptr;
}
