#include "runtime/cuda/host_part.h"

#include "ir/plan_check.h"
#include "support/diagnostics.h"

#include <cstring>

namespace gptc::cuda {

static int64_t aligned(int64_t bytes) { return (bytes + planAlignment - 1) / planAlignment * planAlignment; }

void HostPart::add(HostKernel &kernel, const BoundGroup &group) {
  const unsigned reads = group.op->numOperands();
  int64_t needed = 0;
  for (const Place &p : group.memory)
    needed += p.at < hostArena ? aligned(p.bytes) : 0;
  GPTC_CHECK(needed <= memory.slotBytes, "{} needs {} bytes of a slot of {}", group.name, needed, memory.slotBytes);
  if (batches.empty() || used + needed > memory.slotBytes) {
    batches.emplace_back(gpu, items.size(), threads);
    used = 0;
  }
  Batch &batch = batches.back();
  std::byte *const slot = memory.host + memory.slots + (batches.size() - 1) % 2 * memory.slotBytes;
  Item &item = items.emplace_back();
  item.kernel = &kernel;
  for (size_t i = 0; i < group.memory.size(); ++i) {
    const Place &p = group.memory[i];
    if (p.at >= hostArena) {
      kernel.params.push_back(memory.host + (p.at - hostArena));
      continue;
    }
    // A result that shares an operand's place shares it here too.
    size_t operand = i;
    for (size_t j = 0; j < reads && i >= reads; ++j)
      if (group.memory[j].at == p.at)
        operand = j;
    auto *at = operand < i ? static_cast<std::byte *>(kernel.params[operand]) : slot + used;
    kernel.params.push_back(at);
    const Copy copy{at, memory.arena + DevicePtr(p.at), size_t(p.bytes)};
    (i < reads ? item.in : item.out).push_back(copy);
    if (operand == i)
      used += aligned(p.bytes);
    if (operand == i && i >= reads)
      if (const Type &t = group.op->result(unsigned(i - reads))->type; t.elements() != t.paddedElements())
        item.padded.push_back(copy);
  }
  for (int64_t &stream : kernel.streams)
    kernel.params.push_back(&stream);
  std::vector<int64_t> bytes;
  for (const Place &p : group.memory)
    bytes.push_back(p.bytes);
  bytes.insert(bytes.end(), kernel.streams.size(), sizeof(int64_t));
  batch.waves.add({&kernel.code, kernel.params, bytes, reads});
  batch.end = items.size();
}

void HostPart::bring(const Item &item) {
  for (const Copy &c : item.in)
    gpu.d.check(gpu.d.copyToHost(c.host, c.device, c.bytes, gpu.stream), "cuMemcpyDtoHAsync");
}

/// The kernel does not write padding, and a slot holds old data.
void HostPart::clearPadding(const Item &item) {
  for (const Copy &c : item.padded)
    std::memset(c.host, 0, c.bytes);
}

void HostPart::sendBack(const Item &item) {
  for (const Copy &c : item.out)
    gpu.d.check(gpu.d.copyToDevice(c.device, c.host, c.bytes, gpu.stream), "cuMemcpyHtoDAsync");
}

void HostPart::run(ThreadPool &pool, llvm::function_ref<void(Event)> await) {
  auto start = [&](Batch &b) {
    for (size_t i = b.begin; i < b.end; ++i)
      bring(items[i]);
    gpu.d.check(gpu.d.eventRecord(b.arrived.event, gpu.stream), "cuEventRecord");
  };
  if (!batches.empty())
    start(batches[0]);
  for (size_t n = 0; n < batches.size(); ++n) {
    // Its slot is that of the batch before this one. That batch's results are enqueued, and the stream keeps the order.
    if (n + 1 < batches.size())
      start(batches[n + 1]);
    Batch &b = batches[n];
    await(b.arrived.event);
    for (size_t i = b.begin; i < b.end; ++i)
      clearPadding(items[i]);
    b.waves.run(pool);
    for (size_t i = b.begin; i < b.end; ++i)
      sendBack(items[i]);
  }
}

void HostPart::runAlone(size_t kernel, ThreadPool &pool, llvm::function_ref<void()> settle) {
  const Item &item = items[kernel];
  bring(item);
  settle();
  clearPadding(item);
  for (const CompiledPhase &phase : item.kernel->code.phases) {
    WavePhase alone;
    alone.add(phase, item.kernel->params.data(), pool.size());
    alone.run(pool);
  }
  sendBack(item);
  settle();
}

}  // namespace gptc::cuda
