#include "tools/estimate/products.h"

#include "passes/analysis/cost.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "tools/estimate/workload.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace gptc {

namespace {

/// Tokens in the pass of a group's product, 0 if it has none: the rows of the first factor, forward and in both
/// gradients, because the weight's gradient sums over them.
int64_t rowsOf(const Op &group) {
  for (const Op &op : *group.body)
    if (op.is(OpKind::matmul) && op.attrs.getInt("batch") == 0) {
      const Type &a = op.operand(0)->type;
      return a.slice(0, a.rank() - 1).elements();
    }
  return 0;
}

std::optional<double> shareOf(const Op &group, MachineRates rates, double seconds) {
  auto at = [&](double share) {
    rates.matmul = share;
    return costOf(group, rates).seconds;
  };
  if (at(1e9) > seconds / 2)
    return std::nullopt;
  double low = 1e-4, high = 1;
  if (at(high) >= seconds)
    return high;
  for (int round = 0; round < 60; ++round) {
    const double middle = std::sqrt(low * high);
    (at(middle) > seconds ? low : high) = middle;
  }
  return high;
}

}  // namespace

ProductShares productShares(TuningRecords &records, const Target &target, const DeviceSpec &device) {
  const std::string machine = fingerprintOf(target);
  TunedSchedules tuned(records, target);
  std::set<std::string> problems;
  for (const TuningRecord &r : records.all())
    if (r.machine == machine)
      problems.insert(r.problem);
  ProductShares shares;
  std::map<int64_t, std::vector<double>> logs;
  for (const std::string &problem : problems) {
    const auto race = lastRace(records, problem, machine);
    const std::unique_ptr<Module> m = race.empty() ? nullptr : records.groupOf(problem, target);
    if (!m)
      continue;
    const Op &group = *m->functions[0]->body.front();
    const int64_t rows = rowsOf(group);
    if (rows == 0 || tuned.sourceOf(group, race[0]->schedule) != race[0]->source)
      continue;
    if (auto share = shareOf(group, ratesOf(device, double(rows)), race[0]->time.median)) {
      logs[rows].push_back(std::log(*share));
      ++shares.products;
    }
  }
  for (const auto &[rows, of] : logs) {
    double sum = 0;
    for (double l : of)
      sum += l;
    shares.byRows[rows] = std::exp(sum / double(of.size()));
  }
  return shares;
}

void setShares(DeviceSpec &device, const ProductShares &shares) {
  GPTC_CHECK(!shares.byRows.empty(), "no share is known");
  device.matmul = 0;
  for (const auto &[rows, share] : shares.byRows)
    device.matmul = std::max(device.matmul, share);
  device.efficiency.clear();
  for (const auto &[rows, share] : shares.byRows)
    device.efficiency.push_back({double(rows), share / device.matmul});
}

}  // namespace gptc
