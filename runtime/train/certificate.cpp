#include "runtime/train/certificate.h"

#include "runtime/launch/pulse.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <unistd.h>
#include <utility>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr int kSchema = 1;
constexpr size_t kLimit = size_t(4) << 30;  // bytes of a certificate
constexpr llvm::StringRef kSeal = R"(,"seal":")", kEnd = R"("})";

std::string stepsIn(const std::string &folder) { return folder + "/steps.jsonl"; }
std::string manifestOf(const std::string &planFolder) { return planFolder + "/manifest.json"; }
std::string hashOfManifest(const std::string &planFolder) {
  return blake3(readInput(manifestOf(planFolder), "the plan's manifest"));
}

std::string sealOf(const std::string &before, llvm::StringRef body) { return blake3(before + body.str()); }

/// A number of steps.
int64_t stepsOf(const json &j) {
  const int64_t n = j.is_number_integer() ? j.get<int64_t>() : -1;
  if (n < 0 || n > int64_t(1) << 40)
    throw std::runtime_error("no number of steps");
  return n;
}

json jsonOf(const CertifiedOrigin &o) {
  return {{"certificate", kSchema},        {"since", o.since},       {"plan", o.plan},
          {"manifest", o.manifest},        {"results", o.results},   {"data_files", jsonOf(o.data.files)},
          {"tokenizer", o.data.tokenizer}, {"version", GPTC_VERSION}};
}
CertifiedOrigin originOf(const json &j) {
  CertifiedOrigin o{stepsOf(j.at("since")), j.at("plan"), j.at("manifest"), j.at("results"), {}};
  o.data.files = filePrintsOf(j.at("data_files"));
  o.data.tokenizer = j.at("tokenizer");
  return o;
}

/// Without what `before` repeats of the step before.
json jsonOf(const CertifiedStep &s, const StateDigests &last) {
  json j = {{"step", s.step}, {"loss", finiteOrNull<json>(s.loss)}, {"grad_norm", finiteOrNull<json>(s.gradNorm)}};
  if (s.before != last)
    j["before"] = s.before;
  j["after"] = s.after;
  j["kernels"] = s.kernels;
  return j;
}
CertifiedStep stepOf(const json &j, const StateDigests &last) {
  auto number = [](const json &v) { return v.is_null() ? NAN : v.get<float>(); };
  return {stepsOf(j.at("step")),
          number(j.at("loss")),
          number(j.at("grad_norm")),
          j.contains("before") ? j.at("before").get<StateDigests>() : last,
          j.at("after"),
          j.at("kernels")};
}

/// The text of an object without its "}". Names of files may be anything; JSON is UTF-8.
std::string bodyOf(const json &j) {
  std::string text = j.dump(-1, ' ', false, json::error_handler_t::replace);
  text.pop_back();
  return text;
}

/// A line of a certificate, taken apart.
struct Line {
  llvm::StringRef text, body;  // with and without seal; the body lacks its "}"
  std::string seal;
};

/// Takes the first line from `rest`. nullopt at its end, which may be an incomplete line.
std::optional<Line> nextLine(llvm::StringRef &rest) {
  const size_t end = rest.find('\n');
  if (end == llvm::StringRef::npos)
    return std::nullopt;
  Line line{rest.take_front(end), {}, {}};
  rest = rest.drop_front(end + 1);
  const auto [body, sealed] = line.text.rsplit(kSeal);
  line.body = body;
  if (sealed.ends_with(kEnd))
    line.seal = sealed.drop_back(kEnd.size()).str();
  return line;
}

/// The object of a line that follows one with the seal `before`; discarded if it is not as it was written.
json contentOf(const Line &line, const std::string &before) {
  if (line.seal.empty() || line.seal != sealOf(before, line.body))
    return json(json::value_t::discarded);
  return parseJsonOrDiscard<json>(line.text);
}

/// Copies the files of a plan, unless they are there, and makes sure that they are still those that were loaded.
void copyPlan(const Plan &plan, const std::string &to) {
  std::error_code e;
  auto isCopy = [&] {
    try {
      const Plan copy = loadPlan(to);
      return copy.hash == plan.hash && resultIdentity(copy) == resultIdentity(plan);
    } catch (const UserError &) {
      return false;
    }
  };
  if (!isCopy()) {
    AtomicDir dir(to);
    auto copyFiles = [&](const std::string &from, const std::string &into) {
      makeDirs(into);
      for (const auto &entry : fs::directory_iterator(from, e))
        if (entry.is_regular_file(e))
          writeSynced(into + "/" + entry.path().filename().string(), readInput(entry.path(), "the plan's file"));
    };
    copyFiles(plan.dir, dir.path());
    if (fs::is_directory(plan.dir + "/hf", e))
      copyFiles(plan.dir + "/hf", dir.path() + "/hf");
    dir.commit();
  }
  if (!isCopy())
    throw UserError(ErrorCode::PlanDamaged, fmt::format("{} has changed since the run began", plan.dir),
                    "start the run again");
}

}  // namespace

std::string Certificate::planOf(const std::string &folder, const CertifiedOrigin &origin) {
  return fmt::format("{}/plan-{}", folder, llvm::StringRef(origin.manifest).take_front(12).str());
}

Plan Certificate::loadPlanOf(const std::string &outDir, const CertifiedOrigin &origin) {
  const std::string folder = planOf(Certificate::folder(outDir), origin);
  Plan plan = loadPlan(folder);
  if (plan.hash != origin.plan || resultIdentity(plan) != origin.results || hashOfManifest(folder) != origin.manifest)
    throw UserError(ErrorCode::PlanDamaged, fmt::format("{} is not the plan that is certified", folder));
  return plan;
}

CertifyingStep::CertifyingStep(Executor &executor, int64_t step, bool withKernels)
    : executor(executor), kernels(executor.threads()) {
  const Pulse::Busy busy("certifying a step");
  taken.step = step;
  taken.before = digestsOfStates(executor);
  if (!executor.ranks && withKernels)
    executor.observer = &kernels;
}

void CertifyingStep::release() {
  if (executor.observer == &kernels)
    executor.observer = nullptr;
}

CertifiedStep CertifyingStep::end(const StepResult &result) {
  release();
  const Pulse::Busy busy("certifying a step");
  taken.loss = result.loss;
  taken.gradNorm = result.gradNorm;
  taken.kernels = kernels.all();
  taken.after = digestsOfStates(executor);
  return taken;
}

CertificateLog::CertificateLog(const std::string &folder, const Plan &plan, int64_t step)
    : path(stepsIn(folder)), origin{step, plan.hash, hashOfManifest(plan.dir), resultIdentity(plan), {}} {
  makeDirs(folder);
  copyPlan(plan, Certificate::planOf(folder, origin));
  const FileText old = readTextFile(path, kLimit);
  std::string kept;
  llvm::StringRef rest = old.text;
  bool damaged = false;
  while (const std::optional<Line> line = nextLine(rest)) {
    const json content = contentOf(*line, seal), &number = part(content, content.contains("step") ? "step" : "since");
    damaged = !content.is_object() || !number.is_number_integer();
    if (damaged || number > step)
      break;
    kept += line->text.str() + "\n";
    seal = line->seal;
  }
  std::error_code e;
  damaged |= !old.ok && fs::exists(path, e);
  if (damaged) {
    int n = 1;
    auto aside = [&] { return fmt::format("{}/steps-{}.jsonl", folder, n); };
    while (fs::exists(aside(), e))
      ++n;
    replaceFile(path, aside());
    kept = seal = "";
  }
  if (damaged || (old.ok && kept != old.text))
    writeFileAtomically(path, kept);
  bytes = kept.size();
}

CertificateLog::~CertificateLog() {
  if (fd >= 0)
    ::close(fd);
}

void CertificateLog::line(const std::string &body) {
  if (fd < 0)
    fd = openAppending(path);
  seal = sealOf(seal, body);
  const std::string text = fmt::format("{}{}{}{}\n", body, kSeal.str(), seal, kEnd.str());
  appendAll(fd, path, text);
  bytes += text.size();
}

void CertificateLog::begin(const DataPrint &data) {
  if (std::exchange(hasBegun, true))
    return;
  origin.data = data;
  line(bodyOf(jsonOf(origin)));
}

bool CertificateLog::add(const CertifiedStep &step) {
  GPTC_CHECK(hasBegun, "step {} of no origin", step.step);
  const std::string body = bodyOf(jsonOf(step, last));
  if (bytes + body.size() + 100 > kLimit)
    return false;
  line(body);
  last = step.after;
  return true;
}

Certificate Certificate::read(const std::string &outDir) {
  const std::string path = stepsIn(folder(outDir));
  const FileText file = readTextFile(path, kLimit);
  if (!file.ok)
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no certificate in {}: {}", outDir, file.why),
                    "`gptrun PLAN --certify 10` writes one, or `gptc certify` afterwards");
  Certificate c;
  llvm::StringRef rest = file.text;
  std::string seal;
  StateDigests last;
  for (int64_t number = 1; const std::optional<Line> line = nextLine(rest); ++number) {
    const json content = contentOf(*line, seal);
    if (!content.is_object()) {
      c.problem = fmt::format("line {} of {} is not what was written", number, path);
      return c;
    }
    seal = line->seal;
    try {
      if (content.contains("certificate")) {
        if (content.at("certificate") != kSchema)
          throw UserError(ErrorCode::NotBuiltYet, fmt::format("line {} of {} is of another version", number, path),
                          "verify it with the version of gptc that it names");
        c.parts.push_back({originOf(content), {}});
        last.clear();
      } else {
        Part &p = c.parts.at(c.parts.size() - 1);
        CertifiedStep step = stepOf(content, last);
        if (step.step <= (p.steps.empty() ? p.origin.since : p.steps.back().step))
          throw std::runtime_error("steps out of order");
        last = step.after;
        p.steps.push_back(std::move(step));
      }
    } catch (const std::exception &e) {
      if (dynamic_cast<const UserError *>(&e))
        throw;
      c.problem = fmt::format("line {} of {} cannot be read: {}", number, path, e.what());
      return c;
    }
  }
  if (c.parts.empty())
    c.problem = fmt::format("{} is empty", path);
  return c;
}

}  // namespace gptc
