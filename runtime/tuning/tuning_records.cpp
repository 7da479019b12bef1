#include "runtime/tuning/tuning_records.h"

#include "codegen/codegen.h"
#include "codegen/object_cache.h"
#include "ir/facts.h"
#include "runtime/cuda/group_bench.h"
#include "runtime/tuning/cache_secret.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/stderr.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace gptc {

namespace {

using json = nlohmann::json;

constexpr int version = 1;
constexpr size_t longestLine = 16 << 10;
constexpr size_t largestFile = 64 << 20;  // bytes; tuning one model takes about 1 MiB
constexpr double mostSeconds = 3600;      // of one call; a greater time is no measurement

std::string hashOf(llvm::StringRef text) { return contentHash({{text.data(), text.size()}}).substr(0, 32); }

bool isHash(const std::string &s, size_t digits) {
  return s.size() == digits && llvm::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Whether the text is printable ASCII, so that listings cannot send control sequences to the terminal.
bool isText(const std::string &s, size_t longest) {
  return !s.empty() && s.size() <= longest && llvm::all_of(s, [](char c) { return c >= ' ' && c < 127; });
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
  if (r.outcome != Trial::Outcome::timed)
    j["outcome"] = nameOf(r.outcome);
  return j;
}

std::string checksumOf(const json &j) { return hashOf(j.dump()).substr(0, 16); }
/// The mark of a record made here: nobody else knows the secret.
std::string markOf(const json &j, llvm::StringRef secret) { return hashOf(secret.str() + j.dump()); }

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
  return fmt::format("{} {} {}", fact<&GroupFacts::kind>(fused), members, operands);
}

}  // namespace

std::string TuningRecord::str(llvm::StringRef secret) const {
  json j = jsonOf(*this);
  if (!secret.empty() && !fromElsewhere)
    j["here"] = markOf(j, secret);
  j["sum"] = checksumOf(j);
  return j.dump();
}

TuningRecord::Line TuningRecord::parse(llvm::StringRef line, TuningRecord &r, std::string &why,
                                       llvm::StringRef secret) {
  r = {};
  try {
    if (line.size() > longestLine)
      throw std::runtime_error("too long");
    json j = parseJson(line);
    if (j.dump() != line)  // rejects duplicate keys, for example
      throw std::runtime_error("not as it was written");
    const std::string sum = j.at("sum").get<std::string>();
    j.erase("sum");
    if (checksumOf(j) != sum)
      throw std::runtime_error("its checksum is wrong");
    if (const int v = j.at("v").get<int>(); v != version) {
      why = fmt::format("of version {}, not {}", v, version);
      return Line::otherVersion;
    }
    const std::string mark = j.value("here", "");
    j.erase("here");
    r.fromElsewhere = secret.empty() || mark != markOf(j, secret);
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
    if (!parseOutcome(j.value("outcome", "timed"), r.outcome))
      throw std::runtime_error("an outcome of no known name");
    const bool timed = r.outcome == Trial::Outcome::timed;
    if (seconds.size() != 3 || r.time.runs < timed || r.time.runs > 1000000)
      throw std::runtime_error("it holds no time");
    r.time.median = seconds[0], r.time.least = seconds[1], r.time.most = seconds[2];
    if (!inRange(seconds[0], mostSeconds) || !inRange(seconds[1], seconds[0]) || !inRange(seconds[2], mostSeconds) ||
        seconds[2] < seconds[0] || !inRange(r.compileSeconds, mostSeconds) || !inRange(r.raced, 1e6) ||
        !inRange(r.noise, 1e6) || (timed ? seconds[0] <= 0 : r.raced > 0))
      throw std::runtime_error("a time is out of range");
    if (!isHash(r.problem, 32) || !isHash(r.family, 32) || !isHash(r.source, 64) || !isText(r.name, 400) ||
        !isText(r.machine, 400) || !isText(r.session, 100) || r.extents.size() > 1000)
      throw std::runtime_error("a field is not what it should be");
    if (!Schedule::parse(j.at("schedule").get<std::string>(), r.schedule))
      throw std::runtime_error("no schedule");
    return Line::record;
  } catch (const json::exception &) {
    why = "not a record";
  } catch (const std::runtime_error &e) {
    why = e.what();
  }
  return Line::damaged;
}

TuningRecord recordOf(const TuningRecord &problem, const Trial &t, const std::string &session) {
  TuningRecord r = problem;
  r.schedule = t.schedule;
  r.source = t.source;
  r.outcome = t.outcome;
  r.time = t.outcome == Trial::Outcome::timed ? t.time : Timing();
  r.compileSeconds = t.compileSeconds;
  r.session = session;
  return r;
}

static std::string fingerprintNow(const Target &target) {
  return target.isCuda() ? cuda::fingerprintHere(target) : cpuFingerprint(target);
}

std::string fingerprintOf(const Target &target) {
  // The query is expensive: on a GPU it creates a context.
  static std::mutex lock;
  static std::map<std::string, std::string> known;
  const std::string key =
      fmt::format("{} {} {} {} {}", target.name, target.cpu, target.features, target.threads, target.ranks);
  std::lock_guard guard(lock);
  auto [it, isNew] = known.try_emplace(key);
  if (isNew)
    it->second = fingerprintNow(target);
  return it->second;
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

/// Holds tuning.lock in the same folder.
class TuningRecords::Lock {
public:
  explicit Lock(const std::string &dir) {
    const std::string path = dir + "/tuning.lock";
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
      why = fmt::format("cannot open {}: {}", path, std::strerror(errno));
      help = "make its folder one that this user may write, or name another by GPTC_CACHE";
      return;
    }
    // Do not wait forever for a stopped process.
    int tries = 0;
    while (!(held = flock(fd, LOCK_EX | LOCK_NB) == 0) && (errno == EWOULDBLOCK || errno == EINTR) && ++tries < 500)
      usleep(10000);
    if (held)
      return;
    if (tries == 500)
      why = fmt::format("another process holds {} for 5 s", path), help = "wait for it to end, then again";
    else  // some file systems have no locks
      why = fmt::format("cannot lock {}: {}", path, std::strerror(errno)), help = "name another folder by GPTC_CACHE";
  }
  ~Lock() {
    if (fd >= 0)
      close(fd);
  }
  explicit operator bool() const { return held; }
  std::string why, help;  // if the lock is not held

private:
  int fd = -1;
  bool held = false;
};

void TuningRecords::warn(std::string text) {
  if (!quiet)
    printError("warning: {}\n", text);
  warnings.push_back(std::move(text));
}

/// Also true for a dangling link.
static bool isThere(const std::string &path) {
  struct stat s;
  return lstat(path.c_str(), &s) == 0;
}

TuningRecords::TuningRecords(const std::string &dir, bool quiet) : dir(dir), quiet(quiet) {
  if (dir.empty())
    return;
  file = dir + "/tuning.jsonl";
  if (isThere(file))
    load(/*locked=*/false);
}

/// Writes a file completely or not at all.
static void write(const std::string &path, llvm::StringRef text, bool forThisUserAlone) {
  const std::string fresh = fmt::format("{}.{}.tmp", path, getpid());
  try {
    SyncedFile out(fresh);
    if (forThisUserAlone)
      chmod(fresh.c_str(), 0600);
    out.write(text.data(), text.size());
    out.finish();
    replaceFile(fresh, path);
  } catch (...) {
    unlink(fresh.c_str());
    throw;
  }
}

static std::string linesOf(llvm::ArrayRef<TuningRecord> some, llvm::StringRef secret) {
  std::string all;
  for (const TuningRecord &r : some)
    all += r.str(secret) + "\n";
  return all;
}

void TuningRecords::load(bool locked) {
  std::string why;
  const int folder = openPrivateFolder(dir, why);
  if (folder < 0)
    return warn(fmt::format("no tuning records are read: {}", why));
  close(folder);
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
  if (!wrong.empty()) {
    if (fd >= 0)
      close(fd);
    const std::string aside = file + ".set-aside";
    const bool moved = rename(file.c_str(), aside.c_str()) == 0;
    return warn(fmt::format("{} is not used: {}; {}", file, wrong, moved ? "set aside as " + aside : "remove it"));
  }
  const FileText text = readText(fd, largestFile);
  close(fd);
  if (!text.ok)
    return warn(fmt::format("{} is not used: {}", file, text.why));
  secret = neededCacheSecret(dir);  // "": all records count as from elsewhere and are checked

  std::vector<std::pair<size_t, std::string>> damaged;  // line number and reason
  std::string damagedText;
  llvm::StringRef rest = text.text;
  for (size_t number = 1; !rest.empty(); ++number) {
    auto [line, after] = rest.split('\n');
    const bool whole = rest.size() > line.size();
    rest = after;
    if (line.empty())
      continue;
    TuningRecord r;
    switch (TuningRecord::parse(line, r, why, secret)) {
    case TuningRecord::Line::record:
      records.push_back(std::move(r));
      break;
    case TuningRecord::Line::otherVersion:
      others += line.str() + "\n";
      break;
    case TuningRecord::Line::damaged:
      damaged.push_back({number, whole ? why : "it ends too early"});
      damagedText += line.str() + "\n";
    }
  }
  if (damaged.empty())
    return;
  std::optional<Lock> lock;
  if (!locked && lock.emplace(dir)) {  // again, because the last line may have been incomplete
    records.clear(), others.clear();
    return load(/*locked=*/true);
  }
  const std::string first = fmt::format("the first is line {}: {}", damaged[0].first, damaged[0].second);
  const std::string count = fmt::format("{} damaged line{}", damaged.size(), damaged.size() == 1 ? "" : "s");
  if (!locked)
    return warn(fmt::format("{}: {} left out ({}); {}", file, count, first, lock->why));
  // Copy good lines to a new file; keep damaged lines beside it.
  try {
    const std::string aside = file + ".damaged";
    const int to = openAppending(aside);
    appendAll(to, aside, damagedText);
    close(to);
    write(file, linesOf(records, secret) + others, true);
    warn(fmt::format("{}: {} set aside in {} ({})", file, count, aside, first));
  } catch (const UserError &e) {
    warn(fmt::format("{}: {} left out ({}); {}", file, count, first, e.diagnostics[0].message));
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
    TuningRecord r;
    if (TuningRecord::parse(line, r, why) == TuningRecord::Line::record)
      all.push_back(std::move(r));
    else
      damaged.push_back(fmt::format("line {}: {}", number, why));
  }
  return all;
}

void TuningRecords::writeFile(const std::string &name, llvm::ArrayRef<TuningRecord> some) {
  std::error_code isNew;
  const std::filesystem::path real = std::filesystem::canonical(name, isNew);  // keep a link a link
  const std::string path = isNew ? name : real.string();
  struct stat s;
  if (stat(path.c_str(), &s) != 0 || S_ISREG(s.st_mode))
    return write(path, linesOf(some, ""), false);
  const int fd = openAppending(path);
  appendAll(fd, path, linesOf(some, ""));
  close(fd);
}

void TuningRecords::append(llvm::ArrayRef<TuningRecord> some) {
  if (some.empty())
    return;
  records.insert(records.end(), some.begin(), some.end());
  if (dir.empty())
    return;
  try {
    keep(some);
  } catch (const UserError &e) {
    if (!std::exchange(saidNotKept, true))
      warn(fmt::format("{}: what is measured is not kept", e.diagnostics[0].message));
  }
}

void TuningRecords::keep(llvm::ArrayRef<TuningRecord> some) {
  std::string why;
  if (!ObjectCache::make(dir, why))
    throw UserError(ErrorCode::Unwritable, fmt::format("no records: {}", why), "name another folder by GPTC_CACHE");
  Lock lock(dir);
  if (!lock)
    throw UserError(ErrorCode::Unwritable, lock.why, lock.help);
  secret = neededCacheSecret(dir);
  const int fd = openForAppending();
  struct stat s;
  if (fd < 0 || fstat(fd, &s) != 0) {
    why = fmt::format("{}: {}", file, std::strerror(errno));
    if (fd >= 0)
      close(fd);
    throw UserError(ErrorCode::Unwritable, why, "remove it, or name another folder by GPTC_CACHE");
  }
  std::string text;
  // The last writer was killed in the middle of a line.
  if (char last = '\n'; s.st_size && pread(fd, &last, 1, s.st_size - 1) == 1 && last != '\n')
    text = "\n";
  text += linesOf(some, secret);
  try {
    if (size_t(s.st_size) + text.size() > largestFile)  // too large to be read again
      throw UserError(ErrorCode::Unwritable, fmt::format("{} is full", file), "`gptc cache prune` makes room");
    appendAll(fd, file, text);
  } catch (const UserError &) {
    (void)!ftruncate(fd, s.st_size);  // else the next reader would set an incomplete line aside
    close(fd);
    throw;
  }
  close(fd);
}

int TuningRecords::openForAppending() {
  return dir.empty() ? -1 : open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
}

void TuningRecords::replace(std::vector<TuningRecord> all) {
  Lock lock(dir);
  if (!lock)
    throw UserError(ErrorCode::Unwritable, lock.why, lock.help);
  TuningRecords now("", quiet);
  now.dir = dir, now.file = file;
  if (isThere(file))
    now.load(/*locked=*/true);
  std::set<std::string> before;
  for (const TuningRecord &r : records)
    before.insert(r.str());
  for (const TuningRecord &r : now.records)
    if (!before.count(r.str()))
      all.push_back(r);
  write(file, linesOf(all, now.secret) + now.others, true);
  records = std::move(all);
}

// ---- problems, for a check without their models --------------------------------------------------------------------

static std::string groupKeyOf(llvm::StringRef problem) { return "group-" + problem.str() + ".gir"; }

void TuningRecords::keepGroup(const Op &fused, const Target &target) const {
  if (dir.empty())
    return;
  Module m;
  Function &f = *m.addFunction("f");
  llvm::DenseMap<const Value *, Value *> map;
  for (const Value *v : fused.operands())
    if (!map.count(v))
      map[v] = f.body.addArg(v->type);
  Op &op = *cloneOp(fused, f.body, nullptr, map);
  for (const char *name : {"schedule", "ws"})
    op.attrs.erase(name);
  std::vector<Value *> results;
  for (unsigned i = 0; i < op.numResults(); ++i)
    results.push_back(op.result(i));
  Builder(f.body).ret(results);
  const std::string text = print(m);
  ObjectCache(dir).write(groupKeyOf(problemOf(fused, target).problem), {text.data(), text.size()});
}

std::unique_ptr<Module> TuningRecords::groupOf(llvm::StringRef problem, const Target &target) const {
  const auto text = dir.empty() ? std::nullopt : ObjectCache(dir).read(groupKeyOf(problem));
  if (!text)
    return nullptr;
  try {
    auto m = parseModule({text->data(), text->size()}, "a group on record");
    if (verify(*m).empty() && m->functions.size() == 1 && m->functions[0]->body.front() &&
        m->functions[0]->body.front()->is(OpKind::fused) &&
        problemOf(*m->functions[0]->body.front(), target).problem == problem)
      return m;
  } catch (const UserError &) {  // of another version
  }
  return nullptr;
}

}  // namespace gptc
