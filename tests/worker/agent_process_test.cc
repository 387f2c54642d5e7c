// The agent's process: flags, signals, exit codes.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "tests/worker/agent_harness.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

// A child whose standard error goes to a file; killed at the end if it still runs.
class Process {
 public:
  Process(const std::vector<std::string>& flags, const std::string& log) : log_(log) {
    std::vector<std::string> words = {"worker/agent"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) { kill(pid_, signal); }
  // Its exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

 private:
  std::string log_;
  pid_t pid_ = -1;
};

class AgentProcessTest : public AgentTest {
 protected:
  std::vector<std::string> Flags(const std::string& name) {
    return {"--node=a",
            "--coordinator=" + coordinator_->address(),
            "--ranks=1",
            "--listen=" + folder_.Socket(name),
            "--state_dir=" + folder_.path() + "/state-" + name,
            "--ready_file=" + Ready(name)};
  }
  std::string Ready(const std::string& name) { return folder_.path() + "/ready-" + name; }
  std::unique_ptr<Process> Run(const std::vector<std::string>& flags) {
    return std::make_unique<Process>(flags, folder_.path() + "/log" + std::to_string(++runs_));
  }
  std::unique_ptr<Process> RunUntilReady(const std::string& name,
                                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = Flags(name);
    flags.insert(flags.end(), more.begin(), more.end());
    auto process = Run(flags);
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(Ready(name)); })) << process->Log();
    return process;
  }
  void ExpectExit(const std::vector<std::string>& flags, int code, const std::string& text) {
    const auto process = Run(flags);
    EXPECT_EQ(process->Wait(), code) << process->Log();
    EXPECT_THAT(process->Log(), HasSubstr(text));
  }

  int runs_ = 0;
};

TEST_F(AgentProcessTest, WrongFlagsExitWithTwo) {
  StartRun({"a"}, 1);
  ExpectExit({}, 2, "--node is missing");
  ExpectExit({"--no_such_flag=1"}, 2, "no_such_flag");
  std::vector<std::string> flags = Flags("s");
  flags.push_back("--listen=unix:s,0.0.0.0:0");
  ExpectExit(flags, 2, "--listen is '0.0.0.0:0', which other machines can reach");
  flags = Flags("s");
  flags.push_back("--ranks=0");
  ExpectExit(flags, 2, "a node has 1 to 1024 ranks, not 0");
  flags = Flags("s");
  flags.push_back("--coordinator=nowhere");
  ExpectExit(flags, 2, "nowhere");
  flags = Flags("s");
  flags.push_back("--log_level=loud");
  ExpectExit(flags, 2, "--log_level is 'loud'");
  ExpectExit({"--version"}, 0, "isthmus agent");
  ExpectExit({"--help"}, 0, "--coordinator");
}

TEST_F(AgentProcessTest, WhatIsInUseIsNamed) {
  StartRun({"a"}, 1);
  const auto first = RunUntilReady("s");
  std::vector<std::string> flags = Flags("s");
  ExpectExit(flags, 1, "is in use by another process");
  flags.push_back("--state_dir=" + folder_.path() + "/other");
  ExpectExit(flags, 1, folder_.Socket("s"));
}

TEST_F(AgentProcessTest, ASignalLeavesTheRunAndTheSocketGoes) {
  StartRun({"a"}, 1);
  for (const int signal : {SIGTERM, SIGINT}) {
    std::filesystem::remove(Ready("a"));
    const auto process = RunUntilReady("a");
    const auto ranks = JoinAll("a", 1, signal == SIGTERM ? 'g' : 'h');
    EXPECT_EQ(coordinator_->host().live_nodes(), 1U);
    process->Signal(signal);
    EXPECT_EQ(process->Wait(), 0) << process->Log();
    EXPECT_EQ(coordinator_->host().live_nodes(), 0U);
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/a"));
  }
}

TEST_F(AgentProcessTest, StopsWhileTheCoordinatorIsNotThere) {
  StartRun({"a"}, 1);
  std::vector<std::string> flags = Flags("a");
  const std::string address = coordinator_->address();
  const auto process = [&] {
    const std::string gone = address;
    coordinator_.reset();
    flags[1] = "--coordinator=" + gone;
    return Run(flags);
  }();
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(Ready("a")); }));
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 0) << process->Log();
}

TEST_F(AgentProcessTest, ExitsWhenItsRanksHaveLeft) {
  StartRun({"a"}, 1);
  const auto process = RunUntilReady("a", {"--exit_when_finished"});
  const auto ranks = JoinAll("a", 1);
  const v1::RoundOpened opened = Opened(ranks);
  ranks[0]->Submit(opened, Pieces(0, 1, 1), {1, 1});
  Updates(ranks);
  EXPECT_FALSE(ranks[0]->WaitOpened()->has_value());
  ranks[0]->Leave("finished");
  EXPECT_EQ(process->Wait(), 0) << process->Log();
}

TEST_F(AgentProcessTest, ARefusalOfTheCoordinatorExitsWithOne) {
  StartRun({"a"}, 1);
  std::vector<std::string> flags = Flags("s");
  flags.push_back("--node=nobody");
  ExpectExit(flags, 1, "run 'small' has no node 'nobody'");
}

}  // namespace
}  // namespace isthmus
