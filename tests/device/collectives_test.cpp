// Collectives by the NCCL of this machine, as far as one GPU can tell: a world of one rank joins, computes in a stream
// and in a graph, and leaves.
#include "runtime/cuda/nccl.h"
#include "tests/device/cases.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cstring>

namespace gptc::test {
namespace {

using namespace cuda;
using Kind = NcclCollective::Kind;

Finding collectives(TestDevice &device) {
  if (const CudaLibrary &library = CudaLibrary::find(CudaLibraryId::nccl); !library)
    return {.skipped = "no NCCL: " + library.why};
  Finding f;
  const Gpu &gpu = device.opened();
  const Driver &d = gpu.d;
  NcclCommunicator c(gpu, NcclId::make(), 0, 1, std::chrono::seconds(30));
  constexpr size_t n = 1000, bytes = n * 8;
  std::vector<std::byte> x(bytes), got(bytes);
  for (size_t i = 0; i < bytes; ++i)  // of finite numbers in every format
    x[i] = std::byte(i * 37 % 97 % (i % 2 ? 0x3c : 256));
  DeviceMemory from(gpu, bytes), to(gpu, bytes), further(gpu, bytes);
  auto clear = [&] {
    d.check(d.copyToDevice(from.at, x.data(), bytes, gpu.stream), "cuMemcpyHtoDAsync");
    for (const DeviceMemory *m : {&to, &further})
      d.check(d.memsetBytes(m->at, 0xff, bytes, gpu.stream), "cuMemsetD8Async");
  };
  auto wait = [&] {
    EventHandle e(gpu);
    d.check(d.eventRecord(e.event, gpu.stream), "cuEventRecord");
    c.wait(e.event, "a world of one");
  };
  auto expectCopy = [&](DevicePtr at, size_t size, const std::string &what) {
    d.check(d.copyToHost(got.data(), at, bytes, gpu.stream), "cuMemcpyDtoHAsync");
    gpu.wait();
    if (std::memcmp(got.data(), x.data(), size) != 0)
      f.problem += what + " has other bytes\n";
  };
  int calls = 0;
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u32, DType::pred})
    for (Kind kind : {Kind::all_reduce, Kind::all_gather, Kind::reduce_scatter, Kind::broadcast})
      for (DevicePtr target : {to.at, from.at}) {
        const NcclCollective call{kind, from.at, target, n, t};
        if (t == DType::pred && (kind == Kind::all_reduce || kind == Kind::reduce_scatter))
          continue;
        clear();
        c.enqueue(call, gpu.stream);
        wait();
        expectCopy(target, n * sizeOf(t), call.str());
        ++calls;
      }

  // A group in a graph, launched twice.
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  d.check(d.streamBeginCapture(gpu.stream, captureThreadLocal), "cuStreamBeginCapture");
  c.enqueue({{Kind::all_reduce, from.at, to.at, n, DType::f32}, {Kind::all_gather, from.at, further.at, n, DType::i32}},
            gpu.stream);
  d.check(d.streamEndCapture(gpu.stream, &graph), "cuStreamEndCapture");
  d.check(d.graphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
  d.check(d.graphDestroy(graph), "cuGraphDestroy");
  for (int launch = 0; launch < 2; ++launch) {
    clear();
    d.check(d.graphLaunch(exec, gpu.stream), "cuGraphLaunch");
    wait();
    expectCopy(to.at, n * 4, "a group in a graph");
    expectCopy(further.at, n * 4, "a group in a graph");
  }
  d.check(d.graphExecDestroy(exec), "cuGraphExecDestroy");
  c.finish();
  fmt::print("{}: {} collectives of one rank\n", device.name, calls + 2);
  return f;
}

TEST(Device, CollectivesOfOneRank) {
  const Outcomes o = runCases("Collectives", {{.name = "one rank", .about = {}, .run = collectives}});
  if (o.skipped)
    GTEST_SKIP() << o.why;
}

}  // namespace
}  // namespace gptc::test
