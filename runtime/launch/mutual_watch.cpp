#include "runtime/launch/mutual_watch.h"

#include "runtime/launch/pulse_json.h"

#include <csignal>
#include <cstdlib>
#include <unistd.h>

namespace gptc {

using nlohmann::json;
using std::chrono::milliseconds;

// More patient than a reader of shared memory, because heartbeats arrive late over a network.
static constexpr milliseconds between{250}, silence{10000}, age{1000};

MutualWatch::MutualWatch() : host(hostName()) {
  ::setenv("GPTC_PULSE", std::to_string(::dup(own.fd())).c_str(), 1);  // Pulse closes the duplicate
}

std::string MutualWatch::news() const {
  return json{{"host", host}, {"pid", ::getpid()}, {"pulse", pulseJson(own.read())}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

void MutualWatch::judge(RendezvousServer &server, int world) {
  sigset_t all, old;  // the training thread handles signals
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  judging = std::thread([this, &server, world] {
    RankWatch watch(size_t(world), {.silence = silence});
    std::vector<RankStatus> ranks(static_cast<size_t>(world));
    for (std::unique_lock lock(mutex);
         !server.failure() && !changed.wait_for(lock, between, [&] { return stopped; });) {
      const std::vector<std::string> news = server.news();
      for (size_t i = 0; i < ranks.size(); ++i) {
        ranks[i].rank = int(i);
        ranks[i].age = age;
        try {
          if (news[i].empty())
            continue;
          const json j = parseJson(news[i]);
          ranks[i].host = j.at("host");
          ranks[i].pid = j.at("pid");
          ranks[i].pulse = pulseOf(j.at("pulse"));
        } catch (const json::exception &) {
          // Ignored: the rank will seem silent.
        }
      }
      watch.look(ranks, RankWatch::Clock::now());
      if (const auto stuck = watch.stuck()) {
        const RankStatus &r = ranks[size_t(stuck->rank)];
        server.fail({r.rank, ErrorCode::RankFailed, fmt::format("{} {}{}", nameOf(r), stuck->what, placeOf(r))});
      }
    }
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void MutualWatch::stop() {
  {
    std::lock_guard lock(mutex);
    stopped = true;
  }
  changed.notify_all();
  if (judging.joinable())
    judging.join();
}

}  // namespace gptc
