// A checkpoint folder in the Hugging Face layout: config.json, model.safetensors or shards with an index. Opening maps
// the shards and checks headers and index; loading is done by a Loader, which a model tells what it wants.
//
// Names: the official style (model.language_model.layers.L.self_attn.q_proj.weight, experts one by one) and the names of
// transformers' modules (attn_hc.fn, forget_gate.f_a_proj, conv1d, fused experts) are both accepted (docs/model.md, Names).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/view.h"
#include "device/device.h"
#include "weights/config.h"
#include "weights/safetensors.h"

namespace winnow::weights {

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& dir);
  const std::string& dir() const { return dir_; }
  const Config& config() const { return config_; }
  struct Entry {
    const SafetensorsFile* file;
    const TensorInfo* info;
  };
  const std::map<std::string, Entry, std::less<>>& tensors() const { return tensors_; }  // by the name in the files
  int64_t total_bytes() const { return total_bytes_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // What tells these weights from others, as 32 hexadecimal digits: XXH3-128 over config.json and, of each file in order of names, its
  // name, size and header, every tensor of up to 1 MiB, and of larger ones eight samples of 4 KiB from end to end. It sees another model,
  // another shape, type or order of tensors, and any tensor that a training step, a merge or a quantisation changed, since those change
  // nearly all of it. It does not see a few changed values of a large matrix, and it is no defence against somebody who means to
  // deceive it. Throws Error when a file cannot be read.
  std::string identity() const;

 private:
  std::string dir_;
  Config config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
  int64_t total_bytes_ = 0;
};

// How matrices come to be in memory: copied into huge pages that are the model's own, or mapped, read where the page cache
// has them. Mapped weights are ready without a copy and shared by all processes that map them, but a file that is
// overwritten later changes them, and one that is cut short later is SIGBUS.
enum class Residence : uint8_t { copy, map };
std::string_view name_of(Residence r);
Result<Residence> parse_residence(std::string_view name);

// Called about ten times a second from the loading thread.
using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Collects what a model wants under official names, then checks everything at once (missing, wrong shape, wrong type,
// unused: one Error that lists them) and copies it into memory of the device with all workers. With Residence::map a matrix
// that the model wants as it is stored, in one piece, stays in its file; the device must have caps().host_memory.
// Recognised but not loaded here: the MTP layer (index config.layers.size()) and model.visual.*; they are checked for
// names and shapes here and loaded by a loader whose wishes are theirs.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, device::Device& device, Residence residence = Residence::copy);
  ~Loader();
  // *to is filled by load(). Names are without "model.language_model." except lm_head.weight: "layers.3.self_attn.q_a_proj.weight".
  // A matrix stays f32, bf16 or e4m3 (with its block scales); f16 becomes f32. A convolution of the image tower is the
  // matrix [out, everything else].
  void matrix(Matrix* to, const std::string& name, int64_t n, int64_t k);
  // Widened to f32 whatever it is stored as. "layers.0.self_attn.conv1d.weight" {3P, 1, taps} or {3P, taps} is q|k|v in
  // one, also where the three are stored apart.
  void f32(ConstTensorView* to, const std::string& name, std::vector<int64_t> shape);
  // Whole matrix as f32, dequantised, handed to `use` while loading; nothing is kept (kv_b_proj is split and transposed).
  void visit(const std::string& name, int64_t n, int64_t k, std::function<void(ConstTensorView f32)> use);
  // Storage type of a matrix before it is loaded, e.g. to build its Op: e4m3, bf16 or f32 (f16 reads as f32, and so does
  // a tensor that is missing: load() reports it).
  DType type_of(const std::string& name) const;
  // Once. Throws Error; a value that is NaN or infinite is one, and so is a file that changed since the checkpoint was
  // opened. Memory is accounted as "weights" and "weights, mapped" in the device's plan and owned by the returned buffers.
  // Tensors are aligned to 64 bytes, mapped ones to their elements. On a device that only plans, names, shapes and types are checked
  // and memory is accounted, but nothing is read and nothing filled.
  std::vector<device::Buffer> load(const Progress& progress = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::weights
