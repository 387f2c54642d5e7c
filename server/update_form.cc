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
// The same of blocks, which are smaller.
constexpr size_t kBatchBlocks = 256;

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

// What the contributions take, in whatever pieces they came.
uint64_t BytesSent(const std::vector<std::vector<HeldPiece>>& contributions) {
  uint64_t bytes = 0;
  for (const std::vector<HeldPiece>& pieces : contributions) {
    for (const HeldPiece& piece : pieces) bytes += piece.bytes->size() - kPieceHeaderBytes;
  }
  return bytes;
}

// Chunks, coded one after the other.
struct CodedPiece {
  uint64_t first_chunk = 0;
  std::vector<char> bytes;
  std::vector<size_t> chunk_ends;  // in `bytes`
};

void Append(const CodedPiece& coded, PieceWriter* writer) {
  uint64_t chunk = coded.first_chunk;
  size_t begin = 0;
  for (const size_t end : coded.chunk_ends) {
    writer->AppendCoded(chunk++, {coded.bytes.data() + begin, end - begin});
    begin = end;
  }
}

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
    for (const CodedPiece& plane : coded) Append(plane, &writer);
  }
  return {writer.Finish(), v1::PAYLOAD_CODEC_SIGN_PLANE, folded.norm};
}

// Of each chunk of a block what every node sent, in their order.
void CodeContributions(const Grid& grid, const std::vector<std::vector<HeldPiece>>& contributions,
                       const Block& block, CodedPiece* coded) {
  const v1::PayloadCodec layout = ContributionLayout(grid.codec());
  std::vector<std::vector<absl::string_view>> sent(block.chunks);  // [chunk][node]
  Components ignored;
  for (const std::vector<HeldPiece>& pieces : contributions) {
    ForEachPart(grid, pieces, block, [&](uint64_t begin, uint64_t end, absl::string_view bytes) {
      for (ChunkReader reader(&grid, {layout, begin, end, bytes}); !reader.done();) {
        const uint64_t chunk = reader.next_chunk();
        const auto bytes_of_chunk = reader.Next(&ignored);
        ISTHMUS_CHECK(bytes_of_chunk.ok());  // it was checked when it came
        sent[chunk - block.first_chunk].push_back(*bytes_of_chunk);
      }
    });
  }
  coded->first_chunk = block.first_chunk;
  for (const std::vector<absl::string_view>& of_chunk : sent) {
    for (const absl::string_view bytes : of_chunk) {
      coded->bytes.insert(coded->bytes.end(), bytes.begin(), bytes.end());
    }
    coded->chunk_ends.push_back(coded->bytes.size());
  }
}

bool FitPieces(const CodedPiece& coded) {
  size_t begin = 0;
  for (const size_t end : coded.chunk_ends) {
    if (end - begin > kPieceBytesMax - kPieceHeaderBytes) return false;
    begin = end;
  }
  return true;
}

// `folded` itself where a chunk of so many nodes is larger than a piece.
FoldedUpdate ContributionsOf(const Grid& grid, FoldedUpdate folded,
                             const std::vector<std::vector<HeldPiece>>& contributions,
                             int threads) {
  constexpr v1::PayloadCodec kLayout = v1::PAYLOAD_CODEC_CONTRIBUTIONS;
  PieceWriter writer(&grid, kLayout, kPieceBytesMax, static_cast<uint32_t>(contributions.size()));
  const std::vector<Block>& blocks = grid.blocks();
  for (size_t first = 0; first < blocks.size(); first += kBatchBlocks) {
    std::vector<CodedPiece> coded(std::min(kBatchBlocks, blocks.size() - first));
    ParallelFor(coded.size(), threads, [&](size_t i) {
      CodeContributions(grid, contributions, blocks[first + i], &coded[i]);
    });
    for (const CodedPiece& block : coded) {
      if (!FitPieces(block)) return folded;
      Append(block, &writer);
    }
  }
  return {writer.Finish(), kLayout, folded.norm};
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

FoldedUpdate InForm(const Grid& grid, FoldedUpdate folded,
                    const std::vector<std::vector<HeldPiece>>& contributions, int threads) {
  const v1::CodecSpec& codec = grid.codec();
  if (!SendsGapCoded(codec)) return folded;
  switch (codec.update_form()) {
    case v1::UPDATE_FORM_COMPONENTS:
      return folded;
    case v1::UPDATE_FORM_CONTRIBUTIONS:
      return ContributionsOf(grid, std::move(folded), contributions, threads);
    case v1::UPDATE_FORM_SIGN_PLANE:
      return SignPlaneOf(grid, folded, threads);
    case v1::UPDATE_FORM_DENSE:
      return DenseOf(grid, folded);
    default:
      break;
  }
  const uint64_t sent = BytesSent(contributions);
  const uint64_t least = std::min(sent, BytesOf(folded.pieces));
  const uint64_t decode_bytes = grid.elements() / kDecodedPerByte;
  if (codec.sign() && PlaneBytesMin(grid) + decode_bytes < least) {
    FoldedUpdate plane = SignPlaneOf(grid, folded, threads);
    if (BytesOf(plane.pieces) + decode_bytes < least) return plane;
  }
  if (grid.elements() * sizeof(float) < least) {
    FoldedUpdate dense = DenseOf(grid, folded);
    if (BytesOf(dense.pieces) < least) return dense;
  }
  if (sent < BytesOf(folded.pieces)) {
    return ContributionsOf(grid, std::move(folded), contributions, threads);
  }
  return folded;
}

}  // namespace isthmus
