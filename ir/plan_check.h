// What a planned module promises about memory, and the check of that promise.
//
// A planned module has the attribute arena_bytes; every state has `at`; a function has `args_at`, one offset per
// argument; fused ops, reshapes and `done` have `at`, one per result; fused ops with workspaces have `ws_at`. Offsets
// are bytes from the start of one arena, multiples of planAlignment. Arguments are written before a call, which may
// overwrite them; results last until the next call; all else in the arena but the states is free between calls.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

constexpr int64_t planAlignment = 64;
/// Of what plan-memory places in the memory of a GPU: cuBLASLt wants workspaces there, and memory comes in such pieces.
/// Plans of earlier versions have multiples of planAlignment alone, which still hold.
constexpr int64_t cudaPlanAlignment = 256;
/// What sizes are rounded up to in the arena of a device.
inline int64_t planAlignmentOf(const Target &target) { return target.isCuda() ? cudaPlanAlignment : planAlignment; }
/// No machine that could run a larger plan exists; beyond it, 64-bit offsets would need care everywhere.
constexpr int64_t maxArenaBytes = int64_t(1) << 46;

/// States in the host's memory (livesOnHost) have offsets from here on: places in an arena of the host's, whose bytes
/// the attribute `host_bytes` counts. Groups of the host (runsOnHost) have their operands and results there or in the
/// arena; those that are in the arena pass through one of two equal slots, which are what the states leave of
/// `host_bytes`.
constexpr int64_t hostArena = maxArenaBytes;
/// Bytes of a slot; 0 where there are none.
int64_t hostSlotBytes(const Module &m);
/// Bytes of a slot that a group of the host needs.
int64_t stagingBytes(const Module &m, const Function &f, const Op &group);

/// Where a value of a planned module lies. nullopt when the plan does not say.
std::optional<int64_t> plannedOffset(const Module &m, const Function &f, const Value &v);

/// Every way in which the plan fails, one line each, empty when it holds: an offset that is missing, misaligned or
/// outside of the arena; an operand, a written state or a returned value of which a byte was overwritten since it was
/// computed; a result on top of something that the same op still reads. The module must have passed verify(); it may
/// come from anyone. Works by running each function on a map of bytes to owners, so that it shares no reasoning with
/// the pass that made the plan.
std::vector<std::string> checkPlan(const Module &m);

}  // namespace gptc
