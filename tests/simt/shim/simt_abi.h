// What the host version of the device layer calls in the test program, which watches every access (simt.h).
#pragma once

extern "C" {
struct SimtMemory;  // a parameter or a shared buffer
int simtBlock();
int simtThread();
/// The calling thread accesses no global memory before the first of these calls, if it makes the second one.
void simtWaitForPrevious();
void simtLetNextStart();
/// All threads of a block meet, at the same line of the text.
void simtBarrier(int line);
/// Likewise; whether one of them has given a value other than 0.
int simtBarrierOr(int value, int line);
/// Gives `value` to lane ^ mask of the warp and takes that lane's; all lanes of the warp take part.
void simtShuffleXor(void *value, int bytes, int mask, int line);
/// Gives `bytes` (at most 32) of each lane of the warp to all: `all` gets 32 times as many, by lane.
void simtGather(const void *mine, int bytes, void *all, int line);
/// c += a b by the warp, as the device layer has it: 16 bits with 8 of exponent, 16 bits with 5, or tf32.
enum SimtMma { simtMmaBF16, simtMmaF16, simtMmaTF32 };
void simtMma(int kind, float *c, const unsigned *a, const unsigned *b, int line);
/// The first `valid` bytes come from global memory, the others are zeros; they arrive in simtAsyncWait.
void simtAsyncCopy(SimtMemory *to, long long at, SimtMemory *from, long long offset, int bytes, int valid);
void simtAsyncCommit();
/// All copies arrive but those of the last `groups` commits, and those not committed.
void simtAsyncWait(int groups);
/// The bytes at `offset`, after checks; reports and does not return where an access is wrong.
void *simtAccess(SimtMemory *m, long long offset, long long bytes, int writes);
/// The memory that begins at an address.
SimtMemory *simtGlobalAt(unsigned long long address);
SimtMemory *simtShared(const char *name, long long bytes);
/// The same, at a place in what the launch gives.
SimtMemory *simtDynamicShared(const char *name, long long bytes, long long offset);
[[noreturn]] void simtFail(const char *what);
unsigned short simtBitsOfF16(float v);
unsigned short simtBitsOfBF16(float v);
unsigned simtRoundTF32(float v);
float simtFloatOfF16(unsigned short v);
}
