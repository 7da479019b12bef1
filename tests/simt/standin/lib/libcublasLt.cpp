// A stand-in for libcublasLt.so.13, on the stand-in driver: products in f32, one after the other, when their stream
// gets to them. It takes what cublasLt.h documents and refuses the rest: handles that are none, shapes that do not fit,
// types that go not together, f8e4m3 in another order or of rows that 16 does not divide, epilogues without what they
// need, an algorithm that was proposed for another product, operands that 16 bytes do not divide and workspaces that
// 256 do not.
//
// It proposes two algorithms, which add in opposite orders; the second needs a workspace. GPTC_STANDIN_SLOW=1: which of
// them (0 or 1) takes 50 ms longer, on the clock of events only. GPTC_STANDIN_OTHER=1: the algorithms are described
// otherwise, as by another version. GPTC_STANDIN_REFUSE=1, 2 or 3: the first, the second, or both are refused when they
// run, though they are proposed. GPTC_STANDIN_VARIED=1: operands that are made of one number are refused. A call whose
// equal never ran is refused in a capture: it would load code.
// GPTC_STANDIN_CUBLASLT=130002: its version.
#include "driver_state.h"
#include "narrow.h"
#include "runtime/cuda/cublaslt.h"

#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace gptc::cuda {

struct LtContext {};
struct LtDescImpl {
  LtCompute compute;
  int32_t transA = 0, transB = 0, epilogue = ltEpilogueDefault;
  DevicePtr bias = 0, aux = 0, scaleA = 0;
  int32_t biasType = -1;
  int64_t auxLd = 0;
};
struct LtLayoutImpl {
  LtType type;
  int64_t rows, cols, ld;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct LtPreferenceImpl {
  uint64_t workspace = 0;
};

namespace {

std::set<const void *> live;
std::set<std::pair<uint64_t, bool>> loaded;  // products and algorithms that have run
constexpr double slowMs = 50;
constexpr size_t secondWorkspace = 4096;
constexpr uintptr_t workspaceAlignment = 256;

LtStatus wrong() { return ltInvalidValue; }

template <class T> LtStatus make(T **handle, T value) {
  *handle = new T(value);
  live.insert(*handle);
  return ltSuccess;
}
template <class T> LtStatus drop(T *handle) {
  if (!live.erase(handle))
    return wrong();
  delete handle;
  return ltSuccess;
}
template <class T> LtStatus put(T &to, const void *value, size_t bytes) {
  if (bytes != sizeof(T))
    return wrong();
  std::memcpy(&to, value, bytes);
  return ltSuccess;
}

size_t sizeOf(LtType t) { return t == ltF32 ? 4 : t == ltE4M3 ? 1 : 2; }
float loadAt(LtType t, const std::byte *p, int64_t i) {
  if (t == ltF32) {
    float v;
    std::memcpy(&v, p + 4 * i, 4);
    return v;
  }
  if (t == ltE4M3)
    return fromE4M3(uint8_t(p[i]));
  uint16_t bits;
  std::memcpy(&bits, p + 2 * i, 2);
  return t == ltF16 ? fromF16(bits) : fromBF16(bits);
}
void storeAt(LtType t, std::byte *p, int64_t i, float v) {
  if (t == ltF32) {
    std::memcpy(p + 4 * i, &v, 4);
  } else {
    const uint16_t bits = t == ltF16 ? toF16(v) : toBF16(v);
    std::memcpy(p + 2 * i, &bits, 2);
  }
}

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float geluSlope(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

struct Product {
  LtDescImpl desc;
  LtLayoutImpl a, b, c, d;
  int64_t m, n, k;

  bool biased() const { return desc.epilogue & 4 || desc.epilogue == ltEpilogueBiasGradA; }
  bool keeps() const { return desc.epilogue & 128; }
  LtType biasType() const { return desc.biasType < 0 ? d.type : LtType(desc.biasType); }

  /// Whether the library has such a product.
  LtStatus judge() {
    m = desc.transA ? a.cols : a.rows, k = desc.transA ? a.rows : a.cols;
    n = desc.transB ? b.rows : b.cols;
    if ((desc.transB ? b.cols : b.rows) != k || d.rows != m || d.cols != n || c.rows != m || c.cols != n)
      return wrong();
    for (const LtLayoutImpl *l : {&a, &b, &c, &d})
      if (l->rows < 1 || l->cols < 1 || l->ld < l->rows || l->batch != d.batch)
        return wrong();
    if (a.type == ltE4M3) {
      const std::set<int> taken = {ltEpilogueDefault, ltEpilogueBias};
      if (!desc.transA || desc.transB || m % 16 || k % 16 || !taken.count(desc.epilogue) || d.batch > 1 ||
          (biased() && desc.biasType != ltBF16))
        return ltNotSupported;
    } else if (desc.scaleA || desc.biasType >= 0) {
      return wrong();
    }
    const LtType narrow = a.type == ltE4M3 ? ltBF16 : a.type;
    if (a.type != b.type || c.type != d.type || (d.type != ltF32 && d.type != narrow) ||
        (desc.compute == ltComputeTF32 && a.type != ltF32) ||
        (desc.compute != ltComputeTF32 && desc.compute != ltCompute32F))
      return ltNotSupported;
    const std::set<int> known = {ltEpilogueDefault, ltEpilogueBias,        ltEpilogueGelu,     ltEpilogueGeluBias,
                                 ltEpilogueGeluAux, ltEpilogueGeluAuxBias, ltEpilogueGeluGrad, ltEpilogueBiasGradA};
    if (!known.count(desc.epilogue) || (d.batch > 1 && desc.epilogue != ltEpilogueDefault))
      return ltNotSupported;
    if ((biased() && !desc.bias) || (keeps() && (!desc.aux || desc.auxLd % 8 || desc.auxLd < m)))
      return wrong();
    return ltSuccess;
  }

  /// Equal for equal products: what an algorithm was proposed for.
  uint64_t mark() const {
    uint64_t h = 1469598103934665603u;
    auto mix = [&](int64_t v) { h = (h ^ uint64_t(v)) * 1099511628211u; };
    for (const LtLayoutImpl *l : {&a, &b, &c, &d})
      for (int64_t v : {int64_t(l->type), l->rows, l->cols, l->ld, int64_t(l->batch), l->stride})
        mix(v);
    for (int64_t v : {int64_t(desc.compute), int64_t(desc.transA), int64_t(desc.transB), int64_t(desc.epilogue)})
      mix(v);
    mix(setting("OTHER", 0));
    return h;
  }
};

}  // namespace

namespace {

using Resolve = std::byte *(*)(DevicePtr, size_t);

/// What a call was given, checked.
struct Call {
  Product p;
  const void *a, *b, *c;
  void *d;
  float beta;
  void *workspace;
  bool second;
};

/// On the stream's turn. Returns what is wrong with the memory, or "".
std::string multiply(const Call &call, Resolve memory) {
  const Product &p = call.p;
  std::string problem;
  auto span = [&](const void *at, int64_t elements, LtType t, const char *what) {
    const auto address = reinterpret_cast<DevicePtr>(at);
    std::byte *here = memory(address, size_t(elements) * sizeOf(t));
    if (!here || address % 16)
      problem = fmt::format("cublasLtMatmul: {} of {} elements at address {:#x}", what, elements, address);
    return here;
  };
  auto matrix = [&](const void *at, const LtLayoutImpl &l, const char *what) {
    return span(at, (l.batch - 1) * l.stride + (l.cols - 1) * l.ld + l.rows, l.type, what);
  };
  auto vector = [&](DevicePtr at, int64_t n, const char *what) {
    return span(reinterpret_cast<void *>(at), n, what == std::string_view("bias") ? p.biasType() : p.d.type, what);
  };
  const std::byte *pa = matrix(call.a, p.a, "A"), *pb = matrix(call.b, p.b, "B");
  auto constant = [](const std::byte *at, const LtLayoutImpl &l) {
    const size_t size = sizeOf(l.type), n = size_t(l.rows) * size;  // of the first column
    return at && l.rows > 1 && std::memcmp(at, at + size, n - size) == 0;
  };
  if (setting("VARIED", 0) && (constant(pa, p.a) || constant(pb, p.b)))
    problem = "cublasLtMatmul: an operand is made of one number";
  const std::byte *pc = call.beta != 0 ? matrix(call.c, p.c, "C") : nullptr;
  std::byte *pd = matrix(call.d, p.d, "D");
  std::byte *bias = p.biased() ? vector(p.desc.bias, p.m, "bias") : nullptr;
  std::byte *aux = p.keeps() ? vector(p.desc.aux, (p.n - 1) * p.desc.auxLd + p.m, "aux") : nullptr;
  float scale = 1;
  const std::byte *factor = p.desc.scaleA ? memory(p.desc.scaleA, sizeof scale) : nullptr;
  if (factor)
    std::memcpy(&scale, factor, sizeof scale);
  else if (p.desc.scaleA)
    problem = "cublasLtMatmul: the factor of A is nowhere";
  if (call.second)
    span(call.workspace, secondWorkspace / 4, ltF32, "workspace");
  if (!problem.empty())
    return problem;
  auto ofA = [&](int64_t s, int64_t i, int64_t x) {
    return loadAt(p.a.type, pa, s * p.a.stride + (p.desc.transA ? i * p.a.ld + x : x * p.a.ld + i));
  };
  auto ofB = [&](int64_t s, int64_t x, int64_t j) {
    return loadAt(p.b.type, pb, s * p.b.stride + (p.desc.transB ? x * p.b.ld + j : j * p.b.ld + x));
  };
  for (int64_t s = 0; s < p.d.batch; ++s)
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t i = 0; i < p.m; ++i) {
        float sum = 0;
        for (int64_t x = 0; x < p.k; ++x) {
          const int64_t at = call.second ? p.k - 1 - x : x;
          sum = std::fma(ofA(s, i, at), ofB(s, at, j), sum);
        }
        sum *= scale;
        if (pc)
          sum += loadAt(p.c.type, pc, s * p.c.stride + j * p.c.ld + i);
        if (p.desc.epilogue & 4)
          sum += loadAt(p.biasType(), bias, i);
        const int64_t kept = j * p.desc.auxLd + i;
        if (p.desc.epilogue == ltEpilogueGeluGrad)
          sum *= geluSlope(loadAt(p.d.type, aux, kept));
        else if (aux)
          storeAt(p.d.type, aux, kept, sum);
        if (p.desc.epilogue & 32)
          sum = gelu(sum);
        storeAt(p.d.type, pd, s * p.d.stride + j * p.d.ld + i, sum);
      }
  for (int64_t i = 0; p.desc.epilogue == ltEpilogueBiasGradA && i < p.m; ++i) {
    float sum = 0;
    for (int64_t x = 0; x < p.k; ++x)
      sum += ofA(0, i, x);
    storeAt(p.d.type, bias, i, sum);
  }
  return "";
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return size_t(setting("CUBLASLT", 130002)); }

LtStatus cublasLtCreate(LtHandle *handle) {
  return toldNoMemory("cublasLtCreate") ? ltAllocFailed : make(handle, LtContext{});
}
LtStatus cublasLtDestroy(LtHandle handle) { return drop(handle); }

LtStatus cublasLtMatmulDescCreate(LtDesc *desc, LtCompute compute, LtType scale) {
  return scale == ltF32 ? make(desc, LtDescImpl{compute}) : ltNotSupported;
}
LtStatus cublasLtMatmulDescDestroy(LtDesc desc) { return drop(desc); }
LtStatus cublasLtMatmulDescSetAttribute(LtDesc desc, LtDescAttribute attribute, const void *value, size_t bytes) {
  if (!live.count(desc))
    return wrong();
  switch (attribute) {
  case ltTransA:
    return put(desc->transA, value, bytes);
  case ltTransB:
    return put(desc->transB, value, bytes);
  case ltEpilogue:
    return put(desc->epilogue, value, bytes);
  case ltBiasPointer:
    return put(desc->bias, value, bytes);
  case ltAuxPointer:
    return put(desc->aux, value, bytes);
  case ltAuxLd:
    return put(desc->auxLd, value, bytes);
  case ltScaleA:
    return put(desc->scaleA, value, bytes);
  case ltBiasType:
    return put(desc->biasType, value, bytes);
  }
  return wrong();
}

LtStatus cublasLtMatrixLayoutCreate(LtLayout *layout, LtType type, uint64_t rows, uint64_t cols, int64_t ld) {
  return make(layout, LtLayoutImpl{type, int64_t(rows), int64_t(cols), ld});
}
LtStatus cublasLtMatrixLayoutDestroy(LtLayout layout) { return drop(layout); }
LtStatus cublasLtMatrixLayoutSetAttribute(LtLayout layout, LtLayoutAttribute attribute, const void *value,
                                          size_t bytes) {
  if (!live.count(layout))
    return wrong();
  return attribute == ltBatchCount    ? put(layout->batch, value, bytes)
         : attribute == ltBatchStride ? put(layout->stride, value, bytes)
                                      : wrong();
}

LtStatus cublasLtMatmulPreferenceCreate(LtPreference *preference) { return make(preference, LtPreferenceImpl{}); }
LtStatus cublasLtMatmulPreferenceDestroy(LtPreference preference) { return drop(preference); }
LtStatus cublasLtMatmulPreferenceSetAttribute(LtPreference preference, LtPreferenceAttribute attribute,
                                              const void *value, size_t bytes) {
  if (!live.count(preference))
    return wrong();
  uint32_t alignment;
  if (attribute != ltMaxWorkspace)
    return put(alignment, value, bytes);
  return put(preference->workspace, value, bytes);
}

LtStatus cublasLtMatmulAlgoGetHeuristic(LtHandle handle, LtDesc desc, LtLayout a, LtLayout b, LtLayout c, LtLayout d,
                                        LtPreference preference, int most, LtHeuristic *found, int *count) {
  *count = 0;
  for (const void *h : {(const void *)handle, (const void *)desc, (const void *)a, (const void *)b, (const void *)c,
                        (const void *)d, (const void *)preference})
    if (!live.count(h))
      return wrong();
  Product p{*desc, *a, *b, *c, *d, 0, 0, 0};
  if (LtStatus s = p.judge())
    return s;
  for (int i = 0; i < std::min(most, 2); ++i) {
    const size_t workspace = i ? secondWorkspace : 0;
    if (workspace <= preference->workspace)
      found[(*count)++] = {{{p.mark(), uint64_t(i), uint64_t(::getpid())}}, workspace, ltSuccess, 1, {}};
  }
  return ltSuccess;
}

// The opaque bits differ from process to process; what is told does not.
LtStatus cublasLtMatmulAlgoConfigGetAttribute(const LtAlgorithm *algorithm, int attribute, void *value, size_t bytes,
                                              size_t *written) {
  if (!algorithm || attribute < 0 || attribute >= ltAlgorithmAttributes ||
      bytes != (attribute < ltWideAttributes ? 4 : 2))
    return wrong();
  const uint64_t told[3] = {algorithm->data[0], algorithm->data[0] >> 32, algorithm->data[1]};
  const auto word = uint32_t(attribute < 3 ? told[attribute] : 0);
  std::memcpy(value, &word, bytes);
  *written = bytes;
  return ltSuccess;
}

LtStatus cublasLtMatmul(LtHandle handle, LtDesc desc, const void *alpha, const void *a, LtLayout aLayout, const void *b,
                        LtLayout bLayout, const void *beta, const void *c, LtLayout cLayout, void *d, LtLayout dLayout,
                        const LtAlgorithm *algorithm, void *workspace, size_t workspaceBytes, Stream stream) {
  for (const void *h : {(const void *)handle, (const void *)desc, (const void *)aLayout, (const void *)bLayout,
                        (const void *)cLayout, (const void *)dLayout})
    if (!live.count(h))
      return wrong();
  Product p{*desc, *aLayout, *bLayout, *cLayout, *dLayout, 0, 0, 0};
  if (LtStatus s = p.judge())
    return s;
  if (reinterpret_cast<uintptr_t>(workspace) % workspaceAlignment)
    return wrong();
  const bool second = algorithm && algorithm->data[1];
  if (!algorithm || algorithm->data[0] != p.mark() || (second && (!workspace || workspaceBytes < secondWorkspace)))
    return wrong();
  const float alphaValue = *static_cast<const float *>(alpha), betaValue = *static_cast<const float *>(beta);
  if (alphaValue != 1 || (betaValue != 0 && betaValue != 1))
    return wrong();
  using Enqueue = Result (*)(const char *, Stream, const Action &);
  static const auto put = reinterpret_cast<Enqueue>(dlsym(RTLD_DEFAULT, "gptcStandinEnqueue"));
  static const auto memory = reinterpret_cast<Resolve>(dlsym(RTLD_DEFAULT, "gptcStandinResolve"));
  using Take = void (*)(double);
  static const auto take = reinterpret_cast<Take>(dlsym(RTLD_DEFAULT, "gptcStandinTake"));
  if (!put || !memory || !take)
    return wrong();

  if (setting("REFUSE", 0) >> second & 1)
    return ltNotSupported;
  using Current = Context (*)(int *);
  using Capturing = const void *(*)(Context, Stream, bool *);
  static const auto context = reinterpret_cast<Current>(dlsym(RTLD_DEFAULT, "gptcStandinContext"));
  static const auto capturing = reinterpret_cast<Capturing>(dlsym(RTLD_DEFAULT, "gptcStandinCapture"));
  bool known = false;
  int device = 0;
  if (const std::pair<uint64_t, bool> code(p.mark(), second); !loaded.count(code)) {
    if (capturing(context(&device), stream, &known))
      return LtStatus(13);  // CUBLAS_STATUS_EXECUTION_FAILED
    loaded.insert(code);
  }

  const Result queued = put("cublasLtMatmul", stream, [=]() -> std::string {
    if (second == (setting("SLOW", 1) != 0))
      take(slowMs);
    return multiply({p, a, b, c, d, betaValue, workspace, second}, memory);
  });
  return queued == success ? ltSuccess : LtStatus(14);  // CUBLAS_STATUS_INTERNAL_ERROR
}
}

}  // namespace gptc::cuda
