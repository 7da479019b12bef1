// The CUDA driver (libcuda.so.1), loaded with dlopen: gptc builds and starts without CUDA. The functions and types that
// we use are declared here as in the toolkit's cuda.h, whose ABI is stable; a test compares them with that header if it
// is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gptc::cuda {

using DevicePtr = unsigned long long;  // an address on the device
using Device = int;                    // index among the visible GPUs
using Context = struct ContextImpl *;
using Stream = struct StreamImpl *;
using Event = struct EventImpl *;
using LoadedModule = struct ModuleImpl *;
using LoadedFunction = struct FunctionImpl *;
using Graph = struct GraphImpl *;
using GraphExec = struct GraphExecImpl *;

enum Result : int {
  success = 0,
  invalidValue = 1,
  outOfMemory = 2,
  notInitialized = 3,
  noDevice = 100,
  invalidDevice = 101,
  invalidImage = 200,
  invalidContext = 201,
  noBinaryForGpu = 209,
  invalidHandle = 400,
  notFound = 500,
  notReady = 600,
  illegalAddress = 700,
  launchOutOfResources = 701,
  launchTimeout = 702,
  deviceAssert = 710,
  hardwareStackError = 714,
  illegalInstruction = 715,
  misalignedAddress = 716,
  invalidAddressSpace = 717,
  invalidProgramCounter = 718,
  launchFailed = 719,
  captureUnsupported = 900,
  captureInvalidated = 901,
  captureUnmatched = 903,
  captureUnjoined = 904,
  captureIsolation = 905,
  capturedEvent = 907,
};

enum DeviceAttribute : int {
  maxThreadsPerBlock = 1,
  multiprocessors = 16,
  l2CacheBytes = 38,
  computeMajor = 75,
  computeMinor = 76,
  maxSharedPerBlockOptin = 97,
};
enum FunctionAttribute : int { functionMaxThreads = 0, functionSharedBytes = 1, functionMaxDynamicShared = 8 };
enum StreamFlags : unsigned { streamNonBlocking = 1 };
enum EventFlags : unsigned { eventDefault = 0, eventDisableTiming = 2 };
enum LaunchAttributeId : int { programmaticStreamSerialization = 6 };
enum CaptureMode : int { captureGlobal = 0, captureThreadLocal = 1 };

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[8 - sizeof(LaunchAttributeId)];
  union {
    char pad[64];
    int programmaticStreamSerializationAllowed;
  } value;
};
struct LaunchConfig {
  unsigned gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes;
  Stream stream;
  LaunchAttribute *attributes;
  unsigned count;
};

// X(member, symbol of the library, parameters). A suffix _v2 is part of the ABI's name.
#define GPTC_DRIVER_FUNCTIONS(X)                                                                                       \
  X(init, cuInit, (unsigned flags))                                                                                    \
  X(driverGetVersion, cuDriverGetVersion, (int *version))                                                              \
  X(getErrorName, cuGetErrorName, (Result error, const char **name))                                                   \
  X(getErrorString, cuGetErrorString, (Result error, const char **text))                                               \
  X(deviceGetCount, cuDeviceGetCount, (int *count))                                                                    \
  X(deviceGet, cuDeviceGet, (Device * device, int number))                                                             \
  X(deviceGetName, cuDeviceGetName, (char *name, int length, Device device))                                           \
  X(deviceGetAttribute, cuDeviceGetAttribute, (int *value, DeviceAttribute attribute, Device device))                  \
  X(primaryContextRetain, cuDevicePrimaryCtxRetain, (Context * context, Device device))                                \
  X(primaryContextRelease, cuDevicePrimaryCtxRelease_v2, (Device device))                                              \
  X(contextSetCurrent, cuCtxSetCurrent, (Context context))                                                             \
  X(memGetInfo, cuMemGetInfo_v2, (size_t *available, size_t *total))                                                   \
  X(memAlloc, cuMemAlloc_v2, (DevicePtr * at, size_t bytes))                                                           \
  X(memFree, cuMemFree_v2, (DevicePtr at))                                                                             \
  X(memHostAlloc, cuMemHostAlloc, (void **at, size_t bytes, unsigned flags))                                           \
  X(memFreeHost, cuMemFreeHost, (void *at))                                                                            \
  X(copyToDevice, cuMemcpyHtoDAsync_v2, (DevicePtr to, const void *from, size_t bytes, Stream stream))                 \
  X(copyToHost, cuMemcpyDtoHAsync_v2, (void *to, DevicePtr from, size_t bytes, Stream stream))                         \
  X(copyOnDevice, cuMemcpyDtoDAsync_v2, (DevicePtr to, DevicePtr from, size_t bytes, Stream stream))                   \
  X(memsetBytes, cuMemsetD8Async, (DevicePtr at, unsigned char value, size_t bytes, Stream stream))                    \
  X(streamCreate, cuStreamCreate, (Stream * stream, unsigned flags))                                                   \
  X(streamDestroy, cuStreamDestroy_v2, (Stream stream))                                                                \
  X(streamSynchronize, cuStreamSynchronize, (Stream stream))                                                           \
  X(streamWaitEvent, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                                  \
  X(streamBeginCapture, cuStreamBeginCapture_v2, (Stream stream, CaptureMode mode))                                    \
  X(streamEndCapture, cuStreamEndCapture, (Stream stream, Graph * graph))                                              \
  X(eventCreate, cuEventCreate, (Event * event, unsigned flags))                                                       \
  X(eventDestroy, cuEventDestroy_v2, (Event event))                                                                    \
  X(eventRecord, cuEventRecord, (Event event, Stream stream))                                                          \
  X(eventQuery, cuEventQuery, (Event event))                                                                           \
  X(eventSynchronize, cuEventSynchronize, (Event event))                                                               \
  X(eventElapsedTime, cuEventElapsedTime_v2, (float *milliseconds, Event begin, Event end))                            \
  X(moduleLoadData, cuModuleLoadData, (LoadedModule * module, const void *image))                                      \
  X(moduleUnload, cuModuleUnload, (LoadedModule module))                                                               \
  X(moduleGetFunction, cuModuleGetFunction, (LoadedFunction * function, LoadedModule module, const char *name))        \
  X(functionGetAttribute, cuFuncGetAttribute, (int *value, FunctionAttribute attribute, LoadedFunction function))      \
  X(functionSetAttribute, cuFuncSetAttribute, (LoadedFunction function, FunctionAttribute attribute, int value))       \
  X(launchKernel, cuLaunchKernel,                                                                                      \
    (LoadedFunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,        \
     unsigned blockZ, unsigned sharedBytes, Stream stream, void **params, void **extra))                               \
  X(launchKernelEx, cuLaunchKernelEx,                                                                                  \
    (const LaunchConfig *config, LoadedFunction function, void **params, void **extra))                                \
  X(graphInstantiate, cuGraphInstantiateWithFlags, (GraphExec * exec, Graph graph, unsigned long long flags))          \
  X(graphLaunch, cuGraphLaunch, (GraphExec exec, Stream stream))                                                       \
  X(graphDestroy, cuGraphDestroy, (Graph graph))                                                                       \
  X(graphExecDestroy, cuGraphExecDestroy, (GraphExec exec))

/// Throws UserError(OutOfMemory): the GPU has no memory for `what`.
[[noreturn]] void noMemoryFor(const char *what);

struct Driver {
#define GPTC_MEMBER(member, symbol, params) Result(*member) params;
  GPTC_DRIVER_FUNCTIONS(GPTC_MEMBER)
#undef GPTC_MEMBER

  /// The library of CudaLibraryId::driver, bound and initialised once. Throws UserError(TargetUnavailable) if it is
  /// missing, too old, or sees no GPU.
  static const Driver &get();

  /// "CUDA_ERROR_INVALID_VALUE (1): invalid argument".
  std::string describe(Result r) const;
  /// Returns if `r` is success. Throws UserError(OutOfMemory) if the driver has no memory for `what` (code, graphs and
  /// streams take some too), KernelFault if a kernel has failed, whichever call notices it, else InternalError: causes
  /// other than our own mistakes are checked for separately.
  void check(Result r, const char *what) const;
};

}  // namespace gptc::cuda
