// What the processes of one run of the tests have in common: how much is asked for, and a folder.
//   GPTC_TEST_ALL=1          everything, as `tools/test --all`; else campaigns are skipped and sizes are small
//   GPTC_TEST_SHARED=DIR     compiled kernels and the like are kept there for the other processes; tools/test sets it
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace gptc::test {

/// Whether GPTC_TEST_ALL is set, to something other than 0.
bool everything();

/// A size: `few` still shows the defect that the test is about, `all` is for `tools/test --all`.
template <class T> T sized(T few, T all) { return everything() ? all : few; }

/// Thins a mix of parameters: without `tools/test --all` only the first of `n` cases is taken. For each value to occur,
/// `n` must share no factor with the lengths of the lists that vary within the outermost.
class OneIn {
public:
  explicit OneIn(unsigned n) : n(n) {}
  bool skips() { return count++ % n != 0 && !everything(); }

private:
  unsigned n, count = 0;
};

/// A private folder (mode 0700) for what the processes of a run share under that name. Without GPTC_TEST_SHARED it is
/// this process's own and goes with it.
const std::string &sharedFolder(const std::string &name);

}  // namespace gptc::test

/// First in a test, or in the SetUp of its fixture: only `tools/test --all` runs it. tools/test counts these skips.
#define GPTC_LEFT_TO_ALL()                                                                                             \
  if (!::gptc::test::everything())                                                                                     \
  GTEST_SKIP() << "left to tools/test --all"
