#include "tools/study/explain_weights.h"

#include "ir/facts.h"
#include "passes/decisions.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/quantized_weights.h"
#include "runtime/train/session.h"
#include "runtime/train/weights.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/words.h"
#include "tools/compiler/inference.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <filesystem>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

/// A plan owns modules, which are not copied otherwise.
Plan copyOf(const Plan &plan) { return loadPlan(plan.dir); }

/// Bytes of an element of a weight that is computed with.
int64_t bytesOfElement(Compute compute) { return compute == Compute::bf16 || compute == Compute::fp16 ? 2 : 4; }

std::vector<WeightKept> matricesOf(const Module &m) {
  const Compute compute = fact<&PrecisionFacts::compute>(m);
  const QuantizedWeights few(m);
  std::vector<WeightKept> all;
  for (const auto &s : m.states) {
    const QuantizedWeight *w = few.of(*s);
    if (!w && !isLayerMatrix(*s))
      continue;
    WeightKept kept{.name = s->name, .before = s->type.elements() * bytesOfElement(compute)};
    kept.format = w ? nameOf(w->format) : nameOf(compute);
    kept.after = w ? w->numbers->type.bytes() + w->scales->type.bytes() + (w->supers ? w->supers->type.bytes() : 0)
                   : kept.before;
    all.push_back(kept);
  }
  return all;
}

/// Why the weights of a plan are not loaded; "" if they are.
std::string reasonAgainst(const Plan &plan) {
  if (!plan.madeHere && !liesWithin(plan.run.outDir, std::filesystem::current_path().string()))
    return "the plan was not compiled with the cache of this user";
  if (plan.run.initFrom == "scratch" && CheckpointStore(plan.run.outDir).steps().empty())
    return "the plan starts from scratch, and there is no checkpoint yet";
  return "";
}

/// Fills the errors of matrices in few bits.
void measureErrors(Plan plan, const ModelIdentity &model, const std::string &cacheDir, WeightsKept &kept) {
  Session session(std::move(plan), cacheDir);
  kept.from = loadForInference(session, model, {}, [](const std::string &) {});
  const Module &m = *session.plan.planned;
  const QuantizedWeights few(m);
  for (WeightKept &matrix : kept.matrices) {
    const State &s = *m.state(matrix.name);
    if (const QuantizedWeight *w = few.of(s))
      matrix.error = roundingErrorOf(session.executor, *w, session.executor.view(s, StateAccess::read).as<float>());
  }
}

/// The matrices of a format together.
struct OfFormat {
  std::string format;
  int64_t count = 0, before = 0, after = 0;
  const WeightKept *worst = nullptr;  // with the largest error; null if none was measured
};

std::vector<OfFormat> byFormat(const WeightsKept &kept) {
  std::vector<OfFormat> all;
  for (const WeightKept &matrix : kept.matrices) {
    auto at = llvm::find_if(all, [&](const OfFormat &f) { return f.format == matrix.format; });
    if (at == all.end())
      at = all.insert(at, {matrix.format});
    ++at->count;
    at->before += matrix.before;
    at->after += matrix.after;
    if (matrix.error && (!at->worst || *matrix.error > *at->worst->error))
      at->worst = &matrix;
  }
  return all;
}

/// "1.50 MiB less", "12.0 KiB more", "as many".
std::string change(double bytes) {
  return bytes == 0 ? "as many" : fmt::format("{} {}", formatBytes(std::abs(bytes)), bytes < 0 ? "less" : "more");
}

}  // namespace

std::optional<WeightsKept> weightsKeptBy(const Plan &plan, const std::string &cacheDir, bool measure) {
  const Weights asked = fact<&PrecisionFacts::weights>(*plan.planned);
  if (asked == Weights::compute || plan.model.empty())
    return std::nullopt;
  const ModelIdentity model = modelIdentity(*plan.planned);
  Plan served = weightsPlan(copyOf(plan), cacheDir);
  WeightsKept kept{.weights = std::string(nameOf(asked)), .matrices = matricesOf(*served.planned)};
  for (const Decision &d : decisionsOf(*served.planned))
    if (d.pass == "quantize-weights") {
      kept.note = d.note;
      kept.memory = d.effect.memory;
    }
  kept.unmeasured = !measure ? "--rounding measures them" : reasonAgainst(plan);
  if (!kept.unmeasured.empty())
    return kept;
  try {
    measureErrors(std::move(served), model, cacheDir, kept);
  } catch (const UserError &e) {
    if (e.diagnostics[0].code == ErrorCode::NonFinite)  // they cannot be kept so
      throw;
    kept.from = "";
    kept.unmeasured = e.diagnostics[0].message;
  }
  return kept;
}

std::string tableOf(const WeightsKept &kept) {
  std::string out = fmt::format("weights     {} for sampling and serving; {}\n\n", kept.weights,
                                kept.from.empty() ? "errors are not measured: " + kept.unmeasured
                                                  : "errors are those of " + kept.from);
  out += fmt::format("{:<8} {:>8} {:>14} {:>14}   {}\n", "format", "matrices", "as computed", "as kept",
                     "largest error of a matrix, relative");
  OfFormat sum{"all"};
  auto row = [&](const OfFormat &f) {
    const std::string error = f.worst ? fmt::format("{:.5f} of {}", *f.worst->error, f.worst->name) : "";
    const std::string line = fmt::format("{:<8} {:>8} {:>14} {:>14}   {}", f.format, f.count,
                                         formatBytes(double(f.before)), formatBytes(double(f.after)), error);
    out += llvm::StringRef(line).rtrim().str() + "\n";
  };
  for (const OfFormat &f : byFormat(kept)) {
    row(f);
    sum.count += f.count;
    sum.before += f.before;
    sum.after += f.after;
  }
  row(sum);
  out += fmt::format("\nA token reads {} of them; the arena of sampling has {}.\n",
                     change(double(sum.after - sum.before)), change(kept.memory));
  return out + (kept.note.empty() ? "" : "note: " + kept.note + "\n");
}

json jsonOf(const WeightsKept &kept) {
  json matrices = json::array();
  for (const WeightKept &matrix : kept.matrices)
    matrices.push_back({{"name", matrix.name},
                        {"format", matrix.format},
                        {"bytes_computed", matrix.before},
                        {"bytes_kept", matrix.after},
                        {"relative_error", matrix.error ? json(*matrix.error) : json()}});
  return {{"weights", kept.weights},
          {"from", kept.from.empty() ? json() : json(kept.from)},
          {"unmeasured", kept.unmeasured.empty() ? json() : json(kept.unmeasured)},
          {"arena_bytes", kept.memory},
          {"note", kept.note},
          {"matrices", matrices}};
}

}  // namespace gptc
