// 1. Check the folder and the description before anything is written.
// 2. Assign tensors to files in the order in which the checkpoint has them.
// 3. Copy each tensor in pieces, which are converted in between.
// 4. config.json says the new precision; the other files stay as they are.
#include "runtime/checkpoint/export_folder.h"

#include "ir/kernel/eval.h"
#include "runtime/checkpoint/checkpoint_files.h"
#include "runtime/checkpoint/safetensors.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <memory>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr const char *kMaker = "made_by", *kMadeBy = "gptc export";  // in the metadata of the weights
constexpr int64_t kPiece = 1 << 20;                                  // elements

bool isWeights(llvm::StringRef name) { return name.starts_with("model") && name.ends_with(".safetensors"); }

/// Whether a folder holds what an export wrote, and nothing else.
bool isExported(const std::string &dir) {
  const char *const texts[] = {"config.json",           "generation_config.json",  "tokenizer.json",
                               "tokenizer_config.json", "special_tokens_map.json", kIndexFile};
  bool ours = false;
  std::error_code e;
  for (const auto &entry : fs::directory_iterator(dir, e)) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file(e) || (!isWeights(name) && !llvm::is_contained(texts, llvm::StringRef(name))))
      return false;
    if (isWeights(name))
      try {
        const SafetensorsFile file(entry.path());
        const std::string *maker = file.metadata(kMaker);
        if (!maker || *maker != kMadeBy)
          return false;
        ours = true;
      } catch (const UserError &) {
        return false;
      }
  }
  return ours;
}

void requireRoom(const std::string &dir, const std::string &checkpoint) {
  std::error_code e;
  if (!fs::exists(fs::symlink_status(dir, e)))
    return;
  if (!fs::is_directory(dir, e) || fs::is_symlink(dir, e))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is no folder", dir), "choose another name with -o");
  if (liesWithin(checkpoint, dir))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} holds the checkpoint itself", dir),
                    "choose another name with -o");
  if (!fs::is_empty(dir, e) && !isExported(dir))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} holds other files than those of an export", dir),
                    "remove it, or choose another name with -o");
}

/// config.json with this precision.
std::string configFor(const CheckpointStore::Published &from, DType dtype) {
  json config = parseJson<json>(describedConfig(from));
  if (config.value("model_type", "") == "gptc") {
    std::vector<std::string> keys;
    for (const json &key : config.value("no_family_holds", json::array()))
      if (key.is_string())
        keys.push_back(
            fmt::format("model.{} = {}", key.get<std::string>(), config.value(key.get<std::string>(), json()).dump()));
    throw UserError(ErrorCode::Contradiction,
                    fmt::format("{} cannot become a folder of Hugging Face's: no family of transformers holds its {}",
                                from.info.dir, keys.empty() ? "[model]" : fmt::format("{}", fmt::join(keys, ", "))),
                    "train a model with other values of these keys; gptc itself reads the checkpoint as it is");
  }
  const char *name = dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  for (const char *key : {"torch_dtype", "dtype"})
    if (config.contains(key))
      config[key] = name;
  return config.dump(2) + "\n";
}

/// Copies tensors and converts them.
class Copier {
public:
  void copy(const SafetensorsFile &file, const TensorInfo &t, DType to, SafetensorsWriter &writer) {
    const int64_t size = sizeOf(t.dtype), elements = t.bytes() / size;
    in.resize(kPiece * size);
    for (int64_t at = 0; at < elements; at += kPiece) {
      const int64_t n = std::min(kPiece, elements - at);
      file.read(t, at * size, in.data(), n * size);
      if (t.dtype == to) {
        writer.write(in.data(), n * size);
        continue;
      }
      out.resize(kPiece * sizeOf(to));
      for (int64_t i = 0; i < n; ++i)
        store(to, i, load(t.dtype, i), t.name);
      writer.write(out.data(), n * sizeOf(to));
    }
  }

private:
  float load(DType from, int64_t i) const {
    if (from == DType::f32)
      return reinterpret_cast<const float *>(in.data())[i];
    if (from == DType::bf16)
      return kir::floatOfBF16(reinterpret_cast<const uint16_t *>(in.data())[i]);
    return float(reinterpret_cast<const _Float16 *>(in.data())[i]);
  }
  void store(DType to, int64_t i, float value, const std::string &name) {
    if (to == DType::f32) {
      reinterpret_cast<float *>(out.data())[i] = value;
    } else if (to == DType::bf16) {
      reinterpret_cast<uint16_t *>(out.data())[i] = kir::bitsOfBF16(kir::roundBF16(value));
    } else {
      const _Float16 half = _Float16(value);
      if (std::isfinite(value) && !std::isfinite(float(half)))
        throw UserError(ErrorCode::OutOfRange, fmt::format("tensor {} holds {:g}, and fp16 ends at 65504", name, value),
                        "--dtype bf16 has the range of fp32");
      reinterpret_cast<_Float16 *>(out.data())[i] = half;
    }
  }
  std::vector<char> in, out;
};

struct Part {
  const SafetensorsFile *file;
  const TensorInfo *tensor;
  TensorInfo written;
};

/// Each in a file of its own, unless it fits into the one before.
std::vector<std::vector<Part>> divide(const std::vector<Part> &parts, int64_t most) {
  std::vector<std::vector<Part>> files(1);
  int64_t bytes = 0;
  for (const Part &p : parts) {
    if (bytes && bytes + p.written.bytes() > most) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(p);
    bytes += p.written.bytes();
  }
  return files;
}

}  // namespace

const std::string &describedConfig(const CheckpointStore::Published &from) {
  const auto text = from.described.find("config.json");
  if (text == from.described.end())
    throw UserError(
        ErrorCode::MissingKey,
        fmt::format("{} has no config.json: an earlier version wrote it, or its plan was made from a module",
                    from.info.dir),
        "compile the model file again, and name its plan: `gptc export PLAN ...`");
  return text->second;
}

Exported exportFolder(const CheckpointStore::Published &from, const std::string &dir, const ExportOptions &options) {
  requireRoom(dir, from.info.dir);
  std::vector<std::unique_ptr<SafetensorsFile>> inputs;
  std::vector<Part> parts;
  Exported done;
  for (const std::string &path : from.weights) {
    const SafetensorsFile &file = *inputs.emplace_back(std::make_unique<SafetensorsFile>(path));
    for (const TensorInfo *t : file.all()) {
      if (!llvm::is_contained({DType::f32, DType::bf16, DType::f16}, t->dtype))
        throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {} is no weight", path, t->name));
      parts.push_back({&file, t, {t->name, options.dtype.value_or(t->dtype), t->shape}});
      done.bytes += parts.back().written.bytes();
    }
  }
  done.tensors = int64_t(parts.size());
  done.dtype = parts.empty() ? DType::f32 : parts[0].written.dtype;
  const std::string config = configFor(from, done.dtype);

  AtomicDir out(dir);
  const std::vector<std::vector<Part>> files = divide(parts, options.fileBytes);
  done.files = int64_t(files.size());
  json index = {{"metadata", {{"total_size", done.bytes}}}, {"weight_map", json::object()}};
  Copier copier;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    std::vector<TensorInfo> infos;
    for (const Part &p : files[i]) {
      infos.push_back(p.written);
      index["weight_map"][p.written.name] = name;
    }
    SafetensorsWriter writer(out.file(name), infos, {{"format", "pt"}, {kMaker, kMadeBy}});
    for (const Part &p : files[i])
      copier.copy(*p.file, *p.tensor, p.written.dtype, writer);
    writer.finish();
  }
  if (files.size() > 1)
    writeSynced(out.file(kIndexFile), index.dump(2) + "\n");
  for (const auto &[name, text] : from.described)
    writeSynced(out.file(name), name == "config.json" ? config : text);
  out.commit();
  return done;
}

}  // namespace gptc
