// A table, in words of 64 bits:
//
//   0               the number of members, n
//   1 ... n         the first block of each
//   then, for each  the number of its kernel, and the addresses of its parameters; so many words that the longest fits
#include "codegen/cuda/launch.h"

#include "codegen/cuda/emit_text.h"
#include "codegen/cuda/jit.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <map>

namespace gptc {

namespace {

/// How a function of the text casts an address of the table to its parameter.
std::string argumentOf(const kir::Buffer &b, size_t word) {
  return fmt::format("globalAt<{}{}>(readRaw(table, at + {}))", b->written ? "" : "const ", storedType(b->dtype), word);
}

/// The __global__ function of a phase: searches for the last member that begins at or before the block.
std::string dispatcher(const std::string &symbol, int threads, size_t words, const std::string &cases) {
  return fmt::format(R"(
GPTC_KERNEL({}, {})(Global<const u64> table) {{
  waitForPrevious();
  const int members = (int)readRaw(table, 0);
  int member = 0;
  for (int end = members; end - member > 1;) {{
    const int middle = (member + end) / 2;
    if ((int)readRaw(table, 1 + middle) <= blockIndex())
      member = middle;
    else
      end = middle;
  }}
  const int block = blockIndex() - (int)readRaw(table, 1 + member), at = 1 + members + member * {};
  switch ((int)readRaw(table, at)) {{
{}  }}
  letNextStart();
}}
)",
                     symbol, threads, words, cases);
}

}  // namespace

CudaLaunch::CudaLaunch(llvm::ArrayRef<const kir::Kernel *> kernels) {
  std::vector<const kir::Kernel *> distinct;
  std::map<std::string, size_t> known;
  for (const kir::Kernel *k : kernels) {
    const auto [it, isNew] = known.try_emplace(kir::print(*k), distinct.size());
    if (isNew)
      distinct.push_back(k);
    kernelOf.push_back(it->second);
    mostParams = std::max(mostParams, k->params.size());
  }
  symbol = "launch_" + cudaSymbol(*distinct.front());
  parts = emitCudaParts(distinct, symbol);
  kernel.text = parts.text;
  for (size_t phase = 0;; ++phase) {
    CudaPhase all{fmt::format("{}_p{}", symbol, phase), 0, 0, 0};
    std::string cases;
    for (size_t i = 0; i < distinct.size(); ++i) {
      if (phase >= parts.phases[i].size())
        continue;
      const CudaPhase &part = parts.phases[i][phase];
      all.threads = part.threads;
      all.sharedBytes = std::max(all.sharedBytes, part.sharedBytes);
      std::string arguments;
      for (size_t p = 0; p < distinct[i]->params.size(); ++p)
        arguments += argumentOf(distinct[i]->params[p], 1 + p) + ", ";
      cases += fmt::format("  case {}: {}({}block); break;\n", i, part.symbol, arguments);
    }
    if (cases.empty())
      break;
    for (size_t member = 0; member < kernelOf.size(); ++member)
      all.blocks += blocks(member, phase);
    GPTC_CHECK(all.blocks < int64_t(1) << 31, "{} has {} blocks", symbol, all.blocks);
    kernel.text += dispatcher(all.symbol, all.threads, 1 + mostParams, cases);
    kernel.phases.push_back(all);
  }
}

int64_t CudaLaunch::blocks(size_t member, size_t phase) const {
  const std::vector<CudaPhase> &phases = parts.phases[kernelOf[member]];
  return phase < phases.size() ? phases[phase].blocks : 0;
}

std::vector<uint64_t> CudaLaunch::table(size_t phase, llvm::ArrayRef<size_t> members,
                                        llvm::ArrayRef<std::vector<uint64_t>> params) const {
  std::vector<uint64_t> first, rest;
  uint64_t block = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const int64_t own = blocks(members[i], phase);
    if (own == 0)
      continue;
    GPTC_CHECK(params[i].size() <= mostParams, "{} parameters", params[i].size());
    first.push_back(block);
    block += uint64_t(own);
    rest.push_back(kernelOf[members[i]]);
    rest.insert(rest.end(), params[i].begin(), params[i].end());
    rest.resize(first.size() * (1 + mostParams));
  }
  if (first.empty())
    return {};
  std::vector<uint64_t> all = {first.size()};
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace gptc
