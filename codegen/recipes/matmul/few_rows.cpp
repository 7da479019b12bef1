// matmul with up to four rows of A (decoding). Reading B limits the speed, so B is read once, in order, and not copied.
//
//   B [K,N]: lanes walk over columns. The sums of a task's columns stay in the first-level cache. A pass adds several
//            steps for one load and store of each sum, and prefetches the rows of the next pass.
//   B [N,K]: each result is a chain along a row of B. Squares of B are transposed in registers, so that lanes are rows
//            of B and a step takes one FMA. Some lines of each row are prefetched, so this keeps up with memory.
//
// The sums are the same chains as in matmul.cpp, with one exception. If one row is multiplied by a large [K,N], the
// chain is cut into blocks of k (rowsPerBlock), each from +0, which are then added in order. A task takes whole rows of
// a block, which are contiguous and so read at the full rate; parts of all rows are read at 0.6 to 0.8 of it.
#include "codegen/recipes/matmul/matmul.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc::matmul {

using namespace kir;

namespace {

/// From so many bytes of B on, tasks share out its rows, in so many blocks. Only the shape decides, because it changes
/// the order of the sum. One row is a sampled token; training steps have more rows.
constexpr int64_t sharedRowsBytes = 256 << 10, blocksOfRows = 4;

int64_t rowsPerBlock(const Problem &p) {
  if (p.tb || p.m > 1 || p.k * p.n * int64_t(sizeOf(p.stored)) < sharedRowsBytes)
    return p.k;
  return std::min(p.k, roundUp(ceilDiv(p.k, blocksOfRows), int64_t(16)));  // whole passes
}

/// Columns of a task of the second phase, which adds the blocks.
constexpr int64_t columnsOfTotal = 512;

/// Squares of B transposed side by side, so that there are as many chains of FMAs and shuffles hide their latency.
constexpr int64_t squares = 2;

/// Lines of each row that are prefetched.
constexpr int64_t linesAhead = 4;

class FewRows {
public:
  FewRows(GroupEval &group, const Problem &p, const Schedule &s)
      : group(group), p(p), s(s), epilogue(group, p),
        pairs(s.pairs && p.stored == DType::bf16 && group.compute == DType::f32) {}

  LoweredGroup build() {
    LoweredGroup out;
    out.kernel.name = group.kernelName();
    const int64_t pieces = ceilDiv(p.n, s.nc);
    if (blocks == 1) {
      out.kernel.params = group.params();
      out.kernel.body = {parallel("task", pieces, [&](const Expr &t) { return Body{wholeTask(t)}; })};
      return out;
    }
    partial = makeBuffer("partial", group.compute, Storage::global, blocks * p.n, true);
    out.kernel.params = group.params(partial);
    out.workspaceBytes.push_back(partial->size * sizeOf(partial->dtype));
    out.kernel.body = {
        parallel("task", blocks * pieces,
                 [&](const Expr &t) { return Body{blockTask(t / imm(pieces), t % imm(pieces))}; }),
        parallel("total", ceilDiv(p.n, columnsOfTotal), [&](const Expr &t) { return Body{totalTask(t)}; })};
    return out;
  }

private:
  /// Number of columns from `first` on, at most `most`.
  Expr columnsFrom(const Expr &first, int64_t most) const {
    return p.n % most ? min(imm(most), imm(p.n) - first) : imm(most);
  }
  Expr initOf(const Expr &row, const Expr &col) {
    return p.init >= 0 ? epilogue.init(imm(0), row, col) : fimm(0, group.compute);
  }

  /// All of k for some columns, and the epilogue.
  Stmt wholeTask(const Expr &t) {
    sums = makeBuffer("c", group.compute, Storage::stack, p.m * s.nc);
    const Expr first = t * s.nc, cols = columnsFrom(first, s.nc);
    Body body = {serial("i", imm(p.m), [&](const Expr &i) {
      return Body{vectorLoop("j", cols, s.vec,
                             [&](const Expr &j) { return Body{store(sums, i * s.nc + j, initOf(i, first + j))}; })};
    })};
    if (p.tb)
      rowsOfB(body, t, first, cols);
    else
      columnsOfB(body, imm(0), first, cols);
    body.push_back(epilogue.emit(imm(0), imm(0), imm(p.m), first, cols, s.vec,
                                 [&](const Expr &row, const Expr &col) { return load(sums, row * s.nc + col); }));
    return alloc(sums, std::move(body));
  }

  /// One block of k for some columns; stores the sums to `partial`.
  Stmt blockTask(const Expr &block, const Expr &piece) {
    sums = makeBuffer("c", group.compute, Storage::stack, s.nc);
    const Expr first = piece * s.nc, cols = columnsFrom(first, s.nc);
    Body body = {
        vectorLoop("j", cols, s.vec, [&](const Expr &j) { return Body{store(sums, j, fimm(0, group.compute))}; })};
    columnsOfB(body, block, first, cols);
    body.push_back(vectorLoop(
        "j", cols, s.vec, [&](const Expr &j) { return Body{store(partial, block * p.n + first + j, load(sums, j))}; }));
    return alloc(sums, std::move(body));
  }

  /// Adds the blocks of some columns in order and stores the group's outputs.
  Stmt totalTask(const Expr &t) {
    const Expr first = t * columnsOfTotal;
    return epilogue.emit(imm(0), imm(0), imm(1), first, columnsFrom(first, columnsOfTotal), s.vec,
                         [&](const Expr &, const Expr &col) {
                           Expr sum = load(partial, first + col);
                           if (p.init >= 0)
                             sum = initOf(imm(0), first + col) + sum;
                           for (int64_t b = 1; b < blocks; ++b)
                             sum = sum + load(partial, first + col + b * p.n);
                           return sum;
                         });
  }

  // A step of the chain takes one element of k, or a pair of bf16. An odd last element is a step of its own.
  int64_t steps() const { return pairs ? p.k / 2 : p.k; }
  bool hasOdd() const { return pairs && p.k % 2; }
  DType stepType() const { return pairs ? DType::u32 : group.compute; }
  Expr a(int64_t row, const Expr &step, bool odd = false) const {
    return element(p.a, p.ta, p.lda, imm(row), step, odd);
  }
  Expr b(const Expr &step, const Expr &col, bool odd = false) const {
    return element(p.b, !p.tb, p.ldb, col, step, odd);
  }
  /// The operand's value at element `at` of its other dimension and step `step` of k. `byRows`: k runs along its rows.
  Expr element(unsigned operand, bool byRows, int64_t ld, const Expr &at, const Expr &step, bool odd) const {
    Expr k = pairs ? step * 2 : step;
    return stepOf(pairs, group.inputs[operand], byRows ? k * ld + at : at * ld + k, byRows ? ld : 1, odd);
  }
  Expr added(const Expr &a, const Expr &b, const Expr &sum) const {
    return pairs ? dot(sum, b, a) : kir::fma(a, b, sum);
  }

  /// The steps of a block.
  void columnsOfB(Body &out, const Expr &block, const Expr &first, const Expr &cols) {
    auto some = [&](const Expr &k, int64_t count, bool odd) {
      std::vector<Var> as;
      for (int64_t n = 0; n < p.m * count; ++n)
        as.push_back(makeVar("a", stepType()));
      auto add = [&](const Expr &from, const Expr &extent) {
        return vectorLoop("j", extent, s.vec, [&](const Expr &lane) {
          const Expr j = from + lane;
          std::vector<Var> bs;
          for (int64_t u = 0; u < count; ++u)
            bs.push_back(makeVar("b", stepType()));
          Body fmas;
          for (int64_t i = 0; i < p.m; ++i) {
            Expr sum = load(sums, j + i * s.nc);
            for (int64_t u = 0; u < count; ++u)
              sum = added(kir::ref(as[size_t(i * count + u)]), kir::ref(bs[u]), sum);
            fmas.push_back(store(sums, j + i * s.nc, sum));
          }
          for (int64_t u = count; u-- > 0;)
            fmas = {let(bs[u], b(k + u, first + j, odd), std::move(fmas))};
          return fmas;
        });
      };
      Body body = count == atOnce ? fetching(k + count, first, cols, add) : Body{add(imm(0), cols)};
      for (size_t n = as.size(); n-- > 0;)
        body = {let(as[n], a(int64_t(n) / count, k + int64_t(n) % count, odd), std::move(body))};
      return body;
    };
    // All blocks but the last are whole passes.
    const int64_t perBlock = rowsPerBlock(p) / (pairs ? 2 : 1) / atOnce, passes = steps() / atOnce,
                  left = steps() % atOnce;
    const Expr before = block * perBlock;
    if (passes)
      out.push_back(serial("k", min(imm(perBlock), imm(passes) - before),
                           [&](const Expr &k) { return some((before + k) * atOnce, atOnce, false); }));
    Body rest;
    auto append = [&](const Body &more) { rest.insert(rest.end(), more.begin(), more.end()); };
    if (left)
      append(some(imm(passes * atOnce), left, false));
    if (hasOdd())
      append(some(imm(steps()), 1, true));
    if (blocks == 1)
      out.insert(out.end(), rest.begin(), rest.end());
    else if (!rest.empty())
      out.push_back(ifThen(binary(BinaryOp::eq, block, imm(blocks - 1)), rest));
  }

  /// add(from, extent) for all columns, a line at a time, with prefetches of the pass from step `next` on: a task's
  /// pieces of rows are too short for the hardware prefetcher.
  Body fetching(const Expr &next, const Expr &first, const Expr &cols,
                const std::function<Stmt(const Expr &from, const Expr &extent)> &add) {
    const int64_t line = cacheLine / int64_t(sizeOf(p.stored)), perStep = pairs ? 2 : 1, rows = atOnce * perStep;
    const Expr far = min(next * perStep, imm(p.k - rows)) * p.ldb + first, lines = cols / imm(line);
    return {bindTo("far", far, [&](const Expr &far) {
      Body all = {serial("line", lines, [&](const Expr &l) {
        Body one;
        for (int64_t r = 0; r < rows; ++r)
          one.push_back(prefetch(group.inputs[p.b], far + r * p.ldb + l * line));
        one.push_back(add(l * line, imm(line)));
        return one;
      })};
      if (p.n % line)
        all.push_back(add(lines * line, cols - lines * line));
      return all;
    })};
  }

  void rowsOfB(Body &out, const Expr &t, const Expr &first, const Expr &cols) {
    const int64_t lanes = s.vec, at = squares * lanes;
    out.push_back(serial("g", cols / imm(at), [&](const Expr &g) { return Body{rowGroup(first, g * at, squares)}; }));
    // Task sizes are multiples of `at`, so only the last task has rows left over.
    const int64_t left = p.n % at, full = left / lanes;
    if (!left)
      return;
    Expr done = cols / imm(at) * at;
    Body rest;
    if (full)
      rest.push_back(rowGroup(first, done, full));
    if (left % lanes)
      eachStep(rest, imm(0), [&](const Expr &k, bool odd) {
        return Body{vectorLoop("j", imm(left % lanes), s.vec, [&](const Expr &j) {
          Expr col = done + full * lanes + j;
          return addStep(k, b(k, first + col, odd), odd, [&](int64_t i) { return std::pair(sums, col + i * s.nc); });
        })};
      });
    const int64_t tasks = ceilDiv(p.n, s.nc);
    out.push_back(tasks > 1 ? ifThen(binary(BinaryOp::eq, t, imm(tasks - 1)), rest) : block(rest));
  }

  /// Emits the steps from `from` on one by one.
  void eachStep(Body &out, const Expr &from, const std::function<Body(const Expr &k, bool odd)> &body) {
    out.push_back(serial("k", imm(steps()) - from, [&](const Expr &k) { return body(from + k, false); }));
    if (hasOdd())
      out.push_back(block(body(imm(steps()), true)));
  }

  /// sum(i) = a(i, k) * value + sum(i) for every row of A.
  Body addStep(const Expr &k, const Expr &value, bool odd, const std::function<std::pair<Buffer, Expr>(int64_t)> &sum) {
    return {bindTo("b", value, [&](const Expr &value) {
      Body body;
      for (int64_t i = 0; i < p.m; ++i) {
        auto [buffer, at] = sum(i);
        body.push_back(store(buffer, at, added(a(i, k, odd), value, load(buffer, at))));
      }
      return body;
    })};
  }

  /// `count` vectors of rows of B, from column `col` of the task on.
  Stmt rowGroup(const Expr &first, const Expr &col, int64_t count) {
    const int64_t lanes = s.vec;
    Buffer acc = makeBuffer("acc", group.compute, Storage::reg, p.m * count * lanes);
    auto move = [&](bool in) {
      return vectorLoop("j", imm(lanes), s.vec, [&](const Expr &j) {
        Body all;
        for (int64_t i = 0; i < p.m; ++i)
          for (int64_t g = 0; g < count; ++g) {
            Expr near = j + (i * count + g) * lanes, far = col + (i * s.nc + g * lanes) + j;
            all.push_back(in ? store(acc, near, load(sums, far)) : store(sums, far, load(acc, near)));
          }
        return all;
      });
    };
    auto sumAt = [&](int64_t g, const Expr &lane) {
      return [=](int64_t i) { return std::pair(acc, lane + (i * count + g) * lanes); };
    };
    const int64_t whole = steps() / lanes;
    Body body = {move(true)};
    body.push_back(serial("s", imm(whole), [&](const Expr &square) {
      Expr k0 = square * lanes;
      // One line per row is too short for the hardware prefetcher: prefetch some lines ahead, or of the next rows.
      Body both = {bindTo("far", (square + linesAhead) * (lanes * (pairs ? 2 : 1)), [&](const Expr &far) {
        const Expr wrapped = far + select(lt(far, imm(p.k)), imm(0), imm((count * lanes - 1) * p.ldb));
        return Body{bindTo("next", (first + col) * p.ldb + wrapped, [&](const Expr &next) {
          Body all;
          for (int64_t row = 0; row < count * lanes; ++row)
            all.push_back(prefetch(group.inputs[p.b], min(next + row * p.ldb, imm((p.n - 1) * p.ldb + p.k - 1))));
          return all;
        })};
      })};
      for (int64_t g = 0; g < count; ++g)
        both.push_back(transposed(
            s.vec, stepType(), [&](int row, const Expr &k) { return b(k0 + k, first + col + (g * lanes + row)); },
            [&](int step, const Expr &lane, const Expr &v) {
              return block(addStep(k0 + int64_t(step), v, false, sumAt(g, lane)));
            }));
      return both;
    }));
    eachStep(body, imm(whole * lanes), [&](const Expr &k, bool odd) {
      return Body{vectorLoop("j", imm(lanes), s.vec, [&](const Expr &j) {
        Body all;
        for (int64_t g = 0; g < count; ++g)
          for (const Stmt &st : addStep(k, b(k, first + col + g * lanes + j, odd), odd, sumAt(g, j)))
            all.push_back(st);
        return all;
      })};
    });
    body.push_back(move(false));
    return alloc(acc, std::move(body));
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  const bool pairs;
  const int64_t blocks = ceilDiv(p.k, rowsPerBlock(p));
  const int64_t atOnce = std::max(1, s.unroll);  // steps per pass over the sums of [K,N]
  Buffer sums, partial;
};

}  // namespace

bool isFewRows(const Problem &p) { return p.m <= 4 && p.batch == 1 && p.fold == 0 && !p.panels; }

namespace {

constexpr int64_t maxSums = 4096;  // of a task

/// Columns of a task so that there are about `tasks` tasks: a multiple of `unit`, at most max(unit, most).
int64_t columnsOfTask(const Problem &p, int64_t tasks, int64_t most, int64_t unit = 32) {
  return std::clamp(roundUp(ceilDiv(p.n, tasks), unit), unit, std::max(unit, most));
}

}  // namespace

Schedule fewRowsSchedule(const Problem &p, const Target &target) {
  Schedule s;
  s.recipe = RecipeKind::matmul;
  s.vec = target.lanes(DType::f32);
  s.mr = int(p.m);
  s.pairs = usesPairs(p, target);
  if (!p.tb) {
    // The rows of a pass and the prefetched ones must leave room in the first-level cache.
    const int64_t blocks = ceilDiv(p.k, rowsPerBlock(p)), perStep = (s.pairs ? 2 : 1) * int64_t(sizeOf(p.stored));
    s.nc = columnsOfTask(p, ceilDiv(int64_t(target.threads), blocks), maxSums / p.m);
    s.unroll = 4 * perStep * s.nc > target.l1Bytes / 2 ? 2 : 4;
    return s;
  }
  // Enough tasks that all threads end at about the same time, each long enough to stream memory, of whole groups of
  // rows.
  s.nc = columnsOfTask(p, int64_t(target.threads) * 4, 2048, std::max<int64_t>(32, squares * s.vec));
  return s;
}

std::vector<Schedule> fewRowsSpace(const Problem &p, const Schedule &base) {
  ScheduleGrid grid(base);
  grid.over(&Schedule::nc, {32, 64, 128, 256, 512, 2048, 4096});
  if (!p.tb)
    grid.over(&Schedule::unroll, {2, 4});
  std::vector<Schedule> space = grid.take();
  if (p.tb)
    llvm::erase_if(space, [](const Schedule &s) { return s.nc % (squares * s.vec) != 0; });
  return space;
}

LoweredGroup buildFewRows(GroupEval &group, const Problem &p, const Schedule &s) {
  GPTC_CHECK(s.vec > 0 && s.nc > 0 && (!p.tb || s.nc % (squares * s.vec) == 0), "{}", s.str());
  return FewRows(group, p, s).build();
}

}  // namespace gptc::matmul
