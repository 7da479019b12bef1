// gptrun: runs a plan. Trains by default; `gptrun sample PLAN` and `gptrun eval PLAN` use the trained weights.
#include "frontends/tokenizer/tokenizer.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/collectives/communicator.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nccl.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/host_list.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/mutual_watch.h"
#include "runtime/launch/pulse.h"
#include "runtime/launch/rank_log.h"
#include "runtime/launch/remote_crew.h"
#include "runtime/launch/same_run.h"
#include "runtime/launch/world.h"
#include "runtime/rendezvous/rendezvous.h"
#include "runtime/train/trainer.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/commands/command_line.h"
#include "tools/commands/main_guard.h"
#include "tools/commands/run_as_options.h"
#include "tools/compiler/compile.h"
#include "tools/estimate/run_log.h"
#include "tools/planner/cache_dir.h"
#include "tools/run/plans.h"
#include "tools/run/texts.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <unistd.h>

using namespace gptc;

namespace {

/// Adapts the front end's tokenizer to the runtime's interface.
class TokenizerCodec : public TextCodec {
public:
  TokenizerCodec(const std::string &file, bool parseSpecial)
      : tokenizer(Tokenizer::load(file)), stream(tokenizer), parseSpecial(parseSpecial) {}
  std::vector<int32_t> encode(const std::string &text) override {
    std::vector<int32_t> tokens;
    const int64_t found = tokenizer.encode(text, tokens, {.parseSpecial = parseSpecial});
    if (found)
      printError("note: {} control token{} in the prompt: {}\n", found, found == 1 ? "" : "s",
                 parseSpecial ? "parsed" : "encoded as text (data.parse_special or --parse-special changes it)");
    return tokens;
  }
  std::string push(int32_t token) override { return stream.push(token); }
  std::string finish() override { return stream.finish(); }
  int64_t vocabSize() const override { return tokenizer.vocabSize(); }
  int32_t endOfText() const override { return tokenizer.endOfText(); }

private:
  Tokenizer tokenizer;
  TextStream stream;
  bool parseSpecial;
};

/// The plan for `ranks` ranks, derived from its model description if it is for another number. One rank (`makes`)
/// writes it; the others wait at `barrier` until it exists.
Plan forRanks(Plan plan, int64_t ranks, bool makes, const std::function<void()> &barrier) {
  const int64_t planned = Mesh::of(*plan.planned).ranks();
  if (planned == ranks)
    return plan;
  const std::string outDir = plan.run.outDir, dir = fmt::format("{}/plan-{}-ranks", outDir, ranks);
  if (makes) {
    const PlanForRanks partition(plan, ranks);
    const bool there = partition.isIn(dir);
    fmt::print("the plan is for {} rank{}: {} one for {} in {}\n", planned, planned == 1 ? "" : "s",
               there ? "taking the" : "making", ranks, dir);
    makeDirs(outDir);
    if (!there)
      partition.write(dir, defaultCacheDir());
  }
  barrier();
  plan = loadPlan(dir);
  plan.run.outDir = outDir;
  return plan;
}

/// Number and placement of the ranks, from the command line or from the launcher of this one.
struct Ranks {
  World world;
  int nodes = 1, perNode = 1;
  std::vector<std::string> hosts;
  int size() const { return nodes * perNode; }
};

Ranks chooseRanks(const RunOptions &o, const World &world, const Plan &plan) {
  Ranks r;
  r.world = world;
  if (o.hosts) {
    auto hosts = parseHostList(*o.hosts);
    if (!hosts)
      throw UserError(ErrorCode::Usage,
                      fmt::format("--hosts {} is no list of machines", o.hosts->empty() ? "\"\"" : *o.hosts),
                      "for example --hosts node1,node2 or --hosts node[1-8]");
    r.hosts = std::move(*hosts);
    std::set<llvm::StringRef> seen;
    for (const std::string &host : r.hosts)
      if (!seen.insert(host).second)
        throw UserError(ErrorCode::Usage, fmt::format("--hosts {} names {} twice", *o.hosts, host),
                        "name each machine once; --ranks-per-node says how many ranks it has");
    if (o.nodes && o.nodes != int(r.hosts.size()))
      throw UserError(ErrorCode::Usage, fmt::format("--nodes {}, but --hosts names {}", o.nodes, r.hosts.size()),
                      "leave out --nodes");
  }
  if (!r.world.alone()) {
    // Another launcher, such as srun, has started the ranks; this is one of them.
    r.nodes = r.world.nodes;
    r.perNode = r.world.ranksPerNode;
    if (r.world.source != World::Source::launcher &&
        (!r.hosts.empty() || (o.nodes && o.nodes != r.nodes) || (o.ranksPerNode && o.ranksPerNode != r.perNode)))
      throw UserError(ErrorCode::RanksUnclear,
                      fmt::format("{} has started {} nodes x {} ranks, and the command line asks for others",
                                  r.world.startedBy(), r.nodes, r.perNode),
                      "leave out --nodes, --ranks-per-node and --hosts");
    return r;
  }
  r.nodes = r.hosts.empty() ? std::max(1, o.nodes) : int(r.hosts.size());
  // By default the run has the ranks that the plan was made for, on this machine.
  const bool silent = r.hosts.empty() && !o.nodes && !o.ranksPerNode;
  r.perNode = o.ranksPerNode                             ? o.ranksPerNode
              : silent                                   ? int(Mesh::of(*plan.planned).ranks())
              : plan.target.isCuda() && !r.hosts.empty() ? cuda::visibleGpus()
                                                         : 1;
  const int cpus = int(orderedCpus().size()), most = std::max(64, 16 * cpus);
  if (r.hosts.empty() && r.size() > most)
    throw UserError(ErrorCode::Usage,
                    fmt::format("{} ranks on this machine, which has {} CPU{}: at most {} are started", r.size(), cpus,
                                cpus == 1 ? "" : "s", most),
                    "--hosts names other machines for them");
  if (plan.target.isCuda() && r.hosts.empty() && r.size() > 1) {
    cuda::requireGpus(r.size());
    cuda::Nccl::get();
  }
  return r;
}

/// Starts this program once per rank, with the same arguments.
int launchRanks(const RunOptions &o, const Ranks &ranks, const Plan &plan, const std::vector<std::string> &words) {
  // Report now what every rank would report.
  if (Mesh::of(*plan.planned).ranks() != ranks.size())
    PlanForRanks(plan, ranks.size());
  // By name, because in a bundle all programs are one file that acts by its name.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gptrun";
  LaunchOptions l;
  l.nodes = ranks.nodes;
  l.ranksPerNode = ranks.perNode;
  l.hosts = ranks.hosts;
  l.restartsBefore = ranks.world.restarts;
  l.command = {self};
  l.command.insert(l.command.end(), words.begin(), words.end());
  l.agent = {self, "--agent"};
  l.outDir = plan.run.outDir;
  l.restarts = o.restarts;
  l.checkpoints = [store = CheckpointStore(l.outDir)] { return store.steps(); };
  return launch(l);
}

/// The exit of a rank that another launcher ends: if a rank has failed, with that rank's exit code, so that all ranks
/// have it. In effect from before the ranks meet, except while SIGTERM means to save.
class LastWords {
public:
  static void say(int rank, const RankFailure &f) {
    words = rank == 0 ? UserError(f.cause, f.text, f.help).what() : "";
    code = exitCodeOf(f.cause);
  }
  static void listen() {
    struct sigaction a{};
    a.sa_handler = [](int number) {
      if (const int said = code) {
        (void)!::write(STDERR_FILENO, words.data(), words.size());
        ::_exit(said);
      }
      ::signal(number, SIG_DFL);
      ::raise(number);
    };
    ::sigaction(SIGTERM, &a, nullptr);
  }

private:
  static inline std::string words;  // written once, before `code`
  static inline std::atomic<int> code{0};
};

/// A rank among the others: their meeting and their communicators.
class Together {
public:
  /// Meets the other ranks before reading anything that may be missing on one machine, so that they hear of it too.
  explicit Together(const World &w) : world(w) {
    const bool ours = w.source == World::Source::launcher;
    if (!w.alone() && !ours)
      watch.emplace();
    Pulse::get();  // from here on the watcher of this rank sees whether it runs
    if (w.alone())
      return;
    // Other launchers do not host a rendezvous, so rank 0 does. On a single machine, it is not reachable from others.
    if (w.rank == 0 && !ours)
      server.emplace(RendezvousServer::Options{w.nodes == 1 ? w.rendezvous.host : "0.0.0.0",
                                               uint16_t(w.rendezvous.port), w.token, w.size});
    RendezvousClient::Options o{w.rendezvous.host, uint16_t(w.rendezvous.port), w.token, w.rank, w.size};
    if (!ours) {  // rank 0 hosts the server, and no launcher watches
      o.silence = RendezvousServer::Options().silence;
      o.news = [this] { return watch->news(); };
    }
    if (!ours)
      LastWords::listen();
    client.emplace(o);
    if (!ours)
      told = client->onFailure([this] { LastWords::say(world.rank, *client->failure()); });
    if (server)
      watch->judge(*server, w.size);
  }
  /// If the plan's folder needs a judgement (problemOfFolder), rank 0's counts, because caches of other machines may
  /// not know the plan. Under our launcher, the launcher's counts for all ranks.
  void agreeOnFolder(const RunOptions &o, const Plan &plan) {
    if (world.source == World::Source::launcher)
      return;
    if (world.rank == 0) {
      requireFolder(o, plan);
      client->set("folder", "agreed");
    } else if (!problemOfFolder(o, plan).empty()) {
      client->get("folder", std::chrono::minutes(2));
    }
  }
  /// Call it when this rank has the plan.
  void join(const Plan &plan) {
    if (world.alone())
      return;
    requireSameRun(*client, plan.dir, plan.hash);
    ranks = joinGroup(&*client, Group::all(world.size), {.patience = patience});
  }
  /// The ranks along each axis of a two-axis mesh.
  MeshAxes along(const Mesh &mesh) {
    if (mesh.data == 1 || mesh.tensor == 1)
      return {};
    auto joined = [&](const char *axis, int64_t number) {
      Group g{fmt::format("{}{}", axis, number), {}};
      for (int64_t member : mesh.group(axis, ranks->rank))
        g.members.push_back(int(member));
      axes.push_back(joinGroup(&*client, g, {.patience = patience}));
      return axes.back().get();
    };
    // The group along one axis is identified by its index on the other.
    MeshAxes m;
    m.data = joined("data", mesh.index("tensor", ranks->rank));
    m.tensor = joined("tensor", mesh.index("data", ranks->rank));
    return m;
  }
  /// Runs `work`, and tells the other ranks if it fails. Returns an exit code.
  template <typename F> int run(F work) {
    try {
      work();
    } catch (...) {
      if (client)
        return failed();
      throw;
    }
    if (watch)
      watch->stop();
    if (ranks) {
      for (auto &axis : axes)
        axis->finish();
      ranks->finish();
      client->leave();
      // Others may still wait for the last message; to them a vanished server is a failed rank.
      waitFor(std::chrono::seconds(10), [&] { return server->left() == world.size || server->failure(); });
    }
    return 0;
  }
  void barrier() {
    if (ranks)
      ranks->barrier();
  }

  /// A hanging rank is noticed long before; but a rank may need time to write a large checkpoint.
  static constexpr std::chrono::minutes patience{30};

private:
  /// Within a catch block: tells the other ranks why this one ends. The first failed rank prints the error. Under
  /// another launcher all ranks exit with its code, because whether that launcher retries should not depend on which
  /// code it looks at. (Ours finds the first failure by the codes.)
  int failed() {
    ::signal(SIGTERM, SIG_IGN);  // this rank is about to report and end
    const Diagnostic mine = currentError();
    client->report(mine.code, mine.message, fmt::format("{}", fmt::join(mine.help, "; ")));
    const RankFailure *first = client->failure(std::chrono::seconds(1));
    waitFor(std::chrono::seconds(5), [&] { return server->allKnowFailure(); });
    if (world.source == World::Source::launcher || !first || first->rank == world.rank)
      throw;
    if (!diverted && world.rank != 0)
      return exitCodeOf(first->cause);  // that rank and rank 0 report it
    throw UserError(first->cause, first->text,
                    !first->help.empty() ? first->help : "see what that rank says: the first that failed is the cause");
  }
  template <typename F> void waitFor(std::chrono::seconds most, F condition) {
    const auto until = std::chrono::steady_clock::now() + most;
    while (server && !condition() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const World world;
  std::optional<RendezvousServer> server;
  std::optional<MutualWatch> watch;
  std::optional<RendezvousClient> client;
  std::shared_ptr<void> told;

public:
  std::unique_ptr<Communicator> ranks;  // null if there is only one rank
  bool diverted = false;                // this rank's output goes to its log

private:
  std::vector<std::unique_ptr<Communicator>> axes;
};

/// Prints what each rank holds, and how the ranks share the work.
void printShares(const Plan &plan) {
  const auto shared = factsOf<ParallelFacts>(*plan.planned);
  const Mesh now = Mesh::of(*plan.planned);
  std::string work;
  if (now.data > 1)
    work = fmt::format("{}{} share each batch: {}, gradients added in the order of {}, ", now.data,
                       now.tensor > 1 ? fmt::format(" groups of {}", now.tensor) : " ranks",
                       shared.zeroStage ? fmt::format("ZeRO stage {}", shared.zeroStage) : "all parameters on each",
                       shared.reduceOrder == ReduceOrder::tree ? "a tree" : "the engine");
  else
    work = fmt::format("{} ranks share heads and hidden features (tensor parallel), ", now.tensor);
  fmt::print("{}{}, {} of memory each\n", work, nameOf(fact<&PrecisionFacts::compute>(*plan.planned)),
             formatBytes(double(fact<&MemoryFacts::arenaBytes>(*plan.planned))));
}

int runTraining(const RunOptions &o, const std::vector<std::string> &words) {
  ::signal(SIGPIPE, SIG_IGN);  // if nobody reads the output, the run ends between two steps (runtime/train/trainer.h)
  const World w = World::find();
  Plan plan;
  if (w.alone()) {
    plan = planOf(o, true);
    requireFolder(o, plan);
    if (const Ranks ranks = chooseRanks(o, w, plan); ranks.size() > 1)
      return launchRanks(o, ranks, plan, words);
  }
  Together together(w);
  return together.run([&] {
    if (!w.alone()) {
      plan = planOf(o, true);
      chooseRanks(o, w, plan);
      together.agreeOnFolder(o, plan);
    }
    if (w.rank != 0 && w.source != World::Source::launcher) {
      divertOutput(w.rank, plan.run.outDir);
      together.diverted = true;
    }
    together.join(plan);
    Plan mine = forRanks(std::move(plan), w.size, w.rank == 0, [&] { together.barrier(); });
    if (w.rank == 0 && w.size > 1)
      printShares(mine);
    const MeshAxes along = together.along(Mesh::of(*mine.planned));
    const int device = mine.target.isCuda() ? cuda::gpuOfRank(w.localRank, w.ranksPerNode,
                                                              w.source != World::Source::launcher && !w.alone())
                                            : 0;
    Session session(std::move(mine), defaultCacheDir(), o.threads, together.ranks.get(), along, device);
    session.executor.patience = Together::patience;
    std::optional<TokenizerCodec> codec;
    if (!session.plan.run.tokenizer.empty() && session.plan.run.sampleEvery > 0)
      codec.emplace(session.plan.run.tokenizer, session.plan.run.parseSpecial);
    TrainOptions t;
    t.steps = o.steps;
    // With --resume never, only the first start begins anew; restarts resume.
    const bool again = w.restarts > 0 && o.resume == "never";
    t.resume = again                 ? Resume::automatic
               : o.resume == "never" ? Resume::never
               : o.resume == "must"  ? Resume::must
                                     : Resume::automatic;
    t.resumeAtMost = w.resumeAtMost;
    t.profile = o.profile;
    t.check = o.check;
    t.codec = codec ? &*codec : nullptr;
    t.cacheDir = defaultCacheDir();
    t.hashesData = w.localRank == 0;
    t.allowChangedData = o.allowChangedData;
    t.certifyEvery = o.certifyEvery;
    t.answersStops = w.rank == 0 && w.source != World::Source::launcher;
    RunTimes times;
    ClassTimes kernels;
    t.times = &times;
    if (!session.plan.target.isCuda())  // observing would break up the CUDA graph
      t.watch = &kernels;
    train(session, t);
    if (w.rank != 0)
      return;
    if (const std::string line = forecastLine(session, w.nodes, times, kernels);
        !line.empty() && !appendForecast(session.plan.run.outDir, line))
      printError("warning: forecast.jsonl cannot be written in {}\n", session.plan.run.outDir);
  });
}

void addTrainingOptions(CommandLine &app, RunOptions &o) {
  app.option("--nodes", o.nodes, "machines; without --hosts their ranks all run on this one; default: 1")
      .within(1, 1 << 10);
  app.option("--hosts", o.hosts, "names of the machines, to be reached by ssh: node1,node2 or node[1-8]");
  app.option("--ranks-per-node", o.ranksPerNode,
             "processes per machine; default: those of the plan, with --nodes 1, with --hosts and a plan for "
             "GPUs as many as this machine has")
      .within(1, 1 << 10);
  app.option("--restarts", o.restarts,
             fmt::format("how often to start again from a checkpoint when a rank fails; default: {}", o.restarts))
      .within(0, 1 << 20);
  app.flag("--agent", o.agent).hidden();  // ssh starts it on the machines of --hosts
  app.option("--steps", o.steps, "stop once this many steps are done in all; default: the plan's")
      .within(int64_t(0), int64_t(1) << 40);
  app.option(
         "--resume", o.resume,
         "auto: from the newest checkpoint if there is one | never: start over, keeping the earlier run aside | must; "
         "default: auto")
      .oneOf({"auto", "never", "must"});
  app.flag("--allow-changed-data", o.allowChangedData,
           "resume although the training data is not that of the checkpoint");
  Option certify =
      app.option("--certify", o.certifyEvery,
                 "keep digests of every such step's states and kernels, and of the last, in the run's folder, so that "
                 "`gptc verify` can replay it; costs about a step each time")
          .type("STEPS")
          .within(int64_t(1), int64_t(1) << 40);
  const Option profile =
      app.flag("--profile", o.profile, "print time, GFLOP/s and GB/s per kernel at the end").excludes(certify);
  app.flag("--check", o.check,
           "run kernels one by one, and end with the name of the first that fails or leaves a value that is not "
           "finite; slow, the same bits")
      .excludes(profile)
      .excludes(certify);
}

int run(int argc, char **argv) {
  RunOptions o;
  CommandLine app("gptrun", "gptrun: trains, samples and evaluates a plan made by `gptc compile`");
  auto addThreads = [&](Command a) {
    a.option("--threads", o.threads, "threads; never changes results; default: 0, all cores").within(0, 4096);
  };
  auto addOutDir = [&](Command a) {
    a.option("--out-dir", o.outDir,
             "where the run writes; default: out_dir of model.toml, for a plan from elsewhere only below the "
             "working folder")
        .type("DIR");
  };
  auto common = [&](Command a, bool takesModels = false) {
    if (takesModels)
      a.option("PLAN", o.plan, "folder written by `gptc compile`, a Hugging Face folder or a GGUF file")
          .type("DIR|FILE.gguf");
    else
      a.option("PLAN", o.plan, "folder written by `gptc compile`").type("FOLDER");
    addThreads(a);
    addOutDir(a);
  };
  common(app);
  auto weights = [&](Command a) {
    a.option("--checkpoint", o.checkpoint,
             "which weights: the number of a step | best: least validation loss | a folder with model.safetensors; "
             "default: the newest checkpoint")
        .type("STEP|best|DIR");
  };
  addTrainingOptions(app, o);

  Command sample = app.command("sample", "continue a prompt");
  common(sample, true);
  addRunAsOptions(sample, o.as);
  addCacheOption(sample, o.as);
  weights(sample);
  addSampleOptions(sample, o.sample);
  Command serve = app.command("serve", "answer over HTTP, by the interface of OpenAI: /v1/completions, /v1/models");
  common(serve, true);
  addRunAsOptions(serve, o.as);
  addCacheOption(serve, o.as);
  weights(serve);
  addServeOptions(serve, o.serve);
  Command embed = app.command("embed", "vectors of texts, by an encoder or a decoder");
  common(embed, true);
  addRunAsOptions(embed, o.as);
  weights(embed);
  addEmbedOptions(embed, o.embed);
  Command classify = app.command("classify", "labels of texts, by a classifier that was trained here or elsewhere");
  classify.option("MODEL", o.plan, "a plan whose model learns labels, or a folder of BertForSequenceClassification")
      .type("DIR");
  addThreads(classify);
  addOutDir(classify);
  addRunAsOptions(classify, o.as);
  weights(classify);
  addClassifyOptions(classify, o.classify);
  Command eval = app.command("eval", "loss on the validation data, or on another file; of labels also accuracy");
  common(eval, true);
  addRunAsOptions(eval, o.as);
  addCacheOption(eval, o.as);
  weights(eval);
  eval.flag("--as-sampled", o.asSampled,
            "by what `gptrun sample` computes with: precision.weights, and the cache; so are models of other programs");
  eval.option("--data", o.data, "token file, globs allowed; default: data.val of model.toml").type("FILE");
  eval.option("--steps", o.steps,
              "global batches; 0: the whole of the data; default: eval.steps of model.toml, of other models all")
      .within(int64_t(0), int64_t(1) << 40);

  if (std::optional<int> code = app.parse(argc, argv))
    return *code;
  if (o.agent)
    return runAgent(STDIN_FILENO, STDOUT_FILENO);
  if (const auto foreign = app.optionForeignToCommand())
    throw UserError(ErrorCode::Usage,
                    fmt::format("{} is for training: gptrun {} does not take it", foreign->option, foreign->command),
                    fmt::format("gptrun {} --help lists what it takes", foreign->command));
  if (o.plan.empty())
    throw UserError(ErrorCode::Usage, "which plan?", "gptrun PLAN; make one with `gptc compile model.toml -o PLAN`");
  if (sample.given())
    runSample(std::move(o));
  else if (serve.given())
    runServe(std::move(o));
  else if (embed.given())
    runEmbed(std::move(o));
  else if (classify.given())
    runClassify(std::move(o));
  else if (eval.given())
    runEval(std::move(o));
  else
    return runTraining(o, {argv + 1, argv + argc});
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  return guardedMain([&] { return run(argc, argv); });
}
