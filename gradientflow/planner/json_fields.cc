#include "gradientflow/planner/json_fields.h"

#include <cmath>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How a file is read: each read of a field checks its type and range, and notes
// its name. The first problem stays in the Status that all Fields of a file
// share, and Finish() refuses names that were not read.
namespace gradientflow::planner {
namespace {

using Json = nlohmann::json;

// Beyond this a double no longer counts one by one.
constexpr double kMostCount = 9007199254740992.0;
constexpr double kMostNumber = 1e18;

// What was found, in so few words that they fit into a message.
std::string Seen(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace

Fields::Fields(const Json& object, std::string path, Status* status)
    : object_(object), path_(std::move(path)), status_(status) {
  if (status_->ok() && !object_.is_object()) {
    *status_ = {StatusCode::kInvalidArgument,
                StrCat(path_, "expected an object, seen ", Seen(object_))};
  }
}

bool Fields::Has(const char* name) const {
  return object_.is_object() && object_.contains(name);
}

bool Fields::IsObject(const char* name) const {
  return Has(name) && object_[name].is_object();
}

bool Fields::IsFalse(const char* name) {
  if (!Has(name) || object_[name] != false) return false;
  read_.insert(name);
  return true;
}

const Json* Fields::Find(const char* name) {
  if (!status_->ok()) return nullptr;
  read_.insert(name);
  const auto found = object_.find(name);
  if (found != object_.end()) return &*found;
  *status_ = {StatusCode::kInvalidArgument, StrCat(path_, name, ": missing")};
  return nullptr;
}

void Fields::Expected(const char* name, const std::string& what) {
  if (!status_->ok()) return;
  *status_ = {StatusCode::kInvalidArgument,
              StrCat(path_, name, ": expected ", what,
                     Has(name) ? StrCat(", seen ", Seen(object_[name])) : "")};
}

double Fields::Number(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return 0;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (number >= 0 && number <= kMostNumber) return number;
  Expected(name,
           number > 0 ? "a number of at most 1e18" : "a number of at least 0");
  return 0;
}

double Fields::Positive(const char* name) {
  const double number = Number(name);
  if (status_->ok() && number == 0) Expected(name, "a number above 0");
  return number;
}

std::size_t Fields::Count(const char* name, std::size_t least) {
  const Json* value = Find(name);
  if (value == nullptr) return 0;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (number >= static_cast<double>(least) && number <= kMostCount &&
      number == std::floor(number)) {
    return static_cast<std::size_t>(number);
  }
  Expected(name, StrCat("a whole number of at least ", least));
  return 0;
}

std::string Fields::Text(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  Expected(name, "a text");
  return {};
}

Quartiles Fields::Times(const char* name) {
  Quartiles times;
  Object(name, [&](Fields& fields) {
    times.median = fields.Number("median");
    times.lower_quartile = fields.Number("lower_quartile");
    times.upper_quartile = fields.Number("upper_quartile");
    if (times.lower_quartile > times.median) {
      fields.Expected("lower_quartile", "at most the median");
    }
    if (times.upper_quartile < times.median) {
      fields.Expected("upper_quartile", "at least the median");
    }
  });
  return times;
}

Level Fields::Times99(const char* name) {
  Level level;
  Object(name, [&](Fields& fields) {
    level.p50 = fields.Number("p50");
    level.p99 = fields.Number("p99");
    if (level.p99 < level.p50) fields.Expected("p99", "at least p50");
  });
  return level;
}

Level Fields::Rate(const char* name) {
  Level level;
  Object(name, [&](Fields& fields) {
    level.p50 = fields.Positive("p50");
    level.p99 = fields.Positive("p99");
    if (level.p99 < 1) fields.Expected("p99", "at least 1");
    if (level.p99 > level.p50) fields.Expected("p99", "at most p50");
  });
  return level;
}

void Fields::Object(const char* name,
                    const std::function<void(Fields&)>& read) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_object()) return Expected(name, "an object");
  Fields fields(*value, StrCat(path_, name, "."), status_);
  read(fields);
  fields.Finish();
}

void Fields::List(const char* name, const std::function<void(Fields&)>& read) {
  const Json* value = Find(name);
  if (value == nullptr) return;
  if (!value->is_array()) return Expected(name, "a list");
  std::size_t index = 0;
  for (const Json& entry : *value) {
    Fields fields(entry, StrCat(path_, name, "[", index++, "]."), status_);
    if (status_->ok()) read(fields);
    fields.Finish();
    if (!status_->ok()) return;
  }
}

void Fields::Finish() {
  if (!status_->ok()) return;
  for (const auto& [name, value] : object_.items()) {
    if (read_.count(name) > 0) continue;
    *status_ = {
        StatusCode::kInvalidArgument,
        StrCat(path_, name, ": no such field in version ", kFileVersion)};
    return;
  }
}

Status ParseFile(std::string_view text, const char* kind, Provenance* measured,
                 const std::function<void(Fields&)>& read) {
  const std::string path = StrCat(kind, ": ");
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) {
    return {StatusCode::kInvalidArgument, StrCat(path, "this is not JSON")};
  }
  Status status;
  Fields fields(file, path, &status);
  if (fields.Text("kind") != kind) {
    fields.Expected("kind", StrCat("\"", kind, "\""));
  }
  if (fields.Count("version") != kFileVersion) {
    fields.Expected("version", StrCat(kFileVersion));
  }
  measured->by = fields.Text("measured_by");
  measured->at = fields.Text("measured_at");
  if (fields.Has("note")) measured->note = fields.Text("note");
  if (status.ok()) read(fields);
  fields.Finish();
  return status;
}

nlohmann::ordered_json FileHead(const char* kind, const Provenance& measured) {
  nlohmann::ordered_json file = {{"kind", kind},
                                 {"version", kFileVersion},
                                 {"measured_by", measured.by},
                                 {"measured_at", measured.at}};
  if (!measured.note.empty()) file["note"] = measured.note;
  return file;
}

std::string FileText(const nlohmann::ordered_json& file) {
  // A name may contain bytes that are not UTF-8.
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json ToJson(const Quartiles& times) {
  return {{"median", times.median},
          {"lower_quartile", times.lower_quartile},
          {"upper_quartile", times.upper_quartile}};
}

nlohmann::ordered_json ToJson(const Level& level) {
  return {{"p50", level.p50}, {"p99", level.p99}};
}

}  // namespace gradientflow::planner
