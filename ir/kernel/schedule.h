// What a kernel is built for (Target) and with which sizes (Schedule). Both are plain data, so that a plan can hold
// them. The order of a sum is an attribute of its op (`fold`, `block`) or fixed by a recipe, and no size in a schedule
// changes it, with four exceptions. `pairs`: products of bf16 go two by two, its default where Target::bf16Dot says
// that the machine does so. `mma`: products go by tensor cores, 16 of bf16 or f16, 8 of tf32 at a time. `library`, with
// `algorithm`: a library's order. And `vec` is the number of lanes in which sums within a row are added (recipes row
// and attention_cached; on a GPU as on the CPU). Its default does not depend on the machine. The plan states all of
// them, so that a plan gives the same bits everywhere; whoever chooses sizes by measurement must leave `vec` alone.
#pragma once

#include "ir/kernel/dtype.h"

#include <optional>
#include <string>

namespace gptc {

/// What recipes may ask of a machine. Filled by codegen/cpu/target.cpp and codegen/cuda/target.cpp.
struct Target {
  std::string name = "cpu";   // "cpu", or "cuda:sm_90a" and the like
  std::string cpu;            // LLVM's name, e.g. "znver5"; "generic" is allowed; of a GPU its architecture: "sm_90a"
  std::string features;       // LLVM feature string; of a GPU "cublaslt", "cudnn" or both, which plans may call
  unsigned vectorBytes = 32;  // widest efficient vector
  unsigned vectorRegisters = 16;
  bool bf16Dot = false;         // products of pairs of bf16 at twice the rate of f32 (AVX512-BF16)
  int64_t l1Bytes = 32 << 10;   // data, per core
  int64_t l2Bytes = 512 << 10;  // per core
  int64_t l3Bytes = 8 << 20;    // shared
  unsigned threads = 1;         // for load balance only: never for the order of a sum
  // CUDA only, else 0:
  unsigned warp = 0;            // lanes that run together
  unsigned architecture = 0;    // 75, 80, 86, ...
  int64_t sharedBytes = 0;      // of shared memory that a block may have, and
  int64_t processorShared = 0;  // a multiprocessor has for all its blocks, to each of which 1 KiB more goes
  unsigned processors = 0;      // multiprocessors of a usual GPU of this architecture; for load balance only
  /// Whether tensor cores multiply this dtype; f32 stands for tf32.
  bool multiplies(DType t) const {
    return architecture >= 80 ? t == DType::bf16 || t == DType::f16 || t == DType::f32
                              : architecture >= 75 && t == DType::f16;
  }
  bool isCuda() const { return warp != 0; }
  /// Whether matmuls may be calls of cuBLASLt, which shapes what passes make.
  bool callsLibrary() const { return isCuda() && (features == "cublaslt" || features == "cublaslt,cudnn"); }
  /// Whether attention may be calls of cuDNN.
  bool callsCudnn() const { return isCuda() && (features == "cudnn" || features == "cublaslt,cudnn"); }
  /// Lanes of one vector of the dtype.
  int lanes(DType t) const { return vectorBytes / sizeOf(t); }
};

/// Sizes chosen for one kernel; zero means "the recipe's default". One flat struct for all recipes, as tuning records
/// hold it.
struct Schedule {
  /// "pointwise", "row", "fold", "reduce_all", "matmul", "attention", "attention_grad", "attention_cached", "scatter"
  std::string recipe;
  int vec = 0;  // lanes of vector loops; the lanes of row sums
  int unroll = 0;
  int64_t task = 0;                // rows, elements or heads per parallel task
  int threads = 0;                 // per block, a multiple of the warp; on CUDA only, and there always
  int mr = 0, nr = 0;              // register tile, of a thread or, by tensor cores, of a warp
  int64_t mc = 0, nc = 0, kc = 0;  // cache blocks; of a matmul on CUDA a block's tile and the steps of a stage
  int stages = 0;                  // matmul on CUDA: copied to shared memory at once, one of them in use
  int64_t qb = 0, kb = 0;          // attention blocks: queries, keys
  bool stream = false;             // pointwise: results that take no operand's place go past the caches
  bool packB = false;              // attention: keys and values are packed once, not by each task
  bool pairs = false;              // bf16 operands are multiplied in pairs (kir::dot), which orders the sum
  bool mma = false;                // by tensor cores, likewise
  bool library = false;            // on CUDA: one call of cuBLASLt (matmul) or cuDNN (attention), which orders the sum
  int64_t algorithm = 0;           // of a matmul's call: the name of the one to take (runtime/cuda/cublaslt.h), which
                                   // orders the sum too; 0: the library's first
  bool operator==(const Schedule &) const = default;
  /// `matmul mr=14 nr=32 kc=256`: the recipe and every non-zero field; parse reverses it. False on unknown text and
  /// on sizes that no kernel can have: a plan comes from outside.
  std::string str() const;
  static bool parse(llvm::StringRef text, Schedule &out);
};

/// Columns of the register tiles with which a CPU multiplies [m,K] by [K,n] where no measurement says otherwise, and so
/// of the panels in which a plan keeps such a second operand. It does not change the order of a sum.
int64_t tileColumns(const Target &target, int64_t m, int64_t n);

class Op;

/// Where schedules come from that were measured, for who chooses them (codegen's select-recipes).
class ScheduleSource {
public:
  virtual ~ScheduleSource() = default;
  /// The best one known for this fused op, valid for it; nullopt where its recipe's default is to be taken.
  virtual std::optional<Schedule> find(const Op &fused, const Target &target) = 0;
};

}  // namespace gptc
