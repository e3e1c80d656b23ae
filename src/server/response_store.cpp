#include "server/response_store.h"

namespace winnow::server {
namespace {

constexpr size_t kOverhead = 512;  // of an entry beside its texts

}  // namespace

void ResponseStore::drop(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::put(const std::string& id, StoredResponse response) {
  size_t bytes = kOverhead + id.size() + response.json.size() + response.messages.size();
  if (response.input)
    for (const auto& [item, text] : *response.input) bytes += 2 * sizeof(std::string) + item.size() + text.size();
  const auto kept = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) drop(old->second);
  if (bytes > most_bytes_ / 4 || most_ == 0) return;
  while (entries_.size() >= most_ || bytes_ + bytes > most_bytes_) drop(std::prev(entries_.end()));
  entries_.push_front({id, kept, bytes});
  by_id_.emplace(entries_.front().id, entries_.begin());
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  drop(found->second);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace winnow::server
