// Records of tuning on disk: whatever happens to the file, whole records are found again and nothing else is believed.
#include "runtime/tuning/tuned_schedules.h"
#include "runtime/tuning/tuning_log.h"
#include "temp_dir.h"

#include "codegen/object_cache.h"
#include "codegen/tuner/group_bench.h"
#include "ir/kernel/kernel.h"
#include "support/json.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <set>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace gptc;

namespace {

std::unique_ptr<Module> matmulModule(int rows) {
  return parseModule(fmt::format("func @f(%a: f32[{0},48], %b: f32[48,64]) -> (f32[{0},64]) {{\n"
                                 "%y = fused %a, %b {{kind=\"matmul\"}} : f32[{0},64] {{\n"
                                 "^(%a: f32[{0},48], %b: f32[48,64])\n%m = matmul %a, %b : f32[{0},64]\nyield %m\n}}\n"
                                 "return %y\n}}",
                                 rows),
                     "test");
}

class Records : public ::testing::Test {
protected:
  TempDir dir;
  const Target target = hostTarget(2);
  std::unique_ptr<Module> module = matmulModule(60);
  const Op &fused = *module->functions[0]->body.front();

  void SetUp() override { ASSERT_EQ(chmod(dir.path.c_str(), 0700), 0); }
  /// Made when it is first asked for: a test that forks before has no threads, whose locks a child would find taken.
  ThreadPool &pool() {
    if (!threads)
      threads.emplace(2);
    return *threads;
  }
  std::string file() { return dir / "tuning.jsonl"; }

  TuningRecord record(const Schedule &s, double raced, const std::string &session = "1") {
    TuningRecord r = problemOf(fused, target);
    r.schedule = s;
    const LoweredGroup low = lowerGroup(fused, s, target);
    r.source = Jit(target, "").sources({&low.kernel})[0];
    r.time = {1e-3 * std::max(raced, 0.1), 0.9e-3 * std::max(raced, 0.1), 2e-3, 5};
    r.raced = raced;
    r.noise = 0.001;
    r.session = session;
    r.isDefault = s == defaultSchedule(fused, target);
    return r;
  }
  /// The default, and the first of the space at half its time.
  std::vector<TuningRecord> race(const std::string &session = "1") {
    return {record(defaultSchedule(fused, target), 1, session), record(space()[0], 0.5, session)};
  }
  std::vector<Schedule> space() { return scheduleSpace(fused, target); }
  std::optional<Schedule> find(TuningRecords &records, TunedSchedules::Counts *counts = nullptr) {
    TunedSchedules t(records, target, &pool());
    std::optional<Schedule> s = t.find(fused, target);
    if (counts)
      *counts = t.counts;
    return s;
  }

private:
  std::optional<ThreadPool> threads;
};

TEST_F(Records, AreReadAsTheyWereWritten) {
  TuningRecords(dir.path).append(race());
  TuningRecords again(dir.path, true);
  EXPECT_EQ(again.all(), llvm::ArrayRef(race()));
  EXPECT_TRUE(again.warnings.empty());
  struct stat s;
  ASSERT_EQ(stat(file().c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
}

TEST_F(Records, TheWinnerOfTheLastRaceIsChosen) {
  TuningRecords records(dir.path, true);
  EXPECT_FALSE(find(records));
  records.append(race("1"));
  EXPECT_EQ(find(records), space()[0]);
  // Faster alone, but a later race was lost.
  TuningRecord slow = record(space()[0], 1.2, "2"), base = record(defaultSchedule(fused, target), 1, "2");
  records.append({slow, base});
  EXPECT_FALSE(find(records));
  records.append({record(space()[1], 0.9, "3"), record(defaultSchedule(fused, target), 1, "3")});
  EXPECT_EQ(find(records), space()[1]);
  // A gain within the noise is none.
  TuningRecord close = record(space()[1], 0.99, "4");
  close.noise = 0.02;
  records.append({close, record(defaultSchedule(fused, target), 1, "4")});
  EXPECT_FALSE(find(records));
}

TEST_F(Records, OtherMachinesAndProblemsDoNotCount) {
  TuningRecords records("", true);
  std::vector<TuningRecord> some = race();
  for (TuningRecord &r : some)
    r.machine = "another one";
  records.append(some);
  some = race();
  for (TuningRecord &r : some)
    r.problem = r.family = std::string(32, 'a');
  records.append(some);
  EXPECT_FALSE(find(records));
}

TEST_F(Records, TheNearestShapeLendsItsTile) {
  TuningRecords records("", true);
  // A tile that suits both.
  auto twice = matmulModule(120);
  const std::vector<Schedule> there = scheduleSpace(*twice->functions[0]->body.front(), target), here = space();
  auto tile = std::find_if(here.begin(), here.end(), [&](const Schedule &s) {
    return std::any_of(there.begin(), there.end(), [&](const Schedule &t) { return t.mr == s.mr && t.nr == s.nr; });
  });
  ASSERT_NE(tile, here.end());
  std::vector<TuningRecord> some = {record(defaultSchedule(fused, target), 1), record(*tile, 0.5)};
  records.append(some);
  auto findFor = [&](int rows) {
    auto other = matmulModule(rows);
    TunedSchedules t(records, target, &pool());
    std::optional<Schedule> s = t.find(*other->functions[0]->body.front(), target);
    EXPECT_EQ(t.counts.nearest, s ? 1 : 0);
    EXPECT_EQ(t.counts.exact, 0);
    return s;
  };
  std::optional<Schedule> s = findFor(120);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->mr, tile->mr);
  EXPECT_EQ(s->nr, tile->nr);
  EXPECT_FALSE(findFor(121)) << "more than twice as many rows";
  // One that has hardly won lends nothing.
  some[1].raced = 0.98, some[0].session = some[1].session = "2";
  records.append(some);
  EXPECT_FALSE(findFor(120));
}

TEST_F(Records, WhatMemoryLimitsLendsNothing) {
  auto sum = [](int rows) {
    return parseModule(fmt::format("func @f(%a: f32[{0},512], %b: f32[{0},512]) -> (f32[{0},512]) {{\n"
                                   "%y = fused %a, %b {{kind=\"pointwise\"}} : f32[{0},512] {{\n"
                                   "^(%a: f32[{0},512], %b: f32[{0},512])\n%m = add %a, %b : f32[{0},512]\n"
                                   "yield %m\n}}\nreturn %y\n}}",
                                   rows),
                       "test");
  };
  auto here = sum(512), near = sum(600);
  const Op &op = *here->functions[0]->body.front();
  std::vector<TuningRecord> some;
  for (const Schedule &s : {defaultSchedule(op, target), scheduleSpace(op, target)[0]}) {
    TuningRecord r = problemOf(op, target);
    const LoweredGroup low = lowerGroup(op, s, target);
    r.source = Jit(target, "").sources({&low.kernel})[0];
    r.schedule = s, r.isDefault = some.empty(), r.raced = some.empty() ? 1 : 0.5, r.session = "1";
    r.time = {1e-3, 1e-3, 1e-3, 5};
    some.push_back(r);
  }
  TuningRecords records("", true);
  records.append(some);
  TunedSchedules t(records, target, &pool());
  EXPECT_EQ(t.find(op, target), some[1].schedule);
  EXPECT_FALSE(t.find(*near->functions[0]->body.front(), target));
  EXPECT_EQ(t.counts.nearest, 0);
}

TEST_F(Records, ACodeThatIsEmittedOtherwiseNowMakesThemStale) {
  TuningRecords records("", true);
  std::vector<TuningRecord> some = race();
  some[1].source[0] = some[1].source[0] == 'a' ? 'b' : 'a';
  records.append(some);
  TunedSchedules::Counts counts;
  EXPECT_FALSE(find(records, &counts));
  EXPECT_EQ(counts.stale, 1);
}

TEST_F(Records, SchedulesOutsideOfTheSpaceAreRefused) {
  TuningRecords records("", true);
  Schedule odd = space()[0];
  odd.mr = 1;
  odd.kc = 7;
  records.append({record(odd, 0.1), record(defaultSchedule(fused, target), 1)});
  TunedSchedules::Counts counts;
  EXPECT_FALSE(find(records, &counts));
  EXPECT_EQ(counts.rejected, 1);
}

TEST_F(Records, ThoseFromElsewhereAreCheckedOnce) {
  TuningRecords records(dir.path, true);
  std::vector<TuningRecord> some = race();
  for (TuningRecord &r : some)
    r.fromElsewhere = true;
  records.append(some);
  TunedSchedules::Counts counts;
  EXPECT_FALSE(records.groupOf(some[0].problem, target));
  EXPECT_EQ(find(records, &counts), space()[0]);
  EXPECT_TRUE(records.groupOf(some[0].problem, target)) << "known from now on";
  EXPECT_EQ(counts.checked, 1);
  TuningRecords again(dir.path, true);
  EXPECT_EQ(find(again, &counts), space()[0]);
  EXPECT_EQ(counts.checked, 0);
}

TEST_F(Records, AClockThatIsAheadElsewhereOutdatesNothingMeasuredHere) {
  TuningRecords records(dir.path, true);
  std::vector<TuningRecord> ahead = race("9");
  for (TuningRecord &r : ahead)
    r.fromElsewhere = true;
  records.append(ahead);
  EXPECT_EQ(find(records), space()[0]);  // checked, and on record as such
  records.append({record(defaultSchedule(fused, target), 1, "5"), record(space()[1], 0.9, "5")});
  EXPECT_EQ(find(records), space()[1]);
  TuningRecords again(dir.path, true);
  EXPECT_EQ(find(again), space()[1]);
}

TEST_F(Records, ADamagedLineIsSetAsideAndTheOthersCount) {
  TuningRecords(dir.path).append(race());
  std::string text = readFile(file());
  const size_t second = text.find('\n') + 1;
  for (const auto &[what, damaged] : {std::pair<std::string, std::string>{"a flipped bit",
                                                                          [&] {
                                                                            auto t = text;
                                                                            t[second / 2] ^= 1;
                                                                            return t;
                                                                          }()},
                                      {"no JSON", "hello\n" + text},
                                      {"a number out of range",
                                       [&] {
                                         auto t = text;
                                         t.replace(t.find("\"runs\":5"), 8, "\"runs\":-5");
                                         return t;
                                       }()},
                                      {"cut off", text + text.substr(0, 100)},
                                      {"not text at all", std::string("\0\xff\x01", 3) + "\n" + text},
                                      {"a huge line", std::string(100000, 'x') + "\n" + text}}) {
    writeFile(file(), damaged);
    TuningRecords r(dir.path, true);
    EXPECT_EQ(r.warnings.size(), 1u) << what;
    EXPECT_GE(r.all().size(), 1u) << what;
    EXPECT_LE(r.all().size(), 2u) << what;
    EXPECT_TRUE(std::filesystem::exists(file() + ".damaged")) << what;
    TuningRecords again(dir.path, true);
    EXPECT_TRUE(again.warnings.empty()) << what;
    EXPECT_EQ(again.all(), r.all()) << what;
  }
}

TEST_F(Records, EverySingleFlippedBitIsNoticed) {
  const std::string line = race()[1].str("secret");
  std::string why;
  TuningRecord r;
  ASSERT_EQ(TuningRecord::parse(line, r, why, "secret"), TuningRecord::Line::record);
  EXPECT_EQ(r, race()[1]);
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] ^= 1;
    EXPECT_EQ(TuningRecord::parse(damaged, r, why, "secret"), TuningRecord::Line::damaged) << i;
  }
}

TEST_F(Records, AfterAKillInTheMiddleOfALineOthersGoOn) {
  TuningRecords(dir.path).append(race());
  const std::string text = readFile(file());
  writeFile(file(), text + text.substr(0, text.size() / 3));
  chmod(file().c_str(), 0600);
  TuningRecords r("", true);
  TuningRecords half(dir.path, true);
  EXPECT_EQ(half.all().size(), 2u);
  // One that appends without having seen the damage.
  writeFile(file(), text + text.substr(0, text.size() / 3));
  half.append(race("2"));
  TuningRecords again(dir.path, true);
  EXPECT_EQ(again.all().size(), 4u);
}

TEST_F(Records, SixteenProcessesAppendAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    pid_t child = fork();
    if (child == 0) {
      for (int k = 0; k < 10; ++k)
        TuningRecords(dir.path, true).append({record(space()[0], 0.5, fmt::format("{}-{}", i, k))});
      _exit(0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  TuningRecords all(dir.path, true);
  EXPECT_TRUE(all.warnings.empty());
  std::set<std::string> sessions;
  for (const TuningRecord &r : all.all())
    sessions.insert(r.session);
  EXPECT_EQ(sessions.size(), 160u);
  EXPECT_EQ(all.all().size(), 160u);
}

TEST_F(Records, AFileThatOthersMayWriteIsSetAside) {
  TuningRecords(dir.path).append(race());
  ASSERT_EQ(chmod(file().c_str(), 0622), 0);
  TuningRecords r(dir.path, true);
  EXPECT_TRUE(r.all().empty());
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("others may write it"), std::string::npos) << r.warnings[0];
  EXPECT_TRUE(std::filesystem::exists(file() + ".set-aside"));
  r.append(race());
  EXPECT_EQ(TuningRecords(dir.path, true).all().size(), 2u);
}

TEST_F(Records, AFileOfAnotherUserIsSetAside) {
  TuningRecords(dir.path).append(race());
  if (geteuid() != 0 || chown(file().c_str(), 12345, 12345) != 0)
    GTEST_SKIP() << "needs root";
  TuningRecords r(dir.path, true);
  EXPECT_TRUE(r.all().empty());
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("another user owns it"), std::string::npos) << r.warnings[0];
}

TEST_F(Records, ALinkIsNotFollowed) {
  TuningRecords(dir.path).append(race());
  std::filesystem::rename(file(), dir / "elsewhere.jsonl");
  std::filesystem::create_symlink(dir / "elsewhere.jsonl", file());
  TuningRecords r(dir.path, true);
  EXPECT_TRUE(r.all().empty());
  EXPECT_EQ(r.warnings.size(), 1u);
}

TEST_F(Records, AnOpenFolderIsNotRead) {
  TuningRecords(dir.path).append(race());
  ASSERT_EQ(chmod(dir.path.c_str(), 0777), 0);
  TuningRecords r(dir.path, true);
  EXPECT_TRUE(r.all().empty());
  EXPECT_EQ(r.warnings.size(), 1u);
}

TEST_F(Records, ReplacingKeepsWhatOthersAppendedMeanwhile) {
  TuningRecords one(dir.path, true);
  one.append(race("1"));
  TuningRecords(dir.path, true).append(race("2"));
  one.replace({race("1")[1]});
  TuningRecords r(dir.path, true);
  ASSERT_EQ(r.all().size(), 3u);
  EXPECT_EQ(r.all()[0], race("1")[1]);
  EXPECT_EQ(r.all()[2], race("2")[1]);
}

TEST_F(Records, ReplacingKeepsWhatCameAfterAnotherReplaced) {
  TuningRecords one(dir.path, true);
  one.append(race("1"));
  one.append(race("2"));
  TuningRecords other(dir.path, true);
  other.replace({race("2")[1]});
  other.append(race("3"));  // the file has fewer lines than `one` has read
  one.replace({race("2")[1]});
  TuningRecords r(dir.path, true);
  ASSERT_EQ(r.all().size(), 3u);
  EXPECT_EQ(r.all()[1], race("3")[0]);
  EXPECT_EQ(r.all()[2], race("3")[1]);
}

TEST_F(Records, WithoutTheLockNothingIsRewritten) {
  TuningRecords(dir.path).append(race());
  const std::string damaged = readFile(file()) + "half a li";  // which another process may be about to end
  writeFile(file(), damaged);
  chmod(file().c_str(), 0600);
  std::filesystem::remove(dir / "tuning.lock");
  std::filesystem::create_directory(dir / "tuning.lock");
  TuningRecords r(dir.path, true);
  EXPECT_EQ(r.all().size(), 2u);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("left out"), std::string::npos) << r.warnings[0];
  EXPECT_NE(r.warnings[0].find("Is a directory"), std::string::npos) << r.warnings[0];
  EXPECT_EQ(readFile(file()), damaged);
}

TEST_F(Records, WhatCannotBeKeptIsSaidOnce) {
  std::filesystem::create_directory(dir / "tuning.lock");
  TuningRecords r(dir.path, true);
  for (int i = 0; i < 3; ++i)
    r.append(race());
  EXPECT_EQ(r.all().size(), 6u) << "this process knows them";
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("is not kept"), std::string::npos) << r.warnings[0];
  EXPECT_THROW(r.keep({}), UserError);
  std::filesystem::remove(dir / "tuning.lock");
  EXPECT_NO_THROW(r.keep({}));
  ASSERT_EQ(chmod(dir.path.c_str(), 0755), 0);
  EXPECT_THROW(r.keep({}), UserError);
}

TEST_F(Records, AFileThatWouldBeTooLargeToReadDoesNotGrow) {
  TuningRecords r(dir.path, true);
  const std::string full(64 << 20, '\n');
  writeFile(file(), full);
  chmod(file().c_str(), 0600);
  try {
    r.keep(race());
    ADD_FAILURE() << "kept";
  } catch (const UserError &e) {
    EXPECT_NE(std::string(e.what()).find("gptc cache prune"), std::string::npos) << e.what();
  }
  EXPECT_EQ(std::filesystem::file_size(file()), full.size());
}

TEST_F(Records, AnExportLeavesPipesAndLinksWhatTheyAre) {
  const std::string pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  TuningRecords::writeFile(pipe, race());
  std::string text(1 << 16, 0);
  text.resize(size_t(std::max<ssize_t>(0, read(reader, text.data(), text.size()))));
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  const std::string lines = race()[0].str() + "\n" + race()[1].str() + "\n";
  EXPECT_EQ(text, lines);
  writeFile(dir / "to", "older");
  std::filesystem::create_symlink(dir / "to", dir / "link");
  TuningRecords::writeFile(dir / "link", race());
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(readFile(dir / "to"), lines);
}

// ---- files that did not come about here -----------------------------------------------------------------------------

/// As tuning.jsonl has it, but with a checksum of one's own: what somebody may put there who knows the format.
std::string forged(const TuningRecord &r, const std::function<void(nlohmann::json &)> &change) {
  nlohmann::json j = parseJson(r.str());
  j.erase("sum");
  change(j);
  const std::string text = j.dump();
  j["sum"] = contentHash({{text.data(), text.size()}}).substr(0, 16);
  return j.dump() + "\n";
}

TEST_F(Records, AFileFromAnotherCacheIsCheckedWhateverItSays) {
  TempDir other;
  ASSERT_EQ(chmod(other.path.c_str(), 0700), 0);
  TuningRecords(other.path).append(race());  // made there, not here
  TuningRecords(dir.path).append({record(space()[1], 0.9, "0")});
  std::filesystem::copy_file(other / "tuning.jsonl", file(), std::filesystem::copy_options::overwrite_existing);
  TuningRecords records(dir.path, true);
  ASSERT_EQ(records.all().size(), 2u);
  EXPECT_TRUE(records.all()[0].fromElsewhere && records.all()[1].fromElsewhere);
  TunedSchedules::Counts counts;
  EXPECT_EQ(find(records, &counts), space()[0]);
  EXPECT_EQ(counts.checked, 1);
  // A mark that is made up is none.
  writeFile(file(), forged(race()[1], [](nlohmann::json &j) { j["here"] = std::string(32, 'a'); }));
  chmod(file().c_str(), 0600);
  TuningRecords again(dir.path, true);
  ASSERT_EQ(again.all().size(), 1u);
  EXPECT_TRUE(again.all()[0].fromElsewhere);
}

TEST_F(Records, WithoutItsSecretAFileCountsAsFromElsewhere) {
  TuningRecords(dir.path).append(race());
  EXPECT_FALSE(TuningRecords(dir.path, true).all()[0].fromElsewhere);
  struct stat s;
  ASSERT_EQ(stat((dir / "tuning.key").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  ASSERT_EQ(chmod((dir / "tuning.key").c_str(), 0644), 0);  // others know it
  EXPECT_TRUE(TuningRecords(dir.path, true).all()[0].fromElsewhere);
  ASSERT_EQ(stat((dir / "tuning.key").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u) << "a new one";
}

TEST_F(Records, OneThatGivesOtherBitsIsRefusedOnceAndForAll) {
  // `vec` orders the sums of a row. No space offers another one: were it to, its bits would be looked at.
  auto m = parseModule("func @f(%x: f32[64,384]) -> (f32[64,384]) {\n"
                       "%y = fused %x {kind=\"row\"} : f32[64,384] {\n^(%x: f32[64,384])\n"
                       "%y = softmax %x : f32[64,384]\nyield %y\n}\nreturn %y\n}",
                       "test");
  const Op &row = *m->functions[0]->body.front();
  Schedule odd = defaultSchedule(row, target);
  odd.vec /= 2;
  GroupBench bench(row, target, pool(), false);
  ASSERT_EQ(bench.verdict(odd), Trial::Outcome::wrongBits);
  // What a check leaves behind keeps the schedule out of every race.
  TuningRecords records(dir.path, true);
  records.append(race());
  ASSERT_EQ(find(records), space()[0]);
  TuningRecord verdict = record(space()[0], 0, "9");
  verdict.outcome = Trial::Outcome::wrongBits, verdict.time = {}, verdict.noise = 0;
  records.append({verdict});
  EXPECT_FALSE(find(records));
  TuningRecords again(dir.path, true);
  EXPECT_EQ(again.all()[2], verdict);
  EXPECT_FALSE(find(again));
  // Not what somebody else says.
  TuningRecords elsewhere("", true);
  elsewhere.append(race());
  verdict.fromElsewhere = true;
  elsewhere.append({verdict});
  EXPECT_EQ(find(elsewhere), space()[0]);
}

TEST_F(Records, NumbersOutOfRangeAndStrangeLinesAreDamage) {
  const TuningRecord r = race()[1];
  const std::string good = r.str() + "\n";
  using json = nlohmann::json;
  const std::pair<const char *, std::string> lines[] = {
      {"NaN",
       [&] {
         std::string t = forged(r, [](json &) {});
         return t.replace(t.find("\"seconds\":["), 11, "\"seconds\":[NaN,");
       }()},
      {"a null for a time", forged(r, [](json &j) { j["seconds"][0] = nullptr; })},
      {"a negative time", forged(r, [](json &j) { j["seconds"][1] = -1e-3; })},
      {"no time at all", forged(r, [](json &j) { j["seconds"] = {0.0, 0.0, 0.0}; })},
      {"a median beyond the largest", forged(r, [](json &j) { j["seconds"][2] = 1e-9; })},
      {"an infinite ratio", forged(r, [](json &j) { j["raced"] = 1e300; })},
      {"a negative ratio", forged(r, [](json &j) { j["raced"] = -0.5; })},
      {"a ratio of one that failed", forged(r, [](json &j) { j["outcome"] = "wrong_bits"; })},
      {"an unknown outcome", forged(r, [](json &j) { j["outcome"] = "splendid"; })},
      {"a hash that is none", forged(r, [](json &j) { j["problem"] = std::string(32, 'x'); })},
      {"a schedule that is none", forged(r, [](json &j) { j["schedule"] = "matmul mr=-3"; })},
      {"control characters", forged(r, [](json &j) { j["name"] = "\033[2J"; })},
      {"control characters of Unicode", forged(r, [](json &j) { j["name"] = "\u009b2J"; })},
      {"a field missing", forged(r, [](json &j) { j.erase("session"); })},
      {"a number for a text", forged(r, [](json &j) { j["machine"] = 7; })},
      {"a key twice",
       [&] {
         std::string t = good;
         return t.replace(t.find("\"raced\""), 7, "\"raced\":0.001,\"raced\"");
       }()},
      {"another layout", good.substr(0, 1) + " " + good.substr(1)},
      {"a list", "[" + good.substr(0, good.size() - 1) + "]\n"},
      {"deep nesting", std::string(15000, '[') + "\n"},
      {"binary", [] {
         std::string t;
         for (int i = 1; i < 2000; ++i)
           t += char(i * 37 % 255 == '\n' ? 'x' : i * 37 % 255);
         return t + "\n";
       }()}};
  for (const auto &[what, line] : lines) {
    writeFile(file(), good + line + good);
    chmod(file().c_str(), 0600);
    TuningRecords records(dir.path, true);
    EXPECT_EQ(records.all().size(), 2u) << what;
    EXPECT_EQ(records.warnings.size(), 1u) << what;
    EXPECT_TRUE(TuningRecords(dir.path, true).warnings.empty()) << what;
  }
}

TEST_F(Records, LinesOfALaterVersionStayForIt) {
  const std::string later = forged(race()[1], [](nlohmann::json &j) {
    j["v"] = 2;
    j["seconds"] = "a new kind of time";
  });
  writeFile(file(), later + "damage\n" + race()[0].str() + "\n");
  chmod(file().c_str(), 0600);
  TuningRecords records(dir.path, true);
  EXPECT_EQ(records.all().size(), 1u);
  EXPECT_EQ(records.warnings.size(), 1u) << "of the damaged line alone";
  EXPECT_NE(readFile(file()).find(later), std::string::npos);
  TuningRecords(dir.path, true).replace({});
  EXPECT_EQ(readFile(file()), later);
}

TEST_F(Records, HugeFilesAndLinesCostNoTime) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string good = race()[0].str() + "\n";
  writeFile(file(), good + std::string(10 << 20, '{') + "\n" + good);
  chmod(file().c_str(), 0600);
  TuningRecords line(dir.path, true);
  EXPECT_EQ(line.all().size(), 2u);
  ASSERT_EQ(line.warnings.size(), 1u);
  EXPECT_NE(line.warnings[0].find("too long"), std::string::npos) << line.warnings[0];
  writeFile(file(), std::string(100 << 20, 'x'));
  chmod(file().c_str(), 0600);
  TuningRecords large(dir.path, true);
  EXPECT_TRUE(large.all().empty());
  ASSERT_EQ(large.warnings.size(), 1u);
  EXPECT_NE(large.warnings[0].find("more than"), std::string::npos) << large.warnings[0];
  large.append(race());
  EXPECT_EQ(TuningRecords(dir.path, true).all().size(), 2u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(Records, EqualLinesCountOnce) {
  const std::string good = race()[0].str() + "\n" + race()[1].str() + "\n";
  writeFile(file(), good + good + good);
  chmod(file().c_str(), 0600);
  TuningRecords records(dir.path, true);
  EXPECT_EQ(find(records), space()[0]);
}

TEST_F(Records, AGroupIsKeptSoThatItCanBeComputedAgain) {
  TuningRecords records(dir.path, true);
  records.append(race());
  records.keepGroup(fused, target);
  const std::string problem = problemOf(fused, target).problem;
  std::unique_ptr<Module> m = TuningRecords(dir.path, true).groupOf(problem, target);
  ASSERT_TRUE(m);
  const Op &again = *m->functions[0]->body.front();
  EXPECT_EQ(problemOf(again, target).problem, problem);
  EXPECT_EQ(defaultSchedule(again, target), defaultSchedule(fused, target));
  EXPECT_EQ(scheduleSpace(again, target), space());
  EXPECT_FALSE(records.groupOf(std::string(32, 'a'), target));
}

// ---- searches that end early ----------------------------------------------------------------------------------------

TEST_F(Records, ASearchThatWasKilledGoesOn) {
  const std::vector<Schedule> all = space();
  ASSERT_GE(all.size(), 6u);
  auto search = [&](TuningRecords &records, RecordingLog &log, Lowering lowering = nullptr) {
    GroupBench bench(fused, target, pool(), false, std::move(lowering));
    return searchSchedules(bench, llvm::ArrayRef(all).take_front(6).vec(), {.seconds = 2, .log = &log});
  };
  pid_t child = fork();
  if (child == 0) {
    ThreadPool own(2);
    TuningRecords records(dir.path, true);
    RecordingLog log(records, problemOf(fused, target), "1");
    struct Killed : TrialLog {
      RecordingLog &to;
      int left = 4;  // the default and three more
      explicit Killed(RecordingLog &to) : to(to) {}
      std::optional<Trial> find(const Trial &t) override { return to.find(t); }
      void begin(llvm::ArrayRef<const Trial *> t) override { to.begin(t); }
      void add(const Trial &t) override {
        to.add(t);
        if (!--left)
          kill(getpid(), SIGKILL);
      }
    } killed(log);
    GroupBench bench(fused, target, own, false);
    searchSchedules(bench, llvm::ArrayRef(all).take_front(6).vec(), {.seconds = 2, .log = &killed});
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  TuningRecords records(dir.path, true);
  EXPECT_TRUE(records.warnings.empty());
  EXPECT_EQ(records.all().size(), 4u);
  RecordingLog log(records, problemOf(fused, target), "2");
  const SearchResult r = search(records, log);
  EXPECT_EQ(log.known, 4);
  EXPECT_EQ(log.known + log.added, int(r.trials.size()));
  EXPECT_GT(r.trials[0].raced, 0);
  // And what `again` asks for is measured again.
  RecordingLog again(records, problemOf(fused, target), "3", true);
  search(records, again);
  EXPECT_EQ(again.known, 0);
}

TEST_F(Records, ACandidateThatEndsTheProcessIsLeftOutNextTime) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer handles faults itself";
#endif
  const std::vector<Schedule> some = llvm::ArrayRef(space()).take_front(3).vec();
  auto search = [&](ThreadPool &threads, const Lowering &lowering) {
    TuningRecords records(dir.path, true);
    RecordingLog log(records, problemOf(fused, target), "1");
    GroupBench bench(fused, target, threads, false, lowering);
    return searchSchedules(bench, some, {.seconds = 1, .log = &log});
  };
  // A store to nowhere.
  const Lowering wild = [&](const Op &op, const Schedule &s, const Target &t) {
    LoweredGroup l = lowerGroup(op, s, t);
    if (s == some[1]) {
      const kir::Var zero = kir::makeVar("zero");
      l.kernel.body.push_back(kir::loop(
          kir::LoopKind::serial, zero, kir::imm(1),
          {kir::store(l.kernel.params.back(), kir::ref(zero) + (int64_t(1) << 44), kir::fimm(1, DType::f32))}));
    }
    return l;
  };
  auto ends = [&](int signal) {
    pid_t child = fork();
    if (child == 0) {
      ThreadPool own(2);
      search(own, wild);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
  };
  ends(SIGSEGV);
  TuningRecords records(dir.path, true);
  EXPECT_TRUE(records.warnings.empty());
  int crashed = 0;
  for (const TuningRecord &r : records.all()) {
    crashed += r.outcome == Trial::Outcome::crashed;
    EXPECT_EQ(r.outcome == Trial::Outcome::crashed, r.schedule == some[1]);
  }
  EXPECT_EQ(crashed, 1);
  const SearchResult r = search(pool(), wild);
  for (const Trial &t : r.trials)
    EXPECT_EQ(t.outcome, t.schedule == some[1] ? Trial::Outcome::crashed : Trial::Outcome::timed);
  EXPECT_NE(r.trials[r.best].schedule, some[1]);
}

TEST_F(Records, AScheduleFromElsewhereEndsTheProcessOnce) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer handles faults itself";
#endif
  std::vector<TuningRecord> some = race();
  for (TuningRecord &r : some)
    r.fromElsewhere = true;
  TuningRecords(dir.path, true).append(some);
  auto crashed = [&] {
    const TuningRecords records(dir.path, true);
    EXPECT_TRUE(records.warnings.empty());
    return llvm::any_of(records.all(),
                        [](const TuningRecord &r) { return r.outcome == Trial::Outcome::crashed && !r.fromElsewhere; });
  };
  // A fault comes somewhere in a check; hardly ever between two of them.
  for (int i = 0; i < 20 && !crashed(); ++i) {
    pid_t child = fork();
    if (child == 0) {
      ThreadPool own(2);
      std::thread fault([] {
        usleep(20000);
        raise(SIGSEGV);
      });
      for (;;) {
        TuningRecords records(dir.path, true);
        TunedSchedules(records, target, &own).check(some[1], fused);
      }
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  }
  EXPECT_TRUE(crashed());
  TuningRecords records(dir.path, true);
  EXPECT_FALSE(find(records)) << "it may never run again";
}

TEST_F(Records, OfSeveralThatEndTheProcessTogetherTheGuiltyOneIsFound) {
  const std::vector<Schedule> some = llvm::ArrayRef(space()).take_front(3).vec();
  // The compiler gives up, as LLVM does by abort(), when it meets the second of them.
  struct Aborting : GroupBench {
    using GroupBench::GroupBench;
    Schedule bad;
    void build(llvm::ArrayRef<Trial *> trials) override {
      for (Trial *t : trials)
        if (t->schedule == bad)
          abort();
      GroupBench::build(trials);
    }
  };
  auto run = [&](ThreadPool &threads) {
    TuningRecords records(dir.path, true);
    RecordingLog log(records, problemOf(fused, target), "1");
    Aborting bench(fused, target, threads, false);
    bench.bad = some[1];
    return searchSchedules(bench, some, {.seconds = 1, .log = &log});
  };
  for (int i = 0; i < 2; ++i) {  // first among others, then alone
    pid_t child = fork();
    if (child == 0) {
      ThreadPool own(2);
      run(own);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << i << ": " << status;
  }
  const SearchResult r = run(pool());
  ASSERT_EQ(r.trials.size(), 4u);
  for (const Trial &t : r.trials)
    EXPECT_EQ(t.outcome, t.schedule == some[1] ? Trial::Outcome::crashed : Trial::Outcome::timed) << t.schedule.str();
}

}  // namespace
