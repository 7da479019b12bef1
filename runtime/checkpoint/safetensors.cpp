#include "runtime/checkpoint/safetensors.h"

#include "support/diagnostics.h"
#include "support/json.h"

#include <algorithm>

namespace gptc {
namespace {

using json = nlohmann::ordered_json;

constexpr std::pair<DType, const char *> kNames[] = {{DType::f32, "F32"}, {DType::f64, "F64"},  {DType::bf16, "BF16"},
                                                     {DType::f16, "F16"}, {DType::i32, "I32"},  {DType::i64, "I64"},
                                                     {DType::u32, "U32"}, {DType::pred, "BOOL"}};
constexpr uint64_t kHeaderLimit = 100 << 20;  // bytes; as in the reference implementation
constexpr const char *kAgain = "copy it again from where it is from; of a run, another checkpoint may be whole";

}  // namespace

const char *safetensorsName(DType t) {
  for (auto [dtype, name] : kNames)
    if (dtype == t)
      return name;
  GPTC_UNREACHABLE("dtype {}", int(t));
}

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (int64_t d : shape)
    n *= d;
  return n;
}

int64_t TensorInfo::bytes() const { return elements() * int64_t(sizeOf(dtype)); }

SafetensorsWriter::SafetensorsWriter(const std::string &path, const std::vector<TensorInfo> &tensors,
                                     const std::map<std::string, std::string> &metadata)
    : file(path) {
  json header = {{"__metadata__", metadata}};
  for (const TensorInfo &t : tensors) {
    size_t begin = expected;
    expected += t.bytes();
    header[t.name] = {{"dtype", safetensorsName(t.dtype)}, {"shape", t.shape}, {"data_offsets", {begin, expected}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data to 8 bytes
  uint64_t length = text.size();
  for (auto [data, bytes] : {std::pair<const void *, size_t>{&length, sizeof length}, {text.data(), text.size()}}) {
    file.write(data, bytes);
    hasher.update(data, bytes);
  }
}

void SafetensorsWriter::write(const void *data, size_t bytes) {
  file.write(data, bytes);
  hasher.update(data, bytes);
  written += bytes;
}

std::string SafetensorsWriter::finish() {
  GPTC_CHECK(written == expected, "{} bytes of {}", written, expected);
  file.finish();
  return hasher.finish();
}

SafetensorsFile::SafetensorsFile(const std::string &path) : path(path), file(path, "checkpoint") {
  auto damaged = [&](const std::string &why) {
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{} is no valid safetensors file: {}", path, why),
                    kAgain);
  };
  uint64_t length = 0;
  if (!file.read(0, &length, sizeof length))
    damaged("too short");
  if (length > kHeaderLimit || length > file.size() - sizeof length)
    damaged("its header is longer than the file");
  const int64_t start = sizeof length + length, room = file.size() - start;
  std::string text(length, 0);
  if (!file.read(sizeof length, text.data(), length))
    damaged("unreadable");
  try {
    json header = parseJson<json>(text);
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (auto &[name, value] : header.items()) {
      if (name == "__metadata__") {
        words = value.get<decltype(words)>();
        continue;
      }
      int64_t begin = value.at("data_offsets").at(0), end = value.at("data_offsets").at(1);
      if (begin < 0 || end < begin || end > room)
        damaged(fmt::format("tensor {} lies outside the file", name));
      spans.push_back({begin, end});
      std::string dtype = value.at("dtype");
      auto known = std::find_if(std::begin(kNames), std::end(kNames), [&](auto &n) { return dtype == n.second; });
      if (known == std::end(kNames)) {
        others[name] = {dtype, value.at("shape").get<std::vector<int64_t>>()};
        continue;
      }
      TensorInfo t{name, known->first, value.at("shape").get<std::vector<int64_t>>()};
      int64_t bytes = sizeOf(t.dtype);
      for (int64_t d : t.shape)
        if (d < 0 || __builtin_mul_overflow(bytes, d, &bytes))
          damaged(fmt::format("tensor {} has an impossible shape", name));
      if (bytes != end - begin)
        damaged(fmt::format("tensor {} has {} bytes where its shape needs {}", name, end - begin, bytes));
      tensors[name] = {t, start + begin};
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i)
      if (spans[i].first < spans[i - 1].second)
        damaged("tensors overlap");
  } catch (const json::exception &e) {
    damaged(e.what());
  }
}

const TensorInfo *SafetensorsFile::find(llvm::StringRef name) const {
  auto it = tensors.find(std::string_view(name));
  return it == tensors.end() ? nullptr : &it->second.first;
}

std::vector<const TensorInfo *> SafetensorsFile::all() const {
  std::vector<const TensorInfo *> list;
  for (const auto &[name, tensor] : tensors)
    list.push_back(&tensor.first);
  return list;
}

const std::string *SafetensorsFile::metadata(llvm::StringRef key) const & {
  auto it = words.find(std::string_view(key));
  return it == words.end() ? nullptr : &it->second;
}

void SafetensorsFile::read(const TensorInfo &t, int64_t from, void *to, int64_t bytes) const {
  GPTC_CHECK(from >= 0 && bytes >= 0 && from + bytes <= t.bytes(), "bytes {} to {} of {}", from, from + bytes, t.name);
  if (!file.read(tensors.find(t.name)->second.second + from, to, bytes))
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: tensor {} cannot be read", path, t.name), kAgain);
}

}  // namespace gptc
