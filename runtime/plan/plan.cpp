#include "runtime/plan/plan.h"

#include "codegen/codegen.h"
#include "ir/choose_token.h"
#include "ir/folds.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"
#include "runtime/plan/manifest.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"

#include <filesystem>
#include <map>
#include <set>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr int kSchema = 2;
constexpr const char *kPlannedFile = "planned.gir";
constexpr size_t kManifestLimit = 1 << 20;
constexpr size_t kTextLimit = size_t(256) << 20;

[[noreturn]] void damaged(const std::string &dir, const std::string &what) {
  throw UserError(ErrorCode::PlanDamaged, fmt::format("the plan {} is damaged: {}", dir, what),
                  "compile it again with `gptc compile`");
}

/// Members of the types that JSON has: all that a manifest holds are.
template <typename M>
constexpr bool inJson = std::is_same_v<M, int64_t *> || std::is_same_v<M, double *> || std::is_same_v<M, bool *> ||
                        std::is_same_v<M, std::string *> || std::is_same_v<M, std::vector<int64_t> *>;

json settingsToJson(RunSettings r) {
  json j;
  eachKept(r, [&](const Setting &s) {
    std::visit(
        [&](auto member) {
          if constexpr (inJson<decltype(member)>)
            j[s.inPlan.name] = *member;
        },
        s.member);
  });
  return j;
}

/// Throws json::exception for a key that is missing or of another type.
RunSettings settingsFromJson(const json &j) {
  RunSettings r;
  eachKept(r, [&](const Setting &s) {
    std::visit(
        [&](auto member) {
          if constexpr (inJson<decltype(member)>)
            if (!s.inPlan.newer || j.contains(s.inPlan.name))
              j.at(s.inPlan.name).get_to(*member);
        },
        s.member);
  });
  return r;
}

/// What is wrong with the value of a setting that a manifest holds, "" if nothing is. Anybody may have written it.
std::string settingProblem(const Setting &s) {
  const std::string &name = s.inPlan.name;
  if (auto *type = std::get_if<values::Integer>(&s.type))
    if (const int64_t n = *std::get<int64_t *>(s.member); n < type->least || n > type->most)
      return fmt::format("{} is {}", name, n);
  if (auto *type = std::get_if<values::Number>(&s.type)) {
    const double x = *std::get<double *>(s.member);
    if (!type->holds(x) && llvm::none_of(type->words, [&](const values::Word &w) { return w.value == x; }))
      return fmt::format("{} is {}", name, x);
  }
  auto *const *text = std::get_if<std::string *>(&s.member);
  std::vector<std::string> words;
  if (auto *type = std::get_if<values::Choice>(&s.type))
    words = type->built;
  else if (std::holds_alternative<values::Boolean>(s.type))
    words = {"auto", "true", "false"};
  if (text && !words.empty() && !llvm::is_contained(words, **text))
    return fmt::format("{} is {}", name, **text);
  return "";
}

std::string settingsProblem(RunSettings r) {
  std::string problem;
  eachKept(r, [&](const Setting &s) {
    if (problem.empty())
      problem = settingProblem(s);
  });
  return problem;
}

json targetToJson(const Target &t) {
  return {{"name", t.name},
          {"cpu", t.cpu},
          {"features", t.features},
          {"vector_bytes", t.vectorBytes},
          {"vector_registers", t.vectorRegisters},
          {"bf16_dot", t.bf16Dot},
          {"l1_bytes", t.l1Bytes},
          {"l2_bytes", t.l2Bytes},
          {"l3_bytes", t.l3Bytes},
          {"threads", t.threads}};
}

Target targetFromJson(const json &j) {
  Target t;
  t.name = j.at("name");
  t.cpu = j.at("cpu");
  t.features = j.at("features");
  t.vectorBytes = j.at("vector_bytes");
  t.vectorRegisters = j.at("vector_registers");
  t.bf16Dot = j.at("bf16_dot");
  t.l1Bytes = j.at("l1_bytes");
  t.l2Bytes = j.at("l2_bytes");
  t.l3Bytes = j.at("l3_bytes");
  t.threads = j.at("threads");
  if (t.name == "cpu")
    return t;
  // A GPU target's properties follow from its name.
  try {
    return cudaTarget(t.name);
  } catch (const UserError &) {
    return t;  // unknown name: keep the target as it is
  }
}

std::string targetProblem(const Target &t) {
  unsigned v = t.vectorBytes;
  if (v < 8 || v > 256 || (v & (v - 1)) || t.vectorRegisters < 8 || t.vectorRegisters > 1024 || t.l1Bytes < 1024 ||
      t.l2Bytes < 1024 || t.l3Bytes < 1024 || t.l1Bytes > maxArenaBytes || t.l2Bytes > maxArenaBytes ||
      t.l3Bytes > maxArenaBytes || t.threads < 1 || t.threads > 65536)
    return "the target's sizes are out of range";
  return "";
}

std::string schedulesText(const Module &planned) {
  json j = json::object();
  for (const PlannedKernel &k : kernelsOf(planned))
    j[k.name] = k.schedule;
  return j.dump(1) + "\n";
}

/// Why the runtime cannot handle a state, for which it makes initial values and counts counters; "" if it can.
std::string stateProblem(const State &s) {
  auto is = [&](std::initializer_list<DType> types) { return llvm::is_contained(types, s.type.dtype); };
  const Initial init = fact<&InitialFacts::init>(s);
  const bool constant = init == Initial::ones || init == Initial::constant;
  if ((init == Initial::normal && !is({DType::f32})) ||
      (constant && !is({DType::f32, DType::f64, DType::i32, DType::u32, DType::i64})))
    return fmt::format("state {} of type {} cannot start as {}", s.name, s.type.str(), nameOf(init));
  if (kindOf(s) == StateKind::quantized || isInFiles(s))
    return fmt::format("state {} is one of serving, which no folder has", s.name);
  if ((s.name == "rng_seed" || s.name == "step") && s.type != Type::scalar(DType::i64))
    return fmt::format("state {} is a {}", s.name, s.type.str());
  return "";
}

std::unique_ptr<Module> readModule(const std::string &dir, const std::string &name, const std::string &text) {
  std::unique_ptr<Module> m;
  try {
    m = parseModule(text, dir + "/" + name);
  } catch (const UserError &e) {
    damaged(dir, fmt::format("{} does not parse: {}", name, e.diagnostics[0].message));
  }
  if (auto problems = verify(*m); !problems.empty())
    damaged(dir, fmt::format("{} is invalid: {}", name, problems[0]));
  return m;
}

/// A fact that the runtime needs: a number from 1 to `high`.
template <auto member> std::string rangeProblem(const Module &m, int64_t high) {
  const int64_t n = fact<member>(m);
  return hasFact<member>(m) && n >= 1 && n <= high
             ? ""
             : fmt::format("module attribute {} is missing or out of range", FactAt<member>::name);
}

constexpr const char *kHfFolder = "hf";

}  // namespace

std::string hfFilesProblem(const HfFiles &files) {
  const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                               "special_tokens_map.json"};
  for (const auto &[name, text] : files) {
    if (!llvm::is_contained(names, llvm::StringRef(name)))
      return fmt::format("{} is no file of a model's folder", name);
    if (name == "tokenizer.json")  // large, and has no such keys
      continue;
    const json content = parseJsonOrDiscard<json>(text);
    if (!content.is_object())
      return fmt::format("{} is no JSON object", name);
    for (const char *key : {"auto_map", "custom_pipelines"})
      if (content.contains(key))
        return fmt::format("{} names code to run, as {}", name, key);
  }
  return "";
}

static std::string signatureProblem(const Module &m, int64_t shards, int64_t accumulate);

std::string planProblem(const Module &m) {
  const int64_t big = int64_t(1) << 31;
  std::string range = rangeProblem<&ModelFacts::blockSize>(m, big);
  for (const std::string &next :
       {rangeProblem<&BatchFacts::microBatch>(m, big), rangeProblem<&BatchFacts::accumulate>(m, big),
        rangeProblem<&ModelFacts::vocabSize>(m, big), rangeProblem<&ModelFacts::nLayer>(m, big),
        rangeProblem<&ModelFacts::nHead>(m, big), rangeProblem<&ModelFacts::nEmbd>(m, big),
        rangeProblem<&MemoryFacts::arenaBytes>(m, maxArenaBytes)})
    if (range.empty())
      range = next;
  if (range.empty() && hasFact<&BatchFacts::maskToken>(m))
    range = rangeProblem<&BatchFacts::maskToken>(m, fact<&ModelFacts::vocabSize>(m) - 1);
  if (range.empty() && hasFact<&ModelFacts::labels>(m))
    range = rangeProblem<&ModelFacts::labels>(m, big);
  if (!range.empty())
    return range;
  for (const auto &s : m.states)
    if (std::string p = stateProblem(*s); !p.empty())
      return p;
  const Mesh mesh = Mesh::of(m);
  const int64_t shards = fact<&ParallelFacts::shards>(m), accumulate = fact<&BatchFacts::accumulate>(m);
  if (mesh.ranks() > 1 << 20)
    return fmt::format("a mesh of {} ranks", mesh.ranks());
  if (mesh.tensor > 1 && !fact<&PhaseFacts::tensorSharded>(m))
    return fmt::format("nothing is divided over the {} ranks along \"tensor\"", mesh.tensor);
  if ((shards & (shards - 1)) || accumulate % shards)
    return fmt::format("{} logical shards for {} micro-batches of a rank", shards, accumulate);
  for (const auto &s : m.states) {
    Type part = s->type;
    for (const char *axis : {"data", "tensor"})
      if (const auto cut = Cut::of(*s, axis)) {
        Dim &d = part.dims[cut->dim];
        if (mesh.extent(axis) == 1 || cut->whole.padded != d.padded * mesh.extent(axis))
          return fmt::format("state {} is no piece for one of {} ranks", s->name, mesh.extent(axis));
        d = cut->whole;
      }
  }
  for (const auto &f : m.functions)
    for (const Op &group : f->body)
      if (group.is(OpKind::fused))
        for (const Op &op : *group.body)
          if (const int64_t ranks = mesh.extent(op.attrs.getString("axis"));
              op.def().fusion == FusionKind::collective && (op.attrs.getInt("ranks") != ranks || ranks == 1))
            return fmt::format("{} is not for the {} ranks of the mesh", op.name().str(), ranks);
  // As in model.toml: the sequences and tokens of a whole run must be countable.
  if (double(accumulate) * mesh.data * fact<&BatchFacts::microBatch>(m) * fact<&ModelFacts::blockSize>(m) > 0x1p32)
    return "the global batch is out of range";
  return signatureProblem(m, shards, accumulate);
}

/// The runtime passes buffers of exactly these types, so functions must take them.
static std::string signatureProblem(const Module &m, int64_t shards, int64_t accumulate) {
  const int64_t T = fact<&ModelFacts::blockSize>(m), P = fact<&BatchFacts::prefill>(m);
  const Type tokens(DType::i32, {fact<&BatchFacts::microBatch>(m), T}), scalar(DType::f32), count(DType::i64),
      logits(DType::f32, {1, fact<&ModelFacts::vocabSize>(m)});
  struct Signature {
    const char *name;
    bool needed;
    std::vector<Type> args, results;
  };
  // Loss, gradient norm, learning rate; with fp16 also the loss scale.
  const std::vector<Type> step(m.state("loss_scale") ? 4 : 3, scalar);
  const bool accumulates = accumulate > 1, whole = beginsWhole(m);
  const int64_t B = fact<&BatchFacts::microBatch>(m), labels = fact<&ModelFacts::labels>(m);
  if (labels != 1 && fact<&ModelFacts::problemType>(m) == ProblemType::regression)
    return fmt::format("a regression of {} labels", labels);
  std::vector<Type> batch = {tokens, tokens}, evaluated = {Type(DType::f32, {B, T})};
  if (labels) {
    batch = {tokens, Type(DType::i32, {B, 1}), Type(DType::i64, {B, T, 2}), tokens};
    evaluated = {Type(DType::f32, {B, 1}), Type(DType::f32, {B, 1, labels})};
    const ProblemType problem = fact<&ModelFacts::problemType>(m);
    if (problem == ProblemType::regression)
      batch[1] = Type(DType::f32, {B, 1});
    else if (problem == ProblemType::multi_label_classification)
      batch[1].dims[1] = evaluated[0].dims[1] = Dim(labels);
  }
  std::vector<Type> counted = batch;
  counted.insert(counted.end(), {count, scalar});
  std::vector<Signature> signatures = {
      {"train_step", !accumulates, counted, step},
      {"accumulate", accumulates, counted, {}},
      {"update", accumulates, {scalar}, step},
      {"train_step_whole", whole && !accumulates, counted, step},
      {"update_whole", whole && accumulates, {scalar}, step},
      {"outer", fact<&ParallelFacts::syncEvery>(m) > 1, {}, {}},
      {"eval", false, batch, evaluated},
      {"decode", false, {Type(DType::i32, {1, 1}), count}, {logits}},
      {"prefill", false, {Type(DType::i32, {1, std::max<int64_t>(1, P)}), count}, {logits}}};
  if (P > 1)
    signatures.back().args.push_back(count);
  for (Signature &s : llvm::MutableArrayRef(signatures).take_back(2))
    if (const Function *f = m.function(s.name); f && choosesTokens(*f)) {
      s.args.push_back(Type(DType::f32, {1, choose_token::columns}));
      s.results.push_back(Type(DType::i32, {1}));
    }
  std::vector<std::string> folds;
  for (int64_t level = 1; level < shards; level *= 2)
    folds.push_back(nameOfFold(int(folds.size())));
  for (const std::string &name : folds)
    signatures.push_back({name.c_str(), true, {scalar}, {}});
  for (const Signature &s : signatures) {
    const Function *f = m.function(s.name);
    if (!f) {
      if (s.needed)
        return fmt::format("function @{} is missing", s.name);
      continue;
    }
    auto plain = [](const Type &t, const Type &want) { return t.dtype == want.dtype && t.sameShape(want); };
    bool fits = f->body.args.size() == s.args.size();
    for (size_t i = 0; fits && i < s.args.size(); ++i)
      fits = plain(f->body.args[i]->type, s.args[i]);
    std::vector<Type> results = f->results();
    fits = fits && results.size() == s.results.size();
    // Logits may be padded: only their logical part is read.
    for (size_t i = 0; fits && i < results.size(); ++i)
      fits = results[i].dtype == s.results[i].dtype && results[i].rank() == s.results[i].rank() &&
             results[i].elements() == s.results[i].elements();
    if (!fits)
      return fmt::format("function @{} has another signature than the runtime calls", s.name);
  }
  return "";
}

bool compressesGradients(const Module &m) {
  const auto shared = factsOf<ParallelFacts>(m);
  return shared.gradientRank > 0 && shared.data > 1;
}

bool beginsWhole(const Module &m) { return compressesGradients(m) && fact<&ParallelFacts::compressFrom>(m) > 0; }

bool choosesTokens(const Function &decode) { return decode.results().size() > 1; }

std::vector<PlannedKernel> kernelsOf(const Module &planned) {
  std::vector<PlannedKernel> r;
  for (const auto &f : planned.functions) {
    int n = 0;
    for (const Op &op : f->body)
      if (op.is(OpKind::fused))
        r.push_back({fmt::format("{}.{}", f->name, n++), &op, fact<&GroupFacts::schedule>(op)});
  }
  return r;
}

int64_t maskToken(const Module &m) { return fact<&BatchFacts::maskToken>(m); }

int64_t parameterCount(const Module &m, bool withoutPositions) {
  int64_t n = 0;
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::param && !(withoutPositions && s->name == "wpe.weight"))
      n += wholeType(*s).elements();
  return n;
}

double attentionFlopsPerToken(const ModelFacts &m) {
  const double heads = m.headDim ? double(m.nHead) * double(m.headDim) : double(m.nEmbd), layers = double(m.nLayer);
  const double windowed = m.window ? layers - double(m.layersWithoutWindow.size()) : 0;
  const int64_t seen = std::min(m.causal ? m.window : 2 * m.window - 1, m.blockSize);
  return 12 * heads * ((layers - windowed) * double(m.blockSize) + windowed * double(seen));
}

double flopsPerToken(const Module &m) {
  // An embedding that is not also the classifier is looked up, not multiplied.
  const State *embedding = m.state("wte.weight"), *classifier = m.state("lm_head.weight"),
              *types = m.state("wtt.weight");
  const auto model = factsOf<ModelFacts>(m);
  const double lookedUp = (embedding && (classifier || model.labels) ? double(wholeType(*embedding).elements()) : 0) +
                          (types ? double(wholeType(*types).elements()) : 0);
  return 6.0 * (double(parameterCount(m, true)) - lookedUp) + attentionFlopsPerToken(model);
}

ModelIdentity modelIdentity(const Module &m) {
  ModelIdentity r;
  std::string text;
  for (const auto &s : m.states)
    if (kindOf(*s) == StateKind::param) {
      // Padding belongs to the plan, not to the model.
      text += s->name + ":" + nameOf(s->type.dtype).str();
      for (const Dim &d : wholeType(*s).dims)
        text += fmt::format(",{}", d.logical);
      text += '\n';
    }
  r.parameters = blake3(text);
  for (const FactSpec &f : moduleFacts()) {
    if (f.group != llvm::StringRef("ModelFacts") || f.name == llvm::StringRef(FactAt<&ModelFacts::name>::name))
      continue;
    // Only a position table depends on the context length; other models may change it.
    if (f.name == llvm::StringRef(FactAt<&ModelFacts::blockSize>::name) && !m.state("wpe.weight"))
      continue;
    if (const Attr *a = m.attrs.find(f.name))
      r.keys[f.name] = textOf(*a);
  }
  // The attribute exists only if it differs from the default.
  if (r.keys.count("norm"))
    r.keys.try_emplace("norm_eps", textOf(Attr(FactAt<&ModelFacts::normEps>::absent())));
  return r;
}

std::string resultIdentity(const Plan &plan) {
  if (plan.model.empty() || plan.target.callsLibrary() || plan.target.callsCudnn())
    return plan.hash;
  const Module &m = *plan.planned;
  const Mesh mesh = Mesh::of(m);
  std::map<llvm::StringRef, llvm::StringRef> settings;  // later ones override earlier ones
  for (const std::string &s : plan.model) {
    const auto [key, value] = llvm::StringRef(s).split('=');
    if (key != "name" && key != "train.micro_batch" && !key.starts_with("parallel.") && !key.starts_with("compile.") &&
        key != "precision.weights" && key != "precision.cache")
      settings[key] = value;
  }
  const int64_t shards = mesh.data * fact<&ParallelFacts::shards>(m);
  const bool fast = mesh.data > 1 && fact<&ParallelFacts::reduceOrder>(m) == ReduceOrder::fast;
  const int64_t parts = fact<&ParallelFacts::logicalTensor>(m);
  const std::string tensor =
      parts > 1 && !plan.target.isCuda() ? fmt::format("{} parts", parts) : fmt::format("{}", mesh.tensor);
  std::string text =
      fmt::format("{} tensor={} shards={} fast={}\n", plan.target.name, tensor, shards, fast ? mesh.data : 0);
  if (const auto shared = factsOf<ParallelFacts>(m); shared.syncEvery > 1)
    text += fmt::format("sync_every={} outer_lr={} outer_momentum={}\n", shared.syncEvery, shared.outerLr,
                        shared.outerMomentum);
  else if (compressesGradients(m))
    text += fmt::format("gradient_rank={} compress_from={}\n", shared.gradientRank, shared.compressFrom);
  for (const auto &[key, value] : settings)
    text += fmt::format("{}={}\n", key.str(), value.str());
  std::set<std::string> orders;
  for (const PlannedKernel &k : kernelsOf(m)) {
    Schedule s;
    if (Schedule::parse(k.schedule, s) && (s.pairs || s.mma))
      orders.insert(s.pairs ? "pairs" : "mma");
    for (const Op &op : *k.op->body)
      if (op.attrs.has("fold"))
        orders.insert(fmt::format("{} fold={}", op.name().str(), op.attrs.getInt("fold")));
  }
  return blake3(text + fmt::format("{}", fmt::join(orders, "\n")));
}

/// JSON is UTF-8, and names of files may be anything.
static void requireUtf8(const json &manifest) {
  const json flat = manifest.flatten();
  for (const auto &[key, value] : flat.items())
    if (const auto *text = value.get_ptr<const std::string *>(); text && !llvm::json::isUTF8(*text))
      throw UserError(ErrorCode::Unwritable,
                      fmt::format("{} = {} is not UTF-8, as a plan's manifest must be",
                                  llvm::StringRef(key).rsplit('/').second.str(), llvm::json::fixUTF8(*text)),
                      "rename the file or folder, or name another");
}

void writePlan(const std::string &dir, Plan &plan, const std::string &secret) {
  GPTC_CHECK(plan.joint && plan.planned, "a plan needs both modules");
  for (const Module *m : {plan.joint.get(), plan.planned.get()})
    for (const std::string &problem : verify(*m))
      GPTC_UNREACHABLE("writing an invalid plan: {}", problem);
  GPTC_CHECK(planProblem(*plan.planned).empty(), "{}", planProblem(*plan.planned));
  GPTC_CHECK(settingsProblem(plan.run).empty(), "{}", settingsProblem(plan.run));
  GPTC_CHECK(hfFilesProblem(plan.hf).empty(), "{}", hfFilesProblem(plan.hf));

  plan.dir = absolutePath(dir);
  while (plan.dir.size() > 1 && plan.dir.back() == '/')
    plan.dir.pop_back();
  std::error_code e;
  if (fs::exists(plan.dir, e) &&
      !(fs::is_directory(plan.dir, e) && (fs::is_empty(plan.dir, e) || fs::exists(plan.dir + "/manifest.json", e))))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} exists and is no plan", plan.dir),
                    "remove it, or choose another name with -o");

  std::string joint = print(*plan.joint), planned = print(*plan.planned), schedules = schedulesText(*plan.planned);
  plan.hash = blake3(planned);
  json manifest = {
      {"schema", kSchema},
      {"name", fact<&ModelFacts::name>(*plan.planned)},
      {"target", targetToJson(plan.target)},
      {"run", settingsToJson(plan.run)},
      {"model", plan.model},
      {"files", {{"joint.gir", blake3(joint)}, {kPlannedFile, plan.hash}, {"schedules.json", blake3(schedules)}}}};
  for (const auto &[name, text] : plan.hf)
    manifest["files"][fmt::format("{}/{}", kHfFolder, name)] = blake3(text);
  if (!plan.madeFrom.empty())
    manifest["made_from"] = plan.madeFrom;
  requireUtf8(manifest);
  if (!secret.empty())
    manifest["mark"] = manifestMark(manifest, secret);
  manifest["blake3"] = manifestChecksum(manifest);

  AtomicDir out(plan.dir);
  auto write = [&](const std::string &name, const std::string &content) { writeSynced(out.file(name), content); };
  write("joint.gir", joint);
  write(kPlannedFile, planned);
  write("schedules.json", schedules);
  if (!plan.hf.empty())
    makeFolder(out.file(kHfFolder));
  for (const auto &[name, text] : plan.hf)
    write(fmt::format("{}/{}", kHfFolder, name), text);
  if (!plan.hf.empty())
    syncDir(out.file(kHfFolder));
  write("manifest.json", manifest.dump(2) + "\n");
  out.commit();
}

bool isPlanFolder(const std::string &path) {
  std::error_code e;
  return fs::exists(fs::path(path) / kPlannedFile, e);
}

bool isGivenAsPlan(const std::string &path) {
  std::error_code e;
  return fs::is_directory(path, e);
}

Plan loadPlan(const std::string &dir, const std::string &secret) {
  Plan plan;
  plan.dir = absolutePath(dir);
  while (plan.dir.size() > 1 && plan.dir.back() == '/')
    plan.dir.pop_back();
  std::error_code e;
  if (!fs::is_directory(plan.dir, e))
    throw UserError(ErrorCode::FileMissing, fmt::format("there is no plan {}", dir),
                    "make one: `gptc compile model.toml -o PLAN`");

  FileText text = readTextFile(plan.dir + "/manifest.json", kManifestLimit);
  if (!text.ok) {
    if (!fs::exists(plan.dir + "/manifest.json", e))
      throw UserError(ErrorCode::FileMissing, fmt::format("{} is no plan: it has no manifest.json", dir),
                      "make one: `gptc compile model.toml -o PLAN`");
    damaged(dir, "manifest.json: " + text.why);
  }
  try {
    json manifest = parseJson<json>(text.text);
    if (manifest.at("schema") != kSchema)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("the plan {} has schema {}, this gptrun reads schema {}", dir,
                                  manifest.at("schema").dump(), kSchema),
                      "compile it again with this version's `gptc compile`");
    if (manifest.at("blake3") != manifestChecksum(manifest))
      damaged(dir, "manifest.json does not match its own checksum");
    plan.madeHere = !secret.empty() && manifest.value("mark", "") == manifestMark(manifest, secret);
    plan.target = targetFromJson(manifest.at("target"));
    if (plan.target.name != "cpu" && !plan.target.isCuda())
      damaged(dir, fmt::format("it is for the unknown target {}", plan.target.name));
    if (std::string p = targetProblem(plan.target); !p.empty())
      damaged(dir, p);
    plan.run = settingsFromJson(manifest.at("run"));
    if (std::string p = settingsProblem(plan.run); !p.empty())
      damaged(dir, p);
    plan.model = manifest.at("model").get<std::vector<std::string>>();
    plan.madeFrom = manifest.value("made_from", "");

    auto checked = [&](const std::string &name) {
      FileText f = readTextFile(plan.dir + "/" + name, kTextLimit);
      if (!f.ok)
        damaged(dir, fmt::format("{}: {}", name, f.why));
      if (json(blake3(f.text)) != manifest.at("files").at(name))
        damaged(dir, fmt::format("{} does not match its checksum", name));
      return std::move(f.text);
    };
    std::string planned = checked(kPlannedFile);
    plan.hash = blake3(planned);
    plan.joint = readModule(dir, "joint.gir", checked("joint.gir"));
    plan.planned = readModule(dir, kPlannedFile, planned);
    for (const auto &[name, hash] : manifest.at("files").items())
      if (llvm::StringRef file = name; file.consume_front(std::string(kHfFolder) + "/")) {
        if (file.contains('/'))
          damaged(dir, fmt::format("manifest.json names {}", name));
        plan.hf[file.str()] = checked(name);
      }
    if (std::string p = hfFilesProblem(plan.hf); !p.empty())
      damaged(dir, p);
    if (checked("schedules.json") != schedulesText(*plan.planned))
      damaged(dir, "schedules.json does not agree with planned.gir");
  } catch (const json::exception &x) {
    damaged(dir, "manifest.json: " + problemOf(x, text.text));
  }
  if (std::string p = planProblem(*plan.planned); !p.empty())
    damaged(dir, p);
  if (auto problems = checkPlan(*plan.planned); !problems.empty())
    damaged(dir, problems[0]);
  if (!plan.target.isCuda() && hasFact<&MemoryFacts::hostBytes>(*plan.planned))
    damaged(dir, "it has a second arena, which only plans for GPUs have");
  for (const PlannedKernel &k : kernelsOf(*plan.planned))
    if (Schedule s; !Schedule::parse(k.schedule, s))
      damaged(dir, fmt::format("kernel {} has no valid schedule", k.name));

  eachPath(plan.run, [&](std::string &path) {
    if (path[0] != '/')
      path = absolutePath(plan.dir + "/" + path);
  });
  return plan;
}

}  // namespace gptc
