// What the tuner has measured of products (runtime/tuning/tuning_records.h), as what forecasts are made of: the share
// of a device's peak that they reach, by the tokens of a micro-batch.
#pragma once

#include "frontends/cluster_config.h"
#include "runtime/tuning/tuning_records.h"

#include <cstdint>
#include <map>

namespace gptc {

struct ProductShares {
  int64_t products = 0;              // different ones, each of which counts the same
  std::map<int64_t, double> byRows;  // 0 to 1, by tokens
};

/// The winners of the last races of `target` in `records`: for each product the share at which the cost model
/// (passes/analysis/cost.h) with the other rates of `device` takes the time that was measured, and of those with as
/// many rows the geometric mean. A product of which more than half is memory traffic or other work says nothing of
/// arithmetic, nor does a record whose kernel is not known here or is emitted otherwise today.
ProductShares productShares(TuningRecords &records, const Target &target, const DeviceSpec &device);

/// device.matmul and device.efficiency, as these shares have them. At least one is needed.
void setShares(DeviceSpec &device, const ProductShares &shares);

}  // namespace gptc
