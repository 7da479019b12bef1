// Ops of program structure: state access, terminators, groups, constants.
#include "ir/ops/op_support.h"

#include <cmath>

namespace gptc {

using namespace ops;

namespace {

constexpr NotApplicable ofStructure{"a pass that cuts values treats the program's structure itself"};
constexpr NotApplicable runsNoCode{"it is part of the program's structure and runs no code of its own"};
constexpr NotApplicable interpreterDoesIt{"the interpreter gives it its meaning: it concerns more than values"};

/// The definition of an op to which the fields for computation do not apply.
OpDef structural(OpKind kind, std::string summary, std::string shapes, std::vector<OperandSpec> operands,
                 std::vector<AttrSpec> attrs, std::vector<std::string> results, Rule<std::string(const Op &)> check) {
  return OpDef{
      .kind = kind,
      .name = nameOf(kind).str(),
      .summary = std::move(summary),
      .shapes = std::move(shapes),
      .operands = std::move(operands),
      .attrs = std::move(attrs),
      .results = std::move(results),
      .fusion = FusionKind::structure,
      .autocast = NotApplicable{"computes nothing"},
      .tokens = ofStructure,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"its types are given by what surrounds it"},
      .check = std::move(check),
      .grad = NotApplicable{"autodiff treats state and structure itself"},
      .cost = runsNoCode,
      .reference = interpreterDoesIt,
      .lower = runsNoCode,
      .samples = interpreterDoesIt,
  };
}

}  // namespace

OpDef define_read() {
  return structural(OpKind::read, "the content of a state at this point", "-> value, of the type of the state", {}, {},
                    {"value"}, NotApplicable{"verify() compares it with the state"});
}

OpDef define_write() {
  return structural(OpKind::write, "replaces the content of a state", "value, of the type of the state", {{"value"}},
                    {}, {}, NotApplicable{"verify() compares it with the state"});
}

OpDef define_ret() {
  return structural(OpKind::ret, "the results of a function", "any values", {{"..."}}, {}, {},
                    NotApplicable{"any values may be returned"});
}

OpDef define_yield() {
  return structural(OpKind::yield, "the results of a fused body", "any values", {{"..."}}, {}, {},
                    NotApplicable{"verify() compares it with the fused op"});
}

OpDef define_fused() {
  return structural(OpKind::fused, "a group of ops that becomes one kernel; its body sees only its arguments",
                    "any values -> what its body yields", {{"..."}},
                    {
                        {AttrSpec::String, "kind", true, ""},
                        {AttrSpec::String, "schedule", false, ""},
                        {AttrSpec::Ints, "ws", false, std::vector<int64_t>()},
                        {AttrSpec::Ints, "at", false, std::vector<int64_t>()},
                        {AttrSpec::Ints, "ws_at", false, std::vector<int64_t>()},
                        {AttrSpec::Ints, "in_place", false, std::vector<int64_t>()},
                        {AttrSpec::Bool, "host", false, false},
                        {AttrSpec::Int, "launch", false, int64_t(0)},
                    },
                    {"..."}, NotApplicable{"verify() compares its body with it"});
}

OpDef define_constant() {
  return OpDef{
      .kind = OpKind::constant,
      .name = "constant",
      .summary = "every element is `value`",
      .shapes = "-> value, of any type",
      .operands = {},
      .attrs = {{AttrSpec::Float, "value", true, 0.0}},
      .results = {"value"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"nothing determines its type: it is given"},
      .check = [](const Op &op) -> std::string {
        DType t = op.result()->type.dtype;
        double v = op.attrs.getFloat("value");
        if (isInt(t) && !(std::fabs(v) < 0x1p53 && convert(v, t) == v))
          return fmt::format("value {} is none of dtype {}", v, nameOf(t).str());
        return "";
      },
      .grad = [](GradCtx &) { return std::vector<Value *>(); },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const>) -> std::vector<Tensor> {
        Tensor r(op.result()->type);
        std::fill(r.data.begin(), r.data.end(), op.attrs.getFloat("value"));
        return {r};
      },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        DType t = c.op.result()->type.dtype;
        double v = c.op.attrs.getFloat("value");
        return {isFloat(t) ? c.f(v) : kir::imm(int64_t(v), t)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        return {
            {.operandTypes = {},
             .attrs = attrs({{"value", s.normal()}}),
             .resultTypes = {Type(DType::f32, {s.extent(), s.extent()})}},
            {.operandTypes = {},
             .attrs = attrs({{"value", s.between(-9, 9)}}),
             .resultTypes = {Type(DType::i32, {s.extent()})}},
            {.operandTypes = {}, .attrs = attrs({{"value", s.normal()}}), .resultTypes = {Type::scalar(DType::f32)}},
        };
      },
  };
}

}  // namespace gptc
