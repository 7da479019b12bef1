// Every op as the kernel that its recipe builds: in the kernel interpreter and as machine code, in f64 and f32, against
// the op's reference meaning. An op whose group no recipe covers fails here.
#include "kernel_case.h"

#include "llvm/ADT/STLExtras.h"

#include <bit>

namespace gptc::conformance {
namespace {

std::vector<std::unique_ptr<Case>> casesOf(const OpDef &def, DType compute) {
  std::vector<std::unique_ptr<Case>> cases;
  if (!def.samples)
    return cases;
  for (unsigned seed = 0; seed < numSeeds(); ++seed)
    for (const OpDef::Sample &s : def.samples(seed))
      if (auto c = makeCase(def, s, seed, compute))
        cases.push_back(std::move(c));
  return cases;
}

/// The sample with as many float tensors as the op allows stored in `narrow` (scalars and statistics often must be
/// f32); false where it allows none.
bool storeAs(DType narrow, const OpDef &def, OpDef::Sample &s) {
  std::vector<Type *> candidates;
  for (std::vector<Type> *types : {&s.operandTypes, &s.resultTypes})
    for (Type &t : *types)
      if (t.dtype == DType::f32 && !t.isScalar())
        candidates.push_back(&t);
  std::vector<unsigned> subsets;
  for (unsigned set = 1; set < 1u << candidates.size(); ++set)
    subsets.push_back(set);
  llvm::stable_sort(subsets, [](unsigned a, unsigned b) { return std::popcount(a) > std::popcount(b); });
  for (unsigned set : subsets) {
    for (size_t i = 0; i < candidates.size(); ++i)
      candidates[i]->dtype = set >> i & 1 ? narrow : DType::f32;
    Module m;
    Function *f = m.addFunction("f");
    Op *op = f->body.insert(def.kind);
    op->attrs = s.attrs;
    for (const Type &t : s.operandTypes)
      op->addOperand(f->body.addArg(t));
    std::vector<Type> types = s.resultTypes;
    std::string error;
    if (def.infer && !def.infer(*op, types, error))
      continue;
    for (const Type &t : types)
      op->addResult(t);
    if (def.check && !def.check(*op).empty())
      continue;
    for (size_t i = 0; i < s.operandValues.size(); ++i)
      s.operandValues[i].type.dtype = s.operandTypes[i].dtype;
    return true;
  }
  return false;
}

using KernelOf = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, KernelOf, ::testing::ValuesIn(allKinds()), kindName);

TEST_P(KernelOf, InterpretedEqualsReference) {
  for (const auto &c : casesOf(def(), DType::f64)) {
    checkInterpreted(*c);
    if (HasFatalFailure())
      return;
  }
}

TEST_P(KernelOf, EmittedF64StaysWithinItsBound) { checkEmitted(casesOf(def(), DType::f64)); }
TEST_P(KernelOf, NarrowStorageStaysWithinItsBound) {
  // Structure, views and collectives have no kernel; scalars, and tables of sines, are not stored in 16 bits.
  const bool none =
      !def().samples || !recipeOf(def().kind) || def().fusion == FusionKind::collective ||
      llvm::is_contained({OpKind::rope_table, OpKind::lr_schedule, OpKind::clip_scale, OpKind::next_loss_scale,
                          OpKind::adafactor_size, OpKind::decayed_max, OpKind::quantize_scale},
                         def().kind);
  // Of f8e4m3 only products read elements; other ops move them.
  const bool readsEights =
      llvm::is_contained({OpKind::constant, OpKind::cast, OpKind::reshape, OpKind::transpose, OpKind::slice,
                          OpKind::unslice, OpKind::dynamic_slice, OpKind::broadcast, OpKind::matmul},
                         def().kind);
  for (DType narrow : {DType::bf16, DType::f16, DType::f8e4m3}) {
    std::vector<std::unique_ptr<Case>> cases;
    for (OpDef::Sample &s : def().samples ? def().samples(1) : std::vector<OpDef::Sample>())
      if (storeAs(narrow, def(), s))
        if (auto c = makeCase(def(), s, 1, DType::f32))
          cases.push_back(std::move(c));
    // Panels of bf16 have another shape: samples of their own.
    const bool otherwise = def().kind == OpKind::unpack && narrow == DType::bf16;
    EXPECT_EQ(cases.empty(), none || otherwise || (narrow == DType::f8e4m3 && !readsEights)) << nameOf(narrow).str();
    checkEmitted(cases);
  }
}

TEST_P(KernelOf, EmittedF32StaysWithinItsBound) { checkEmitted(casesOf(def(), DType::f32)); }

}  // namespace
}  // namespace gptc::conformance
