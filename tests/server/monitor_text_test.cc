// What isthmusctl understands and prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/ctl/commands.h"
#include "server/ctl/deeds.h"
#include "server/ctl/presets.h"
#include "server/ctl/render.h"
#include "server/ctl/summary.h"
#include "server/ctl/table.h"
#include "server/ctl/words.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Words, SpansAndSizes) {
  EXPECT_EQ(Span(0), "0.0 s");
  EXPECT_EQ(Span(349), "0.3 s");
  EXPECT_EQ(Span(9949), "9.9 s");
  EXPECT_EQ(Span(9990), "9 s");
  EXPECT_EQ(Span(59999), "59 s");
  EXPECT_EQ(Span(60000), "1 min");
  EXPECT_EQ(Span(252000), "4 min 12 s");
  EXPECT_EQ(Span(2 * 3600000 + 61000), "2 h 1 min");
  EXPECT_EQ(Span(49 * 3600000), "2 d 1 h");
  EXPECT_EQ(Size(0), "0 B");
  EXPECT_EQ(Size(1536), "1.5 KiB");
  EXPECT_EQ(Size(uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(Size(uint64_t{5000} << 40), "5000.0 TiB");
  EXPECT_EQ(Grouped(7), "7");
  EXPECT_EQ(Grouped(123456), "123,456");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
  EXPECT_EQ(List({}, 3), "");
  EXPECT_EQ(List({"a", "b"}, 3), "a and b");
  EXPECT_EQ(List({"a", "b", "c", "d", "e"}, 3), "a, b, c and 2 more");
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("nodse", "nodes"), 2u);
}

TEST(Table, ColumnsAreAlignedAndLinesHaveNoEnds) {
  Table table({"NODE", "STATE"});
  table.Add({"münchen", "member"});
  table.Add({"a", ""});
  EXPECT_EQ(table.Text(), "NODE     STATE\nmünchen  member\na        -\n");
}

TEST(Commands, KnownOnesWithAndWithoutARun) {
  EXPECT_EQ(ReadRequest({"runs", "show"})->command, Command::kRunsShow);
  EXPECT_EQ(ReadRequest({"nodes", "list", "first"})->run, "first");
  EXPECT_EQ(ReadRequest({"version"})->command, Command::kVersion);
  EXPECT_THAT(std::string(ReadRequest({"version", "x"}).status().message()),
              HasSubstr("'x' is one too many"));
  EXPECT_THAT(std::string(ReadRequest({"runs", "show", "a", "b"}).status().message()),
              HasSubstr("'b' is one too many"));
}

TEST(Presets, EachIsShownWithItsPaperAndFieldsToCopy) {
  const std::string text = PresetsText();
  EXPECT_THAT(text, HasSubstr("\ndiloco  (DiLoCo, arXiv 2311.08105)\n"));
  EXPECT_THAT(text, HasSubstr("\n    source: SOURCE_PARAM_DELTA\n"
                              "    schedule { local_steps: 500 }\n"));
  EXPECT_THAT(text, HasSubstr("\n    outer { kind: OUTER_KIND_NESTEROV lr: 0.7 momentum: 0.9 }\n"));
}

TEST(Presets, LongLinesGoOnInTheNextOne) {
  const std::vector<std::string> lines = absl::StrSplit(PresetsText(), '\n');
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  // What a line goes on with has its name in it, too.
  EXPECT_THAT(PresetsText(), HasSubstr("\n        sign: OUTER_SIGN_EXACT }\n"));
}

TEST(Commands, TheHelpHasAllOfEveryCommand) {
  const std::string help = HelpText();
  EXPECT_THAT(help, HasSubstr("\n  runs create SPEC_FILE  add a run"));
  EXPECT_THAT(help, HasSubstr("\n  checkpoint export [RUN]\n"
                              "                         the parameters of"));
  EXPECT_THAT(help, HasSubstr("\n  runs fork RUN NEW_NAME [FIELD=VALUE...]\n"
                              "                         a new run from"));
  EXPECT_THAT(help, HasSubstr("\n  runs update RUN [FIELD=VALUE...]\n"));
  for (const char* flag : {"--round=N", "--out=FILE"}) EXPECT_THAT(help, HasSubstr(flag));
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(absl::EndsWith(line, " ")) << line;
  }
}

TEST(Commands, WhatIsNoUtf8IsRefusedBeforeItIsSent) {
  EXPECT_THAT(std::string(ReadRequest({"runs", "pause", "f\xfcr"}).status().message()),
              HasSubstr("an argument is not UTF-8 ('f\\xfcr')"));
  EXPECT_TRUE(CheckText("--reason", "für Köln").ok());
  EXPECT_THAT(std::string(CheckText("--reason", "\xff").message()), StartsWith("--reason is not"));
}

TEST(Commands, SomeAreAboutANode) {
  EXPECT_EQ(ReadRequest({"nodes", "drain", "fra-1"})->command, Command::kNodesDrain);
  EXPECT_EQ(ReadRequest({"nodes", "evict", "fra-1"})->node, "fra-1");
  EXPECT_EQ(ReadRequest({"nodes", "admit", "fra-1"})->run, "");
  EXPECT_EQ(ReadRequest({"runs", "checkpoint", "first"})->run, "first");
  EXPECT_THAT(std::string(ReadRequest({"nodes", "drain"}).status().message()),
              HasSubstr("'nodes drain' needs the name of a node"));
  EXPECT_THAT(std::string(ReadRequest({"nodes", "evict", "a", "b"}).status().message()),
              HasSubstr("takes one node, and 'b' is one too many"));
  EXPECT_THAT(HelpText(), HasSubstr("  nodes drain NODE       let it finish"));
}

TEST(Commands, SomeSetFieldsOfARun) {
  const auto update = ReadRequest({"runs", "update", "first", "optimizer.lr=1", "steps=5"});
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_EQ(update->run, "first");
  EXPECT_EQ(update->fields, (std::vector<std::string>{"optimizer.lr=1", "steps=5"}));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"runs", "update"}, {"runs", "update", "steps=5"}}) {
    EXPECT_THAT(std::string(ReadRequest(words).status().message()),
                HasSubstr("'runs update' needs the name of a run"));
  }
}

TEST(Commands, AForkNeedsBothNames) {
  const auto fork = ReadRequest({"runs", "fork", "first", "second", "seed=5"});
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ(fork->run, "first");
  EXPECT_EQ(fork->name, "second");
  EXPECT_THAT(fork->fields, testing::ElementsAre("seed=5"));
  EXPECT_THAT(std::string(ReadRequest({"runs", "fork", "first"}).status().message()),
              HasSubstr("and one for the new run"));
  EXPECT_THAT(std::string(ReadRequest({"runs", "update", "a", "b"}).status().message()),
              HasSubstr("'b' is no FIELD=VALUE"));
  EXPECT_EQ(ReadRequest({"runs", "create", "x.txtpb"})->file, "x.txtpb");
  EXPECT_THAT(std::string(ReadRequest({"runs", "create"}).status().message()),
              HasSubstr("needs the file with the run's spec"));
}

TEST(Deeds, AForkSaysWhatItStartsWithout) {
  v1::ForkRunResponse forked;
  forked.mutable_spec()->set_run("second");
  forked.set_round(1000);
  forked.set_state_sha256(std::string(32, 'x'));
  forked.set_without("the optimizer's moments, which start at zero");
  EXPECT_EQ(ForkedText("first", forked),
            "Run second is there; it starts at step 0 from the state of run first after round "
            "1,000 (start state 787878787878).\nIt starts without the optimizer's moments, which "
            "start at zero.\nAll of its nodes fetch that state; its agents join with "
            "--run=second.\n");
}

TEST(Deeds, ACreatedRunIsWarnedOfARateThatActsTwice) {
  v1::CreateRunResponse created;
  created.mutable_spec()->set_run("first");
  created.mutable_spec()->mutable_codec()->set_kind(v1::CODEC_KIND_DEMO);
  created.mutable_spec()->mutable_codec()->set_sign(true);
  EXPECT_EQ(CreatedText(created), "Run first is there; its agents join with --run=first.\n");
  created.mutable_spec()->mutable_codec()->set_sign(false);
  EXPECT_THAT(CreatedText(created), HasSubstr("\nWarning: codec.sign is false, so the learning "
                                              "rate acts twice"));
}

TEST(Deeds, AnUpdateNamesItsRoundAndWhatChanges) {
  v1::UpdateRunResponse updated;
  updated.set_revision(2);
  updated.set_from_round(1234);
  EXPECT_EQ(UpdatedText("first", updated, false),
            "Nothing changes: run first has this spec (revision 2) already.\n");
  v1::SpecChange* change = updated.add_changes();
  change->set_field("optimizer.lr");
  change->set_before("0.001");
  change->set_after("0.0005");
  EXPECT_EQ(UpdatedText("first", updated, true),
            "Revision 2 of run first would hold from round 1,234 on:\n"
            "  optimizer.lr: 0.001 -> 0.0005\n");
}

TEST(Deeds, APauseSaysWhatEndsIt) {
  v1::PauseRunResponse paused;
  EXPECT_THAT(PausedText("first", paused),
              HasSubstr("No round is open; nodes stay connected, and no other round opens until "
                        "'isthmusctl runs resume first'"));
  paused.set_last_round(7);
  EXPECT_THAT(PausedText("", paused), HasSubstr("Round 7 is finished first"));
}

TEST(Deeds, SayWhatHappenedAndWhatToDoNext) {
  v1::DrainNodeResponse drained;
  EXPECT_THAT(DrainedText("b", drained), HasSubstr("No round counts on it; it may be stopped now"));
  drained.set_last_round(1234);
  EXPECT_THAT(DrainedText("b", drained),
              HasSubstr("It finishes round 1,234; when that is committed it may be stopped, and "
                        "nobody waits for it.\n'isthmusctl nodes admit b' takes it back"));
  EXPECT_THAT(EvictedText("b"), HasSubstr("'isthmusctl nodes admit b' lets it in again"));
}

TEST(Commands, UnknownOnesAreAnsweredWithTheNearest) {
  const auto said = [](const std::vector<std::string>& words) {
    return std::string(ReadRequest(words).status().message());
  };
  EXPECT_THAT(said({}), HasSubstr("no command"));
  EXPECT_THAT(said({"node", "lst"}), HasSubstr("did you mean 'nodes list'"));
  EXPECT_THAT(said({"runs"}), HasSubstr("'runs show' or 'runs list'"));
  EXPECT_THAT(said({"rounds", "tail"}), HasSubstr("'rounds watch'"));
  EXPECT_THAT(said({"launch", "missiles"}), HasSubstr("'isthmusctl help' lists"));
}

v1::Run StalledRun() {
  v1::Run run;
  run.set_run("first");
  run.set_state(v1::RUN_STATE_RUNNING);
  run.set_open_round(7);
  run.set_committed_round(6);
  run.set_steps(1000);
  run.set_waiting_ms(252000);
  run.set_mean_round_ms(170);
  run.set_waiting_for("round 7: waiting for b (lease ended), no deadline");
  run.add_waiting_nodes("b");
  return run;
}

v1::Node LostNode() {
  v1::Node node;
  node.set_name("b");
  node.set_state(v1::NODE_STATE_LEASE_ENDED);
  node.set_state_ms(237000);
  node.set_heartbeat_ms(252000);
  node.set_is_waited_for(true);
  node.set_incarnation(2);
  return node;
}

TEST(Summary, AStalledRunNamesTheNodeSinceWhenAndWhy) {
  EXPECT_EQ(SummaryOf(StalledRun(), {LostNode()}),
            "Run first stands still: round 7 of 1,000 has waited 4 min 12 s for b, which was lost "
            "3 min 57 s ago (last heard of 4 min 12 s ago); look at b.");
}

TEST(Summary, WhoIsTakenOutIsSaidWithTheOperatorsReason) {
  v1::Node node = LostNode();
  node.set_state(v1::NODE_STATE_EVICTED);
  node.set_policy_reason("bad disk");
  EXPECT_THAT(SummaryOf(StalledRun(), {node}),
              HasSubstr("which an operator has evicted (bad disk): admit it or another"));
  node.set_state(v1::NODE_STATE_LEFT);
  node.set_is_draining(true);
  EXPECT_THAT(SummaryOf(StalledRun(), {node}), HasSubstr("which an operator drains (bad disk)"));
  const std::string text = NodesText({node});
  EXPECT_THAT(text, HasSubstr("left, drains"));
  EXPECT_THAT(text, HasSubstr("operator: bad disk"));
}

TEST(Summary, OfSeveralTheWorstIsNamedFirst) {
  v1::Run run = StalledRun();
  run.add_waiting_nodes("c");
  v1::Node c;
  c.set_name("c");
  c.set_is_waited_for(true);
  c.set_state(v1::NODE_STATE_MEMBER);
  c.set_waiting_for("rank 0 of 1: gone");
  EXPECT_THAT(SummaryOf(run, {c, LostNode()}),
              HasSubstr("for b and c; look at b first, which was"));
}

TEST(Summary, AMembersOwnWordsAreQuoted) {
  v1::Node node = LostNode();
  node.set_state(v1::NODE_STATE_MEMBER);
  node.set_waiting_for("rank 1 of 2");
  node.set_heartbeat_ms(400);
  EXPECT_THAT(SummaryOf(StalledRun(), {node}),
              HasSubstr("for b, which says \"rank 1 of 2\" (last heard of 0.4 s ago); look at b."));
}

TEST(Summary, ARunThatRunsSaysSo) {
  v1::Run run = StalledRun();
  run.set_waiting_ms(100);
  EXPECT_EQ(SummaryOf(run, {}),
            "Run first runs: round 7 of 1,000 has been open for 0.1 s (usual: 0.2 s), waiting for "
            "b.");
  run.clear_waiting_nodes();
  EXPECT_EQ(SummaryOf(run, {}), "Run first runs: round 7 of 1,000 is being committed.");
  run.set_state(v1::RUN_STATE_FINISHED);
  run.set_committed_round(1000);
  EXPECT_EQ(SummaryOf(run, {}), "Run first is finished: all 1,000 rounds are committed.");
}

TEST(Summary, ARunThatHasNotBegunNamesWhoIsMissing) {
  v1::Run run = StalledRun();
  run.set_state(v1::RUN_STATE_STARTING);
  run.set_waiting_ms(12000);
  v1::Node node = LostNode();
  node.set_state(v1::NODE_STATE_NEVER_JOINED);
  EXPECT_EQ(SummaryOf(run, {node}),
            "Run first has not begun: for 12 s it has waited for b, which has not joined yet; look "
            "at b.");
}

TEST(Render, AForkSaysWhatItCameFrom) {
  v1::Run run = StalledRun();
  EXPECT_THAT(RunText(run, {}), testing::Not(HasSubstr("forked from")));
  run.mutable_forked_from()->set_run("old");
  run.mutable_forked_from()->set_round(1000);
  EXPECT_THAT(RunText(run, {}), HasSubstr("\n  forked from    run old after round 1,000\n"));
}

TEST(Render, ARunThatIsNotServedIsListedWithTheReason) {
  v1::Run run;
  run.set_run("second");
  run.set_waiting_for("run 'second' is not served: its folder is damaged");
  EXPECT_THAT(
      RunsText({StalledRun(), run}),
      HasSubstr("\nsecond  not served  -      -      -       run 'second' is not served: its"));
}

TEST(Render, TablesHoldWhatMatters) {
  v1::Node node = LostNode();
  node.mutable_last_refusal()->set_reason("steps is 7");
  node.mutable_last_refusal()->set_round(6);
  const std::string nodes = NodesText({node});
  EXPECT_THAT(nodes, HasSubstr("> b"));
  EXPECT_THAT(nodes, HasSubstr("lease ended"));
  EXPECT_THAT(nodes, HasSubstr("refused in round 6 0.0 s ago: steps is 7"));
  EXPECT_THAT(RunText(StalledRun(), {node}), StartsWith("Run first stands still"));

  v1::Round round;
  round.set_round(7);
  round.set_state(v1::ROUND_STATE_COMMITTED);
  round.mutable_opened_at()->set_seconds(0);
  round.set_duration_ms(170);
  v1::RoundNode* a = round.add_nodes();
  a->set_node("a");
  a->set_outcome(v1::NODE_OUTCOME_INCLUDED);
  v1::RoundNode* b = round.add_nodes();
  b->set_node("b");
  b->set_outcome(v1::NODE_OUTCOME_ABSTAINED);
  b->set_reason("non-finite gradient");
  const std::string rounds = RoundsText({round}, absl::UTCTimeZone());
  EXPECT_THAT(rounds, HasSubstr("1970-01-01 00:00:00"));
  EXPECT_THAT(rounds, HasSubstr("1 of 2; b abstained: non-finite gradient"));
  v1::WatchRoundsResponse change;
  change.set_change(v1::ROUND_CHANGE_COMMITTED);
  *change.mutable_round() = round;
  EXPECT_THAT(ChangeText(change, absl::UTCTimeZone()),
              HasSubstr("00:00:00  round 7: committed after 0.2 s"));
}

}  // namespace
}  // namespace isthmus
