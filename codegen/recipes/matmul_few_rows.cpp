// matmul with up to four rows of A (decoding): as fast as B can be read, so B is read once, in order, and never copied.
//
//   B [K,N]: lanes walk over columns. The sums of a task's columns stand in the first-level cache; four rows of B at a
//   time are
//            added to them, so that one load and store of a sum pays for four steps.
//   B [N,K]: each result is a chain along a row of B. Rows are read side by side with one scalar accumulator each,
//   enough of them to
//            hide the latency of the FMAs; that keeps up with memory.
//
// The sums are the same chains as in matmul.cpp.
#include "codegen/recipes/matmul.h"
#include "ir/diagnostics.h"

#include <algorithm>
#include <bit>

namespace gptc::matmul {

using namespace kir;

namespace {

constexpr int64_t stepsAtOnce = 4;  // rows of B per pass over the sums

/// Rows of B read side by side: 16 scalar accumulators (12 where m = 3), always a divisor of 16.
int64_t rowsAtOnce(const Problem &p) { return 16 / int64_t(std::bit_ceil(uint64_t(p.m))); }

class FewRows {
public:
  FewRows(GroupEval &group, const Problem &p, const Schedule &s) : group(group), p(p), s(s), epilogue(group, p) {}

  Stmt task(const Expr &t) {
    sums = makeBuffer("c", group.compute, Storage::stack, p.m * s.nc);
    Expr first = t * s.nc;
    Expr cols = p.n % s.nc ? min(imm(s.nc), imm(p.n) - first) : imm(s.nc);
    Body body = {serial("i", imm(p.m), [&](const Expr &i) {
      return Body{vectorLoop("j", cols, s.vec, [&](const Expr &j) {
        Expr start = p.init >= 0 ? epilogue.init(imm(0), i, first + j) : fimm(0, group.compute);
        return Body{store(sums, i * s.nc + j, start)};
      })};
    })};
    if (p.tb)
      rowsOfB(body, t, first, cols);
    else
      columnsOfB(body, first, cols);
    body.push_back(epilogue.emit(imm(0), imm(0), imm(p.m), first, cols, s.vec,
                                 [&](const Expr &row, const Expr &col) { return load(sums, row * s.nc + col); }));
    return alloc(sums, std::move(body));
  }

private:
  Expr a(int64_t row, const Expr &k) const { return load(group.inputs[p.a], p.ta ? k * p.lda + row : k + row * p.lda); }
  Expr b(const Expr &k, const Expr &col) const {
    return load(group.inputs[p.b], p.tb ? col * p.ldb + k : k * p.ldb + col);
  }

  void columnsOfB(Body &out, const Expr &first, const Expr &cols) {
    auto steps = [&](const Expr &k, int64_t count) {
      std::vector<Var> as, bs;
      Body body = {vectorLoop("j", cols, s.vec, [&](const Expr &j) {
        for (int64_t u = 0; u < count; ++u)
          bs.push_back(makeVar("b", group.compute));
        Body fmas;
        for (int64_t i = 0; i < p.m; ++i) {
          Expr sum = load(sums, j + i * s.nc);
          for (int64_t u = 0; u < count; ++u) {
            as.push_back(makeVar("a", group.compute));
            sum = kir::fma(kir::ref(as.back()), kir::ref(bs[u]), sum);
          }
          fmas.push_back(store(sums, j + i * s.nc, sum));
        }
        for (int64_t u = count; u-- > 0;)
          fmas = {let(bs[u], b(k + u, first + j), std::move(fmas))};
        return fmas;
      })};
      for (size_t n = as.size(); n-- > 0;)
        body = {let(as[n], a(int64_t(n) / count, k + int64_t(n) % count), std::move(body))};
      return body;
    };
    if (p.k >= stepsAtOnce)
      out.push_back(
          serial("k", imm(p.k / stepsAtOnce), [&](const Expr &k) { return steps(k * stepsAtOnce, stepsAtOnce); }));
    if (p.k % stepsAtOnce)
      for (const Stmt &st : steps(imm(p.k / stepsAtOnce * stepsAtOnce), p.k % stepsAtOnce))
        out.push_back(st);
  }

  void rowsOfB(Body &out, const Expr &t, const Expr &first, const Expr &cols) {
    const int64_t rows = rowsAtOnce(p);
    auto group = [&](const Expr &col, int64_t count) {
      Buffer acc = makeBuffer("acc", this->group.compute, Storage::reg, p.m * count);
      Body body;
      auto every = [&](const std::function<Stmt(int64_t, int64_t)> &make) {
        Body all;
        for (int64_t r = 0; r < count; ++r)
          for (int64_t i = 0; i < p.m; ++i)
            all.push_back(make(r, i));
        return all;
      };
      auto slot = [&](int64_t r, int64_t i) { return imm(r * p.m + i); };
      auto place = [&](int64_t r, int64_t i) { return col + (i * s.nc + r); };
      body = every([&](int64_t r, int64_t i) { return store(acc, slot(r, i), load(sums, place(r, i))); });
      body.push_back(serial("k", imm(p.k), [&](const Expr &k) {
        Body fmas;
        std::vector<Var> as;
        for (int64_t i = 0; i < p.m; ++i)
          as.push_back(makeVar("a", this->group.compute));
        for (int64_t r = 0; r < count; ++r)
          fmas.push_back(bindTo("b", b(k, first + col + r), [&](const Expr &value) {
            Body row;
            for (int64_t i = 0; i < p.m; ++i)
              row.push_back(store(acc, slot(r, i), kir::fma(kir::ref(as[i]), value, load(acc, slot(r, i)))));
            return row;
          }));
        for (int64_t i = p.m; i-- > 0;)
          fmas = {let(as[i], a(i, k), std::move(fmas))};
        return fmas;
      }));
      for (const Stmt &st :
           every([&](int64_t r, int64_t i) { return store(sums, place(r, i), load(acc, slot(r, i))); }))
        body.push_back(st);
      return alloc(acc, std::move(body));
    };
    out.push_back(serial("g", cols / imm(rows), [&](const Expr &g) { return Body{group(g * rows, rows)}; }));
    // Task sizes are multiples of `rows`, so only the last task has rows left over.
    if (int64_t left = p.n % rows) {
      Stmt last = group(cols / imm(rows) * rows, left);
      const int64_t tasks = ceilDiv(p.n, s.nc);
      out.push_back(tasks > 1 ? ifThen(binary(BinaryOp::eq, t, imm(tasks - 1)), {last}) : last);
    }
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  Buffer sums;
};

}  // namespace

bool isFewRows(const Problem &p) { return p.m <= 4 && p.batch == 1 && p.fold == 0; }

Schedule fewRowsSchedule(const Problem &p, const Target &target) {
  Schedule s;
  s.recipe = "matmul";
  s.vec = target.lanes(DType::f32);
  s.mr = int(p.m);
  // Enough tasks for every thread to end at the same time, each long enough to stream; whole groups of rows of B.
  const int64_t unit = 32;
  s.nc = std::clamp<int64_t>(roundUp(ceilDiv(p.n, int64_t(target.threads) * 4), unit), unit, 64 * unit);
  return s;
}

Body buildFewRows(GroupEval &group, const Problem &p, const Schedule &s) {
  GPTC_CHECK(s.vec > 0 && s.nc > 0 && s.nc % rowsAtOnce(p) == 0, "{}", s.str());
  FewRows rows(group, p, s);
  return {parallel("task", ceilDiv(p.n, s.nc), [&](const Expr &t) { return Body{rows.task(t)}; })};
}

}  // namespace gptc::matmul
