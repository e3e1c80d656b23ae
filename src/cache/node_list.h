// A set of small numbers in the order in which they were put there, each operation O(1). The front is the oldest.
#pragma once

#include <cstdint>
#include <vector>

namespace winnow::cache {

class NodeList {
 public:
  static constexpr int32_t kNone = -1;

  bool contains(int32_t i) const { return static_cast<size_t>(i) < links_.size() && links_[static_cast<size_t>(i)].in; }
  int32_t front() const { return front_; }
  int32_t back() const { return back_; }
  int32_t next(int32_t i) const { return links_[static_cast<size_t>(i)].next; }
  int32_t before(int32_t i) const { return links_[static_cast<size_t>(i)].before; }
  int64_t size() const { return size_; }

  void push(int32_t i) {  // to the back, from wherever it is
    erase(i);
    if (links_.size() <= static_cast<size_t>(i)) links_.resize(static_cast<size_t>(i) + 1);
    links_[static_cast<size_t>(i)] = {back_, kNone, true};
    (back_ == kNone ? front_ : links_[static_cast<size_t>(back_)].next) = i;
    back_ = i;
    ++size_;
  }
  void erase(int32_t i) {
    if (!contains(i)) return;
    Link& l = links_[static_cast<size_t>(i)];
    (l.before == kNone ? front_ : links_[static_cast<size_t>(l.before)].next) = l.next;
    (l.next == kNone ? back_ : links_[static_cast<size_t>(l.next)].before) = l.before;
    l.in = false;
    --size_;
  }

 private:
  struct Link {
    int32_t before = kNone, next = kNone;
    bool in = false;
  };
  std::vector<Link> links_;
  int32_t front_ = kNone, back_ = kNone;
  int64_t size_ = 0;
};

}  // namespace winnow::cache
