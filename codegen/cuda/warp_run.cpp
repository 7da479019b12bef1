#include "codegen/cuda/warp_run.h"

#include "codegen/cuda/warp_state.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <optional>
#include <set>

namespace gptc {

using llvm::StringRef;

namespace {

constexpr int64_t mostInstructions = 4'000'000;
constexpr uint64_t sectorBytes = 32;
constexpr double cacheLatency = 35, branchCycles = 6, barrierCycles = 20;

/// Of one instruction: cycles until its result can be used, and cycles of pipes.
struct Cost {
  double latency = 4;
  WarpPipes pipes;
};

Cost costOf(const SassInstruction &i, int fp32Lanes) {
  enum class Pipe { alu, fma, product, fp64, xu, global, shared, shuffle, constant, special, tensor, none };
  const StringRef op = i.opcode;
  const Pipe pipe = llvm::StringSwitch<Pipe>(op)
                        .Cases("FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2", Pipe::fma)
                        .Cases("IMAD", "IDP", Pipe::product)
                        .Cases("DADD", "DMUL", "DFMA", "DSETP", Pipe::fp64)
                        .Cases("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", Pipe::xu)
                        .Cases("LDG", "LD", "LDL", "STG", "ST", "STL", "ATOMG", "RED", "LDGSTS", Pipe::global)
                        .Cases("LDS", "STS", "LDSM", "STSM", "ATOMS", Pipe::shared)
                        .Cases("SHFL", "REDUX", Pipe::shuffle)
                        .Cases("LDC", "LDCU", Pipe::constant)
                        .Cases("S2R", "S2UR", "R2UR", Pipe::special)
                        .Cases("HMMA", "IMMA", "DMMA", Pipe::tensor)
                        .Cases("BRA", "EXIT", "BSSY", "BSYNC", "NOP", "BREAK", "WARPSYNC", "CALL", "RET", Pipe::none)
                        .Cases("BAR", "MEMBAR", "DEPBAR", "LDGDEPBAR", "YIELD", "ERRBAR", "CCTL", Pipe::none)
                        .Default(op.starts_with("U") ? Pipe::none : Pipe::alu);
  // 32 lanes of a word take the SM's path to memory one cycle, which its four quarters share.
  const double words = 4.0 * std::max(1, accessBytes(i) / 4);
  Cost c;
  c.pipes.issue = 1;
  switch (pipe) {
  case Pipe::alu:
    c.pipes.alu = 2;
    break;
  case Pipe::fma:
    c.pipes.fma = 128.0 / fp32Lanes;
    break;
  case Pipe::product:
    c.pipes.fma = 2, c.latency = 5;
    break;
  case Pipe::fp64:
    c.pipes.fp64 = 2, c.latency = 8;
    break;
  case Pipe::xu:
    c.pipes.xu = 8, c.latency = 18;
    break;
  case Pipe::global:
    c.pipes.memory = words;
    break;
  case Pipe::shared:
    c.pipes.memory = words, c.latency = 29;
    break;
  case Pipe::shuffle:
    c.pipes.memory = 4, c.latency = 24;
    break;
  case Pipe::constant:
    c.latency = 30;
    break;
  case Pipe::special:
    c.latency = 20;
    break;
  case Pipe::tensor:
    c.pipes.tensor = i.has("16816") ? 8 : 4, c.latency = 32;
    break;
  case Pipe::none:
    break;
  }
  return c;
}

/// What a load from a parameter gives: an index, or a number around one half.
uint32_t plausible(const WarpLaunch::Parameter &p, uint64_t address) {
  const DType t = p.dtype;
  if (t == DType::i32 && p.growth >= 0)
    return uint32_t(p.growth * double(WarpState::placeInMemory(address) / 4));
  const auto hash = uint32_t((address / 4 + 1) * 0x9e3779b97f4a7c15ull >> 40);
  switch (t) {
  case DType::i32:
    return hash % 4096;
  case DType::i64:
    return address % 8 ? 0 : hash % 4096;
  case DType::f64:
    return address % 8 ? 0x3fe00000u : hash;
  case DType::f32:
    return 0x3f000000u | (hash & 0x1fffff);
  default:  // two of 16 bits
    return 0x3f003f00u | (hash & 0x1f) | (hash & 0x1f00) << 8;
  }
}

class Warp {
public:
  Warp(const SassFunction &f, const WarpLaunch &launch) : f(f), launch(launch), state(launch) {}

  WarpRun run() {
    size_t pc = 0;
    while (pc < f.code.size() && !ended) {
      if (result.instructions >= mostInstructions) {
        result.isCut = true;
        break;
      }
      pc = step(pc);
    }
    result.cycles = std::max(now, state.lastReady());
    result.loadsInFlight = loading > 0 ? loadCycles / loading : 0;
    for (const auto &[at, access] : accesses)
      result.accesses.push_back(access);
    return std::move(result);
  }

private:
  const SassFunction &f;
  const WarpLaunch &launch;
  WarpState state;
  WarpRun result;
  std::map<size_t, WarpAccess> accesses;   // by instruction
  std::map<int64_t, Value> local;          // words of local memory
  llvm::DenseMap<uint64_t, int64_t> uses;  // sectors in the cache, by when they were used last
  std::map<int64_t, uint64_t> byUse;
  int64_t clock = 0;
  llvm::SmallVector<size_t, 4> calls;
  double now = 0;
  double loadCycles = 0, loading = 0, loadedUntil = 0;  // cycles of all loads, and with at least one under way
  bool ended = false;

  size_t step(size_t pc) {
    const SassInstruction &i = f.code[pc];
    Predicate guard;
    guard.bits.fill(true);
    double start = now;
    if (i.isGuarded) {
      guard = state.readPredicate(i.guard);
      start = std::max(start, state.readyOf(i.guard, 1));
    }
    for (size_t k = destinationsOf(i); k < i.operands.size(); ++k)
      start = std::max(start, state.readyOf(i.operands[k], registersOf(i, k)));
    now = start + 1;
    ++result.instructions;
    const bool runs = !guard.isKnown || guard.bits[0];
    const Cost cost = costOf(i, launch.fp32Lanes);
    if (runs)
      result.pipes += cost.pipes;
    else
      result.pipes.issue += 1;
    if (i.opcode == "BRA")
      return branch(i, pc, guard);
    if (!runs)
      return pc + 1;
    if (const std::optional<size_t> to = control(i, pc, guard))
      return *to;
    const StringRef op = i.opcode;
    if (op == "LDG" || op == "LD" || op == "STG" || op == "ST")
      access(i, pc, start);
    else if (op == "LDL" || op == "STL")
      accessLocal(i, start);
    else if (op == "LDS")
      give(i, start + cost.latency, [](size_t, size_t) { return 0x3f000000u; });
    else
      computeInWarp(i, state, start + cost.latency);
    return pc + 1;
  }

  size_t branch(const SassInstruction &i, size_t pc, Predicate taken) {
    if (i.operands.size() > 1 && WarpState::isPredicate(i.operands[0])) {
      const Predicate also = state.readPredicate(i.operands[0]);
      taken.isKnown &= also.isKnown;
      taken.bits[0] &= also.bits[0];
    }
    result.unknownBranches += !taken.isKnown;
    if (!taken.isKnown || !taken.bits[0])
      return pc + 1;
    now += branchCycles;
    ended |= i.target < 0 || size_t(i.target) == pc;
    return size_t(std::max(i.target, 0));
  }

  std::optional<size_t> control(const SassInstruction &i, size_t pc, const Predicate &guard) {
    const StringRef op = i.opcode;
    if (op == "EXIT") {
      result.unknownBranches += !guard.isKnown;
      ended |= guard.isKnown;
      return pc + 1;
    }
    if (op == "CALL") {
      calls.push_back(pc + 1);
      now += branchCycles;
      ended |= i.target < 0;
      return size_t(std::max(i.target, 0));
    }
    if (op == "RET") {
      now += branchCycles;
      if (!calls.empty())
        return calls.pop_back_val();
      ended = true;
    }
    if (op == "BAR")
      now += barrierCycles;
    return std::nullopt;
  }

  /// Writes the result of a load: bits(lane, word).
  template <class F> void give(const SassInstruction &i, double ready, const F &bits) {
    for (int word = 0; word < std::max(1, accessBytes(i) / 4); ++word) {
      Value v;
      v.isFromData = true;
      for (size_t l = 0; l < warpLanes; ++l)
        v.bits[l] = bits(l, size_t(word));
      state.write(WarpState::next(i.operands[0], word), v, ready);
    }
  }

  Wide addressOf(const SassOperand &o) const {
    SassOperand base = o;
    base.kind = SassOperand::Kind::reg;
    base.number = o.number < 0 ? noRegister : o.number;
    Wide address;
    if (o.isPair) {
      address = state.readWide(base);
    } else {
      const Value low = state.read(base);
      address.isKnown = low.isKnown, address.isFromData = low.isFromData;
      for (size_t l = 0; l < warpLanes; ++l)
        address.bits[l] = low.bits[l];
    }
    if (o.plusUniform >= 0) {
      SassOperand uniform = base;
      uniform.kind = SassOperand::Kind::uniform;
      uniform.number = o.plusUniform;
      const Wide plus = state.readWide(uniform);
      for (size_t l = 0; l < warpLanes; ++l)
        address.bits[l] += plus.bits[l];
      address.isKnown &= plus.isKnown;
    }
    for (uint64_t &b : address.bits)
      b += uint64_t(o.value);
    return address;
  }

  void access(const SassInstruction &i, size_t pc, double start) {
    const bool isStore = i.opcode[0] == 'S';
    const auto memory =
        llvm::find_if(i.operands, [](const SassOperand &o) { return o.kind == SassOperand::Kind::address; });
    if (memory == i.operands.end())
      return;
    const Wide at = addressOf(*memory);
    const auto bytes = uint64_t(accessBytes(i));
    // From the distance of two lanes follow those of all.
    const uint64_t apart = at.bits[1] > at.bits[0] ? at.bits[1] - at.bits[0] : at.bits[0] - at.bits[1];
    const uint64_t sectors = !at.isKnown ? 32
                             : apart == 0
                                 ? std::max<uint64_t>(1, bytes / sectorBytes)
                                 : std::min<uint64_t>(32, (31 * apart + bytes + sectorBytes - 1) / sectorBytes);
    WarpAccess &a = accesses[pc];
    if (a.times == 0) {
      a.isStore = isStore;
      a.bytes = int(bytes);
      a.parameter = at.isKnown ? WarpState::parameterAt(at.bits[0]) : -1;
      a.lanes = at.isKnown && apart == 0 ? 1 : 32;
      a.sectors = int(sectors);
    }
    ++a.times;
    bool isCached = !at.isFromData && at.isKnown;
    for (uint64_t s = 0; s < sectors && at.isKnown; ++s)
      isCached &= use(at.bits[0] / sectorBytes + s * std::max<uint64_t>(1, apart * 32 / sectors / sectorBytes));
    if (isStore)
      return;
    const bool isParameter = a.parameter >= 0 && size_t(a.parameter) < launch.parameters.size();
    const WarpLaunch::Parameter from = isParameter ? launch.parameters[size_t(a.parameter)] : WarpLaunch::Parameter();
    const double latency = isCached ? cacheLatency : from.isInL2 ? launch.l2Latency : launch.memoryLatency;
    if (!isCached) {
      ++a.missed;
      loadCycles += latency;
      loading += std::max(0.0, start + latency - std::max(loadedUntil, start));
      loadedUntil = std::max(loadedUntil, start + latency);
    }
    give(i, start + latency, [&](size_t l, size_t word) {
      const uint32_t v = plausible(from, (at.bits[l] & ~uint64_t(3)) + 4 * word);
      return bytes >= 4 ? v : bytes == 2 ? v & 0xffff : v & 0xff;
    });
  }

  /// Whether a sector is in the warp's part of the cache, and puts it there in place of the one unused for longest.
  bool use(uint64_t sector) {
    auto [it, isNew] = uses.try_emplace(sector, clock);
    if (!isNew) {
      byUse.erase(it->second);
      it->second = clock;
    }
    byUse[clock++] = sector;
    if (int64_t(uses.size()) * int64_t(sectorBytes) > launch.cacheBytes) {
      uses.erase(byUse.begin()->second);
      byUse.erase(byUse.begin());
    }
    return !isNew;
  }

  void accessLocal(const SassInstruction &i, double start) {
    ++result.spills;
    const auto memory =
        llvm::find_if(i.operands, [](const SassOperand &o) { return o.kind == SassOperand::Kind::address; });
    if (memory == i.operands.end())
      return;
    const auto at = int64_t(addressOf(*memory).bits[0]);
    if (i.opcode == "LDL") {
      give(i, start + cacheLatency, [&](size_t l, size_t word) { return local[at + 4 * int64_t(word)].bits[l]; });
      return;
    }
    for (int word = 0; word < std::max(1, accessBytes(i) / 4); ++word)
      local[at + 4 * word] = state.read(WarpState::next(i.operands.back(), word));
  }
};

}  // namespace

double WarpPipes::most() const { return std::max({issue, alu, fma, fp64, xu, memory, tensor}); }

WarpPipes &WarpPipes::operator+=(const WarpPipes &o) {
  issue += o.issue, alu += o.alu, fma += o.fma, fp64 += o.fp64, xu += o.xu, memory += o.memory, tensor += o.tensor;
  return *this;
}

WarpRun runWarp(const SassFunction &f, const WarpLaunch &launch) { return Warp(f, launch).run(); }

}  // namespace gptc
