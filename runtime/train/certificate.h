// A run's certificate: what its steps computed, so that anybody who has the plan and the data can replay any span of
// the run and compare (runtime/train/replay.h). OUT_DIR/certificate/ has
//
//   steps.jsonl          one object a line: what the run is made of, wherever a process of it began, and certified steps
//   plan-0123456789ab/   copies of the plans that are named there
//
// Each line ends with a seal: BLAKE3 of the line before's seal and of the line without its own. So no line can be
// changed, left out or added in the middle without notice. It is no signature: who can write the file can write another.
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

/// What determines the steps from `since` on.
struct CertifiedOrigin {
  int64_t since = 0;    // steps done before
  std::string plan;     // Plan::hash
  std::string results;  // resultIdentity
  DataPrint data;
  /// Of a plan and the fingerprint of its data.
  static CertifiedOrigin of(const Plan &plan, const DataPrint &data, int64_t since);
};

/// Takes the digests of a step: made before the step, ended after it.
class CertifyingStep {
public:
  /// Takes the kernels' as the executor's observer, if this is the only rank. All ranks must make it together.
  CertifyingStep(Executor &executor, int64_t step);
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
  /// and adds the origin. A certificate that was changed is kept beside it as steps-1.jsonl. Copies the plan from its
  /// folder. Throws UserError(Unwritable, DiskFull).
  CertificateLog(const std::string &outDir, const Plan &plan, const DataPrint &data, int64_t step);
  ~CertificateLog();
  CertificateLog(const CertificateLog &) = delete;
  /// Throws UserError(Unwritable, DiskFull).
  void add(const CertifiedStep &step);

private:
  void line(const std::string &body);
  std::string path, seal;
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

  /// The copy of a plan.
  static std::string planOf(const std::string &outDir, const std::string &hash);
  /// Reads OUT_DIR's. Throws UserError(FileMissing) if there is none.
  static Certificate read(const std::string &outDir);
};

}  // namespace gptc
