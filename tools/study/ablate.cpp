// 1. Compile the model once with all decisions, and once per variant with one of them off. Skip a variant whose plan
//    has the same text, because it changes nothing for this model, and one that no plan brings within compile.remat.
// 2. Load both into separate arenas with equal initial values and run them on the same random tokens: one warm-up step
//    each, then alternating steps. So disturbances affect both, and the ratio of neighbouring steps is reliable.
// 3. Compare the losses of the first steps; they must agree, else the comparison would be of different things.
#include "tools/study/ablate.h"

#include "frontends/model_builder.h"
#include "passes/decisions.h"
#include "passes/remat.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/compiler/compile.h"
#include "tools/planner/gir_file.h"
#include "tools/planner/variants.h"
#include "tools/study/step_runner.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace gptc {

namespace {

struct Variant {
  const char *name;
  bool decomposedAttention = false;
  bool primitiveOptimizer = false;
  std::vector<const char *> fuseOff;  // options of fuse to switch off
  std::vector<const char *> without;  // passes to leave out
  const char *remat = nullptr;
  const char *setting = nullptr;  // key=value
};

const std::vector<Variant> &variants() {
  static const std::vector<Variant> list = {
      {.name = "decomposed attention", .decomposedAttention = true},
      {.name = "unfused pointwise", .fuseOff = {"epilogue", "row", "pointwise", "fold"}},
      {.name = "separate bias", .fuseOff = {"bias"}},
      {.name = "primitive optimizer", .primitiveOptimizer = true},
      {.name = "all off",
       .decomposedAttention = true,
       .primitiveOptimizer = true,
       .fuseOff = {"epilogue", "row", "pointwise", "fold", "bias"}},
      {.name = "no epilogues", .fuseOff = {"epilogue"}},
      {.name = "unpadded vocabulary", .without = {"pad-vocab"}},
      {.name = "no panels", .without = {"pack-weights"}},
      {.name = "given order", .without = {"order"}},
      {.name = "remat full", .remat = "full"},
      {.name = "fp32", .setting = "precision.compute=fp32"},
  };
  return list;
}

std::unique_ptr<Module> compileVariant(const AblationRequest &request, const Variant *v, const Target &target) {
  std::vector<std::string> settings = request.settings;
  if (v && v->setting)
    settings.push_back(v->setting);
  Config config = readConfig(request.modelFile, settings);
  requireCpuTarget(config, "variants are measured on the CPU only",
                   "--set compile.target=cpu; `gptc explain PLAN` predicts for the plan of a GPU");
  std::unique_ptr<Module> m =
      buildModel(config, {.decomposedAttention = v && v->decomposedAttention, .sampling = false});
  auto edit = [&](std::vector<PassUse> &uses) {
    if (!v)
      return;
    for (const char *option : v->fuseOff)
      setOption(uses, "fuse", option, false);
    for (const char *pass : v->without)
      removePass(uses, pass);
    if (v->remat)
      setOption(uses, "remat", "budget", std::string(v->remat));
    if (v->primitiveOptimizer) {
      auto at = llvm::find_if(uses, [](const PassUse &u) { return u.pass->name == llvm::StringRef("optimizer"); });
      uses.insert(at + 1, parsePipeline("primitive-optimizer", &target)[0]);
      setOption(uses, "fuse", "pointwise", false);  // each op is its own kernel
    }
  };
  try {
    return runFrom(*m, "canonicalize", target, edit);
  } catch (RematBudgetError &e) {
    e.diagnostics[0].where = config.where("compile.remat");
    throw;
  }
}

/// A plan's text without the reports in its attributes.
std::string textOf(const Module &m) { return print(*withoutDecisions(m)); }

std::vector<std::string> ablationNames() {
  std::vector<std::string> names;
  for (const Variant &v : variants())
    names.push_back(v.name);
  return names;
}

}  // namespace

std::vector<Ablation> ablate(const AblationRequest &request, const std::function<void(const Ablation &)> &done) {
  const std::vector<std::string> names = ablationNames();
  for (const std::string &name : request.only)
    if (!llvm::is_contained(names, name))
      throw UserError(ErrorCode::Usage, fmt::format("nothing is called '{}'", name), "known: " + quotedList(names));
  if (isGirFile(request.modelFile))
    throw UserError(ErrorCode::Usage,
                    fmt::format("{}: a module cannot be compiled without its decisions", request.modelFile),
                    "give the model.toml; `gptc compile` and `gptc explain` say what is in a module");
  const Target target = hostTarget(request.threads);
  std::unique_ptr<Module> base = compileVariant(request, nullptr, target);
  const std::string baseText = textOf(*base);
  auto runner = std::make_unique<StepRunner>(std::move(base), target, request.cacheDir, request.threads);
  const MachineRates rates =
      ratesOf(target, peakOfCpu(runner->session.pool, target, DType::f32, request.cacheDir).get().flops);
  const Forecast baseForecast = forecast(*runner->session.plan.planned, rates);
  runner->step();
  const double baseLoss = runner->loss;

  std::vector<Ablation> results;
  for (const Variant &v : variants()) {
    if (!request.only.empty() && !llvm::is_contained(request.only, v.name))
      continue;
    Ablation a;
    a.name = v.name;
    a.baseArena = baseForecast.arena;
    a.predictedBaseMs = 1e3 * baseForecast.step.seconds;
    a.baseLoss = baseLoss;
    std::unique_ptr<Module> m;
    try {
      m = compileVariant(request, &v, target);
    } catch (const RematBudgetError &e) {
      a.skipped = e.diagnostics[0].message;
    }
    if (m) {
      const Forecast f = forecast(*m, rates);
      a.predictedMs = 1e3 * f.step.seconds;
      a.arena = f.arena;
      if (textOf(*m) == baseText)
        a.skipped = "changes nothing in this model";
      else if (f.arena > availableMemory() - (256 << 20))
        a.skipped = fmt::format("needs {} beside the other", formatBytes(double(f.arena)));
    }
    if (a.skipped.empty()) {
      StepRunner other(std::move(m), target, request.cacheDir, request.threads);
      other.step();
      a.loss = other.loss;
      // The order of sums and the precision may differ, but the model may not.
      GPTC_CHECK(std::abs(a.loss - baseLoss) <= 0.02 * std::abs(baseLoss), "{}: loss {} instead of {}", v.name, a.loss,
                 baseLoss);
      std::vector<double> base, with, ratio;
      for (int64_t i = 0; i < request.steps; ++i) {
        base.push_back(1e3 * runner->step());
        with.push_back(1e3 * other.step());
        ratio.push_back(with.back() / base.back());
      }
      a.ms = spreadOf(with);
      a.baseMs = spreadOf(base);
      a.slowdown = spreadOf(ratio);
    }
    done(a);
    results.push_back(a);
  }
  return results;
}

}  // namespace gptc
