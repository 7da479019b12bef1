// Which keys of [model] the weights of other programs must agree with.
#pragma once

#include "ir/settings/setting.h"

namespace gptc {

/// Whether the key says what a model of tokens computes: all of [model] but preset, init_from and dropout, and but
/// what a classifier learns of labels (ir/label_keys.h).
bool saysWhatIsComputed(const Setting &key);

}  // namespace gptc
