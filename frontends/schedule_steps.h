// Numbers of steps that a model file writes as a part of the run or as tokens.
#pragma once

#include "frontends/config_reader.h"
#include "ir/settings/settings.h"

namespace gptc {

/// Complains of a text at `key` that is neither "2%", a part of train.steps, nor "10M tokens".
void checkStepsText(ConfigReader &r, const char *key);

/// Sets optimizer.warmup_steps and optimizer.decay_steps where they are texts. "2%" is that part of train.steps,
/// rounded to the nearest step; "10M tokens" is as many steps as read at least that many tokens. train.steps and
/// train.global_batch_tokens must have been read and checked.
void takeScheduleSteps(ConfigReader &r, Settings &s);

}  // namespace gptc
