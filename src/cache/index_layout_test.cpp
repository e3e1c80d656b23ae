#include "cache/index_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace winnow::cache {
namespace {

// Where the byte of (row, channel) of 1-byte keys lies: tiles of 16 rows, in them columns of 16 bytes, in these the rows.
TEST(IndexLayout, ShuffledOffsetsOfPublishedKeys) {
  struct Known {
    int64_t row, channel, byte;
  };
  for (const Known& k : {Known{0, 0, 0}, {0, 16, 256}, {1, 0, 16}, {15, 127, 2047}, {16, 0, 2048}, {17, 33, 2577}, {31, 127, 4095}})
    EXPECT_EQ(index_offset(IndexLayout::shuffled, k.row, k.channel, 128), k.byte) << k.row << ", " << k.channel;
  for (int64_t row : {0, 5, 63})
    for (int64_t channel : {0, 31, 127}) EXPECT_EQ(index_offset(IndexLayout::plain, row, channel, 128), row * 128 + channel);
}

TEST(IndexLayout, EveryPlaceIsTakenOnce) {
  for (int64_t rows : {16, 32, 48, 64})
    for (int64_t dim : {16, 32, 128}) {
      std::set<int64_t> places;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < dim; ++c) {
          const int64_t at = index_offset(IndexLayout::shuffled, r, c, dim);
          EXPECT_EQ(at, r / 16 * 16 * dim + c / 16 * 256 + r % 16 * 16 + c % 16);
          places.insert(at);
        }
      EXPECT_EQ(static_cast<int64_t>(places.size()), rows * dim);
      EXPECT_EQ(*places.rbegin(), rows * dim - 1);
    }
}

TEST(IndexLayout, NamesAndRefusals) {
  for (IndexLayout l : {IndexLayout::plain, IndexLayout::shuffled}) EXPECT_EQ(*parse_index_layout(name_of(l)), l);
  EXPECT_STREQ(parse_index_layout("tiled").error().what(), "unknown index layout 'tiled' (known: plain, shuffled)");
  EXPECT_EQ(index_layout_why_not(IndexLayout::plain, 3, 5), nullptr);
  EXPECT_EQ(index_layout_why_not(IndexLayout::shuffled, 32, 48), nullptr);
  EXPECT_NE(index_layout_why_not(IndexLayout::shuffled, 8, 128), nullptr);
  EXPECT_NE(index_layout_why_not(IndexLayout::shuffled, 16, 100), nullptr);
}

// A page goes from plain to shuffled and back; keys move as the offsets say, counted in elements, and nothing else moves.
TEST(IndexLayout, PagesGoThereAndBack) {
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8})
    for (int64_t page_tokens : {64, 128, 256}) {
      KvSpec plain;
      plain.attention_layers = 2, plain.latent_dim = 13, plain.latent_type = DType::bf16;
      plain.index_dim = 48, plain.kpool = 4, plain.index_keys = keys;
      KvSpec shuffled = plain;
      shuffled.index_layout = IndexLayout::shuffled;
      const KvLayout l(plain, page_tokens);
      ASSERT_EQ(l.page_bytes, KvLayout(shuffled, page_tokens).page_bytes);
      std::vector<std::byte> page(static_cast<size_t>(l.page_bytes)), there(page.size()), back(page.size());
      std::mt19937 rng(3);
      for (std::byte& b : page) b = static_cast<std::byte>(rng());
      rearrange_page(plain, l, page, IndexLayout::shuffled, there);
      rearrange_page(shuffled, l, there, IndexLayout::plain, back);
      EXPECT_EQ(page, back);
      EXPECT_NE(page, there);
      rearrange_page(shuffled, l, there, IndexLayout::shuffled, back);
      EXPECT_EQ(there, back);
      const int64_t width = bits_of(type_of(keys)) / 8;
      std::vector<bool> moved(page.size());
      for (const KvLayout::Part& p : l.parts)
        for (int64_t r = 0; r < l.page_states; ++r)
          for (int64_t c = 0; c < plain.index_dim; ++c)
            for (int64_t byte = 0; byte < width; ++byte) {
              const auto from = static_cast<size_t>(p.keys + (r * plain.index_dim + c) * width + byte);
              ASSERT_EQ(there[static_cast<size_t>(p.keys + index_offset(IndexLayout::shuffled, r, c, plain.index_dim) * width + byte)], page[from]);
              moved[from] = true;
            }
      for (size_t i = 0; i < page.size(); ++i) ASSERT_TRUE(moved[i] || there[i] == page[i]) << "a byte that is no key has moved";
    }
}

}  // namespace
}  // namespace winnow::cache
