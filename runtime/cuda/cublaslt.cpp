#include "runtime/cuda/cublaslt.h"

#include "codegen/cuda/libraries.h"
#include "support/diagnostics.h"

#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <array>

namespace gptc::cuda {

const CublasLt &CublasLt::get() {
  const CudaLibrary &library = CudaLibrary::get(CudaLibraryId::cublasLt);
  static CublasLt lt;
  static const char *const missing = [&]() -> const char * {
#define GPTC_BIND(member, symbol, params)                                                                              \
  if (!library.bind(lt.member, #symbol))                                                                               \
    return #symbol;
    GPTC_CUBLASLT_FUNCTIONS(GPTC_BIND)
#undef GPTC_BIND
    return nullptr;
  }();
  if (missing)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} has no function {}", library.path, missing),
                    "`gptc doctor` says which version is needed");
  return lt;
}

void CublasLt::check(LtStatus s, const char *what) const {
  if (s == ltAllocFailed)
    noMemoryFor(what);
  GPTC_CHECK(s == ltSuccess, "{}: cublasStatus_t {}", what, int(s));
}

static LtType typeOf(DType t) {
  switch (t) {
  case DType::f32:
    return ltF32;
  case DType::bf16:
    return ltBF16;
  case DType::f16:
    return ltF16;
  case DType::f8e4m3:
    return ltE4M3;
  default:
    GPTC_UNREACHABLE("{} in a library matmul", nameOf(t));
  }
}

static LtEpilogue epilogueOf(CublasLtMatmul::Epilogue e) {
  switch (e) {
  case CublasLtMatmul::Epilogue::none:
    return ltEpilogueDefault;
  case CublasLtMatmul::Epilogue::bias:
    return ltEpilogueBias;
  case CublasLtMatmul::Epilogue::gelu:
    return ltEpilogueGelu;
  case CublasLtMatmul::Epilogue::geluBias:
    return ltEpilogueGeluBias;
  case CublasLtMatmul::Epilogue::geluAux:
    return ltEpilogueGeluAux;
  case CublasLtMatmul::Epilogue::geluAuxBias:
    return ltEpilogueGeluAuxBias;
  case CublasLtMatmul::Epilogue::geluGrad:
    return ltEpilogueGeluGrad;
  case CublasLtMatmul::Epilogue::biasGradA:
    return ltEpilogueBiasGradA;
  }
  GPTC_UNREACHABLE("epilogue {}", int(e));
}

/// The largest power of two, up to 256, that divides the address: the alignment that the library may assume.
static uint32_t alignmentOf(DevicePtr at) { return uint32_t(std::min<DevicePtr>(256, at & (~at + 1))); }

MatmulCall::MatmulCall(LtHandle handle, const CublasLtMatmul &m, llvm::ArrayRef<DevicePtr> params, DevicePtr workspace,
                       size_t workspaceBytes)
    : lt(CublasLt::get()), handle(handle), workspace(reinterpret_cast<void *>(workspace)), hasC(m.c.has_value()) {
  const CublasLtMatmul::Matrix &source = m.c ? *m.c : m.d;
  const DevicePtr at[] = {params[m.a.param], params[m.b.param], params[source.param], params[m.d.param]};
  pA = reinterpret_cast<const void *>(at[0]);
  pB = reinterpret_cast<const void *>(at[1]);
  pC = reinterpret_cast<const void *>(at[2]);
  pD = reinterpret_cast<void *>(at[3]);

  lt.check(lt.descCreate(&desc, m.tf32 ? ltComputeTF32 : ltCompute32F, ltF32), "cublasLtMatmulDescCreate");
  auto set = [&](LtDescAttribute attribute, const auto &value) {
    lt.check(lt.descSet(desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  set(ltTransA, int32_t(m.a.transposed));
  set(ltTransB, int32_t(m.b.transposed));
  set(ltEpilogue, int32_t(epilogueOf(m.epilogue)));
  if (m.bias >= 0)
    set(ltBiasPointer, params[m.bias]);
  if (m.bias >= 0 && m.a.dtype == DType::f8e4m3)
    set(ltBiasType, int32_t(ltBF16));
  if (m.scale >= 0)
    set(ltScaleA, params[m.scale]);
  if (m.aux >= 0) {
    set(ltAuxPointer, params[m.aux]);
    set(ltAuxLd, m.d.ld);
  }
  auto layout = [&](LtLayout &l, const CublasLtMatmul::Matrix &x) {
    lt.check(lt.layoutCreate(&l, typeOf(x.dtype), uint64_t(x.rows), uint64_t(x.cols), x.ld),
             "cublasLtMatrixLayoutCreate");
    if (m.batch > 1) {
      const int32_t count = int32_t(m.batch);
      lt.check(lt.layoutSet(l, ltBatchCount, &count, sizeof count), "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT");
      lt.check(lt.layoutSet(l, ltBatchStride, &x.batchStride, sizeof x.batchStride),
               "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET");
    }
  };
  layout(a, m.a);
  layout(b, m.b);
  layout(c, source);
  layout(d, m.d);

  LtPreference preference = nullptr;
  lt.check(lt.preferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const uint64_t bytes = workspaceBytes;
  lt.check(lt.preferenceSet(preference, ltMaxWorkspace, &bytes, sizeof bytes), "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE");
  for (int i = 0; i < 4; ++i) {
    const uint32_t alignment = alignmentOf(at[i]);
    lt.check(lt.preferenceSet(preference, LtPreferenceAttribute(ltAlignmentA + i), &alignment, sizeof alignment),
             "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT");
  }
  constexpr int most = 8;
  LtHeuristic proposals[most] = {};
  int count = 0;
  const LtStatus s = lt.heuristic(handle, desc, a, b, c, d, preference, most, proposals, &count);
  lt.check(lt.preferenceDestroy(preference), "cublasLtMatmulPreferenceDestroy");
  if (s != ltNotSupported)
    lt.check(s, "cublasLtMatmulAlgoGetHeuristic");
  else
    count = 0;
  for (const LtHeuristic &h : llvm::ArrayRef(proposals, size_t(count)))
    if (h.state == ltSuccess && h.workspace <= workspaceBytes)
      found.push_back(h);
}

MatmulCall::~MatmulCall() {
  for (LtLayout l : {a, b, c, d})
    if (l)
      lt.layoutDestroy(l);
  if (desc)
    lt.descDestroy(desc);
}

int64_t MatmulCall::nameOf(unsigned algorithm) const {
  std::array<uint32_t, ltAlgorithmAttributes> told = {};
  for (int i = 0; i < ltAlgorithmAttributes; ++i) {
    size_t written = 0;  // nothing by a library that knows no such attribute
    lt.algorithmGet(&found.at(algorithm).algorithm, i, &told[size_t(i)], i < ltWideAttributes ? 4 : 2, &written);
  }
  const llvm::ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t *>(told.data()), sizeof told);
  return std::max<int64_t>(1, int64_t(llvm::xxh3_64bits(bytes) >> 33));
}

std::optional<unsigned> MatmulCall::find(int64_t name) const {
  for (unsigned i = 0; i < algorithms(); ++i)
    if (nameOf(i) == name)
      return i;
  return std::nullopt;
}

LtStatus MatmulCall::tryEnqueue(Stream stream, unsigned algorithm) const {
  GPTC_CHECK(algorithm < found.size(), "algorithm {} of {}", algorithm, found.size());
  const float alpha = 1, beta = hasC ? 1 : 0;
  const LtHeuristic &h = found[algorithm];
  return lt.matmul(handle, desc, &alpha, pA, a, pB, b, &beta, pC, c, pD, d, &h.algorithm, workspace, h.workspace,
                   stream);
}

void MatmulCall::enqueue(Stream stream, unsigned algorithm) const {
  lt.check(tryEnqueue(stream, algorithm), "cublasLtMatmul");
}

}  // namespace gptc::cuda
