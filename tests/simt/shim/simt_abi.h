// What the host version of the device layer calls in the test program, which watches every access (simt.h).
#pragma once

extern "C" {
struct SimtMemory;  // a parameter or a shared buffer
int simtBlock();
int simtThread();
/// All threads of a block meet, at the same line of the text.
void simtBarrier(int line);
/// Gives `value` to lane ^ mask of the warp and takes that lane's; all lanes of the warp take part.
void simtShuffleXor(void *value, int bytes, int mask, int line);
/// The bytes at `offset`, after checks; reports and does not return where an access is wrong.
void *simtAccess(SimtMemory *m, long long offset, long long bytes, int writes);
SimtMemory *simtShared(const char *name, long long bytes);
[[noreturn]] void simtFail(const char *what);
unsigned short simtBitsOfF16(float v);
float simtFloatOfF16(unsigned short v);
}
