// Kernel IR to LLVM IR.
//
// Vector loops become explicit vectors here. LLVM's vectorisers do not run, so the recipe alone decides the shape of
// the code. Inside a vector loop each value is
//   uniform   one scalar, the same for all lanes;
//   linear    i64 base + stride * lane: stays scalar until an operation needs a vector, and gives contiguous loads and
//             stores;
//   varying   a vector.
// The body is emitted once more under a mask for the last, partial group. Unroll loops are expanded with constant
// indices, so that SROA turns reg buffers into registers.
#include "codegen/cpu/emit_formats.h"
#include "codegen/cpu/llvm_internal.h"
#include "codegen/emit_index.h"
#include "codegen/math.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Triple.h"

#include <numeric>

namespace gptc {

using namespace kir;

namespace {

using LValue = llvm::Value;

/// A value; see the head of this file for its three kinds. The facts hold for i64 values.
struct Val : IndexFacts {
  LValue *scalar = nullptr;  // uniform, or lane 0 of a linear value
  LValue *vector = nullptr;  // varying
  LValue *bf16 = nullptr;    // the 16 bits of the bf16 from which the f32 was made; null: there is none
  bool rounded = false;      // `bf16` is the result of a rounding, so it is no denormal

  bool uniform() const { return scalar && stride == 0; }
  bool linear() const { return scalar && stride != 0; }
};

Val uniform(LValue *v) { return {{}, v}; }
Val varying(LValue *v) { return {{}, nullptr, v}; }

/// The group of lanes that is being emitted.
struct Group {
  int width = 1;
  LValue *mask = nullptr;  // null: all lanes are active
};

class FunctionEmitter {
public:
  FunctionEmitter(const Kernel &k, llvm::Module &module)
      : kernel(k), module(module), ctx(module.getContext()), b(ctx), formats{b} {}

  void run(const std::string &name, const StmtNode &phase, const Target &target) {
    formats.setTarget(target);
    llvm::Type *ptr = b.getPtrTy();
    auto *type = llvm::FunctionType::get(b.getVoidTy(), {ptr, b.getInt64Ty(), b.getInt64Ty()}, false);
    fn = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
    fn->addFnAttr(llvm::Attribute::NoUnwind);
    fn->addFnAttr("target-cpu", target.cpu);
    fn->addFnAttr("target-features", target.features);
    // Without these attributes LLVM splits 512-bit vectors on CPUs that it tunes for 256 bits.
    std::string bits = std::to_string(target.vectorBytes * 8);
    fn->addFnAttr("prefer-vector-width", bits);
    fn->addFnAttr("min-legal-vector-width", bits);
    entry = llvm::BasicBlock::Create(ctx, "entry", fn);
    auto *start = llvm::BasicBlock::Create(ctx, "start", fn);
    b.SetInsertPoint(entry);
    for (unsigned i = 0; i < kernel.params.size(); ++i) {
      LValue *slot = b.CreateConstInBoundsGEP1_64(ptr, fn->getArg(0), i);
      memory[kernel.params[i].get()] = b.CreateLoad(ptr, slot, kernel.params[i]->name);
    }
    b.SetInsertPoint(start);
    if (phase.kind == StmtKind::For && phase.loop == LoopKind::parallel)
      tasks(phase);
    else
      statement(phase);
    if (streams)  // the fence makes those stores visible to other threads after these tasks
      b.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
    b.CreateRetVoid();
    b.SetInsertPoint(entry);
    b.CreateBr(start);
  }

private:
  const Kernel &kernel;
  llvm::Module &module;
  llvm::LLVMContext &ctx;
  llvm::IRBuilder<> b;
  llvm::Function *fn = nullptr;
  llvm::BasicBlock *entry = nullptr;
  FormatEmitter formats;
  llvm::DenseMap<const BufferNode *, LValue *> memory;
  llvm::DenseMap<const VarNode *, Val> vars;
  llvm::DenseMap<const ExprNode *, Val> done;  // nodes of the current statement, so that shared ones are emitted once
  Group *group = nullptr;
  const bool isX86 = llvm::Triple(module.getTargetTriple()).isX86();  // elsewhere no fence is known here
  bool streams = false;                                               // some stores go past the caches

  // ---- types and small helpers -------------------------------------------------------------------------------------

  llvm::Type *scalarType(DType t) { return formats.scalarType(t); }
  llvm::Type *memoryType(DType t) { return formats.memoryType(t); }
  llvm::Type *widen(llvm::Type *t) { return llvm::FixedVectorType::get(t, group->width); }
  static llvm::Type *like(llvm::Type *t, LValue *shape) { return FormatEmitter::like(t, shape); }

  static std::optional<int64_t> constant(const Val &v) {
    if (v.uniform())
      if (auto *c = llvm::dyn_cast<llvm::ConstantInt>(v.scalar))
        return c->getSExtValue();
    return std::nullopt;
  }

  Val index(int64_t v) { return {IndexFacts::ofConstant(v), b.getInt64(v)}; }

  llvm::Constant *iota(unsigned bits, int64_t stride) {
    llvm::SmallVector<llvm::Constant *, 16> lanes;
    for (int i = 0; i < group->width; ++i)
      lanes.push_back(llvm::ConstantInt::get(b.getIntNTy(bits), uint64_t(stride) * i));
    return llvm::ConstantVector::get(lanes);
  }

  LValue *asVector(const Val &v) {
    if (v.vector)
      return v.vector;
    LValue *s = b.CreateVectorSplat(group->width, v.scalar);
    return v.stride ? b.CreateAdd(s, iota(64, v.stride)) : s;
  }
  /// The low 32 bits of an i64 value.
  LValue *asVector32(const Val &v) {
    if (v.vector)
      return b.CreateTrunc(v.vector, widen(b.getInt32Ty()));
    LValue *s = b.CreateVectorSplat(group->width, b.CreateTrunc(v.scalar, b.getInt32Ty()));
    return v.stride ? b.CreateAdd(s, iota(32, v.stride)) : s;
  }
  /// True when every lane of an i64 value fits a non-negative i32.
  bool fits32(const Val &v) const { return v.scalar && v.IndexFacts::fits32(group ? group->width : 1); }

  LValue *gep(const Buffer &buffer, LValue *index) {
    return b.CreateGEP(memoryType(buffer->dtype), memory.lookup(buffer.get()), index);
  }
  llvm::Align alignOf(const Buffer &buffer) { return llvm::Align(sizeOf(buffer->dtype)); }
  LValue *mask() { return group->mask ? group->mask : llvm::ConstantInt::getTrue(widen(b.getInt1Ty())); }

  // ---- storage formats ---------------------------------------------------------------------------------------------

  LValue *unpack(DType t, LValue *v) { return formats.unpack(t, v); }
  LValue *pack(DType t, LValue *v) { return formats.pack(t, v); }
  /// The bits of a float value rounded to bf16, or of the bf16 that it was made from; as a vector if `wide`.
  LValue *bitsOf16(const Val &v, bool wide) {
    LValue *bits = v.bf16 ? v.bf16 : pack(DType::bf16, v.vector ? v.vector : v.scalar);
    return wide && !v.vector ? b.CreateVectorSplat(group->width, bits) : bits;
  }
  /// A value's representation in memory; as a vector if `wide`. A value just rounded to bf16 is not rounded again.
  LValue *toMemory(DType t, const Val &v, bool wide) {
    if (t == DType::bf16 && v.rounded)
      return bitsOf16(v, wide);
    return pack(t, wide ? asVector(v) : v.scalar);
  }
  /// The value of a representation in memory: varying if `bits` is a vector, else uniform.
  Val fromMemory(DType t, LValue *bits) {
    Val v = bits->getType()->isVectorTy() ? varying(unpack(t, bits)) : uniform(unpack(t, bits));
    if (t == DType::bf16)
      v.bf16 = bits;
    return v;
  }

  // ---- expressions -------------------------------------------------------------------------------------------------

  Val emit(const Expr &e) {
    if (e->kind == ExprKind::IntImm)
      return e->dtype == DType::i64 ? index(e->ival)
                                    : uniform(llvm::ConstantInt::get(scalarType(e->dtype), uint64_t(e->ival)));
    if (e->kind == ExprKind::FloatImm)
      return uniform(llvm::ConstantFP::get(scalarType(e->dtype), e->fval));
    if (auto it = done.find(e.get()); it != done.end())
      return it->second;
    Val v = compute(e);
    done[e.get()] = v;
    return v;
  }

  /// Calls `f` with the operands as scalars if all are uniform, else as vectors.
  template <typename F> Val lift(std::initializer_list<Val> vals, F f) {
    bool scalar = true;
    for (const Val &v : vals)
      scalar &= v.uniform();
    llvm::SmallVector<LValue *, 3> args;
    for (const Val &v : vals)
      args.push_back(scalar ? v.scalar : asVector(v));
    return scalar ? uniform(f(args)) : varying(f(args));
  }

  Val compute(const Expr &e) {
    using Args = llvm::ArrayRef<LValue *>;
    switch (e->kind) {
    case ExprKind::Var: {
      auto it = vars.find(e->var.get());
      GPTC_CHECK(it != vars.end(), "variable {} is not in scope", e->var->name);
      return it->second;
    }
    case ExprKind::Lane: {
      GPTC_CHECK(group, "lane outside a vector loop");
      Val v = index(0);
      v.stride = group->width > 1;
      return v;
    }
    case ExprKind::Load:
      return load(e->buffer, emit(e->args[0]));
    case ExprKind::Unary:
      return unary(e->uop, e->dtype, emit(e->args[0]));
    case ExprKind::Binary: {
      Val x = emit(e->args[0]), y = emit(e->args[1]);
      return binary(e->bop, e->args[0]->dtype, x, y);
    }
    case ExprKind::Fma: {
      Val x = emit(e->args[0]), y = emit(e->args[1]), z = emit(e->args[2]);
      return lift({x, y, z}, [&](Args a) { return b.CreateIntrinsic(a[0]->getType(), llvm::Intrinsic::fma, a); });
    }
    case ExprKind::Pair: {
      Val low = emit(e->args[0]), high = emit(e->args[1]);
      return pair(low, high);
    }
    case ExprKind::LoadPair:
      return loadPair(e->buffer, emit(e->args[0]));
    case ExprKind::Dot:
    case ExprKind::Dot4: {
      Val acc = emit(e->args[0]), x = emit(e->args[1]), y = emit(e->args[2]);
      const bool bytes = e->kind == ExprKind::Dot4;
      return lift({acc, x, y},
                  [&](Args a) { return bytes ? formats.dot4(a[0], a[1], a[2]) : formats.dot(a[0], a[1], a[2]); });
    }
    case ExprKind::Select: {
      Val c = emit(e->args[0]), x = emit(e->args[1]), y = emit(e->args[2]);
      Val r;
      if (c.uniform() && x.scalar && y.scalar && x.stride == y.stride) {  // a linear value stays linear
        r.scalar = b.CreateSelect(c.scalar, x.scalar, y.scalar);
        r.stride = x.stride;
        r.multiple = std::gcd(x.multiple, y.multiple);
        r.bound = x.natural(y) ? std::max(x.bound, y.bound) : -1;
        return r;
      }
      return lift({c, x, y}, [&](Args a) { return b.CreateSelect(a[0], a[1], a[2]); });
    }
    case ExprKind::Cast:
      return cast(e->args[0]->dtype, e->dtype, emit(e->args[0]));
    case ExprKind::Bitcast:
      return lift({emit(e->args[0])}, [&](Args a) { return b.CreateBitCast(a[0], like(scalarType(e->dtype), a[0])); });
    case ExprKind::HReduce:
      return hreduce(*e, emit(e->args[0]));
    default:
      GPTC_UNREACHABLE("expression {} in a kernel", print(e));
    }
  }

  Val load(const Buffer &buffer, const Val &at) {
    llvm::Type *t = memoryType(buffer->dtype);
    llvm::Align align = alignOf(buffer);
    if (buffer->storage == Storage::reg && at.vector)
      return fromMemory(buffer->dtype, permuted(buffer, at.vector));
    checkReg(buffer, at);
    if (at.uniform())
      return fromMemory(buffer->dtype, b.CreateAlignedLoad(t, gep(buffer, at.scalar), align));
    LValue *v;
    if (at.linear() && at.stride == 1) {
      LValue *p = gep(buffer, at.scalar);
      // Reg buffers are padded, so reading inactive lanes is harmless. A masked load would keep them out of registers.
      if (group->mask && buffer->storage != Storage::reg)
        v = b.CreateMaskedLoad(widen(t), p, align, group->mask, llvm::Constant::getNullValue(widen(t)));
      else
        v = b.CreateAlignedLoad(widen(t), p, align);
    } else {
      v = b.CreateMaskedGather(widen(t), gep(buffer, asVector(at)), align, mask(),
                               llvm::Constant::getNullValue(widen(t)));
    }
    return fromMemory(buffer->dtype, v);
  }

  /// Two adjacent elements of a bf16 buffer as one u32 per lane.
  Val loadPair(const Buffer &buffer, const Val &at) {
    llvm::Type *t = b.getInt32Ty();
    llvm::Align align = alignOf(buffer);
    if (at.uniform())
      return uniform(b.CreateAlignedLoad(t, gep(buffer, at.scalar), align));
    LValue *none = llvm::Constant::getNullValue(widen(t));
    if (!at.linear() || at.stride != 2)
      return varying(b.CreateMaskedGather(widen(t), gep(buffer, asVector(at)), align, mask(), none));
    LValue *p = gep(buffer, at.scalar);
    if (group->mask)
      return varying(b.CreateMaskedLoad(widen(t), p, align, group->mask, none));
    return varying(b.CreateAlignedLoad(widen(t), p, align));
  }

  Val pair(const Val &low, const Val &high) {
    const bool wide = !low.uniform() || !high.uniform();
    LValue *r = formats.pair(bitsOf16(low, wide), bitsOf16(high, wide));
    return wide ? varying(r) : uniform(r);
  }

  void storeTo(const Buffer &buffer, const Val &at, const Val &value) {
    llvm::Align align = alignOf(buffer);
    checkReg(buffer, at);
    if (at.uniform()) {
      GPTC_CHECK(value.uniform(), "all lanes store to one element of {}", buffer->name);
      b.CreateAlignedStore(toMemory(buffer->dtype, value, false), gep(buffer, at.scalar), align);
      return;
    }
    LValue *v = toMemory(buffer->dtype, value, true);
    if (at.linear() && at.stride == 1) {
      LValue *p = gep(buffer, at.scalar);
      if (!group->mask && buffer->streamed && isX86) {
        formats.storePastCaches(v, p, align);
        streams = true;
      } else if (!group->mask) {
        b.CreateAlignedStore(v, p, align);
      } else if (buffer->storage == Storage::reg) {
        LValue *old = b.CreateAlignedLoad(v->getType(), p, align);
        b.CreateAlignedStore(b.CreateSelect(group->mask, v, old), p, align);
      } else {
        b.CreateMaskedStore(v, p, align, group->mask);
      }
    } else {
      b.CreateMaskedScatter(v, gep(buffer, asVector(at)), align, mask());
    }
  }

  /// A load from a reg buffer with a constant index per lane: one shuffle of at most two vectors. InternalError if an
  /// index is not constant, out of range, or in a third vector.
  LValue *permuted(const Buffer &buffer, LValue *index) {
    const int64_t w = group->width;
    auto *lanes = llvm::dyn_cast<llvm::Constant>(index);
    GPTC_CHECK(lanes, "an index into reg {} is not constant", buffer->name);
    llvm::SmallVector<int64_t, 2> groups;
    llvm::SmallVector<int, 16> shuffle;
    for (int64_t i = 0; i < w; ++i) {
      auto *c = llvm::dyn_cast<llvm::ConstantInt>(lanes->getAggregateElement(unsigned(i)));
      GPTC_CHECK(c && c->getSExtValue() >= 0 && c->getSExtValue() < buffer->size, "lane {} into reg {}", i,
                 buffer->name);
      const int64_t from = c->getSExtValue() / w * w;
      auto *known = llvm::find(groups, from);
      shuffle.push_back(int((known - groups.begin()) * w + c->getSExtValue() % w));
      if (known == groups.end())
        groups.push_back(from);
    }
    GPTC_CHECK(groups.size() <= 2, "a load from {} groups of lanes of reg {}", groups.size(), buffer->name);
    auto whole = [&](int64_t from) {
      return b.CreateAlignedLoad(widen(memoryType(buffer->dtype)), gep(buffer, b.getInt64(from)), alignOf(buffer));
    };
    LValue *first = whole(groups.front());
    return b.CreateShuffleVector(first, groups.size() > 1 ? whole(groups.back()) : first, shuffle);
  }

  /// InternalError if an index into a reg buffer is out of range or not constant: LLVM would put the buffer into
  /// memory.
  void checkReg(const Buffer &buffer, const Val &at) {
    if (buffer->storage != Storage::reg)
      return;
    auto *c = at.scalar ? llvm::dyn_cast<llvm::ConstantInt>(at.scalar) : nullptr;
    GPTC_CHECK(c && (at.stride == 0 || at.stride == 1), "an index into reg {} is not constant", buffer->name);
    GPTC_CHECK(c->getSExtValue() >= 0 && c->getSExtValue() < buffer->size, "element {} of reg {}, which has {}",
               c->getSExtValue(), buffer->name, buffer->size);
  }

  Val unary(UnaryOp op, DType t, const Val &x) {
    bool isF32 = t == DType::f32;
    if (isF32)
      if (const MathExpansion &m = expandMath(op); m.result) {
        const bool scales = m.mantissa && x.vector && formats.hasScale(x.vector);
        auto outer = std::exchange(done, llvm::DenseMap<const ExprNode *, Val>());
        vars[(scales ? m.fraction : m.x).get()] = scales ? varying(formats.fraction(x.vector)) : x;
        Val r = emit(scales ? m.mantissa : m.result);
        done = std::move(outer);
        return scales ? varying(formats.scale(asVector(r), x.vector)) : r;
      }
    if (op == UnaryOp::round_bf16) {
      Val r = fromMemory(DType::bf16, pack(DType::bf16, x.vector ? x.vector : x.scalar));
      r.rounded = true;
      return r;
    }
    return lift({x}, [&](llvm::ArrayRef<LValue *> a) -> LValue * {
      LValue *v = a[0];
      auto call = [&](llvm::Intrinsic::ID id) { return b.CreateUnaryIntrinsic(id, v); };
      switch (op) {
      case UnaryOp::neg:
        return isFloat(t) ? b.CreateFNeg(v) : b.CreateNeg(v);
      case UnaryOp::abs:
        return isFloat(t) ? call(llvm::Intrinsic::fabs)
                          : b.CreateBinaryIntrinsic(llvm::Intrinsic::abs, v, b.getFalse());
      case UnaryOp::not_:
        return b.CreateNot(v);
      case UnaryOp::sqrt:
        return call(llvm::Intrinsic::sqrt);
      case UnaryOp::rsqrt:
        return b.CreateFDiv(llvm::ConstantFP::get(v->getType(), 1.0), call(llvm::Intrinsic::sqrt));
      case UnaryOp::floor:
        return call(llvm::Intrinsic::floor);
      // f64 is for tests: libm, element by element.
      case UnaryOp::exp:
      case UnaryOp::exp_approx:
        return call(llvm::Intrinsic::exp);
      case UnaryOp::exp2:
        return call(llvm::Intrinsic::exp2);
      case UnaryOp::log:
        return call(llvm::Intrinsic::log);
      case UnaryOp::sin:
        return call(llvm::Intrinsic::sin);
      case UnaryOp::cos:
        return call(llvm::Intrinsic::cos);
      case UnaryOp::tanh:
        return perLane("tanh", v);  // LLVM 19 does not lower the intrinsic on x86
      case UnaryOp::round_f16:
      case UnaryOp::round_e4m3:
        return unpack(*roundsTo(op), pack(*roundsTo(op), v));
      case UnaryOp::round_bf16:  // above
        break;
      }
      GPTC_UNREACHABLE("unary operator");
    });
  }

  LValue *perLane(const char *name, LValue *v) {
    llvm::Type *d = b.getDoubleTy();
    llvm::FunctionCallee f = module.getOrInsertFunction(name, d, d);
    auto *callee = llvm::cast<llvm::Function>(f.getCallee());
    callee->setDoesNotAccessMemory();
    callee->setDoesNotThrow();
    auto *t = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    if (!t)
      return b.CreateCall(f, v);
    LValue *r = llvm::PoisonValue::get(t);
    for (unsigned i = 0; i < t->getNumElements(); ++i)
      r = b.CreateInsertElement(r, b.CreateCall(f, b.CreateExtractElement(v, i)), i);
    return r;
  }

  Val binary(BinaryOp op, DType t, const Val &x, const Val &y) {
    if (t == DType::i64) {
      if (std::optional<Val> r = indexArithmetic(op, x, y))
        return *r;
      if (op >= BinaryOp::eq && !(x.uniform() && y.uniform()) && fits32(x) && fits32(y))
        return varying(arithmetic(op, DType::i32, asVector32(x), asVector32(y)));
    }
    return lift({x, y}, [&](llvm::ArrayRef<LValue *> a) { return arithmetic(op, t, a[0], a[1]); });
  }

  /// An i64 operation on uniform and linear values, with the facts about its result. nullopt if the result is varying.
  std::optional<Val> indexArithmetic(BinaryOp op, const Val &x, const Val &y) {
    if (!x.scalar || !y.scalar)
      return std::nullopt;
    std::optional<IndexFacts> facts = combineFacts(op, x, y, constant(y), group ? group->width : 1);
    if (!facts)
      return std::nullopt;
    auto value = [&] {
      switch (op) {
      case BinaryOp::div:
        return x.natural(y) ? b.CreateUDiv(x.scalar, y.scalar) : b.CreateSDiv(x.scalar, y.scalar);
      case BinaryOp::rem:
        return x.natural(y) ? b.CreateURem(x.scalar, y.scalar) : b.CreateSRem(x.scalar, y.scalar);
      default:
        return arithmetic(op, DType::i64, x.scalar, y.scalar);
      }
    };
    return Val{*facts, value()};
  }

  LValue *arithmetic(BinaryOp op, DType t, LValue *x, LValue *y) {
    using P = llvm::CmpInst::Predicate;
    bool f = isFloat(t), u = t == DType::u32 || t == DType::pred;
    auto compare = [&](P fp, P sp, P up) { return f ? b.CreateFCmp(fp, x, y) : b.CreateICmp(u ? up : sp, x, y); };
    switch (op) {
    case BinaryOp::add:
      return f ? b.CreateFAdd(x, y) : b.CreateAdd(x, y);
    case BinaryOp::sub:
      return f ? b.CreateFSub(x, y) : b.CreateSub(x, y);
    case BinaryOp::mul:
      return f ? b.CreateFMul(x, y) : b.CreateMul(x, y);
    case BinaryOp::div:
      return f ? b.CreateFDiv(x, y) : u ? b.CreateUDiv(x, divisor(y)) : b.CreateSDiv(x, divisor(y));
    case BinaryOp::rem:
      return u ? b.CreateURem(x, divisor(y)) : b.CreateSRem(x, divisor(y));
    // The second operand if either is NaN, as x86's instructions do.
    case BinaryOp::min:
      return b.CreateSelect(compare(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT), x, y);
    case BinaryOp::max:
      return b.CreateSelect(compare(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT), x, y);
    case BinaryOp::and_:
      return b.CreateAnd(x, y);
    case BinaryOp::or_:
      return b.CreateOr(x, y);
    case BinaryOp::xor_:
      return b.CreateXor(x, y);
    case BinaryOp::shl:
      return b.CreateShl(x, y);
    case BinaryOp::shr:
      return b.CreateLShr(x, y);
    case BinaryOp::eq:
      return compare(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
    case BinaryOp::ne:
      return compare(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
    case BinaryOp::lt:
      return compare(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
    case BinaryOp::le:
      return compare(P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
    case BinaryOp::gt:
      return compare(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
    case BinaryOp::ge:
      return compare(P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
    }
    GPTC_UNREACHABLE("binary operator");
  }
  /// The divisor with 1 in inactive lanes: they may hold 0, and an integer division by zero traps.
  LValue *divisor(LValue *y) {
    if (!group || !group->mask || !y->getType()->isVectorTy() || llvm::isa<llvm::Constant>(y))
      return y;
    return b.CreateSelect(group->mask, y, llvm::ConstantInt::get(y->getType(), 1));
  }

  Val cast(DType from, DType to, const Val &x) {
    if (from == DType::i64 && !x.uniform()) {
      if (to == DType::i32 || to == DType::u32)
        return varying(asVector32(x));
      if (isFloat(to) && fits32(x))
        return varying(b.CreateSIToFP(asVector32(x), widen(scalarType(to))));
    }
    return lift({x}, [&](llvm::ArrayRef<LValue *> a) -> LValue * {
      LValue *v = a[0];
      llvm::Type *t = like(scalarType(to), v);
      if (to == DType::pred)
        return isFloat(from) ? b.CreateFCmpUNE(v, llvm::Constant::getNullValue(v->getType()))
                             : b.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
      bool u = from == DType::u32 || from == DType::pred;
      if (isFloat(from)) {
        if (isFloat(to))
          return b.CreateFPCast(v, t);
        // LLVM makes a result out of range poison; a frozen one is merely unspecified.
        return b.CreateFreeze(to == DType::u32 ? b.CreateFPToUI(v, t) : b.CreateFPToSI(v, t));
      }
      if (isFloat(to))
        return u ? b.CreateUIToFP(v, t) : b.CreateSIToFP(v, t);
      return b.CreateIntCast(v, t, !u);
    });
  }

  Val hreduce(const ExprNode &e, const Val &at) {
    checkReg(e.buffer, at);
    int n = int(e.ival);
    llvm::Type *t = llvm::FixedVectorType::get(memoryType(e.buffer->dtype), n);
    LValue *v = unpack(e.buffer->dtype, b.CreateAlignedLoad(t, gep(e.buffer, at.scalar), alignOf(e.buffer)));
    for (n /= 2; n >= 1; n /= 2) {
      llvm::SmallVector<int, 32> low(n), high(n);
      std::iota(low.begin(), low.end(), 0);
      std::iota(high.begin(), high.end(), n);
      v = arithmetic(e.bop, e.dtype, b.CreateShuffleVector(v, low), b.CreateShuffleVector(v, high));
    }
    return uniform(b.CreateExtractElement(v, uint64_t(0)));
  }

  // ---- statements --------------------------------------------------------------------------------------------------

  Val root(const Expr &e) {
    done.clear();
    return emit(e);
  }

  void body(const std::vector<Stmt> &stmts) {
    for (const Stmt &s : stmts)
      statement(*s);
  }

  void statement(const StmtNode &s) {
    done.clear();
    switch (s.kind) {
    case StmtKind::Store: {
      Val at = emit(s.index), v = emit(s.value);
      return storeTo(s.buffer, at, v);
    }
    case StmtKind::Matmul:
    case StmtKind::Attention:
      GPTC_UNREACHABLE("a block of a GPU");
    case StmtKind::Prefetch: {
      Val at = emit(s.index);
      GPTC_CHECK(at.uniform(), "prefetch of {} at indices that depend on the lane", s.buffer->name);
      llvm::Value *p = gep(s.buffer, at.scalar);
      constexpr int keepClose = 3, data = 1;
      b.CreateIntrinsic(llvm::Intrinsic::prefetch, {p->getType()},
                        {p, b.getInt32(s.buffer->written), b.getInt32(keepClose), b.getInt32(data)});
      return;
    }
    case StmtKind::Let: {
      vars[s.var.get()] = emit(s.value);
      return body(s.body);
    }
    case StmtKind::Block:
      return body(s.body);
    case StmtKind::Alloc:
      allocate(s.buffer);
      return body(s.body);
    case StmtKind::If:
      return branch(s);
    case StmtKind::For:
      switch (s.loop) {
      case LoopKind::unroll: {
        Val begin = emit(s.begin);
        int64_t n = constant(emit(s.extent)).value();
        for (int64_t i = 0; i < n; ++i) {
          vars[s.var.get()] = *indexArithmetic(BinaryOp::add, begin, index(i));
          body(s.body);
        }
        return;
      }
      case LoopKind::vector:
        return vectorLoop(s);
      case LoopKind::parallel:
        GPTC_UNREACHABLE("parallel loop {} below the top level", s.var->name);
      default:
        return serialLoop(s);
      }
    }
  }

  /// All allocas stand in the entry block, one per buffer, even if its Alloc is emitted several times.
  void allocate(const Buffer &buffer) {
    if (memory.count(buffer.get()))
      return;
    GPTC_CHECK(buffer->storage != Storage::shared, "shared buffer {} on the CPU", buffer->name);
    // Masked groups load and store whole vectors of a reg buffer, so it needs padding.
    int64_t size = buffer->size + (buffer->storage == Storage::reg ? 64 : 0);
    llvm::IRBuilder<>::InsertPointGuard guard(b);
    b.SetInsertPoint(entry);
    auto *a = b.CreateAlloca(llvm::ArrayType::get(memoryType(buffer->dtype), size), nullptr, buffer->name);
    a->setAlignment(llvm::Align(64));
    memory[buffer.get()] = a;
  }

  /// A rotated loop from `from` below `to` in steps of `step`; `emitBody` gets the induction variable. `runs`: the loop
  /// is known to run at least once and needs no guard.
  template <typename F> void countedLoop(LValue *from, LValue *to, int64_t step, bool runs, F emitBody) {
    auto *head = llvm::BasicBlock::Create(ctx, "loop", fn);
    auto *exit = llvm::BasicBlock::Create(ctx, "done", fn);
    auto *before = b.GetInsertBlock();
    if (runs)
      b.CreateBr(head);
    else
      b.CreateCondBr(b.CreateICmpSLT(from, to), head, exit);
    b.SetInsertPoint(head);
    auto *iv = b.CreatePHI(b.getInt64Ty(), 2);
    iv->addIncoming(from, before);
    emitBody(iv);
    LValue *next = b.CreateAdd(iv, b.getInt64(step), "", /*NUW=*/false, /*NSW=*/true);
    iv->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, to), head, exit);
    b.SetInsertPoint(exit);
  }

  void tasks(const StmtNode &s) {
    int64_t first = constant(emit(s.begin)).value(), n = constant(emit(s.extent)).value();
    countedLoop(fn->getArg(1), fn->getArg(2), 1, false, [&](LValue *iv) {
      Val t = uniform(iv);
      t.bound = n - 1;
      vars[s.var.get()] = *indexArithmetic(BinaryOp::add, t, index(first));
      body(s.body);
    });
  }

  void serialLoop(const StmtNode &s) {
    Val from = emit(s.begin), extent = emit(s.extent);
    std::optional<int64_t> n = constant(extent);
    if (n && *n <= 0)
      return;
    if (n && *n == 1) {
      vars[s.var.get()] = from;
      return body(s.body);
    }
    Val to = *indexArithmetic(BinaryOp::add, from, extent);
    countedLoop(from.scalar, to.scalar, 1, n.has_value(), [&](LValue *iv) {
      Val v = uniform(iv);
      v.bound = to.bound;
      vars[s.var.get()] = v;
      body(s.body);
    });
  }

  void runGroup(const StmtNode &s, Val base, LValue *mask) {
    Group g{s.width, mask};
    group = &g;
    base.stride = s.width > 1;
    vars[s.var.get()] = base;
    body(s.body);
    group = nullptr;
  }

  void vectorLoop(const StmtNode &s) {
    GPTC_CHECK(!group, "vector loop {} inside another", s.var->name);
    const int w = s.width;
    Val from = emit(s.begin), extent = emit(s.extent);
    auto at = [&](int64_t offset) { return *indexArithmetic(BinaryOp::add, from, index(offset)); };
    auto groups = [&](LValue *to, int64_t bound, bool runs) {
      countedLoop(from.scalar, to, w, runs, [&](LValue *iv) {
        Val base = uniform(iv);
        base.multiple = std::gcd(from.multiple, int64_t(w));
        base.bound = bound;
        runGroup(s, base, nullptr);
      });
    };
    Group g{w};  // for the types of the mask
    if (std::optional<int64_t> n = constant(extent)) {
      int64_t full = *n / w, rest = *n % w;
      if (full == 1 || (full > 1 && indexesRegisters(s))) {
        for (int64_t i = 0; i < full; ++i)
          runGroup(s, at(i * w), nullptr);
      } else if (full > 1) {
        Val to = at(full * w);
        groups(to.scalar, to.bound, true);
      }
      if (rest) {
        llvm::SmallVector<llvm::Constant *, 16> lanes;
        for (int i = 0; i < w; ++i)
          lanes.push_back(b.getInt1(i < rest));
        runGroup(s, at(full * w), llvm::ConstantVector::get(lanes));
      }
      return;
    }
    LValue *n = arithmetic(BinaryOp::max, DType::i64, extent.scalar, b.getInt64(0));
    LValue *whole = b.CreateAnd(n, b.getInt64(-int64_t(w)));
    LValue *to = b.CreateAdd(from.scalar, whole);
    groups(to, sumOfBounds(from.bound, extent.bound), false);
    if (w == 1)
      return;
    LValue *rest = b.CreateSub(n, whole);
    auto *tail = llvm::BasicBlock::Create(ctx, "tail", fn);
    auto *exit = llvm::BasicBlock::Create(ctx, "done", fn);
    b.CreateCondBr(b.CreateICmpNE(rest, b.getInt64(0)), tail, exit);
    b.SetInsertPoint(tail);
    group = &g;
    LValue *mask = b.CreateICmpULT(iota(32, 1), b.CreateVectorSplat(w, b.CreateTrunc(rest, b.getInt32Ty())));
    group = nullptr;
    Val base = uniform(to);
    base.multiple = std::gcd(from.multiple, int64_t(w));
    base.bound = sumOfBounds(from.bound, extent.bound);
    runGroup(s, base, mask);
    b.CreateBr(exit);
    b.SetInsertPoint(exit);
  }

  void branch(const StmtNode &s) {
    Val cond = emit(s.value);
    auto arm = [&](LValue *taken, LValue *mask, const std::vector<Stmt> &stmts) {
      auto *in = llvm::BasicBlock::Create(ctx, "then", fn);
      auto *out = llvm::BasicBlock::Create(ctx, "endif", fn);
      b.CreateCondBr(taken, in, out);
      b.SetInsertPoint(in);
      LValue *outer = group ? std::exchange(group->mask, mask) : nullptr;
      body(stmts);
      if (group)
        group->mask = outer;
      b.CreateBr(out);
      b.SetInsertPoint(out);
    };
    if (cond.uniform()) {
      LValue *m = group ? group->mask : nullptr;
      arm(cond.scalar, m, s.body);
      if (!s.orelse.empty())
        arm(b.CreateNot(cond.scalar), m, s.orelse);
      return;
    }
    // Inactive lanes may hold poison: `and` would propagate it, a select does not.
    auto lanes = [&](LValue *c) {
      return group->mask ? b.CreateSelect(group->mask, c, llvm::ConstantInt::getFalse(c->getType())) : c;
    };
    auto vectorArm = [&](LValue *mask, const std::vector<Stmt> &stmts) { arm(b.CreateOrReduce(mask), mask, stmts); };
    vectorArm(lanes(cond.vector), s.body);
    if (!s.orelse.empty())
      vectorArm(lanes(b.CreateNot(cond.vector)), s.orelse);
  }
};

}  // namespace

std::unique_ptr<llvm::Module> emitModule(const Kernel &k, const std::string &symbol, const Target &target,
                                         llvm::TargetMachine &machine, llvm::LLVMContext &context) {
  auto module = std::make_unique<llvm::Module>(symbol, context);
  module->setTargetTriple(machine.getTargetTriple().str());
  module->setDataLayout(machine.createDataLayout());
  for (size_t i = 0; i < k.body.size(); ++i)
    FunctionEmitter(k, *module).run(fmt::format("{}_p{}", symbol, i), *k.body[i], target);
  return module;
}

}  // namespace gptc
