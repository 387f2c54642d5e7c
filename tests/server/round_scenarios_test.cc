// Runs scenarios/*.txt against the round's state machine and compares what it does with what the
// files recorded. A file is a list of blocks: commands, a line `----`, their recorded output, an
// empty line. To record anew after a wanted change, and then to read the difference:
//
//   ISTHMUS_REWRITE=tests/server/scenarios bazel-bin/tests/server/round_scenarios_test
//
// Commands (times in milliseconds; the clock starts at 0 and only tick and pause move it):
//   spec nodes=a,b [start=NODE] [quorum=N] [steps=N] [lease=MS] [deadline=MS] [grace=MS]
//        [overlap=N]
//   revise FROM_ROUND [quorum=N] ...   (as spec; what is left out stays as it was said last)
//   join NODE [HOLDS_ROUND]     ack NODE ROUND        heard NODE
//   waiting NODE TEXT           complete NODE DIGEST  refuse NODE TEXT   abstain NODE TEXT
//                               (with @ROUND behind the verb: to that round)
//   pushback@ROUND NODE         (its contribution could not be taken, it tries again)
//   drain NODE TEXT             evict NODE TEXT       admit NODE
//   start                       (the start state is here, where spec has start=NODE)
//   leave NODE                  persist               (the round being committed)
//   hold TEXT                   release               (an operator pauses the run, and resumes it)
//   diverge NODE TEXT           (its state differs)      heal NODE
//   dispute TEXT                (nobody knows whose state is right)      settle
//   tick MS [beating=a,b]       (ticks of 100 ms; the nodes named send heartbeats)
//   pause MS                    (one tick after a gap)
//   resume ROUND MEMBERS NODES [drained=a:LAST_ROUND,...] [evicted=b,...] [held=TEXT]
//          [diverged=a] [disputed=TEXT]
//                               (the first command after spec: a run that a store kept; MEMBERS of
//                               several rounds with / between them)
// Output: the effects in order, each with its time, then the sentence that Decide gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/round.h"

namespace isthmus {
namespace {

struct EffectText {
  std::string operator()(const OpenRound& effect) const {
    return absl::StrCat("open round ", effect.round, " on ", effect.base_round, ", step ",
                        effect.step, ", members: ", absl::StrJoin(effect.members, " "));
  }
  std::string operator()(const TakeIn& effect) const {
    return absl::StrCat("take in ", effect.node, ", round ", effect.round);
  }
  std::string operator()(const TakeOut& effect) const {
    return absl::StrCat("take out ", effect.node, ", round ", effect.round);
  }
  std::string operator()(const CommitRound& effect) const {
    std::string text = absl::StrCat("commit round ", effect.round);
    absl::StrAppend(
        &text, effect.is_void ? ", void" : ", included: " + absl::StrJoin(effect.included, " "));
    for (const std::vector<std::string>& open : effect.open_members) {
      absl::StrAppend(&text, ", open: ", absl::StrJoin(open, " "));
    }
    if (effect.next_members.empty()) return text;
    return absl::StrCat(text, ", next: ", absl::StrJoin(effect.next_members, " "));
  }
  std::string operator()(const PublishRound& effect) const {
    return absl::StrCat("publish round ", effect.round);
  }
  std::string operator()(const EndLease& effect) const {
    return absl::StrCat("end lease of ", effect.node);
  }
  std::string operator()(const FinishRun& effect) const {
    return absl::StrCat("finish after round ", effect.round);
  }
};

class Scenario {
 public:
  // Runs one command; appends what it did.
  void Run(const std::string& line, std::string* out) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const std::string& verb = words[0];
    if (verb == "spec") return Spec(words);
    if (machine_ == nullptr) throw std::runtime_error("the first command must be spec");
    if (verb == "tick") return Tick(words, out);
    if (verb == "pause") {
      now_ms_ += Number(words.at(1));
      return Step(Ticked{}, out);
    }
    if (verb == "revise") {
      ReadSettings(words, 2);
      return Step(SettingsRevised{static_cast<uint64_t>(Number(words.at(1))), settings_}, out);
    }
    if (verb == "hold") return Step(RunPaused{line.substr(std::min<size_t>(line.size(), 5))}, out);
    if (verb == "dispute") return Step(StatesDisputed{line.substr(8)}, out);
    if (verb == "settle") return Step(StatesDisputed(), out);
    if (verb == "release") return Step(RunUnpaused(), out);
    if (verb == "start") return Step(StartStateHeld{}, out);
    if (verb == "persist") return Step(RoundPersisted{machine_->committing_round()}, out);
    Step(Event(verb, words, line), out);
  }

  std::string Sentence() const { return machine_->Decide(now_ms_).sentence; }

 private:
  static int64_t Number(const std::string& word) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(word, &value)) throw std::runtime_error("not a number: " + word);
    return value;
  }

  void Spec(const std::vector<std::string>& words) {
    settings_ = RoundSettings();
    settings_.run = "r";
    settings_.steps = 100;
    settings_.quorum = 0;
    ReadSettings(words, 1);
    if (settings_.quorum == 0) settings_.quorum = settings_.nodes.size();
    machine_ = std::make_unique<RoundMachine>(settings_);
  }

  void ReadSettings(const std::vector<std::string>& words, size_t first) {
    RoundSettings& settings = settings_;
    for (size_t i = first; i < words.size(); ++i) {
      const std::pair<std::string, std::string> field = absl::StrSplit(words[i], '=');
      if (field.first == "nodes") settings.nodes = absl::StrSplit(field.second, ',');
      if (field.first == "quorum") settings.quorum = Number(field.second);
      if (field.first == "steps") settings.steps = Number(field.second);
      if (field.first == "lease") settings.lease_ms = Number(field.second);
      if (field.first == "deadline") settings.deadline_ms = Number(field.second);
      if (field.first == "grace") settings.grace_ms = Number(field.second);
      if (field.first == "start") settings.start_node = field.second;
      if (field.first == "acknowledge") settings.acknowledge_ms = Number(field.second);
      if (field.first == "overlap") settings.overlap = static_cast<uint32_t>(Number(field.second));
    }
  }

  RoundEvent Event(const std::string& said, const std::vector<std::string>& words,
                   const std::string& line) {
    const std::string& node = words.at(1);
    if (said == "resume") return Resumed(words);
    const std::string text = line.substr(std::min(line.size(), said.size() + node.size() + 2));
    const std::pair<std::string, std::string> parts = absl::StrSplit(said, absl::MaxSplits('@', 1));
    const std::string& verb = parts.first;
    const uint64_t round = parts.second.empty() ? 0 : static_cast<uint64_t>(Number(parts.second));
    if (verb == "join") {
      return NodeJoined{node, ++incarnation_,
                        words.size() > 2 ? static_cast<uint64_t>(Number(words[2])) : 0};
    }
    if (verb == "ack") return NodeAcknowledged{node, static_cast<uint64_t>(Number(words.at(2)))};
    if (verb == "heard") return NodeHeard{node};
    if (verb == "waiting") return NodeWaiting{node, text};
    if (verb == "complete") return ContributionComplete{node, text, round};
    if (verb == "refuse") return ContributionRefused{node, text, round};
    if (verb == "abstain") return NodeAbstained{node, text, round};
    if (verb == "pushback") return NodePushedBack{node, round};
    if (verb == "leave") return NodeLeft{node, text};
    if (verb == "diverge") return NodeDiverged{node, text};
    if (verb == "heal") return NodeHealed{node};
    if (verb == "drain") return NodePolicySet{node, NodePolicy::kDrain, text};
    if (verb == "evict") return NodePolicySet{node, NodePolicy::kEvict, text};
    if (verb == "admit") return NodePolicySet{node, NodePolicy::kNone, ""};
    throw std::runtime_error("unknown command: " + line);
  }

  RoundEvent Resumed(const std::vector<std::string>& words) {
    RunResumed event;
    event.committed_round = static_cast<uint64_t>(Number(words.at(1)));
    const std::vector<std::string> rounds = absl::StrSplit(words.at(2), '/');
    if (rounds[0] != "-") event.members = absl::StrSplit(rounds[0], ',');
    for (size_t i = 1; i < rounds.size(); ++i) {
      event.later_members.push_back(absl::StrSplit(rounds[i], ','));
    }
    for (absl::string_view node : absl::StrSplit(words.at(3), ',')) {
      event.nodes.push_back({std::string(node), ++incarnation_});
    }
    for (size_t i = 4; i < words.size(); ++i) AddPolicies(words[i], &event);
    return event;
  }

  void AddPolicies(const std::string& word, RunResumed* event) {
    const std::pair<std::string, std::string> field = absl::StrSplit(word, '=');
    if (field.first == "held") {
      event->paused = true;
      event->pause_reason = field.second;
      return;
    }
    if (field.first == "diverged") event->diverged.push_back({field.second, "kept"});
    if (field.first == "disputed") event->dispute = field.second;
    if (field.first == "diverged" || field.first == "disputed") return;
    const bool drained = field.first == "drained";
    for (absl::string_view one : absl::StrSplit(field.second, ',')) {
      const std::vector<std::string> parts = absl::StrSplit(one, ':');
      const uint64_t last_round = drained ? static_cast<uint64_t>(Number(parts.at(1))) : 0;
      event->policies.push_back(
          {parts[0], drained ? NodePolicy::kDrain : NodePolicy::kEvict, "kept", last_round});
    }
  }

  void Tick(const std::vector<std::string>& words, std::string* out) {
    std::vector<std::string> beating;
    if (words.size() > 2) beating = absl::StrSplit(words[2].substr(words[2].find('=') + 1), ',');
    for (const int64_t end_ms = now_ms_ + Number(words.at(1)); now_ms_ < end_ms;) {
      now_ms_ = std::min<int64_t>(end_ms, now_ms_ + 100);
      for (const std::string& node : beating) Step(NodeHeard{node}, out);
      Step(Ticked{}, out);
    }
  }

  void Step(const RoundEvent& event, std::string* out) {
    for (const RoundEffect& effect : machine_->Step(event, now_ms_)) {
      absl::StrAppend(out, "t=", now_ms_, " ", std::visit(EffectText(), effect), "\n");
    }
  }

  std::unique_ptr<RoundMachine> machine_;
  RoundSettings settings_;  // as they were said last
  int64_t now_ms_ = 0;
  uint64_t incarnation_ = 0;
};

// The file with its outputs made anew. Comments and commands stay; everything from `----` to the
// next empty line is output.
std::string Record(const std::string& text) {
  Scenario scenario;
  std::string result, output;
  bool in_output = false;
  for (absl::string_view view : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    const std::string line(view);
    if (in_output) {
      if (!line.empty()) continue;
      in_output = false;
    }
    absl::StrAppend(&result, line, "\n");
    if (line == "----") {
      absl::StrAppend(&result, output, scenario.Sentence(), "\n");
      output.clear();
      in_output = true;
    } else if (!line.empty() && line[0] != '#') {
      scenario.Run(line, &output);
    }
  }
  return result;
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> Files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(RoundScenarios, DoWhatTheFilesRecorded) {
  const char* rewrite = std::getenv("ISTHMUS_REWRITE");
  const auto files = Files(rewrite != nullptr ? rewrite : "tests/server/scenarios");
  EXPECT_GE(files.size(), 15u);
  for (const auto& path : files) {
    SCOPED_TRACE(path.filename().string());
    const std::string recorded = Read(path);
    const std::string now = Record(recorded);
    if (rewrite != nullptr) {
      std::ofstream(path) << now;
    } else {
      EXPECT_EQ(recorded, now);
    }
  }
}

// The machine is a value: a copy goes on from where the original was, and does the same.
TEST(RoundMachine, ACopyDoesTheSame) {
  RoundSettings settings;
  settings.nodes = {"a", "b"};
  settings.quorum = 2;
  settings.steps = 2;
  RoundMachine machine(settings);
  machine.Step(NodeJoined{"a", 1, 0}, 0);
  machine.Step(NodeJoined{"b", 2, 0}, 1);
  machine.Step(ContributionComplete{"b", "d"}, 2);
  RoundMachine copy = machine;
  const auto first = machine.Step(ContributionComplete{"a", "d"}, 3);
  const auto second = copy.Step(ContributionComplete{"a", "d"}, 3);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(std::visit(EffectText(), first[0]), std::visit(EffectText(), second[0]));
}

}  // namespace
}  // namespace isthmus
