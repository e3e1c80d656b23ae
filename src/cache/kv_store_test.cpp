#include "cache/kv_store.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

namespace winnow::cache {
namespace {

// The published model: 34 KDA and 11 attention layers.
KvSpec published() {
  KvSpec s;
  s.attention_layers = 11, s.latent_dim = 512, s.latent_type = DType::bf16;
  s.index_dim = 128, s.kpool = 4, s.index_keys = IndexKeys::fp8;
  s.kda_layers = 34, s.kda_heads = 64, s.kda_key_dim = 128, s.kda_value_dim = 128;
  s.conv_channels = 3 * 64 * 128, s.conv_taps = 4;
  return s;
}

// Nothing in it is a multiple of a cache line.
KvSpec odd(IndexKeys keys) {
  KvSpec s;
  s.attention_layers = 2, s.latent_dim = 13, s.latent_type = DType::bf16;
  s.index_dim = keys == IndexKeys::fp8 ? 2 : 3, s.kpool = 64, s.index_keys = keys;
  s.kda_layers = 3, s.kda_heads = 3, s.kda_key_dim = 5, s.kda_value_dim = 7;
  s.conv_channels = 17, s.conv_taps = 3, s.conv_type = DType::bf16;
  return s;
}

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

TEST(KvLayout, SizesOfThePublishedModel) {
  const KvLayout l(published(), 64);
  EXPECT_EQ(l.page_states, 16);
  EXPECT_EQ(l.layer_state_bytes, 4'194'304);
  EXPECT_EQ(l.state_bytes, 142'606'336);
  EXPECT_EQ(l.layer_k_bytes + l.layer_u_bytes + l.layer_k_bytes, 9 * 98'304);  // 8 of a group and one
  EXPECT_EQ(l.layer_conv_bytes, 4 * 98'304);                                   // 3 before a row and the row
  EXPECT_EQ(l.ring_bytes, 34 * 13 * 98'304 + 11 * 4 * 2 * 128 * 4);
  EXPECT_EQ(l.parts[0].keys, 64 * 512 * 2);
  EXPECT_EQ(l.parts[0].scales - l.parts[0].keys, 16 * 128);
  EXPECT_EQ(l.page_bytes, 11 * (64 * 512 * 2 + 16 * 132));
}

TEST(KvLayout, DraftsLengthenTheRings) {
  KvSpec s = published();
  s.depth = 7;
  const KvLayout l(s, 64);
  EXPECT_EQ(l.kda_rows, 8 + 2 * 7 + 1);
  EXPECT_EQ(l.conv_rows, 3 + 2 * 7 + 1);
  EXPECT_EQ(l.pool_rows, 4 + 7);
}

TEST(KvLayout, G07_EveryArrayBeginsOnALineAtAllPageSizes) {
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8})
    for (int64_t page_tokens : {16, 64, 128, 256}) {
      KvSpec s = odd(keys);
      if (page_tokens < 64) s.kda_layers = 0, s.kpool = 4;
      const KvLayout l(s, page_tokens);
      EXPECT_EQ(l.page_bytes % 64, 0);
      for (const KvLayout::Part& p : l.parts) {
        EXPECT_EQ(p.latent % 64, 0);
        EXPECT_EQ(p.keys % 64, 0);
      }
    }
}

TEST(KvLayout, G06G08_RefusesPagesThatDoNotFitTheModel) {
  KvSpec s = published();
  EXPECT_EQ(message_of([&] { KvLayout(s, 48); }),
            "page_tokens is 48; pages of 16, 32, 64, 128 or 256 tokens are supported, and the least that holds whole chunks and pools");
  EXPECT_NE(message_of([&] { KvLayout(s, 32); }).find("KDA"), std::string::npos);
  s.kpool = 12;
  EXPECT_NE(message_of([&] { KvLayout(s, 64); }).find("index_kpool 12"), std::string::npos);
  EXPECT_EQ(KvLayout(s, 192).page_states, 16);  // the least that holds whole chunks and whole pools
  s.kpool = 0;
  EXPECT_NE(message_of([&] { KvLayout(s, 64); }).find("index_kpool 0"), std::string::npos);
  s = published();
  s.kda_layers = 0;
  EXPECT_EQ(KvLayout(s, 16).page_states, 4);
}

TEST(KvLayout, SizesThatDoNotFit64BitsAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(product({kMost, 1}), kMost);
  EXPECT_THROW(product({kMost / 2 + 1, 2}), Error);
  EXPECT_THROW(sum({kMost, 1}), Error);
  KvSpec s = published();
  s.latent_dim = int64_t{1} << 60;
  EXPECT_THROW(KvLayout(s, 64), Error);
  s = published();
  s.kda_layers = int64_t{1} << 50;
  EXPECT_THROW(KvLayout(s, 64), Error);
  const KvLayout l(published(), 64);
  EXPECT_THROW(sizes_for(l, int64_t{1} << 60, 64, {.device_bytes = kMost}), Error);
}

TEST(KvLayout, ABudgetHoldsStatesFirstAndThenPages) {
  const KvLayout l(published(), 64);
  const int64_t one = l.state_bytes + l.ring_bytes;
  EXPECT_EQ(sizes_for(l, 2, 1000, {.device_bytes = 2 * one + 5 * l.page_bytes + 1}).pages, 5);
  EXPECT_EQ(sizes_for(l, 2, 1000, {.device_bytes = 1'000'000'000'000}).pages, 2 * 16);        // no more than they can use
  EXPECT_EQ(sizes_for(l, 2, 1000, {.device_bytes = 1'000'000'000'000}).states, 2 + 2 + 256);  // and no more than are worth it
  EXPECT_EQ(sizes_for(l, 2, 1000, {.device_bytes = 2 * one + 12 * one}).states, 2 + 3);       // a quarter of the rest
  const KvSizes kept_nothing = sizes_for(l, 2, 1000, {.device_bytes = 2 * one + 12 * l.page_bytes, .keeps = false});
  EXPECT_EQ(kept_nothing.pages, 12);
  EXPECT_EQ(kept_nothing.states, 2);
  EXPECT_EQ(kept_nothing.page_ends, 0);
  const std::string none = message_of([&] { sizes_for(l, 2, 1000, {.device_bytes = 2 * one + l.page_bytes - 1}); });
  EXPECT_NE(none.find("the states of 2 sequences take 0.372 GB"), std::string::npos) << none;
  EXPECT_NE(message_of([&] { sizes_for(l, 2, 1000, {.device_bytes = one}); }), "no error");
}

// Fills every element of a view with a byte pattern after checking that nobody else has written there.
void claim(TensorView v) {
  const int64_t width = bits_of(v.dtype) / 8;
  ASSERT_EQ(reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(width), 0u);
  std::array<int64_t, 4> n{1, 1, 1, 1}, stride{};
  for (int i = 0; i < v.rank; ++i) n[4 - v.rank + i] = v.shape[i], stride[4 - v.rank + i] = v.stride[i];
  for (int64_t a = 0; a < n[0]; ++a)
    for (int64_t b = 0; b < n[1]; ++b)
      for (int64_t c = 0; c < n[2]; ++c)
        for (int64_t d = 0; d < n[3]; ++d)
          for (int64_t byte = 0; byte < width; ++byte) {
            std::byte& x = v.data[(a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]) * width + byte];
            ASSERT_EQ(x, std::byte{0}) << "two elements share a byte";
            x = std::byte{1};
          }
}

TEST(KvStore, G16G76_NoTwoElementsShareAByteAndNoneLiesOutside) {
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8}) {
    for (int64_t page_tokens : {64, 128, 256}) {
      auto device = device::make_cpu({.threads = 1, .backend = device::Backend::ref});
      const KvSpec spec = odd(keys);
      const KvLayout layout(spec, page_tokens);
      const KvStore store(*device, spec, layout, {.pages = 3, .states = 2}, 0);
      const KvViews& v = store.views();
      ASSERT_EQ(v.page_tokens, page_tokens);
      ASSERT_EQ(v.latent.size(), 2u);
      ASSERT_EQ(v.state.size(), 3u);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(describe(v.latent[i]), fmt::format("bf16 [3, {}, 13]", page_tokens));
        EXPECT_EQ(v.index[i].keys.shape[1], page_tokens / 64);
        EXPECT_EQ(v.latent[i].stride[0] * 2, layout.page_bytes);
        claim(v.latent[i]);
        claim(v.index[i].keys);
        EXPECT_EQ(static_cast<bool>(v.index[i].scales), keys == IndexKeys::fp8);
        if (v.index[i].scales) claim(v.index[i].scales);
        EXPECT_EQ(describe(v.pool_ring[i]), fmt::format("f32 [2, 64, 2, {}]", spec.index_dim));
        claim(v.pool_ring[i]);
      }
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(describe(v.state[i]), "f32 [2, 3, 5, 7]");
        EXPECT_EQ(describe(v.ring_u[i]), "f32 [2, 9, 3, 7]");
        EXPECT_EQ(describe(v.conv_ring[i]), "bf16 [2, 3, 17]");
        for (TensorView t : {v.state[i], v.ring_k[i], v.ring_u[i], v.ring_g[i], v.conv_ring[i]}) {
          EXPECT_TRUE(t.packed());
          claim(t);
        }
      }
      ASSERT_EQ(device->plan().size(), 3u);
      EXPECT_EQ(device->plan()[0].what, "pages");
      EXPECT_EQ(device->plan()[0].bytes, 3 * layout.page_bytes);
      EXPECT_EQ(device->plan()[1].bytes, 2 * layout.state_bytes);
      EXPECT_EQ(device->plan()[2].bytes, 2 * layout.ring_bytes);
    }
  }
}

// Every byte that any view shows of a record travels with it: index keys, scales, latents; S, rings, both halves of the open pool.
TEST(KvStore, G75G77G78RecordsTravelWhole) {
  for (IndexKeys keys : {IndexKeys::bf16, IndexKeys::fp8}) {
    auto device = device::make_cpu({.threads = 1, .backend = device::Backend::ref});
    const KvSpec spec = odd(keys);
    const KvLayout layout(spec, 64);
    KvStore store(*device, spec, layout, {.pages = 3, .states = 3});
    const KvViews& v = store.views();
    std::vector<TensorView> of_pages = v.latent, of_states;
    for (const IndexPages& i : v.index) {
      of_pages.push_back(i.keys);
      if (i.scales) of_pages.push_back(i.scales);
    }
    for (const auto* kind : {&v.state, &v.ring_k, &v.ring_u, &v.ring_g, &v.pool_ring, &v.conv_ring})
      of_states.insert(of_states.end(), kind->begin(), kind->end());
    const auto record_of = [](const TensorView& t, int64_t i) {
      return std::span(t.data + i * t.stride[0] * (bits_of(t.dtype) / 8), static_cast<size_t>(t.bytes() / t.shape[0]));
    };
    uint8_t next = 1;
    for (const auto* views : {&of_pages, &of_states})
      for (const TensorView& t : *views)
        for (std::byte& b : record_of(t, 1)) b = static_cast<std::byte>(next = static_cast<uint8_t>(next * 5 + 3));
    std::vector<std::byte> page(static_cast<size_t>(store.page_bytes())), state(static_cast<size_t>(store.state_bytes()));
    store.read(PageId(1), page);
    store.read(StateId(1), state);
    store.write(PageId(2), page);
    store.write(StateId(0), state);
    for (const TensorView& t : of_pages) {
      EXPECT_TRUE(std::ranges::equal(record_of(t, 1), record_of(t, 2)));
      EXPECT_TRUE(std::ranges::all_of(record_of(t, 0), [](std::byte b) { return b == std::byte{0}; })) << "a neighbour was written";
    }
    for (const TensorView& t : of_states) {
      EXPECT_TRUE(std::ranges::equal(record_of(t, 1), record_of(t, 0)));
      EXPECT_TRUE(std::ranges::all_of(record_of(t, 2), [](std::byte b) { return b == std::byte{0}; })) << "a neighbour was written";
    }
  }
}

TEST(KvStore, ScalesFollowTheKeysOfTheirPage) {
  auto device = device::make_cpu({.threads = 1, .backend = device::Backend::ref});
  KvSpec spec = published();
  spec.kda_layers = 0;
  spec.attention_layers = 2;
  const KvStore store(*device, spec, KvLayout(spec, 128), {.pages = 3, .states = 1}, 0);
  const IndexPages& p = store.views().index[1];
  const std::byte* page = p.keys.data + 2 * p.keys.stride[0];
  EXPECT_EQ(p.scales.data + 2 * p.scales.stride[0] * 4, page + 32 * 128);
}

TEST(KvStoreDeathTest, ACanaryTellsOfAWriteBeyondARecord) {
  auto device = device::make_cpu({.threads = 1, .backend = device::Backend::ref});
  const KvSpec spec = odd(IndexKeys::fp8);
  const KvLayout layout(spec, 64);
  KvStore store(*device, spec, layout, {.pages = 3, .states = 2}, 64);
  store.check_canaries();
  const std::vector<std::byte> page(static_cast<size_t>(store.page_bytes())), state(static_cast<size_t>(store.state_bytes()));
  for (int i = 0; i < 3; ++i) store.write(PageId(i), page);  // all of a record is the owner's
  for (int i = 0; i < 2; ++i) store.write(StateId(i), state);
  store.check_canaries();
  const auto one_behind = [](const TensorView& last) { return last.data + last.shape[0] * last.stride[0] * (bits_of(last.dtype) / 8); };
  const KvViews& v = store.views();
  for (const auto& views : {v.state, v.ring_k, v.ring_u, v.ring_g, v.pool_ring, v.conv_ring})
    for (const TensorView& t : views) {
      std::byte& b = *one_behind(t);
      const std::byte was = std::exchange(b, std::byte{0});
      EXPECT_DEATH(store.check_canaries(), "beyond the end of a layer's states or rings");
      b = was;
    }
  std::byte& b = *(v.latent[0].data + layout.page_bytes);
  b = std::byte{0};
  EXPECT_DEATH(store.check_canaries(), "beyond the end of a page");
}

TEST(KvStore, AModelWithoutAttentionLayersNeedsNoPageMemory) {
  auto device = device::make_cpu({.threads = 1, .backend = device::Backend::ref});
  KvSpec spec = odd(IndexKeys::f32);
  spec.attention_layers = 0;
  const KvLayout layout(spec, 64);
  EXPECT_EQ(layout.page_bytes, 0);
  const KvSizes sizes = sizes_for(layout, 2, 130, {.device_bytes = int64_t{1} << 30});
  EXPECT_EQ(sizes.pages, 6);  // they still count tokens
  const KvStore store(*device, spec, layout, sizes);
  EXPECT_TRUE(store.views().latent.empty());
  EXPECT_EQ(store.views().state.size(), 3u);
}

// Pages are counted in tokens, what the index keeps of them in states: 256 tokens are 64 states of four tokens, never 256.
TEST(KvLayout, G10_G80_PagesOfTokensHoldStates) {
  for (int64_t kpool : {1, 4, 8, 16})
    for (int64_t page_tokens : {64, 128, 256}) {
      KvSpec s = published();
      s.kpool = kpool;
      EXPECT_EQ(KvLayout(s, page_tokens).page_states, page_tokens / kpool);
      EXPECT_EQ(KvLayout(s, page_tokens).parts[0].scales - KvLayout(s, page_tokens).parts[0].keys, page_tokens / kpool * 128);
    }
}

TEST(KvLayout, ShuffledPagesHoldWholeTiles) {
  KvSpec s = published();
  s.index_layout = IndexLayout::shuffled;
  EXPECT_EQ(KvLayout(s, 64).page_states, 16);
  s.kpool = 8;
  EXPECT_NE(message_of([&] { KvLayout(s, 64); }).find("multiple of 16"), std::string::npos);
  EXPECT_EQ(KvLayout(s, 128).page_states, 16);
  s.kpool = 32;
  EXPECT_EQ(KvLayout(s, 512).page_states, 16);  // the least
  s.index_dim = 120;
  EXPECT_NE(message_of([&] { KvLayout(s, 512); }).find("index_head_dim"), std::string::npos);
}

// Whatever decides the meaning of a stored byte is part of the identity, even where sizes are equal.
TEST(KvLayout, G15_G69_TheIdentityTellsLayoutsAndTypesApart) {
  std::set<std::string> all{KvLayout(published(), 64).identity};
  EXPECT_EQ(KvLayout(published(), 64).identity, *all.begin());
  size_t wanted = 1;
  const auto add = [&](auto&& change, int64_t page_tokens = 64) {
    KvSpec s = published();
    change(s);
    all.insert(KvLayout(s, page_tokens).identity);
    EXPECT_EQ(all.size(), ++wanted) << *all.rbegin();
  };
  add([](KvSpec&) {}, 128);
  add([](KvSpec& s) { s.index_layout = IndexLayout::shuffled; });
  add([](KvSpec& s) { s.attention_layers = 10; });
  add([](KvSpec& s) { s.latent_dim = 576; });
  add([](KvSpec& s) { s.latent_type = DType::f16; });  // as wide as bf16
  add([](KvSpec& s) { s.index_dim = 64; });
  add([](KvSpec& s) { s.kpool = 8; });
  add([](KvSpec& s) { s.index_keys = IndexKeys::bf16; });
  add([](KvSpec& s) { s.kda_layers = 33; });
  add([](KvSpec& s) { s.kda_heads = 32; });
  add([](KvSpec& s) { s.kda_key_dim = 64, s.kda_value_dim = 256; });  // states of one size
  add([](KvSpec& s) { s.kda_key_dim = 256, s.kda_value_dim = 64; });
  add([](KvSpec& s) { s.conv_channels = 100; });
  add([](KvSpec& s) { s.conv_taps = 3; });
  add([](KvSpec& s) { s.conv_type = DType::bf16; });
  add([](KvSpec& s) { s.conv_type = DType::f16; });  // as wide as bf16
  add([](KvSpec& s) { s.depth = 1; });
}

}  // namespace
}  // namespace winnow::cache
