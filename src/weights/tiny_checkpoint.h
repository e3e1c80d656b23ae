// For tests: a checkpoint of a few kilobytes with every kind of tensor, to be written to a folder whole or spoiled.
#pragma once

#include <boost/json.hpp>

#include <functional>
#include <string>
#include <vector>

#include "weights/checkpoint.h"

namespace winnow::weights::testing {

struct TinyTensor {
  std::string name, dtype;  // dtype as the file has it: "BF16"
  std::vector<int64_t> shape;
  std::string data;
};

struct TinyCheckpoint {
  TinyCheckpoint();

  boost::json::object config;       // sub-objects through text(), vision()
  std::string config_text;          // if not empty, written instead of `config`
  std::string generation_text;      // if not empty, generation_config.json
  std::vector<TinyTensor> tensors;  // trunk, MTP layer, image tower; experts in block FP8
  int shards = 1;                   // more than one: with an index
  // Applied while a file is written, by shard number from 0.
  std::function<void(int, boost::json::object& header)> change_header;
  std::function<void(int, std::string& header, std::string& data)> change_bytes;
  std::function<void(boost::json::object& index)> change_index;

  boost::json::object& text() { return config.at("text_config").as_object(); }
  boost::json::object& vision() { return config.at("vision_config").as_object(); }
  TinyTensor& tensor(std::string_view name);
  void drop(std::string_view name);
  void rename(std::string_view name, std::string_view to);
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape);  // finite values
  void write(const std::string& dir) const;
};

int64_t bytes_of_tiny(const std::string& dtype, const std::vector<int64_t>& shape);
void write_file(const std::string& path, std::string_view bytes);
std::string read_file(const std::string& path);

// Opens the folder and loads the whole trunk. Throws what that throws.
void load_whole(const std::string& dir);

}  // namespace winnow::weights::testing
