// Writes calls of the attention templates of device/attention.cuh: the struct of constants, the functions that it
// calls, and the statement.
#include "codegen/cuda/emit_text.h"
#include "ir/ops/op_support.h"
#include "ir/random.h"

#include <cmath>

namespace gptc {

/// The dtype of dropout's index, which numbers the scores of one sequence: u32 if that suffices.
static DType indexOf(const kir::AttentionTile &t) {
  return double(t.ofHeads) * double(t.tokens) * double(t.tokens) < 0x1p32 ? DType::u32 : DType::i64;
}

std::vector<CudaFunction> attentionFunctions(const kir::AttentionTile &t, const std::string &name) {
  std::vector<CudaFunction> all;
  if (t.p > 0) {
    kir::Var low = kir::makeVar("low", DType::u32), high = kir::makeVar("high", DType::u32),
             index = kir::makeVar("index", indexOf(t));
    all.push_back({name + "Keeps",
                   {low, high, index},
                   ops::dropoutKeeps(randomBitsExpr({kir::ref(low), kir::ref(high)}, kir::ref(index)), t.p)});
  }
  if (t.alibi) {
    kir::Var head = kir::makeVar("head");
    all.push_back({name + "Slope", {head}, ops::alibiSlope(kir::ref(head), t.ofHeads, DType::f32)});
  }
  return all;
}

std::string attentionConstants(const kir::AttentionTile &t, const std::string &name, bool drops) {
  std::string s = fmt::format("struct {}Constants {{\n  typedef {} Element;\n", name, storedType(t.operands[0]->dtype));
  auto number = [&](const char *type, const char *field, const std::string &value) {
    s += fmt::format("  static constexpr {} {} = {};\n", type, field, value);
  };
  auto integer = [&](const char *field, int64_t value) { number("int", field, std::to_string(value)); };
  integer("BATCH", t.batch), integer("TOKENS", t.tokens), integer("HEADS", t.heads), integer("KEY_HEADS", t.keyHeads);
  integer("SIZE", t.size), integer("WARPS", t.threads / 32), integer("M", t.mr / 16), integer("N", t.nr);
  integer("STAGES", t.stages), integer("WINDOW", t.window);
  auto flag = [&](const char *field, bool value) { number("bool", field, value ? "true" : "false"); };
  flag("CAUSAL", t.causal), flag("ALIBI", t.alibi), flag("CAPS", t.softcap != 0), flag("DROPS", drops),
      flag("MMA", t.mma);
  number("float", "SCALE", literal(float(t.factor()), DType::f32));
  number("float", "KEPT", literal(float(drops ? 1 / (1 - t.p) : 1), DType::f32));
  if (drops)
    s += fmt::format("  typedef {} Index;\n  static GPTC_METHOD bool keep(unsigned low, unsigned high, Index index) {{ "
                     "return {}Keeps(low, high, index); }}\n",
                     typeOf(indexOf(t)), name);
  if (t.softcap != 0) {
    number("float", "CAP", literal(float(t.softcap), DType::f32));
    number("float", "CAPS_SCALE", literal(float(t.factor() / t.softcap), DType::f32));
    s += fmt::format("  static GPTC_METHOD float tanh(float x) {{ return {}F32(x); }}\n",
                     functionOf(kir::UnaryOp::tanh));
  }
  if (t.alibi)
    s += fmt::format("  static GPTC_METHOD float slope(int head) {{ return {}Slope(head); }}\n", name);
  return s + "};\n";
}

std::string attentionCall(const kir::AttentionTile &t, const std::string &name, const std::string &room,
                          llvm::ArrayRef<std::string> operands, llvm::ArrayRef<std::string> places,
                          const std::string &head0) {
  constexpr const char *functions[] = {"Forward", "QueryGrad", "KeyGrad"};
  return fmt::format("attention{}<{}Constants>({}, {}, {}, {});", functions[int(t.part)], name, room,
                     fmt::join(operands, ", "), fmt::join(places, ", "),
                     head0.empty() ? "0" : fmt::format("(int)load({}, 0)", head0));
}

}  // namespace gptc
