// Settings shared by the processes of one test run: its extent and a common folder.
//
//   GPTC_TEST_ALL=1          run everything, like `tools/test --all`; otherwise skip campaigns and use small sizes
//   GPTC_TEST_SHARED=DIR     folder for compiled kernels and the like that all processes share; set by tools/test
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace gptc::test {

/// Whether GPTC_TEST_ALL is set to anything but 0.
bool everything();

/// A test size: `few` still shows the defect that the test is about; `all` applies with `tools/test --all`.
template <class T> T sized(T few, T all) { return everything() ? all : few; }

/// Thins a mix of parameters: without `tools/test --all` only one of `n` cases runs, the first of each. All values
/// occur if `n` shares no factor with the lengths of all lists but the outermost one.
class OneIn {
public:
  explicit OneIn(unsigned n) : n(n) {}
  bool skips() { return count++ % n != 0 && !everything(); }

private:
  unsigned n, count = 0;
};

/// A private folder (mode 0700) that the processes of a run share under this name. Without GPTC_TEST_SHARED it belongs
/// to this process and is removed with it.
const std::string &sharedFolder(const std::string &name);

}  // namespace gptc::test

/// Put it first in a test or in its fixture's SetUp: the test then runs only in `tools/test --all`. tools/test counts
/// these skips.
#define GPTC_LEFT_TO_ALL()                                                                                             \
  if (!::gptc::test::everything())                                                                                     \
  GTEST_SKIP() << "left to tools/test --all"
