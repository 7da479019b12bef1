#include "tools/load/load_run.h"

#include "support/descriptors.h"
#include "support/diagnostics.h"
#include "tools/load/completion_stream.h"
#include "tools/load/failure.h"
#include "tools/load/plain_text.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace gptc::load {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t mostErrorBody = size_t(64) << 10;  // bytes that are kept of an answer that is no stream

/// A request in flight.
struct Flight {
  Flight(const Server &server, const Workload::Request &r, int64_t index)
      : index(index), connection(server.addresses.front(), server.request("/v1/completions", r.body)) {}

  /// True once the answer is complete. `now`: seconds.
  bool advance(double now) {
    const HttpResponse &r = connection.response();
    const bool isComplete = connection.advance([&](std::string_view piece) {
      if (isStream(r))
        events.take(piece, [&](const std::string &data) { completion.take(data, now); });
      else
        errorBody += piece.substr(0, mostErrorBody - std::min(mostErrorBody, errorBody.size()));
    });
    if (isComplete)
      check();
    return isComplete;
  }

  const int64_t index;
  std::list<Flight>::iterator self;
  Connection connection;
  bool isWatchedForSending = true;
  EventStream events;
  CompletionStream completion;

private:
  std::string errorBody;

  static bool isStream(const HttpResponse &r) { return r.status() == 200 && r.contentType() == "text/event-stream"; }

  /// Throws Failure unless the complete answer is a complete stream.
  void check() const {
    const HttpResponse &r = connection.response();
    const nlohmann::json said = parseJsonOrDiscard(errorBody);
    if (r.status() != 200)
      throw Failure{fmt::format("HTTP {}", r.status()), said.is_object() ? messageOf(said) : plainText(errorBody)};
    if (!isStream(r))
      throw malformed(fmt::format("{} instead of text/event-stream",
                                  r.contentType().empty() ? "no type" : plainText(r.contentType())));
    if (!completion.isDone())
      throw malformed("the stream ends without [DONE]");
  }
};

class Run {
public:
  Run(const Server &server, const Workload &workload, const LoadOptions &options,
      const std::function<void(int64_t)> &progress)
      : server(server), workload(workload), options(options), progress(progress), poll(::epoll_create1(EPOLL_CLOEXEC)),
        timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
        due(workload.arrivals(options.isWarmup ? 0 : options.requests)) {
    GPTC_CHECK(poll >= 0 && timer >= 0, "{}", std::strerror(errno));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    result.outcomes.resize(size_t(options.requests));
  }
  ~Run() {
    ::close(timer);
    ::close(poll);
  }
  Run(const Run &) = delete;

  LoadResult run() {
    std::vector<epoll_event> events(64);
    while (ended < options.requests) {
      startSome();
      expire();
      if (ended == options.requests)
        break;
      setTimer();
      const int n = ::epoll_wait(poll, events.data(), int(events.size()), -1);
      GPTC_CHECK(n >= 0 || errno == EINTR, "{}", std::strerror(errno));
      for (int i = 0; i < n; ++i)
        if (events[size_t(i)].data.ptr)
          advance(*static_cast<Flight *>(events[size_t(i)].data.ptr));
    }
    double last = 0;
    for (const Outcome &o : result.outcomes)
      last = std::max(last, o.end);
    result.seconds = last - result.outcomes.front().start;
    return std::move(result);
  }

private:
  double now() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
  bool isOpenLoop() const { return !due.empty(); }
  double dueNext() const { return due[size_t(next)]; }

  bool mayStart() const {
    return next < options.requests && (isOpenLoop() ? dueNext() <= now() : int64_t(flights.size()) < options.clients);
  }

  /// Starts what may start now, but few at once: what comes meanwhile is to be noted when it comes.
  void startSome() {
    for (int i = 0; i < 32 && mayStart(); ++i)
      start();
  }

  void start() {
    const int64_t index = next++;
    const Workload::Request r = workload.request(index, options.isWarmup);
    Outcome &o = outcome(index);
    o.promptTokens = r.promptTokens;
    o.maxTokens = r.maxTokens;
    o.start = now();  // not before its text is made
    if (isOpenLoop())
      result.mostLate = std::max(result.mostLate, o.start - due[size_t(index)]);
    try {
      Flight &f = flights.emplace_back(server, r, index);
      f.self = std::prev(flights.end());
      watch(f, EPOLL_CTL_ADD);
      result.peakInFlight = std::max(result.peakInFlight, int64_t(flights.size()));
    } catch (const Failure &f) {
      fail(index, f);
    }
  }

  void watch(Flight &f, int operation) {
    epoll_event event{};
    event.events = f.isWatchedForSending ? EPOLLOUT : EPOLLIN;
    event.data.ptr = &f;
    ::epoll_ctl(poll, operation, f.connection.descriptor(), &event);
  }

  void advance(Flight &f) {
    const double time = now();
    try {
      if (f.advance(time)) {
        succeed(f, time);
        flights.erase(f.self);
      } else if (f.isWatchedForSending != f.connection.isSending()) {
        f.isWatchedForSending = f.connection.isSending();
        watch(f, EPOLL_CTL_MOD);
      }
    } catch (const Failure &failure) {
      fail(f.index, failure);
      flights.erase(f.self);
    }
  }

  /// Requests in the order of their starts have their deadlines in this order, too.
  void expire() {
    while (!flights.empty() && now() - outcome(flights.front().index).start >= options.timeout) {
      fail(flights.front().index, {"timed out", fmt::format("no whole answer within {:g} s", options.timeout)});
      flights.pop_front();
    }
  }

  /// Wakes for the next start or deadline.
  void setTimer() {
    double then = std::numeric_limits<double>::infinity();
    if (mayStart())
      then = 0;
    else if (isOpenLoop() && next < options.requests)
      then = dueNext();
    if (!flights.empty())
      then = std::min(then, outcome(flights.front().index).start + options.timeout);
    itimerspec at{};
    if (std::isfinite(then)) {
      const auto left = std::max<int64_t>(1, int64_t(std::ceil(1e9 * (then - now()))));  // 0 would mean never
      at.it_value.tv_sec = left / 1000000000;
      at.it_value.tv_nsec = left % 1000000000;
    }
    ::timerfd_settime(timer, 0, &at, nullptr);  // and what it had to say is said
  }

  Outcome &outcome(int64_t index) { return result.outcomes[size_t(index)]; }

  void succeed(Flight &f, double time) {
    Outcome &o = outcome(f.index);
    o.end = time;
    o.chunks = std::move(f.completion.chunks);
    o.byUsage = f.completion.outputTokens >= 0;
    o.outputTokens = o.byUsage ? f.completion.outputTokens : int64_t(o.chunks.size());
    if (f.completion.promptTokens >= 0)
      o.promptTokens = f.completion.promptTokens;
    progress(++ended);
  }

  void fail(int64_t index, const Failure &failure) {
    Outcome &o = outcome(index);
    o.end = now();
    o.failed = true;
    o.failure = failure.kind;
    o.detail = failure.detail;
    progress(++ended);
  }

  const Server &server;
  const Workload &workload;
  const LoadOptions options;
  const std::function<void(int64_t)> &progress;
  const int poll, timer;
  const std::vector<double> due;  // when each begins; none in a closed loop
  const Clock::time_point begin = Clock::now();
  LoadResult result;
  std::list<Flight> flights;  // in the order of their starts
  int64_t next = 0, ended = 0;
};

}  // namespace

LoadResult runLoad(const Server &server, const Workload &workload, const LoadOptions &options,
                   const std::function<void(int64_t)> &progress) {
  raiseDescriptorLimit();
  return Run(server, workload, options, progress).run();
}

}  // namespace gptc::load
