// A sanitizer that reports nothing may be one that is not there. `./dev test --asan` and `--tsan`
// run this test with the others; a build without a sanitizer does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace isthmus {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string text;
};

// Reports go to where the test reads them, not to those that are counted.
Outcome Misuse(const std::string& kind) {
  const std::string command =
      "unset ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS; "
      "tests/sanitizers/misuse " +
      kind + " 2>&1";
  Outcome outcome;
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    outcome.text.append(buffer, got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

void ExpectReport(const std::string& kind, const std::string& sentence) {
  const Outcome outcome = Misuse(kind);
  EXPECT_GT(outcome.exit_code, 0) << kind;
  EXPECT_THAT(outcome.text, HasSubstr(sentence)) << kind;
  // With the function that did it: what is built has line numbers.
  EXPECT_THAT(outcome.text, HasSubstr("misuse_main.cc")) << kind;
}

TEST(ReportsTest, NothingIsReportedWhereNothingIsWrong) {
  for (const std::string kind : {"nothing", "abseil_lock", "abseil_wait"}) {
    const Outcome outcome = Misuse(kind);
    EXPECT_EQ(outcome.exit_code, 0) << kind;
    EXPECT_EQ(outcome.text, "") << kind;
  }
}

#if defined(__SANITIZE_ADDRESS__)

TEST(ReportsTest, UseOfFreedMemory) {
  ExpectReport("use_after_free", "AddressSanitizer: heap-use-after-free");
}

TEST(ReportsTest, UseBeyondMemory) {
  ExpectReport("heap_overflow", "AddressSanitizer: heap-buffer-overflow");
}

TEST(ReportsTest, MemoryThatNobodyFrees) {
  ExpectReport("leak", "LeakSanitizer: detected memory leaks");
}

TEST(ReportsTest, UndefinedBehaviour) {
  ExpectReport("integer_overflow", "runtime error: signed integer overflow");
}

#elif defined(__SANITIZE_THREAD__)

TEST(ReportsTest, Race) { ExpectReport("race", "ThreadSanitizer: data race"); }

#else

TEST(ReportsTest, NoSanitizer) { GTEST_SKIP() << "./dev test --asan and --tsan run this test"; }

#endif

}  // namespace
}  // namespace isthmus
