// Converts tuning records of products (runtime/tuning/tuning_records.h) to the shares of a device's peak that forecasts
// use, by tokens per micro-batch.
#pragma once

#include "frontends/cluster_config.h"
#include "runtime/tuning/tuning_records.h"

#include <cstdint>
#include <map>

namespace gptc {

struct ProductShares {
  int64_t products = 0;              // distinct products; each has the same weight
  std::map<int64_t, double> byRows;  // share from 0 to 1, by tokens
};

/// The shares from the winners of the last races for `target`. A product's share is that with which the cost model
/// (passes/analysis/cost.h), at `device`'s other rates, gives the measured time; products with equally many rows are
/// averaged geometrically. Ignores products of which more than half the time is memory traffic or other work, and
/// records whose kernel is unknown here or emitted differently today.
ProductShares productShares(TuningRecords &records, const Target &target, const DeviceSpec &device);

/// Sets device.matmul and device.efficiency from the shares, at least one.
void setShares(DeviceSpec &device, const ProductShares &shares);

}  // namespace gptc
