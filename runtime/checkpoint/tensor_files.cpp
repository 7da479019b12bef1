#include "runtime/checkpoint/tensor_files.h"

#include "ir/mesh.h"
#include "support/diagnostics.h"
#include "support/json.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace gptc {
namespace {

using json = nlohmann::ordered_json;

constexpr int64_t kMostElements = int64_t(1) << 56;  // so that byte counts do not overflow

/// Indices in the whole that a rank has along one dimension, in its order. Those beyond the logical extent are padding.
std::vector<int64_t> placesOf(const State &s, unsigned dim, const Mesh &mesh, int64_t rank) {
  std::vector<int64_t> places(wholeType(s).padded(int(dim)));
  std::iota(places.begin(), places.end(), 0);
  // Ranks along "data" share one tensor rank's part (ir/mesh.h).
  for (const char *axis : {"tensor", "data"}) {
    const auto cut = Cut::of(s, axis);
    if (!cut || cut->dim != dim)
      continue;
    std::vector<int64_t> part;
    int64_t begin = 0;
    for (int64_t group : cut->groups) {
      const int64_t each = group / mesh.extent(axis), from = begin + mesh.index(axis, rank) * each;
      part.insert(part.end(), places.begin() + from, places.begin() + from + each);
      begin += group;
    }
    places = std::move(part);
  }
  return places;
}

}  // namespace

Piece Piece::of(const State &s, const Mesh &mesh, int64_t rank) {
  Piece p;
  const Type whole = wholeType(s);
  for (unsigned d = 0; d < whole.rank(); ++d) {
    p.shape.push_back(whole.dim(int(d)));
    std::vector<Run> &runs = p.runs.emplace_back();
    const bool isCut = llvm::any_of(std::array{"tensor", "data"}, [&](const char *axis) {
      const auto cut = Cut::of(s, axis);
      return cut && cut->dim == d;
    });
    if (!isCut) {
      runs.push_back({0, 0, p.shape[d]});
      continue;
    }
    const std::vector<int64_t> places = placesOf(s, d, mesh, rank);
    for (int64_t own = 0; own < int64_t(places.size()); ++own) {
      if (places[own] >= p.shape[d])
        continue;
      if (!runs.empty() && runs.back().own + runs.back().count == own &&
          runs.back().whole + runs.back().count == places[own])
        ++runs.back().count;
      else
        runs.push_back({places[own], own, 1});
    }
  }
  return p;
}

std::vector<int64_t> Piece::ownShape() const {
  std::vector<int64_t> own;
  for (const auto &along : runs)
    own.push_back(
        std::accumulate(along.begin(), along.end(), int64_t(0), [](int64_t n, auto &r) { return n + r.count; }));
  return own;
}

bool Piece::meets(const Piece &other) const {
  for (size_t d = 0; d < runs.size(); ++d) {
    const bool any = std::any_of(runs[d].begin(), runs[d].end(), [&](const Run &a) {
      return std::any_of(other.runs[d].begin(), other.runs[d].end(),
                         [&](const Run &b) { return a.whole < b.whole + b.count && b.whole < a.whole + a.count; });
    });
    if (!any)
      return false;
  }
  return true;
}

std::string Piece::str() const {
  json at = json::array();
  for (const auto &along : runs) {
    at.push_back(json::array());
    for (const Run &r : along)
      at.back().push_back({r.whole, r.count});
  }
  return json{{"shape", shape}, {"runs", at}}.dump();
}

std::optional<Piece> Piece::parse(const std::string &text) {
  Piece p;
  try {
    const json j = parseJson<json>(text);
    p.shape = j.at("shape").get<std::vector<int64_t>>();
    if (j.at("runs").size() != p.shape.size())
      return std::nullopt;
    int64_t elements = 1;
    for (const int64_t extent : p.shape)
      if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements) || elements > kMostElements)
        return std::nullopt;
    for (size_t d = 0; d < p.shape.size(); ++d) {
      std::vector<Run> &along = p.runs.emplace_back();
      int64_t own = 0;
      for (const json &r : j.at("runs").at(d)) {
        const int64_t whole = r.at(0), count = r.at(1);
        if (whole < 0 || count < 1 || whole > p.shape[d] || count > p.shape[d] - whole)
          return std::nullopt;
        along.push_back({whole, own, count});
        own += count;
      }
    }
  } catch (const json::exception &) {
    return std::nullopt;
  }
  return p;
}

std::string pieceKey(llvm::StringRef tensor) { return "piece." + tensor.str(); }

TensorFiles::TensorFiles(const std::vector<std::string> &paths) {
  auto damaged = [](const std::string &path, const std::string &what) {
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", path, what),
                    "copy the files again from where they are from, all of one save");
  };
  for (const std::string &path : paths) {
    const SafetensorsFile &file = *files.emplace_back(std::make_unique<SafetensorsFile>(path));
    others.insert(file.unreadable().begin(), file.unreadable().end());
    for (const TensorInfo *t : file.all()) {
      Found found{&file, t, std::nullopt};
      TensorInfo whole = *t;
      if (const std::string *text = file.metadata(pieceKey(t->name))) {
        found.piece = Piece::parse(*text);
        if (!found.piece || found.piece->ownShape() != t->shape)
          damaged(path, fmt::format("it does not say which part of tensor {} it holds", t->name));
        whole.shape = found.piece->shape;
      }
      auto [at, isNew] = tensors.try_emplace(t->name, Whole{whole, {}});
      if (!isNew && (!found.piece || !at->second.found[0].piece || at->second.info.shape != whole.shape ||
                     at->second.info.dtype != t->dtype))
        damaged(path, fmt::format("tensor {} is also in another file", t->name));
      at->second.found.push_back(std::move(found));
    }
  }
  for (const auto &[name, whole] : tensors) {
    int64_t bytes = 0;
    for (const Found &f : whole.found)
      bytes += f.tensor->bytes();
    if (bytes != whole.info.bytes())
      damaged(paths[0], fmt::format("the pieces of tensor {} in this file and those beside it have {} of {} bytes",
                                    name, bytes, whole.info.bytes()));
  }
}

const TensorInfo *TensorFiles::find(llvm::StringRef name) const {
  auto it = tensors.find(std::string_view(name));
  return it == tensors.end() ? nullptr : &it->second.info;
}

std::vector<const TensorInfo *> TensorFiles::all() const {
  std::vector<const TensorInfo *> list;
  for (const auto &[name, whole] : tensors)
    list.push_back(&whole.info);
  return list;
}

void TensorFiles::read(const TensorInfo &t, void *to, const Piece *part) const {
  std::vector<char> buffer;
  for (const Found &f : tensors.find(t.name)->second.found) {
    if (!f.piece) {
      f.file->read(*f.tensor, to);
      continue;
    }
    if (part && !f.piece->meets(*part))
      continue;
    buffer.resize(f.tensor->bytes());
    f.file->read(*f.tensor, buffer.data());
    const int64_t size = sizeOf(t.dtype);
    const char *from = buffer.data();
    f.piece->forEachRun(f.tensor->shape, [&](int64_t whole, int64_t, int64_t n) {
      std::memcpy(static_cast<char *>(to) + whole * size, from, n * size);
      from += n * size;
    });
  }
}

bool TensorFiles::isWhole(const TensorInfo &t) const { return !tensors.find(t.name)->second.found[0].piece; }

void TensorFiles::readPart(const TensorInfo &t, int64_t first, int64_t bytes, void *to) const {
  const Found &f = tensors.find(t.name)->second.found[0];
  GPTC_CHECK(!f.piece, "tensor {} lies in pieces", t.name);
  f.file->read(*f.tensor, first, to, bytes);
}

bool TensorFiles::areEqual(const TensorInfo &one, const TensorInfo &other) const {
  constexpr int64_t most = 1 << 20;
  if (!isWhole(one) || !isWhole(other))
    return false;
  std::vector<char> a(std::min(most, one.bytes())), b(a.size());
  for (int64_t at = 0; at < one.bytes(); at += most) {
    const int64_t bytes = std::min(most, one.bytes() - at);
    readPart(one, at, bytes, a.data());
    readPart(other, at, bytes, b.data());
    if (std::memcmp(a.data(), b.data(), bytes) != 0)
      return false;
  }
  return true;
}

}  // namespace gptc
