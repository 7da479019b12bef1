// Attention groups as calls of cuDNN, through cudnn-frontend and the stand-in: results, streams, capture, refusals; and
// what the real library takes of them where there is one.
#include "runtime/cuda/cudnn.h"

#include "codegen/cuda/libraries.h"
#include "codegen/cudnn_attention.h"
#include "groups_on_device.h"
#include "ir/ops/heads.h"
#include "support/diagnostics.h"

#include <array>

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#endif

namespace gptc::test {
namespace {

using namespace cuda;

struct Form {
  DType dtype;
  int64_t batch, tokens, heads, kvHeads, size;
  bool causal;
  bool alibi = false;
};

std::vector<AttrMap> attrsOf(const Form &f) {
  AttrMap a;
  a.set("n_head", f.heads);
  a.set("n_kv_head", f.kvHeads);
  a.set("causal", f.causal);
  a.set("alibi", f.alibi);
  return {a};
}

Type qkvOf(const Form &f) { return Type(f.dtype, {f.batch, f.tokens, (f.heads + 2 * f.kvHeads) * f.size}); }
Type outOf(const Form &f) { return Type(f.dtype, {f.batch, f.tokens, f.heads * f.size}); }
Type lseOf(const Form &f) { return Type(DType::f32, {f.batch, f.heads, f.tokens}); }

Group forwardOf(const Form &f) { return groupOf(OpKind::attention, {qkvOf(f)}, attrsOf(f)[0], {outOf(f), lseOf(f)}); }
Group backwardOf(const Form &f) {
  return groupOf(OpKind::attention_grad, {outOf(f), qkvOf(f), outOf(f), lseOf(f)}, attrsOf(f)[0], {qkvOf(f)});
}

/// What a result may be off: by an algorithm that multiplies values of `f.dtype` and adds in f32 in any order, rounds
/// probabilities, the gradients of scores, and results to `f.dtype`, and where heads share keys also the gradients of
/// each head before they are added. e = 2^-24 for each operation in f32, u for each rounding to 16 bits; the reference
/// rounds its results once more. Errors of second order are covered by taking e twice.
///   s: (D + 3) e scale |q||k|, and 3 e of ALiBi's part    p: as s of the row, and T + 8 for exp, sum and quotient o:
///   sum p (u + dp) |v| + 2 u |o| dv: sum p (u + dp) |do| + 2 u |dv| ds: scale p ((dp + 4 e) |do.v - delta| + (D + 1) e
///   (|do||v| + |do||o|)) dq: sum (ds's + u |ds|) |k| + 2 u |dq|, dk alike; and each sum of n products n e of its
///   absolute terms
class Bound {
public:
  Bound(const Form &f, const Tensor &qkv, const Tensor &lse) : f(f), qkv(qkv.data), lse(lse.data) {
    heads.batch = f.batch, heads.rows = f.tokens, heads.queries = f.heads, heads.keyValues = f.kvHeads,
    heads.size = f.size;
  }

  void forward(const Tensor &o, std::vector<double> &ofO, std::vector<double> &ofLse) const {
    ofO.assign(o.data.size(), 0), ofLse.assign(lse.size(), 0);
    each([&](int64_t b, int64_t h, int64_t i) {
      const double score = scoreError(b, h, i);
      ofLse[heads.lse(b, i, h)] = score + (double(f.tokens) + 8) * e + 2 * e * std::fabs(lse[heads.lse(b, i, h)]);
      for (int64_t j = 0; j < end(i); ++j)
        for (int64_t c = 0; c < f.size; ++c)
          ofO[heads.o(b, i, h) + c] +=
              p(b, h, i, j) * (u() + pError(score) + f.tokens * e) * std::fabs(qkv[heads.v(b, j, h) + c]);
      for (int64_t c = 0; c < f.size; ++c)
        ofO[heads.o(b, i, h) + c] += 2 * u() * std::fabs(o.data[heads.o(b, i, h) + c]) + tiny;
    });
  }

  std::vector<double> backward(const Tensor &dout, const Tensor &o, const Tensor &dqkv) const {
    std::vector<double> bound(dqkv.data.size(), tiny), perHead(dqkv.data.size(), 0);
    const int64_t D = f.size, T = f.tokens;
    std::vector<double> dk(D * T), dv(D * T);  // of one head
    for (int64_t b = 0; b < f.batch; ++b)
      for (int64_t h = 0; h < f.heads; ++h) {
        std::fill(dk.begin(), dk.end(), 0), std::fill(dv.begin(), dv.end(), 0);
        for (int64_t i = 0; i < T; ++i) {
          const double score = scoreError(b, h, i);
          const double *d = &dout.data[heads.o(b, i, h)], *out = &o.data[heads.o(b, i, h)];
          const auto [delta, absDelta] = dot(d, out);
          for (int64_t j = 0; j < end(i); ++j) {
            const double prob = p(b, h, i, j);
            const auto [dp, absDp] = dot(d, &qkv[heads.v(b, j, h)]);
            const double ds = heads.scale() * prob * (dp - delta);
            const double dsError =
                heads.scale() * prob *
                    ((pError(score) + 4 * e) * std::fabs(dp - delta) + (double(D) + 1) * e * (absDp + absDelta)) +
                (u() + double(T * f.heads) * e) * std::fabs(ds);
            for (int64_t c = 0; c < D; ++c) {
              const double q = qkv[heads.q(b, i, h) + c], k = qkv[heads.k(b, j, h) + c];
              bound[heads.q(b, i, h) + c] += dsError * std::fabs(k);
              bound[heads.k(b, j, h) + c] += dsError * std::fabs(q);
              bound[heads.v(b, j, h) + c] += prob * (u() + pError(score) + double(T * f.heads) * e) * std::fabs(d[c]);
              dk[j * D + c] += ds * q, dv[j * D + c] += prob * d[c];
            }
          }
        }
        for (int64_t j = 0; j < T && f.heads != f.kvHeads; ++j)
          for (int64_t c = 0; c < D; ++c) {
            bound[heads.k(b, j, h) + c] += u() * std::fabs(dk[j * D + c]);
            bound[heads.v(b, j, h) + c] += u() * std::fabs(dv[j * D + c]);
          }
      }
    for (size_t i = 0; i < bound.size(); ++i)
      bound[i] += 2 * u() * std::fabs(dqkv.data[i]);
    return bound;
  }

private:
  const Form &f;
  ops::Heads heads;
  const std::vector<double> &qkv, &lse;
  static constexpr double e = 2 * 0x1p-24, tiny = 0x1p-24;  // the least f16

  double u() const { return f.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }
  int64_t end(int64_t i) const { return f.causal ? i + 1 : f.tokens; }
  std::pair<double, double> dot(const double *a, const double *b) const {
    double sum = 0, all = 0;
    for (int64_t c = 0; c < f.size; ++c)
      sum += a[c] * b[c], all += std::fabs(a[c] * b[c]);
    return {sum, all};
  }
  double bias(int64_t h, int64_t i, int64_t j) const {
    return f.alibi ? -ops::alibiSlope(h, f.heads) * double(i - j) : 0;
  }
  double p(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return std::exp(heads.scale() * dot(&qkv[heads.q(b, i, h)], &qkv[heads.k(b, j, h)]).first + bias(h, i, j) -
                    lse[heads.lse(b, i, h)]);
  }
  double scoreError(int64_t b, int64_t h, int64_t i) const {
    double most = 0;
    for (int64_t j = 0; j < end(i); ++j)
      most = std::max(most, (double(f.size) + 3) * e * heads.scale() *
                                    dot(&qkv[heads.q(b, i, h)], &qkv[heads.k(b, j, h)]).second +
                                3 * e * std::fabs(bias(h, i, j)));
    return most;
  }
  double pError(double score) const { return 2 * score + (double(f.tokens) + 8) * e; }
  template <class F> void each(F body) const {
    for (int64_t b = 0; b < f.batch; ++b)
      for (int64_t h = 0; h < f.heads; ++h)
        for (int64_t i = 0; i < f.tokens; ++i)
          body(b, h, i);
  }
};

void expectWithin(const Tensor &got, const Tensor &want, const std::vector<double> &bound, const std::string &what) {
  for (size_t i = 0; i < got.data.size(); ++i)
    ASSERT_LE(std::fabs(got.data[i] - want.data[i]), bound[i])
        << what << ", element " << i << ": " << got.data[i] << " instead of " << want.data[i];
}

class CudnnTest : public GroupsOnDevice {
protected:
  void SetUp() override {
    if (cudnnFrontend().empty())
      GTEST_SKIP() << "built without cuDNN's headers";
    GroupsOnDevice::SetUp();
    gpu = std::make_unique<Gpu>(cudaTarget("cuda:sm_90a"));
    library = Cudnn::make(*gpu);
    workspace = allocate(workspaceBytes);
  }
  void TearDown() override {
    if (!library)
      return;
    library.reset();
    gpu.reset();
    GroupsOnDevice::TearDown();
  }
  std::unique_ptr<AttentionCall> call(const CudnnAttention &a, const std::vector<DevicePtr> &params,
                                      int64_t bytes = workspaceBytes) {
    std::string why;
    std::unique_ptr<AttentionCall> made = library->attention(a, params, workspace, bytes, why);
    EXPECT_EQ(why.empty(), made != nullptr) << why;
    return made;
  }

  static constexpr int64_t workspaceBytes = 4 << 20;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<Cudnn> library;
  DevicePtr workspace = 0;
};

const Form forms[] = {
    {DType::bf16, 2, 16, 2, 2, 8, true},        {DType::bf16, 1, 33, 4, 2, 16, true},
    {DType::f16, 2, 17, 3, 1, 24, false},       {DType::f16, 1, 128, 1, 1, 128, true},
    {DType::bf16, 1, 2, 2, 1, 64, true},        {DType::bf16, 2, 65, 2, 2, 40, false},
    {DType::bf16, 2, 37, 6, 2, 32, true, true},
};

TEST_F(CudnnTest, CallsMeanWhatTheirGroupsMean) {
  unsigned seed = 0;
  for (const Form &f : forms) {
    gpu->architecture = f.alibi ? 90 : std::array{80u, 90u, 100u, 120u}[seed / 2 % 4];  // cudnn-frontend chooses by it
    const Group forward = forwardOf(f), backward = backwardOf(f);
    const std::vector<Tensor> in = randomOperands(forward, ++seed);
    const std::vector<Tensor> want = interpretFused(*forward.fused, in);
    const std::optional<CudnnAttention> a = matchCudnnAttention(*forward.fused),
                                        g = matchCudnnAttention(*backward.fused);
    ASSERT_TRUE(a && g) << print(*forward.fused);
    const std::string what = fmt::format("{} [{},{}] {}/{} x {}{}", nameOf(f.dtype).str(), f.batch, f.tokens, f.heads,
                                         f.kvHeads, f.size, f.causal ? " causal" : "");
    const std::vector<DevicePtr> params = place(*forward.fused, in);
    std::unique_ptr<AttentionCall> once = call(*a, params);
    ASSERT_TRUE(once) << what;
    once->enqueue(stream);
    const Bound bound(f, in[0], want[1]);
    std::vector<double> ofO, ofLse;
    bound.forward(want[0], ofO, ofLse);
    expectWithin(fetch(params[1], want[0].type), want[0], ofO, "o of " + what);
    expectWithin(fetch(params[2], want[1].type), want[1], ofLse, "lse of " + what);

    const Tensor dout = randomOperands(backward, ++seed)[0];
    const std::vector<Tensor> given = {dout, in[0], want[0], want[1]};
    const Tensor gradient = interpretFused(*backward.fused, given)[0];
    const std::vector<DevicePtr> back = place(*backward.fused, given);
    ASSERT_TRUE(once = call(*g, back)) << what;
    once->enqueue(stream);
    const Tensor whole = fetch(back[4], gradient.type);
    expectWithin(whole, gradient, bound.backward(dout, want[0], gradient), "dqkv of " + what);
    // In several calls, to the same bits.
    CudnnAttention pieces = *g;
    pieces.batchCuts = f.batch, pieces.headCuts = f.alibi || f.tokens % 4 ? 1 : f.kvHeads;
    const std::vector<DevicePtr> again = place(*backward.fused, given);
    ASSERT_TRUE(once = call(pieces, again)) << what;
    once->enqueue(stream);
    EXPECT_EQ(fetch(again[4], gradient.type).data, whole.data) << what;
  }
}

// One description serves calls at other addresses, and what is captured runs again.
TEST_F(CudnnTest, EqualCallsAreCapturedWithTheStep) {
  const Group g = forwardOf(forms[1]);
  const CudnnAttention a = *matchCudnnAttention(*g.fused);
  const std::vector<Tensor> first = randomOperands(g, 1), second = randomOperands(g, 2);
  const std::vector<DevicePtr> p = place(*g.fused, first), q = place(*g.fused, second);
  const std::unique_ptr<AttentionCall> x = call(a, p), y = call(a, q);
  ASSERT_TRUE(x && y);
  Graph graph;
  GraphExec exec;
  ASSERT_EQ(driver->streamBeginCapture(stream, captureThreadLocal), success);
  x->enqueue(stream);
  y->enqueue(stream);
  ASSERT_EQ(driver->streamEndCapture(stream, &graph), success);
  ASSERT_EQ(driver->graphInstantiate(&exec, graph, 0), success);
  for (DevicePtr o : {p[1], q[1]})
    ASSERT_EQ(driver->memsetBytes(o, 0, g.fused->result(0)->type.bytes(), stream), success);
  ASSERT_EQ(driver->graphLaunch(exec, stream), success);
  for (const auto &[params, in] : {std::pair{p, first}, {q, second}}) {
    const std::vector<Tensor> want = interpretFused(*g.fused, in);
    std::vector<double> ofO, ofLse;
    Bound(forms[1], in[0], want[1]).forward(want[0], ofO, ofLse);
    expectWithin(fetch(params[1], want[0].type), want[0], ofO, "captured");
  }
  EXPECT_EQ(driver->graphExecDestroy(exec), success);
  EXPECT_EQ(driver->graphDestroy(graph), success);
}

// Where the library has no engine, or wants more than was planned, there is no call.
TEST_F(CudnnTest, WhatTheLibraryHasNotIsNoCall) {
  const Group g = backwardOf(forms[0]);
  const CudnnAttention good = *matchCudnnAttention(*g.fused);
  const std::vector<DevicePtr> params = place(*g.fused, randomOperands(g, 1));
  EXPECT_TRUE(call(good, params));
  EXPECT_TRUE(call(good, params, good.workspace()));
  EXPECT_FALSE(call(good, params, 4096)) << "of 256 bytes, the gradient of 4 x 64 x 64 scores and 2 x 32 f32";
  for (int64_t size : {4, 12, 136}) {
    CudnnAttention other = good;
    other.size = size;
    EXPECT_FALSE(call(other, params)) << size;
  }
  CudnnAttention odd = good;
  odd.kvHeads = 3;
  EXPECT_FALSE(call(odd, params));
  // At run time: no address for a tensor, none for the workspace.
  std::vector<DevicePtr> some = params;
  some[good.lse] = 0;
  EXPECT_THROW(call(good, some)->enqueue(stream), InternalError);
  const DevicePtr kept = std::exchange(workspace, 0);
  EXPECT_THROW(call(good, params)->enqueue(stream), InternalError);
  workspace = kept;
}

#if __has_include(<cudnn.h>)
// What makes the stand-in mean something: a frontend that left out a step would be refused.
TEST_F(CudnnTest, TheStandInRefusesWhatTheLibraryWould) {
  const CudaLibrary &l = CudaLibrary::get(CudaLibraryId::cudnn);
#define GPTC_FUNCTION(f)                                                                                               \
  decltype(&::f) f = nullptr;                                                                                          \
  ASSERT_TRUE(l.bind(f, #f));
  GPTC_FUNCTION(cudnnCreate)
  GPTC_FUNCTION(cudnnDestroy)
  GPTC_FUNCTION(cudnnSetStream)
  GPTC_FUNCTION(cudnnBackendCreateDescriptor)
  GPTC_FUNCTION(cudnnBackendDestroyDescriptor)
  GPTC_FUNCTION(cudnnBackendSetAttribute)
  GPTC_FUNCTION(cudnnBackendFinalize)
  GPTC_FUNCTION(cudnnBackendExecute)
#undef GPTC_FUNCTION
  constexpr auto good = CUDNN_STATUS_SUCCESS;
  std::vector<cudnnBackendDescriptor_t> made;
  auto make = [&](cudnnBackendDescriptorType_t type) {
    made.emplace_back();
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &made.back()), good);
    return made.back();
  };
  auto tensor = [&](int64_t uid, std::vector<int64_t> dims, bool finalize) {
    const cudnnBackendDescriptor_t t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
    const int64_t alignment = 16;
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t d = dims.size() - 1; d-- > 0;)
      strides[d] = strides[d + 1] * dims[d + 1];
    EXPECT_EQ(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type), good);
    for (auto [name, values] : {std::pair{CUDNN_ATTR_TENSOR_DIMENSIONS, dims}, {CUDNN_ATTR_TENSOR_STRIDES, strides}})
      EXPECT_EQ(cudnnBackendSetAttribute(t, name, CUDNN_TYPE_INT64, int64_t(dims.size()), values.data()), good);
    EXPECT_EQ(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment), good);
    EXPECT_NE(cudnnBackendFinalize(t), good) << "without its name";
    EXPECT_EQ(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid), good);
    if (finalize) {
      EXPECT_EQ(cudnnBackendFinalize(t), good);
    }
    return t;
  };
  const cudnnBackendDescriptor_t a = tensor(1, {1, 2, 4, 8}, true), b = tensor(2, {1, 2, 8, 4}, true),
                                 c = tensor(3, {1, 2, 4, 4}, true), odd = tensor(4, {1, 2, 4, 5}, true),
                                 open = tensor(5, {1, 2, 4, 4}, false);
  const int64_t uid = 6;
  EXPECT_NE(cudnnBackendSetAttribute(a, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid), good) << "finalised";
  EXPECT_NE(cudnnBackendFinalize(a), good) << "twice";
  const cudnnBackendDescriptor_t math = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
  EXPECT_NE(cudnnBackendSetAttribute(math, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_DATA_TYPE, 1, &f32), good)
      << "an attribute of others";
  EXPECT_EQ(cudnnBackendSetAttribute(math, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32), good);
  EXPECT_EQ(cudnnBackendFinalize(math), good);
  auto matmul = [&](cudnnBackendDescriptor_t result) {
    const cudnnBackendDescriptor_t m = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    for (auto [name, d] : {std::pair{CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                           {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                           {CUDNN_ATTR_OPERATION_MATMUL_CDESC, result},
                           {CUDNN_ATTR_OPERATION_MATMUL_DESC, math}})
      if (cudnnBackendSetAttribute(m, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d) != good)
        return cudnnBackendDescriptor_t(nullptr);
    return cudnnBackendFinalize(m) == good ? m : nullptr;
  };
  const cudnnBackendDescriptor_t product = matmul(c);
  EXPECT_TRUE(product);
  EXPECT_FALSE(matmul(odd)) << "shapes that do not fit";
  EXPECT_FALSE(matmul(open)) << "a tensor that is not finalised";

  cudnnHandle_t handle = nullptr, gone = nullptr;
  ASSERT_EQ(cudnnCreate(&handle), good);
  ASSERT_EQ(cudnnCreate(&gone), good);
  ASSERT_EQ(cudnnDestroy(gone), good);
  EXPECT_NE(cudnnDestroy(gone), good);
  EXPECT_NE(cudnnSetStream(gone, nullptr), good);
  for (cudnnHandle_t h : {handle, gone}) {
    const cudnnBackendDescriptor_t graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    EXPECT_EQ(cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &h), good);
    EXPECT_EQ(
        cudnnBackendSetAttribute(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &product),
        good);
    EXPECT_EQ(cudnnBackendFinalize(graph) == good, h == handle);
    EXPECT_NE(cudnnBackendExecute(h, graph, graph), good) << "neither a plan nor a pack";
  }
  for (cudnnBackendDescriptor_t d : made)
    EXPECT_EQ(cudnnBackendDestroyDescriptor(d), good);
  EXPECT_NE(cudnnBackendDestroyDescriptor(a), good);
  EXPECT_EQ(cudnnDestroy(handle), good);
}
#endif

TEST(CudnnAttention, TakesWhatTheLibraryHas) {
  const Form plain{DType::bf16, 2, 16, 4, 2, 64, true};
  auto taken = [](const Form &f) {
    return matchCudnnAttention(*forwardOf(f).fused) && matchCudnnAttention(*backwardOf(f).fused);
  };
  EXPECT_TRUE(taken(plain));
  auto but = [&](auto change) {
    Form f = plain;
    change(f);
    return taken(f);
  };
  EXPECT_TRUE(but([](Form &f) { f.causal = false; }));
  EXPECT_TRUE(but([](Form &f) { f.dtype = DType::f16; }));
  EXPECT_FALSE(but([](Form &f) { f.dtype = DType::f32; }));
  EXPECT_FALSE(but([](Form &f) { f.size = 12; }));
  EXPECT_FALSE(but([](Form &f) { f.size = 136; }));
  EXPECT_FALSE(but([](Form &f) { f.tokens = 1; }));
  EXPECT_TRUE(but([](Form &f) { f.alibi = true; }));
  EXPECT_FALSE(but([](Form &f) { f.alibi = true, f.causal = false; }));
  const Group dropping = forwardOf(plain);
  dropping.fused->body->front()->attrs.set("p", 0.1);
  EXPECT_FALSE(matchCudnnAttention(*dropping.fused));
  auto with = [&](const char *name, Attr value) {
    const Group g = forwardOf(plain);
    g.fused->body->front()->attrs.set(name, std::move(value));
    return matchCudnnAttention(*g.fused);
  };
  EXPECT_FALSE(with("softcap", 2.0));
  EXPECT_FALSE(with("window", plain.tokens - 1));
  EXPECT_TRUE(with("window", plain.tokens)) << "all tokens";
  ASSERT_TRUE(with("scale", 0.3));
  EXPECT_EQ(with("scale", 0.3)->scale, 0.3);
  const Group part = groupOf(OpKind::attention, {Type(DType::bf16, {1, 16, 48}), Type::scalar(DType::i64)},
                             attrs({{"n_head", 2}, {"of_heads", 4}, {"alibi", true}}), {});
  EXPECT_FALSE(matchCudnnAttention(*part.fused));
}

TEST(CudnnAttention, IsCutWhereTheWorkspaceWouldBeTooLarge) {
  auto cuts = [](const Form &f) {
    EXPECT_EQ(matchCudnnAttention(*forwardOf(f).fused)->batchCuts, 1) << "forward needs no workspace";
    const std::optional<CudnnAttention> a = matchCudnnAttention(*backwardOf(f).fused);
    if (a) {
      EXPECT_LE(a->workspace(), CudnnAttention::mostWorkspace);
    }
    return a ? std::pair(a->batchCuts, a->headCuts) : std::pair(int64_t(0), int64_t(0));
  };
  using Cuts = std::pair<int64_t, int64_t>;
  // 64 x 12 x 1024 x 1024 gradients of scores in 16 bits are 1.5 GiB, with sums in f32 1.9.
  EXPECT_EQ(cuts({DType::bf16, 64, 1024, 12, 12, 64, true}), Cuts(1, 1));
  EXPECT_EQ(cuts({DType::bf16, 128, 1024, 12, 12, 64, true}), Cuts(2, 1));
  EXPECT_EQ(cuts({DType::bf16, 99, 1024, 12, 12, 64, true}), Cuts(3, 1)) << "divisors only";
  // Of one sequence, 4 x 16384 x 16384 in 16 bits are 2 GiB: heads are cut too, with those that share keys.
  EXPECT_EQ(cuts({DType::bf16, 2, 16384, 4, 4, 64, true}), Cuts(2, 2));
  EXPECT_EQ(cuts({DType::bf16, 1, 16384, 12, 6, 64, true}), Cuts(1, 6));
  EXPECT_EQ(cuts({DType::bf16, 1, 16384, 4, 1, 64, true}), Cuts(0, 0)) << "one head of keys cannot be cut";
  EXPECT_EQ(cuts({DType::bf16, 2, 16384, 4, 4, 64, true, true}), Cuts(0, 0)) << "slopes are those of all heads";
  EXPECT_EQ(cuts({DType::bf16, 4, 8191, 6, 6, 64, true}), Cuts(0, 0)) << "statistics would not be aligned";
}

TEST(CudnnAttention, IsCalledWhereAPlanMayCallIt) {
  const Form plain{DType::bf16, 2, 16, 4, 2, 64, true};
  // Only where a plan may call it, and not before sm_80.
  const Group g = forwardOf(plain);
  for (const char *arch : {"cuda:sm_75", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_120a"})
    for (const char *features : {"", "cublaslt", "cudnn", "cublaslt,cudnn"}) {
      Target t = cudaTarget(arch);
      t.features = features;
      EXPECT_EQ(defaultSchedule(*g.fused, t).library,
                t.architecture >= 80 && llvm::StringRef(features).ends_with("cudnn"))
          << arch << " " << features;
    }
}

TEST(CudnnAttention, ABuildWithoutHeadersCannotCall) {
  if (!cudnnFrontend().empty())
    GTEST_SKIP() << "built with cuDNN's headers";
  try {
    useStandins();
    Cudnn::make(Gpu(cudaTarget("cuda:sm_90a")));
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::TargetUnavailable);
    EXPECT_NE(std::string(e.what()).find("built without cuDNN's headers"), std::string::npos) << e.what();
  }
}

// The real library, where this machine has it: it takes what we describe, without a GPU. In a process of its own, as
// one process knows one cuDNN.
TEST(RealCudnn, TakesTheDescriptionOfEveryCall) {
  if (cudnnFrontend().empty())
    GTEST_SKIP() << "built without cuDNN's headers";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int none = 77;
  static int code;
  auto ask = [] {
    unsetenv("GPTC_CUDA");
    const CudaLibrary &l = CudaLibrary::find(CudaLibraryId::cudnn);
    if (!l || l.version < CudaVersion{9, 19, 0})  // earlier ones may want a handle, and so a GPU
      exit(none);
    for (const Form &f : forms)
      for (const Group &g : {forwardOf(f), backwardOf(f)}) {
        const CudnnAttention whole = *matchCudnnAttention(*g.fused);
        CudnnAttention cut = whole;
        cut.batchCuts = f.batch, cut.headCuts = f.alibi ? 1 : f.kvHeads;
        for (const CudnnAttention &a : {whole, cut})
          for (unsigned architecture : {80u, 90u, 100u, 120u})
            if (std::string why = cudnnRefusal(a, architecture); !why.empty()) {
              fmt::print(stderr, "sm_{}, {} x {} calls: {}\n{}", architecture, a.batchCuts, a.headCuts, why,
                         print(*g.fused));
              exit(1);
            }
      }
    exit(0);
  };
  auto ended = [](int status) {
    code = WEXITSTATUS(status);
    return WIFEXITED(status) && (code == 0 || code == none);
  };
  EXPECT_EXIT(ask(), ended, "");
  if (code == none)
    GTEST_SKIP() << "no cuDNN of 9.19 or later here";
}

}  // namespace
}  // namespace gptc::test
