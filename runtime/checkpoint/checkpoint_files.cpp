#include "runtime/checkpoint/checkpoint_files.h"

#include "ir/facts.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json_problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace gptc {

std::vector<const State *> savedStates(const Module &m, bool parameters) {
  std::vector<const State *> r;
  for (const auto &s : m.states) {
    switch (kindOf(*s).value_or(StateKind::counter)) {
    case StateKind::grad:
    case StateKind::cache:
    case StateKind::low:
    case StateKind::whole:
    case StateKind::anchor:
    case StateKind::packed:
    case StateKind::quantized:
      break;
    case StateKind::param:
      if (parameters)
        r.push_back(s.get());
      break;
    case StateKind::moment:
    case StateKind::counter:
      if (!parameters)
        r.push_back(s.get());
      break;
    }
  }
  return r;
}

Ownership::Ownership(const Module &m, bool parameters)
    : states(savedStates(m, parameters)), mesh(Mesh::of(m)), parameters(parameters) {
  for (const State *s : states) {
    const int64_t bytes = wholeType(*s).elements() * int64_t(sizeOf(s->type.dtype));
    // States that share a tensor go to one file.
    const std::vector<int64_t> share = fact<&FileFacts::hfShare>(*s);
    const bool goesOn = !middle.empty() && share.size() == 2 && share[0] > 0;
    middle.push_back(goesOn ? middle.back() : total + bytes / 2);
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
  // Ranks that have the same data: those along the axes over which it is not cut.
  int64_t alike = 1, place = 0;
  for (const char *axis : {"data", "tensor"})
    if (parameters || !Cut::of(*states[i], axis)) {
      alike *= mesh.extent(axis);
      place = place * mesh.extent(axis) + mesh.index(axis, rank);
    }
  // Neighbouring states go to one rank.
  return place == std::min(alike - 1, int64_t(__int128(middle[i]) * alike / std::max<int64_t>(total, 1)));
}

std::string Ownership::fileOf(int64_t rank) const {
  const std::string stem = parameters ? "model" : fmt::format("{}/optimizer", kStateFolder);
  if (mesh.ranks() == 1)
    return fmt::format("{}.safetensors", stem);
  if (!numbers[rank])
    return "";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, numbers[rank],
                     *std::max_element(numbers.begin(), numbers.end()));
}

namespace {

/// Finds the memory that has a state's data.
class Sources {
public:
  explicit Sources(const Module &m) {
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::whole)
        copies[fact<&StateFacts::of>(*s)] = s.get();
  }
  OwnedFile::Part of(const State &s, bool parameter) const {
    OwnedFile::Part part{&s, &s};
    if (!parameter || !isPiece(s))
      return part;
    // ZeRO stages 1 and 2 keep a whole copy of each parameter that is cut over the data ranks.
    if (auto copy = copies.find(s.name); copy != copies.end())
      part.source = copy->second;
    part.gathered = isPiece(*part.source);
    return part;
  }

private:
  llvm::StringMap<const State *> copies;
};

int64_t roomFor(const OwnedFile::Part &part) {
  constexpr int64_t line = 64;
  return (part.type().bytes() + line - 1) / line * line;
}

}  // namespace

OwnedFiles OwnedFiles::of(const Module &m, int64_t rank, bool copyAll) {
  const Sources sources(m);
  OwnedFiles all;
  for (const bool parameters : {true, false}) {
    const Ownership owners(m, parameters);
    OwnedFile &file = all.files[parameters ? 0 : 1];
    file.name = owners.fileOf(rank);
    for (size_t i = 0; i < owners.states.size(); ++i) {
      const State &s = *owners.states[i];
      OwnedFile::Part part = sources.of(s, parameters);
      if (part.gathered) {
        all.gathered.push_back(&s);
        all.largestGathered = std::max(all.largestGathered, part.type().bytes());
      }
      if (!owners.writes(i, rank))
        continue;
      if (!parameters && isPiece(s))
        part.piece = Piece::of(s, Mesh::of(m), rank);
      if (copyAll || part.gathered) {
        part.at = all.copyBytes;
        all.copyBytes += roomFor(part);
      }
      file.parts.push_back(std::move(part));
    }
  }
  return all;
}

int64_t memoryToSave(const Module &m, bool beside) {
  const Sources sources(m);
  std::vector<int64_t> bytes(Mesh::of(m).ranks());
  int64_t largest = 0;
  for (const bool parameters : {true, false}) {
    const Ownership owners(m, parameters);
    for (size_t i = 0; i < owners.states.size(); ++i) {
      const OwnedFile::Part part = sources.of(*owners.states[i], parameters);
      if (part.gathered)
        largest = std::max(largest, part.type().bytes());
      for (size_t r = 0; r < bytes.size() && (beside || part.gathered); ++r)
        if (owners.writes(i, int64_t(r)))
          bytes[r] += roomFor(part);
    }
  }
  return *std::max_element(bytes.begin(), bytes.end()) + largest;
}

int64_t ranksApart(const Module &m) {
  const auto shared = factsOf<ParallelFacts>(m);
  return shared.syncEvery > 1 || compressesGradients(m) ? shared.data : 1;
}

std::string differenceOfRanks(int64_t there, const Module &planned, std::string &remedy) {
  const int64_t here = ranksApart(planned);
  if (there == here)
    return "";
  remedy = there == 1
               ? "compile the plan again with parallel.sync_every = 1 and parallel.compression = \"none\""
               : fmt::format("go on with {} ranks, and sync_every and compression of [parallel] as they were", there);
  return there == 1 ? fmt::format("ranks that share their moments, and in the plan each of {} has its own", here)
                    : fmt::format("{} ranks with moments of their own, and the plan has {}", there,
                                  here == 1 ? std::string("one set of them") : fmt::format("{} such ranks", here));
}

bool isHeadless(const Module &m) {
  const auto makesVectors = [](const auto &f) { return llvm::StringRef(f->name).starts_with("embed_"); };
  return fact<&ModelFacts::labels>(m) || (llvm::any_of(m.functions, makesVectors) && !m.function("fill"));
}

std::vector<std::string> weightFiles(const std::string &folder) {
  const std::string one = folder + "/model.safetensors", index = folder + "/" + kIndexFile;
  std::error_code e;
  if (std::filesystem::exists(one, e) || !std::filesystem::exists(index, e))
    return {one};
  constexpr size_t limit = 100 << 20;  // bytes
  const FileText text = readTextFile(index, limit);
  const char *const again = "copy it again from where the weights are from";
  const nlohmann::json content = text.ok ? objectInFile(text.text, index, again) : nlohmann::json();
  const nlohmann::json &map = part(content, "weight_map");
  std::set<std::string> names;
  std::string why = text.why;
  if (text.ok && !map.is_object())
    why = fmt::format("weight_map is {}, where an object is needed", shown(map));
  for (const nlohmann::json &file : map) {  // nothing of null
    if (file.is_string())
      names.insert(file.get<std::string>());
    else if (why.empty())
      why = fmt::format("weight_map has {} where the name of a file is needed", shown(file));
  }
  std::vector<std::string> paths;
  for (const std::string &name : names) {
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos)
      why = fmt::format("it names \"{}\", which is no file of this folder", name.c_str());
    paths.push_back(fmt::format("{}/{}", folder, name));
  }
  if (!why.empty() || paths.empty())
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", index, why.empty() ? "no tensors" : why),
                    again);
  return paths;
}

}  // namespace gptc
