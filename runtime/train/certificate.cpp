#include "runtime/train/certificate.h"

#include "runtime/launch/pulse.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <unistd.h>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr int kSchema = 1;
constexpr size_t kLimit = size_t(1) << 30;  // bytes of a certificate
constexpr llvm::StringRef kSeal = R"(,"seal":")", kEnd = R"("})";

std::string folderOf(const std::string &outDir) { return outDir + "/certificate"; }
std::string stepsOf(const std::string &outDir) { return folderOf(outDir) + "/steps.jsonl"; }

std::string sealOf(const std::string &before, llvm::StringRef body) { return blake3(before + body.str()); }

json jsonOf(const CertifiedOrigin &o) {
  json files = json::array();
  for (const FilePrint &f : o.data.files)
    files.push_back({{"name", f.name}, {"tokens", f.tokens}, {"blake3", f.hash}});
  return {{"certificate", kSchema}, {"since", o.since},      {"plan", o.plan},
          {"results", o.results},   {"data_files", files},   {"tokenizer", o.data.tokenizer},
          {"version", GPTC_VERSION}};
}
CertifiedOrigin originOf(const json &j) {
  CertifiedOrigin o{j.at("since"), j.at("plan"), j.at("results"), {}};
  for (const json &f : j.at("data_files"))
    o.data.files.push_back({f.at("name"), f.at("tokens"), f.at("blake3")});
  o.data.tokenizer = j.at("tokenizer");
  return o;
}

json jsonOf(const CertifiedStep &s) {
  auto number = [](float v) { return std::isfinite(v) ? json(v) : json(); };
  return {{"step", s.step},     {"loss", number(s.loss)}, {"grad_norm", number(s.gradNorm)},
          {"before", s.before}, {"after", s.after},       {"kernels", s.kernels}};
}
CertifiedStep stepOf(const json &j) {
  auto number = [](const json &v) { return v.is_null() ? NAN : v.get<float>(); };
  return {j.at("step"),   number(j.at("loss")), number(j.at("grad_norm")), j.at("before"),
          j.at("after"),  j.at("kernels")};
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

/// Copies the files of a plan, unless the copy is there already.
void copyPlan(const Plan &plan, const std::string &to) {
  std::error_code e;
  if (fs::exists(to + "/manifest.json", e))
    return;
  AtomicDir dir(to);
  auto copyFiles = [&](const std::string &from, const std::string &into) {
    makeDirs(into);
    for (const auto &entry : fs::directory_iterator(from, e))
      if (entry.is_regular_file(e)) {
        const std::string name = entry.path().filename(), text = readInput(entry.path(), "the plan's file");
        SyncedFile file(into + "/" + name);
        file.write(text.data(), text.size());
        file.finish();
      }
  };
  copyFiles(plan.dir, dir.path());
  if (fs::is_directory(plan.dir + "/hf", e))
    copyFiles(plan.dir + "/hf", dir.path() + "/hf");
  dir.commit();
}

}  // namespace

CertifiedOrigin CertifiedOrigin::of(const Plan &plan, const DataPrint &data, int64_t since) {
  return {since, plan.hash, resultIdentity(plan), data};
}

std::string Certificate::planOf(const std::string &outDir, const std::string &hash) {
  return fmt::format("{}/plan-{}", folderOf(outDir), hash.substr(0, 12));
}

CertifyingStep::CertifyingStep(Executor &executor, int64_t step) : executor(executor), kernels(executor.threads()) {
  const Pulse::Busy busy("certifying a step");
  taken.step = step;
  taken.before = digestsOfStates(executor);
  if (!executor.ranks)
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

CertificateLog::CertificateLog(const std::string &outDir, const Plan &plan, const DataPrint &data, int64_t step)
    : path(stepsOf(outDir)) {
  makeDirs(folderOf(outDir));
  copyPlan(plan, Certificate::planOf(outDir, plan.hash));
  const FileText old = readTextFile(path, kLimit);
  std::string kept;
  llvm::StringRef rest = old.text;
  bool damaged = false;
  while (const std::optional<Line> line = nextLine(rest)) {
    const json content = contentOf(*line, seal);
    damaged = !content.is_object();
    const json &number = part(content, content.contains("step") ? "step" : "since");
    if (damaged || !number.is_number_integer() || number > step)
      break;
    kept += line->text.str() + "\n";
    seal = line->seal;
  }
  if (damaged) {
    std::error_code e;
    int n = 1;
    auto aside = [&] { return fmt::format("{}/steps-{}.jsonl", folderOf(outDir), n); };
    while (fs::exists(aside(), e))
      ++n;
    replaceFile(path, aside());
    kept = seal = "";
  }
  if (damaged || (old.ok && kept != old.text))
    writeFileAtomically(path, kept);
  fd = openAppending(path);
  std::string origin = jsonOf(CertifiedOrigin::of(plan, data, step)).dump();
  origin.pop_back();
  line(origin);
}

CertificateLog::~CertificateLog() {
  if (fd >= 0)
    ::close(fd);
}

void CertificateLog::line(const std::string &body) {
  seal = sealOf(seal, body);
  appendAll(fd, path, fmt::format("{}{}{}{}\n", body, kSeal.str(), seal, kEnd.str()));
}

void CertificateLog::add(const CertifiedStep &step) {
  std::string body = jsonOf(step).dump();
  body.pop_back();
  line(body);
}

Certificate Certificate::read(const std::string &outDir) {
  const std::string path = stepsOf(outDir);
  const FileText file = readTextFile(path, kLimit);
  if (!file.ok)
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no certificate in {}: {}", outDir, file.why),
                    "`gptrun PLAN --certify 10` writes one, or `gptc certify` afterwards");
  Certificate c;
  llvm::StringRef rest = file.text;
  std::string seal;
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
      } else {
        c.parts.at(c.parts.size() - 1).steps.push_back(stepOf(content));
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
