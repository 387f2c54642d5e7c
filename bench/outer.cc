// Our side of `./dev bench outer`: outer steps, decoding and folding, one repetition a command, and
// the copy that steps are held against. Reads commands from standard input, one a line, and answers
// each with a line `ms=…`:
//
//   step RULE THREADS     one outer step of kParameters parameters
//   copy BYTES THREADS    copies half of BYTES a parameter, so that as many are read and written
//   fold FORMAT THREADS   decodes and folds the blocks of kContributors contributions
//   sparse THREADS        reads and folds the top-k chunks of kSparseContributors contributions
//   components THREADS    folds the same, read before
#include "kernels/outer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/aggregate.h"
#include "kernels/chunk_topk.h"
#include "kernels/number_format.h"
#include "kernels/targets.h"

namespace isthmus {
namespace {

// Beyond every cache: 128 MiB an array.
constexpr size_t kParameters = size_t{1} << 25;
constexpr size_t kBlock = 4096;
// Blocks that a thread takes at a time.
constexpr size_t kPart = 16 * kBlock;
constexpr size_t kContributors = 2;
constexpr size_t kSparseContributors = 8;
constexpr ChunkTopK kSelection{4096, 64};
// The most that a step reads and writes of a parameter: AdamW's.
constexpr size_t kBytesMax = 28;

std::vector<float> Numbers(size_t size, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<float> values(size);
  for (float& v : values) v = static_cast<float>(random()) / 2147483648.0f - 0.5f;
  return values;
}

std::string Timed(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::ostringstream text;
  text << "ms=" << took.count();
  return text.str();
}

void ForEachPart(int threads, const std::function<void(size_t first)>& body) {
  ParallelFor(kParameters / kPart, threads, [&](size_t part) { body(part * kPart); });
}

const std::map<std::string, OuterSettings>& Rules() {
  static const auto* const rules = [] {
    auto* all = new std::map<std::string, OuterSettings>;
    for (const OuterKind kind :
         {OuterKind::kAssign, OuterKind::kNesterov, OuterKind::kSlowMo, OuterKind::kSignMomentum,
          OuterKind::kAdamW, OuterKind::kLion, OuterKind::kSignSgd}) {
      (*all)[std::string(OuterName(kind))] = DefaultOuterSettings(kind);
    }
    OuterSettings random = DefaultOuterSettings(OuterKind::kSignMomentum);
    random.sign = SignKind::kRandomThreePoint;
    (*all)["three_point"] = random;
    return all;
  }();
  return *rules;
}

const std::map<std::string, NumberFormat>& Formats() {
  static const auto* const formats = [] {
    auto* all = new std::map<std::string, NumberFormat>;
    for (const NumberFormat format :
         {NumberFormat::kF32, NumberFormat::kBf16, NumberFormat::kF16, NumberFormat::kInt8,
          NumberFormat::kInt4, NumberFormat::kSign1, NumberFormat::kTernary}) {
      (*all)[std::string(NumberName(format))] = format;
    }
    return all;
  }();
  return *formats;
}

class Bench {
 public:
  Bench() : g_(Numbers(kParameters, 1)), x_(g_), first_(g_), second_(kParameters, 0.1f) {}

  std::string Step(const std::string& rule, int threads) {
    const auto found = Rules().find(rule);
    if (found == Rules().end()) return "error: unknown rule " + rule;
    const auto round = MakeOuterRound(found->second, {1e-3, {0.5, 0.5}, {1, 0, 1}});
    ISTHMUS_CHECK(round.ok());
    return Timed([&] {
      ForEachPart(threads, [&](size_t first) {
        OuterStep(*round, first, absl::MakeConstSpan(g_).subspan(first, kPart),
                  {Part(&x_, first), Part(&first_, first), Part(&second_, first)});
      });
    });
  }

  std::string Copy(size_t bytes, int threads) {
    if (from_.empty()) {
      from_.assign(kParameters * kBytesMax / 2, 1);
      to_.assign(kParameters * kBytesMax / 2, 2);
    }
    const size_t half = kPart * std::min(bytes, kBytesMax) / 2;
    return Timed([&] {
      ForEachPart(threads, [&](size_t first) {
        const size_t at = first / kPart * half;
        std::memcpy(to_.data() + at, from_.data() + at, half);
      });
    });
  }

  std::string FoldFormat(const std::string& name, int threads) {
    const auto found = Formats().find(name);
    if (found == Formats().end()) return "error: unknown format " + name;
    NumberSettings settings;
    settings.format = found->second;
    std::vector<char>& coded = coded_[name];
    for (size_t at = 0; coded.size() < NumberBytes(settings, kParameters); at += kBlock) {
      AppendNumbers(settings, absl::MakeConstSpan(g_).subspan(at, kBlock), {}, &coded);
    }
    const size_t block_bytes = NumberBytes(settings, kBlock);
    return Timed([&] {
      ForEachPart(threads, [&](size_t first) {
        float values[kBlock];
        for (size_t at = first; at < first + kPart; at += kBlock) {
          const auto sum = absl::MakeSpan(x_).subspan(at, kBlock);
          for (size_t i = 0; i < kContributors; ++i) {
            // The contributions of both are the same blocks, from two ends.
            const size_t block = i == 0 ? at / kBlock : kParameters / kBlock - 1 - at / kBlock;
            absl::string_view bytes(coded.data() + block * block_bytes, block_bytes);
            ISTHMUS_CHECK(ReadNumbers(settings, &bytes, {values, kBlock}).ok());
            Fold(i == 0, 1.0f, {values, kBlock}, sum);
          }
        }
      });
    });
  }

  // As a round is folded into a step: a block's sum stays in the nearest cache.
  std::string Sparse(bool read_before, int threads) {
    MakeChosen();
    const size_t chunk_bytes = ChunkTopKBytes(kSelection, kBlock);
    return Timed([&] {
      ForEachPart(threads, [&](size_t first) {
        float sum[kBlock];
        for (size_t at = first; at < first + kPart; at += kBlock) {
          std::fill_n(sum, kBlock, 0.0f);
          for (size_t i = 0; i < kSparseContributors; ++i) {
            const size_t block = (at / kBlock + i * 1009) % (kParameters / kBlock);
            if (read_before) {
              FoldComponents(1.0f, chosen_[block], {sum, kBlock});
              continue;
            }
            absl::string_view bytes(sparse_.data(), sparse_.size());
            bytes.remove_prefix(block * chunk_bytes);
            ISTHMUS_CHECK(FoldChunkTopK(kSelection, 1.0f, &bytes, {sum, kBlock}).ok());
          }
          x_[at] = sum[0];
        }
      });
    });
  }

 private:
  static absl::Span<float> Part(std::vector<float>* values, size_t first) {
    return absl::MakeSpan(*values).subspan(first, kPart);
  }

  void MakeChosen() {
    if (!chosen_.empty()) return;
    for (size_t at = 0; at < kParameters; at += kBlock) {
      AppendChunkTopK(kSelection, absl::MakeConstSpan(g_).subspan(at, kBlock), &sparse_);
      Components chosen;
      SelectTopK(absl::MakeConstSpan(g_).subspan(at, kBlock), kSelection.k, &chosen);
      chosen_.push_back(std::move(chosen));
    }
  }

  std::vector<float> g_, x_, first_, second_;
  std::vector<char> from_, to_, sparse_;
  std::map<std::string, std::vector<char>> coded_;
  std::vector<Components> chosen_;
};

std::string Answer(const std::string& command, Bench* bench) {
  std::istringstream words(command);
  std::string what, which;
  words >> what;
  if (what != "sparse" && what != "components") words >> which;
  int threads = 1;
  words >> threads;
  threads = std::max(1, threads);
  if (what == "step") return bench->Step(which, threads);
  if (what == "copy") return bench->Copy(std::strtoul(which.c_str(), nullptr, 10), threads);
  if (what == "fold") return bench->FoldFormat(which, threads);
  if (what == "sparse") return bench->Sparse(/*read_before=*/false, threads);
  if (what == "components") return bench->Sparse(/*read_before=*/true, threads);
  return "error: unknown command " + what;
}

int Main() {
  Bench bench;
  std::cout << "target=" << KernelTarget() << " parameters=" << kParameters
            << " contributors=" << kContributors << " sparse_contributors=" << kSparseContributors
            << " k=" << kSelection.k << " chunk=" << kSelection.chunk << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    std::cout << Answer(command, &bench) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace isthmus

int main() { return isthmus::Main(); }
