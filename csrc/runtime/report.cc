#include "runtime/report.h"

#include <sstream>

namespace collectives {
namespace {

// Lines; the only free text that may hold a line break comes with its length.
void put_text(std::ostringstream& out, const std::string& text) { out << text.size() << '\n' << text << '\n'; }

std::string get_text(std::istringstream& in) {
  std::size_t bytes = 0;
  in >> bytes;
  in.get();
  std::string text(std::min<std::size_t>(bytes, in.str().size()), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

}  // namespace

std::string Report::encode(std::size_t limit) const {
  constexpr std::size_t kReserve = 384;  // for the numbers, and the name
  constexpr std::size_t kRecent = 384;
  constexpr std::size_t kFound = 3000;
  const std::string last = recent.substr(0, kRecent);
  const std::string where = found.substr(0, kFound);
  std::ostringstream out;
  out << static_cast<int>(kind) << ' ' << communicator << ' ' << reporter << ' ' << culprit << ' ' << other << ' '
      << message << ' ' << sequence << ' ' << static_cast<int>(cause) << ' ' << waiting << ' ' << seen << ' ' << posted
      << '\n';
  put_text(out, text.substr(0, limit - kReserve - last.size() - where.size()));
  put_text(out, name.substr(0, kReserve / 3));
  put_text(out, last);
  put_text(out, where);
  // The number of counts, which separates them from the shapes.
  std::string words = std::to_string(counts.size()) + ' ';
  for (const auto* list : {&counts, &shapes}) {
    for (const std::int64_t value : *list) {
      const std::string word = std::to_string(value) + ' ';
      if (out.str().size() + words.size() + word.size() > limit) {
        return out.str() + words;
      }
      words += word;
    }
  }
  out << words;
  return out.str().substr(0, limit);
}

Report Report::decode(const std::string& text) {
  std::istringstream in(text);
  Report report;
  int kind = 0;
  int cause = 0;
  if (in >> kind >> report.communicator >> report.reporter >> report.culprit >> report.other >> report.message >>
      report.sequence >> cause >> report.waiting >> report.seen >> report.posted) {
    report.kind = static_cast<ErrorKind>(kind);
    report.cause = static_cast<Cause>(cause);
  }
  report.text = get_text(in);
  report.name = get_text(in);
  report.recent = get_text(in);
  report.found = get_text(in);
  std::size_t counts = 0;
  in >> counts;
  for (std::int64_t value = 0; in >> value;) {
    (report.counts.size() < counts ? report.counts : report.shapes).push_back(value);
  }
  return report;
}

}  // namespace collectives
