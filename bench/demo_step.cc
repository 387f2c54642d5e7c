// Our side of `./dev bench demo_step`: one DeMo step of one sender without packing, and the floor
// it is held against. Reads commands from standard input, one a line, and answers each with a line:
//
//   ours SHAPE THREADS    lines 3-7 of the algorithm for all chunks, then lines 9-11 for all
//   chunks,
//                         as a trainer does, which sends in between: `ms=…`
//   floor SHAPE THREADS   one pass that reads g and updates d and p: `ms=…`
//   dump SHAPE FILE       writes p as raw float32: `done`
//
// SHAPE is 2d (4096 x 2560) or flat (as many elements in one row). Started with the name of a file
// that holds the gradient as raw float32.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "kernels/demo.h"
#include "kernels/targets.h"

namespace isthmus {
namespace {

constexpr size_t kRows = 4096;
constexpr size_t kCols = 2560;
constexpr uint32_t kSide = 64;
constexpr uint32_t kComponents = 32;
constexpr float kBeta = 0.999f;
constexpr float kEta = 1e-3f;

struct State {
  std::vector<float> gradient;
  std::vector<float> momentum;
  std::vector<float> parameters;
  std::vector<Components> sent;
};

ReserveRule Reserving() {
  ReserveRule rule;
  rule.k = kComponents;
  rule.beta = kBeta;
  rule.eta = kEta;
  return rule;
}

StepRule Stepping() {
  StepRule rule;
  rule.eta = kEta;
  return rule;
}

// A block of chunks: a row of tiles, or a few hundred runs.
constexpr size_t kTilesABlock = kCols / kSide;
constexpr size_t kRunsABlock = 320;
constexpr size_t kTileBlocks = kRows / kSide;
constexpr size_t kRunBlocks = kRows * kCols / kSide / kRunsABlock;

ChunkScratch* Scratch() {
  thread_local const auto scratch = std::make_unique<ChunkScratch>();
  return scratch.get();
}

// Lines 3 to 7 for one block.
void ReserveBlock(bool flat, size_t block, State* state) {
  if (flat) {
    const size_t run = block * kRunsABlock;
    ReserveRuns(kSide, kRunsABlock, Reserving(), state->gradient.data() + run * kSide,
                state->momentum.data() + run * kSide, Scratch(), &state->sent[run]);
    return;
  }
  for (size_t c = 0; c < kTilesABlock; ++c) {
    const size_t first = block * kSide * kCols + c * kSide;
    ReserveChunk({kSide, kSide}, Reserving(), state->gradient.data() + first, kCols,
                 state->momentum.data() + first, kCols, Scratch(),
                 &state->sent[block * kTilesABlock + c]);
  }
}

// Lines 9 to 11 for one block.
void StepBlock(bool flat, size_t block, State* state) {
  if (flat) {
    const size_t run = block * kRunsABlock;
    StepRuns(kSide, kRunsABlock, Stepping(), &state->sent[run],
             state->parameters.data() + run * kSide);
    return;
  }
  for (size_t c = 0; c < kTilesABlock; ++c) {
    const size_t first = block * kSide * kCols + c * kSide;
    StepChunk({kSide, kSide}, Stepping(), state->sent[block * kTilesABlock + c],
              state->parameters.data() + first, kCols, Scratch());
  }
}

// With one sender and no packing nothing lies between lines 7 and 9, so each block makes its whole
// step.
void RunOurs(bool flat, int threads, State* state) {
  ParallelFor(flat ? kRunBlocks : kTileBlocks, threads, [&](size_t block) {
    ReserveBlock(flat, block, state);
    StepBlock(flat, block, state);
  });
}

// As a trainer does, which sends in between.
void RunApart(bool flat, int threads, State* state) {
  const size_t blocks = flat ? kRunBlocks : kTileBlocks;
  ParallelFor(blocks, threads, [&](size_t block) { ReserveBlock(flat, block, state); });
  ParallelFor(blocks, threads, [&](size_t block) { StepBlock(flat, block, state); });
}

void FloorOf(size_t size, const float* __restrict g, float* __restrict d, float* __restrict p) {
  for (size_t i = 0; i < size; ++i) {
    const float momentum = kBeta * d[i] + kEta * g[i];
    d[i] = momentum;
    p[i] -= kEta * momentum;
  }
}

// In as many parts as ours, so that a processor that does something else hits both alike.
void RunFloor(int threads, State* state) {
  const size_t part = kSide * kCols;
  ParallelFor(kRows / kSide, threads, [&](size_t i) {
    FloorOf(part, state->gradient.data() + i * part, state->momentum.data() + i * part,
            state->parameters.data() + i * part);
  });
}

template <class Work>
std::string Timed(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::ostringstream text;
  text << "ms=" << took.count();
  return text.str();
}

std::vector<float> ReadFloats(const std::string& path) {
  std::vector<float> values(kRows * kCols);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float))) {
    values.clear();
  }
  return values;
}

std::string Answer(const std::string& command, State* flat, State* tiles, State* floor) {
  std::istringstream words(command);
  std::string what, shape, last;
  words >> what >> shape >> last;
  State* const state = shape == "flat" ? flat : tiles;
  if (what == "dump") {
    std::ofstream file(last, std::ios::binary);
    file.write(reinterpret_cast<const char*>(state->parameters.data()),
               state->parameters.size() * sizeof(float));
    return file.flush() ? "done" : "error: cannot write " + last;
  }
  const int threads = std::max(1, std::atoi(last.c_str()));
  if (what == "ours") return Timed([&] { RunOurs(shape == "flat", threads, state); });
  if (what == "apart") return Timed([&] { RunApart(shape == "flat", threads, state); });
  if (what == "floor") return Timed([&] { RunFloor(threads, floor); });
  return "error: unknown command " + what;
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: demo_step GRADIENT_FILE; see the comment in bench/demo_step.cc\n");
    return 2;
  }
  State tiles;
  tiles.gradient = ReadFloats(argv[1]);
  if (tiles.gradient.empty()) {
    std::fprintf(stderr, "demo_step: '%s' does not hold %zu float32 numbers\n", argv[1],
                 kRows * kCols);
    return 2;
  }
  tiles.momentum.assign(kRows * kCols, 0.0f);
  tiles.parameters.assign(kRows * kCols, 1.0f);
  State flat = tiles;
  State floor = tiles;
  tiles.sent.resize(kRows / kSide * (kCols / kSide));
  flat.sent.resize(kRows * kCols / kSide);
  std::cout << "target=" << KernelTarget() << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    std::cout << Answer(command, &flat, &tiles, &floor) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) { return isthmus::Main(argc, argv); }
