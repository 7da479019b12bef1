// Turns expression DAGs into statements: each sub-expression is computed once, in the outermost loop that knows its
// variables.
#pragma once

#include "ir/kernel/kernel.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <functional>
#include <map>
#include <set>

namespace gptc {

/// A sequence of statements under construction. A Let or Alloc is visible to all statements added after it.
class Seq {
public:
  void add(kir::Stmt s);
  void add(const std::vector<kir::Stmt> &s);
  kir::Expr let(const std::string &name, kir::Expr value);
  void let(const kir::Var &v, kir::Expr value);
  void alloc(kir::Buffer b);
  /// Returns the finished statements and empties the sequence.
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

/// Places expressions in nested loops. Open one scope per loop, outermost first, with the loop's variables and the
/// sequence of its body. `place` then returns the expressions to write in the innermost scope. It adds Lets
///   - to an outer scope for a sub-expression that does not depend on variables of inner scopes. No load may
///     move to where it would read another value: of a buffer that it writes, a kernel reads only the element that it
///     writes next;
///   - to its scope for a sub-expression that is used more than once.
/// Equal expressions become one node.
class Placer {
public:
  void push(Seq &seq, llvm::ArrayRef<kir::Var> vars);
  void pop();
  /// Adds a Let to the innermost scope. Later `place` calls may use its variable.
  kir::Expr let(const std::string &name, kir::Expr value);
  void let(const kir::Var &v, kir::Expr value);
  /// Places the roots together. With `bind` each root gets a Let, so that stores may follow in any order.
  std::vector<kir::Expr> place(llvm::ArrayRef<kir::Expr> roots, bool bind = true);
  kir::Expr place(const kir::Expr &root) { return place(llvm::ArrayRef<kir::Expr>(root), false)[0]; }
  /// The one node that stands for all expressions equal to `e`, so that expressions compare by address.
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

/// `e` with each node for which f(node) is not null replaced by f(node). Shared nodes stay shared.
kir::Expr substitute(const kir::Expr &e, std::map<const kir::ExprNode *, kir::Expr> &memo,
                     const std::function<kir::Expr(const kir::Expr &)> &f);
/// All nodes at or below the roots for which `wanted` is true, operands before users, each once.
std::vector<kir::Expr> collect(llvm::ArrayRef<kir::Expr> roots, const std::function<bool(const kir::Expr &)> &wanted);

}  // namespace gptc
