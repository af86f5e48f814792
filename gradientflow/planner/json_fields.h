#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/planner/measured.h"

// Reading JSON objects of which every field is checked. Only for the files of
// this folder.
namespace gradientflow::planner {

// The fields of one object. The first problem is kept, with the path of its
// field; after it, all reads return empty values. A Fields ends with Finish(),
// which refuses the fields that nobody has read.
class Fields {
 public:
  // `object` and `status` must outlive it. `path` is for messages: "profile:
  // tensors[3].".
  Fields(const nlohmann::json& object, std::string path, Status* status);

  bool Has(const char* name) const;
  bool IsObject(const char* name) const;
  // Whether the field is there and false, and so has been read.
  bool IsFalse(const char* name);
  // A number from 0 to 1e18, or above 0. What is larger is no measurement, and
  // sums and products of several stay finite.
  double Number(const char* name);
  double Positive(const char* name);
  // A whole number of at least `least`.
  std::size_t Count(const char* name, std::size_t least = 0);
  std::string Text(const char* name);
  Quartiles Times(const char* name);
  Level Times99(const char* name);
  // Bytes per second, at least 1.
  Level Rate(const char* name);
  // Calls `read` with the fields of the object, or of each object of the list.
  void Object(const char* name, const std::function<void(Fields&)>& read);
  void List(const char* name, const std::function<void(Fields&)>& read);
  // Reports that the field is not what it has to be.
  void Expected(const char* name, const std::string& what);
  void Finish();

 private:
  const nlohmann::json* Find(const char* name);

  const nlohmann::json& object_;
  const std::string path_;
  Status* const status_;
  std::set<std::string> read_;
};

// Parses the text of a file of this kind: checks `kind` and `version`, reads
// the provenance and then what `read` reads.
Status ParseFile(std::string_view text, const char* kind, Provenance* measured,
                 const std::function<void(Fields&)>& read);

// The start of a file of this kind, and the text of a whole one.
nlohmann::ordered_json FileHead(const char* kind, const Provenance& measured);
std::string FileText(const nlohmann::ordered_json& file);
nlohmann::ordered_json ToJson(const Quartiles& times);
nlohmann::ordered_json ToJson(const Level& level);

}  // namespace gradientflow::planner
