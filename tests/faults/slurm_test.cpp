// gptrun under srun and sbatch, on a Slurm of one node that the test starts for itself.
#include "supervised.h"
#include "tests/support/eventually.h"
#include "tests/support/shell.h"

#include <csignal>
#include <cstdlib>
#include <thread>

using namespace faults;

namespace {

struct Slurm : testing::Test {
  Place w;
  std::string plan;

  std::pair<int, std::string> shell(const std::string &command) {
    const std::string out = w.path("shell-output");
    const int code = gptc::test::exitCodeOf(command + " >" + out + " 2>&1");
    return {code, e2e::readFile(out)};
  }
  std::unique_ptr<e2e::Process> node;
  void SetUp() override {
    node = std::make_unique<e2e::Process>(
        std::vector<std::string>{GPTC_SOURCE_DIR "/tests/faults/slurm_node", w.path("slurm")},
        std::map<std::string, std::string>{}, w.path("node-output"));
    while (e2e::readFile(w.path("node-output")) != "ready\n") {
      std::this_thread::sleep_for(milliseconds(20));
      if (e2e::readFile("/proc/" + std::to_string(node->pid()) + "/stat").find(") Z ") == std::string::npos)
        continue;
      const e2e::Result r = node->wait();
      node.reset();
      ASSERT_EQ(r.code, 77) << r.output;
      GTEST_SKIP() << "no Slurm: " << r.output;
    }
    ::setenv("SLURM_CONF", w.path("slurm/slurm.conf").c_str(), 1);
    ::setenv("GPTC_CACHE", e2e::cacheDir().c_str(), 1);
    ::setenv("PATH", (std::string(GPTC_BIN_DIR ":") + std::getenv("PATH")).c_str(), 1);
    plan = w.compile("plan", {"train.micro_batch=1", "parallel.logical_shards=2", "parallel.data=2", "train.steps=400",
                              "checkpoint.every=20"});
  }
  void TearDown() override {
    if (node) {
      ::kill(node->pid(), SIGTERM);
      node->wait();
    }
    ::unsetenv("SLURM_CONF");
  }
  /// Of the plan, to its end, by gptrun's own launcher.
  std::string quiet() {
    EXPECT_EQ(w.gptrun({plan, "--out-dir", w.path("quiet")}).code, 0);
    return w.finalState(w.path("quiet"));
  }
  bool waitForLog(const std::string &out, size_t lines) {
    return gptc::test::eventually([&] { return e2e::logLines(w.path(out)).size() >= lines; });
  }
};

TEST_F(Slurm, SrunStartsTheRanksAndItsSigtermSaves) {
  const auto [code, text] = shell("srun -n 2 gptrun " + plan + " --out-dir " + w.path("out"));
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("2 ranks share each batch"), std::string::npos) << text;
  EXPECT_EQ(text.find("step 400/400", text.find("step 400/400") + 1), std::string::npos) << "one voice\n" << text;
  EXPECT_TRUE(w.finalState(w.path("out")) == quiet()) << text;

  // As at the time limit, and with GPTC_FAULTS at the time limit itself, which Slurm counts in minutes.
  const bool limit = std::getenv("GPTC_FAULTS");
  e2e::Process job({"/bin/sh", "-c",
                    std::string("exec srun -n 2 --job-name=long ") + (limit ? "--time=1 " : "") + "gptrun " + plan +
                        " --steps 1000000 --out-dir " + w.path("long")},
                   {}, w.path("long-output"));
  ASSERT_TRUE(waitForLog("long", 5)) << e2e::readFile(w.path("long-output"));
  if (!limit)
    shell("scancel --name=long");
  const e2e::Result r = job.wait();
  EXPECT_NE(r.output.find("stopped at step "), std::string::npos) << r.output;
  if (limit) {
    EXPECT_NE(r.output.find("DUE TO TIME LIMIT"), std::string::npos) << r.output;
  }
  EXPECT_FALSE(w.checkpoints(w.path("long")).empty()) << r.output;
  const auto [again, rest] = shell("srun -n 2 gptrun " + plan + " --resume must --out-dir " + w.path("long") +
                                   " --steps " + std::to_string(e2e::logLines(w.path("long")).size() + 3));
  EXPECT_EQ(again, 0) << rest;
  EXPECT_NE(rest.find("resumed from "), std::string::npos) << rest;
}

TEST_F(Slurm, TheExampleScriptTriesAgainWhenARankDies) {
  const auto [code, text] = shell("sbatch --parsable --nodes=1 --ntasks-per-node=2 --output=" + w.path("job.out") +
                                  " " GPTC_SOURCE_DIR "/examples/slurm.sh " + plan + " --out-dir " + w.path("out"));
  ASSERT_EQ(code, 0) << text;
  ASSERT_TRUE(waitForLog("out", 5)) << e2e::readFile(w.path("job.out"));
  for (int pid : processesOf(w.path("out")))
    if (e2e::readFile("/proc/" + std::to_string(pid) + "/comm") == "gptrun\n" &&
        e2e::readFile("/proc/" + std::to_string(pid) + "/environ").find("SLURM_PROCID=1") != std::string::npos)
      ::kill(pid, SIGKILL);
  for (int i = 0; i < 3000 && shell("squeue -h").second.find("gptc") != std::string::npos; ++i)
    std::this_thread::sleep_for(milliseconds(50));
  const std::string output = e2e::readFile(w.path("job.out"));
  EXPECT_NE(output.find("try 1 ended with exit code "), std::string::npos) << output;
  EXPECT_TRUE(w.finalState(w.path("out")) == quiet()) << output;
}

TEST_F(Slurm, TheExampleScriptDoesNotTryAgainWhatOneRankWillMeetAgain) {
  // Rank 1 sees another plan of that name than the others.
  w.compile("other", {"train.micro_batch=1", "parallel.data=2"});
  e2e::writeFile(w.path("container"), "echo $SRUN_CPUS_PER_TASK CPU for rank $SLURM_PROCID\n"
                                      "[ $SLURM_PROCID = 1 ] && shift 2 && set -- gptrun " +
                                          w.path("other") + " \"$@\"\nexec \"$@\"\n");
  const auto [code, text] =
      shell("GPTRUN='sh " + w.path("container") +
            " gptrun' sbatch --wait --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output=" + w.path("job.out") +
            " " GPTC_SOURCE_DIR "/examples/slurm.sh " + plan + " --out-dir " + w.path("out"));
  const std::string output = e2e::readFile(w.path("job.out"));
  EXPECT_EQ(code, 3) << text << output;
  EXPECT_EQ(output.find("ended with exit code"), std::string::npos) << output;
  EXPECT_NE(output.find("1 CPU for rank 0\n"), std::string::npos) << output;
  EXPECT_NE(output.find("has another plan in "), std::string::npos) << output;
}

}  // namespace
