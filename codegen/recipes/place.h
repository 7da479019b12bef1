// From expression DAGs to statements: every sub-expression is computed once, in the outermost loop where it is known.
#pragma once

#include "ir/kernel/kernel.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <functional>
#include <map>
#include <set>

namespace gptc {

/// Statements under construction. A Let or Alloc added here stays visible to all that is added after it.
class Seq {
public:
  void add(kir::Stmt s);
  void add(const std::vector<kir::Stmt> &s);
  kir::Expr let(const std::string &name, kir::Expr value);
  void let(const kir::Var &v, kir::Expr value);
  void alloc(kir::Buffer b);
  /// The finished statements; empties this.
  std::vector<kir::Stmt> take();

private:
  struct Item {
    kir::Stmt stmt;
    kir::Var var;
    kir::Expr value;
    kir::Buffer buffer;
  };
  std::vector<Item> items;
};

/// Places expressions in nested loops. Open a scope per loop, outermost first, each with the variables that it makes
/// visible and the sequence of its body; `place` then returns what to write in the innermost scope, after adding Lets
///   - to an outer scope for whatever does not depend on the variables inside it (so it must be loadable there: buffers
///     that the kernel writes are only read at the element that is written), and
///   - to the innermost scope for whatever is used twice.
/// Equal expressions become one.
class Placer {
public:
  void push(Seq &seq, llvm::ArrayRef<kir::Var> vars);
  void pop();
  /// A Let in the innermost scope, known to later `place` calls.
  kir::Expr let(const std::string &name, kir::Expr value);
  void let(const kir::Var &v, kir::Expr value);
  /// All roots are needed together. With `bind` each is in a Let, so that stores may follow in any order.
  std::vector<kir::Expr> place(llvm::ArrayRef<kir::Expr> roots, bool bind = true);
  kir::Expr place(const kir::Expr &root) { return place(llvm::ArrayRef<kir::Expr>(root), false)[0]; }
  /// One node for all equal expressions, so that they can be compared by address.
  kir::Expr intern(const kir::Expr &e);

private:
  struct Scope {
    Seq *seq;
    std::map<const kir::ExprNode *, kir::Expr> placed;
  };
  std::vector<Scope> scopes;
  std::map<const kir::ExprNode *, kir::Expr> canonical;
  std::map<std::vector<uint64_t>, kir::Expr> table;
  std::map<const kir::VarNode *, unsigned> depthOfVar;
  std::vector<kir::Expr> keepAlive;
};

/// The expression with `f(node)` in place of each node for which it is not null; shared nodes stay shared.
kir::Expr substitute(const kir::Expr &e, std::map<const kir::ExprNode *, kir::Expr> &memo,
                     const std::function<kir::Expr(const kir::Expr &)> &f);
/// All nodes of a kind below (and at) the roots, operands before users, each once.
std::vector<kir::Expr> collect(llvm::ArrayRef<kir::Expr> roots, const std::function<bool(const kir::Expr &)> &wanted);

}  // namespace gptc
