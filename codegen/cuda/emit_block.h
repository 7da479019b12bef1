// Analyses of a grid loop's block, before the CUDA emitter writes it: the memory that its parts access, its number of
// threads, whether it holds a tile, and the places of its shared memory. Only emit.cpp includes this file.
#pragma once

#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace gptc::cudaBlock {

using namespace kir;

/// The memory that a part of a block reads and writes, for barriers. Parameters of equal size count as one, because
/// they may share memory.
struct Touched {
  using Memory = std::pair<const BufferNode *, int64_t>;  // a shared buffer and 0, or null and a parameter's bytes
  std::set<Memory> read, written;

  void expression(const Expr &e, std::set<const ExprNode *> &seen) {
    if (!e || !seen.insert(e.get()).second)
      return;
    if (e->kind == ExprKind::Load || e->kind == ExprKind::HReduce)
      add(read, e->buffer);
    for (const Expr &a : e->args)
      expression(a, seen);
  }
  void expression(const Expr &e) {
    std::set<const ExprNode *> seen;
    expression(e, seen);
  }
  void statement(const StmtNode &s) {
    for (const Expr &e : {s.begin, s.extent, s.index, s.value})
      expression(e);
    if (s.kind == StmtKind::Store || s.kind == StmtKind::Matmul)
      add(written, s.buffer);
    if (s.kind == StmtKind::Matmul)
      for (const Buffer &b : {s.buffer, s.matmul->a, s.matmul->b})
        add(read, b);
    if (s.kind == StmtKind::Attention)
      add(read, s.buffer), add(written, s.buffer);
    for (const std::vector<Stmt> *list : {&s.body, &s.orelse})
      for (const Stmt &c : *list)
        statement(*c);
  }
  void merge(const Touched &o) {
    read.insert(o.read.begin(), o.read.end());
    written.insert(o.written.begin(), o.written.end());
  }
  bool clashes(const Touched &later) const {
    auto meet = [](const auto &a, const auto &b) { return llvm::any_of(a, [&](auto &x) { return b.count(x) != 0; }); };
    return meet(written, later.read) || meet(written, later.written) || meet(read, later.written);
  }
  bool empty() const { return read.empty() && written.empty(); }

private:
  static void add(std::set<Memory> &to, const Buffer &b) {
    if (b->storage == Storage::global)
      to.insert({nullptr, b->size * int64_t(sizeOf(b->dtype))});
    else if (b->storage == Storage::shared)
      to.insert({b.get(), 0});
  }
};

/// Threads of a block: the most that a block_thread loop, matmul or attention statement at or below `s` has.
inline int64_t threadsOf(const StmtNode &s) {
  if (s.kind == StmtKind::Attention)
    return s.attention->threads;
  int64_t n = s.kind == StmtKind::Matmul ? s.matmul->threads : 0;
  if (s.kind == StmtKind::For && s.loop == LoopKind::block_thread)
    GPTC_CHECK(isImm(s.extent, &n), "threads of {}", s.var->name);
  for (const std::vector<Stmt> *list : {&s.body, &s.orelse})
    for (const Stmt &c : *list)
      n = std::max(n, threadsOf(*c));
  return n;
}

/// Threads that the blocks of a phase have: whole warps.
inline int blockThreads(const StmtNode &phase) { return int((std::max<int64_t>(threadsOf(phase), 1) + 31) / 32 * 32); }

/// So few blocks do not wait for room on a multiprocessor of a GPU that trains: it has more of these.
constexpr int64_t fewBlocks = 32;

/// Whether `s` contains a matmul or attention statement, or the threads hold as much in registers.
inline bool holdsTile(const StmtNode &s) {
  constexpr int64_t much = 64;  // elements
  auto inStmt = [](const Stmt &t) { return holdsTile(*t); };
  return s.kind == StmtKind::Matmul || s.kind == StmtKind::Attention ||
         (s.kind == StmtKind::Alloc && s.buffer->storage == Storage::reg && s.buffer->size >= much) ||
         llvm::any_of(s.body, inStmt) || llvm::any_of(s.orelse, inStmt);
}

/// Lays out all shared buffers below `s` in one piece of memory: `places` gets each one's first byte, a multiple of 128
/// after the initial `bytes`, and `bytes` the end.
inline void placeShared(const StmtNode &s, llvm::DenseMap<const BufferNode *, int64_t> &places, int64_t &bytes) {
  if (s.kind == StmtKind::Alloc && s.buffer->storage == Storage::shared &&
      places.try_emplace(s.buffer.get(), bytes).second)
    bytes += (s.buffer->size * int64_t(sizeOf(s.buffer->dtype)) + 127) / 128 * 128;
  if (s.kind == StmtKind::Attention)  // its body only defines its meaning and is not emitted
    return;
  for (const std::vector<Stmt> *list : {&s.body, &s.orelse})
    for (const Stmt &c : *list)
      placeShared(*c, places, bytes);
}

}  // namespace gptc::cudaBlock
