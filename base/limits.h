// Every limit of the system, each with its reason. A limit that is reached is an answer to the
// caller (RESOURCE_EXHAUSTED or INVALID_ARGUMENT naming limit and value), never a crash.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// --- Messages. One piece is the unit of resend: large enough for gRPC to stream at full speed,
// small enough that a lost connection costs little.
inline constexpr size_t kPieceBytesMax = size_t{1} << 20;
// Room for a piece with its envelope, or for a manifest; both ends set it on every channel.
inline constexpr size_t kMessageBytesMax = size_t{2} << 20;
inline constexpr size_t kManifestBytesMax = size_t{1} << 20;
inline constexpr size_t kMetadataBytesMax = 8192;

// --- Names and texts.
inline constexpr size_t kNameBytesMax = 63;
inline constexpr size_t kTensorNameBytesMax = 256;
inline constexpr size_t kReasonBytesMax = 256;
// Text of an error: with its details it must fit into kMetadataBytesMax, percent-encoded.
inline constexpr size_t kStatusMessageBytesMax = 1024;
// A field of a log line: longer than any sentence of ours, shorter than what a peer may send.
inline constexpr size_t kLogFieldBytesMax = 2048;
inline constexpr size_t kRunSpecFileBytesMax = size_t{1} << 20;
inline constexpr size_t kSecretBytesMin = 16;
inline constexpr size_t kSecretBytesMax = 64;
inline constexpr size_t kGroupIdBytes = 16;
inline constexpr size_t kSettingsMax = 64;
inline constexpr size_t kCapabilitiesMax = 64;

// --- Model. Chunk numbers travel as 32 bits in a piece's header.
inline constexpr size_t kTensorsMax = 65536;
inline constexpr size_t kTensorDimensionsMax = 8;
inline constexpr uint64_t kTensorElementsMax = uint64_t{1} << 40;
inline constexpr uint64_t kChunksMax = (uint64_t{1} << 32) - 1;
// Blocks of the canonical grid, 40 bytes of memory each. 4,194,304 are 17 * 10^9 elements even in
// vectors, a hundred times that in matrices; a manifest of degenerate shapes must not cost more.
inline constexpr size_t kBlocksMax = size_t{1} << 22;
// Elements of a chunk where nothing is transformed: of a vector's block, and what one number format
// call takes.
inline constexpr uint32_t kFlatChunkElements = 4096;
// Sides of a chunk: the DCT tables end here.
inline constexpr uint32_t kChunkSideMax = 128;

// --- Run.
inline constexpr size_t kNodesMax = 256;
inline constexpr uint32_t kRanksMax = 1024;
inline constexpr uint64_t kStepsMax = 1000000000;
// Runs of one coordinator: each has a store, threads and its share of memory.
inline constexpr size_t kRunsMax = 32;
// Specs that a run may have had: all of them are kept, since any round may be replayed.
inline constexpr size_t kSpecRevisionsMax = 200;
// Single fields that one call of an operator may set.
inline constexpr size_t kSetFieldsMax = 64;
// Local steps of a round: days of a fast node.
inline constexpr uint32_t kLocalStepsMax = 100000;
// Rounds over which a delta that was left out is carried: an old one says little of where x is now.
inline constexpr uint32_t kCarryRoundsDefault = 5;
inline constexpr uint32_t kCarryRoundsMax = 100;
// Leases, deadlines, grace: a week, so that sums of them stay far from overflow.
inline constexpr uint32_t kDurationMsMax = 7 * 24 * 3600 * 1000u;
inline constexpr uint32_t kDataPartsMax = 1000;
inline constexpr uint32_t kLayersMax = 1000;
inline constexpr uint32_t kWidthMax = 65536;
inline constexpr uint32_t kVocabMax = uint32_t{1} << 24;
inline constexpr size_t kFrozenPatternsMax = 256;
// Decay groups and the patterns of one: a handful is usual; each pattern is tried on every tensor.
inline constexpr size_t kDecayGroupsMax = 64;
inline constexpr size_t kDecayPatternsMax = 256;
inline constexpr float kDecayScaleMax = 1000.0f;
// Sequences times context is the tokens of a contribution, which kTokensMax bounds.
inline constexpr uint32_t kContextMax = uint32_t{1} << 20;
inline constexpr uint32_t kSequencesMax = uint32_t{1} << 20;
// Incarnations and attempts count joins; a peer that names more would end the counting.
inline constexpr uint64_t kIncarnationMax = uint64_t{1} << 62;
inline constexpr uint64_t kTokensMax = uint64_t{1} << 40;

// Contributions a rank may have under way (encoded, not settled). One without overlap; a trainer
// that never settles must not fill memory.
inline constexpr size_t kPendingRoundsMax = 16;
// Rounds that may be under way beside the oldest: what a round trip of seconds and steps of a
// second want; each costs a copy of what was sent, and the update comes later by one more step.
inline constexpr uint32_t kOverlapMax = 2;
// Largest magnitude in a momentum residual. A transform multiplies by at most kChunkSideMax, so
// that every sent and decoded value stays far inside float32.
inline constexpr float kMomentumMax = 1e30f;

// --- Memory held for others. Encoded contributions to open rounds: what an agent holds of its
// ranks.
inline constexpr size_t kOpenContributionBytesMax = size_t{4} << 30;
// What a coordinator holds of its nodes, for each run, in memory and beyond that in a spool file.
// What a machine of 4 GiB can spare: 32 nodes with 32 MiB each; and what any disk has beside the
// updates that are kept. Flags of the coordinator set others.
inline constexpr uint64_t kContributionMemoryMibDefault = 1024;
inline constexpr uint64_t kSpoolMibDefault = 16384;
// 1 PiB, so that sums of bytes stay far from overflow.
inline constexpr uint64_t kBudgetMibMax = uint64_t{1} << 30;
// One spool file. A piece that goes leaves a hole; what is left goes with the last one.
inline constexpr uint64_t kSpoolFileBytes = uint64_t{64} << 20;
// Committed updates kept for nodes that are behind (until the store is on disk).
inline constexpr size_t kKeptUpdateBytesMax = size_t{512} << 20;
// Updates kept on disk for nodes that are behind or start again from a checkpoint: hours of a fast
// run, and a size that any disk has. Flags of the coordinator set others.
inline constexpr uint64_t kStoredRoundsDefault = 10000;
inline constexpr uint64_t kStoredBytesDefault = uint64_t{8} << 30;
// Of rounds whose update is no longer kept, which contributions they included: some hundred bytes
// each, and what a late node asks about.
inline constexpr uint64_t kStoredDigestRounds = 100000;
// Complete checkpoints that a trainer keeps: the newest, and the one before in case it is damaged.
inline constexpr int kCheckpointsKept = 2;
// --- Snapshots of the replicated state. Rounds between two; well below kStoredRoundsDefault.
inline constexpr uint64_t kSnapshotEveryDefault = 1000;
// Values of a piece: half of what a message may have, and no more than an update's piece, so that a
// piece of an update never waits for long behind one.
inline constexpr size_t kSnapshotPieceBytesMax = size_t{512} << 10;
// Ranges of one call. A rank holds one for each unit and section at most; with more it calls again.
inline constexpr size_t kSnapshotRangesMax = 4096;
// Complete ones that are kept: the newest, and the one before for those who are fetching it.
inline constexpr size_t kSnapshotsKept = 2;
// Uploads and downloads at a time, each of which has a thread while it lasts.
inline constexpr int kSnapshotCallsMax = 64;
// Without progress for so long an upload is given up, and another round's state is asked for.
inline constexpr int kSnapshotStallMs = 60000;
// When a state is there, so long is waited for members that have not reported theirs.
inline constexpr int kSnapshotVerdictMs = 10000;
// A piece of a snapshot waits for the contribution under way, at most so long.
inline constexpr int kSnapshotYieldMs = 2000;

// --- Comparing nodes' states (RunSpec.check_every). A node hashes all that it holds, which takes
// about a second for 1 GiB, in the background: little beside a hundred rounds.
inline constexpr uint32_t kCheckEveryDefault = 100;
inline constexpr uint32_t kCheckEveryMax = 1000000000;
// States that a node says again in every heartbeat: those of rounds so short that many end between
// two heartbeats, and of what a coordinator that starts again has forgotten.
inline constexpr size_t kStateReportsMax = 16;
// Checked rounds of which reports are kept, 256 nodes with some 100 bytes each.
inline constexpr size_t kCheckedRoundsKept = 32;
// After the first report of a round, so long is waited for members that live and have not reported.
inline constexpr int kStateVerdictMs = 15000;
// Hashes of blocks in one message of a rank, and rounds of which an agent keeps them.
inline constexpr size_t kStatePartBytesMax = size_t{512} << 10;
inline constexpr size_t kStateRoundsOpenMax = 4;

// Events queued for one watcher; beyond it the watcher is dropped with a reason and watches again.
// An event is a shared pointer to what is kept anyway, so this bounds pointers (4 MiB).
inline constexpr size_t kWatchQueueEventsMax = size_t{1} << 18;
// A watcher of a coordinator that lets so many bytes of updates wait is behind: it gets what waits
// and nothing more, and watches again. With the update under way and a connection's window that is
// what a reader who has stopped may cost, 8 MiB, where updates are of a MiB or so.
inline constexpr size_t kWatchLagBytesMax = size_t{4} << 20;
// Calls one connection may have open: watch, submit, heartbeat, join, and room to reconnect.
inline constexpr int kConcurrentStreamsMax = 32;

// --- What operators may ask. Rounds kept for them: hours of a slow run, minutes of a fast one.
inline constexpr size_t kHistoryRoundsMax = 1000;
// Changes that a reader of WatchRounds may be behind: some hundred rounds of a few nodes.
inline constexpr size_t kHistoryChangesMax = 4096;
// Of either, in bytes: a round of 256 nodes that all give a long reason has 90 KiB.
inline constexpr size_t kHistoryBytesMax = size_t{16} << 20;
// Open WatchRounds calls: a handful of people, and a dashboard.
inline constexpr size_t kRoundWatchersMax = 64;
// Items of a page: a screenful where nothing is said, and what fits a message with room to spare.
inline constexpr size_t kPageSizeDefault = 50;
inline constexpr size_t kPageSizeMax = 500;
// Bytes of a page of rounds, which may be large: half of what a message may have.
inline constexpr size_t kPageBytesMax = kMessageBytesMax / 2;

// --- Files of the trainer. Names and shapes of the largest model allowed, with room for a comment.
inline constexpr size_t kSafetensorsHeaderBytesMax = size_t{100} << 20;
inline constexpr int kDataFilesMax = 4096;
inline constexpr int kTrainerThreadsMax = 1024;
// Each byte of a sample is a forward pass.
inline constexpr int kSampleBytesMax = 100000;
// A model up to this size stays gathered on every rank between forward and backward: the memory is
// there, and a step takes one gather a unit instead of two.
inline constexpr size_t kKeepGatheredBytesMax = size_t{256} << 20;

// --- Time.
inline constexpr int kConnectTimeoutMs = 10000;
inline constexpr int kCallTimeoutMs = 10000;
// A submission renews its deadline while it makes progress; without any for this long it is given
// up.
inline constexpr int kSubmitStallTimeoutMs = 60000;
inline constexpr int kBackoffFirstMs = 100;
inline constexpr int kBackoffMaxMs = 5000;
// Agents ping idle connections this often, and give one up that stays silent so long. The server
// permits pings from half of that on, so that it never answers "too many pings".
inline constexpr int kKeepaliveTimeMs = 20000;
inline constexpr int kKeepaliveTimeoutMs = 10000;
inline constexpr int kKeepalivePermitMs = 10000;
// How soon a rank that waits for its agent is told to ask again: a unary call on a unix socket.
inline constexpr int kRankRetryMs = 200;
// A rank whose watch has ended is given up after this time, and its group with it.
inline constexpr int kRankGoneMs = 5000;
// A rank that has joined but does not watch yet lives for this long after it last asked; longer
// than the back-off between two of its questions. Then another trainer group may take over.
inline constexpr int kRankJoinHoldMs = 2 * kBackoffMaxMs;
// An agent that was refused stays this long, so that ranks that wait for it are told why.
inline constexpr int kRefusalLingerMs = 2000;
// SIGTERM: calls in flight get this long to end before they are cut.
inline constexpr int kDrainMs = 3000;
// Ranks of a node start together, by one launcher; loading LibTorch from a cold disk takes a while.
inline constexpr int kRendezvousTimeoutMs = 60000;
// A rank waits this long for another one inside a step. They differ by the time they wait for a
// round: an agent that comes back is seen by all within kBackoffMaxMs.
inline constexpr int kCollectiveTimeoutMs = 120000;
// A stopped trainer ends between two steps, or after this long in the middle of one.
inline constexpr int kTrainerStopMs = 4000;
// How often the coordinator looks at leases and deadlines: fine against seconds, and no load.
inline constexpr int kTickMs = 100;
// A gap between two looks longer than this (and the tick) is a pause of our own process (stopped,
// swapped out, moved): leases and deadlines are extended by it. Shorter than any sensible lease.
inline constexpr int kOwnPauseMs = 5000;
// When to try again where nothing better is known.
inline constexpr int kRetryAfterMs = 1000;

}  // namespace isthmus
