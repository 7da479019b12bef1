#include "runtime/train/trainer.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/communicator.h"
#include "runtime/device/profile.h"
#include "runtime/launch/pulse.h"
#include "runtime/serve/sample.h"
#include "runtime/train/certificate.h"
#include "runtime/train/metrics.h"
#include "runtime/train/rank_times.h"
#include "runtime/train/run_folder.h"
#include "runtime/train/stop_signals.h"
#include "runtime/train/tensorboard.h"
#include "runtime/train/train_step.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

namespace gptc {
namespace fs = std::filesystem;

namespace {

class Trainer {
public:
  Trainer(Session &s, const TrainOptions &o)
      : s(s), run(s.plan.run), options(o), m(*s.plan.planned), allRanks(s.executor.ranks),
        target(o.steps >= 0 ? o.steps : run.steps), progress(o.out, target), store(run.outDir),
        data(TrainStep::dataOf(s.plan)), steps(s, *data), signals(o.answersStops) {
    if (o.check)
      checked.emplace(s.executor);
    if (first())
      lock.emplace(run.outDir);
    if (!run.valData.empty())
      val = TrainStep::evalDataOf(s.plan, run.valData, "data.val");
    if (o.hashesData)
      hasher.emplace(*data, run.tokenizer, o.cacheDir);
  }

  void go() {
    begin();
    if (step >= target && !needsEvaluation()) {
      progress.say(fmt::format("the run in {} is complete: {} steps", run.outDir, step));
      return;
    }
    try {
      loop();
    } catch (const UserError &e) {
      progress.end();
      // Report the first bad token of the data, whichever rank met one first.
      if (!allRanks && !dataPrint && !dataFailed && e.diagnostics[0].code == ErrorCode::TokenOutOfRange)
        settleData();
      // Between two steps the state is good, whatever went wrong with data or log. The other ranks, if any, are
      // elsewhere then, unless the loss itself is bad, which is that of all.
      const bool bad = e.diagnostics[0].code == ErrorCode::NonFinite;
      // A step of compressed gradients that is taken back has changed what ranks keep of them.
      const bool changed = bad && compressesGradients(*s.plan.planned);
      if (!saveFailed && !dataFailed && (!allRanks || (together() && bad)))
        try {
          if (step > 0 && step != saved && steps.isShared(step) && !changed)
            save(true, 0);  // without pruning: an older checkpoint may help to find the error
          else
            finishSaving();
        } catch (const UserError &) {
        }
      throw;
    }
    GPTC_CHECK(s.executor.intact(), "something wrote past the end of the arena");
  }

private:
  Session &s;
  const RunSettings &run;
  const TrainOptions &options;
  const Module &m;
  Communicator *const allRanks;  // all ranks; null if this is the only one
  const int64_t target;
  ProgressLine progress;
  std::optional<RunLock> lock;  // on the first rank, the only one that writes in the run's folder
  CheckpointStore store;
  std::optional<CheckpointSaver> saver;
  const std::unique_ptr<TrainingData> data;
  TrainStep steps;
  std::unique_ptr<TrainingData> val;  // null: there is none
  std::optional<MetricsLog> log;
  std::optional<EventFile> events;
  std::optional<CertificateLog> certificate;  // on the first rank, if the run has one
  bool certificateIsFull = false;
  StopSignals signals;
  std::optional<DataHasher> hasher;
  std::optional<DataPrint> dataPrint;  // fingerprint of the data, once all hashing ranks have finished
  bool dataFailed = false;
  std::vector<std::string> earlierPlans;  // CheckpointInfo's
  int64_t step = 0;                       // optimizer steps done
  int64_t saved = -1;                     // step of the last checkpoint, which may still be in progress
  std::optional<CheckedKernels> checked;
  Profile profile;
  int64_t profiledSteps = 0;
  bool watched = false;  // the kernels of the last step were observed
  Trace trace;
  std::optional<Utilization> utilization;  // on the first rank, whose peak counts for all
  int64_t evaluated = 0;                   // step of the last evaluation
  double valLoss = NAN;                    // its result, if this process has computed it
  int64_t skippedApart = 0;                // steps since the last outer step that this rank has skipped
  bool saveFailed = false, saidOfLinks = false;
  std::vector<int32_t> prompt;  // for samples; empty: no samples
  // Since the last line of the log:
  double trainNs = 0;
  int64_t trainSteps = 0;
  int64_t startedAt = 0, startStep = 0, shownAt = 0;

  int64_t rank() const { return allRanks ? allRanks->rank : 0; }
  int64_t world() const { return allRanks ? allRanks->world : 1; }
  bool first() const { return rank() == 0; }
  /// Whether all ranks do every step together, so that they see the same results.
  bool together() const { return steps.syncEvery == 1; }

  /// The first rank's value, on all ranks.
  int64_t agreed(int64_t mine) const {
    if (allRanks)
      allRanks->run({{Collective::Kind::broadcast, &mine, &mine, 1, DType::i64, 0}}, SumOrder::fast);
    return mine;
  }
  /// Called between steps, by all ranks: whether any was asked to stop, because all end with the same step. Also
  /// completes a checkpoint that all ranks have written, and compares their fingerprints of the data.
  bool stopping() {
    int64_t asked[] = {StopSignals::asked() || progress.closed(), !written(), hasher && !dataPrint && !hasher->ended()};
    if (allRanks)
      allRanks->run({{Collective::Kind::all_reduce, asked, asked, std::size(asked), DType::i64, 0}}, SumOrder::fast);
    if (!asked[1])
      saver->proceed();
    if (!asked[2])
      settleData();
    return asked[0] != 0;
  }

  /// Waits for the data's fingerprint, which must be equal on all machines. All ranks must call it together.
  void settleData() {
    if (dataPrint)
      return;
    constexpr int64_t takesLong = int64_t(1) << 30;
    const Pulse::Busy busy("hashing the training data");
    dataFailed = true;
    if (hasher && !hasher->ended() && hasher->bytesToHash() >= takesLong)
      progress.say(fmt::format("hashing the training data, {}", formatBytes(double(hasher->bytesToHash()))));
    DataPrint mine = hasher ? hasher->print() : DataPrint();
    if (allRanks) {
      std::array<char, 64> own{};
      const std::string digits = hasher ? DataPrint{mine.files, ""}.str() : "";
      std::copy(digits.begin(), digits.end(), own.begin());
      std::vector<std::array<char, 64>> all(world());
      allRanks->run({{Collective::Kind::all_gather, own.data(), all.data(), sizeof own / sizeof(uint32_t), DType::u32}},
                    SumOrder::fast);
      if (hasher && own != all[0])
        throw UserError(ErrorCode::RanksDiffer,
                        fmt::format("rank {} finds other training data in {} than rank 0", rank(), run.trainData),
                        "copy the same files to all machines, under the same names");
    }
    dataFailed = false;
    dataPrint = std::move(mine);
  }

  /// Requires the data that the checkpoint was trained on, before the data is used.
  void compareData(const CheckpointInfo &info) {
    settleData();
    if (!first())
      return;
    std::string difference;
    if (info.data.known()) {
      difference = differenceOf(info.data, *dataPrint, data->paths(), run.tokenizer);
    } else {
      progress.say("note: the checkpoint, of an earlier version, knows samples of its training data: only those are "
                   "compared");
      if (info.dataFingerprint != data->sampledFingerprint())
        difference = run.trainData + " has other tokens";
      else if (const size_t files = data->fileCount(); files > 1 && data->firstToken(files - 1) > 0)
        difference = run.trainData + " has several files, whose windows come in another order than then";
    }
    if (difference.empty())
      return;
    if (!options.allowChangedData)
      throw UserError(
          ErrorCode::DataInvalid, fmt::format("the training data is not that of {}: {}", info.dir, difference),
          "restore it, or go on with what is there by --allow-changed-data, or start over by --resume never");
    progress.say(fmt::format("warning: the training data is not that of the checkpoint: {}", difference));
  }

  /// Starts from scratch or from a checkpoint. Afterwards state, step and log agree.
  void begin() {
    // Do first what may show the plan to be wrong, then what changes files.
    const bool isFast = fact<&ParallelFacts::reduceOrder>(m) == ReduceOrder::fast;
    if (options.certifyEvery > 0 &&
        (Mesh::of(m).tensor > 1 || (allRanks && isFast) || !together() || compressesGradients(m)))
      throw UserError(ErrorCode::NotBuiltYet, "--certify: one rank cannot replay this plan",
                      fmt::format("{} be certified", kReplayable));
    if (!steps.isShared(target))
      throw UserError(ErrorCode::Usage,
                      fmt::format("--steps {} ends between two outer steps, which are {} steps apart "
                                  "(parallel.sync_every)",
                                  target, steps.syncEvery),
                      fmt::format("--steps {} works", steps.nextShared(target)));
    const std::vector<std::string> names = steps.functions();
    if (hasher) {
      hasher->begin();
      if (hasher->ended())
        hasher->print();  // finds bad tokens
    }
    std::vector<llvm::StringRef> needed(names.begin(), names.end());
    if (val)
      needed.push_back("eval");
    s.executor.prepare(needed);
    if (val)
      val->checkTokens();
    if (options.codec && run.sampleEvery > 0) {
      prompt = encodePrompt();
      if (std::string note = tokensWithoutText(m, options.codec->vocabSize()); !note.empty())
        progress.say("note: " + note);
    }
    if (const std::string text = data->note(); !text.empty() && step < target)
      progress.say("note: " + text);
    const LrSchedule schedule = fact<&OptimizerFacts::schedule>(m);
    if (target > run.steps && schedule != LrSchedule::constant && schedule != LrSchedule::inverse_sqrt)
      progress.say(fmt::format("warning: --steps {} goes beyond the {} steps of the plan, where the learning rate's "
                               "schedule ends",
                               target, run.steps));
    if (first()) {
      store.cleanUp();
      if (options.resume == Resume::never)
        if (const std::string old = setAside(run.outDir); !old.empty())
          progress.say(fmt::format("kept the earlier run in {}", old));
    }
    if (allRanks)
      requireOneFolder();
    std::optional<CheckpointInfo> info;
    if (options.resume != Resume::never)
      info = store.loadNewest(
          s.executor, modelIdentity(m), false, [&](const std::string &w) { progress.say("warning: " + w); },
          options.resumeAtMost);
    if (!info && options.resume == Resume::must)
      throw UserError(ErrorCode::FileMissing, fmt::format("there is no checkpoint under {}", run.outDir),
                      "start the run without --resume must");
    if (info) {
      step = saved = info->step;
      earlierPlans = info->plansBefore(s.plan.hash);
      if (first())
        store.setAsideBeyond(step);
      if (first() && step >= target)
        store.prune(run.checkpointKeep, info->ownPlans());  // needed if the run was killed between its last save and
                                                            // pruning
      progress.say(fmt::format("resumed from {}", info->dir));
      for (const std::string &note : info->notes)
        progress.say("note: " + note);
      if (info->planHash != s.plan.hash && (info->results.empty() || info->results != resultIdentity(s.plan)))
        progress.say("warning: the checkpoint is from another plan of this model; from here on the bits may differ");
      if (step < target)
        compareData(*info);
    } else {
      initializeStates(s.executor, run.seed);
      if (run.initFrom != "scratch")
        for (const std::string &note :
             beginWithWeights(s.executor, llvm::StringRef(run.initFrom).split(':').second.str(), modelIdentity(m)))
          progress.say("note: " + note);
    }
    if (first())
      sayOfLinks(store.updateLinks());
    saver.emplace(s.executor, store, savesBeside(), s.plan.hf);
    if (first())
      log.emplace(run.outDir, step);
    evaluated = agreed(log ? log->lastEvaluation() : 0);
    openCertificate();
    if (first() && run.tensorboard)
      events.emplace(run.outDir + "/events");
    if (first()) {
      const std::string compute(nameOf(fact<&PrecisionFacts::compute>(m)));
      utilization.emplace(run.mfuPeak, s.executor.sheetPeak(compute), s.executor.peak(compute), compute);
      if (const std::string text = utilization->describe(); !text.empty() && step < target)
        progress.say(text);
    }
  }

  void openCertificate() {
    const std::string folder = Certificate::folder(run.outDir);
    std::error_code e;
    if (first() && (options.certifyEvery > 0 || fs::exists(folder, e)))
      certificate.emplace(folder, s.plan, step);
  }

  /// Requires that all ranks see one run folder: the first writes a unique number, and each other rank must find it.
  void requireOneFolder() {
    int64_t number = 0;
    if (first()) {
      std::random_device random;
      number = agreed(int64_t(random()) << 31 | random());
      lock->mark(uint64_t(number));
    } else {
      number = agreed(0);
    }
    allRanks->barrier();
    constexpr int kTries = 500;  // network file systems need a moment
    const std::string path = RunLock::pathIn(run.outDir), want = fmt::format("{}\n", number);
    for (int tries = 0; !first() && readTextFile(path, 64).text != want; ++tries) {
      if (tries == kTries)
        throw UserError(
            ErrorCode::RanksDiffer,
            fmt::format("rank {} does not see the files that rank 0 writes in {}", rank(), run.outDir),
            "all ranks must see the same files: choose an out_dir on a file system that all machines share");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  /// Whether to save while steps go on. With "auto" it does if copies of everything saved fit into each machine's
  /// memory, however the ranks are placed.
  bool savesBeside() {
    if (run.checkpointEvery <= 0 || run.checkpointEvery >= target || run.checkpointAsync == "false")
      return false;  // a save at the end has no steps to run beside
    if (run.checkpointAsync == "true")
      return true;
    int64_t tooMuch = memoryToSave(m, true) * world() > availableMemory();
    if (allRanks)
      allRanks->run({{Collective::Kind::all_reduce, &tooMuch, &tooMuch, 1, DType::i64, 0}}, SumOrder::fast);
    if (tooMuch)
      progress.say(fmt::format("note: steps wait while a checkpoint is written: a copy would take {}",
                               formatBytes(double(memoryToSave(m, true)))));
    return !tooMuch;
  }

  /// Encodes the prompt of samples now, because an error in it should not appear after hours.
  std::vector<int32_t> encodePrompt() {
    try {
      std::vector<int32_t> tokens = options.codec->encode(run.samplePrompt);
      requireKnownPrompt(tokens, m);
      return tokens;
    } catch (UserError &e) {
      Diagnostic &d = e.diagnostics[0];
      d.message = "eval.sample_prompt: " + d.message;
      d.help = {"choose another prompt, or the tokenizer that the model's data was prepared with, and compile again"};
      throw UserError(e.diagnostics);
    }
  }

  /// Whether something with this period is due. It is always due at the end of the run, but not at a pause by --steps,
  /// so that a run in parts has the log of an uninterrupted one.
  bool due(int64_t every) const {
    return (step == target && target >= run.steps) || (every > 0 && step > 0 && step % every == 0);
  }
  /// Includes an evaluation that a stop or a kill prevented.
  bool needsEvaluation() const {
    return val && step > 0 && steps.isShared(step) && due(run.evalEvery) && evaluated < step;
  }

  void loop() {
    startedAt = monotonicNow();
    startStep = step;
    std::optional<RankTimes> times;
    if (allRanks && !s.plan.target.isCuda())  // it cannot measure collectives on GPUs
      times.emplace(*allRanks, std::vector{s.executor.dataRanks, s.executor.tensorRanks});
    Pulse::get().step(step);
    int skipped = 0;
    bool stop = false;
    if (!steps.isShared(step))
      signals.inStep(steps.nextShared(step));
    for (;;) {
      if (steps.isShared(step)) {
        signals.after(step);
        stop = stopping();
        if (needsEvaluation() && !stop) {
          evaluateNow();
          // Given up for a stop, which must come before the next step: behind it nobody would evaluate this one.
          stop = evaluated < step && stopping();
        }
        if (!prompt.empty() && step > startStep && step % run.sampleEvery == 0 && !stop)
          printSample();
        const bool last = step >= target || stop;
        if (step != saved && (due(run.checkpointEvery) || last))
          save(last, run.checkpointKeep);
        if (last)
          break;
        signals.inStep(steps.nextShared(step));
      }
      SmallStates before(s.executor);
      std::optional<CertifyingStep> certifying;
      if (options.certifyEvery > 0 && ((step + 1) % options.certifyEvery == 0 || step + 1 == target))
        certifying.emplace(s.executor, step + 1, !isTraced(step + 1));
      const int64_t begin = monotonicNow();
      StepResult r = times ? times->step([&] { return runStep(); }) : runStep();
      const int64_t took = monotonicNow() - begin;
      trainNs += took;
      ++trainSteps;
      keep(took);
      ++step;
      if (r.finite())
        skipped = 0;
      else if (r.overflowed())
        progress.say(fmt::format("step {}: gradients overflow at a loss scale of {}; halved, the step changes nothing",
                                 step, r.lossScale));
      else
        diverged(r, before, ++skipped);
      if (!together() && steps.isShared(step))
        synchronize(times);
      // Only behind the outer step, without which the step must not be saved.
      if (const std::string found = firstFound(); r.finite() && !found.empty())
        hidden(found);
      if (certifying)
        certify(certifying->end(r));
      Pulse::get().step(step);
      report(r);
      // Only after the step has been counted: if this fails, states and step must agree.
      if (isTraced(step) && (!isTraced(step + 1) || step == target || (StopSignals::asked() && steps.isShared(step))))
        trace.write(fmt::format("{}/trace{}.json", run.outDir, first() ? "" : fmt::format("-{}", rank())));
    }
    finishSaving();
    progress.end();
    if (times && step > startStep)
      progress.say(times->report());
    if (const std::string how = fmt::format("stopped at step {}; run again to go on", step); stop && step < target) {
      progress.say(how);
      if (progress.closed())
        std::fputs(fmt::format("nobody reads standard output any more: {}\n", how).c_str(), stderr);
    }
    if (profiledSteps > 0)
      progress.print(profile.table(profiledSteps));
  }

  /// Whether TrainOptions::watch observes the next step.
  bool isWatched() const { return options.watch && options.times && options.times->watches(step - startStep); }
  void keep(int64_t ns) {
    constexpr int64_t cold = 2;
    constexpr size_t most = 1 << 20;
    if (options.times && !watched && step - startStep >= cold && options.times->seconds.size() < most)
      options.times->seconds.push_back(float(1e-9 * double(ns)));
  }

  bool isTraced(int64_t number) const {
    return !checked && !run.traceSteps.empty() && number >= run.traceSteps.front() && number <= run.traceSteps.back();
  }

  void evaluateNow() {
    const Pulse::Paced paced("evaluating");
    s.executor.observer = observing();
    // Several ranks complete it together and stop afterwards.
    const std::optional<Evaluation> found =
        evaluate(s.executor, *val, run.evalSteps, [&] { return !allRanks && StopSignals::asked(); });
    s.executor.observer = nullptr;
    if (const std::string bad = firstFound(); !bad.empty())
      hidden(bad);
    if (!found)
      return;
    evaluated = step;
    valLoss = found->loss;
    if (log)
      log->evaluation(step, valLoss, found->measures);
    // For a run that was stopped before it could evaluate.
    if (step == saved && first() && std::isfinite(valLoss)) {
      store.noteValidation(step, valLoss);
      sayOfLinks(store.updateLinks());
    }
    if (events)
      events->scalars(step, {{"val_loss", float(valLoss)}});
    for (const Measure &measure : found->measures)
      if (events)
        events->scalars(step, {{"val_" + measure.name, float(measure.value)}});
    const std::string more = measuresInWords(*found);
    progress.say(fmt::format("step {}  val loss {:.4f}{}{}", step, valLoss, more.empty() ? "" : "  ", more));
  }

  void report(const StepResult &r) {
    constexpr int64_t kRefresh = 100'000'000;  // nanoseconds between two updates of the live line
    const bool logged = step == 1 || due(run.logEvery), visible = logged || step == target;
    const int64_t at = monotonicNow();
    if (!visible && !(progress.live() && at - shownAt > kRefresh))
      return;
    StepMetrics metrics{step, r.loss, r.lr, r.gradNorm, trainNs / trainSteps / 1e6, 0, 0, r.lossScale};
    metrics.tokensPerSecond = double(steps.tokens()) / (metrics.ms / 1e3);
    if (utilization) {
      const Utilization::Shares shares = utilization->at(flopsPerToken(m) * metrics.tokensPerSecond / double(world()),
                                                         [&](const auto &text) { progress.say(text); });
      metrics.mfu = shares.mfu, metrics.mfuMeasured = shares.measured;
      metrics.mfuOf = utilization->of();
    }
    if (logged) {
      if (log)
        log->step(metrics);
      if (events) {
        events->scalars(step, {{"loss", r.loss},
                               {"lr", r.lr},
                               {"grad_norm", r.gradNorm},
                               {"tokens_per_s", float(metrics.tokensPerSecond)},
                               {"mfu", float(metrics.mfu)}});
        if (std::isfinite(metrics.mfuMeasured))
          events->scalars(step, {{"mfu_measured", float(metrics.mfuMeasured)}});
      }
      trainNs = trainSteps = 0;
    }
    const double msPerStep = (at - startedAt) / 1e6 / (step - startStep);  // including evaluations and checkpoints
    progress.show(metrics, msPerStep * (target - step), residentMemory(), visible);
    shownAt = at;
  }

  /// Sets the observer of kernels of a step, if it is to have one.
  void observe(int64_t number) {
    if (!s.executor.observer)
      s.executor.observer = observing();
    if (!s.executor.observer)  // a traced step is not part of the profile
      s.executor.observer = isTraced(number)  ? static_cast<KernelObserver *>(&trace)
                            : options.profile ? &profile
                                              : nullptr;
  }

  /// Makes the parameters of all ranks equal again. The time is the last step's.
  void synchronize(std::optional<RankTimes> &times) {
    const int64_t begin = monotonicNow();
    observe(step);
    RunTimes *const kept = s.executor.observer ? nullptr : options.times;
    if (kept && kept->watchesOuter())
      s.executor.observer = options.watchOuter;
    times ? times->beside([&] { steps.synchronize(); }) : steps.synchronize();
    if (kept)
      kept->addOuter(s.executor.observer, 1e-9 * double(monotonicNow() - begin));
    s.executor.observer = nullptr;
    gatherSkips();
    trainNs += double(monotonicNow() - begin);
  }
  /// Has the first rank say what each other has skipped since the last outer step. All ranks must call it together.
  void gatherSkips() {
    if (!allRanks || run.onNonfinite != "skip")
      return;
    std::vector<int64_t> skips(world());
    allRanks->run({{Collective::Kind::all_gather, &skippedApart, skips.data(), 1, DType::i64}}, SumOrder::fast);
    skippedApart = 0;
    for (size_t r = 1; first() && r < skips.size(); ++r)
      if (skips[r] > 0)
        progress.say(fmt::format("step {}: rank {} has skipped {} step{} since the last outer step: loss or gradient "
                                 "norm not finite",
                                 step, r, skips[r], skips[r] == 1 ? "" : "s"));
  }

  StepResult runStep() {
    observe(step + 1);
    if (!s.executor.observer && isWatched()) {
      s.executor.observer = options.watch;
      ++options.times->watched;
    }
    watched = s.executor.observer;
    profiledSteps += s.executor.observer == &profile;
    const int64_t t0 = monotonicNow();
    const StepResult r = steps.run(step, step + 1 < target);
    if (s.executor.observer == &trace)
      trace.span(fmt::format("step {}", step + 1), t0, monotonicNow());
    s.executor.observer = nullptr;
    return r;
  }

  /// Handles a step whose loss or gradient is not finite. adamw has left parameters and moments unchanged.
  void diverged(const StepResult &r, const SmallStates &before, int inARow) {
    constexpr int kMostInARow = 100;
    std::string what = fmt::format("step {}: loss {}, gradient norm {}", step, r.loss, r.gradNorm);
    const std::string how = options.check ? "explain" : run.onNonfinite;
    if (how == "skip" && inARow < kMostInARow) {
      progress.say(what + "; skipped");
      ++skippedApart;
      return;
    }
    if (how == "skip")
      what += fmt::format("; {} steps in a row", inARow);
    before.restore();
    --step;
    if (how == "explain") {
      std::string first = explain();
      before.restore();
      what += first.empty() ? "; replayed, every result is finite" : "; the first value that is not finite: " + first;
    }
    throw UserError(ErrorCode::NonFinite, what,
                    "lower optimizer.lr, raise warmup_steps, set train.grad_clip; or go on from an earlier checkpoint "
                    "by removing the newest");
  }

  /// Adds a step to the run's certificate. All ranks must call it together.
  void certify(const CertifiedStep &certified) {
    settleData();
    if (!certificate || certificateIsFull)
      return;
    certificate->begin(*dataPrint);
    certificateIsFull = !certificate->add(certified);
    if (certificateIsFull)
      progress.say(fmt::format("warning: step {} and later ones are not certified: the certificate is too long", step));
  }

  /// The observer of all kernels; null if there is none.
  KernelObserver *observing() { return checked ? &*checked : nullptr; }
  /// The first non-finite value since the last call; "" if there is none. All ranks must call it together, unless outer
  /// steps are their only meetings: each then tells of itself.
  std::string firstFound() {
    if (!checked)
      return "";
    const std::string text = ofEarliest(checked->first.empty() ? INT64_MAX : checked->before, checked->first);
    checked->first.clear();
    checked->before = 0;
    return text;
  }

  /// Reports a non-finite value that does not show in the loss.
  [[noreturn]] void hidden(const std::string &found) {
    throw UserError(ErrorCode::NonFinite, fmt::format("step {}: a value that is not finite: {}", step, found),
                    "the loss may be good all the same: without --check the run goes on");
  }

  /// Runs the step again from the same state and scans every result. Ranks that do every step together run the same
  /// kernels, so the earliest finding of any is the origin; with outer steps a rank replays its own step.
  std::string explain() {
    Pulse::Busy busy("looking for the first value that is not finite");
    constexpr int64_t never = INT64_MAX;
    int64_t place = never;
    std::string text;
    for (size_t i = 0; i < m.states.size() && place == never; ++i)
      if (const State &state = *m.states[i]; kindOf(state) == StateKind::param)
        if (std::string at = firstNonFinite(state.type, s.executor.view(state, StateAccess::read).data); !at.empty())
          place = int64_t(i), text = fmt::format("parameter {} {} (before the step)", state.name, at);
    if (text = ofEarliest(place, text); !text.empty())
      return text;
    NonFiniteScan scan;
    s.executor.observer = &scan;
    runStep();
    s.executor.observer = nullptr;
    return ofEarliest(scan.first.empty() ? never : scan.before, scan.first);
  }

  /// The text, with its rank, of the rank with the least `place`; "" if no rank has any. Of ranks that do not see the
  /// same results, this one's.
  std::string ofEarliest(int64_t place, const std::string &text) {
    if (!allRanks || !together())
      return text.empty() || !allRanks ? text : fmt::format("{}, on rank {}", text, rank());
    std::vector<int64_t> places(world());
    allRanks->run({{Collective::Kind::all_gather, &place, places.data(), 1, DType::i64}}, SumOrder::fast);
    const auto least = std::min_element(places.begin(), places.end());
    if (*least == INT64_MAX)
      return "";
    std::array<char, 256> words{};  // of the rank with the least place
    std::memcpy(words.data(), text.data(), std::min(text.size(), words.size() - 1));
    const int root = int(least - places.begin());
    allRanks->run(
        {{Collective::Kind::broadcast, words.data(), words.data(), words.size() / sizeof(int64_t), DType::i64, root}},
        SumOrder::fast);
    return fmt::format("{}, on rank {}", words.data(), root);
  }

  /// Runs a function that saves. A failed save leaves the states intact, but a second attempt would fail too.
  template <typename F> auto saving(F f) {
    saveFailed = true;
    auto result = f();
    saveFailed = false;
    sayOfLinks(saver->takeProblemOfLinks());
    return result;
  }
  /// A run needs no links: what keeps them from being made is said once.
  void sayOfLinks(const std::string &problem) {
    if (problem.empty() || saidOfLinks)
      return;
    saidOfLinks = true;
    progress.say("note: without links to the newest and the best checkpoint: " + problem);
  }
  void save(bool wait, int64_t keep) {
    const Pulse::Paced paced(Pulse::saving);
    settleData();
    if (certificate)
      certificate->begin(*dataPrint);
    saving([&] {
      CheckpointInfo info{step, s.plan.hash, modelIdentity(m), dataPrint->str(), resultIdentity(s.plan),
                          "",   {},          earlierPlans};
      info.data = *dataPrint;
      if (evaluated == step)
        info.valLoss = valLoss;
      wait ? saver->save(info, keep) : saver->begin(info, keep);
      return 0;
    });
    saved = step;
  }
  bool written() {
    return saving([&] { return saver->written(); });
  }
  void finishSaving() {
    const Pulse::Paced paced(Pulse::saving);
    saving([&] { return saver->finish(), 0; });
  }

  void printSample() {
    Pulse::Busy busy("writing a sample");
    progress.end();
    SampleOptions o;
    o.maxTokens = run.sampleTokens;
    o.seed = run.seed;
    o.tokens = options.codec->vocabSize();
    std::string text = run.samplePrompt;
    sampleTokens(s.executor, prompt, o, [&](int32_t t) {
      text += options.codec->push(t);
      return t != options.codec->endOfText() && (allRanks || !StopSignals::asked());
    });
    progress.say(fmt::format("step {}  sample: {}", step, text + options.codec->finish()));
  }
};

}  // namespace

int64_t evalBatch(const Module &m) {
  const Function *eval = m.function("eval");
  return eval ? fact<&BatchFacts::accumulate>(m) * eval->body.args[0]->type.dim(0) * Mesh::of(m).data : 1;
}

std::optional<Evaluation> evaluate(Executor &executor, const TrainingData &data, int64_t batches,
                                   const std::function<bool()> &stop) {
  const Function &eval = *executor.planned().function("eval");
  SequenceBatch batch(eval);
  const int64_t B = batch.size(), every = data.evalWindows();
  // Batches are global, and losses are added target by target, so the micro-batch size changes no bit.
  const int64_t global = evalBatch(executor.planned());
  const int64_t windows = batches > 0 && batches <= every / global ? batches * global : every;
  const std::vector<Type> results = eval.results();
  const Type &losses = results[0];
  std::optional<LabelMeasures> measures;
  if (const auto model = factsOf<ModelFacts>(executor.planned()); results.size() > 1)
    measures.emplace(model.problemType, model.labels);
  Communicator *const dataRanks = executor.along("data");
  const int64_t ranks = dataRanks ? dataRanks->world : 1, rank = dataRanks ? dataRanks->rank : 0;
  const size_t each = losses.paddedElements();
  std::vector<float> all(dataRanks ? ranks * each : 0);
  using Record = LabelMeasures::Record;
  std::vector<Record> own(measures ? size_t(B) : 0), records(own.size() * size_t(ranks));
  double sum = 0, targets = 0;
  // Ranks take micro-batches in turn, and all add all losses in one order.
  for (int64_t w = 0; w < windows; w += ranks * B) {
    for (int64_t b = 0; b < B; ++b)
      if (const int64_t i = w + rank * B + b; i < windows)
        targets += double(data.evalRow(data.spreadWindow(i, windows), batch.row(b)));
      else
        data.emptyRow(batch.row(b));
    executor.run("eval", batch.args());
    if (measures) {
      const auto *logits = static_cast<const float *>(executor.result("eval", 1));
      for (int64_t b = 0; b < B; ++b)
        own[size_t(b)] = measures->recordOf(logits + b * results[1].padded(2), batch.row(b));
    }
    const float *nll = static_cast<const float *>(executor.result("eval", 0));
    Pulse::get().goesOn();
    if (dataRanks) {
      dataRanks->run({{Collective::Kind::all_gather, nll, all.data(), each, DType::f32}}, SumOrder::fast);
      nll = all.data();
      if (measures)
        dataRanks->run(
            {{Collective::Kind::all_gather, own.data(), records.data(), own.size() * sizeof(Record) / 4, DType::f32}},
            SumOrder::fast);
    } else {
      records = own;
    }
    for (int64_t b = 0; b < std::min(ranks * B, windows - w); ++b) {
      for (int64_t i = 0; i < losses.dim(1); ++i)
        sum += nll[b * losses.padded(1) + i];
      if (measures)
        measures->add(records[size_t(b)]);
    }
    if (stop && stop())
      return std::nullopt;
  }
  if (dataRanks)
    dataRanks->run({{Collective::Kind::all_reduce, &targets, &targets, 1, DType::f64}}, SumOrder::fast);
  Evaluation found{.loss = plainNan(sum / targets)};
  if (measures) {
    found.measures = measures->result();
    found.texts = measures->texts();
  }
  return found;
}

std::string measuresInWords(const Evaluation &found) {
  std::string words;
  for (const Measure &m : found.measures)
    words += fmt::format("{} {:.4f}  ", m.name, plainNan(m.value));
  return found.measures.empty() ? "" : fmt::format("{}of {} text{}", words, found.texts, found.texts == 1 ? "" : "s");
}

void train(Session &session, const TrainOptions &options) {
  Trainer(session, options).go();
  session.executor.leave();
}

}  // namespace gptc
