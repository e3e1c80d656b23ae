// Responses that clients may ask for again or continue: the newest used ones within a number and a number of bytes. What is
// dropped is gone: its id is answered as unknown.
//
// Any thread.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/limits.h"

namespace winnow::server {

struct StoredResponse {
  std::string json;           // as GET gives it
  std::string messages = {};  // the conversation with its answer, as JSON of what templates see; empty: it is not finished
  // What was asked: ids and JSON of the items of the request.
  std::shared_ptr<const std::vector<std::pair<std::string, std::string>>> input = {};
};

class ResponseStore {
 public:
  explicit ResponseStore(const Limits& limits) : most_(limits.responses), most_bytes_(limits.responses_bytes) {}
  void put(const std::string& id, StoredResponse response);  // in the place of one of this id
  std::shared_ptr<const StoredResponse> find(const std::string& id);
  bool erase(const std::string& id);
  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes;
  };
  using Entries = std::list<Entry>;  // the one used last is first
  void drop(Entries::iterator entry);

  const size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string_view, Entries::iterator> by_id_;  // keys are in the entries
  size_t bytes_ = 0;
};

}  // namespace winnow::server
