// Records of tuning on disk: whatever happens to the file, whole records are found again and nothing else is believed.
#include "runtime/tuning_records.h"
#include "temp_dir.h"

#include "ir/graph.h"

#include <algorithm>
#include <set>
#include <sys/stat.h>
#include <sys/wait.h>
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
  ThreadPool pool{2};
  std::unique_ptr<Module> module = matmulModule(60);
  const Op &fused = *module->functions[0]->body.front();

  void SetUp() override { ASSERT_EQ(chmod(dir.path.c_str(), 0700), 0); }
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
    TunedSchedules t(records, target, &pool);
    std::optional<Schedule> s = t.find(fused, target);
    if (counts)
      *counts = t.counts;
    return s;
  }
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
  records.append({close});
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
    TunedSchedules t(records, target, &pool);
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
  EXPECT_EQ(find(records, &counts), space()[0]);
  EXPECT_EQ(counts.checked, 1);
  TuningRecords again(dir.path, true);
  EXPECT_EQ(find(again, &counts), space()[0]);
  EXPECT_EQ(counts.checked, 0);
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
  const std::string line = race()[1].str();
  std::string why;
  ASSERT_TRUE(TuningRecord::parse(line, why));
  for (size_t i = 0; i < line.size(); ++i) {
    std::string damaged = line;
    damaged[i] ^= 1;
    if (std::optional<TuningRecord> r = TuningRecord::parse(damaged, why)) {
      EXPECT_EQ(*r, race()[1]) << i;  // white space
    }
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

}  // namespace
