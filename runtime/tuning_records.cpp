#include "runtime/tuning_records.h"

#include "codegen/object_cache.h"
#include "ir/diagnostics.h"
#include "ir/words.h"
#include "runtime/files.h"

#include "llvm/ADT/STLExtras.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {

namespace {

using json = nlohmann::json;

constexpr int version = 1;
constexpr size_t longestLine = 16 << 10;
constexpr size_t largestFile = 256 << 20;
constexpr double mostSeconds = 3600;  // of one call: more is no measurement

std::string hashOf(llvm::StringRef text) { return contentHash({{text.data(), text.size()}}).substr(0, 32); }

bool isHash(const std::string &s, size_t digits) {
  return s.size() == digits && llvm::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool isText(const std::string &s, size_t longest) {
  return !s.empty() && s.size() <= longest && llvm::all_of(s, [](unsigned char c) { return c >= ' ' && c != 127; });
}

bool inRange(double v, double most) { return std::isfinite(v) && v >= 0 && v <= most; }

json jsonOf(const TuningRecord &r) {
  json j = {{"v", version},
            {"problem", r.problem},
            {"family", r.family},
            {"extents", r.extents},
            {"name", r.name},
            {"machine", r.machine},
            {"schedule", r.schedule.str()},
            {"source", r.source},
            {"seconds", {r.time.median, r.time.least, r.time.most}},
            {"runs", r.time.runs},
            {"compile_s", r.compileSeconds},
            {"session", r.session}};
  if (r.raced > 0)
    j["raced"] = r.raced, j["noise"] = r.noise;
  if (r.isDefault)
    j["default"] = true;
  if (r.fromElsewhere)
    j["from_elsewhere"] = true;
  return j;
}

std::string checksumOf(const json &j) { return hashOf(j.dump()).substr(0, 16); }

/// "matmul 1024x2304x768", "pointwise add+mul 1024x768".
std::string nameOf(const Op &fused) {
  std::string members;
  int count = 0;
  for (const Op &op : *fused.body)
    if (!op.isOneOf(OpKind::constant, OpKind::yield) && ++count <= 4)
      members += (members.empty() ? "" : "+") + op.name().str();
  if (count > 4)
    members += "+..";
  auto shape = [](const Type &t) {
    std::string s;
    for (const Dim &d : t.dims)
      s += fmt::format("{}{}", s.empty() ? "" : "x", d.logical);
    return fmt::format("{}[{}]", nameOf(t.dtype).str(), s);
  };
  std::string operands;
  for (const Value *v : fused.operands().take_front(2))
    operands += (operands.empty() ? "" : " ") + shape(v->type);
  return fmt::format("{} {} {}", fused.attrs.getString("kind"), members, operands);
}

}  // namespace

std::string TuningRecord::str() const {
  json j = jsonOf(*this);
  j["sum"] = checksumOf(j);
  return j.dump();
}

std::optional<TuningRecord> TuningRecord::parse(llvm::StringRef line, std::string &why) {
  TuningRecord r;
  try {
    if (line.size() > longestLine)
      throw std::runtime_error("too long");
    json j = json::parse(line.begin(), line.end());
    if (j.at("v").get<int>() != version)
      throw std::runtime_error(fmt::format("of version {}, not {}", j.at("v").get<int>(), version));
    const std::string sum = j.at("sum").get<std::string>();
    j.erase("sum");
    if (checksumOf(j) != sum)
      throw std::runtime_error("its checksum is wrong");
    r.problem = j.at("problem").get<std::string>();
    r.family = j.at("family").get<std::string>();
    r.extents = j.at("extents").get<std::vector<int64_t>>();
    r.name = j.at("name").get<std::string>();
    r.machine = j.at("machine").get<std::string>();
    r.source = j.at("source").get<std::string>();
    r.session = j.at("session").get<std::string>();
    const auto seconds = j.at("seconds").get<std::vector<double>>();
    r.time.runs = j.at("runs").get<int>();
    r.compileSeconds = j.at("compile_s").get<double>();
    r.raced = j.value("raced", 0.0);
    r.noise = j.value("noise", 0.0);
    r.isDefault = j.value("default", false);
    r.fromElsewhere = j.value("from_elsewhere", false);
    if (seconds.size() != 3 || r.time.runs < 1 || r.time.runs > 1000000)
      throw std::runtime_error("it holds no time");
    r.time.median = seconds[0], r.time.least = seconds[1], r.time.most = seconds[2];
    if (!inRange(seconds[0], mostSeconds) || !inRange(seconds[1], seconds[0]) || !inRange(seconds[2], mostSeconds) ||
        seconds[2] < seconds[0] || !inRange(r.compileSeconds, mostSeconds) || !inRange(r.raced, 1e6) ||
        !inRange(r.noise, 1e6))
      throw std::runtime_error("a time is out of range");
    if (!isHash(r.problem, 32) || !isHash(r.family, 32) || !isHash(r.source, 64) || !isText(r.name, 400) ||
        !isText(r.machine, 400) || !isText(r.session, 100) || r.extents.size() > 1000)
      throw std::runtime_error("a field is not what it should be");
    if (!Schedule::parse(j.at("schedule").get<std::string>(), r.schedule))
      throw std::runtime_error("no schedule");
    return r;
  } catch (const json::exception &) {
    why = "not a record";
  } catch (const std::runtime_error &e) {
    why = e.what();
  }
  return std::nullopt;
}

std::string fingerprintOf(const Target &target) {
  std::string model = target.cpu, line;
  for (std::ifstream in("/proc/cpuinfo"); std::getline(in, line);)
    if (llvm::StringRef(line).starts_with("model name")) {
      model = llvm::StringRef(line).split(':').second.trim().str();
      break;
    }
  return fmt::format("{} {} {} threads {} caches {}/{}/{}", model, target.cpu, target.threads,
                     hashOf(target.features).substr(0, 8), target.l1Bytes, target.l2Bytes, target.l3Bytes);
}

TuningRecord problemOf(const Op &fused, const Target &target) {
  TuningRecord r;
  GroupShape shape = groupShape(fused);
  r.family = hashOf(shape.family);
  r.problem = hashOf(fmt::format("{}{}", shape.family, fmt::join(shape.extents, ",")));
  r.extents = std::move(shape.extents);
  r.name = nameOf(fused);
  r.machine = fingerprintOf(target);
  return r;
}

// ---- the file ------------------------------------------------------------------------------------------------------

/// tuning.lock in the same folder, held for as long as this lives.
class TuningRecords::Lock {
public:
  Lock(const std::string &dir, int kind) {
    fd = open((dir + "/tuning.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    // A stopped process must not stop this one.
    for (int tries = 0; fd >= 0 && !(held = flock(fd, kind | LOCK_NB) == 0) && tries < 500; ++tries)
      usleep(10000);
  }
  ~Lock() {
    if (fd >= 0)
      close(fd);
  }
  explicit operator bool() const { return held; }

private:
  int fd = -1;
  bool held = false;
};

void TuningRecords::warn(std::string text) {
  if (!quiet)
    fmt::print(stderr, "warning: {}\n", text);
  warnings.push_back(std::move(text));
}

TuningRecords::TuningRecords(const std::string &dir, bool quiet) : dir(dir), quiet(quiet) {
  if (dir.empty())
    return;
  file = dir + "/tuning.jsonl";
  if (access(file.c_str(), F_OK) == 0)
    load();
}

void TuningRecords::load() {
  std::string why;
  const int folder = openPrivateFolder(dir, why);
  if (folder < 0)
    return warn(fmt::format("no tuning records are read: {}", why));
  close(folder);
  Lock lock(dir, LOCK_EX);
  if (!lock)
    warn(fmt::format("{}/tuning.lock is held by another process for 5 s; going on without it", dir));
  struct stat s;
  const int fd = open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  const bool good = fd >= 0 && fstat(fd, &s) == 0;
  std::string wrong;
  if (!good)
    wrong = std::strerror(errno);
  else if (!S_ISREG(s.st_mode))
    wrong = "it is no file";
  else if (s.st_uid != geteuid())
    wrong = "another user owns it";
  else if (s.st_mode & (S_IWGRP | S_IWOTH))
    wrong = "others may write it";
  else if (size_t(s.st_size) > largestFile)
    wrong = fmt::format("it has more than {}", formatBytes(double(largestFile)));
  if (fd >= 0)
    close(fd);
  if (!wrong.empty()) {
    const std::string aside = file + ".set-aside";
    const bool moved = rename(file.c_str(), aside.c_str()) == 0;
    return warn(fmt::format("{} is not used: {}; {}", file, wrong, moved ? "set aside as " + aside : "remove it"));
  }
  FileText text = readTextFile(file, largestFile);
  if (!text.ok)
    return warn(fmt::format("{} is not used: {}", file, text.why));

  std::vector<std::pair<size_t, std::string>> damaged;  // line and reason
  std::string damagedText;
  llvm::StringRef rest = text.text;
  for (size_t number = 1; !rest.empty(); ++number) {
    auto [line, after] = rest.split('\n');
    const bool whole = rest.size() > line.size();
    rest = after;
    if (line.empty())
      continue;
    if (auto r = TuningRecord::parse(line, why)) {
      records.push_back(std::move(*r));
    } else {
      damaged.push_back({number, whole ? why : "it ends too early"});
      damagedText += line.str() + "\n";
    }
  }
  if (damaged.empty())
    return;
  // Good lines into a new file; what is damaged stays readable beside it.
  try {
    const std::string aside = file + ".damaged";
    const int to = openAppending(aside);
    appendAll(to, aside, damagedText);
    close(to);
    std::string all;
    for (const TuningRecord &r : records)
      all += r.str() + "\n";
    const std::string fresh = fmt::format("{}.{}.tmp", file, getpid());
    SyncedFile out(fresh);
    out.write(all.data(), all.size());
    out.finish();
    chmod(fresh.c_str(), 0600);
    replaceFile(fresh, file);
    warn(fmt::format("{}: {} damaged line{} set aside in {} (the first is line {}: {})", file, damaged.size(),
                     damaged.size() == 1 ? "" : "s", aside, damaged[0].first, damaged[0].second));
  } catch (const UserError &e) {
    warn(fmt::format("{}: {} damaged lines are left out ({})", file, damaged.size(), e.diagnostics[0].message));
  }
}

std::vector<TuningRecord> TuningRecords::readFile(const std::string &path, std::vector<std::string> &damaged) {
  FileText text = readTextFile(path, largestFile);
  if (!text.ok)
    throw UserError(ErrorCode::FileMissing, fmt::format("{}: {}", path, text.why),
                    "give a file that `gptc cache export` wrote, or a tuning.jsonl");
  std::vector<TuningRecord> all;
  llvm::StringRef rest = text.text;
  std::string why;
  for (size_t number = 1; !rest.empty(); ++number) {
    auto [line, after] = rest.split('\n');
    rest = after;
    if (line.empty())
      continue;
    if (auto r = TuningRecord::parse(line, why))
      all.push_back(std::move(*r));
    else
      damaged.push_back(fmt::format("line {}: {}", number, why));
  }
  return all;
}

void TuningRecords::writeFile(const std::string &path, llvm::ArrayRef<TuningRecord> some) {
  std::string all;
  for (const TuningRecord &r : some)
    all += r.str() + "\n";
  const std::string fresh = fmt::format("{}.{}.tmp", path, getpid());
  try {
    SyncedFile out(fresh);
    out.write(all.data(), all.size());
    out.finish();
    replaceFile(fresh, path);
  } catch (...) {
    unlink(fresh.c_str());
    throw;
  }
}

void TuningRecords::append(llvm::ArrayRef<TuningRecord> some) {
  if (some.empty())
    return;
  records.insert(records.end(), some.begin(), some.end());
  if (dir.empty())
    return;
  const ObjectCache makesTheFolder(dir);
  if (!makesTheFolder.enabled())
    return;
  Lock lock(dir, LOCK_EX);
  if (!lock)
    return warn(fmt::format("{}/tuning.lock is held by another process for 5 s: the measurements are not kept", dir));
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  struct stat s;
  if (fd < 0 || fstat(fd, &s) != 0) {
    if (fd >= 0)
      close(fd);
    return warn(fmt::format("{}: {}: the measurements are not kept", file, std::strerror(errno)));
  }
  std::string text;
  // After a kill in the middle of a line.
  if (char last = '\n'; s.st_size && pread(fd, &last, 1, s.st_size - 1) == 1 && last != '\n')
    text = "\n";
  for (const TuningRecord &r : some)
    text += r.str() + "\n";
  try {
    appendAll(fd, file, text);
  } catch (const UserError &e) {
    if (ftruncate(fd, s.st_size) != 0)
      warn(fmt::format("{} ends in the middle of a line", file));
    warn(fmt::format("{}: the measurements are not kept", e.diagnostics[0].message));
  }
  close(fd);
}

void TuningRecords::replace(std::vector<TuningRecord> all) {
  Lock lock(dir, LOCK_EX);
  if (!lock)
    throw UserError(ErrorCode::Unwritable, fmt::format("{}/tuning.lock is held by another process", dir),
                    "wait for other compiles to end, then again");
  // Who appended meanwhile has done so behind what was read here.
  std::vector<std::string> damaged;
  std::vector<TuningRecord> now =
      access(file.c_str(), F_OK) == 0 ? readFile(file, damaged) : std::vector<TuningRecord>();
  for (size_t i = records.size(); i < now.size(); ++i)
    all.push_back(now[i]);
  writeFile(file, all);
  chmod(file.c_str(), 0600);
  records = std::move(all);
}

// ---- the choice ----------------------------------------------------------------------------------------------------

std::vector<const TuningRecord *> lastRace(const TuningRecords &records, llvm::StringRef problem,
                                           llvm::StringRef machine) {
  std::string session;
  for (const TuningRecord &r : records.all())
    if (r.raced > 0 && r.problem == problem && r.machine == machine)
      session = std::max(session, r.session);
  std::vector<const TuningRecord *> race;
  for (const TuningRecord &r : records.all())
    if (r.raced > 0 && r.session == session && r.problem == problem && r.machine == machine)
      race.push_back(&r);
  llvm::stable_sort(race, [](auto *a, auto *b) {
    return std::pair(a->raced, a->fromElsewhere) < std::pair(b->raced, b->fromElsewhere);
  });
  return race;
}

TunedSchedules::TunedSchedules(TuningRecords &records, const Target &target, ThreadPool *pool)
    : records(records), machine(fingerprintOf(target)), pool(pool), jit(target, "") {}

bool TunedSchedules::trusted(const TuningRecord &r, const Op &fused, const Target &target) {
  const LoweredGroup lowered = lowerGroup(fused, r.schedule, target);
  if (jit.sources({&lowered.kernel})[0] != r.source) {
    ++counts.stale;
    return false;
  }
  if (!r.fromElsewhere)
    return true;
  if (!pool)
    pool = (own = std::make_unique<ThreadPool>(target.threads)).get();
  GroupBench bench(fused, target, *pool, false);
  std::vector<Trial> trial = bench.compile({r.schedule});
  ++counts.checked;
  if (!trial.empty() && bench.check(trial[0]) != Trial::Outcome::timed) {
    ++counts.rejected;
    return false;
  }
  TuningRecord checked = r;
  checked.fromElsewhere = false;
  records.append({checked});
  return true;
}

/// How far one size is from another, in powers of two.
static double distance(int64_t a, int64_t b) {
  return a == b ? 0 : a <= 0 || b <= 0 ? HUGE_VAL : std::abs(std::log2(double(a) / double(b)));
}

/// Of the schedules of a space the one whose sizes are closest to those of `like`, with the same register tile; null
/// where none has it.
static const Schedule *closest(const std::vector<Schedule> &space, const Schedule &like) {
  const Schedule *best = nullptr;
  double least = HUGE_VAL;
  for (const Schedule &s : space) {
    if (s.vec != like.vec || s.mr != like.mr || s.nr != like.nr || s.packB != like.packB || s.unroll != like.unroll)
      continue;
    const double d = distance(s.kc, like.kc) + distance(s.mc, like.mc) + distance(s.nc, like.nc) +
                     distance(s.task, like.task) + distance(s.qb, like.qb) + distance(s.kb, like.kb);
    if (d < least) {
      least = d;
      best = &s;
    }
  }
  return best;
}

// A shape is near when each of its extents is within a factor of two. Its winner must have won clearly, since this
// shape has not been measured.
std::optional<Schedule> TunedSchedules::nearest(const TuningRecord &p, const std::vector<Schedule> &space) const {
  constexpr double clearly = 0.97;
  std::map<std::string, double> near;  // problem -> distance
  for (const TuningRecord &r : records.all()) {
    if (r.raced <= 0 || r.family != p.family || r.machine != machine || r.extents.size() != p.extents.size() ||
        r.fromElsewhere)
      continue;
    double d = 0;
    for (size_t i = 0; i < r.extents.size(); ++i) {
      const double one = distance(r.extents[i], p.extents[i]);
      d = one > 1 ? HUGE_VAL : d + one;
    }
    if (d < HUGE_VAL)
      near.try_emplace(r.problem, d);
  }
  std::string best;
  double least = HUGE_VAL;
  for (const auto &[problem, d] : near)
    if (d < least) {
      least = d;
      best = problem;
    }
  if (best.empty())
    return std::nullopt;
  const TuningRecord &winner = *lastRace(records, best, machine).front();
  if (winner.isDefault || winner.raced > clearly)
    return std::nullopt;
  const Schedule *s = closest(space, winner.schedule);
  return s ? std::optional(*s) : std::nullopt;
}

std::optional<Schedule> TunedSchedules::find(const Op &fused, const Target &target) {
  if (target.isCuda())
    return std::nullopt;
  const TuningRecord p = problemOf(fused, target);
  std::optional<std::vector<Schedule>> space;
  auto contains = [&](const Schedule &s) {
    if (!space)
      space = scheduleSpace(fused, target);
    return llvm::is_contained(*space, s);
  };
  const std::vector<const TuningRecord *> race = lastRace(records, p.problem, machine);
  for (const TuningRecord *r : race) {
    if (r->isDefault || r->raced >= 1 - r->noise) {  // the rest is no faster
      ++counts.exact;
      return std::nullopt;
    }
    if (!contains(r->schedule)) {
      ++counts.rejected;
      continue;
    }
    const TuningRecord copy = *r;  // a check appends, which moves records
    if (trusted(copy, fused, target)) {
      ++counts.exact;
      return copy.schedule;
    }
    break;
  }
  if (race.empty())
    if (std::optional<Schedule> s = nearest(p, scheduleSpace(fused, target))) {
      ++counts.nearest;
      return s;
    }
  ++counts.none;
  return std::nullopt;
}

}  // namespace gptc
