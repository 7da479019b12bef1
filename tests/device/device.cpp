#include "tests/device/device.h"

#include "codegen/codegen.h"
#include "ir/diagnostics.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace gptc::test {

namespace {

constexpr size_t zone = 256;
constexpr std::byte red{0xA5};

size_t roundedUp(size_t n) { return (n + zone - 1) / zone * zone; }

}  // namespace

TestDevice &TestDevice::get() {
  static TestDevice device;
  return device;
}

TestDevice::TestDevice() {
#ifdef GPTC_STANDINS
  if (!std::getenv("GPTC_CUDA") && !CudaLibrary::lookUp(CudaLibraryId::driver))
    setenv("GPTC_CUDA", GPTC_STANDINS, 1);
#endif
  isGpu = CudaLibrary::get(CudaLibraryId::driver).path.find("standin") == std::string::npos;
  target = cudaTarget("cuda:" + cuda::architectureHere());
  gpu = std::make_unique<cuda::Gpu>(target);
  name = gpu->name;
}

std::string TestDevice::call(cuda::Result r, const char *what) const {
  return r == cuda::success ? "" : fmt::format("{}: {}", what, gpu->d.describe(r));
}

void TestDevice::load(const std::string &text) {
  const cuda::Driver &d = gpu->d;
  const CompiledCuda code = Nvrtc::get().compile(text, target);
  if (module)
    d.check(d.moduleUnload(module), "cuModuleUnload");
  d.check(d.moduleLoadData(&module, code.cubin.data()), "cuModuleLoadData");
}

std::string TestDevice::launch(const CudaPhase &phase, std::vector<cuda::DevicePtr> pointers) const {
  const cuda::Driver &d = gpu->d;
  const char *name = phase.symbol.c_str();
  std::vector<void *> arguments;
  for (cuda::DevicePtr &p : pointers)
    arguments.push_back(&p);
  cuda::LoadedFunction f = nullptr;
  std::string why = call(d.moduleGetFunction(&f, module, name), name);
  const unsigned shared = unsigned(phase.sharedBytes);
  if (why.empty() && shared)
    why = call(d.functionSetAttribute(f, cuda::functionMaxDynamicShared, int(shared)), name);
  if (why.empty())
    why = call(d.launchKernel(f, unsigned(phase.blocks), 1, 1, unsigned(phase.threads), 1, 1, shared, gpu->stream,
                              arguments.data(), nullptr),
               name);
  return why;
}

std::vector<std::vector<std::byte>> TestDevice::run(const std::vector<CudaPhase> &phases,
                                                    const std::vector<std::vector<std::byte>> &params,
                                                    std::string &why) {
  const cuda::Driver &d = gpu->d;
  // All parameters in one piece of memory: zone, parameter, zone, parameter, ..., zone.
  std::vector<size_t> places;
  size_t bytes = zone;
  for (const std::vector<std::byte> &p : params) {
    places.push_back(bytes);
    bytes += roundedUp(p.size()) + zone;
  }
  std::vector<std::byte> host(bytes, red);
  for (size_t i = 0; i < params.size(); ++i)
    std::copy(params[i].begin(), params[i].end(), host.begin() + places[i]);
  cuda::DevicePtr at = 0;
  why = call(d.memAlloc(&at, bytes), "cuMemAlloc");
  if (!why.empty())
    return {};
  auto step = [&](cuda::Result r, const char *what) {
    if (why.empty())
      why = call(r, what);
  };
  step(d.copyToDevice(at, host.data(), bytes, gpu->stream), "cuMemcpyHtoDAsync");
  std::vector<cuda::DevicePtr> pointers;
  for (size_t place : places)
    pointers.push_back(at + place);
  for (const CudaPhase &p : phases)
    if (why.empty())
      why = launch(p, pointers);
  step(d.streamSynchronize(gpu->stream), "cuStreamSynchronize");
  step(d.copyToHost(host.data(), at, bytes, gpu->stream), "cuMemcpyDtoHAsync");
  step(d.streamSynchronize(gpu->stream), "cuStreamSynchronize");
  step(d.memFree(at), "cuMemFree");
  std::vector<std::vector<std::byte>> back;
  size_t checked = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const std::byte *begin = host.data() + places[i];
    back.emplace_back(begin, begin + params[i].size());
    for (; checked < places[i]; ++checked)
      if (host[checked] != red && why.empty())
        why = fmt::format("a byte before parameter {} was stored to", i);
    checked = places[i] + params[i].size();
  }
  for (; checked < bytes; ++checked)
    if (host[checked] != red && why.empty())
      why = "a byte behind the last parameter was stored to";
  return back;
}

}  // namespace gptc::test
