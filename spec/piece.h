// A piece: whole chunks of a contribution or of an update, the unit of sending and resending.
//
//   bytes 0-3    magic "ISP1"
//   byte  4      layout: PayloadCodec
//   bytes 5-6    of CONTRIBUTIONS their number, 16 bits little endian; else 0
//   byte  7      0
//   bytes 8-11   first chunk, 32 bits little endian
//   bytes 12-15  number of chunks, at least 1
//   bytes 16-19  CRC-32C of bytes 0-15 and of the body
//   bytes 20-    the chunks: TOPK_F32, MERGED_F32 as in kernels/chunk.h; COMPONENTS (in
//                codec.numbers.format), MERGED, MERGED_VOTES, MERGED_DENSE as in
//                kernels/component_code.h; CONTRIBUTIONS: COMPONENTS of one contribution behind
//                the other, which the reader merges (MergeBySenders); SIGN_PLANE as in
//                kernels/sign_plane.h; NUMBERS and REPLY as in kernels/number_format.h with
//                codec.numbers and codec.reply (TERNARY of REPLY: kernels/trits.h), ROWS, and
//                MERGED_DENSE of rows, likewise in codec.numbers and float32. Of the last four the
//                chunk's values in row-major order, of rows the k values of those that are sent
//
// At most kPieceBytesMax. Contributions and updates have digests that do not depend on how they
// were cut into pieces: SHA-256 over the blocks' SHA-256 (of their coded chunks) in block order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/number_format.h"
#include "spec/grid.h"

namespace isthmus {

inline constexpr size_t kPieceHeaderBytes = 20;

struct PieceView {
  v1::PayloadCodec codec = v1::PAYLOAD_CODEC_UNSPECIFIED;
  uint64_t first_chunk = 0;
  uint64_t end_chunk = 0;
  absl::string_view body;  // into the bytes given
  uint32_t senders = 0;    // of CONTRIBUTIONS
};

// Checks size, magic, layout, range against the grid, CRC. INVALID_ARGUMENT otherwise.
// Does not look into the chunks.
absl::StatusOr<PieceView> OpenPiece(const Grid& grid, absl::string_view bytes);

// The layout of contributions with this codec, and that of updates that hold what was merged (of
// which server/update_form.h makes others).
v1::PayloadCodec ContributionLayout(const v1::CodecSpec& codec);
v1::PayloadCodec UpdateLayout(const v1::CodecSpec& codec);
// Whether contributions or updates may have it.
bool IsLayoutOf(const v1::CodecSpec& codec, v1::PayloadCodec layout);
// Number format of a layout that has one (NUMBERS, REPLY).
NumberSettings LayoutNumbers(const Grid& grid, v1::PayloadCodec layout);

// Reads the chunks of an opened piece one after the other.
class ChunkReader {
 public:
  ChunkReader(const Grid* grid, const PieceView& piece);

  // Whether all chunks have been read.
  bool done() const { return next_chunk_ == end_chunk_; }
  uint64_t next_chunk() const { return next_chunk_; }
  // Reads the next chunk and returns its coded bytes, a part of the piece. Of layouts with values
  // alone `components` has them, in order, and no index. INVALID_ARGUMENT naming tensor and chunk
  // when it is malformed, or when bytes are left over after the last one.
  absl::StatusOr<absl::string_view> Next(Components* components);

 private:
  absl::Status Read(Components* components);
  absl::Status ReadContributions(const ChunkPlace& place, Components* components);

  const Grid* grid_;
  v1::PayloadCodec codec_;
  NumberSettings numbers_;
  std::vector<Components> senders_;  // of CONTRIBUTIONS
  uint64_t next_chunk_;
  uint64_t end_chunk_;
  absl::string_view rest_;
};

// Calls visit(chunk, components) for each chunk in order. INVALID_ARGUMENT naming tensor and chunk
// when a chunk is malformed or bytes are left over; also stops with visit's own error.
absl::Status ForEachChunk(
    const Grid& grid, const PieceView& piece,
    const std::function<absl::Status(uint64_t chunk, const Components&)>& visit);

// Builds pieces from chunks that are appended in ascending order; cuts before a chunk that would
// not fit into `piece_bytes_max`, and wherever chunk numbers are not consecutive.
class PieceWriter {
 public:
  // `piece_bytes_max`: at most kPieceBytesMax; a chunk that is larger alone has a piece of its own.
  // `senders`: of CONTRIBUTIONS, 1 to kNodesMax.
  PieceWriter(const Grid* grid, v1::PayloadCodec codec, size_t piece_bytes_max,
              uint32_t senders = 0);

  // `components` as the layout's own function wants them.
  void Append(uint64_t chunk, const Components& components);
  // Of layouts with values alone: all of the chunk's, row-major. `draws`: AppendNumbers.
  void AppendValues(uint64_t chunk, absl::Span<const float> values,
                    absl::Span<const float> draws = {});
  // A chunk that is coded already, of any layout.
  void AppendCoded(uint64_t chunk, absl::string_view bytes);
  // The finished pieces. The writer is empty afterwards.
  std::vector<std::string> Finish();

 private:
  // Makes room for the next chunk's bytes.
  void Begin(uint64_t chunk, size_t bytes);
  void Close();

  const Grid* grid_;
  v1::PayloadCodec codec_;
  NumberSettings numbers_;
  size_t piece_bytes_max_;
  uint32_t senders_;
  std::vector<std::string> pieces_;
  std::vector<char> body_;
  std::vector<char> coded_;  // of a chunk whose size is known when it is coded
  uint64_t first_chunk_ = 0;
  uint64_t next_chunk_ = 0;
};

// Half-open chunk ranges, kept ascending, disjoint and merged.
class ChunkRanges {
 public:
  // False, and nothing changes, if [begin, end) is empty or overlaps what is there.
  bool Add(uint64_t begin, uint64_t end);
  bool Overlaps(uint64_t begin, uint64_t end) const;
  bool Contains(uint64_t begin, uint64_t end) const;
  uint64_t chunks() const;  // total
  const std::vector<std::pair<uint64_t, uint64_t>>& list() const { return list_; }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> list_;
};

// Digest of a complete payload whose pieces cover chunks [0, grid.chunks()) once, given in any
// order, all of one layout. INVALID_ARGUMENT if they do not (names the first chunk that is missing
// or there twice), or a piece is damaged. Checks every chunk on the way. 32 bytes.
absl::StatusOr<std::string> PayloadDigest(const Grid& grid,
                                          absl::Span<const std::string* const> pieces);

}  // namespace isthmus
