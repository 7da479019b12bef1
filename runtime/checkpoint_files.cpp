#include "runtime/checkpoint_files.h"

#include "ir/diagnostics.h"

#include <algorithm>

namespace gptc {

std::vector<const State *> savedStates(const Module &m, bool parameters) {
  std::vector<const State *> r;
  for (const auto &s : m.states) {
    const std::string kind = s->attrs.getString("kind");
    if (kind != "grad" && kind != "cache" && kind != "low" && kind != "whole" && kind != "packed" &&
        (kind == "param") == parameters)
      r.push_back(s.get());
  }
  return r;
}

Ownership::Ownership(const Module &m, bool parameters)
    : states(savedStates(m, parameters)), mesh(Mesh::of(m)), parameters(parameters) {
  for (const State *s : states) {
    const int64_t bytes = wholeType(*s).elements() * int64_t(sizeOf(s->type.dtype));
    middle.push_back(total + bytes / 2);
    total += bytes;
  }
  int64_t files = 0;
  for (int64_t r = 0; r < mesh.ranks(); ++r) {
    bool any = false;
    for (size_t i = 0; i < states.size() && !any; ++i)
      any = writes(i, r);
    numbers.push_back(any ? ++files : 0);
  }
}

bool Ownership::writes(size_t i, int64_t rank) const {
  // Those that have the same: all along the axes over which it is not cut.
  int64_t alike = 1, place = 0;
  for (const char *axis : {"data", "tensor"})
    if (parameters || !Cut::of(*states[i], axis)) {
      alike *= mesh.extent(axis);
      place = place * mesh.extent(axis) + mesh.index(axis, rank);
    }
  // Neighbours in the module go to one rank.
  return place == std::min(alike - 1, int64_t(__int128(middle[i]) * alike / std::max<int64_t>(total, 1)));
}

std::string Ownership::fileOf(int64_t rank) const {
  const char *stem = parameters ? "model" : "optimizer";
  if (mesh.ranks() == 1)
    return fmt::format("{}.safetensors", stem);
  if (!numbers[rank])
    return "";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, numbers[rank],
                     *std::max_element(numbers.begin(), numbers.end()));
}

OwnedFiles OwnedFiles::of(const Module &m, int64_t rank, bool copyAll) {
  constexpr int64_t kLine = 64;
  const Mesh mesh = Mesh::of(m);
  OwnedFiles all;
  for (const bool parameters : {true, false}) {
    const Ownership owners(m, parameters);
    OwnedFile &file = all.files[parameters ? 0 : 1];
    file.name = owners.fileOf(rank);
    for (size_t i = 0; i < owners.states.size(); ++i) {
      OwnedFile::Part part{owners.states[i], owners.states[i]};
      if (parameters && isPiece(*part.state)) {
        // ZeRO's stages 1 and 2 keep a whole copy of what is cut over the data ranks.
        for (const auto &s : m.states)
          if (s->attrs.getString("kind") == "whole" && s->attrs.getString("of") == part.state->name)
            part.source = s.get();
        part.gathered = isPiece(*part.source);
        if (part.gathered) {
          all.gathered.push_back(part.state);
          all.largestGathered = std::max(all.largestGathered, part.type().bytes());
        }
      }
      if (!owners.writes(i, rank))
        continue;
      if (!parameters && isPiece(*part.state))
        part.piece = Piece::of(*part.state, mesh, rank);
      if (copyAll || part.gathered) {
        part.at = all.copyBytes;
        all.copyBytes += (part.type().bytes() + kLine - 1) / kLine * kLine;
      }
      file.parts.push_back(std::move(part));
    }
  }
  return all;
}

int64_t memoryToSave(const Module &m, bool beside) {
  int64_t most = 0;
  for (int64_t r = 0; r < Mesh::of(m).ranks(); ++r) {
    const OwnedFiles files = OwnedFiles::of(m, r, beside);
    most = std::max(most, files.copyBytes + files.largestGathered);
  }
  return most;
}

}  // namespace gptc
