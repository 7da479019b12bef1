// Matmul groups through cuBLASLt's table and its stand-in: results, streams, capture, refusals. The header's numbers,
// where there is one.
#include "runtime/cuda/cublaslt.h"

#include "groups_on_device.h"
#include "support/diagnostics.h"

#include <unistd.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace gptc::test {
namespace {

using namespace cuda;

class CublasLtTest : public GroupsOnDevice {
protected:
  void SetUp() override {
    GroupsOnDevice::SetUp();
    lt = &CublasLt::get();
    ASSERT_EQ(lt->create(&handle), ltSuccess);
    workspace = allocate(workspaceBytes);
  }
  void TearDown() override {
    EXPECT_EQ(lt->destroy(handle), ltSuccess);
    GroupsOnDevice::TearDown();
  }

  static constexpr size_t workspaceBytes = 1 << 16;
  const CublasLt *lt;
  LtHandle handle;
  DevicePtr workspace;

  /// Small multiples of 1/8: sums of their products are exact in f32, in any order.
  static std::vector<Tensor> exactOperands(const Group &g) {
    std::vector<Tensor> all;
    for (unsigned i = 0; i < g.fused->numOperands(); ++i) {
      all.emplace_back(g.fused->operand(i)->type);
      for (size_t k = 0; k < all[i].data.size(); ++k)
        all[i].data[k] = double(int64_t((k * 7 + i * 5) % 17) - 8) / 8;
    }
    return all;
  }

  void expectResults(const Op &fused, const std::vector<Tensor> &operands, const std::vector<DevicePtr> &params) {
    const std::vector<Tensor> want = interpretFused(fused, operands);
    for (unsigned r = 0; r < want.size(); ++r) {
      const Tensor got = fetch(params[fused.numOperands() + r], want[r].type);
      for (size_t i = 0; i < got.data.size(); ++i)
        // tanh of the C library in f32: a few units; then one rounding to the type of the result.
        ASSERT_NEAR(got.data[i], want[r].data[i],
                    std::fabs(want[r].data[i]) * (want[r].type.dtype == DType::f32 ? 0x1p-20 : 0x1p-8) + 0x1p-20)
            << "result " << r << " element " << i << "\n"
            << print(fused);
    }
  }
};

TEST_F(CublasLtTest, ProductsMeanWhatTheirGroupsMean) {
  const std::pair<const char *, const char *> groups[] = {
      {"%a: f32[3,5]; %b: f32[5,4]", "%y = matmul %a, %b : f32[3,4]\nyield %y"},
      {"%a: f32[5,3]; %b: f32[4,5]", "%y = matmul %a, %b {ta=true, tb=true, tf32=true} : f32[3,4]\nyield %y"},
      {"%a: bf16[2,3,5]; %b: bf16[7->8,5]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[2,3,7->8]\n%l = cast %y {dtype=\"bf16\"} : bf16[2,3,7->8]\n"
       "yield %l"},
      {"%a: f32[2,3,4,6]; %b: f32[2,3,5,6]", "%y = matmul %a, %b {batch=2, tb=true} : f32[2,3,4,5]\nyield %y"},
      {"%a: f16[2,6,3]; %b: f16[2,6,5->6]; %i: f32[3,5->6]",
       "%y = matmul %a, %b, %i {ta=true, fold=6, out=\"f32\"} : f32[3,5->6]\nyield %y"},
      {"%a: f32[3,5]; %b: f32[5,4]; %c: f32[4]; %r: f32[3,4]",
       "%y = matmul %a, %b : f32[3,4]\n%z = add %y, %c : f32[3,4]\n%o = add %r, %z : f32[3,4]\nyield %o"},
      {"%a: bf16[3,5]; %b: bf16[5,8]; %c: bf16[8]",
       "%y = matmul %a, %b {out=\"f32\"} : f32[3,8]\n%w = cast %c {dtype=\"f32\"} : f32[8]\n%z = add %y, %w : "
       "f32[3,8]\n"
       "%k = cast %z {dtype=\"bf16\"} : bf16[3,8]\n%g = gelu_tanh %z : f32[3,8]\n%l = cast %g {dtype=\"bf16\"} : "
       "bf16[3,8]\n"
       "yield %l, %k"},
      {"%a: bf16[3,5]; %b: bf16[6->8,5]; %x: bf16[3,6->8]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[3,6->8]\n%w = cast %x {dtype=\"f32\"} : f32[3,6->8]\n"
       "%g = gelu_tanh_grad %y, %w : f32[3,6->8]\n%l = cast %g {dtype=\"bf16\"} : bf16[3,6->8]\nyield %l"},
      {"%a: bf16[2,4,3]; %d: bf16[2,4,5]",
       "%w = cast %d {dtype=\"f32\"} : f32[2,4,5]\n%s = reduce_sum %w {fold=4, lead=2} : f32[5]\n"
       "%y = matmul %a, %d {ta=true, fold=4, out=\"f32\"} : f32[3,5]\nyield %s, %y"},
      {"%a: f8e4m3[2,16,32]; %b: f8e4m3[48,32]; %f: f32[]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[2,16,48]\n%z = mul %y, %f : f32[2,16,48]\n"
       "%l = cast %z {dtype=\"bf16\"} : bf16[2,16,48]\nyield %l"},
      {"%a: f8e4m3[16,32]; %b: f8e4m3[48,32]; %f: f32[]; %c: bf16[48]; %r: f32[16,48]",
       "%y = matmul %a, %b {tb=true, out=\"f32\"} : f32[16,48]\n%z = mul %f, %y : f32[16,48]\n"
       "%w = cast %c {dtype=\"f32\"} : f32[48]\n%s = add %z, %w : f32[16,48]\n%o = add %r, %s : f32[16,48]\n"
       "yield %o"},
  };
  for (auto [args, body] : groups) {
    Group g = group("matmul", args, body);
    auto l = matchCublasLtMatmul(*g.fused);
    ASSERT_TRUE(l) << print(*g.fused);
    const std::vector<Tensor> operands = exactOperands(g);
    const std::vector<DevicePtr> params = place(*g.fused, operands);
    MatmulCall call(handle, *l, params, workspace, workspaceBytes);
    ASSERT_EQ(call.algorithms(), 2u);
    for (unsigned algorithm = 0; algorithm < 2; ++algorithm) {
      call.enqueue(stream, algorithm);
      expectResults(*g.fused, operands, params);
    }
  }
}

TEST_F(CublasLtTest, AProductIsCapturedWithTheStep) {
  Group g = group("matmul", "%a: f32[3,9]; %b: f32[9,4]; %i: f32[3,4]",
                  "%y = matmul %a, %b, %i {fold=9} : f32[3,4]\nyield %y");
  const std::vector<Tensor> operands = exactOperands(g);
  std::vector<DevicePtr> params = place(*g.fused, operands);
  params.back() = params[2];  // the sum goes on in place
  MatmulCall call(handle, *matchCublasLtMatmul(*g.fused), params, workspace, workspaceBytes);
  Graph graph;
  GraphExec exec;
  // Not before it has run elsewhere, as that may load code.
  const MatmulCall first(handle, *matchCublasLtMatmul(*g.fused), place(*g.fused, operands), workspace, workspaceBytes);
  ASSERT_EQ(driver->streamBeginCapture(stream, captureThreadLocal), success);
  EXPECT_EQ(int(first.tryEnqueue(stream, 0)), 13);
  ASSERT_EQ(driver->streamEndCapture(stream, &graph), success);
  EXPECT_EQ(driver->graphDestroy(graph), success);
  first.enqueue(stream, 0);
  first.enqueue(stream, 1);
  ASSERT_EQ(driver->streamBeginCapture(stream, captureThreadLocal), success);
  call.enqueue(stream, 1);
  call.enqueue(stream, 0);
  ASSERT_EQ(driver->streamEndCapture(stream, &graph), success);
  ASSERT_EQ(driver->graphInstantiate(&exec, graph, 0), success);
  ASSERT_EQ(driver->graphLaunch(exec, stream), success);
  const Tensor once = interpretFused(*g.fused, operands)[0];
  const Tensor got = fetch(params[2], once.type);
  for (size_t i = 0; i < got.data.size(); ++i)
    EXPECT_EQ(got.data[i], operands[2].data[i] + 2 * (once.data[i] - operands[2].data[i])) << i;
  EXPECT_EQ(driver->graphExecDestroy(exec), success);
  EXPECT_EQ(driver->graphDestroy(graph), success);
}

TEST_F(CublasLtTest, TheStandInRefusesWhatTheLibraryWould) {
  Group g = group("matmul", "%a: f32[3,5]; %b: f32[5,8]",
                  "%y = matmul %a, %b : f32[3,8]\n%z = gelu_tanh %y : f32[3,8]\nyield %z, %y");
  const CublasLtMatmul good = *matchCublasLtMatmul(*g.fused);
  const std::vector<DevicePtr> params = place(*g.fused, exactOperands(g));
  auto refused = [&](const std::function<void(CublasLtMatmul &)> &spoil) {
    CublasLtMatmul l = good;
    spoil(l);
    try {
      return MatmulCall(handle, l, params, workspace, workspaceBytes).algorithms() == 0;
    } catch (const InternalError &) {
      return true;
    }
  };
  EXPECT_FALSE(refused([](CublasLtMatmul &) {}));
  EXPECT_TRUE(refused([](CublasLtMatmul &l) { l.a.transposed = true; })) << "shapes that do not fit";
  EXPECT_TRUE(refused([](CublasLtMatmul &l) { l.b.ld = 1; })) << "columns that overlap";
  EXPECT_TRUE(refused([](CublasLtMatmul &l) { l.a.dtype = DType::bf16; })) << "factors of two types";
  EXPECT_TRUE(refused([](CublasLtMatmul &l) { l.aux = -1; })) << "nowhere to keep gelu's operand";
  EXPECT_TRUE(refused([](CublasLtMatmul &l) { l.epilogue = CublasLtMatmul::Epilogue::bias; })) << "no bias";
  // Too little workspace: only the algorithm that needs none.
  EXPECT_EQ(MatmulCall(handle, good, params, workspace, 16).algorithms(), 1u);
  MatmulCall call(handle, good, params, workspace, workspaceBytes);
  EXPECT_THROW(call.enqueue(stream, 2), InternalError);
  EXPECT_EQ(MatmulCall(handle, good, params, workspace + 128, 1 << 15).tryEnqueue(stream, 0), ltInvalidValue);
}

// A plan names an algorithm for another process, where the library describes it by other bits.
TEST_F(CublasLtTest, NamesOfAlgorithmsAreThoseOfAnotherProcess) {
  Group g = group("matmul", "%a: f32[3,5]; %b: f32[5,8]", "%y = matmul %a, %b : f32[3,8]\nyield %y");
  const CublasLtMatmul matmul = *matchCublasLtMatmul(*g.fused);
  const std::vector<DevicePtr> params = place(*g.fused, exactOperands(g));
  const MatmulCall here(handle, matmul, params, workspace, workspaceBytes);
  ASSERT_EQ(here.algorithms(), 2u);
  EXPECT_NE(here.nameOf(0), here.nameOf(1));
  auto areFound = [&] {
    const MatmulCall there(handle, matmul, params, workspace, workspaceBytes);
    return there.find(here.nameOf(0)) == 0u && there.find(here.nameOf(1)) == 1u;
  };
  EXPECT_EXIT(::_exit(areFound() ? 0 : 1), testing::ExitedWithCode(0), "");
}

#if __has_include(<cublasLt.h>)
TEST(CublasLtHeader, NumbersAgree) {
  static_assert(sizeof(LtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(int(CUBLASLT_ALGO_CONFIG_STAGES_ID), ltWideAttributes - 1);
  EXPECT_EQ(int(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID), ltAlgorithmAttributes - 1);
  static_assert(sizeof(LtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
  static_assert(offsetof(LtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
  EXPECT_EQ(int(ltAllocFailed), CUBLAS_STATUS_ALLOC_FAILED);
  EXPECT_EQ(int(ltInvalidValue), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(int(ltNotSupported), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(int(ltF32), CUDA_R_32F);
  EXPECT_EQ(int(ltF16), CUDA_R_16F);
  EXPECT_EQ(int(ltBF16), CUDA_R_16BF);
  EXPECT_EQ(int(ltE4M3), CUDA_R_8F_E4M3);
  EXPECT_EQ(int(ltCompute32F), CUBLAS_COMPUTE_32F);
  EXPECT_EQ(int(ltComputeTF32), CUBLAS_COMPUTE_32F_FAST_TF32);
  EXPECT_EQ(int(ltTransA), CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(int(ltTransB), CUBLASLT_MATMUL_DESC_TRANSB);
  EXPECT_EQ(int(ltEpilogue), CUBLASLT_MATMUL_DESC_EPILOGUE);
  EXPECT_EQ(int(ltBiasPointer), CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  EXPECT_EQ(int(ltAuxPointer), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  EXPECT_EQ(int(ltAuxLd), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  EXPECT_EQ(int(ltScaleA), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  EXPECT_EQ(int(ltBiasType), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  EXPECT_EQ(int(ltBatchCount), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  EXPECT_EQ(int(ltBatchStride), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  EXPECT_EQ(int(ltMaxWorkspace), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(int(ltAlignmentA), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  EXPECT_EQ(int(ltAlignmentD), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  EXPECT_EQ(int(ltEpilogueDefault), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(int(ltEpilogueBias), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(int(ltEpilogueGelu), CUBLASLT_EPILOGUE_GELU);
  EXPECT_EQ(int(ltEpilogueGeluBias), CUBLASLT_EPILOGUE_GELU_BIAS);
  EXPECT_EQ(int(ltEpilogueGeluAux), CUBLASLT_EPILOGUE_GELU_AUX);
  EXPECT_EQ(int(ltEpilogueGeluAuxBias), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(int(ltEpilogueGeluGrad), CUBLASLT_EPILOGUE_DGELU);
  EXPECT_EQ(int(ltEpilogueBiasGradA), CUBLASLT_EPILOGUE_BGRADA);
}
#endif

}  // namespace
}  // namespace gptc::test
