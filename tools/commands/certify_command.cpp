// gptc certify and gptc verify: a run's steps computed again, to write down or to compare what they compute.
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/train/replay.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/compiler/compile.h"
#include "tools/planner/cache_dir.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/FileSystem.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct ReplayOptions {
  std::string run, plan, data;
  std::optional<std::string> steps;
  int64_t every = 10;
  unsigned threads = 0;
  bool json = false;
};

/// Steps of "A..B" or "A", counted from 1.
std::pair<int64_t, int64_t> parseSteps(const std::string &text) {
  const auto [first, last] = llvm::StringRef(text).split("..");
  int64_t from = 0, to = 0;
  const bool one = llvm::StringRef(text).find("..") == llvm::StringRef::npos;
  if (first.getAsInteger(10, from) || (one ? first : last).getAsInteger(10, to) || from < 1 || to < from)
    throw UserError(ErrorCode::Usage, fmt::format("--steps {} is no span of steps", text),
                    "for example --steps 101..200, or --steps 150 for one");
  return {from, to};
}

/// Throws UserError for outer steps: a replay calls the functions of a step alone, and one rank has no other's part.
void requireNoOuterSteps(const Plan &plan, const std::string &help) {
  if (const int64_t every = fact<&ParallelFacts::syncEvery>(*plan.planned); every > 1)
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("a run with parallel.sync_every = {} cannot be replayed", every), help);
}

/// The plan for one rank, whose bits are those of the given one. One that has to be made lies in a temporary folder.
Plan forOneRank(Plan plan) {
  const int64_t ranks = Mesh::of(*plan.planned).ranks();
  if (ranks == 1)
    return plan;
  llvm::SmallString<128> folder;
  if (const std::error_code e = llvm::sys::fs::createUniqueDirectory("gptc-replay", folder))
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot make a temporary folder: {}", e.message()),
                    "set TMPDIR to a folder that you may write");
  struct Removed {
    const std::string path;
    ~Removed() { removeTree(path); }
  } removed{std::string(folder.str())};
  PlanForRanks(plan, 1).write(removed.path + "/plan", defaultCacheDir());
  Plan one = loadPlan(removed.path + "/plan");
  if (resultIdentity(one) != resultIdentity(plan))
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("a run of {} ranks whose bits one rank does not give cannot be replayed", ranks),
                    kReplayable);
  one.run = plan.run;
  return one;
}

std::string describe(const ReplayReport &r) {
  auto count = [](int64_t n, const char *one, const char *many) {
    return fmt::format("{} {}", n, n == 1 ? one : many);
  };
  return fmt::format("{} certified, {} of the log, {} compared", count(r.certified, "step", "steps"),
                     count(r.logged, "line", "lines"), count(r.checkpoints, "checkpoint", "checkpoints"));
}

ReplayReport replayWith(Plan plan, const ReplayOptions &o, ReplayRequest request) {
  Session session(forOneRank(std::move(plan)), defaultCacheDir(), o.threads);
  request.outDir = o.run;
  request.say = [&o](const std::string &text) {
    if (!o.json)
      fmt::print("replaying {}\n", text), std::fflush(stdout);
  };
  return replay(session, request);
}

/// Whether two origins give the same bits. The results of a plan from a module do not tell of the manifest's seed.
bool isSameRun(const CertifiedOrigin &a, const CertifiedOrigin &b) {
  return a.data.str() == b.data.str() && (a.manifest == b.manifest || (a.results == b.results && a.results != a.plan));
}

/// The parts of a certificate. Those that give the same bits of the same data are one, of the first one's plan; kernels
/// of other plans are not comparable.
std::vector<Certificate::Part> spansOf(const Certificate &certificate) {
  std::vector<Certificate::Part> spans;
  for (const Certificate::Part &part : certificate.parts) {
    if (spans.empty() || !isSameRun(spans.back().origin, part.origin)) {
      spans.push_back(part);
      continue;
    }
    for (CertifiedStep step : part.steps) {
      if (part.origin.plan != spans.back().origin.plan)
        step.kernels.clear();
      spans.back().steps.push_back(std::move(step));
    }
  }
  return spans;
}

void verify(const ReplayOptions &o) {
  const Certificate certificate = Certificate::read(o.run);
  const auto [from, to] = o.steps ? parseSteps(*o.steps) : std::pair<int64_t, int64_t>(1, INT64_MAX);
  ReplayReport all;
  all.begin = -1;
  if (!certificate.problem.empty())
    all.differences.push_back(certificate.problem);
  const std::vector<Certificate::Part> spans = spansOf(certificate);
  for (const Certificate::Part &span : spans) {
    const bool isLast = &span == &spans.back();
    ReplayRequest request{.origin = span.origin, .certified = span.steps};
    // The first certified step at or behind the last one that is asked for tells of that one, too. Behind the last one
    // log and checkpoints tell.
    const auto end = std::find_if(span.steps.begin(), span.steps.end(), [&](const auto &s) { return s.step >= to; });
    if (end != span.steps.end())
      request.to = end->step;
    else if (isLast && certificate.problem.empty())
      request.to = std::min(to, std::max(lastStepOf(o.run), span.steps.empty() ? 0 : span.steps.back().step));
    else
      request.to = span.steps.empty() ? 0 : span.steps.back().step;
    request.from = std::max(from, span.origin.since + 1);
    if (request.from > request.to || span.origin.since >= to)
      continue;
    Plan plan = Certificate::loadPlanOf(o.run, span.origin);
    requireNoOuterSteps(plan, fmt::format("{}; --steps names others of this run, if there are any: its outer steps "
                                          "begin behind step {}",
                                          kReplayable, span.origin.since));
    if (!o.data.empty())
      plan.run.trainData = absolutePath(o.data);
    const ReplayReport report = replayWith(std::move(plan), o, std::move(request));
    if (all.begin < 0)
      all.begin = report.begin;
    all.end = std::max(all.end, report.end);
    all.certified += report.certified;
    all.logged += report.logged;
    all.checkpoints += report.checkpoints;
    all.differences.insert(all.differences.end(), report.differences.begin(), report.differences.end());
    if (!report.differences.empty())
      break;
  }
  if (all.begin < 0 && all.differences.empty())
    throw UserError(ErrorCode::Usage,
                    fmt::format("{} has no step to replay{}", o.run, o.steps ? " in " + *o.steps : ""),
                    fmt::format("its log and checkpoints go up to step {}", lastStepOf(o.run)));
  if (o.json) {
    const json j = {{"equal", all.differences.empty()}, {"first_step", all.begin + 1}, {"last_step", all.end},
                    {"certified", all.certified},       {"logged", all.logged},        {"checkpoints", all.checkpoints},
                    {"differences", all.differences}};
    fmt::print("{}\n", j.dump(1, ' ', false, json::error_handler_t::replace));
  } else {
    for (const std::string &d : all.differences)
      fmt::print("differs: {}\n", d);
    if (all.begin < all.end)
      fmt::print("{}: steps {} to {} replayed, {}\n", all.differences.empty() ? "equal" : "differs", all.begin + 1,
                 all.end, describe(all));
  }
  if (!all.differences.empty())
    throw EndProgram{1};
}

void certify(const ReplayOptions &o) {
  Plan plan = loadPlan(o.plan);
  requireNoOuterSteps(plan, kReplayable);
  if (!o.data.empty())
    plan.run.trainData = absolutePath(o.data);
  if (plan.run.trainData.empty())
    throw UserError(ErrorCode::FileMissing, "the plan names no training data",
                    "compile again with --set data.train=FILE; `gptc data prepare` makes one from text");
  std::error_code e;
  const std::string folder = Certificate::folder(o.run);
  if (std::filesystem::exists(folder, e))
    throw UserError(ErrorCode::Usage, fmt::format("{} exists", folder),
                    fmt::format("`gptc verify {}` compares the run with it", o.run));
  const int64_t last = lastStepOf(o.run);
  if (last == 0)
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no run in {}", o.run),
                    "name the folder with its checkpoints and log.jsonl: out_dir of model.toml");
  std::vector<CertifiedStep> kept;
  ReplayRequest request{.comparesData = false, .from = 1, .to = last, .every = o.every};
  request.keep = [&, isAlone = Mesh::of(*plan.planned).ranks() == 1](CertifiedStep s) {
    if (!isAlone)
      s.kernels.clear();  // those of another plan
    kept.push_back(std::move(s));
  };
  if (o.steps)
    std::tie(request.from, request.to) = parseSteps(*o.steps);
  if (request.to > last)
    throw UserError(ErrorCode::Usage, fmt::format("--steps {}: the run has {} steps", *o.steps, last));
  const auto data = TrainStep::dataOf(plan);
  DataHasher hasher(*data, plan.run.tokenizer, "");
  hasher.begin();
  const DataPrint print = hasher.print();
  const Plan original = loadPlan(o.plan);
  const ReplayReport report = replayWith(std::move(plan), o, std::move(request));
  if (!report.differences.empty()) {
    for (const std::string &d : report.differences)
      fmt::print("differs: {}\n", d);
    fmt::print("the run is not what this plan and these data give; nothing is certified\n");
    throw EndProgram{1};
  }
  AtomicDir dir(folder);
  {
    CertificateLog log(dir.path(), original, report.begin);
    log.begin(print);
    for (const CertifiedStep &s : kept)
      if (!log.add(s))
        throw UserError(ErrorCode::TooLarge, "the certificate is too long", "certify fewer steps: --every");
  }
  dir.commit();
  fmt::print("equal: steps {} to {} replayed, {}; {} certified in {}\n", report.begin + 1, report.end, describe(report),
             kept.size(), folder);
}

void addCommon(Command c, ReplayOptions &o) {
  c.option("RUN", o.run, "The run's folder: out_dir of model.toml").type("FOLDER").required();
  c.option("--steps", o.steps, "Only these, counted from 1").type("FIRST..LAST");
  c.option("--data", o.data, "The training data, if it is not where the plan says").type("FILE");
  c.option("--threads", o.threads, "Threads (0: all cores)").within(0, 4096);
}

}  // namespace

void addCertifyCommands(Command &app) {
  auto certifying = std::make_shared<ReplayOptions>(), verifying = std::make_shared<ReplayOptions>();
  Command c =
      app.command("certify", "Replays a run, compares it with its log and checkpoints, and keeps digests of it");
  addCommon(c, *certifying);
  c.option("--plan", certifying->plan, "The plan that was run").type("FOLDER").required();
  c.option("--every", certifying->every, "Certifies each such step and the last [10]")
      .within(int64_t(1), int64_t(1) << 40);
  c.run([certifying] { certify(*certifying); });
  Command v = app.command("verify", "Replays a certified run, and says what differs first: exit code 0, equal, or 1");
  addCommon(v, *verifying);
  v.flag("--json", verifying->json, "Prints JSON");
  v.run([verifying] { verify(*verifying); });
}

}  // namespace gptc
