#include "gradientflow/planner/nelder_mead.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace gradientflow::planner {
namespace {

using Point = std::vector<double>;
using Cost = std::function<double(const Point&)>;

// The first simplex spans this part of the start, or of the box.
constexpr double kFirstSide = 0.15;
// The search ends when the costs of the simplex differ by less than this part.
constexpr double kEqual = 1e-7;
constexpr int kMostRounds = 300;
constexpr int kMostStarts = 4;

struct Vertex {
  Point at;
  double cost = 0;
};

class Simplex {
 public:
  Simplex(const SearchBox& box, const Point& start, const Cost& cost)
      : box_(box), cost_(cost) {
    vertices_.push_back(At(start));
    for (std::size_t i = 0; i < start.size(); ++i) {
      Point moved = start;
      const double side =
          kFirstSide * std::max(start[i], 0.1 * (box.most[i] - box.least[i]));
      moved[i] += moved[i] + side <= box.most[i] ? side : -side;
      vertices_.push_back(At(moved));
    }
  }

  Vertex Search() {
    for (int round = 0; round < kMostRounds; ++round) {
      std::sort(
          vertices_.begin(), vertices_.end(),
          [](const Vertex& a, const Vertex& b) { return a.cost < b.cost; });
      const double gap = vertices_.back().cost - vertices_.front().cost;
      if (gap <= kEqual * std::abs(vertices_.front().cost)) break;
      Improve();
    }
    return *std::min_element(
        vertices_.begin(), vertices_.end(),
        [](const Vertex& a, const Vertex& b) { return a.cost < b.cost; });
  }

 private:
  Vertex At(Point point) const {
    for (std::size_t i = 0; i < point.size(); ++i) {
      point[i] = std::clamp(point[i], box_.least[i], box_.most[i]);
    }
    const double cost = cost_(point);
    return {std::move(point), cost};
  }

  // The point on the line from the worst vertex through the middle of the
  // others: `far` of 1 reflects it, 2 goes further, below 0 comes back.
  Vertex Along(double far) const {
    const Point& worst = vertices_.back().at;
    Point point(worst.size());
    for (std::size_t i = 0; i < point.size(); ++i) {
      double middle = 0;
      for (std::size_t v = 0; v + 1 < vertices_.size(); ++v) {
        middle += vertices_[v].at[i];
      }
      middle /= static_cast<double>(vertices_.size() - 1);
      point[i] = middle + far * (middle - worst[i]);
    }
    return At(std::move(point));
  }

  void Improve() {
    const Vertex reflected = Along(1);
    if (reflected.cost < vertices_.front().cost) {
      const Vertex further = Along(2);
      vertices_.back() = further.cost < reflected.cost ? further : reflected;
      return;
    }
    if (reflected.cost < vertices_[vertices_.size() - 2].cost) {
      vertices_.back() = reflected;
      return;
    }
    const Vertex nearer =
        Along(reflected.cost < vertices_.back().cost ? 0.5 : -0.5);
    if (nearer.cost < std::min(reflected.cost, vertices_.back().cost)) {
      vertices_.back() = nearer;
      return;
    }
    for (std::size_t v = 1; v < vertices_.size(); ++v) {
      Point half = vertices_[v].at;
      for (std::size_t i = 0; i < half.size(); ++i) {
        half[i] = (half[i] + vertices_.front().at[i]) / 2;
      }
      vertices_[v] = At(std::move(half));
    }
  }

  const SearchBox& box_;
  const Cost& cost_;
  std::vector<Vertex> vertices_;
};

}  // namespace

std::vector<double> Minimize(const SearchBox& box, const Cost& cost) {
  Vertex best{box.start, std::numeric_limits<double>::infinity()};
  for (int start = 0; start < kMostStarts; ++start) {
    Vertex found = Simplex(box, best.at, cost).Search();
    const bool helps = found.cost < best.cost - 1e-6 * std::abs(found.cost);
    if (found.cost < best.cost) best = std::move(found);
    if (!helps) break;
  }
  return best.at;
}

}  // namespace gradientflow::planner
