#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/config/options.h"

// Values as a person writes them. A parser takes the whole text (no blanks, no
// trailing characters) or gives nothing; printing and parsing again gives the
// same value.
namespace gradientflow {

// Decimal, with a leading '-' at most.
std::optional<std::int64_t> ParseInteger(std::string_view text);
// Decimal, no sign.
std::optional<std::uint64_t> ParseUnsigned(std::string_view text);

// Finite numbers only: no "nan", no "inf", nothing out of the type's range.
std::optional<double> ParseDouble(std::string_view text);
std::optional<float> ParseFloat(std::string_view text);
std::string PrintDouble(double value);
std::string PrintFloat(float value);

// on/off, true/false, yes/no, 1/0; any case.
std::optional<bool> ParseBool(std::string_view text);

// "4096", "64KB", "64KiB", "64K", "16MB", "1GB", "2TB"; any case. Binary
// multiples all: 64KB is 65536. Also "auto" (kAutoBytes) and "inf"
// (kInfiniteBytes). Nothing for sizes that collide with those two.
std::optional<std::size_t> ParseBytes(std::string_view text);
// In the largest unit that divides it: "256KB", "4097".
std::string PrintBytes(std::size_t bytes);

// ASCII only; whatever the locale.
std::string Lower(std::string_view text);
std::string Upper(std::string_view text);

// FNV-1a: the same on every machine.
std::uint64_t HashText(std::string_view text);

// Single-character edits (insert, delete, replace) from `a` to `b`.
std::size_t EditDistance(std::string_view a, std::string_view b);

// Syntax only, nothing is looked up. "host:port", "[ipv6]:port" with a port in
// 1..65535, or "file:///directory".
bool IsRendezvous(std::string_view text);

}  // namespace gradientflow
