// The memory plan of a module, and its check.
//
// A planned module has the attribute arena_bytes; every state has `at`; a function has `args_at`, one offset per
// argument; fused ops, reshapes and `done` have `at`, one offset per result; fused ops with workspaces have `ws_at`.
// Offsets are bytes from the start of the arena, multiples of planAlignment. The caller writes the arguments before a
// call; the call may overwrite them. Results last until the next call. Between calls, all of the arena but the states
// is free.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

constexpr int64_t planAlignment = 64;
/// Alignment of a GPU's plan, in bytes: cuBLASLt wants it for workspaces, and GPU memory comes in such pieces. Plans of
/// earlier versions are aligned to planAlignment only and remain valid.
constexpr int64_t cudaPlanAlignment = 256;
/// The alignment of offsets and sizes in a target's arena, in bytes.
inline int64_t planAlignmentOf(const Target &target) { return target.isCuda() ? cudaPlanAlignment : planAlignment; }
/// No machine can run a larger plan; below this limit, sums of 64-bit offsets and sizes cannot overflow.
constexpr int64_t maxArenaBytes = int64_t(1) << 46;

/// Offsets from here on are in the host's arena, whose size is the attribute `host_bytes`. States in the host's memory
/// (livesOnHost) have such offsets. Operands and results of the host's groups (runsOnHost) are in either arena; those
/// in the device's arena are copied through one of two equal slots, which take the part of `host_bytes` behind the
/// states.
constexpr int64_t hostArena = maxArenaBytes;
/// Bytes of a slot; 0 if there are none.
int64_t hostSlotBytes(const Module &m);
/// Bytes of a slot that a group of the host needs for its operands and results in the device's arena.
int64_t stagingBytes(const Module &m, const Function &f, const Op &group);

/// The offset of a value of a planned module; nullopt if the plan has none.
std::optional<int64_t> plannedOffset(const Module &m, const Function &f, const Value &v);

/// Checks the plan of an untrusted module that has passed verify(). Returns one line per error (at most 20), empty if
/// the plan is valid: an offset that is missing, misaligned or outside of the arena; an operand, a written state or a
/// returned value of which a byte was overwritten since it was computed; a result on top of an operand that the same op
/// still reads; groups of one launch that depend on each other. The check runs each function on a map of bytes to
/// owners, so that it shares no reasoning with the pass plan-memory.
std::vector<std::string> checkPlan(const Module &m);

}  // namespace gptc
