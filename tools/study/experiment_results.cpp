#include "tools/study/experiment_results.h"

#include "runtime/train/metrics.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/median.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <numbers>
#include <tuple>
#include <unistd.h>

namespace gptc {

namespace {

constexpr size_t kMostBytes = size_t(1) << 30;

double numberOf(const nlohmann::json &j, const char *name) {
  const nlohmann::json &v = part(j, name);
  return v.is_number() ? v.get<double>() : NAN;
}

/// Calls `line` with each whole line, and returns what stands behind the last one.
template <class Line> llvm::StringRef eachLine(const std::string &text, Line line) {
  llvm::StringRef rest = text;
  for (size_t end; (end = rest.find('\n')) != llvm::StringRef::npos; rest = rest.drop_front(end + 1))
    line(rest.substr(0, end));
  return rest;
}

}  // namespace

nlohmann::ordered_json RunResult::json() const {
  using Json = nlohmann::ordered_json;
  return {{"name", name},
          {"variant", variant},
          {"seed", seed ? Json(*seed) : Json()},
          {"settings", settings},
          {"budget", budget},
          {"steps", steps},
          {"tokens", tokens},
          {"loss", finiteOrNull<Json>(loss)},
          {"val_loss", finiteOrNull<Json>(valLoss)},
          {"val_step", valStep >= 0 ? Json(valStep) : Json()},
          {"tokens_per_s", finiteOrNull<Json>(tokensPerSecond)},
          {"seconds", seconds},
          {"exit", exit},
          {"status", failed ? "failed" : "done"},
          {"error", failed ? Json{{"code", error.code.empty() ? Json() : Json(error.code)}, {"message", error.message}}
                           : Json()},
          {"fingerprint", fingerprint}};
}

RunResult RunResult::of(const nlohmann::json &j) {
  RunResult r;
  r.name = j.at("name").get<std::string>();
  r.variant = j.at("variant").get<std::string>();
  if (!j.at("seed").is_null())
    r.seed = j.at("seed").get<int64_t>();
  r.settings = j.at("settings").get<std::vector<std::string>>();
  r.budget = j.at("budget").get<std::string>();
  r.steps = j.at("steps").get<int64_t>();
  r.tokens = j.at("tokens").get<int64_t>();
  r.loss = numberOf(j, "loss");
  r.valLoss = numberOf(j, "val_loss");
  if (const nlohmann::json &step = j.at("val_step"); !step.is_null())
    r.valStep = step.get<int64_t>();
  r.tokensPerSecond = numberOf(j, "tokens_per_s");
  r.seconds = j.at("seconds").get<double>();
  r.exit = j.at("exit").get<int>();
  r.failed = j.at("status").get<std::string>() != "done";
  if (const nlohmann::json &e = j.at("error"); e.is_object()) {
    if (const nlohmann::json &code = e.at("code"); code.is_string())
      r.error.code = code.get<std::string>();
    r.error.message = e.at("message").get<std::string>();
  }
  r.fingerprint = j.value("fingerprint", "");
  return r;
}

std::vector<RunResult> readResults(const std::string &file) {
  std::vector<RunResult> results;
  const OpenedFile opened = openRegularFile(file);
  if (opened.error == ENOENT)
    return results;
  if (opened.fd < 0)
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {}: {}", file, opened.why));
  ::close(opened.fd);
  int number = 0;
  const std::string text = readInput(file, "results", kMostBytes);
  auto take = [&](llvm::StringRef line) {
    ++number;
    try {
      results.push_back(RunResult::of(parseJson(line)));
    } catch (const nlohmann::json::exception &) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}:{} is no result of a run", file, number),
                      "repair or remove that line, or name another --out");
    }
  };
  if (const llvm::StringRef last = eachLine(text, take); !last.empty())  // written whole, and edited since
    take(last);
  return results;
}

void writeResults(const std::string &file, const std::vector<RunResult> &results) {
  std::string text;
  for (const RunResult &r : results)
    text += r.json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  writeFileAtomically(file, text);
}

void addLog(const std::string &outDir, RunResult &result) {
  const FileText log = readTextFile(outDir + "/log.jsonl", kMostBytes);
  std::vector<double> speeds;
  eachLine(log.text, [&](llvm::StringRef line) {
    const nlohmann::json j = parseJsonOrDiscard(line);
    if (!part(j, "step").is_number_integer())
      return;
    const int64_t step = j["step"];
    if (j.contains("val_loss")) {
      const double loss = numberOf(j, "val_loss");
      if (std::isfinite(loss) && !(loss >= result.valLoss))
        result.valLoss = loss, result.valStep = step;
    } else if (j.contains("loss")) {
      result.steps = std::max(result.steps, step);
      result.loss = numberOf(j, "loss");
      if (const double speed = numberOf(j, "tokens_per_s"); std::isfinite(speed))
        speeds.push_back(speed);
    }
  });
  if (!speeds.empty())
    result.tokensPerSecond = medianOf(speeds);
}

std::optional<RunError> errorIn(const std::string &output) {
  const llvm::StringRef text = output;
  constexpr llvm::StringLiteral begin = "error[";
  size_t at = text.find("error[GPTC");
  if (at == llvm::StringRef::npos)
    return std::nullopt;
  const auto [code, rest] = text.drop_front(at + begin.size()).split("]: ");
  return RunError{code.str(), rest.split('\n').first.rtrim('\r').str()};
}

std::optional<double> valLossIn(const std::string &output) {
  constexpr llvm::StringLiteral before = "val loss ";
  const size_t at = output.find(before);
  if (at == std::string::npos)
    return std::nullopt;
  const char *begin = output.c_str() + at + before.size();
  char *end = nullptr;
  const double loss = std::strtod(begin, &end);
  return end == begin ? std::nullopt : std::optional(loss);
}

double studentT(int freedom, double share) {
  GPTC_CHECK(freedom > 0 && share > 0 && share < 1, "no such interval: {} degrees of freedom, {}", freedom, share);
  // The probability between -t and t, of whole degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4.
  auto between = [&](double t) {
    const double angle = std::atan(t / std::sqrt(double(freedom))), sine = std::sin(angle), cosine = std::cos(angle);
    const bool odd = freedom % 2;
    double term = odd ? cosine : 1, sum = freedom == 1 ? 0 : term;
    for (int i = odd ? 3 : 2; i <= freedom - 2; i += 2)
      sum += term *= cosine * cosine * (i - 1) / i;
    return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
  };
  double low = 0, high = 1;
  while (between(high) < share)
    high *= 2;
  for (int i = 0; i < 100; ++i)
    (between((low + high) / 2) < share ? low : high) = (low + high) / 2;
  return (low + high) / 2;
}

SeedStatistics statisticsOf(std::string variant, std::vector<double> values) {
  SeedStatistics s{std::move(variant), std::move(values)};
  const double n = double(s.values.size());
  if (s.values.empty())
    return s;
  double sum = 0, squares = 0;
  for (double v : s.values)
    sum += v;
  s.mean = sum / n;
  for (double v : s.values)
    squares += (v - s.mean) * (v - s.mean);
  if (s.values.size() > 1)
    s.halfWidth = studentT(int(s.values.size()) - 1) * std::sqrt(squares / (n - 1) / n);
  return s;
}

std::vector<SeedStatistics> SeedStatistics::of(const std::vector<RunResult> &results) {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, int64_t> without;
  for (const RunResult &r : results) {
    std::vector<double> &of = values[r.variant];
    if (!r.failed && std::isfinite(r.valLoss))
      of.push_back(r.valLoss);
    else
      ++without[r.variant];
  }
  std::vector<SeedStatistics> all;
  for (auto &[variant, of] : values) {
    all.push_back(statisticsOf(variant, std::move(of)));
    all.back().without = without[variant];
  }
  // A mean of the runs that went well has no place among means of all.
  auto place = [](const SeedStatistics &s) { return std::tuple(s.without > 0, std::isnan(s.mean), s.mean); };
  llvm::stable_sort(all, [&](const auto &a, const auto &b) { return place(a) < place(b); });
  return all;
}

FirstDifference compareRuns(const std::string &first, const std::string &second) {
  auto stepsOf = [](const std::string &outDir) {
    auto steps = readLoggedSteps(outDir);
    if (steps.empty())
      throw UserError(ErrorCode::FileMissing, fmt::format("{} has no log.jsonl with steps of training", outDir),
                      "name the folder of a run: out_dir of model.toml, or the folder that an experiment made for it");
    return steps;
  };
  const auto a = stepsOf(first), b = stepsOf(second);
  FirstDifference p;
  for (const auto &[step, of] : a) {
    const auto other = b.find(step);
    if (other == b.end())
      continue;
    ++p.shared;
    p.last = step;
    const float x = of.loss, y = other->second.loss;
    const bool same = std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
    if (!same && p.step < 0)
      p.step = step, p.first = x, p.second = y;
  }
  if (!p.shared)
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} and {} have logged no step in common", first, second),
                    "choose the same log.every for both");
  return p;
}

void sortByLoss(std::vector<RunResult> &results) {
  auto rank = [](const RunResult &r) {
    const bool evaluated = std::isfinite(r.valLoss), trained = std::isfinite(r.loss);
    return std::tuple(r.failed, evaluated ? 0 : trained ? 1 : 2, evaluated ? r.valLoss : trained ? r.loss : 0.0);
  };
  llvm::stable_sort(results, [&](const RunResult &a, const RunResult &b) { return rank(a) < rank(b); });
}

}  // namespace gptc
