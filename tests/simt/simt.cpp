#include "simt.h"

#include "ir/kernel/eval.h"
#include "shim/simt_abi.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>

// Goes on at the top `to` of another stack; *from becomes the top of this one. As swapcontext(), but that asks the
// kernel for the signal mask twice, which took a quarter of the time of these tests.
extern "C" void simtSwitch(void **from, void *to);
static constexpr int switchedRegisters = 6;
asm(R"(
  .text
  .globl simtSwitch
  .hidden simtSwitch
  .type simtSwitch, @function
simtSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size simtSwitch, .-simtSwitch
)");

namespace {

struct Failure {
  std::string what;
};
template <typename... A> [[noreturn]] void fail(fmt::format_string<A...> f, A &&...a) {
  throw Failure{fmt::format(f, std::forward<A>(a)...)};
}

/// Who touched a byte last.
struct Touch {
  int64_t block = -1;  // -1: nobody; `several`: threads of more than one block
  int thread = -1;     // `several`: more than one of that block, since that epoch
  int epoch = 0;       // barriers that the block had passed
};
constexpr int several = -2;

}  // namespace

struct SimtMemory {
  std::string name;
  std::byte *data;
  int64_t bytes;
  bool mayWrite, isShared;
  struct Byte {
    Touch writer, reader;
    bool underWay = false;  // an asynchronous copy will store to it
  };
  std::shared_ptr<std::vector<Byte>> seen;  // one for all that share memory; null: not watched
};

namespace {

constexpr int warpSize = 32;
constexpr size_t stackBytes = 128 << 10;

enum class Wait : uint8_t { nothing, barrier, shuffle, done };

/// An asynchronous copy under way, and the number of commits of its thread before it.
struct Copy {
  SimtMemory *to;
  int64_t at;
  const std::byte *from;  // null: zeros only
  int bytes, valid;
  int group;
};

struct Fiber {
  void *at = nullptr;  // top of its stack where it waits; null: none of its own yet
  std::vector<char> stack;
  Wait wait = Wait::nothing;
  int line = 0;
  int parity = 0;  // of shuffles
  std::vector<Copy> copies;
  int commits = 0;
  bool hasWaited = false, hasAccessed = false;  // for the kernels in front; global memory before it has
};

constexpr int slotBytes = 32;
/// What the lanes of a warp show each other.
using Slots = std::array<std::array<std::byte, slotBytes>, warpSize>;

struct Block {
  int64_t number;
  int threads;
  int64_t sharedBytes = 0;  // that the launch gives
  int epoch = 0;
  int current = 0;  // thread that runs
  void *scheduler = nullptr;
  std::vector<Fiber> &fibers;
  std::map<std::string, std::unique_ptr<SimtMemory>> shared;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::array<Slots, 2>> swapped;  // per warp
  gptc::simt::HostModule::Thread kernel;
  SimtMemory *const *params;
  std::function<SimtMemory *(uint64_t)> resolve;  // of an address; null where nothing begins
  std::map<int, int> any;                         // by epoch: what threads have said at the barrier that ends it
  std::string failure;
  bool allWaited = true;

  Block(std::vector<Fiber> &fibers) : fibers(fibers) {}

  void pause(Wait why, int line) {
    Fiber &f = fibers[current];
    f.wait = why;
    f.line = line;
    simtSwitch(&f.at, scheduler);
  }
};

Block *running = nullptr;

/// Runs kernel after kernel.
void fiberMain() {
  while (true) {
    Block &b = *running;
    try {
      b.kernel(b.params);
      b.allWaited &= b.fibers[b.current].hasWaited;
      if (!b.fibers[b.current].copies.empty())
        fail("ends while copies to {} are under way", b.fibers[b.current].copies[0].to->name);
    } catch (const Failure &f) {
      b.failure = fmt::format("thread {} of block {}: {}", b.current, b.number, f.what);
    }
    b.pause(Wait::done, 0);
  }
}

/// The top of a stack from which simtSwitch() begins fiberMain().
void *beginning(std::vector<char> &stack) {
  auto *top = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(stack.data() + stack.size()) & ~uintptr_t(15));
  *--top = nullptr;  // where fiberMain() would return to
  *--top = reinterpret_cast<void *>(&fiberMain);
  for (int i = 0; i < switchedRegisters; ++i)
    *--top = nullptr;
  return top;
}

std::string describe(const Touch &t) {
  return t.block == several    ? "other blocks"
         : t.thread == several ? fmt::format("other threads of block {}", t.block)
                               : fmt::format("thread {} of block {}", t.thread, t.block);
}

void touch(SimtMemory &m, int64_t at, bool writes) {
  if (!m.seen)
    return;
  Block &b = *running;
  SimtMemory::Byte &s = (*m.seen)[at];
  auto ordered = [&](const Touch &t) {
    return t.block == -1 || (t.block == b.number && (t.thread == b.current || t.epoch < b.epoch));
  };
  if (s.underWay)
    fail("{} byte {} of {}, where a copy is under way", writes ? "stores to" : "reads", at, m.name);
  if (m.isShared && !writes && s.writer.block == -1)
    fail("reads byte {} of shared {}, to which nobody has stored", at, m.name);
  if (!ordered(s.writer))
    fail("race: {} byte {} of {}, to which {} stores", writes ? "stores to" : "reads", at, m.name, describe(s.writer));
  if (writes && !ordered(s.reader))
    fail("race: stores to byte {} of {}, which {} read", at, m.name, describe(s.reader));
  const Touch now{b.number, b.current, b.epoch};
  if (writes) {
    s.writer = now;
  } else if (s.reader.block == -1 || (s.reader.block == b.number && s.reader.epoch < b.epoch)) {
    s.reader = now;
  } else if (s.reader.block != b.number) {
    s.reader.block = several;
  } else if (s.reader.thread != b.current) {
    s.reader.thread = several;
  }
}

void access(SimtMemory &m, int64_t offset, int64_t bytes, bool writes) {
  if (offset < 0 || offset + bytes > m.bytes)
    fail("{} bytes {} to {} of {}, which has {}", writes ? "stores to" : "reads", offset, offset + bytes - 1, m.name,
         m.bytes);
  Fiber &f = running->fibers[running->current];
  f.hasAccessed |= !m.isShared && !f.hasWaited;
  if (writes && !m.mayWrite)
    fail("stores to {}, which is only read", m.name);
  for (int64_t i = 0; i < bytes; ++i)
    touch(m, offset + i, writes);
}

/// Shows the other lanes of the warp some bytes and returns theirs, when all have come to this line.
const Slots &meet(const void *mine, int bytes, int line) {
  Block &b = *running;
  const int thread = b.current;
  Fiber &f = b.fibers[thread];
  // Lanes may be at the next meeting while others still read what this one has shown, but not at the one after.
  Slots &slots = b.swapped[thread / warpSize][f.parity];
  f.parity ^= 1;
  std::memcpy(&slots[thread % warpSize], mine, bytes);
  b.pause(Wait::shuffle, line);
  return slots;
}

/// Lets every thread run until it waits; releases those whose companions are all there.
void runBlock(Block &b, bool backwards) {
  running = &b;
  for (int t = 0; t < b.threads; ++t) {
    Fiber &f = b.fibers[t];
    if (!f.at || f.wait != Wait::done)  // a failure of another thread left it within a kernel
      f.at = beginning(f.stack);
    f.wait = Wait::nothing;
    f.parity = 0;
    f.copies.clear();
    f.commits = 0;
    f.hasWaited = f.hasAccessed = false;
  }
  while (true) {
    for (int i = 0; i < b.threads; ++i) {
      b.current = backwards ? b.threads - 1 - i : i;
      if (b.fibers[b.current].wait != Wait::nothing)
        continue;
      simtSwitch(&b.scheduler, b.fibers[b.current].at);
      if (!b.failure.empty())
        return;
    }
    // All wait or are done. Warps whose lanes are all at one shuffle go on, then the block where all are at one
    // barrier.
    auto together = [&](int from, int to, Wait what) {
      for (int t = from; t < to; ++t)
        if (b.fibers[t].wait != what || b.fibers[t].line != b.fibers[from].line)
          return false;
      for (int t = from; t < to && what != Wait::done; ++t)
        b.fibers[t].wait = Wait::nothing;
      return true;
    };
    bool any = false;
    for (int w = 0; w < b.threads; w += warpSize)
      any |= together(w, std::min(w + warpSize, b.threads), Wait::shuffle);
    if (any)
      continue;
    if (together(0, b.threads, Wait::barrier)) {
      ++b.epoch;
      continue;
    }
    int waiting = 0, first = -1;
    for (int t = 0; t < b.threads; ++t)
      if (b.fibers[t].wait != Wait::done) {
        ++waiting;
        first = first < 0 ? t : first;
      }
    if (waiting)
      b.failure = fmt::format("block {}: {} of {} threads wait for ever, thread {} at the {} of line {}", b.number,
                              waiting, b.threads, first, b.fibers[first].wait == Wait::barrier ? "barrier" : "shuffle",
                              b.fibers[first].line);
    return;
  }
}

}  // namespace

extern "C" {

int simtBlock() { return int(running->number); }
int simtThread() { return running->current; }
void simtWaitForPrevious() { running->fibers[running->current].hasWaited = true; }
void simtLetNextStart() {
  const Fiber &f = running->fibers[running->current];
  if (!f.hasWaited || f.hasAccessed)
    fail("lets the next kernel start, and has not waited for those in front before its first access");
}
void simtBarrier(int line) { running->pause(Wait::barrier, line); }
int simtBarrierOr(int value, int line) {
  Block &b = *running;
  int &any = b.any[b.epoch];  // a map: the place stays
  any |= value;
  b.pause(Wait::barrier, line);
  return any;
}

void simtShuffleXor(void *value, int bytes, int mask, int line) {
  const Slots &slots = meet(value, bytes, line);
  std::memcpy(value, &slots[(running->current % warpSize) ^ mask], bytes);
}
void simtGather(const void *mine, int bytes, void *all, int line) {
  const Slots &slots = meet(mine, bytes, line);
  for (int l = 0; l < warpSize; ++l)
    std::memcpy(static_cast<std::byte *>(all) + l * bytes, &slots[l], bytes);
}

void simtMma(int kind, float *c, const unsigned *a, const unsigned *b, int line) {
  struct Operands {
    unsigned a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Slots &slots = meet(&mine, sizeof mine, line);
  const int lane = running->current % warpSize, steps = kind == simtMmaTF32 ? 8 : 16;
  // Rows of a and columns of b, by the fragments of the PTX ISA: element (row, k) of a is with the lane of group
  // row % 8, in the register for the upper or lower half of the rows and of k.
  auto element = [&](const unsigned *registers, int k, int perHalf) {
    if (kind == simtMmaTF32)
      return std::bit_cast<float>(registers[k / 4 * perHalf] & 0xffffe000);
    const auto bits = uint16_t(registers[k / 8 * perHalf] >> k % 2 * 16);
    return kind == simtMmaBF16 ? gptc::kir::floatOfBF16(bits) : gptc::kir::floatOfF16(bits);
  };
  float rows[2][16], columns[2][16];
  for (int k = 0; k < steps; ++k) {
    const int member = kind == simtMmaTF32 ? k % 4 : k % 8 / 2;
    for (int half = 0; half < 2; ++half) {
      Operands row, column;
      std::memcpy(&row, &slots[lane / 4 * 4 + member], sizeof row);
      std::memcpy(&column, &slots[(lane % 4 * 2 + half) * 4 + member], sizeof column);
      rows[half][k] = element(row.a + half, k, 2);
      columns[half][k] = element(column.b, k, 1);
    }
  }
  for (int i = 0; i < 4; ++i)
    c[i] = gptc::kir::evalMma(c[i], rows[i / 2], columns[i % 2], steps);
}

void simtAsyncCopy(SimtMemory *to, long long at, SimtMemory *from, long long offset, int bytes, int valid) {
  if (valid < 0 || valid > bytes)
    fail("a copy of {} bytes, {} of them valid", bytes, valid);
  if (offset % bytes)
    fail("a copy of {} bytes from byte {} of {} is not aligned", bytes, offset, from->name);
  const std::byte *source = nullptr;
  if (valid) {
    access(*from, offset, valid, false);
    source = from->data + offset;
  }
  if (at % bytes)
    fail("a copy of {} bytes to byte {} of {} is not aligned", bytes, at, to->name);
  access(*to, at, bytes, true);
  std::memset(to->data + at, 0xff, bytes);
  for (int i = 0; i < bytes; ++i)
    (*to->seen)[at + i].underWay = true;
  Fiber &f = running->fibers[running->current];
  f.copies.push_back({to, at, source, bytes, valid, f.commits});
}
void simtAsyncCommit() { ++running->fibers[running->current].commits; }
void simtAsyncWait(int groups) {
  Fiber &f = running->fibers[running->current];
  std::erase_if(f.copies, [&](const Copy &c) {
    if (c.group >= f.commits - groups)
      return false;
    std::memset(c.to->data + c.at, 0, c.bytes);
    if (c.valid)
      std::memcpy(c.to->data + c.at, c.from, c.valid);
    for (int i = 0; i < c.bytes; ++i) {
      (*c.to->seen)[c.at + i].underWay = false;
      touch(*c.to, c.at + i, true);
    }
    return true;
  });
}

void *simtAccess(SimtMemory *m, long long offset, long long bytes, int writes) {
  if (offset % std::min<long long>(bytes, 16))
    fail("an access of {} bytes at byte {} of {} is not aligned", bytes, offset, m->name);
  access(*m, offset, bytes, writes);
  return m->data + offset;
}

SimtMemory *simtGlobalAt(unsigned long long address) {
  SimtMemory *m = running->resolve ? running->resolve(address) : nullptr;
  if (!m)
    fail("nothing begins at address {:#x}", address);
  return m;
}

SimtMemory *simtShared(const char *name, long long bytes) {
  Block &b = *running;
  std::unique_ptr<SimtMemory> &m = b.shared[name];
  if (!m) {
    b.memory.emplace_back(bytes, std::byte(0xff));
    m = std::make_unique<SimtMemory>(SimtMemory{name, b.memory.back().data(), bytes, true, true,
                                                std::make_shared<std::vector<SimtMemory::Byte>>(bytes)});
  }
  return m.get();
}

SimtMemory *simtDynamicShared(const char *name, long long bytes, long long offset) {
  if (offset % 128 || offset + bytes > running->sharedBytes)
    fail("{} takes bytes {} to {} of the {} that the launch gives", name, offset, offset + bytes, running->sharedBytes);
  return simtShared(name, bytes);
}

void simtFail(const char *what) { fail("{}", what); }
unsigned short simtBitsOfBF16(float v) {  // denormals stay
  const auto u = std::bit_cast<uint32_t>(v);
  return (unsigned short)(v != v ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
unsigned simtRoundTF32(float v) { return std::bit_cast<unsigned>(gptc::kir::roundTF32(v)); }
unsigned short simtBitsOfF16(float v) { return gptc::kir::bitsOfF16(gptc::kir::roundF16(v)); }
float simtFloatOfF16(unsigned short v) { return gptc::kir::floatOfF16(v); }

}  // extern "C"

namespace gptc::simt {

bool allWaited = false;

std::string launch(HostModule::Thread kernel, const std::vector<Param> &params, int64_t blocks, int threads,
                   bool backwards, int64_t sharedBytes, const Resolve &resolve) {
  std::vector<std::unique_ptr<SimtMemory>> memory;
  std::vector<SimtMemory *> pointers;
  std::map<void *, std::shared_ptr<std::vector<SimtMemory::Byte>>> seen;
  auto make = [&](const Param &p) {
    std::shared_ptr<std::vector<SimtMemory::Byte>> s;
    if (p.watched) {
      auto &known = seen[p.data];
      if (!known)
        known = std::make_shared<std::vector<SimtMemory::Byte>>();
      known->resize(std::max<size_t>(known->size(), p.bytes));
      s = known;
    }
    memory.push_back(std::make_unique<SimtMemory>(
        SimtMemory{p.name, static_cast<std::byte *>(p.data), p.bytes, p.written, false, s}));
    return memory.back().get();
  };
  for (const Param &p : params)
    pointers.push_back(make(p));
  std::map<uint64_t, SimtMemory *> resolved;
  auto find = [&](uint64_t address) {
    auto [it, isNew] = resolved.try_emplace(address, nullptr);
    if (isNew)
      if (const std::optional<Param> p = resolve(address))
        it->second = make(*p);
    return it->second;
  };
  allWaited = true;
  static std::vector<Fiber> fibers;
  while (int(fibers.size()) < threads)
    fibers.emplace_back().stack.resize(stackBytes);
  for (int64_t i = 0; i < blocks; ++i) {
    Block b(fibers);
    b.number = backwards ? blocks - 1 - i : i;
    b.threads = threads;
    b.sharedBytes = sharedBytes;
    b.kernel = kernel;
    b.params = pointers.data();
    if (resolve)
      b.resolve = find;
    b.swapped.resize((threads + warpSize - 1) / warpSize);
    runBlock(b, backwards);
    running = nullptr;
    allWaited &= b.allWaited;
    if (!b.failure.empty())
      return b.failure;
  }
  return "";
}

}  // namespace gptc::simt
