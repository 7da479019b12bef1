// A tensor is one run of elements, because its rows are whole blocks: it is cut into pieces of a multiple of every
// block, which threads read, round and measure on their own. Bytes and sums of pieces are then taken in order.
#include "runtime/checkpoint/gguf_rounding.h"

#include "support/diagnostics.h"
#include "support/gguf/gguf_file.h"
#include "support/thread_pool.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fnmatch.h>
#include <map>
#include <memory>
#include <optional>

namespace gptc {
namespace {

constexpr int64_t kPiece = 1 << 15, kBatch = 64;  // elements that a thread takes, and pieces before bytes are written

constexpr const char *kFileType = "general.file_type";

bool isMatrix(llvm::StringRef name, llvm::ArrayRef<int64_t> shape) {
  if (shape.size() < 2 || !name.ends_with(".weight"))
    return false;
  // llama-quantize's exceptions; those behind the routers are of Mamba, LFM2, RWKV, T5 and Gemma 3n.
  constexpr const char *wide[] = {"position_embd.",
                                  "token_types.",
                                  "ffn_gate_inp",
                                  "ssm_conv1d.",
                                  "shortconv.conv.",
                                  "time_mix_first.",
                                  "time_mix_w0.",
                                  "time_mix_w1.",
                                  "time_mix_w2.",
                                  "time_mix_v0.",
                                  "time_mix_v1.",
                                  "time_mix_v2.",
                                  "time_mix_a0.",
                                  "time_mix_a1.",
                                  "time_mix_a2.",
                                  "time_mix_g1.",
                                  "time_mix_g2.",
                                  "time_mix_decay_w1.",
                                  "time_mix_decay_w2.",
                                  "time_mix_lerp_fused.",
                                  "attn_rel_b.",
                                  "altup",
                                  "laurel",
                                  "per_layer_model_proj."};
  return llvm::none_of(wide, [&](const char *part) { return name.contains(part); });
}

/// The format that a matrix is to have.
GgmlType wantedFor(llvm::StringRef name, GgmlType type) {
  const bool isFew = type == GgmlType::q4_0 || type == GgmlType::q4_k;
  return isFew && (name == "output.weight" || name == "token_embd.weight") ? GgmlType::q8_0 : type;
}

/// That, or what holds rows of `columns` elements instead.
GgmlType formatOf(GgmlType type, int64_t columns) {
  for (const GgmlType next : {type, GgmlType::q8_0})
    if (columns % ggmlFormat(next).elements == 0 && (next == type || type == GgmlType::q4_k))
      return next;
  return GgmlType::f16;
}

enum class Fault { none, notFinite, tooLarge };

/// What rounding did to a piece.
struct PieceResult {
  Fault fault = Fault::none;
  double difference = 0, size = 0;
};

PieceResult roundPiece(const WrittenTensor &t, const float *values, int64_t n, char *blocks, bool measure) {
  PieceResult r;
  const GgmlType type = t.to->type;
  if (t.isRounded() && !std::all_of(values, values + n, [](float v) { return std::isfinite(v); }))
    return {Fault::notFinite};
  if (!quantize(type, values, n, blocks))
    return {Fault::tooLarge};
  if (!t.isRounded() || !measure)
    return r;
  const auto again = std::make_unique_for_overwrite<float[]>(size_t(n));
  dequantize(type, blocks, n, again.get());
  for (int64_t i = 0; i < n; ++i) {
    const double value = values[i], off = double(again[size_t(i)]) - value;
    r.difference += off * off;
    r.size += value * value;
  }
  return r;
}

void requireFit(const PieceResult &r, const WrittenTensor &t) {
  if (r.fault == Fault::notFinite)
    throw UserError(ErrorCode::OutOfRange,
                    fmt::format("tensor {} has values that are not finite: NaN or infinite", t.name),
                    "take weights of an intact model; fp32 writes them as they are");
  if (r.fault == Fault::tooLarge)
    throw UserError(ErrorCode::OutOfRange, fmt::format("tensor {} has a value that {} cannot hold", t.name, t.to->name),
                    "fp32 holds every value");
}

/// Sets a key, at its place if it is there.
void set(GgufKeys &keys, const char *name, GgufValue value) {
  const auto at = llvm::find_if(keys, [&](const auto &k) { return k.first == name; });
  if (at != keys.end())
    at->second = std::move(value);
  else
    keys.emplace_back(name, std::move(value));
}

/// The number of the format that more than half of the elements of matrices get, if that is written here.
std::optional<uint32_t> fileTypeOf(const std::vector<WrittenTensor> &all) {
  std::map<const GgmlFormat *, int64_t> elements;
  int64_t total = 0;
  for (const WrittenTensor &t : all)
    if (isMatrix(t.name, t.shape)) {
      elements[t.to] += t.elements();
      total += t.elements();
    }
  for (const auto &[format, n] : elements)
    if (n > total - n && llvm::any_of(all, [f = format](const WrittenTensor &t) { return t.to == f && t.from != f; }))
      return ggufFileType(format->type);
  return std::nullopt;
}

void copy(GgufWriter &out, const GgufFile &file, const GgufTensor &t) {
  constexpr int64_t most = 1 << 20;
  std::vector<char> bytes(size_t(std::min(most, t.bytes)));
  for (int64_t at = 0; at < t.bytes; at += most) {
    const int64_t n = std::min(most, t.bytes - at);
    file.readBytes(t, at, n, bytes.data());
    out.write(bytes.data(), size_t(n));
  }
}

/// The tensors of a file as they are to be written.
std::vector<WrittenTensor> planned(const GgufFile &file, const GgufRounding &how) {
  std::vector<WrittenTensor> all;
  for (const GgufTensor &t : file.tensors()) {
    WrittenTensor &w = all.emplace_back(plannedTensor(t.name, t.shape, t.format->type, how.type));
    if (isKept(how, t.name)) {
      w.to = w.from;
      w.refused = nullptr;
    }
    if (w.to != w.from && !t.format->readable())
      file.read(t, 0, 0, nullptr);  // says what is readable
    if (w.isRounded() && t.format->elements > 1 && !how.again)
      throw UserError(ErrorCode::Usage,
                      fmt::format("{} is rounded already: tensor {} is {}", file.path, t.name, t.format->name),
                      "--requantize rounds a second time; that changes weights more than rounding the original "
                      "ones once");
  }
  requireKept(how, all, file.path);
  return all;
}

}  // namespace

int64_t WrittenTensor::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape)
    n *= extent;
  return n;
}

double relativeError(double difference, double size) { return size > 0 ? std::sqrt(difference / size) : 0; }

WrittenTensor plannedTensor(const std::string &name, llvm::ArrayRef<int64_t> shape, GgmlType from, GgmlType type) {
  WrittenTensor t{name, shape.vec(), &ggmlFormat(from), &ggmlFormat(from)};
  if (!isMatrix(name, shape))
    return t;
  const GgmlType wanted = wantedFor(name, type), to = formatOf(wanted, shape.back());
  const bool shrinks = ggmlFormat(to).bytesOf(t.elements()) < t.bytesBefore();
  if (to == type || shrinks)
    t.to = &ggmlFormat(to);
  t.refused = to != wanted ? &ggmlFormat(wanted) : nullptr;
  return t;
}

bool isKept(const GgufRounding &how, llvm::StringRef name) {
  const std::string text = name.str();
  return llvm::any_of(how.keep, [&](const std::string &p) { return ::fnmatch(p.c_str(), text.c_str(), 0) == 0; });
}

void requireKept(const GgufRounding &how, const std::vector<WrittenTensor> &all, const std::string &file) {
  for (const std::string &pattern : how.keep) {
    const GgufRounding one{.type = how.type, .keep = {pattern}};
    if (llvm::any_of(all, [&](const WrittenTensor &t) { return isKept(one, t.name); }))
      continue;
    std::vector<std::string> names;
    for (const WrittenTensor &t : all)
      names.push_back(t.name);
    const std::string near = nearestWord(pattern, names);
    throw UserError(ErrorCode::Usage, fmt::format("--keep {} names no tensor of {}", pattern, file),
                    !near.empty()   ? fmt::format("did you mean {}?", near)
                    : names.empty() ? "it has no tensors"
                                    : fmt::format("its tensors are called as {}; * stands for any part of a name",
                                                  names[names.size() / 2]));
  }
}

void setFormatKeys(GgufKeys &keys, const std::vector<WrittenTensor> &all) {
  if (const std::optional<uint32_t> number = fileTypeOf(all))
    set(keys, kFileType, *number);
  if (llvm::any_of(all, [](const WrittenTensor &t) { return t.to != t.from && t.to->elements > 1; }))
    set(keys, kGgmlBlocksKey, kGgmlBlocks);
}

void writeRounded(GgufWriter &out, WrittenTensor &t, const ReadElements &read, ThreadPool &pool, bool measure) {
  const int64_t all = t.elements();
  std::vector<char> blocks;
  std::vector<PieceResult> results;
  for (int64_t begin = 0; begin < all; begin += kBatch * kPiece) {
    const int64_t here = std::min(kBatch * kPiece, all - begin);
    blocks.resize(size_t(t.to->bytesOf(here)));
    results.assign(size_t((here + kPiece - 1) / kPiece), {});
    pool.each(int64_t(results.size()), [&](int64_t i) {
      const int64_t first = i * kPiece, n = std::min(kPiece, here - first);
      const auto values = std::make_unique_for_overwrite<float[]>(size_t(n));
      read(begin + first, n, values.get());
      results[size_t(i)] = roundPiece(t, values.get(), n, blocks.data() + t.to->bytesOf(first), measure);
    });
    for (const PieceResult &r : results) {
      requireFit(r, t);
      t.difference += r.difference;
      t.size += r.size;
    }
    out.write(blocks.data(), blocks.size());
  }
}

void requireOtherFile(const std::string &from, const std::string &to) {
  std::error_code e;
  if (std::filesystem::equivalent(from, to, e))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} is the file that is read", to),
                    "choose another name with -o");
}

std::vector<WrittenTensor> requantizeGguf(const std::string &from, const std::string &to, const GgufRounding &how,
                                          const GgufKeys &marks) {
  const GgufFile file(from);
  if (file.integer("split.count").value_or(1) > 1)
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("{} is one of {} files of a model", from, file.shown("split.count")),
                    "join them first: `llama-gguf-split --merge` of llama.cpp");
  requireOtherFile(from, to);
  std::vector<WrittenTensor> all = planned(file, how);
  std::vector<GgufWriter::Tensor> tensors;
  for (const WrittenTensor &t : all)
    tensors.push_back({t.name, t.to->type, t.shape});
  GgufKeys keys;
  for (auto &[key, bytes] : file.rawKeys())
    keys.emplace_back(key, GgufRaw{std::move(bytes)});
  setFormatKeys(keys, all);
  for (const auto &[key, value] : marks)
    if (!file.has(key))
      keys.emplace_back(key, value);
  ThreadPool pool(how.threads);
  GgufWriter out(to, keys, tensors, file.alignment());
  for (size_t i = 0; i < all.size(); ++i) {
    const GgufTensor &t = file.tensors()[i];
    if (all[i].to == all[i].from)
      copy(out, file, t);
    else
      writeRounded(
          out, all[i], [&](int64_t first, int64_t n, float *values) { file.read(t, first, n, values); }, pool,
          how.measure);
  }
  out.finish();
  return all;
}

}  // namespace gptc
