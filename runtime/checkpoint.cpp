#include "runtime/checkpoint.h"

#include "ir/diagnostics.h"
#include "runtime/executor.h"
#include "runtime/file_layout.h"
#include "runtime/files.h"
#include "runtime/manifest.h"
#include "runtime/safetensors.h"
#include "runtime/state.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <set>
#include <sys/statvfs.h>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr int kSchema = 1;
constexpr const char *kModelFile = "model.safetensors", *kOptimizerFile = "optimizer.safetensors";

bool isParameter(const State &s) { return s.attrs.getString("kind") == "param"; }
bool isSaved(const State &s) {
  std::string kind = s.attrs.getString("kind");
  // Gradients are zero between steps, a cache belongs to one sample, and low copies follow from the parameters.
  return kind != "grad" && kind != "cache" && kind != "low";
}

std::vector<const State *> selectStates(const Module &m, bool parameters) {
  std::vector<const State *> r;
  for (const auto &s : m.states)
    if (isSaved(*s) && isParameter(*s) == parameters)
      r.push_back(s.get());
  return r;
}

std::string writeStates(const Executor &executor, const std::string &path, bool parameters) {
  std::vector<const State *> states = selectStates(executor.planned(), parameters);
  std::vector<TensorInfo> infos;
  for (const State *s : states)
    for (const FileTensor &t : fileTensors(*s))
      infos.push_back(t.info);
  SafetensorsWriter writer(path, infos, {{"format", "pt"}});
  std::vector<char> dense, tensor;
  for (const State *s : states) {
    const void *data = executor.state(s->name);
    if (!isDense(s->type)) {
      dense.resize(s->type.elements() * sizeOf(s->type.dtype));
      copyFromPadded(s->type, data, dense.data());
      data = dense.data();
    }
    for (const FileTensor &t : fileTensors(*s)) {
      if (isWhole(*s, t)) {
        writer.write(data, t.info.bytes());
        continue;
      }
      tensor.resize(t.info.bytes());
      toFile(*s, t, data, tensor.data());
      writer.write(tensor.data(), tensor.size());
    }
  }
  return writer.finish();
}

/// Reads state `s` from its tensors in `file`; what keeps them from being its content, or "". With `taken`, which gets
/// the tensors' names there, the file is another program's: names perhaps under "transformer.", floats perhaps
/// narrower.
std::string readState(Executor &executor, const State &s, const SafetensorsFile &file,
                      std::set<std::string> *taken = nullptr) {
  const bool foreign = taken != nullptr;
  void *data = executor.state(s.name);
  const bool padded = !isDense(s.type);  // padding behind the end is zero from the beginning
  std::vector<char> dense, tensor;
  if (padded)
    dense.resize(s.type.elements() * sizeOf(s.type.dtype));
  void *to = padded ? dense.data() : data;
  for (const FileTensor &want : fileTensors(s)) {
    const TensorInfo *t = file.find(want.info.name);
    if (!t && foreign)
      t = file.find("transformer." + want.info.name);
    if (!t)
      return fmt::format("tensor {} is missing", want.info.name);
    const bool narrower = foreign && s.type.dtype == DType::f32 && (t->dtype == DType::bf16 || t->dtype == DType::f16);
    if (t->shape != want.info.shape || (t->dtype != want.info.dtype && !narrower))
      return fmt::format("tensor {} is {}[{}] where the model has {}[{}]", want.info.name, nameOf(t->dtype).str(),
                         fmt::join(t->shape, ","), nameOf(want.info.dtype).str(), fmt::join(want.info.shape, ","));
    if (taken)
      taken->insert(t->name);
    if (isWhole(s, want) && !narrower) {
      file.read(*t, to);
      continue;
    }
    tensor.resize(t->bytes());
    file.read(*t, tensor.data());
    fromFile(s, want, t->dtype, tensor.data(), to);
  }
  if (padded)
    copyToPadded(s.type, dense.data(), data);
  return "";
}

std::string nameOfStep(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> stepOf(llvm::StringRef name) {
  int64_t step;
  if (!name.consume_front("step-") || name.empty() || name.getAsInteger(10, step) || step < 0)
    return std::nullopt;
  return step;
}

void requireSpace(const std::string &folder, int64_t bytes) {
  struct statvfs v {};
  if (::statvfs(folder.c_str(), &v) != 0)
    return;
  int64_t room = int64_t(v.f_bavail) * int64_t(v.f_frsize);
  if (room < bytes)
    throw UserError(
        ErrorCode::DiskFull,
        fmt::format("a checkpoint needs {:.2f} GB and {:.2f} GB are free under {}", bytes / 1e9, room / 1e9, folder),
        "free some space, or lower checkpoint.keep; older checkpoints are untouched and the run can be resumed from "
        "them");
}

}  // namespace

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
    if (entry.path().filename().string().rfind(".step-", 0) == 0)
      stale.push_back(entry.path());
  for (const fs::path &p : stale)
    removeTree(p.string());
}

void CheckpointStore::save(const Executor &executor, const CheckpointInfo &info) const {
  makeDirs(folder);
  int64_t bytes = 0;
  for (const auto &s : executor.planned().states)
    if (isSaved(*s))
      bytes += s->type.elements() * sizeOf(s->type.dtype);
  requireSpace(folder, bytes);

  AtomicDir dir(folder + "/" + nameOfStep(info.step));
  std::string model = writeStates(executor, dir.file(kModelFile), true);
  std::string optimizer = writeStates(executor, dir.file(kOptimizerFile), false);
  json manifest = {{"schema", kSchema},
                   {"step", info.step},
                   {"plan", info.planHash},
                   {"model", info.modelHash},
                   {"data", info.dataFingerprint},
                   {"files", {{kModelFile, model}, {kOptimizerFile, optimizer}}}};
  manifest["blake3"] = manifestChecksum(manifest);
  std::string text = manifest.dump(2) + "\n";
  SyncedFile file(dir.file("manifest.json"));
  file.write(text.data(), text.size());
  file.finish();
  dir.commit();
}

void CheckpointStore::setAsideBeyond(int64_t step) const {
  for (int64_t s : steps())
    if (s > step) {
      const std::string aside = folder + "/damaged-" + nameOfStep(s);
      removeTree(aside);
      replaceFile(folder + "/" + nameOfStep(s), aside);
    }
}

void CheckpointStore::prune(int64_t keep) const {
  std::vector<int64_t> all = steps();
  for (size_t i = keep; i < all.size(); ++i) {
    // Renamed first, so that a removal that is cut short leaves nothing that looks like a checkpoint.
    std::string old = folder + "/" + nameOfStep(all[i]), gone = folder + "/." + nameOfStep(all[i]) + ".removed";
    removeTree(gone);
    if (::rename(old.c_str(), gone.c_str()) == 0)
      removeTree(gone);
  }
}

std::optional<CheckpointInfo> CheckpointStore::loadNewest(Executor &executor, const std::string &modelHash,
                                                          bool parametersOnly,
                                                          const std::function<void(const std::string &)> &warn) const {
  const std::vector<int64_t> all = steps();
  for (int64_t step : all) {
    CheckpointInfo info;
    info.dir = folder + "/" + nameOfStep(step);
    auto damaged = [&](const std::string &what) {
      throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", info.dir, what));
    };
    try {
      FileText text = readTextFile(info.dir + "/manifest.json", 1 << 20);
      if (!text.ok)
        damaged("manifest.json: " + text.why);
      json manifest;
      std::string hashes[2];
      try {
        manifest = json::parse(text.text);
        if (manifest.at("blake3") != manifestChecksum(manifest))
          damaged("manifest.json does not match its own checksum");
        if (manifest.at("schema") != kSchema)
          throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} has schema {}, this version reads {}", info.dir,
                                                              manifest.at("schema").dump(), kSchema));
        info.step = manifest.at("step");
        info.planHash = manifest.at("plan");
        info.modelHash = manifest.at("model");
        info.dataFingerprint = manifest.at("data");
        hashes[0] = manifest.at("files").at(kModelFile);
        hashes[1] = manifest.at("files").at(kOptimizerFile);
      } catch (const json::exception &e) {
        damaged(fmt::format("manifest.json: {}", e.what()));
      }
      if (info.step != step)
        damaged(fmt::format("its manifest speaks of step {}", info.step));
      if (info.modelHash != modelHash)
        throw UserError(ErrorCode::CheckpointMismatch, fmt::format("{} is a checkpoint of another model", info.dir),
                        "choose another out_dir, or start over with --resume never (the old files are kept aside)");
      SafetensorsFile model(info.dir + "/" + kModelFile), optimizer(info.dir + "/" + kOptimizerFile);
      if (model.hash() != hashes[0])
        damaged(fmt::format("{} does not match its checksum", kModelFile));
      if (!parametersOnly && optimizer.hash() != hashes[1])
        damaged(fmt::format("{} does not match its checksum", kOptimizerFile));
      for (const State *s : selectStates(executor.planned(), true)) {
        if (std::string problem = readState(executor, *s, model); !problem.empty())
          damaged(problem);
      }
      fillLowCopies(executor);
      if (parametersOnly)
        return info;
      for (const State *s : selectStates(executor.planned(), false)) {
        if (std::string problem = readState(executor, *s, optimizer); !problem.empty())
          damaged(problem);
      }
      return info;
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

/// Whether a tensor that no state takes may be left out without changing the model: a table that other programs compute
/// (masks of attention, frequencies of rotations), or a copy of one that was taken (a tied classifier).
static bool mayStayOut(const SafetensorsFile &file, const TensorInfo &t, const std::set<std::string> &taken) {
  const llvm::StringRef name = t.name;
  if (name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq") ||
      (name.ends_with(".attn.bias") && t.shape.size() == 4))
    return true;
  std::vector<char> content(t.bytes()), other(t.bytes());
  for (const std::string &known : taken)
    if (const TensorInfo *k = file.find(known); k->dtype == t.dtype && k->shape == t.shape) {
      file.read(t, content.data());
      file.read(*k, other.data());
      if (content == other)
        return true;
    }
  return false;
}

void loadWeights(Executor &executor, const std::string &path) {
  std::error_code e;
  SafetensorsFile file(fs::is_directory(path, e) ? path + "/" + kModelFile : path);
  std::set<std::string> taken;
  for (const State *s : selectStates(executor.planned(), true)) {
    if (std::string problem = readState(executor, *s, file, &taken); !problem.empty())
      throw UserError(ErrorCode::CheckpointMismatch, fmt::format("{} does not fit the model: {}", path, problem),
                      "the sizes in [model] (and bias, tie_embeddings) must be those of the weights");
  }
  std::vector<std::string> left;
  for (const TensorInfo *t : file.all())
    if (!taken.count(t->name) && !mayStayOut(file, *t, taken))
      left.push_back(t->name);
  if (!left.empty())
    throw UserError(ErrorCode::CheckpointMismatch,
                    fmt::format("{} does not fit the model, which has no place for tensor {}{}", path, left[0],
                                left.size() > 1 ? fmt::format(" and {} more", left.size() - 1) : ""),
                    "the sizes in [model] (and bias, tie_embeddings) must be those of the weights");
  fillLowCopies(executor);
}

}  // namespace gptc
