// The counter-based generator, one draw at a time.
#include "kernels/reference/outer.h"

namespace isthmus {
namespace reference {
namespace {

constexpr int kPhiloxRounds = 10;
constexpr uint64_t kMultiplier0 = 0xD2511F53u;
constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kKeyStep0 = 0x9E3779B9u;
constexpr uint32_t kKeyStep1 = 0xBB67AE85u;
constexpr float kDrawStep = 1.0f / (1 << 24);

float Draw(const DrawKey& key, uint64_t element) {
  const uint64_t count = 16 * (element / 64) + element % 16;
  const PhiloxWords words = Philox4x32(
      {static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), key.round, key.fragment},
      {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  return static_cast<float>(words[element / 16 % 4] >> 8) * kDrawStep;
}

}  // namespace

PhiloxWords Philox4x32(PhiloxWords counter, std::array<uint32_t, 2> key) {
  for (int i = 0; i < kPhiloxRounds; ++i) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kKeyStep0;
    key[1] += kKeyStep1;
  }
  return counter;
}

void UniformDraws(const DrawKey& key, uint64_t first_element, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = Draw(key, first_element + i);
}

}  // namespace reference
}  // namespace isthmus
