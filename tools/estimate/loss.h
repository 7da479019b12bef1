// The loss that a run may expect before it has run, and the batch beyond which tokens are spent for less.
#pragma once

#include <optional>

namespace gptc {

/// Hoffmann et al. 2022, approach 3: loss(N, D) = E + A / N^alpha + B / D^beta, in nats per token, of a decoder with N
/// parameters, embeddings included, after D tokens, none of them twice, with their data, tokenizer and schedule.
/// Constants as Besiroglu et al. 2024 ("Chinchilla Scaling: A replication attempt") fitted them anew, because those
/// printed do not fit the paper's own runs.
double lossByLaw(double parameters, double tokens);

/// What the law's loss falls to with tokens without end.
double leastLossByLaw(double parameters);

/// Tokens after which the law has this loss; nullopt if it never does, or not within 1e18.
std::optional<double> tokensByLaw(double parameters, double loss);

/// The critical batch in tokens (McCandlish et al. 2018): with batches of B tokens a loss takes 1 + B / critical times
/// the tokens of a small batch, and 1 + critical / B times the steps of a large one. It grows as the loss falls: 2e8 /
/// loss^(1 / 0.21), as Kaplan et al. 2020 (section 5.1) measured with decoders on web texts.
double criticalBatch(double loss);

}  // namespace gptc
