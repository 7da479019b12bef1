#include "tools/commands/reference_pages.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"

#include <optional>

namespace gptc {

namespace {

/// A program that consists of one op of this kind, with the types and attributes of one of its samples.
struct SampleOp {
  Module m;
  Function *f = m.addFunction("f");
  Op *op = nullptr;

  SampleOp(const OpDef &def, const OpDef::Sample &s) {
    Builder b(f->body);
    std::vector<Value *> operands;
    for (const Type &t : s.operandTypes)
      operands.push_back(f->body.addArg(t));
    op = def.infer ? b.op(def.kind, operands, s.attrs) : b.op(def.kind, operands, s.resultTypes, s.attrs);
  }
};

std::string operandsOf(const OpDef &def) {
  std::string text;
  for (const OperandSpec &o : def.operands)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", o.optional ? "[" + o.name + "]" : o.name);
  return text.empty() ? "none" : text;
}

std::string attributesOf(const OpDef &def) {
  std::string text;
  for (const AttrSpec &a : def.attrs)
    text += fmt::format("{}`{}`{}", text.empty() ? "" : ", ", a.name, a.required ? "" : "?");
  return text.empty() ? "none" : text;
}

/// The ops that the gradient consists of, found by applying the rule to a sample.
std::string gradientOf(const OpDef &def) {
  if (!def.grad)
    return fmt::format("none: {}", def.grad.why());
  llvm::SetVector<const OpDef *> made;
  bool any = false;
  for (const OpDef::Sample &s : def.samples(0)) {
    SampleOp one(def, s);
    if (!isFloat(one.op->result(0)->type.dtype))
      continue;
    Builder b(one.f->body);
    std::vector<Value *> d(one.op->numResults());  // statistics have no gradient
    d[0] = one.f->body.addArg(one.op->result(0)->type);
    GradCtx ctx{b, *one.op, d};
    any |= llvm::any_of(def.grad(ctx), [](const Value *g) { return g != nullptr; });
    for (const Op *op = one.op->next(); op; op = op->next())
      if (!op->is(OpKind::constant))
        made.insert(&op->def());
  }
  std::string text;
  for (const OpDef *d : made)
    text += fmt::format("{}`{}`", text.empty() ? "" : ", ", d->name);
  return !any ? "none" : text.empty() ? "dy" : text;
}

std::string tokensOf(const OpDef &def) {
  std::string text;
  if (!def.tokens) {
    text = fmt::format("none: {}", def.tokens.why());
  } else if (def.tokens == Tokens::rows) {
    for (unsigned i : def.tokens.parts)
      text += (text.empty() ? "part of " : ", ") + def.operands[i].name;
  } else {
    text = def.tokens == Tokens::elements ? "any part" : "whole sequences";
  }
  return def.tokenSum ? text + "; sums tokens" : text;
}

/// Operations per element of the largest operand or result, if all samples agree.
std::string costOf(const OpDef &def) {
  if (!def.cost)
    return "none";
  std::optional<double> each;
  for (unsigned seed = 0; seed < 4; ++seed)
    for (const OpDef::Sample &s : def.samples(seed)) {
      const SampleOp one(def, s);
      int64_t most = 1;
      for (const Value *v : one.op->operands())
        most = std::max(most, v->type.elements());
      for (unsigned i = 0; i < one.op->numResults(); ++i)
        most = std::max(most, one.op->result(i)->type.elements());
      const double now = def.cost(*one.op).flops / double(most);
      if (each && std::abs(*each - now) > 1e-9 * now)
        return "grows with its shapes";
      each = now;
    }
  return *each == 0 ? "no arithmetic" : fmt::format("{:.4g} flop an element", *each);
}

std::string valuesOf(const FactSpec &f) {
  if (!f.words.empty())
    return quotedList({f.words.begin(), f.words.end()}, "or");
  if (f.limits)
    return (f.kind == FactSpec::Int ? "integer, " : "number, ") + f.limits->text();
  switch (f.kind) {
  case FactSpec::Bool:
    return "true or false";
  case FactSpec::Int:
    return "integer";
  case FactSpec::Float:
    return "number";
  case FactSpec::String:
    return "text";
  case FactSpec::Ints:
    return "integers";
  }
  GPTC_UNREACHABLE("kind {}", int(f.kind));
}

std::string factsSection(const char *carriers, llvm::ArrayRef<FactSpec> facts) {
  std::string section =
      fmt::format("\n## Attributes of {}\n\n| attribute | values | from | meaning |\n|---|---|---|---|\n", carriers);
  for (const FactSpec &f : facts)
    section += fmt::format("| `{}` | {} | `{}` | {} |\n", f.name, valuesOf(f), f.writer, f.meaning);
  return section;
}

}  // namespace

std::string opsPage() {
  std::string page =
      "# Ops\n\n"
      "Made by `gptc-opt --list-ops` from the definitions in `ir/ops/` and `ir/facts.def`; a test compares the two.\n\n"
      "An operand in brackets and an attribute with ? are optional. In shapes, `..` is any leading dimensions, `B,T` "
      "sequences and tokens, `H`, `Hkv` and `D` heads, heads of keys and values, and their size. *Gradient* lists the "
      "ops of which autodiff makes it, or `dy`, the result's own. *Tokens* says what the op makes of a part of the "
      "tokens, for shard-tensor. "
      "*Cost* counts arithmetic per element of its largest operand or result.\n\n"
      "| op | operands | attributes | shapes | meaning | gradient | fusion | tokens | cost |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const OpDef *d : allOpDefs())
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |\n", d->name, operandsOf(*d), attributesOf(*d),
                        d->shapes, d->summary, gradientOf(*d), nameOf(d->fusion), tokensOf(*d), costOf(*d));
  page += factsSection("modules", moduleFacts());
  page += factsSection("functions", functionFacts());
  page += factsSection("states", stateFacts());
  page += "\n*from* is the key of model.toml that the attribute repeats, or the pass that writes it. A module also has "
          "`decision.*`, what passes decided and why (`gptc explain`).\n";
  return page;
}

std::string errorsPage() {
  std::string page =
      "# Errors\n\n"
      "Made by `gptc-opt --list-errors` from `support/errors.def`; a test compares the two. A message names the file "
      "and line, the numbers involved and a fix that works; this page says what each code is for. A code keeps its "
      "number for ever.\n\n"
      "| code | name | exit code | meaning | what to do |\n"
      "|---|---|---|---|---|\n";
#define GPTC_ERROR(name, number, exit_code, title, remedy)                                                             \
  page += fmt::format("| {} | {} | {} | {} | {} |\n", codeName(ErrorCode::name), #name, exit_code, title, remedy);
#include "support/errors.def"
#undef GPTC_ERROR
  return page;
}

}  // namespace gptc
