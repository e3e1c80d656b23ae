// What a step's ops read about its rows. Filled on the host once a step, in place in persistent buffers; a device copy
// of the same arrays serves the kernels. A row is one token of one sequence; the rows of a sequence are contiguous and
// ascend in position. Padding rows and sequences do not exist on the CPU.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct Rows {
  In first_row;   // [sequences + 1] int32: first row of each sequence; the last entry is the number of rows
  In sequence;    // [tokens] int32: whose row it is
  In position;    // [tokens] int64: TokenPos
  In slot;        // [tokens] int64: SlotId where the row's latent goes
  In page_table;  // [sequences, max_pages] int32: PageId of each page of the sequence; entries beyond its pages are never read
  In state;       // [sequences] int32: StateId of its recurrent state and rings, which this step leaves complete
  In source;      // [sequences] int32: StateId whose record the step reads. Where it is not `state` (the record was handed over to a
                  // snapshot, or is one), it is not written, and whatever a later step needs of it is carried over to `state`
  In folded;      // [sequences] int64: tokens that its S holds, a multiple of kKdaGroup
  In decode;      // [sequences] int32: 1 for decode rows (the prompt is finished), 0 for a prefill chunk
  int64_t page_tokens = 64;

  int64_t tokens() const { return sequence.shape[0]; }
  int64_t sequences() const { return state.shape[0]; }
};
// Aborts if shapes disagree.
void expect(const Rows& rows);

// S holds this many tokens after a step over positions [position, position + count) of a sequence.
// Row form: a full group is folded when a later row needs it, never earlier. Decode: only a group that was full before
// the step is folded, because of the step's own rows all but the first may be drafts that are taken back.
// Chunked form (prefill): whole chunks at absolute multiples of kChunkGrid leave S at the end of the last of them.
int64_t folded_after(int64_t folded, TokenPos position, int64_t count, bool decode, bool chunked);

}  // namespace winnow::ops
