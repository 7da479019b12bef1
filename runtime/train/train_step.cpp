#include "runtime/train/train_step.h"

#include "ir/facts.h"
#include "ir/folds.h"
#include "ir/mesh.h"
#include "runtime/data/data.h"
#include "runtime/data/labelled_data.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include <cstring>
#include <utility>

namespace gptc {

namespace {

/// The names of the labels of a plan's model; empty if it does not say them.
std::vector<std::string> labelNamesOf(const Plan &plan) {
  const auto described = plan.hf.find("config.json");
  if (described == plan.hf.end())
    return {};
  const auto config = parseJsonOrDiscard<nlohmann::json>(described->second);
  const auto &byNumber = part(config, "id2label");
  std::vector<std::string> names;
  for (size_t i = 0; byNumber.is_object() && i < byNumber.size(); ++i)
    if (const auto &name = part(byNumber, std::to_string(i).c_str()); name.is_string())
      names.push_back(name.get<std::string>());
  return int64_t(names.size()) == fact<&ModelFacts::labels>(*plan.planned) ? names : std::vector<std::string>();
}

/// `least`: tokens that a token file must have.
std::unique_ptr<TrainingData> open(const Plan &plan, const std::string &pattern, const std::string &key,
                                   int64_t least) {
  const Module &m = *plan.planned;
  const auto model = factsOf<ModelFacts>(m);
  if (!model.labels)
    return std::make_unique<TokenData>(pattern, key, model.vocabSize, model.blockSize, least, maskToken(m));
  return std::make_unique<LabelledData>(pattern, key,
                                        LabelledLimits{.vocab = model.vocabSize,
                                                       .types = model.tokenTypes,
                                                       .blockSize = model.blockSize,
                                                       .labels = model.labels,
                                                       .names = labelNamesOf(plan),
                                                       .problem = model.problemType});
}

}  // namespace

TrainStep::TrainStep(Session &session, const TrainingData &data)
    : syncEvery(fact<&ParallelFacts::syncEvery>(*session.plan.planned)), s(session), m(*s.plan.planned), data(data),
      seed(s.plan.run.seed), accumulate(fact<&BatchFacts::accumulate>(m)),
      whole(beginsWhole(m) ? fact<&ParallelFacts::compressFrom>(m) : 0),
      batch(*m.function(accumulate > 1 ? "accumulate" : "train_step")) {}

std::unique_ptr<TrainingData> TrainStep::dataOf(const Plan &plan) {
  return open(plan, plan.run.trainData, "data.train", fact<&ModelFacts::blockSize>(*plan.planned) + 1);
}

std::unique_ptr<TrainingData> TrainStep::evalDataOf(const Plan &plan, const std::string &pattern,
                                                    const std::string &key) {
  return open(plan, pattern, key, 2);
}

std::vector<std::string> TrainStep::functions() const {
  std::vector<std::string> names = {"train_step", "accumulate", "update", "train_step_whole", "update_whole", "outer"};
  for (const auto &f : m.functions)
    if (llvm::StringRef(f->name).starts_with("fold"))
      names.push_back(f->name);
  return names;
}

const char *TrainStep::lastFunction(int64_t done) const {
  if (done < whole)
    return accumulate > 1 ? "update_whole" : "train_step_whole";
  return accumulate > 1 ? "update" : "train_step";
}

int64_t TrainStep::global() const { return Mesh::of(m).data * accumulate * batch.size(); }

/// Loads the sequences of the micro-batch that begins with sequence `first` of the run, unless they are loaded already.
void TrainStep::load(int64_t first) {
  if (std::exchange(loaded, -1) != first)
    for (int64_t i = 0; i < batch.size(); ++i)
      data.trainingRow(seed, first + i, batch.row(i));
  loaded = first;
}

/// Loads while a step runs, if the executor is asynchronous. Errors are ignored: they occur again when that micro-batch
/// is due, after the running step has been counted.
void TrainStep::loadAhead(int64_t first) {
  try {
    load(first);
  } catch (const UserError &) {
  }
}

StepResult TrainStep::run(int64_t done, bool more) {
  const char *const last = lastFunction(done), *const perBatch = accumulate > 1 ? "accumulate" : last;
  const int64_t B = batch.size();
  const int64_t begin = done * global(), own = s.executor.index("data") * accumulate * B;
  const bool alone = syncEvery > 1;  // the mean is over this rank's part
  const float targets = float(data.targets(seed, alone ? begin + own : begin, alone ? accumulate * B : global()));
  for (int64_t k = 0; k < accumulate; ++k) {
    const int64_t sequence = own + k * B;
    load(begin + sequence);
    s.executor.run(perBatch, batch.args({&sequence, &targets}));
    if (const auto level = foldAfter(m, k))
      s.executor.run(nameOfFold(*level), {&targets});
  }
  if (accumulate > 1)
    s.executor.run(last, {&targets});
  if (more)
    loadAhead(begin + global() + own);
  StepResult r;
  float *to[] = {&r.loss, &r.gradNorm, &r.lr, &r.lossScale};
  for (size_t i = 0; i < m.function(last)->results().size(); ++i) {
    std::memcpy(to[i], s.executor.result(last, i), sizeof(float));
    *to[i] = plainNan(*to[i]);
  }
  return r;
}

}  // namespace gptc
