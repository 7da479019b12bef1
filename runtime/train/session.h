// A plan, ready to run: memory, threads and kernels in one object.
#pragma once

#include "runtime/device/arena.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"

namespace gptc {

/// Text to tokens and back, as the programs hand it to the runtime (tokenizers belong to the front end).
class TextCodec {
public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> encode(const std::string &text) = 0;
  /// The text that became complete with this token.
  virtual std::string push(int32_t token) = 0;
  /// The rest of an incomplete character; ready for another text afterwards.
  virtual std::string finish() = 0;
  /// Tokens from here on stand for nothing.
  virtual int64_t vocabSize() const = 0;
  /// Token that ends a text, or -1.
  virtual int32_t endOfText() const = 0;
};

/// The ranks that one rank meets along each axis of the mesh.
struct MeshAxes {
  Communicator *data = nullptr, *tensor = nullptr;
};

struct Session {
  /// Allocates the arena, on the CPU or the GPU that the plan is for; compiles nothing yet. Object code is cached in
  /// `cacheDir` ("" for nowhere); `threads` 0: as hostTarget() decides. `gpu`: its number among the visible ones.
  /// `ranks`, where there are several, are those of the plan's mesh and must outlive this; `along` are its axes, where
  /// it has two.
  Session(Plan plan, const std::string &cacheDir, unsigned threads = 0, Communicator *ranks = nullptr,
          MeshAxes along = {}, int gpu = 0);

  Plan plan;
  Target host;
  ThreadPool pool;
  std::unique_ptr<Arena> arena;  // of the CPU, where that is the target
  std::unique_ptr<Executor> device;
  Executor &executor;  // of that device
};

}  // namespace gptc
