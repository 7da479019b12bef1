#include "codegen/cuda/emit_text.h"

#include <cmath>

namespace gptc {

using namespace kir;

const char *storedType(DType t) {
  switch (t) {
  case DType::f32:
    return "float";
  case DType::f64:
    return "double";
  case DType::bf16:
    return "bf16";
  case DType::f16:
    return "f16";
  case DType::f8e4m3:
    return "f8e4m3";
  case DType::i32:
    return "int";
  case DType::u32:
    return "unsigned";
  case DType::i64:
    return "long long";
  case DType::pred:
    return "unsigned char";
  }
  return "?";
}
const char *typeOf(DType t, bool narrow) {
  return t == DType::pred ? "bool" : isNarrow(t) ? "float" : t == DType::i64 && narrow ? "int" : storedType(t);
}

std::string literal(double v, DType t) {
  const bool single = t == DType::f32;
  if (std::isnan(v))
    return single ? "floatOf(0x7fc00000u)" : "doubleOf(0x7ff8000000000000ll)";
  if (std::isinf(v))
    return fmt::format("({}{})", v < 0 ? "-" : "", single ? "floatOf(0x7f800000u)" : "doubleOf(0x7ff0000000000000ll)");
  std::string s = v == std::trunc(v) && std::fabs(v) < 1e6 ? fmt::format("{:.1f}", v) : fmt::format("{:a}", v);
  s += single ? "f" : "";
  return std::signbit(v) ? "(" + s + ")" : s;
}

const char *functionOf(UnaryOp op) {
  switch (op) {
  case UnaryOp::exp:
    return "exp";
  case UnaryOp::exp2:
    return "exp2";
  case UnaryOp::log:
    return "log";
  case UnaryOp::tanh:
    return "tanh";
  case UnaryOp::sin:
    return "sin";
  case UnaryOp::cos:
    return "cos";
  default:
    GPTC_UNREACHABLE("no function");
  }
}

std::string unaryText(UnaryOp op, DType t, const std::string &x) {
  if (isInt(t))
    switch (op) {
    case UnaryOp::neg:
      return t == DType::u32 ? fmt::format("(0u - {})", x)
                             : fmt::format("wrapSub(({})0, ({}){})", typeOf(t), typeOf(t), x);
    case UnaryOp::abs:
      return t == DType::u32 ? x : fmt::format("magnitude(({}){})", typeOf(t), x);
    case UnaryOp::not_:
      return t == DType::pred ? fmt::format("(!{})", x) : fmt::format("(~({}){})", typeOf(t), x);
    default:
      GPTC_UNREACHABLE("no such operator on integers");
    }
  switch (op) {
  case UnaryOp::neg:
    return fmt::format("(-{})", x);
  case UnaryOp::abs:
    return fmt::format("magnitude({})", x);
  case UnaryOp::sqrt:
    return fmt::format("squareRoot({})", x);
  case UnaryOp::rsqrt:
    return fmt::format("divide({}, squareRoot({}))", literal(1, t), x);
  case UnaryOp::floor:
    return fmt::format("roundDown({})", x);
  case UnaryOp::round_bf16:
    return fmt::format("roundBF16({})", x);
  case UnaryOp::round_f16:
    return fmt::format("roundF16({})", x);
  case UnaryOp::round_e4m3:
    return fmt::format("roundE4M3({})", x);
  case UnaryOp::exp_approx:
    return t == DType::f32 ? fmt::format("expApproximate({}, expF32)", x) : fmt::format("exp({})", x);
  default:
    return fmt::format("{}{}({})", functionOf(op), t == DType::f32 ? "F32" : "", x);
  }
}

std::string binaryText(BinaryOp op, DType t, const std::string &x, const std::string &y) {
  constexpr const char *signs[] = {"+", "-",  "*",  "/",  "%",  "",  "",   "&", "|",
                                   "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="};
  auto plain = [&](const char *sign) { return fmt::format("({} {} {})", x, sign, y); };
  auto call = [&](const char *f) { return fmt::format("{}({}, {})", f, x, y); };
  switch (op) {
  case BinaryOp::add:
    return t == DType::i32 ? call("wrapAdd") : plain("+");
  case BinaryOp::sub:
    return t == DType::i32 ? call("wrapSub") : plain("-");
  case BinaryOp::mul:
    return t == DType::i32 ? call("wrapMul") : plain("*");
  case BinaryOp::div:
    return isFloat(t) ? call("divide") : plain("/");
  case BinaryOp::min:
    return call("minimum");
  case BinaryOp::max:
    return call("maximum");
  case BinaryOp::and_:
    return plain(t == DType::pred ? "&&" : "&");
  case BinaryOp::or_:
    return plain(t == DType::pred ? "||" : "|");
  case BinaryOp::xor_:
    return plain(t == DType::pred ? "!=" : "^");
  case BinaryOp::shl:
  case BinaryOp::shr:
    return t == DType::i32 ? fmt::format("(int)((unsigned){} {} {})", x, signs[int(op)], y) : plain(signs[int(op)]);
  default:
    return plain(signs[int(op)]);
  }
}

std::string wrapping64(BinaryOp op, const std::string &x, const std::string &y) {
  auto both = [&](const char *f) { return fmt::format("{}((long long){}, (long long){})", f, x, y); };
  auto bits = [&](const char *sign) { return fmt::format("((long long){} {} (long long){})", x, sign, y); };
  switch (op) {
  case BinaryOp::add:
    return both("wrapAdd");
  case BinaryOp::sub:
    return both("wrapSub");
  case BinaryOp::mul:
    return both("wrapMul");
  case BinaryOp::min:
    return both("minimum");
  case BinaryOp::max:
    return both("maximum");
  case BinaryOp::div:
    return bits("/");
  case BinaryOp::rem:
    return bits("%");
  case BinaryOp::and_:
    return bits("&");
  case BinaryOp::or_:
    return bits("|");
  case BinaryOp::xor_:
    return bits("^");
  case BinaryOp::shl:
  case BinaryOp::shr:
    return fmt::format("(long long)((unsigned long long){} {} {})", x, op == BinaryOp::shl ? "<<" : ">>", y);
  default:
    GPTC_UNREACHABLE("operator");
  }
}

}  // namespace gptc
