#include "verify/combine.h"

#include <algorithm>
#include <string>

namespace collectives::verification {

Data combine(Values& values, const std::vector<Data>& sources, bool finish) {
  Data result;
  std::vector<std::size_t> at(sources.size(), 0);
  std::vector<ValueId> operands(sources.size());
  const std::int64_t bytes = sources[0].back().end;
  for (std::int64_t begin = 0; begin < bytes;) {
    std::int64_t end = bytes;
    int hops = 0;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const Piece* piece = &sources[s][at[s]];
      if (piece->end <= begin) {
        piece = &sources[s][++at[s]];
      }
      if (piece->shift != sources[0][at[0]].shift) {
        throw Violation{"combines different elements (shifted by " +
                        std::to_string(piece->shift - sources[0][at[0]].shift) + " bytes)"};
      }
      operands[s] = piece->value;
      end = std::min(end, piece->end);
      hops = std::max(hops, piece->hops);
    }
    result.push_back({begin, end, values.reduce(operands, finish), sources[0][at[0]].shift, hops});
    begin = end;
  }
  return result;
}

}  // namespace collectives::verification
