#include "runtime/checkpoint/safetensors.h"

#include "support/diagnostics.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <optional>

namespace gptc {
namespace {

using json = nlohmann::ordered_json;

constexpr std::pair<DType, const char *> kNames[] = {{DType::f32, "F32"}, {DType::f64, "F64"},  {DType::bf16, "BF16"},
                                                     {DType::f16, "F16"}, {DType::i32, "I32"},  {DType::i64, "I64"},
                                                     {DType::u32, "U32"}, {DType::pred, "BOOL"}};
constexpr uint64_t kHeaderLimit = 100 << 20;  // bytes; as in the reference implementation
constexpr const char *kAgain = "copy it again from where it is from; of a run, another checkpoint may be whole";

/// Whole numbers from 0 on; nullopt for anything else.
std::optional<std::vector<int64_t>> sizesIn(const json &list) {
  const bool areSizes = list.is_array() && llvm::all_of(list, [](const json &n) {
                          return n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t(INT64_MAX);
                        });
  return areSizes ? std::optional(list.get<std::vector<int64_t>>()) : std::nullopt;
}

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
    return UserError(ErrorCode::CheckpointDamaged, fmt::format("{} is no valid safetensors file: {}", path, why),
                     kAgain);
  };
  uint64_t length = 0;
  if (!file.read(0, &length, sizeof length))
    throw damaged("too short");
  if (length > kHeaderLimit || length > file.size() - sizeof length)
    throw damaged("its header is longer than the file");
  const int64_t start = sizeof length + length, room = file.size() - start;
  std::string text(length, 0);
  if (!file.read(sizeof length, text.data(), length))
    throw damaged("unreadable");
  const json header = parseJsonOrDiscard<json>(text);
  if (!header.is_object())
    throw damaged("its header is no JSON object");
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const auto &[name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object() || !llvm::all_of(value, [](const json &word) { return word.is_string(); }))
        throw damaged(fmt::format("__metadata__ is {}, where an object of texts is needed", shown(value)));
      words = value.get<decltype(words)>();
      continue;
    }
    auto wrong = [&](const char *key, const char *wanted) {
      return damaged(fmt::format("{} of tensor {} is {}, where {} needed", key, name, shown(part(value, key)), wanted));
    };
    const auto offsets = sizesIn(part(value, "data_offsets")), shape = sizesIn(part(value, "shape"));
    if (!offsets || offsets->size() != 2)
      throw wrong("data_offsets", "two whole numbers are");
    if (!shape)
      throw wrong("shape", "a list of whole numbers is");
    if (!part(value, "dtype").is_string())
      throw wrong("dtype", "a text is");
    const int64_t begin = offsets->front(), end = offsets->back();
    if (end < begin || end > room)
      throw damaged(fmt::format("tensor {} lies outside the file", name));
    spans.push_back({begin, end});
    const std::string dtype = value.at("dtype");
    const auto known = llvm::find_if(kNames, [&](auto &n) { return dtype == n.second; });
    if (known == std::end(kNames)) {
      others[name] = {dtype, *shape};
      continue;
    }
    const TensorInfo t{name, known->first, *shape};
    int64_t bytes = sizeOf(t.dtype);
    for (const int64_t d : t.shape)
      if (__builtin_mul_overflow(bytes, d, &bytes))
        throw damaged(fmt::format("tensor {} has an impossible shape", name));
    if (bytes != end - begin)
      throw damaged(fmt::format("tensor {} has {} bytes where its shape needs {}", name, end - begin, bytes));
    tensors[name] = {t, start + begin};
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i)
    if (spans[i].first < spans[i - 1].second)
      throw damaged("tensors overlap");
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
