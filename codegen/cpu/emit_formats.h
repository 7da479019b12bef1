// LLVM IR of storage formats: narrow floats and predicates in memory, and products of pairs of bf16 and of bytes. Only
// emit_llvm.cpp includes this file.
#pragma once

#include "ir/kernel/schedule.h"
#include "ir/type.h"

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/Module.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gptc {

/// Emits conversions and products. Values are scalars or vectors whose number of lanes is a power of two.
struct FormatEmitter {
  using LValue = llvm::Value;

  llvm::IRBuilder<> &b;
  bool hasBF16 = false;   // the CPU has AVX512-BF16
  bool hasDQ = false;     // the CPU has AVX512-DQ
  bool hasVNNI = false;   // the CPU has AVX512-VNNI, and AVX512-VL for short vectors
  unsigned mostMadd = 0;  // lanes of 32 bits of its longest PMADDWD
  unsigned vectorBytes = 0;

  void setTarget(const Target &target) {
    const llvm::StringRef features = target.features;
    // Target::bf16Dot describes schedules and may be set for a CPU that lacks the instructions.
    hasBF16 = target.bf16Dot && features.contains("+avx512bf16");
    hasDQ = features.contains("+avx512dq");
    hasVNNI = features.contains("+avx512vnni") && features.contains("+avx512vl");
    mostMadd = features.contains("+avx512bw") ? 16
               : features.contains("+avx2")   ? 8
               : features.contains("+sse2")   ? 4
                                              : 0;
    vectorBytes = target.vectorBytes;
  }

  /// `t`, or a vector of `t` with as many lanes as `shape` has.
  static llvm::Type *like(llvm::Type *t, LValue *shape) {
    if (auto *v = llvm::dyn_cast<llvm::FixedVectorType>(shape->getType()))
      return llvm::FixedVectorType::get(t, v->getNumElements());
    return t;
  }

  /// The LLVM type of a value in a register (scalarType) and in memory (memoryType).
  llvm::Type *scalarType(DType t) {
    switch (t) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f8e4m3:
      return b.getFloatTy();
    case DType::f64:
      return b.getDoubleTy();
    case DType::i32:
    case DType::u32:
      return b.getInt32Ty();
    case DType::i64:
      return b.getInt64Ty();
    case DType::pred:
      return b.getInt1Ty();
    }
    return nullptr;
  }
  llvm::Type *memoryType(DType t) {
    switch (t) {
    case DType::bf16:
      return b.getInt16Ty();
    case DType::f16:
      return b.getHalfTy();
    case DType::f8e4m3:
    case DType::pred:
      return b.getInt8Ty();
    default:
      return scalarType(t);
    }
  }

  /// Converts a value's representation in memory to that in registers; pack does the reverse.
  LValue *unpack(DType t, LValue *v) {
    if (t == DType::bf16) {
      LValue *wide = b.CreateShl(b.CreateZExt(v, like(b.getInt32Ty(), v)), 16);
      return b.CreateBitCast(wide, like(b.getFloatTy(), v));
    }
    if (t == DType::f16)
      return b.CreateFPExt(v, like(b.getFloatTy(), v));
    if (t == DType::f8e4m3)
      return floatOfE4M3(v);
    if (t == DType::pred)
      return b.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
    return v;
  }
  LValue *pack(DType t, LValue *v) {
    if (t == DType::bf16)
      return round(v);
    if (t == DType::f16)
      return b.CreateFPTrunc(v, like(b.getHalfTy(), v));
    if (t == DType::f8e4m3)
      return bitsOfE4M3(v);
    if (t == DType::pred)
      return b.CreateZExt(v, like(b.getInt8Ty(), v));
    return v;
  }
  /// The bits (i16) of the bf16 nearest to an f32. Without AVX512-BF16 integer operations give the same bits, with
  /// denormals as zeros.
  LValue *round(LValue *v) {
    llvm::Type *i32 = like(b.getInt32Ty(), v), *i16 = like(b.getInt16Ty(), v);
    if (hasBF16)
      return b.CreateBitCast(b.CreateFPTrunc(v, like(b.getBFloatTy(), v)), i16);
    auto k = [&](uint64_t c) { return llvm::ConstantInt::get(i32, c); };
    LValue *u = b.CreateBitCast(v, i32);
    LValue *odd = b.CreateAnd(b.CreateLShr(u, 16), k(1));
    LValue *rounded = b.CreateAdd(b.CreateAdd(u, k(0x7fff)), odd);
    LValue *number = b.CreateSelect(isDenormal(u), b.CreateAnd(u, k(0x80000000)), rounded);
    LValue *bits = b.CreateSelect(b.CreateFCmpUNO(v, v), b.CreateOr(u, k(0x400000)), number);
    return b.CreateTrunc(b.CreateLShr(bits, 16), i16);
  }

  /// The bits (i8) of the f8e4m3 nearest to an f32, as kir::roundE4M3, and back.
  LValue *bitsOfE4M3(LValue *v) {
    llvm::Type *i32 = like(b.getInt32Ty(), v), *f32 = v->getType();
    auto k = [&](uint64_t c) { return llvm::ConstantInt::get(i32, c); };
    LValue *u = b.CreateBitCast(v, i32), *magnitude = b.CreateAnd(u, k(0x7fffffff));
    LValue *odd = b.CreateAnd(b.CreateLShr(magnitude, 20), k(1));
    LValue *rounded = b.CreateLShr(b.CreateAdd(b.CreateAdd(magnitude, k(0x7ffff)), odd), 20);
    LValue *normal = b.CreateSub(rounded, k(120 << 3));
    // Below 2^-6 the last place is 2^-9, which is that of 1.5 * 2^14.
    LValue *base = llvm::ConstantFP::get(f32, 0x1.8p14);
    LValue *sum = b.CreateBitCast(b.CreateFAdd(b.CreateBitCast(magnitude, f32), base), i32);
    LValue *small = b.CreateSub(sum, b.CreateBitCast(base, i32));
    LValue *number = b.CreateSelect(b.CreateICmpULT(magnitude, k(0x3c800000)), small, normal);
    number = b.CreateSelect(b.CreateICmpUGT(magnitude, k(0x43e00000)), k(0x7e), number);  // beyond 448
    number = b.CreateSelect(b.CreateICmpUGT(magnitude, k(0x7f800000)), k(0x7f), number);  // NaN
    return b.CreateTrunc(b.CreateOr(number, b.CreateAnd(b.CreateLShr(u, 24), k(0x80))), like(b.getInt8Ty(), v));
  }
  LValue *floatOfE4M3(LValue *v) {
    llvm::Type *i32 = like(b.getInt32Ty(), v), *f32 = like(b.getFloatTy(), v);
    auto k = [&](uint64_t c) { return llvm::ConstantInt::get(i32, c); };
    LValue *u = b.CreateZExt(v, i32), *magnitude = b.CreateAnd(u, k(0x7f));
    LValue *small = b.CreateFMul(b.CreateSIToFP(magnitude, f32), llvm::ConstantFP::get(f32, 0x1p-9));
    LValue *normal = b.CreateAdd(b.CreateShl(magnitude, 20), k(120 << 23));
    LValue *number = b.CreateSelect(b.CreateICmpULT(magnitude, k(8)), b.CreateBitCast(small, i32), normal);
    number = b.CreateSelect(b.CreateICmpEQ(magnitude, k(0x7f)), k(0x7fc00000), number);
    return b.CreateBitCast(b.CreateOr(number, b.CreateShl(b.CreateAnd(u, k(0x80)), 24)), f32);
  }

  /// A u32 from the bits of two bf16.
  LValue *pair(LValue *low, LValue *high) {
    llvm::Type *i32 = like(b.getInt32Ty(), low);
    return b.CreateOr(b.CreateZExt(low, i32), b.CreateShl(b.CreateZExt(high, i32), 16));
  }

  /// kir::dot: acc is f32; x and y are u32, each a pair of bf16.
  LValue *dot(LValue *acc, LValue *x, LValue *y) {
    auto *t = llvm::dyn_cast<llvm::FixedVectorType>(acc->getType());
    const unsigned n = t ? t->getNumElements() : 1;
    if (!hasBF16)
      return dotByFmas(acc, x, y);
    auto elements = [&](LValue *v, unsigned from, unsigned count) {
      llvm::SmallVector<int, 32> at(count);
      std::iota(at.begin(), at.end(), int(from));
      return b.CreateShuffleVector(v, at);
    };
    if (n > 16) {
      auto half = [&](unsigned from) {
        return dot(elements(acc, from, n / 2), elements(x, from, n / 2), elements(y, from, n / 2));
      };
      LValue *low = half(0), *high = half(n / 2);
      llvm::SmallVector<int, 64> all(n);
      std::iota(all.begin(), all.end(), 0);
      return b.CreateShuffleVector(low, high, all);
    }
    if (n < 4) {  // the narrowest instruction, with zeros in unused lanes
      auto four = [&](LValue *v) {
        LValue *r = llvm::Constant::getNullValue(llvm::FixedVectorType::get(v->getType()->getScalarType(), 4));
        for (unsigned i = 0; i < n; ++i)
          r = b.CreateInsertElement(r, t ? b.CreateExtractElement(v, i) : v, i);
        return r;
      };
      LValue *r = dot(four(acc), four(x), four(y));
      return t ? elements(r, 0, n) : b.CreateExtractElement(r, uint64_t(0));
    }
    using namespace llvm::Intrinsic;
    auto id = n == 16  ? x86_avx512bf16_dpbf16ps_512
              : n == 8 ? x86_avx512bf16_dpbf16ps_256
                       : x86_avx512bf16_dpbf16ps_128;
    auto *pairs = llvm::FixedVectorType::get(b.getBFloatTy(), 2 * n);
    return b.CreateIntrinsic(id, {}, {acc, b.CreateBitCast(x, pairs), b.CreateBitCast(y, pairs)});
  }

  /// kir::dot4: acc is i32; x and y are u32, each four bytes. Without VNNI, PMADDWD multiplies bytes 0 and 2, widened
  /// to 16 bits, and adds the products in 32; then bytes 1 and 3. A product of two bytes fits 16 bits, so what has no
  /// PMADDWD of this length widens products before it adds them.
  LValue *dot4(LValue *acc, LValue *x, LValue *y) {
    auto *t = llvm::dyn_cast<llvm::FixedVectorType>(acc->getType());
    const unsigned n = t ? t->getNumElements() : 1;
    using namespace llvm::Intrinsic;
    if (hasVNNI && (n == 4 || n == 8 || n == 16))
      return b.CreateIntrinsic(n == 16  ? x86_avx512_vpdpbusd_512
                               : n == 8 ? x86_avx512_vpdpbusd_256
                                        : x86_avx512_vpdpbusd_128,
                               {}, {acc, x, y});
    auto *halves = llvm::FixedVectorType::get(b.getInt16Ty(), 2 * n);
    llvm::Type *words = acc->getType();
    auto split = [&](LValue *v) { return b.CreateBitCast(v, halves); };
    auto of16 = [&](uint64_t c) { return llvm::ConstantInt::get(halves, c); };
    auto of32 = [&](uint64_t c) { return llvm::ConstantInt::get(words, c); };
    LValue *a = split(x), *s = split(y);
    const std::pair<LValue *, LValue *> bytes[] = {
        {b.CreateAnd(a, of16(255)), b.CreateAShr(b.CreateShl(s, of16(8)), of16(8))},
        {b.CreateLShr(a, of16(8)), b.CreateAShr(s, of16(8))}};
    for (const auto &[unsignedBytes, signedBytes] : bytes) {
      if (t && n <= mostMadd && (n == 4 || n == 8 || n == 16)) {
        const auto id = n == 16 ? x86_avx512_pmaddw_d_512 : n == 8 ? x86_avx2_pmadd_wd : x86_sse2_pmadd_wd;
        acc = b.CreateAdd(acc, b.CreateIntrinsic(id, {}, {unsignedBytes, signedBytes}));
        continue;
      }
      LValue *both = b.CreateBitCast(b.CreateMul(unsignedBytes, signedBytes), words);
      acc = b.CreateAdd(acc,
                        b.CreateAdd(b.CreateAShr(b.CreateShl(both, of32(16)), of32(16)), b.CreateAShr(both, of32(16))));
    }
    return acc;
  }

  /// A store of a whole vector. It bypasses the caches if the address is a multiple of the vector's size, as x86
  /// requires for such stores; else it is a plain store. A fence must follow before other threads read the memory.
  void storePastCaches(LValue *v, LValue *p, llvm::Align align) {
    llvm::Function *fn = b.GetInsertBlock()->getParent();
    const uint64_t size = fn->getParent()->getDataLayout().getTypeStoreSize(v->getType()),
                   bytes = std::min<uint64_t>(vectorBytes, size);
    LValue *low = b.CreateAnd(b.CreatePtrToInt(p, b.getInt64Ty()), b.getInt64(bytes - 1));
    auto block = [&](const char *name) { return llvm::BasicBlock::Create(b.getContext(), name, fn); };
    auto *past = block("past"), *plain = block("plain"), *stored = block("stored");
    b.CreateCondBr(b.CreateICmpEQ(low, b.getInt64(0)), past, plain);
    b.SetInsertPoint(past);
    llvm::Metadata *one = llvm::ConstantAsMetadata::get(b.getInt32(1));
    b.CreateAlignedStore(v, p, llvm::Align(bytes))
        ->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(b.getContext(), one));
    b.CreateBr(stored);
    b.SetInsertPoint(plain);
    b.CreateAlignedStore(v, p, align);
    b.CreateBr(stored);
    b.SetInsertPoint(stored);
  }

  /// Whether fraction() and scale() accept v: f32 in 16 lanes, on a CPU with AVX512-DQ.
  bool hasScale(LValue *v) const {
    auto *t = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return hasDQ && t && t->getNumElements() == 16;
  }
  /// x - n, where n is x rounded to the nearest integer, ties to even; 0 for infinities.
  LValue *fraction(LValue *x) { return masked(llvm::Intrinsic::x86_avx512_mask_reduce_ps_512, {x, b.getInt32(0)}, x); }
  /// y * 2^n, rounded once; n is x rounded as in fraction().
  LValue *scale(LValue *y, LValue *x) {
    LValue *n = masked(llvm::Intrinsic::x86_avx512_mask_rndscale_ps_512, {x, b.getInt32(0)}, x);
    return masked(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {y, n}, x);
  }

private:
  /// A masked instruction with all lanes active and the CPU's current rounding mode.
  LValue *masked(llvm::Intrinsic::ID id, llvm::SmallVector<LValue *, 5> args, LValue *shape) {
    constexpr int currentRounding = 4;
    args.append({llvm::PoisonValue::get(shape->getType()), b.getInt16(0xffff), b.getInt32(currentRounding)});
    return b.CreateIntrinsic(id, {}, args);
  }

  LValue *isDenormal(LValue *bits) {
    auto k = [&](uint64_t c) { return llvm::ConstantInt::get(bits->getType(), c); };
    return b.CreateICmpEQ(b.CreateAnd(bits, k(0x7f800000)), k(0));
  }

  LValue *dotByFmas(LValue *acc, LValue *x, LValue *y) {
    llvm::Type *f32 = acc->getType(), *i32 = x->getType();
    auto k = [&](uint64_t c) { return llvm::ConstantInt::get(i32, c); };
    auto flushed = [&](LValue *bits) {
      return b.CreateBitCast(b.CreateSelect(isDenormal(bits), b.CreateAnd(bits, k(0x80000000)), bits), f32);
    };
    auto low = [&](LValue *p) { return flushed(b.CreateShl(p, 16)); };
    auto high = [&](LValue *p) { return flushed(b.CreateAnd(p, k(0xffff0000))); };
    auto step = [&](LValue *p, LValue *q, LValue *sum) {
      return flushed(b.CreateBitCast(b.CreateIntrinsic(f32, llvm::Intrinsic::fma, {p, q, sum}), i32));
    };
    LValue *half = step(high(x), high(y), flushed(b.CreateBitCast(acc, i32)));
    return step(low(x), low(y), half);
  }
};

}  // namespace gptc
