// Ranks that send factors of their gradients do what the paper says (PowerSGD, Vogels, Karimireddy & Jaggi 2019),
// written out here in plain C++.
#include "whole_ranks.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/plan_check.h"

#include <cmath>
#include <functional>
#include <limits>

namespace gptc::test {
namespace {

constexpr int64_t ranks = 2, rank = 2, rows = 7, columns = 9;
constexpr double lr = 0.1;

/// A step whose gradients are its arguments. The matrix has padding; a vector and a small matrix are sent whole.
constexpr const char *step = R"(module {mesh_data=2, gradient_rank=2, compress_from=1} {
  state @w : f32[7->8,9] {kind="param"}
  state @b : f32[3] {kind="param"}
  state @small : f32[2,3] {kind="param"}
  func @train_step(%loss: f32[], %dw: f32[7->8,9], %db: f32[3], %ds: f32[2,3]) -> (f32[], f32[]) {
    %lr = constant {value=0.1} : f32[]
    %one = constant {value=1.0} : f32[]
    %w = read @w : f32[7->8,9]
    %b = read @b : f32[3]
    %s = read @small : f32[2,3]
    %s0 = sum_squares %dw : f32[]
    %s1 = sum_squares %db : f32[]
    %s2 = add %s0, %s1 : f32[]
    %n = sqrt %s2 : f32[]
    %w1 = sgd %w, %dw, %lr, %one : f32[7->8,9]
    write @w, %w1
    %b1 = sgd %b, %db, %lr, %one : f32[3]
    write @b, %b1
    %t1 = sgd %s, %ds, %lr, %one : f32[2,3]
    write @small, %t1
    return %loss, %n
  }
})";

std::unique_ptr<Module> compiled(const std::string &more = "") {
  auto m = parseModule(step, "test");
  runPasses(*m, "partition,compress-gradients" + more);
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

using Matrix = std::vector<std::vector<double>>;
Matrix zeros(int64_t n, int64_t k) { return Matrix(size_t(n), std::vector<double>(size_t(k))); }

/// The gradient of a rank in a step.
using Gradients = std::function<double(int64_t step, int64_t rank, int64_t row, int64_t column)>;
double anyGradient(int64_t number, int64_t r, int64_t i, int64_t j) {
  return std::sin(double(number * 31 + r * 17 + i * 5 + j * 3)) / double(1 + j) + 0.3 * double(i == j);
}

/// Runs a step of the module on all ranks; returns the norm.
double run(const Module &m, int64_t number, std::vector<StateMap> &states, const Gradients &gradient,
           const char *function = "train_step") {
  std::vector<std::vector<Tensor>> args;
  for (int64_t r = 0; r < ranks; ++r) {
    Tensor dw(m.state("w")->type), db(m.state("b")->type), ds(m.state("small")->type);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        dw.data[size_t(i * columns + j)] = gradient(number, r, i, j);
    for (size_t i = 0; i < db.data.size(); ++i)
      db.data[i] = double(r + 1) * 0.5;
    args.push_back({Tensor::scalar(double(r)), dw, db, ds});
  }
  const auto results = interpretRanks(*m.function(function), args, states);
  EXPECT_EQ(results[0][0].data[0], 1) << "the loss is that of all ranks";
  EXPECT_TRUE(results[0][1].data == results[1][1].data || std::isnan(results[0][1].data[0]));
  return results[0][1].data[0];
}

std::vector<StateMap> statesOf(const Module &m) { return std::vector<StateMap>(ranks, initialStates(m, 5)); }

/// Algorithms 1 and 2 of the paper, of one matrix, with sums in place of means and plain gradient descent.
struct Paper {
  Matrix w = zeros(rows, columns), q = zeros(columns, rank);
  std::vector<Matrix> errors = std::vector<Matrix>(ranks, zeros(rows, columns));
  double norm = 0;

  void doStep(int64_t number, const Gradients &gradient) {
    std::vector<Matrix> m = errors;
    Matrix p = zeros(rows, rank);
    for (int64_t r = 0; r < ranks; ++r)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          m[r][i][j] += gradient(number, r, i, j);
          for (int64_t k = 0; k < rank; ++k)
            p[i][k] += m[r][i][j] * q[j][k];
        }
    for (int64_t k = 0; k < rank; ++k) {
      for (int64_t before = 0; before < k; ++before) {
        double along = 0;
        for (int64_t i = 0; i < rows; ++i)
          along += p[i][before] * p[i][k];
        for (int64_t i = 0; i < rows; ++i)
          p[i][k] -= along * p[i][before];
      }
      double length = 0;
      for (int64_t i = 0; i < rows; ++i)
        length += p[i][k] * p[i][k];
      for (int64_t i = 0; i < rows; ++i)
        p[i][k] /= std::sqrt(length);
    }
    q = zeros(columns, rank);
    for (int64_t r = 0; r < ranks; ++r) {
      Matrix own = zeros(columns, rank);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t k = 0; k < rank; ++k)
            own[j][k] += m[r][i][j] * p[i][k];
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < rank; ++k)
          q[j][k] += own[j][k];
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          errors[r][i][j] = m[r][i][j];
          for (int64_t k = 0; k < rank; ++k)
            errors[r][i][j] -= p[i][k] * own[j][k];
        }
    }
    norm = 3 * 1.5 * 1.5;  // of the vector
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        double g = 0;
        for (int64_t k = 0; k < rank; ++k)
          g += p[i][k] * q[j][k];
        norm += g * g;
        w[i][j] -= lr * g;
      }
    norm = std::sqrt(norm);
  }
};

void expectNear(const Tensor &got, const Matrix &expected, const std::string &what) {
  ASSERT_EQ(got.data.size(), expected.size() * expected[0].size()) << what;
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double e = expected[i / expected[0].size()][i % expected[0].size()];
    ASSERT_NEAR(got.data[i], e, 1e-9 * std::max(1.0, std::fabs(e))) << what << " " << i;
  }
}

TEST(CompressGradients, DoWhatThePaperSays) {
  const auto m = compiled();
  std::vector<StateMap> states = statesOf(*m);
  Paper paper;
  const Tensor q = states[0]["factor.w"], w = states[0]["w"];
  EXPECT_EQ(q.type.str(), "f32[2,9]");
  for (int64_t k = 0; k < rank; ++k)
    for (int64_t j = 0; j < columns; ++j)
      paper.q[j][k] = q.data[size_t(k * columns + j)];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      paper.w[i][j] = w.data[size_t(i * columns + j)];
  for (int64_t number = 0; number < 5; ++number) {
    const double norm = run(*m, number, states, anyGradient);
    paper.doStep(number, anyGradient);
    EXPECT_NEAR(norm, paper.norm, 1e-9 * paper.norm) << "the norm is that of the gradient that is applied";
    for (int64_t r = 0; r < ranks; ++r) {
      expectNear(states[size_t(r)]["w"], paper.w, fmt::format("w of rank {}, step {}", r, number));
      expectNear(states[size_t(r)]["error.w"], paper.errors[size_t(r)], fmt::format("error of rank {}", r));
      EXPECT_EQ(states[size_t(r)]["w"].data, states[0]["w"].data);
      EXPECT_EQ(states[size_t(r)]["factor.w"].data, states[0]["factor.w"].data);
    }
    EXPECT_NE(states[0]["error.w"].data, states[1]["error.w"].data);
  }
}

// A gradient that has no more than the factors' rank loses nothing, with a direction to spare as well.
TEST(CompressGradients, OfLowRankAreSentAsTheyAre) {
  for (const int64_t of : {rank, rank - 1}) {
    const Gradients low = [of](int64_t number, int64_t r, int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t k = 0; k < of; ++k)
        sum += std::cos(double(i * (k + 2))) * std::sin(double(j + k + number + 1)) * double(r + 1);
      return sum;
    };
    const auto m = compiled();
    std::vector<StateMap> states = statesOf(*m), whole = states;
    for (int64_t number = 0; number < 4; ++number) {
      const double norm = run(*m, number, states, low), expected = run(*m, number, whole, low, "train_step_whole");
      EXPECT_NEAR(norm, expected, 1e-9 * expected);
      for (size_t i = 0; i < whole[0]["w"].data.size(); ++i)
        ASSERT_NEAR(states[1]["w"].data[i], whole[1]["w"].data[i], 1e-9) << of << ", step " << number;
    }
  }
}

// What a step leaves out is not lost: if gradients stop, it follows.
TEST(CompressGradients, SendLaterWhatTheyLeaveOut) {
  const auto m = compiled();
  std::vector<StateMap> states = statesOf(*m), whole = states;
  const Gradients once = [](int64_t number, int64_t r, int64_t i, int64_t j) {
    return number == 0 ? anyGradient(0, r, i, j) : 0.0;
  };
  auto distance = [&] {
    double sum = 0;
    for (size_t i = 0; i < whole[0]["w"].data.size(); ++i)
      sum += std::pow(states[0]["w"].data[i] - whole[0]["w"].data[i], 2);
    return std::sqrt(sum);
  };
  run(*m, 0, whole, once, "train_step_whole");
  run(*m, 0, states, once);
  const double first = distance();
  EXPECT_GT(first, 1e-3);
  for (int64_t number = 1; number < 8; ++number)
    run(*m, number, states, once);
  EXPECT_LT(distance(), 1e-9 * first);
}

// Neither a gradient of zeros nor one that is not finite, whose step the optimizer skips, ends the compression.
TEST(CompressGradients, GoOnBehindZerosAndInfinities) {
  const auto m = compiled();
  for (const double bad : {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    std::vector<StateMap> states = statesOf(*m);
    run(*m, 0, states, [](int64_t, int64_t, int64_t, int64_t) { return 0.0; });
    EXPECT_EQ(states[0]["factor.w"].data, statesOf(*m)[0]["factor.w"].data);
    run(*m, 1, states, anyGradient);
    const std::vector<StateMap> good = states;
    const double norm = run(*m, 2, states, [bad](int64_t number, int64_t r, int64_t i, int64_t j) {
      return bad == 0 ? 0 : r == 1 && i == 2 && j == 3 ? bad : anyGradient(number, r, i, j);
    });
    EXPECT_EQ(std::isfinite(norm), bad == 0);
    for (size_t r = 0; bad != 0 && r < ranks; ++r)
      for (const char *name : {"factor.w", "error.w"}) {
        EXPECT_EQ(states[r][name].data, good[r].find(name)->second.data) << name;
      }
    for (StateMap &rank : states)
      rank["w"].data = good[0].find("w")->second.data;  // which clip_scale would have kept
    EXPECT_TRUE(std::isfinite(run(*m, 3, states, anyGradient)));
    for (const double v : states[0]["w"].data)
      EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(CompressGradients, ArePlannedWithTheSameMeaning) {
  const auto m = compiled(),
             planned = compiled(",recompute-cheap,fuse,order,settle-writes,overlap-collectives,plan-memory");
  EXPECT_EQ(checkPlan(*planned), std::vector<std::string>());
  std::vector<StateMap> expected = statesOf(*m), got = expected;
  for (int64_t number = 0; number < 4; ++number)
    for (const char *function : {"train_step", "train_step_whole"}) {
      run(*m, number, expected, anyGradient, function);
      run(*planned, number, got, anyGradient, function);
    }
  for (const auto &s : m->states)
    for (size_t r = 0; r < ranks; ++r)
      EXPECT_EQ(got[r][s->name].data, expected[r][s->name].data) << s->name;
}

int collectives(const Function &f) {
  int n = 0;
  for (const Op &op : f.body)
    n += op.is(OpKind::fused) && kindOf(op) == RecipeKind::collective;
  return n;
}

// Latency counts: all first factors go with what is sent whole, and all second ones together.
TEST(CompressGradients, TakeTwoMessages) {
  auto m = smallGpt({.width = 16, .vocab = 16});
  m->attrs.set("mesh_data", ranks);
  m->attrs.set("gradient_rank", rank);
  m->attrs.set("compress_from", int64_t(1));
  runPasses(*m,
            "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce,precision,partition,compress-gradients,fuse,"
            "order,settle-writes,overlap-collectives");
  EXPECT_EQ(collectives(*m->function("train_step")), 2);
  EXPECT_EQ(collectives(*m->function("train_step_whole")), 1);
  for (const char *matrix : {"wte", "qkv.w", "fc.w", "proj.w"}) {
    EXPECT_EQ(wholeType(*m->state(fmt::format("error.{}", matrix))).dim(0), ranks * m->state(matrix)->type.dim(0));
    EXPECT_FALSE(isPiece(*m->state(fmt::format("factor.{}", matrix)))) << "the same on all ranks";
  }
  EXPECT_EQ(m->state("error.ln.g"), nullptr);
}

TEST(CompressGradients, CopyTheFunctionThatEndsAStep) {
  for (const int64_t from : {0, 3}) {
    auto m = smallGpt({.width = 16, .vocab = 16, .accumulate = 2});
    m->attrs.set("mesh_data", ranks);
    m->attrs.set("gradient_rank", rank);
    m->attrs.set("compress_from", from);
    runPasses(*m,
              "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce,precision,partition,compress-gradients");
    EXPECT_EQ(m->function("update_whole") != nullptr, from > 0);
    EXPECT_EQ(m->function("train_step_whole"), nullptr);
    EXPECT_EQ(m->function("accumulate_whole"), nullptr);
    EXPECT_NE(m->state("error.wte"), nullptr);
  }
}

TEST(CompressGradients, AreForRanksWithTheWholeModel) {
  const auto make = [] { return parseModule(step, "test"); };
  expectWholeRanksAlone(make, "compress-gradients", "gradient_rank = 2", "");
  expectRefusal(make(), "compress-gradients", "sync_every", int64_t(2), "gradient_rank = 2 with sync_every = 2");
}

}  // namespace
}  // namespace gptc::test
