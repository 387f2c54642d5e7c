// Lines of columns for a terminal.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

class Table {
 public:
  explicit Table(std::vector<std::string> head);
  // As many cells as the head has; an empty cell is shown as "-".
  void Add(std::vector<std::string> cells);
  // Columns as wide as their widest cell, two spaces between, none at the end of a line.
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the head first
};

}  // namespace isthmus
