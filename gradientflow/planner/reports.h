#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gradientflow/planner/advise.h"
#include "gradientflow/planner/check.h"
#include "gradientflow/planner/paper.h"
#include "gradientflow/planner/predict.h"
#include "gradientflow/planner/table.h"
#include "gradientflow/planner/usl.h"

// What gradientflow_plan prints, in each of the three formats. CSV has the main
// table only.
namespace gradientflow::planner {

// Tables under headings; JSON is an object with a list for each.
using Sections = std::vector<std::pair<std::string, Table>>;
std::string Print(const Sections& sections, TableFormat format);

Sections ReportOf(const std::vector<Prediction>& predictions);
Sections ReportOf(const Advice& advice, const std::string& currency);
Sections ReportOf(const CheckReport& report);
Sections ReportOf(const PaperReport& report);
// `ranks`: of which the rate is wanted. kInvalidArgument if one is too far.
Result<Sections> ReportOf(const UslReport& report,
                          const std::vector<double>& ranks);

}  // namespace gradientflow::planner
