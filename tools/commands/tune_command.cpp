// gptc tune: shows progress, then a table.
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/terminal_line.h"
#include "support/words.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/commands/rank_options.h"
#include "tools/planner/cache_dir.h"
#include "tools/study/tune.h"

#include <atomic>
#include <csignal>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

/// Percent of the peak for its operands' type.
double shareOfPeak(const TunedKernel &k, const TuneReport &r, double ms) {
  const double peak = r.speed.peak(k.operands);
  return ms > 0 && peak > 0 ? 100 * k.flops / (1e-3 * ms) / peak : 0;
}

double shareOfMemory(const TunedKernel &k, const TuneReport &r, double ms) {
  return ms > 0 && r.speed.memory.best() > 0 ? 100 * k.bytes / (1e-3 * ms) / r.speed.memory.best() : 0;
}

void table(const TuneReport &r) {
  fmt::print("{:<36} {:<22} {:>5} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}  {}\n", "kernel", "shapes", "calls", "ms",
             "tuned", "ratio", "% peak", "% mem", "tried", "schedule");
  for (const TunedKernel &k : r.kernels) {
    if (!k.calls)
      continue;
    auto cut = [](const std::string &s, size_t most) { return s.size() > most ? s.substr(0, most - 2) + ".." : s; };
    fmt::print("{:<36} {:<22} {:>5} {:>9.3f} {:>9.3f} {:>7.3f} {:>6.1f}% {:>6.1f}% {:>6}  {}\n", cut(k.place, 36),
               cut(k.shapes, 22), k.calls, k.baseMs, k.ms, k.baseMs > 0 ? k.ms / k.baseMs : 1, shareOfPeak(k, r, k.ms),
               shareOfMemory(k, r, k.ms), k.known ? "known" : fmt::format("{}", k.tried),
               k.takenBack        ? "default (another was no faster in the step)"
               : k.best == k.base ? "default"
                                  : k.best.str());
  }
  fmt::print("\n{} kernels searched, {} known, {} taken back as no faster within the step; {:.1f} s\n", r.searched,
             r.known, r.takenBack, r.seconds);
  if (r.unsearched)
    fmt::print("no time was left for {} kernel{}: another `gptc tune` goes on there\n", r.unsearched,
               r.unsearched == 1 ? "" : "s");
  fmt::print("{} of {} trials known{}\n", r.knownTrials, r.trials,
             r.failed ? fmt::format("; {} candidates failed and are left out from now on", r.failed) : "");
  double mostOfPeak = 0, mostOfMemory = 0;
  for (const TunedKernel &k : r.kernels) {
    mostOfPeak = std::max(mostOfPeak, shareOfPeak(k, r, k.ms));
    mostOfMemory = std::max(mostOfMemory, shareOfMemory(k, r, k.ms));
  }
  fmt::print("{}", noteOnShares(mostOfPeak, mostOfMemory));
  if (r.speed.peakFp32 > 0)  // on a GPU neither steps nor peaks are measured
    fmt::print("peak {:.0f} GFLOP/s fp32, {:.0f} bf16; memory {:.0f} GB/s\n", r.speed.peakFp32 * 1e-9,
               r.speed.peakBf16 * 1e-9, r.speed.memory.best() * 1e-9);
  if (r.verdict.compared)
    fmt::print("step, kernels one by one: {}\n", inWords(r.verdict));
  else
    fmt::print("{}\n", r.note.empty() ? "the plan is that of default schedules" : r.note);
}

json jsonOf(const TuneReport &r) {
  json list = json::array();
  for (const TunedKernel &k : r.kernels)
    list.push_back({{"place", k.place},
                    {"shapes", k.shapes},
                    {"calls", k.calls},
                    {"instances", k.instances},
                    {"default_ms", k.baseMs},
                    {"ms", k.ms},
                    {"percent_of_peak", shareOfPeak(k, r, k.ms)},
                    {"percent_of_memory", shareOfMemory(k, r, k.ms)},
                    {"candidates", k.candidates},
                    {"tried", k.tried},
                    {"known", k.known},
                    {"raced", k.raced},
                    {"taken_back", k.takenBack},
                    {"nearest_raced", k.nearestRaced},
                    {"default", k.base.str()},
                    {"schedule", k.best.str()}});
  auto spread = [](const Spread &s) { return json{{"median", s.median}, {"least", s.least}, {"most", s.most}}; };
  return {{"seconds", r.seconds},
          {"searched", r.searched},
          {"known", r.known},
          {"unsearched", r.unsearched},
          {"taken_back", r.takenBack},
          {"trials", r.trials},
          {"known_trials", r.knownTrials},
          {"failed", r.failed},
          {"peak_fp32", r.speed.peakFp32},
          {"peak_bf16", r.speed.peakBf16},
          {"memory_bytes_per_s", r.speed.memory.best()},
          {"default_step_ms", spread(r.verdict.baseMs)},
          {"step_ms", spread(r.verdict.ms)},
          {"ratio", spread(r.verdict.ratio)},
          {"noise", r.verdict.noise},
          {"kept", !r.verdict.compared ? nullptr : json(r.verdict.better ? "tuned" : "default")},
          {"verdict", r.verdict.compared ? inWords(r.verdict) : r.note},
          {"kernels", list}};
}

std::atomic<bool> stopAsked = false;

/// Ctrl-C ends the search and prints its results; a second one ends the program.
void stopOnInterrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) { stopAsked = true; };
  action.sa_flags = int(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

/// A file that will be written later. Created now to detect errors; removed on an error if it did not exist.
class Reserved {
public:
  explicit Reserved(const std::string &file) : file(file) {
    if (file.empty())
      return;
    fresh = access(file.c_str(), F_OK) != 0;
    close(openAppending(file));
  }
  ~Reserved() {
    if (fresh && !used)
      unlink(file.c_str());
  }
  bool used = false;

private:
  const std::string file;
  bool fresh = false;
};

}  // namespace

void addTuneCommand(Command &app) {
  Command c = app.command("tune", "Measures schedules and records the fastest for `gptc compile`");
  struct Options {
    TuneRequest request;
    RankOptions ranks;
    std::string svg;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  addModel(c, o->request.modelFile, o->request.settings);
  c.option("--seconds", o->request.seconds, "Time for everything but measuring the machine [120]").within(1.0, 1e6);
  c.option("--threads", o->request.threads, "Threads (0: all cores)").within(0, 4096);
  o->ranks.addTo(c);
  c.flag("--again", o->request.again, "Measures also what is on record");
  c.option("--svg", o->svg, "Draws the kernels under the roofline into this file").type("FILE");
  c.flag("--json", o->json, "Prints JSON instead of a table");
  c.run([o] {
    o->ranks.set(o->request.modelFile, "", o->request.settings);
    o->request.ranksPerNode = o->ranks.ofMachine();
    // Measurements are useful only if they can be kept and drawn.
    o->request.cacheDir = neededCacheDir();
    TuningRecords(o->request.cacheDir).keep({});
    Reserved picture(o->svg);
    stopOnInterrupt();
    o->request.stop = &stopAsked;
    TerminalLine line;
    const TuneReport r = tune(o->request, [&](const TuneProgress &p) {
      line.show(fmt::format("{:.0f} s left, kernel {} of {}, {} trials ({} known), best {:.3f} of the default: {}",
                            std::max(0.0, p.secondsLeft), std::min(p.kernel + 1, p.kernels), p.kernels, p.trials,
                            p.knownTrials, p.best, p.name));
    });
    line.clear();
    if (!o->svg.empty()) {
      writeSynced(o->svg, rooflineSvg(r));
      picture.used = true;
    }
    if (o->json)
      fmt::print("{}\n", jsonOf(r).dump(2));
    else
      table(r);
    if (stopAsked)
      throw EndProgram(130);
  });
}

}  // namespace gptc
