#include "runtime/cuda/together.h"

#include "support/diagnostics.h"

#include <utility>

namespace gptc::cuda {

/// Tables of several sets of members, for all phases, in one piece of memory that the first owns.
std::vector<Together::Tables> Together::upload(llvm::ArrayRef<std::vector<size_t>> members,
                                               llvm::ArrayRef<std::vector<std::vector<uint64_t>>> params) const {
  constexpr size_t wordsApart = 2;  // parameters begin at multiples of 16 bytes
  std::vector<uint64_t> words;
  std::vector<Tables> tables(members.size());
  std::vector<std::pair<DevicePtr *, size_t>> places;  // and the word at which each begins
  for (size_t i = 0; i < members.size(); ++i) {
    tables[i].at.resize(functions.size());
    for (size_t phase = 0; phase < functions.size(); ++phase) {
      const std::vector<uint64_t> table = code.table(phase, members[i], params[i]);
      if (table.empty())
        continue;
      places.push_back({&tables[i].at[phase], words.size()});
      words.insert(words.end(), table.begin(), table.end());
      words.resize((words.size() + wordsApart - 1) / wordsApart * wordsApart);
    }
  }
  const size_t bytes = words.size() * sizeof(uint64_t);
  auto memory = std::make_unique<DeviceMemory>(gpu, bytes);
  gpu.d.check(gpu.d.copyToDevice(memory->at, words.data(), bytes, gpu.stream), "cuMemcpyHtoDAsync");
  gpu.wait();
  for (const auto &[at, word] : places)
    *at = memory->at + word * sizeof(uint64_t);
  tables.front().memory = std::move(memory);
  return tables;
}

void Together::load(std::vector<LoadedPhase> loaded) {
  GPTC_CHECK(loaded.size() == code.cuda().phases.size(), "{} functions of {}", loaded.size(), code.name());
  functions = std::move(loaded);
  std::vector<std::vector<size_t>> members(1);
  std::vector<std::vector<std::vector<uint64_t>>> own = {params};
  for (size_t i = 0; i < params.size(); ++i) {
    members.front().push_back(i);
    members.push_back({i});
    own.push_back({params[i]});
  }
  alone = upload(members, own);
  all = std::move(alone.front());
  alone.erase(alone.begin());
}

void LoadedPhase::launch(const Gpu &gpu, unsigned count, void **params, Stream stream, bool early) const {
  if (!early || !waits)
    return gpu.d.check(gpu.d.launchKernel(function, count, 1, 1, threads, 1, 1, sharedBytes, stream, params, nullptr),
                       symbol.c_str());
  LaunchAttribute overlap = {};
  overlap.id = programmaticStreamSerialization;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  const LaunchConfig config = {count, 1, 1, threads, 1, 1, sharedBytes, stream, &overlap, 1};
  gpu.d.check(gpu.d.launchKernelEx(&config, function, params, nullptr), symbol.c_str());
}

void Together::enqueue(const Tables &tables, Stream stream, llvm::ArrayRef<size_t> members, bool early) const {
  for (size_t phase = 0; phase < functions.size(); ++phase) {
    int64_t blocks = 0;
    for (size_t member : members)
      blocks += code.blocks(member, phase);
    if (blocks == 0)
      continue;
    DevicePtr table = tables.at[phase];
    void *parameters[] = {&table};
    functions[phase].launch(gpu, unsigned(blocks), parameters, stream, std::exchange(early, true));
  }
}

void Together::launch(Stream stream, bool early) const {
  std::vector<size_t> members;
  for (size_t i = 0; i < params.size(); ++i)
    members.push_back(i);
  enqueue(all, stream, members, early);
}

void Together::launchAlone(size_t member, Stream stream) const { enqueue(alone[member], stream, member, false); }

std::function<void(Stream)> Together::elsewhere(size_t member, llvm::ArrayRef<DevicePtr> at) const {
  const std::vector<std::vector<size_t>> members = {{member}};
  const std::vector<std::vector<std::vector<uint64_t>>> own = {{{at.begin(), at.end()}}};
  auto tables = std::make_shared<Tables>(std::move(upload(members, own).front()));
  return [this, tables, member](Stream stream) { enqueue(*tables, stream, member, false); };
}

}  // namespace gptc::cuda
