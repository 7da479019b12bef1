// CMake sets GPTC_CUDNN if cudnn.h and cudnn_frontend.h exist.
#include "runtime/cuda/cudnn.h"

#include "codegen/cuda/libraries.h"
#include "support/diagnostics.h"

#ifdef GPTC_CUDNN

// In this mode cudnn-frontend looks every function up in cudnn_dlhandle. It would load the CUDA runtime by name, but
// our requests never need it: we pass the architecture and copy no data from the host.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void *cudnn_dlhandle = nullptr;
}

namespace gptc::cuda {

namespace fe = cudnn_frontend;
using FeGraph = fe::graph::Graph;
using fe::graph::Tensor_attributes;

namespace {

using Tensor = std::shared_ptr<Tensor_attributes>;

/// Ids of a graph's tensors. cudnn-frontend numbers its own tensors from 1 before it sees the slopes, hence their
/// distant id.
enum Uid : int64_t { uidQ = 1, uidK, uidV, uidO, uidLse, uidDo, uidDq, uidDk, uidDv, uidSlopes = 1 << 20 };

/// [B, heads, T, size] in memory whose rows have `row` elements.
Tensor_attributes rows(const CudnnAttention &a, Uid uid, int64_t heads, int64_t row) {
  return Tensor_attributes()
      .set_uid(uid)
      .set_dim({a.batch / a.batchCuts, heads / a.headCuts, a.tokens, a.size})
      .set_stride({a.tokens * row, a.size, row, 1});
}

/// Packed, as cuDNN before 9.26 wants it: where heads are cut, a call has one sequence.
Tensor_attributes statistics(const CudnnAttention &a) {
  const int64_t heads = a.heads / a.headCuts;
  return Tensor_attributes()
      .set_uid(uidLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({a.batch / a.batchCuts, heads, a.tokens, 1})
      .set_stride({heads * a.tokens, a.tokens, 1, 1});
}

void isResult(const Tensor &t, const Tensor_attributes &as) {
  t->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  if (as.get_data_type() != fe::DataType_t::NOT_SET)
    t->set_data_type(as.get_data_type());
}

std::shared_ptr<FeGraph> describe(const CudnnAttention &a, unsigned architecture) {
  auto g = std::make_shared<FeGraph>();
  g->set_io_data_type(a.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(int32_t(architecture));
  const Tensor q = g->tensor(rows(a, uidQ, a.heads, a.width())), k = g->tensor(rows(a, uidK, a.kvHeads, a.width())),
               v = g->tensor(rows(a, uidV, a.kvHeads, a.width()));
  const Tensor_attributes like = rows(a, uidO, a.heads, a.heads * a.size);
  auto options = [&](auto o) {
    o.set_attn_scale(float(a.scale));
    if (!a.slopes.empty())
      // The same computation as cudnn-frontend's ALiBi option, but with slopes in the GPU's memory: the option copies
      // them from the host in every run.
      o.set_score_mod([heads = a.heads](std::shared_ptr<FeGraph> graph, Tensor score) {
        Tensor slopes;
        int64_t bytes = 0;
        score = fe::graph::attn::score_modifiers::alibi_mask(graph, score, slopes, heads, bytes);
        slopes->set_uid(uidSlopes);
        return fe::graph::attn::score_modifiers::causal_mask(graph, score);
      });
    else if (a.causal)
      o.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return o;
  };
  if (a.backward) {
    const Tensor o = g->tensor(like), lse = g->tensor(statistics(a)),
                 dout = g->tensor(rows(a, uidDo, a.heads, a.heads * a.size));
    auto [dq, dk, dv] = g->sdpa_backward(
        q, k, v, o, dout, lse,
        options(fe::graph::SDPA_backward_attributes().set_name("attention_grad")).set_deterministic_algorithm(true));
    isResult(dq, rows(a, uidDq, a.heads, a.width()));
    isResult(dk, rows(a, uidDk, a.kvHeads, a.width()));
    isResult(dv, rows(a, uidDv, a.kvHeads, a.width()));
  } else {
    // Separate operations, which every version 9 accepts. The unified operation needs a later version, and not every
    // GPU has it.
    auto [o, lse] = g->sdpa(q, k, v,
                            options(fe::graph::SDPA_attributes().set_name("attention"))
                                .set_generate_stats(true)
                                .set_implementation(fe::AttentionImplementation_t::COMPOSITE));
    isResult(o, like);
    isResult(lse, statistics(a));
  }
  return g;
}

/// Null if the library has no engine for it.
std::shared_ptr<FeGraph> build(const CudnnAttention &a, unsigned architecture, cudnnHandle_t handle) {
  // Up to 9.15, cudnn-frontend copies sequence lengths from the host in every run if 128 does not divide the tokens.
  if (a.backward && a.tokens % 128 != 0 && fe::detail::get_backend_version() <= 91500)
    return nullptr;
  // cudnn-frontend's own rule: sm_100 has no deterministic gradient with ALiBi.
  if (a.backward && !a.slopes.empty() && architecture / 10 == 10)
    return nullptr;
  try {
    std::shared_ptr<FeGraph> g = describe(a, architecture);
    const bool able = g->validate().is_good() && g->build_operation_graph(handle).is_good() &&
                      g->create_execution_plans({fe::HeurMode_t::A}).is_good() && g->check_support().is_good() &&
                      g->build_plans().is_good();
    return able ? g : nullptr;
  } catch (const std::exception &) {  // an older library lacks a function or rejects a descriptor
    return nullptr;
  }
}

/// The library stays loaded, because the functions looked up in it are kept.
const CudaLibrary &bound() {
  const CudaLibrary &library = CudaLibrary::get(CudaLibraryId::cudnn);
  fe::cudnn_dlhandle = library.loaded();
  return library;
}

struct Call final : AttentionCall {
  cudnnHandle_t handle;
  std::shared_ptr<FeGraph> graph;
  mutable std::vector<std::unordered_map<int64_t, void *>> pieces;  // the tensors of each call
  void *workspace;

  fe::error_t tryEnqueue(Stream stream) const {
    const cudnnStatus_t s = fe::detail::set_stream(handle, reinterpret_cast<cudaStream_t>(stream));
    GPTC_CHECK(s == CUDNN_STATUS_SUCCESS, "cudnnSetStream: cudnnStatus_t {}", int(s));
    fe::error_t e;
    for (auto &tensors : pieces)
      if (e = graph->execute(handle, tensors, workspace); e.is_bad())
        break;
    return e;
  }
  void enqueue(Stream stream) const override {
    fe::error_t e = tryEnqueue(stream);
    GPTC_CHECK(e.is_good(), "attention by cuDNN: {}", e.get_message());
  }
};

class Library final : public Cudnn {
public:
  explicit Library(const Gpu &gpu) : gpu(gpu) {
    const CudaLibrary &library = bound();
    const cudnnStatus_t s = fe::detail::create_handle(&handle);
    if (s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
      noMemoryFor("cudnnCreate");
    if (s != CUDNN_STATUS_SUCCESS)
      throw UserError(ErrorCode::TargetUnavailable,
                      fmt::format("{} cannot be used on this GPU: cudnnStatus_t {}", library.path, int(s)),
                      "install a cuDNN 9 for CUDA 13 that is as new as the driver, or compile with "
                      "compile.library_calls = \"off\"");
  }
  ~Library() override {
    graphs.clear();
    fe::detail::destroy_handle(handle);
  }

  std::unique_ptr<AttentionCall> attention(const CudnnAttention &a, llvm::ArrayRef<DevicePtr> params,
                                           DevicePtr workspace, int64_t bytes, std::string &why) override {
    auto it = std::find_if(graphs.begin(), graphs.end(), [&](const Known &k) { return k.attention == a; });
    if (it == graphs.end()) {
      it = graphs.insert(it, Known{a, build(a, gpu.architecture, handle)});
      if (!it->graph)
        it->why = "cuDNN has nothing for it";
    }
    why = it->why;
    int64_t needed = 0;
    if (!it->graph)
      return nullptr;
    if (it->graph->get_workspace_size(needed).is_bad() || needed > bytes) {
      why = fmt::format("cuDNN wants {} bytes of workspace, and {} are planned", needed, bytes);
      return nullptr;
    }
    auto call = std::make_unique<Call>();
    call->handle = handle;
    call->graph = it->graph;
    call->workspace = reinterpret_cast<void *>(workspace);
    for (int64_t batch = 0; batch < a.batchCuts; ++batch)
      for (int64_t head = 0; head < a.headCuts; ++head)
        call->pieces.push_back(tensorsOf(a, params, batch * (a.batch / a.batchCuts), head));
    if (it->hasRun)
      return call;
    fe::error_t e = call->tryEnqueue(gpu.stream);
    gpu.wait();
    it->hasRun = e.is_good();
    if (it->hasRun)
      return call;
    it->graph.reset();
    why = it->why = fmt::format("cuDNN refuses to run it ({})", llvm::StringRef(e.get_message()).trim().str());
    return nullptr;
  }

private:
  /// The tensors of the call for the sequences from `sequence` on, and the part `part` of their heads.
  std::unordered_map<int64_t, void *> tensorsOf(const CudnnAttention &a, llvm::ArrayRef<DevicePtr> params,
                                                int64_t sequence, int64_t part) {
    std::unordered_map<int64_t, void *> tensors;
    auto put = [&](Uid uid, unsigned param, int64_t element, DType dtype) {
      tensors[uid] = reinterpret_cast<void *>(params[param] + DevicePtr(element * int64_t(sizeOf(dtype))));
    };
    const int64_t token = sequence * a.tokens, head = part * (a.heads / a.headCuts),
                  key = part * (a.kvHeads / a.headCuts);
    const int64_t q = token * a.width() + head * a.size, k = token * a.width() + (a.heads + key) * a.size,
                  v = k + a.kvHeads * a.size, o = (token * a.heads + head) * a.size;
    put(uidQ, a.qkv, q, a.dtype);
    put(uidK, a.qkv, k, a.dtype);
    put(uidV, a.qkv, v, a.dtype);
    put(uidO, a.o, o, a.dtype);
    put(uidLse, a.lse, (sequence * a.heads + head) * a.tokens, DType::f32);
    if (a.backward) {
      put(uidDo, a.dout, o, a.dtype);
      put(uidDq, a.dqkv, q, a.dtype);
      put(uidDk, a.dqkv, k, a.dtype);
      put(uidDv, a.dqkv, v, a.dtype);
    }
    if (!a.slopes.empty())
      tensors[uidSlopes] = reinterpret_cast<void *>(slopesAt(a.slopes));
    return tensors;
  }

  DevicePtr slopesAt(const std::vector<float> &slopes) {
    std::unique_ptr<DeviceMemory> &m = slopeMemory[slopes.size()];
    if (!m) {
      m = std::make_unique<DeviceMemory>(gpu, slopes.size() * sizeof(float));
      gpu.d.check(gpu.d.copyToDevice(m->at, slopes.data(), slopes.size() * sizeof(float), gpu.stream),
                  "cuMemcpyHtoDAsync");
      gpu.wait();
    }
    return m->at;
  }

  const Gpu &gpu;
  cudnnHandle_t handle = nullptr;
  std::map<size_t, std::unique_ptr<DeviceMemory>> slopeMemory;  // by number of heads, which determines the slopes
  struct Known {
    CudnnAttention attention;
    std::shared_ptr<FeGraph> graph;  // null if no engine runs it
    std::string why = "";
    bool hasRun = false;
  };
  std::vector<Known> graphs;
};

}  // namespace

std::string cudnnFrontend() {
  return fmt::format("{}.{}.{}", CUDNN_FRONTEND_MAJOR_VERSION, CUDNN_FRONTEND_MINOR_VERSION,
                     CUDNN_FRONTEND_PATCH_VERSION);
}

std::unique_ptr<Cudnn> Cudnn::make(const Gpu &gpu) { return std::make_unique<Library>(gpu); }

std::string cudnnRefusal(const CudnnAttention &a, unsigned architecture) {
  bound();
  std::shared_ptr<FeGraph> g = describe(a, architecture);
  fe::error_t e = g->validate();
  if (e.is_good())
    e = g->build_operation_graph(nullptr);
  return e.is_good() ? "" : e.get_message() + " ";
}

}  // namespace gptc::cuda

#else

namespace gptc::cuda {

std::string cudnnFrontend() { return ""; }

std::unique_ptr<Cudnn> Cudnn::make(const Gpu &) {
  throw UserError(ErrorCode::TargetUnavailable,
                  "the plan calls cuDNN for attention, and this gptc was built without cuDNN's headers",
                  "run `tools/setup --cuda` where gptc is built, which brings them and builds again; or compile the "
                  "plan here, or with compile.library_calls = \"off\"");
}

std::string cudnnRefusal(const CudnnAttention &, unsigned) { return "built without cuDNN's headers"; }

}  // namespace gptc::cuda

#endif
