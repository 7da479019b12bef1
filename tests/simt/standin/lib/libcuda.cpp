// A stand-in for libcuda.so.1 that runs on the host the images that the stand-in NVRTC makes. It is a strict driver and
// a hostile one: what CUDA refuses or leaves undefined it refuses, and says why in cuGetErrorString; what CUDA leaves
// open it decides against the caller.
//
//   - Nothing runs before somebody waits for it, and then in an order of its own choice that the streams and events
//     allow; copies read and write pinned memory at that moment and not before.
//   - New memory holds NaN. Addresses on the device are none of the host, and are never used again.
//   - Handles are looked up, so that those that were destroyed, or are of another kind, are found.
//   - Kernels run on the fibers of tests/simt, which watch bounds, alignment, shared memory and waiting threads.
//   - An error of what runs later stays, as CUDA's do.
//
// GPTC_STANDIN_DRIVER=13000: its version. _DEVICES=1, of which CUDA_VISIBLE_DEVICES shows those that it names;
// _ARCH=90, _MEMORY=BYTES (1 GiB), of each, of which other programs hold _TAKEN=BYTES. _ORDER=0: the oldest of what may
// run goes first; 1: the newest; else by chance, from that seed. _NO_MEMORY=CALL: this call of the driver, or
// cublasLtCreate or cudnnCreate, finds no memory on the GPU. _FAULT=KIND:TEXT: what is wrong with kernels in whose name
// TEXT stands. `fail`: they end with an illegal address; `hang`: they never end; `crash`: the process ends by a signal;
// `corrupt`: they store 16 bytes before their last result, and over its first 16, and nobody is told.
#include "driver_state.h"
#include "tests/simt/host_compile.h"

#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

using namespace gptc::cuda;
using gptc::simt::Param;

#define GPTC_TRY(...)                                                                                                  \
  if (Result tried = __VA_ARGS__)                                                                                      \
  return tried

/// Devices that are shown, by their numbers in the machine: those named before the first name that is none, or that
/// comes again.
static std::vector<int> shownDevices() {
  const int64_t there = setting("DEVICES", 1);
  const char *shown = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> numbers;
  if (!shown) {
    for (int n = 0; n < there; ++n)
      numbers.push_back(n);
    return numbers;
  }
  std::istringstream names(shown);
  for (std::string name; std::getline(names, name, ',');) {
    char *end = nullptr;
    const int64_t n = std::strtoll(name.c_str(), &end, 10);
    if (end == name.c_str() || *end || n < 0 || n >= there ||
        std::find(numbers.begin(), numbers.end(), int(n)) != numbers.end())
      break;
    numbers.push_back(int(n));
  }
  return numbers;
}

extern "C" {

Result cuInit(unsigned flags) {
  std::lock_guard guard(lock);
  // A child inherits a driver that it cannot use, as CUDA's.
  static const pid_t first = ::getpid();
  if (first != ::getpid())
    return refuse(notInitialized, "cuInit was called in the parent of this process");
  if (flags)
    return refuse(invalidValue, "flags of cuInit");
  if (shownDevices().empty())
    return refuse(noDevice, "no device");
  if (!ready) {
    chance.seed(unsigned(setting("ORDER", 2)));
    for (int d : shownDevices())
      contexts.push_back(std::make_unique<ContextImpl>(ContextImpl{d}));
    // The kernels' shim finds here what it calls.
    Dl_info self;
    if (!dladdr(reinterpret_cast<void *>(&cuInit), &self) ||
        !dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL))
      return refuse(notInitialized, "the stand-in does not find itself");
  }
  ready = true;
  return success;
}

Result cuDriverGetVersion(int *version) {
  *version = int(setting("DRIVER", 13000));
  return success;
}

Result cuGetErrorName(Result r, const char **name) {
  static const std::map<int, const char *> names = {
      {success, "CUDA_SUCCESS"},
      {invalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {outOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {notInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {noDevice, "CUDA_ERROR_NO_DEVICE"},
      {invalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {invalidImage, "CUDA_ERROR_INVALID_IMAGE"},
      {invalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {noBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {invalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {notFound, "CUDA_ERROR_NOT_FOUND"},
      {notReady, "CUDA_ERROR_NOT_READY"},
      {illegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {launchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
      {launchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
      {captureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {captureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {captureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {captureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
      {captureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {capturedEvent, "CUDA_ERROR_CAPTURED_EVENT"},
  };
  auto it = names.find(r);
  *name = it == names.end() ? nullptr : it->second;
  return it == names.end() ? invalidValue : success;
}
Result cuGetErrorString(Result r, const char **text) {
  *text = r == lastCode ? complaint.c_str() : "";
  return success;
}

// ---- devices and contexts -------------------------------------------------------------------------------------------

Result cuDeviceGetCount(int *count) {
  *count = int(contexts.size());
  return ready ? success : refuse(notInitialized, "cuDeviceGetCount before cuInit");
}
Result cuDeviceGet(Device *device, int number) {
  if (number < 0 || number >= int(contexts.size()))
    return refuse(invalidDevice, "device {} of {}", number, contexts.size());
  *device = number;
  return success;
}
Result cuDeviceGetName(char *name, int length, Device) {
  std::snprintf(name, length, "stand-in sm_%d", int(setting("ARCH", 90)));
  return success;
}
Result cuDeviceGetAttribute(int *value, DeviceAttribute a, Device) {
  const std::map<int, int64_t> values = {{maxThreadsPerBlock, 1024},
                                         {multiprocessors, 2},
                                         {l2CacheBytes, 1 << 20},
                                         {computeMajor, setting("ARCH", 90) / 10},
                                         {computeMinor, setting("ARCH", 90) % 10},
                                         {maxSharedPerBlockOptin, sharedOptin()}};
  auto it = values.find(a);
  if (it == values.end())
    return refuse(invalidValue, "attribute {} of a device", int(a));
  *value = int(it->second);
  return success;
}
Result cuDeviceTotalMem_v2(size_t *bytes, Device) {
  *bytes = size_t(setting("MEMORY", 1 << 30));
  return success;
}
Result cuDeviceCanAccessPeer(int *can, Device a, Device b) {
  *can = a != b;
  return success;
}
Result cuDevicePrimaryCtxRetain(Context *context, Device d) {
  std::lock_guard guard(lock);
  if (!ready || d < 0 || d >= int(contexts.size()))
    return refuse(invalidDevice, "device {}", d);
  if (toldNoMemory("cuDevicePrimaryCtxRetain"))
    return refuse(outOfMemory, "cuDevicePrimaryCtxRetain was told so");
  *context = contexts[d].get();
  return success;
}
Result cuDevicePrimaryCtxRelease_v2(Device d) {
  std::lock_guard guard(lock);
  return d < 0 || d >= int(contexts.size()) ? refuse(invalidDevice, "device {}", d) : success;
}
Result cuCtxSetCurrent(Context context) {
  std::lock_guard guard(lock);
  if (context && std::none_of(contexts.begin(), contexts.end(), [&](auto &c) { return c.get() == context; }))
    return refuse(invalidContext, "no such context");
  current = context;
  return success;
}

static size_t freeBytes() { return size_t(setting("MEMORY", 1 << 30) - setting("TAKEN", 0)) - allocated; }

// ---- memory ---------------------------------------------------------------------------------------------------------

Result cuMemGetInfo_v2(size_t *available, size_t *total) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuMemGetInfo"));
  *total = size_t(setting("MEMORY", 1 << 30));
  *available = freeBytes();
  return success;
}
Result cuMemAlloc_v2(DevicePtr *at, size_t bytes) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuMemAlloc"));
  if (bytes == 0)
    return refuse(invalidValue, "0 bytes");
  if (bytes > freeBytes())
    return refuse(outOfMemory, "{} bytes", bytes);
  Allocation a{
      bytes, {static_cast<std::byte *>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), std::free}, current};
  std::memset(a.data.get(), 0xff, bytes);
  *at = nextAddress;
  nextAddress += (bytes + 0xfffff) / 0x100000 * 0x100000 + 0x100000;
  allocated += bytes;
  allocations.emplace(*at, std::move(a));
  return success;
}
Result cuMemFree_v2(DevicePtr at) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuMemFree"));
  auto it = allocations.find(at);
  if (it == allocations.end())
    return refuse(invalidValue, "address {:#x} begins no allocation", at);
  if (it->second.context != current)
    return refuse(invalidContext, "the memory belongs to another context");
  Result r = driveAll();
  allocated -= it->second.bytes;
  allocations.erase(it);
  return r;
}
Result cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuMemHostAlloc"));
  if (bytes == 0 || flags > 7)
    return refuse(invalidValue, "{} bytes, flags {}", bytes, flags);
  *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*at, 0xff, bytes);
  pinned[static_cast<std::byte *>(*at)] = bytes;
  return success;
}
Result cuMemFreeHost(void *at) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuMemFreeHost"));
  if (!pinned.count(static_cast<std::byte *>(at)))
    return refuse(invalidValue, "this is no pinned memory");
  Result r = driveAll();
  pinned.erase(static_cast<std::byte *>(at));
  std::free(at);
  return r;
}

Result cuMemcpyHtoDAsync_v2(DevicePtr to, const void *from, size_t bytes, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuMemcpyHtoDAsync"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (!resolve(to, bytes))
    return refuse(invalidValue, "{}", noAddress(to, bytes, "a copy"));
  if (isPinned(from, bytes))  // read when it runs
    return enqueue(s, [=]() -> std::string {
      std::byte *at = resolve(to, bytes);
      if (!at)
        return noAddress(to, bytes, "a copy");
      if (!isPinned(from, bytes))
        return "the pinned memory at the address of a copy was freed before it ran";
      std::memcpy(at, from, bytes);
      return "";
    });
  if (s->capture)
    return refuse(captureUnsupported, "a copy from memory that is not pinned, while the stream captures");
  auto data = std::make_shared<std::vector<std::byte>>(static_cast<const std::byte *>(from),
                                                       static_cast<const std::byte *>(from) + bytes);
  return enqueue(s, [=]() -> std::string {
    std::byte *at = resolve(to, bytes);
    if (!at)
      return noAddress(to, bytes, "a copy");
    std::memcpy(at, data->data(), bytes);
    return "";
  });
}
Result cuMemcpyDtoHAsync_v2(void *to, DevicePtr from, size_t bytes, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuMemcpyDtoHAsync"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (!resolve(from, bytes))
    return refuse(invalidValue, "{}", noAddress(from, bytes, "a copy"));
  const bool asynchronous = isPinned(to, bytes);
  if (!asynchronous && s->capture)
    return refuse(captureUnsupported, "a copy to memory that is not pinned, while the stream captures");
  GPTC_TRY(enqueue(s, [=]() -> std::string {
    const std::byte *at = resolve(from, bytes);
    if (!at)
      return noAddress(from, bytes, "a copy");
    if (asynchronous && !isPinned(to, bytes))
      return "the pinned memory at the address of a copy was freed before it ran";
    std::memcpy(to, at, bytes);
    return "";
  }));
  return asynchronous ? success : drive(s->last);
}
Result cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuMemcpyDtoDAsync"));
  GPTC_TRY(known(streams, s, "the stream"));
  for (DevicePtr at : {to, from})
    if (!resolve(at, bytes))
      return refuse(invalidValue, "{}", noAddress(at, bytes, "a copy"));
  if (to < from + bytes && from < to + bytes)
    return refuse(invalidValue, "a copy of {} bytes from {:#x} to {:#x}, which overlap", bytes, from, to);
  return enqueue(s, [=]() -> std::string {
    std::byte *target = resolve(to, bytes);
    const std::byte *source = resolve(from, bytes);
    if (!target || !source)
      return noAddress(target ? from : to, bytes, "a copy");
    std::memcpy(target, source, bytes);
    return "";
  });
}
Result cuMemsetD8Async(DevicePtr to, unsigned char value, size_t bytes, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuMemsetD8Async"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (!resolve(to, bytes))
    return refuse(invalidValue, "{}", noAddress(to, bytes, "a memset"));
  return enqueue(s, [=]() -> std::string {
    std::byte *at = resolve(to, bytes);
    if (!at)
      return noAddress(to, bytes, "a memset");
    std::memset(at, value, bytes);
    return "";
  });
}

// ---- streams, events, capture ---------------------------------------------------------------------------------------

Result cuStreamCreate(Stream *s, unsigned flags) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamCreate"));
  if (flags > 1)
    return refuse(invalidValue, "flags {} of a stream", flags);
  *s = new StreamImpl{current, {}, {}, {}, {}};
  streams.insert(*s);
  return success;
}
Result cuStreamDestroy_v2(Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamDestroy"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (s->capture)
    return refuse(captureUnsupported, "a stream is destroyed that captures");
  streams.erase(s);
  delete s;
  return success;
}
Result cuStreamSynchronize(Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamSynchronize"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (s->capture) {
    s->capture->invalid = true;
    return refuse(captureUnsupported, "waiting for a stream that captures");
  }
  for (const OpPtr &w : s->waits)
    GPTC_TRY(drive(w));
  return drive(s->last);
}
Result cuStreamWaitEvent(Stream s, Event e, unsigned flags) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamWaitEvent"));
  GPTC_TRY(known(streams, s, "the stream"));
  GPTC_TRY(known(events, e, "the event"));
  if (flags)
    return refuse(invalidValue, "flags of cuStreamWaitEvent");
  if (e->capture) {
    if (std::find(captures.begin(), captures.end(), e->capture) == captures.end())
      return refuse(captureIsolation, "the event belongs to a capture that has ended");
    if (s->capture && s->capture != e->capture)
      return refuse(captureIsolation, "the event belongs to another capture");
    s->capture = e->capture;
    s->tail.insert(s->tail.end(), e->nodes.begin(), e->nodes.end());
    return success;
  }
  if (s->capture) {
    s->capture->invalid = true;
    return refuse(captureIsolation, "a stream that captures waits for an event from outside");
  }
  if (e->op)
    s->waits.push_back(e->op);
  return success;
}
Result cuStreamBeginCapture_v2(Stream s, CaptureMode mode) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamBeginCapture"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (s->capture || mode > 2)
    return refuse(invalidValue, "the stream captures already");
  s->capture = std::make_shared<Capture>();
  s->capture->origin = s;
  s->tail.clear();
  captures.push_back(s->capture);
  return success;
}
Result cuStreamEndCapture(Stream s, Graph *graph) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuStreamEndCapture"));
  GPTC_TRY(known(streams, s, "the stream"));
  *graph = nullptr;
  if (!s->capture || s->capture->origin != s)
    return refuse(captureUnmatched, "no capture began in this stream");
  const std::shared_ptr<Capture> c = s->capture;
  // What came before the end of this stream; the rest was forked and never joined.
  std::set<int> before(s->tail.begin(), s->tail.end());
  const std::vector<Node> &nodes = c->graph->nodes;
  for (int n = int(nodes.size()) - 1; n >= 0; --n)
    if (before.count(n))
      before.insert(nodes[n].after.begin(), nodes[n].after.end());
  bool joined = before.size() == nodes.size();
  for (Stream other : streams)
    if (other->capture == c) {
      other->capture.reset();
      other->tail.clear();
    }
  captures.erase(std::find(captures.begin(), captures.end(), c));
  if (c->invalid)
    return refuse(captureInvalidated, "the capture has become invalid");
  if (!joined)
    return refuse(captureUnjoined, "{} of {} nodes are in streams that never joined", nodes.size() - before.size(),
                  nodes.size());
  *graph = c->graph.release();
  graphs.insert(*graph);
  return success;
}

Result cuEventCreate(Event *e, unsigned flags) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventCreate"));
  if (flags & ~7u)
    return refuse(invalidValue, "flags {} of an event", flags);
  *e = new EventImpl{current, !(flags & eventDisableTiming), {}, {}, {}, {}};
  events.insert(*e);
  return success;
}
Result cuEventDestroy_v2(Event e) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventDestroy"));
  GPTC_TRY(known(events, e, "the event"));
  events.erase(e);
  delete e;
  return success;
}
Result cuEventRecord(Event e, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventRecord"));
  GPTC_TRY(known(streams, s, "the stream"));
  GPTC_TRY(known(events, e, "the event"));
  if (s->capture) {
    e->capture = s->capture;
    e->nodes = s->tail;
    return success;
  }
  e->capture.reset();
  e->ms = std::make_shared<double>();
  GPTC_TRY(enqueue(s, [ms = e->ms]() -> std::string {
    *ms = lost + std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
    return "";
  }));
  e->op = s->last;
  return success;
}
Result cuEventSynchronize(Event e) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventSynchronize"));
  GPTC_TRY(known(events, e, "the event"));
  if (e->capture)
    return refuse(capturedEvent, "waiting for an event that was recorded in a capture");
  return drive(e->op);
}
Result cuEventQuery(Event e) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventQuery"));
  GPTC_TRY(known(events, e, "the event"));
  if (e->capture)
    return refuse(capturedEvent, "asking for an event that was recorded in a capture");
  // Asking again and again is waiting, too: a little happens each time.
  if (driveOnce(e->op) != Drove::done)
    return sticky ? sticky : notReady;
  return sticky;
}
Result cuEventElapsedTime_v2(float *ms, Event begin, Event end) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuEventElapsedTime"));
  for (Event e : {begin, end}) {
    GPTC_TRY(known(events, e, "the event"));
    if (!e->timed || !e->op || e->capture)
      return refuse(invalidHandle, "the event measures no time, or was never recorded");
    if (!e->op->done)
      return refuse(notReady, "the event has not happened yet");
  }
  *ms = float(*end->ms - *begin->ms);
  return success;
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

Result cuGraphInstantiateWithFlags(GraphExec *exec, Graph g, unsigned long long flags) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuGraphInstantiate"));
  GPTC_TRY(known(graphs, g, "the graph"));
  if (flags)
    return refuse(invalidValue, "flags of cuGraphInstantiate");
  *exec = new GraphExecImpl{g->nodes};
  execs.insert(*exec);
  return success;
}
Result cuGraphLaunch(GraphExec exec, Stream s) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuGraphLaunch"));
  GPTC_TRY(known(execs, exec, "the graph"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (s->capture)
    return refuse(captureUnsupported, "a graph within a graph, which the stand-in has not");
  // Each node by itself, so that launches in several streams go side by side.
  std::vector<OpPtr> ops;
  auto add = [&](Attempt run) {
    ops.push_back(std::make_shared<Op>());
    ops.back()->run = std::move(run);
    pending.push_back(ops.back());
    return ops.back();
  };
  GPTC_TRY(enqueue(
      s, Action([exec]() -> std::string { return execs.count(exec) ? "" : "a graph was destroyed before it ran"; })));
  const OpPtr begin = s->last;
  if (exec->last)
    begin->after.push_back(exec->last);
  for (const Node &n : exec->nodes) {
    const OpPtr op = add(n.run);
    op->after.push_back(begin);
    for (int a : n.after)
      op->after.push_back(ops[a]);
  }
  const std::vector<OpPtr> all = ops;
  s->last = exec->last = add([](std::string &) { return true; });
  s->last->after = all;
  s->last->after.push_back(begin);
  return success;
}
Result cuGraphDestroy(Graph g) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuGraphDestroy"));
  GPTC_TRY(known(graphs, g, "the graph"));
  graphs.erase(g);
  delete g;
  return success;
}
Result cuGraphExecDestroy(GraphExec exec) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuGraphExecDestroy"));
  GPTC_TRY(known(execs, exec, "the graph"));
  GPTC_TRY(driveAll());
  execs.erase(exec);
  delete exec;
  return success;
}

// ---- modules and kernels --------------------------------------------------------------------------------------------

Result cuModuleLoadData(LoadedModule *module, const void *image) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuModuleLoadData"));
  const char *text = static_cast<const char *>(image);
  constexpr const char *magic = "GPTC-STANDIN\n";
  if (!text || std::strncmp(text, magic, std::strlen(magic)) != 0)
    return refuse(invalidImage, "the image is none of the stand-in NVRTC's");
  const char *code = std::strstr(text, "\n\n") + 2;
  std::istringstream header(std::string(text + std::strlen(magic), code));
  auto m = std::make_unique<ModuleImpl>();
  m->context = current;
  size_t bytes = 0;
  for (std::string key; header >> key;) {
    if (key == "arch") {
      std::string arch;
      header >> arch;
      const bool exact = !std::isdigit((unsigned char)arch.back());
      const int is = std::atoi(arch.c_str() + 3), here = int(setting("ARCH", 90));
      if (exact ? is != here : is / 10 != here / 10 || is > here)
        return refuse(noBinaryForGpu, "code for {} on sm_{}", arch, here);
    } else if (key == "kernel") {
      std::string name;
      int threads;
      header >> name >> threads;
      m->threads[name] = threads;
    } else if (key == "bytes") {
      header >> bytes;
    }
  }
  const std::string folder = gptc::simt::temporaryFolder();
  std::ofstream(folder + "/kernels.so", std::ios::binary).write(code, bytes);
  m->library = dlopen((folder + "/kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = m->library ? "" : dlerror();
  std::filesystem::remove_all(folder);
  if (!m->library)
    return refuse(invalidImage, "{}", why);
  *module = m.release();
  modules.insert(*module);
  return success;
}
Result cuModuleUnload(LoadedModule m) {
  std::lock_guard guard(lock);
  GPTC_TRY(enterUncaptured("cuModuleUnload"));
  GPTC_TRY(known(modules, m, "the module"));
  GPTC_TRY(driveAll());
  for (auto &[name, f] : m->functions)
    functions.erase(f.get());
  dlclose(m->library);
  modules.erase(m);
  delete m;
  return success;
}
Result cuModuleGetFunction(LoadedFunction *function, LoadedModule m, const char *name) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuModuleGetFunction"));
  GPTC_TRY(known(modules, m, "the module"));
  if (!m->threads.count(name))
    return refuse(notFound, "no kernel is called {}", name);
  std::unique_ptr<FunctionImpl> &f = m->functions[name];
  if (!f) {
    f = std::make_unique<FunctionImpl>();
    f->module = m;
    f->name = name;
    f->threads = m->threads[name];
    f->code = reinterpret_cast<gptc::simt::HostModule::Thread>(dlsym(m->library, (f->name + "_host").c_str()));
    auto params = reinterpret_cast<int (*)()>(dlsym(m->library, (f->name + "_params").c_str()));
    auto written = reinterpret_cast<bool (*)(int)>(dlsym(m->library, (f->name + "_written").c_str()));
    for (int i = 0; i < params(); ++i)
      f->written.push_back(written(i));
    functions.insert(f.get());
  }
  *function = f.get();
  return success;
}
Result cuFuncGetAttribute(int *value, FunctionAttribute a, LoadedFunction f) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuFuncGetAttribute"));
  GPTC_TRY(known(functions, f, "the function"));
  *value = a == functionMaxThreads         ? f->threads
           : a == functionMaxDynamicShared ? std::max(f->dynamicShared, sharedBytes)
                                           : 0;
  return success;
}
Result cuFuncSetAttribute(LoadedFunction f, FunctionAttribute a, int value) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuFuncSetAttribute"));
  GPTC_TRY(known(functions, f, "the function"));
  if (a != functionMaxDynamicShared || value < 0 || value > sharedOptin())
    return refuse(invalidValue, "attribute {} = {} of {}", int(a), value, f->name);
  f->dynamicShared = value;
  return success;
}
/// What GPTC_STANDIN_FAULT plants into this kernel: "fail", "hang", "crash", "corrupt" or "".
static std::string plantedFault(const std::string &kernel) {
  const char *v = std::getenv("GPTC_STANDIN_FAULT");
  const std::string fault = v ? v : "";
  const size_t colon = fault.find(':');
  return colon == std::string::npos || kernel.find(fault.substr(colon + 1)) == std::string::npos
             ? ""
             : fault.substr(0, colon);
}
/// `early`: the kernel need not wait for the one before it on the stream, and must do so itself.
static Result launch(LoadedFunction f, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,
                     unsigned blockZ, unsigned shared, Stream s, void **params, void **extra, bool early) {
  GPTC_TRY(known(functions, f, "the function"));
  GPTC_TRY(known(streams, s, "the stream"));
  if (f->module->context != s->context)
    return refuse(invalidHandle, "{} and the stream belong to two contexts", f->name);
  if (gridX < 1 || gridX > 0x7fffffffu || gridY != 1 || gridZ != 1 || blockX < 1 || blockX > 1024 || blockY != 1 ||
      blockZ != 1 || extra || (!params && !f->written.empty()))
    return refuse(invalidValue, "{} with {} blocks of {} threads", f->name, gridX, blockX);
  if (blockX > unsigned(f->threads))
    return refuse(launchOutOfResources, "{} with {} threads, compiled for {}", f->name, blockX, f->threads);
  if (int(shared) > std::max(f->dynamicShared, sharedBytes))
    return refuse(invalidValue, "{} with {} bytes of shared memory", f->name, shared);
  std::vector<DevicePtr> values;
  for (size_t i = 0; i < f->written.size(); ++i)
    values.push_back(*static_cast<DevicePtr *>(params[i]));
  const std::string fault = plantedFault(f->name);
  if (!fault.empty() && fault != "hang" && fault != "fail" && fault != "crash" && fault != "corrupt")
    return refuse(invalidValue, "GPTC_STANDIN_FAULT={}, which is none of fail, hang, crash and corrupt", fault);
  if (early && s->capture && !s->capture->invalid) {
    const std::vector<Node> &nodes = s->capture->graph->nodes;
    if (s->tail.size() != 1 || !nodes[size_t(s->tail[0])].isKernel)
      return refuse(captureUnsupported, "{} is to start early behind something else than one kernel", f->name);
  }
  const Action run = [=]() -> std::string {
    if (!functions.count(f))
      return "a module was unloaded before its kernel ran";
    if (fault == "crash")
      std::abort();
    if (fault == "fail")
      return f->name + ": was told to access an illegal address";
    std::vector<Param> memory;
    for (size_t i = 0; i < values.size(); ++i) {
      size_t room = 0;
      std::byte *at = resolve(values[i], 1, &room);
      if (!at)
        return fmt::format("parameter {} of {}: address {:#x} is not allocated", i, f->name, values[i]);
      if (values[i] % 16)
        return fmt::format("parameter {} of {}: address {:#x} is not aligned to 16 bytes", i, f->name, values[i]);
      memory.push_back({fmt::format("parameter {}", i), at, int64_t(room), f->written[i], false});
    }
    auto inTable = [](uint64_t address) -> std::optional<Param> {
      size_t room = 0;
      std::byte *at = resolve(address, 1, &room);
      return at && address % 16 == 0 ? std::optional(Param{"an address of a table", at, int64_t(room), true, false})
                                     : std::nullopt;
    };
    const std::string problem = gptc::simt::launch(f->code, memory, gridX, int(blockX), false, shared, inTable);
    for (size_t i = values.size(); fault == "corrupt" && i-- > 0;)
      if (f->written[i]) {
        for (DevicePtr at : {values[i] - 16, values[i]})
          if (std::byte *beside = resolve(at, 16))
            std::memset(beside, 0xff, 16);
        break;
      }
    if (problem.empty() && early && !gptc::simt::allWaited)
      return f->name + ": starts early and does not wait for the kernel before it";
    return problem.empty() ? "" : f->name + ": " + problem;
  };
  const Result enqueued = fault == "hang" ? enqueue(s, Attempt([](std::string &) { return false; })) : enqueue(s, run);
  if (enqueued == success && s->capture)
    s->capture->graph->nodes.back().isKernel = true;
  return enqueued;
}
Result cuLaunchKernel(LoadedFunction f, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                      unsigned blockY, unsigned blockZ, unsigned shared, Stream s, void **params, void **extra) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuLaunchKernel"));
  return launch(f, gridX, gridY, gridZ, blockX, blockY, blockZ, shared, s, params, extra, false);
}
Result cuLaunchKernelEx(const LaunchConfig *c, LoadedFunction f, void **params, void **extra) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter("cuLaunchKernelEx"));
  if (!c || c->count != 1 || !c->attributes || c->attributes->id != programmaticStreamSerialization)
    return refuse(invalidValue, "a launch with other attributes than one for an early start");
  const bool early = c->attributes->value.programmaticStreamSerializationAllowed != 0;
  if (early && setting("ARCH", 90) < 90)
    return refuse(invalidValue, "a GPU before sm_90 has no early starts");
  return launch(f, c->gridX, c->gridY, c->gridZ, c->blockX, c->blockY, c->blockZ, c->sharedBytes, c->stream, params,
                extra, early);
}
}

// ---- for the other stand-ins ----------------------------------------------------------------------------------------

extern "C" {

/// Something that a library puts into a stream. Capture, order and errors are as with kernels.
Result gptcStandinEnqueue(const char *what, Stream s, const Action &run) {
  std::lock_guard guard(lock);
  GPTC_TRY(enter(what));
  GPTC_TRY(known(streams, s, "the stream"));
  return enqueue(s, run);
}
/// Within an action: time passes for all events from now on.
void gptcStandinTake(double ms) { lost += ms; }
/// Memory of the device, within an action; null where these bytes are not allocated.
std::byte *gptcStandinResolve(DevicePtr at, size_t bytes) { return resolve(at, bytes); }
/// The same of one context.
std::byte *gptcStandinResolveIn(Context context, DevicePtr at, size_t bytes) {
  auto it = allocations.upper_bound(at);
  return it != allocations.begin() && std::prev(it)->second.context == context ? resolve(at, bytes) : nullptr;
}

/// The context that is current in this thread and its device; null where there is none.
Context gptcStandinContext(int *device) {
  std::lock_guard guard(lock);
  if (current)
    *device = current->device;
  return current;
}
/// What the stream captures into, or null; `known`: whether it is a stream of that context.
const void *gptcStandinCapture(Context context, Stream s, bool *known) {
  std::lock_guard guard(lock);
  *known = streams.count(s) && s->context == context;
  return *known ? s->capture.get() : nullptr;
}
/// Enqueues what may have to wait for other ranks, behind what is in the same chain.
Result gptcStandinChain(const void *chain, Context context, Stream s, const Attempt &run) {
  std::lock_guard guard(lock);
  if (sticky != success)
    return sticky;
  if (!streams.count(s) || s->context != context)
    return refuse(invalidHandle, "the stream is none, or belongs to another context");
  return enqueue(s, run, chain);
}
/// Goes on a little with what was enqueued in this chain; whether nothing of it is left.
bool gptcStandinDriveChain(const void *chain) {
  std::lock_guard guard(lock);
  auto it = chains.find(chain);
  if (it == chains.end())
    return true;
  if (driveOnce(it->second) != Drove::done)
    return false;
  chains.erase(it);
  return true;
}
}
