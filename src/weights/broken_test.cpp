// Spoiled checkpoints: each must be refused with one line that names file, tensor or field.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "weights/tiny_checkpoint.h"

namespace winnow::weights {
namespace {

namespace json = boost::json;
using testing::TinyCheckpoint;
using Spoil = std::function<void(TinyCheckpoint&)>;
using SpoilFiles = std::function<void(const std::string& dir)>;

const std::string kText = "model.language_model.";
const std::string kExpert = kText + "layers.1.mlp.experts.3.up_proj.weight";
const std::string kNorm = kText + "norm.weight";
const std::string kFile = "model.safetensors";
const std::string kIndex = "model.safetensors.index.json";

struct Case {
  const char* name;
  Spoil spoil;                    // before writing
  std::vector<std::string> says;  // parts of the message
  SpoilFiles files = {};          // after writing
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Changes one field of one tensor's header entry.
Spoil entry(const std::string& tensor, const std::string& field, json::value v) {
  return [=](TinyCheckpoint& t) { t.change_header = [=](int, json::object& h) { h.at(tensor).as_object()[field] = v; }; };
}

Spoil text_field(const char* field, json::value v) {
  return [=](TinyCheckpoint& t) { t.text()[field] = v; };
}

Spoil root_field(const char* field, json::value v) {
  return [=](TinyCheckpoint& t) { t.config[field] = v; };
}

Spoil quantization(const char* field, json::value v) {
  return [=](TinyCheckpoint& t) { t.config.at("quantization_config").as_object()[field] = v; };
}

Spoil index_entry(const std::string& tensor, json::value v) {
  return [=](TinyCheckpoint& t) {
    t.shards = 3;
    t.change_index = [=](json::object& i) { i.at("weight_map").as_object()[tensor] = v; };
  };
}

Spoil sharded(std::function<void(json::object&)> change = {}) {
  return [=](TinyCheckpoint& t) {
    t.shards = 3;
    t.change_index = change;
  };
}

void nothing(TinyCheckpoint&) {}

template <class T>
Spoil value(const std::string& tensor, size_t at, T v) {
  return [=](TinyCheckpoint& t) { std::memcpy(&t.tensor(tensor).data[at * sizeof(T)], &v, sizeof(T)); };
}

Spoil header_length(uint64_t n) {
  return [=](TinyCheckpoint& t) { t.change_bytes = [=](int, std::string& header, std::string&) { std::memcpy(header.data(), &n, 8); }; };
}

Spoil header_text(std::string text) {
  return [=](TinyCheckpoint& t) {
    t.change_bytes = [=](int, std::string& header, std::string&) {
      const uint64_t n = text.size();
      header = std::string(reinterpret_cast<const char*>(&n), 8) + text;
    };
  };
}

// ---- files ----

const Case kFiles[] = {
    {"Truncated",
     nothing,
     {kFile, "data_offsets end at"},
     [](const std::string& d) { std::filesystem::resize_file(d + "/" + kFile, std::filesystem::file_size(d + "/" + kFile) - 5); }},
    {"TruncatedInTheHeader", nothing, {kFile, "truncated?"}, [](const std::string& d) { std::filesystem::resize_file(d + "/" + kFile, 100); }},
    {"Empty", nothing, {kFile, "has 0 bytes"}, [](const std::string& d) { std::filesystem::resize_file(d + "/" + kFile, 0); }},
    {"SevenBytes", nothing, {kFile, "has 7 bytes"}, [](const std::string& d) { std::filesystem::resize_file(d + "/" + kFile, 7); }},
    {"MoreThanTheHeaderSays",
     nothing,
     {kFile, "3 bytes at the end of the file without a tensor"},
     [](const std::string& d) { testing::write_file(d + "/" + kFile, testing::read_file(d + "/" + kFile) + "xyz"); }},
    {"ADirectory",
     nothing,
     {kFile, "a directory"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/" + kFile);
       std::filesystem::create_directory(d + "/" + kFile);
     }},
    {"APipe",
     nothing,
     {kFile, "a pipe or device"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/" + kFile);
       ASSERT_EQ(::mkfifo((d + "/" + kFile).c_str(), 0600), 0);
     }},
    {"ALinkToItself",
     nothing,
     {kFile, "Too many levels of symbolic links"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/" + kFile);
       std::filesystem::create_symlink(kFile, d + "/" + kFile);
     }},
    {"ADanglingLink",
     nothing,
     {kFile, "No such file"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/" + kFile);
       std::filesystem::create_symlink("elsewhere", d + "/" + kFile);
     }},
    {"NoWeights",
     nothing,
     {"neither model.safetensors nor model.safetensors.index.json"},
     [](const std::string& d) { std::filesystem::remove(d + "/" + kFile); }},
    {"NoConfig", nothing, {"config.json", "cannot be opened"}, [](const std::string& d) { std::filesystem::remove(d + "/config.json"); }},
    {"EmptyConfig", nothing, {"config.json", "is empty"}, [](const std::string& d) { testing::write_file(d + "/config.json", ""); }},
    {"ConfigIsADirectory",
     nothing,
     {"config.json", "a directory"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/config.json");
       std::filesystem::create_directory(d + "/config.json");
     }},
    {"NoTensors", header_text("{}"), {kFile, "without a tensor"}},
};

// ---- safetensors headers ----

const Case kHeaders[] = {
    {"HugeHeader", header_length(uint64_t{1} << 40), {kFile, "header", "at most 100000000"}},
    {"HeaderLengthAllOnes", header_length(~uint64_t{0}), {kFile, "header", "at most"}},
    {"HeaderLongerThanTheFile", header_length(90'000'000), {kFile, "truncated?"}},
    {"HeaderNotJson", header_text("{\"a\": nonsense}"), {kFile, "not valid JSON at byte"}},
    {"HeaderCutOff", header_text("{\"a\": {\"dtype\": \"F32\""), {kFile, "not valid JSON"}},
    {"HeaderNotAnObject", header_text("[1, 2]"), {kFile, "does not begin with '{'"}},
    {"HeaderTooDeep", header_text("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"), {kFile, "not valid JSON"}},
    {"HeaderWithLeadingSpace", header_text(" {}"), {kFile, "does not begin with '{'"}},
    {"RepeatedTensor",
     header_text(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
     {kFile, "\"a\" appears twice"}},
    {"MetadataNotStrings",
     [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h["__metadata__"] = {{"format", 1}}; }; },
     {kFile, "__metadata__ entry \"format\" is not a string"}},
    {"MetadataNotAnObject",
     [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h["__metadata__"] = "pt"; }; },
     {kFile, "__metadata__ is not an object"}},
    {"UnknownDtype", entry(kNorm, "dtype", "F8_E5M2"), {kFile, kNorm, "dtype \"F8_E5M2\""}},
    {"DtypeNotAString", entry(kNorm, "dtype", 16), {kFile, kNorm, "dtype"}},
    {"NegativeDimension", entry(kNorm, "shape", {-8}), {kFile, kNorm, "shape", "not a whole number"}},
    {"FractionalDimension", entry(kNorm, "shape", {8.5}), {kFile, kNorm, "shape", "not a whole number"}},
    {"DimensionBeyond63Bits", entry(kNorm, "shape", {uint64_t{1} << 63}), {kFile, kNorm, "shape", "not a whole number"}},
    {"ShapeOverflows", entry(kNorm, "shape", {int64_t{1} << 40, int64_t{1} << 40}), {kFile, kNorm, "overflows 64 bits"}},
    {"ShapeInBitsOverflows", entry(kNorm, "shape", {int64_t{1} << 61}), {kFile, kNorm, "overflows 64 bits"}},
    {"TooManyDimensions", entry(kNorm, "shape", {1, 1, 1, 1, 1, 1, 1, 1, 8}), {kFile, kNorm, "9 dimensions"}},
    {"ShapeMissing",
     [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h.at(kNorm).as_object().erase("shape"); }; },
     {kFile, kNorm, "shape is missing"}},
    {"OffsetsMissing",
     [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h.at(kNorm).as_object().erase("data_offsets"); }; },
     {kFile, kNorm, "data_offsets"}},
    {"ThreeOffsets", entry(kNorm, "data_offsets", {0, 16, 32}), {kFile, kNorm, "array of two"}},
    {"OffsetsBackwards", entry(kNorm, "data_offsets", {32, 16}), {kFile, kNorm, "end (16) before they begin (32)"}},
    {"OffsetsNegative", entry(kNorm, "data_offsets", {-16, 0}), {kFile, kNorm, "data_offsets", "not a whole number"}},
    {"OffsetsOverflow",
     entry(kNorm, "data_offsets", {uint64_t{0xfffffffffffffff0}, uint64_t{0xffffffffffffffff}}),
     {kFile, kNorm, "data_offsets", "not a whole number"}},
    {"OffsetsBeyondTheFile", entry(kNorm, "data_offsets", {1 << 30, (1 << 30) + 16}), {kFile, kNorm, "bytes of data"}},
    {"SizeAgainstShape", entry(kNorm, "shape", {7}), {kFile, kNorm, "span 16 bytes where shape and dtype need 14"}},
    {"UnknownHeaderField", entry(kNorm, "strides", {1}), {kFile, kNorm, "unknown field \"strides\""}},
    {"EmptyName", header_text(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"), {kFile, "empty name"}},
    {"HalfAByte", entry(kNorm, "dtype", "F4"), {kFile, kNorm, "span 16 bytes"}},
    {"EntryNotAnObject", [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h[kNorm] = 3; }; }, {kFile, kNorm, "not an object"}},
    {"Overlapping",
     [](TinyCheckpoint& t) {
       t.change_header = [](int, json::object& h) {
         h.at(kText + "layers.1.input_layernorm.weight").as_object()["data_offsets"] =
             h.at(kText + "layers.0.input_layernorm.weight").at("data_offsets");
       };
     },
     {kFile, "layers.0.input_layernorm.weight", "layers.1.input_layernorm.weight", "overlap"}},
    {"AHole", [](TinyCheckpoint& t) { t.change_header = [](int, json::object& h) { h.erase(kNorm); }; }, {kFile, "hole of 16 bytes"}},
    {"DataNotAligned",
     [](TinyCheckpoint& t) {
       t.change_bytes = [](int, std::string& header, std::string&) {
         uint64_t n = 0;
         std::memcpy(&n, header.data(), 8);
         ++n;
         std::memcpy(header.data(), &n, 8);
         header += ' ';
       };
     },
     {kFile, "is not aligned to", "pad the header"}},
    {"OffsetNotAligned",
     [](TinyCheckpoint& t) {
       t.tensors.insert(t.tensors.begin(), {"odd", "F64", {1}, std::string(3, 'x')});  // sorts first, three bytes long
       t.change_header = [](int, json::object& h) { h.at("odd") = {{"dtype", "U8"}, {"shape", {3}}, {"data_offsets", {0, 3}}}; };
     },
     {kFile, "begin at 3, not aligned to 4 bytes"}},
    {"AControlCharacterInAName",
     [](TinyCheckpoint& t) {
       t.change_header = [](int, json::object& h) { h["evil\nname\x1b[2J"] = {{"dtype", "U8"}, {"shape", {-1}}, {"data_offsets", {0, 0}}}; };
     },
     {kFile, "evil\\x0aname\\x1b[2J"}},
};

// ---- index ----

const Case kIndexes[] = {
    {"MissingShard",
     sharded(),
     {"model-00002-of-00003.safetensors", "is missing", kIndex},
     [](const std::string& d) { std::filesystem::remove(d + "/model-00002-of-00003.safetensors"); }},
    {"MissingIndex",
     sharded(),
     {kIndex, "is missing", "model-00001-of-00003.safetensors"},
     [](const std::string& d) { std::filesystem::remove(d + "/" + kIndex); }},
    {"IndexNotJson",
     sharded(),
     {kIndex, "not valid JSON"},
     [](const std::string& d) { testing::write_file(d + "/" + kIndex, "{\"weight_map\": {"); }},
    {"IndexEmpty", sharded(), {kIndex, "not valid JSON"}, [](const std::string& d) { testing::write_file(d + "/" + kIndex, ""); }},
    {"IndexWithoutMap", sharded([](json::object& i) { i.erase("weight_map"); }), {kIndex, "weight_map is missing"}},
    {"IndexMapEmpty", sharded([](json::object& i) { i["weight_map"] = json::object(); }), {kIndex, "weight_map is empty"}},
    {"IndexNamesItself", index_entry(kNorm, json::string_view(kIndex)), {kIndex, kNorm, "not the name of a .safetensors file"}},
    {"IndexIsALinkToItself",
     sharded(),
     {kIndex, "Too many levels of symbolic links"},
     [](const std::string& d) {
       std::filesystem::remove(d + "/" + kIndex);
       std::filesystem::create_symlink(kIndex, d + "/" + kIndex);
     }},
    {"PathUp", index_entry(kNorm, "../model-00001-of-00003.safetensors"), {kIndex, kNorm, "leads out of the folder"}},
    {"PathAbsolute", index_entry(kNorm, "/etc/passwd"), {kIndex, kNorm, "leads out of the folder"}},
    {"PathDown", index_entry(kNorm, "sub/model.safetensors"), {kIndex, kNorm, "leads out of the folder"}},
    {"PathBackslash", index_entry(kNorm, "..\\model.safetensors"), {kIndex, kNorm, "leads out of the folder"}},
    {"ShardNotAString", index_entry(kNorm, 1), {kIndex, kNorm, "not a file name"}},
    {"TensorNotInItsShard",
     index_entry("model.ghost", "model-00001-of-00003.safetensors"),
     {"model-00001-of-00003.safetensors", "has no tensor \"model.ghost\""}},
    {"TensorInAnotherShard",
     sharded([](json::object& i) {
       auto& file = i.at("weight_map").as_object()[kNorm];
       file = file == "model-00001-of-00003.safetensors" ? "model-00002-of-00003.safetensors" : "model-00001-of-00003.safetensors";
     }),
     {kNorm, kIndex, "places in"}},
    {"TensorThatTheIndexLacks", sharded([](json::object& i) { i.at("weight_map").as_object().erase(kNorm); }), {kNorm, kIndex, "does not list"}},
    {"BothFileAndIndex",
     sharded(),
     {kFile, kIndex, "remove one of them"},
     [](const std::string& d) { std::filesystem::copy_file(d + "/model-00001-of-00003.safetensors", d + "/" + kFile); }},
    {"RepeatedInTheIndex",
     sharded(),
     {kIndex, "\"a\" appears twice"},
     [](const std::string& d) { testing::write_file(d + "/" + kIndex, R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"); }},
};

// ---- tensors ----

const Case kTensors[] = {
    {"MissingTensor", [](TinyCheckpoint& t) { t.drop(kNorm); }, {"missing " + kNorm}},
    {"MissingMatrix",
     [](TinyCheckpoint& t) { t.drop(kText + "layers.1.self_attn.indexer.wk.weight"); },
     {"missing " + kText + "layers.1.self_attn.indexer.wk.weight"}},
    {"MissingConvolution",
     [](TinyCheckpoint& t) { t.drop(kText + "layers.0.self_attn.k_conv1d.weight"); },
     {"1 problem", "missing " + kText + "layers.0.self_attn.k_conv1d.weight"}},
    {"MissingInTheMtpLayer",
     [](TinyCheckpoint& t) { t.drop(kText + "layers.3.enorm.weight"); },
     {"1 problem", "missing " + kText + "layers.3.enorm.weight"}},
    {"MissingInTheImageTower", [](TinyCheckpoint& t) { t.drop("model.visual.merger.proj.weight"); }, {"missing model.visual.merger.proj.weight"}},
    {"ExtraTensor", [](TinyCheckpoint& t) { t.add("model.extra.weight", "BF16", {2}); }, {"unused model.extra.weight in " + kFile}},
    {"ExtraLayer",
     [](TinyCheckpoint& t) { t.add(kText + "layers.4.input_layernorm.weight", "BF16", {8}); },
     {"unused " + kText + "layers.4.input_layernorm.weight"}},
    {"ExtraExpert",
     [](TinyCheckpoint& t) { t.add(kText + "layers.1.mlp.experts.4.up_proj.weight", "BF16", {6, 8}); },
     {"unused", "experts.4.up_proj"}},
    {"IndexerOfASharedLayer",
     [](TinyCheckpoint& t) { t.add(kText + "layers.2.self_attn.indexer.wk.weight", "BF16", {4, 8}); },
     {"unused", "layers.2.self_attn.indexer.wk.weight"}},
    {"BothNameStyles", [](TinyCheckpoint& t) { t.add(kText + "layers.0.attn_hc.fn", "BF16", {8, 16}); }, {"unused " + kText + "layers.0.attn_hc.fn"}},
    {"WrongShape",
     [](TinyCheckpoint& t) {
       t.drop(kNorm);
       t.add(kNorm, "BF16", {9});
     },
     {kNorm, kFile, "[9]", "[8]"}},
    {"Transposed", [](TinyCheckpoint& t) { t.tensor(kText + "layers.0.self_attn.b_proj.weight").shape = {8, 2}; }, {"b_proj", "[8, 2]", "[2, 8]"}},
    {"AMissingDimension",
     [](TinyCheckpoint& t) { t.tensor(kText + "layers.0.self_attn.q_conv1d.weight").shape = {8, 4}; },
     {"q_conv1d", "[8, 4]", "[8, 1, 4]"}},
    {"WrongDtype",
     [](TinyCheckpoint& t) {
       t.drop(kNorm);
       t.add(kNorm, "I32", {8});
     },
     {kNorm, kFile, "dtype i32"}},
    {"ScaleMissing", [](TinyCheckpoint& t) { t.drop(kExpert + "_scale_inv"); }, {kExpert, "is e4m3 but", "_scale_inv is missing"}},
    {"ScaleWithoutWeight",
     [](TinyCheckpoint& t) { t.add(kText + "layers.1.mlp.gone.weight_scale_inv", "F32", {1, 1}); },
     {"layers.1.mlp.gone.weight_scale_inv", "a scale without its weight"}},
    {"ScaleOfABf16Weight",
     [](TinyCheckpoint& t) { t.add(kText + "layers.0.mlp.up_proj.weight_scale_inv", "F32", {1, 1}); },
     {"layers.0.mlp.up_proj.weight", "has a scale but the dtype bf16"}},
    {"ScaleOfTheWrongShape",
     [](TinyCheckpoint& t) {
       t.drop(kExpert + "_scale_inv");
       t.add(kExpert + "_scale_inv", "F32", {1, 2});
     },
     {kExpert + "_scale_inv", "[1, 2]", "[1, 1]"}},
    {"ScaleOfTheWrongType",
     [](TinyCheckpoint& t) {
       t.drop(kExpert + "_scale_inv");
       t.add(kExpert + "_scale_inv", "BF16", {1, 1});
     },
     {kExpert + "_scale_inv", "bf16", "scales are f32"}},
    {"ScaleUnderAnotherName",
     [](TinyCheckpoint& t) { t.rename(kExpert + "_scale_inv", kExpert + "_scale"); },
     {kExpert + "_scale in", "_scale_inv is missing"}},
    {"Fp8Vector",
     [](TinyCheckpoint& t) {
       t.drop(kNorm);
       t.add(kNorm, "F8_E4M3", {8});
       t.add(kNorm + "_scale_inv", "F32", {1});
     },
     {kNorm, "matrices only"}},
    {"NanScale", value(kExpert + "_scale_inv", 0, std::numeric_limits<float>::quiet_NaN()), {kFile, kExpert + "_scale_inv", "NaN"}},
    {"InfiniteScale", value(kExpert + "_scale_inv", 0, std::numeric_limits<float>::infinity()), {kFile, kExpert + "_scale_inv", "infinite"}},
    {"ZeroScale", value(kExpert + "_scale_inv", 0, 0.0f), {kFile, kExpert + "_scale_inv", "not positive"}},
    {"NegativeScale", value(kExpert + "_scale_inv", 0, -1.0f), {kFile, kExpert + "_scale_inv", "not positive"}},
    {"NanCode", value(kExpert, 47, uint8_t{0xff}), {kFile, kExpert, "NaN"}},
    {"NanBf16", value(kNorm, 7, uint16_t{0x7fc0}), {kFile, kNorm, "NaN"}},
    {"InfiniteF32", value(kText + "layers.0.self_attn.A_log", 1, -std::numeric_limits<float>::infinity()), {kFile, "A_log", "infinite"}},
    {"ManyMissing",
     [](TinyCheckpoint& t) { std::erase_if(t.tensors, [](auto& x) { return x.name.find(".layers.1.") != std::string::npos; }); },
     {"problems with the tensors", "missing " + kText + "layers.1.input_layernorm.weight", "more"}},
    {"FusedHalf",
     [](TinyCheckpoint& t) {
       std::erase_if(t.tensors, [](auto& x) { return x.name.find(".layers.1.mlp.experts.") != std::string::npos; });
       t.add(kText + "layers.1.mlp.experts.gate_up_proj", "BF16", {4, 12, 8});
     },
     {"1 problem", "missing " + kText + "layers.1.mlp.experts.down_proj"}},
    {"FusedOfTheWrongShape",
     [](TinyCheckpoint& t) {
       std::erase_if(t.tensors, [](auto& x) { return x.name.find(".layers.1.mlp.experts.") != std::string::npos; });
       t.add(kText + "layers.1.mlp.experts.gate_up_proj", "BF16", {4, 8, 12});
       t.add(kText + "layers.1.mlp.experts.down_proj", "BF16", {4, 8, 6});
     },
     {"1 problem", "gate_up_proj", "[4, 8, 12]", "[4, 12, 8]"}},
    {"FusedFp8WithinABlock",
     [](TinyCheckpoint& t) {
       std::erase_if(t.tensors, [](auto& x) { return x.name.find(".layers.1.mlp.experts.") != std::string::npos; });
       t.add(kText + "layers.1.mlp.experts.gate_up_proj", "F8_E4M3", {4, 12, 8});
       t.add(kText + "layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", {4, 1, 1});
       t.add(kText + "layers.1.mlp.experts.down_proj", "BF16", {4, 8, 6});
     },
     {"gate_up_proj", "moe_intermediate_size to be a multiple of 128"}},
};

// ---- config ----

const Case kConfigs[] = {
    {"ConfigNotJson", [](TinyCheckpoint& t) { t.config_text = "{\"model_type\": \"glm5_next\","; }, {"config.json", "not valid JSON"}},
    {"ConfigNotAnObject", [](TinyCheckpoint& t) { t.config_text = "[]"; }, {"config.json", "not a JSON object"}},
    {"ConfigRepeatsAKey",
     [](TinyCheckpoint& t) { t.config_text = R"({"model_type": "glm5_next", "model_type": "glm5_next"})"; },
     {"config.json", "\"model_type\" appears twice"}},
    {"NoModelType", [](TinyCheckpoint& t) { t.config.erase("model_type"); }, {"config.json: model_type is missing"}},
    {"NoQuantMethod",
     [](TinyCheckpoint& t) { t.config.at("quantization_config").as_object().erase("quant_method"); },
     {"quantization_config.quant_method is missing"}},
    {"NoVisionOutput", [](TinyCheckpoint& t) { t.vision().erase("out_hidden_size"); }, {"vision_config.out_hidden_size is missing", "1536"}},
    {"GenerationNotAnObject", [](TinyCheckpoint& t) { t.generation_text = "[1]"; }, {"generation_config.json: not a JSON object"}},
    {"HugeConfig", [](TinyCheckpoint& t) { t.config_text = std::string(17 << 20, ' '); }, {"config.json", "has 17825792 bytes; more than"}},
    {"OtherModelType", root_field("model_type", "llama"), {"config.json", "model_type is \"llama\""}},
    {"OtherArchitecture", root_field("architectures", {"LlamaForCausalLM"}), {"architectures has \"LlamaForCausalLM\""}},
    {"NoArchitecture", root_field("architectures", json::array()), {"architectures is missing"}},
    {"NoTextConfig", [](TinyCheckpoint& t) { t.config.erase("text_config"); }, {"config.json", "text_config is missing"}},
    {"TextConfigNotAnObject", root_field("text_config", 3), {"text_config is 3, not an object"}},
    {"OtherTextModel", text_field("model_type", "glm4"), {"text_config.model_type is \"glm4\""}},
    {"NoKpool", [](TinyCheckpoint& t) { t.text().erase("index_kpool"); }, {"text_config.index_kpool is missing", "4", "16"}},
    {"NoTopK", [](TinyCheckpoint& t) { t.text().erase("num_experts_per_tok"); }, {"text_config.num_experts_per_tok is missing", "8", "7"}},
    {"TopKNoMultiple", text_field("index_topk", 9), {"text_config.index_topk is 9", "index_kpool = 4"}},
    {"NullVocab", text_field("vocab_size", nullptr), {"text_config.vocab_size is missing"}},
    {"NegativeHidden", text_field("hidden_size", -8), {"text_config.hidden_size is -8; allowed are 1 to"}},
    {"HugeLayers", text_field("num_hidden_layers", 1e9), {"text_config.num_hidden_layers", "not a whole number"}},
    {"TooManyLayers", text_field("num_hidden_layers", 100000), {"text_config.num_hidden_layers is 100000"}},
    {"HiddenBeyond64Bits", text_field("hidden_size", ~uint64_t{0}), {"text_config.hidden_size is 18446744073709551615"}},
    {"FractionalHeads", text_field("num_attention_heads", 2.5), {"text_config.num_attention_heads", "not a whole number"}},
    {"TextForANumber", text_field("q_lora_rank", "4"), {"text_config.q_lora_rank is \"4\""}},
    {"OtherKvHeads", text_field("num_key_value_heads", 1), {"text_config.num_key_value_heads is 1", "num_attention_heads = 2"}},
    {"Rope", text_field("qk_rope_head_dim", 64), {"text_config.qk_rope_head_dim is 64", "only 0"}},
    {"Nope", text_field("mla_use_nope", false), {"text_config.mla_use_nope is false"}},
    {"AttentionBias", text_field("attention_bias", true), {"text_config.attention_bias is true"}},
    {"NoCompression", text_field("index_kpool_compress", false), {"text_config.index_kpool_compress is false"}},
    {"OtherActivation", text_field("hidden_act", "gelu"), {"text_config.hidden_act is \"gelu\""}},
    {"OtherScoring", text_field("scoring_func", "softmax"), {"text_config.scoring_func is \"softmax\""}},
    {"OtherTopKMethod", text_field("topk_method", "greedy"), {"text_config.topk_method is \"greedy\""}},
    {"OtherLayerType",
     text_field("layer_types", {"linear_attention", "sliding_attention", "full_attention"}),
     {"text_config.layer_types has \"sliding_attention\" at layer 1"}},
    {"OtherMlpType", text_field("mlp_layer_types", {"dense", "sparse", "moe"}), {"text_config.mlp_layer_types has \"moe\" at layer 2"}},
    {"OtherIndexerType", text_field("indexer_types", {"full", "half", "full"}), {"text_config.indexer_types has \"half\" at layer 1"}},
    {"TooFewLayerTypes", text_field("layer_types", {"linear_attention"}), {"text_config.layer_types has 1 entries for num_hidden_layers = 3"}},
    {"SharedAfterLinear", text_field("indexer_types", {"full", "shared", "full"}), {"text_config.indexer_types makes layer 1 shared"}},
    {"BadPattern",
     [](TinyCheckpoint& t) {
       t.text().erase("indexer_types");
       t.text()["index_topk_pattern"] = "FXF";
     },
     {"text_config.index_topk_pattern is \"FXF\""}},
    {"NoStreams", text_field("hc_mult", 0), {"text_config.hc_mult is 0; allowed are 1 to 8"}},
    {"NineStreams", text_field("hc_mult", 9), {"text_config.hc_mult is 9; allowed are 1 to 8"}},
    {"PositiveBound",
     [](TinyCheckpoint& t) { t.text().at("linear_attn_config").as_object()["gate_lower_bound"] = 5; },
     {"text_config.linear_attn_config.gate_lower_bound is 5"}},
    {"NoKda", [](TinyCheckpoint& t) { t.text().erase("linear_attn_config"); }, {"text_config.linear_attn_config is missing"}},
    {"KdaHeadDim", [](TinyCheckpoint& t) { t.text().at("linear_attn_config").as_object()["head_dim"] = 0; }, {"linear_attn_config.head_dim is 0"}},
    {"GroupsDoNotDivide", text_field("n_group", 3), {"text_config.n_group is 3", "n_routed_experts = 4"}},
    {"MoreGroupsKept", text_field("topk_group", 3), {"text_config.topk_group is 3", "n_group = 2"}},
    {"GroupsOfOne",
     [](TinyCheckpoint& t) {
       t.text()["n_group"] = 4;
       t.text()["topk_group"] = 2;
     },
     {"text_config.n_group is 4"}},
    {"GroupsTooSmall", text_field("num_experts_per_tok", 3), {"text_config.topk_group is 1", "num_experts_per_tok = 3"}},
    {"MoreThanAllExperts", text_field("num_experts_per_tok", 5), {"text_config.num_experts_per_tok is 5", "n_routed_experts = 4"}},
    {"ZeroEpsilon", text_field("rms_norm_eps", 0), {"text_config.rms_norm_eps is 0"}},
    {"EosBeyondTheVocabulary", text_field("eos_token_id", {1, 16}), {"text_config.eos_token_id is 16; allowed are 0 to 15"}},
    {"ImageTokenBeyondTheVocabulary", root_field("image_token_id", 99), {"image_token_id is 99"}},
    {"OtherQuantization", quantization("quant_method", "mxfp4"), {"quantization_config.quant_method is \"mxfp4\""}},
    {"OtherFp8", quantization("fmt", "e5m2"), {"quantization_config.fmt is \"e5m2\""}},
    {"OtherBlocks", quantization("weight_block_size", {64, 64}), {"quantization_config.weight_block_size must be [128, 128]"}},
    {"StaticActivations", quantization("activation_scheme", "static"), {"quantization_config.activation_scheme is \"static\""}},
    {"VisionWidth", [](TinyCheckpoint& t) { t.vision()["out_hidden_size"] = 1536; }, {"vision_config.out_hidden_size is 1536", "hidden_size = 8"}},
    {"VisionHeads", [](TinyCheckpoint& t) { t.vision()["num_heads"] = 3; }, {"vision_config.num_heads is 3"}},
    {"OtherVisionModel", [](TinyCheckpoint& t) { t.vision()["model_type"] = "siglip"; }, {"vision_config.model_type is \"siglip\""}},
    {"GenerationNotJson", [](TinyCheckpoint& t) { t.generation_text = "{"; }, {"generation_config.json", "not valid JSON"}},
    {"GenerationTemperature",
     [](TinyCheckpoint& t) { t.generation_text = R"({"temperature": -1})"; },
     {"generation_config.json", "temperature is -1"}},
    {"GenerationEos", [](TinyCheckpoint& t) { t.generation_text = R"({"eos_token_id": "x"})"; }, {"generation_config.json", "eos_token_id is \"x\""}},
};

class Broken : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override { std::filesystem::remove_all(dir_); }
  const std::string dir_ = ::testing::TempDir() + "winnow_broken_" + std::to_string(::getpid());
};

TEST_P(Broken, IsRefusedInOneLine) {
  const Case& c = GetParam();
  TinyCheckpoint t;
  c.spoil(t);
  t.write(dir_);
  if (c.files) c.files(dir_);
  try {
    testing::load_whole(dir_);
    FAIL() << "it was loaded";
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_EQ(e.kind(), Failure::cannot_run);
    EXPECT_TRUE(message.starts_with(dir_)) << message;
    for (unsigned char ch : message) ASSERT_GE(ch, 0x20) << "not one printable line: " << message;
    for (const std::string& s : c.says) EXPECT_NE(message.find(s), std::string::npos) << "\"" << s << "\" is not in: " << message;
  }
}

auto name_of_case(const ::testing::TestParamInfo<Case>& i) { return std::string(i.param.name); }
INSTANTIATE_TEST_SUITE_P(Files, Broken, ::testing::ValuesIn(kFiles), name_of_case);
INSTANTIATE_TEST_SUITE_P(Headers, Broken, ::testing::ValuesIn(kHeaders), name_of_case);
INSTANTIATE_TEST_SUITE_P(Indexes, Broken, ::testing::ValuesIn(kIndexes), name_of_case);
INSTANTIATE_TEST_SUITE_P(Tensors, Broken, ::testing::ValuesIn(kTensors), name_of_case);
INSTANTIATE_TEST_SUITE_P(Configs, Broken, ::testing::ValuesIn(kConfigs), name_of_case);

// What is not spoiled loads: else every case above would pass for the wrong reason.
TEST(Unbroken, OneFileOrThree) {
  const std::string dir = ::testing::TempDir() + "winnow_unbroken";
  for (int shards : {1, 3}) {
    TinyCheckpoint t;
    t.shards = shards;
    t.generation_text = R"({"eos_token_id": [2, 1], "temperature": 0.6, "top_p": 0.9})";
    t.write(dir);
    EXPECT_NO_THROW(testing::load_whole(dir));
    const Config c = read_config(dir).or_throw();
    EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{2, 1}));
    EXPECT_FLOAT_EQ(c.default_temperature, 0.6f);
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace winnow::weights
