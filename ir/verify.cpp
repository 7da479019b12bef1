// The verifier. Modules come from untrusted plans: it relies only on what it has already checked.
#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/quantized.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <cmath>

namespace gptc {

namespace {

// A damaged module may have an error in every line; more than the first few do not help.
constexpr size_t maxViolations = 50;

/// The first line of an op's text, without its body.
std::string headline(const Op &op) {
  std::string text = print(op);
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

std::string typeList(llvm::ArrayRef<Type> types) {
  std::string s;
  for (const Type &t : types)
    s += (s.empty() ? "" : ", ") + t.str();
  return s.empty() ? "nothing" : s;
}

class Verifier {
public:
  explicit Verifier(const Module &m) : module(m) {}

  std::vector<std::string> run() {
    for (std::string &problem : moduleFactProblems(module))
      if (violations.size() < maxViolations)
        violations.push_back(std::move(problem));
    for (const auto &s : module.states)
      verifyState(*s);
    requireAllShares();
    llvm::StringSet<> names;
    for (const auto &f : module.functions) {
      where = "@" + f->name;
      if (f->name.empty())
        add("a function needs a name");
      if (!names.insert(f->name).second)
        add("two functions have this name");
      for (const auto &[name, value] : f->attrs)
        verifyAttr(functionFacts(), "function", name, value);
      verifyBlock(f->body, OpKind::ret);
    }
    return std::move(violations);
  }

private:
  const Module &module;
  std::string where;
  const Op *group = nullptr;  // whose body is being verified, or null; printed only for an error
  llvm::StringMap<const State *> states;
  const State *parameterBefore = nullptr;  // the one that was verified last
  bool sharesBefore = false;               // whether that one has a place in a tensor
  static constexpr int64_t maxShares = 64;
  std::vector<std::string> violations;

  void add(std::string message) {
    if (violations.size() >= maxViolations)
      return;
    std::string inBody = group ? fmt::format(", body of '{}'", headline(*group)) : "";
    violations.push_back(where + inBody + ": " + std::move(message));
  }
  void add(const Op &op, const std::string &message) {
    if (violations.size() < maxViolations)  // printing an op takes time
      add(fmt::format("'{}' {}: {}", op.name().str(), message, headline(op)));
  }

  void verifyState(const State &s) {
    where = "@" + s.name;
    if (s.name.empty())
      add("a state needs a name");
    if (!states.insert({s.name, &s}).second)
      add("two states have this name");
    if (std::string why = s.type.invalid(); !why.empty())
      add("type " + s.type.str() + ": " + why);
    if (s.type.dtype == DType::f8e4m3)
      add("no state is f8e4m3, which is made anew where it is read");
    bool good = true;
    for (const auto &[name, value] : s.attrs)
      good = verifyAttr(stateFacts(), "state", name, value) && good;
    if (!good || !verifyCuts(s) || !verifyParts(s))
      return;
    verifyLayout(s);
    const std::optional<StateKind> kind = kindOf(s);
    if (isInFiles(s) && kind != StateKind::param)
      add("only a parameter may be in files alone");
    if (kind != StateKind::low && kind != StateKind::whole && kind != StateKind::packed &&
        kind != StateKind::quantized && kind != StateKind::anchor)
      return;
    const std::string *of = peekFact<&StateFacts::of>(s);
    const State *p = of ? module.state(*of) : nullptr;
    if (kind == StateKind::packed) {
      const int64_t cols = s.type.rank() == 3 ? s.type.dim(2) / stepOfPanels(s.type.dtype) : 0;
      const bool rounds = p && isInFiles(*p) && p->type.dtype == DType::f32 && s.type.dtype == DType::bf16;
      const std::optional<Type> panels = p && (rounds || p->type.dtype == s.type.dtype)
                                             ? panelsOf(p->type.withDType(s.type.dtype), cols, fact<&StateFacts::tb>(s))
                                             : std::nullopt;
      if (!panels || !panels->sameShape(s.type) || isPiece(s))
        add("a state of kind packed needs `of`, the name of a matrix whose panels these are");
      return;
    }
    if (kind == StateKind::quantized) {
      bool fits = false;
      for (const QuantFormat format : quantFormats)
        if (const auto t = p && s.type.rank() == 3
                               ? quantizedType(p->type, s.type.dim(2), fact<&StateFacts::tb>(s), format)
                               : std::nullopt)
          fits |= s.type == t->numbers || s.type == t->scales || s.type == t->supers;
      if (!fits || kindOf(*p) != StateKind::param || hasFact<&StateFacts::cutData>(*p))
        add("a state of kind quantized needs `of`, the name of a parameter whose numbers, scales or supers these are");
      return;
    }
    if (!p || p->type.dtype != DType::f32 || !wholeType(*p).sameShape(wholeType(s)))
      return add(fmt::format("a state of kind {} needs `of`, the name of one that is f32 and of the same shape",
                             nameOf(*kind)));
    if (kind == StateKind::low && s.type.dtype != DType::bf16 && s.type.dtype != DType::f16)
      add("a state of kind low must be bf16 or f16");
    if (kind == StateKind::whole && (s.type.dtype != DType::f32 || hasFact<&StateFacts::cutData>(s)))
      add("a state of kind whole must be f32 and not cut along data");
    if (kind == StateKind::anchor && (isPiece(s) || isPiece(*p) || !(s.type == p->type)))
      add("a state of kind anchor must have the type of its parameter, and neither may be cut");
  }

  /// Each cut must divide every group into equal parts. A part has padding of its own only if all places of the whole
  /// count: each rank's own contents, one behind the other (passes/outer_steps.cpp).
  bool verifyCuts(const State &s) {
    Type part = s.type;
    for (const auto &[name, n] :
         {std::pair{FactAt<&StateFacts::cutData>::name, peekFact<&StateFacts::cutData>(s)},
          std::pair{FactAt<&StateFacts::cutTensor>::name, peekFact<&StateFacts::cutTensor>(s)}}) {
      if (!n)
        continue;
      bool good = n->size() >= 4 && (*n)[0] >= 0 && (*n)[0] < part.rank() && (*n)[1] >= 1 && (*n)[1] <= (*n)[2] &&
                  (*n)[2] <= maxElements && part.padded(int((*n)[0])) >= 1;
      if (good) {
        Dim &d = part.dims[(*n)[0]];
        const int64_t ranks = (*n)[2] / d.padded;
        good = (d.logical == d.padded || (*n)[1] == (*n)[2]) && (*n)[2] % d.padded == 0;
        int64_t sum = 0;
        for (size_t i = 3; good && i < n->size(); ++i)
          good = (*n)[i] >= 1 && (*n)[i] % ranks == 0 && (sum += (*n)[i]) <= (*n)[2];
        good = good && sum == (*n)[2];
        d = Dim((*n)[1], (*n)[2]);
      }
      if (!good || !part.invalid().empty()) {
        add(fmt::format("`{}` must be a dimension, the extents of the whole there, logical and padded, and groups of "
                        "them, of each of which the state has a part",
                        name));
        return false;
      }
    }
    return true;
  }

  /// Logical parts: a dimension, and groups that add up to its extent.
  bool verifyParts(const State &s) {
    const Ints *n = peekFact<&StateFacts::logicalParts>(s);
    if (!n)
      return true;
    bool good = n->size() >= 2 && (*n)[0] >= 0 && (*n)[0] < s.type.rank();
    const int64_t extent = good ? s.type.padded(int((*n)[0])) : 0;
    int64_t sum = 0;
    for (size_t i = 1; good && i < n->size(); ++i)
      good = (*n)[i] >= 1 && (*n)[i] <= extent - sum && (sum += (*n)[i]);
    good = good && sum == extent;
    if (!good)
      add(fmt::format("`{}` must be a dimension, and groups that are its places together",
                      FactAt<&StateFacts::logicalParts>::name));
    return good;
  }

  /// Whether hf_share stands where it has a meaning: rows of a file follow each other as the states do.
  bool isShare(const State &s, const FileFacts &file) const {
    const bool pair = file.hfShare.size() == 2 && file.hfShare[0] >= 0 && file.hfShare[1] <= maxShares &&
                      file.hfShare[0] < file.hfShare[1];
    if (!pair || kindOf(s) != StateKind::param || !file.hf || !file.hfTranspose || s.type.rank() != 2 ||
        !file.hfSplit.empty() || file.hfHeads)
      return false;
    if (file.hfShare[0] == 0)
      return true;
    if (!parameterBefore)
      return false;
    const auto before = factsOf<FileFacts>(*parameterBefore);
    return before.hf == file.hf && before.hfShare == Ints{file.hfShare[0] - 1, file.hfShare[1]} &&
           wholeType(*parameterBefore) == wholeType(s);
  }

  /// Behind the last place of a tensor there may be something else.
  void requireAllShares() {
    const Ints share = sharesBefore ? factsOf<FileFacts>(*parameterBefore).hfShare : Ints{1, 2};
    if (share[0] + 1 < share[1])
      add(fmt::format("the tensor of @{} has more rows, in the states behind it", parameterBefore->name));
  }

  /// hf_split must cover all columns, hf_heads must divide them, and only matrices can be transposed.
  void verifyLayout(const State &s) {
    const auto file = factsOf<FileFacts>(s);
    const bool isParameter = kindOf(s) == StateKind::param, shares = hasFact<&FileFacts::hfShare>(s);
    if (isParameter && !shares)
      requireAllShares();
    const bool hasPlace = shares && isShare(s, file);
    if (shares && !hasPlace)
      add("hf_share must be [place, count] of transposed matrices of one size and one tensor, each behind the one "
          "before");
    if (isParameter)
      parameterBefore = &s, sharesBefore = hasPlace;
    const bool split = hasFact<&FileFacts::hfSplit>(s), heads = hasFact<&FileFacts::hfHeads>(s);
    if (hasFact<&FileFacts::hfTranspose>(s) && s.type.rank() != 2)
      return add("hf_transpose is for matrices");
    if (!split && !heads)
      return;
    if (s.type.rank() != 1 && s.type.rank() != 2)
      return add("hf_split and hf_heads are for matrices and vectors");
    const int64_t all = wholeType(s).dim(int(s.type.rank()) - 1);
    if (heads && (split || file.hfHeads < 1 || file.hfHeads > all || all % (3 * file.hfHeads)))
      return add("hf_heads must divide the columns into queries, keys and values of as many heads, without hf_split");
    if (!split)
      return;
    int64_t sum = 0;
    bool good = file.hf && !file.hfSplit.empty() && llvm::StringRef(*file.hf).count(',') + 1 == file.hfSplit.size();
    for (int64_t n : file.hfSplit) {
      good = good && n >= 1 && n <= all - sum;
      if (good)
        sum += n;
    }
    if (!good || sum != all)
      add("hf_split must cut the columns into one part per name of hf");
  }

  bool verifyAttr(llvm::ArrayRef<FactSpec> facts, const char *carrier, const std::string &name, const Attr &value) {
    const FactSpec *f = findFact(facts, name);
    if (!f)
      add(unknownFact(facts, carrier, name));
    else if (const std::string problem = f->problem(value); !problem.empty())
      add(fmt::format("{} attribute '{}' {}", carrier, name, problem));
    else
      return true;
    return false;
  }

  /// Checks a block, of which the last op, and only that, must be `terminator`.
  void verifyBlock(const Block &block, OpKind terminator) {
    llvm::DenseSet<const Value *> visible;
    for (const auto &a : block.args) {
      if (std::string why = a->type.invalid(); !why.empty())
        add(fmt::format("argument {} : {}: {}", a->index, a->type.str(), why));
      visible.insert(a.get());
    }
    if (block.empty() || !block.back()->is(terminator))
      add(fmt::format("the last op must be '{}'", nameOf(terminator).str()));
    for (const Op &op : block) {
      verifyOp(op, visible, terminator);
      for (unsigned i = 0; i < op.numResults(); ++i)
        visible.insert(op.result(i));
    }
  }

  void verifyOp(const Op &op, const llvm::DenseSet<const Value *> &visible, OpKind terminator) {
    bool usable = true;  // the op's own rules may run
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (!visible.contains(op.operand(i))) {
        add(op, fmt::format("uses operand {} before it is defined", i));
        usable = false;
      }
    for (unsigned i = 0; i < op.numResults(); ++i)
      if (std::string why = op.result(i)->type.invalid(); !why.empty()) {
        add(op, fmt::format("result {}: {}", i, why));
        usable = false;
      }
    if (op.layer < -1)
      add(op, "has a negative layer");
    if (std::string error = checkSignature(op); !error.empty()) {
      add(op, error);
      usable = false;
    }
    verifyPlace(op, terminator);
    verifyStateUse(op);
    if (usable && verifyTypes(op) && op.def().check)
      if (std::string error = op.def().check(op); !error.empty())
        add(op, error);
    if (op.is(OpKind::fused))
      verifyFused(op);
    else if (op.body)
      add(op, "has a body, which only 'fused' may have");
  }

  void verifyPlace(const Op &op, OpKind terminator) {
    if (op.isOneOf(OpKind::ret, OpKind::yield)) {
      if (!op.is(terminator) || op.next())
        add(op, op.is(terminator) ? "stands before the end" : "does not belong here");
    } else if (terminator == OpKind::yield && op.isOneOf(OpKind::read, OpKind::write, OpKind::fused)) {
      add(op, "may not stand in a fused body");
    }
  }

  void verifyStateUse(const Op &op) {
    if (!op.isOneOf(OpKind::read, OpKind::write)) {
      if (!op.state.empty())
        add(op, "names a state, which only 'read' and 'write' may do");
      return;
    }
    const State *s = states.lookup(op.state);
    if (!s)
      return add(op, fmt::format("names an unknown state @{}", op.state));
    const Value *v = nullptr;
    if (op.is(OpKind::read))
      v = op.numResults() == 1 ? op.result() : nullptr;
    else
      v = op.numOperands() == 1 ? op.operand(0) : nullptr;
    if (v && v->type != s->type)
      add(op, fmt::format("is of type {}, but @{} is of type {}", v->type.str(), s->name, s->type.str()));
  }

  /// Checks number and types of the results. False if they are wrong.
  bool verifyTypes(const Op &op) {
    const OpDef &def = op.def();
    if (!def.infer) {
      bool any = !def.results.empty() && def.results.back() == "...";
      if (any || op.numResults() == def.results.size())
        return true;
      add(op, fmt::format("has {} results, not {}", def.results.size(), op.numResults()));
      return false;
    }
    std::vector<Type> types;
    std::string error;
    if (!def.infer(op, types, error)) {
      add(op, "does not fit its operands: " + error);
      return false;
    }
    bool same = types.size() == op.numResults();
    std::vector<Type> given;
    for (unsigned i = 0; i < op.numResults(); ++i) {
      given.push_back(op.result(i)->type);
      // Passes decide the sharding; infer rules do not know it.
      same = same && types[i].dtype == given[i].dtype && types[i].sameShape(given[i]);
    }
    if (!same)
      add(op, fmt::format("yields {}, not {}", typeList(types), typeList(given)));
    return same;
  }

  void verifyFused(const Op &op) {
    auto countIs = [&](const char *attr, size_t n) {
      if (const Attr *a = op.attrs.find(attr))
        if (const auto *list = std::get_if<std::vector<int64_t>>(a); list && list->size() != n)
          add(op, fmt::format("attribute '{}' has {} entries, not {}", attr, list->size(), n));
    };
    countIs("at", op.numResults());
    countIs("in_place", op.numResults());
    if (const Attr *ws = op.attrs.find("ws"); ws && std::holds_alternative<std::vector<int64_t>>(*ws))
      countIs("ws_at", std::get<std::vector<int64_t>>(*ws).size());
    if (const int64_t *launch = peekFact<&GroupFacts::launch>(op); launch && *launch < 1)
      add(op, "attribute 'launch' is below 1");
    if (!op.body)
      return add(op, "has no body");
    const Block &body = *op.body;
    bool same = body.args.size() == op.numOperands();
    for (unsigned i = 0; same && i < op.numOperands(); ++i)
      same = body.args[i]->type == op.operand(i)->type;
    if (!same)
      add(op, "has a body whose arguments differ from its operands");
    const Op *outer = std::exchange(group, &op);
    verifyBlock(body, OpKind::yield);
    group = outer;
    const Op *last = body.back();
    if (!last || !last->is(OpKind::yield))
      return;
    same = last->numOperands() == op.numResults();
    for (unsigned i = 0; same && i < op.numResults(); ++i)
      same = last->operand(i)->type == op.result(i)->type;
    if (!same)
      add(op, "has a body that yields other types than it has results");
  }
};

}  // namespace

std::vector<std::string> verify(const Module &m) { return Verifier(m).run(); }

}  // namespace gptc
