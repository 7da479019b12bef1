#include "tools/run/texts.h"

#include "frontends/hf_folder.h"
#include "frontends/hf_mask.h"
#include "frontends/hf_text_form.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/collectives/share_text.h"
#include "runtime/launch/crew.h"
#include "runtime/launch/pulse.h"
#include "runtime/serve/scored_loss.h"
#include "runtime/train/digests.h"
#include "runtime/train/session.h"
#include "runtime/train/train_step.h"
#include "runtime/train/trainer.h"
#include "runtime/train/weights.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/stderr.h"
#include "tools/compiler/inference.h"
#include "tools/planner/cache_dir.h"
#include "tools/run/plans.h"
#include "tools/run/ranks.h"
#include "tools/serve/followers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {
namespace {

/// Says something, once for all ranks.
void note(const RunOptions &o, const std::string &text) {
  if (o.speaks)
    printError("note: {}\n", text);
}

/// A model without its training.
class Inference {
public:
  Inference(const RunOptions &o, const Plan &plan)
      : choice(!o.model.empty() ? WeightsChoice{WeightsChoice::tensors, 0, o.model}
               : o.checkpoint   ? WeightsChoice::parse(*o.checkpoint)
                                : WeightsChoice()),
        model(modelIdentity(*plan.planned)) {
    // Caches of other machines may not know the plan: who speaks for all ranks judges for them.
    if (o.speaks && choice.kind != WeightsChoice::inFolder && choice.kind != WeightsChoice::tensors)
      requireFolder(o, plan);
    requireWeights(plan.run, choice);
  }
  Session open(const RunOptions &o, Plan plan, llvm::ArrayRef<llvm::StringRef> functions) const {
    return Session(inferencePlan(std::move(plan), functions, defaultCacheDir()), defaultCacheDir(), o.threads);
  }
  /// All ranks must call it. `speaks`: whether this one warns.
  std::string load(Session &session, bool speaks = true) const {
    return loadForInference(session, model, choice, [&](const std::string &text) {
      if (speaks)
        printError("warning: {}\n", text);
    });
  }

private:
  const WeightsChoice choice;
  const ModelIdentity model;  // of the complete plan
};

/// Says how weights are kept, if it is not as they are computed with.
void noteWeights(const RunOptions &o, const Module &m) {
  if (const std::string kept = weightsInWords(m); !kept.empty())
    note(o, "weights as " + kept);
}

/// A plan that continues as many samples at once as there are slots. On CPUs all have slots, so that a sample does not
/// depend on their number; on a GPU one sequence is fastest by itself, unless its weights have few bits, which those
/// functions of a plan that also trains do not read. `tensor`: ranks that share the model.
Plan withSlots(const RunOptions &o, Plan plan, int64_t slots, int64_t tensor = 1) {
  const bool fewBits = fact<&PrecisionFacts::weights>(*plan.planned) != Weights::compute;
  if (tensor == 1 && (plan.model.empty() || (slots == 1 && plan.target.isCuda() && !fewBits)))
    return inferencePlan(std::move(plan), kSampling, defaultCacheDir());
  plan = servingPlan(std::move(plan), slots, defaultCacheDir(), tensor);
  noteWeights(o, *plan.planned);
  if (slots > 1 || tensor > 1)
    note(o, slotsInWords(*plan.planned, slots));
  return plan;
}

int64_t slotsOfSample(const RunOptions &o, const Plan &plan) {
  const bool many = !o.sample.prompts.empty() || o.sample.defaults.n > 1;
  if (plan.model.empty() && (o.sample.slots > 1 || o.sample.beams > 1))
    throw UserError(
        ErrorCode::NotBuiltYet,
        "the plan was compiled from a module: it continues one sample at a time, and has no --slots or --beams",
        "leave them out, or compile a model.toml");
  return o.sample.beams ? o.sample.beams : o.sample.slots ? o.sample.slots : many ? 8 : 1 + o.sample.generator.guesses;
}

/// A plan that continues texts, and what it takes.
struct Continuing {
  Plan plan;
  Inference inference;
  Tokenizer tokenizer;
  ModelTokens tokens;
  PromptLimits limits;
};

/// For a model of another program.
void requireNoRun(const RunOptions &o) {
  if (o.checkpoint || !o.outDir.empty())
    throw UserError(ErrorCode::Usage, fmt::format("{} has weights, and no run with others", o.plan),
                    "leave out --checkpoint and --out-dir, or import the model and compile a plan");
}

/// One for a model of another program, which is then o.model.
Plan planForTexts(RunOptions &o, const ImportedModel &imported, ImportFor purpose) {
  Plan plan = planOfModel(imported, o.as, purpose);
  note(o,
       fmt::format("{} with a context of {} tokens (--precision, --context)",
                   nameOf(fact<&PrecisionFacts::compute>(*plan.planned)), fact<&ModelFacts::blockSize>(*plan.planned)));
  if (const std::string rounded = roundingNote(imported, o.as); !rounded.empty())
    note(o, rounded);
  o.model = plan.dir;
  return plan;
}

/// The plan, or one for a model of another program.
Plan planForTexts(RunOptions &o, ImportFor purpose = ImportFor::tokens) {
  std::error_code e;
  if (!isImportable(o.plan) && !std::filesystem::is_regular_file(o.plan, e)) {
    Plan plan = planOf(o);
    requireNoRunAs(o.as, "a plan has its own", "leave it out, or compile the plan again");
    return plan;
  }
  requireNoRun(o);
  return planForTexts(o, importedModel(o.plan, purpose), purpose);
}

std::string tokenizerOf(const Plan &plan) {
  if (plan.run.tokenizer.empty())
    throw UserError(ErrorCode::FileMissing, "the plan names no tokenizer",
                    "set data.tokenizer in model.toml and compile again");
  return plan.run.tokenizer;
}

Continuing openForTexts(RunOptions &o) {
  Plan plan = planForTexts(o);
  requireGenerator(*plan.planned);
  const std::string file = tokenizerOf(plan);
  const Inference inference(o, plan);
  const PromptLimits limits = {fact<&ModelFacts::vocabSize>(*plan.planned),
                               fact<&ModelFacts::blockSize>(*plan.planned)};
  Tokenizer tokenizer = Tokenizer::load(file);
  ModelTokens tokens = modelTokens(file, tokenizer, plan.run.initFrom, limits.vocabulary);
  return {std::move(plan), inference, std::move(tokenizer), std::move(tokens), limits};
}

/// Loads the weights, and leaves out tokens that have no text.
void loadForTexts(const RunOptions &o, const Continuing &c, Session &session, CompletionRequest &defaults) {
  c.inference.load(session, o.speaks);
  defaults.ends = c.tokens.ends;
  defaults.options.tokens = c.tokenizer.vocabSize();
  if (const std::string text = tokensWithoutText(*session.plan.planned, c.tokenizer.vocabSize()); !text.empty())
    note(o, text);
}

/// The labels of a plan's model, which stand in its description.
HfLabels labelsOf(const Plan &plan) {
  if (!fact<&ModelFacts::labels>(*plan.planned))
    throw UserError(ErrorCode::Contradiction, fmt::format("the model of the plan {} tells no labels", plan.dir),
                    "train one that does: data.labels in model.toml");
  return readHfLabels(plan.dir + "/hf");
}

/// Requires a plan whose model has learned to fill masks.
void requireMasks(const Plan &plan) {
  if (maskToken(*plan.planned) < 0)
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("the model of the plan {} fills no masks: it {}", plan.dir,
                                fact<&ModelFacts::labels>(*plan.planned) ? "tells labels" : "continues texts"),
                    "train an encoder of tokens: model.causal = false");
  if (plan.model.empty())
    throw UserError(ErrorCode::NotBuiltYet, "the plan was compiled from a module, which fills no masks of texts",
                    "compile a model.toml");
}

/// A model that makes vectors of texts.
class Vectors {
public:
  Vectors(RunOptions &o, VectorChoice &choice) : Vectors(o, choice, planForTexts(o, ImportFor::vectors)) {}

private:
  Vectors(const RunOptions &o, VectorChoice &choice, Plan plan) : tokenizer(Tokenizer::load(tokenizerOf(plan))) {
    if (plan.model.empty())
      throw UserError(ErrorCode::NotBuiltYet, "the plan was compiled from a module, which makes no vectors of texts",
                      "compile a model.toml");
    choice.parseSpecial = plan.run.parseSpecial;
    const Inference inference(o, plan);
    session.emplace(embeddingPlan(std::move(plan), defaultCacheDir()), defaultCacheDir(), o.threads);
    noteWeights(o, *session->plan.planned);
    inference.load(*session);
  }

public:
  const Tokenizer tokenizer;
  std::optional<Session> session;
};

/// The ranks that continue texts: all share the model, so there are as many as divide heads and hidden features. By
/// default as many as in training, if they can.
Ranks ranksForTexts(const RunOptions &o, const World &world, const Plan &plan) {
  const int64_t trained = Mesh::of(*plan.planned).tensor;
  const bool canShare = !plan.model.empty() && !plan.target.isCuda() && std::has_single_bit(uint64_t(trained));
  const int wanted = o.tensor ? o.tensor : canShare ? int(trained) : 1;
  Ranks ranks = chooseRanks(o, world, wanted, [&](int nodes) { return std::max(1, wanted / nodes); });
  if (o.tensor && ranks.size() != o.tensor)
    throw UserError(world.alone() ? ErrorCode::Usage : ErrorCode::RanksUnclear,
                    fmt::format("--tensor {}, and {} machine{} with {} rank{} each", o.tensor, ranks.nodes,
                                ranks.nodes == 1 ? "" : "s", ranks.perNode, ranks.perNode == 1 ? "" : "s"),
                    "all ranks share the model: leave out --tensor, or make it a multiple of the machines");
  requireShared(plan, ranks.size());
  return ranks;
}

/// The prompts as an open file that rank 0 inherits as its standard input: it has no other descriptor of this process,
/// such as /dev/fd/63, and cannot read a terminal. So all but a file on a disk is read to its end, into memory.
int promptsForRanks(const SampleCommand &command) {
  const int from = openPrompts(command);
  struct stat s{};
  if (::fstat(from, &s) == 0 && S_ISREG(s.st_mode))
    return from;
  const int file = ::memfd_create("prompts", MFD_CLOEXEC);
  const UserError noMemory(ErrorCode::OutOfMemory, fmt::format("no memory for {}", command.prompts),
                           "name a file on a disk");
  if (file < 0)
    throw noMemory;
  std::array<char, 1 << 16> bytes;
  for (ssize_t n; (n = ::read(from, bytes.data(), bytes.size())) != 0;) {
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {} to its end", command.prompts));
    if (!writeAll(file, llvm::StringRef(bytes.data(), size_t(n))))
      throw noMemory;
  }
  ::lseek(file, 0, SEEK_SET);
  return file;
}

/// Whether prompts may be somewhere where only a process of this machine can read them.
bool areOfThisMachine(const std::string &prompts) {
  std::error_code e;
  const std::filesystem::file_status s = std::filesystem::status(prompts, e);
  return prompts == "-" || prompts.starts_with("/dev/") ||
         (std::filesystem::exists(s) && !std::filesystem::is_regular_file(s));
}

/// Starts this program once per rank, with the same arguments. No restart helps: rank 0 has printed already.
int launchForTexts(const RunOptions &o, const Ranks &ranks) {
  LaunchOptions l = launchOptions(ranks, o.words);
  l.outputIsOfRanks = true;
  l.restarts = 0;
  const std::string &prompts = o.sample.prompts;
  if (!ranks.hosts.empty() && areOfThisMachine(prompts))
    throw UserError(ErrorCode::Usage,
                    prompts == "-" ? "--prompts - with --hosts: standard input does not reach other machines"
                                   : fmt::format("--prompts {} with --hosts: it is not on other machines", prompts),
                    "name a file of prompts, which rank 0 reads");
  if (ranks.hosts.empty() && !prompts.empty())
    l.input = promptsForRanks(o.sample);
  return launch(l);
}

/// Ranks whose kernels add in other orders would come to other logits and part. Throws UserError(RanksDiffer).
void requireSameKernels(Communicator &ranks, const Session &session) {
  std::string all = session.plan.target.features + "\n" + session.host.features;
  for (const auto &f : session.plan.planned->functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::fused))
        all += "\n" + fact<&GroupFacts::schedule>(op);
  const std::string mine = blake3(all);
  if (shareText(ranks, mine) != mine)
    throw UserError(
        ErrorCode::RanksDiffer,
        fmt::format("rank {} has other kernels than rank 0: their CPUs or their tuning records differ", ranks.rank),
        "take machines of one kind, and the same records (`gptc cache export`, `import`)");
}

/// A model that continues texts in so many slots, alone or as one of the ranks that share it, with its weights.
class SharedModel {
public:
  SharedModel(const RunOptions &o, Continuing &c, int64_t slots, Communicator *ranks, CompletionRequest &defaults)
      : session(planned(o, c, slots, ranks), defaultCacheDir(), o.threads, ranks) {
    if (ranks) {
      requireSameKernels(*ranks, session);
      session.executor.patience = Together::patience;
      busy.emplace("continuing texts");
    }
    loadForTexts(o, c, session, defaults);
    if (ranks)
      requireSameWeights(session.executor);
  }
  Session session;

private:
  static Plan planned(const RunOptions &o, Continuing &c, int64_t slots, Communicator *ranks) {
    if (!ranks)
      return withSlots(o, std::move(c.plan), slots);
    // Schedules depend on the threads, of which ranks may have different numbers.
    c.plan.target.threads = unsigned(std::stoul(shareText(*ranks, std::to_string(c.plan.target.threads))));
    return withSlots(o, std::move(c.plan), slots, ranks->world);
  }
  std::optional<Pulse::Busy> busy;
};

/// Does `work` with the model that `open` opens: in this process, on ranks that it starts, or as one of such ranks,
/// which get their communicator. Who starts ranks opens the model only to say what is wrong with it. `work` returns
/// whether somebody still reads what it prints. Returns an exit code.
int onRanks(RunOptions &o, const std::function<Continuing()> &open,
            const std::function<bool(Continuing, Communicator *)> &work) {
  const World world = World::find();
  if (world.alone()) {
    Continuing c = open();
    if (const Ranks ranks = ranksForTexts(o, world, c.plan); ranks.size() > 1)
      return launchForTexts(o, ranks);
    work(std::move(c), nullptr);
    return 0;
  }
  const auto before = ::signal(SIGPIPE, SIG_IGN);  // if nobody reads the samples, rank 0 tells the others
  bool isRead = true;
  Together together(world);
  const int code = together.run([&] {
    // Our launcher has said what it knew before it started ranks.
    o.speaks = world.rank == 0 && world.source != World::Source::launcher;
    Continuing c = open();
    ranksForTexts(o, world, c.plan);
    o.speaks = world.rank == 0;
    together.join(c.plan);
    isRead = work(std::move(c), together.ranks.get());
  });
  if (!isRead) {  // all end as one rank would have
    ::signal(SIGPIPE, before);
    ::raise(SIGPIPE);
  }
  return code;
}

}  // namespace

int runSample(RunOptions o) {
  SampleCommand &command = o.sample;
  CompletionRequest &defaults = command.defaults;
  if (!command.jsonl)
    defaults.echo = true;
  if (command.logProbs >= 0)
    defaults.logProbs = command.logProbs;
  if (const auto problem = problemOf(defaults)) {
    std::string option = "--" + problem->parameter;
    std::replace(option.begin(), option.end(), '_', '-');
    throw UserError(ErrorCode::Usage, fmt::format("{} {}", option, problem->message),
                    "gptrun sample --help lists what it takes");
  }
  auto open = [&] {
    Continuing c = openForTexts(o);
    defaults.parseSpecial |= c.plan.run.parseSpecial;
    command.limits = c.limits;
    command.generator.copiesPrefixes = !c.plan.target.isCuda();
    if (o.speaks)
      checkCommand(command, c.tokenizer);
    slotsOfSample(o, c.plan);
    return c;
  };
  return onRanks(o, open, [&](Continuing c, Communicator *ranks) {
    command.ranks = ranks;
    std::optional<std::string> content;
    if (ranks && !command.prompts.empty()) {
      const int passed = World::find().input;  // by launchForTexts
      content =
          shareText(*ranks, ranks->rank > 0 ? "" : readPrompts(command, passed >= 0 ? passed : openPrompts(command)));
    }
    const int64_t slots = slotsOfSample(o, c.plan);
    SharedModel model(o, c, slots, ranks, defaults);
    const bool isRead = samplePrompts(model.session.executor, c.tokenizer, command, std::move(content));
    model.session.executor.leave();
    return isRead;
  });
}

int runServe(RunOptions o) {
  ServeCommand &command = o.serve;
  buffersOf(command);  // refused before ranks start and weights are loaded
  if (command.modelName.empty())
    command.modelName = nameOfModel(o.plan);
  if (command.embeddings) {
    if (o.tensor > 1 || o.nodes > 1 || o.ranksPerNode > 1 || o.hosts)
      throw UserError(ErrorCode::NotBuiltYet, "ranks that share a model to make vectors of texts are not built yet",
                      "leave out --tensor, --nodes, --hosts and --ranks-per-node: --embeddings runs on one rank");
    command.vectors.settle(isImportable(o.plan) ? o.plan : "");
    const Vectors v(o, command.vectors);
    serveEmbeddings(v.session->executor, v.tokenizer, command);
    return 0;
  }
  auto open = [&] {
    Continuing c = openForTexts(o);
    if (c.plan.model.empty())
      throw UserError(ErrorCode::NotBuiltYet,
                      "the plan was compiled from a module, which has no slots for many clients",
                      "compile a model.toml");
    command.limits = c.limits;
    command.generator.copiesPrefixes = !c.plan.target.isCuda();
    return c;
  };
  return onRanks(o, open, [&](Continuing c, Communicator *ranks) {
    command.ranks = ranks;
    CompletionRequest defaults;
    defaults.options.maxTokens = 16;  // as OpenAI's; so is the temperature
    defaults.options.temperature = 1;
    SharedModel model(o, c, command.slots, ranks, defaults);
    if (ranks && ranks->rank > 0) {
      followEngine(model.session.executor, c.tokenizer, command.generator, *ranks);
    } else {
      if (ranks)
        shareText(*ranks, "");  // waits until all follow
      serve(model.session.executor, c.tokenizer, c.tokens, command, defaults);
    }
    model.session.executor.leave();
    return true;
  });
}

void runEmbed(RunOptions o) {
  requireTexts(o.embed.input);
  o.embed.vectors.settle(isImportable(o.plan) ? o.plan : "");
  const Vectors v(o, o.embed.vectors);
  embedTexts(v.session->executor, v.tokenizer, o.embed);
}

void runClassify(RunOptions o) {
  requireTexts(o.classify.input);
  HfLabels labels;
  TextForm form;
  Plan plan;
  if (isPlanFolder(o.plan)) {
    plan = planForTexts(o);
    labels = labelsOf(plan);
    form = readHfTextForm(plan.dir + "/hf");
    form.parseSpecial = plan.run.parseSpecial;
  } else {
    requireNoRun(o);
    const ImportedModel imported = importedModel(o.plan, ImportFor::labels);
    labels = imported.labels;
    form = readHfTextForm(o.plan);
    plan = planForTexts(o, imported, ImportFor::labels);
  }
  const Tokenizer tokenizer = Tokenizer::load(tokenizerOf(plan));
  const Inference inference(o, plan);
  Session session(embeddingPlan(std::move(plan), defaultCacheDir(), int64_t(labels.names.size())), defaultCacheDir(),
                  o.threads);
  noteWeights(o, *session.plan.planned);
  inference.load(session);
  classifyTexts(session.executor, tokenizer, labels, form, o.classify);
}

void runFillMask(RunOptions o) {
  requireTexts(o.fill.input);
  TextForm form;
  Plan plan;
  MaskToken mask;
  const bool isPlan = isPlanFolder(o.plan);
  if (isPlan) {
    plan = planForTexts(o);
    requireMasks(plan);
    form.parseSpecial = plan.run.parseSpecial;
    mask = {.text = "[MASK]", .id = int32_t(maskToken(*plan.planned))};
  } else {
    requireNoRun(o);
    const ImportedModel imported = importedModel(o.plan, ImportFor::masks);
    form = readHfTextForm(o.plan);
    form.parseSpecial = true;  // as transformers reads texts, where [MASK] is such a token
    plan = planForTexts(o, imported, ImportFor::masks);
  }
  const Tokenizer tokenizer = Tokenizer::load(tokenizerOf(plan));
  if (!isPlan)
    mask = maskTokenOf(tokenizer, plan.run.tokenizer, plan.run.initFrom, fact<&ModelFacts::vocabSize>(*plan.planned));
  const Inference inference(o, plan);
  Session session(fillingPlan(std::move(plan), defaultCacheDir()), defaultCacheDir(), o.threads);
  noteWeights(o, *session.plan.planned);
  inference.load(session);
  fillMasks(session.executor, tokenizer, mask, form, o.fill);
}

static void runTask(RunOptions o) {
  TaskEvaluation task(o.task);
  Continuing c = openForTexts(o);
  task.encode(c.tokenizer, c.limits, o.task.parseSpecial || c.plan.run.parseSpecial);
  Session session(withSlots(o, std::move(c.plan), 1), defaultCacheDir(), o.threads);
  const std::string from = c.inference.load(session);
  task.run(session.executor, from);
}

void runEval(RunOptions o) {
  if (!o.task.file.empty())
    return runTask(std::move(o));
  const bool sampled = o.asSampled || isImportable(o.plan);
  Plan plan = planForTexts(o);
  const Inference inference(o, plan);
  const Module &m = *plan.planned;
  if (sampled) {
    requireGenerator(m);
    if (plan.model.empty())
      throw UserError(ErrorCode::NotBuiltYet,
                      "the plan was compiled from a module, which is sampled as it is evaluated",
                      "leave out --as-sampled");
  }
  if (plan.run.valData.empty() && o.data.empty())
    throw UserError(ErrorCode::FileMissing, fmt::format("{} names no validation data", sampled ? o.plan : "the plan"),
                    "give --data FILE, or set data.val in model.toml and compile again");
  const auto data =
      TrainStep::evalDataOf(plan, o.data.empty() ? plan.run.valData : o.data, o.data.empty() ? "data.val" : "--data");
  if (!o.data.empty())
    data->requireNarrowTokens();
  data->checkTokens();
  const int64_t each = evalBatch(m), steps = o.steps >= 0 ? o.steps : isImportable(o.plan) ? 0 : plan.run.evalSteps;
  Session session = sampled ? Session(withSlots(o, std::move(plan), 1), defaultCacheDir(), o.threads)
                            : inference.open(o, std::move(plan), kEvaluation);
  if (!sampled && !session.executor.has("eval"))
    throw UserError(ErrorCode::PlanDamaged, "the plan cannot be evaluated: it has no @eval",
                    "compile it again with `gptc compile`");
  std::string from = inference.load(session);
  auto start = std::chrono::steady_clock::now();
  const Evaluation found = sampled
                               ? Evaluation{.loss = scoredLoss(session.executor, *data,
                                                               steps > data->evalWindows() / each ? 0 : steps * each)}
                               : *evaluate(session.executor, *data, steps);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string measured = measuresInWords(found),
                    more = measured.empty() ? fmt::format("perplexity {:.2f}", std::exp(found.loss)) : measured;
  fmt::print("{} {}  {}  ({}{}, {:.1f} s)\n", o.data.empty() ? "val loss" : "loss",
             o.exact ? fmt::format("{}", found.loss) : fmt::format("{:.4f}", found.loss), more,
             o.data.empty() ? "" : o.data + ", ", from, seconds);
}

}  // namespace gptc
