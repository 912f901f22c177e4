// An intrusive list: elements come and go in constant time and without allocation, wherever they stand.
#pragma once

#include <cstddef>

namespace collectives {

// Where an element stands: a base of its type. An element can be in several rows at a time, one for each tag.
template <typename T, typename Tag = T>
struct RowPlace {
  void* row = nullptr;
  T* before = nullptr;
  T* behind = nullptr;
};

// Owns nothing: an element must leave before it is destroyed.
template <typename T, typename Tag = T>
class Row {
 public:
  Row() = default;
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  // nullptr where there is none.
  T* front() const { return first_; }
  T* behind(T& element) const { return place(element).behind; }
  bool empty() const { return first_ == nullptr; }
  std::size_t size() const { return size_; }
  bool has(T& element) const { return place(element).row == this; }

  // To the end, out of the row in which it stands, which may be this one.
  void put(T& element) {
    leave(element);
    place(element) = {this, last_, nullptr};
    (last_ == nullptr ? first_ : place(*last_).behind) = &element;
    last_ = &element;
    ++size_;
  }

  // Out of the row in which it stands, if any.
  static void leave(T& element) {
    if (place(element).row != nullptr) {
      static_cast<Row*>(place(element).row)->remove(place(element));
    }
  }

 private:
  using Place = RowPlace<T, Tag>;
  static Place& place(T& element) { return element; }

  void remove(Place& from) {
    const Place left = from;
    from = {};
    (left.before == nullptr ? first_ : place(*left.before).behind) = left.behind;
    (left.behind == nullptr ? last_ : place(*left.behind).before) = left.before;
    --size_;
  }

  T* first_ = nullptr;
  T* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace collectives
