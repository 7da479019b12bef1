// Describes GPUs by the name of their architecture. No GPU is needed to compile for one.
#include "codegen/codegen.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

Target cudaTarget(llvm::StringRef name) {
  // All architectures of NVRTC 13. `a` adds instructions of one architecture, `f` those of its family.
  static constexpr llvm::StringLiteral known[] = {"sm_75",   "sm_80",   "sm_86",  "sm_87",   "sm_88",   "sm_89",
                                                  "sm_90",   "sm_90a",  "sm_100", "sm_100f", "sm_100a", "sm_103",
                                                  "sm_103f", "sm_103a", "sm_110", "sm_110f", "sm_110a", "sm_120",
                                                  "sm_120f", "sm_120a", "sm_121", "sm_121f", "sm_121a"};
  llvm::StringRef arch = name;
  const bool named = arch.consume_front("cuda:");
  if (!named || !llvm::is_contained(known, arch)) {
    unsigned version = 0;
    llvm::StringRef digits = arch;
    const bool old = named && digits.consume_front("sm_") && !digits.consumeInteger(10, version) && version < 75;
    throw UserError(
        ErrorCode::UnknownValue,
        old ? fmt::format("target `{}` is too old: NVRTC 13 starts at sm_75, so V100 (sm_70) and GPUs before "
                          "it cannot be used",
                          name.str())
            : fmt::format("no target is called `{}`", name.str()),
        fmt::format("{}cuda: and one of {}", old ? "" : "cpu, or ", fmt::join(known, ", ")));
  }
  Target t;
  t.name = name.str();
  t.cpu = arch.str();
  t.vectorBytes = 16;  // the widest access of one thread
  t.warp = 32;
  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". `processors` is that of a common GPU
  // of the architecture.
  struct Limits {
    unsigned architecture, processors;
    int64_t shared;  // KiB per multiprocessor; a block may have 1 KiB less, on sm_75 all
  };
  static constexpr Limits limits[] = {{75, 40, 64},    {80, 108, 164}, {86, 84, 100},   {87, 16, 164},
                                      {88, 16, 164},   {89, 128, 100}, {90, 132, 228},  {100, 148, 228},
                                      {103, 148, 228}, {110, 20, 228}, {120, 170, 100}, {121, 48, 100}};
  llvm::StringRef digits = arch.drop_front(3);
  digits.consumeInteger(10, t.architecture);
  const Limits *l = llvm::find_if(limits, [&](const Limits &l) { return l.architecture == t.architecture; });
  GPTC_CHECK(l != std::end(limits), "nothing is known of {}", t.cpu);
  t.processorShared = l->shared << 10;
  t.sharedBytes = (l->shared - (t.architecture == 75 ? 0 : 1)) << 10;
  t.processors = l->processors;
  return t;
}

}  // namespace gptc
