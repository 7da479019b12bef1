// The driver's table against the toolkit's cuda.h, where there is one: functions, parameters, numbers.
#include "runtime/cuda/driver.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cuda.h>

#include <type_traits>

namespace {

// Types by their form: what their ABI depends on.
template <class T> constexpr auto formOf() {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<void *>(nullptr);
  else if constexpr (std::is_enum_v<T> || sizeof(T) == 4)
    return int();
  else
    return static_cast<unsigned long long>(0);
}
template <class F> struct Form;
template <class R, class... P> struct Form<R (*)(P...)> {
  using type = void (*)(decltype(formOf<R>()), decltype(formOf<P>())...);
};
template <class A, class B> constexpr bool same = std::is_same_v<typename Form<A>::type, typename Form<B>::type>;

// cuda.h calls the newest version of a function by the plain name.
#define GPTC_COMPARE(member, symbol, params)                                                                           \
  static_assert(same<decltype(gptc::cuda::Driver::member), decltype(&::symbol)>, #symbol);
GPTC_DRIVER_FUNCTIONS(GPTC_COMPARE)

TEST(CudaHeader, NumbersAgree) {
  using namespace gptc::cuda;
  EXPECT_EQ(int(outOfMemory), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(int(noDevice), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(int(invalidImage), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(int(noBinaryForGpu), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(int(invalidHandle), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(int(invalidContext), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(int(invalidDevice), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(int(invalidValue), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(int(notInitialized), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(int(notFound), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(int(notReady), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(int(illegalAddress), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(int(launchTimeout), CUDA_ERROR_LAUNCH_TIMEOUT);
  EXPECT_EQ(int(deviceAssert), CUDA_ERROR_ASSERT);
  EXPECT_EQ(int(hardwareStackError), CUDA_ERROR_HARDWARE_STACK_ERROR);
  EXPECT_EQ(int(illegalInstruction), CUDA_ERROR_ILLEGAL_INSTRUCTION);
  EXPECT_EQ(int(misalignedAddress), CUDA_ERROR_MISALIGNED_ADDRESS);
  EXPECT_EQ(int(invalidAddressSpace), CUDA_ERROR_INVALID_ADDRESS_SPACE);
  EXPECT_EQ(int(invalidProgramCounter), CUDA_ERROR_INVALID_PC);
  EXPECT_EQ(int(launchOutOfResources), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_EQ(int(launchFailed), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(int(captureUnsupported), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(int(captureInvalidated), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(int(captureUnmatched), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(int(captureUnjoined), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(int(captureIsolation), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(int(capturedEvent), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(int(maxThreadsPerBlock), CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  EXPECT_EQ(int(multiprocessors), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(int(computeMajor), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(int(l2CacheBytes), CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  EXPECT_EQ(int(computeMinor), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(int(maxSharedPerBlockOptin), CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EXPECT_EQ(int(functionMaxThreads), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  EXPECT_EQ(int(functionSharedBytes), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  EXPECT_EQ(int(functionMaxDynamicShared), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_EQ(unsigned(streamNonBlocking), CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(unsigned(eventDisableTiming), CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(int(programmaticStreamSerialization), CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute) &&
                offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
  static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig) &&
                offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream) &&
                offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs) &&
                offsetof(LaunchConfig, count) == offsetof(CUlaunchConfig, numAttrs));
  EXPECT_EQ(int(captureGlobal), CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(int(captureThreadLocal), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

}  // namespace
#endif
