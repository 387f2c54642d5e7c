#include "server/update_form.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "base/parallel.h"
#include "kernels/demo.h"
#include "kernels/sign_plane.h"
#include "spec/piece.h"

namespace isthmus {
namespace {

// Pieces are decoded in parallel this many at a time, then written in order: it bounds what lies
// between the two.
constexpr size_t kBatchPieces = 16;

uint64_t BytesOf(const std::vector<std::string>& pieces) {
  uint64_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  return bytes;
}

// Signs of a model none of which is 0, without the headers of pieces.
uint64_t PlaneBytesMin(const Grid& grid) {
  uint64_t bytes = 0;
  for (const Block& block : grid.blocks()) {
    // All chunks of a block but its last have one shape.
    const uint64_t last = block.first_chunk + block.chunks - 1;
    bytes += (block.chunks - 1) * SignPlaneBytes(grid.Place(block.first_chunk).shape.elements()) +
             SignPlaneBytes(grid.Place(last).shape.elements());
  }
  return bytes;
}

// A piece's chunks, coded one after the other.
struct CodedPiece {
  uint64_t first_chunk = 0;
  std::vector<char> bytes;
  std::vector<size_t> chunk_ends;  // in `bytes`
};

void CodePlane(const Grid& grid, const std::string& merged, CodedPiece* plane) {
  const auto piece = OpenPiece(grid, merged);
  ISTHMUS_CHECK(piece.ok());
  plane->first_chunk = piece->first_chunk;
  std::vector<float> decoded;
  const absl::Status read =
      ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
        const ChunkShape shape = grid.Place(chunk).shape;
        decoded.resize(shape.elements());
        DecodeComponents(shape, components, absl::MakeSpan(decoded));
        SignInPlace(absl::MakeSpan(decoded));  // as a step would: of no number, 0
        AppendSignPlane(decoded, &plane->bytes);
        plane->chunk_ends.push_back(plane->bytes.size());
        return absl::OkStatus();
      });
  ISTHMUS_CHECK(read.ok());
}

FoldedUpdate SignPlaneOf(const Grid& grid, const FoldedUpdate& folded, int threads) {
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_SIGN_PLANE, kPieceBytesMax);
  for (size_t first = 0; first < folded.pieces.size(); first += kBatchPieces) {
    std::vector<CodedPiece> coded(std::min(kBatchPieces, folded.pieces.size() - first));
    ParallelFor(coded.size(), threads,
                [&](size_t i) { CodePlane(grid, folded.pieces[first + i], &coded[i]); });
    for (const CodedPiece& plane : coded) {
      uint64_t chunk = plane.first_chunk;
      size_t begin = 0;
      for (const size_t end : plane.chunk_ends) {
        writer.AppendCoded(chunk++, {plane.bytes.data() + begin, end - begin});
        begin = end;
      }
    }
  }
  return {writer.Finish(), v1::PAYLOAD_CODEC_SIGN_PLANE, folded.norm};
}

FoldedUpdate DenseOf(const Grid& grid, const FoldedUpdate& folded) {
  PieceWriter writer(&grid, v1::PAYLOAD_CODEC_MERGED_DENSE, kPieceBytesMax);
  for (const std::string& merged : folded.pieces) {
    const auto piece = OpenPiece(grid, merged);
    ISTHMUS_CHECK(piece.ok());
    const absl::Status read =
        ForEachChunk(grid, *piece, [&](uint64_t chunk, const Components& components) {
          writer.Append(chunk, components);
          return absl::OkStatus();
        });
    ISTHMUS_CHECK(read.ok());
  }
  return {writer.Finish(), v1::PAYLOAD_CODEC_MERGED_DENSE, folded.norm};
}

}  // namespace

FoldedUpdate InForm(const Grid& grid, FoldedUpdate folded, int threads) {
  const v1::CodecSpec& codec = grid.codec();
  if (!SendsGapCoded(codec)) return folded;
  switch (codec.update_form()) {
    case v1::UPDATE_FORM_COMPONENTS:
      return folded;
    case v1::UPDATE_FORM_SIGN_PLANE:
      return SignPlaneOf(grid, folded, threads);
    case v1::UPDATE_FORM_DENSE:
      return DenseOf(grid, folded);
    default:
      break;
  }
  const uint64_t decode_bytes = grid.elements() / kDecodedPerByte;
  if (codec.sign() && PlaneBytesMin(grid) + decode_bytes < BytesOf(folded.pieces)) {
    FoldedUpdate plane = SignPlaneOf(grid, folded, threads);
    if (BytesOf(plane.pieces) + decode_bytes < BytesOf(folded.pieces)) return plane;
  }
  if (grid.elements() * sizeof(float) < BytesOf(folded.pieces)) {
    FoldedUpdate dense = DenseOf(grid, folded);
    if (BytesOf(dense.pieces) < BytesOf(folded.pieces)) return dense;
  }
  return folded;
}

}  // namespace isthmus
