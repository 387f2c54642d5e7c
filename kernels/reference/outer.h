// The slow obvious implementation of what a round computes outside of the DCT codec:
// kernels/draws.h and kernels/outer.h. The faster one is compared with it bit for bit.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/aggregate.h"
#include "kernels/draws.h"
#include "kernels/number_format.h"
#include "kernels/outer.h"

namespace isthmus {
namespace reference {

// The generator of kernels/draws.h itself.
using PhiloxWords = std::array<uint32_t, 4>;
PhiloxWords Philox4x32(PhiloxWords counter, std::array<uint32_t, 2> key);
void UniformDraws(const DrawKey& key, uint64_t first_element, absl::Span<float> out);

void OuterStepWithDraws(const OuterRound& round, absl::Span<const float> g,
                        absl::Span<const float> draws, const OuterState& state);
float OuterLargest(const OuterRound& round, absl::Span<const float> g, absl::Span<const float> m);
void LionDirection(const LionRule& rule, absl::Span<const float> g, absl::Span<float> m,
                   absl::Span<float> c);

double SquaresOf(absl::Span<const float> block);
void AggregateBlock(const AggregateSettings& settings, absl::Span<const float* const> rows,
                    absl::Span<const float> factors, absl::Span<float> out);

// Without the rotation: kernels/number_bytes.h.
void EncodeNumbers(const NumberSettings& settings, absl::Span<const float> values,
                   absl::Span<const float> draws, char* to);
bool DecodeNumbers(const NumberSettings& settings, const char* bytes, absl::Span<float> values);
void HadamardInPlace(uint32_t n, absl::Span<float> values);

}  // namespace reference
}  // namespace isthmus
