// Ranks on two "machines" over a real ssh: an sshd of this test's own, on a private port with a throwaway key.
#include "supervised.h"
#include "tests/support/shell.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>

using namespace faults;
namespace fs = std::filesystem;

namespace {

struct Ssh : testing::Test {
  Place w;
  std::unique_ptr<e2e::Process> server;

  int shell(const std::string &command) {
    return gptc::test::exitCodeOf(command + " >" + w.path("shell-output") + " 2>&1");
  }
  void SetUp() override {
    if (!fs::exists("/usr/sbin/sshd") || !fs::exists("/usr/bin/ssh"))
      GTEST_SKIP() << "no sshd: apt-get install openssh-server";
    if (!fs::exists(std::string(GPTC_BIN_DIR) + "/libgptc_gloo.so"))
      GTEST_SKIP() << "built without Gloo";
    if (shell("getent hosts $(hostname)") != 0)
      GTEST_SKIP() << "the name of this machine does not resolve";
    fs::create_directories(w.path("bin"));
    for (const char *key : {"host", "user"})
      ASSERT_EQ(shell("ssh-keygen -q -t ed25519 -N '' -f " + w.path(key)), 0) << e2e::readFile(w.path("shell-output"));
    fs::copy(w.path("user.pub"), w.path("authorized"));
    ASSERT_EQ(shell("python3 -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])'"),
              0);
    const std::string port = std::to_string(std::atoi(e2e::readFile(w.path("shell-output")).c_str()));
    e2e::writeFile(w.path("sshd.conf"), "Port " + port + "\nListenAddress 127.0.0.1\nHostKey " + w.path("host") +
                                            "\nAuthorizedKeysFile " + w.path("authorized") + "\nPidFile " +
                                            w.path("sshd.pid") +
                                            "\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n");
    // Two names of one machine, and one where nobody listens.
    std::string config;
    for (const char *name : {"one", "two", "nowhere"})
      config += std::string("Host ") + name + "\n  HostName 127.0.0.1\n  Port " +
                (std::string(name) == "nowhere" ? "1" : port) + "\n  HostKeyAlias gptc-test\n  IdentityFile " +
                w.path("user") + "\n  IdentitiesOnly yes\n  UserKnownHostsFile " + w.path("known") + "\n";
    e2e::writeFile(w.path("ssh.conf"), config);
    e2e::writeFile(w.path("known"), "gptc-test " + e2e::readFile(w.path("host.pub")));
    e2e::writeFile(w.path("bin/ssh"), "#!/bin/sh\nexec /usr/bin/ssh -F " + w.path("ssh.conf") + " \"$@\"\n");
    fs::permissions(w.path("bin/ssh"), fs::perms::owner_all);
    std::error_code e;
    fs::create_directories("/run/sshd", e);  // where sshd, as root, wants to be
    server = std::make_unique<e2e::Process>(
        std::vector<std::string>{"/usr/sbin/sshd", "-D", "-e", "-f", w.path("sshd.conf")},
        std::map<std::string, std::string>{}, w.path("sshd-output"));
    bool up = false;
    for (int i = 0; i < 100 && !up; ++i)
      up = shell("sleep 0.05; " + w.path("bin/ssh") + " -o BatchMode=yes one true") == 0;
    if (!up)
      GTEST_SKIP() << "sshd does not start: " << e2e::readFile(w.path("sshd-output"))
                   << e2e::readFile(w.path("shell-output"));
  }
  std::map<std::string, std::string> env() const {
    return {{"PATH", w.path("bin") + ":" + std::getenv("PATH")}, {"GPTC_INTERFACE", "lo"}};
  }
  std::string plan() {
    return w.compile("plan", {"train.micro_batch=1", "parallel.logical_shards=2", "parallel.data=2", "train.steps=400",
                              "checkpoint.every=10"});
  }
  /// But for ssh's server.
  void expectNothingLeft(const std::string &when) {
    if (server)
      ::kill(server->pid(), SIGTERM), server->wait(), server.reset();
    w.expectNothingLeft(when);
  }
};

TEST_F(Ssh, TwoMachinesTrainAsOneDoesAndSurviveADeath) {
  const std::string p = plan();
  ASSERT_EQ(w.gptrun({p, "--out-dir", w.path("quiet")}).code, 0);
  Supervised run(w, {p, "--hosts", "one,two", "--out-dir", w.path("out")}, env());
  ASSERT_TRUE(run.waitForStep(25, 0)) << run.output();
  int killed = 0;
  for (int pid : processesOf(w.path("out")))
    if (e2e::readFile("/proc/" + std::to_string(pid) + "/environ").find("GPTC_RANK=1") != std::string::npos &&
        !killed++)
      ::kill(pid, SIGKILL);
  ASSERT_EQ(killed, 1);
  const e2e::Result r = run.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.rfind("2 ranks, 1 on each of one, two\n", 0), 0u) << r.output;
  EXPECT_NE(r.output.find("warning: rank 1 on two (pid "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("was killed by SIGKILL"), std::string::npos) << r.output;
  EXPECT_TRUE(w.finalState(w.path("out")) == w.finalState(w.path("quiet")));
  expectNothingLeft("at the end");
}

TEST_F(Ssh, NothingOutlivesAGptrunThatIsKilled) {
  Supervised run(w, {plan(), "--hosts", "one,two", "--out-dir", w.path("out"), "--steps", "1000000"}, env());
  ASSERT_TRUE(run.waitForStep(10, 0)) << run.output();
  ::kill(run.pid(), SIGKILL);
  run.wait();
  expectNothingLeft("gptrun was killed");
}

TEST_F(Ssh, AnUnreachableMachineIsOneError) {
  const e2e::Result r = w.gptrun({plan(), "--hosts", "one,nowhere", "--out-dir", w.path("out")}, env());
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0601]: cannot start ranks: the connection to nowhere has ended: ssh: connect to "
                          "host 127.0.0.1 port 1: Connection refused"),
            std::string::npos)
      << r.output;
  EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
  expectNothingLeft("a machine cannot be reached");
}

}  // namespace
