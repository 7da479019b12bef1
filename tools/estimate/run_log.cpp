#include "tools/estimate/run_log.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "runtime/train/metrics.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/median.h"
#include "support/words.h"
#include "tools/estimate/expected.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <fcntl.h>
#include <unistd.h>

namespace gptc {

using json = nlohmann::ordered_json;

void ClassTimes::ran(const BoundKernel &kernel, int64_t begin, int64_t end) {
  seconds[classOf(*kernel.op)] += 1e-9 * double(end - begin);
}

namespace {

constexpr size_t leastSteps = 3;  // for a meaningful median

/// Seconds by class as JSON, without communication.
json kernelsOf(const std::map<KernelClass, double> &seconds) {
  json j = json::object();
  for (KernelClass c : kernelClasses)
    if (auto it = seconds.find(c); it != seconds.end() && c != KernelClass::communication)
      j[nameOf(c)] = it->second;
  return j;
}

}  // namespace

std::string forecastLine(const Session &session, int64_t nodes, const RunTimes &times, const ClassTimes &kernels,
                         const ClassTimes &outer) {
  if (times.seconds.size() < leastSteps)
    return "";
  const Plan &plan = session.plan;
  const Module &m = *plan.planned;
  const Mesh mesh = Mesh::of(m);
  const bool cuda = plan.target.isCuda();
  Target here = plan.target;
  if (!cuda)
    here.threads = session.host.threads;  // ranks of one machine share its cores
  const MachineRates rates = cuda ? ratesOf(here) : ratesOf(here, session.executor.peak("fp32").get().flops);
  const PlannedStep step = plannedStep(m, plan.target, rates);
  json predictedCommunication;
  double seconds = step.kernels();
  if (mesh.ranks() == 1) {
    predictedCommunication = 0.0;
  } else if (!cuda && nodes == 1) {
    const double sent = collectivesOnOneMachine(step, here, rates);
    predictedCommunication = sent;
    seconds += sent;
  }
  json measuredKernels, measuredCommunication;
  const int64_t syncEvery = fact<&ParallelFacts::syncEvery>(m);
  auto ofAStep = [&](int64_t outer) { return outer ? 1 / double(outer) / double(syncEvery) : 0; };  // of so many
  // What an outer step does is part of a step's kernels: without it they would be those of no step.
  if (times.watched > 0 && (syncEvery == 1 || times.outerWatched > 0)) {
    std::map<KernelClass, double> perStep;
    for (const auto &[kind, sum] : kernels.seconds)
      perStep[kind] += sum / double(times.watched);
    for (const auto &[kind, sum] : outer.seconds)
      perStep[kind] += sum * ofAStep(times.outerWatched);
    measuredKernels = kernelsOf(perStep);
    measuredCommunication = perStep[KernelClass::communication];
  }
  const double tokens = double(fact<&BatchFacts::microBatch>(m) * fact<&ModelFacts::blockSize>(m) *
                               fact<&BatchFacts::accumulate>(m) * mesh.data);
  std::vector<std::string> settings = plan.model;
  if (!settings.empty() && mesh.data > 1)  // "auto" was decided then
    settings.push_back(fmt::format("parallel.zero_stage={}", fact<&ParallelFacts::zeroStage>(m)));
  return json{{"schema", 1},
              {"time", timeNow()},
              {"plan", plan.hash},
              {"target", plan.target.name},
              {"cpu", plan.target.cpu},
              {"threads", session.host.threads},
              {"ranks", mesh.ranks()},
              {"nodes", nodes},
              {"tokens_per_step", tokens},
              {"steps", times.seconds.size()},
              {"predicted",
               {{"s_per_step", seconds},
                {"kernels", kernelsOf(step.seconds)},
                {"communication", predictedCommunication},
                {"bytes", int64_t(step.memory.arena())}}},
              {"measured",
               {{"s_per_step", medianOf(times.seconds) + times.outerSeconds * ofAStep(times.outer)},
                {"kernels", measuredKernels},
                {"communication", measuredCommunication},
                {"bytes", residentMemory()}}},
              {"settings", settings}}
      .dump();
}

bool appendForecast(const std::string &outDir, const std::string &line) {
  // Opening a pipe without a reader fails instead of blocking.
  const int fd =
      ::open((outDir + "/forecast.jsonl").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0)
    return false;
  const std::string text = line + "\n";
  const bool whole = ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  return ::close(fd) == 0 && whole;
}

std::vector<Observation> readForecasts(const std::string &file, const ClusterConfig &cluster) {
  std::vector<Observation> rows;
  const std::string text = readInput(file, "log of forecasts");
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(text).split(lines, '\n', -1, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string name = fmt::format("{}:{}", file, i + 1);
    auto damaged = [&](const std::string &why) {
      return UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", name, why),
                       "gptrun writes OUT_DIR/forecast.jsonl; take the line out");
    };
    Observation o;
    o.name = name;
    std::string target;
    try {
      const json j = parseJson<json>(lines[i].str());
      if (j.at("schema") != 1)
        throw damaged(fmt::format("schema {} is not known", j.at("schema").dump()));
      o.gpus = j.at("ranks");
      o.secondsPerStep = j.at("measured").at("s_per_step");
      o.settings = j.at("settings").get<std::vector<std::string>>();
      target = j.at("target");
    } catch (const json::exception &) {
      throw damaged("not a line of such a log");
    }
    if (o.gpus < 1 || o.gpus > 1 << 20 || !(o.secondsPerStep > 0) || !(o.secondsPerStep < 1e9))
      throw damaged(fmt::format("{} ranks and {} s per step cannot be", o.gpus, o.secondsPerStep));
    if (o.settings.empty())
      throw UserError(ErrorCode::Contradiction,
                      fmt::format("{}: that plan was compiled from a module, and no model description is known", name),
                      "take the line out");
    if ((target == "cpu") != cluster.device.isCpu)
      throw UserError(ErrorCode::Contradiction,
                      fmt::format("{} ran on {}, and {} describes {}", name, target == "cpu" ? "a CPU" : "a GPU",
                                  cluster.file, cluster.device.isCpu ? "CPUs" : "GPUs"),
                      "give the cluster file of the machines that ran it, or another log");
    rows.push_back(std::move(o));
  }
  return rows;
}

}  // namespace gptc
