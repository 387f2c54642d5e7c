#include "server/spec_difference.h"

#include <google/protobuf/util/message_differencer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/text.h"

namespace isthmus {

std::string SpecDifference(const v1::RunSpec& kept, const v1::RunSpec& given) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;  // lines of "modified: FIELD: KEPT -> GIVEN", "added: ...", "deleted: ..."
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(kept, given)) return "";
  const std::pair<std::string, std::string> line =
      absl::StrSplit(report.substr(0, report.find('\n')), absl::MaxSplits(": ", 1));
  const std::pair<std::string, std::string> field =
      absl::StrSplit(line.second, absl::MaxSplits(": ", 1));
  std::string kept_value = "not set", given_value = "not set";
  if (line.first == "added") {
    given_value = field.second;
  } else if (line.first == "deleted") {
    kept_value = field.second;
  } else {
    const std::pair<std::string, std::string> values =
        absl::StrSplit(field.second, absl::MaxSplits(" -> ", 1));
    kept_value = values.first;
    given_value = values.second;
  }
  return absl::StrCat(field.first, " is ", OneLine(kept_value, kReasonBytesMax), " there and ",
                      OneLine(given_value, kReasonBytesMax), " here");
}

}  // namespace isthmus
