#include "runtime/launch/same_run.h"

#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/xxhash.h"

namespace gptc {
namespace {

/// Hash of the running program's file. A version would not distinguish two builds.
std::string programHash() {
  auto file = llvm::MemoryBuffer::getFile("/proc/self/exe", /*IsText=*/false, /*RequiresNullTerminator=*/false);
  return file ? fmt::format("{:016x}", llvm::xxh3_64bits((*file)->getBuffer())) : "unreadable";
}

}  // namespace

void requireSameRun(RendezvousClient &ranks, const std::string &planDir, const std::string &planHash) {
  constexpr auto patience = std::chrono::minutes(2);
  const std::string program = programHash();
  if (ranks.rank == 0) {
    ranks.set("same-run", fmt::format("{}\n{}\n{}", hostName(), program, planHash));
    return;
  }
  const std::string first = ranks.get("same-run", patience);
  llvm::SmallVector<llvm::StringRef, 3> theirs;
  llvm::StringRef(first).split(theirs, '\n');
  GPTC_CHECK(theirs.size() == 3, "rank 0 says {}", first);
  const std::string me = fmt::format("rank {} on {}", ranks.rank, hostName()),
                    it = fmt::format("rank 0 on {}", theirs[0].str());
  auto differ = [&](const std::string &text, const std::string &help) {
    ranks.report(ErrorCode::RanksDiffer, text, help);
    throw UserError(ErrorCode::RanksDiffer, text, help);
  };
  if (theirs[1] != program)
    differ(fmt::format("{} runs another build of gptrun than {}: {} and {}", me, it, program, theirs[1].str()),
           "copy one build to all machines");
  if (theirs[2] != planHash)
    differ(fmt::format("{} has another plan in {} than {}: {} and {}", me, planDir, it, planHash.substr(0, 16),
                       theirs[2].substr(0, 16).str()),
           "compile once, and copy that plan to all machines");
}

}  // namespace gptc
