// 1. The model is compiled with default schedules, and a few steps tell how much each kernel takes of a step.
// 2. Distinct kernels that have no race on record are searched, those that take most first, each with a share of the
//    time that goes with what it takes of a step. What is found is appended at once, so that a kill loses one search.
// 3. The model is compiled once more from the records. Steps of both plans run in turn; a kernel that is slower there
//    than its default, beyond the noise of the step, is taken back: a record says so.
#include "tools/driver/tune.h"

#include "codegen/peak.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/diagnostics.h"
#include "ir/opdef.h"
#include "ir/words.h"
#include "runtime/arena.h"
#include "runtime/profile.h"
#include "tools/driver/compile.h"
#include "tools/driver/gir_file.h"
#include "tools/driver/variants.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <numeric>
#include <unistd.h>

namespace gptc {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Sorts behind those of earlier searches.
std::string newSession(int n) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return fmt::format("{:012}.{:09}-{}-{:04}", int64_t(t.tv_sec), int64_t(t.tv_nsec), getpid(), n);
}

/// Milliseconds of each call, by the problem of its group.
class TimesByProblem : public KernelObserver {
public:
  explicit TimesByProblem(const std::map<const Op *, std::string> &problems) : problems(problems) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override {
    times[problems.at(kernel.op)].push_back(1e-6 * double(end - begin));
  }
  double median(const std::string &problem) const { return 1e3 * timing(problem).median; }
  double sum(const std::string &problem) const {
    auto it = times.find(problem);
    return it == times.end() ? 0 : std::accumulate(it->second.begin(), it->second.end(), 0.0);
  }
  /// Seconds; no runs where it is in no step.
  Timing timing(const std::string &problem) const {
    auto it = times.find(problem);
    if (it == times.end())
      return {};
    const Spread s = spreadOf(it->second);
    return {1e-3 * s.median, 1e-3 * s.least, 1e-3 * s.most, int(it->second.size())};
  }
  /// Half the range of the middle half, over the median.
  double noise(const std::string &problem) const {
    std::vector<double> v = times.at(problem);
    std::sort(v.begin(), v.end());
    return (v[v.size() * 3 / 4] - v[v.size() / 4]) / (2 * v[v.size() / 2]);
  }

private:
  const std::map<const Op *, std::string> &problems;
  std::map<std::string, std::vector<double>> times;
};

/// A module's groups, by problem.
struct Groups {
  std::map<std::string, std::vector<const Op *>> ops;  // problem -> its instances
  std::map<const Op *, std::string> problems;
  std::map<std::string, double> calls;  // in a step

  Groups(const Module &m, const Target &target) {
    for (const auto &f : m.functions)
      for (const Op &op : f->body) {
        if (!op.is(OpKind::fused))
          continue;
        const std::string problem = problemOf(op, target).problem;
        ops[problem].push_back(&op);
        problems[&op] = problem;
        calls[problem] += callsPerStep(m, f->name);
      }
  }
};

Schedule scheduleOf(const Op &op) {
  Schedule s;
  GPTC_CHECK(Schedule::parse(op.attrs.getString("schedule"), s), "schedule of {}", op.loc);
  return s;
}

double flopsOf(const Op &fused) {
  double sum = 0;
  for (const Op &op : *fused.body)
    if (op.def().cost)
      sum += double(op.def().cost(op).flops);
  return sum;
}

double bytesOf(const Op &fused) {
  double sum = 0;
  for (const Value *v : fused.operands())
    sum += double(v->type.bytes());
  for (unsigned i = 0; i < fused.numResults(); ++i)
    sum += double(fused.result(i)->type.bytes());
  return sum;
}

/// bytes/s of a copy by all threads, read and written, of more than caches hold; the best of several.
double copyRate(ThreadPool &pool, const Target &target) {
  const size_t bytes = size_t(std::max<int64_t>(64 << 20, 2 * target.l3Bytes));
  std::vector<char> from(bytes, 1), to(bytes, 2);
  struct Call {
    char *to;
    const char *from;
    size_t each;
  } call{to.data(), from.data(), bytes / 64};
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double t = now();
    pool.run(
        64,
        [](void *c, int64_t begin, int64_t end) {
          auto &call = *static_cast<Call *>(c);
          std::memcpy(call.to + begin * int64_t(call.each), call.from + begin * int64_t(call.each),
                      size_t(end - begin) * call.each);
        },
        &call);
    best = std::max(best, 2 * double(bytes) / (now() - t));
  }
  return best;
}

std::vector<TuningRecord> recordsOf(const SearchResult &found, const TuningRecord &problem,
                                    const std::string &session) {
  std::vector<TuningRecord> all;
  for (const Trial &t : found.trials) {
    if (t.outcome != Trial::Outcome::timed)
      continue;
    TuningRecord &r = all.emplace_back(problem);
    r.schedule = t.schedule;
    r.source = t.source;
    r.time = t.time;
    r.compileSeconds = t.compileSeconds;
    r.raced = &t == &found.trials[0] ? 1 : t.raced;
    r.noise = found.noise;
    r.session = session;
    r.isDefault = &t == &found.trials[0];
  }
  return all;
}

}  // namespace

TuneReport tune(const TuneRequest &request, const std::function<void(const TuneProgress &)> &progress) {
  if (isGirFile(request.modelFile))
    throw UserError(ErrorCode::Usage, fmt::format("{}: a module has its schedules already", request.modelFile),
                    "give the model.toml");
  const double begin = now(), end = begin + request.seconds;
  const Config config = readConfig(request.modelFile, request.settings);
  if (config.compile.target != "cpu")
    throw UserError(Diagnostic{
        ErrorCode::NotBuiltYet,
        fmt::format("compile.target = \"{}\": schedules are measured on the CPU only", config.compile.target),
        config.where("compile.target"),
        "",
        {"--set compile.target=cpu"},
        {}});
  const Target target = hostTarget(request.threads);
  TuneReport report;
  const std::unique_ptr<Module> imported = buildModel(config);
  auto compile = [&](ScheduleSource *schedules) {
    return runFrom(*imported, "canonicalize", target, [&](std::vector<PassUse> &uses) {
      for (PassUse &u : uses)
        u.options.schedules = schedules;
    });
  };
  TuningRecords records(request.cacheDir);
  auto runner = std::make_unique<StepRunner>(compile(nullptr), target, request.cacheDir, request.threads);
  ThreadPool &pool = runner->session.pool;
  const Module &base = *runner->session.plan.planned;
  const Groups groups(base, target);
  report.peakFp32 = measurePeakFlops(pool, target);
  report.peakBf16 = measurePeakFlops(pool, target, DType::bf16);
  report.copyBytes = copyRate(pool, target);

  TimesByProblem before(groups.problems);
  runner->step();
  const float firstLoss = runner->loss;
  runner->session.executor.observer = &before;
  runner->step();
  runner->session.executor.observer = nullptr;

  // What is to be searched, by what it takes.
  struct Work {
    std::string problem;
    const Op *op;
    double weight;
  };
  std::vector<Work> work;
  std::map<std::string, TunedKernel> kernels;
  Jit jit(target, "");
  for (const auto &[problem, ops] : groups.ops) {
    TunedKernel &k = kernels[problem];
    const Op &op = *ops.front();
    k.name = problemOf(op, target).name;
    k.place = describe(op);
    k.instances = int(ops.size());
    k.calls = groups.calls.at(problem);
    k.flops = flopsOf(op);
    k.bytes = bytesOf(op);
    k.operands = op.operands().empty() ? DType::f32 : op.operand(0)->type.dtype;
    k.base = k.best = defaultSchedule(op, target);
    k.candidates = scheduleSpace(op, target).size();
    if (!k.candidates)
      continue;
    const std::vector<const TuningRecord *> race = lastRace(records, problem, fingerprintOf(target));
    if (!request.again && !race.empty()) {
      // Known, as long as its default and its best are emitted as they were.
      auto fresh = [&](const TuningRecord &r) {
        if (!r.isDefault && !llvm::is_contained(scheduleSpace(op, target), r.schedule))
          return false;
        const LoweredGroup lowered = lowerGroup(op, r.schedule, target);
        return jit.sources({&lowered.kernel})[0] == r.source && !r.fromElsewhere;
      };
      auto base = llvm::find_if(race, [](const TuningRecord *r) { return r->isDefault; });
      if (base != race.end() && fresh(**base) && fresh(*race[0])) {
        k.reused = true;
        k.raced = (*race[0]).raced;
        ++report.reused;
        continue;
      }
    }
    // Kernels of evaluation and sampling run seldom.
    work.push_back({problem, &op, std::max(before.sum(problem), 0.02)});
  }
  llvm::stable_sort(work, [](const Work &a, const Work &b) { return a.weight > b.weight; });
  double weights = 0;
  for (const Work &w : work)
    weights += w.weight;

  // Steps at the end have their time too.
  const double stepSeconds = runner->step();
  const double searchEnd = end - std::min(0.3 * request.seconds, 12 * stepSeconds);
  const bool cold = base.attrs.getInt("arena_bytes") > target.l3Bytes;
  int done = 0;
  for (const Work &w : work) {
    const double left = searchEnd - now();
    if (left <= 0)
      break;
    TunedKernel &k = kernels[w.problem];
    SearchLimits limits;
    limits.cold = cold;
    limits.seconds = std::max(0.05, left * w.weight / weights);
    progress({done, int(work.size()), k.name, 0, 1, end - now()});
    const SearchResult found = searchSchedules(*w.op, target, pool, limits);
    weights -= w.weight;
    ++done;
    k.tried = found.trials.size();
    records.append(recordsOf(found, problemOf(*w.op, target), newSession(done)));
    ++report.searched;
    k.raced = found.best ? found.trials[found.best].raced : 1;
    progress({done, int(work.size()), k.name, found.trials.size(), k.raced, end - now()});
  }

  // Within the step, in turn.
  TunedSchedules tuned(records, target, [&]() -> ThreadPool & { return pool; });
  std::unique_ptr<Module> after = compile(&tuned);
  for (auto &[problem, k] : kernels)
    k.baseMs = k.ms = before.median(problem);
  if (print(*after) != print(base) && after->attrs.getInt("arena_bytes") < availableMemory() - (256 << 20)) {
    const Groups afterGroups(*after, target);
    TimesByProblem withBase(groups.problems), withTuned(afterGroups.problems);
    StepRunner other(std::move(after), target, request.cacheDir, request.threads);
    other.step();
    GPTC_CHECK(other.loss == firstLoss, "the tuned plan has loss {}, not {}", other.loss, firstLoss);
    std::vector<double> baseMs, ms, ratios;
    runner->session.executor.observer = &withBase;
    other.session.executor.observer = &withTuned;
    for (int i = 0; i < 3 || (i < 15 && now() < end); ++i) {
      baseMs.push_back(1e3 * runner->step());
      ms.push_back(1e3 * other.step());
      ratios.push_back(ms.back() / baseMs.back());
    }
    report.baseMs = spreadOf(baseMs), report.ms = spreadOf(ms), report.ratio = spreadOf(ratios);
    for (auto &[problem, k] : kernels) {
      auto it = afterGroups.ops.find(problem);
      if (it == afterGroups.ops.end())
        continue;
      k.best = scheduleOf(*it->second.front());
      const Timing is = withTuned.timing(problem), was = withBase.timing(problem);
      k.baseMs = 1e3 * was.median, k.ms = 1e3 * is.median;
      if (k.best == k.base || !was.runs || is.median <= was.median * (1 + withBase.noise(problem)))
        continue;
      // Faster alone, slower here.
      ++report.takenBack;
      std::vector<TuningRecord> race;
      for (const TuningRecord *r : lastRace(records, problem, fingerprintOf(target)))
        if (r->isDefault || r->schedule == k.best)
          race.push_back(*r);
      const std::string session = newSession(0);
      for (TuningRecord &r : race) {
        r.session = session;
        r.time = r.isDefault ? was : is;
        r.raced = r.isDefault ? 1 : is.median / was.median;
        r.noise = withBase.noise(problem);
      }
      records.append(race);
      k.best = k.base;
      k.raced = 1;
    }
  }
  for (auto &[problem, k] : kernels)
    report.kernels.push_back(std::move(k));
  llvm::stable_sort(report.kernels,
                    [](const TunedKernel &a, const TunedKernel &b) { return a.calls * a.baseMs > b.calls * b.baseMs; });
  report.seconds = now() - begin;
  return report;
}

}  // namespace gptc
