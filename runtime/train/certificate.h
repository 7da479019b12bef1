// A run's certificate: what its steps computed, so that anybody who has the plan and the data can replay any span of
// the run and compare (runtime/train/replay.h). OUT_DIR/certificate/ has
//
//   steps.jsonl          one object a line: certified steps, and before those of each process of the run their origin
//   plan-0123456789ab/   copies of the plans that are named there
//
// Once a run has a certificate, each process that goes on with it writes its origin before it saves, also one that
// certifies nothing: so nobody mistakes its steps for those of another plan or other data.
//
// Each line ends with a seal: BLAKE3 of the line before's seal and of the line without its own. So no line can be
// changed, left out or added in the middle without notice. It is no signature: who can write the file can write
// another.
#pragma once

#include "runtime/data/data_print.h"
#include "runtime/plan/plan.h"
#include "runtime/train/digests.h"
#include "runtime/train/train_step.h"

#include <string>
#include <vector>

namespace gptc {

struct CertifiedStep {
  int64_t step = 0;  // from 1
  float loss = 0, gradNorm = 0;
  StateDigests before, after;  // digestsOfStates
  std::string kernels;         // KernelDigests::all; "" for several ranks, each of which runs kernels of its own
  bool operator==(const CertifiedStep &) const = default;
};

/// The runs that one rank can replay, which errors say to others.
constexpr const char *kReplayable =
    "runs without parallel.tensor, parallel.sync_every and parallel.compression, and with parallel.reduce_order = "
    "\"tree\", can";

/// What determines the steps from `since` on.
struct CertifiedOrigin {
  int64_t since = 0;     // steps done before
  std::string plan;      // Plan::hash
  std::string manifest;  // BLAKE3 of the plan's manifest.json, which has the seed and the paths
  std::string results;   // resultIdentity
  DataPrint data;
};

/// Takes the digests of a step: made before the step, ended after it.
class CertifyingStep {
public:
  /// Takes the kernels' as the executor's observer, if this is the only rank and `withKernels`. All ranks must make it
  /// together.
  CertifyingStep(Executor &executor, int64_t step, bool withKernels = true);
  ~CertifyingStep() { release(); }
  CertifyingStep(const CertifyingStep &) = delete;
  /// All ranks must call it together.
  CertifiedStep end(const StepResult &result);
  /// The kernel of number i (CertifiedStep::kernels) in words.
  std::string kernel(size_t i) const { return kernels.describe(i); }

private:
  void release();
  Executor &executor;
  KernelDigests kernels;
  CertifiedStep taken;
};

/// Writes a certificate, a line at a time.
class CertificateLog {
public:
  /// Goes on with the certificate of a run that has done `step` steps: drops what is later and an incomplete last line,
  /// and copies the plan. A certificate that was changed is kept aside, as steps-1.jsonl. `folder`:
  /// Certificate::folder. Throws UserError(Unwritable, DiskFull, PlanDamaged).
  CertificateLog(const std::string &folder, const Plan &plan, int64_t step);
  ~CertificateLog();
  CertificateLog(const CertificateLog &) = delete;
  /// Writes where the steps of this process come from, once. Throws UserError(Unwritable, DiskFull).
  void begin(const DataPrint &data);
  /// Adds a step, after begin(). False if the file is as long as it may be. Throws UserError(Unwritable, DiskFull).
  bool add(const CertifiedStep &step);

private:
  void line(const std::string &body);
  std::string path, seal;
  CertifiedOrigin origin;
  StateDigests last;  // after the step that was written last
  size_t bytes = 0;
  bool hasBegun = false;
  int fd = -1;
};

struct Certificate {
  struct Part {
    CertifiedOrigin origin;
    std::vector<CertifiedStep> steps;
  };
  std::vector<Part> parts;
  /// What is wrong with it, with the number of the line from which on nothing was read; "" if nothing is.
  std::string problem;

  static std::string folder(const std::string &outDir) { return outDir + "/certificate"; }
  /// The folder of an origin's plan in a certificate's folder.
  static std::string planOf(const std::string &folder, const CertifiedOrigin &origin);
  /// Loads it from OUT_DIR's. Throws what loadPlan throws, and PlanDamaged if it is not the plan that was run.
  static Plan loadPlanOf(const std::string &outDir, const CertifiedOrigin &origin);
  /// Reads OUT_DIR's. Throws UserError(FileMissing) if there is none.
  static Certificate read(const std::string &outDir);
};

}  // namespace gptc
