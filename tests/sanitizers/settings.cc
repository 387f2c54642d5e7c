// What the sanitizers are told, as a part of every program that they are built into: a process that
// a test starts has the same settings as the test. ASAN_OPTIONS and its like come on top.
//
// A line of the suppressions names frames of a library that Debian or PyPI built without the
// sanitizer, never one of ours, and says what the sanitizer cannot see there.

#if defined(__SANITIZE_ADDRESS__)

extern "C" const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1:"
         // Freed memory that is kept to be watched; the tests run side by side on small machines.
         "quarantine_size_mb=64";
}

extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }

#elif defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_options() {
  // Tests start programs from a process that has threads.
  return "die_after_fork=0:second_deadlock_stack=1:history_size=4";
}

#else
#error "this file belongs into builds with a sanitizer only"
#endif
