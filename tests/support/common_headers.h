// What nearly every file of tests includes, parsed once where there is no ccache. No file relies on it: each includes
// what it uses.
#include "cmake/common_headers.h"

#include <gtest/gtest.h>

#include "support/json.h"
