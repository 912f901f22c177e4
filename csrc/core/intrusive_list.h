// An intrusive list: elements come and go in constant time and without allocation, wherever they are in it.
#pragma once

#include <cstddef>

namespace collectives {

// The links of an element: a base of its type. An element can be in several lists at a time, one for each tag.
template <typename T, typename Tag = T>
struct ListNode {
  void* list = nullptr;
  T* previous = nullptr;
  T* next = nullptr;
};

// Owns nothing: an element must be removed before it is destroyed.
template <typename T, typename Tag = T>
class IntrusiveList {
 public:
  IntrusiveList() = default;
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  // nullptr where there is none.
  T* front() const { return first_; }
  T* next(T& element) const { return node(element).next; }
  bool empty() const { return first_ == nullptr; }
  std::size_t size() const { return size_; }
  bool has(T& element) const { return node(element).list == this; }

  // To the end, out of the list that it is in, which may be this one.
  void push_back(T& element) {
    remove(element);
    node(element) = {this, last_, nullptr};
    (last_ == nullptr ? first_ : node(*last_).next) = &element;
    last_ = &element;
    ++size_;
  }

  // Out of the list that it is in, if any.
  static void remove(T& element) {
    if (node(element).list != nullptr) {
      static_cast<IntrusiveList*>(node(element).list)->unlink(node(element));
    }
  }

 private:
  using Node = ListNode<T, Tag>;
  static Node& node(T& element) { return element; }

  void unlink(Node& from) {
    const Node left = from;
    from = {};
    (left.previous == nullptr ? first_ : node(*left.previous).next) = left.next;
    (left.next == nullptr ? last_ : node(*left.next).previous) = left.previous;
    --size_;
  }

  T* first_ = nullptr;
  T* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace collectives
