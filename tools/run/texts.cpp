#include "tools/run/texts.h"

#include "frontends/hf_folder.h"
#include "frontends/hf_text_form.h"
#include "ir/facts.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/serve/scored_loss.h"
#include "runtime/train/session.h"
#include "runtime/train/train_step.h"
#include "runtime/train/trainer.h"
#include "runtime/train/weights.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "tools/compiler/inference.h"
#include "tools/planner/cache_dir.h"
#include "tools/run/plans.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

namespace gptc {
namespace {

void warn(const std::string &text) { printError("warning: {}\n", text); }

/// A model without its training, for a command of one rank.
class Inference {
public:
  Inference(const RunOptions &o, const Plan &plan)
      : choice(!o.model.empty() ? WeightsChoice{WeightsChoice::tensors, 0, o.model}
               : o.checkpoint   ? WeightsChoice::parse(*o.checkpoint)
                                : WeightsChoice()),
        model(modelIdentity(*plan.planned)) {
    if (choice.kind != WeightsChoice::inFolder && choice.kind != WeightsChoice::tensors)
      requireFolder(o, plan);
    requireWeights(plan.run, choice);
  }
  Session open(const RunOptions &o, Plan plan, llvm::ArrayRef<llvm::StringRef> functions) const {
    return Session(inferencePlan(std::move(plan), functions, defaultCacheDir()), defaultCacheDir(), o.threads);
  }
  std::string load(Session &session) const { return loadForInference(session, model, choice, warn); }

private:
  const WeightsChoice choice;
  const ModelIdentity model;  // of the complete plan
};

/// Says how weights are kept, if it is not as they are computed with.
void noteWeights(const Module &m) {
  if (const std::string kept = weightsInWords(m); !kept.empty())
    printError("note: weights as {}\n", kept);
}

/// A plan that continues as many samples at once as there are slots. On CPUs all have slots, so that a sample does not
/// depend on their number; on a GPU one sequence is fastest by itself, unless its weights have few bits, which those
/// functions of a plan that also trains do not read.
Plan withSlots(Plan plan, int64_t slots) {
  const bool fewBits = fact<&PrecisionFacts::weights>(*plan.planned) != Weights::compute;
  if (plan.model.empty() || (slots == 1 && plan.target.isCuda() && !fewBits))
    return inferencePlan(std::move(plan), kSampling, defaultCacheDir());
  plan = servingPlan(std::move(plan), slots, defaultCacheDir());
  noteWeights(*plan.planned);
  if (slots > 1)
    printError("note: {}\n", slotsInWords(*plan.planned, slots));
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
  printError("note: {} with a context of {} tokens (--precision, --context)\n",
             nameOf(fact<&PrecisionFacts::compute>(*plan.planned)), fact<&ModelFacts::blockSize>(*plan.planned));
  if (const std::string note = roundingNote(imported, o.as); !note.empty())
    printError("note: {}\n", note);
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
  ModelTokens tokens = modelTokens(file, tokenizer);
  return {std::move(plan), inference, std::move(tokenizer), std::move(tokens), limits};
}

/// Loads the weights, and leaves out tokens that have no text.
void loadForTexts(const Continuing &c, Session &session, CompletionRequest &defaults) {
  c.inference.load(session);
  defaults.ends = c.tokens.ends;
  defaults.options.tokens = c.tokenizer.vocabSize();
  if (std::string note = tokensWithoutText(*session.plan.planned, c.tokenizer.vocabSize()); !note.empty())
    printError("note: {}\n", note);
}

/// The labels of a plan's model, which stand in its description.
HfLabels labelsOf(const Plan &plan) {
  if (!fact<&ModelFacts::labels>(*plan.planned))
    throw UserError(ErrorCode::Contradiction, fmt::format("the model of the plan {} tells no labels", plan.dir),
                    "train one that does: data.labels in model.toml");
  return readHfLabels(plan.dir + "/hf");
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
    noteWeights(*session->plan.planned);
    inference.load(*session);
  }

public:
  const Tokenizer tokenizer;
  std::optional<Session> session;
};

}  // namespace

void runSample(RunOptions o) {
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
  Continuing c = openForTexts(o);
  defaults.parseSpecial |= c.plan.run.parseSpecial;
  command.limits = c.limits;
  command.generator.copiesPrefixes = !c.plan.target.isCuda();
  checkCommand(command, c.tokenizer);
  const int64_t slots = slotsOfSample(o, c.plan);
  Session session(withSlots(std::move(c.plan), slots), defaultCacheDir(), o.threads);
  loadForTexts(c, session, defaults);
  samplePrompts(session.executor, c.tokenizer, command);
}

void runServe(RunOptions o) {
  ServeCommand &command = o.serve;
  if (command.modelName.empty())
    command.modelName = nameOfModel(o.plan);
  if (command.embeddings) {
    command.vectors.settle(isImportable(o.plan) ? o.plan : "");
    const Vectors v(o, command.vectors);
    return serveEmbeddings(v.session->executor, v.tokenizer, command);
  }
  Continuing c = openForTexts(o);
  if (c.plan.model.empty())
    throw UserError(ErrorCode::NotBuiltYet, "the plan was compiled from a module, which has no slots for many clients",
                    "compile a model.toml");
  command.limits = c.limits;
  command.generator.copiesPrefixes = !c.plan.target.isCuda();
  CompletionRequest defaults;
  defaults.options.maxTokens = 16;  // as OpenAI's; so is the temperature
  defaults.options.temperature = 1;
  Session session(withSlots(std::move(c.plan), command.slots), defaultCacheDir(), o.threads);
  loadForTexts(c, session, defaults);
  serve(session.executor, c.tokenizer, c.tokens, command, defaults);
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
  if (std::error_code e; std::filesystem::exists(std::filesystem::path(o.plan) / "planned.gir", e)) {
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
  noteWeights(*session.plan.planned);
  inference.load(session);
  classifyTexts(session.executor, tokenizer, labels, form, o.classify);
}

void runEval(RunOptions o) {
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
  Session session = sampled ? Session(withSlots(std::move(plan), 1), defaultCacheDir(), o.threads)
                            : inference.open(o, std::move(plan), kEvaluation);
  if (!sampled && !session.executor.has("eval"))
    throw UserError(ErrorCode::PlanDamaged, "the plan cannot be evaluated: it has no @eval",
                    "compile it again with `gptc compile`");
  std::string from = inference.load(session);
  auto start = std::chrono::steady_clock::now();
  const Evaluation found = sampled
                               ? Evaluation{.loss = scoredLoss(session.executor, *data,
                                                               steps > data->evalWindows() / each ? 0 : steps * each),
                                            .accuracy = std::nullopt}
                               : *evaluate(session.executor, *data, steps);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string more = found.accuracy ? fmt::format("accuracy {:.4f}", *found.accuracy)
                                          : fmt::format("perplexity {:.2f}", std::exp(found.loss));
  fmt::print("{} {:.4f}  {}  ({}{}, {:.1f} s)\n", o.data.empty() ? "val loss" : "loss", found.loss, more,
             o.data.empty() ? "" : o.data + ", ", from, seconds);
}

}  // namespace gptc
