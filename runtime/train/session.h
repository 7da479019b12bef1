// A plan that is ready to run: memory, threads and kernels in one object.
#pragma once

#include "runtime/device/arena.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"

namespace gptc {

/// Converts text to tokens and back. Programs pass it to the runtime, because tokenizers belong to the front end.
class TextCodec {
public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> encode(const std::string &text) = 0;
  /// Returns the text that this token completes.
  virtual std::string push(int32_t token) = 0;
  /// Returns the rest of an incomplete character, and resets for another text.
  virtual std::string finish() = 0;
  /// Number of tokens; larger ids have no text.
  virtual int64_t vocabSize() const = 0;
  /// Token that ends a text; -1 if there is none.
  virtual int32_t endOfText() const = 0;
};

/// This rank's groups along each axis of the mesh.
struct MeshAxes {
  Communicator *data = nullptr, *tensor = nullptr;
};

struct Session {
  /// Allocates the arena on the plan's device and compiles nothing yet. Object code is cached in `cacheDir` ("" for no
  /// cache). `threads`: 0 for hostTarget()'s choice. `ranks`: those of the plan's mesh, null if there is only one; must
  /// outlive this. `along`: the groups along its axes, if it has two. `gpu`: index among the visible GPUs.
  Session(Plan plan, const std::string &cacheDir, unsigned threads = 0, Communicator *ranks = nullptr,
          MeshAxes along = {}, int gpu = 0);

  Plan plan;
  Target host;
  ThreadPool pool;
  std::unique_ptr<Arena> arena;  // if the target is the CPU
  std::unique_ptr<Executor> device;
  Executor &executor;  // *device
};

}  // namespace gptc
