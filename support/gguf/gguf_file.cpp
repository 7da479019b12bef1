// 1. A cursor reads the header through one small buffer. Every size in it is checked against what is left of the file
//    before anything is allocated, so a header costs memory in proportion to the file at most, and its arrays none.
// 2. The alignment gives the place of the data; every tensor must lie within the file, aligned, clear of others, and
//    behind the one before it, as llama.cpp demands.
#include "support/gguf/gguf_file.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>

namespace gptc {

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
// Far beyond any model, and small enough that a header that claims more is refused before it is believed.
constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 20, kLongestKey = 1024, kLongestName = 64, kMostDims = 4,
                   kDeepest = 4, kMostAlignment = 1 << 20;
constexpr int64_t kLongestText = 64 << 20, kMostElements = 1 << 24;  // of values that are asked for
constexpr int64_t kMostRaw = int64_t(1) << 30;                       // bytes of all values together

/// Bytes of a value of fixed size; 0 for strings and arrays.
int64_t sizeOf(GgufType t) {
  switch (t) {
  case GgufType::u8:
  case GgufType::i8:
  case GgufType::boolean:
    return 1;
  case GgufType::u16:
  case GgufType::i16:
    return 2;
  case GgufType::u32:
  case GgufType::i32:
  case GgufType::f32:
    return 4;
  case GgufType::u64:
  case GgufType::i64:
  case GgufType::f64:
    return 8;
  case GgufType::string:
  case GgufType::array:
    return 0;
  }
  return 0;
}

constexpr GgufType kIntegers[] = {GgufType::u8,  GgufType::i8,  GgufType::u16, GgufType::i16,
                                  GgufType::u32, GgufType::i32, GgufType::u64, GgufType::i64};
constexpr GgufType kNumbers[] = {GgufType::f32, GgufType::f64};

template <typename T> T as(const char *bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

int64_t integerAt(GgufType t, const char *bytes) {
  switch (t) {
  case GgufType::u8:
    return as<uint8_t>(bytes);
  case GgufType::i8:
    return as<int8_t>(bytes);
  case GgufType::u16:
    return as<uint16_t>(bytes);
  case GgufType::i16:
    return as<int16_t>(bytes);
  case GgufType::u32:
    return as<uint32_t>(bytes);
  case GgufType::i32:
    return as<int32_t>(bytes);
  case GgufType::u64:  // beyond 2^63 nothing that we read has a meaning
    return int64_t(std::min<uint64_t>(as<uint64_t>(bytes), INT64_MAX));
  default:
    return as<int64_t>(bytes);
  }
}

double numberAt(GgufType t, const char *bytes) {
  return t == GgufType::f32 ? double(as<float>(bytes)) : as<double>(bytes);
}

/// Bytes without what would change how a terminal shows a message.
std::string printable(llvm::StringRef text) {
  std::string out;
  for (const char c : text.take_front(80))
    out += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > 80 ? out + "..." : out;
}

}  // namespace

/// The header of a file, from its beginning to its end.
class GgufHeader {
public:
  explicit GgufHeader(GgufFile &f) : f(f), end(int64_t(f.file.size())) {}

  void read() {
    if (end < 8 || take<uint32_t>() != kMagic)
      f.damaged("it does not begin with GGUF");
    f.version = take<uint32_t>();
    auto later = [&](const std::string &what, const char *help) {
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} is {}", f.path, what), help);
    };
    if (f.version != 0 && (f.version & 0xffff) == 0)
      later("a big-endian GGUF file, and only little-endian ones are read",
            "`gguf-convert-endian FILE little` of Python's package gguf converts it");
    if (f.version != 2 && f.version != 3)
      later(fmt::format("GGUF of version {}, and versions 2 and 3 are read", f.version),
            "convert the original weights again with a newer llama.cpp");
    const auto tensors = take<uint64_t>(), keys = take<uint64_t>();
    if (tensors > kMostTensors || keys > kMostKeys)
      f.damaged(fmt::format("it claims {} tensors and {} keys", tensors, keys));
    for (uint64_t i = 0; i < keys; ++i)
      readKey();
    for (uint64_t i = 0; i < tensors; ++i)
      readTensor();
    place();
    requireKnownBlocks();
  }

private:
  /// The next bytes of the file, of which the buffer must hold `bytes`.
  const char *next(int64_t bytes) {
    if (bytes > end - at)
      f.damaged("it ends within its header");
    if (at < begin || at + bytes > begin + int64_t(buffer.size())) {
      buffer.resize(size_t(std::min<int64_t>(std::max<int64_t>(bytes, 1 << 16), end - at)));
      begin = at;
      if (!f.file.read(size_t(at), buffer.data(), buffer.size()))
        f.damaged("it cannot be read");
    }
    at += bytes;
    return buffer.data() + (at - bytes - begin);
  }
  template <typename T> T take() { return as<T>(next(sizeof(T))); }

  void skip(int64_t bytes) {
    if (bytes > end - at)
      f.damaged("it ends within its header");
    at += bytes;
  }

  /// A length that at most what is left of the file can have.
  int64_t takeLength(const std::string &of) {
    const auto n = take<uint64_t>();
    if (n > uint64_t(end - at))
      f.damaged(fmt::format("{} is longer than the file: {}", of, n));
    return int64_t(n);
  }

  /// A name of a key or tensor: printable ASCII, and no path, because tools make files of such names.
  std::string takeName(const char *what, uint64_t longest) {
    const int64_t n = takeLength(fmt::format("the name of {}", what));
    if (n == 0 || uint64_t(n) > longest)
      f.damaged(fmt::format("the name of {} has {} bytes, and {} is the most", what, n, longest));
    std::string name(next(n), size_t(n));
    if (llvm::any_of(name, [](char c) { return c <= 0x20 || c >= 0x7f || c == '/' || c == '\\'; }) || name[0] == '.')
      f.damaged(fmt::format("\"{}\" is no name of {}", printable(name), what));
    return name;
  }

  GgufType takeType(const std::string &key) {
    const auto number = take<uint32_t>();
    if (number > uint32_t(GgufType::f64))
      f.damaged(fmt::format("{} is of type {}, which GGUF does not have", key, number));
    return GgufType(number);
  }

  void skipElements(const std::string &key, GgufType type, int64_t count, uint64_t depth) {
    if (const int64_t size = sizeOf(type)) {
      int64_t bytes;
      if (__builtin_mul_overflow(count, size, &bytes) || bytes > end - at)
        f.damaged(fmt::format("{} is longer than the file: {} elements", key, count));
      if (type != GgufType::boolean)
        return skip(bytes);
      for (int64_t i = 0; i < count; ++i)
        if (const auto value = take<uint8_t>(); value > 1)
          f.damaged(fmt::format("{} has {} for true or false", key, value));
      return;
    }
    if (count > (end - at) / 8)  // each has at least a length
      f.damaged(fmt::format("{} is longer than the file: {} elements", key, count));
    for (int64_t i = 0; i < count; ++i) {
      if (type == GgufType::string) {
        const int64_t length = takeLength(key);
        skip(length);
        continue;
      }
      if (depth == kDeepest)
        f.damaged(fmt::format("{} has arrays in arrays more than {} deep", key, kDeepest));
      const GgufType inner = takeType(key);
      const auto length = take<uint64_t>();
      if (length > uint64_t(end - at))
        f.damaged(fmt::format("{} is longer than the file: {} elements", key, length));
      skipElements(key, inner, int64_t(length), depth + 1);
    }
  }

  void readKey() {
    const std::string key = takeName("a key", kLongestKey);
    GgufFile::Value v;
    v.type = takeType(key);
    v.array = v.type == GgufType::array;
    if (v.array) {
      v.type = takeType(key);
      const auto count = take<uint64_t>();
      if (count > uint64_t(end - at))
        f.damaged(fmt::format("{} is longer than the file: {} elements", key, count));
      v.count = int64_t(count);
    }
    v.at = at;
    skipElements(key, v.type, v.count, 1);
    v.bytes = at - v.at;
    if (!f.values.try_emplace(key, v).second)
      f.damaged(fmt::format("it has the key {} twice", key));
  }

  void readTensor() {
    GgufTensor t;
    t.name = takeName("a tensor", kLongestName);
    const auto dims = take<uint32_t>();
    if (dims < 1 || dims > kMostDims)
      f.damaged(fmt::format("tensor {} has {} dimensions", t.name, dims));
    int64_t elements = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      const auto extent = take<uint64_t>();
      if (extent < 1 || extent > uint64_t(INT64_MAX) || __builtin_mul_overflow(elements, int64_t(extent), &elements))
        f.damaged(fmt::format("tensor {} has an impossible shape", t.name));
      t.shape.insert(t.shape.begin(), int64_t(extent));
    }
    const auto number = take<uint32_t>();
    t.format = ggmlFormat(number);
    if (!t.format || !t.format->bytes)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("{}: tensor {} is of ggml's type {}, which {}", f.path, t.name,
                                  t.format ? t.format->name : std::to_string(number),
                                  t.format ? "ggml no longer has" : "gptc does not know"),
                      "convert the original weights again, to F32, F16, BF16 or Q8_0");
    if (t.columns() % t.format->elements)
      f.damaged(fmt::format("tensor {} has rows of {} values, no multiple of the {} of a block of {}", t.name,
                            t.columns(), t.format->elements, t.format->name));
    if (__builtin_mul_overflow(elements / t.format->elements, int64_t(t.format->bytes), &t.bytes))
      f.damaged(fmt::format("tensor {} has an impossible shape", t.name));
    const auto offset = take<uint64_t>();
    if (offset > uint64_t(end))
      f.damaged(fmt::format("tensor {} lies outside the file", t.name));
    t.at = int64_t(offset);  // from the data's beginning, which place() adds
    if (!f.places.try_emplace(t.name, f.all.size()).second)
      f.damaged(fmt::format("it has the tensor {} twice", t.name));
    f.all.push_back(std::move(t));
  }

  void place() {
    const int64_t alignment = f.alignment();
    if (alignment < 1 || uint64_t(alignment) > kMostAlignment || (alignment & (alignment - 1)))
      f.damaged(fmt::format("general.alignment = {} is no power of two up to {}", alignment, kMostAlignment));
    const int64_t data = (at + alignment - 1) / alignment * alignment;
    std::vector<const GgufTensor *> sorted;  // an overlap has words of its own; requireNothingBeside would see it too
    for (GgufTensor &t : f.all) {
      if (t.at % alignment)
        f.damaged(fmt::format("tensor {} is not at a multiple of general.alignment = {}", t.name, alignment));
      if (data > end || t.at > end - data || t.bytes > end - data - t.at)
        f.damaged(fmt::format("tensor {} lies outside the file", t.name));
      t.at += data;
      sorted.push_back(&t);
    }
    llvm::sort(sorted, [](auto *a, auto *b) { return a->at < b->at; });
    for (size_t i = 1; i < sorted.size(); ++i)
      if (sorted[i]->at < sorted[i - 1]->at + sorted[i - 1]->bytes)
        f.damaged(fmt::format("tensors {} and {} overlap", sorted[i - 1]->name, sorted[i]->name));
    requireNothingBeside(data, alignment);
  }

  /// The tensors follow each other in the order of the header, and nothing but padding lies around them: a header that
  /// describes less than the file, or other sizes, would give the values of other places.
  void requireNothingBeside(int64_t data, int64_t alignment) {
    auto requirePadding = [&](int64_t from, int64_t to, const std::string &behind) {
      std::string padding(size_t(std::max<int64_t>(std::min(to, end) - from, 0)), 0);
      if (!padding.empty() && !f.file.read(size_t(from), padding.data(), padding.size()))
        f.damaged("it cannot be read");
      if (llvm::any_of(padding, [](char c) { return c != 0; }))
        f.damaged(fmt::format("the bytes behind {} are no padding", behind));
    };
    requirePadding(at, data, "its header");
    int64_t next = data, last = std::min(data, end);
    for (const GgufTensor &t : f.all) {
      if (t.at != next)
        f.damaged(fmt::format("tensor {} does not follow the one before it", t.name));
      last = t.at + t.bytes;
      next = data + (last - data + alignment - 1) / alignment * alignment;
      requirePadding(last, next, "tensor " + t.name);
    }
    if (end - last >= alignment)
      f.damaged(fmt::format("its last {} bytes belong to no tensor", end - last));
    requirePadding(last, end, f.all.empty() ? "its header" : "tensor " + f.all.back().name);
  }

  /// Files of newer versions have other blocks under the same numbers; there is none of an older one.
  void requireKnownBlocks() const {
    const int64_t version = f.integer(kGgmlBlocksKey).value_or(kGgmlBlocks);
    const auto block = llvm::find_if(f.all, [](const GgufTensor &t) { return t.format->elements > 1; });
    if (version != kGgmlBlocks && block != f.all.end())
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("{}: {} = {}, and blocks of {}, as of tensor {}, are read of version {}", f.path,
                                  kGgmlBlocksKey, version, block->format->name, block->name, kGgmlBlocks),
                      "take weights of 16 or 32 bits, or convert the original ones again");
  }

  GgufFile &f;
  int64_t end, at = 0, begin = 0;
  std::vector<char> buffer;
};

int64_t GgufTensor::rows() const {
  int64_t n = 1;
  for (const int64_t extent : llvm::ArrayRef(shape).drop_back())
    n *= extent;
  return n;
}

GgufFile::GgufFile(const std::string &path) : path(path), file(path, "GGUF file") { GgufHeader(*this).read(); }

void GgufFile::damaged(const std::string &why) const {
  throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{} is no valid GGUF file: {}", path, why),
                  "copy it again from where it is from");
}

const GgufTensor *GgufFile::find(llvm::StringRef name) const {
  auto it = places.find(std::string_view(name));
  return it == places.end() ? nullptr : &all[it->second];
}

void GgufFile::readBytes(const GgufTensor &t, int64_t offset, int64_t bytes, void *to) const {
  GPTC_CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= t.bytes, "bytes {}+{} of {}", offset, bytes, t.name);
  if (!file.read(size_t(t.at + offset), to, size_t(bytes)))
    damaged(fmt::format("tensor {} cannot be read", t.name));
}

void GgufFile::read(const GgufTensor &t, int64_t first, int64_t count, float *to) const {
  const GgmlFormat &f = *t.format;
  if (!f.readable())
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{}: tensor {} is {}, which is not built yet", path, t.name, f.name),
                    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are read; `llama-quantize "
                    "--allow-requantize FILE OUT f16` of llama.cpp converts it");
  GPTC_CHECK(first % f.elements == 0 && count % f.elements == 0, "elements {}+{} of {}", first, count, f.name);
  if (f.type == GgmlType::f32)
    return readBytes(t, first * 4, count * 4, to);
  std::vector<char> blocks(size_t(f.bytesOf(count)));
  readBytes(t, f.bytesOf(first), int64_t(blocks.size()), blocks.data());
  dequantize(f.type, blocks.data(), count, to);
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> names;
  for (const auto &[key, value] : values)
    names.push_back(key);
  return names;
}

std::vector<std::pair<std::string, std::string>> GgufFile::rawKeys() const {
  std::vector<std::pair<const std::string *, const Value *>> inOrder;
  int64_t total = 0;
  for (const auto &[key, value] : values) {
    inOrder.emplace_back(&key, &value);
    total += value.bytes;
  }
  if (total > kMostRaw)
    damaged(fmt::format("its keys have {} bytes, and {} is the most", total, kMostRaw));
  llvm::sort(inOrder, [](const auto &a, const auto &b) { return a.second->at < b.second->at; });
  std::vector<std::pair<std::string, std::string>> raw;
  for (const auto &[key, value] : inOrder) {
    // Before a value stands its type; before an array's, that of an array, of its elements, and their number.
    const int64_t before = value->array ? 16 : 4;
    std::string bytes(size_t(before + value->bytes), 0);
    if (!file.read(size_t(value->at - before), bytes.data(), bytes.size()))
      damaged("it cannot be read");
    raw.emplace_back(*key, std::move(bytes));
  }
  return raw;
}

const GgufFile::Value *GgufFile::find(llvm::StringRef key, bool array, llvm::ArrayRef<GgufType> types,
                                      const char *wanted) const {
  auto it = values.find(std::string_view(key));
  if (it == values.end())
    return nullptr;
  const Value &v = it->second;
  if (v.array != array || !llvm::is_contained(types, v.type))
    damaged(fmt::format("{} is {}, where {} is needed", key.str(), shown(key), wanted));
  const bool text = v.type == GgufType::string;
  if (array ? v.count > kMostElements : text && v.bytes > kLongestText)
    damaged(fmt::format("{} is {}, and that is too long", key.str(), shown(key)));
  return &v;
}

std::string GgufFile::bytesOf(const Value &v) const {
  std::string bytes(size_t(v.bytes), 0);
  if (!file.read(size_t(v.at), bytes.data(), bytes.size()))
    damaged("it cannot be read");
  return bytes;
}

std::optional<int64_t> GgufFile::integer(llvm::StringRef key) const {
  const Value *v = find(key, false, kIntegers, "an integer");
  return v ? std::optional(integerAt(v->type, bytesOf(*v).data())) : std::nullopt;
}

std::optional<double> GgufFile::number(llvm::StringRef key) const {
  const Value *v = find(key, false, kNumbers, "a number with a fraction");
  return v ? std::optional(numberAt(v->type, bytesOf(*v).data())) : std::nullopt;
}

std::optional<bool> GgufFile::boolean(llvm::StringRef key) const {
  const Value *v = find(key, false, GgufType::boolean, "true or false");
  return v ? std::optional(bytesOf(*v)[0] != 0) : std::nullopt;
}

std::optional<std::string> GgufFile::text(llvm::StringRef key) const {
  const Value *v = find(key, false, GgufType::string, "a string");
  return v ? std::optional(bytesOf(*v).substr(8)) : std::nullopt;
}

std::optional<std::vector<std::string>> GgufFile::texts(llvm::StringRef key) const {
  const Value *v = find(key, true, GgufType::string, "an array of strings");
  if (!v)
    return std::nullopt;
  // The bytes may have changed since they were checked.
  const std::string bytes = bytesOf(*v);
  std::vector<std::string> all;
  size_t at = 0;
  for (int64_t i = 0; i < v->count; ++i) {
    const uint64_t length = bytes.size() - at < 8 ? UINT64_MAX : as<uint64_t>(bytes.data() + at);
    if (length > bytes.size() - at - 8)
      damaged(fmt::format("{} changes while it is read", key.str()));
    all.emplace_back(bytes, at + 8, size_t(length));
    at += 8 + size_t(length);
  }
  return all;
}

std::optional<std::vector<int64_t>> GgufFile::integers(llvm::StringRef key) const {
  const Value *v = find(key, true, kIntegers, "an array of integers");
  if (!v)
    return std::nullopt;
  const std::string bytes = bytesOf(*v);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < v->count; ++i)
    all.push_back(integerAt(v->type, bytes.data() + i * sizeOf(v->type)));
  return all;
}

std::optional<std::vector<double>> GgufFile::numbers(llvm::StringRef key) const {
  const Value *v = find(key, true, kNumbers, "an array of numbers with fractions");
  if (!v)
    return std::nullopt;
  const std::string bytes = bytesOf(*v);
  std::vector<double> all;
  for (int64_t i = 0; i < v->count; ++i)
    all.push_back(numberAt(v->type, bytes.data() + i * sizeOf(v->type)));
  return all;
}

std::string GgufFile::shown(llvm::StringRef key) const {
  auto it = values.find(std::string_view(key));
  GPTC_CHECK(it != values.end(), "no key {}", key.str());
  const Value &v = it->second;
  const char *const kinds = v.type == GgufType::string              ? "strings"
                            : v.type == GgufType::array             ? "arrays"
                            : v.type == GgufType::boolean           ? "booleans"
                            : llvm::is_contained(kIntegers, v.type) ? "integers"
                                                                    : "numbers";
  if (v.array)
    return fmt::format("an array of {} {}", v.count, kinds);
  if (v.type == GgufType::string)
    return v.bytes > 8 + 200 ? fmt::format("a string of {} bytes", v.bytes - 8)
                             : fmt::format("\"{}\"", printable(llvm::StringRef(bytesOf(v)).drop_front(8)));
  const std::string bytes = bytesOf(v);
  if (v.type == GgufType::boolean)
    return bytes[0] ? "true" : "false";
  if (v.type == GgufType::f32)
    return fmt::format("{}", as<float>(bytes.data()));
  if (v.type == GgufType::f64)
    return fmt::format("{}", as<double>(bytes.data()));
  return fmt::format("{}", integerAt(v.type, bytes.data()));
}

bool isGguf(const std::string &path) {
  const OpenedFile opened = openRegularFile(path);
  if (opened.fd < 0)
    return false;
  uint32_t magic = 0;
  const bool whole = ::pread(opened.fd, &magic, sizeof magic, 0) == sizeof magic;
  ::close(opened.fd);
  return whole && magic == kMagic;
}

}  // namespace gptc
