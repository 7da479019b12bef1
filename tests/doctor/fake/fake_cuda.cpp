// Stands for each of NVIDIA's libraries, under whose names tests copy it: just what a look-up and `gptc doctor` ask.
// What it answers comes from the environment when it is asked:
//   FAKE_DRIVER, FAKE_NVRTC, FAKE_CUBLASLT, FAKE_CUDNN, FAKE_NCCL   its version, as the library would say it
//   FAKE_GPUS        the number of GPUs in the machine; CUDA_VISIBLE_DEVICES shows the first of them, one per entry
//   FAKE_PEERS=0     no GPU reaches the memory of another
//   FAKE_CUINIT      what cuInit answers
//   FAKE_SM          compute capability of all GPUs, 90 by default; 70,90: of the first, and of all others
//   FAKE_CUDNN_CUDA  the CUDA that cuDNN is built for, 13000 by default
//   FAKE_COMPILE     what nvrtcCompileProgram answers
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char *variable, int otherwise) {
  const char *value = std::getenv(variable);
  return value ? std::atoi(value) : otherwise;
}

int visible() {
  const int gpus = number("FAKE_GPUS", 0);
  const char *list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list)
    return gpus;
  int n = *list ? 1 : 0;
  for (; *list; ++list)
    n += *list == ',';
  return std::min(n, gpus);
}

/// Compute capability of a device, times 10.
int capability(int device) {
  const char *list = std::getenv("FAKE_SM");
  if (!list)
    return 90;
  for (const char *next; device > 0 && (next = std::strchr(list, ',')); --device)
    list = next + 1;
  return std::atoi(list);
}

enum { noDevice = 100, major = 75, minor = 76, multiprocessors = 16 };

}  // namespace

extern "C" {

int cuDriverGetVersion(int *v) {
  *v = number("FAKE_DRIVER", 13000);
  return 0;
}
int cuInit(unsigned) { return number("FAKE_CUINIT", visible() ? 0 : noDevice); }
int cuGetErrorName(int, const char **name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char **text) {
  *text = "the fake was told to";
  return 0;
}
int cuDeviceGetCount(int *n) {
  *n = visible();
  return 0;
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char *name, int n, int device) {
  std::snprintf(name, n, "Fake GPU %d", device);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) {
  *bytes = size_t(80) << 30;
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == major ? capability(device) / 10 : attribute == minor ? capability(device) % 10 : 132;
  return 0;
}
int cuDeviceCanAccessPeer(int *can, int a, int b) {
  *can = a != b && number("FAKE_PEERS", 1);
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) {
  *n = number("FAKE_GPUS", 0);
  return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned n) {
  std::snprintf(text, n, "580.00.1");
  return 0;
}

int nvrtcVersion(int *a, int *b) {
  *a = number("FAKE_NVRTC", 1300) / 100;
  *b = number("FAKE_NVRTC", 1300) % 100;
  return 0;
}
const char *nvrtcGetErrorString(int) { return "NVRTC_ERROR_FAKE"; }
int nvrtcCreateProgram(void **p, const char *, const char *, int, const char *const *, const char *const *) {
  *p = nullptr;
  return 0;
}
int nvrtcDestroyProgram(void **) { return 0; }
int nvrtcCompileProgram(void *, int, const char *const *) { return number("FAKE_COMPILE", 0); }
int nvrtcGetProgramLogSize(void *, size_t *n) {
  *n = 0;
  return 0;
}
int nvrtcGetProgramLog(void *, char *) { return 0; }
int nvrtcGetCUBINSize(void *, size_t *n) {
  *n = 0;
  return 0;
}
int nvrtcGetCUBIN(void *, char *) { return 0; }
int nvrtcGetPTXSize(void *, size_t *n) {
  *n = 0;
  return 0;
}
int nvrtcGetPTX(void *, char *) { return 0; }
size_t cublasLtGetVersion() { return number("FAKE_CUBLASLT", 130100); }
size_t cudnnGetCudartVersion() { return number("FAKE_CUDNN_CUDA", 13000); }
size_t cudnnGetVersion() { return number("FAKE_CUDNN", 91900); }
int ncclGetVersion(int *v) {
  *v = number("FAKE_NCCL", 22809);
  return 0;
}
int nvtxRangePushA(const char *) { return 0; }
}
