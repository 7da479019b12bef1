// gptrun: runs a plan. Trains by default; `gptrun sample PLAN` and `gptrun eval PLAN` use the trained weights.
#include "frontends/tokenizer/tokenizer.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nccl.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/rank_log.h"
#include "runtime/launch/remote_crew.h"
#include "runtime/launch/world.h"
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
#include "tools/run/ranks.h"
#include "tools/run/texts.h"
#include "tools/serve/completion_request.h"

#include <csignal>
#include <functional>
#include <optional>

using namespace gptc;

namespace {

/// Adapts the front end's tokenizer to the runtime's interface.
class TokenizerCodec : public TextCodec {
public:
  TokenizerCodec(const std::string &file, bool parseSpecial)
      : tokenizer(Tokenizer::load(file)), stream(tokenizer), parseSpecial(parseSpecial) {}
  std::vector<int32_t> encode(const std::string &text) override {
    std::vector<int32_t> tokens;
    if (const int64_t found = tokenizer.encode(text, tokens, {.parseSpecial = parseSpecial}))
      noteControlTokens(found, parseSpecial);
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

/// The plan for `ranks` ranks, `ranksPerNode` of them on each machine, derived from its model description if it is for
/// another number. One rank (`makes`) writes it; the others wait at `barrier` until it exists.
Plan forRanks(Plan plan, int64_t ranks, int64_t ranksPerNode, bool makes, const std::function<void()> &barrier) {
  const int64_t planned = Mesh::of(*plan.planned).ranks();
  if (planned == ranks)
    return plan;
  const std::string outDir = plan.run.outDir, dir = fmt::format("{}/plan-{}-ranks", outDir, ranks);
  if (makes) {
    const PlanForRanks partition(plan, ranks, ranksPerNode);
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

Ranks ranksOfTraining(const RunOptions &o, const World &world, const Plan &plan) {
  const bool cuda = plan.target.isCuda();
  // By default the run has the ranks that the plan was made for, on this machine.
  const Ranks r = chooseRanks(o, world, int(Mesh::of(*plan.planned).ranks()),
                              [&](int) { return cuda && o.hosts ? cuda::visibleGpus() : 1; });
  if (cuda && r.world.alone() && r.hosts.empty() && r.size() > 1) {
    cuda::requireGpus(r.size());
    cuda::Nccl::get();
  }
  return r;
}

/// Starts this program once per rank, with the same arguments.
int launchRanks(const RunOptions &o, const Ranks &ranks, const Plan &plan) {
  // Report now what every rank would report.
  if (Mesh::of(*plan.planned).ranks() != ranks.size())
    PlanForRanks(plan, ranks.size());
  LaunchOptions l = launchOptions(ranks, o.words);
  l.outDir = plan.run.outDir;
  l.restarts = o.restarts;
  l.checkpoints = [store = CheckpointStore(l.outDir)] { return store.steps(); };
  return launch(l);
}

/// Prints what each rank holds, and how the ranks share the work.
void printShares(const Plan &plan) {
  const auto shared = factsOf<ParallelFacts>(*plan.planned);
  const Mesh now = Mesh::of(*plan.planned);
  std::string work;
  if (now.data > 1)
    work = fmt::format("{}{} share each batch: {}, {} added in the order of {}, ", now.data,
                       now.tensor > 1 ? fmt::format(" groups of {}", now.tensor) : " ranks",
                       shared.zeroStage ? fmt::format("ZeRO stage {}", shared.zeroStage) : "all parameters on each",
                       shared.syncEvery > 1                 ? fmt::format("what {} steps have moved", shared.syncEvery)
                       : compressesGradients(*plan.planned) ? fmt::format("gradients of rank {}", shared.gradientRank)
                                                            : "gradients",
                       shared.reduceOrder == ReduceOrder::tree ? "a tree" : "the engine");
  else
    work = fmt::format("{} ranks share heads and hidden features (tensor parallel), ", now.tensor);
  fmt::print("{}{}, {} of memory each\n", work, nameOf(fact<&PrecisionFacts::compute>(*plan.planned)),
             formatBytes(double(fact<&MemoryFacts::arenaBytes>(*plan.planned))));
}

int runTraining(const RunOptions &o) {
  ::signal(SIGPIPE, SIG_IGN);  // if nobody reads the output, the run ends between two steps (runtime/train/trainer.h)
  const World w = World::find();
  Plan plan;
  if (w.alone()) {
    plan = planOf(o, true);
    requireFolder(o, plan);
    if (const Ranks ranks = ranksOfTraining(o, w, plan); ranks.size() > 1)
      return launchRanks(o, ranks, plan);
  }
  Together together(w);
  return together.run([&] {
    if (!w.alone()) {
      plan = planOf(o, true);
      ranksOfTraining(o, w, plan);
      together.agreeOnFolder(o, plan);
    }
    if (w.rank != 0 && w.source != World::Source::launcher) {
      divertOutput(w.rank, plan.run.outDir);
      together.diverted = true;
    }
    together.join(plan);
    Plan mine = forRanks(std::move(plan), w.size, w.ranksPerNode, w.rank == 0, [&] { together.barrier(); });
    if (w.rank == 0 && w.size > 1)
      printShares(mine);
    const MeshAxes along = together.along(Mesh::of(*mine.planned));
    const int device = mine.target.isCuda() ? cuda::gpuOfRank(w.localRank, w.ranksPerNode,
                                                              w.source != World::Source::launcher && !w.alone())
                                            : 0;
    Session session(std::move(mine), defaultCacheDir(), o.threads, together.ranks.get(), along, device);
    session.executor.patience = Together::patience;
    if (const std::string note = noteOfNodes(session.pool.nodes().size(), w.ranksPerNode);
        w.rank == 0 && session.arena && !note.empty())
      printError("note: {}\n", note);
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
    ClassTimes kernels, ofOuter;
    t.times = &times;
    if (!session.plan.target.isCuda())  // observing would break up the CUDA graph
      t.watch = &kernels, t.watchOuter = &ofOuter;
    train(session, t);
    if (w.rank != 0)
      return;
    if (const std::string line = forecastLine(session, w.nodes, times, kernels, ofOuter);
        !line.empty() && !appendForecast(session.plan.run.outDir, line))
      printError("warning: forecast.jsonl cannot be written in {}\n", session.plan.run.outDir);
  });
}

/// --nodes, --hosts and --ranks-per-node, whose default is as `usual` says.
void addRankOptions(Command c, RunOptions &o, const std::string &usual) {
  c.option("--nodes", o.nodes, "machines; without --hosts their ranks all run on this one; default: 1")
      .within(1, 1 << 10);
  c.option("--hosts", o.hosts, "names of the machines, to be reached by ssh: node1,node2 or node[1-8]");
  c.option("--ranks-per-node", o.ranksPerNode, "processes per machine; default: " + usual).within(1, 1 << 10);
}

void addTrainingOptions(CommandLine &app, RunOptions &o) {
  addRankOptions(app, o,
                 "those of the plan, with --nodes 1, with --hosts and a plan for GPUs as many as this machine has");
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

void addEvalOptions(Command eval, RunOptions &o) {
  const Option task = addTaskOptions(eval, o.task);
  eval.flag("--as-sampled", o.asSampled,
            "by what `gptrun sample` computes with: precision.weights, and the cache; so are models of other programs, "
            "and --task")
      .excludes(task);
  eval.flag("--exact", o.exact).hidden();  // for gptc experiment: all digits of the loss
  eval.option(
          "--data", o.data,
          "token files to evaluate on: one, the *.bin of a folder, PREFIX of Megatron-LM's PREFIX.bin and PREFIX.idx, "
          "or a pattern with *; default: data.val of model.toml")
      .type("FILE")
      .excludes(task);
  eval.option("--steps", o.steps,
              "global batches; 0: the whole of the data; default: eval.steps of model.toml, of other models all")
      .within(int64_t(0), int64_t(1) << 40)
      .excludes(task);
}

/// What several commands take.
class CommonOptions {
public:
  explicit CommonOptions(RunOptions &o) : o(o) {}

  void plan(Command a) {
    a.option("PLAN", o.plan, "folder written by `gptc compile`").type("FOLDER");
    run(a);
  }
  void planOrModel(Command a) {
    a.option("PLAN", o.plan, "folder written by `gptc compile`, a Hugging Face folder or a GGUF file")
        .type("DIR|FILE.gguf");
    run(a);
  }
  void encoder(Command a, const char *help) {
    a.option("MODEL", o.plan, help).type("DIR");
    run(a);
  }
  void weights(Command a) {
    a.option("--checkpoint", o.checkpoint,
             "which weights: the number of a step | best: least validation loss | a folder with model.safetensors; "
             "default: the newest checkpoint")
        .type("STEP|best|DIR");
  }
  void sharing(Command a) {
    a.option("--tensor", o.tensor,
             "ranks that share heads, their cache, and hidden features, each with its part; CPUs only; default: those "
             "of --nodes, --hosts and --ranks-per-node, else of the plan's parallel.tensor")
        .within(1, 1 << 10);
    addRankOptions(a, o, "--tensor's, in equal parts");
  }

private:
  RunOptions &o;

  void run(Command a) {
    a.option("--threads", o.threads, "threads; never changes results; default: 0, all cores").within(0, 4096);
    a.option("--out-dir", o.outDir,
             "where the run writes; default: out_dir of model.toml, for a plan from elsewhere only below the "
             "working folder")
        .type("DIR");
  }
};

int run(int argc, char **argv) {
  RunOptions o;
  o.words.assign(argv + 1, argv + argc);
  CommandLine app("gptrun", "gptrun: trains, samples and evaluates a plan made by `gptc compile`");
  CommonOptions common(o);
  common.plan(app);
  addTrainingOptions(app, o);

  Command sample = app.command("sample", "continue a prompt");
  common.planOrModel(sample);
  addRunAsOptions(sample, o.as);
  addCacheOption(sample, o.as);
  common.weights(sample);
  addSampleOptions(sample, o.sample);
  common.sharing(sample);
  Command serve = app.command("serve", "answer over HTTP, by the interface of OpenAI: /v1/completions, /v1/models");
  common.planOrModel(serve);
  addRunAsOptions(serve, o.as);
  addCacheOption(serve, o.as);
  common.weights(serve);
  addServeOptions(serve, o.serve);
  common.sharing(serve);
#ifndef GPTC_SERVES
  serve.hidden();  // its plug-in was not built
#endif
  Command embed = app.command("embed", "vectors of texts, by an encoder or a decoder");
  common.planOrModel(embed);
  addRunAsOptions(embed, o.as);
  common.weights(embed);
  addEmbedOptions(embed, o.embed);
  Command classify = app.command("classify", "labels of texts, by a classifier that was trained here or elsewhere");
  common.encoder(classify,
                 "a plan whose model learns labels, or a folder with a classifier of BERT's form or ModernBERT's");
  addRunAsOptions(classify, o.as);
  common.weights(classify);
  addClassifyOptions(classify, o.classify);
  Command fill = app.command("fill-mask", "tokens in place of [MASK] in texts, by an encoder that has learned them");
  common.encoder(fill, "a plan of an encoder of tokens, or a folder with a model of BERT's form or ModernBERT's and "
                       "its head for masked tokens");
  addRunAsOptions(fill, o.as);
  common.weights(fill);
  addFillOptions(fill, o.fill);
  Command eval =
      app.command("eval", "loss on the validation data, or on another file; of labels also how well they are told; "
                          "multiple choice");
  common.planOrModel(eval);
  addRunAsOptions(eval, o.as);
  addCacheOption(eval, o.as);
  common.weights(eval);
  addEvalOptions(eval, o);

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
    return runSample(std::move(o));
  if (serve.given())
    return runServe(std::move(o));
  if (embed.given())
    runEmbed(std::move(o));
  else if (classify.given())
    runClassify(std::move(o));
  else if (fill.given())
    runFillMask(std::move(o));
  else if (eval.given())
    runEval(std::move(o));
  else
    return runTraining(o);
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  return guardedMain([&] { return run(argc, argv); });
}
