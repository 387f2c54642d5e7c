// How two specs differ, for people.
#pragma once

#include <string>

#include "isthmus/v1/run_spec.pb.h"

namespace isthmus {

// The first field in which `given` differs from `kept`, with both values; empty: in none.
//   "steps is 100 there and 200 here"
std::string SpecDifference(const v1::RunSpec& kept, const v1::RunSpec& given);

}  // namespace isthmus
