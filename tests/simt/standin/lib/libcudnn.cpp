// A stand-in for libcudnn.so.9, on the stand-in driver: graphs of matmuls, pointwise operations, reductions and
// reshapes, as cudnn-frontend describes attention to 9.19, computed in f32 when their stream gets to them, and rounded
// wherever a tensor's type says so. Built where cudnn.h is, whose types and names it takes.
//
// It has two engines, of which heuristics propose the first; cudnn-frontend asks for the other one by its number, 5,
// for gradients on sm_100, and sets two of its knobs. It takes what cudnn_graph.h documents. Refused are attributes
// that a descriptor has not or lacks, descriptors that are not finalised where they are used or are changed afterwards,
// shapes that do not fit, handles that are none or of another plan, tensors without an address, too little workspace;
// and, as no engine has them, heads of more than 128 elements or of no multiple of 8, factors in f32, and rows that do
// not begin at multiples of 16 bytes. GPTC_STANDIN_CUDNN_REFUSE=1: every execution.
// GPTC_STANDIN_CUDNN=91900: its version.
#include "driver_state.h"
#include "narrow.h"

#include <cmath>
#include <cstring>
#include <cudnn.h>
#include <dlfcn.h>
#include <numeric>
#include <optional>

namespace gptc::cuda {
namespace {

/// What a descriptor's handle points to; shared by the descriptors that it was given to.
struct Object {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  struct Attribute {
    cudnnBackendAttributeType_t type;
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<Object>> objects;
  };
  std::map<int, Attribute> attributes;

  bool has(int a) const { return attributes.count(a); }
  template <class T> std::vector<T> all(int a) const {
    std::vector<T> v;
    if (auto it = attributes.find(a); it != attributes.end()) {
      // NOLINTBEGIN(bugprone-sizeof-expression): descriptors are pointers
      v.resize(it->second.bytes.size() / sizeof(T));
      std::memcpy(v.data(), it->second.bytes.data(), v.size() * sizeof(T));
      // NOLINTEND(bugprone-sizeof-expression)
    }
    return v;
  }
  template <class T> T one(int a, T otherwise = {}) const {
    const std::vector<T> v = all<T>(a);
    return v.empty() ? otherwise : v[0];
  }
  bool flag(int a) const { return one<char>(a); }
  const Object &object(int a) const { return *attributes.at(a).objects[0]; }
};
using ObjectPtr = std::shared_ptr<Object>;

struct Handle {
  cudaStream_t stream = nullptr;
};
std::set<const Handle *> handles;
std::map<const void *, ObjectPtr> descriptors;

struct Kind {
  cudnnBackendDescriptorType_t type;
  std::vector<int> required, optional;
};
const Kind *kindOf(cudnnBackendDescriptorType_t type) {
  static const std::vector<Kind> kinds = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
        CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT},
       {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_ATTR_TENSOR_VECTOR_COUNT,
        CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION, CUDNN_ATTR_TENSOR_REORDERING_MODE}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {CUDNN_ATTR_MATMUL_COMP_TYPE}, {CUDNN_ATTR_MATMUL_PADDING_VALUE}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MATH_PREC},
       {CUDNN_ATTR_POINTWISE_AXIS}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_COMP_TYPE},
       {CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
        CUDNN_ATTR_OPERATION_MATMUL_DESC},
       {}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
       {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
        CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
       {}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
       {}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS}, {}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE},
       {CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
       {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_ATTR_ENGINE_GLOBAL_INDEX},
       {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_ATTR_ENGINE_KNOB_INFO}},
      {CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR,
       {CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE,
        CUDNN_ATTR_KNOB_INFO_STRIDE},
       {}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {CUDNN_ATTR_ENGINECFG_ENGINE}, {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES}},
      {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE}, {}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG},
       {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS},
       {CUDNN_ATTR_VARIANT_PACK_WORKSPACE}},
  };
  for (const Kind &k : kinds)
    if (k.type == type)
      return &k;
  return nullptr;
}

size_t sizeOf(cudnnBackendAttributeType_t t) {
  switch (t) {
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    return 8;
  case CUDNN_TYPE_BOOLEAN:
  case CUDNN_TYPE_CHAR:
    return 1;
  default:
    return 4;
  }
}

// ---- tensors --------------------------------------------------------------------------------------------------------

struct TensorInfo {
  int64_t uid;
  cudnnDataType_t type;
  std::vector<int64_t> dims, strides;
  bool isVirtual, byValue;

  explicit TensorInfo(const Object &o)
      : uid(o.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)), type(o.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        dims(o.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)), strides(o.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        isVirtual(o.flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL)), byValue(o.flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {}
  int64_t elements() const { return std::accumulate(dims.begin(), dims.end(), int64_t(1), std::multiplies<>()); }
  /// Where element i, counted with the last dimension first, lies in memory.
  int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (size_t d = dims.size(); d-- > 0; i /= dims[d])
      at += i % dims[d] * strides[d];
    return at;
  }
  int64_t span() const {
    int64_t last = 0;
    for (size_t d = 0; d < dims.size(); ++d)
      last += (dims[d] - 1) * strides[d];
    return last + 1;
  }
  size_t bytes() const {
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_INT32 ? 4 : type == CUDNN_DATA_BOOLEAN ? 1 : 2;
  }
  bool isLow() const { return type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF; }
};

float rounded(cudnnDataType_t t, float v) {
  return t == CUDNN_DATA_HALF       ? fromF16(toF16(v))
         : t == CUDNN_DATA_BFLOAT16 ? fromBF16(toBF16(v))
         : t == CUDNN_DATA_INT32    ? float(int32_t(v))
                                    : v;
}
template <class T> T element(const std::byte *p, int64_t i) {
  T v;
  std::memcpy(&v, p + int64_t(sizeof v) * i, sizeof v);
  return v;
}
float loadAt(cudnnDataType_t t, const std::byte *p, int64_t i) {
  return t == CUDNN_DATA_FLOAT   ? element<float>(p, i)
         : t == CUDNN_DATA_INT32 ? float(element<int32_t>(p, i))
         : t == CUDNN_DATA_HALF  ? fromF16(element<uint16_t>(p, i))
                                 : fromBF16(element<uint16_t>(p, i));
}
void storeAt(cudnnDataType_t t, std::byte *p, int64_t i, float v) {
  if (t == CUDNN_DATA_FLOAT) {
    std::memcpy(p + 4 * i, &v, 4);
  } else {
    const uint16_t bits = t == CUDNN_DATA_HALF ? toF16(v) : toBF16(v);
    std::memcpy(p + 2 * i, &bits, 2);
  }
}

// ---- operations -----------------------------------------------------------------------------------------------------

struct Operation {
  cudnnBackendDescriptorType_t type;
  std::vector<TensorInfo> in;
  TensorInfo out;
  int mode = 0;  // of a pointwise operation or a reduction
  int64_t axis = 0;
};

Operation operationOf(const Object &o) {
  auto tensor = [&](int a) { return TensorInfo(o.object(a)); };
  if (o.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
    return {o.type,
            {tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC), tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC)},
            tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC)};
  if (o.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
    return {o.type,
            {tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)},
            tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
            o.object(CUDNN_ATTR_OPERATION_REDUCTION_DESC).one<int>(CUDNN_ATTR_REDUCTION_OPERATOR)};
  if (o.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
    return {o.type, {tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)}, tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
  const Object &what = o.object(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  Operation p{o.type,
              {tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)},
              tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
              what.one<int>(CUDNN_ATTR_POINTWISE_MODE),
              what.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1)};
  for (int a : {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
    if (o.has(a))
      p.in.push_back(tensor(a));
  return p;
}

/// Element of `t` that goes with element i of dimensions `dims`: those that it has once, or fewer of, are shared.
int64_t shared(const TensorInfo &t, const std::vector<int64_t> &dims, int64_t i) {
  int64_t at = 0, step = 1;
  for (size_t d = dims.size(); d-- > 0; i /= dims[d]) {
    at += i % dims[d] / (dims[d] / t.dims[d]) * step;
    step *= t.dims[d];
  }
  return at;
}
bool divides(const std::vector<int64_t> &some, const std::vector<int64_t> &all, size_t count) {
  for (size_t d = 0; d < count; ++d)
    if (all[d] % some[d] != 0)
      return false;
  return true;
}

/// Operands by mode of a pointwise operation; 0 where it is not known.
size_t operands(int mode) {
  switch (mode) {
  case CUDNN_POINTWISE_ADD:
  case CUDNN_POINTWISE_SUB:
  case CUDNN_POINTWISE_MUL:
  case CUDNN_POINTWISE_DIV:
  case CUDNN_POINTWISE_CMP_GE:
  case CUDNN_POINTWISE_CMP_GT:
  case CUDNN_POINTWISE_CMP_LE:
  case CUDNN_POINTWISE_CMP_LT:
    return 2;
  case CUDNN_POINTWISE_EXP:
  case CUDNN_POINTWISE_LOG:
  case CUDNN_POINTWISE_IDENTITY:
  case CUDNN_POINTWISE_GEN_INDEX:
    return 1;
  case CUDNN_POINTWISE_BINARY_SELECT:
    return 3;
  }
  return 0;
}
float pointwise(int mode, float x, float y, float t) {
  switch (mode) {
  case CUDNN_POINTWISE_ADD:
    return x + y;
  case CUDNN_POINTWISE_SUB:
    return x - y;
  case CUDNN_POINTWISE_MUL:
    return x * y;
  case CUDNN_POINTWISE_DIV:
    return x / y;
  case CUDNN_POINTWISE_CMP_GE:
    return x >= y;
  case CUDNN_POINTWISE_CMP_GT:
    return x > y;
  case CUDNN_POINTWISE_CMP_LE:
    return x <= y;
  case CUDNN_POINTWISE_CMP_LT:
    return x < y;
  case CUDNN_POINTWISE_EXP:
    return std::exp(x);
  case CUDNN_POINTWISE_LOG:
    return std::log(x);
  case CUDNN_POINTWISE_BINARY_SELECT:
    return t != 0 ? x : y;
  }
  return x;
}

cudnnStatus_t judge(const Operation &op) {
  const std::vector<int64_t> &to = op.out.dims;
  for (const TensorInfo &t : op.in)
    if (t.dims.size() != to.size())
      return CUDNN_STATUS_BAD_PARAM;
  const size_t rank = to.size();
  switch (op.type) {
  case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
    const std::vector<int64_t> &a = op.in[0].dims, &b = op.in[1].dims;
    const bool fits = rank >= 2 && a[rank - 1] == b[rank - 2] && a[rank - 2] == to[rank - 2] &&
                      b[rank - 1] == to[rank - 1] && divides(a, to, rank - 2) && divides(b, to, rank - 2);
    return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  }
  case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    if (op.mode != CUDNN_REDUCE_TENSOR_ADD && op.mode != CUDNN_REDUCE_TENSOR_MAX)
      return CUDNN_STATUS_NOT_SUPPORTED;
    return divides(to, op.in[0].dims, rank) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
    return op.in[0].elements() == op.out.elements() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  default:
    if (!operands(op.mode))
      return CUDNN_STATUS_NOT_SUPPORTED;
    if (op.in.size() != operands(op.mode) || (op.mode == CUDNN_POINTWISE_GEN_INDEX && size_t(op.axis) >= rank))
      return CUDNN_STATUS_BAD_PARAM;
    for (const TensorInfo &t : op.in)
      if (!divides(t.dims, to, rank))
        return CUDNN_STATUS_BAD_PARAM;
    return CUDNN_STATUS_SUCCESS;
  }
}

std::vector<float> compute(const Operation &op, const std::vector<const std::vector<float> *> &in) {
  const TensorInfo &out = op.out;
  std::vector<float> y(size_t(out.elements()), 0);
  const size_t rank = out.dims.size();
  if (op.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
    const int64_t m = out.dims[rank - 2], n = out.dims[rank - 1], k = op.in[0].dims[rank - 1];
    // The matrix of a factor that goes with one of the result.
    auto matrix = [&](const TensorInfo &t, int64_t batch) {
      TensorInfo heads = t;
      heads.dims.resize(rank - 2);
      return shared(heads, {out.dims.begin(), out.dims.end() - 2}, batch);
    };
    for (int64_t s = 0; s < int64_t(y.size()) / (m * n); ++s) {
      const float *a = in[0]->data() + matrix(op.in[0], s) * m * k, *b = in[1]->data() + matrix(op.in[1], s) * k * n;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          float sum = 0;
          for (int64_t x = 0; x < k; ++x)
            sum = std::fma(a[i * k + x], b[x * n + j], sum);
          y[size_t((s * m + i) * n + j)] = sum;
        }
    }
  } else if (op.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
    const bool most = op.mode == CUDNN_REDUCE_TENSOR_MAX;
    if (most)
      std::fill(y.begin(), y.end(), -INFINITY);
    for (int64_t i = 0; i < op.in[0].elements(); ++i) {
      float &to = y[size_t(shared(out, op.in[0].dims, i))];
      to = most ? std::max(to, (*in[0])[size_t(i)]) : to + (*in[0])[size_t(i)];
    }
  } else if (op.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) {
    std::map<int64_t, int64_t> elementAt;  // the same memory, read with other dimensions
    for (int64_t i = 0; i < op.in[0].elements(); ++i)
      elementAt[op.in[0].offset(i)] = i;
    for (int64_t i = 0; i < out.elements(); ++i)
      y[size_t(i)] = (*in[0])[size_t(elementAt.at(out.offset(i)))];
  } else {
    for (int64_t i = 0; i < out.elements(); ++i) {
      float v[3] = {};
      for (size_t k = 0; k < in.size(); ++k)
        v[k] = (*in[k])[size_t(shared(op.in[k], out.dims, i))];
      if (op.mode == CUDNN_POINTWISE_GEN_INDEX) {
        int64_t inner = 1;
        for (size_t d = size_t(op.axis) + 1; d < rank; ++d)
          inner *= out.dims[d];
        v[0] = float(i / inner % out.dims[size_t(op.axis)]);
      }
      y[size_t(i)] = pointwise(op.mode, v[0], v[1], v[2]);
    }
  }
  for (float &v : y)
    v = rounded(out.type, v);
  return y;
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

std::vector<Operation> operationsOf(const Object &graph) {
  std::vector<Operation> all;
  for (const ObjectPtr &o : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).objects)
    all.push_back(operationOf(*o));
  return all;
}

/// Whether the engine has this graph: attention of 16 bits, whose heads are the rows of what is stored.
bool supported(const Object &graph) {
  int matmuls = 0;
  for (const Operation &op : operationsOf(graph)) {
    if (op.type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      continue;
    ++matmuls;
    for (const TensorInfo &t : {op.in[0], op.in[1]})
      if (!t.isVirtual) {
        if (!t.isLow() || t.dims.size() != 4)
          return false;
        const bool transposed = t.strides[3] != 1;  // heads in rows
        const int64_t head = t.dims[transposed ? 2 : 3], row = t.strides[transposed ? 3 : 2];
        if (head > 128 || head % 8 != 0 || row % 8 != 0 || t.strides[transposed ? 2 : 3] != 1)
          return false;
      }
  }
  return matmuls == 2 || matmuls == 5;
}

constexpr int64_t orderedEngine = 5;

template <class T> Object::Attribute attribute(cudnnBackendAttributeType_t type, T value) {
  Object::Attribute a{type, std::vector<std::byte>(sizeof value), {}};
  std::memcpy(a.bytes.data(), &value, sizeof value);
  return a;
}

/// Finalises an engine: the one that goes by number has knobs.
cudnnStatus_t judgeEngine(Object &engine) {
  const int64_t number = engine.one<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (!supported(engine.object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)) || (number != 0 && number != orderedEngine))
    return CUDNN_STATUS_NOT_SUPPORTED;
  Object::Attribute knobs{CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {}};
  for (auto [type, most] : {std::pair{CUDNN_KNOB_TYPE_KERNEL_CFG, int64_t(31)}, {CUDNN_KNOB_TYPE_STAGES, 4}}) {
    auto knob = std::make_shared<Object>(Object{CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, true, {}});
    knob->attributes[CUDNN_ATTR_KNOB_INFO_TYPE] = attribute(CUDNN_TYPE_KNOB_TYPE, type);
    knob->attributes[CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE] = attribute(CUDNN_TYPE_INT64, int64_t(0));
    knob->attributes[CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE] = attribute(CUDNN_TYPE_INT64, most);
    knob->attributes[CUDNN_ATTR_KNOB_INFO_STRIDE] = attribute(CUDNN_TYPE_INT64, int64_t(1));
    if (number == orderedEngine)
      knobs.objects.push_back(std::move(knob));
  }
  engine.attributes[CUDNN_ATTR_ENGINE_KNOB_INFO] = std::move(knobs);
  return CUDNN_STATUS_SUCCESS;
}

/// Bytes that a plan wants: some for itself, GPTC_STANDIN_CUDNN_WORKSPACE more, and backward the gradient of all
/// scores, in tiles.
int64_t workspaceOf(const Object &graph) {
  int64_t bytes = 256 + setting("CUDNN_WORKSPACE", 0);
  const std::vector<Operation> all = operationsOf(graph);
  const Operation *scores = nullptr;
  int matmuls = 0;
  for (const Operation &op : all)
    if (op.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !matmuls++)
      scores = &op;
  auto tiles = [](int64_t n) { return (n + 63) / 64 * 64; };
  if (matmuls > 2) {
    const std::vector<int64_t> &d = scores->out.dims;
    bytes += d[0] * d[1] * tiles(d[2]) * tiles(d[3]) * 2;
  }
  return bytes;
}

struct Run {
  std::vector<Operation> operations;
  std::map<int64_t, void *> at;
  std::map<int64_t, float> values;  // of tensors by value
  DevicePtr workspace;
  size_t workspaceBytes;

  std::string operator()() const {
    using Resolve = std::byte *(*)(DevicePtr, size_t);
    static const auto memory = reinterpret_cast<Resolve>(dlsym(RTLD_DEFAULT, "gptcStandinResolve"));
    auto span = [&](const TensorInfo &t) {
      const auto address = reinterpret_cast<DevicePtr>(at.at(t.uid));
      std::byte *here = memory(address, size_t(t.span()) * t.bytes());
      return address % (t.isLow() ? 16 : 4) ? nullptr : here;
    };
    std::byte *scratch = memory(workspace, workspaceBytes);
    if (!scratch)
      return fmt::format("cudnnBackendExecute: {} bytes of workspace at address {:#x}", workspaceBytes, workspace);
    std::memset(scratch, 0xff, workspaceBytes);
    std::map<int64_t, std::vector<float>> known;
    std::set<int64_t> computed;
    for (const Operation &op : operations)
      computed.insert(op.out.uid);
    for (size_t done = 0, before = size_t(-1); done < operations.size() && done != before;) {
      before = done;
      for (const Operation &op : operations) {
        std::vector<const std::vector<float> *> in;
        for (const TensorInfo &t : op.in) {
          if (!known.count(t.uid) && !computed.count(t.uid)) {
            std::vector<float> x(size_t(t.elements()));
            std::byte *from = t.byValue ? nullptr : span(t);
            if (!t.byValue && !from)
              return fmt::format("cudnnBackendExecute: tensor {} at address {:#x}", t.uid, DevicePtr(at.at(t.uid)));
            for (int64_t i = 0; i < t.elements(); ++i)
              x[size_t(i)] = t.byValue ? values.at(t.uid) : loadAt(t.type, from, t.offset(i));
            known[t.uid] = std::move(x);
          }
          if (auto it = known.find(t.uid); it != known.end())
            in.push_back(&it->second);
        }
        if (known.count(op.out.uid) || in.size() < op.in.size())
          continue;
        std::vector<float> y = compute(op, in);
        if (!op.out.isVirtual) {
          std::byte *to = span(op.out);
          if (!to)
            return fmt::format("cudnnBackendExecute: tensor {} at address {:#x}", op.out.uid,
                               DevicePtr(at.at(op.out.uid)));
          for (int64_t i = 0; i < op.out.elements(); ++i)
            storeAt(op.out.type, to, op.out.offset(i), y[size_t(i)]);
        }
        known[op.out.uid] = std::move(y);
        ++done;
      }
    }
    return known.size() < computed.size() ? "cudnnBackendExecute: operations that wait for each other" : "";
  }
};

cudnnStatus_t judge(Object &o) {
  switch (o.type) {
  case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
    const TensorInfo t(o);
    const bool fits = !t.dims.empty() && t.dims.size() == t.strides.size() && t.elements() > 0;
    return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  }
  case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
    return judge(operationOf(o));
  case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    return handles.count(o.one<Handle *>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) ? CUDNN_STATUS_SUCCESS
                                                                            : CUDNN_STATUS_BAD_PARAM;
  case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    return judgeEngine(o);
  case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
    return o.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
                   o.all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_BAD_PARAM;
  default:
    return CUDNN_STATUS_SUCCESS;
  }
}

Object *find(const void *descriptor) {
  auto it = descriptors.find(descriptor);
  return it == descriptors.end() ? nullptr : it->second.get();
}

/// Of a plan, or of an engine's configuration.
const Object &graphOf(const Object &o) {
  return o.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
             ? graphOf(o.object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG))
             : o.object(CUDNN_ATTR_ENGINECFG_ENGINE).object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

ObjectPtr make(cudnnBackendDescriptorType_t type, int attribute, cudnnBackendAttributeType_t of, ObjectPtr object) {
  auto o = std::make_shared<Object>(Object{type, true, {}});
  o->attributes[attribute] = {of, {}, {std::move(object)}};
  return o;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return size_t(setting("CUDNN", 91900)); }
size_t cudnnGetCudartVersion() { return 13000; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char *message, size_t size) {
  if (size)
    *message = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  if (toldNoMemory("cudnnCreate"))
    return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  auto *h = new Handle;
  handles.insert(h);
  *handle = reinterpret_cast<cudnnHandle_t>(h);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  auto *h = reinterpret_cast<Handle *>(handle);
  if (!handles.erase(h))
    return CUDNN_STATUS_BAD_PARAM;
  delete h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  auto *h = reinterpret_cast<Handle *>(handle);
  if (!handles.count(h))
    return CUDNN_STATUS_BAD_PARAM;
  h->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  auto *h = reinterpret_cast<Handle *>(handle);
  if (!handles.count(h))
    return CUDNN_STATUS_BAD_PARAM;
  *stream = h->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
  if (!kindOf(type))
    return CUDNN_STATUS_NOT_SUPPORTED;
  auto o = std::make_shared<Object>(Object{type, false, {}});
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new char);
  descriptors[*descriptor] = std::move(o);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  if (!descriptors.erase(descriptor))
    return CUDNN_STATUS_BAD_PARAM;
  delete reinterpret_cast<char *>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
  Object *o = find(descriptor);
  if (!o || o->finalized || count < 0 || (count && !elements))
    return CUDNN_STATUS_BAD_PARAM;
  const Kind &kind = *kindOf(o->type);
  if (!std::count(kind.required.begin(), kind.required.end(), int(name)) &&
      !std::count(kind.optional.begin(), kind.optional.end(), int(name)))
    return CUDNN_STATUS_NOT_SUPPORTED;
  Object::Attribute a{type, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      auto it = descriptors.find(static_cast<const cudnnBackendDescriptor_t *>(elements)[i]);
      if (it == descriptors.end() || !it->second->finalized)
        return CUDNN_STATUS_BAD_PARAM;
      a.objects.push_back(it->second);
    }
  } else {
    a.bytes.resize(size_t(count) * sizeOf(type));
    std::memcpy(a.bytes.data(), elements, a.bytes.size());
  }
  o->attributes[name] = std::move(a);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Object *o = find(descriptor);
  if (!o || o->finalized)
    return CUDNN_STATUS_BAD_PARAM;
  for (int name : kindOf(o->type)->required)
    if (!o->has(name))
      return CUDNN_STATUS_BAD_PARAM;
  if (cudnnStatus_t s = judge(*o))
    return s;
  o->finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *count,
                                       void *elements) {
  Object *o = find(descriptor);
  if (!o || !o->finalized)
    return CUDNN_STATUS_BAD_PARAM;
  if (o->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    const ObjectPtr graph = o->attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).objects[0];
    *count = supported(*graph);
    if (*count && requested > 0 && elements) {
      ObjectPtr engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
      engine->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = attribute(CUDNN_TYPE_INT64, int64_t(0));
      descriptors[*static_cast<cudnnBackendDescriptor_t *>(elements)] =
          make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine);
    }
    return CUDNN_STATUS_SUCCESS;
  }
  if ((o->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) ||
      (o->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE)) {
    *static_cast<int64_t *>(elements) = workspaceOf(graphOf(*o));
    return CUDNN_STATUS_SUCCESS;
  }
  if (o->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
    *static_cast<int64_t *>(elements) = orderedEngine + 1;
    return CUDNN_STATUS_SUCCESS;
  }
  const Kind &kind = *kindOf(o->type);
  const bool known = std::count(kind.required.begin(), kind.required.end(), int(name)) ||
                     std::count(kind.optional.begin(), kind.optional.end(), int(name));
  auto it = o->attributes.find(name);
  if (!known || (it != o->attributes.end() && it->second.type != type))
    return CUDNN_STATUS_BAD_PARAM;
  if (it == o->attributes.end()) {  // notes and knobs: none
    if (count)
      *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  const Object::Attribute &a = it->second;
  const int64_t there =
      int64_t(type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? a.objects.size() : a.bytes.size() / sizeOf(type));
  if (count)
    *count = there;
  for (int64_t i = 0; elements && i < std::min(there, requested); ++i)
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
      descriptors[static_cast<cudnnBackendDescriptor_t *>(elements)[i]] = a.objects[size_t(i)];
    else
      std::memcpy(static_cast<std::byte *>(elements) + i * int64_t(sizeOf(type)),
                  a.bytes.data() + i * int64_t(sizeOf(type)), sizeOf(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  auto *h = reinterpret_cast<Handle *>(handle);
  const Object *p = find(plan), *v = find(pack);
  if (!handles.count(h) || !p || !p->finalized || p->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !v ||
      !v->finalized || v->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR ||
      graphOf(*p).one<Handle *>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != h)
    return CUDNN_STATUS_BAD_PARAM;
  if (setting("CUDNN_REFUSE", 0))
    return CUDNN_STATUS_NOT_SUPPORTED;
  Run run;
  run.operations = operationsOf(graphOf(*p));
  run.workspaceBytes = size_t(workspaceOf(graphOf(*p)));
  run.workspace = reinterpret_cast<DevicePtr>(v->one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  if (!run.workspace)
    return CUDNN_STATUS_BAD_PARAM;
  const std::vector<int64_t> ids = v->all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<void *> pointers = v->all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size(); ++i)
    run.at[ids[i]] = pointers[i];
  for (const Operation &op : run.operations) {
    std::vector<TensorInfo> all = op.in;
    all.push_back(op.out);
    for (const TensorInfo &t : all) {
      if (t.isVirtual)
        continue;
      if (!run.at.count(t.uid) || !run.at.at(t.uid))
        return CUDNN_STATUS_BAD_PARAM;
      if (t.byValue)
        run.values[t.uid] = loadAt(t.type, static_cast<const std::byte *>(run.at.at(t.uid)), 0);
    }
  }
  using Enqueue = Result (*)(const char *, Stream, const Action &);
  static const auto put = reinterpret_cast<Enqueue>(dlsym(RTLD_DEFAULT, "gptcStandinEnqueue"));
  if (!put || put("cudnnBackendExecute", reinterpret_cast<Stream>(h->stream), run) != success)
    return CUDNN_STATUS_EXECUTION_FAILED;
  return CUDNN_STATUS_SUCCESS;
}
}

}  // namespace gptc::cuda
