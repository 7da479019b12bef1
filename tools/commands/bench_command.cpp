// gptc bench: measures on this machine.
#include "support/json.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/planner/cache_dir.h"
#include "tools/study/ablate.h"
#include "tools/study/explain.h"

#include <utility>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

void printRow(const Ablation &a) {
  if (!a.skipped.empty()) {
    fmt::print("{:<22} {}\n", a.name, a.skipped);
    return;
  }
  fmt::print("{:<22} {:>9.2f} {:>9.2f}..{:<9.2f} {:>9.2f} {:>7.3f}x ({:.3f}..{:.3f}) {:>7.3f}x {:>12}\n", a.name,
             a.ms.median, a.ms.least, a.ms.most, a.baseMs.median, a.slowdown.median, a.slowdown.least, a.slowdown.most,
             a.predictedMs / a.predictedBaseMs, signedBytes(double(a.arena - a.baseArena)));
  std::fflush(stdout);
}

json jsonOf(const Spread &s) { return {{"median", s.median}, {"least", s.least}, {"most", s.most}}; }

json jsonOf(const Ablation &a) {
  if (!a.arena)
    return {{"name", a.name}, {"skipped", a.skipped}};
  json j = {{"name", a.name},
            {"arena_bytes", a.arena},
            {"base_arena_bytes", a.baseArena},
            {"predicted_ms", a.predictedMs},
            {"predicted_base_ms", a.predictedBaseMs}};
  if (!a.skipped.empty()) {
    j["skipped"] = a.skipped;
    return j;
  }
  j["ms"] = jsonOf(a.ms);
  j["base_ms"] = jsonOf(a.baseMs);
  j["slowdown"] = jsonOf(a.slowdown);
  j["loss"] = a.loss;
  j["base_loss"] = a.baseLoss;
  return j;
}

}  // namespace

static void addAblate(Command &bench) {
  Command c = bench.command("ablate", "Measures the training step with each optimisation off");
  struct Options {
    AblationRequest request;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  o->request.cacheDir = defaultCacheDir();
  addModel(c, o->request.modelFile, o->request.settings);
  c.option("--steps", o->request.steps, "Timed steps of each variant, in turn with the same number of base [5]")
      .within(1, 100000);
  c.option("--only", o->request.only, "Measures this variant; may be repeated").type("NAME").repeated();
  c.option("--threads", o->request.threads, "Threads (0: all cores)").within(0, 4096);
  c.flag("--json", o->json, "Prints JSON instead of a table");
  c.run([o] {
    bool headed = false;
    std::vector<Ablation> all = ablate(o->request, [&](const Ablation &a) {
      if (o->json)
        return;
      if (!std::exchange(headed, true))  // not earlier, so that errors appear before the table
        fmt::print("{:<22} {:>9} {:>20} {:>9} {:>8} {:^16} {:>8} {:>12}\n", "variant", "ms/step", "least..most",
                   "all on", "slower", "least..most", "predicted", "arena");
      printRow(a);
    });
    if (!o->json)
      return;
    json list = json::array();
    for (const Ablation &a : all)
      list.push_back(jsonOf(a));
    fmt::print("{}\n", list.dump(2));
  });
}

void addBenchCommand(Command &app) {
  Command bench = app.command("bench", "Measures this machine, a model's kernels and steps on it, and servers");
  bench.requireCommand();
  addMeasurements(bench);
  addMatmulBench(bench);
  addClusterBench(bench);
  addServeBench(bench);
  addAblate(bench);
}

}  // namespace gptc
