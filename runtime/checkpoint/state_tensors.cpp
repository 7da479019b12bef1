#include "runtime/checkpoint/state_tensors.h"

#include "runtime/checkpoint/transpose.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <memory>

namespace gptc {

namespace {

constexpr int64_t kPieceBytes = 256 << 10;  // about what a thread reads at a time; stays in its caches

/// What names of a whole model begin with, and those of a model without its head do not. Our older files have the
/// latter for GPT-2, and transformers 4 takes such a file for a model without a classifier.
constexpr const char *kBases[] = {"transformer.", "model.", "gpt_neox.", "bert."};

/// The tensor by any of its names, as `find` finds one by a name; null if there is none.
template <class F> auto findBy(F find, const FileTensor &want) {
  auto named = [&](llvm::StringRef name) {
    const auto *t = find(name);
    if (const llvm::StringRef rest = withoutBase(name); !t && rest != name)
      return find(rest);
    for (size_t i = 0; !t && i < std::size(kBases); ++i)
      t = find(kBases[i] + name.str());
    return t;
  };
  auto t = named(want.info.name);
  for (size_t i = 0; !t && i < want.others.size(); ++i)
    t = named(want.others[i]);
  return t;
}

const TensorInfo *find(const TensorFiles &file, const FileTensor &want) {
  return findBy([&](llvm::StringRef name) { return file.find(name); }, want);
}

/// The state unchanged, under its own name.
FileTensor unchanged(const State &s) {
  FileTensor t{{s.name, s.type.dtype, {}}};
  for (const Dim &d : wholeType(s).dims)
    t.info.shape.push_back(d.logical);
  return t;
}

}  // namespace

llvm::StringRef withoutBase(llvm::StringRef name) {
  for (const char *base : kBases)
    if (name.consume_front(base))
      break;
  return name;
}

StateTensors::StateTensors(const State &s, const TensorFiles &file, bool first)
    : s(s), file(file), first(first && s.name == "wpe.weight") {
  for (FileTensor &want : fileTensors(s)) {
    const TensorInfo *is = find(file, want);
    tensors.push_back({std::move(want), is});
  }
  if (llvm::all_of(tensors, [](const Tensor &t) { return t.is != nullptr; }))
    return;
  FileTensor own = unchanged(s);
  if (const TensorInfo *is = find(file, own))
    tensors = {{std::move(own), is}};
}

std::string StateTensors::unbuilt() const {
  for (const auto &[want, is] : tensors) {
    const auto *other = is ? nullptr
                           : findBy(
                                 [&](llvm::StringRef name) -> const UnreadableTensor * {
                                   const auto it = file.unreadable().find(std::string_view(name));
                                   return it == file.unreadable().end() ? nullptr : &it->second;
                                 },
                                 want);
    if (other || (is && !isConvertible(is->dtype, want.info.dtype)))
      return fmt::format("tensor {} has dtype {}, which is not built yet", is ? is->name : want.info.name,
                         is ? safetensorsName(is->dtype) : other->dtype);
  }
  return "";
}

std::vector<std::string> StateTensors::missing() const {
  std::vector<std::string> names;
  for (const auto &[want, is] : tensors)
    if (!is)
      names.push_back(want.info.name);
  return names;
}

std::string StateTensors::problem() const {
  for (const auto &[want, is] : tensors) {
    if (!is)
      return fmt::format("tensor {} is missing", want.info.name);
    std::vector<int64_t> shape = is->shape;
    const std::vector<int64_t> wanted = want.inFile().shape;
    if (first && !shape.empty() && shape[0] > wanted[0])
      shape[0] = wanted[0];
    if (shape != wanted || !isConvertible(is->dtype, want.info.dtype))
      return fmt::format("tensor {} is {}[{}] where the model has {}[{}]", want.info.name, nameOf(is->dtype).str(),
                         fmt::join(is->shape, ","), nameOf(want.info.dtype).str(), fmt::join(wanted, ","));
  }
  return "";
}

std::vector<const TensorInfo *> StateTensors::found() const {
  std::vector<const TensorInfo *> all;
  for (const Tensor &t : tensors)
    if (t.is)
      all.push_back(t.is);
  return all;
}

void StateTensors::read(void *dense, const Piece *part, ThreadPool *pool) const {
  for (const Tensor &t : tensors)
    read(t, dense, part, pool);
}

void StateTensors::read(const Tensor &t, void *dense, const Piece *part, ThreadPool *pool) const {
  const bool unchangedLayout = isWhole(s, t.want), direct = unchangedLayout && t.is->dtype == s.type.dtype;
  if (!file.isWhole(*t.is)) {
    if (direct)
      return file.read(*t.is, dense, part);
    std::vector<char> all(t.is->bytes());
    file.read(*t.is, all.data(), unchangedLayout ? part : nullptr);
    const char *own = all.data() + t.is->bytes() / t.want.count * t.want.place;
    return fromFile(s, t.want, t.is->dtype, 0, rowsOf(s, t.want).count, own, dense);
  }
  readPieces(t, dense, nullptr, pool);
}

void StateTensors::readWide(float *dense, ThreadPool &pool) const {
  State wide = s;
  wide.type.dtype = DType::f32;
  StateTensors(wide, file, first).read(dense, nullptr, &pool);
}

bool StateTensors::areWhole() const {
  return llvm::all_of(tensors, [&](const Tensor &t) { return file.isWhole(*t.is); });
}

void StateTensors::read(void *memory, const Places &places, ThreadPool &pool) const {
  for (const Tensor &t : tensors)
    readPieces(t, memory, &places, &pool);
}

void StateTensors::readPieces(const Tensor &t, void *memory, const Places *places, ThreadPool *pool) const {
  const bool direct = !places && isWhole(s, t.want) && t.is->dtype == s.type.dtype;
  const FileRows rows = rowsOf(s, t.want);
  const int64_t bytes = rows.elements * int64_t(sizeOf(t.is->dtype));
  const int64_t most = rowsAtATime(kPieceBytes, bytes), pieces = (rows.count + most - 1) / most;
  const int64_t before = rows.count * t.want.place * bytes;  // of states that share the tensor
  auto readPiece = [&](int64_t i) {
    const int64_t row = i * most, count = std::min(most, rows.count - row);
    if (direct)
      return file.readPart(*t.is, row * bytes, count * bytes, static_cast<char *>(memory) + row * bytes);
    const auto piece = std::make_unique_for_overwrite<char[]>(count * bytes);
    file.readPart(*t.is, before + row * bytes, count * bytes, piece.get());
    fromFile(s, t.want, t.is->dtype, row, count, piece.get(), memory, places);
  };
  if (pool)
    return pool->each(pieces, readPiece);
  for (int64_t i = 0; i < pieces; ++i)
    readPiece(i);
}

}  // namespace gptc
