#include "tools/compiler/inference.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "passes/decisions.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/compiler/compile.h"
#include "tools/planner/codegen_passes.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <bit>

namespace gptc {

namespace {

void addStates(const Block &block, llvm::StringSet<> &names) {
  for (const Op &op : block) {
    if (op.isOneOf(OpKind::read, OpKind::write))
      names.insert(op.state);
    if (op.body)
      addStates(*op.body, names);
  }
}

/// Makes the low-precision copy the parameter: loading rounds the parameter's file data in the same way. Of a rank's
/// part it is the same part.
void takePlaceOf(State &copy, const State &param) {
  copy.attrs = AttrMap();
  if (hasFact<&StateFacts::cutTensor>(param))
    setFact<&StateFacts::cutTensor>(copy, fact<&StateFacts::cutTensor>(param));
  setFact<&StateFacts::kind>(copy, StateKind::param);
  setFact<&InitialFacts::init>(copy, Initial::zeros);
  auto file = factsOf<FileFacts>(param);
  file.hf = file.hf.value_or(param.name);
  writeFacts(copy, file);
}

// 1. Remove the other functions.
// 2. Keep the states that are read or written, and the sources of copies that loading fills: for panels, the matrix. If
//    only the low copy of a parameter is read, it takes the parameter's place.
// 3. Plan memory anew. Schedules and kernels stay.
void keepOnly(Module &m, llvm::ArrayRef<llvm::StringRef> functions, const Target &target) {
  std::vector<std::string> others;
  for (const auto &f : m.functions)
    if (!llvm::is_contained(functions, f->name))
      others.push_back(f->name);
  for (const std::string &name : others)
    m.removeFunction(name);

  llvm::StringSet<> used;
  for (const auto &f : m.functions)
    addStates(f->body, used);
  for (const StateKind kind : {StateKind::packed, StateKind::whole})
    for (const auto &s : m.states)
      if (used.contains(s->name) && kindOf(*s) == kind)
        used.insert(fact<&StateFacts::of>(*s));
  llvm::StringMap<std::string> replaced;  // parameters, by what takes their places
  for (const auto &s : m.states)
    if (const std::string of = fact<&StateFacts::of>(*s);
        used.contains(s->name) && kindOf(*s) == StateKind::low && !used.contains(of)) {
      const State *param = m.state(of);
      GPTC_CHECK(param && kindOf(*param) == StateKind::param, "@{} is no copy of a parameter", s->name);
      if (replaced.try_emplace(of, s->name).second)
        takePlaceOf(*s, *param);
    }
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::quantized)
      if (const auto it = replaced.find(fact<&StateFacts::of>(*s)); it != replaced.end())
        setFact<&StateFacts::of>(*s, it->second);
  // The files contain even parameters that no function reads.
  llvm::erase_if(m.states, [&](const auto &s) {
    const bool param = kindOf(*s) == StateKind::param;
    return !used.contains(s->name) && (!param || replaced.contains(s->name));
  });

  PipelineOptions options;
  options.reproFile = "";
  runPipeline(m, parsePipeline("plan-memory", &target), options);
}

/// With all functions that a module built so has.
std::unique_ptr<Module> madeAnew(const Plan &plan, const BuildOptions &build, const std::string &cacheDir,
                                 int64_t tensor = 1) {
  std::unique_ptr<Module> m = PlanForRanks(plan, 1).planForInference(plan.target, cacheDir, build, tensor);
  std::vector<std::string> functions;
  for (const auto &f : m->functions)
    functions.push_back(f->name);
  keepOnly(*m, std::vector<llvm::StringRef>(functions.begin(), functions.end()), plan.target);
  return m;
}

Plan withModule(Plan plan, std::unique_ptr<Module> m) {
  plan.planned = std::move(m);
  plan.joint.reset();
  return plan;
}

}  // namespace

/// requireShared, but for GPUs.
static void requireDivided(const Plan &plan, int64_t tensor) {
  if (tensor == 1)
    return;
  if (!std::has_single_bit(uint64_t(tensor)))
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{} ranks that share a model to continue texts are not built yet", tensor),
                    "2, 4, 8 and so on work; --tensor 1 continues them on one, whatever the plan was made for");
  PlanForRanks(plan, 1).requireShared(tensor);
}

void requireShared(const Plan &plan, int64_t tensor) {
  if (tensor > 1 && plan.target.isCuda())
    throw UserError(ErrorCode::NotBuiltYet, "GPUs that share a model to continue texts are not built yet",
                    "--tensor 1 continues them on one GPU");
  requireDivided(plan, tensor);
}

std::unique_ptr<Module> servingModule(const Plan &plan, int64_t slots, const std::string &cacheDir, int64_t tensor) {
  requireDivided(plan, tensor);
  return madeAnew(plan, {.slots = slots}, cacheDir, tensor);
}

Plan servingPlan(Plan plan, int64_t slots, const std::string &cacheDir, int64_t tensor) {
  requireShared(plan, tensor);
  std::unique_ptr<Module> m = servingModule(plan, slots, cacheDir, tensor);
  return withModule(std::move(plan), std::move(m));
}

Plan embeddingPlan(Plan plan, const std::string &cacheDir, int64_t labels) {
  std::unique_ptr<Module> m = madeAnew(plan, {.embed = true, .labels = labels}, cacheDir);
  return withModule(std::move(plan), std::move(m));
}

Plan fillingPlan(Plan plan, const std::string &cacheDir) {
  std::unique_ptr<Module> m = madeAnew(plan, {.embed = true, .fills = true}, cacheDir);
  return withModule(std::move(plan), std::move(m));
}

int64_t bytesOfCaches(const Module &m) {
  int64_t bytes = 0;
  for (const auto &s : m.states)
    bytes += kindOf(*s) == StateKind::cache ? s->type.bytes() : 0;
  return bytes;
}

std::string slotsInWords(const Module &serving, int64_t slots) {
  const bool eightBits = llvm::any_of(
      serving.states, [](const auto &s) { return kindOf(*s) == StateKind::cache && s->type.dtype == DType::u32; });
  const int64_t ranks = Mesh::of(serving).ranks();
  return fmt::format("{} slot{} of {} tokens: {} of cache{}, {} in all{}", slots, slots == 1 ? "" : "s",
                     fact<&ModelFacts::blockSize>(serving), formatBytes(double(bytesOfCaches(serving))),
                     eightBits ? " in 8 bits" : "", formatBytes(double(fact<&MemoryFacts::arenaBytes>(serving))),
                     ranks > 1 ? fmt::format(", on each of {} ranks", ranks) : "");
}

std::string weightsInWords(const Module &m) {
  const Weights weights = fact<&PrecisionFacts::weights>(m);
  std::string kept = weights == Weights::compute ? "" : fmt::format("{}, none", nameOf(weights));
  for (const Decision &d : decisionsOf(m))
    if (d.pass == "quantize-weights")
      kept = fmt::format("{}; {}", d.choice, d.note);
  return kept;
}

Plan weightsPlan(Plan plan, const std::string &cacheDir) {
  const bool tokens = fact<&ModelFacts::causal>(*plan.planned);
  plan.planned =
      PlanForRanks(plan, 1).planForInference(plan.target, cacheDir, {.slots = tokens ? 1 : 0, .embed = !tokens});
  plan.joint.reset();
  Module &m = *plan.planned;
  while (!m.functions.empty())
    m.removeFunction(std::string(m.functions.back()->name));
  llvm::erase_if(m.states, [](const auto &s) {
    const auto kind = kindOf(*s);
    return kind != StateKind::param && kind != StateKind::quantized;
  });
  for (const auto &s : m.states)
    eraseFact<&StateFacts::memory>(*s);
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(m, parsePipeline("plan-memory", &plan.target), options);
  return plan;
}

Plan inferencePlan(Plan plan, llvm::ArrayRef<llvm::StringRef> functions, const std::string &cacheDir) {
  if (Mesh::of(*plan.planned).ranks() != 1)
    plan.planned = PlanForRanks(plan, 1).planForInference(plan.target, cacheDir);
  plan.joint.reset();
  try {
    keepOnly(*plan.planned, functions, plan.target);
  } catch (const InternalError &e) {
    // A plan comes from outside: it may keep the rules of memory and still ask for what no pass makes.
    throw UserError(
        ErrorCode::PlanDamaged,
        fmt::format("the plan {} cannot be planned for sampling or evaluation: {}", plan.dir, withoutPlaces(e.what())),
        "compile it again with `gptc compile`");
  }
  return plan;
}

}  // namespace gptc
