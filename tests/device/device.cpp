#include "tests/device/device.h"

#include "codegen/codegen.h"
#include "support/diagnostics.h"

#include <algorithm>

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
  isGpu = CudaLibrary::get(CudaLibraryId::driver).path.find("standin") == std::string::npos;
  architecture = cuda::architectureHere();
  gpu = std::make_unique<cuda::Gpu>(cudaTarget("cuda:" + architecture));
  name = gpu->name;
}

std::string TestDevice::call(cuda::Result r, const char *what) const {
  return r == cuda::success ? "" : fmt::format("{}: {}", what, gpu->d.describe(r));
}

std::string TestDevice::launch(const CudaCode &code, const CudaPhase &phase, std::vector<cuda::DevicePtr> pointers) {
  const cuda::Driver &d = gpu->d;
  const char *symbol = phase.symbol.c_str();
  std::vector<void *> arguments;
  for (cuda::DevicePtr &p : pointers)
    arguments.push_back(&p);
  cuda::LoadedModule &module = modules[code.image];
  std::string why = module ? "" : call(d.moduleLoadData(&module, code.image->data()), "cuModuleLoadData");
  cuda::LoadedFunction f = nullptr;
  if (why.empty())
    why = call(d.moduleGetFunction(&f, module, symbol), symbol);
  const unsigned shared = unsigned(phase.sharedBytes);
  if (why.empty() && shared)
    why = call(d.functionSetAttribute(f, cuda::functionMaxDynamicShared, int(shared)), symbol);
  if (why.empty())
    why = call(d.launchKernel(f, unsigned(phase.blocks), 1, 1, unsigned(phase.threads), 1, 1, shared, gpu->stream,
                              arguments.data(), nullptr),
               symbol);
  return why;
}

TestDevice::Outcome TestDevice::run(const CudaCode &code, const std::vector<Param> &params) {
  const cuda::Driver &d = gpu->d;
  Outcome o;
  auto step = [&](cuda::Result r, const char *what) {
    if (o.problem.empty())
      o.problem = call(r, what);
  };
  // All parameters in one piece of memory: zone, parameter, zone, parameter, ..., zone.
  std::vector<size_t> places;
  size_t bytes = zone;
  for (const Param &p : params) {
    places.push_back(bytes);
    bytes += roundedUp(p.bytes.size()) + zone;
  }
  std::vector<std::byte> host(bytes, red);
  for (size_t i = 0; i < params.size(); ++i)
    std::copy(params[i].bytes.begin(), params[i].bytes.end(), host.begin() + places[i]);
  const bool whole = std::all_of(params.begin(), params.end(), [](const Param &p) { return p.isInitialised; });
  cuda::DevicePtr at = 0;
  step(d.memAlloc(&at, bytes), "cuMemAlloc");
  if (whole)
    step(d.copyToDevice(at, host.data(), bytes, gpu->stream), "cuMemcpyHtoDAsync");
  for (size_t i = 0; i < params.size() && !whole; ++i)
    if (params[i].isInitialised)
      step(d.copyToDevice(at + places[i], host.data() + places[i], params[i].bytes.size(), gpu->stream),
           "cuMemcpyHtoDAsync");
  std::vector<cuda::DevicePtr> pointers;
  for (size_t place : places)
    pointers.push_back(at + place);
  for (const CudaPhase &p : code.phases)
    if (o.problem.empty())
      o.problem = launch(code, p, pointers);
  step(d.streamSynchronize(gpu->stream), "cuStreamSynchronize");
  if (whole) {  // a copy of what no kernel has written would be a reading of uninitialised memory
    step(d.copyToHost(host.data(), at, bytes, gpu->stream), "cuMemcpyDtoHAsync");
    step(d.streamSynchronize(gpu->stream), "cuStreamSynchronize");
  }
  step(d.memFree(at), "cuMemFree");
  o.isDead = !o.problem.empty();
  size_t checked = 0;
  auto intact = [&](size_t to) {
    bool all = true;
    for (; checked < to; ++checked)
      all &= host[checked] == red;
    return all || !whole || !o.problem.empty();
  };
  for (size_t i = 0; i < params.size(); ++i) {
    const std::byte *begin = host.data() + places[i];
    o.params.emplace_back(begin, begin + params[i].bytes.size());
    if (!intact(places[i]))
      o.problem = fmt::format("a byte before parameter {} was stored to", i);
    checked = places[i] + params[i].bytes.size();
  }
  if (!intact(bytes))
    o.problem = "a byte behind the last parameter was stored to";
  return o;
}

}  // namespace gptc::test
