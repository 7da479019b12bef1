#include "tools/planner/plan_module.h"

#include "codegen/cuda/libraries.h"
#include "frontends/gguf/gguf_model.h"
#include "frontends/hf_families.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/toml_config.h"
#include "ir/gpu_sheets.h"
#include "passes/remat.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/tuning/tuning_records.h"
#include "support/diagnostics.h"
#include "tools/planner/codegen_passes.h"
#include "tools/planner/gir_file.h"
#include "tools/planner/variants.h"

#include <optional>

namespace gptc {

Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings) {
  return readConfig(modelFile, settings, ConfigPurpose::run);
}

Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings, ConfigPurpose purpose) {
  return loadConfig(
      modelFile, settings, [](const std::string &tokenizer) { return Tokenizer::load(tokenizer).vocabSize(); },
      purpose);
}

void requireSameModel(const std::string &weights, const std::vector<std::string> &settings) {
  const ModelConfig model = readConfig("", settings).model;
  const std::vector<Diagnostic> differences =
      isGguf(weights) ? compareGguf(weights, model).differences : compareHfConfig(weights, model).differences;
  if (!differences.empty())
    throw UserError(differences);
}

void requireCpuTarget(const Config &config, const std::string &why, const std::string &help) {
  if (config.compile.target != "cpu")
    throw UserError(Diagnostic{ErrorCode::NotBuiltYet,
                               fmt::format("compile.target = \"{}\": {}", config.compile.target, why),
                               config.where("compile.target"),
                               "",
                               {help},
                               {}});
}

Config readConfigForBench(const std::string &modelFile, const std::vector<std::string> &settings) {
  if (isGirFile(modelFile))
    throw UserError(ErrorCode::Usage, fmt::format("{} is a module", modelFile), "give the model.toml");
  Config config = readConfig(modelFile, settings);
  requireCpuTarget(config, "steps are measured on the CPU only",
                   "--set compile.target=cpu; on a GPU `gptrun PLAN` prints what a step takes, and `gptc bench kernels "
                   "PLAN` what its kernels do");
  return config;
}

/// That a GPU target multiplies what precision.fp8 asks for.
static void requireEights(const Config &config, const Target &t) {
  if (config.precision.fp8 == Fp8::off)
    return;
  auto fail = [&](std::string what, std::string help) {
    throw UserError(Diagnostic{
        ErrorCode::Contradiction, std::move(what), config.where("precision.fp8"), "", {std::move(help)}, {}});
  };
  if (t.architecture < eightsFrom)
    fail(fmt::format("tensor cores of {} do not multiply 8-bit floats", t.cpu),
         fmt::format("GPUs from sm_{} on do; bf16 is the type without precision.fp8", eightsFrom));
  if (!t.callsLibrary())
    fail("on GPUs products of 8-bit floats are calls of cuBLASLt, and this plan has none",
         config.compile.libraryCalls == "auto" ? "`gptc doctor --target cuda` says how to get it"
                                               : "compile.library_calls = \"auto\" allows them");
}

Target targetOf(const Config &config, bool &here) {
  here = config.compile.target == "cuda";
  if (config.compile.target == "cpu")
    return hostTarget();
  try {
    Target t = cudaTarget(here ? "cuda:" + cuda::architectureHere() : config.compile.target);
    if (config.compile.libraryCalls == "auto") {
      if (CudaLibrary::find(CudaLibraryId::cublasLt))
        t.features = "cublaslt";
      if (!cuda::cudnnFrontend().empty() && CudaLibrary::find(CudaLibraryId::cudnn))
        t.features += t.features.empty() ? "cudnn" : ",cudnn";
    }
    requireEights(config, t);
    return t;
  } catch (UserError &e) {
    if (e.diagnostics[0].where.line == 0)
      e.diagnostics[0].where = config.where("compile.target");
    if (here && e.diagnostics[0].code != ErrorCode::Contradiction)
      e.diagnostics[0].help.push_back("or name a GPU that need not be here, as in cuda:sm_90a");
    throw UserError(e.diagnostics);
  }
}

TunedSchedules::Counts runPasses(Plan &plan, const Config &config, PassRequest request, bool gir) {
  request.pipeline.beforePass = [&](const PassUse &next, const Module &m) {
    if (!plan.joint && next.pass->name == llvm::StringRef("fuse"))
      plan.joint = m.clone();
  };
  registerCodegenPasses();
  std::vector<PassUse> uses = parsePipeline(defaultPipeline(request.first), &plan.target);
  if (uses.front().pass->name == llvm::StringRef("order"))
    plan.joint = plan.planned->clone();  // it was fused already
  for (const char *pass : {"remat", "pack-weights"})
    setOption(uses, pass, "available", request.available);
  if (plan.target.isCuda()) {
    setOption(uses, "plan-memory", "workspaces", request.workspaces);
    setOption(uses, "plan-memory", "available", request.available);
  }
  std::optional<TuningRecords> records;
  std::optional<TunedSchedules> tuned;
  if (request.tuned) {
    tuned.emplace(records.emplace(request.cacheDir), request.measured ? *request.measured : plan.target);
    for (PassUse &u : uses)
      u.options.schedules = &*tuned;
  }
  try {
    runPipeline(*plan.planned, uses, request.pipeline);
  } catch (RematBudgetError &e) {
    e.diagnostics[0].where = config.where("compile.remat");
    if (gir)
      e.diagnostics[0].help.resize(1);  // only the first remedy, because batch and sizes are fixed
    throw UserError(e.diagnostics);
  }
  return tuned ? tuned->counts : TunedSchedules::Counts();
}

std::unique_ptr<Module> planModule(const Config &config, const Target &target, const std::string &cacheDir,
                                   int64_t available, const BuildOptions &build) {
  Plan plan;
  plan.target = target;
  plan.planned = buildModel(config, build);
  PipelineOptions options;
  options.verifyEach = false;
  options.reproFile = "";
  runPasses(plan, config, {"canonicalize", cacheDir, config.compile.autotune != "off", available, options}, false);
  return std::move(plan.planned);
}

}  // namespace gptc
