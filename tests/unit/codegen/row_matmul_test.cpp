#include "row_products.h"

#include "codegen/cuda/emit.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

Options onGpu(const char *gpu = "cuda:sm_90a") { return {.target = cudaTarget(gpu), .compiled = false}; }

TEST(RowMatmul, IsWithinTheBound) {
  unsigned seed = 0;
  for (const RowProduct &p : rowProducts())
    for (int64_t rows : {1, 3}) {
      const Group g = p.of(rows);
      expectWithinBound(g, randomOperands(g, ++seed), onGpu(), p.args);
    }
}

/// Row `row` of each operand that has rows, `rows` of them.
std::vector<Tensor> rowOf(const Group &one, const std::vector<Tensor> &all, int64_t row) {
  std::vector<Tensor> own;
  for (unsigned i = 0; i < all.size(); ++i) {
    Tensor t(one.fused->operand(i)->type);
    const bool hasRows = t.data.size() != all[i].data.size();
    for (size_t k = 0; k < t.data.size(); ++k)
      t.data[k] = all[i].data[(hasRows ? size_t(row) * t.data.size() : 0) + k];
    own.push_back(std::move(t));
  }
  return own;
}

TEST(RowMatmul, ARowHasTheSameBitsBesideOthersAndOnAnyGpu) {
  for (const RowProduct &p : rowProducts())
    for (int64_t rows = 2; rows <= 4; ++rows) {
      const Group g = p.of(rows), one = p.of(1);
      const std::vector<Tensor> operands = randomOperands(g, unsigned(rows));
      const std::vector<Tensor> all = run(g, operands, onGpu());
      expectSame(run(g, operands, onGpu("cuda:sm_75")), all, p.args + " on sm_75");
      for (int64_t row : {int64_t(0), rows - 1})
        for (const Tensor &t : all) {
          const Tensor single = run(one, rowOf(one, operands, row), onGpu())[size_t(&t - all.data())];
          for (size_t k = 0; k < single.data.size(); ++k)
            ASSERT_EQ(t.data[size_t(row) * single.data.size() + k], single.data[k])
                << p.args << ": element " << k << " of row " << row << " of " << rows;
        }
    }
}

// 4 rows of 12,288 f32 take 192 KiB, for which an sm_75 has no room: its blocks take fewer.
TEST(RowMatmul, TakesFewerRowsWhereSharedMemoryIsSmall) {
  const RowProduct p{"%x: f32[{0},12288]; %w: f32[12288,8]", "%y = matmul %x, %w : f32[{0},8]\nyield %y"};
  const Group g = p.of(4);
  int64_t blocks = 0;
  for (const char *gpu : {"cuda:sm_90a", "cuda:sm_80", "cuda:sm_75"}) {
    const Target target = cudaTarget(gpu);
    const kir::Kernel k = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target).kernel;
    const CudaPhase phase = emitCuda(k, "k").phases[0];
    EXPECT_LE(phase.sharedBytes, target.sharedBytes) << gpu;
    const int64_t now = phase.blocks;
    EXPECT_GT(now, blocks) << gpu;
    blocks = now;
  }
  const std::vector<Tensor> operands = randomOperands(g, 1);
  expectSame(run(g, operands, onGpu("cuda:sm_75")), run(g, operands, onGpu()), "sm_75");
}

TEST(RowMatmul, SchedulesDependOnTheMatrixAlone) {
  for (const RowProduct &p : rowProducts()) {
    const Group one = p.of(1);
    const std::string want = defaultSchedule(*one.fused, cudaTarget("cuda:sm_90a")).str();
    for (int64_t rows = 1; rows <= 4; ++rows)
      for (const char *gpu : {"cuda:sm_75", "cuda:sm_120a"}) {
        const Group g = p.of(rows);
        EXPECT_EQ(defaultSchedule(*g.fused, cudaTarget(gpu)).str(), want) << p.args << " on " << gpu;
      }
  }
}

TEST(RowMatmul, RefusesWhatItCannotAdd) {
  auto refused = [](const char *args, const char *body) {
    const Group g = group("row_matmul", args, body);
    return !groupProblem(*g.fused).empty();
  };
  const char *args = "%x: f32[2,16]; %w: f32[16,16]; %z: f32[2,16]";
  EXPECT_FALSE(refused(args, "%y = matmul %x, %w : f32[2,16]\nyield %y"));
  EXPECT_TRUE(refused("%x: f32[5,16]; %w: f32[16,16]", "%y = matmul %x, %w : f32[5,16]\nyield %y")) << "five rows";
  EXPECT_TRUE(refused(args, "%y = matmul %x, %w, %z : f32[2,16]\nyield %y")) << "a sum that goes on";
  EXPECT_TRUE(refused(args, "%y = matmul %x, %w {fold=8} : f32[2,16]\nyield %y")) << "blocks of k";
  EXPECT_TRUE(refused(args, "%y = matmul %x, %w : f32[2,16]\n%s = softmax %y : f32[2,16]\nyield %s"))
      << "a row behind the product";
  EXPECT_TRUE(refused(args, "%a = neg %x : f32[2,16]\n%y = matmul %a, %w : f32[2,16]\nyield %y, %a"))
      << "the first operand as a result";
  EXPECT_TRUE(refused(args, "%a = neg %x : f32[2,16]\n%y = matmul %a, %w : f32[2,16]\n%s = add %y, %a : f32[2,16]\n"
                            "yield %s"))
      << "the first operand behind the product";
  EXPECT_TRUE(refused(args, "%v = neg %w : f32[16,16]\n%y = matmul %x, %v : f32[2,16]\nyield %y"))
      << "a matrix that the group makes";
  EXPECT_TRUE(refused("%x: f32[2,12289]; %w: f32[12289,2]", "%y = matmul %x, %w : f32[2,2]\nyield %y"))
      << "rows for which some GPUs have no room";
}

TEST(RowMatmul, TakesAttentionOfOneTokenForOneProduct) {
  auto isTaken = [](const char *tokens, const char *rest) {
    std::string body = "%o, %k2, %v2 = attention_cached %x, %k, %v, %p {{n_head=2}} : f32[1,{0},16], f32[2,8,8], "
                       "f32[2,8,8]\n%y = matmul %o, %w : f32[1,{0},16]\n";
    const Group g = group("row_matmul",
                          fmt::format("%x: f32[1,{},48]; %k: f32[2,8,8]; %v: f32[2,8,8]; %p: i64[]; %w: f32[16,16]; "
                                      "%z: f32[16,8]",
                                      tokens),
                          fmt::format(fmt::runtime(body + rest), tokens));
    return groupProblem(*g.fused).empty();
  };
  EXPECT_TRUE(isTaken("1", "yield %k2, %v2, %y"));
  EXPECT_TRUE(isTaken("1", "%r = relu %y : f32[1,1,16]\nyield %r, %k2, %v2"));
  EXPECT_FALSE(isTaken("2", "yield %k2, %v2, %y")) << "two tokens";
  EXPECT_FALSE(isTaken("1", "yield %o, %k2, %v2, %y")) << "attention's result";
  EXPECT_FALSE(isTaken("1", "%s = add %y, %o : f32[1,1,16]\nyield %k2, %v2, %s")) << "attention behind the product";
  EXPECT_FALSE(isTaken("1", "yield %k2, %y")) << "one cache";
  EXPECT_FALSE(isTaken("1", "yield %k2, %v2, %v2, %y")) << "a cache twice";
  EXPECT_FALSE(isTaken("1", "%r = relu %k2 : f32[2,8,8]\nyield %k2, %v2, %y, %r")) << "a cache in the group";
}

// Keys of several parts, among them empty ones, with everything that changes a score.
TEST(RowMatmul, AttentionInPartsIsWithinTheBound) {
  struct Cache {
    int64_t rows, heads, keyHeads, size, pos;
    const char *more;
  };
  unsigned seed = 0;
  for (const Cache &n : {Cache{300, 4, 2, 8, 280, ""}, Cache{300, 3, 1, 7, 290, ", alibi=true"},
                         Cache{400, 2, 2, 12, 390, ", window=150"}, Cache{270, 2, 1, 8, 3, ", softcap=2.0"}}) {
    const std::string caches = fmt::format("f32[{},{},{}]", n.keyHeads, n.rows, n.size);
    const int64_t width = n.heads * n.size;
    const std::string args = fmt::format("%x: f32[1,1,{}]; %k: {}; %v: {}; %p: i64[]",
                                         (n.heads + 2 * n.keyHeads) * n.size, caches, caches),
                      attention =
                          fmt::format("%o, %k2, %v2 = attention_cached %x, %k, %v, %p {{n_head={}, n_kv_head={}{}}} : "
                                      "f32[1,1,{}], {}, {}\n",
                                      n.heads, n.keyHeads, n.more, width, caches, caches);
    for (bool isInFront : {false, true}) {
      const Group g = isInFront ? group("row_matmul", args + fmt::format("; %w: f32[{},12]", width),
                                        attention + "%y = matmul %o, %w : f32[1,1,12]\nyield %k2, %v2, %y")
                                : group("attention_split", args, attention + "yield %o, %k2, %v2");
      std::vector<Tensor> operands = randomOperands(g, ++seed);
      operands[3].data[0] = double(n.pos);
      expectWithinBound(g, operands, onGpu(), attention);
    }
  }
}

TEST(RowMatmul, TakesNoCpu) {
  const Group g = rowProducts()[0].of(1);
  EXPECT_THROW(defaultSchedule(*g.fused, hostTarget(1)), UserError);
}

}  // namespace
}  // namespace gptc::test
