// A program that stops where tests/gdb/run looks at what tools/gdb/gptc.py prints.
#include "ir/graph.h"
#include "ir/kernel/kernel.h"

using namespace gptc;

__attribute__((noinline)) void stopHere(const Op *op, const Op *read, const Op *ret, const Value *value,
                                        const Value *nameless, const kir::Expr &expr, const kir::Expr &none) {
  asm volatile("" : : "r"(op), "r"(read), "r"(ret), "r"(value), "r"(nameless), "r"(&expr), "r"(&none) : "memory");
}

int main() {
  Module m;
  State *state = m.addState("wte", Type(DType::f32, {Dim(50257, 50304), 8}));
  Function *f = m.addFunction("f");
  Builder b(f->body);
  Value *x = f->body.addArg(Type(DType::bf16, {4, 16}), "x");
  Value *w = f->body.addArg(Type(DType::bf16, {16, 8}), "w");
  b.layer = 3;
  b.loc = "h3.mlp";
  Value *y = b.value(OpKind::matmul, {x, w});
  y->name = "y";
  b.layer = -1;
  b.loc.clear();
  Value *read = b.read(*state);
  Value *sum = b.value(OpKind::add, {y, y});
  Op *ret = b.ret({sum});

  const kir::Buffer buffer = kir::makeBuffer("row", DType::f32, kir::Storage::global, 64);
  const kir::Expr i = kir::ref(kir::makeVar("i"));
  const kir::Expr expr = kir::select(kir::lt(i, kir::imm(60)), kir::load(buffer, i + 4) * kir::fimm(0.5),
                                     kir::max(kir::fimm(-1.5), kir::cast(DType::f32, i)));
  stopHere(y->def, read->def, ret, x, sum, expr, nullptr);
  return 0;
}
