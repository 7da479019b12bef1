// gptc cache: lists, exchanges and checks tuning records.
#include "codegen/object_cache.h"
#include "codegen/tuner/group_bench.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/planner/cache_dir.h"

#include "llvm/ADT/STLExtras.h"

#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <unistd.h>

namespace gptc {

namespace {

/// Problem and machine.
using Key = std::pair<std::string, std::string>;

std::set<Key> problemsOf(const TuningRecords &records) {
  std::set<Key> keys;
  for (const TuningRecord &r : records.all())
    keys.insert({r.problem, r.machine});
  return keys;
}

/// The records of each problem's last race.
std::vector<TuningRecord> racesOf(const TuningRecords &records) {
  std::vector<TuningRecord> all;
  for (const auto &[problem, machine] : problemsOf(records))
    for (const TuningRecord *r : lastRace(records, problem, machine))
      all.push_back(*r);
  return all;
}

void list(bool trials) {
  const TuningRecords records(neededCacheDir());
  std::map<Key, size_t> counts;
  for (const TuningRecord &r : records.all())
    ++counts[{r.problem, r.machine}];
  std::string machine;
  fmt::print("{}: {} trial{} of {} problem{}\n", records.path(), records.all().size(),
             records.all().size() == 1 ? "" : "s", counts.size(), counts.size() == 1 ? "" : "s");
  std::vector<Key> order;
  for (const auto &[key, n] : counts)
    order.push_back(key);
  llvm::sort(order,
             [](const Key &a, const Key &b) { return std::tie(a.second, a.first) < std::tie(b.second, b.first); });
  for (const Key &key : order) {
    if (key.second != machine)
      fmt::print("\n{}\n{:<64} {:>7} {:>10} {:>7}  {}\n", machine = key.second, "problem", "trials", "ms", "ratio",
                 "best");
    const std::vector<const TuningRecord *> race = lastRace(records, key.first, key.second);
    if (!race.empty()) {
      const TuningRecord &best = *race[0];
      fmt::print("{:<64} {:>7} {:>10.4f} {:>7.3f}  {}{}\n", best.name.substr(0, 64), counts[key],
                 1e3 * best.time.median, best.raced, best.isDefault ? "default" : best.schedule.str(),
                 best.fromElsewhere && !best.isDefault ? " (from elsewhere, not checked here yet)" : "");
    }
    if (trials)
      for (const TuningRecord &r : records.all())
        if (r.problem == key.first && r.machine == key.second)
          fmt::print("  {:>10.4f} ms ({:.4f}..{:.4f}, {} runs){}  {}\n", 1e3 * r.time.median, 1e3 * r.time.least,
                     1e3 * r.time.most, r.time.runs,
                     r.raced > 0                          ? fmt::format(", raced {:.3f}", r.raced)
                     : r.outcome != Trial::Outcome::timed ? fmt::format(", {}", nameOf(r.outcome))
                                                          : "",
                     r.schedule.str());
  }
}

/// Distinct records in the order of the files. Throws if the files contain other lines but no records, because they are
/// probably not the intended files.
std::vector<TuningRecord> together(const std::vector<std::string> &files) {
  std::vector<TuningRecord> all;
  std::set<std::string> seen;
  std::string strange;
  for (const std::string &f : files) {
    std::vector<std::string> damaged;
    for (TuningRecord &r : TuningRecords::readFile(f, damaged))
      if (seen.insert(r.str()).second)
        all.push_back(std::move(r));
    if (damaged.empty())
      continue;
    const std::string first = fmt::format("the first is {}", damaged[0]);
    printError("warning: {}: {} damaged line{} left out ({})\n", f, damaged.size(), damaged.size() == 1 ? "" : "s",
               first);
    if (strange.empty())
      strange = fmt::format("{}: no line is a record ({})", f, first);
  }
  if (all.empty() && !strange.empty())
    throw UserError(ErrorCode::PlanDamaged, strange, "give a file that `gptc cache export` wrote, or a tuning.jsonl");
  return all;
}

void write(const std::string &path, llvm::ArrayRef<TuningRecord> records) {
  TuningRecords::writeFile(path, records);
  printError("{} record{} in {}\n", records.size(), records.size() == 1 ? "" : "s", path);
}

void import(const std::vector<std::string> &files) {
  TuningRecords records(neededCacheDir());
  std::set<std::string> known;  // without marks, as in files
  for (const TuningRecord &r : records.all())
    known.insert(r.str());
  std::vector<TuningRecord> fresh;
  for (TuningRecord &r : together(files))
    if (known.insert(r.str()).second)
      fresh.push_back(std::move(r));
  records.keep(fresh);
  fmt::print("{} record{} taken over; schedules among them are checked on this machine when they are first used\n",
             fresh.size(), fresh.size() == 1 ? "" : "s");
}

/// Runs every winner recorded for this machine against its default, those from elsewhere first, for at most `seconds`.
/// Reports those with other bits and records that they must not be used. Returns their number.
int run(TuningRecords &records, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  auto left = [&] { return seconds - std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  const Target target = hostTarget();
  const std::string machine = fingerprintOf(target);
  ThreadPool pool(target.threads);
  TunedSchedules tuned(records, target, &pool);
  std::vector<TuningRecord> winners;
  for (const auto &[problem, where] : problemsOf(records))
    if (const auto race = lastRace(records, problem, machine); where == machine && !race.empty() && !race[0]->isDefault)
      winners.push_back(*race[0]);
  llvm::stable_sort(winners, [](const TuningRecord &a, const TuningRecord &b) {
    return std::pair(!a.fromElsewhere, a.time.median) < std::pair(!b.fromElsewhere, b.time.median);
  });
  int good = 0, wrong = 0, stale = 0, strange = 0, late = 0;
  for (const TuningRecord &r : winners) {
    const std::unique_ptr<Module> m = records.groupOf(r.problem, target);
    if (!m || left() <= 0) {
      ++(m ? late : strange);
      continue;
    }
    const Op &fused = *m->functions[0]->body.front();
    if (!llvm::is_contained(scheduleSpace(fused, target), r.schedule)) {
      fmt::print("{}: {} is none of its recipe's schedules\n", r.name, r.schedule.str());
      TuningRecord verdict = r;
      verdict.outcome = Trial::Outcome::notCompiled;
      verdict.fromElsewhere = false, verdict.raced = 0, verdict.time = {};
      records.append({verdict});
      ++wrong;
    } else if (tuned.sourceOf(fused, r.schedule) != r.source) {
      ++stale;
    } else if (const Trial::Outcome outcome = tuned.check(r, fused); outcome != Trial::Outcome::timed) {
      fmt::print("{}: {}: {}\n", r.name, r.schedule.str(), nameOf(outcome));
      ++wrong;
    } else {
      ++good;
    }
  }
  fmt::print("{} of {} winners for this machine give the bits of their defaults", good, winners.size());
  for (auto [n, what] : {std::pair(wrong, "do not, and are set aside"),
                         {stale, "out of date, as other code is emitted now"},
                         {strange, "of kernels that are not known here before a model that has them is compiled"},
                         {late, "for which no time was left"}})
    if (n)
      fmt::print("; {} {}", n, what);
  fmt::print("\n");
  return wrong;
}

/// Reads every record, which sets damaged lines aside. With `seconds`, also runs winners. Throws UserErrors PlanDamaged
/// if lines were set aside, and Unwritable for a folder that cannot be used.
void verify(std::optional<double> seconds) {
  std::string why;
  if (const int fd = openPrivateFolder(neededCacheDir(), why); fd >= 0)
    ::close(fd);
  else if (errno != ENOENT)
    throw UserError(ErrorCode::Unwritable, fmt::format("no records: {}", why), "name another folder by GPTC_CACHE");
  TuningRecords records(neededCacheDir(), /*quiet=*/true);
  std::vector<Diagnostic> wrong;
  auto add = [&](const std::string &what, const std::string &help) {
    wrong.push_back({.code = ErrorCode::PlanDamaged, .message = what, .help = {help}});
  };
  for (const std::string &w : records.warnings)
    add(w, "records that are lost cost speed and nothing else: `gptc tune MODEL.toml` measures them again");
  size_t elsewhere = llvm::count_if(records.all(), [](const TuningRecord &r) { return r.fromElsewhere; });
  fmt::print("{}: {} whole records{}\n", records.path(), records.all().size(),
             elsewhere ? fmt::format(", {} of them from elsewhere, checked before they are used", elsewhere) : "");
  if (const int n = seconds ? run(records, *seconds) : 0)
    add(fmt::format("{} winner{} on record, named above, {} to be used", n, n == 1 ? "" : "s",
                    n == 1 ? "is not" : "are not"),
        "they are set aside: `gptc tune MODEL.toml` finds others");
  if (!wrong.empty())
    throw UserError(std::move(wrong));
}

/// Keeps each problem's last race, and this machine's failures, so that no search repeats them.
void prune() {
  TuningRecords records(neededCacheDir());
  const size_t before = records.all().size();
  if (!before)
    return fmt::print("no records\n");
  std::vector<TuningRecord> kept = racesOf(records);
  for (const TuningRecord &r : records.all())
    if (r.isWrong())
      kept.push_back(r);
  records.replace(std::move(kept));
  fmt::print("{} of {} records are left\n", records.all().size(), before);
}

}  // namespace

void addCacheCommand(Command &app) {
  Command cache = app.command("cache", "Lists, checks and exchanges records of tuning");
  cache.requireCommand();
  struct Options {
    bool trials = false, run = false;
    double seconds = 60;
    std::string out;
    std::vector<std::string> files;
  };
  auto o = std::make_shared<Options>();
  Command c = cache.command("ls", "Lists problems and their best schedules");
  c.flag("--trials", o->trials, "Lists every trial");
  c.run([o] { list(o->trials); });

  c = cache.command("export", "Writes the best and its rivals of every problem into a file");
  c.option("file", o->out, "To be written").required().type("FILE");
  c.run([o] {
    const TuningRecords records(neededCacheDir());
    const std::vector<TuningRecord> races = racesOf(records);
    write(o->out, races);
  });

  c = cache.command("import", "Takes over records of another machine or user");
  c.option("files", o->files, "Written by export, or a tuning.jsonl").required().type("FILE");
  c.run([o] { import(o->files); });

  c = cache.command("merge", "Writes the records of several files into one, equal ones once");
  c.option("-o,--out", o->out, "To be written").required().type("FILE");
  c.option("files", o->files, "To be read").required().type("FILE");
  c.run([o] { write(o->out, together(o->files)); });

  c = cache.command("verify", "Reads every record; exit code 5 where some were set aside");
  const Option run = c.flag("--run", o->run, "Also runs the winners for this machine against their defaults");
  c.option("--seconds", o->seconds, "Time for --run [60]").within(0.0, 1e6).needs(run);
  c.run([o] { verify(o->run ? std::optional(o->seconds) : std::nullopt); });

  c = cache.command("prune", "Removes trials that are no longer looked up");
  c.run([] { prune(); });
}

}  // namespace gptc
