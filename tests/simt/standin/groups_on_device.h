// Groups in the memory of the stand-in device, for calls of libraries.
#pragma once

#include "ir/element.h"
#include "ir/opdef.h"
#include "standins.h"
#include "tests/support/recipe_harness.h"

#include <cmath>

namespace gptc::test {

class GroupsOnDevice : public testing::Test {
protected:
  static void SetUpTestSuite() {
    useStandins();
    driver = &cuda::Driver::get();
  }
  void SetUp() override {
    ASSERT_EQ(driver->primaryContextRetain(&context, 0), cuda::success);
    ASSERT_EQ(driver->contextSetCurrent(context), cuda::success);
    ASSERT_EQ(driver->streamCreate(&stream, cuda::streamNonBlocking), cuda::success);
  }
  void TearDown() override {
    for (cuda::DevicePtr p : memory)
      EXPECT_EQ(driver->memFree(p), cuda::success);
    EXPECT_EQ(driver->streamDestroy(stream), cuda::success);
  }

  static inline const cuda::Driver *driver;
  cuda::Context context;
  cuda::Stream stream;
  std::vector<cuda::DevicePtr> memory;

  cuda::DevicePtr allocate(size_t bytes) {
    memory.push_back(0);
    EXPECT_EQ(driver->memAlloc(&memory.back(), bytes), cuda::success);
    return memory.back();
  }

  /// Memory for the operands, filled, and the results.
  std::vector<cuda::DevicePtr> place(const Op &fused, const std::vector<Tensor> &operands) {
    std::vector<cuda::DevicePtr> params;
    for (unsigned i = 0; i < fused.numOperands() + fused.numResults(); ++i) {
      const bool given = i < fused.numOperands();
      const Type &t = given ? fused.operand(i)->type : fused.result(i - fused.numOperands())->type;
      params.push_back(allocate(size_t(t.bytes())));
      if (!given)
        continue;
      std::vector<std::byte> bytes(t.bytes(), std::byte(0xff));
      const std::vector<double> all = spread(operands[i], NAN);
      for (size_t k = 0; k < all.size(); ++k)
        storeElement(t.dtype, bytes.data(), int64_t(k), all[k]);
      EXPECT_EQ(driver->copyToDevice(params[i], bytes.data(), bytes.size(), stream), cuda::success);
      EXPECT_EQ(driver->streamSynchronize(stream), cuda::success);
    }
    return params;
  }

  Tensor fetch(cuda::DevicePtr from, const Type &t) {
    std::vector<std::byte> bytes(t.bytes());
    EXPECT_EQ(driver->copyToHost(bytes.data(), from, bytes.size(), stream), cuda::success);
    EXPECT_EQ(driver->streamSynchronize(stream), cuda::success);
    Tensor x(t);
    const std::vector<double> logical = spread(Tensor(t, std::vector<double>(t.elements(), 1)), 0);
    size_t next = 0;
    for (size_t k = 0; k < logical.size(); ++k)
      if (logical[k] == 1)
        x.data[next++] = loadElement(t.dtype, bytes.data(), int64_t(k));
    return x;
  }
};

}  // namespace gptc::test
