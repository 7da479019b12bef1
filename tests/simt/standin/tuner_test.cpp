// The tuner on a GPU, which the stand-ins are: candidates of the recipes' spaces and of cuBLASLt, what NVRTC says of
// them, times by events, records, and a compile that finds them again.
#include "groups_on_device.h"

#include "frontends/toml_config.h"
#include "runtime/cuda/group_bench.h"
#include "runtime/tuning/tuned_schedules.h"
#include "runtime/tuning/tuning_log.h"
#include "tests/support/whole_run.h"
#include "tests/unit/runtime/temp_dir.h"
#include "tools/compiler/compile.h"
#include "tools/study/tune.h"

#include "llvm/ADT/STLExtras.h"

#include <fstream>
#include <sys/stat.h>

namespace gptc::test {
namespace {

class GpuTuner : public testing::Test {
protected:
  static void SetUpTestSuite() { useStandins(); }
  void SetUp() override { ASSERT_EQ(chmod(dir.path.c_str(), 0700), 0); }
  void TearDown() override { unsetenv("GPTC_STANDIN_SPILL"); }

  TempDir dir;
  ThreadPool pool{2};

  static Target targetHere(const char *features = "") {
    Target t = cudaTarget("cuda:" + cuda::architectureHere());
    t.features = features;
    return t;
  }
  static Group product(const char *type, int m, int n, int k) {
    return group(
        "matmul", fmt::format("%a: {0}[{1},{2}]; %b: {0}[{2},{3}]; %c: {0}[{3}]", type, m, k, n),
        fmt::format("%y = matmul %a, %b : {0}[{1},{2}]\n%z = add %y, %c : {0}[{1},{2}]\nyield %z", type, m, n));
  }
};

TEST_F(GpuTuner, SpacesKeepToSharedMemoryAndRegisters) {
  for (const char *gpu : {"cuda:sm_75", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_120"}) {
    const Target target = cudaTarget(gpu);
    for (const char *type : {"f32", "bf16"}) {
      const Group g = product(type, 1024, 768, 768);
      const std::vector<Schedule> space = scheduleSpace(*g.fused, target);
      EXPECT_GE(space.size(), target.architecture < 80 ? 5u : 20u) << gpu << " " << type;
      const Schedule base = defaultSchedule(*g.fused, target);
      for (const Schedule &s : space) {
        EXPECT_EQ(s.mma, base.mma) << "which orders the sum";
        const LoweredGroup l = lowerGroup(*g.fused, s, target);
        EXPECT_TRUE(kir::verify(l.kernel).empty()) << s.str();
        for (const CudaPhase &p : emitCuda(l.kernel, "k").phases) {
          EXPECT_LE(p.sharedBytes, target.sharedBytes) << gpu << " " << s.str();
          EXPECT_LE(p.threads, 1024);
        }
      }
    }
  }
  // Fewer pieces and tiles where there is less shared memory.
  const Group g = product("bf16", 1024, 768, 768);
  EXPECT_LT(scheduleSpace(*g.fused, cudaTarget("cuda:sm_86")).size(),
            scheduleSpace(*g.fused, cudaTarget("cuda:sm_90a")).size());
}

TEST_F(GpuTuner, CandidatesOfEveryRecipeGiveTheBitsOfTheDefault) {
  const Target target = targetHere();
  const cuda::Gpu gpu(target);
  Group groups[] = {product("f32", 70, 66, 40), product("bf16", 70, 66, 40),
                    group("attention", "%x: bf16[1,40,96]",
                          "%o, %l = attention %x {n_head=2, n_kv_head=2} : bf16[1,40,32], f32[1,2,40]\nyield %o, %l"),
                    group("attention_grad", "%do: bf16[1,40,32]; %x: bf16[1,40,96]; %o: bf16[1,40,32]; %l: f32[1,2,40]",
                          "%d = attention_grad %do, %x, %o, %l {n_head=2, n_kv_head=2} : bf16[1,40,96]\nyield %d"),
                    group("pointwise", "%a: f32[70,66]; %b: f32[70,66]", "%y = add %a, %b : f32[70,66]\nyield %y")};
  for (const Group &g : groups) {
    cuda::GroupBench bench(gpu, *g.fused, target, pool, false);
    const std::vector<Schedule> space = bench.space();
    ASSERT_GE(space.size(), 2u) << g.fused->attrs.getString("kind");
    // Some from all over it: each takes a second to compile here.
    std::vector<Schedule> some;
    for (size_t i = 0; i < space.size(); i += (space.size() + 3) / sized(2, 4))
      some.push_back(space[i]);
    std::vector<Trial> trials = bench.propose(some);
    std::vector<Trial *> all;
    for (Trial &t : trials)
      all.push_back(&t);
    bench.build(all);
    for (const Trial &t : trials) {
      ASSERT_EQ(t.outcome, Trial::Outcome::timed) << t.schedule.str() << ": " << t.why;
      EXPECT_EQ(nameOf(bench.check(t, 1e3)), nameOf(Trial::Outcome::timed)) << t.schedule.str();
      EXPECT_EQ(t.registers, 32);
      EXPECT_GT(bench.time(t, 1, 1, HUGE_VAL).median, 0);
    }
  }
}

TEST_F(GpuTuner, ASpillIsNoCandidateAndTheChoiceIsFoundAgain) {
  const Target target = targetHere();
  const cuda::Gpu gpu(target);
  const Group g = product("f32", 70, 66, 40);
  const Op &fused = *g.fused;
  const Schedule base = defaultSchedule(fused, target);
  // A candidate that spills, told by the threads of its blocks, and one with as many as the default.
  std::vector<Schedule> some;
  for (bool same : {false, true})
    for (const Schedule &s : scheduleSpace(fused, target))
      if ((s.threads == base.threads) == same) {
        some.push_back(s);
        break;
      }
  ASSERT_EQ(some.size(), 2u);
  auto kernelOf = [&](const Schedule &s) { return fmt::format("(candidate_p0, {})", s.threads); };
  ASSERT_NE(emitCuda(lowerGroup(fused, some[0], target).kernel, "candidate").text.find(kernelOf(some[0])),
            std::string::npos);
  setenv("GPTC_STANDIN_SPILL", kernelOf(some[0]).c_str(), 1);

  TuningRecords records(dir.path, true);
  auto search = [&](TuningRecords &records, int &known) {
    RecordingLog log(records, problemOf(fused, target), "1");
    cuda::GroupBench bench(gpu, fused, target, pool, false);
    const SearchResult r = searchSchedules(bench, some, {.seconds = 20, .log = &log});
    known = log.known;
    return r;
  };
  int known = 0;
  const SearchResult r = search(records, known);
  ASSERT_EQ(r.trials.size(), 3u);
  EXPECT_EQ(r.trials[1].outcome, Trial::Outcome::spills);
  EXPECT_NE(r.trials[1].why.find("spilled"), std::string::npos) << r.trials[1].why;
  EXPECT_EQ(r.trials[1].raced, 0);
  EXPECT_EQ(r.trials[2].outcome, Trial::Outcome::timed);  // raced too, unless a busy machine made it look hopeless
  EXPECT_EQ(known, 0);
  for (const TuningRecord &record : records.all()) {
    EXPECT_EQ(record.machine, cuda::fingerprintOf(gpu, target));
    EXPECT_EQ(record.outcome == Trial::Outcome::spills, record.schedule == some[0]);
  }
  TuningRecords again(dir.path, true);
  search(again, known);
  EXPECT_EQ(known, 3) << "the default and both candidates";

  // A race that it won, and what a compile makes of it.
  std::vector<TuningRecord> race;
  for (size_t i : {0, 2}) {
    race.push_back(recordOf(problemOf(fused, target), r.trials[i], "2"));
    race.back().raced = i ? 0.5 : 1, race.back().isDefault = i == 0;
  }
  records.append(race);
  TunedSchedules tuned(records, target, &pool);
  EXPECT_EQ(tuned.find(fused, target), some[1]);
  EXPECT_EQ(tuned.counts.exact, 1);
  EXPECT_TRUE(tuned.isKnown(fused));
  // From elsewhere it runs against the default first.
  TuningRecords imported("", true);
  for (TuningRecord &record : race)
    record.fromElsewhere = true;
  imported.append(race);
  TunedSchedules checked(imported, target, &pool);
  EXPECT_EQ(checked.find(fused, target), some[1]);
  EXPECT_EQ(checked.counts.checked, 1);
  // On a GPU that is not here nothing is known.
  TunedSchedules elsewhere(records, cudaTarget("cuda:sm_75"), &pool);
  EXPECT_FALSE(elsewhere.find(fused, cudaTarget("cuda:sm_75")));
  EXPECT_EQ(elsewhere.counts.byDefault, 1);
}

TEST_F(GpuTuner, AlgorithmsOfTheLibraryAndGeneratedKernelsAreRivals) {
  const Target target = targetHere("cublaslt");
  const cuda::Gpu gpu(target);
  const Group g = product("bf16", 64, 64, 48);
  ASSERT_TRUE(defaultSchedule(*g.fused, target).library);
  cuda::GroupBench bench(gpu, *g.fused, target, pool, false);
  EXPECT_TRUE(bench.base().schedule.library);
  int calls = 0, kernels = 0;
  std::vector<Schedule> some;
  for (const Schedule &s : bench.space())
    if (int &n = s.library ? calls : kernels; n++ < 1)
      some.push_back(s);
  ASSERT_GE(calls, 1);
  ASSERT_GE(kernels, 10);
  for (const Schedule &s : some)
    EXPECT_EQ(nameOf(bench.verdict(s)), nameOf(Trial::Outcome::timed)) << s.str();
  Schedule none = bench.base().schedule;
  none.algorithm = 12345;
  EXPECT_EQ(bench.verdict(none), Trial::Outcome::notCompiled);
}

TEST_F(GpuTuner, ACommandTunesAndACompileReusesIt) {
  std::ofstream(dir / "tiny.toml") << R"(name = "tiny"
[model]
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
vocab_size = 48
[train]
steps = 2
micro_batch = 2
global_batch_tokens = 32
)";
  TuneRequest t;
  t.modelFile = dir / "tiny.toml";
  t.settings = {"data.train=none", "compile.target=cuda", "compile.library_calls=off"};
  t.cacheDir = dir / "cache";
  // For one kernel or two: all would take the stand-in's compiler a minute.
  TuneReport first;
  for (t.seconds = 2; first.searched == 0 && t.seconds < 100; t.seconds *= 2) {
    std::filesystem::remove_all(dir / "cache");
    first = tune(t, [](const TuneProgress &) {});
  }
  EXPECT_GE(first.searched, 1);
  EXPECT_GE(first.trials, 3);
  EXPECT_EQ(first.knownTrials, 0);
  t.seconds = 1e-3;
  const TuneReport second = tune(t, [](const TuneProgress &) {});
  EXPECT_EQ(second.known, first.searched);
  EXPECT_EQ(second.searched, 0);
  EXPECT_GE(second.knownTrials, 3);
  CompileRequest r;
  r.modelFile = t.modelFile, r.settings = t.settings, r.cacheDir = t.cacheDir;
  r.settings.push_back("out_dir=" + (dir / "out"));
  r.planDir = dir / "tiny.plan";
  Config config;
  Plan plan;
  const CompileReport report = compilePlan(r, config, plan);
  EXPECT_EQ(report.tuned.exact, first.searched);
  EXPECT_GT(report.tuned.byDefault, 0);
}

}  // namespace
}  // namespace gptc::test
