#include "engine/failure/report.h"

#include <algorithm>
#include <sstream>

namespace collectives {
namespace {

constexpr std::size_t kMostWaits = 64;

constexpr char kBetweenNames = '\0';

// As many names as have room.
std::string joined(const std::vector<std::string>& names, std::size_t limit) {
  std::string text;
  for (const std::string& name : names) {
    if (text.size() + name.size() + 1 > limit) {
      break;
    }
    text += name + kBetweenNames;
  }
  return text;
}

std::vector<std::string> parted(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kBetweenNames, begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

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
  constexpr std::size_t kReserve = 1024;  // what the other lines take at most, of kReportBytes
  constexpr std::size_t kRecent = 384;
  constexpr std::size_t kFound = 3000;
  constexpr std::size_t kNames = 2000;
  const std::string last = recent.substr(0, kRecent);
  const std::string where = found.substr(0, kFound);
  const std::string named = joined(names, kNames);
  std::ostringstream out;
  out << static_cast<int>(kind) << ' ' << communicator << ' ' << reporter << ' ' << origin << ' ' << suspect << ' '
      << other << ' ' << message << ' ' << sequence << ' ' << static_cast<int>(cause) << ' ' << waiting << ' ' << seen
      << ' ' << posted << ' ';
  const std::size_t waits_told = std::min(waits.size(), kMostWaits);
  out << waits_told;
  for (std::size_t i = 0; i < waits_told; ++i) {
    out << ' ' << waits[i];
  }
  out << '\n';
  put_text(out, text.substr(0, limit - kReserve - last.size() - where.size() - named.size()));
  put_text(out, name.substr(0, 128));
  put_text(out, last);
  put_text(out, where);
  put_text(out, named);
  // The number of counts, which separates them from the shapes.
  std::string words = ' ' + std::to_string(counts.size()) + ' ';
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

bool Report::valid(int size) const {
  const auto is_rank = [size](int r) { return r >= -1 && r < size; };
  return readable() && is_rank(reporter) && is_rank(origin) && is_rank(suspect) && is_rank(other);
}

Report Report::decode(const std::string& text) {
  std::istringstream in(text);
  Report report;
  int kind = 0;
  int cause = 0;
  if (in >> kind >> report.communicator >> report.reporter >> report.origin >> report.suspect >> report.other >>
      report.message >> report.sequence >> cause >> report.waiting >> report.seen >> report.posted) {
    const bool known = kind >= 0 && kind <= static_cast<int>(ErrorKind::kBackend);
    report.kind = known ? static_cast<ErrorKind>(kind) : ErrorKind::kGeneric;
    report.cause =
        cause >= 0 && cause <= static_cast<int>(Cause::kMismatch) ? static_cast<Cause>(cause) : Cause::kOther;
  }
  std::size_t waits = 0;
  in >> waits;
  for (int r = -1; report.waits.size() < std::min(waits, kMostWaits) && in >> r;) {
    report.waits.push_back(r);
  }
  report.text = get_text(in);
  report.name = get_text(in);
  report.recent = get_text(in);
  report.found = get_text(in);
  report.names = parted(get_text(in));
  std::size_t counts = 0;
  in >> counts;
  for (std::int64_t value = 0; in >> value;) {
    (report.counts.size() < counts ? report.counts : report.shapes).push_back(value);
  }
  return report;
}

}  // namespace collectives
