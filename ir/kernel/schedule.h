// The machine that a kernel is built for (Target) and the sizes it is built with (Schedule). Both are plain data, so
// that a plan can hold them. Attributes of ops (`fold`, `block`) and recipes fix the order of every sum; of the members
// of a schedule only these change it:
//   pairs      products of bf16 are added two by two. On by default if Target::bf16Dot says that the machine does so.
//   mma        tensor cores add products 16 (bf16, f16) or 8 (tf32) at a time.
//   library    the order is the library's; `algorithm` chooses among several.
//   vec        the number of lanes in which sums within a row are added (recipes row and row_fold). Its default does
//              not depend on the machine; measurements must not change it.
//   threads, mr, nr, nc   of the recipe row_matmul: into how many parts its sums are cut. The same holds for them, and
//              for `kb` of row_matmul and attention_split, the keys of a part.
// The plan states all of them, so that a plan gives the same bits everywhere.
#pragma once

#include "ir/kernel/dtype.h"
#include "ir/kernel/recipe_kind.h"

#include <optional>
#include <string>

namespace gptc {

/// The properties of a machine that recipes use. Filled by codegen/cpu/target.cpp and codegen/cuda/target.cpp.
struct Target {
  std::string name = "cpu";   // "cpu", or "cuda:sm_90a" and the like
  std::string cpu;            // LLVM's name, e.g. "znver5" or "generic"; for a GPU its architecture: "sm_90a"
  std::string features;       // LLVM feature string; for a GPU the libraries that plans may call: "cublaslt", "cudnn"
  unsigned vectorBytes = 32;  // widest efficient vector
  unsigned vectorRegisters = 16;
  bool bf16Dot = false;         // products of pairs of bf16 at twice the rate of f32 (AVX512-BF16)
  int64_t l1Bytes = 32 << 10;   // data, per core
  int64_t l2Bytes = 512 << 10;  // per core
  int64_t l3Bytes = 8 << 20;    // shared
  unsigned threads = 1;         // for load balance only; never changes the order of a sum
  unsigned ranks = 1;           // of this machine, each with `threads`; for measurements only, as they slow each other
  // CUDA only, else 0:
  unsigned warp = 0;            // threads of a warp
  unsigned architecture = 0;    // 75, 80, 86, ...
  int64_t sharedBytes = 0;      // shared memory that a block may have, in bytes
  int64_t processorShared = 0;  // shared memory of a multiprocessor; each of its blocks takes 1 KiB extra
  unsigned processors = 0;      // multiprocessors of a usual GPU of this architecture; for load balance only
  /// Whether tensor cores multiply this dtype; f32 stands for tf32.
  bool multiplies(DType t) const {
    return architecture >= 80 ? t == DType::bf16 || t == DType::f16 || t == DType::f32
                              : architecture >= 75 && t == DType::f16;
  }
  bool isCuda() const { return warp != 0; }
  /// Whether matmuls may be calls of cuBLASLt; passes then prepare them for that.
  bool callsLibrary() const { return isCuda() && (features == "cublaslt" || features == "cublaslt,cudnn"); }
  /// Whether attention may be calls of cuDNN.
  bool callsCudnn() const { return isCuda() && (features == "cudnn" || features == "cublaslt,cudnn"); }
  /// Lanes of one vector of the dtype.
  int lanes(DType t) const { return vectorBytes / sizeOf(t); }
};

/// Sizes chosen for one kernel; zero stands for the recipe's default. One flat struct for all recipes, as in tuning
/// records.
struct Schedule {
  std::optional<RecipeKind> recipe;  // nullopt until one is chosen
  int vec = 0;                       // lanes of vector loops; the lanes of row sums
  int unroll = 0;
  int64_t task = 0;                // rows, elements or heads per parallel task
  int threads = 0;                 // threads of a block, a multiple of the warp; set on CUDA, and only there
  int mr = 0, nr = 0;              // register tile of a thread, with `mma` of a warp
  int64_t mc = 0, nc = 0, kc = 0;  // cache blocks; matmul on CUDA: a block's tile and the steps of a stage
  int stages = 0;                  // matmul on CUDA: pieces in shared memory, one in use, the others being copied
  int64_t qb = 0, kb = 0;          // attention blocks: queries, keys
  bool stream = false;             // pointwise: stores of results that share no operand's memory bypass the caches
  bool packB = false;              // attention: keys and values are packed once, instead of by each task
  bool pairs = false;              // bf16 operands are multiplied in pairs (kir::dot), which orders the sum
  bool mma = false;                // matmul, attention: tensor cores, which order the sum
  bool library = false;            // on CUDA: one call of cuBLASLt (matmul) or cuDNN (attention), which orders the sum
  int64_t algorithm = 0;           // of a matmul's call: the name of the one to take (runtime/cuda/cublaslt.h), which
                                   // orders the sum too; 0: the library's first
  bool operator==(const Schedule &) const = default;
  /// `matmul mr=14 nr=32 kc=256`: the recipe and every non-zero field. parse reverses it; false for unknown text and
  /// for sizes that no kernel can have, because plans are untrusted.
  std::string str() const;
  static bool parse(llvm::StringRef text, Schedule &out);
};

/// Columns of a CPU's register tiles for the product of [m,K] and [K,n], if no measurement chose others; so also the
/// columns of the panels in which a plan keeps the second operand. They do not change the order of a sum.
int64_t tileColumns(const Target &target, int64_t m, int64_t n);

class Op;

/// A source of measured schedules for the pass select-recipes.
class ScheduleSource {
public:
  virtual ~ScheduleSource() = default;
  /// The best schedule known for this fused op, valid for it; nullopt for the recipe's default.
  virtual std::optional<Schedule> find(const Op &fused, const Target &target) = 0;
};

}  // namespace gptc
