#include "runtime/checkpoint/checkpoint.h"

#include "ir/facts.h"
#include "ir/label_keys.h"
#include "ir/mesh.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/extra_tensors.h"
#include "runtime/checkpoint/file_layout.h"
#include "runtime/checkpoint/gguf_weights.h"
#include "runtime/checkpoint/new_layers.h"
#include "runtime/checkpoint/places.h"
#include "runtime/checkpoint/quantized_weights.h"
#include "runtime/checkpoint/state.h"
#include "runtime/checkpoint/state_tensors.h"
#include "runtime/collectives/communicator.h"
#include "runtime/device/executor.h"
#include "runtime/plan/manifest.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json_problem.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <mutex>
#include <set>
#include <sys/statvfs.h>
#include <unistd.h>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr int kSchema = 3;  // 1: always of one rank; 1 and 2: no state/, and no description of the model
constexpr size_t kManifestLimit = 64 << 20;  // bytes; it may list very many data files

/// Reads state `s` from tensors that have no problem.
void readState(Executor &executor, const QuantizedWeights &few, const State &s, const StateTensors &tensors) {
  const Type type = wholeType(s);
  if (const QuantizedWeight *quantized = few.of(s); quantized || isInFiles(s)) {
    std::vector<float> values(size_t(type.elements())), padded(isDense(type) ? 0 : size_t(type.paddedElements()));
    tensors.readWide(values.data(), executor.threads());
    if (!padded.empty())
      copyToPadded(type.withDType(DType::f32), values.data(), padded.data());
    const std::vector<float> &whole = padded.empty() ? values : padded;
    const std::vector<float> part = isPiece(s) ? ownPart(executor, s, whole.data()) : std::vector<float>();
    const float *all = isPiece(s) ? part.data() : whole.data();
    return quantized ? storeQuantized(executor, *quantized, all) : storePanels(executor, s, all);
  }
  const Piece own = Piece::of(s, Mesh::of(executor.planned()), executor.ranks ? executor.ranks->rank : 0);
  if (isPiece(s) && (type.rank() == 1 || type.rank() == 2) && tensors.areWhole()) {
    const StateView view(executor, s, StateAccess::readAndWrite);
    return tensors.read(view.data, Places(s, own), executor.threads());
  }
  const bool padded = !isDense(type);
  std::vector<char> whole(isPiece(s) ? type.bytes() : 0), dense;
  // Padding at the end is zero from the start.
  std::optional<StateView> view;
  if (!isPiece(s))
    view.emplace(executor, s,
                 type.elements() == type.paddedElements() ? StateAccess::write : StateAccess::readAndWrite);
  void *all = view ? view->data : whole.data();
  if (padded)
    dense.resize(type.elements() * sizeOf(type.dtype));
  tensors.read(padded ? dense.data() : all, &own, &executor.threads());
  if (padded)
    copyToPadded(type, dense.data(), all);
  if (isPiece(s))
    storeWhole(executor, s, all);
}

/// Whether it is a moment of outer steps (passes/outer_steps.cpp).
bool isOfOuterSteps(llvm::StringRef name) { return name.starts_with("outer."); }

/// Whether it is what compression left out of earlier gradients (passes/compress_gradients.cpp).
bool isErrorOfGradients(llvm::StringRef name) { return name.starts_with("error."); }

/// Whether a checkpoint of another plan may lack this counter, of which the runtime itself sets the two named ones, or
/// this moment: outer steps (passes/outer_steps.cpp) may begin with any step.
bool startsAfresh(const State &s) {
  if (kindOf(s) == StateKind::moment)
    return isOfOuterSteps(s.name);
  return kindOf(s) == StateKind::counter && fact<&InitialFacts::init>(s) != Initial::normal && s.name != "step" &&
         s.name != "rng_seed";
}

/// The keys of [model] in a manifest. In earlier versions norms had one fixed epsilon, which manifests do not mention.
std::map<std::string, std::string> modelKeysOf(const json &manifest) {
  auto keys = manifest.value("model_keys", std::map<std::string, std::string>());
  if (keys.count("norm"))
    keys.try_emplace("norm_eps", textOf(Attr(1e-5)));
  return keys;
}

/// Whether a model that does not mention the key agrees with its default. Those of a part of a model need not.
bool standsForDefault(const std::string &key, const ModelIdentity &model) {
  const FactSpec *f = findFact(moduleFacts(), key);
  return f && f->unlessDefault && model.keys.count("norm") && !model.keys.count(key);
}

/// How two models differ in the keys that both have or that stand for their defaults, `n_head is 4 there and 2 in the
/// plan`, "" if they agree; `remedy` gets the settings that undo it.
std::string differenceOf(const ModelIdentity &there, const ModelIdentity &here, std::string &remedy) {
  std::vector<std::string> differences, settings;
  for (auto &[key, value] : here.keys)
    if (auto t = there.keys.find(key); t != there.keys.end() && t->second != value) {
      differences.push_back(fmt::format("{} is {} there and {} in the plan", key, t->second, value));
      settings.push_back(fmt::format("model.{} = {}", key, t->second));
    } else if (standsForDefault(key, there)) {
      differences.push_back(fmt::format("{} has its default there and is {} in the plan", key, value));
      settings.push_back(fmt::format("the default of model.{}", key));
    }
  for (auto &[key, value] : there.keys)
    if (standsForDefault(key, here)) {
      differences.push_back(fmt::format("{} is {} there and has its default in the plan", key, value));
      settings.push_back(fmt::format("model.{} = {}", key, value));
    }
  if (!settings.empty())
    remedy = fmt::format("compile the plan again with {}", fmt::join(settings, ", "));
  return fmt::format("{}", fmt::join(differences, "; "));
}

/// Notes for the user on states that were not read unchanged.
std::vector<std::string> notesOn(const ModelIdentity &there, const ModelIdentity &here,
                                 llvm::ArrayRef<const State *> read, llvm::ArrayRef<const State *> fresh,
                                 const TensorFiles &file) {
  std::vector<std::string> notes, unsaid, names, values;
  for (auto &[key, value] : here.keys)
    if (!there.keys.count(key) && !standsForDefault(key, there))
      unsaid.push_back("model." + key);
  if (!unsaid.empty())
    notes.push_back(fmt::format("the checkpoint does not say {}: taken to be the plan's", fmt::join(unsaid, ", ")));
  for (const State *s : read) {
    const DType from = StateTensors(*s, file).found()[0]->dtype, to = s->type.dtype;
    const std::string note =
        fmt::format("moments are {} in the checkpoint and {} in the plan: {}", nameOf(from).str(), nameOf(to).str(),
                    sizeOf(from) < sizeOf(to) ? "widened, which is exact" : "rounded to nearest");
    if (from != to && (notes.empty() || notes.back() != note))
      notes.push_back(note);
  }
  using Dropped = std::pair<bool (*)(llvm::StringRef), const char *>;
  for (const auto &[isOne, what] : {Dropped(isOfOuterSteps, "the moments of outer steps"),
                                    Dropped(isErrorOfGradients, "the errors of compressed gradients")})
    if (llvm::any_of(file.all(), [&](const TensorInfo *t) { return isOne(t->name); }) &&
        llvm::none_of(read, [&](const State *s) { return isOne(s->name); }))
      notes.push_back(fmt::format("{} in the checkpoint are dropped: the plan has none", what));
  for (const State *s : fresh)
    if (const char *outer = "the moments of outer steps"; kindOf(*s) != StateKind::moment)
      names.push_back(s->name), values.push_back(fmt::format("{:g}", constantValue(*s)));
    else if (!llvm::is_contained(names, outer))
      names.push_back(outer), values.push_back("0");
  if (!names.empty())
    notes.push_back(
        fmt::format("not in the checkpoint: {}; starting at {}", fmt::join(names, ", "), fmt::join(values, ", ")));
  return notes;
}

/// The optimizer whose moments the plan has.
std::string optimizerOf(const Module &planned) {
  return std::string(nameOf(fact<&OptimizerFacts::optimizer>(planned)));
}

/// The first rank's values, on all ranks.
std::vector<int64_t> ofFirst(Communicator *ranks, std::vector<int64_t> values) {
  if (!ranks)
    return values;
  int64_t count = int64_t(values.size());
  ranks->run({{Collective::Kind::broadcast, &count, &count, 1, DType::i64, 0}}, SumOrder::fast);
  values.resize(count);
  if (count)
    ranks->run({{Collective::Kind::broadcast, values.data(), values.data(), values.size(), DType::i64, 0}},
               SumOrder::fast);
  return values;
}

struct Manifest {
  CheckpointInfo info;
  std::string optimizer;
  int64_t ranksApart = 1;
  std::vector<std::pair<std::string, std::string>> files;  // with their checksums
};

/// `step`: the step in the folder's name, checked against the manifest; -1: unknown. Throws UserErrors
/// CheckpointDamaged and NotBuiltYet.
Manifest readManifest(const std::string &dir, int64_t step) {
  auto damaged = [&](const std::string &what) {
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", dir, what));
  };
  const FileText text = readTextFile(dir + "/" + kManifestFile, kManifestLimit);
  if (!text.ok)
    damaged("manifest.json: " + text.why);
  Manifest m;
  m.info.dir = dir;
  try {
    const json manifest = parseJson<json>(text.text);
    if (manifest.at("blake3") != manifestChecksum(manifest))
      damaged("manifest.json does not match its own checksum");
    if (const int64_t schema = manifest.at("schema"); schema < 1 || schema > kSchema)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("{} has schema {}, this version reads {}", dir, schema, kSchema));
    m.info.step = manifest.at("step");
    m.info.planHash = manifest.at("plan");
    m.info.model.parameters = manifest.at("model");
    m.info.model.keys = modelKeysOf(manifest);
    m.info.dataFingerprint = manifest.at("data");
    m.info.data.files = filePrintsOf(manifest.value("data_files", json::array()));
    m.info.data.tokenizer = manifest.value("tokenizer", "");
    m.info.results = manifest.value("results", "");
    m.info.earlierPlans = manifest.value("earlier_plans", m.info.earlierPlans);
    if (manifest.contains("val_loss"))
      m.info.valLoss = manifest.at("val_loss").get<double>();
    m.optimizer = manifest.value("optimizer", "adamw");
    m.ranksApart = manifest.value("ranks_apart", m.ranksApart);
    for (auto &[name, checksum] : manifest.at("files").items()) {
      llvm::StringRef file = name;
      file.consume_front(std::string(kStateFolder) + "/");
      if (file.contains('/') || file == "..")
        damaged(fmt::format("manifest.json names {}", name));
      m.files.emplace_back(name, checksum);
    }
  } catch (const json::exception &e) {
    damaged("manifest.json: " + problemOf(e, text.text));
  } catch (const std::invalid_argument &e) {
    damaged(fmt::format("manifest.json: {}", e.what()));
  }
  if (step >= 0 && m.info.step != step)
    damaged(fmt::format("its manifest speaks of step {}", m.info.step));
  return m;
}

/// The text of a manifest, with its checksum.
std::string textOfManifest(json manifest) {
  manifest["blake3"] = manifestChecksum(manifest);
  return manifest.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

/// Whether a file of a checkpoint holds tensors of this kind: "model" or "optimizer".
bool isTensors(llvm::StringRef name, llvm::StringRef kind) {
  name.consume_front(std::string(kStateFolder) + "/");
  return name.starts_with(kind) && name.ends_with(".safetensors");
}

/// Whether training goes on from this file: not from the description of the model, which people edit.
bool isRead(llvm::StringRef name, bool parametersOnly) {
  return isTensors(name, "model") || name == kIndexFile || (!parametersOnly && isTensors(name, "optimizer"));
}

void requireIntact(const Manifest &m, const std::string &name, const std::string &checksum) {
  if (InputFile(m.info.dir + "/" + name, "checkpoint").hash() != checksum)
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {} does not match its checksum", m.info.dir, name));
}

TensorFiles tensorsOf(const Manifest &m, llvm::StringRef stem) {
  std::vector<std::string> paths;
  for (auto &[name, checksum] : m.files)
    if (isTensors(name, stem))
      paths.push_back(m.info.dir + "/" + name);
  if (paths.empty())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: no file of {}", m.info.dir, stem.str()));
  return TensorFiles(paths);
}

/// Reads the manifest and verifies its files. The ranks share the reading, and all get the same result: if one finds
/// damage, all throw CheckpointDamaged.
Manifest verifiedManifest(const std::string &dir, int64_t step, bool parametersOnly, Communicator *ranks) {
  Manifest m;
  std::optional<UserError> problem;
  try {
    m = readManifest(dir, step);
    size_t number = 0;
    for (auto &[name, checksum] : m.files)
      if (isRead(name, parametersOnly) && int64_t(number++) % (ranks ? ranks->world : 1) == (ranks ? ranks->rank : 0))
        requireIntact(m, name, checksum);
  } catch (const UserError &e) {
    problem = e;
  }
  int64_t finder = problem && ranks ? ranks->rank + 1 : 0;
  if (ranks) {
    std::vector<int64_t> all(ranks->world);
    ranks->run({{Collective::Kind::all_gather, &finder, all.data(), 1, DType::i64}}, SumOrder::fast);
    finder = *std::max_element(all.begin(), all.end());
  }
  if (!problem && finder)
    problem.emplace(ErrorCode::CheckpointDamaged, fmt::format("{}: rank {} finds it damaged", dir, finder - 1));
  if (problem)
    throw *problem;
  return m;
}

constexpr const char *kLatest = "latest", *kBest = "best";  // links

std::string temporaryOf(const std::string &link) { return "." + link + ".tmp"; }

std::string nameOfStep(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> stepOf(llvm::StringRef name) {
  int64_t step;
  if (!name.consume_front("step-") || name.empty() || name.getAsInteger(10, step) || step < 0)
    return std::nullopt;
  return step;
}

}  // namespace

std::vector<std::string> CheckpointInfo::plansBefore(const std::string &plan) const {
  constexpr size_t most = 64;  // bound for users who try plan after plan
  std::vector<std::string> r = ownPlans();
  std::erase(r, plan);
  if (r.size() > most)
    r.erase(r.begin(), r.end() - most);
  return r;
}

std::vector<std::string> CheckpointInfo::ownPlans() const {
  std::vector<std::string> r = earlierPlans;
  std::erase(r, planHash);
  r.push_back(planHash);
  return r;
}

CheckpointStore::CheckpointStore(const std::string &outDir) : folder(outDir + "/checkpoints") {}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> r;
  std::error_code e;
  for (const auto &entry : fs::directory_iterator(folder, e))
    if (auto s = stepOf(entry.path().filename().string()))
      r.push_back(*s);
  std::sort(r.rbegin(), r.rend());
  return r;
}

void CheckpointStore::cleanUp() const {
  std::error_code e;
  std::vector<fs::path> stale;
  for (const auto &entry : fs::directory_iterator(folder, e))
    if (const std::string name = entry.path().filename();
        name.starts_with(".step-") || name == temporaryOf(kLatest) || name == temporaryOf(kBest))
      stale.push_back(entry.path());
    else if (name.starts_with("step-") && !entry.is_symlink(e))
      for (const auto &file : fs::directory_iterator(entry.path(), e))
        if (file.path().filename().string().starts_with(std::string(kManifestFile) + ".tmp"))
          stale.push_back(file.path());
  for (const fs::path &p : stale)
    removeTree(p.string());
}

std::string CheckpointStore::pathOf(int64_t step) const { return folder + "/" + nameOfStep(step); }

void CheckpointStore::requireSpace(int64_t bytes) const {
  makeDirs(folder);
  struct statvfs v{};
  if (::statvfs(folder.c_str(), &v) != 0)
    return;
  int64_t room = int64_t(v.f_bavail) * int64_t(v.f_frsize);
  if (room < bytes)
    throw UserError(
        ErrorCode::DiskFull,
        fmt::format("a checkpoint needs {} and {} are free under {}", formatBytes(double(bytes)),
                    formatBytes(double(room)), folder),
        "free some space, or lower checkpoint.keep; older checkpoints are untouched and the run can be resumed from "
        "them");
}

void CheckpointStore::save(Executor &executor, const CheckpointInfo &info) const {
  const HfFiles none;
  CheckpointSaver(executor, *this, false, none).save(info, 0);
}

void CheckpointStore::complete(AtomicDir &dir, const CheckpointInfo &info, const Module &planned,
                               const std::map<std::string, std::string> &files) const {
  json manifest = {{"schema", kSchema},
                   {"step", info.step},
                   {"plan", info.planHash},
                   {"model", info.model.parameters},
                   {"model_keys", info.model.keys},
                   {"optimizer", optimizerOf(planned)},
                   {"data", info.dataFingerprint},
                   {"results", info.results},
                   {"files", files}};
  if (info.data.known())
    manifest["data_files"] = jsonOf(info.data.files);
  if (!info.data.tokenizer.empty())
    manifest["tokenizer"] = info.data.tokenizer;
  if (!info.earlierPlans.empty())
    manifest["earlier_plans"] = info.earlierPlans;
  if (const int64_t apart = ranksApart(planned); apart > 1)
    manifest["ranks_apart"] = apart;
  if (info.valLoss && std::isfinite(*info.valLoss))
    manifest["val_loss"] = *info.valLoss;
  writeSynced(dir.file(kManifestFile), textOfManifest(std::move(manifest)));
  dir.commit();
}

void CheckpointStore::noteValidation(int64_t step, double valLoss) const {
  const std::string path = pathOf(step) + "/" + kManifestFile;
  json manifest = parseJsonOrDiscard<json>(readTextFile(path, kManifestLimit).text);
  if (!manifest.is_object())
    return;
  manifest.erase("blake3");
  manifest["val_loss"] = valLoss;
  writeFileAtomically(path, textOfManifest(std::move(manifest)));
}

std::optional<int64_t> CheckpointStore::best(const std::vector<std::string> *plans) const {
  std::optional<int64_t> best;
  double least = 0;
  for (int64_t step : steps())
    try {
      const CheckpointInfo info = readManifest(pathOf(step), step).info;
      const bool counts = info.valLoss && (!plans || llvm::is_contained(*plans, info.planHash));
      if (counts && (!best || *info.valLoss < least)) {
        best = step;
        least = *info.valLoss;
      }
    } catch (const UserError &) {  // reported when it is loaded
    }
  return best;
}

std::string CheckpointStore::updateLinks() const {
  static std::mutex oneAtATime;  // the thread that saves, and the one that evaluates
  const std::lock_guard<std::mutex> lock(oneAtATime);
  const std::vector<int64_t> all = steps();
  std::string problem;
  for (const auto &[name, step] :
       {std::pair(kLatest, all.empty() ? std::nullopt : std::optional(all[0])), std::pair(kBest, best())}) {
    const fs::path link = fs::path(folder) / name, temporary = fs::path(folder) / temporaryOf(name);
    std::error_code e;
    const fs::file_status there = fs::symlink_status(link, e);
    const std::string target = step ? nameOfStep(*step) : "",
                      now = fs::is_symlink(there) ? fs::read_symlink(link, e).string() : "";
    if (target == now)
      continue;
    if (fs::exists(there) && !fs::is_symlink(there)) {
      problem = fmt::format("{} is no link", link.string());
    } else if (!step) {
      if (stepOf(now))
        fs::remove(link, e);
    } else {
      ::unlink(temporary.c_str());
      if (::symlink(target.c_str(), temporary.c_str()) != 0 || ::rename(temporary.c_str(), link.c_str()) != 0) {
        problem = fmt::format("{} cannot be made: {}", link.string(), strerror(errno));
        ::unlink(temporary.c_str());
      }
    }
  }
  return problem;
}

void CheckpointStore::setAsideBeyond(int64_t step) const {
  for (int64_t s : steps())
    if (s > step) {
      const std::string aside = folder + "/damaged-" + nameOfStep(s);
      removeTree(aside);
      replaceFile(folder + "/" + nameOfStep(s), aside);
    }
}

void CheckpointStore::prune(int64_t keep, const std::vector<std::string> &plans) const {
  auto isOurs = [&](int64_t step) {
    try {
      return llvm::is_contained(plans, readManifest(pathOf(step), step).info.planHash);
    } catch (const UserError &) {
      return false;  // damaged: its owner is unknown
    }
  };
  std::vector<int64_t> all = steps();
  if (all.size() <= size_t(keep))
    return;
  const std::optional<int64_t> spared = best(&plans);
  for (size_t i = keep; i < all.size(); ++i) {
    if (all[i] == spared)
      continue;
    if (!isOurs(all[i]))
      continue;
    // Renamed first, so that an interrupted removal leaves nothing that looks like a checkpoint.
    std::string old = folder + "/" + nameOfStep(all[i]), gone = folder + "/." + nameOfStep(all[i]) + ".removed";
    removeTree(gone);
    if (::rename(old.c_str(), gone.c_str()) == 0)
      removeTree(gone);
  }
}

/// Loads the checkpoint in `dir`, for all ranks together, as CheckpointStore::loadNewest does. `step`: see
/// readManifest.
static CheckpointInfo loadOne(Executor &executor, const std::string &dir, int64_t step, const ModelIdentity &model,
                              bool parametersOnly) {
  const Module &planned = executor.planned();
  const Manifest manifest = verifiedManifest(dir, step, parametersOnly, executor.ranks);
  CheckpointInfo info = manifest.info;
  auto mismatch = [&](const std::string &what, const std::string &remedy) {
    Diagnostic d{
        ErrorCode::CheckpointMismatch, fmt::format("{} is a checkpoint of {}", info.dir, what), {}, "", {}, {}};
    if (!remedy.empty())
      d.help.push_back(remedy);
    if (!parametersOnly)
      d.help.push_back(
          "or train elsewhere, with --out-dir, or start over with --resume never (the old files are kept aside)");
    throw UserError(d);
  };
  std::string remedy;
  if (const std::string was = manifest.optimizer, is = optimizerOf(planned); !parametersOnly && was != is)
    mismatch(fmt::format("another optimizer: {} there and {} in the plan", was, is),
             fmt::format("compile the plan again with optimizer.name = \"{}\", or begin another run with these "
                         "weights: model.init_from = \"ckpt:{}\"",
                         was, info.dir));
  if (std::string what = parametersOnly ? "" : differenceOfRanks(manifest.ranksApart, planned, remedy); !what.empty())
    mismatch(what, fmt::format("{}, or begin another run with these weights: model.init_from = \"ckpt:{}\"", remedy,
                               info.dir));
  if (std::string different = differenceOf(info.model, model, remedy); !different.empty())
    mismatch("another model: " + different, remedy);
  const TensorFiles parameters = tensorsOf(manifest, "model");
  std::optional<TensorFiles> optimizer;
  std::vector<const State *> read = savedStates(planned, true), fresh;
  const size_t parameterStates = read.size();
  for (const State *s : read)
    if (std::string problem = StateTensors(*s, parameters).problem(); !problem.empty())
      mismatch("another model: " + problem, "");
  if (info.model.parameters != model.parameters)
    mismatch("another model: it has parameters that the plan lacks", "");
  if (!parametersOnly) {
    optimizer.emplace(tensorsOf(manifest, "optimizer"));
    for (const State *s : savedStates(planned, false)) {
      if (startsAfresh(*s) && !optimizer->find(s->name)) {
        fresh.push_back(s);
        continue;
      }
      if (std::string problem = StateTensors(*s, *optimizer).problem(); !problem.empty())
        mismatch("another optimizer: " + problem, "");
      read.push_back(s);
    }
  }
  // All checks have passed: now change the executor's states.
  const QuantizedWeights few(planned);
  for (size_t i = 0; i < read.size(); ++i)
    readState(executor, few, *read[i], StateTensors(*read[i], i < parameterStates ? parameters : *optimizer));
  for (const State *s : fresh)
    fillConstantState(executor, *s);
  fillCopies(executor);
  info.notes = notesOn(info.model, model, llvm::ArrayRef(read).drop_front(parameterStates), fresh,
                       optimizer ? *optimizer : parameters);
  return info;
}

CheckpointStore::Published CheckpointStore::published(const std::string &dir) {
  const Manifest manifest = readManifest(dir, -1);
  Published p;
  for (const auto &[name, checksum] : manifest.files) {
    const bool weights = isTensors(name, "model"), described = !weights && !isRead(name, false);
    if (weights || described)
      requireIntact(manifest, name, checksum);
    const std::string path = dir + "/" + name;
    if (weights)
      p.weights.push_back(path);
    else if (described)
      p.described[name] = readInput(path, "description of the model", kTokenizerLimit);
  }
  p.info = manifest.info;
  if (p.weights.empty())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: no file of weights", dir));
  if (const std::string problem = hfFilesProblem(p.described); !problem.empty())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", dir, problem));
  return p;
}

CheckpointInfo CheckpointStore::load(Executor &executor, const ModelIdentity &model, int64_t step) const {
  return loadOne(executor, pathOf(step), step, model, false);
}

CheckpointInfo CheckpointStore::loadParameters(Executor &executor, const ModelIdentity &model, int64_t step) const {
  return loadOne(executor, pathOf(step), step, model, true);
}

CheckpointInfo CheckpointStore::loadParameters(Executor &executor, const ModelIdentity &model, const std::string &dir) {
  return loadOne(executor, dir, -1, model, true);
}

std::optional<CheckpointInfo> CheckpointStore::loadNewest(Executor &executor, const ModelIdentity &model,
                                                          bool parametersOnly,
                                                          const std::function<void(const std::string &)> &warn,
                                                          int64_t atMost) const {
  std::vector<int64_t> all = steps();
  if (atMost >= 0)
    std::erase_if(all, [&](int64_t step) { return step > atMost; });
  all = ofFirst(executor.ranks, all);
  for (int64_t step : all) {
    try {
      return loadOne(executor, pathOf(step), step, model, parametersOnly);
    } catch (const UserError &e) {
      ErrorCode code = e.diagnostics[0].code;
      if (code != ErrorCode::CheckpointDamaged && code != ErrorCode::FileMissing)
        throw;
      warn(fmt::format("passing over a damaged checkpoint: {}", e.diagnostics[0].message));
    }
  }
  if (!all.empty())
    throw UserError(ErrorCode::CheckpointDamaged,
                    fmt::format("none of the {} checkpoints under {} is whole", all.size(), folder),
                    "restore one from a copy, or start over with --resume never (the old files are kept aside)");
  return std::nullopt;
}

/// At most three names.
static std::string joined(const std::vector<std::string> &names) {
  const size_t shown = std::min<size_t>(names.size(), 3);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + shown, ", "),
                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

[[noreturn]] static void doesNotFit(const std::string &path, const std::string &why, const std::string &remedy) {
  throw UserError(ErrorCode::CheckpointMismatch, fmt::format("{} does not fit the model{}", path, why), remedy);
}

/// Checks the tensors of a model's parameters in `file`, by its headers alone but for a tied head, whose content is
/// compared. With `begins` it returns the parameters that are in no file and may be so.
static std::vector<const State *> checkTensors(const Module &m, const std::string &path, const TensorFiles &file,
                                               const std::string &remedy, bool begins) {
  std::set<std::string> taken;
  TensorsOfHead heads;
  std::vector<std::string> missing;
  const bool headless = isHeadless(m);
  bool onlyHead = !headless;  // what is missing is the head of tokens
  for (const State *s : savedStates(m, true)) {
    const StateTensors tensors(*s, file, true);
    if (const std::string what = tensors.unbuilt(); !what.empty())
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: {}", path, what),
                      "take weights of f32, bf16 or f16, or convert them: in PyTorch, model.to(torch.bfloat16)");
    const std::vector<std::string> absent = tensors.missing();
    missing.insert(missing.end(), absent.begin(), absent.end());
    const llvm::StringRef name = s->name;
    onlyHead &= absent.empty() || name.starts_with("lm_head.") || name.starts_with("head.");
    if (const std::string problem = tensors.problem(); absent.empty() && !problem.empty())
      doesNotFit(path, ": " + problem, remedy);
    const std::vector<const TensorInfo *> found = tensors.found();
    heads.take(name, found);
    for (const TensorInfo *t : found)
      taken.insert(t->name);
  }
  const std::vector<const State *> fresh = begins ? takeNewLayers(m, file, missing) : std::vector<const State *>();
  if (!missing.empty())
    doesNotFit(path,
               fmt::format(": {}", missing.size() > 1 ? fmt::format("tensors {} are missing", joined(missing))
                                                      : fmt::format("tensor {} is missing", missing[0])),
               onlyHead ? "take a folder with the head that gives tokens: models that only encode have none, and "
                          "`gptrun embed` takes them"
                        : remedy);
  std::vector<std::string> left;
  for (const TensorInfo *t : file.all())
    if (!taken.count(t->name) && !isBesideModel(t->name, t->shape, headless) && !heads.areRepeatedBy(file, *t))
      left.push_back(t->name);
  for (const auto &[name, t] : file.unreadable())
    if (!isBesideModel(name, t.shape, headless))
      left.push_back(fmt::format("{} ({})", name, t.dtype));
  if (!left.empty())
    doesNotFit(path, fmt::format(", which has no place for tensor{} {}", left.size() > 1 ? "s" : "", joined(left)),
               remedy);
  return fresh;
}

bool checkWeights(const Module &m, const std::string &path, const std::string &remedy, bool begins) {
  if (isGguf(path))
    return checkGguf(m, path, remedy);
  std::error_code e;
  const TensorFiles file(fs::is_directory(path, e) ? weightFiles(path) : std::vector{path});
  checkTensors(m, path, file, remedy, begins);
  return llvm::any_of(savedStates(m, true), [&](const State *s) {
    return s->type.rank() > 1 && s->name != "wpe.weight" &&
           llvm::any_of(StateTensors(*s, file, true).found(), [](const TensorInfo *t) { return sizeOf(t->dtype) > 2; });
  });
}

/// The value of a key; 0 if it is no number.
static int64_t numberOf(llvm::StringRef text) {
  int64_t n = 0;
  return text.getAsInteger(10, n) ? 0 : n;
}

/// Windows of `context` tokens and more hide nothing, and config.json does not tell them apart. Such a one may still
/// say which layers rotate otherwise.
static void settleWindow(std::map<std::string, std::string> &keys, int64_t context) {
  const auto window = keys.find("window");
  if (window == keys.end() || numberOf(window->second) < context)
    return;
  window->second = std::to_string(context);
  if (!keys.count("window_rope_theta"))
    keys.erase("layers_without_window"), keys.erase(window);
}

/// The parameters that keep their values, as they may with `begins`.
static std::vector<const State *> load(Executor &executor, const std::string &path, ModelIdentity model, bool begins) {
  if (isGguf(path)) {
    loadGguf(executor, path);
    return {};
  }
  std::error_code e;
  const bool folder = fs::is_directory(path, e);
  if (folder) {
    // Our own checkpoint states more than the shapes of its tensors.
    FileText text = readTextFile(path + "/" + kManifestFile, kManifestLimit);
    ModelIdentity there;
    const json manifest = parseJsonOrDiscard<json>(text.text);
    if (manifest.is_object() && manifest.contains("model_keys"))
      try {
        there.keys = modelKeysOf(manifest);
      } catch (const json::exception &x) {
        throw UserError(ErrorCode::CheckpointDamaged,
                        fmt::format("{}: manifest.json: {}", path, problemOf(x, text.text)));
      }
    // A model that begins here learns labels from here on, and one that makes vectors needs none.
    const char *const labels = FactAt<&ModelFacts::labels>::name;
    const bool learns = begins && !there.keys.count(labels), tells = begins || model.keys.count(labels);
    for (const char *key : kLabelKeys) {
      if (learns)
        model.keys.erase(key);
      if (!tells)
        there.keys.erase(key);
    }
    // Of a table of positions the first rows are taken.
    if (const auto [here, longer] = std::pair(model.keys.find("block_size"), there.keys.find("block_size"));
        here != model.keys.end() && longer != there.keys.end() && numberOf(longer->second) > numberOf(here->second))
      longer->second = here->second;
    for (ModelIdentity *m : {&there, &model})
      settleWindow(m->keys, fact<&ModelFacts::blockSize>(executor.planned()));
    std::string remedy;
    if (std::string d = differenceOf(there, model, remedy); !d.empty())
      throw UserError(ErrorCode::CheckpointMismatch, fmt::format("{} is a checkpoint of another model: {}", path, d),
                      remedy);
  }
  const TensorFiles file(folder ? weightFiles(path) : std::vector{path});
  const std::vector<const State *> fresh =
      checkTensors(executor.planned(), path, file,
                   "the sizes in [model] (and bias, tie_embeddings) must be those of the weights", begins);
  const QuantizedWeights few(executor.planned());
  for (const State *s : savedStates(executor.planned(), true))
    if (!llvm::is_contained(fresh, s))
      readState(executor, few, *s, StateTensors(*s, file, true));
  fillCopies(executor);
  return fresh;
}

void loadWeights(Executor &executor, const std::string &path, const ModelIdentity &model) {
  load(executor, path, model, false);
}

std::vector<std::string> beginWithWeights(Executor &executor, const std::string &path, const ModelIdentity &model) {
  std::vector<std::string> notes;
  for (const State *s : load(executor, path, model, true))
    if (llvm::StringRef name = s->name; name.consume_back(".weight"))
      notes.push_back(fmt::format("{} has no {}: it begins at random", path, name.str()));
  return notes;
}

}  // namespace gptc
