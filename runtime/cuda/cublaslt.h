// Matrix products by cuBLASLt (libcublasLt.so.13), loaded with dlopen. The functions and types of its API that we use
// are declared here as in the toolkit's cublasLt.h; a test compares them with that header if it is installed.
#pragma once

#include "codegen/cublaslt_matmul.h"
#include "runtime/cuda/driver.h"

#include "llvm/ADT/ArrayRef.h"

#include <optional>
#include <vector>

namespace gptc::cuda {

using LtHandle = struct LtContext *;
using LtDesc = struct LtDescImpl *;
using LtLayout = struct LtLayoutImpl *;
using LtPreference = struct LtPreferenceImpl *;

enum LtStatus : int { ltSuccess = 0, ltAllocFailed = 3, ltInvalidValue = 7, ltNotSupported = 15 };
enum LtType : int { ltF32 = 0, ltF16 = 2, ltBF16 = 14, ltE4M3 = 28 };
enum LtCompute : int { ltCompute32F = 68, ltComputeTF32 = 77 };
enum LtDescAttribute : int {
  ltTransA = 3,
  ltTransB = 4,
  ltEpilogue = 7,
  ltBiasPointer = 8,
  ltAuxPointer = 11,
  ltAuxLd = 12,
  ltScaleA = 17,
  ltBiasType = 26,
};
enum LtLayoutAttribute : int { ltBatchCount = 5, ltBatchStride = 6 };
enum LtPreferenceAttribute : int {
  ltMaxWorkspace = 1,
  ltAlignmentA = 5,
  ltAlignmentB = 6,
  ltAlignmentC = 7,
  ltAlignmentD = 8,
};
enum LtEpilogue : int {
  ltEpilogueDefault = 1,
  ltEpilogueBias = 4,
  ltEpilogueGelu = 32,
  ltEpilogueGeluBias = 36,
  ltEpilogueGeluAux = 160,
  ltEpilogueGeluAuxBias = 164,
  ltEpilogueGeluGrad = 192,
  ltEpilogueBiasGradA = 256,
};

struct LtAlgorithm {
  uint64_t data[8];  // opaque
};
/// CUBLASLT_ALGO_CONFIG_ID, _TILE_ID, _SPLITK_NUM, _REDUCTION_SCHEME, _CTA_SWIZZLING, _CUSTOM_OPTION and _STAGES_ID, of
/// 4 bytes each, then _INNER_SHAPE_ID and _CLUSTER_SHAPE_ID, of 2.
constexpr int ltAlgorithmAttributes = 9, ltWideAttributes = 7;
struct LtHeuristic {
  LtAlgorithm algorithm;
  size_t workspace;  // bytes required
  LtStatus state;
  float waves;  // of thread blocks, as the library estimates
  int reserved[4];
};

// X(member, symbol of the library, parameters)
#define GPTC_CUBLASLT_FUNCTIONS(X)                                                                                     \
  X(create, cublasLtCreate, (LtHandle * handle))                                                                       \
  X(destroy, cublasLtDestroy, (LtHandle handle))                                                                       \
  X(descCreate, cublasLtMatmulDescCreate, (LtDesc * desc, LtCompute compute, LtType scale))                            \
  X(descDestroy, cublasLtMatmulDescDestroy, (LtDesc desc))                                                             \
  X(descSet, cublasLtMatmulDescSetAttribute,                                                                           \
    (LtDesc desc, LtDescAttribute attribute, const void *value, size_t bytes))                                         \
  X(layoutCreate, cublasLtMatrixLayoutCreate,                                                                          \
    (LtLayout * layout, LtType type, uint64_t rows, uint64_t cols, int64_t ld))                                        \
  X(layoutDestroy, cublasLtMatrixLayoutDestroy, (LtLayout layout))                                                     \
  X(layoutSet, cublasLtMatrixLayoutSetAttribute,                                                                       \
    (LtLayout layout, LtLayoutAttribute attribute, const void *value, size_t bytes))                                   \
  X(preferenceCreate, cublasLtMatmulPreferenceCreate, (LtPreference * preference))                                     \
  X(preferenceDestroy, cublasLtMatmulPreferenceDestroy, (LtPreference preference))                                     \
  X(preferenceSet, cublasLtMatmulPreferenceSetAttribute,                                                               \
    (LtPreference preference, LtPreferenceAttribute attribute, const void *value, size_t bytes))                       \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                                         \
    (LtHandle handle, LtDesc desc, LtLayout a, LtLayout b, LtLayout c, LtLayout d, LtPreference preference, int most,  \
     LtHeuristic *found, int *count))                                                                                  \
  X(algorithmGet, cublasLtMatmulAlgoConfigGetAttribute,                                                                \
    (const LtAlgorithm *algorithm, int attribute, void *value, size_t bytes, size_t *written))                         \
  X(matmul, cublasLtMatmul,                                                                                            \
    (LtHandle handle, LtDesc desc, const void *alpha, const void *a, LtLayout aLayout, const void *b,                  \
     LtLayout bLayout, const void *beta, const void *c, LtLayout cLayout, void *d, LtLayout dLayout,                   \
     const LtAlgorithm *algorithm, void *workspace, size_t workspaceBytes, Stream stream))

struct CublasLt {
#define GPTC_MEMBER(member, symbol, params) LtStatus(*member) params;
  GPTC_CUBLASLT_FUNCTIONS(GPTC_MEMBER)
#undef GPTC_MEMBER

  /// The library of CudaLibraryId::cublasLt, bound once. Throws UserError(TargetUnavailable) if it is missing or lacks
  /// one of these functions.
  static const CublasLt &get();
  /// Throws like Driver::check.
  void check(LtStatus s, const char *what) const;
};

/// One CublasLtMatmul at fixed addresses: its descriptors, made once, and the algorithms that the library proposes for
/// it. It belongs to one handle and to the device that is current at construction.
class MatmulCall {
public:
  /// `params`: addresses of the group's operands and results. The call may use `workspaceBytes` bytes at `workspace`.
  MatmulCall(LtHandle handle, const CublasLtMatmul &matmul, llvm::ArrayRef<DevicePtr> params, DevicePtr workspace,
             size_t workspaceBytes);
  ~MatmulCall();
  MatmulCall(const MatmulCall &) = delete;

  /// Number of proposals, at most eight, ordered by the library's own estimate; 0 if it cannot compute this product.
  unsigned algorithms() const { return unsigned(found.size()); }
  /// The name of an algorithm in a plan (Schedule::algorithm): a hash of what the library tells of it (kernel, tile,
  /// stages, cuts over k, ...), in 1 ... 2^31 - 1. Its opaque bits may differ from process to process, and never come
  /// from a plan.
  int64_t nameOf(unsigned algorithm) const;
  /// The proposal of that name; nullopt if the library does not propose it, which can happen on another version or GPU.
  std::optional<unsigned> find(int64_t name) const;
  /// Enqueues the product by one proposal and returns the library's status: it may refuse at run time what it proposed.
  /// The result's bits depend on the algorithm. Do not capture the first of equal calls: it may load code.
  LtStatus tryEnqueue(Stream stream, unsigned algorithm) const;
  /// Enqueues a proposal that has run before. Throws InternalError if the library refuses it.
  void enqueue(Stream stream, unsigned algorithm = 0) const;

private:
  const CublasLt &lt;
  LtHandle handle;
  LtDesc desc = nullptr;
  LtLayout a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  const void *pA, *pB, *pC;
  void *pD, *workspace;
  bool hasC;
  std::vector<LtHeuristic> found;
};

}  // namespace gptc::cuda
