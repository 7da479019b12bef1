// Runs a planned module in its arena, op by op, in float64: an independent judge of a memory plan.
#pragma once

#include "ir/graph.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"

namespace gptc::test {

class PlanRun {
public:
  explicit PlanRun(const Module &m) : m(m), cells(m.attrs.getInt("arena_bytes") / 4, -777.0) {}
  const Module &m;
  std::vector<double> cells;  // one per 4 bytes; i64 takes the first of its two

  void put(int64_t at, const Tensor &t) {
    int64_t step = sizeOf(t.type.dtype) / 4;
    for (size_t i = 0; i < t.data.size(); ++i)
      cells[at / 4 + i * step] = t.data[i];
  }
  Tensor get(int64_t at, const Type &type) {
    Tensor t(type);
    int64_t step = sizeOf(type.dtype) / 4;
    for (size_t i = 0; i < t.data.size(); ++i)
      t.data[i] = cells[at / 4 + i * step];
    return t;
  }
  std::vector<Tensor> run(const Function &f, std::span<const Tensor> args) {
    for (size_t i = 0; i < args.size(); ++i)
      put(f.attrs.getInts("args_at")[i], args[i]);
    auto offset = [&](const Value *v) { return *plannedOffset(m, f, *v); };
    std::vector<Tensor> results;
    for (const Op &op : f.body) {
      if (op.is(OpKind::ret))
        for (const Value *v : op.operands())
          results.push_back(get(offset(v), v->type));
      if (!op.is(OpKind::fused))
        continue;
      Module one;  // the group as a function of its own, so that the interpreter runs it
      Function *g = one.addFunction("group");
      llvm::DenseMap<const Value *, Value *> map;
      for (const auto &a : op.body->args)
        map[a.get()] = g->body.addArg(a->type);
      cloneOps(*op.body, g->body, nullptr, map);
      Op *yield = g->body.back();
      llvm::SmallVector<Value *, 4> out(yield->operands());
      yield->erase();
      Builder(g->body).ret(out);
      std::vector<Tensor> in;
      for (const Value *v : op.operands())
        in.push_back(get(offset(v), v->type));
      std::vector<int64_t> ws = op.attrs.getInts("ws"), wsAt = op.attrs.getInts("ws_at");
      for (size_t i = 0; i < wsAt.size(); ++i)
        for (int64_t b = 0; b < ws[i]; b += 4)
          cells[(wsAt[i] + b) / 4] = 555;
      StateMap none;
      std::vector<Tensor> made = interpret(*g, in, none);
      for (size_t i = 0; i < made.size(); ++i)
        put(op.attrs.getInts("at")[i], made[i]);
    }
    return results;
  }
};

}  // namespace gptc::test
