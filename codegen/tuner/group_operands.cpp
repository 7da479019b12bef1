#include "codegen/tuner/group_operands.h"

#include "ir/kernel/eval.h"
#include "ir/opdef.h"
#include "ir/random.h"

#include <algorithm>
#include <cstring>

namespace gptc {

namespace {

/// The extent that the integers of an operand index; the smallest one if several ops use the operand. 1, so that all
/// integers are 0, for scalars (positions, seeds) and if an op uses the operand as something else than indices.
int64_t boundOf(const Op &fused, const Value *arg) {
  if (arg->type.isScalar())
    return 1;
  int64_t bound = INT64_MAX;
  for (const Op &op : *fused.body)
    for (unsigned i = 0; i < op.numOperands(); ++i) {
      if (op.operand(i) != arg)
        continue;
      const Indices &indices = op.def().indices;
      if (!indices || indices.operand != i)
        return 1;
      bound = std::min(bound, indices.count(op));
    }
  return bound == INT64_MAX ? 1 : bound;
}

float unit(uint32_t bits) { return float(bits) * 0x1p-31f - 1.0f; }
float wholeNumber(uint32_t bits) { return float(int(bits % 5) - 2); }

template <typename T, typename F> void each(T *to, int64_t n, uint64_t seed, ThreadPool &pool, F value) {
  constexpr int64_t piece = 1 << 16;
  struct Call {
    T *to;
    int64_t n;
    RandomKey key;
    F value;
  } call{to, n, randomKey(seed, 0, 0, 0), value};
  pool.run((n + piece - 1) / piece,
           [](void *c, int64_t begin, int64_t end) {
             auto &call = *static_cast<Call *>(c);
             for (int64_t i = begin * piece; i < std::min(call.n, end * piece); ++i)
               call.to[i] = call.value(randomBits(call.key, i));
           },
           &call);
}

}  // namespace

void fillOperand(const Op &fused, unsigned i, void *to, ThreadPool &pool, bool whole) {
  const Type &type = fused.operand(i)->type;
  const int64_t n = type.paddedElements();
  const uint64_t bound = uint64_t(boundOf(fused, fused.body->args[i].get()));
  const auto number = whole ? wholeNumber : unit;
  switch (type.dtype) {
  case DType::f32:
    return each(static_cast<float *>(to), n, i, pool, number);
  case DType::bf16:
    return each(static_cast<uint16_t *>(to), n, i, pool,
                [number](uint32_t b) { return uint16_t(kir::bitsOfBF16(kir::roundBF16(number(b)))); });
  case DType::f16:
    return each(static_cast<uint16_t *>(to), n, i, pool,
                [number](uint32_t b) { return uint16_t(kir::bitsOfF16(kir::roundF16(number(b)))); });
  case DType::f8e4m3:
    return each(static_cast<uint8_t *>(to), n, i, pool,
                [number](uint32_t b) { return kir::bitsOfE4M3(kir::roundE4M3(number(b))); });
  case DType::i32:
    return each(static_cast<int32_t *>(to), n, i, pool, [bound](uint32_t b) { return int32_t(b % bound); });
  case DType::i64:
    return each(static_cast<int64_t *>(to), n, i, pool, [bound](uint32_t b) { return int64_t(b % bound); });
  default:
    std::memset(to, 0, size_t(type.bytes()));
  }
}

}  // namespace gptc
