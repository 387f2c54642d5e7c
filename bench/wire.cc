// `./dev bench wire`: what components take on the wire, and how fast they get there and back, on
// one core. For each size of chunk and number of components kChunks sets that are drawn uniformly,
// each with normal values, are coded as the chunks of a contribution (kernels/component_code.h).
//
//   index_bits           bits of the indices alone, a component; bound_bits: log2 C(m, k) / k
//   bytes_per_component  of whole chunks: indices, scale, values, flags, padding
//   vs8                  8 bytes a component, which the published package sends, over that
//   enc, dec             coded bytes, and components, a second
//
//   wire [SECONDS_PER_FIGURE]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/bit_stream.h"
#include "kernels/component_code.h"
#include "kernels/index_code.h"

namespace isthmus {
namespace {

constexpr int kChunks = 10000;
// Timed are the first chunks with about as many components: coded and read they fit into a cache.
constexpr uint32_t kTimedComponents = 200000;

constexpr double kToBoundMax = 1.1;
// Components a second; where a chunk has fewer, the chunk is what takes the time, and no target is
// set.
constexpr double kRateMin = 150e6;
constexpr uint32_t kRateFrom = 8;

constexpr NumberFormat kFormats[] = {NumberFormat::kF32,  NumberFormat::kBf16,
                                     NumberFormat::kF16,  NumberFormat::kInt8,
                                     NumberFormat::kInt4, NumberFormat::kSign1};

// At least so many times less than 8 bytes a component; 0: no target.
double Vs8Min(uint32_t m, uint32_t k, NumberFormat format) {
  const bool large = m == 4096 && k == 32, small = m == 64 && k == 8;
  if (!large && !small) return 0;
  if (format == NumberFormat::kF16) return large ? 2.5 : 3.0;
  if (format == NumberFormat::kInt4) return large ? 4.7 : 6.5;
  return format == NumberFormat::kSign1 ? (large ? 6.3 : 10.5) : 0;
}

std::vector<Components> Sets(uint32_t m, uint32_t k, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  std::vector<Components> sets(kChunks);
  for (Components& set : sets) {
    set.index.reserve(k);
    set.value.reserve(k);
    for (uint32_t at = 0, left = k; left > 0; ++at) {
      if ((*random)() % (m - at) >= left) continue;
      set.index.push_back(at);
      set.value.push_back(normal(*random));
      --left;
    }
  }
  return sets;
}

double IndexBitsOf(uint32_t m, const std::vector<Components>& sets) {
  double bits = 0;
  for (const Components& set : sets) {
    const IndexCode code(m, static_cast<uint32_t>(set.size()));
    std::vector<char> room(IndexCodeBitsMax(code) / 8 + 9);
    BitWriter64 writer(room.data());
    PutIndices(code, set.index, &writer);
    BitReader64 reader({room.data(), room.size()});
    std::vector<uint32_t> read(set.size());
    ISTHMUS_CHECK(GetIndices(code, &reader, absl::MakeSpan(read)) && read == set.index);
    bits += static_cast<double>(reader.bit());
  }
  return bits;
}

double BoundBits(uint32_t m, uint32_t k) {
  return (std::lgamma(m + 1.0) - std::lgamma(k + 1.0) - std::lgamma(m - k + 1.0)) / std::log(2.0);
}

// Seconds of the median repetition.
template <typename Work>
double MedianSeconds(double budget_s, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> taken;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    work();
    taken.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  } while (taken.size() < 5 ||
           std::chrono::duration<double>(Clock::now() - begin).count() < budget_s);
  std::nth_element(taken.begin(), taken.begin() + taken.size() / 2, taken.end());
  return taken[taken.size() / 2];
}

void Report(uint32_t m, uint32_t k, const std::vector<Components>& sets, double index_bits,
            NumberFormat format, double budget_s) {
  std::vector<char> coded;
  for (const Components& set : sets) AppendComponentChunk(m, k, format, set, &coded);
  const double components = static_cast<double>(k) * kChunks;
  const double each = static_cast<double>(coded.size()) / components;

  const auto timed = std::min<size_t>(kChunks, std::max<size_t>(1, kTimedComponents / k));
  const double enc_s = MedianSeconds(budget_s, [&] {
    coded.clear();
    for (size_t i = 0; i < timed; ++i) AppendComponentChunk(m, k, format, sets[i], &coded);
  });
  Components read;
  const double dec_s = MedianSeconds(budget_s, [&] {
    absl::string_view bytes(coded.data(), coded.size());
    for (size_t i = 0; i < timed; ++i) {
      ISTHMUS_CHECK(ReadComponentChunk(m, k, format, &bytes, &read).ok());
    }
  });
  const auto bytes = static_cast<double>(coded.size());
  const double count = static_cast<double>(timed) * k;
  const double bound = BoundBits(m, k), to_bound = index_bits / kChunks / bound;
  const bool fast = k < kRateFrom || count / std::max(enc_s, dec_s) >= kRateMin;
  const bool met = to_bound <= kToBoundMax && 8 / each >= Vs8Min(m, k, format) && fast;
  std::printf(
      "result wire m=%u k=%u values=%s index_bits=%.3f bound_bits=%.3f index_to_bound=%.3f "
      "bytes_per_component=%.3f vs8=%.2f enc_gb_per_s=%.2f dec_gb_per_s=%.2f enc_m_per_s=%.0f "
      "dec_m_per_s=%.0f met=%d\n",
      m, k, std::string(NumberName(format)).c_str(), index_bits / components, bound / k, to_bound,
      each, 8 / each, bytes / enc_s / 1e9, bytes / dec_s / 1e9, count / enc_s / 1e6,
      count / dec_s / 1e6, met ? 1 : 0);
  std::fflush(stdout);
}

int Main(double budget_s) {
  std::mt19937_64 random(1);
  for (const uint32_t m : {64u, 256u, 1024u, 4096u, 47u * 64u}) {
    std::vector<uint32_t> counts;
    for (uint32_t k = 1; k < m; k *= 2) counts.push_back(k);
    counts.push_back(m - m / 4);
    counts.push_back(m - 1);
    for (const uint32_t k : counts) {
      const std::vector<Components> sets = Sets(m, k, &random);
      const double index_bits = IndexBitsOf(m, sets);
      for (const NumberFormat format : kFormats) {
        Report(m, k, sets, index_bits, format, budget_s);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc > 1 ? std::atof(argv[1]) : 0.01); }
