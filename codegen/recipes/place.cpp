#include "codegen/recipes/place.h"

#include "support/diagnostics.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/bit.h"

namespace gptc {

using namespace kir;

// ---- Seq ------------------------------------------------------------------------------------------------------------

void Seq::add(Stmt s) { items.push_back({std::move(s), nullptr, nullptr, nullptr}); }

void Seq::add(const std::vector<Stmt> &s) {
  for (const Stmt &stmt : s)
    add(stmt);
}

Expr Seq::let(const std::string &name, Expr value) {
  Var v = makeVar(name, value->dtype);
  let(v, std::move(value));
  return kir::ref(v);
}

void Seq::let(const Var &v, Expr value) { items.push_back({nullptr, v, std::move(value), nullptr}); }

void Seq::alloc(Buffer b) { items.push_back({nullptr, nullptr, nullptr, std::move(b)}); }

std::vector<Stmt> Seq::take() {
  std::vector<Stmt> reversed;
  auto body = [&] { return std::vector<Stmt>(reversed.rbegin(), reversed.rend()); };
  for (auto it = items.rbegin(); it != items.rend(); ++it) {
    if (it->stmt)
      reversed.push_back(std::move(it->stmt));
    else if (it->var)
      reversed = {kir::let(it->var, std::move(it->value), body())};
    else
      reversed = {kir::alloc(it->buffer, body())};
  }
  items.clear();
  return body();
}

// ---- Placer ---------------------------------------------------------------------------------------------------------

void Placer::push(Seq &seq, llvm::ArrayRef<Var> vars) {
  for (const Var &v : vars) {
    keepAlive.push_back(kir::ref(v));
    depthOfVar[v.get()] = scopes.size();
  }
  scopes.push_back({&seq, {}});
}

void Placer::pop() { scopes.pop_back(); }

Expr Placer::let(const std::string &name, Expr value) {
  Var v = makeVar(name, value->dtype);
  let(v, std::move(value));
  return kir::ref(v);
}

void Placer::let(const Var &v, Expr value) {
  scopes.back().seq->let(v, std::move(value));
  depthOfVar[v.get()] = scopes.size() - 1;
  keepAlive.push_back(kir::ref(v));
}

Expr Placer::intern(const Expr &e) {
  if (auto it = canonical.find(e.get()); it != canonical.end())
    return it->second;
  auto bits = [](const void *p) { return reinterpret_cast<uint64_t>(p); };
  std::vector<uint64_t> key = {uint64_t(e->kind) | uint64_t(e->dtype) << 8 | uint64_t(e->uop) << 16 |
                                   uint64_t(e->bop) << 24 | uint64_t(e->axis) << 32,
                               uint64_t(e->ival),
                               llvm::bit_cast<uint64_t>(e->fval),
                               uint64_t(e->fold),
                               bits(e->var.get()),
                               bits(e->buffer.get())};
  std::vector<Expr> args;
  for (const Expr &a : e->args) {
    args.push_back(intern(a));
    key.push_back(bits(args.back().get()));
  }
  Expr &known = table[key];
  if (!known) {
    known = e;
    if (args != e->args) {
      auto copy = std::make_shared<ExprNode>(*e);
      copy->args = std::move(args);
      known = copy;
    }
    canonical[known.get()] = known;
  }
  keepAlive.push_back(e);
  return canonical[e.get()] = known;
}

static bool isLeaf(const Expr &e) {
  return e->kind == ExprKind::IntImm || e->kind == ExprKind::FloatImm || e->kind == ExprKind::Var ||
         e->kind == ExprKind::Lane;
}

/// Whether the value may change from statement to statement: a load from registers or a stack or shared buffer.
static bool isChanging(const Expr &e) {
  return e->kind == ExprKind::HReduce ||
         ((e->kind == ExprKind::Load || e->kind == ExprKind::LoadPair) && e->buffer->storage != Storage::global);
}

/// Index arithmetic such as base + lane. It stays inside the load or store, so that the emitter sees contiguous
/// accesses.
static bool isIndex(const Expr &e) {
  return e->kind == ExprKind::Binary && e->dtype == DType::i64 &&
         (e->bop == BinaryOp::add || e->bop == BinaryOp::sub || e->bop == BinaryOp::mul) &&
         llvm::all_of(e->args, [](const Expr &a) { return isLeaf(a) || isIndex(a); });
}

std::vector<Expr> Placer::place(llvm::ArrayRef<Expr> given, bool bind) {
  GPTC_CHECK(!scopes.empty(), "no scope");
  const unsigned top = scopes.size() - 1;
  std::vector<Expr> roots;
  for (const Expr &e : given)
    roots.push_back(intern(e));
  std::vector<Expr> nodes = collect(roots, [](const Expr &) { return true; });

  // For each node the scope in which it stands, the innermost scope that uses it, and its number of uses.
  struct Info {
    unsigned depth = 0, userDepth = 0, uses = 0;
    bool changing = false;
    Expr placed;
  };
  std::map<const ExprNode *, Info> info;
  for (const Expr &e : nodes) {
    Info &n = info[e.get()];
    n.changing = isChanging(e);
    for (const Expr &a : e->args) {
      n.depth = std::max(n.depth, info[a.get()].depth);
      n.changing |= info[a.get()].changing;
    }
    if (e->kind == ExprKind::Var) {
      auto it = depthOfVar.find(e->var.get());
      GPTC_CHECK(it != depthOfVar.end() && it->second <= top, "variable {} is in no open scope", e->var->name);
      n.depth = it->second;
    }
    if (n.changing || e->kind == ExprKind::Lane)
      n.depth = top;
    for (const Expr &a : e->args) {
      ++info[a.get()].uses;
      info[a.get()].userDepth = std::max(info[a.get()].userDepth, n.depth);
    }
  }
  for (const Expr &e : roots) {
    ++info[e.get()].uses;
    info[e.get()].userDepth = top;
  }

  for (const Expr &e : nodes) {
    Info &n = info[e.get()];
    n.placed = e;
    if (isLeaf(e))
      continue;
    Scope &scope = scopes[n.depth];
    if (auto it = scope.placed.find(e.get()); it != scope.placed.end()) {
      n.placed = it->second;
      continue;
    }
    std::vector<Expr> args;
    for (const Expr &a : e->args)
      args.push_back(info[a.get()].placed);
    if (args != e->args) {
      auto copy = std::make_shared<ExprNode>(*e);
      copy->args = std::move(args);
      n.placed = copy;
    }
    bool hoisted = n.depth < n.userDepth;
    if (hoisted || (n.uses > 1 && !isIndex(n.placed))) {
      Expr v = scope.seq->let("t", n.placed);
      depthOfVar[v->var.get()] = n.depth;
      keepAlive.push_back(v);
      if (!n.changing)
        scope.placed[e.get()] = v;
      n.placed = v;
    }
  }
  std::vector<Expr> out;
  for (const Expr &e : roots) {
    Info &n = info[e.get()];
    if (bind && !isLeaf(n.placed))
      n.placed = let("r", n.placed);
    out.push_back(n.placed);
  }
  return out;
}

// ---- expression utilities -------------------------------------------------------------------------------------------

Expr substitute(const Expr &e, std::map<const ExprNode *, Expr> &memo, const std::function<Expr(const Expr &)> &f) {
  if (auto it = memo.find(e.get()); it != memo.end())
    return it->second;
  Expr out = f(e);
  if (!out) {
    out = e;
    if (!e->args.empty()) {
      auto copy = std::make_shared<ExprNode>(*e);
      bool changed = false;
      for (Expr &a : copy->args) {
        Expr to = substitute(a, memo, f);
        changed |= to != a;
        a = to;
      }
      if (changed)
        out = copy;
    }
  }
  return memo[e.get()] = out;
}

std::vector<Expr> collect(llvm::ArrayRef<Expr> roots, const std::function<bool(const Expr &)> &wanted) {
  std::vector<Expr> out;
  std::set<const ExprNode *> seen;
  std::function<void(const Expr &)> visit = [&](const Expr &e) {
    if (!seen.insert(e.get()).second)
      return;
    for (const Expr &a : e->args)
      visit(a);
    if (wanted(e))
      out.push_back(e);
  };
  for (const Expr &e : roots)
    visit(e);
  return out;
}

}  // namespace gptc
