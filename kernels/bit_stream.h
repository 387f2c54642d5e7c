// Numbers of some bits each, one after the other: bits fill bytes from the least significant one
// up, unused bits of the last byte are 0. Many bits at a time, for coders whose speed counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace isthmus {

// Most bits of one Put, and those that a Peek has at least.
inline constexpr uint32_t kBitsAtOnce = 56;

// Writes whole words: `to` has room for all that is put and eight bytes more.
class BitWriter64 {
 public:
  explicit BitWriter64(char* to) : to_(to) {}

  // `bits` has none above `count`, which is at most kBitsAtOnce.
  void Put(uint64_t bits, uint32_t count) {
    held_ |= bits << held_bits_;
    held_bits_ += count;
    std::memcpy(to_, &held_, sizeof(held_));
    to_ += held_bits_ >> 3;
    held_ >>= held_bits_ & ~7u;
    held_bits_ &= 7;
  }

  // `count` zeros, however many.
  void PutZeros(uint32_t count) {
    for (; count > kBitsAtOnce; count -= kBitsAtOnce) Put(0, kBitsAtOnce);
    Put(0, count);
  }

  // Fills the last byte with zeros; the address behind it, from which another writer may go on.
  char* Pad() {
    if (held_bits_ > 0) ++to_;
    held_ = 0;
    held_bits_ = 0;
    return to_;
  }

 private:
  char* to_;
  uint64_t held_ = 0;
  uint32_t held_bits_ = 0;  // below 8 between calls
};

// Reads never pass the end: what lies behind it reads as zeros, and past_end() tells.
class BitReader64 {
 public:
  explicit BitReader64(absl::string_view bytes) : bytes_(bytes) {}

  // The next bits, kBitsAtOnce of them and perhaps more.
  uint64_t Peek() const {
    const size_t byte = bit_ >> 3;
    uint64_t word = 0;
    if (byte + sizeof(word) <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return word >> (bit_ & 7);
  }

  void Skip(uint32_t count) { bit_ += count; }

  // `count`: at most kBitsAtOnce.
  uint64_t Get(uint32_t count) {
    const uint64_t bits = Peek() & ((uint64_t{1} << count) - 1);
    bit_ += count;
    return bits;
  }

  // Bits read.
  size_t bit() const { return bit_; }
  // Whether more was read than there is.
  bool past_end() const { return bit_ > bytes_.size() * 8; }

  // Goes to the next byte. False, where the bits left out are not all 0.
  bool Pad() {
    const uint32_t left = static_cast<uint32_t>(-bit_ & 7);
    return Get(left) == 0;
  }

  // Bytes read, after a Pad; no more than there are.
  size_t bytes() const { return std::min(bit_ >> 3, bytes_.size()); }

 private:
  absl::string_view bytes_;
  size_t bit_ = 0;
};

}  // namespace isthmus
