#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "weights/safetensors.h"
#include "weights/tiny_checkpoint.h"

namespace winnow::weights::testing {
namespace {

namespace fs = std::filesystem;

class IdentityTest : public ::testing::Test {
 protected:
  IdentityTest() { fs::create_directories(dir_); }
  ~IdentityTest() override { fs::remove_all(dir_); }
  std::string identity() const { return Checkpoint::open(dir_).or_throw().identity(); }
  std::string written(const TinyCheckpoint& c) const {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    c.write(dir_);
    return identity();
  }
  const std::string dir_ = fs::temp_directory_path() / fmt::format("winnow-identity-{}", ::getpid());
};

TEST_F(IdentityTest, IsThatOfTheBytesAndNotOfThePlace) {
  const std::string first = written(TinyCheckpoint());
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(identity(), first);
  EXPECT_EQ(written(TinyCheckpoint()), first);
  const std::string other = dir_ + "-other";
  fs::rename(dir_, other);
  EXPECT_EQ(Checkpoint::open(other).or_throw().identity(), first);
  fs::remove_all(other);
}

TEST_F(IdentityTest, SeesConfigHeaderAndFiles) {
  const std::string first = written(TinyCheckpoint());
  TinyCheckpoint config, header, shards;
  config.config["comment"] = "another";
  header.change_header = [](int, boost::json::object& h) { h["__metadata__"] = {{"made_by", "another"}}; };
  shards.shards = 2;
  EXPECT_NE(written(config), first);
  EXPECT_NE(written(header), first);
  EXPECT_NE(written(shards), first);
}

// Small tensors are read whole; of a large one, a change as wide as the distance of two samples cannot hide.
TEST_F(IdentityTest, SeesChangedWeightsOfEqualShapes) {
  const std::string first = written(TinyCheckpoint());
  TinyCheckpoint changed;
  std::string& data = changed.tensor("model.language_model.norm.weight").data;
  data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 1);
  EXPECT_NE(written(changed), first);
}

TEST_F(IdentityTest, SamplesTheWholeLengthOfALargeTensor) {
  written(TinyCheckpoint());
  const std::string file = dir_ + "/model.safetensors";
  const auto with_byte_at = [&](double share) {
    std::vector<float> values(1 << 20, 1.0f);
    values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))] = 2.0f;
    fs::remove(file);
    write_safetensors(file, {{"long", ConstTensorView(reinterpret_cast<const std::byte*>(values.data()), DType::f32, {1 << 20})}});
    return identity();
  };
  const std::string first = with_byte_at(0);
  EXPECT_NE(with_byte_at(1), first);
  EXPECT_EQ(with_byte_at(0), first);
  // Samples begin at multiples of a seventh: one value in the middle of two is what it does not see, and says so.
  EXPECT_EQ(with_byte_at(1.5 / 7), with_byte_at(4.5 / 7));
}

}  // namespace
}  // namespace winnow::weights::testing
