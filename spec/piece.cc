#include "spec/piece.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "base/status_macros.h"
#include "kernels/component_code.h"
#include "kernels/demo.h"
#include "kernels/sign_plane.h"
#include "kernels/trits.h"
#include "spec/rows.h"
#include "spec/stages.h"

namespace isthmus {
namespace {

constexpr absl::string_view kMagic = "ISP1";
constexpr size_t kLayoutAt = 4;
constexpr int kSendersShift = 8;  // in the 32 bits at kLayoutAt
constexpr size_t kFirstChunkAt = 8;
constexpr size_t kChunksAt = 12;
constexpr size_t kCrcAt = 16;

uint32_t LoadU32(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

void AppendU32(uint32_t value, std::string* out) {
  for (size_t i = 0; i < 4; ++i) out->push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

uint32_t PieceCrc(absl::string_view header, absl::string_view body) {
  return Crc32c(body, Crc32c(header.substr(0, kCrcAt)));
}

// Signs of updates, whose chunks need not all have one length.
bool IsEntropyCoded(v1::PayloadCodec layout, const NumberSettings& numbers) {
  return layout == v1::PAYLOAD_CODEC_REPLY && numbers.format == NumberFormat::kTernary;
}

bool HasNumbers(v1::PayloadCodec layout) {
  return layout == v1::PAYLOAD_CODEC_NUMBERS || layout == v1::PAYLOAD_CODEC_REPLY ||
         layout == v1::PAYLOAD_CODEC_ROWS || layout == v1::PAYLOAD_CODEC_MERGED_DENSE;
}

// Values of a chunk in a layout with a number format.
uint32_t ValuesOf(v1::PayloadCodec layout, const ChunkPlace& place) {
  const bool of_rows = layout == v1::PAYLOAD_CODEC_ROWS || layout == v1::PAYLOAD_CODEC_MERGED_DENSE;
  return of_rows ? place.k : place.shape.elements();
}

bool AreVotes(const v1::CodecSpec& codec) {
  return codec.numbers().format() == v1::NUMBER_FORMAT_SIGN1;
}

}  // namespace

v1::PayloadCodec ContributionLayout(const v1::CodecSpec& codec) {
  if (SendsRows(codec)) return v1::PAYLOAD_CODEC_ROWS;
  if (codec.kind() == v1::CODEC_KIND_NUMBERS) return v1::PAYLOAD_CODEC_NUMBERS;
  return SendsGapCoded(codec) ? v1::PAYLOAD_CODEC_COMPONENTS : v1::PAYLOAD_CODEC_TOPK_F32;
}

v1::PayloadCodec UpdateLayout(const v1::CodecSpec& codec) {
  if (SendsRows(codec)) return v1::PAYLOAD_CODEC_MERGED_DENSE;
  if (SendsGapCoded(codec)) {
    return AreVotes(codec) ? v1::PAYLOAD_CODEC_MERGED_VOTES : v1::PAYLOAD_CODEC_MERGED;
  }
  const bool every_step = codec.kind() == v1::CODEC_KIND_DEMO ||
                          codec.kind() == v1::CODEC_KIND_DENSE ||
                          codec.kind() == v1::CODEC_KIND_NONE;
  return every_step ? v1::PAYLOAD_CODEC_MERGED_F32 : v1::PAYLOAD_CODEC_REPLY;
}

bool IsLayoutOf(const v1::CodecSpec& codec, v1::PayloadCodec layout) {
  if (layout == ContributionLayout(codec) || layout == UpdateLayout(codec)) return true;
  // All forms of an update, and what a contribution of signs took (MERGED).
  return SendsGapCoded(codec) &&
         (layout == v1::PAYLOAD_CODEC_MERGED || layout == v1::PAYLOAD_CODEC_MERGED_DENSE ||
          layout == v1::PAYLOAD_CODEC_CONTRIBUTIONS ||
          (layout == v1::PAYLOAD_CODEC_SIGN_PLANE && codec.sign()));
}

NumberSettings LayoutNumbers(const Grid& grid, v1::PayloadCodec layout) {
  if (layout == v1::PAYLOAD_CODEC_MERGED_DENSE) return NumberSettings();
  return NumberSettingsOf(layout == v1::PAYLOAD_CODEC_REPLY ? grid.codec().reply()
                                                            : grid.codec().numbers());
}

absl::StatusOr<PieceView> OpenPiece(const Grid& grid, absl::string_view bytes) {
  if (bytes.size() < kPieceHeaderBytes || bytes.size() > kPieceBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a piece has ", bytes.size(), " bytes; it has ",
                                                   kPieceHeaderBytes, " to ", kPieceBytesMax));
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("a piece does not begin with '", kMagic,
                                                   "'; it is damaged or of another version"));
  }
  PieceView piece;
  piece.body = bytes.substr(kPieceHeaderBytes);
  // First the checksum: what follows would only guess at which byte is damaged.
  const uint32_t stored = LoadU32(bytes, kCrcAt);
  const uint32_t computed = PieceCrc(bytes, piece.body);
  if (stored != computed) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of ", bytes.size(), " bytes says CRC-32C ", stored,
                     ", its bytes give ", computed, "; it was damaged on the way, send it again"));
  }
  const auto layout = static_cast<v1::PayloadCodec>(static_cast<unsigned char>(bytes[kLayoutAt]));
  const bool has_senders = layout == v1::PAYLOAD_CODEC_CONTRIBUTIONS;
  piece.senders = LoadU32(bytes, kLayoutAt) >> kSendersShift;
  if (!IsLayoutOf(grid.codec(), layout) || (!has_senders && piece.senders != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece says layout ", LoadU32(bytes, kLayoutAt), "; this run has ",
                     ContributionLayout(grid.codec()), " and ", UpdateLayout(grid.codec())));
  }
  if (has_senders && (piece.senders == 0 || piece.senders > kNodesMax)) {
    return absl::InvalidArgumentError(absl::StrCat("a piece says ", piece.senders,
                                                   " contributions; it has those of 1 to ",
                                                   kNodesMax, " nodes"));
  }
  piece.codec = layout;
  piece.first_chunk = LoadU32(bytes, kFirstChunkAt);
  piece.end_chunk = piece.first_chunk + LoadU32(bytes, kChunksAt);
  if (piece.end_chunk == piece.first_chunk || piece.end_chunk > grid.chunks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece says chunks ", piece.first_chunk, " to before ", piece.end_chunk,
                     "; it has at least one, and the model has ", grid.chunks()));
  }
  return piece;
}

ChunkReader::ChunkReader(const Grid* grid, const PieceView& piece)
    : grid_(grid),
      codec_(piece.codec),
      numbers_(LayoutNumbers(*grid, piece.codec)),
      senders_(piece.senders),
      next_chunk_(piece.first_chunk),
      end_chunk_(piece.end_chunk),
      rest_(piece.body) {}

absl::Status ChunkReader::Read(Components* components) {
  const ChunkPlace place = grid_->Place(next_chunk_);
  const uint32_t elements = place.shape.elements();
  switch (codec_) {
    case v1::PAYLOAD_CODEC_TOPK_F32:
      return ReadContributionChunk(place.shape, place.k, &rest_, components);
    case v1::PAYLOAD_CODEC_MERGED_F32:
      return ReadMergedChunk(place.shape, &rest_, components);
    case v1::PAYLOAD_CODEC_COMPONENTS:
      return ReadComponentChunk(elements, place.k, numbers_.format, &rest_, components);
    case v1::PAYLOAD_CODEC_CONTRIBUTIONS:
      return ReadContributions(place, components);
    case v1::PAYLOAD_CODEC_MERGED:
      return ReadMergedComponents(elements, &rest_, components);
    case v1::PAYLOAD_CODEC_MERGED_VOTES:
      return ReadMergedVotes(elements, &rest_, components);
    case v1::PAYLOAD_CODEC_MERGED_DENSE:
      if (SendsRows(grid_->codec())) break;
      return ReadMergedDense(elements, &rest_, components);
    default:
      break;
  }
  components->index.clear();
  components->value.resize(ValuesOf(codec_, place));
  if (codec_ == v1::PAYLOAD_CODEC_SIGN_PLANE) {
    return ReadSignPlane(&rest_, absl::MakeSpan(components->value));
  }
  if (IsEntropyCoded(codec_, numbers_)) {
    return ReadTrits(&rest_, absl::MakeSpan(components->value));
  }
  return ReadNumbers(numbers_, &rest_, absl::MakeSpan(components->value));
}

absl::Status ChunkReader::ReadContributions(const ChunkPlace& place, Components* components) {
  const uint32_t elements = place.shape.elements();
  std::vector<const Components*> senders;
  for (Components& sent : senders_) {
    ISTHMUS_RETURN_IF_ERROR(ReadComponentChunk(elements, place.k, numbers_.format, &rest_, &sent));
    senders.push_back(&sent);
  }
  MergeBySenders(senders, elements, components);
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> ChunkReader::Next(Components* components) {
  ISTHMUS_CHECK(!done());
  const absl::string_view before = rest_;
  const absl::Status read = Read(components);
  if (!read.ok()) {
    return absl::Status(read.code(),
                        absl::StrCat(grid_->Describe(next_chunk_), ": ", read.message()));
  }
  ++next_chunk_;
  if (done() && !rest_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a piece has ", rest_.size(),
                                                   " bytes after its last chunk, ",
                                                   grid_->Describe(next_chunk_ - 1)));
  }
  return before.substr(0, before.size() - rest_.size());
}

absl::Status ForEachChunk(const Grid& grid, const PieceView& piece,
                          const std::function<absl::Status(uint64_t, const Components&)>& visit) {
  Components components;
  for (ChunkReader reader(&grid, piece); !reader.done();) {
    const uint64_t chunk = reader.next_chunk();
    ISTHMUS_RETURN_IF_ERROR(reader.Next(&components).status());
    ISTHMUS_RETURN_IF_ERROR(visit(chunk, components));
  }
  return absl::OkStatus();
}

PieceWriter::PieceWriter(const Grid* grid, v1::PayloadCodec codec, size_t piece_bytes_max,
                         uint32_t senders)
    : grid_(grid),
      codec_(codec),
      numbers_(LayoutNumbers(*grid, codec)),
      piece_bytes_max_(piece_bytes_max),
      senders_(senders) {
  ISTHMUS_CHECK(piece_bytes_max <= kPieceBytesMax);
  ISTHMUS_CHECK((senders > 0) == (codec == v1::PAYLOAD_CODEC_CONTRIBUTIONS));
}

void PieceWriter::Begin(uint64_t chunk, size_t bytes) {
  ISTHMUS_CHECK(chunk >= next_chunk_);
  if (chunk != next_chunk_ || kPieceHeaderBytes + body_.size() + bytes > piece_bytes_max_) Close();
  if (next_chunk_ == first_chunk_) first_chunk_ = chunk;
  next_chunk_ = chunk + 1;
}

void PieceWriter::Append(uint64_t chunk, const Components& components) {
  const ChunkPlace place = grid_->Place(chunk);
  const uint32_t elements = place.shape.elements();
  coded_.clear();
  switch (codec_) {
    case v1::PAYLOAD_CODEC_TOPK_F32:
      AppendContributionChunk(place.shape, place.k, components, &coded_);
      break;
    case v1::PAYLOAD_CODEC_MERGED_F32:
      AppendMergedChunk(place.shape, components, &coded_);
      break;
    case v1::PAYLOAD_CODEC_COMPONENTS:
      AppendComponentChunk(elements, place.k, numbers_.format, components, &coded_);
      break;
    case v1::PAYLOAD_CODEC_MERGED:
      AppendMergedComponents(elements, components, &coded_);
      break;
    case v1::PAYLOAD_CODEC_MERGED_VOTES:
      AppendMergedVotes(elements, components, &coded_);
      break;
    case v1::PAYLOAD_CODEC_MERGED_DENSE:
      AppendMergedDense(elements, components, &coded_);
      break;
    default:
      ISTHMUS_CHECK(false);  // AppendValues
  }
  AppendCoded(chunk, {coded_.data(), coded_.size()});
}

void PieceWriter::AppendValues(uint64_t chunk, absl::Span<const float> values,
                               absl::Span<const float> draws) {
  const bool is_plane = codec_ == v1::PAYLOAD_CODEC_SIGN_PLANE;
  ISTHMUS_CHECK(is_plane || HasNumbers(codec_));
  ISTHMUS_CHECK(values.size() == ValuesOf(codec_, grid_->Place(chunk)));
  if (is_plane || IsEntropyCoded(codec_, numbers_)) {
    coded_.clear();
    is_plane ? AppendSignPlane(values, &coded_) : AppendTrits(values, &coded_);
    return AppendCoded(chunk, {coded_.data(), coded_.size()});
  }
  Begin(chunk, NumberBytes(numbers_, values.size()));
  AppendNumbers(numbers_, values, draws, &body_);
}

void PieceWriter::AppendCoded(uint64_t chunk, absl::string_view bytes) {
  Begin(chunk, bytes.size());
  body_.insert(body_.end(), bytes.begin(), bytes.end());
}

void PieceWriter::Close() {
  if (next_chunk_ == first_chunk_) return;  // a chunk may have no byte, so bytes do not tell
  std::string piece;
  piece.reserve(kPieceHeaderBytes + body_.size());  // it is kept for long, by many
  piece.append(kMagic.data(), kMagic.size());
  AppendU32(static_cast<uint32_t>(codec_) | senders_ << kSendersShift, &piece);
  AppendU32(static_cast<uint32_t>(first_chunk_), &piece);
  AppendU32(static_cast<uint32_t>(next_chunk_ - first_chunk_), &piece);
  const absl::string_view body(body_.data(), body_.size());
  AppendU32(PieceCrc(piece, body), &piece);
  piece.append(body.data(), body.size());
  ISTHMUS_CHECK(piece.size() <= kPieceBytesMax);
  pieces_.push_back(std::move(piece));
  body_.clear();
  first_chunk_ = next_chunk_;
}

std::vector<std::string> PieceWriter::Finish() {
  Close();
  first_chunk_ = next_chunk_ = 0;
  return std::exchange(pieces_, {});
}

bool ChunkRanges::Add(uint64_t begin, uint64_t end) {
  if (begin >= end || Overlaps(begin, end)) return false;
  auto after = std::lower_bound(list_.begin(), list_.end(), std::make_pair(begin, end));
  const bool joins_next = after != list_.end() && after->first == end;
  const bool joins_previous = after != list_.begin() && std::prev(after)->second == begin;
  if (joins_previous && joins_next) {
    std::prev(after)->second = after->second;
    list_.erase(after);
  } else if (joins_previous) {
    std::prev(after)->second = end;
  } else if (joins_next) {
    after->first = begin;
  } else {
    list_.insert(after, {begin, end});
  }
  return true;
}

bool ChunkRanges::Overlaps(uint64_t begin, uint64_t end) const {
  // The first range that ends after `begin`.
  const auto it = std::upper_bound(list_.begin(), list_.end(), begin,
                                   [](uint64_t b, const auto& range) { return b < range.second; });
  return begin < end && it != list_.end() && it->first < end;
}

bool ChunkRanges::Contains(uint64_t begin, uint64_t end) const {
  const auto it = std::upper_bound(list_.begin(), list_.end(), begin,
                                   [](uint64_t b, const auto& range) { return b < range.second; });
  return begin >= end || (it != list_.end() && it->first <= begin && end <= it->second);
}

uint64_t ChunkRanges::chunks() const {
  uint64_t total = 0;
  for (const auto& [begin, end] : list_) total += end - begin;
  return total;
}

}  // namespace isthmus
