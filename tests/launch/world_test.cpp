#include "runtime/launch/host_list.h"
#include "runtime/launch/world.h"

#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"
#include "tests/unit/runtime/temp_dir.h"

#include <map>
#include <sys/stat.h>

using namespace gptc;

namespace {

using Variables = std::map<std::string, std::string>;
using Hosts = std::vector<std::string>;

World find(const Variables &v) {
  return World::find([&](const char *name) {
    auto at = v.find(name);
    return at == v.end() ? std::nullopt : std::optional(at->second);
  });
}

/// The variables with some changed; "" removes one.
Variables with(Variables v, const Variables &changed) {
  for (auto &[name, value] : changed)
    if (value.empty())
      v.erase(name);
    else
      v[name] = value;
  return v;
}

/// The complaint, or "".
std::string complaint(const Variables &v) {
  std::string message;
  const int code = codeThrown([&] { find(v); }, &message);
  EXPECT_EQ(code, message.empty() ? 0 : int(ErrorCode::RanksUnclear)) << message;
  return message;
}

const Variables launcher = {{"GPTC_RANK", "3"},        {"GPTC_WORLD", "4"},      {"GPTC_LOCAL_RANK", "1"},
                            {"GPTC_LOCAL_WORLD", "2"}, {"GPTC_TOKEN", "secret"}, {"GPTC_RENDEZVOUS", "10.0.0.1:4000"}};
const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "x1"}};
const Variables openMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", "prterun-3@1"}};
const Variables slurm = {{"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_NODELIST", "n[01-02],gpu7"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}};

TEST(HostList, IsReadAsSlurmWritesIt) {
  EXPECT_EQ(parseHostList("a"), Hosts{"a"});
  EXPECT_EQ(parseHostList("a,b.example.org"), (Hosts{"a", "b.example.org"}));
  EXPECT_EQ(parseHostList("n[01-03,7]"), (Hosts{"n01", "n02", "n03", "n7"}));
  EXPECT_EQ(parseHostList("n[9-11]x,m"), (Hosts{"n9x", "n10x", "n11x", "m"}));
  EXPECT_EQ(parseHostList("r[1-2]n[098-100]"), (Hosts{"r1n098", "r1n099", "r1n100", "r2n098", "r2n099", "r2n100"}));
  EXPECT_EQ(parseHostList("user@10.0.0.1"), Hosts{"user@10.0.0.1"});
  for (const char *bad : {"",
                          ",",
                          "a,",
                          "a,,b",
                          "n[",
                          "n]",
                          "n[1",
                          "n[]",
                          "n[1-]",
                          "n[3-1]",
                          "n[1,]",
                          "n[[1]]",
                          "n[x]",
                          "n[0-999999999]",
                          "r[0-9999]n[0-9999]",
                          "-oProxyCommand=x",
                          "a b",
                          "a;b",
                          "a/b",
                          "n[-1]"})
    EXPECT_EQ(parseHostList(bad), std::nullopt) << bad;
}

TEST(HostList, TasksPerNode) {
  EXPECT_EQ(parseTasksPerNode("4"), std::vector<int>{4});
  EXPECT_EQ(parseTasksPerNode("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  for (const char *bad : {"", "0", "2(x)", "2(x0)", "2(3)", "2(x3", "x", "2,", "1(x99999999999)"})
    EXPECT_EQ(parseTasksPerNode(bad), std::nullopt) << bad;
}

TEST(NetAddress, IsReadAndWritten) {
  for (const char *text : {"node:1", "10.0.0.1:65535", "[fe80::1]:300"})
    EXPECT_EQ(NetAddress::parse(text)->str(), text);
  for (const char *bad : {"", "node", ":5", "node:", "node:0", "node:65536", "node:5x", "fe80::1", "fe80::1:5", "[a:5"})
    EXPECT_FALSE(NetAddress::parse(bad)) << bad;
}

TEST(World, IsAloneWhereNobodySaysOtherwise) {
  EXPECT_TRUE(find({}).alone());
  EXPECT_EQ(find({}).source, World::Source::alone);
  // A shell of an allocation, or the script of a batch job: the ranks are still to be started.
  EXPECT_TRUE(find({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NODELIST", "n[1-2]"}}).alone());
  EXPECT_TRUE(find({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).alone());
}

TEST(World, OfEachLauncher) {
  World w = find(launcher);
  EXPECT_EQ(w.source, World::Source::launcher);
  EXPECT_EQ(std::tie(w.rank, w.size, w.node, w.nodes), std::make_tuple(3, 4, 1, 2));
  EXPECT_EQ(std::tie(w.localRank, w.ranksPerNode), std::make_tuple(1, 2));
  EXPECT_EQ(w.rendezvous.str(), "10.0.0.1:4000");
  EXPECT_EQ(w.token, "secret");
  EXPECT_TRUE(w.tokenIsSecret);
  EXPECT_EQ(w.resumeAtMost, -1);
  EXPECT_EQ(find(with(launcher, {{"GPTC_RESUME_AT_MOST", "200"}})).resumeAtMost, 200);
  EXPECT_EQ(find(with(launcher, {{"GPTC_RESTARTS", "2"}})).restarts, 2);
  EXPECT_EQ(w.input, -1);
  EXPECT_EQ(find(with(launcher, {{"GPTC_INPUT", "0"}})).input, 0);

  // Whoever else starts a run again may say so, if it does not by itself.
  EXPECT_EQ(find(torchrun).restarts, 0);
  EXPECT_EQ(find(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}})).restarts, 2);
  EXPECT_EQ(find(with(slurm, {{"SLURM_RESTART_COUNT", "1"}, {"GPTC_RESTARTS", "2"}})).restarts, 3);
  EXPECT_EQ(find(with(openMpi, {{"GPTC_RESTARTS", "1"}})).restarts, 1);
  // A job of Slurm that was started again, whatever launches ranks in it.
  const Variables again = {{"SLURM_RESTART_COUNT", "2"}};
  EXPECT_EQ(find(with(openMpi, again)).restarts, 2);
  EXPECT_EQ(find(with(with(torchrun, again), {{"TORCHELASTIC_RESTART_COUNT", "1"}})).restarts, 3);
  EXPECT_EQ(find(again).restarts, 2) << "gptrun, which passes it on to its ranks";
  EXPECT_EQ(find(with(with(launcher, again), {{"GPTC_RESTARTS", "2"}})).restarts, 2) << "it is among them";
  EXPECT_EQ(find({{"GPTC_RESTARTS", "1"}}).restarts, 1);
  EXPECT_TRUE(find({{"GPTC_RESTARTS", "1"}}).alone());

  w = find(torchrun);
  EXPECT_EQ(w.source, World::Source::torchrun);
  EXPECT_EQ(std::tie(w.rank, w.size, w.node, w.nodes), std::make_tuple(5, 8, 1, 2));
  EXPECT_EQ(w.rendezvous.str(), "node7:29501") << "torchrun itself listens at MASTER_PORT";
  EXPECT_FALSE(w.tokenIsSecret);

  w = find(openMpi);
  EXPECT_EQ(w.source, World::Source::openMpi);
  EXPECT_EQ(std::tie(w.rank, w.size, w.node, w.nodes), std::make_tuple(1, 2, 0, 1));
  EXPECT_EQ(w.rendezvous.host, "127.0.0.1");

  w = find(slurm);
  EXPECT_EQ(w.source, World::Source::slurm);
  EXPECT_EQ(std::tie(w.rank, w.size, w.node, w.nodes), std::make_tuple(5, 6, 2, 3));
  EXPECT_EQ(w.rendezvous.host, "n01");
  EXPECT_GE(w.rendezvous.port, 20000);
  EXPECT_LT(w.rendezvous.port, 32768) << "systems hand those out by themselves";
}

TEST(World, TheInnermostLauncherIsBelieved) {
  Variables all = slurm;
  all.insert(openMpi.begin(), openMpi.end());
  EXPECT_EQ(find(all).source, World::Source::openMpi);
  all.insert(torchrun.begin(), torchrun.end());
  EXPECT_EQ(find(all).source, World::Source::torchrun);
  all.insert(launcher.begin(), launcher.end());
  EXPECT_EQ(find(all).source, World::Source::launcher);
}

TEST(World, RanksOfOneJobMeetAndOthersDoNot) {
  const Variables other = with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(find(slurm).token, find(other).token);
  EXPECT_EQ(find(slurm).rendezvous.str(), find(other).rendezvous.str());
  for (const char *name : {"SLURM_JOB_ID", "SLURM_STEP_ID"})
    EXPECT_NE(find(slurm).token, find(with(slurm, {{name, "9"}})).token) << name;
  EXPECT_NE(find(torchrun).token, find(with(torchrun, {{"TORCHELASTIC_RUN_ID", "x2"}})).token);
  EXPECT_NE(find(torchrun).token, find(with(torchrun, {{"MASTER_PORT", "29600"}})).token);
  EXPECT_NE(find(openMpi).token, find(with(openMpi, {{"PMIX_NAMESPACE", "y"}})).token);
  EXPECT_EQ(find(with(slurm, {{"GPTC_RENDEZVOUS", "h:7"}})).rendezvous.str(), "h:7");
}

TEST(World, TokensFromAFileThatOnlyTheUserCanRead) {
  TempDir dir;
  const std::string file = dir / "token";
  const Variables v = with(slurm, {{"GPTC_TOKEN_FILE", file}});
  EXPECT_EQ(codeThrown([&] { find(v); }), int(ErrorCode::FileMissing));
  writeFile(file, "0123456789abcdef0123\n");
  ::chmod(file.c_str(), 0600);
  const std::string ofFile = find(v).token;
  EXPECT_TRUE(find(v).tokenIsSecret);
  EXPECT_NE(find(with(v, {{"GPTC_TOKEN", "abc"}})).token, ofFile) << "the variable comes first";
  EXPECT_EQ(find(with(v, {{"GPTC_TOKEN", "0123456789abcdef0123"}})).token, ofFile) << "wherever it is said";
  writeFile(file, "0123456789abcdef0124\n");
  EXPECT_NE(find(v).token, ofFile);
  ::chmod(file.c_str(), 0640);
  EXPECT_NE(complaint(v).find("can be read or written by others"), std::string::npos);
  writeFile(file, "short");
  ::chmod(file.c_str(), 0600);
  EXPECT_NE(complaint(v).find("5 characters"), std::string::npos);
  EXPECT_NE(complaint(with(slurm, {{"GPTC_TOKEN_FILE", dir.path}})).find("is no file"), std::string::npos);
}

TEST(World, TokensOfAnyLengthLetRanksMeet) {
  for (const std::string &chosen : {std::string("abc"), std::string("0123456789abcdef"), std::string(4000, 'x')}) {
    const World w = find(with(slurm, {{"GPTC_TOKEN", chosen}}));
    RendezvousServer server({.token = w.token, .world = 1});
    RendezvousClient client({.host = "127.0.0.1", .port = server.port(), .token = w.token});
    client.leave();
    EXPECT_EQ(server.left(), 1);
  }
}

TEST(World, ComplainsOfWhatIsMissing) {
  auto missing = [](const Variables &v, const std::vector<std::string> &names) {
    for (const std::string &name : names)
      EXPECT_EQ(complaint(with(v, {{name, ""}})).rfind(name + " is not set", 0), 0u)
          << name << ": " << complaint(with(v, {{name, ""}}));
  };
  missing(launcher, {"GPTC_RANK", "GPTC_WORLD", "GPTC_TOKEN", "GPTC_RENDEZVOUS"});
  missing(torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"});
  missing(openMpi, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"});
  missing(slurm, {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"});
}

TEST(World, ComplainsOfWhatDoesNotFit) {
  const std::pair<Variables, const char *> cases[] = {
      {with(launcher, {{"GPTC_RANK", "4"}}), "ranks count from 0"},
      {with(launcher, {{"GPTC_RANK", "-1"}}), "is no number"},
      {with(launcher, {{"GPTC_RANK", "3 "}}), "is no number"},
      {with(launcher, {{"GPTC_RANK", "99999999999999999999"}}), "is no number"},
      {with(launcher, {{"GPTC_WORLD", "0"}}), "is no number"},
      {with(launcher, {{"GPTC_WORLD", "5"}}), "not a whole number of machines"},
      {with(launcher, {{"GPTC_LOCAL_RANK", "2"}}), "there are 2 ranks on this machine"},
      {with(launcher, {{"GPTC_LOCAL_RANK", "0"}}), "must count machine by machine"},
      {with(launcher, {{"GPTC_RENDEZVOUS", "nowhere"}}), "is no HOST:PORT"},
      {with(launcher, {{"GPTC_RESUME_AT_MOST", "x"}}), "is no step"},
      {with(torchrun, {{"RANK", "8"}}), "ranks count from 0"},
      {with(torchrun, {{"MASTER_PORT", "0"}}), "is no number"},
      {with(openMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       "does not say on which machine rank 0 is"},
      {with(slurm, {{"SLURM_STEP_NODELIST", "n[1-"}}), "is no list of machines"},
      {with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "x"}}), "is no list of counts"},
      {with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2),1,1"}}), "different numbers of ranks"},
      {with(slurm, {{"SLURM_STEP_NODELIST", "n[1-2]"}}), "are 3 machines, but"},
      {with(slurm, {{"SLURM_NODEID", "1"}}), "is on machine 2, but SLURM_NODEID=1"},
      {with(slurm, {{"SLURM_LOCALID", "0"}}), "must count machine by machine"},
      {with(openMpi, {{"SLURM_RESTART_COUNT", "x"}}), "SLURM_RESTART_COUNT=x is no number"},
  };
  for (auto &[variables, expected] : cases)
    EXPECT_NE(complaint(variables).find(expected), std::string::npos) << expected << ": " << complaint(variables);
}

TEST(World, TheRemedyIsForTheVariableThatIsWrong) {
  for (const Variables &started : {Variables{}, torchrun, openMpi, slurm})
    try {
      find(with(started, {{"GPTC_RESTARTS", "-3"}}));
      ADD_FAILURE() << "no complaint";
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].message.rfind("GPTC_RESTARTS=-3 is no number", 0), 0u) << e.what();
      ASSERT_EQ(e.diagnostics[0].help.size(), 1u);
      EXPECT_EQ(e.diagnostics[0].help[0].rfind("GPTC_RESTARTS ", 0), 0u) << e.what();
    }
}

}  // namespace
