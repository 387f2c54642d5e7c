// vectors_check FILE: compares this implementation with the recordings in FILE, which
// tools/convert_vectors.py wrote, and prints a line for each group. Exit code 1 when one of them is
// not as recorded, or there was none to compare.
#include <exception>
#include <iostream>

#include "tests/vectors/demo_vectors.h"
#include "tests/vectors/outer_vectors.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: vectors_check FILE\n";
    return 2;
  }
  const auto file = isthmus::VectorFile::Read(argv[1]);
  if (!file.ok()) {
    std::cerr << "vectors_check: " << file.status().message() << "\n";
    return 1;
  }
  int compared = 0, failed = 0, skipped = 0;
  try {
    for (const isthmus::Comparison& comparison : isthmus::HasOuterVectors(*file)
                                                     ? isthmus::CheckOuterVectors(*file)
                                                     : isthmus::CheckDemoVectors(*file)) {
      std::cout << comparison.Lines();
      if (comparison.skipped()) {
        ++skipped;
      } else {
        ++compared;
        if (!comparison.ok()) ++failed;
      }
    }
  } catch (const std::exception& error) {
    // The JSON library's answer to a value of another kind than the form says.
    std::cerr << "vectors_check: " << error.what() << "\n";
    return 1;
  }
  std::cout << "vectors: " << compared << " compared, " << failed << " failed, " << skipped
            << " skipped" << std::endl;
  return compared > 0 && failed == 0 ? 0 : 1;
}
